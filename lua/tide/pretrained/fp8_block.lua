-- Weights in FP8 with a scale for each block, as published folders of DeepSeek-V3 and Qwen3 have
-- them: X F8_E4M3 [N, K], and X_scale_inv f32 [N / rows, K / cols], rounded up, which multiplies
-- the numbers of its block. They are read as one tensor X in bf16.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'

local fp8_block = { name = 'FP8', codes = '', scales = '_scale_inv' }

local PIECE = 2 ^ 20                   -- numbers that are converted at a time

-- Returns the number of a code, e4m3 without infinities (arXiv 2209.05433).
local function number(code)
   local sign, e, m = code < 128 and 1 or -1, math.floor(code / 8) % 16, code % 8
   if e == 15 and m == 7 then return 0 / 0 end
   if e == 0 then return sign * m * 2 ^ -9 end
   return sign * (1 + m / 8) * 2 ^ (e - 7)
end

-- Returns the numbers of all codes, f32 [256, 1].
local function numbers()
   local list = {}
   for code = 0, 255 do list[code + 1] = { number(code) } end
   return tide.tensor(list, { dtype = 'f32' })
end

-- Returns the shape of X. codes, scales: { dtype, shape, stored } of the two tensors; block: rows
-- and columns that share a scale.
function fp8_block.shape(op, dir, name, codes, scales, block)
   local c, s = codes.shape, scales.shape
   local fits = codes.stored == 'F8_E4M3' and #c == 2 and #s == 2
      and (scales.dtype == 'f32' or scales.dtype == 'bf16')
   for d = 1, fits and 2 or 0 do fits = fits and s[d] == math.ceil(c[d] / block[d]) end
   err.raise_if(not fits, 'E_FORMAT', op, "%s: expected '%s' F8_E4M3 [N, K] and '%s_scale_inv' "
      .. 'F32 [N / %d, K / %d], rounded up, got %s %s and %s %s', dir, name, name, block[1],
      block[2], codes.stored, dims.text(c), scales.stored, dims.text(s))
   return { c[1], c[2] }
end

-- Returns the index of the block, from the first of these, of each of n places from `from` on.
local function blocks_of(from, n, size)
   local list, first = {}, math.floor(from / size)
   for i = 1, n do list[i] = math.floor((from + i - 1) / size) - first end
   return tide.tensor(list, { dtype = 'i64' })
end

-- Returns the scales of rows [at, at + n) of the columns of a box.
local function scales_of(at, n, offset, size, block, read)
   local row, col = math.floor(at / block[1]), math.floor(offset[2] / block[2])
   local rows = math.floor((at + n - 1) / block[1]) - row + 1
   local cols = math.floor((offset[2] + size[2] - 1) / block[2]) - col + 1
   local scales = read(fp8_block.scales, { row, col }, { rows, cols }):to 'f32'
   return scales:index_select(1, blocks_of(at, n, block[1]))
      :index_select(2, blocks_of(offset[2], size[2], block[2]))
end

-- Returns a box of X in bf16. read(what, offset, size): gives a box of the tensor X .. what of the
-- file.
function fp8_block.box(offset, size, read, block)
   local out = tide.empty(size, { dtype = 'bf16', device = 'cpu' })
   if dims.numel(size) == 0 then return out end
   local all, most = numbers(), math.max(1, math.floor(PIECE / size[2]))
   for done = 0, size[1] - 1, most do
      tide.scope(function()
         local n, at = math.min(most, size[1] - done), offset[1] + done
         local codes = read(fp8_block.codes, { at, offset[2] }, { n, size[2] })
         local x = tide.embedding(all, codes:to 'i32'):reshape { n, size[2] }
         out:narrow(1, done + 1, n):copy_(x * scales_of(at, n, offset, size, block, read))
      end)
   end
   return out
end

return fp8_block
