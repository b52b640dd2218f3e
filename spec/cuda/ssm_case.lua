-- State-space layers on tensor cores and in vectors: the sizes at which their kernels take several
-- tiles, slices and blocks. Each is compared with the reference.
--
-- Not found by its name: spec/cuda/emulated_ssm_spec.lua runs it on emulated threads. On a machine
-- with a GPU: TIDE_SPEC_DEVICE=cuda luajit /usr/bin/busted spec/cuda/ssm_case.lua

local tide = require 'tide'
local case = require 'spec.op.scan_case'
local wide = require 'spec.support.wide'

-- T tokens in chunks of `chunk`; the rest as in scan_case.
local shapes = {
   { name = 'the usual head', T = 300, chunk = 128, H = 2, P = 64, G = 1, N = 128, B = 1,
     softplus = true, D = 'head', bias = true, initial = true, last = true },
   { name = 'more heads than a block takes', T = 70, chunk = 64, H = 22, P = 8, G = 2, N = 16,
     B = 1, softplus = true, D = 'channel' },
   { name = 'two slices of channels and states', T = 150, chunk = 100, H = 2, P = 81, G = 1,
     N = 139, B = 1, softplus = true, D = 'channel', initial = true, last = true },
   { name = 'the widest state', T = 90, chunk = 128, H = 1, P = 40, G = 1, N = 256, B = 1,
     softplus = true, last = true },
   { name = 'the widest head', T = 90, chunk = 128, H = 1, P = 128, G = 1, N = 128, B = 1,
     softplus = true, initial = true },
   { name = 'a state too wide for tiles', T = 20, chunk = 16, H = 1, P = 128, G = 1, N = 250, B = 1,
     softplus = true },
}
-- Where documents end; the stream's end is added.
local cuts = { whole = {}, ['one document a token'] = false, short = 5,
               ['at all kinds of places'] = { 1, 2, 15, 16, 17, 33, 64, 66 } }
local few = { bf16 = { ['at all kinds of places'] = cuts['at all kinds of places'] },
              f16 = { whole = cuts.whole } }

local function boundaries(cut, T)
   local cu = { 0 }
   if cut == false then cut = 1 end
   if type(cut) == 'number' then for t = cut, T - 1, cut do cu[#cu + 1] = t end
   else for _, t in ipairs(cut) do if t < T then cu[#cu + 1] = t end end end
   cu[#cu + 1] = T
   return cu
end

describe('the scan over several tiles is the token loop', function()
   for _, s in ipairs(shapes) do
      for _, dtype in ipairs { 'bf16', 'f16' } do
         for name, cut in pairs(wide and cuts or few[dtype]) do
            it(('%s, documents %s, in %s'):format(s.name, name, dtype), function()
               local o = {}
               for k, v in pairs(s) do o[k] = v end
               if name ~= 'whole' then o.cu = boundaries(cut, s.T) end
               case.check(s.T, s.chunk, o, dtype)
            end)
         end
      end
   end

   for i, o in ipairs(case.options) do
      for _, dtype in ipairs(wide and { 'bf16', 'f16' } or { i % 2 == 0 and 'bf16' or 'f16' }) do
         it(('%s, in %s'):format(o.name, dtype), function()
            for _, s in ipairs { { 1, 1 }, { 7, 5 }, { 33, 16 }, { 131, 100 } } do
               case.check(s[1], s[2], o, dtype)
            end
         end)
      end
   end

   it('gives the same bits twice', function()
      local function run()
         tide.set_rng_state { seed = 3, stream = 0, offset = 0 }
         local function r(...) return tide.randn({ ... }):to('bf16'):to 'cuda' end
         local x, B = r(1, 140, 10, 32):requires_grad_(), r(1, 140, 1, 64):requires_grad_()
         local dt, C = r(1, 140, 10):requires_grad_(), r(1, 140, 1, 64)
         local A = tide.full({ 10 }, -1, { device = 'cuda' }):requires_grad_()
         local y = tide.ssd_scan(x, dt, A, B, C, { softplus = true })
         y:square():sum():backward()
         local text = {}
         for k, t in ipairs { y:detach(), x.grad, dt.grad, A.grad, B.grad } do
            text[k] = t:to('cpu'):to_string_bytes()
         end
         return table.concat(text)
      end
      assert.is_true(run() == run())
   end)
end)

-- ---- convolution --------------------------------------------------------------------------------

local rounding = { f32 = 2e-5, bf16 = 1.6e-2, f16 = 2e-3, f64 = 1e-12 }

-- Channels from column `from` on of a wider tensor, so that rows may begin off 16 bytes.
local function convolve(where, dtype, T, C, taps, from, sequence)
   tide.set_rng_state { seed = 7, stream = 0, offset = 0 }
   local function r(...) return tide.randn({ ... }):to(dtype):to(where) end
   local rows = r(2, T, C + 8):requires_grad_()
   local w, bias = r(C, taps):requires_grad_(), r(C):requires_grad_()
   local initial = r(2, taps - 1, C):requires_grad_()
   local y, last = tide.conv1d(rows:slice(3, from + 1, from + C), w, bias, { silu = true,
      initial = initial, sequence = sequence and sequence:to(where) or nil, return_last = true })
   local dy, dlast = r(2, T, C), r(2, taps - 1, C)
   ;((y * dy):to('f64'):sum() + (last * dlast):to('f64'):sum()):backward()
   return { y = y:detach(), last = last:detach(), dx = rows.grad, dw = w.grad, dbias = bias.grad,
            dinitial = initial.grad }
end

describe('the convolution over several stretches is its sum', function()
   for _, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64' } do
      for _, s in ipairs { { T = 300, C = 40, taps = 4 }, { T = 65, C = 264, taps = 3 },
                           { T = 64, C = 8, taps = 2 }, { T = 2, C = 16, taps = 4 } } do
         it(('%d tokens, %d channels, %d taps, in %s'):format(s.T, s.C, s.taps, dtype), function()
            local cu = boundaries({ 1, 2, 15, 16, 63, 66, 257 }, s.T)
            local packed = tide.sequence_index(tide.tensor(cu, { dtype = 'i32' }), s.T)
            for _, sequence in ipairs(wide and { false, packed } or { packed }) do
               for _, from in ipairs { 0, 8, 3 } do
                  local want = convolve('ref', dtype, s.T, s.C, s.taps, from, sequence)
                  local got = convolve('cuda', dtype, s.T, s.C, s.taps, from, sequence)
                  for name, t in pairs(want) do
                     t = t:to('cpu'):to 'f64'
                     local off = (got[name]:to('cpu'):to 'f64' - t):abs():amax():item()
                     local room = rounding[dtype] * math.max(1e-2, t:abs():amax():item())
                     assert.is_true(off <= room, ('%s from column %d: off by %g of %g'):format(name,
                        from, off, room))
                  end
               end
            end
         end)
      end
   end
end)
