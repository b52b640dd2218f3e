-- What configurations of models say and are refused for: each rule by its cases, in whole messages.

local config = require 'tide.model.config'
local each = require 'tide.util.each'
local family = require 'tide.model.family'
local published = require 'tide.model.published'
local raised = require 'spec.support.raised'
local tide = require 'tide'
local time_step = require 'tide.model.time_step'

local null = tide.json.null

local function message(fn, ...) return raised(fn, ...).message end

describe('rope_parameters', function()
   -- The fields after translation, and the problems.
   local function translated(f, local_theta)
      local problems = {}
      config.translate_rope(f, problems, local_theta)
      return f, table.concat(problems, '; ')
   end

   it('become the fields of before, of both kinds of layers', function()
      local linear = { rope_type = 'linear', factor = 2 }
      local function with(more)
         local t = {}
         for k, v in each(linear) do t[k] = v end
         for k, v in each(more) do t[k] = v end
         return t
      end
      for _, row in ipairs {
         { { rope_parameters = { rope_theta = 5 } }, { rope_theta = 5 } },
         { { rope_parameters = { rope_type = 'default' } }, {} },
         { { rope_parameters = { type = 'default', partial_rotary_factor = 0.5 } },
            { partial_rotary_factor = 0.5 } },
         { { rope_parameters = with { rope_theta = 7 } },
            { rope_theta = 7, rope_scaling = linear } },
         { { rope_parameters = { type = 'linear', factor = 2 } }, { rope_scaling = linear } },
         { { rope_parameters = { full_attention = with { rope_theta = 3 } } },
            { rope_theta = 3, rope_scaling = linear } },
         { { rope_parameters = { sliding_attention = { rope_theta = 3 } } }, { rope_theta = 3 } },
         { { rope_parameters = { full_attention = { rope_theta = 3 },
            sliding_attention = { rope_theta = 3 } } }, { rope_theta = 3 } },
         { { rope_parameters = { full_attention = with { rope_theta = 3 },
            sliding_attention = { rope_theta = 4 } } },
            { rope_theta = 3, rope_scaling = linear, near = 4 }, 'near' },
         { { rope_parameters = { sliding_attention = { rope_theta = 4 } } }, { near = 4 }, 'near' },
         { { rope_theta = 5, rope_parameters = { rope_theta = 5 } }, { rope_theta = 5 } },
      } do
         local f, problems = translated(row[1], row[3])
         assert.equal('', problems)
         assert.same(row[2], f)
      end
   end)

   it('that say two things are problems', function()
      for words, row in each {
         ["field 'rope_theta' is 3, 'rope_parameters' says 4"] = { { rope_theta = 3,
            rope_parameters = { rope_theta = 4 } } },
         ["field 'rope_parameters' is 5; expected a table"] = { { rope_parameters = 5 } },
         ["field 'rope_parameters' says different things of full_attention and sliding_attention; "
            .. 'they must be the same'] = { { rope_parameters = {
               full_attention = { rope_theta = 3 }, sliding_attention = { rope_theta = 4 } } } },
         ["field 'rope_parameters.sliding_attention.rope_type' is \"linear\"; only "
            .. '"default" is supported'] = { { rope_parameters = { sliding_attention = {
               rope_type = 'linear', factor = 2 } } }, 'near' },
         ["field 'rope_parameters.sliding_attention.alpha' is 2, which is not supported; leave it "
            .. 'out'] = { {
            rope_parameters = { sliding_attention = { alpha = 2 } } }, 'near' } } do
         local _, problems = translated(unpack(row))
         assert.equal(words, problems)
      end
   end)

   it('take from other fields what they leave out', function()
      local function scaling(s, f)
         f = f or {}
         f.rope_scaling = s
         return (translated(f)).rope_scaling
      end
      local all = { max_position_embeddings = 64 }
      local function files() return { max_position_embeddings = 64,
         original_max_position_embeddings = 16 } end
      assert.same({ rope_type = 'yarn', factor = 4, original_max_position_embeddings = 16 },
         scaling({ rope_type = 'yarn' }, files()))
      assert.same({ rope_type = 'longrope', factor = 4, original_max_position_embeddings = 16 },
         scaling({ type = 'su' }, files()))
      assert.same({ rope_type = 'llama3', original_max_position_embeddings = 16 },
         scaling({ rope_type = 'llama3', original_max_position_embeddings = 8 }, files()))
      assert.same({ rope_type = 'yarn', factor = 8, original_max_position_embeddings = 8 },
         scaling({ rope_type = 'yarn', original_max_position_embeddings = 8 },
            { max_position_embeddings = 64 }))
      assert.same({ rope_type = 'yarn', factor = 3, original_max_position_embeddings = 64 },
         scaling({ rope_type = 'yarn', factor = 3 }, all))
      assert.same({ rope_type = 'yarn' }, scaling { rope_type = 'yarn' })
      assert.same({ rope_type = 'linear' }, scaling({ rope_type = 'linear' }, files()))
      assert.same({ rope_type = 'longrope', original_max_position_embeddings = 8 },
         scaling { rope_type = 'longrope', original_max_position_embeddings = 8 })
   end)
end)

describe('a rule of configurations', function()
   it('is about fields that a family does not have', function()
      local without = { a = { why = 'it has none', written = 5 } }
      local function problems(f)
         local list = {}
         config.check_without(f, list, without)
         assert.is_nil(f.a)
         return table.concat(list)
      end
      assert.equal('', problems {})
      assert.equal('', problems { a = 5, model_type = 'x' })
      assert.equal('', problems { a = 5, architectures = {} })
      for _, f in ipairs { { a = 5 }, { a = 6, model_type = 'x' }, { a = false } } do
         local v = tostring(f.a)
         assert.equal("field 'a': expected nil or null: it has none, got " .. v, problems(f))
      end
      config.check_without({ a = 1 }, {}, nil)
   end)

   it('is about windows of families that have none', function()
      for _, name in ipairs { 'llama', 'granite', 'olmo2' } do
         local c = { vocab_size = 9, hidden_size = 8, num_hidden_layers = 1,
            num_attention_heads = 2, sliding_window = 2 }
         assert.matches("field 'sliding_window': expected nil or null: an? [%w ]+ attends to all "
            .. 'tokens before', message(tide.model[name], c, { device = 'null' }))
         c.sliding_window = null
         assert.is_nil(tide.model[name](c, { device = 'null' }).config.sliding_window)
      end
   end)

   it('is about windows that one field gives and another takes away', function()
      local c = { vocab_size = 9, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 2,
         sliding_window = 2, head_dim = 4, layer_types = { 'sliding_attention' } }
      for _, name in ipairs { 'qwen2', 'qwen3', 'smollm3' } do
         assert.matches("field 'layer_types[1]': expected 'full_attention' where "
            .. 'use_sliding_window is false, got "sliding_attention"',
            message(tide.model[name], c, { device = 'null' }), 1, true)
      end
   end)

   it('is about rotary positions: whole heads, and fields of another type', function()
      local function made(rope)
         return tide.model.llama({ vocab_size = 9, hidden_size = 8, num_hidden_layers = 1,
            num_attention_heads = 2, rope_parameters = rope }, { device = 'null' })
      end
      local yarn = { rope_type = 'yarn', factor = 2, original_max_position_embeddings = 8 }
      yarn.partial_rotary_factor, yarn.finetuned = 1, true
      assert.is_nil(made(yarn).config.partial_rotary_factor)
      yarn.alpha = 2
      assert.matches("field 'rope_scaling.alpha': not a field of the type yarn, which has factor",
         message(made, yarn), 1, true)
      assert.matches("field 'rope_scaling.factor': not a field of the type default, which has "
         .. 'mrope_section',
         message(made, { factor = 2 }), 1, true)
      local long = tide.model.phi3({ vocab_size = 9, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 2, original_max_position_embeddings = 16, rope_scaling = {
            type = 'longrope', short_factor = { 1, 1 }, long_factor = { 2, 2 } } },
         { device = 'null' }).config
      assert.same({ 4096, 256 }, { long.max_position_embeddings, long.rope_scaling.factor })
   end)

   it('is about kinds of layers', function()
      local function check(list, w)
         return config.check_layer_types('op', { layer_types = list, num_hidden_layers = 2,
            sliding_window = w })
      end
      check(nil)
      check { 'full_attention', 'full_attention' }
      check({ 'full_attention', 'sliding_attention' }, 4)
      assert.equal("argument 'layer_types': expected a list of 2 names, one for each layer, got a "
         .. 'list of 1', message(check, { 'full_attention' }))
      assert.matches("'layer_types[2]': expected 'full_attention' without sliding_window",
         message(check, { 'full_attention', 'sliding_attention' }), 1, true)
      assert.matches("'layer_types[1]'", message(check, { 'odd', 'odd' }), 1, true)
      assert.equal(4, config.head_dim { hidden_size = 12, num_attention_heads = 3 })
      assert.equal('hidden_size (12) must be a multiple of num_attention_heads (5), or give '
         .. 'head_dim', message(config.head_dim, { hidden_size = 12, num_attention_heads = 5 }))
   end)

   it('is about limits of a step', function()
      local function limit(v) return time_step.limit[3]('op', 'x', v) end
      for _, row in ipairs { { false, false }, { {}, false }, { { 0 }, false },
         { { 0, math.huge }, false }, { { 0, 1 }, { 0, 1 } }, { { 1 }, { 1, math.huge } },
         { { 2, 2 }, { 2, 2 } }, { { 0, 0 }, { 0, 0 } } } do
         assert.same(row[2], limit(row[1]))
      end
      assert.is_false(limit(nil))
      for got, v in each { ['{ 2, 1 }'] = { 2, 1 }, ['{ -1 }'] = { -1 },
         ['{ "a", 1 }'] = { 'a', 1 }, ['{ 0, "b" }'] = { 0, 'b' },
         ['{ 0, 1, ... }'] = { 0, 1, 2 } } do
         assert.equal("argument 'x': expected two numbers { least, most }, 0 <= least <= most, got "
            .. got, message(limit, v))
      end
      for _, row in ipairs { { 0.1, 5, 0.1 }, { 0, 0.2, 0.2 }, { 0, 0, 1e-4 } } do
         assert.same({ row[3], 9 }, time_step.range { time_step_min = row[1],
            time_step_floor = row[2], time_step_max = 9 })
      end
   end)
end)

describe('a configuration', function()
   local known = { { 'size', nil, 'integer >= 1' }, { 'half', function(c) return c.size / 2 end,
      'number' }, { 'more', published.optional, 'integer >= 0' }, { 'limit', 5 } }
   local function read(c, rules) return published.read('model.llama', c, known, rules or {}) end

   it('has its defaults, other names, and a list of what changes nothing', function()
      local c, unused = read({ size = 4, use_cache = true, model_type = 'llama', more = null,
         torch_dtype = 'torch.bfloat16', eos_token_id = { 1, 2 },
         limit = { __float__ = 'Infinity' } }, {})
      assert.same({ size = 4, half = 2, limit = math.huge, eos_token_id = { 1, 2 } }, c)
      assert.same({ 'torch_dtype', 'use_cache' }, unused)
      c = read({ n = 6, more = 0, limit = { { __float__ = '-Infinity' }, 1 } },
         { alias = { n = 'size' } })
      assert.same({ size = 6, half = 3, more = 0, limit = { -math.huge, 1 } }, c)
      assert.same({ size = 4, half = 2, limit = 5 },
         (read({ size = 4, n = 4, odd = 1, own = false }, { alias = { n = 'size' }, free = 'odd',
            only = { own = 3 } })))
      c = read({ size = 4 }, { complete = function(t) t.done = true end })
      assert.is_true(c.done)
   end)

   it('is refused with all that does not fit', function()
      for words, row in each {
         ["field 'size' is 5, but 'n', which means the same, is 4"] = { { size = 5, n = 4 },
            { alias = { n = 'size' } } },
         ["unknown field 'siz'; did you mean 'size'?"] = { { size = 4, siz = 4 } },
         ["field 'own' is 4; only 3 is supported"] = { { size = 4, own = 4 },
            { only = { own = 3 } } },
         ["field 'own' is 4, which is not supported"] = { { size = 4, own = 4 },
            { only = { own = false } } },
         ["field 'is_decoder' is true, which is not supported"] = { { size = 4,
            is_decoder = true } },
         ["field 'model_type' is \"gpt2\"; only \"llama\" is supported"] = { { size = 4,
            model_type = 'gpt2' } },
         ["field 'architectures[1]' is \"GPT2LMHeadModel\"; expected \"LlamaForCausalLM\", "
            .. 'or leave the field out'] = { { size = 4, architectures = { 'GPT2LMHeadModel' } } },
         ["field 'architectures[1]' is 5; expected"] = { { size = 4, architectures = { 5 } } },
         ["field 'size'"] = { { half = 4 } },
         ["field 'use_cache'"] = { { size = 4, use_cache = 5 } },
         ["field 'torch_dtype'"] = { { size = 4, torch_dtype = 'int8' } },
         ["field 'half'"] = { { size = 4, half = 'a' } }, ['not so'] = { { size = 4 }, {
            complete = function() tide.nn.Linear('not so', 1) end } } } do
         assert.matches(words, message(read, row[1], row[2]), 1, true)
      end
      assert.equal("field 'is_decoder' is true, which is not supported; field 'use_mrope' is 1, "
         .. "which is not supported; unknown field 'q'; known: size, half, more, limit, "
         .. 'bos_token_id, eos_token_id, pad_token_id', message(read, { size = 4,
            is_decoder = true, q = 1, use_mrope = 1 }))
      local ok, e = pcall(read, { size = 4 }, { complete = function() error 'raw' end })
      assert.is_false(ok)
      assert.matches('raw$', tostring(e))
   end)
end)

describe('a checkpoint of another model', function()
   local function llama(more)
      local c = { vocab_size = 8, hidden_size = 4, num_hidden_layers = 1, num_attention_heads = 2,
         intermediate_size = 6 }
      for k, v in each(more or {}) do c[k] = v end
      return tide.model.llama(c, { device = 'null' })
   end

   it('is named by the fields that differ', function()
      local model = llama()
      local function check(c, name)
         return family.check('op', { config = c, family = name }, model)
      end
      check(family.config(model), 'llama')
      check(family.config(model), nil)
      check(nil, 'gpt2')
      local c = family.config(llama { rope_theta = 77, hidden_act = 'silu' })
      assert.matches('the checkpoint is of another model: rope_theta 77, this one 10000',
         message(check, c, 'llama'), 1, true)
      assert.matches('family mistral, this one llama', message(check, family.config(model),
         'mistral'), 1, true)
      assert.equal('llama', family.of(model))
      assert.is_false(family.of(tide.nn.Linear(1, 1)))
      assert.equal('gpt2', family.of_type 'tide_gpt2')
      assert.equal('hybrid', family.of_architecture 'TideHybridForCausalLM')
      assert.equal('qwen2', family.of_type 'qwen2')
      assert.is_nil(family.of_type 'odd')
      assert.same({}, family.published 'odd')
   end)

   it('is built with its codes and adapters', function()
      local model = llama()
      local plain = { family = 'llama', config = family.config(model),
         quantised = { method = 'nf4' }, adapter = { rank = 1, alpha = 3, dropout = 0.5,
            rslora = true, dora = true, modules = { 'model.layers.0.mlp.up_proj' } } }
      local built = family.build('op', plain, { device = 'null' })
      assert.equal('nf4', rawget(built, 'quantised').method)
      assert.same(plain.adapter, rawget(built, 'adapter'))
      plain.quantised, plain.adapter = nil, nil
      built = family.build('op', plain, { device = 'null' })
      assert.same({ nil, nil }, { rawget(built, 'quantised'), rawget(built, 'adapter') })
      assert.equal(5, family.build('op', plain, {}, function() return 5 end))
      assert.matches("'make'", message(family.build, 'op', plain, {}, 5), 1, true)
   end)
end)
