-- Small integer hashes of text and of number pairs, exact in doubles.
--
-- FNV-1a (Fowler, Noll, Vo) of 32 bits, written with products below 2^53. `hash.stream` joins two
-- of them to the 52-bit stream number of a parameter path. Not for security.

local bit = require 'bit'
local err = require 'tide.util.err'

local hash = {}

local function fnv(text, h)
   for i = 1, #text do
      h = bit.bxor(h, text:byte(i)) % 2^32
      h = (h * 403 + (h % 256) * 2^24) % 2^32
   end
   return h
end

-- Returns the FNV-1a of a text, in [0, 2^32).
function hash.fnv32(text)
   return fnv(err.type('util.hash.fnv32', 'text', text, 'string'), 2166136261)
end

-- Returns a number in [0, 2^52) for a name.
function hash.stream(text)
   err.type('util.hash.stream', 'text', text, 'string')
   return fnv(text, 2166136261) + (fnv(text, 84696351) % 2^20) * 2^32
end

local function product(a, b)                 -- a * b mod 2^32 through 16-bit halves
   local high = math.floor(a / 65536)
   return ((high * b) % 65536 * 65536 + (a % 65536) * b) % 2^32
end

local function scramble(h)
   h = h % 2^32
   h = bit.bxor(h, math.floor(h / 65536)) % 2^32
   h = product(h, 0x85ebca6b)
   h = bit.bxor(h, math.floor(h / 8192)) % 2^32
   h = product(h, 0xc2b2ae35)
   return bit.bxor(h, math.floor(h / 65536)) % 2^32
end

-- Returns 32 mixed bits of one integer.
function hash.scramble(h) return scramble(err.integer('util.hash.scramble', 'h', h)) end

-- Mixes integers below 2^53 to 32 bits (a finaliser in the manner of murmur hash).
function hash.mix(...)
   local h = 0
   for i = 1, select('#', ...) do
      local v = err.integer('util.hash.mix', 'value', (select(i, ...)))
      h = bit.bxor(h, v % 2^32) % 2^32
      h = scramble(h + math.floor(v / 2^32) * 7919)
   end
   return h
end

return hash
