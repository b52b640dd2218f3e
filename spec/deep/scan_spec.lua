-- The scan for every option, length and chunk beside its token loop: the wide product of
-- spec/op/scan_option_spec.lua.

local case = require 'spec.op.scan_case'
local wild = require 'spec.op.scan_wild'

describe('ssd_scan is its token loop', function()
   for _, dtype in ipairs { 'f32', 'bf16' } do
      for _, o in ipairs(case.options) do
         it(('%s in %s'):format(o.name, dtype), function()
            for T = 1, 40 do
               for _, chunk in ipairs { 1, 2, 3, 7, 16, 33 } do case.check(T, chunk, o, dtype) end
            end
            for _, T in ipairs { 127, 128, 129, 255, 300 } do
               for _, chunk in ipairs { 1, 31, 64, 128, 300 } do case.check(T, chunk, o, dtype) end
            end
         end)
      end
   end

   it('packed, boundaries at every two places', function()
      local T = 21
      for at = 0, T do
         for to = at, T do
            for _, chunk in ipairs { 1, 4, 8, 21 } do
               case.check(T, chunk, { name = 'packed', cu = { 0, at, to, T }, initial = true,
                  last = true, D = 'head' }, 'f32')
            end
         end
      end
   end)
end)

describe('ssd_scan with wild steps is as accurate as its token loop', function()
   for from = 1001, 5001, 500 do
      it(('seeds %d to %d'):format(from, from + 499), function()
         wild.check(from, from + 499)
      end)
   end
end)
