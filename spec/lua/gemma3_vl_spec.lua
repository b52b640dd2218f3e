-- Gemma 3 with images against transformers (numbers of spec/golden/gemma3_vl.py): logits, loss and
-- gradients, greedy generation, folders; and what does not fit is refused.

local tide = require 'tide'
local all = require 'spec.lua.vlm_case'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local spans = require 'tide.model.vision_spans'
local tmp = require 'spec.support.tmp'

local case, far = all.gemma3_vl, all.far

local function i64(list) return tide.tensor({ list }, { dtype = 'i64' }) end

describe('gemma3_vl', function()
   for _, name in ipairs(case.names()) do
      it('has the numbers of transformers: ' .. name, function() case.check_numbers(name) end)
      it('goes on as transformers does, and goes through a folder: ' .. name, function()
         case.check_answers(name)
      end)
   end

   it('reads packed documents as it reads them alone', function()
      case.check_packed('images', 3)
   end)

   it('says how far each token sees, and counts images side by side as one', function()
      local model = case.model 'image'
      local ids = { 3, 36, 36, 36, 36, 5, 36, 36, 36, 36, 36, 36, 36, 36 }
      local function until_of(index)
         local batch = model:placed({ ids = i64(ids), image_grid_thw = { { 1, 4, 4 }, { 1, 4, 4 },
            { 1, 4, 4 } } }, index)
         local list = batch.index:select(3, 3):tolist()[1]
         for i, v in ipairs(list) do list[i] = tonumber(v) end
         return list
      end
      assert.same({ 0, 4, 4, 4, 4, 5, 13, 13, 13, 13, 13, 13, 13, 13 }, until_of())
      local pairs_of = {}
      for t = 1, #ids do pairs_of[t] = { t < 11 and 4 or 7, t < 11 and t - 1 or t - 11 } end
      assert.same({ 0, 4, 4, 4, 4, 5, 9, 9, 9, 9, 3, 3, 3, 3 },
         until_of(tide.tensor({ pairs_of }, { dtype = 'i32' })))
   end)

   it('reads images of an earlier turn once, unless what they see has changed', function()
      local model, patches, cache, seen = case.model 'image', tide.randn { 48, 12 }, {}, 0
      model:hook_pre(function(_, x) seen = seen + x:size(2) end)
      local function check(parts, images, most)
         local ids, grids = {}, {}
         for _, p in ipairs(parts) do
            for _ = 1, p == 36 and 4 or 1 do ids[#ids + 1] = p end
         end
         for i = 1, images do grids[i] = { 1, 4, 4 } end
         local o = { tokens = 3, temperature = 0, cache = cache, inputs = { image_grid_thw = grids,
            pixel_values = patches:narrow(1, 1, 16 * images) } }
         seen = 0
         local got = tide.train.sample.generate(model, ids, o)
         assert.equal(most, seen)
         o.cache = nil
         assert.same(tide.train.sample.generate(model, ids, o), got)
      end
      check({ 3, 5, 36, 7, 8 }, 1, 8 + 2)
      check({ 3, 5, 36, 7, 8, 9, 36, 4 }, 2, 6 + 2)
      check({ 3, 5, 36, 36, 7 }, 2, 9 + 2)                   -- its image sees the next one now
      check({ 3, 5, 36, 7 }, 1, 5 + 2)
   end)

   it('reads files in each spelling of transformers', function()
      local model = case.model 'images_right'
      tmp.with(function(dir)
         tide.model.save(model, dir .. '/1')
         local whole = tide.train.checkpoint.tensors(dir .. '/1/model.safetensors')
         assert.is_not_nil(whole['vision_tower.vision_model.encoder.layers.1.mlp.fc2.bias'])
         assert.is_not_nil(whole['language_model.lm_head.weight'])
         for i, change in ipairs { function(name)              -- of transformers 5
            return name:gsub('vision_model%.', '')
         end, function(name)                                   -- of its modules
            return 'model.' .. name:gsub('language_model%.model', 'language_model')
         end } do
            local state, at = {}, ('%s/%d'):format(dir, i + 1)
            for name, t in each(whole) do state[change(name)] = t:clone() end
            if i == 2 then
               state['lm_head.weight'] = state['model.language_model.lm_head.weight']
               state['model.language_model.lm_head.weight'] = nil
               state['model.vision_tower.vision_model.head.probe'] = tide.zeros { 1, 1, 8 }
            end
            tide.model.save(model, at)
            fs.io().safetensors_save(at .. '/model.safetensors', state, { format = 'pt' })
            local again = tide.model.load(at)
            for k, e in ipairs(model:named_parameters()) do
               assert.is_true(e.param:equal(again:named_parameters()[k].param), e.name)
            end
         end
      end)
   end)

   it('has as many parameters as the published 4B, whose file leaves most of them out', function()
      local model = tide.model.gemma3_vl({ model_type = 'gemma3', image_token_index = 262144,
         boi_token_index = 255999, eoi_token_index = 256000, eos_token_id = { 1, 106 },
         mm_tokens_per_image = 256, initializer_range = 0.02, text_config = {
            hidden_size = 2560, intermediate_size = 10240, model_type = 'gemma3_text',
            num_hidden_layers = 34, rope_scaling = { factor = 8, rope_type = 'linear' },
            sliding_window = 1024 },
         vision_config = { hidden_size = 1152, image_size = 896, intermediate_size = 4304,
            model_type = 'siglip_vision_model', num_attention_heads = 16, num_hidden_layers = 27,
            patch_size = 14, vision_use_head = false } }, { device = 'null' })
      assert.equal(4300079472, model:num_parameters())
      assert.equal(4, model.config.vision_config.spatial_merge_size)
   end)

   it('is run again in backward, whole or in parts, with the same gradients', function()
      local n, want = case.numbers 'beside', nil
      for _, policy in ipairs { 'none', 'full', 'selective', 'visual,layers' } do
         local model, grads = case.model('beside', { dtype = 'f64' }):train(), {}
         tide.parallel.recompute(model, policy)
         model:loss(n.ids, n.labels, case.call_of('beside', n, 'f64')):backward()
         for k, e in ipairs(case.parameters(model)) do grads[k] = e.param.grad end
         want = want or grads
         for k, t in ipairs(grads) do assert.is_true(t:equal(want[k]), policy) end
      end
   end)

   it('attends with dropout by the same mask', function()
      local n, o = case.numbers 'beside', case.images('beside', 'f64')
      local model = case.model('beside', { dtype = 'f64' })
      local want = model(n.ids, o)
      for _, e in ipairs(model:named_modules()) do
         if e.name:find 'self_attn$' and e.name:find '^model' then e.module.dropout = 1e-12 end
      end
      assert.is_true(far(model:train()(n.ids, o), want) <= 1e-9)
   end)

   it('has LoRA of chosen parts, written under the names of modules in transformers', function()
      local function adapted()
         local model = case.model 'image'
         tide.nn.lora.attach(model, { rank = 2, seed = 3,
            targets = 'visual.encoder.layers.*.self_attn.out_proj|v_proj' })
         return model
      end
      local model, n = adapted(), case.numbers 'image'
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
            'vision_tower.encoder.layers.0.self_attn.out_proj.lora_A' } do
            assert.is_not_nil(tensors['base_model.model.model.' .. name .. '.weight'])
         end
         local again = case.model 'image'
         tide.model.load_adapter(again, dir .. '/a')
         assert.equal(0, far(again(n.ids, o), model(n.ids, o)))
         tide.model.save(model, dir .. '/merged')
         assert.is_true(far(tide.model.load(dir .. '/merged')(n.ids, o), model(n.ids, o)) <= 1e-5)
      end)
   end)

   it('has the price of what it keeps for backward', function()
      local config, ids, grids = case.config 'beside', {}, {}
      for i = 1, 24 do
         grids[i] = { 1, 4, 4 }
         for t = 1, 6 do ids[#ids + 1] = t < 5 and config.image_token_index or 3 end
      end
      ids = i64(ids)
      local model = tide.model.gemma3_vl(config)
      local o = { pixel_values = tide.zeros { 384, 12 }, image_grid_thw = grids }
      model:loss(ids, ids, o):backward()
      collectgarbage()
      collectgarbage()
      collectgarbage 'stop'
      local before = tide.default():stats().live
      local loss = model:loss(ids, ids, o)
      local kept = tide.default():stats().live - before
      collectgarbage 'restart'
      loss:backward()
      local price = tide.parallel.plan(tide.model.gemma3_vl(config, { device = 'null' }),
         { dp_shard = 1 }):price { batch = 1, seq = ids:size(2), images = grids }
      assert.near(1, price.activations / kept, 0.02)
   end)

   it('refuses calls that do not fit', function()
      local model, n = case.model 'image', case.numbers 'image'
      local o = case.images 'image'
      local function message(ids, opts) return raised(model, ids, opts).message end
      assert.matches('ids have tokens of image_token_id (36), but the call has no images; give '
         .. 'pixel_values and image_grid_thw', message(n.ids, {}), 1, true)
      assert.matches("unknown option 'pixel_values_videos'", message(n.ids,
         copy({ pixel_values_videos = o.pixel_values }, copy(o))), 1, true)
      assert.matches('image_grid_thw[1]: expected { 1, 4, 4 }, since the tower reads images of 8 x '
         .. '8 pixels alone, got { 1, 2, 8 }', message(n.ids, { image_grid_thw = { { 1, 2, 8 } },
            pixel_values = o.pixel_values }), 1, true)
      assert.matches("'q_index': expected the pairs of the tokens, and k_index those of all tokens "
         .. 'so far', message(n.ids, copy({ caches = { { k = tide.zeros { 1, 1, 1, 8 },
            v = tide.zeros { 1, 1, 1, 8 } }, {}, {} } }, copy(o))), 1, true)
      local ring = { size = 2, q_index = function() return tide.zeros { 1, 3, 2 } end }
      assert.matches('the index of this context has no third number that says how far; cut a batch '
         .. 'that model:placed(batch) completed', raised(spans.complete, model, n.ids, {}, ring)
            .message, 1, true)
   end)

   it('refuses configurations of other models', function()
      local function message(change)
         local config = case.config 'image'
         change(config, config.text_config, config.vision_config)
         return raised(tide.model.gemma3_vl, config, { device = 'null' }).message
      end
      for words, change in each {
         ["'image_token_index': expected an id below vocab_size (41), got 41"] = function(c)
            c.image_token_index = 41
         end,
         ['mm_tokens_per_image: expected the square of a divisor of the 4 patches of a side'] =
            function(c) c.mm_tokens_per_image = 9 end,
         ['image_size (9) must be a multiple of patch_size (2)'] = function(_, _, v)
            v.image_size = 9
         end,
         ["'attention_dropout' is 0.5; only 0 is supported"] = function(_, _, v)
            v.attention_dropout = 0.5
         end,
         ["'use_bidirectional_attention' is true, which is not supported"] = function(_, t)
            t.use_bidirectional_attention = true
         end,
         ["unknown field 'spatial_merge'"] = function(_, _, v) v.spatial_merge = 2 end,
      } do
         assert.matches(words, message(change), 1, true)
      end
   end)
end)
