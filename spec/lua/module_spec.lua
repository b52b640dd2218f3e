-- nn/module, nn/hook, nn/weight: names, state, modes, hooks, initialisation by path.

local tide = require 'tide'
local class = require 'tide.class'
local nn = require 'tide.nn'
local raised = require 'spec.support.raised'

local Pair = class('Pair', nn.Module)

function Pair:init(opts)
   nn.Module.init(self)
   opts = opts or {}
   self:child('first', nn.Linear(3, 4, nn.Module.inner(opts)))
   self:child('second', nn.Linear(4, 2, nn.Module.inner(opts)))
   self:buffer('count', tide.tensor({ 0 }, { device = opts.device }))
   self:buffer('scratch', tide.tensor({ 0 }, { device = opts.device }), { persistent = false })
   self:ready(opts)
end

function Pair:forward(x) return self.second(self.first(x):tanh()) end

local function names(list)
   local t = {}
   for i, e in ipairs(list) do t[i] = e.name end
   return t
end

describe('a module', function()
   it('lists parameters, buffers and modules by dotted name, in order', function()
      local m = Pair()
      assert.same({ 'first.weight', 'first.bias', 'second.weight', 'second.bias' },
         names(m:named_parameters()))
      assert.same({ 'count', 'scratch' }, names(m:named_buffers()))
      assert.same({ '', 'first', 'second' }, names(m:named_modules()))
      assert.equal(3 * 4 + 4 + 4 * 2 + 2, m:num_parameters())
      assert.equal(m.second, m:get 'second')
      assert.equal(m, m:get '')
      assert.equal('E_ARG', raised(m.get, m, 'third').code)
      assert.matches('first: Linear 3 %-> 4, bias', tostring(m))
   end)

   it('lists a shared parameter once', function()
      local m = Pair()
      m.second.bias = m.first.bias
      assert.same({ 'first.weight', 'first.bias', 'second.weight' }, names(m:named_parameters()))
      m:to 'f64'
      assert.equal(m.first.bias.id, m.second.bias.id)
   end)

   it('refuses names that are taken or have dots, and children that are none', function()
      local m = Pair()
      assert.equal('E_ARG', raised(m.param, m, 'first', { 2 }, 'zeros').code)
      assert.equal('E_ARG', raised(m.param, m, 'forward', { 2 }, 'zeros').code)
      assert.matches('"forward" is a method of the class; take another name',
         tostring(raised(m.param, m, 'forward', { 2 }, 'zeros')), 1, true)
      assert.matches('"first" is a field of the module already; take another name',
         tostring(raised(m.param, m, 'first', { 2 }, 'zeros')), 1, true)
      assert.equal('E_ARG', raised(m.param, m, 'a.b', { 2 }, 'zeros').code)
      assert.equal('E_ARG', raised(m.child, m, 'third', {}).code)
      assert.equal('E_ARG', raised(m.param, m, 'w', { 2 }, 'wild').code)
      assert.equal('E_ARG', raised(m.param, m, 'w', { 2 }, { kind = 'normal' }).code)
   end)

   it('that is assigned to a field is a child of that name', function()
      local Whole = class('Whole', nn.Module)
      function Whole:init()
         nn.Module.init(self)
         self.proj = nn.Linear(2, 3, { seed = 1 })
         self._aside = nn.Linear(2, 2, { seed = 1 })    -- a private name is a plain field
         self.scale = 2
      end
      local m = Whole()
      assert.same({ 'proj.weight', 'proj.bias' }, names(m:named_parameters()))
      m.proj = nn.Linear(2, 3, { seed = 2, bias = false })
      assert.same({ 'proj.weight' }, names(m:named_parameters()))
   end)

   it('whose constructor forgets a step is an error that names it', function()
      local Early, Unfilled = class('Early', nn.Module), class('Unfilled', nn.Module)
      function Early:init() self.proj = nn.Linear(2, 3) end
      local e = raised(Early)
      assert.equal('E_STATE', e.code)
      assert.matches('nn.Early: .*nn.Module.init%(self%)', tostring(e))
      function Unfilled:init()
         nn.Module.init(self)
         self:param('w', { 2 }, 'ones')
      end
      e = raised(Unfilled)
      assert.equal('E_STATE', e.code)
      assert.matches("nn.Unfilled: .*'w'.*self:ready", tostring(e))
      local Silent = class('Silent', nn.Module)
      function Silent.init() end
      assert.equal('E_STATE', raised(Silent).code)
   end)

   it('whose parts would keep weights of any numbers is an error', function()
      local Parent, ready = class('Parent', nn.Module), false
      function Parent:init(opts)
         nn.Module.init(self)
         self.proj = nn.Stack { nn.Linear(2, 3, nn.Module.inner(opts)) }
         if ready then self:ready(opts) end
      end
      local e = raised(Parent, {})
      assert.equal('E_STATE', e.code)
      assert.matches("nn.Parent: its part 'proj' .*self:ready", tostring(e))
      Parent { device = 'null' }
      ready = true
      -- a class that holds what it is given needs no ready where that is filled
      local Around = class('Around', nn.Module)
      function Around:init(core)
         nn.Module.init(self)
         self.core = core
      end
      Around(Parent {})
      Around(Parent({ init = false }):init_weights(1))
      assert.equal('E_STATE', raised(Around, Parent { init = false }).code)
   end)

   it('refuses parts in a plain table, which nothing would fill', function()
      local Listed = class('Listed', nn.Module)
      function Listed:init(opts, known)
         nn.Module.init(self)
         self.one = known and nn.Linear(2, 3, nn.Module.inner(opts)) or nil
         self.layers = { self.one or nn.Linear(2, 3, nn.Module.inner(opts)) }
         self:ready(opts)
      end
      local e = raised(Listed, {})
      assert.equal('E_ARG', e.code)
      assert.matches("nn.Listed: the field 'layers' is a plain table of modules, .*nn.Stack",
         tostring(e))
      Listed({ init = false }, true)
   end)

   it('walks modes and functions through the tree', function()
      local m, order = Pair(), {}
      m:eval()
      assert.is_false(m.first.training)
      m:train()
      assert.is_true(m.second.training)
      m:apply(function(x) order[#order + 1] = x.class_name end)
      assert.same({ 'Linear', 'Linear', 'Pair' }, order)
   end)

   it('converts dtypes and keeps wanting gradients', function()
      local frozen = Pair()
      frozen.second.weight:requires_grad_(false)
      assert.is_false(frozen:to('f64').second.weight.requires_grad)
      assert.is_false(frozen.count.requires_grad)
      local m = Pair():to 'bf16'
      assert.equal('bf16', m.first.weight.dtype)
      assert.equal('bf16', m.count.dtype)
      assert.is_true(m.first.weight.requires_grad)
      assert.is_true(m.first.weight.is_leaf)
      assert.equal('E_ARG', raised(m.to, m, { dtyp = 'f32' }).code)
      assert.matches('expected one of f32, f64, bf16, f16, cpu', raised(m.to, m, 'float16').message)
      assert.matches('a dtype, a device, or', raised(m.to, m).message, 1, true)
   end)

   it('exists without bytes and is filled later', function()
      local m = Pair { device = 'null' }
      assert.equal('null', m.first.weight.device)
      m:materialise('cpu', 3)
      local n = Pair { seed = 3 }
      assert.is_true(m.first.weight:equal(n.first.weight))
      assert.is_true(m.first.weight.requires_grad)
   end)

   it('without a forward says so', function()
      assert.equal('E_STATE', raised(nn.Module()).code)
   end)
end)

describe('a state', function()
   it('goes out and in, converting dtypes', function()
      local a, b = Pair { seed = 1 }, Pair { seed = 2, dtype = 'f64' }
      local state = a:state_dict()
      assert.is_nil(state.scratch)
      assert.is_not_nil(state.count)
      b:load_state_dict(state)
      assert.equal('f64', b.first.weight.dtype)
      assert.is_true(b.first.weight:float():equal(a.first.weight))
   end)

   it('that does not fit changes nothing and lists every difference', function()
      local a, b = Pair { seed = 1 }, Pair { seed = 2 }
      local before = b.first.weight:clone()
      local state = a:state_dict()
      state['first.bias'], state.extra = nil, tide.zeros { 1 }
      state['second.weight'] = tide.zeros { 2, 5 }
      local e = raised(b.load_state_dict, b, state)
      assert.equal('E_SHAPE', e.code)
      assert.matches('missing: first.bias', e.message, 1, true)
      assert.matches('unexpected: extra', e.message, 1, true)
      assert.matches('second.weight (model [2, 4], state [2, 5])', e.message, 1, true)
      assert.is_true(b.first.weight:equal(before))
      raised(b.load_state_dict, b, state, { strict = false })
      state['second.weight'] = nil
      b:load_state_dict(state, { strict = false })
      assert.is_true(b.first.weight:equal(a.first.weight))
      raised(b.load_state_dict, b, nil)
   end)
end)

describe('rotary frequencies in a state', function()
   it('are passed over', function()
      local model = tide.model.llama({ vocab_size = 5, hidden_size = 4, num_hidden_layers = 1,
         num_attention_heads = 1 }, { seed = 1 })
      local state = model:state_dict()
      state['model.layers.0.self_attn.rotary_emb.inv_freq'] = tide.ones { 2 }
      local lists = model:load_state_dict(state)
      assert.same({ {}, {}, {} }, { lists.missing, lists.unexpected, lists.shape })
      state['model.layers.0.self_attn.inv_freq'] = tide.ones { 2 }
      assert.equal('E_SHAPE', raised(model.load_state_dict, model, state).code)
   end)
end)

describe('initial weights', function()
   it('depend on seed and path alone', function()
      local a, b = Pair { seed = 7 }, Pair { seed = 8 }
      assert.is_false(a.first.weight:equal(b.first.weight))
      b:init_weights(7)
      assert.is_true(a.first.weight:equal(b.first.weight))
      local Other = class('Other', nn.Module)
      function Other:init()
         nn.Module.init(self)
         self:child('zeroth', nn.Linear(9, 9, { init = false }))
         self:child('first', nn.Linear(3, 4, { init = false }))
         self:ready { seed = 7 }
      end
      assert.is_true(a.first.weight:equal(Other().first.weight))
   end)

   it('of a shard are those of its part of the whole', function()
      local weight = nn.weight
      local spec = weight.spec('t', 'init', { kind = 'normal', std = 1 })
      local whole, part = tide.empty { 6, 5 }, tide.empty { 2, 3 }
      weight.fill(whole, spec, { seed = 1, path = 'w' })
      weight.fill(part, spec, { seed = 1, path = 'w', start = 2 * 5 + 1, stride = { 5, 1 } })
      assert.is_true(part:equal(whole:slice(1, 3, 4):slice(2, 2, 4)))
   end)

   it('have the moments they say', function()
      local t = tide.empty { 200, 200 }
      local function moments(spec)
         nn.weight.fill(t, nn.weight.spec('t', 'init', spec), { seed = 1, path = 'x' })
         local mean = t:mean():item()
         return mean, math.sqrt((t - mean):square():mean():item()), t:abs():amax():item()
      end
      local mean, std = moments { kind = 'normal', mean = 1, std = 0.5 }
      assert.is_true(math.abs(mean - 1) < 0.01 and math.abs(std - 0.5) < 0.01)
      local _, tstd, top = moments { kind = 'trunc_normal', std = 2, lo = -1, hi = 1 }
      assert.is_true(top <= 2 and tstd > 1 and tstd < 1.2)
      local _, kstd, ktop = moments { kind = 'kaiming', fan_in = 12 }
      assert.is_true(ktop <= 0.5 and math.abs(kstd - math.sqrt(1 / 12)) < 0.01)
      assert.equal(0, (moments 'zeros'))
      assert.equal(1, (moments 'ones'))
      assert.equal(3, (moments { kind = 'constant', value = 3 }))
   end)
end)

describe('hooks', function()
   local x = tide.tensor { { 1, 2, 3 } }

   it('replace inputs and outputs, in order, until removed', function()
      local m, log = nn.Linear(3, 2, { bias = false }), {}
      local plain = m(x)
      local a = m:hook_pre(function(_, t)
         log[#log + 1] = 'a'
         return t * 2
      end)
      m:hook_pre(function() log[#log + 1] = 'b' end)
      local c = m:hook_post(function(self, inputs, y)
         log[#log + 1] = 'c'
         assert.equal(m, self)
         assert.equal(1, inputs.n)
         return y + 1
      end)
      assert.is_true((plain * 2 + 1):equal(m(x)))
      assert.same({ 'a', 'b', 'c' }, log)
      a.remove()
      a.remove()
      c.remove()
      assert.is_true(plain:equal(m(x)))
      assert.same({ 'a', 'b', 'c', 'b' }, log)
   end)

   it('that return a number in place of a tensor are named', function()
      for _, name in ipairs { 'hook_pre', 'hook_post' } do
         local m = nn.Linear(3, 2)
         local handle = m[name](m, function() return 3 end)
         local ok, e = pcall(m, x)
         assert.is_false(ok)
         assert.matches('nn.Linear: a hook returned 3 instead of a tensor', tostring(e), 1, true)
         handle.remove()
         m(x)
      end
   end)

   it('may remove themselves while they run', function()
      local m, n, h = nn.Linear(3, 2), 0, nil
      h = m:hook_pre(function()
         n = n + 1
         h.remove()
      end)
      m:hook_pre(function() n = n + 10 end)
      m(x)
      m(x)
      assert.equal(21, n)
   end)

   it('see and change gradients on the way back', function()
      local m, seen = Pair { seed = 4 }, {}
      local input = x:clone():requires_grad_(true)
      m(input):sum():backward()
      local plain, plain_w = input.grad:clone(), m.first.weight.grad:clone()
      input:zero_grad()
      m:zero_grad()
      m.second:hook_backward_pre(function(_, dy)
         seen.pre = dy:tolist()
         return dy * 2
      end)
      m.second:hook_backward(function(_, dx) seen.post = dx.shape end)
      m:hook_backward(function(_, dx)
         seen.input = dx:clone()
         return dx * 10
      end)
      m(input):sum():backward()
      assert.same({ { 1, 1 } }, seen.pre)
      assert.same({ 1, 4 }, seen.post)
      assert.is_true((plain * 2 - seen.input):abs():amax():item() < 1e-6)
      assert.is_true((plain * 20 - input.grad):abs():amax():item() < 1e-5)
      assert.is_true((plain_w * 2 - m.first.weight.grad):abs():amax():item() < 1e-5)
   end)

   it('must be functions', function()
      assert.equal('E_ARG', raised(nn.Module().hook_pre, nn.Module(), 3).code)
   end)
end)

describe('hooks of a model in training', function()
   local ids = tide.tensor({ { 1, 2, 3, 4 } }, { dtype = 'i64' })
   local labels = tide.tensor({ { 2, 3, -100, 5 } }, { dtype = 'i64' })

   local function model_of(tied)
      return tide.model.llama({ vocab_size = 11, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, tie_word_embeddings = tied }, { seed = 1 })
   end

   -- What ran, in order, of hooks of three kinds on every module.
   local function watch(model)
      local seen = {}
      for _, e in ipairs(model:named_modules()) do
         local function note(kind)
            return function() seen[#seen + 1] = kind .. ' ' .. e.name end
         end
         e.module:hook_pre(note 'pre')
         e.module:hook_post(note 'post')
         e.module:hook_backward_pre(note 'backward_pre')
         e.module:hook_backward(note 'backward')
      end
      return seen
   end

   it('run once each, on every module, by the loss as by a call', function()
      for _, tied in ipairs { true, false } do
         for _, way in ipairs { 'loss', 'call' } do
            local model, count = model_of(tied), {}
            local seen = watch(model)
            if way == 'loss' then
               model:loss(ids, labels):backward()
            else
               model(ids):sum():backward()
            end
            for _, s in ipairs(seen) do count[s] = (count[s] or 0) + 1 end
            for _, e in ipairs(model:named_modules()) do
               for _, kind in ipairs { 'pre', 'post', 'backward_pre', 'backward' } do
                  assert.equal(1, count[kind .. ' ' .. e.name], way .. ': ' .. kind .. e.name)
               end
            end
            assert.equal('pre ', seen[1])
         end
      end
   end)

   it('aside, a loss called with a dot says what to write', function()
      local ok, e = pcall(model_of(false).loss, tide.zeros({ 1, 4 }, { dtype = 'i64' }))
      assert.is_false(ok)
      assert.matches('call model:loss(ids, labels), with a colon', tostring(e), 1, true)
   end)

   it('see arguments and loss at the root, logits at the head', function()
      local model, plain, seen = model_of(false), model_of(false), {}
      model:hook_pre(function(_, a, b, o) seen.inputs = { a.id, b.id, o.count } end)
      model:hook_post(function(_, _, l) seen.loss = l:item() end)
      model.lm_head:hook_post(function(_, inputs, z) seen.head = { inputs.n, z.shape } end)
      local loss = model:loss(ids, labels, { count = 5, label_smoothing = 0.1, z_loss = 0.01 })
      local want = plain:loss(ids, labels, { count = 5, label_smoothing = 0.1, z_loss = 0.01 })
      assert.same({ ids.id, labels.id, 5 }, seen.inputs)
      assert.near(want:item(), loss:item(), 1e-6)
      assert.equal(loss:item(), seen.loss)
      assert.same({ 1, { 1, 4, 11 } }, seen.head)
      loss:backward()
      want:backward()
      for i, p in ipairs(model:parameters()) do
         local g = plain:parameters()[i].grad
         assert.is_true((p.grad - g):abs():amax():item() < 1e-6)
      end
   end)

   it('may replace logits, inputs and the loss', function()
      local model, plain = model_of(false), model_of(false)
      local handle = model.lm_head:hook_post(function(_, _, z) return z * 2 end)
      local z = (plain(ids) * 2):reshape(4, 11)
      local want = tide.cross_entropy(z, labels:reshape(4))
      assert.near(want:item(), model:loss(ids, labels):item(), 1e-6)
      handle:remove()
      model:hook_post(function(_, _, l) return l * 3 end)
      assert.near(3 * plain:loss(ids, labels):item(), model:loss(ids, labels):item(), 1e-5)
   end)

   it('of modules fed with ids get no gradients and may give none', function()
      local model, got = model_of(false), nil
      local handle = model.model.embed_tokens:hook_backward(function(_, ...)
         got = { n = select('#', ...), grad = model.model.embed_tokens.weight.grad }
      end)
      model(ids):sum():backward()
      assert.same({ n = 0 }, got)                       -- before the backward of the module
      handle:remove()
      model.model.embed_tokens:hook_backward(function() return 1 end)
      local e = raised(function() model(ids):sum():backward() end)
      assert.equal('E_STATE', e.code)
      assert.matches('Embedding carries a gradient', tostring(e))
      got = nil
      tide.no_grad(function() model(ids) end)
      assert.is_nil(got)
   end)

   it('leave a head that plans have hooked without logits', function()
      local model = model_of(false)
      model.lm_head:hook_pre(function() end, { by = 'plan' })
      assert.is_false(model.lm_head:has_hooks())
      model.lm_head.forward = function() error 'logits are made' end
      assert.is_true(model:loss(ids, labels):item() > 0)
      model.lm_head:hook_pre(function() end)
      assert.is_true(model.lm_head:has_hooks())
      assert.is_false(pcall(model.loss, model, ids, labels))
   end)
end)
