-- The SSD scan against PyTorch (spec/golden/ssd.py made the numbers), packed streams against
-- their sequences, chunks of any size and pieces of a stream against the whole, and bad input.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local folder = 'spec/golden/ssd/'
local golden = dofile(folder .. 'index.lua')

local function get(case, name, device, dtype)
   local entry, n = case[name], 1
   if not entry then return nil end
   for _, s in ipairs(entry.shape) do n = n * s end
   local f = assert(io.open(folder .. case.file, 'rb'))
   f:seek('set', entry.at)
   local bytes = f:read(4 * n)
   f:close()
   if name == 'sequence' then
      return tide.from_string(bytes, entry.shape, { dtype = 'i32', device = device })
   end
   return tide.from_string(bytes, entry.shape, { dtype = 'f32', device = device }):to(dtype)
end

local inputs = { 'x', 'dt', 'A', 'B', 'C', 'D', 'bias', 'state' }

-- Relative to the largest element. The stored numbers are f32 made in f64; bf16 rounds inputs,
-- results and the operands of products.
local tolerance = { f32 = 5e-6, f64 = 1e-6, bf16 = 3e-2 }

local function check(got, want, dtype, what)
   local scale = want:to('f64'):abs():amax():item()
   local ok, message = pcall(close, got:to 'f64', want:to 'f64',
      { rel = 0, abs = tolerance[dtype] * scale })
   if not ok then error(what .. ': ' .. tostring(message), 2) end
end

local function run(case, device, dtype, chunk)
   local i = {}
   for _, name in ipairs(inputs) do i[name] = get(case, name, device, dtype):requires_grad_() end
   local y, last = tide.ssd_scan(i.x, i.dt, i.A, i.B, i.C, {
      D = i.D, dt_bias = i.bias, initial = i.state, sequence = get(case, 'sequence', device),
      softplus = true, dt_limit = { case.least, case.most }, chunk = chunk, return_last = true })
   local loss = (y * get(case, 'dy', device, dtype)):to('f64'):sum()
      + (last * get(case, 'dlast', device, last.dtype)):to('f64'):sum()
   loss:backward()
   local out = { y = y, last = last }
   for _, name in ipairs(inputs) do out['d' .. name] = i[name].grad end
   return out
end

describe('ssd_scan equals the peer', function()
   for _, case in ipairs(golden) do
      for _, device in ipairs { 'ref', fast } do
         for _, dtype in ipairs { 'f64', 'f32', 'bf16' } do
            if case.kind == 'scan' then
               it(('%s on %s in %s'):format(case.name, device, dtype), function()
                  for _, chunk in ipairs { case.chunk, 1, 5, 256 } do
                     for name, value in pairs(run(case, device, dtype, chunk)) do
                        check(value, get(case, name, device, 'f64'), dtype, name)
                     end
                  end
               end)
            end
         end
      end
   end
end)

-- ---- streams -----------------------------------------------------------------------------------

local function make(T, H, P, G, N, dtype)
   local function r(...) return tide.randn { ... }:to(dtype) end
   return { x = r(1, T, H, P), dt = r(1, T, H), A = -(r(H):abs()), B = r(1, T, G, N),
            C = r(1, T, G, N), D = r(H) }
end

local function part(i, from, to)
   local p = { A = i.A, D = i.D }
   for _, name in ipairs { 'x', 'dt', 'B', 'C' } do p[name] = i[name]:slice(2, from, to) end
   return p
end

local function scan(i, opts)
   local o = { D = i.D, softplus = true, return_last = true }
   for k, v in pairs(opts or {}) do o[k] = v end
   return tide.ssd_scan(i.x, i.dt, i.A, i.B, i.C, o)
end

describe('ssd_scan', function()
   for _, dtype in ipairs { 'f64', 'f32' } do
      it('of a packed stream equals its sequences apart, wherever they begin, in ' .. dtype,
         function()
            local T = 13
            local i = make(T, 2, 3, 1, 4, dtype)
            for at = 0, T do
               local cu = tide.tensor({ 0, at, math.min(at + 1, T), T }, { dtype = 'i32' })
               local q = tide.sequence_index(cu, T)
               local list, bounds, last = {}, cu:tolist(), nil
               for k = 1, 3 do
                  if bounds[k + 1] > bounds[k] then
                     list[#list + 1], last = scan(part(i, bounds[k] + 1, bounds[k + 1]))
                  end
               end
               local want = tide.cat(list, 2)
               for _, chunk in ipairs { 1, 4, 5, 13 } do
                  local got, state = scan(i, { sequence = q, chunk = chunk })
                  close(got, want, { rel = 1e-5, abs = 1e-5 })
                  close(state, last, { rel = 1e-5, abs = 1e-5 })
               end
            end
         end)
   end

   it('goes on where the last call ended; a token at a time is the same', function()
      local i = make(12, 4, 3, 2, 5, 'f32')
      local want, want_last = scan(i, { chunk = 4 })
      for cut = 1, 11 do
         local a, state = scan(part(i, 1, cut))
         local b, last = scan(part(i, cut + 1, 12), { initial = state })
         close(tide.cat({ a, b }, 2), want, { rel = 1e-5, abs = 1e-5 })
         close(last, want_last, { rel = 1e-5, abs = 1e-5 })
      end
      local state, steps = nil, {}
      for t = 1, 12 do
         local p = part(i, t, t)
         steps[t], state = tide.ssd_step(p.x:select(2, 1), p.dt:select(2, 1), p.A,
            p.B:select(2, 1), p.C:select(2, 1), state, { D = p.D, softplus = true })
      end
      close(tide.stack(steps, 2), want, { rel = 1e-5, abs = 1e-5 })
   end)

   it('keeps its accuracy when the decays add up to large numbers', function()
      -- early steps of 1000, then steps of 1e-3: sums differ by little where they are large
      local T = 256
      local i = make(T, 1, 2, 1, 2, 'f64')
      local steps = {}
      for t = 1, T do steps[t] = t <= 8 and 1000 or 1e-3 end
      i.dt = tide.tensor(steps, { dtype = 'f64' }):reshape(1, T, 1)
      i.A = tide.tensor({ -7 }, { dtype = 'f64' })
      i.x:slice(2, 1, 8):fill_(1e-3)
      local single = {}
      for k, v in pairs(i) do single[k] = v:to 'f32' end
      local want = scan(i, { softplus = false })
      local got = scan(single, { softplus = false, chunk = 256 })
      close(got:to('f64'):slice(2, 9, T), want:slice(2, 9, T), { rel = 0, abs = 2e-6 })
   end)

   it('does not depend on the number of threads, backward included', function()
      finally(function() tide.set_nthread(2) end)
      local cu = tide.tensor({ 0, 7, 64, 131, 200 }, { dtype = 'i32' })
      local packed = tide.sequence_index(cu, 200)
      for _, heads in ipairs { { 18, 1 }, { 5, 1 }, { 6, 6 }, { 26, 2 } } do
         local i = make(200, heads[1], 16, heads[2], 32, 'f32')
         local function bits(n, q)
            tide.set_nthread(n)
            local names, text = { 'x', 'dt', 'A', 'B', 'C', 'D' }, {}
            local c = {}
            for _, name in ipairs(names) do c[name] = i[name]:clone():requires_grad_() end
            scan(c, { chunk = 16, sequence = q }):square():sum():backward()
            for k, name in ipairs(names) do text[k] = c[name].grad:to_string_bytes() end
            return table.concat(text)
         end
         local one, other = bits(1), bits(1, packed)
         for n = 2, 5 do
            assert.is_true(one == bits(n))
            assert.is_true(other == bits(n, packed))
         end
      end
   end)

   -- What is no number in one sequence stays there: all else is the same to the bit.
   for d, dtype in ipairs { 'f32', 'bf16', 'f16', 'f64' } do
      it('keeps NaN and infinities within their sequence, in ' .. dtype, function()
         local T, H, P, G, N, chunks = 150, 4, 24, 2, 20, { 32, 128 }
         if fast == 'cuda' and (dtype == 'f32' or dtype == 'f64') then
            H, G, chunks = 1, 1, { 32 } -- a token loop, slow on emulated threads
         end
         local i, dy = make(T, H, P, G, N, dtype), tide.randn({ 1, T, H, P }):to(dtype)
         local names = { 'x', 'dt', 'B', 'C', 'dy' }
         local cu = { 0, 1, 2, 19, 33, 96, 128, 129, T }
         local q = tide.sequence_index(tide.tensor(cu, { dtype = 'i32' }), T):to(fast)
         local function with(chunk, name, at, value)
            local c = {}
            for k, v in pairs(i) do c[k] = v:clone() end
            c.dy = dy:clone()
            if name then c[name]:slice(2, at, at):fill_(value) end
            for k, v in pairs(c) do c[k] = v:to(fast) end
            for k in pairs(i) do c[k]:requires_grad_() end
            local y = scan(c, { sequence = q, chunk = chunk })
            y:backward(c.dy)
            local out = { y = y:detach(), x = c.x.grad, dt = c.dt.grad, B = c.B.grad,
                          C = c.C.grad }
            for k, v in pairs(out) do out[k] = v:to 'cpu' end
            return out
         end
         local function bytes(out, name, first, last)
            return first > last and '' or out[name]:slice(2, first, last):to_string_bytes()
         end
         for _, chunk in ipairs(chunks) do
            local want = with(chunk)
            for k = 1, #cu - 1 do
               local first, last = cu[k] + 1, cu[k + 1]
               -- Emulated threads are slow: there every second sequence has one of the five,
               -- which differs from dtype to dtype.
               for n, name in ipairs(names) do
                  if fast == 'cuda' and ((n + k + d) % 5 ~= 0 or (k + d) % 2 ~= 0) then
                     goto continue
                  end
                  local value = k % 2 == 0 and math.huge or 0 / 0
                  local got = with(chunk, name, math.floor((first + last) / 2), value)
                  for field in pairs(want) do
                     assert.is_true(
                        bytes(want, field, 1, first - 1) == bytes(got, field, 1, first - 1)
                        and bytes(want, field, last + 1, T) == bytes(got, field, last + 1, T),
                        ('%s of sequence %d shows in %s'):format(name, k, field))
                  end
                  ::continue::
               end
            end
         end
      end)
   end

   it('keeps NaN within its sequence where tokens are few', function()
      local i = make(4, 2, 3, 1, 4, 'f32')
      local q = tide.tensor({ { 0, 0, 1, 2 } }, { dtype = 'i32' })
      local want = scan(i, { sequence = q }):slice(2, 3, 4):to_string_bytes()
      i.x:slice(2, 1, 1):fill_(0 / 0)
      assert.is_true(want == scan(i, { sequence = q }):slice(2, 3, 4):to_string_bytes())
      local initial = tide.full({ 1, 2, 3, 4 }, 0 / 0, { dtype = 'f32' })
      i.x:slice(2, 1, 1):fill_(1)
      assert.is_true(want == scan(i, { sequence = q, initial = initial }):slice(2, 3, 4)
         :to_string_bytes())
   end)

   it('gives gradients to those who ask alone', function()
      local i = make(9, 2, 3, 1, 4, 'f32')
      i.B:requires_grad_()
      scan(i):sum():backward()
      assert.is_truthy(i.B.grad)
      assert.is_nil(i.x.grad)
   end)

   it('refuses what does not fit', function()
      local i = make(6, 4, 3, 2, 5, 'f32')
      local function with(changes, opts)
         local c = {}
         for k, v in pairs(i) do c[k] = v end
         for k, v in pairs(changes) do c[k] = v end
         return function() return scan(c, opts) end
      end
      local function seq(list) return tide.tensor({ list }, { dtype = 'i64' }) end
      local three = tide.zeros { 1, 6, 3, 5 }
      refused('E_SHAPE', 'expected x', with { x = tide.zeros { 6, 4, 3 } })
      refused('E_SHAPE', 'one dtype', with { B = i.B:to 'bf16' })
      refused('E_SHAPE', 'expected x', with { C = tide.zeros { 1, 6, 2, 4 } })
      refused('E_SHAPE', 'not a multiple', with { B = three, C = three })
      refused('E_SHAPE', 'expected dt', with { dt = tide.zeros { 1, 6, 3 } })
      refused('E_SHAPE', 'expected dt', with { A = tide.zeros { 5 } })
      refused('E_SHAPE', 'D: expected', with { D = tide.zeros { 4, 4 } })
      refused('E_SHAPE', 'dt_bias', with({}, { dt_bias = tide.zeros { 3 } }))
      refused('E_SHAPE', 'initial', with({}, { initial = tide.zeros { 1, 4, 5, 3 } }))
      refused('E_SHAPE', 'z: expected', with({}, { z = tide.zeros { 1, 6, 4, 2 } }))
      refused('E_SHAPE', 'sequence: expected [1, 6], a number for each token',
         with({}, { sequence = seq { 0, 0, 0, 0, 0 } }))
      refused('E_ARG', 'never decrease', with({}, { sequence = seq { 0, 0, 1, 1, 0, 1 } }))
      refused('E_ARG', 'end of the stream', with({}, { sequence = seq { 0, 0, 1, 1, -1, -1 } }))
      refused('E_ARG', 'opts.chunk', with({}, { chunk = 0 }))
      refused('E_ARG', 'opts.dt_limit', with({}, { dt_limit = { 1, 0.5 } }))
      refused('E_ARG', "'chnk'; did you mean 'chunk'", with({}, { chnk = 4 }))
   end)
end)

describe('gated_rms_norm', function()
   it('refuses what does not fit', function()
      local x = tide.zeros { 2, 8 }
      refused('E_SHAPE', 'differ', tide.gated_rms_norm, x, tide.zeros { 2, 7 })
      refused('E_SHAPE', 'weight', tide.gated_rms_norm, x, x, tide.zeros { 7 })
      refused('E_ARG', 'does not divide', tide.gated_rms_norm, x, x, nil, { group = 3 })
      refused('E_ARG', "'grup'; did you mean 'group'", tide.gated_rms_norm, x, x, nil, { grup = 3 })
   end)
end)
