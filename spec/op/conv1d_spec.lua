-- The causal convolution: packed streams equal their sequences one by one wherever they begin,
-- pieces of a stream equal the whole, and what does not fit is refused. (Values, layouts and
-- gradients: all_spec; here what spans calls.)

local tide = require 'tide'
local fast = require 'spec.support.fast'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local function randn(shape, device) return tide.randn(shape):to 'f64':to(device) end

-- Lists of cumulative lengths of n tokens: every place for one boundary, some for more.
local function packings(n)
   local list = { { 0, n } }
   for at = 0, n do list[#list + 1] = { 0, at, n } end
   list[#list + 1] = { 0, 1, 2, 5, n }
   local ones = {}
   for k = 0, n do ones[k + 1] = k end
   list[#list + 1] = ones
   return list
end

local function index_of(cu, n) return tide.sequence_index(tide.tensor(cu, { dtype = 'i32' }), n) end

describe('sequence_index', function()
   it('counts the boundaries at or below a token', function()
      local function list(cu) return index_of(cu, cu[#cu]):tolist()[1] end
      assert.same({ 0, 0, 0, 0, 0, 0, 0 }, list { 0, 7 })
      assert.same({ 0, 0, 0, 0, 1, 1, 1, 1 }, list { 0, 4, 8 })
      assert.same({ 0, 0, 0, 1, 1, 2, 2, 2, 2 }, list { 0, 3, 5, 9 })
      assert.same({ 0, 1, 2, 3, 4 }, list { 0, 1, 2, 3, 4, 5 })
      assert.same({ 0, 0, 2, 2 }, list { 0, 2, 2, 4 })
      local long = list { 0, 100, 101, 102, 103 }
      assert.same({ 0, 1, 2, 3 }, { long[100], long[101], long[102], long[103] })
      assert.same({ 1, 0 }, index_of({ 0 }, 0).shape)
   end)

   it('refuses tails that no sequence covers and boundaries that do not fit', function()
      local function cu(list) return tide.tensor(list, { dtype = 'i64' }) end
      refused('E_ARG', 'cu: ends at 4, there are 5 tokens', tide.sequence_index, cu { 0, 4 }, 5)
      refused('E_ARG', 'cu: ends at 6, there are 5 tokens', tide.sequence_index, cu { 0, 6 }, 5)
      refused('E_ARG', 'cu: expected 0 first, got 1', tide.sequence_index, cu { 1, 5 }, 5)
      refused('E_ARG', 'cu: decreases from 4 to 3', tide.sequence_index, cu { 0, 4, 3, 5 }, 5)
      refused('E_SHAPE', 'ntoken', tide.sequence_index, cu { 0, 5 }, 2 ^ 31)
      refused('E_DTYPE', 'i64 or i32', tide.sequence_index, tide.tensor { 0, 5 }, 5)
      refused('E_ARG', 'ntoken', tide.sequence_index, cu { 0, 5 }, -1)
   end)
end)

describe('conv1d', function()
   for _, device in ipairs { 'ref', fast } do
      it('of a packed stream equals its sequences apart, on ' .. device, function()
         local n = 9
         for taps = 2, 4 do
            for _, dtype in ipairs { 'f64', 'f32' } do
               local x = randn({ 1, n, 5 }, device):to(dtype)
               local w, b = randn({ 5, taps }, device):to(dtype), randn({ 5 }, device):to(dtype)
               for _, cu in ipairs(packings(n)) do
                  local q = index_of(cu, n):to(device)
                  local got, last = tide.conv1d(x, w, b, { silu = true, sequence = q,
                                                           return_last = true })
                  local final
                  for k = 1, #cu - 1 do
                     if cu[k + 1] > cu[k] then
                        local want
                        want, final = tide.conv1d(x:slice(2, cu[k] + 1, cu[k + 1]), w, b,
                           { silu = true, return_last = true })
                        close(got:slice(2, cu[k] + 1, cu[k + 1]), want, { rel = 1e-6 })
                     end
                  end
                  close(last, final)
               end
            end
         end
      end)
   end

   it('goes on where the last call ended', function()
      local x, w = randn({ 2, 11, 3 }, 'cpu'):to 'f32', randn({ 3, 4 }, 'cpu'):to 'f32'
      local want, want_last = tide.conv1d(x, w, nil, { return_last = true })
      for cut = 1, 10 do
         local a, state = tide.conv1d(x:slice(2, 1, cut), w, nil, { return_last = true })
         local b, last = tide.conv1d(x:slice(2, cut + 1, 11), w, nil,
            { initial = state, return_last = true })
         assert.same(want:tolist(), tide.cat({ a, b }, 2):tolist())
         assert.same(want_last:tolist(), last:tolist())
      end
      local state, steps = nil, {}
      for t = 1, 11 do
         steps[t], state = tide.conv1d_step(x:select(2, t), w, nil, state)
      end
      assert.same(want:tolist(), tide.stack(steps, 2):tolist())
   end)

   it('does not depend on the number of threads, backward included', function()
      finally(function() tide.set_nthread(2) end)
      local x, w = tide.randn { 1, 300, 1030 }, tide.randn { 1030, 4 }
      local function run(n)
         tide.set_nthread(n)
         local a, b = x:clone():requires_grad_(), w:clone():requires_grad_()
         tide.conv1d(a, b, nil, { silu = true }):square():sum():backward()
         return a.grad:to_string_bytes() .. b.grad:to_string_bytes()
      end
      local one = run(1)
      assert.is_true(one == run(2) and one == run(3))
   end)

   for _, channels in ipairs { 5, 16 } do
      it('keeps NaN within its sequence, gradients too, channels: ' .. channels, function()
         local cu, n = { 0, 1, 2, 6, 13, 70 }, 70
         local q = index_of(cu, n):to(fast)
         for _, dtype in ipairs { 'f32', 'bf16', 'f16' } do
            local shape = { 1, n, channels }
            local x, dy = tide.randn(shape):to(dtype), tide.randn(shape):to(dtype)
            local w = tide.randn({ channels, 4 }):to(dtype)
            local function run(at, which)
               local a, d = x:clone(), dy:clone()
               if at then (which == 'x' and a or d):slice(2, at, at):fill_(0 / 0) end
               a = a:to(fast):requires_grad_()
               local y = tide.conv1d(a, w:to(fast):requires_grad_(), nil,
                  { silu = true, sequence = q })
               y:backward(d:to(fast))
               return { y:detach():to 'cpu', a.grad:to 'cpu' }
            end
            local want = run()
            for k = 1, #cu - 1 do
               for _, which in ipairs { 'x', 'dy' } do
                  local got = run(cu[k] + 1, which)
                  for part = 1, 2 do
                     for _, span in ipairs { { 1, cu[k] }, { cu[k + 1] + 1, n } } do
                        if span[2] >= span[1] then
                           assert.is_true(want[part]:slice(2, span[1], span[2]):to_string_bytes()
                              == got[part]:slice(2, span[1], span[2]):to_string_bytes())
                        end
                     end
                  end
               end
            end
         end
      end)
   end

   it('refuses what does not fit', function()
      local x, w = tide.zeros { 2, 5, 3 }, tide.zeros { 3, 4 }
      local function seq(list)
         return { sequence = tide.tensor({ list }, { dtype = 'i32' }) }
      end
      refused('E_SHAPE', 'expected x', tide.conv1d, tide.zeros { 5, 3 }, w)
      refused('E_SHAPE', 'expected x', tide.conv1d, x, tide.zeros { 4, 4 })
      refused('E_SHAPE', 'one dtype', tide.conv1d, x, w:to 'f64')
      refused('E_SHAPE', '2 to 4 taps', tide.conv1d, x, tide.zeros { 3, 5 })
      refused('E_SHAPE', '2 to 4 taps', tide.conv1d, x, tide.zeros { 3, 1 })
      refused('E_SHAPE', 'bias', tide.conv1d, x, w, tide.zeros { 4 })
      refused('E_SHAPE', 'initial', tide.conv1d, x, w, nil, { initial = tide.zeros { 2, 4, 3 } })
      refused('E_SHAPE', 'sequence', tide.conv1d, x, w, nil, seq { 0, 0, 1, 1 })
      refused('E_DTYPE', 'sequence', tide.conv1d, x, w, nil, { sequence = tide.zeros { 1, 5 } })
      refused('E_ARG', 'never decrease', tide.conv1d, x, w, nil, seq { 0, 0, 1, 0, 1 })
      refused('E_ARG', 'never decrease', tide.conv1d, x, w, nil, seq { 0, 0, 1, 1, -1 })
      refused('E_ARG', "mean 'silu'", tide.conv1d, x, w, nil, { slu = true })
      refused('E_ARG', '[B, C]', tide.conv1d_step, x, w)
   end)
end)
