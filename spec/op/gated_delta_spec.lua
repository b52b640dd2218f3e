-- The gated delta rule against transformers (spec/golden/gated_delta.py made the numbers), packed
-- streams against their sequences, pieces of a stream against the whole, and bad input.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local golden = tide.train.checkpoint.tensors 'spec/golden/gated_delta.safetensors'
local inputs = { 'q', 'k', 'v', 'g', 'beta', 'initial' }

-- Relative to the largest element. The stored numbers are f32 made in f64; bf16 rounds results and
-- the operands of products.
local tolerance = { f32 = 1e-5, f64 = 1e-6, bf16 = 3e-2 }

local function check(got, want, dtype, what)
   local scale = want:to('f64'):abs():amax():item()
   local ok, message = pcall(close, got:to 'f64', want:to 'f64',
      { rel = 0, abs = tolerance[dtype] * scale })
   if not ok then error(what .. ': ' .. tostring(message), 2) end
end

-- Every result and gradient of a case.
local function run(name, device, dtype, chunk)
   local function get(field, as) return golden[name .. '.' .. field]:to(device):to(as or dtype) end
   local i = {}
   for _, field in ipairs(inputs) do i[field] = get(field):clone():requires_grad_() end
   local sequence = golden[name .. '.sequence']
   local o, last = tide.gated_delta(i.q, i.k, i.v, i.g, i.beta, { l2norm = name ~= 'no_norm',
      initial = i.initial, sequence = sequence and sequence:to(device), chunk = chunk,
      return_last = true })
   local loss = (o * get 'do'):to('f64'):sum() + (last * get('dlast', last.dtype)):to('f64'):sum()
   loss:backward()
   local out = { o = o, last = last }
   for _, field in ipairs(inputs) do out['d' .. field] = i[field].grad end
   return out
end

describe('gated_delta equals transformers', function()
   for _, name in ipairs { 'groups', 'long', 'packed', 'no_norm' } do
      for _, device in ipairs { 'ref', fast } do
         for _, dtype in ipairs { 'f64', 'f32', 'bf16' } do
            it(('%s on %s in %s'):format(name, device, dtype), function()
               for _, chunk in ipairs { 1, 5, 100, 256 } do
                  for field, value in pairs(run(name, device, dtype, chunk)) do
                     check(value, golden[name .. '.' .. field]:to(device), dtype, field)
                  end
               end
            end)
         end
      end
   end
end)

-- ---- streams -----------------------------------------------------------------------------------

local function make(T, Hk, Hv, Dk, Dv, dtype)
   local function r(...) return tide.randn { 1, T, ... }:to(dtype) end
   return { q = r(Hk, Dk), k = r(Hk, Dk), v = r(Hv, Dv), g = -(r(Hv):abs()),
            beta = r(Hv):sigmoid() }
end

local function part(i, from, to)
   local p = {}
   for name, x in pairs(i) do p[name] = x:slice(2, from, to) end
   return p
end

local function delta(i, opts)
   local o = { l2norm = true, return_last = true }
   for k, v in pairs(opts or {}) do o[k] = v end
   return tide.gated_delta(i.q, i.k, i.v, i.g, i.beta, o)
end

-- Checks results and gradients in f32 against the reference in f64.
local function equals_reference(i, dy)
   local function run_in(dtype, device)
      local c = {}
      for name, x in pairs(i) do c[name] = x:to(device):to(dtype):clone():requires_grad_() end
      local o, last = delta(c)
      local loss = (o * dy:to(device):to(dtype)):to('f64'):sum() + last:to('f64'):sum()
      loss:backward()
      local out = { o = o:detach(), last = last:detach() }
      for name, x in pairs(c) do out[name] = x.grad end
      return out
   end
   local want = run_in('f64', 'ref')
   for name, x in pairs(run_in('f32', fast)) do check(x:to 'ref', want[name], 'f32', name) end
end

describe('gated_delta', function()
   for _, dtype in ipairs { 'f64', 'f32' } do
      it('of a packed stream equals its sequences apart, wherever they begin, in ' .. dtype,
         function()
            local T = 13
            local i = make(T, 1, 2, 3, 4, dtype)
            for at = 0, T do
               local cu = tide.tensor({ 0, at, math.min(at + 1, T), T }, { dtype = 'i32' })
               local q = tide.sequence_index(cu, T)
               local list, bounds, last = {}, cu:tolist(), nil
               for k = 1, 3 do
                  if bounds[k + 1] > bounds[k] then
                     list[#list + 1], last = delta(part(i, bounds[k] + 1, bounds[k + 1]))
                  end
               end
               local want = tide.cat(list, 2)
               for _, chunk in ipairs { 1, 5, 13 } do
                  local got, state = delta(i, { sequence = q, chunk = chunk })
                  close(got, want, { rel = 1e-5, abs = 1e-5 })
                  close(state, last, { rel = 1e-5, abs = 1e-5 })
               end
            end
         end)
   end

   it('goes on where the last call ended; a token at a time is the same', function()
      local i = make(12, 2, 4, 5, 3, 'f32')
      local want, want_last = delta(i, { chunk = 4 })
      for cut = 1, 11 do
         local a, state = delta(part(i, 1, cut))
         local b, last = delta(part(i, cut + 1, 12), { initial = state })
         close(tide.cat({ a, b }, 2), want, { rel = 1e-5, abs = 1e-5 })
         close(last, want_last, { rel = 1e-5, abs = 1e-5 })
      end
      local state, steps = nil, {}
      for t = 1, 12 do
         local p = part(i, t, t)
         steps[t], state = tide.gated_delta_step(p.q:select(2, 1), p.k:select(2, 1),
            p.v:select(2, 1), p.g:select(2, 1), p.beta:select(2, 1), state, { l2norm = true })
      end
      close(tide.stack(steps, 2), want, { rel = 1e-5, abs = 1e-5 })
      close(state, want_last, { rel = 1e-5, abs = 1e-5 })
   end)

   it('in f32 is as accurate as f64 where strong and weak decays mix', function()
      local i = make(150, 1, 2, 8, 6, 'f64')
      i.g = -(tide.randn { 1, 150, 2 } * 6):exp():to 'f64' -- from 1e-8 to 1e8
      equals_reference(i, tide.randn { 1, 150, 2, 6 })
   end)

   it('of states wider than a block of threads keeps equals the reference', function()
      equals_reference(make(5, 1, 2, 310, 40, 'f64'), tide.randn { 1, 5, 2, 40 })
   end)

   it('does not depend on the number of threads, backward included', function()
      finally(function() tide.set_nthread(2) end)
      local cu = tide.tensor({ 0, 7, 64, 131, 150 }, { dtype = 'i32' })
      local packed = tide.sequence_index(cu, 150)
      for _, heads in ipairs { { 1, 6 }, { 5, 5 }, { 2, 6 } } do
         local i = make(150, heads[1], heads[2], 9, 17, 'f32')
         local function bits(n, sequence)
            tide.set_nthread(n)
            local c, text = {}, {}
            for name, x in pairs(i) do c[name] = x:clone():requires_grad_() end
            local o = delta(c, { sequence = sequence, chunk = 70 })
            o:square():sum():backward()
            for _, name in ipairs { 'q', 'k', 'v', 'g', 'beta' } do
               text[#text + 1] = c[name].grad:to_string_bytes()
            end
            return o:detach():to_string_bytes() .. table.concat(text)
         end
         local one, other = bits(1), bits(1, packed)
         for n = 2, 5 do
            assert.is_true(one == bits(n))
            assert.is_true(other == bits(n, packed))
         end
      end
   end)

   -- What is no number in one sequence stays there: all else is the same to the bit.
   it('keeps NaN and infinities within their sequence', function()
      local T, cu = 150, { 0, 1, 2, 19, 64, 96, 128, 150 }
      local q = tide.sequence_index(tide.tensor(cu, { dtype = 'i32' }), T):to(fast)
      local i = make(T, 1, 1, 6, 4, 'f32')
      i.dy = tide.randn { 1, T, 1, 4 }
      local function with(name, first, last, value)
         local c = {}
         for key, x in pairs(i) do c[key] = x:clone() end
         if name then c[name]:slice(2, (first + last) / 2, (first + last) / 2):fill_(value) end
         for key, x in pairs(c) do c[key] = x:to(fast):requires_grad_() end
         local o = delta(c, { sequence = q, chunk = 100, return_last = false })
         o:backward(c.dy:detach())
         local out = { o = o:detach() }
         for _, key in ipairs { 'q', 'k', 'v', 'g', 'beta' } do out[key] = c[key].grad end
         for key, x in pairs(out) do out[key] = x:to 'cpu' end
         return out
      end
      local function bytes(x, first, last)
         return first > last and '' or x:slice(2, first, last):to_string_bytes()
      end
      local want = with()
      for k = 1, #cu - 1, fast == 'cuda' and 3 or 1 do
         local first, last = cu[k] + 1, cu[k + 1]
         if (first + last) % 2 == 1 then last = last - 1 end
         for _, name in ipairs { 'q', 'k', 'v', 'g', 'beta', 'dy' } do
            local got = with(name, first, last, k % 2 == 0 and math.huge or 0 / 0)
            for field, x in pairs(want) do
               assert.is_true(bytes(x, 1, cu[k]) == bytes(got[field], 1, cu[k])
                  and bytes(x, cu[k + 1] + 1, T) == bytes(got[field], cu[k + 1] + 1, T),
                  ('%s of sequence %d shows in %s'):format(name, k, field))
            end
         end
      end
   end)

   it('of no token returns the initial state', function()
      local i = part(make(1, 1, 2, 3, 4, 'f32'), 1, 0)
      local initial = tide.randn { 1, 2, 3, 4 }
      local o, last = delta(i, { initial = initial })
      assert.are.same({ 1, 0, 2, 4 }, o.shape)
      close(last, initial, { rel = 0, abs = 0 })
   end)

   it('gives a gradient to one input alone, and through the last state alone', function()
      local i = make(9, 1, 2, 3, 4, 'f32')
      i.k:requires_grad_()
      delta(i):sum():backward()
      assert.is_truthy(i.k.grad)
      assert.is_nil(i.q.grad)
      i.v:requires_grad_()
      local _, last = delta(i)
      last:sum():backward()
      assert.are.same(i.v.shape, i.v.grad.shape)
   end)

   it('refuses what does not fit', function()
      local i = make(6, 2, 4, 5, 3, 'f32')
      local function with(changes, opts)
         local c = {}
         for k, v in pairs(i) do c[k] = v end
         for k, v in pairs(changes) do c[k] = v end
         return function() return delta(c, opts) end
      end
      local function seq(list) return tide.tensor({ list }, { dtype = 'i64' }) end
      refused('E_SHAPE', 'expected q and k', with { q = tide.zeros { 6, 2, 5 } })
      refused('E_SHAPE', 'one dtype', with { k = i.k:to 'bf16' })
      refused('E_SHAPE', 'expected q and k', with { v = tide.zeros { 1, 5, 4, 3 } })
      refused('E_SHAPE', 'multiple of the 2 heads', with { v = tide.zeros { 1, 6, 3, 3 } })
      refused('E_SHAPE', 'g: expected', with { g = tide.zeros { 1, 6, 2 } })
      refused('E_SHAPE', 'beta: expected', with { beta = tide.zeros { 1, 6 } })
      refused('E_DTYPE', 'g', with { g = tide.zeros({ 1, 6, 4 }, { dtype = 'i64' }) })
      refused('E_SHAPE', 'initial: expected', with({}, { initial = tide.zeros { 1, 4, 3, 5 } }))
      refused('E_SHAPE', 'sequence: expected', with({}, { sequence = seq { 0, 0 } }))
      refused('E_ARG', 'never decrease', with({}, { sequence = seq { 0, 1, 1, 0, 2, 2 } }))
      refused('E_ARG', 'opts.scale', with({}, { scale = 0 }))
      refused('E_ARG', 'opts.eps', with({}, { eps = -1 }))
      refused('E_ARG', 'opts.chunk', with({}, { chunk = 0 }))
      refused('E_ARG', "unknown option 'norm'", with({}, { norm = true }))
      refused('E_ARG', "gated_delta_step: argument 'state'", function()
         local function first(x) return x:select(2, 1) end
         return tide.gated_delta_step(first(i.q), first(i.k), first(i.v), first(i.g),
            first(i.beta), 3)
      end)
      refused('E_ARG', 'gated_delta_step', function()
         return tide.gated_delta_step(i.q, i.k, i.v, i.g, i.beta)
      end)
   end)
end)
