-- dequantize_nf4_part and linear_nf4_part: parts of weights in NF4 against the same rows and
-- columns of the whole weight, wherever they cut blocks and groups, and what is refused.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local refused = require 'spec.support.refused'

local function random(shape, device, seed, std)
   return tide.empty(shape, { device = device }):normal_(0, std or 1, { seed = seed })
end

-- Raises unless got is want within `off` of the largest of want.
local function near(want, got, off, what)
   assert.same(want.shape, got.shape)
   local a, b = want:to 'f32', got:to 'f32'
   local most, gap = a:abs():amax():item(), (a - b):abs():amax():item()
   assert.is_true(gap <= off * most, ('%s: off by %.3g of %.3g'):format(what, gap, most))
end

-- The codes of rows [r, r + rows) and columns [c, c + cols) of a weight of k columns and n numbers,
-- by the definition in tide_abi.h: the nibble of each number, then the magnitude of each block.
local function part_of(codes, n, k, r, c, rows, cols)
   local all, out, nibbles = codes:tolist(), {}, {}
   local npair, nblock = math.ceil(n / 2), math.ceil(n / 64)
   for i = r, r + rows - 1 do
      for j = c, c + cols - 1 do
         local at = i * k + j
         local pair = all[math.floor(at / 2) + 1]
         nibbles[#nibbles + 1] = at % 2 == 0 and math.floor(pair / 16) or pair % 16
      end
   end
   for i = 1, #nibbles, 2 do out[#out + 1] = 16 * nibbles[i] + (nibbles[i + 1] or 0) end
   local function block(at) out[#out + 1] = all[npair + math.min(at, nblock - 1) + 1] end
   local first = r * k + c
   if cols == k then
      for b = math.floor(first / 64), math.ceil((first + rows * k) / 64) - 1 do block(b) end
      return tide.tensor(out, { dtype = 'u8', device = codes.device }), first
   end
   local count = k % 64 == 0 and math.ceil((first % 64 + cols) / 64)
      or math.floor((cols + 62) / 64) + 1
   for i = 0, rows - 1 do
      for b = 0, count - 1 do block(math.floor((first + i * k) / 64) + b) end
   end
   return tide.tensor(out, { dtype = 'u8', device = codes.device }), first
end

-- n x k and rows r, columns c of it: within and across blocks, whole blocks, groups of 256 blocks
-- that begin before the part, a last block that is not full.
local cases = {
   { 6, 10, 2, 0, 3, 10 }, { 6, 10, 1, 4, 4, 6 }, { 9, 130, 3, 0, 5, 130 }, { 9, 130, 2, 2, 7, 64 },
   { 8, 128, 4, 64, 4, 64 }, { 8, 128, 0, 32, 8, 96 }, { 7, 66, 6, 64, 1, 2 },
   { 5, 7, 2, 0, 3, 7 }, { 300, 192, 120, 0, 100, 192 }, { 300, 192, 101, 64, 150, 128 },
   { 70, 1000, 17, 250, 33, 500 }, { 200, 258, 100, 128, 100, 130 },
}

describe('a part of a weight in NF4', function()
   for _, device in ipairs { 'ref', fast } do
      it('stands for the numbers of the whole weight on ' .. device, function()
         for i, v in ipairs(cases) do
            local n, k, r, c, rows, cols = unpack(v)
            local codes, scale = tide.quantize_nf4(random({ n, k }, device, i, 0.05))
            local W = tide.dequantize_nf4(codes, scale, n * k):reshape(n, k)
            local part, first = part_of(codes, n * k, k, r, c, rows, cols)
            local got = tide.dequantize_nf4_part(part, scale, rows, cols, first, k)
            assert.is_true(got:equal(W:narrow(1, r + 1, rows):narrow(2, c + 1, cols)), i)
         end
      end)

      it('multiplies as those numbers, and gives their slope, on ' .. device, function()
         for i, v in ipairs(cases) do
            local n, k, r, c, rows, cols = unpack(v)
            local codes, scale = tide.quantize_nf4(random({ n, k }, device, i, 0.05))
            local W = tide.dequantize_nf4(codes, scale, n * k):reshape(n, k)
            W = W:narrow(1, r + 1, rows):narrow(2, c + 1, cols):contiguous()
            local part, first = part_of(codes, n * k, k, r, c, rows, cols)
            for dtype, off in pairs { f32 = 2e-6, bf16 = 1e-2, f16 = 2e-3 } do
               for _, m in ipairs { 1, 3, 20 } do              -- few rows take a path of their own
                  local what = ('case %d, %d rows in %s'):format(i, m, dtype)
                  local x = random({ m, cols }, device, i + 50):to(dtype):requires_grad_()
                  local b = random({ rows }, device, i + 60):to(dtype):requires_grad_()
                  local dy = random({ m, rows }, device, i + 70):to(dtype)
                  local y = tide.linear_nf4_part(x, part, scale, b, rows, first, k)
                  y:backward(dy)
                  local dx, db = x.grad:clone(), b.grad:clone()
                  x:zero_grad()
                  b:zero_grad()
                  local want = tide.linear(x, W:to(dtype), b)
                  want:backward(dy)
                  near(want:detach(), y:detach(), off, what)
                  near(x.grad, dx, off, what .. ' dx')
                  near(b.grad, db, off, what .. ' db')
               end
            end
         end
      end)
   end

   it('is the whole weight where it is all of it', function()
      local codes, scale = tide.quantize_nf4(random({ 90, 128 }, fast, 1))
      local x = random({ 3, 128 }, fast, 2)
      assert.is_true(tide.linear_nf4(x, codes, scale, 90)
         :equal(tide.linear_nf4_part(x, codes, scale, nil, 90, 0, 128)))
   end)

   it('takes no rows and no columns', function()
      local _, scale = tide.quantize_nf4(tide.ones({ 4, 4 }, { device = fast }))
      local none = tide.empty({ 0 }, { dtype = 'u8', device = fast })
      assert.same({ 0, 2 }, tide.dequantize_nf4_part(none, scale, 0, 2, 4, 4).shape)
      local x = tide.ones({ 2, 0 }, { device = fast })
      assert.same({ { 0, 0, 0 }, { 0, 0, 0 } },
         tide.linear_nf4_part(x, none, scale, nil, 3, 2, 4):tolist())
   end)

   it('is refused where it does not fit', function()
      local codes, scale = tide.quantize_nf4(tide.ones { 8, 4 })
      local x = tide.ones { 1, 4 }
      local function part(...) return tide.dequantize_nf4_part, codes, scale, ... end
      local name = 'dequantize_nf4_part'
      refused('E_ARG', { name, '2 rows of 4 numbers, 2 apart' }, part(2, 4, 0, 2))
      refused('E_ARG', { name, 'first', 'even', '3' }, part(2, 4, 3, 4))
      refused('E_ARG', { name, '3 of 8 columns', 'even' }, part(2, 3, 0, 8))
      refused('E_ARG', { name, '2 of 5 columns', 'even' }, part(2, 2, 0, 5))
      refused('E_ARG', { name, 'stride' }, part(2, 4, 0, -4))
      refused('E_SHAPE', { name, 'codes', 'u8 [5]' }, part(2, 4, 8, 4))
      refused('E_SHAPE', { name, 'scale', 'at least [3]' }, tide.dequantize_nf4_part,
         tide.empty({ 5 }, { dtype = 'u8' }), scale, 2, 4, 16384, 4)
      refused('E_ARG', { name, 'are no part' }, part(2 ^ 40, 8192, 0, 8192))
      refused('E_SHAPE', { 'linear_nf4_part', 'codes', 'u8 [13]' }, tide.linear_nf4_part, x, codes,
         scale, nil, 6, 0, 4)
      refused('E_SHAPE', { 'linear_nf4_part', 'bias', '[8]' }, tide.linear_nf4_part, x, codes,
         scale, tide.ones { 3 }, 8, 0, 4)
   end)
end)
