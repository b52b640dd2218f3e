-- Models whose sequence lies over ranks: what is attached, refused and restored; frozen targets;
-- training with the other axes, whose losses and gradients equal one rank's. Wide sweeps are in
-- spec/deep.

local case = require 'spec.parallel.cp_case'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local spread = require 'tide.nn.spread'
local tide = require 'tide'

local cp = tide.parallel.cp

local config = { vocab_size = 31, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 6,
   num_key_value_heads = 3, head_dim = 4, intermediate_size = 40 }

local function all_true(list)
   for _, ok in ipairs(list) do assert.equal(true, ok) end
end

local function same(a, b) return (a - b):abs():amax():item() == 0 end
local function ints(list) return tide.tensor(list, { dtype = 'i64' }) end
local axis2 = { size = 2, rank = 0, comm = { size = 2, rank = 0, all_reduce = function() end } }

-- ---- one rank is enough ----------------------------------------------------------------------

describe('attaching', function()
   local function llama() return tide.model.llama(config, { seed = 1 }) end

   it('replaces the inner call, and gives it back', function()
      local model = llama()
      local attn = model.model.layers:at(2).self_attn
      local handle = cp.attach(model, axis2, { sliding_window = 5,
         layers = { [2] = 'allgather' } })
      assert.equal('allgather', handle.layers[2].inner.method)
      assert.same({ 'cp' }, attn:wraps 'attend')
      assert.same({ 4, -1 }, attn.window)
      assert.equal(handle, spread.of(model).cp)
      refused('E_STATE', 'attached already', cp.attach, model, { axis = axis2 })
      handle:restore()
      assert.same({}, attn:wraps 'attend')
      assert.is_nil(attn.window)
      assert.is_nil(spread.of(model).cp)
      handle:restore()
      handle = cp.attach(model, axis2, { layers = { ['1.self_attn'] = { method = 'a2a',
         window = { 2, -1 } } } })
      assert.equal('a2a', handle.layers[2].inner.method)
      assert.same({ 2, -1 }, attn.window)
      assert.is_nil(model.model.layers:at(1).self_attn.window)
      handle:restore()
   end)

   it('stands inside of what is computed again, whichever came first', function()
      for _, first in ipairs { 'attach', 'recompute' } do
         local model = llama()
         local function again() tide.parallel.recompute(model, { ops = { 'attention' } }) end
         if first == 'recompute' then again() end
         local handle = cp.attach(model, axis2)
         if first == 'attach' then again() end
         local attn = model.model.layers:at(1).self_attn
         assert.same({ 'cp', 'recompute' }, attn:wraps 'attend')
         handle:restore()
         assert.same({ 'recompute' }, attn:wraps 'attend')
         tide.parallel.recompute(model, 'none')
         assert.equal(tide.nn.Attention.attend, attn.attend)
      end
   end)

   it('takes the ranks before the options, a mesh too, and the spelling of 0.1', function()
      local model = llama()
      local mesh = { find = function(_, name) return name == 'cp' and axis2 or nil end }
      for _, given in ipairs { { axis2, { method = 'a2a' } }, { mesh, { method = 'a2a' } },
         { { axis = axis2, method = 'a2a' } } } do
         local handle = cp.attach(model, given[1], given[2])
         assert.same({ 'a2a', 2 }, { handle.method, handle.size })
         handle:restore()
      end
      local none = { find = function() end }
      refused('E_ARG', "'axis'", cp.attach, model, none)
      refused('E_ARG', "'axis'", cp.attach, model)
      refused('E_ARG', 'axis', cp.attach, model, axis2, { axis = axis2 })
   end)

   it('says which rule was broken', function()
      local model = llama()
      local function bad(status, words, opts)
         local axis = opts.axis or axis2
         opts.axis = nil
         refused(status, words, cp.attach, model, axis, opts)
         assert.is_nil(spread.of(model).cp)
         assert.same({}, model.model.layers:at(1).self_attn:wraps 'attend')
      end
      bad('E_ARG', { 'method', 'ring' }, { method = 'rings' })
      bad('E_ARG', { 'layout', 'zigzag' }, { layout = 'zigzig' })
      bad('E_ARG', 'axis', { axis = 3 })
      bad('E_ARG', 'a2a', { method = 'a2a+p2p' })
      bad('E_ARG', 'a2a', { a2a = 2 })
      bad('E_ARG', 'must equal', { method = 'a2a+p2p', a2a = 3 })
      bad('E_ARG', 'layers', { layers = { [3] = 'ring' } })
      bad('E_ARG', "named 'mlp'", { layers = { mlp = 'ring' } })
      bad('E_ARG', 'method', { layers = { [1] = 'rings' } })
      bad('E_ARG', { 'sliding_window', '>= 1' }, { sliding_window = 0 })
      bad('E_ARG', 'window', { window = -1 })
      bad('E_ARG', 'window[1]', { window = { 'a' } })
      bad('E_ARG', 'left, right', { window = { 1, 2, 3 } })
      bad('E_ARG', 'window[2]', { layers = { [1] = { window = { 1, 0.5 } } } })
      bad('E_ARG', 'give one of them', { window = 2, sliding_window = 3 })
      bad('E_ARG', 'metod', { metod = 'ring' })
      bad('E_ARG', 'mamba', { mamba = 'state' })
      model.model.layers:at(2).self_attn.dropout = 0.1
      bad('E_UNSUPPORTED', { "the method 'ring'", 'allgather', 'a2a' }, {})
      bad('E_UNSUPPORTED', "'a2a+p2p'", { layers = { [2] = 'a2a+p2p' }, method = 'a2a', a2a = 1 })
      model.model.layers:at(2).self_attn.dropout = 0
      refused('E_ARG', 'attention', cp.attach, tide.nn.Linear(2, 2), { axis = axis2 })
      model.model.layers:at(1).self_attn:wrap('own', function() end, { of = 'attend' })
      refused('E_UNSUPPORTED', 'model.layers.0.self_attn', cp.attach, model, { axis = axis2 })
      refused('E_ARG', 'since the model has no Mamba-2 layers', cp.attach, llama(),
         { axis = axis2, mamba = 'state' })
      local mamba = tide.nn.Stack { tide.nn.Mamba2 { dim = 8, head_dim = 4, state = 4 } }
      refused('E_ARG', { 'mamba', 'heads' }, cp.attach, mamba, { axis = axis2, mamba = 'heads' })
      refused('E_UNSUPPORTED', "not 'document'", cp.attach, mamba,
         { axis = axis2, mamba = 'state', layout = 'document' })
      local handle = cp.attach(mamba, axis2, { mamba = 'state' })
      assert.same({ 'cp' }, mamba:at(1):wraps 'mix')
      handle:restore()
      assert.equal(tide.nn.Mamba2.mix, mamba:at(1).mix)
   end)

   it('wants to know of each class whether its tokens see each other', function()
      local class, nn = tide.class, tide.nn
      local function wrapped(Wrap)
         local model = llama()
         local block = model.model.layers:at(2)
         block.self_attn = Wrap(block.self_attn)
         return model
      end
      local function wrap(name, said)
         local Wrap = class(name, nn.Module)
         Wrap.mixes = said
         function Wrap:init(core)
            nn.Module.init(self)
            self:child('core', core)
         end
         function Wrap.forward(self, x, at) return self.core(x, at) end
         return Wrap
      end
      local Shift = wrap 'Shift'
      local model = wrapped(Shift)
      refused('E_ARG', { "'model.layers.1.self_attn' (Shift)", 'Shift.mixes = false', 'context' },
         cp.attach, model, { axis = axis2 })
      assert.same({}, model.model.layers:at(1).self_attn:wraps 'attend')
      assert.is_nil(spread.of(model).cp)
      cp.attach(model, tide.comm.solo()):restore()
      refused('E_UNSUPPORTED', { "'model.layers.1.self_attn'", 'Shift.mixes = true' }, cp.attach,
         wrapped(wrap('Shift', true)), { axis = axis2 })
      refused('E_ARG', "'Shift.mixes': expected false, 'context' or true, got \"contxt\"",
         cp.attach, wrapped(wrap('Shift', 'contxt')), { axis = axis2 })
      for _, said in ipairs { false, 'context' } do
         cp.attach(wrapped(wrap('Shift', said)), { axis = axis2 })
      end
      local both = nn.Stack { llama().model.layers:at(1), tide.model.vision { patch_dim = 2,
         hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2 } }
      refused('E_UNSUPPORTED', 'Vision.mixes = true', cp.attach, both, axis2)
      -- a subclass of one that declares it declares it again for a forward of its own
      local Heir = class('Heir', wrap('Shift', false))
      cp.attach(wrapped(Heir), axis2)
      function Heir.forward(self, x, at) return self.core(x:cumsum(2), at) end
      refused('E_ARG', '(Heir)', cp.attach, wrapped(Heir), { axis = axis2 })
      local Mine = class('Mine', nn.Attention)
      cp.attach(nn.Stack { Mine { dim = 8, heads = 2 } }, { axis = axis2 })
      function Mine.forward(_, x) return x end
      refused('E_ARG', "'0' (Mine)", cp.attach, nn.Stack { Mine { dim = 8, heads = 2 } },
         { axis = axis2 })
      local one = wrapped(Shift)                         -- one module may say it for itself
      one.model.layers:at(2).self_attn.mixes = false
      cp.attach(one, axis2)
   end)

   it('is needed, and so is the context', function()
      local model, ids = llama(), ints { { 1, 2, 3, 4 } }
      local context = cp.make_cp_batch_and_ctx(axis2, { ids = ids, labels = ids })
      local mine = ids:slice(2, 1, 2)
      refused('E_STATE', 'attach', model, mine, { context = context })
      refused('E_SHAPE', '2 tokens', model, ids, { context = context })
      refused('E_ARG', 'index', model, mine, { context = context,
         index = tide.zeros({ 1, 2, 2 }, { dtype = 'i32' }) })
      refused('E_ARG', 'context', model, mine, { context = 7 })
      refused('E_UNSUPPORTED', 'shift', model.loss, model, mine, mine,
         { context = context, shift = true })
      local want = model(ids)
      assert.is_true(same(want, model(ids, { context = cp.null })))
      local handle = cp.attach(model, axis2)
      refused('E_STATE', 'no batch', model, ids)
      assert.is_true(same(want, model(ids, { context = cp.null })))
      handle:restore()
      assert.is_true(same(want, model(ids)))
      local mamba = tide.nn.Mamba2 { dim = 8, head_dim = 4, state = 4 }
      refused('E_STATE', 'Mamba2', mamba, tide.zeros { 1, 2, 8 }, { context = context })
   end)

   it('cuts a batch without labels, for inference', function()
      local rows = ranks.run(2, function()
         local t = require 'tide'
         local model = t.model.llama({ vocab_size = 9, hidden_size = 8, num_hidden_layers = 1,
            num_attention_heads = 2 }, { seed = 1 })
         local handle = t.parallel.cp.attach(model, t.comm.world())
         local ids = t.tensor({ { 1, 2, 3, 4, 5, 6, 7, 8 } }, { dtype = 'i64' })
         local mine, both = handle:cut { ids = ids }, handle:cut { ids = ids, labels = ids }
         return { mine.labels == nil, mine.ids:equal(both.ids),
            model(mine.ids, { context = mine.context }).shape }
      end)
      for r = 1, 2 do assert.same({ true, true, { 1, 4, 9 } }, rows[r]) end
   end)

   it('gives layers their positions, where a call has none', function()
      local rows = ranks.run(3, function()
         local t = require 'tide'
         local cp_, nn = t.parallel.cp, t.nn
         local ids = t.tensor({ { 1, 2, 3, 4, 5, 6, 7, 8, 0, 2, 4 } }, { dtype = 'i64' })
         local worst = {}
         local function compare(module, run, method)
            local want = t.no_grad(run, ids, {})
            local handle = cp_.attach(module, t.comm.world(), { method = method })
            local mine = handle:cut { ids = ids }
            local got = t.no_grad(run, mine.ids, { context = mine.context })
            handle:restore()
            worst[#worst + 1] = (mine.context.map:gather(got, 2) - want):abs():amax():item()
         end
         local table_ = t.empty({ 9, 8 }):normal_(0, 1, { seed = 4 })
         local layer = nn.Attention({ dim = 8, heads = 2, rope = nn.rope { dim = 4 }, seed = 3 })
         local rotary = t.model.llama({ vocab_size = 9, hidden_size = 8, num_hidden_layers = 1,
            num_attention_heads = 2, initializer_range = 0.5 }, { seed = 1 })
         local learned = t.model.gpt2({ vocab_size = 9, n_embd = 8, n_layer = 1, n_head = 2,
            n_positions = 16, attn_pdrop = 0, initializer_range = 0.5 }, { seed = 1 })
         learned:eval()
         for _, method in ipairs { 'ring', 'a2a' } do
            compare(layer, function(at_ids, at)
               local x = table_:index_select(1, at_ids:flatten(1, 2))
               return layer(x:reshape { 1, at_ids:size(2), 8 }, at)
            end, method)
            for _, model in ipairs { rotary, learned } do
               compare(model, function(...) return model.model(...) end, method)
            end
         end
         return worst
      end)
      for _, worst in ipairs(rows) do
         assert.equal(6, #worst)
         for _, off in ipairs(worst) do assert.is_true(off < 1e-5) end
      end
   end)

   it('counts positions in the documents that an index gives, also in a body', function()
      local model = tide.model.gpt2({ vocab_size = 9, n_embd = 8, n_layer = 1, n_head = 2,
         n_positions = 8, attn_pdrop = 0, initializer_range = 0.5 }, { seed = 1 })
      model:eval()
      local ids, docs = ints { { 1, 2, 3, 4, 5, 6 } }, tide.tensor({ { { 0, 0 }, { 0, 1 }, { 0, 2 },
         { 1, 0 }, { 1, 1 }, { 1, 2 } } }, { dtype = 'i32' })
      local want = model:hidden(ids, { index = docs })
      local got = model.model(ids, { q_index = docs, k_index = docs })
      assert.is_true((got - want):abs():amax():item() < 1e-6)
      local rest = model:hidden(ids:narrow(2, 4, 3), {})
      assert.is_true((got:narrow(2, 4, 3) - rest):abs():amax():item() < 1e-5)
   end)

   it('changes nothing on an axis of one rank', function()
      local model, ids = llama(), ints { { 1, 2, 3 } }
      local handle = cp.attach(model, tide.comm.solo())
      local batch = { ids = ids, labels = ids }
      assert.equal(batch, handle:cut(batch))
      assert.same({}, model.model.layers:at(1).self_attn:wraps 'attend')
      assert.same({ layers = {}, gradients = {} }, cp.self_check(model, batch))
   end)
end)

-- ---- several ranks ---------------------------------------------------------------------------

-- On a rank: logits and hidden states of a frozen model over ranks against those of one.
local function target(_, n, config_, T, B)
   local t = require 'tide'
   local cp_ = t.parallel.cp
   local axis = t.parallel.mesh({ cp = n }):axis 'cp'
   local model = t.model.llama(config_, { seed = 3 })
   local ids = ((t.arange(B * T, { dtype = 'f64' }) * 1.7):sin():abs() * 30):long():reshape(B, T)
   local names, want = { 'model.layers.1', 'model.layers.0.self_attn' }, {}
   for i, name in ipairs(names) do
      local h
      h = model:get(name):hook_post(function(_, _, y)
         want[i] = y
         h.remove()
      end)
   end
   local logits = t.no_grad(function() return model(ids) end)
   local got, collected = cp_.run_target_cp_forward_and_gather(model, axis, ids,
      { collect = names })
   if require('tide.nn.spread').of(model).cp then return 'still attached' end
   if got.requires_grad then return 'has a history' end
   local outputs = { got, unpack(collected) }
   for i, expected in ipairs { logits, unpack(want) } do
      if outputs[i]:size(2) ~= T then return ('%d tokens'):format(outputs[i]:size(2)) end
      local off = (outputs[i] - expected:detach()):abs():amax():item()
      if off ~= off or off >= 1e-5 then return ('%d: off by %g'):format(i, off) end
   end
   local gathers = 0
   for _, r in ipairs(axis.comm:history()) do
      if r.op:find 'all_gather' then gathers = gathers + 1 end
   end
   -- keys and values of two layers, and three results
   return gathers >= 7 or ('%d gathers'):format(gathers)
end

describe('a frozen target', function()
   it('sees the whole sequence and gives it back', function()
      for _, c in ipairs { { 2, 8, 2 }, { 3, 10, 1 }, { 4, 3, 1 } } do
         all_true(ranks.run(c[1], target, config, c[2], c[3]))
      end
   end)
end)

-- ---- training --------------------------------------------------------------------------------

describe('training over a context axis', function()
   for name, c in require 'tide.util.each' {
      ['cp 2'] = { 2, { sizes = { cp = 2 }, attach = {} } },
      ['cp 3, packed'] = { 3, { sizes = { cp = 3 }, packed = true, recompute = 'full',
         attach = { method = 'allgather', layout = 'document' } } },
      ['dp 2 x cp 2, packed'] = { 4, { sizes = { dp = 2, cp = 2 }, packed = true, accum = 2,
         attach = { method = 'a2a' } } },
      ['dp_shard 2 x cp 2, sharded'] = { 4, { sizes = { dp_shard = 2, cp = 2 }, packed = true,
         shard = 'optim_grads_params', attach = { layout = 'balanced' } } },
      ['cp 2 x tp 2'] = { 4, { sizes = { dp = 1, cp = 2, tp = 2 }, sequence = true,
         recompute = 'mlp', shard = 'optim', attach = { layout = 'contiguous' } } },
   } do
      it('equals one rank: ' .. name, function()
         c[2].steps = 8
         all_true(ranks.run(c[1], case.train, c[2]))
      end)
   end

   it('is refused where gradients would be added over the wrong ranks', function()
      all_true(ranks.run(2, function(_, n)
         local t = require 'tide'
         local model = t.nn.Attention { dim = 8, heads = 2 }
         model.loss = function() end
         t.parallel.cp.attach(model, t.parallel.mesh({ cp = n }):axis 'cp')
         local ok, e = pcall(t.train.step.new, { model = model, comm = t.dist.solo(),
            optim = t.optim.SGD(model) })
         return not ok and tostring(e):find('do not hold them all', 1, true) ~= nil
      end))
   end)
end)

-- On a rank: calls and bytes of a step of a plan, as priced and as they were, without those by
-- which ranks compare what they hold.
local function priced(rank, n, config_, attach)
   local t = require 'tide'
   local plan = t.parallel.plan({ family = 'llama', config = config_ },
      { dp_shard = 2, cp = n / 2 },
      { cp = attach, fsdp = { strategy = 'optim_grads_params' }, recompute = 'mlp' })
   local want = plan:price { batch = 2, seq = 13, rank = rank }
   local run = plan:materialise { seed = 1 }
   local comms = { run.mesh.comm, run.context.near, run.context.far }
   for _, c in require 'tide.util.each' (run.mesh.root.comms) do comms[#comms + 1] = c end
   local function traffic()
      local calls, bytes, seen = 0, 0, {}
      for i = 1, table.maxn(comms) do
         local c = comms[i]
         if c and not seen[c] then
            local one = c:traffic()
            seen[c], calls = true, calls + one.ncall
            bytes = bytes + one.nbyte[1] + one.nbyte[2]
         end
      end
      return calls, bytes
   end
   local ids = t.zeros({ 2, 13 }, { dtype = 'i64' })
   run.context:cut { ids = ids, labels = ids }          -- the first one is compared
   local compare, aside, aside_bytes = getmetatable(run.mesh.comm).__index, 0, 0
   local plain = compare.all_gather_bytes
   compare.all_gather_bytes = function(comm, ...)
      local a = comm:traffic()
      local list = plain(comm, ...)
      local b = comm:traffic()
      aside = aside + b.ncall - a.ncall
      aside_bytes = aside_bytes + b.nbyte[1] + b.nbyte[2] - a.nbyte[1] - a.nbyte[2]
      return list
   end
   local calls, bytes = traffic()
   t.scope(function()
      local mine = run.context:cut { ids = ids, labels = ids }
      run.model:loss(mine.ids, mine.labels, { context = mine.context, count = 26 }):backward()
      run.sharded:finish()
   end)
   local calls2, bytes2 = traffic()
   compare.all_gather_bytes = plain
   calls2, bytes2 = calls2 - aside, bytes2 - aside_bytes
   local planned = 0
   for _, k in require 'tide.util.each' (want.collectives) do planned = planned + k end
   if calls2 - calls ~= planned or bytes2 - bytes ~= want.wire then
      return ('%d calls of %d bytes, planned %d of %d'):format(calls2 - calls, bytes2 - bytes,
         planned, want.wire)
   end
   return true
end

describe('a plan with a context axis', function()
   it('is priced as it runs', function()
      for _, attach in ipairs { { method = 'ring' }, { method = 'allgather',
         layout = 'contiguous' }, { method = 'a2a', layout = 'balanced' } } do
         all_true(ranks.run(4, priced, config, attach))
      end
      all_true(ranks.run(8, priced, config, { method = 'a2a+p2p', a2a = 2 }))
   end)

   it('is refused when it is made', function()
      local function bad(words, axes, attach)
         refused('E_ARG', words, tide.parallel.plan,
            { family = 'llama', config = config }, axes, { ranks = 4, cp = attach })
      end
      bad('must equal', { cp = 4 }, { method = 'a2a+p2p', a2a = 3 })
      bad('metod', { cp = 4 }, { metod = 'ring' })
      bad("named 'mlp'", { dp = 2, cp = 2 }, { layers = { mlp = 'a2a' } })
   end)
end)

-- On a rank: what is said when ranks go apart.
local function apart(rank, n, config_, what)
   local t = require 'tide'
   local model = t.model.llama(config_, { seed = 1 })
   local odd = rank == 1
   local ok, e = pcall(function()
      local handle = t.parallel.cp.attach(model, t.parallel.mesh({ cp = n }):axis 'cp', {
         method = odd and what == 'method' and 'a2a' or 'allgather',
         layout = odd and what == 'layout' and 'contiguous' or 'zigzag',
         layers = odd and what == 'layers' and { [2] = 'ring' } or nil })
      local ids = t.arange(24, { dtype = 'i64' }):reshape(1, 24)
      if odd and what == 'rows' then ids = (ids + 1):clamp(0, 23) end
      local mine = handle:cut { ids = ids, labels = ids }
      return model:loss(mine.ids, mine.labels, { context = mine.context, count = 24 }):item()
   end)
   return ok and 'nothing' or tostring(e)
end

describe('ranks that differ', function()
   it('are told so, all of them', function()
      for what, words in require 'tide.util.each' { method = 'different settings',
         layout = 'different settings', layers = 'different settings', rows = 'different batches',
         none = 'nothing' } do
         for _, said in ipairs(ranks.run(2, apart, config, what)) do
            assert.matches(words, said, 1, true)
         end
      end
   end)
end)

describe('dropout of attention probabilities over ranks', function()
   -- On a rank: the loss, and the sum of the gradients' squares over ranks.
   local function train(_, _, cfg, axes, opts, drop)
      local t = require 'tide'
      local c = {}
      for k, v in require 'tide.util.each'(cfg) do c[k] = v end
      c.attention_dropout, c.initializer_range = drop, 0.3
      local run = t.parallel.plan({ family = 'llama', config = c }, axes, opts)
         :materialise { seed = 3 }
      local step = t.train.step.new { model = run.model, parallel = run.sharded, comm = run.comm,
         optim = t.optim.SGD(run.params, { lr = 0 }) }
      local ids = t.arange(24, { dtype = 'i64' }):reshape { 2, 12 }
      local r = step:run { { ids = ids, labels = ids, count = 24 } }
      return { r.loss, r.grad_norm }
   end

   it('is that of one rank where it drops next to nothing, and drops', function()
      local want = ranks.run(1, train, config, { dp = 1 }, {}, 0)[1]
      for _, c in ipairs { { { cp = 2 }, { cp = { method = 'allgather' } } },
         { { cp = 3 }, { cp = { method = 'a2a' }, recompute = 'full' } },
         { { cp = 7 }, { cp = { method = 'a2a' } } },                -- a rank without heads
         { { tp = 3 }, { tp = { sequence_parallel = true } } },
         { { dp_shard = 2 }, { fsdp = {}, recompute = { ops = { 'attention' } } } } } do
         local n = (c[1].cp or c[1].tp or c[1].dp_shard)
         for _, got in ipairs(ranks.run(n, train, config, c[1], c[2], 1e-9)) do
            for i = 1, 2 do assert.near(want[i], got[i], 1e-5 * want[i]) end
         end
         local got = ranks.run(n, train, config, c[1], c[2], 0.5)
         assert.is_true(math.abs(got[1][1] - want[1]) > 1e-3 * want[1])
         for _, row in ipairs(got) do assert.equal(got[1][1], row[1]) end
      end
   end)
end)
