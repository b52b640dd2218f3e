-- Weights in MXFP4 (OCP Microscaling Formats 1.0), as published folders of gpt-oss have them: 32
-- neighbours of a row share a scale, a power of two, and have 4 bits each.
--
-- A file has X_blocks u8 [E, R, C / 32, 16], where the low half of a byte is the earlier number,
-- and X_scales u8 [E, R, C / 32], the exponent plus 127. They are read as one tensor X [E, C, R],
-- which a plain file of the same model has. bf16 holds each such number exactly.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'

local mxfp4 = { name = 'MXFP4', codes = '_blocks', scales = '_scales' }

local group = 32

-- The numbers of codes 0 to 7; the code's highest bit is the sign.
local numbers = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 }

-- Returns the two numbers of each byte, f32 [256, 2], and the power of each scale, [256, 1]. The
-- scale 255 is nan.
local function tables()
   local pairs_, powers = {}, {}
   local function number(code) return numbers[code % 8 + 1] * (code < 8 and 1 or -1) end
   for byte = 0, 255 do
      pairs_[byte + 1] = { number(byte % 16), number(math.floor(byte / 16)) }
      powers[byte + 1] = { byte < 255 and 2 ^ (byte - 127) or 0 / 0 }
   end
   return tide.tensor(pairs_, { dtype = 'f32' }), tide.tensor(powers, { dtype = 'f32' })
end

-- Returns the shape [E, C, R] of X. blocks, scales: { dtype, shape } of the two tensors.
function mxfp4.shape(op, dir, name, blocks, scales)
   local b, s = blocks.shape, scales.shape
   local fits = blocks.dtype == 'u8' and scales.dtype == 'u8' and #b == 4 and #s == 3
      and b[4] == group / 2
   for d = 1, 3 do fits = fits and b[d] == s[d] end
   err.raise_if(not fits, 'E_FORMAT', op, "%s: expected '%s_blocks' U8 [E, R, G, 16] and "
      .. "'%s_scales' U8 [E, R, G], got %s %s and %s %s", dir, name, name, blocks.stored,
      dims.text(b), scales.stored, dims.text(s))
   return { b[1], b[3] * group, b[2] }
end

-- Returns a box of X in bf16: offset and size in X. read(what, offset, size): gives a box of the
-- tensor X .. what of the file.
function mxfp4.box(offset, size, read)
   local first = math.floor(offset[2] / group)
   local n = size[2] == 0 and 0 or math.ceil((offset[2] + size[2]) / group) - first
   local at, count = { offset[1], offset[3], first }, { size[1], size[3], n }
   local codes = read(mxfp4.codes, { at[1], at[2], first, 0 }, { count[1], count[2], n, group / 2 })
   local scales = read(mxfp4.scales, at, count)
   local pairs_, powers = tables()
   local x = tide.embedding(pairs_, codes:to 'i32'):reshape { size[1], size[3], n, group }
   x = x * tide.embedding(powers, scales:to 'i32')
   return x:reshape { size[1], size[3], n * group }
      :narrow(3, offset[2] - first * group + 1, size[2]):transpose(2, 3):to 'bf16'
end

return mxfp4
