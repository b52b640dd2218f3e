-- Parts of a training step by themselves: surroundings, batches, what is not finite, gradients that
-- ranks lack. Ranks are stand-ins that say what they are given.

local tide = require 'tide'
local batches = require 'tide.train.batches'
local choice = require 'spec.deep.fuzz.choice'
local context = require 'tide.train.context'
local nonfinite = require 'tide.train.nonfinite'
local options = require 'tide.train.run_options'
local refused = require 'spec.support.refused'
local score = require 'tide.train.score'
local unused = require 'tide.train.unused'

-- A communicator in which the ranks say `list`.
local function ranks(list, rank)
   return { size = #list, rank = rank or 0, all_gather_object = function(_, mine)
      list[(rank or 0) + 1] = mine
      return list
   end }
end

describe('the surroundings of a step', function()
   -- A scope that notes when it is entered and left.
   local function scope(log, name, o)
      o = o or {}
      return { enter = function(_, env)
            log[#log + 1] = '+' .. name
            env[name] = true
            if o.enter then error(o.enter, 0) end
         end, exit = function(_, env, failed)
            log[#log + 1] = '-' .. name .. (failed and '!' or '') .. (env[name] and '' or '?')
            if o.exit then error(o.exit, 0) end
         end }
   end

   it('are entered in order and left in reverse, also after an error', function()
      local log = {}
      local step = context.get_train_context { loss_parallel = scope(log, 'a'),
         scope = scope(log, 'b'), cp = scope(log, 'c') }
      for _ = 1, 2 do
         log[1], log[2], log[3], log[4], log[5], log[6] = nil, nil, nil, nil, nil, nil
         assert.same({ 7, nil, 9 }, { step(function(env, ...)
            assert.is_true(env.a and env.b and env.c)
            return ...
         end, 7, nil, 9) })
         assert.equal('+a +b +c -c -b -a', table.concat(log, ' '))
      end
      for _, row in ipairs { { {}, {}, 'f', '+a +b -b! -a!', 'f' },
         { {}, { enter = 'eb' }, nil, '+a +b -a!', 'eb' },
         { { exit = 'xa' }, { exit = 'xb' }, nil, '+a +b -b -a', 'xb' },
         { { exit = 'xa' }, {}, nil, '+a +b -b -a', 'xa' },
         { { exit = 'xa' }, {}, 'f', '+a +b -b! -a!', 'f' } } do
         log = {}
         step = context.get_train_context { loss_parallel = scope(log, 'a', row[1]),
            scope = scope(log, 'b', row[2]) }
         local ok, e = pcall(step, function() if row[3] then error(row[3], 0) end end)
         assert.same({ false, row[5], row[4] }, { ok, e, table.concat(log, ' ') })
      end
   end)

   it('are given in a table or in order, and pass on what is no scope', function()
      local log = {}
      local function env_of(...)
         local got
         context.get_train_context(...)(function(env) got = env end)
         return got
      end
      assert.same({ false, false, false }, { env_of().loss_parallel, env_of().scope,
         env_of().captured })
      assert.equal(true, env_of(true).loss_parallel)
      assert.equal('x', env_of({ loss_parallel = 'x' }).loss_parallel)
      assert.equal(true, env_of({ scope = true }).scope)
      env_of(false, scope(log, 'b'), scope(log, 'c'))
      assert.equal('+b +c -c -b', table.concat(log, ' '))
      local make = context.get_train_context
      refused('E_ARG', 'give options in one table or one by one', make, {}, true)
      refused('E_ARG', 'give options in one table or one by one', make, {}, nil, scope(log, 'c'))
      refused('E_ARG', { 'scope', 'an object with enter and exit' }, make, { scope = 5 })
      refused('E_ARG', { 'scope' }, make, { scope = { enter = print } })
      refused('E_ARG', { 'cp', 'a context' }, make, { cp = 5 })
      refused('E_ARG', 'a captured step keeps its memory', make, { scope = true, captured = true })
      refused('E_ARG', 'fn', make {}, 5)
      local before = tide.default():stats().live
      local kept = make { scope = true } (function()
         tide.ones { 1000 }
         return tide.ones { 10 }
      end)
      assert.is_true(tide.default():stats().live - before < 1000)
      assert.equal(10, kept:numel())
   end)
end)

describe('a captured step of surroundings', function()
   it('is of one function', function()
      local real, calls = tide.cuda.captured, 0
      rawset(tide.cuda, 'captured', function(fn)
         return function(...)
            calls = calls + 1
            return fn(...)
         end
      end)
      local step = context.get_train_context { captured = true }
      local function fn(env, a) return env.captured, a end
      assert.same({ true, 5 }, { step(fn, 5) })
      assert.same({ true, 6 }, { step(fn, 6) })
      assert.equal(2, calls)
      refused('E_STATE', 'the step was captured with another function', step, function() end)
      rawset(tide.cuda, 'captured', real)
   end)
end)

describe('the batches of a step', function()
   it('are lists of batches that can be counted', function()
      local labels = tide.tensor({ { 1, -100, 2 } }, { dtype = 'i64' })
      local list = batches.settled_list('spec', { { labels = labels }, { labels = labels,
         count = 7 }, { count = 2 } })
      assert.equal(2 + 7 + 2, batches.count_of(list))
      assert.equal(0, batches.count_of {})
      local function fails(text, given, code)
         refused(code or 'E_ARG', text, batches.settled_list, 'spec', given)
      end
      fails('expected a list of micro-batches, step:run { batch }, got one batch',
         { labels = labels })
      fails('got one batch', { ids = 5 })
      fails({ 'batches', 'a table' }, 5)
      fails('batches[1]', { 5 })
      fails('batches[2].count', { { labels = labels }, { count = -1 } })
      fails('batches[1].count', { { count = 'x', labels = labels } })
      fails({ 'batches[1].labels', 'a tensor' }, { {} })
      fails({ 'batches[1].labels', 'a tensor' }, { { labels = 5, count = 1 } })
      fails("'batches[1].labels': expected at least one row of tokens, got [0, 3]",
         { { labels = tide.zeros({ 0, 3 }, { dtype = 'i64' }) } }, 'E_SHAPE')
   end)
end)

describe('what is not finite', function()
   local function entry(name, ...)
      local p = tide.zeros({ select('#', ...) }):requires_grad_(true)
      p:set_grad(tide.tensor { ... })
      return { name = name, param = p }
   end

   it('is named here: the loss, the first gradient and how many more', function()
      local inf, nan, free = 1 / 0, 0 / 0, { name = 'd', param = tide.ones { 1 } }
      for _, row in ipairs { { 1, {}, nil }, { nan, {}, 'its loss' }, { -inf, {}, 'its loss' },
         { 1, { entry('a', 1, 2), free }, nil },
         { 1, { free, entry('a', 1, nan), entry('b', 1) }, "the gradient of 'a'" },
         { 1, { entry('a', 1), entry('b', inf), entry('c', 0, nan), entry('e', nan) },
            "the gradient of 'b' and 2 more" },
         { inf, { entry('a', nan) }, "its loss, the gradient of 'a'" },
         { 1, { entry('a', 3e38, 3e38) }, nil } } do
         assert.equal(row[3], nonfinite.find(row[1], row[2]))
      end
      assert.same({ true, true, false, false, false }, { nonfinite.is_finite(0),
         nonfinite.is_finite(-1e300), nonfinite.is_finite(nan), nonfinite.is_finite(inf),
         nonfinite.is_finite(-inf) })
   end)

   it('is told for ranks together', function()
      local sum = 'not finite, summed over ranks: %s (check_for_nan_in_grad of fully_shard names '
         .. 'the rank)'
      local solo = { size = 1 }
      assert.equal('not finite on rank 0: x', nonfinite.tell(solo, 'x'))
      assert.equal('each rank has finite ones, their sum or its norm is not',
         nonfinite.tell(solo))
      assert.equal(sum:format 's', nonfinite.tell(solo, nil, 's'))
      assert.equal('not finite on rank 0: x; ' .. sum:format 's', nonfinite.tell(solo, 'x', 's'))
      for n = 2, 7 do
         for bad = 0, n do
            local list, want = {}, {}
            for r = 1, n do list[r] = { own = r > n - bad and 'y' .. r or nil } end
            for r = n - bad + 1, n do
               if #want < 4 then want[#want + 1] = ('rank %d: y%d'):format(r - 1, r) end
            end
            if bad > 4 then want[5] = ('%d more ranks'):format(bad - 4) end
            assert.equal(bad == 0 and 'each rank has finite ones, their sum or its norm is not'
               or 'not finite on ' .. table.concat(want, '; '),
               nonfinite.tell(ranks(list), list[1].own))
         end
      end
      assert.equal(sum:format 'first', nonfinite.tell(ranks { {}, { sum = 'first' },
         { sum = 'second' } }, nil))
   end)
end)

describe('gradients that a rank lacks', function()
   it('are found by what the others have, filled with zeros, or refused', function()
      for seed = 1, 20 do
         local pick = choice.drawn('unused', seed)
         local n, size, list, marks = pick:int(1, 5), pick:int(1, 3), {}, {}
         for i = 1, n do
            list[i] = { name = 'p' .. i, param = tide.ones({ 2 }):requires_grad_(true) }
            if pick:chance(0.5) then list[i].param:set_grad(tide.ones { 2 }) end
         end
         for r = 1, size do
            marks[r] = {}
            for i = 1, n do
               marks[r][i] = r == 1 and (list[i].param.grad ~= nil and '1' or '0')
                  or pick:pick { '0', '1' }
            end
         end
         local said, want, lacking = {}, {}, {}
         for r = 1, size do said[r] = table.concat(marks[r]) end
         for r = 1, size do
            lacking[r] = {}
            for i = 1, n do
               local some = false
               for q = 1, size do some = some or marks[q][i] == '1' end
               if some and marks[r][i] == '0' then table.insert(lacking[r], 'p' .. i) end
            end
         end
         want = lacking[1]
         local optim = { entries = function() return list end }
         local got = {}
         for i, e in ipairs(unused.find(ranks(said), optim)) do got[i] = e.name end
         assert.same(want, got)
         local calls = 0
         local comm = { size = size, rank = 0, all_gather_object = function(_, mine)
            calls = calls + 1
            if calls == 1 then return said end
            assert.same(want, mine)
            return lacking
         end }
         local first
         for r = 1, size do
            if not first and lacking[r][1] then
               first = ("rank %d has no gradient of '%s'"):format(r - 1, lacking[r][1])
            end
         end
         if first then refused('E_UNSUPPORTED', first, unused.refuse, 'spec', comm, optim)
         else unused.refuse('spec', comm, optim) end
         unused.fill(ranks(said), optim)
         for i, e in ipairs(list) do
            local filled = false
            for _, name in ipairs(want) do filled = filled or name == e.name end
            assert.equal(marks[1][i] == '1' or filled, e.param.grad ~= nil)
            if filled then assert.same({ 0, 0 }, e.param.grad:tolist()) end
         end
      end
   end)
end)

describe('windows that are scored', function()
   it('predict each id but the first once, with as much before it as fits', function()
      for n = 1, 14 do
         local ids = {}
         for i = 1, n do ids[i] = 10 + i end
         for seq = 1, 6 do
            local at = 2
            for _, w in ipairs(score.windows(ids, seq)) do
               local m = #w.continuation
               assert.is_true(m >= 1 and m <= seq and (m == seq or at + m - 1 == n))
               for k = 1, m do assert.equal(ids[at + k - 1], w.continuation[k]) end
               local before = math.min(at - 1, at + m - 1 == n and at > 2
                  and math.max(1, seq - m + 1) or 1)
               assert.equal(before, #w.context, n .. ' ' .. seq)
               for k = 1, before do assert.equal(ids[at - before + k - 1], w.context[k]) end
               at = at + m
            end
            assert.equal(math.max(2, n + 1), at)
         end
      end
   end)
end)

describe('the sampler of a run', function()
   it('shares batches among the ranks with data of their own', function()
      local function check(size, groups)
         options.check_sampler('spec', { comm = tide.dist.solo(), sampler = { size = size },
            train = { count = 9 } }, groups)
      end
      local o = { comm = tide.dist.solo(), sampler = { count = 9 }, train = { count = 9 } }
      options.check_sampler('spec', o, 1)
      o.sampler.count = 10                       -- the step that draws the last would end the run
      refused('E_ARG', { "'sampler'", 'over the 9 tokens of train, got count = 10' },
         options.check_sampler, 'spec', o, 1)
      check(2, 2)
      check(nil, 3)
      refused('E_ARG', 'the sampler shares each batch among 2 ranks, and the run has 1', check, 2,
         1)
      refused('E_ARG', 'among 1 ranks, and the run has 2', check, 1, 2)
   end)
end)
