-- What the whole model has where this rank holds a part of it (parallel.layout says which).

local whole = {}

-- Numbers in all parameters of the whole.
function whole.numel(model)
   local n = 0
   for _, e in ipairs(model:named_parameters()) do
      local layout = rawget(e.owner, '_layout')
      local size = 1
      for _, s in ipairs(layout and layout[e.field] and layout[e.field].shape or e.param.shape) do
         size = size * s
      end
      n = n + size
   end
   return n
end

return whole
