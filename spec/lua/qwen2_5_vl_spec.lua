-- Qwen2.5-VL against transformers (numbers of spec/golden/qwen2_5_vl.py): positions, logits, loss
-- and gradients, greedy generation, folders; and what does not fit is refused.

local tide = require 'tide'
local case = require 'spec.lua.vlm_case'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local tmp = require 'spec.support.tmp'

local call_of, far = case.call_of, case.far

describe('qwen2_5_vl', function()
   for _, name in ipairs(case.names()) do
      it('has the numbers of transformers: ' .. name, function() case.check_numbers(name) end)
      it('goes on as transformers does, and goes through a folder: ' .. name, function()
         case.check_answers(name)
      end)
   end

   it('reads files in each spelling, and tensors under names of transformers 5', function()
      local model, config = case.model 'image', case.config 'image'
      local flat = copy(config.text_config, copy(config))
      flat.text_config, flat.model_type = nil, 'qwen2_5_vl'
      flat.rope_scaling = { type = 'mrope', mrope_section = { 1, 2, 1 } }
      flat.rope_theta, flat.rope_parameters = 100, nil
      flat.vision_config = copy(flat.vision_config)
      flat.vision_config.in_chans, flat.vision_config.in_channels = 3, nil
      flat.vision_config.rope_parameters, flat.vision_config.spatial_patch_size = nil, 2
      assert.same(model.config, tide.model.qwen2_5_vl(flat, { device = 'null' }).config)
      -- transformers before 5 repeats the ids of images in text_config, as null
      local both = copy(config)
      both.text_config = copy({ image_token_id = tide.json.null, video_token_id = tide.json.null },
         copy(config.text_config))
      assert.same(model.config, tide.model.qwen2_5_vl(both, { device = 'null' }).config)
      tmp.with(function(dir)
         tide.model.save(model, dir .. '/out')
         local state = {}
         for name, t in each(model:state_dict()) do
            state[name:gsub('^visual%.', 'model.visual.')
               :gsub('^model%.([len])', 'model.language_model.%1')] = t
         end
         assert.is_not_nil(state['model.language_model.embed_tokens.weight'])
         fs.io().safetensors_save(dir .. '/out/model.safetensors', state, { format = 'pt' })
         fs.write('spec', dir .. '/out/config.json', case.golden.image)
         local n = case.numbers 'image'
         local o = call_of('image', n)
         assert.equal(0, far(tide.model.load(dir .. '/out')(n.ids, o), model(n.ids, o)))
      end)
   end)

   it('has as many parameters as a published model', function()
      local model = tide.model.qwen2_5_vl({
         architectures = { 'Qwen2_5_VLForConditionalGeneration' }, model_type = 'qwen2_5_vl',
         vocab_size = 151936, hidden_size = 2048, torch_dtype = 'bfloat16',
         intermediate_size = 11008, num_hidden_layers = 36, num_attention_heads = 16,
         num_key_value_heads = 2, tie_word_embeddings = true, hidden_act = 'silu',
         max_position_embeddings = 128000, max_window_layers = 70, sliding_window = 32768,
         use_sliding_window = false, rope_theta = 1e6, rms_norm_eps = 1e-6,
         vision_token_id = 151654,
         rope_scaling = { type = 'mrope', mrope_section = { 16, 24, 24 } },
         vision_config = { depth = 32, hidden_act = 'silu', hidden_size = 1280, num_heads = 16,
            intermediate_size = 3420, in_chans = 3, out_hidden_size = 2048, patch_size = 14,
            spatial_merge_size = 2, spatial_patch_size = 14, window_size = 112,
            fullatt_block_indexes = { 7, 15, 23, 31 }, tokens_per_second = 2,
            temporal_patch_size = 2 },
      }, { device = 'null' })
      assert.equal(3754622976, model:num_parameters())
      assert.same({ 'torch_dtype', 'vision_config.spatial_patch_size' }, model.unused_fields)
   end)

   it('rounds the times of frames as transformers does', function()
      local model = case.model 'video'
      local ids = tide.full({ 1, 11 }, 37, { dtype = 'i64' })
      for seconds, want in each { [0.7] = { 0, 1, 2, 4, 5, 7, 8, 9, 11, 12, 14 },
         [0.15] = { 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3 } } do
         local positions = model:rope_index(ids, { video_grid_thw = { { 11, 2, 2 } },
            second_per_grid_ts = tide.tensor({ seconds }, { dtype = 'f32' }) })
         local got = positions:tolist()[1][1]
         for t, p in ipairs(got) do got[t] = tonumber(p) end
         assert.same(want, got)
      end
   end)

   it('has default sections in the proportion of published models', function()
      local config = case.config 'image'
      config.text_config.rope_parameters.mrope_section = nil
      config.text_config.head_dim = 128
      assert.same({ 16, 24, 24 }, tide.model.qwen2_5_vl(config, { device = 'null' })
         .config.rope_scaling.mrope_section)
   end)

   it('reads packed documents as it reads them alone', function()
      case.check_packed('images', 3)
   end)

   it('takes pixels of images and of videos in different dtypes', function()
      local model, n = case.model 'mixed', case.numbers 'mixed'
      local o = call_of('mixed', n)
      local want = model(n.ids, o)
      o.pixel_values_videos = o.pixel_values_videos:to 'f64'
      assert.equal(0, far(model(n.ids, o), want))
   end)

   it('multiplies in FP8 in the text alone', function()
      for _, e in ipairs(case.model('image', { fp8 = true }):named_modules()) do
         if e.module.nin and e.name ~= 'lm_head' then
            assert.equal(e.name:find '^model%.' ~= nil, e.module.fp8, e.name)
         end
      end
   end)

   it('has LoRA of chosen parts', function()
      local model = case.model 'image'
      tide.nn.lora.attach(model, { rank = 2, targets = 'visual.blocks.*.attn.qkv|'
         .. 'model.layers.*.self_attn.q_proj' })
      assert.same({ 'visual.blocks.0.attn.qkv', 'visual.blocks.1.attn.qkv',
         'model.layers.0.self_attn.q_proj', 'model.layers.1.self_attn.q_proj' },
         model.adapter.modules)
      local n = case.numbers 'image'
      model:loss(n.ids, n.labels, call_of('image', n)):backward()
      for _, e in ipairs(model:named_parameters()) do
         assert.equal(e.name:find 'lora_' ~= nil, e.param.grad ~= nil, e.name)
      end
   end)

   it('trains its tower alone on batches of which some have no images', function()
      local model, n = case.model 'image', case.numbers 'image'
      tide.nn.lora.attach(model, { rank = 2, targets = 'visual.blocks.*.attn.qkv' })
      local step = tide.train.step.new { model = model, optim = tide.optim.SGD(model, { lr = 1 }) }
      local ids = tide.tensor({ { 3, 4, 5 } }, { dtype = 'i64' })
      local text = { ids = ids, labels = tide.nn.loss.shift(ids) }
      local images = copy(case.images 'image', { ids = n.ids, labels = n.labels })
      local first = step:run { images, text }
      assert.is_true(first.grad_norm > 0)
      assert.is_true(step:run({ text, images }).loss < first.loss)
      local before = model:state_dict()
      for name, t in pairs(before) do before[name] = t:clone() end
      assert.equal(0, step:run({ text, text }).grad_norm)
      for name, t in pairs(model:state_dict()) do assert.is_true(t:equal(before[name]), name) end
   end)

   it('writes adapters under the names of modules in transformers, and reads them', function()
      local model = case.model 'image'
      tide.nn.lora.attach(model, { rank = 2, seed = 3,
         targets = 'visual.blocks.*.attn.proj|v_proj' })
      tide.no_grad(function()
         for i, e in ipairs(model:named_parameters()) do
            if e.name:find 'lora_B' then e.param:fill_(0.1 * i) end
         end
      end)
      tmp.with(function(dir)
         tide.model.save_adapter(model, dir)
         local config = fs.read_json('spec', dir .. '/adapter_config.json')
         assert.same({ 'model.visual.blocks.0.attn.proj', 'model.visual.blocks.1.attn.proj',
            'model.language_model.layers.0.self_attn.v_proj',
            'model.language_model.layers.1.self_attn.v_proj' }, config.target_modules)
         local tensors = tide.train.checkpoint.tensors(dir .. '/adapter_model.safetensors')
         for _, name in ipairs { 'language_model.layers.1.self_attn.v_proj.lora_B',
            'visual.blocks.1.attn.proj.lora_A' } do
            assert.is_not_nil(tensors['base_model.model.model.' .. name .. '.weight'])
         end
         local again, n = case.model 'image', case.numbers 'image'
         tide.model.load_adapter(again, dir)
         local o = call_of('image', n)
         assert.equal(0, far(again(n.ids, o), model(n.ids, o)))
      end)
   end)

   it('refuses a file of more layers, or wider ones, than its weights have', function()
      tmp.with(function(dir)
         tide.model.save(case.model 'image', dir .. '/out')
         for words, change in each {
            ["field 'vision_config.depth' says 100000 layers, the weights have"] = function(c)
               c.vision_config.depth = 1e5
            end,
            ["field 'text_config.num_hidden_layers' says 100000 layers"] = function(c)
               c.text_config.num_hidden_layers = 1e5
            end,
            ["field 'vision_config.hidden_size' is 1e+15"] = function(c)
               c.vision_config.hidden_size = 1e15
            end,
            ["vision_config: field 'patch_size': expected an integer in [1, 1024], got 1048576"] =
               function(c) c.vision_config.patch_size = 2 ^ 20 end,
            ["field 'spatial_merge_size': expected an integer in [1, 64], got 1000"] =
               function(c) c.vision_config.spatial_merge_size = 1000 end,
         } do
            local config = case.config 'image'
            change(config)
            fs.write('spec', dir .. '/out/config.json', tide.json.encode(config))
            assert.matches(words, raised(tide.model.load, dir .. '/out').message, 1, true)
         end
      end)
   end)

   it('says what does not fit, and what to do', function()
      local model, n = case.model 'image', case.numbers 'image'
      local o = case.images 'image'
      local function message(ids, changes)
         return raised(model, ids, copy(changes or {}, copy(o))).message
      end
      local text = tide.tensor({ { 3, 4, 5 } }, { dtype = 'i64' })
      local grid = tide.tensor({ { 1, 4, 6 }, { 1, 2, 2 } }, { dtype = 'i64' })
      for words, said in each {
         ['image_grid_thw has 1 rows, but ids have tokens (image_token_id 36) of only 0; leave the '
            .. 'other rows out, or add their tokens'] = message(text),
         ['ids have tokens of image_token_id (36) or video_token_id (37), but the call has no '
            .. 'images; give pixel_values and image_grid_thw'] = raised(model, n.ids).message,
         ['image_grid_thw[1] is 12 tokens, but only 6 of image_token_id (36) follow one '
            .. 'another in row 1 of ids'] = message(n.ids, {
               image_grid_thw = { { 2, 4, 6 } }, pixel_values = tide.zeros { 48, 24 } }),
         ['ids[1][17] is image_token_id (36), but image_grid_thw has no row for it'] =
            message(tide.cat({ n.ids, n.ids }, 2)),
         ['pixel_values: the grids have 28 patches of 24 numbers'] = message(n.ids, {
            image_grid_thw = grid }),
         ['pixel_values: expected patches of at least one image, got none; leave images out'] =
            message(n.ids, { image_grid_thw = {}, pixel_values = tide.zeros { 0, 24 } }),
         ['patches: the grids have 24 patches of 24 numbers'] = raised(model.visual,
            tide.zeros { 3, 24 }, { { 1, 4, 6 } }).message,
         ["argument 'patches': expected a tensor [N, P], got nil"] = raised(model.visual, nil,
            { { 1, 4, 6 } }).message,
         ["argument 'grids[1]': expected { frames, rows, columns }"] = raised(model.visual,
            tide.zeros { 3, 24 }, { { 1, 4 } }).message,
         ['pixel_values and image_grid_thw: give both of them or none'] =
            raised(model, n.ids, { pixel_values = o.pixel_values }).message,
         ["argument 'image_grid_thw[1]': expected { frames, rows, columns } of patches, rows and "
            .. 'columns multiples of 2 (spatial_merge_size)'] = message(n.ids, {
               image_grid_thw = { { 1, 3, 8 } } }),
         ["argument 'ids': expected ids beside images"] = message(tide.zeros { 1, 3, 16 }),
         ["argument 'second_per_grid_ts': expected 0 numbers, one for each row of video_grid_thw"] =
            message(n.ids, { second_per_grid_ts = { 1 } }),
         ['feature_rows: expected [1, 13] as ids, got [1, 3]'] = message(n.ids, {
            feature_rows = text }),
         ["argument 'positions': expected positions [3, B, T] of tokens and images: leave them "
            .. 'out, or give those of model:rope_index'] = message(n.ids, {
               positions = tide.arange(n.ids:size(2), { dtype = 'i64' }):reshape(1, -1) }),
         ["argument 'positions': expected those of the tokens in the whole sequence, [3, B, T]"] =
            message(n.ids, { caches = { { k = tide.zeros { 1, 1, 1, 8 } }, {} } }),
         ["argument 'attention_mask': expected an integer or bool tensor [B, T]"] = message(n.ids,
            { attention_mask = { 1 } }),
         ["argument 'context': expected a context of parallel.cp, got 3"] = message(n.ids,
            { context = 3 }),
         ["argument 'pixel_values': expected a tensor [N, P] of f32"] = message(n.ids,
            { pixel_values = o.pixel_values:to 'i64' }),
      } do
         assert.matches(words, said, 1, true)
      end
   end)

   it('refuses configurations of other models', function()
      local function message(change)
         local config = case.config 'image'
         change(config, config.text_config, config.vision_config)
         return raised(tide.model.qwen2_5_vl, config, { device = 'null' }).message
      end
      for words, change in each {
         ['image_token_id'] = function(c) c.image_token_id = 41 end,
         ["'video_token_id': expected another id than image_token_id, got 36"] = function(c)
            c.video_token_id = 36
         end,
         ['vision_config.out_hidden_size (8) must be the hidden_size of the text model (16)'] =
            function(_, _, v) v.out_hidden_size = 8 end,
         ['vision_config: hidden_size (12) must be a multiple of 8'] = function(_, _, v)
            v.hidden_size = 12
         end,
         ['vision_config: window_size (3) must hold a block of 4 pixels'] = function(_, _, v)
            v.window_size = 3
         end,
         ["field 'rope_parameters.rope_type' is \"linear\"; only axial is supported"] =
            function(_, _, v) v.rope_parameters.rope_type = 'linear' end,
         ["vision_config.model_type': expected one of"] = function(_, _, v)
            v.model_type = 'siglip'
         end,
         ["vision_config: unknown field 'deepstack_visual_indexes'"] = function(_, _, v)
            v.deepstack_visual_indexes = { 1 }
         end,
         ["argument 'vision_config': expected a table, got nil"] = function(c)
            c.vision_config = nil
         end,
         ["text_config.model_type': expected one of"] = function(_, t) t.model_type = 'qwen3' end,
         ['mrope_section'] = function(_, t) t.rope_parameters.mrope_section = { 2, 2, 1 } end,
      } do
         assert.matches(words, message(change), 1, true)
      end
   end)

   it('does not drop parts of a prompt with images', function()
      local model, n = case.model 'image', case.numbers 'image'
      local function message(opts)
         opts.inputs = case.images 'image'
         return raised(tide.train.sample.generate, model, n.ids:tolist()[1], opts).message
      end
      assert.matches('a prompt of 13 tokens and an answer of 60 are more than the context (64)',
         message { tokens = 60 }, 1, true)
      -- a prompt of image tokens without images
      assert.matches('is image_token_id (36), but there are no images; give inputs', raised(
         tide.train.sample.generate, model, n.ids:tolist()[1], { tokens = 1 }).message, 1, true)
      assert.matches("argument 'inputs': expected nil, as the model takes ids alone",
         raised(tide.train.sample.generate, tide.model.llama { vocab_size = 9, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2 }, { 1 }, { tokens = 1,
            inputs = {} }).message, 1, true)
   end)

   it('takes no inputs that generation itself makes', function()
      local model, n, zeros = case.model 'image', case.numbers 'image', tide.zeros
      local function message(inputs)
         return raised(tide.train.sample.generate, model, n.ids:tolist()[1], { tokens = 1,
            inputs = inputs }).message
      end
      for name, v in each { positions = zeros({ 3, 1, 13 }, { dtype = 'i64' }), caches = {} } do
         local inputs = case.images 'image'
         inputs[name] = v
         assert.matches(("unknown option '%s'"):format(name), message(inputs), 1, true)
      end
   end)

   it('is placed by ids alone, and by documents of all of its tokens', function()
      local model, n = case.model 'image', case.numbers 'image'
      local function message(batch, index)
         batch.image_grid_thw = n.image_grid_thw
         return raised(model.placed, model, batch, index).message
      end
      assert.matches("'batch.input_ids': expected a tensor [B, T] of i64, i32, got nil",
         message { embeds = tide.zeros { 1, 13, 16 } }, 1, true)
      assert.matches("'batch.ids': expected a tensor", message { ids = { 1 } }, 1, true)
      assert.matches("'index': expected a tensor [1 or 1, 13, 2 or 3]",
         message({ ids = n.ids }, tide.zeros({ 1, 1, 2 }, { dtype = 'i32' })), 1, true)
   end)

   it('takes a packed stream of texts, cut as that of other models', function()
      local model = case.model 'text'
      local function i64(list) return tide.tensor({ list }, { dtype = 'i64' }) end
      local handle = tide.parallel.cp.attach(model, tide.comm.world())
      local mine = handle:cut({ input_ids = i64 { 1, 2, 3, 4 }, labels = i64 { 2, 3, 4, 5 },
         position_ids = i64 { 0, 1, 0, 1 }, seq_lens = i64 { 2, 2 },
         seq_lens_padded = i64 { 2, 2 } }, { use_te = true })
      assert.same({ 4 }, mine.context:tokens())
      handle:restore()
   end)
end)
