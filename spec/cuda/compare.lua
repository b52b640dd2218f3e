-- Numbers of a device beside those of the host, for the case files of this folder.

local tide = require 'tide'

local M = {}

-- How far results of a dtype may be apart, as a share of the largest.
M.rounding = { f32 = 2e-6, f64 = 1e-13, bf16 = 1.6e-2, f16 = 2e-3 }

-- The same normal numbers on every call, on the host; f32 unless told.
function M.random(shape, seed, dtype)
   tide.set_rng_state { seed = seed, stream = 0, offset = 0 }
   return tide.randn(shape, { dtype = 'f32', device = 'cpu' }):to(dtype or 'f32')
end

local function flat(t)
   local list = t:to('cpu'):to('f64'):reshape(-1):tolist()
   return type(list) == 'table' and list or { list }
end

-- Every element within room times the largest finite one of want; what names the tensor.
function M.close(got, want, room, what)
   local shapes = { table.concat(want.shape, ' '), table.concat(got.shape, ' ') }
   if shapes[1] ~= shapes[2] then
      error(('%s: shape [%s], expected [%s]'):format(what, shapes[2], shapes[1]), 2)
   end
   local a, b, scale = flat(got), flat(want), 1e-3
   for _, v in ipairs(b) do
      if v == v and math.abs(v) < math.huge then scale = math.max(scale, math.abs(v)) end
   end
   for i = 1, #b do
      local good = a[i] == b[i] or math.abs(a[i] - b[i]) <= room * scale
      if not good then
         error(('%s: element %d is %.9g, expected %.9g (allowed %.3g)')
            :format(what, i, a[i], b[i], room * scale), 2)
      end
   end
end

function M.bytes(t) return t:to('cpu'):contiguous():to_string_bytes() end

return M
