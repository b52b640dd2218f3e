-- Every family is saved in a checkpoint and loaded as itself, on any number of ranks; what is
-- of another architecture, or the same shapes otherwise computed, is refused.

local tide = require 'tide'
local each = require 'tide.util.each'
local family = require 'tide.model.family'
local lines_of = require('spec.support.files').lines_of
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local common = { vocab_size = 31, hidden_size = 16, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 12 }

local function with(changes)
   local c = {}
   for k, v in each(common) do c[k] = v end
   for k, v in each(changes) do c[k] = v end
   return c
end

local null = require('tide.ffi.json').null

-- Configurations by family, with what sets each apart.
local configs = {
   llama = with { rope_theta = 500, rope_scaling = { rope_type = 'linear', factor = 2 } },
   mistral = with { sliding_window = 3 },
   qwen2 = with { use_sliding_window = true, max_window_layers = 1, sliding_window = 2 },
   qwen3 = with { head_dim = 6, use_sliding_window = true,
      layer_types = { 'sliding_attention', 'full_attention' },
      sliding_window = 2 },
   phi3 = with {},
   qwen2_5_vl = with { image_token_id = 28, video_token_id = 29, vision_config = { depth = 2,
      hidden_size = 8, num_heads = 1, intermediate_size = 6, patch_size = 2, window_size = 8,
      fullatt_block_indexes = { 1 } } },
   qwen3_vl = with { head_dim = 8, image_token_id = 28, video_token_id = 29, vision_config = {
      depth = 2, hidden_size = 8, num_heads = 1, intermediate_size = 6, patch_size = 2,
      num_position_embeddings = 9, deepstack_visual_indexes = { 0 } } },
   qwen3_vl_moe = with { head_dim = 8, image_token_id = 28, video_token_id = 29, num_experts = 4,
      num_experts_per_tok = 2, moe_intermediate_size = 4, mlp_only_layers = { 0 },
      vision_config = { depth = 1, hidden_size = 8, num_heads = 1, intermediate_size = 6,
         patch_size = 2, num_position_embeddings = 9, deepstack_visual_indexes = {} } },
   qwen3_5_moe_vl = with { head_dim = 16, image_token_id = 28, video_token_id = 29,
      layer_types = { 'linear_attention', 'full_attention' }, partial_rotary_factor = 0.5,
      linear_num_key_heads = 1, linear_num_value_heads = 2, linear_key_head_dim = 4,
      linear_value_head_dim = 4, num_experts = 4, num_experts_per_tok = 2,
      moe_intermediate_size = 4, shared_expert_intermediate_size = 6, intermediate_size = null,
      vision_config = { depth = 1, hidden_size = 8, num_heads = 1, intermediate_size = 6,
         patch_size = 2, num_position_embeddings = 9 } },
   gemma3 = with { head_dim = 6, sliding_window = 2, sliding_window_pattern = 2 },
   gemma3_vl = with { head_dim = 6, sliding_window = 2, sliding_window_pattern = 2,
      image_token_id = 28, mm_tokens_per_image = 4, vision_config = { hidden_size = 8,
         num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 6, image_size = 8,
         patch_size = 2 } },
   mamba2 = { vocab_size = 31, hidden_size = 16, num_hidden_layers = 2, head_dim = 8,
      state_size = 4, chunk_size = 4, time_step_limit = { 0.01, math.huge } },
   hybrid = { vocab_size = 31, hidden_size = 16, hybrid_override_pattern = 'M*-',
      num_attention_heads = 2, mamba_head_dim = 8, ssm_state_size = 4, intermediate_size = 12,
      rope_theta = 100, time_step_limit = { 0, math.huge } },
}

local function save(dir, model)
   local optim = tide.optim.SGD(model, { lr = 1 })
   return tide.train.checkpoint.save(dir, tide.train.state.collect { model = model, optim = optim,
      step = 1 })
end

local ids = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9 }

-- On a rank: log-probabilities of the ids under a checkpoint, and the class of its model.
local function scored(_, _, where, list)
   local t = require 'tide'
   local model, sharded = t.train.score.load(where)
   return { model.class_name, t.train.score.logprob(model, list, { seq = 14, sharded = sharded }) }
end

describe('a checkpoint', function()
   for name, config in each(configs) do
      it('of ' .. name .. ' is scored as that, on one rank and on two', function()
         tmp.with(function(dir)
            local model = tide.model[name](config, { seed = 4 })
            save(dir, model)
            local want = tide.train.score.logprob(model, ids, { seq = 14 })
            for n = 1, 2 do
               for _, row in ipairs(ranks.run(n, scored, dir, ids)) do
                  assert.equal(model.class_name, row[1])
                  assert.equal(#want, #row[2])
                  for i, v in ipairs(want) do assert.near(v, row[2][i], 1e-5) end
               end
            end
            local file = tide.util.fs.read_json('spec', dir .. '/step-00000001/config.json')
            -- rope_theta is not for nemotron_h: see spec/lua/published_spec.lua
            local theirs = name == 'hybrid'
               and { model_type = 'tide_hybrid', architectures = { 'TideHybridForCausalLM' } }
               or family.published(name)
            assert.equal(theirs.model_type, file.model_type)
            assert.equal(theirs.architectures[1], file.architectures[1])
            assert.equal(name, family.saved('spec', { config = file }))
         end)
      end)
   end

   it('keeps what is switched off although the family has it', function()
      tmp.with(function(dir)
         save(dir, tide.model.mistral(with { sliding_window = null }))
         local model = tide.train.score.load(dir)
         assert.is_nil(model.config.sliding_window)
      end)
   end)

   it('without a family is told by its published fields, or by its configuration', function()
      local function of(config) return family.saved('spec', { config = config }) end
      assert.equal('qwen3', of { architectures = { 'Qwen3ForCausalLM' } })
      assert.equal('gemma3', of { model_type = 'gemma3_text' })
      assert.equal('hybrid', of { hybrid_override_pattern = 'M' })
      assert.equal('mamba2', of { state_size = 4 })
      assert.equal('llama', of { vocab_size = 4 })
      refused('E_UNSUPPORTED', { "architecture 'BertForMaskedLM'", 'LlamaForCausalLM' }, of,
         { architectures = { 'BertForMaskedLM' } })
      refused('E_UNSUPPORTED', { "model type 'bert'", 'llama' }, of, { model_type = 'bert' })
      refused('E_UNSUPPORTED', "the family 'gpt'", family.saved, 'spec',
         { family = 'gpt', config = {} })
   end)

   it('that an older version called a Llama with windows is a Mistral', function()
      local old = { family = 'llama',
         config = family.config(tide.model.mistral(with { sliding_window = 3 },
            { device = 'null' })) }
      assert.equal('mistral', family.saved('spec', old))
      assert.has_no_error(function()
         family.check('spec', old, tide.model.mistral(old.config, { device = 'null' }))
      end)
      old.config.sliding_window = nil
      assert.equal('llama', family.saved('spec', old))
   end)

   -- Files and checkpoints of earlier versions have the field, which nothing reads in a Qwen2.
   it('of a Qwen2 that an older version wrote loads without attention_bias', function()
      tmp.with(function(dir)
         local model = tide.model.qwen2(configs.qwen2, { seed = 4 })
         local saved = tide.train.state.collect { model = model, step = 1,
            optim = tide.optim.SGD(model, { lr = 1 }) }
         assert.is_nil(saved.plain.config.attention_bias)
         saved.plain.config.attention_bias = false
         tide.train.checkpoint.save(dir, saved)
         assert.equal('Qwen2', tide.train.score.load(dir).class_name)
         assert.has_no_error(function() family.check('spec', saved.plain, model) end)
         tide.train.checkpoint.consolidate(dir, dir .. '/whole')
         for _, folder in ipairs { '/step-00000001', '/whole' } do
            local file = tide.util.fs.read_json('spec', dir .. folder .. '/config.json')
            assert.is_nil(file.attention_bias)
            file.attention_bias = false
            assert.is_nil(tide.model.qwen2(file, { device = 'null' }).config.attention_bias)
         end
      end)
   end)

   it('tells transformers that there is no padding token, whose default is not in reach', function()
      for _, name in ipairs { 'phi3', 'smollm3', 'olmo2', 'gemma3', 'llama' } do
         local model = tide.model[name](common, { device = 'null' })
         for _, id in ipairs { 'bos_token_id', 'eos_token_id', 'pad_token_id' } do
            assert.equal(null, family.config(model)[id], name)
         end
         model = tide.model[name](with { pad_token_id = 3 }, { device = 'null' })
         assert.equal(3, family.config(model).pad_token_id)
      end
   end)

   it('writes numbers with a decimal point where transformers takes no others', function()
      for name, config in each {
         deepseek_v2 = { attention_dropout = 0, routed_scaling_factor = 2, rms_norm_eps = 1 },
         mixtral = { router_aux_loss_coef = 1 }, gemma2 = { final_logit_softcapping = 3 },
         phi3 = { partial_rotary_factor = 1 }, granitemoehybrid = { logits_scaling = 4 },
         gpt_oss = { swiglu_limit = 7 } } do
         local text = family.config_file({ family = name, config = config }, 'f32')
         for field in each(config) do
            assert.truthy(text:find(('"%s": ?%%d%%.0[,}]'):format(field)), field)
         end
      end
   end)

   it('has the same flags of a field in every family', function()
      local flags, n = {}, 0
      for _, kind in ipairs(lines_of 'ls lua/tide/model') do
         local name = kind:match '^(.*)%.lua$'
         local made = name and family.published(name).model_type and tide.model[name]
         for _, row in ipairs(made and (made._rows or made:_fields()) or {}) do
            local first = flags[row[1]] or { name, row.float, row.neutral }
            flags[row[1]], n = first, n + 1
            assert.same({ first[2], first[3] }, { row.float, row.neutral },
               ('%s of %s and of %s (float, neutral)'):format(row[1], name, first[1]))
         end
      end
      assert.is_true(n > 300, n)
   end)

   it('of a class of its own is made by its own function', function()
      tmp.with(function(dir)
         local Own = require 'tide.class' ('Own', tide.model.llama)
         save(dir, Own(common, { seed = 1 }))
         refused('E_UNSUPPORTED', 'a custom class; give make', tide.train.score.load, dir)
         assert.equal('Own', (tide.train.score.load(dir, { make = function(...)
            return Own(...)
         end })).class_name)
      end)
   end)

   it('that would be computed otherwise is refused, though its shapes fit', function()
      tmp.with(function(dir)
         save(dir, tide.model.llama(common, { seed = 1 }))
         local saved = tide.train.checkpoint.load(dir)
         local function into(model)
            local before = model:parameters()[1]:tolist()
            local run = { model = model, optim = tide.optim.SGD(model, { lr = 1 }) }
            local ok, e = pcall(tide.train.state.restore, run, saved)
            if not ok then assert.same(before, model:parameters()[1]:tolist()) end
            return ok, e
         end
         for words, changes in each { ['num_attention_heads 4, this one 8'] = {
               num_attention_heads = 8, num_key_value_heads = 4 },
            ['rope_theta 10000, this one 500'] = { rope_theta = 500 },
            ['family llama, this one mistral; sliding_window none, this one 3'] = {
               sliding_window = 3 } } do
            local name = changes.sliding_window and 'mistral' or 'llama'
            local ok, e = into(tide.model[name](with(changes), { seed = 2 }))
            assert.is_false(ok)
            assert.equal('E_SHAPE', e.code)
            assert.matches(words, e.message, 1, true)
         end
         assert.is_true((into(tide.model.llama(with { max_position_embeddings = 7 }))))
         assert.is_true((into(tide.model.llama(with { attention_dropout = 0.1 }))))
      end)
   end)
end)

describe('a family', function()
   -- As the configurations of transformers have it where a file does not say it.
   it('ties the head to the embedding by default, or does not', function()
      local config = { vocab_size = 32, hidden_size = 16, num_hidden_layers = 2,
         num_attention_heads = 2 }
      local function is_tied(name, more)
         local c = {}
         for _, t in ipairs { config, more or {} } do
            for k, v in pairs(t) do c[k] = v end
         end
         local model = tide.model[name](c, { device = 'null' })
         assert.equal(model.config.tie_word_embeddings, model.lm_head == nil)
         return model.config.tie_word_embeddings
      end
      for _, name in ipairs { 'gemma2', 'gemma3', 'smollm3', 'gpt2' } do
         assert.is_true(is_tied(name, name:find 'gemma' and { sliding_window = 8 }), name)
         assert.is_false(is_tied(name, { tie_word_embeddings = false,
            sliding_window = name:find 'gemma' and 8 or nil }), name)
      end
      for _, name in ipairs { 'llama', 'qwen2', 'qwen3', 'mistral', 'phi3', 'granite',
                                'olmo2' } do
         assert.is_false(is_tied(name), name)
         assert.is_true(is_tied(name, { tie_word_embeddings = true }), name)
      end
   end)
end)
