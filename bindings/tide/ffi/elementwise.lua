-- Elementwise ops: one plain function each.
--
-- Check the handles, call C, own the result; nothing else happens on this path, so a
-- loop over any of these compiles to one trace. Written out because a factory would share one
-- prototype, and with it its traces, between all ops.
--
-- The second operand of a binary op may be a number (or a boolean for a bool tensor), the first
-- too if the second is a tensor. A number takes the tensor's dtype if that can hold it, else i64
-- for whole numbers and f32 for the rest; the usual promotion follows.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local own = require 'tide.ffi.own'
local arg = require 'tide.ffi.arg'
local C = lib.C

local M = {}
local new_box, take, again, check = own.new_box, own.take, own.again_t, own.check_t
local tensor, number, pair, operand = arg.tensor, arg.number, arg.pair, arg.operand
local istype = ffi.istype
local tensor_t = ffi.typeof 'tide_tensor *'

-- ---- numbers as operands: x * mul + add keeps the dtype of a floating tensor -------------------

local function affine(x, mul, add)
   local box = new_box()
   local rc = C.tide_affine(box, x, mul, add)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_affine(box, x, mul, add)) end
   return take(box)
end

-- True if y is a plain number and x a floating tensor: the affine path is exact enough and cheap.
local function plain(x, y)
   return type(y) == 'number' and istype(tensor_t, x) and x ~= nil
      and C.tide_tensor_dtype(x) <= C.TIDE_F16
end

local new_bits = ffi.typeof 'union { double d; uint32_t w[2]; }'
-- True if 1 / n is exact (a power of two of moderate size), so that x / n == x * (1 / n).
local function has_inverse(n)
   local bits = new_bits(n)
   return bits.w[0] == 0 and bit.band(bits.w[1], 0xfffff) == 0
      and ((n >= 2^-100 and n <= 2^100) or (n <= -2^-100 and n >= -2^100))
end

-- ---- two operands ------------------------------------------------------------------------------

-- x + y, element by element with broadcasting; x or y may be a number.
function M.add(x, y, alpha)
   arg.no_alpha('add', alpha)
   if plain(x, y) then return affine(x, 1, y) end
   if plain(y, x) then return affine(y, 1, x) end
   x, y = pair('add', x, y)
   local box = new_box()
   local rc = C.tide_add(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_add(box, x, y)) end
   return take(box)
end

-- x - y, element by element with broadcasting; x or y may be a number.
function M.sub(x, y, alpha)
   arg.no_alpha('sub', alpha)
   if plain(x, y) then return affine(x, 1, -y) end
   if plain(y, x) then return affine(y, -1, x) end
   x, y = pair('sub', x, y)
   local box = new_box()
   local rc = C.tide_sub(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_sub(box, x, y)) end
   return take(box)
end

-- x y, element by element with broadcasting; x or y may be a number.
function M.mul(x, y)
   if plain(x, y) then return affine(x, y, 0) end
   if plain(y, x) then return affine(y, x, 0) end
   x, y = pair('mul', x, y)
   local box = new_box()
   local rc = C.tide_mul(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_mul(box, x, y)) end
   return take(box)
end

-- x / y, element by element with broadcasting; x or y may be a number.
function M.div(x, y)
   if plain(x, y) and has_inverse(y) then return affine(x, 1 / y, 0) end
   x, y = pair('div', x, y)
   local box = new_box()
   local rc = C.tide_div(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_div(box, x, y)) end
   return take(box)
end

-- x to the power of y, element by element with broadcasting; x or y may be a number.
function M.pow(x, y)
   local box = new_box()
   if plain(x, y) then
      local rc = C.tide_pow_scalar(box, x, y)
      if rc ~= 0 and again(x, rc) then check(x, C.tide_pow_scalar(box, x, y)) end
      return take(box)
   end
   x, y = pair('pow', x, y)
   local rc = C.tide_pow(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_pow(box, x, y)) end
   return take(box)
end

-- The smaller of x and y, element by element with broadcasting; x or y may be a number.
function M.minimum(x, y)
   x, y = pair('minimum', x, y)
   local box = new_box()
   local rc = C.tide_minimum(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_minimum(box, x, y)) end
   return take(box)
end

-- The larger of x and y, element by element with broadcasting; x or y may be a number.
function M.maximum(x, y)
   x, y = pair('maximum', x, y)
   local box = new_box()
   local rc = C.tide_maximum(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_maximum(box, x, y)) end
   return take(box)
end

-- x == y as bool, element by element with broadcasting; x or y may be a number.
function M.eq(x, y)
   x, y = pair('eq', x, y)
   local box = new_box()
   local rc = C.tide_eq(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_eq(box, x, y)) end
   return take(box)
end

-- x ~= y as bool, element by element with broadcasting; x or y may be a number.
function M.ne(x, y)
   x, y = pair('ne', x, y)
   local box = new_box()
   local rc = C.tide_ne(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_ne(box, x, y)) end
   return take(box)
end

-- x < y as bool, element by element with broadcasting; x or y may be a number.
function M.lt(x, y)
   x, y = pair('lt', x, y)
   local box = new_box()
   local rc = C.tide_lt(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_lt(box, x, y)) end
   return take(box)
end

-- x <= y as bool, element by element with broadcasting; x or y may be a number.
function M.le(x, y)
   x, y = pair('le', x, y)
   local box = new_box()
   local rc = C.tide_le(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_le(box, x, y)) end
   return take(box)
end

-- x > y as bool, element by element with broadcasting; x or y may be a number.
function M.gt(x, y)
   x, y = pair('gt', x, y)
   local box = new_box()
   local rc = C.tide_gt(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_gt(box, x, y)) end
   return take(box)
end

-- x >= y as bool, element by element with broadcasting; x or y may be a number.
function M.ge(x, y)
   x, y = pair('ge', x, y)
   local box = new_box()
   local rc = C.tide_ge(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_ge(box, x, y)) end
   return take(box)
end

-- x and y as bool, with broadcasting; an element is true if it is not 0.
function M.logical_and(x, y)
   x, y = pair('logical_and', x, y)
   local box = new_box()
   local rc = C.tide_logical_and(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_logical_and(box, x, y)) end
   return take(box)
end

-- x or y as bool, with broadcasting; an element is true if it is not 0.
function M.logical_or(x, y)
   x, y = pair('logical_or', x, y)
   local box = new_box()
   local rc = C.tide_logical_or(box, x, y)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_logical_or(box, x, y)) end
   return take(box)
end

-- ---- one operand -------------------------------------------------------------------------------

-- -x, element by element.
function M.neg(x)
   tensor('neg', 'x', x)
   local box = new_box()
   local rc = C.tide_neg(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_neg(box, x)) end
   return take(box)
end

-- |x|, element by element.
function M.abs(x)
   tensor('abs', 'x', x)
   local box = new_box()
   local rc = C.tide_abs(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_abs(box, x)) end
   return take(box)
end

-- -1, 0 or 1, element by element.
function M.sign(x)
   tensor('sign', 'x', x)
   local box = new_box()
   local rc = C.tide_sign(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_sign(box, x)) end
   return take(box)
end

-- The largest integer not above x, element by element.
function M.floor(x)
   tensor('floor', 'x', x)
   local box = new_box()
   local rc = C.tide_floor(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_floor(box, x)) end
   return take(box)
end

-- e to the power of x, element by element.
function M.exp(x)
   tensor('exp', 'x', x)
   local box = new_box()
   local rc = C.tide_exp(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_exp(box, x)) end
   return take(box)
end

-- Natural logarithm of x, element by element.
function M.log(x)
   tensor('log', 'x', x)
   local box = new_box()
   local rc = C.tide_log(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_log(box, x)) end
   return take(box)
end

-- Square root of x, element by element.
function M.sqrt(x)
   tensor('sqrt', 'x', x)
   local box = new_box()
   local rc = C.tide_sqrt(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_sqrt(box, x)) end
   return take(box)
end

-- 1 / sqrt(x), element by element.
function M.rsqrt(x)
   tensor('rsqrt', 'x', x)
   local box = new_box()
   local rc = C.tide_rsqrt(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_rsqrt(box, x)) end
   return take(box)
end

-- x x, element by element.
function M.square(x)
   tensor('square', 'x', x)
   local box = new_box()
   local rc = C.tide_square(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_square(box, x)) end
   return take(box)
end

-- 1 / x, element by element.
function M.reciprocal(x)
   tensor('reciprocal', 'x', x)
   local box = new_box()
   local rc = C.tide_reciprocal(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_reciprocal(box, x)) end
   return take(box)
end

-- Sine of x (radians), element by element.
function M.sin(x)
   tensor('sin', 'x', x)
   local box = new_box()
   local rc = C.tide_sin(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_sin(box, x)) end
   return take(box)
end

-- Cosine of x (radians), element by element.
function M.cos(x)
   tensor('cos', 'x', x)
   local box = new_box()
   local rc = C.tide_cos(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_cos(box, x)) end
   return take(box)
end

-- Hyperbolic tangent of x, element by element.
function M.tanh(x)
   tensor('tanh', 'x', x)
   local box = new_box()
   local rc = C.tide_tanh(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_tanh(box, x)) end
   return take(box)
end

-- 1 / (1 + exp(-x)), element by element.
function M.sigmoid(x)
   tensor('sigmoid', 'x', x)
   local box = new_box()
   local rc = C.tide_sigmoid(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_sigmoid(box, x)) end
   return take(box)
end

-- x sigmoid(x), element by element.
function M.silu(x)
   tensor('silu', 'x', x)
   local box = new_box()
   local rc = C.tide_silu(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_silu(box, x)) end
   return take(box)
end

-- x Phi(x), Phi the normal distribution (the exact form), element by element.
function M.gelu(x)
   tensor('gelu', 'x', x)
   local box = new_box()
   local rc = C.tide_gelu(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_gelu(box, x)) end
   return take(box)
end

-- gelu by its tanh approximation, element by element.
function M.gelu_tanh(x)
   tensor('gelu_tanh', 'x', x)
   local box = new_box()
   local rc = C.tide_gelu_tanh(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_gelu_tanh(box, x)) end
   return take(box)
end

-- max(x, 0), element by element.
function M.relu(x)
   tensor('relu', 'x', x)
   local box = new_box()
   local rc = C.tide_relu(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_relu(box, x)) end
   return take(box)
end

-- log(1 + exp(x)), element by element.
function M.softplus(x)
   tensor('softplus', 'x', x)
   local box = new_box()
   local rc = C.tide_softplus(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_softplus(box, x)) end
   return take(box)
end

-- bool: true where x is 0.
function M.logical_not(x)
   tensor('logical_not', 'x', x)
   local box = new_box()
   local rc = C.tide_logical_not(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_logical_not(box, x)) end
   return take(box)
end

-- bool: true where x is neither infinite nor NaN.
function M.isfinite(x)
   tensor('isfinite', 'x', x)
   local box = new_box()
   local rc = C.tide_isfinite(box, x)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_isfinite(box, x)) end
   return take(box)
end

-- ---- others ------------------------------------------------------------------------------------

-- x * mul + add; an integer x needs whole numbers.
function M.affine(x, mul, add)
   tensor('affine', 'x', x)
   return affine(x, number('affine', 'mul', mul), number('affine', 'add', add))
end

-- Either bound may be nil.
function M.clamp(x, lo, hi)
   tensor('clamp', 'x', x)
   lo = number('clamp', 'lo', lo == nil and -math.huge or lo)
   hi = number('clamp', 'hi', hi == nil and math.huge or hi)
   local box = new_box()
   local rc = C.tide_clamp(box, x, lo, hi)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_clamp(box, x, lo, hi)) end
   return take(box)
end

-- cond ? a : b; a or b may be a number.
function M.where(cond, a, b)
   tensor('where', 'cond', cond)
   if arg.is_tensor(a) then
      b = operand('where', 'b', a, b)
   elseif arg.is_tensor(b) then
      a = operand('where', 'a', b, a)
   else
      local float = arg.scalar(cond, C.TIDE_F32, 0)
      a, b = operand('where', 'a', float, a), operand('where', 'b', float, b)
   end
   local box = new_box()
   local rc = C.tide_where(box, cond, a, b)
   if rc ~= 0 and again(cond, rc) then check(cond, C.tide_where(box, cond, a, b)) end
   return take(box)
end

-- x with value (a number or a 0-dim tensor) where mask is true.
function M.masked_fill(x, mask, value)
   tensor('masked_fill', 'x', x)
   tensor('masked_fill', 'mask', mask)
   return M.where(mask, operand('masked_fill', 'value', x, value), x)
end

-- x in another dtype ('bf16'); x itself if it has it already.
function M.cast(x, dtype)
   tensor('cast', 'x', x)
   local code = arg.dtype('cast', 'dtype', dtype)
   if C.tide_tensor_dtype(x) == code then return x end
   local box = new_box()
   local rc = C.tide_cast(box, x, code)
   if rc ~= 0 and again(x, rc) then check(x, C.tide_cast(box, x, code)) end
   return take(box)
end

return M
