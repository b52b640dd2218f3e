-- Mamba-2 over many ranks against one: every boundary of documents, every relation of heads and
-- groups to 8 ranks.

local case = require 'spec.parallel.mamba_case'
local check, layer = case.check, case.layer

describe('Mamba-2 over 8 ranks equals one', function()
   for _, method in ipairs { 'hidden', 'state' } do
      for _, kind in ipairs { 'contiguous', 'zigzag' } do
         it(('%s, %s'):format(method, kind), function()
            for _, g in ipairs { { 16, 1 }, { 16, 2 }, { 16, 4 }, { 16, 8 }, { 16, 16 } } do
               check(8, { method = method, kind = kind, length = 96, rows = 2,
                  layer = layer(g[1], g[2]) })
               check(8, { method = method, kind = kind, length = 96,
                  cu = { 0, 1, 2, 30, 31, 64, 95, 96 }, layer = layer(g[1], g[2]) })
            end
         end)

         it(('%s, %s, bf16'):format(method, kind), function()
            check(8, { method = method, kind = kind, length = 512, rows = 2, dtype = 'bf16',
               layer = { dim = 256, heads = 8, head_dim = 32, state = 16, groups = 2 } }, 2e-2)
         end)
      end
   end

   it('with heads that do not divide', function()
      for heads = 1, 17 do
         for groups = 1, heads do
            if heads % groups == 0 then
               check(8, { method = 'hidden', kind = 'zigzag', length = 16,
                  layer = layer(heads, groups) })
            end
         end
      end
   end)
end)

describe('documents', function()
   it('may begin at every token', function()
      for _, method in ipairs { 'hidden', 'state' } do
         for _, kind in ipairs { 'contiguous', 'zigzag' } do
            for at = 0, 24 do
               check(3, { method = method, kind = kind, length = 24, cu = { 0, at, 24 },
                  layer = layer(3, 1) })
            end
         end
      end
   end)
end)
