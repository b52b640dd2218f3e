-- tide.model.load and save: damaged folders are one clear line, folders come complete or not at
-- all, and ranks read the bytes that they keep.

local tide = require 'tide'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local raised = require 'spec.support.raised'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local config = { vocab_size = 32, hidden_size = 16, intermediate_size = 32, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, eos_token_id = 2 }

local function model_of(changes, opts)
   local c = {}
   for k, v in each(config) do c[k] = v end
   for k, v in each(changes or {}) do c[k] = v end
   return tide.model.llama(c, opts or { seed = 3 })
end

-- Calls fn(dir, model) with a folder of a Llama, in shards if max_shard says so.
local function with_folder(max_shard, fn, changes)
   tmp.with(function(parent)
      local model = model_of(changes)
      fn(tide.model.save(model, parent .. '/m', { max_shard = max_shard }), model, parent)
   end)
end

local function edit(path, fn) fs.write('spec', path, fn(fs.read('spec', path))) end

local function json(path, fn)
   local value = fs.read_json('spec', path)
   fs.write('spec', path, tide.json.encode(fn(value) or value))
end

-- One line that names what is wrong.
local function damaged(code, words, dir)
   local e = refused(code, words, tide.model.load, dir)
   assert.is_nil(e.message:find '\n')
   assert.is_true(#e.message < 600, e.message)
end

describe('a damaged folder', function()
   it('is named where it is no folder, or holds no model', function()
      damaged('E_IO', { '/nowhere/at/all', 'there is no such folder' }, '/nowhere/at/all')
      with_folder('1GB', function(dir)
         damaged('E_IO', 'is a file; give its folder', dir .. '/config.json')
         fs.io().remove(dir .. '/config.json')
         damaged('E_IO', 'no config.json', dir)
      end)
      with_folder('1GB', function(dir)
         fs.io().rename(dir .. '/model.safetensors', dir .. '/pytorch_model.bin')
         damaged('E_UNSUPPORTED', 'pytorch_model.bin', dir)
         fs.io().remove(dir .. '/pytorch_model.bin')
         damaged('E_IO', 'has neither model.safetensors nor', dir)
         fs.write('spec', dir .. '/model-00002-of-00002.safetensors', '')
         damaged('E_IO', 'holds model-00002-of-00002.safetensors, but not model.safetensors.index',
            dir)
      end)
   end)

   it('is named where a shard is missing or cut', function()
      with_folder('4kB', function(dir)
         local name = fs.read_json('spec', dir .. '/model.safetensors.index.json')
            .weight_map['model.norm.weight']
         fs.io().rename(dir .. '/' .. name, dir .. '/away')
         damaged('E_IO', name, dir)
         edit(dir .. '/away', function(text) return text:sub(1, -9) end)
         fs.io().rename(dir .. '/away', dir .. '/' .. name)
         damaged('E_FORMAT', name, dir)
      end)
   end)

   it('is named where the index says something else than the files', function()
      with_folder('4kB', function(dir)
         local path = dir .. '/model.safetensors.index.json'
         json(path, function(v) v.weight_map['model.other'] = v.weight_map['lm_head.weight'] end)
         damaged('E_FORMAT', 'model.other', dir)
         fs.write('spec', path, '{"weight_map": 3}')
         damaged('E_FORMAT', 'weight_map', dir)
         fs.write('spec', path, '{')
         damaged('E_FORMAT', 'model.safetensors.index.json', dir)
      end)
   end)

   it('is named by its missing, extra and misshapen tensors, all at once', function()
      with_folder('1GB', function(dir)
         local file = dir .. '/model.safetensors'
         local t = tide.train.checkpoint.tensors(file)
         t['model.norm.weight'], t['model.more'] = nil, tide.ones { 2 }
         t['model.layers.0.mlp.up_proj.weight'] = tide.ones { 16, 32 }
         fs.io().safetensors_save(file, t)
         damaged('E_SHAPE', { dir, 'missing: model.norm.weight', 'unexpected: model.more',
            'shapes differ: model.layers.0.mlp.up_proj.weight (model [32, 16], state [16, 32])' },
            dir)
      end)
   end)

   it('is named where a tensor is no floating-point numbers', function()
      with_folder('1GB', function(dir)
         local file = dir .. '/model.safetensors'
         local t = tide.train.checkpoint.tensors(file)
         t['model.norm.weight'] = tide.ones({ 16 }, { dtype = 'i32' })
         fs.io().safetensors_save(file, t)
         damaged('E_FORMAT', "tensor 'model.norm.weight' is I32; expected F32", dir)
      end)
   end)

   it('is named with the fields of config.json that do not fit', function()
      with_folder('1GB', function(dir)
         local path = dir .. '/config.json'
         json(path, function(v) v.hidden_act, v.moe = 'gelu', 3 end)
         damaged('E_ARG', { path, "field 'hidden_act'", "unknown field 'moe'" }, dir)
         json(path, function(v) v.hidden_act, v.moe, v.num_hidden_layers = nil, nil, 1e9 end)
         damaged('E_FORMAT', { path, 'num_hidden_layers', '1000000000 layers' }, dir)
         json(path, function(v) v.num_hidden_layers, v.hidden_size = 1, 2 ^ 53 end)
         damaged('E_FORMAT', { path, "'hidden_size' is 9.007199254741e+15", 'no tensor' }, dir)
         fs.write('spec', path, '{"model_type": "bert", "vocab_size": 3}')
         damaged('E_UNSUPPORTED', { 'config.json: ', "model type 'bert'", 'llama' }, dir)
         fs.write('spec', path, '[')
         damaged('E_FORMAT', path, dir)
      end)
   end)

   it('is named with the fields of its family that are larger than its tensors', function()
      tmp.with(function(dir)
         local model = tide.model.qwen2_moe({ vocab_size = 32, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, num_experts = 2,
            num_experts_per_tok = 1, moe_intermediate_size = 4,
            shared_expert_intermediate_size = 4 }, { seed = 3 })
         tide.model.save(model, dir .. '/m')
         for _, field in ipairs { 'intermediate_size', 'moe_intermediate_size',
            'shared_expert_intermediate_size' } do
            local was
            json(dir .. '/m/config.json', function(c) was, c[field] = c[field], 2 ^ 40 end)
            damaged('E_FORMAT', { 'config.json', ("field '%s'"):format(field),
               'no tensor of the weights' }, dir .. '/m')
            json(dir .. '/m/config.json', function(c) c[field] = was end)
         end
         json(dir .. '/m/config.json', function(c)
            c.num_experts, c.moe_intermediate_size = 1e9, 2 ^ 20
         end)
         damaged('E_FORMAT', { 'config.json', 'a tensor that is too large' }, dir .. '/m')
      end)
   end)

   it('is named where a tied head differs from the embedding', function()
      with_folder('1GB', function(dir)
         local file = dir .. '/model.safetensors'
         local t = tide.train.checkpoint.tensors(file)
         t['lm_head.weight'] = t['model.embed_tokens.weight']
         fs.io().safetensors_save(file, t)
         assert.has_no_error(function() tide.model.load(dir) end)
         t['lm_head.weight'] = t['lm_head.weight'] + 1
         fs.io().safetensors_save(file, t)
         damaged('E_FORMAT', "'lm_head.weight' differs from 'model.embed_tokens.weight'", dir)
      end, { tie_word_embeddings = true })
   end)
end)

describe('tide.model.load', function()
   it('gives the numbers, the dtype that is asked for, and what generation needs', function()
      with_folder('4kB', function(dir, model)
         local ids = tide.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
         local want = model:eval()(ids)
         local again, run = tide.model.load(dir)
         assert.equal(0, (again(ids) - want):abs():amax():item())
         assert.is_false(again.training)
         assert.same({ eos_token_id = 2 }, run.generation)
         assert.equal(2, again.config.eos_token_id)
         local n = 0
         for _, p in ipairs(model:parameters()) do n = n + 4 * p:numel() end
         assert.equal(n, run.nbyte)
         tide.model.save(model, dir .. '16', { dtype = 'bf16' })
         assert.equal('bf16', tide.model.load(dir .. '16'):parameters()[1].dtype)
         local wide = tide.model.load(dir .. '16', { dtype = 'f32' })
         assert.equal('f32', wide:parameters()[1].dtype)
         assert.near(0, (wide(ids) - want):abs():amax():item(), 2e-2)
      end)
   end)

   it('reads a Qwen3.5 with the names that it has beside a vision tower', function()
      tmp.with(function(dir)
         local model = tide.model.qwen3_5({ vocab_size = 32, hidden_size = 16, head_dim = 8,
            num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1,
            intermediate_size = 8, linear_num_key_heads = 1, linear_num_value_heads = 1,
            linear_key_head_dim = 8, linear_value_head_dim = 8 }, { seed = 3 })
         local file = tide.model.save(model, dir .. '/m') .. '/model.safetensors'
         local named = {}
         for name, t in each(tide.train.checkpoint.tensors(file)) do
            named[name:gsub('^model%.', 'model.language_model.')] = t
         end
         tide.util.fs.io().safetensors_save(file, named, { format = 'pt' })
         local ids = tide.tensor({ { 3, 1, 4 } }, { dtype = 'i64' })
         local again = tide.model.load(dir .. '/m')
         assert.equal(0, (again(ids) - model:eval()(ids)):abs():amax():item())
      end)
   end)

   it('reads checkpoints and runs as it reads folders', function()
      tmp.with(function(dir)
         local model = model_of()
         tide.train.checkpoint.save(dir .. '/run', tide.train.state.collect { model = model,
            optim = tide.optim.SGD(model, { lr = 1 }), step = 1 })
         local want = model:parameters()[1]:tolist()
         assert.same(want, tide.model.load(dir .. '/run'):parameters()[1]:tolist())
         tide.model.export(dir .. '/run', dir .. '/out')
         assert.same(want, tide.model.load(dir .. '/out'):parameters()[1]:tolist())
         assert.truthy(fs.read('spec', dir .. '/out/README.md'):find('llama', 1, true))
         refused('E_ARG', { 'model.export', '/out is a published folder already' },
            tide.model.export, dir .. '/out', dir .. '/again')
         refused('E_ARG', { 'model.export', 'is not empty' }, tide.model.export, dir .. '/run',
            dir .. '/out')
         refused('E_ARG', { 'model.export', "'max_shard'" }, tide.model.export, dir .. '/run',
            dir .. '/new', { max_shard = '5 apples' })
         refused('E_IO', { 'model.export', 'there is no such folder' }, tide.model.export,
            dir .. '/none', dir .. '/new')
         refused('E_IO', { 'model.load', 'there is no such folder' }, tide.model.load,
            dir .. '/none')
         local run = tide.parallel.plan(model_of({ hidden_size = 8 }, { device = 'null' }),
            { dp = 1 }):materialise()
         refused('E_SHAPE', { 'model.fill', 'hidden_size 16, this one 8' }, tide.model.fill, run,
            dir .. '/out')
         refused('E_IO', { 'model.fill', 'no checkpoint' }, tide.model.fill, run, dir)
      end)
   end)

   it('exports with a run how its text is generated', function()
      tmp.with(function(dir)
         local model, run = model_of(), dir .. '/run'
         tide.train.checkpoint.save(run, tide.train.state.collect { model = model,
            optim = tide.optim.SGD(model, { lr = 1 }), step = 1 })
         local generation = { eos_token_id = { 2, 3 }, temperature = 0.5 }
         fs.write('spec', run .. '/generation_config.json', tide.json.encode(generation))
         fs.write('spec', run .. '/tokenizer.json', '{}')
         tide.model.export(run, dir .. '/out')
         assert.same(generation, fs.read_json('spec', dir .. '/out/generation_config.json'))
      end)
   end)

   it('blames a device for what the device lacks', function()
      with_folder('1GB', function(dir)
         if not tide.cuda.is_available() then
            local e = raised(tide.model.load, dir, { device = 'cuda' })
            assert.equal('E_DEVICE', e.code)
            assert.is_nil(e.message:find('config.json', 1, true))
         end
      end)
   end)
end)

describe('tide.model.save', function()
   it('replaces nothing unless it is told to', function()
      with_folder('1GB', function(dir, model, parent)
         refused('E_ARG', { 'model.save', 'is not empty', 'overwrite' }, tide.model.save, model,
            dir)
         tide.model.save(model, dir, { overwrite = true, max_shard = 5000 })
         assert.is_false(fs.exists(dir .. '/model.safetensors'))
         fs.mkdirs('spec', dir .. '/sub')
         refused('E_ARG', 'sub', tide.model.save, model, dir, { overwrite = true })
         fs.mkdirs('spec', parent .. '/papers')
         fs.write('spec', parent .. '/papers/thesis.tex', 'x')
         refused('E_ARG', { 'papers holds no model' }, tide.model.save, model, parent .. '/papers',
            { overwrite = true })
         assert.equal('x', fs.read('spec', parent .. '/papers/thesis.tex'))
         fs.remove_dir('spec', parent .. '/papers')
         local optim = tide.optim.AdamW(model, { lr = 1e-3 })
         local step = tide.train.checkpoint.save(parent .. '/run', tide.train.state.collect {
            model = model, optim = optim, step = 1 })
         refused('E_ARG', 'is a checkpoint', tide.model.export, step, step, { overwrite = true })
         tide.train.checkpoint.load(step)
         tide.train.checkpoint.clear(parent .. '/run')
         os.remove(parent .. '/run')
         refused('E_ARG', { "'tokenizer'", '/nowhere' }, tide.model.save, model, parent .. '/n',
            { tokenizer = '/nowhere' })
         refused('E_ARG', "'max_shard'", tide.model.save, model, dir, { max_shard = '5 apples' })
         refused('E_IO', 'is a file', tide.model.save, model, dir .. '/config.json')
         assert.same({ 'm' }, fs.list('spec', parent))
      end)
   end)

   it('leaves nothing behind when it fails', function()
      tmp.with(function(dir)
         local old = fs.io()
         local broken = setmetatable({ fsync_file = function() error 'no space' end },
            { __index = old })
         fs.use(broken)
         local ok = pcall(tide.model.save, model_of(), dir .. '/m')
         fs.use(old)
         assert.is_false(ok)
         assert.same({}, fs.list('spec', dir))
      end)
   end)

   it('refuses models that no published configuration describes', function()
      tmp.with(function(dir)
         local own = require 'tide.class' ('Own', tide.model.llama)
         refused('E_UNSUPPORTED', 'Own', tide.model.save, own(config, { seed = 1 }), dir .. '/m')
      end)
   end)

   it('names the dtype of most numbers', function()
      local names = { f64 = 'float64', f32 = 'float32', f16 = 'float16', bf16 = 'bfloat16' }
      tmp.with(function(dir)
         for most, name in each(names) do
            for other in each(names) do
               local model = model_of({}, { seed = 3, dtype = most })
               model.model.norm:to(other)
               local path = tide.model.save(model, dir .. '/' .. most .. other)
               local c = fs.read_json('spec', path .. '/config.json')
               assert.equal(name, c.torch_dtype or c.dtype, most .. ' ' .. other)
            end
         end
      end)
   end)

   it('copies the tokenizer of the folder that the model came from', function()
      with_folder('1GB', function(dir, _, parent)
         fs.write('spec', dir .. '/tokenizer.json', '{"a": 1}')
         local of_images = { 'preprocessor_config.json', 'video_preprocessor_config.json',
            'processor_config.json' }
         for _, name in ipairs(of_images) do fs.write('spec', dir .. '/' .. name, '{"b": 2}') end
         tide.model.save(tide.model.load(dir), parent .. '/n')
         assert.equal('{"a": 1}', fs.read('spec', parent .. '/n/tokenizer.json'))
         for _, name in ipairs(of_images) do
            assert.equal('{"b": 2}', fs.read('spec', parent .. '/n/' .. name))
         end
      end)
   end)
end)

-- On a rank: the logits, the bytes read, the bytes kept, and the folder that is written again.
local function on_mesh(_, _, dir, mesh, out)
   local t = require 'tide'
   local model, run = t.model.load(dir, { mesh = mesh, verbose = false })
   local kept = 0
   for _, p in ipairs(run.sharded:named_parameters()) do kept = kept + 4 * p.param:numel() end
   local ids = t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
   local logits = t.parallel.plan.whole(run, function() return model(ids):detach():tolist() end)
   t.model.save(run.sharded, out, { max_shard = 4000 })
   return { logits = logits, nbyte = run.nbyte, kept = kept }
end

describe('ranks', function()
   for name, mesh in each { zero3 = { dp_shard = 2 }, tp = { tp = 2 },
      both = { dp_shard = 2, tp = 2 } } do
      it('read the bytes that they keep, and write the whole: ' .. name, function()
         with_folder('4kB', function(dir, model, parent)
            local ids = tide.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
            local want = model:eval()(ids)
            local all = 0
            for _, p in ipairs(model:parameters()) do all = all + 4 * p:numel() end
            local n = (mesh.dp_shard or 1) * (mesh.tp or 1)
            for _, row in ipairs(ranks.run(n, on_mesh, dir, mesh, parent .. '/out')) do
               assert.equal(row.kept, row.nbyte)
               assert.is_true(row.nbyte < all * (name == 'both' and 0.4 or 0.6), row.nbyte / all)
               assert.near(0, (tide.tensor(row.logits) - want):abs():amax():item(), 1e-5)
            end
            local again = tide.model.load(parent .. '/out')
            assert.equal(0, (again(ids) - want):abs():amax():item())
            assert.same({ 'm', 'out' }, fs.list('spec', parent))
         end)
      end)
   end
end)
