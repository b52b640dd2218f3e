-- kept(of, key, make, is_gone): caches the result of make() in of.keep until its bytes are freed.
--
-- Tensors made in a step scope lose their bytes at its end, and are made again. is_gone(v) finds
-- this out for a value other than a tensor. A nil from make is kept, too.

local function tensor_gone(t) return t:is_gone() end

return function(of, key, make, is_gone)
   local v = of.keep[key]
   if v == nil or v and (is_gone or tensor_gone)(v) then
      v = make() or false
      of.keep[key] = v
   end
   return v or nil
end
