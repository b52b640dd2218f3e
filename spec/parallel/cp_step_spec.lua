-- What surrounds a step over ranks: regions whose gradients survive, scopes that unwind.

local tide = require 'tide'
local cp = require 'tide.parallel.cp'
local refused = require 'spec.support.refused'

local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
local function axis(size, rank) return { size = size, rank = rank or 0 } end
local function list(t) return t:tolist() end

describe('a region', function()
   it('hands out shards and leaves its buffers alone', function()
      local a, b = ints { { 0, 1, 2, 3, 4, 5, 6, 7 } }, tide.ones({ 8, 2 }):requires_grad_(true)
      local region = cp.create_context_parallel_ctx(axis(2, 1), { a, b }, { 2, 1 }, { a })
      local n = region:run(function(shards, context, more)
         assert.same({ { 2, 3, 4, 5 } }, list(shards[1]))
         assert.equal('allgather', context.method)
         shards[2]:sum():backward()
         return more + 1
      end, 4)
      assert.equal(5, n)
      assert.same({ 1, 8 }, a.shape)
      assert.equal(8, b.grad:sum():item())
      assert.same({ 1, 4 }, region:after()[1].shape)
      assert.is_true(rawequal(b, region:after()[2]))
      local ring = cp.create_context_parallel_ctx(axis(2), { a }, { 2 }, nil, 'alltoall')
      assert.equal('ring', ring.context.method)
      local padded = cp.create_context_parallel_ctx(axis(2), { tide.ones { 6 } }, { 1 }, nil, nil,
         { fills = { 9 } })
      assert.same({ 1, 1, 9, 9 }, list(padded:shards()[1]))
   end)

   it('refuses what would go wrong in silence', function()
      local a, b = tide.ones { 8 }, tide.ones { 6 }
      local function go(...) return cp.create_context_parallel_ctx(axis(2), ...) end
      refused('E_ARG', 'no_restore[1]', go, { a }, { 1 }, { b })
      refused('E_ARG', '1 buffers and 2 dims', go, { a }, { 1, 1 })
      refused('E_ARG', 'multiple of 4', go, { b }, { 1 })
      refused('E_ARG', 'buffer 2 has 6', go, { a, b }, { 1, 1 })
      refused('E_ARG', 'rotate_method', go, { a }, { 1 }, nil, 'addtoall')
      refused('E_ARG', 'dims[1]', go, { a }, { 2 })
      refused('E_ARG', 'buffers', go, {}, {})
   end)
end)

describe('the scopes of a step', function()
   local log
   local function scope(name, fails)
      return {
         enter = function(_, env)
            log[#log + 1] = '+' .. name
            env[name] = true
            if fails == 'enter' then error(name .. ' enter', 0) end
         end,
         exit = function(_, _, failed)
            log[#log + 1] = '-' .. name .. (failed and '!' or '')
            if fails == 'exit' then error(name .. ' exit', 0) end
         end,
      }
   end
   before_each(function() log = {} end)

   it('are entered in order and left in reverse, every time', function()
      local step = cp.get_train_context(scope 'loss', scope 'step', scope 'cp')
      for _ = 1, 2 do
         log = {}
         local a, b = step(function(env, x)
            log[#log + 1] = 'run'
            return env.loss and env.step and x, nil
         end, 3)
         assert.same({ 3 }, { a, b })
         assert.same({ '+loss', '+step', '+cp', 'run', '-cp', '-step', '-loss' }, log)
      end
   end)

   it('are left after an error, which goes on', function()
      local step = cp.get_train_context(scope 'loss', false, scope 'cp')
      assert.has_error(function() step(function() error('boom', 0) end) end, 'boom')
      assert.same({ '+loss', '+cp', '-cp!', '-loss!' }, log)
      log = {}
      assert.has_error(function()
         cp.get_train_context(scope 'loss', false, scope('cp', 'enter'))(function() end)
      end, 'cp enter')
      assert.same({ '+loss', '+cp', '-loss!' }, log)
      log = {}
      assert.has_error(function()
         cp.get_train_context(scope 'loss', false, scope('cp', 'exit'))(function() end)
      end, 'cp exit')
      assert.same({ '+loss', '+cp', '-cp', '-loss' }, log)
   end)

   it("default to nothing, and a scope gives the step's memory back", function()
      assert.equal(cp.null, cp.get_train_context(false, false)(function(env) return env.cp end))
      local inside
      for _, step in ipairs { cp.get_train_context(true, true),
         cp.get_train_context { loss_parallel = true, scope = true } } do
         step(function(env)
            inside = tide.ones { 4 }
            assert.same({ true, true, false }, { env.loss_parallel, env.scope, env.captured })
         end)
         assert.is_true(inside:is_gone())
      end
   end)

   it('are options of one table, too', function()
      local step = cp.get_train_context { cp = scope 'cp', loss_parallel = scope 'loss' }
      step(function() log[#log + 1] = 'run' end)
      assert.same({ '+loss', '+cp', 'run', '-cp', '-loss' }, log)
      assert.equal(cp.null, cp.get_train_context {}(function(env) return env.cp end))
      refused('E_ARG', 'captured', cp.get_train_context, { captured = 1 })
      refused('E_ARG', "'cp'", cp.get_train_context, { cp = 3 })
      refused('E_ARG', 'not both', cp.get_train_context, { scope = true }, true)
      refused('E_ARG', "'fn'", cp.get_train_context {}, 3)
      refused('E_ARG', { "'scope'", 'enter and exit' }, cp.get_train_context, { scope = 1 })
      refused('E_ARG', { "'scope'", 'enter and exit' }, cp.get_train_context, false, {})
      refused('E_ARG', { 'captured', 'leave out scope' }, cp.get_train_context,
         { scope = true, captured = true })
   end)

   it('capture a step on a GPU alone', function()
      if tide.cuda.is_available() then return end
      refused('E_DEVICE', { 'cuda.captured', "'cuda'" }, cp.get_train_context, { captured = true })
      assert.equal(7, cp.get_train_context { captured = false }(function() return 7 end))
      refused('E_ARG', "'captur'", cp.get_train_context, { captured = true, captur = 1 })
   end)
end)
