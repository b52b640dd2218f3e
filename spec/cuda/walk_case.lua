-- Which tiles a block of attention passes by and which it takes for whole
-- (kernels/cuda/attention/attention_tiles.cuh), against the mask rule asked of each pair.
--
-- Not found by its name: spec/cuda/emulated_mma_spec.lua runs it on emulated threads, where alone
-- a walk can be seen.

local ffi = require 'ffi'
local wide = require 'spec.support.wide'

ffi.cdef [[
void tide_emulate_walk(const int32_t *q_index, const int32_t *k_index, const int *mask, int tq,
                       int tk, int cols, int keys, int t0, int rows, int *steps);
]]
local library = ffi.load((os.getenv 'TIDE_BUILD' or 'build/spec/emulated') .. '/libtide_cuda.so')
local WIDTHS = { 32, 64, 128 } -- of the tiles that kernels pass by

-- Documents and positions of n tokens, 0-based: documents of up to `most` tokens one after another;
-- stray: now and then a token of none. Document numbers go up by 1 or 2.
local function documents(n, most, stray)
   local index, doc, pos, left = ffi.new('int32_t[?]', 2 * n + 2), -1, 0, 0
   for i = 0, n - 1 do
      if left == 0 then doc, pos, left = doc + math.random(2), 0, math.random(most) end
      index[2 * i] = stray and math.random(90) == 1 and -1 or doc
      index[2 * i + 1] = pos
      pos, left = pos + 1, left - 1
   end
   return index
end

local function sees(c, i, j)
   local q, k = c.mask[3] + i, j
   if c.q_index then
      local doc = c.q_index[2 * i]
      if doc < 0 or doc ~= c.k_index[2 * j] then return false end
      q, k = c.q_index[2 * i + 1], c.k_index[2 * j + 1]
   end
   return (c.mask[0] == 0 or q >= k) and (c.mask[1] < 0 or q - k <= c.mask[1])
      and (c.mask[2] < 0 or k - q <= c.mask[2])
end

-- Whether some row of [t0, t1) sees a token of [c0, c1), and whether all see all of `width`.
local function pairs_of(c, keys, t0, t1, c0, c1, width)
   local some, all = false, c1 - c0 == width
   for t = t0, t1 - 1 do
      for u = c0, c1 - 1 do
         local seen
         if keys then seen = sees(c, u, t) else seen = sees(c, t, u) end
         some, all = some or seen, all and seen
      end
   end
   return some, all
end

-- Are tokens [a, b) of one document, all of them?
local function single(index, a, b)
   for i = a, b - 1 do
      if index[2 * i] ~= index[2 * a] or index[2 * i] < 0 then return false end
   end
   return true
end

-- Holds the walk of one block against the pairs; returns its number of whole tiles. Tiles below 64
-- are judged by the 64 tokens around them, so more of them are met, and fewer known as whole.
local function check(c, keys, t0, rows, width)
   local n, other = keys and c.tk or c.tq, keys and c.tq or c.tk
   local steps = ffi.new('int[?]', 2 * math.ceil(other / width) + 4)
   library.tide_emulate_walk(c.q_index, c.k_index, c.mask, c.tq, c.tk, width,
      keys and 1 or 0, t0, rows, steps)
   local met, at, wholes = {}, 0, 0
   while steps[at] >= 0 do
      assert.is_true(at == 0 or steps[at] > steps[at - 2], 'in order')
      met[steps[at]] = steps[at + 1]
      at = at + 2
   end
   local t1 = math.min(t0 + rows, n)
   local mine, theirs = c.q_index, c.k_index
   if keys then mine, theirs = theirs, mine end
   for c0 = 0, other - 1, width do
      local c1 = math.min(c0 + width, other)
      local some, all = pairs_of(c, keys, t0, t1, c0, c1, width)
      local where = ('%s %d, tile %d of %d'):format(keys and 'keys' or 'queries', t0, c0, width)
      assert.is_true(not some or met[c0] ~= nil, where .. ' is seen')
      assert.is_true(met[c0] ~= 1 or all, where .. ' is whole')
      if not mine or width >= 64 and single(mine, t0, t1) and single(theirs, c0, c1) then
         assert.equal(some, met[c0] ~= nil, where .. ' is met if it is seen')
         assert.equal(all, met[c0] == 1, where .. ' is known as whole')
      end
      wholes = wholes + (met[c0] or 0)
   end
   return wholes
end

local function mask_of(causal, left, right, start)
   return ffi.new('int[4]', causal, left, right, start)
end

local function blocks(c)
   local wholes = 0
   for i, rows in ipairs { 64, 64, 128 } do
      local width = WIDTHS[i]
      for t0 = 0, c.tq - 1, rows do wholes = wholes + check(c, false, t0, rows, width) end
      for t0 = 0, c.tk - 1, rows do wholes = wholes + check(c, true, t0, rows, width) end
   end
   return wholes
end

local function random_mask()
   local left = math.random(3) == 1 and math.random(0, 150) or -1
   local right = math.random(3) == 1 and math.random(0, 90) or -1
   return mask_of(math.random(0, 1), left, right, math.random(-100, 200))
end

describe('the tiles of a block', function()
   before_each(function() math.randomseed(11) end)

   it('are those that are seen, where tokens are numbered', function()
      local wholes = 0
      for _ = 1, 40 do
         wholes = wholes
            + blocks { tq = math.random(300), tk = math.random(400), mask = random_mask() }
      end
      assert.is_true(wholes > 50)
   end)

   for _, most in ipairs { 20, 150, 500 } do
      it(('hold documents of up to %d tokens'):format(most), function()
         for trial = 1, 20 do
            local tq, tk = math.random(300), math.random(400)
            blocks { tq = tq, tk = tk, mask = random_mask(),
                     q_index = documents(tq, most, trial % 2 == 0),
                     k_index = documents(tk, most, trial % 4 == 0) }
         end
      end)
   end

   it('are whole within a long document, all but the diagonal', function()
      local index = documents(640, 1, false)
      for i = 0, 639 do index[2 * i], index[2 * i + 1] = i < 320 and 3 or 5, i % 320 end
      local c = { tq = 640, tk = 640, mask = mask_of(1, -1, -1, 0), q_index = index,
                  k_index = index }
      local wholes = 0
      for t0 = 0, 639, 64 do wholes = wholes + check(c, false, t0, 64, 64) end
      assert.equal(2 * (4 + 3 + 2 + 1), wholes)
   end)

   it('are known where rows and tile meet in one pair', function()
      local q, k = documents(130, 1, false), documents(130, 1, false)
      local masks = { mask_of(1, -1, -1, 0), mask_of(0, 5, -1, 0), mask_of(1, 64, 3, 0) }
      for shift = -66, 66 do
         for i = 0, 129 do
            q[2 * i], q[2 * i + 1], k[2 * i], k[2 * i + 1] = 0, i + shift, 0, i
         end
         -- the edges of tiles, and those of the window of 5
         local edge = (shift + 2) % 32 <= 4 or (shift - 3) % 32 <= 4
         for _, mask in ipairs((wide or edge) and masks or {}) do
            blocks { tq = 130, tk = 130, mask = mask, q_index = q, k_index = k }
         end
      end
   end)

   it('go on beyond the first 32', function()
      local index = documents(2300, 2200, false)
      local c = { tq = 2300, tk = 2300, mask = mask_of(1, -1, -1, 0), q_index = index,
                  k_index = index }
      for _, t0 in ipairs { 0, 2112, 2240 } do
         check(c, false, t0, 64, 64)
         check(c, true, t0, 64, 64)
         check(c, false, t0, 128, 128)
      end
   end)
end)
