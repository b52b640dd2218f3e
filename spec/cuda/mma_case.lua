-- Attention on tensor cores by mma over several tiles and blocks, against the host: every mask,
-- heads of each width that has a kernel, packed tiles of one document and of several.
--
-- Not found by its name: spec/cuda/emulated_mma_spec.lua runs it on emulated threads. On a GPU:
-- TIDE_SPEC_DEVICE=cuda luajit /usr/bin/busted spec/cuda/mma_case.lua

local attention = require 'spec.cuda.attention'
local wide = require 'spec.support.wide'

local device = 'cuda'

local function shape(b, tq, tk, h, hk, d, dv)
   return { b = b, tq = tq, tk = tk, h = h, hk = hk, d = d, dv = dv or d }
end
local shapes = { shape(2, 130, 200, 2, 1, 64), shape(1, 70, 150, 1, 1, 128),
                 shape(1, 130, 70, 1, 1, 136, 200), shape(2, 70, 70, 1, 1, 5, 3) }
local names = {}
for name in pairs(attention.masks) do names[#names + 1] = name end
table.sort(names)

describe('attention by mma', function()
   for i, name in ipairs(names) do
      it('is that of the host: ' .. name, function()
         attention.agrees(wide and shapes or { shapes[i % 4 + 1], shapes[(i + 1) % 4 + 1] },
            attention.masks[name], 'bf16', device)
      end)
   end
   for _, name in ipairs { 'full', 'packed', 'bias in bf16' } do
      it('is that of the host in f16: ' .. name, function()
         attention.agrees({ shapes[1], shapes[3] }, attention.masks[name], 'f16', device)
      end)
   end

   -- A warp judges 32 tiles at a time.
   it('finds tiles beyond the first 32', function()
      local s = shape(1, 70, 2200, 1, 1, 8)
      for _, opts in ipairs { { packed = 2100, causal = true }, { packed = 2050 }, {} } do
         attention.agrees({ s }, opts, 'bf16', device)
      end
   end)
end)
