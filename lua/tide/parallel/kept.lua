-- kept(of, key, make): what make() gives, kept in of.keep until its bytes go (layer 8).
--
-- Tensors made in a step scope lose their bytes at its end; then they are made again.

return function(of, key, make)
   local t = of.keep[key]
   if not t or t:is_gone() then
      t = make()
      of.keep[key] = t
   end
   return t
end
