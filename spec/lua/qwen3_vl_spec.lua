-- Qwen3-VL and Qwen3-VL-MoE against transformers (numbers of spec/golden/qwen3_vl.py): positions,
-- logits, loss and gradients, greedy generation, folders; and what does not fit is refused.

local tide = require 'tide'
local all = require 'spec.lua.vlm_case'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'

local case, far = all.qwen3_vl, all.far

describe('qwen3_vl', function()
   for _, name in ipairs(case.names()) do
      it('has the numbers of transformers: ' .. name, function() case.check_numbers(name) end)
      it('goes on as transformers does, and goes through a folder: ' .. name, function()
         case.check_answers(name)
      end)
   end

   it('reads packed documents as it reads them alone', function()
      case.check_packed('images', 3)
   end)

   it('reads files of experts as they are published, and as transformers 5 writes them', function()
      local function experts(dir, is_plain, change)
         local model, state = case.model('moe', { dtype = 'f64' }), {}
         tide.model.save(model, dir)
         local path = dir .. '/model.safetensors'
         for name, t in each(tide.train.checkpoint.tensors(path)) do
            if is_plain and name:find 'experts' then t = t:transpose(-2, -1) end
            state[name] = t:contiguous():clone()
         end
         if change then change(state) end
         fs.io().safetensors_save(path, state, { format = 'pt' })
         return model
      end
      tmp.with(function(dir)
         for i = 1, 2 do
            local at = dir .. '/' .. i
            local model = experts(at, i == 2)
            local again = tide.model.load(at)
            for k, e in ipairs(model:named_parameters()) do
               assert.is_true(e.param:equal(again:named_parameters()[k].param), e.name)
            end
         end
         experts(dir .. '/3', false, function(state)
            local name = 'model.language_model.layers.0.mlp.experts.down_proj'
            assert.same({ 4, 6, 16 }, state[name].shape)
            state[name] = state[name]:narrow(2, 1, 5):contiguous()
         end)
         assert.matches('.experts.down_proj\' is [4, 5, 16], config.json says [4, 6, 16]',
            raised(tide.model.load, dir .. '/3').message, 1, true)
      end)
   end)

   it('refuses a file with a larger table of positions than its weights have', function()
      tmp.with(function(dir)
         tide.model.save(case.model 'image', dir .. '/out')
         for words, n in each { ["'vision_config.num_position_embeddings' is 1e+15, no tensor"]
            = 1e15, ["pos_embed.weight' is [16, 16], config.json says [25, 16]"] = 25 } do
            local config = case.config 'image'
            config.vision_config.num_position_embeddings = n
            fs.write('spec', dir .. '/out/config.json', tide.json.encode(config))
            assert.matches(words, raised(tide.model.load, dir .. '/out').message, 1, true)
         end
      end)
   end)

   it('writes square tensors of experts as transformers 5 reads them', function()
      local config = case.config 'moe'
      config.text_config.moe_intermediate_size = 8
      local model = tide.model.qwen3_vl_moe(config, { seed = 3 })
      tmp.with(function(dir)
         tide.model.save(model, dir .. '/out')
         local both = tide.train.checkpoint.tensors(dir .. '/out/model.safetensors')[
            'model.language_model.layers.1.mlp.experts.gate_up_proj']
         assert.is_true(both:narrow(2, 9, 8):equal(model.model.layers[2].mlp.up_proj))
         local again = tide.model.load(dir .. '/out')
         assert.is_true(again.model.layers[2].mlp.up_proj:equal(model.model.layers[2].mlp.up_proj))
      end)
   end)

   it('has as many parameters as published models', function()
      local text = { head_dim = 128, hidden_act = 'silu', hidden_size = 2560, dtype = 'bfloat16',
         intermediate_size = 9728, max_position_embeddings = 262144, num_attention_heads = 32,
         num_hidden_layers = 36, num_key_value_heads = 8, rms_norm_eps = 1e-6, rope_theta = 5e6,
         rope_scaling = { mrope_interleaved = true, mrope_section = { 24, 20, 20 },
            rope_type = 'default' }, tie_word_embeddings = true, vocab_size = 151936,
         model_type = 'qwen3_vl_text' }
      local tower = { deepstack_visual_indexes = { 5, 11, 17 }, depth = 24, hidden_size = 1024,
         hidden_act = 'gelu_pytorch_tanh', intermediate_size = 4096, num_heads = 16,
         num_position_embeddings = 2304, out_hidden_size = 2560, patch_size = 16,
         spatial_merge_size = 2, temporal_patch_size = 2, model_type = 'qwen3_vl' }
      local function count(kind, tied)
         local model = tide.model[kind]({ model_type = kind, text_config = text,
            tie_word_embeddings = tied, vision_config = tower }, { device = 'null' })
         assert.same({ 24, 20, 20 }, model.config.rope_scaling.mrope_section)
         return model:num_parameters()
      end
      assert.equal(4437815808, count('qwen3_vl', true))
      copy({ hidden_size = 2048, intermediate_size = 6144, num_hidden_layers = 48,
         num_key_value_heads = 4, num_experts = 128, num_experts_per_tok = 8,
         moe_intermediate_size = 768, decoder_sparse_step = 1, mlp_only_layers = {},
         norm_topk_prob = true, model_type = 'qwen3_vl_moe_text' }, text)
      text.rope_scaling = nil
      copy({ deepstack_visual_indexes = { 8, 16, 24 }, depth = 27, hidden_size = 1152,
         intermediate_size = 4304, out_hidden_size = 2048, model_type = 'qwen3_vl_moe' }, tower)
      assert.equal(31070754032, count('qwen3_vl_moe', false))
   end)

   it('places each frame of a video behind the text before it', function()
      local model = case.model 'video'
      local frame = { 38, 37, 37, 39 }
      local ids = { 3 }
      for _ = 1, 2 do
         for _, id in ipairs(frame) do ids[#ids + 1] = id end
      end
      local function i64(list) return tide.tensor({ list }, { dtype = 'i64' }) end
      local grids = { video_grid_thw = { { 2, 2, 4 } } }
      local list = model:rope_index(i64(ids), grids):tolist()
      for axis, want in ipairs { { 0, 1, 2, 2, 4, 5, 6, 6, 8 }, { 0, 1, 2, 2, 4, 5, 6, 6, 8 },
         { 0, 1, 2, 3, 4, 5, 6, 7, 8 } } do
         for t, p in ipairs(list[axis][1]) do list[axis][1][t] = tonumber(p) end
         assert.same(want, list[axis][1])
      end
      assert.matches('video_grid_thw has 2 frames, but ids have tokens (video_token_id 37) of only '
         .. '1; leave the other frames out, or add their tokens', raised(model.rope_index, model,
            i64 { 3, 37, 37, 4 }, grids).message, 1, true)
      assert.matches('frame 2 of video_grid_thw is 2 tokens, but only 1 of video_token_id (37) '
         .. 'follow one another in row 1 of ids', raised(model.rope_index, model,
            i64 { 37, 37, 4, 37 }, grids).message, 1, true)
      assert.matches('ids[1][5] is video_token_id (37), but video_grid_thw has no frame for it',
         raised(model.rope_index, model, i64 { 37, 37, 37, 37, 37 }, grids).message, 1, true)
      assert.matches("unknown option 'second_per_grid_ts'", raised(model.rope_index, model,
         i64(ids), copy({ second_per_grid_ts = { 1 } }, copy(grids))).message, 1, true)
   end)

   it('reads frames of an earlier turn once, and again where one has changed', function()
      local model, patches, cache, seen = case.model 'mixed', tide.randn { 24, 24 }, {}, 0
      local ids = { 3, 5, 38, 37, 37, 39, 6, 38, 37, 37, 39, 7, 8 }
      local function answer(pixels, counts, kept)
         local grids = {}
         for i, n in ipairs(counts) do grids[i] = { n, 2, 4 } end
         return tide.train.sample.generate(model, ids, { tokens = 3, temperature = 0, cache = kept,
            inputs = { pixel_values_videos = pixels, video_grid_thw = grids } })
      end
      model:hook_pre(function(_, x) seen = seen + x:size(2) end)
      local function check(pixels, counts, most)
         seen = 0
         local got = answer(pixels, counts, cache)
         assert.equal(most, seen)
         assert.same(answer(pixels, counts), got)
         return got
      end
      local first = check(patches:narrow(1, 1, 16), { 2 }, #ids + 2)
      for _, list in ipairs { first, { 9, 38, 37, 37, 39, 5 } } do
         for _, id in ipairs(list) do ids[#ids + 1] = id end
      end
      check(patches, { 2, 1 }, 7 + 2)                        -- and the last id of the answer
      local changed = patches:clone()
      changed:narrow(1, 9, 8):add_(1)
      check(changed, { 2, 1 }, #ids - 8 + 2)
   end)

   it('is run again in backward, whole or in parts, with the same gradients', function()
      for _, row in ipairs { { case, 'mixed' }, { case, 'moe' }, { all, 'image' } } do
         local of, name = unpack(row)
         local n, want = of.numbers(name), nil
         for _, policy in ipairs { 'none', 'full', 'selective', 'model', 'visual,layers',
            'blocks' } do
            local model, grads = of.model(name, { dtype = 'f64' }):train(), {}
            tide.parallel.recompute(model, policy)
            model:loss(n.ids, n.labels, of.call_of(name, n, 'f64')):backward()
            for k, e in ipairs(of.parameters(model)) do grads[k] = e.param.grad end
            want = want or grads
            for k, t in ipairs(grads) do assert.is_true(t:equal(want[k]), policy) end
         end
      end
   end)

   it('has the price of what it keeps for backward, deepstack features among it', function()
      local config, grids, ids = case.config 'mixed', {}, {}
      for i = 1, 8 do
         grids[i] = { 1, 8, 8 }
         for _ = 1, 16 do ids[#ids + 1] = config.image_token_id end
         ids[#ids + 1] = 3
      end
      ids = tide.tensor({ ids }, { dtype = 'i64' })
      for _, indexes in ipairs { {}, { 2, 0 } } do
         config.vision_config.deepstack_visual_indexes = indexes
         local model = tide.model.qwen3_vl(config)
         local o = { pixel_values = tide.zeros { 512, 24 }, image_grid_thw = grids }
         model:loss(ids, ids, o):backward()
         collectgarbage()
         collectgarbage()
         collectgarbage 'stop'
         local before = tide.default():stats().live
         local loss = model:loss(ids, ids, o)
         local kept = tide.default():stats().live - before
         collectgarbage 'restart'
         loss:backward()
         local price = tide.parallel.plan(tide.model.qwen3_vl(config, { device = 'null' }),
            { dp_shard = 1 }):price { batch = 1, seq = ids:size(2), images = grids }
         assert.near(1, price.activations / kept, 0.01)
      end
   end)

   it('multiplies in FP8 in the text alone', function()
      for _, e in ipairs(case.model('image', { fp8 = true }):named_modules()) do
         if e.module.nin and e.name ~= 'lm_head' then
            assert.equal(e.name:find '^model%.' ~= nil, e.module.fp8, e.name)
         end
      end
   end)

   it('has LoRA of chosen parts, written under the names of modules in transformers', function()
      local function adapted()
         local model = case.model 'image'
         tide.nn.lora.attach(model, { rank = 2, seed = 3,
            targets = 'visual.blocks.*.attn.proj|visual.deepstack_merger_list.0.linear_fc1|'
               .. 'v_proj' })
         return model
      end
      local model = adapted()
      local n = case.numbers 'image'
      local o = case.call_of('image', n)
      model:loss(n.ids, n.labels, o):backward()
      tide.no_grad(function()
         for i, e in ipairs(model:named_parameters()) do
            assert.equal(e.name:find 'lora_' ~= nil, e.param.grad ~= nil, e.name)
            if e.name:find 'lora_B' then e.param:fill_(0.1 * i) end
         end
      end)
      tmp.with(function(dir)
         tide.model.save_adapter(model, dir .. '/a')
         local tensors = tide.train.checkpoint.tensors(dir .. '/a/adapter_model.safetensors')
         for _, name in ipairs { 'language_model.layers.1.self_attn.v_proj.lora_B',
            'visual.deepstack_merger_list.0.linear_fc1.lora_A' } do
            assert.is_not_nil(tensors['base_model.model.model.' .. name .. '.weight'])
         end
         local again = case.model 'image'
         tide.model.load_adapter(again, dir .. '/a')
         assert.equal(0, far(again(n.ids, o), model(n.ids, o)))
         tide.model.save(model, dir .. '/merged')
         assert.is_true(far(tide.model.load(dir .. '/merged')(n.ids, o), model(n.ids, o)) <= 1e-5)
      end)
   end)

   it('has adapters of experts, in the form of PEFT and in the merged model', function()
      local function adapted()
         local model = case.model('moe', { dtype = 'f64' })
         tide.nn.lora.attach(model, { rank = 2, seed = 3, targets = 'gate_proj|up_proj|down_proj' })
         return model
      end
      local model, n = adapted(), case.numbers 'moe'
      tide.no_grad(function()
         for i, e in ipairs(model:named_parameters()) do
            if e.name:find 'lora_B' then e.param:fill_(0.02 * i) end
         end
      end)
      tmp.with(function(dir)
         local o = case.call_of('moe', n, 'f64')
         tide.model.save_adapter(model, dir .. '/a')
         local tensors = tide.train.checkpoint.tensors(dir .. '/a/adapter_model.safetensors')
         assert.is_not_nil(tensors['base_model.model.model.language_model.layers.0.mlp.experts'
            .. '.base_layer.lora_A.weight'])
         local again = case.model('moe', { dtype = 'f64' })
         tide.model.load_adapter(again, dir .. '/a')
         assert.is_true(far(again(n.ids, o), model(n.ids, o)) <= 1e-9)
         tide.model.save(model, dir .. '/merged')
         assert.is_true(far(tide.model.load(dir .. '/merged')(n.ids, o), model(n.ids, o)) <= 1e-6)
      end)
   end)

   it('refuses configurations of other models', function()
      local function message(change, name)
         local config = case.config(name or 'image')
         change(config, config.text_config, config.vision_config)
         return raised(tide.model[case.family_of(name or 'image')], config,
            { device = 'null' }).message
      end
      for words, change in each {
         ['image_token_id'] = function(c) c.image_token_id = 41 end,
         ['vision_config.out_hidden_size (8) must be the hidden_size of the text model (16)'] =
            function(_, _, v) v.out_hidden_size = 8 end,
         ["deepstack_visual_indexes[2]': expected a block from 0 to 2 that no other entry names, "
            .. 'got 3'] = function(_, _, v) v.deepstack_visual_indexes = { 0, 3 } end,
         ["deepstack_visual_indexes[2]': expected a block from 0 to 2 that no other entry names, "
            .. 'got 0'] = function(_, _, v) v.deepstack_visual_indexes = { 0, 0 } end,
         ["deepstack_visual_indexes': expected at most 1 blocks, one for each layer of the text"] =
            function(_, t) t.num_hidden_layers = 1 end,
         ["vision_config: unknown field 'window_size'"] = function(_, _, v) v.window_size = 8 end,
         ["vision_config.model_type': expected one of"] = function(_, _, v)
            v.model_type = 'qwen2_5_vl'
         end,
         ["text_config.model_type': expected one of"] = function(_, t)
            t.model_type = 'qwen3_vl_moe_text'
         end,
         ["field 'rope_scaling.mrope_interleaved' is false; only true is supported"] =
            function(_, t) t.rope_parameters.mrope_interleaved = false end,
         ["field 'sliding_window'"] = function(_, t) t.sliding_window = 4 end,
      } do
         assert.matches(words, message(change), 1, true)
      end
      assert.matches('num_experts_per_tok', message(function(_, t) t.num_experts_per_tok = 9 end,
         'moe'), 1, true)
      local moe = case.config 'moe'
      moe.text_config.num_hidden_layers = 1
      assert.matches('tide.model.qwen3_vl_moe: argument', tostring(raised(tide.model.qwen3_vl_moe,
         moe, { device = 'null' })), 1, true)
      local other = all.config 'image'
      other.text_config.rope_parameters.mrope_interleaved = true
      assert.matches("field 'rope_scaling.mrope_interleaved' is true; only false is supported",
         raised(tide.model.qwen2_5_vl, other, { device = 'null' }).message, 1, true)
   end)
end)
