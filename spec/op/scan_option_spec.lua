-- The scan for every option and odd lengths against its definition, the token loop in f64 (device
-- ref): results and all gradients. Wide products of the same: spec/deep.

local case = require 'spec.op.scan_case'

describe('ssd_scan is its token loop, gradients too', function()
   for _, dtype in ipairs { 'f32', 'bf16' } do
      for _, o in ipairs(case.options) do
         it(('%s in %s'):format(o.name, dtype), function()
            for _, T in ipairs { 1, 2, 7, 33 } do
               for _, chunk in ipairs { 1, 5, 16, 64 } do case.check(T, chunk, o, dtype) end
            end
            case.check(131, 64, o, dtype)
            case.check(257, 300, o, dtype)
         end)
      end
   end

   it('packed, a boundary at every place, one and two', function()
      local T = 9
      for at = 0, T do
         for to = at, T do
            for _, chunk in ipairs { 1, 4, 9 } do
               case.check(T, chunk, { name = 'packed', cu = { 0, at, to, T }, initial = true,
                  last = true }, 'f32')
            end
         end
      end
   end)

   it('packed, of one token each', function()
      for _, T in ipairs { 1, 2, 9, 40 } do
         local cu = {}
         for t = 0, T do cu[t + 1] = t end
         for _, chunk in ipairs { 1, 4, 64 } do
            case.check(T, chunk, { name = 'ones', cu = cu, initial = true, last = true }, 'f32')
         end
      end
   end)
end)
