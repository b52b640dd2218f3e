-- Styles, plans and imports: the published vectors and messages, and what is refused.

local tide = require 'tide'
local each = require 'tide.util.each'

local parallel = tide.parallel
local get = parallel.translate_to_parallel_style

local function refused(pattern, fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok)
   assert.equal('table', type(e), tostring(e))
   assert.matches(pattern, tostring(e), 1, true)
   return e
end

local function config(changes)
   local c = {
      vocab_size = 23, hidden_size = 24, num_hidden_layers = 2, num_attention_heads = 8,
      num_key_value_heads = 4, head_dim = 4, intermediate_size = 20,
   }
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

local function make(family, changes)
   return tide.model[family](config(changes), { device = 'null' })
end

-- A simulated axis: plans are checked and applied without other ranks.
local function axis(n) return { size = n, rank = 0, comm = tide.comm.simulate(n, 0) } end

describe('parallel styles', function()
   it('are layouts of weight, input and output', function()
      local want = {
         colwise = { 'rows', 'R', 'S(-1)' }, rowwise = { 'columns', 'S(-1)', 'R' },
         colwise_rep = { 'rows', 'R', 'R' }, rowwise_rep = { 'columns', 'R', 'R' },
         sequence_parallel = { 'none', 'S(1)', 'S(1)' },
      }
      for name, w in each(want) do
         local s = get(name)
         assert.equal(name, s.name)
         assert.same(w, { s.shard or 'none', s.input, s.output })
         assert.equal(s, get(name))
      end
   end)

   it('cannot be changed, only made into others', function()
      local s = get 'colwise'
      refused("the style 'colwise' cannot be changed", function() s.output = 'R' end)
      refused('cannot be changed', function() s.lora = true end)
      local other = s:with { output = 'R' }
      assert.equal('S(-1)', s.output)
      assert.equal('R', other.output)
      assert.equal(other, s:with { output = 'R' })
      assert.equal(s, other:with { output = 'S(-1)' })
      refused("unknown option 'shard'", s.with, s, { shard = 'rows' })
      refused("'output'", s.with, s, { output = 'S(7)' })
   end)

   it('refuse other names and no names', function()
      refused("Unknown parallel style 'invalid_style'", get, 'invalid_style')
      refused("did you mean 'rowwise'", get, 'rowise')
      for _, v in ipairs { 3, {}, true } do refused("expected a string", get, v) end
      refused('expected a string', get)
   end)
end)

describe('import by path', function()
   local import, all = parallel.import_class_from_path, parallel.import_classes_from_paths

   it('is the field of a module', function()
      assert.equal(tide.nn.Linear, import 'tide.nn.Linear')
      refused("no module 'nonexistent.module'", import, 'nonexistent.module.Class')
      refused("has no field 'Lniear'", import, 'tide.nn.linear.Lniear')
      refused('a dotted path', import, 'Linear')
      refused('a string', import, 3)
   end)

   it('of a list is strict unless it is optional', function()
      assert.same({ tide.nn.Linear, tide.nn.MLP },
         (all { 'tide.nn.Linear', 'tide.nn.MLP' }))
      refused("no module 'nowhere'", all, { 'tide.nn.Linear', 'nowhere.X' })
      local found, failed = all({ 'nowhere.X', 'tide.nn.MLP', 'X', 'tide.nn.Linear' },
         { optional = true })
      assert.same({ tide.nn.MLP, tide.nn.Linear }, found)
      assert.equal(2, #failed)
      assert.matches("no module 'nowhere'", failed[1], 1, true)
      refused("'paths'", all)
      refused("unknown option 'optinal'", all, {}, { optinal = true })
   end)
end)

describe('declared plans', function()
   local plan_of = parallel.get_hf_tp_shard_plan

   local function mock(spec)
      local class = { class_name = spec.name or 'Mock', _tp_plan = spec.class }
      class.__index = class
      local m = setmetatable({ _tp_plan = spec.instance }, class)
      local inner = spec.inner and { _tp_plan = spec.inner } or {}
      if spec.name then m.language_model = inner else m.model = inner end
      local c = { tie_word_embeddings = spec.tied }
      m.config = spec.name and { text_config = c } or c
      return m
   end

   local l = 'model.layers.*.'

   it('of a class with tied embeddings are translated, nothing is added', function()
      local plan = plan_of(mock { tied = true, class = { [l .. 'self_attn.q_proj'] = 'colwise',
         [l .. 'self_attn.k_proj'] = 'colwise', [l .. 'mlp.gate_proj'] = 'colwise' } })
      assert.same({ [l .. 'self_attn.q_proj'] = get 'colwise',
         [l .. 'self_attn.k_proj'] = get 'colwise', [l .. 'mlp.gate_proj'] = get 'colwise' }, plan)
   end)

   it('that cut the sequence at some norms only are refused', function()
      local model = tide.model.llama({ vocab_size = 16, hidden_size = 16, num_hidden_layers = 2,
         num_attention_heads = 2 }, { device = 'null' })
      local mesh = parallel.mesh({ { 'tp', 2 } }, { comm = tide.comm.simulate(2, 0) })
      local function cut(plan)
         return function()
            return parallel.tensor_parallel(model, mesh:axis 'tp', { plan = plan })
         end
      end
      refused("'model.layers.0.input_layernorm': the sequence is cut here",
         cut { ['model.layers.0.input_layernorm'] = 'sequence_parallel' })
      refused("'model.norm': the sequence is cut here and not behind the embedding",
         cut { ['model.norm'] = 'sequence_parallel' })
      refused('the sequence is cut behind the embedding', cut { ['model.embed_tokens'] =
         get('rowwise_rep'):with { output = 'S(1)' } })
   end)

   it('of the models of this library are those of their structure', function()
      local function of(name, tied)
         return plan_of(tide.model[name]({ vocab_size = 16, hidden_size = 16, head_dim = 8,
            num_hidden_layers = 2, num_attention_heads = 2, tie_word_embeddings = tied },
            { device = 'null' }))
      end
      local want = { lm_head = get 'colwise', ['model.embed_tokens'] = get 'rowwise_rep' }
      for _, name in ipairs { 'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj',
         'mlp.gate_proj', 'mlp.up_proj' } do want[l .. name] = get 'colwise' end
      for _, name in ipairs { 'self_attn.o_proj', 'mlp.down_proj' } do
         want[l .. name] = get 'rowwise'
      end
      for _, name in ipairs { 'llama', 'mistral', 'qwen2', 'qwen3' } do
         assert.same(want, of(name, false))
      end
      want.lm_head, want['model.embed_tokens'] = nil, nil
      assert.same(want, of('llama', true))
      refused('declares none', plan_of, tide.nn.Linear(2, 2))
   end)

   it('of an object get an embedding cut by rows when it is untied', function()
      local plan = plan_of(mock { instance = { [l .. 'self_attn.q_proj'] = 'rowwise' } })
      assert.same({ [l .. 'self_attn.q_proj'] = get 'rowwise',
         ['model.embed_tokens'] = get 'rowwise_rep' }, plan)
   end)

   it('of the model inside get its prefix', function()
      local plan = plan_of(mock { tied = true, inner = {
         ['layers.0.self_attn.v_proj'] = 'colwise_rep', ['layers.0.self_attn.o_proj'] =
         'rowwise_rep' } })
      assert.same({ ['model.layers.0.self_attn.v_proj'] = get 'colwise_rep',
         ['model.layers.0.self_attn.o_proj'] = get 'rowwise_rep' }, plan)
   end)

   it('of Gemma-3 with images lie under language_model', function()
      local plan = plan_of(mock { name = 'Gemma3ForConditionalGeneration',
         inner = { ['layers.*.mlp.up_proj'] = 'colwise' } })
      assert.same({ ['language_model.layers.*.mlp.up_proj'] = get 'colwise',
         ['language_model.embed_tokens'] = get 'rowwise_rep' }, plan)
   end)

   it('merge: class, then object, then inside', function()
      local plan = plan_of(mock { tied = true,
         class = { a = 'colwise', b = 'colwise', ['model.c'] = 'colwise' },
         instance = { b = 'rowwise' }, inner = { c = 'colwise_rep', d = 'rowwise' } })
      assert.same({ a = get 'colwise', b = get 'rowwise', ['model.c'] = get 'colwise_rep',
         ['model.d'] = get 'rowwise' }, plan)
   end)

   it('leave the logits cut for an untied head', function()
      local open = plan_of(mock { class = { lm_head = 'colwise_rep' } })
      assert.equal('S(-1)', open.lm_head.output)
      local tied = plan_of(mock { tied = true, class = { lm_head = 'colwise_rep' } })
      assert.equal(get 'colwise_rep', tied.lm_head)
   end)

   it('leave out styles of experts, refuse none at all and unknown styles', function()
      assert.same({ a = get 'colwise' }, plan_of(mock { tied = true,
         class = { a = 'colwise', b = 'ep_router', c = 'local_rowwise', d = 'gather' } }))
      refused('Hugging Face tp plan is not supported', plan_of, mock {})
      refused('Unknown parallel style', plan_of, mock { class = { a = 'invalid_style' } })
   end)

   it('can be applied, with the sequence cut too', function()
      local l2 = 'layers.*.'
      local function declared()
         local m = make('llama', { num_key_value_heads = 8 })
         m.model._tp_plan = {}
         for _, n in ipairs { 'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj',
            'mlp.gate_proj', 'mlp.up_proj' } do m.model._tp_plan[l2 .. n] = 'colwise' end
         for _, n in ipairs { 'self_attn.o_proj', 'mlp.down_proj' } do
            m.model._tp_plan[l2 .. n] = 'rowwise'
         end
         m._tp_plan = { lm_head = 'colwise_rep' }
         return m
      end
      for _, sequence in ipairs { false, true } do
         local m = declared()
         parallel.tensor_parallel(m, axis(2), { declared = true, sequence_parallel = sequence })
         assert.same({ 16, 24 }, m.model.layers:at(1).self_attn.q_proj.weight.shape)
         assert.same({ 12, 24 }, m.lm_head.weight.shape)
      end
   end)
end)

describe('plans by family', function()
   local function text(plan)
      local out = {}
      for k, s in each(plan) do out[k] = tostring(s) end
      return out
   end
   local l = 'model.layers.*.'

   local function base(changes)
      local want = {
         ['model.embed_tokens'] = 'rowwise_rep (R -> R)',
         [l .. 'self_attn.q_proj'] = 'colwise (R -> S(-1))',
         [l .. 'self_attn.k_proj'] = 'colwise (R -> S(-1))',
         [l .. 'self_attn.v_proj'] = 'colwise (R -> S(-1))',
         [l .. 'self_attn.o_proj'] = 'rowwise (S(-1) -> R)',
         [l .. 'mlp.gate_proj'] = 'colwise (R -> S(-1))',
         [l .. 'mlp.up_proj'] = 'colwise (R -> S(-1))',
         [l .. 'mlp.down_proj'] = 'rowwise (S(-1) -> R)',
         lm_head = 'colwise (R -> S(-1))',
      }
      for k, v in each(changes or {}) do want[k] = v or nil end
      return want
   end

   local plan_for = parallel.tp_plans.plan_for

   it('are the facts of each', function()
      for _, family in ipairs { 'llama', 'qwen2', 'qwen3', 'mistral' } do
         assert.same(base(), text(plan_for(make(family))))
      end
      local tied = base()
      tied.lm_head = nil
      assert.same(tied, text(plan_for(make('qwen3', { tie_word_embeddings = true }))))
      assert.same(tied, text(plan_for(make 'gemma3')))
      local phi = base()
      for _, n in ipairs { 'self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj',
         'mlp.gate_proj', 'mlp.up_proj' } do phi[l .. n] = nil end
      phi[l .. 'self_attn.qkv_proj'] = 'rowwise_rep (R -> R)'
      phi[l .. 'self_attn.o_proj'] = 'colwise_rep (R -> R)'
      phi[l .. 'mlp.gate_up_proj'] = 'colwise (R -> S(-1))'
      assert.same(phi, text(plan_for(make 'phi3')))
   end)

   it('with the sequence cut: norms, embedding, sums and head', function()
      local plan = text(plan_for(make 'qwen3', { sequence_parallel = true }))
      local at = 'model.layers.1.'
      assert.equal('rowwise_rep (R -> S(1))', plan['model.embed_tokens'])
      assert.equal('sequence_parallel (S(1) -> S(1))', plan[at .. 'input_layernorm'])
      assert.equal('sequence_parallel (S(1) -> S(1))', plan[at .. 'post_attention_layernorm'])
      assert.equal('sequence_parallel (S(1) -> S(1))', plan['model.norm'])
      assert.equal('colwise (S(1) -> S(-1))', plan[at .. 'self_attn.q_proj'])
      assert.equal('rowwise (S(-1) -> S(1))', plan[at .. 'self_attn.o_proj'])
      assert.equal('rowwise (S(-1) -> S(1))', plan[at .. 'mlp.down_proj'])
      assert.equal('colwise (S(1) -> S(-1))', plan.lm_head)
      assert.is_nil(plan[at .. 'self_attn.q_norm'])
      local gemma = text(plan_for(make 'gemma3', { sequence_parallel = true }))
      for _, n in ipairs { 'pre_feedforward_layernorm', 'post_feedforward_layernorm' } do
         assert.equal('sequence_parallel (S(1) -> S(1))', gemma[at .. n])
      end
      -- attention that every rank computes whole takes the whole sequence
      for name, child in each { phi3 = 'qkv_proj', olmo2 = 'q_proj' } do
         local whole = text(plan_for(make(name), { sequence_parallel = true }))
         assert.equal('gather_input (S(1) -> R)', whole[at .. 'self_attn'])
         assert.equal('rowwise_rep (R -> R)', whole[at .. 'self_attn.' .. child])
         assert.equal('colwise_rep (R -> S(1))', whole[at .. 'self_attn.o_proj'])
      end
   end)

   it('hold for subclasses, and a registered one goes first', function()
      local Sub = require 'tide.class'('Sub', tide.model.llama)
      local model = Sub(config(), { device = 'null' })
      assert.same(base(), text(plan_for(model)))
      local seen
      parallel.tp_plans.register(Sub, function(m, sequence)
         seen = { m, sequence }
         return { lm_head = 'colwise' }
      end)
      assert.same({ lm_head = 'colwise' }, plan_for(model, { sequence_parallel = true }))
      assert.same({ model, true }, seen)
   end)

   it('given by the caller: a table, a function, the path of either', function()
      local given = { lm_head = 'colwise' }
      package.loaded['my.plans'] = { plan = given, make = function() return given end,
         bad = function() error 'no plan today' end, number = 3 }
      for _, p in ipairs { given, function() return given end, 'my.plans.plan', 'my.plans.make' } do
         assert.equal(given, plan_for(make 'llama', { plan = p }))
      end
      for _, p in ipairs { 'my.plans.bad', 'my.plans.number', 'my.plans.none', 'nowhere.plan',
         'plain' } do
         local e = refused(("Custom parallel plan '%s' is not valid"):format(p), plan_for,
            make 'llama', { plan = p })
         for i = 1, 3 do assert.matches((' %d. '):format(i), tostring(e), 1, true) end
      end
      refused('Custom parallel plan', plan_for, make 'llama', { plan = 3 })
      -- with the sequence cut: rewritten, unless it says so itself
      local whole = { ['model.layers.*.mlp.up_proj'] = 'colwise', ['model.norm'] =
         'sequence_parallel' }
      assert.equal(whole, plan_for(make 'llama', { plan = whole, sequence_parallel = true }))
      refused('sequence_parallel is not supported', plan_for, make 'llama',
         { plan = given, sequence_parallel = true })
      local own = {}
      for k, s in each(plan_for(make 'llama')) do own[k] = s.name end
      assert.same(plan_for(make 'llama', { sequence_parallel = true }),
         plan_for(make 'llama', { plan = own, sequence_parallel = true }))
      package.loaded['my.plans'] = nil
   end)
end)

describe('a plan that does not fit', function()
   local function bad(pattern, model, plan, n)
      local before, shapes = {}, {}
      for i, e in ipairs(model:named_parameters()) do
         before[i], shapes[i] = e.param.id, e.param.shape
      end
      refused(pattern, parallel.parallelize_module, model, axis(n or 2), plan)
      for i, e in ipairs(model:named_parameters()) do
         assert.equal(before[i], e.param.id)
         assert.same(shapes[i], e.param.shape)
      end
      assert.equal(8, model.model.layers:at(1).self_attn.heads)
   end
   local q, k, v, o = 'model.layers.*.self_attn.q_proj', 'model.layers.*.self_attn.k_proj',
      'model.layers.*.self_attn.v_proj', 'model.layers.*.self_attn.o_proj'

   it('changes nothing and says why', function()
      bad("names no module of the model; did you mean 'lm_head'", make 'llama',
         { lm_haed = 'colwise' })
      bad('Unknown parallel style', make 'llama', { lm_head = 'colwsie' })
      local given = make 'llama'
      parallel.parallelize_module(given, axis(2), { lm_head = { 'colwise', output = 'R' } })
      assert.equal(12, given.lm_head.weight:size(1))
      bad('a style, its name or { name, input =, output = }', make 'llama', { lm_head = 3 })
      bad('patterns as keys', make 'llama', { 'colwise' })
      bad('two styles', make 'llama', { ['model.layers.0.mlp.up_proj'] = 'rowwise',
         ['model.layers.*.mlp.up_proj'] = 'colwise' })
      bad('all or none', make 'llama', { [q] = 'colwise' })
      bad('all or none', make 'llama', { [o] = 'rowwise' })
      bad('all or none', make 'llama', { [q] = 'colwise', [k] = 'colwise', [v] = 'colwise' })
      bad('all or none', make 'llama', { ['model.layers.*.mlp.down_proj'] = 'rowwise' })
      bad('expected a style with 2 blocks', make 'phi3',
         { ['model.layers.*.mlp.gate_up_proj'] = 'colwise' })
      bad('cannot be rowwise', make 'llama', { ['model.norm'] = 'rowwise' })
      bad('Linear cannot be sequence_parallel', make 'llama', { lm_head = 'sequence_parallel' })
      bad('vocab_size (2) is less than the 3 ranks', make('llama', { vocab_size = 2 }),
         { ['model.embed_tokens'] = 'rowwise_rep' }, 3)
      bad('vocabulary rows', make 'llama', { lm_head = 'rowwise_rep' })
   end)

   it('has head counts that do not divide: keys first', function()
      local plan = { [q] = 'colwise', [k] = 'colwise', [v] = 'colwise', [o] = 'rowwise' }
      bad('num_key_value_heads (4) must be divisible', make 'llama', plan, 8)
      bad('num_key_value_heads (8) must be divisible', make('llama', { num_key_value_heads = 8 }),
         plan, 3)
      refused('num_key_value_heads (4) must be divisible', parallel.tensor_parallel, make 'llama',
         axis(3))
      local check_heads = require('tide.parallel.tp.question').check_heads
      refused('num_attention_heads (8) must be divisible', check_heads,
         { num_attention_heads = 8, num_key_value_heads = 6 }, 3)
      refused('num_key_value_heads (4) must be divisible', check_heads,
         { text_config = { num_attention_heads = 8, num_key_value_heads = 4 } }, 3)
   end)

   it('leaves the head of a model whose own loss reads it whole', function()
      local nn = tide.nn
      local Own = tide.class('Own', nn.Module)
      function Own:init()
         nn.Module.init(self)
         self.embed_tokens = nn.Embedding(16, 8, { device = 'null' })
         self.layers = nn.Stack {}
         self.norm = nn.RMSNorm(8, { device = 'null' })
         self.lm_head = nn.Linear(8, 16, { device = 'null' })
      end
      assert.same({ embed_tokens = get 'rowwise_rep' }, parallel.tp_plans.plan_for(Own()))
      assert.equal(get 'colwise', parallel.tp_plans.plan_for(make 'llama').lm_head)
      refused('the loss of Own would read its part as the whole', parallel.tensor_parallel, Own(),
         axis(2), { sequence_parallel = true })
   end)

   it('is checked before the sequence is cut', function()
      local other = tide.nn.MLP { dim = 4, hidden = 8, device = 'null' }
      refused('no plan is known for MLP', parallel.tensor_parallel, other, axis(2))
      other._tp_plan = { up_proj = 'colwise' }
      refused('sequence_parallel is not supported in HF tp plan', parallel.tensor_parallel, other,
         axis(2), { sequence_parallel = true })
      local model = make 'llama'
      model.model._tp_plan = { ['layers.*.mlp.up_proj'] = 'colwise' }
      refused('sequence_parallel is not supported', parallel.tensor_parallel, model, axis(2),
         { sequence_parallel = true, declared = true })
      local learned = tide.model.gpt2({ vocab_size = 9, n_embd = 8, n_layer = 1, n_head = 2 },
         { device = 'null' })
      refused("no rule for learned positions, 'model.embed_positions'", parallel.tensor_parallel,
         learned, axis(2), { sequence_parallel = true })
   end)

   it('takes booleans for its flags, and no model that is cut or sharded', function()
      refused("argument 'sequence_parallel'", parallel.tensor_parallel, make 'llama', axis(2),
         { sequence_parallel = 'no' })
      local model = parallel.tensor_parallel(make 'llama', axis(2))
      refused('the model is cut over ranks already', parallel.tensor_parallel, model, axis(2))
      local whole = make 'llama'
      parallel.fully_shard(whole, { seed = 1 })
      refused('is sharded already', parallel.tensor_parallel, whole, axis(2))
   end)

   it('is not applied twice, and not to what is no model', function()
      local model = parallel.tensor_parallel(make 'llama', axis(2))
      refused('cut over ranks already', parallel.tensor_parallel, model, axis(2))
      refused("'model'", parallel.tensor_parallel, 3, axis(2))
      refused("'axis'", parallel.tensor_parallel, make 'llama', 'tp')
      refused("did you mean 'sequence_parallel'", parallel.tensor_parallel, make 'llama', axis(2),
         { sequence_paralel = true })
      local one = make 'llama'
      assert.equal(one, parallel.tensor_parallel(one, axis(1), { sequence_parallel = true }))
      assert.same({ 32, 24 }, one.model.layers:at(1).self_attn.q_proj.weight.shape)
   end)
end)

describe('layout', function()
   local layout = parallel.layout

   it('gives the boxes of what a rank holds', function()
      local a = axis(3)
      a.rank = 1
      local e = layout.new { axis = a, placement = parallel.Shard(1), shape = { 8, 5 } }
      assert.same({ 3, 3, 2 }, e.counts)
      assert.same({ 3, 5 }, e:local_shape())
      assert.same({ offset = { 3, 0 }, size = { 3, 5 }, at = { 0, 0 }, start = 15,
         stride = { 5, 1 } }, e:boxes()[1])
      e = layout.new { axis = a, placement = parallel.Shard(2), shape = { 2, 5 }, counts = { 0, 4,
         1 } }
      assert.same({ { 0, 0 }, { 2, 4 } }, { e:boxes()[1].offset, e:boxes()[1].size })
      e = layout.new { axis = a, placement = parallel.Shard(1), shape = { 8, 1 }, blocks = 2 }
      assert.same({ { 2, 1, 1 }, { 2, 1, 1 } }, e.counts)
      assert.same({ 2, 6 }, { e:boxes()[1].offset[1], e:boxes()[2].offset[1] })
      assert.same({ 0, 1 }, { e:boxes()[1].at[1], e:boxes()[2].at[1] })
      refused('add up to 8', layout.new, { axis = a, placement = parallel.Shard(1),
         shape = { 8 }, counts = { 1, 2, 3 } })
      refused('a divisor of 8', layout.new, { axis = a, placement = parallel.Shard(1),
         shape = { 8 }, blocks = 3 })
      refused('Shard of a dim', layout.new, { axis = a, placement = parallel.Shard(2),
         shape = { 8 } })
   end)

   it('of a module: one box, or several', function()
      local model = parallel.tensor_parallel(make 'phi3', axis(2))
      local mlp = model.model.layers:at(1).mlp
      assert.same({ { 0, 0 }, { 24, 10 } }, { layout.box(mlp.down_proj, 'weight') })
      assert.equal(2, #layout.boxes(mlp.gate_up_proj, 'weight'))
      refused('2 boxes', layout.box, mlp.gate_up_proj, 'weight')
      assert.same({ 40, 24 }, layout.shape(mlp.gate_up_proj, 'weight'))
      assert.same({ 20, 24 }, mlp.gate_up_proj.weight.shape)
      assert.is_nil(layout.get(model.model.norm, 'weight'))
      assert.same({ { 0 }, { 24 } }, { layout.box(model.model.norm, 'weight') })
   end)
end)
