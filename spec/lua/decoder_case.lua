-- Weights and batches of the stored numbers of decoders (llama_reference.py, golden/decoders.py).

local tide = require 'tide'

local case = { V = 23 }

-- The weights of the references: sines, by the place of the name in sorted order. centre: around
-- what those of norms lie (1).
function case.fill(model, centre)
   local entries = model:named_parameters()
   table.sort(entries, function(a, b) return a.name < b.name end)
   tide.no_grad(function()
      for k, e in ipairs(entries) do
         local n = e.param:numel()
         local t = ((tide.arange(n, { dtype = 'f64' }) * 0.7 + 1.3 * (k - 1)):sin() * 0.3)
         if e.name:find('norm', 1, true) then t = t / 3 + (centre or 1) end
         e.param:copy_(t:reshape(e.param.shape))
      end
   end)
   return model
end

-- Ids and labels [2, 9], some labels ignored.
function case.inputs()
   local ids, labels = {}, {}
   for b = 0, 1 do
      local row = {}
      for i = 0, 8 do row[i + 1] = (7 * i + 3 * b + i * i) % case.V end
      local shifted = { unpack(row, 2, 9) }
      shifted[9] = -100
      if b == 0 then shifted[3] = -100 end
      ids[b + 1], labels[b + 1] = row, shifted
   end
   return tide.tensor(ids, { dtype = 'i64' }), tide.tensor(labels, { dtype = 'i64' })
end

-- what: a word for the message.
function case.near(want, got, tolerance, what)
   assert(math.abs(want - got) <= tolerance * math.max(1, math.abs(want)),
      ('%s: %.12g ~= %.12g'):format(what or 'value', want, got))
end

return case
