-- Numbers of a device beside those of the host, for the case files of this folder.

local ffi = require 'ffi'
local tide = require 'tide'

local M = {}

-- How far results of a dtype may be apart, as a share of the largest.
M.rounding = { f32 = 2e-6, f64 = 1e-13, bf16 = 1.6e-2, f16 = 2e-3 }

-- The same normal numbers on every call, on the host; f32 unless told.
function M.random(shape, seed, dtype)
   tide.set_rng_state { seed = seed, stream = 0, offset = 0 }
   return tide.randn(shape, { dtype = 'f32', device = 'cpu' }):to(dtype or 'f32')
end

-- The elements as a C array of doubles, from 0, and the string that holds it.
local function flat(t)
   local bytes = t:to('cpu'):to('f64'):contiguous():to_string_bytes()
   return ffi.cast('const double *', bytes), bytes
end

-- Every element within room times the largest finite one of want; what names the tensor.
function M.close(got, want, room, what)
   local shapes = { table.concat(want.shape, ' '), table.concat(got.shape, ' ') }
   if shapes[1] ~= shapes[2] then
      error(('%s: shape [%s], expected [%s]'):format(what, shapes[2], shapes[1]), 2)
   end
   local a, held_a = flat(got)
   local b, held_b = flat(want)
   local n, scale = #held_b / 8, 1e-3
   assert(#held_a == #held_b)
   for i = 0, n - 1 do
      local v = math.abs(b[i])
      if v > scale and v < math.huge then scale = v end
   end
   for i = 0, n - 1 do
      local good = a[i] == b[i] or math.abs(a[i] - b[i]) <= room * scale
      if not good then
         error(('%s: element %d is %.9g, expected %.9g (allowed %.3g)')
            :format(what, i + 1, a[i], b[i], room * scale), 2)
      end
   end
end

function M.bytes(t) return t:to('cpu'):contiguous():to_string_bytes() end

return M
