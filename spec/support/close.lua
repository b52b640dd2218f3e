-- Numbers that should be equal up to rounding.
--
-- close(a, b, opts): a and b are numbers, nested lists or tensors of one shape. opts.rel and
-- opts.abs; by default the tolerance of the coarser dtype. Raises with the first difference, its
-- place and the largest error; NaN equals NaN, an infinity only itself.

local tolerance = {
   f64 = 1e-12, f32 = 1e-5, bf16 = 1.6e-2, f16 = 2e-3,
}

local function is_tensor(v) return require('tide').is_tensor(v) end

local function dtype_tolerance(a, b)
   local rel
   for _, v in ipairs { a, b } do
      local t = is_tensor(v) and tolerance[v.dtype]
      if t and (not rel or t > rel) then rel = t end
   end
   return rel or 1e-6
end

local function flat(v, out, path)
   if type(v) == 'table' then
      for i = 1, #v do flat(v[i], out, path .. '[' .. i .. ']') end
   else
      if type(v) == 'boolean' then v = v and 1 or 0 end
      out[#out + 1] = { v, path }
   end
   return out
end

local function same_shape(a, b)
   if not is_tensor(a) or not is_tensor(b) then return end
   local s, t = table.concat(a.shape, ', '), table.concat(b.shape, ', ')
   if s ~= t then error(('close: shapes [%s] and [%s] differ'):format(s, t), 3) end
end

return function(a, b, opts)
   opts = opts or {}
   same_shape(a, b)
   local rel = opts.rel or dtype_tolerance(a, b)
   local abs = opts.abs or rel
   local x = flat(is_tensor(a) and a:tolist() or a, {}, '')
   local y = flat(is_tensor(b) and b:tolist() or b, {}, '')
   if #x ~= #y then error(('close: %d and %d numbers'):format(#x, #y), 2) end
   local worst, first = 0, nil
   for i = 1, #x do
      local u, v = x[i][1], y[i][1]
      local both_nan = u ~= u and v ~= v
      if not both_nan and u ~= v then
         local err = math.abs(u - v)
         local bound = abs + rel * math.abs(v)
         if err ~= err or err > bound then
            first = first or { x[i][2], u, v }
            if err == err then worst = math.max(worst, err) end
         end
      end
   end
   if first then
      error(('close: at %s: %.9g, expected %.9g (largest error %.3g, rel %.3g, abs %.3g)'):format(
         first[1] == '' and 'the value' or first[1], first[2], first[3], worst, rel, abs), 2)
   end
   return true
end
