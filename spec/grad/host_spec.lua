-- Functions written in Lua on the tape: errors in the middle of a walk, walks inside walks, walks
-- that are given up, and what is left behind. C is called directly where Lua would hide it.

local ffi = require 'ffi'
local tide = require 'tide'
local C = require('tide.ffi.lib').C
local leak = require 'spec.support.leak'
local close = require 'spec.support.close'
local refused = require 'spec.support.refused'

local function leaf(list) return tide.tensor(list):requires_grad_() end
local function nodes() return leak.count().nnode end

local function func(name, backward)
   return tide.grad.func {
      name = name, forward = function(_, x) return x * 1 end, backward = backward,
   }
end

local pass = func('pass', function(_, dy) return dy end)

describe('an error in a function written in Lua', function()
   it('leaves leaves that were not reached alone, and the next walk clean', function()
      local before = nodes()
      local fail = true
      local sometimes = func('sometimes', function(_, dy)
         if fail then error('not now', 0) end
         return dy * 2
      end)
      do
         local early, late = leaf { 1, 2 }, leaf { 3, 4 }
         local a = early * 3
         local y = (sometimes(a) * late):sum()
         local ok, err = pcall(y.backward, y, nil, { retain = true })
         assert.is_false(ok)
         assert.equal('not now', err)
         assert.is_nil(early.grad)                           -- behind the function
         close(late.grad, { 3, 6 })                          -- passed before it
         fail = false
         late:zero_grad()
         y:backward()
         close(early.grad, { 18, 24 })
         close(late.grad, { 3, 6 })
      end
      assert.is_true(nodes() <= before)
   end)

   it('keeps the error object and recording as they were', function()
      local thing = { mine = true }
      local w = leaf { 1 }
      local y = func('bad', function() error(thing) end)(w)
      local ok, err = pcall(y.backward, y)
      assert.is_false(ok)
      assert.equal(thing, err)
      assert.is_true(tide.is_grad_enabled())
      assert.is_true((w * 2).requires_grad)
   end)

   it('of a coroutine that is never resumed again drops the walk when collected', function()
      local before = nodes()
      do
         local w = leaf { 1, 2 }
         local stop = func('stop', function(_, dy)
            coroutine.yield()
            return dy
         end)
         local co = coroutine.wrap(function() stop(w * 2):sum():backward() end)
         local ok, err = pcall(co)
         -- LuaJIT lets a coroutine yield across pcall; the walk hangs in it until it is collected
         assert.is_true(ok, tostring(err))
         -- a backward that hangs never puts recording back
         C.tide_set_recording(tide.default().handle, true)
         co = nil                                            -- luacheck: ignore
         leak.count()
         ;(w * 3):sum():backward()
         close(w.grad, { 3, 3 })
      end
      assert.is_true(nodes() <= before)
   end)
end)

describe('a walk inside a walk', function()
   it('does its own graph and no more', function()
      local w, v = leaf { 2 }, leaf { 3 }
      local inner = func('inner', function(_, dy)
         tide.enable_grad(function() (v * v):backward() end)
         return dy
      end)
      local y = inner(w * 5) + w
      y:backward()
      close(w.grad, { 6 })
      close(v.grad, { 6 })
   end)

   it('may walk a graph that began before the outer one, and meets what is pending', function()
      local w = leaf { 2 }
      local other = w * 10
      local inner = func('inner', function(_, dy)
         other:backward()
         return dy
      end)
      inner(w * 5):backward()
      close(w.grad, { 15 })
   end)

   it('nests to any depth', function()
      local w = leaf { 1 }
      local depth = 0
      local inner
      inner = func('inner', function(_, dy)
         depth = depth + 1
         if depth < 20 then tide.enable_grad(function() inner(w * 2):backward() end) end
         return dy
      end)
      inner(w * 2):backward()
      assert.equal(20, depth)
      close(w.grad, { 40 })
   end)

   it('that fails fails the outer one, and both are clean', function()
      local before = nodes()
      do
         local w = leaf { 1 }
         local bad = func('bad', function() error('deep', 0) end)
         local outer = func('outer', function(_, dy)
            tide.enable_grad(function() bad(w * 2):backward() end)
            return dy
         end)
         local y = outer(w * 3) + w
         local ok, err = pcall(y.backward, y)
         assert.is_false(ok)
         assert.equal('deep', err)
         w:zero_grad()
         ;(w * 4):backward()
         close(w.grad, { 4 })
      end
      assert.is_true(nodes() <= before)
   end)
end)

describe('the records of host functions', function()
   it('go when their nodes go: dropped, walked, failed', function()
      local records = require('tide.ffi.lib').state.records
      local function count()
         leak.count()
         pass(leaf { 1 }):backward()                         -- sweeps
         local n = 0
         for _ in pairs(records) do n = n + 1 end
         return n
      end
      local before = count()
      for _ = 1, 300 do pass(leaf { 1 } * 2) end
      for _ = 1, 300 do pass(leaf { 1 } * 2):backward() end
      local bad = func('bad', function() error('x', 0) end)
      for _ = 1, 300 do pcall(tide.backward, bad(leaf { 1 })) end
      assert.is_true(count() <= before)
   end)
end)

describe('the walk of the contract', function()
   local box, walk_box = ffi.new 'tide_tensor *[1]', ffi.new 'tide_backward *[1]'
   local event = ffi.new 'tide_event'

   local function recorded(tag, x)
      local ctx = C.tide_tensor_ctx(x)
      local xs, ys = ffi.new('tide_tensor *[1]', { x }), ffi.new('tide_tensor *[1]', { x })
      assert.equal(C.TIDE_MORE, C.tide_host_function(box, ctx, tag, 1, xs, 1, ys, true))
      return ffi.gc(box[0], C.tide_tensor_release)
   end

   local function begin(y)
      assert.equal(0, C.tide_backward_begin(walk_box, y, nil, false))
      return ffi.gc(walk_box[0], C.tide_backward_release)
   end

   local function finish(walk) C.tide_backward_release(ffi.gc(walk, nil)) end

   it('hands out gradients and saved inputs, and takes gradients back', function()
      local w = leaf { 3, 4 }
      local y = recorded(-7, w * 2)
      local walk = begin(y:sum())
      assert.equal(C.TIDE_MORE, C.tide_backward_next(walk, event))
      assert.equal(C.TIDE_EVENT_HOST, event.kind)
      assert.equal(-7, event.tag)
      assert.are.same({ 1, 1 }, { event.nout, event.nin })
      assert.equal(0, C.tide_backward_take(box, walk, 0))
      local dy = ffi.gc(box[0], C.tide_tensor_release)
      assert.are.same({ 1, 1 }, dy:tolist())
      assert.equal(0, C.tide_backward_input(box, walk, 0))
      assert.are.same({ 6, 8 }, ffi.gc(box[0], C.tide_tensor_release):tolist())
      assert.equal(0, C.tide_backward_give(walk, 0, dy * 5))
      assert.equal(0, C.tide_backward_give(walk, 0, dy * 7)) -- the last one counts
      assert.equal(0, C.tide_backward_next(walk, event))
      assert.equal(C.TIDE_EVENT_DONE, event.kind)
      finish(walk)
      close(w.grad, { 14, 14 })
   end)

   it('names an index or a moment that is wrong', function()
      local w = leaf { 3, 4 }
      local ctx = C.tide_tensor_ctx(w)
      local function message() return ffi.string(C.tide_error(ctx).message) end
      local walk = begin(recorded(-8, w * 2):sum())
      assert.equal(C.TIDE_E_STATE, C.tide_backward_take(box, walk, 0))
      assert.is_truthy(message():find('no host function', 1, true))
      assert.equal(C.TIDE_MORE, C.tide_backward_next(walk, event))
      for _, i in ipairs { -1, 1, 1000 } do
         assert.equal(C.TIDE_E_ARG, C.tide_backward_take(box, walk, i))
         assert.is_true(box[0] == nil)
         assert.equal(C.TIDE_E_ARG, C.tide_backward_input(box, walk, i))
         assert.equal(C.TIDE_E_ARG, C.tide_backward_give(walk, i, w))
      end
      for _, wrong in ipairs { tide.ones { 3 }, tide.ones({ 2 }, { dtype = 'f64' }),
                               tide.ones({ 2 }, { device = 'ref' }) } do
         assert.equal(C.TIDE_E_SHAPE, C.tide_backward_give(walk, 0, wrong))
         assert.is_truthy(message():find('gradient 1', 1, true))
      end
      finish(walk)
   end)

   it('may be given up at any event', function()
      local before = leak.count()
      local w = leaf { 3, 4 }
      for at = 0, 3 do
         local y = w * 2
         for k = 1, 3 do y = recorded(-10 - k, y) * 2 end
         local walk = begin(y:sum())
         for _ = 1, at do
            assert.equal(C.TIDE_MORE, C.tide_backward_next(walk, event))
            C.tide_backward_take(box, walk, 0)
            C.tide_backward_give(walk, 0, box[0])
            C.tide_tensor_release(box[0])
         end
         finish(walk)
      end
      assert.is_nil(w.grad)
      w = nil                                                -- luacheck: ignore
      leak.compare(before, leak.count())
   end)

   it('is refused as a whole when it meets a host function', function()
      local w = leaf { 3, 4 }
      local y = recorded(-20, w * 2):sum()
      assert.equal(C.TIDE_E_HOST, C.tide_backward_run(y, nil))
      assert.equal(0, C.tide_backward_run((w * 2):sum(), nil))
      close(w.grad, { 2, 2 })
   end)

   it('lists the tags of nodes that went, each once', function()
      local ctx = tide.default().handle
      local tags = ffi.new 'double[8]'
      while C.tide_host_dropped(ctx, tags, 8) > 0 do end
      local w = leaf { 1 }
      local held = recorded(-31, w)
      for k = 1, 3 do recorded(-40 - k, w) end
      leak.clear()
      collectgarbage()
      collectgarbage()
      local seen = {}
      repeat
         local n = C.tide_host_dropped(ctx, tags, 2)         -- in small portions
         for i = 0, n - 1 do
            if tags[i] < -30 then seen[#seen + 1] = tags[i] end -- not those of other cases
         end
      until n == 0
      table.sort(seen)
      assert.are.same({ -43, -42, -41 }, seen)
      assert.is_truthy(held)
   end)

   it('refuses lists that make no function', function()
      local w = leaf { 1 }
      local ctx = C.tide_tensor_ctx(w)
      local xs, none = ffi.new('tide_tensor *[1]', { w }), ffi.new 'tide_tensor *[1]'
      assert.equal(C.TIDE_E_ARG, C.tide_host_function(box, ctx, 1, -1, xs, 1, xs, false))
      assert.equal(C.TIDE_E_ARG, C.tide_host_function(box, ctx, 1, 1, xs, 0, xs, false))
      assert.equal(C.TIDE_E_ARG, C.tide_host_function(box, ctx, 1, 1, none, 1, xs, false))
      assert.equal(C.TIDE_E_ARG, C.tide_host_function(box, ctx, 1, 1, xs, 1, none, false))
      assert.is_true(box[0] == nil)
      refused('E_ARG', { 'grad.func', 'backward' }, tide.grad.func, { forward = print })
   end)
end)
