-- Backward walks at the level of C: two at a time, ended in another order than they began.

local ffi = require 'ffi'
local tide = require 'tide'
local own = require 'tide.ffi.own'
local C = require('tide.ffi.lib').C

local function begin(root)
   local box = ffi.new 'tide_backward *[1]'
   own.check(root, C.tide_backward_begin(box, root, nil, false))
   return box[0]
end

-- sum of a function of the host over 2 x, whose walk stops at an event.
local function with_host_function(x)
   local y, ctx = x:mul(2), C.tide_tensor_ctx(x)
   local xs, outs = ffi.new('tide_tensor *[1]', y), ffi.new 'tide_tensor *[1]'
   own.check(ctx, C.tide_host_function(outs, ctx, 1e15, 1, xs, 1, xs, false))
   return own.take(outs):sum()
end

describe('a backward walk', function()
   it('goes on when a walk that began before it has been released', function()
      local event = ffi.new 'tide_event'
      local x = tide.ones({ 2 }):requires_grad_()
      local z = tide.full({ 3 }, 5):requires_grad_()
      local outer = begin(with_host_function(x))
      assert.equal(C.TIDE_MORE, C.tide_backward_next(outer, event))
      local inner = begin(z:mul(z):sum())
      C.tide_backward_release(outer)
      assert.equal(0, C.tide_backward_next(inner, event))
      C.tide_backward_release(inner)
      assert.are.same({ 10, 10, 10 }, z.grad:tolist())
      assert.is_nil(x.grad)
   end)

   it('leaves no gradient of the tape behind, whichever of two is released first', function()
      for _, order in ipairs { { 1, 2 }, { 2, 1 } } do
         local ctx = tide.open {}
         local roots, walks, event = {}, {}, ffi.new 'tide_event'
         for i = 1, 2 do
            roots[i] = with_host_function(ctx:ones({ 2 }, { requires_grad = true }))
            walks[i] = begin(roots[i])
         end
         for i = 1, 2 do assert.equal(C.TIDE_MORE, C.tide_backward_next(walks[i], event)) end
         for _, i in ipairs(order) do C.tide_backward_release(walks[i]) end
         roots[1], roots[2] = nil, nil
         ctx:collect()
         ctx:collect()
         local stats = ctx:stats()
         assert.equal(0, stats.ntensor)
         assert.equal(0, stats.nnode)
         ctx:close()
      end
   end)
end)
