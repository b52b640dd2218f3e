-- Mamba-2 over ranks against the same layer on one: outputs, gradients of input and parameters, for
-- both methods, layouts, documents, heads and groups; bytes sent against their prices.

local case = require 'spec.parallel.mamba_case'
local check, layer = case.check, case.layer

describe('Mamba-2 over ranks equals one rank', function()
   for _, n in ipairs { 2, 3, 4 } do
      for _, method in ipairs { 'hidden', 'state' } do
         for _, kind in ipairs { 'contiguous', 'zigzag' } do
            it(('%s, %s, %d ranks'):format(method, kind, n), function()
               local list = {}
               for i, g in ipairs { { 12, 1 }, { 12, 12 }, { 12, 6 }, { 12, 2 } } do
                  list[i] = { method = method, kind = kind, length = 48, rows = 2,
                     layer = layer(g[1], g[2]) }
               end
               check(n, list)
            end)

            it(('packed: %s, %s, %d ranks'):format(method, kind, n), function()
               local list = {}
               for i, cu in ipairs { { 0, 48 }, { 0, 9, 10, 31, 48 }, { 0, 12, 24, 36, 48 },
                                     { 0, 1, 2, 3, 47, 48 }, { 0, 24, 48 }, { 0, 13, 13, 25, 41 } }
               do
                  list[i] = { method = method, kind = kind, length = 48, cu = cu,
                     layer = layer(6, 2) }
               end
               check(n, list)
            end)
         end
      end
   end

   it('with documents cut for themselves, hidden', function()
      for _, n in ipairs { 2, 3, 4 } do
         check(n, {
            { method = 'hidden', kind = 'document', cu = { 0, 24, 48, 72 }, layer = layer(8, 4) },
            { method = 'hidden', kind = 'document', cu = { 0, 7, 30, 31 }, layer = layer(8, 2) },
         })
      end
   end)

   it('with layouts of any order, hidden', function()
      check(2, { method = 'hidden', kind = 'balanced', length = 64, cu = { 0, 5, 40, 64 },
         layer = layer(4, 2) })
   end)

   it('with more runs of documents than are copied one by one, hidden', function()
      local cu = {}
      for i = 0, 80 do cu[i + 1] = 3 * i end
      check(2, { method = 'hidden', kind = 'document', cu = cu, layer = layer(4, 1) })
      check(3, { method = 'hidden', kind = 'document', cu = cu, layer = layer(2, 2) })
   end)

   it('splits heads and groups that do not divide', function()
      local four, three = {}, {}
      for i, g in ipairs { { 7, 1 }, { 7, 7 }, { 6, 3 }, { 10, 5 }, { 9, 3 }, { 3, 3 }, { 2, 1 },
                           { 5, 1 } } do
         four[i] = { method = 'hidden', kind = 'zigzag', length = 16, rows = 2,
            layer = layer(g[1], g[2]) }
         three[i] = { method = 'hidden', kind = 'contiguous', length = 18, cu = { 0, 5, 18 },
            layer = layer(g[1], g[2], { per_channel_D = true }) }
      end
      check(4, four)
      check(3, three)
   end)

   it('with every option of the layer', function()
      local list = {}
      for _, method in ipairs { 'hidden', 'state' } do
         for _, more in ipairs {
            { per_channel_D = true }, { conv_bias = false }, { bias = true }, { conv = 2 },
            { conv = 3, gate_last = true }, { dt_limit = { 0.01, 0.05 } },
            { dt_limit = { 0.01, math.huge } }, { A_range = { 0.001, 0.01 } },
            { A_range = { 1000, 4000 } },
         } do
            list[#list + 1] = { method = method, kind = 'zigzag', length = 36,
               layer = layer(6, 3, more) }
         end
      end
      check(3, list)
   end)

   it('with rows that have sequences of their own', function()
      local rows = {}
      for b, cuts in ipairs { { 5, 17 }, { 23, 24 } } do
         rows[b] = {}
         for t = 1, 32 do
            rows[b][t] = (t > cuts[1] and 1 or 0) + (t > cuts[2] and 3 or 0)
         end
      end
      local list = {}
      for _, method in ipairs { 'hidden', 'state' } do
         for _, kind in ipairs { 'contiguous', 'zigzag' } do
            list[#list + 1] = { method = method, kind = kind, length = 32, rows = 2,
               sequence = rows, layer = layer(4, 2) }
         end
      end
      check(2, list)
   end)

   it('with runs shorter than the convolution', function()
      local list = {}
      for _, kind in ipairs { 'contiguous', 'zigzag' } do
         for _, cu in ipairs { false, { 0, 2, 7, 8 } } do
            list[#list + 1] = { method = 'state', kind = kind, length = 8, cu = cu or nil,
               layer = layer(4, 2) }
         end
      end
      check(4, list)
   end)

   it('keeps NaN within its document, to the bit', function()
      for _, method in ipairs { 'hidden', 'state' } do
         for _, kind in ipairs { 'contiguous', 'zigzag' } do
            for _, n in ipairs { 2, 3 } do case.check_isolated(n, method, kind) end
         end
      end
   end)

   it('in f64 and bf16', function()
      for _, method in ipairs { 'hidden', 'state' } do
         check(3, { method = method, kind = 'zigzag', length = 48, cu = { 0, 20, 48 },
            dtype = 'f64', layer = layer(6, 2) }, 1e-12)
         check(2, { method = method, kind = 'zigzag', length = 64, dtype = 'bf16',
            layer = layer(8, 2) }, 2e-2)
         check(3, { method = method, kind = 'zigzag', length = 60, dtype = 'bf16',
            layer = layer(2, 1, { recurrence_dtype = 'f32' }) }, 2e-2)
      end
   end)
end)
