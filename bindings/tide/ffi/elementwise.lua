-- Elementwise ops. A loop over any of them compiles to one trace.
--
-- The second operand of a binary op may be a number (or a boolean for a bool tensor), the first too
-- if the second is a tensor. A number takes the tensor's dtype if that can hold it, else i64 for
-- integers and f32 for the rest; the usual promotion follows.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local arg = require 'tide.ffi.arg'
local C = lib.C

local M = {}
local make = require('tide.ffi.row').adders(M)
local raw = {}                              -- C functions behind wrappers that check the arguments
local call = require('tide.ffi.row').adders(raw, 'raw')
call 'add(x, y)'
call 'sub(x, y)'
call 'mul(x, y)'
call 'div(x, y)'
call 'pow(x, y)'
call 'pow_scalar(x, exponent)'
call 'affine(x, mul, add)'
call 'clamp(x, lo, hi)'
call 'where(cond, a, b)'
call 'cast(x, dtype)'
local tensor, number, pair, operand = arg.tensor, arg.number, arg.pair, arg.operand
local istype = ffi.istype
local tensor_t = ffi.typeof 'tide_tensor *'

-- ---- numbers as operands: x * mul + add keeps the dtype of a floating tensor -------------------

local affine = raw.affine

-- Returns whether y is a plain number and x a floating tensor: the affine path is exact enough and
-- cheap.
local function plain(x, y)
   return type(y) == 'number' and istype(tensor_t, x) and x ~= nil
      and C.tide_tensor_dtype(x) <= C.TIDE_F16
end

-- The number that leaves the other as it is when added: adding 0 would make -0 a 0.
local none = -0.0

local new_bits = ffi.typeof 'union { double d; uint32_t w[2]; }'
-- Returns whether x / n is x * (1 / n) for a number n of moderate size: 1 / n is exact, a power of
-- two, or x has 16 bits, while the product is rounded to f32 first. (As a divisor n would have 16
-- bits.)
local function has_inverse(x, n)
   if not (n >= 2^-100 and n <= 2^100 or n <= -2^-100 and n >= -2^100) then return false end
   local bits = new_bits(n)
   return bits.w[0] == 0 and bit.band(bits.w[1], 0xfffff) == 0
      or C.tide_tensor_dtype(x) >= C.TIDE_BF16
end

-- ---- two operands ------------------------------------------------------------------------------

-- Returns x + y, element by element with broadcasting; x or y may be a number.
function M.add(x, y, alpha)
   arg.no_alpha('add', alpha)
   if plain(x, y) then return affine(x, 1, y) end
   if plain(y, x) then return affine(y, 1, x) end
   return raw.add(pair('add', x, y))
end

-- Returns x - y, element by element with broadcasting; x or y may be a number.
function M.sub(x, y, alpha)
   arg.no_alpha('sub', alpha)
   if plain(x, y) then return affine(x, 1, -y) end
   if plain(y, x) then return affine(y, -1, x) end
   return raw.sub(pair('sub', x, y))
end

-- Returns x y, element by element with broadcasting; x or y may be a number.
function M.mul(x, y)
   if plain(x, y) then return affine(x, y, none) end
   if plain(y, x) then return affine(y, x, none) end
   return raw.mul(pair('mul', x, y))
end

-- Returns x / y, element by element with broadcasting; x or y may be a number.
function M.div(x, y)
   if plain(x, y) and has_inverse(x, y) then return affine(x, 1 / y, none) end
   return raw.div(pair('div', x, y))
end

-- Returns x to the power of y, element by element with broadcasting; x or y may be a number.
function M.pow(x, y)
   if plain(x, y) then return raw.pow_scalar(x, y) end
   return raw.pow(pair('pow', x, y))
end

-- Returns the smaller of x and y, element by element with broadcasting; x or y may be a number.
make 'minimum(x, y: pair)'
-- Returns the larger of x and y, element by element with broadcasting; x or y may be a number.
make 'maximum(x, y: pair)'
-- Returns x == y as bool, element by element with broadcasting; x or y may be a number.
make 'eq(x, y: pair)'
-- Returns x ~= y as bool, element by element with broadcasting; x or y may be a number.
make 'ne(x, y: pair)'
-- Returns x < y as bool, element by element with broadcasting; x or y may be a number.
make 'lt(x, y: pair)'
-- Returns x <= y as bool, element by element with broadcasting; x or y may be a number.
make 'le(x, y: pair)'
-- Returns x > y as bool, element by element with broadcasting; x or y may be a number.
make 'gt(x, y: pair)'
-- Returns x >= y as bool, element by element with broadcasting; x or y may be a number.
make 'ge(x, y: pair)'
-- Returns x and y as bool, with broadcasting; an element is true if it is not 0.
make 'logical_and(x, y: pair)'
-- Returns x or y as bool, with broadcasting; an element is true if it is not 0.
make 'logical_or(x, y: pair)'

-- ---- one operand -------------------------------------------------------------------------------

-- Returns -x, element by element.
make 'neg(x)'
-- Returns |x|, element by element.
make 'abs(x)'
-- Returns -1, 0 or 1, the sign of x, element by element.
make 'sign(x)'
-- Returns the largest integer not above x, element by element.
make 'floor(x)'
-- Returns e to the power of x, element by element.
make 'exp(x)'
-- Returns the natural logarithm of x, element by element.
make 'log(x)'
-- Returns the square root of x, element by element.
make 'sqrt(x)'
-- Returns 1 / sqrt(x), element by element.
make 'rsqrt(x)'
-- Returns x x, element by element.
make 'square(x)'
-- Returns 1 / x, element by element.
make 'reciprocal(x)'
-- Returns the sine of x (radians), element by element.
make 'sin(x)'
-- Returns the cosine of x (radians), element by element.
make 'cos(x)'
-- Returns the hyperbolic tangent of x, element by element.
make 'tanh(x)'
-- Returns 1 / (1 + exp(-x)), element by element.
make 'sigmoid(x)'
-- Returns the error function of x, 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x,
-- element by element.
make 'erf(x)'
-- Returns x sigmoid(x), element by element.
make 'silu(x)'
-- Returns x Phi(x), the exact gelu, where Phi is the normal distribution function, element by
-- element.
make 'gelu(x)'
-- Returns gelu by its tanh approximation, element by element.
make 'gelu_tanh(x)'
-- Returns max(x, 0), element by element.
make 'relu(x)'
-- Returns log(1 + exp(x)), element by element.
make 'softplus(x)'
-- Returns bool, true where x is 0.
make 'logical_not(x)'
-- Returns bool, true where x is neither infinite nor NaN.
make 'isfinite(x)'

-- ---- others ------------------------------------------------------------------------------------

-- Returns x * mul + add; an integer x needs whole numbers.
function M.affine(x, mul, add)
   tensor('affine', 'x', x)
   return affine(x, number('affine', 'mul', mul), number('affine', 'add', add))
end

-- Returns x limited to [lo, hi]. Either bound may be nil. The gradient is 0 from a bound on.
function M.clamp(x, lo, hi)
   tensor('clamp', 'x', x)
   lo = number('clamp', 'lo', lo == nil and -math.huge or lo)
   hi = number('clamp', 'hi', hi == nil and math.huge or hi)
   return raw.clamp(x, lo, hi)
end

-- Returns a where cond is true, else b; a or b may be a number.
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
   return raw.where(cond, a, b)
end

-- Returns x with value (a number or a 0-dim tensor) where mask is true.
function M.masked_fill(x, mask, value)
   tensor('masked_fill', 'x', x)
   tensor('masked_fill', 'mask', mask)
   return M.where(mask, operand('masked_fill', 'value', x, value), x)
end

-- Returns x in another dtype ('bf16'), or x itself if it has that dtype.
function M.cast(x, dtype)
   tensor('cast', 'x', x)
   local code = arg.dtype('cast', 'dtype', dtype)
   if C.tide_tensor_dtype(x) == code then return x end
   return raw.cast(x, code)
end

return M
