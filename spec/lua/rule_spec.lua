-- Rules of optimisers and schedules against their formulas in plain loops, in f64; groups and
-- counts of updates against tables.

local tide = require 'tide'
local choice = require 'spec.deep.fuzz.choice'
local each = require 'tide.util.each'
local groups = require 'tide.optim.groups'
local refused = require 'spec.support.refused'

local optim = tide.optim

local function matrix(rows, cols, fn)
   local m = {}
   for i = 1, rows do
      m[i] = {}
      for j = 1, cols do m[i][j] = fn(i, j) end
   end
   return m
end

local function product(a, b)
   return matrix(#a, #b[1], function(i, j)
      local sum = 0
      for k = 1, #b do sum = sum + a[i][k] * b[k][j] end
      return sum
   end)
end

local function turned(a) return matrix(#a[1], #a, function(i, j) return a[j][i] end) end

local function norm(a)
   local sum = 0
   for _, row in ipairs(a) do for _, v in ipairs(row) do sum = sum + v * v end end
   return math.sqrt(sum)
end

local function near(want, got, what)
   for i, row in ipairs(want) do
      for j, v in ipairs(row) do
         assert(math.abs(v - got[i][j]) <= 1e-9 * math.max(1, math.abs(v)),
            ('%s: [%d][%d]: %.12g ~= %.12g'):format(what, i, j, v, got[i][j]))
      end
   end
end

-- ---- formulas ----------------------------------------------------------------------------------

-- By class: fn(w, g, s, o, step) gives the new weight of a matrix, and keeps its state in s.

local rules = {}

function rules.SGD(w, g, s, o, step)
   g = matrix(#w, #w[1], function(i, j) return g[i][j] + o.weight_decay * w[i][j] end)
   if o.momentum > 0 then
      s.b = matrix(#w, #w[1], function(i, j)
         return step == 1 and g[i][j] or o.momentum * s.b[i][j] + (1 - o.dampening) * g[i][j]
      end)
   end
   return matrix(#w, #w[1], function(i, j)
      local d = o.momentum == 0 and g[i][j] or o.nesterov and g[i][j] + o.momentum * s.b[i][j]
         or s.b[i][j]
      return w[i][j] - o.lr * d
   end)
end

function rules.AdamW(w, g, s, o, step)
   s.m, s.v = s.m or matrix(#w, #w[1], function() return 0 end),
      s.v or matrix(#w, #w[1], function() return 0 end)
   return matrix(#w, #w[1], function(i, j)
      s.m[i][j] = o.beta1 * s.m[i][j] + (1 - o.beta1) * g[i][j]
      s.v[i][j] = o.beta2 * s.v[i][j] + (1 - o.beta2) * g[i][j] ^ 2
      local m, v = s.m[i][j] / (1 - o.beta1 ^ step), s.v[i][j] / (1 - o.beta2 ^ step)
      return w[i][j] * (1 - o.lr * o.weight_decay) - o.lr * m / (math.sqrt(v) + o.eps)
   end)
end

function rules.Lion(w, g, s, o)
   s.m = s.m or matrix(#w, #w[1], function() return 0 end)
   return matrix(#w, #w[1], function(i, j)
      local d = o.beta1 * s.m[i][j] + (1 - o.beta1) * g[i][j]
      s.m[i][j] = o.beta2 * s.m[i][j] + (1 - o.beta2) * g[i][j]
      return w[i][j] * (1 - o.lr * o.weight_decay) - o.lr * (d > 0 and 1 or d < 0 and -1 or 0)
   end)
end

function rules.Adafactor(w, g, s, o, step)
   local rows, cols, share = #w, #w[1], step ^ o.beta2_decay
   s.row, s.col = s.row or {}, s.col or {}
   local mean = 0
   for i = 1, rows do
      local sum = 0
      for j = 1, cols do sum = sum + g[i][j] ^ 2 end
      s.row[i] = (s.row[i] or 0) * (1 - share) + share * sum / cols
      mean = mean + s.row[i] / rows
   end
   for j = 1, cols do
      local sum = 0
      for i = 1, rows do sum = sum + g[i][j] ^ 2 end
      s.col[j] = (s.col[j] or 0) * (1 - share) + share * sum / rows
   end
   local root = math.sqrt(rows * cols)
   local rate = math.max(norm(w) / root, o.eps2) * math.min(o.lr, 1 / math.sqrt(step))
   local u = matrix(rows, cols, function(i, j)
      return g[i][j] / math.sqrt(math.max(s.row[i] * s.col[j] / math.max(mean, o.eps1),
         o.eps1 ^ 2))
   end)
   local shrink = math.max(1, norm(u) / (root * o.d))
   return matrix(rows, cols, function(i, j)
      return w[i][j] * (1 - o.lr * o.weight_decay) - rate * u[i][j] / shrink
   end)
end

function rules.Muon(w, g, s, o)
   local rows, cols, k = #w, #w[1], o.momentum
   s.m = matrix(rows, cols, function(i, j)
      return k * (s.m and s.m[i][j] or 0) + (1 - k) * g[i][j]
   end)
   local x = matrix(rows, cols, function(i, j)
      return o.nesterov and (1 - k) * g[i][j] + k * s.m[i][j] or s.m[i][j]
   end)
   if rows > cols then x = turned(x) end
   local size = norm(x)
   x = matrix(#x, #x[1], function(i, j) return x[i][j] / size end)
   for _ = 1, o.ns_steps do
      local a = product(x, turned(x))
      local aa = product(a, a)
      local b = product(matrix(#a, #a, function(i, j)
         return -4.7750 * a[i][j] + 2.0315 * aa[i][j]
      end), x)
      local old = x
      x = matrix(#x, #x[1], function(i, j) return 3.4445 * old[i][j] + b[i][j] end)
   end
   if rows > cols then x = turned(x) end
   local scale = o.adjust == 'original' and math.sqrt(math.max(1, rows / cols))
      or 0.2 * math.sqrt(math.max(rows, cols))
   return matrix(rows, cols, function(i, j)
      return w[i][j] * (1 - o.lr * o.weight_decay) - o.lr * scale * x[i][j]
   end)
end

local drawn = {
   SGD = function(pick)
      local momentum = pick:pick { 0, 0.9 }
      local nesterov = momentum > 0 and pick:chance(0.5)
      return { momentum = momentum, nesterov = nesterov, weight_decay = pick:pick { 0, 0.1 },
         dampening = momentum > 0 and not nesterov and pick:pick { 0, 0.3 } or 0 }
   end,
   AdamW = function(pick)
      return { beta1 = pick:pick { 0, 0.8 }, beta2 = pick:pick { 0.9, 0.95 }, eps = 1e-3,
         weight_decay = pick:pick { 0, 0.2 } }
   end,
   Lion = function(pick)
      return { beta1 = 0.7, beta2 = pick:pick { 0.5, 0.99 }, weight_decay = pick:pick { 0, 0.2 } }
   end,
   Adafactor = function(pick)
      return { beta2_decay = -0.8, eps1 = pick:pick { 1e-7, 0.5 }, eps2 = pick:pick { 1e-3, 5 },
         d = pick:pick { 1, 0.25 }, weight_decay = pick:pick { 0, 0.2 } }
   end,
   Muon = function(pick)
      return { momentum = pick:pick { 0, 0.9 }, nesterov = pick:chance(0.5),
         ns_steps = pick:int(1, 5), adjust = pick:pick { 'original', 'match_rms_adamw' },
         weight_decay = pick:pick { 0, 0.2 } }
   end,
}

describe('the rule of', function()
   for name, draw in each(drawn) do
      it(name .. ' is its formula', function()
         for seed = 1, 12 do
            local pick = choice.drawn(name, seed)
            local o = draw(pick)
            o.lr = pick:pick { 0.01, 0.3, 2 }
            local rows, cols = pick:int(1, 4), pick:int(1, 4)
            local w = matrix(rows, cols, function() return pick:int(-50, 50) / 20 + 0.01 end)
            local p = tide.tensor(w, { dtype = 'f64' }):requires_grad_(true)
            local given = {}
            for k, v in each(o) do given[k] = v end
            local opt, s = optim[name]({ { name = 'w', param = p } }, given), {}
            for step = 1, 4 do
               local g = matrix(rows, cols, function() return pick:int(-50, 50) / 20 + 0.003 end)
               local scale, factor = pick:pick { 1, 0.5 }, pick:pick { 1, 0.25 }
               local lr = pick:chance(0.3) and 0.07 or nil
               p:set_grad(tide.tensor(g, { dtype = 'f64' }))
               opt:step { scale = scale ~= 1 and scale or nil, lr = lr,
                  factor = factor ~= 1 and tide.tensor({ factor }, { dtype = 'f32' }):reshape {}
                     or nil }
               local at = setmetatable({ lr = lr }, { __index = o })
               w = rules[name](w, matrix(rows, cols, function(i, j)
                  return g[i][j] * scale * factor
               end), s, at, step)
               near(w, p:tolist(), ('%s, seed %d, step %d'):format(name, seed, step))
               assert.equal(lr or o.lr, opt.last_lr)
            end
         end
      end)
   end
end)

describe('Muon', function()
   it('updates vectors as AdamW does, at a share of the rate; no group is empty', function()
      local got = {}
      for i, name in ipairs { 'Muon', 'AdamW' } do
         local p = tide.tensor({ 1, -2, 3 }, { dtype = 'f64' }):requires_grad_(true)
         local opt = optim[name]({ { name = 'b', param = p } }, { lr = i == 1 and 0.2 or 0.1,
            adamw_lr = i == 1 and 0.5 or nil, beta2 = 0.9 })
         for step = 1, 3 do
            p:set_grad(tide.tensor({ step, 0.5, -step }, { dtype = 'f64' }))
            opt:step()
         end
         for _, group in ipairs(opt.groups) do assert.is_true(#group.params > 0) end
         got[i] = p:tolist()
      end
      near({ got[2] }, { got[1] }, 'vector')
   end)
end)

describe('a schedule', function()
   it('is its formula at each step, and past the last', function()
      for seed = 1, 40 do
         local pick = choice.drawn('schedule', seed)
         local steps, lr = pick:int(1, 12), pick:pick { 1, 0.3 }
         local warmup, low = pick:int(0, steps - 1), pick:pick { 0, 0.1 }
         local decay = pick:int(0, steps - warmup)
         local left = {
            constant = function() return lr end,
            linear = function(p) return lr + (low - lr) * p end,
            cosine = function(p)
               return low + (lr - low) * (1 + math.cos(math.pi * p)) / 2
            end,
            wsd = function(_, step)
               local rest = math.max(0, steps - step)
               return rest >= decay and lr or low + (lr - low) * rest / decay
            end,
         }
         for name, fn in each(left) do
            local s = optim.schedule.make(name, { lr = lr, steps = steps, warmup = warmup,
               min_lr = low, decay = decay })
            for step = 1, steps + 3 do
               local want = steps == 1 and lr or step <= warmup and lr * step / warmup
                  or fn(math.min(1, (step - warmup) / (steps - warmup)), step)
               assert.is_true(math.abs(want - s(step)) < 1e-12, name .. ' ' .. step)
            end
            refused('E_ARG', 'step', s, 0)
         end
      end
      for name in each { linear = 1, cosine = 1 } do
         refused('E_ARG', { 'warmup', 'fewer than the 5 steps' }, optim.schedule[name],
            { lr = 1, steps = 5, warmup = 5 })
      end
      assert.equal(1, optim.schedule.wsd({ lr = 1, steps = 10 })(8))
      assert.equal(0.5, optim.schedule.wsd({ lr = 1, steps = 10 })(9))
      refused('E_ARG', { 'decay', 'in [0, 7]' }, optim.schedule.wsd, { lr = 1, steps = 10,
         warmup = 3, decay = 8 })
   end)
end)

describe('groups of parameters', function()
   it('are those of the first pattern that matches; vectors do not decay', function()
      for _, row in ipairs { { 'embed', 'model.embed.weight', true }, { 'a*c', 'xabbc', true },
         { 'a*c', 'ca', false }, { 'x|norm', 'norm1.w', true }, { 'a.b', 'axb', false },
         { 'a-b', 'a-b', true }, { 'a[1]', 'a1', false }, { ' x  y ', 'ayb', true },
         { 'w%', 'w', false }, { 'l?', 'l', false }, { '^a', 'a', false } } do
         assert.equal(row[3], groups.matches(row[1], row[2]), row[1])
      end
      local function entry(name, ...)
         return { name = name, param = tide.ones({ ... }):requires_grad_(true) }
      end
      local list = { entry('embed.w', 4, 2), entry('embed.b', 4), entry('head.w', 2, 2),
         entry('norm.w', 2), entry('head.b', 2) }
      local function shown(o)
         local out = {}
         for i, g in ipairs(optim.AdamW(list, o).groups) do
            local names = {}
            for k, e in ipairs(g.params) do names[k] = e.name end
            out[i] = ('%s: %g %g'):format(table.concat(names, ' '), g.weight_decay, g.lr_scale)
         end
         return out
      end
      assert.same({ 'embed.w head.w: 0.5 1', 'embed.b norm.w head.b: 0 1' },
         shown { lr = 1, weight_decay = 0.5 })
      assert.same({ 'embed.w embed.b head.w norm.w head.b: 0.5 1' },
         shown { lr = 1, weight_decay = 0.5, decay_vectors = true })
      assert.same({ 'embed.w: 0.5 0.1', 'head.w: 0.5 1', 'norm.w head.b: 0 1', 'embed.b: 0 0.1' },
         (function()
            local got = shown { lr = 2, weight_decay = 0.5, groups = { { pattern = 'embed',
               lr = 0.2 } } }
            return { got[1], got[2], got[4], got[3] }
         end)())
      assert.same({ 'embed.w: 0.5 1', 'head.w head.b: 0.25 3', 'embed.b norm.w: 0 1' },
         shown { lr = 1, weight_decay = 0.5, groups = { { pattern = 'head', lr_scale = 3,
            weight_decay = 0.25 } } })
      for text, g in each { ["groups[1]: unknown option 'beta'"] = { pattern = 'w', beta = 1 },
         ['groups[1].beta1'] = { pattern = 'w', beta1 = 'x' },
         ['groups[1].eps'] = { pattern = 'w', eps = -1 },
         ["groups[1]: pattern 'zz' matches no parameter (one of them is 'embed.w')"] = {
            pattern = 'zz' }, ['lr and lr_scale exclude each other'] = { pattern = 'w', lr = 1,
            lr_scale = 1 }, ["words of names of parameters, e.g. 'embed|norm'"] = {
            pattern = ' | ' } } do
         refused('E_ARG', text, optim.AdamW, list, { lr = 1, groups = { g } })
      end
      for _, lr in ipairs { 0, function() return 1 end } do
         refused('E_ARG', 'groups[1].lr: the rate of the optimiser is no constant above 0',
            optim.AdamW, list, { lr = lr, groups = { { pattern = 'w', lr = 1 } } })
      end
   end)
end)

describe('counts of updates', function()
   it('are of each parameter, saved with the state, and taken back once', function()
      local list = {}
      for i, name in ipairs { 'a', 'b', 'c' } do
         list[i] = { name = name, param = tide.ones({ 2, i }):requires_grad_(true) }
      end
      local function opt() return optim.AdamW(list, { lr = 0.1 }) end
      local function step(o, names)
         o:zero_grad()
         for _, e in ipairs(list) do
            if names:find(e.name) then e.param:set_grad(tide.ones(e.param.shape)) end
         end
         o:step()
      end
      local one = opt()
      refused('E_STATE', 'there is no step to take back', one.take_back, one)
      refused('E_STATE', 'no parameter has a gradient', one.step, one)
      for _, names in ipairs { 'ab', 'a', 'abc' } do step(one, names) end
      local tensors, meta = one:state_dict()
      assert.same({ kind = 'AdamW', steps = 3, counts = { a = 3, b = 2, c = 1 } }, meta)
      assert.equal(3, #one:grads())
      local two = opt()
      two:load_state_dict(tensors, meta)
      assert.same({ 3, 3, 2, 1 }, { two.steps, two.state.a.step, two.state.b.step,
         two.state.c.step })
      one:take_back()
      assert.same({ 2, 2, 1, 0 }, { one.steps, one.state.a.step, one.state.b.step,
         one.state.c.step })
      refused('E_STATE', 'there is no step to take back', one.take_back, one)
      for momentum, has in each { [0] = false, [0.5] = true } do
         local sgd = optim.SGD(list, { lr = 0.1, momentum = momentum })
         step(sgd, 'a')
         assert.equal(has, sgd.state.a.buf ~= nil)
      end
   end)
end)
