-- recipes/finetune.lua with adapters: equal losses on every mesh, also of Mamba-2 layers, exact
-- resumption, folders of adapters in and out, and mistakes.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local fs = require 'tide.util.fs'

local ok, bad, losses, same_losses = case.ok, case.bad, case.losses, case.same_losses

local meshes = {
   { 2, '--mesh.dp 2' }, { 4, '--mesh.dp_shard 2 --mesh.cp 2' },
   { 2, '--mesh.tp 2 --sequence-parallel --async-tp' },
   { 2, '--mesh.dp_shard 2 --recompute full --accum 2' },
}

local hybrid = { vocab_size = 258, hidden_size = 24, hybrid_override_pattern = 'M*-M',
   num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4, intermediate_size = 22,
   mamba_num_heads = 6, n_groups = 2, mamba_head_dim = 4, ssm_state_size = 5, chunk_size = 4 }

local ids = tide.tensor({ { 5, 6, 7, 8 } }, { dtype = 'i64' })

-- The largest difference of two models' logits.
local function off(a, b) return (a(ids) - b(ids)):abs():amax():item() end

describe('adapters in recipes/finetune.lua', function()
   it('lose on every mesh what they lose on one rank, and are read and merged', function()
      case.with_data(function(dir, words)
         words = words .. '--lora.rank 4 --lr 3e-2 --steps 5 '
         local out = ok(1, words .. '--out ' .. dir .. '/one --export ' .. dir .. '/merged')
         assert.matches('the adapters of %S+ are written as %S+/one/adapter', out)
         assert.matches('%d+ parameters %(f32%), 1856 of them trained', out)
         local one, base = losses(dir .. '/one'), tide.model.load(dir .. '/m')
         local a = tide.model.load_adapter(tide.model.load(dir .. '/m'), dir .. '/one/adapter')
         assert.is_true(off(a, base) > 1e-3)
         assert.is_true(off(a, tide.model.load(dir .. '/merged')) < 1e-5)
         assert.is_true(off(a, tide.model.load(dir .. '/one')) == 0)
         for i, mesh in ipairs(meshes) do
            local to = dir .. '/run' .. i
            ok(mesh[1], words .. mesh[2] .. ' --out ' .. to)
            same_losses(one, losses(to))
            local b = tide.model.load_adapter(tide.model.load(dir .. '/m'), to .. '/adapter')
            assert.is_true(off(a, b) < 1e-4)
         end
      end)
   end)

   it('of Mamba-2 layers are cut with them', function()
      case.with_data(function(dir, words)
         case.save(dir .. '/h', tide.model.hybrid(hybrid, { seed = 3 }))
         words = ('%s--from %s/h --lora.rank 4 --lora.targets "in_proj|out_proj|up_proj" --lr 3e-2 '
            .. '--steps 4 '):format(words, dir)
         assert.matches('PEFT refuses adapters of out_proj in this family',
            ok(1, words .. '--out ' .. dir .. '/one'), 1, true)
         ok(2, words .. '--mesh.tp 2 --sequence-parallel --out ' .. dir .. '/two')
         same_losses(losses(dir .. '/one'), losses(dir .. '/two'))
      end)
   end)

   it('of experts lose on every mesh what they lose on one rank', function()
      case.with_data(function(dir, words)
         case.save(dir .. '/moe', tide.model.qwen3_moe({ vocab_size = 258, hidden_size = 16,
            num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4,
            moe_intermediate_size = 9, num_experts = 6, num_experts_per_tok = 2,
            max_position_embeddings = 128 }, { seed = 5 }))
         words = words:gsub('%-%-from %S+', '') .. '--from ' .. dir .. '/moe '
         local first = words .. '--lora.rank 2 --lr 3e-2 --steps 4 --save-every 2 '
         ok(1, ('%s--out %s/one'):format(first, dir))
         local one, want = losses(dir .. '/one'), tide.model.load(dir .. '/one')
         assert.is_true(one[4] < one[1])
         local read = tide.model.load_adapter(tide.model.load(dir .. '/moe'), dir .. '/one/adapter')
         assert.is_true(off(read, want) < 1e-5)
         ok(4, ('%s--mesh.dp_shard 2 --mesh.tp 2 --sequence-parallel --recompute full --out %s/two')
            :format(first, dir))
         same_losses(one, losses(dir .. '/two'))
         ok(2, ('--resume-from %s/one/step-00000002 --out %s/on --mesh.tp 2'):format(dir, dir))
         local list = losses(dir .. '/on')
         same_losses({ one[3], one[4] }, { list[#list - 1], list[#list] })
         ok(1, ('%s--adapter %s/two/adapter --lr 1e-3 --steps 1 --out %s/more'):format(words, dir,
            dir))
         assert.is_true(losses(dir .. '/more')[1] < one[2])
      end)
   end)

   it('with trained norms lose the same on every mesh, also where a folder is read', function()
      case.with_data(function(dir, words)
         local first = words .. '--lora.rank 4 --lora.dora --lr 3e-2 --steps 4 '
         ok(1, first .. '--out ' .. dir .. '/one')
         for i, mesh in ipairs { meshes[2], meshes[3] } do
            ok(mesh[1], ('%s%s --out %s/run%d'):format(first, mesh[2], dir, i))
            same_losses(losses(dir .. '/one'), losses(dir .. '/run' .. i))
         end
         words = ('%s--adapter %s/one/adapter --lr 3e-2 --steps 2 '):format(words, dir)
         ok(1, words .. '--out ' .. dir .. '/more')
         ok(2, ('%s--mesh.dp_shard 2 --out %s/more2'):format(words, dir))
         same_losses(losses(dir .. '/more'), losses(dir .. '/more2'))
      end)
   end)

   it('of experts that PEFT cannot read are merged, and the run says the other way',
      function()
      case.with_data(function(dir, words)
         case.save(dir .. '/g', tide.model.gpt_oss({ vocab_size = 258, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 4,
            intermediate_size = 6, num_local_experts = 1, num_experts_per_tok = 1 }, { seed = 3 }))
         words = ('%s--from %s/g --lora.rank 2 --steps 1 --out %s/run'):format(words, dir, dir)
         assert.matches('the adapters are merged into the weights; for a folder of adapters, train '
            .. "layers of attention alone (targets = 'self_attn.*')",
            ok(1, words), 1, true)
         assert.is_true(fs.is_dir(dir .. '/run/model'))
         ok(1, words .. " --overwrite --lora.targets 'self_attn.*'")
         assert.is_true(fs.is_dir(dir .. '/run/adapter'))
      end)
   end)

   it('of GPT-2, which have no names in a folder for PEFT, are merged into one', function()
      case.with_data(function(dir, words)
         case.save(dir .. '/g', tide.model.gpt2({ vocab_size = 258, n_positions = 96, n_embd = 8,
            n_layer = 1, n_head = 2 }, { seed = 3 }))
         local out = ok(1, ('%s--from %s/g --lora.rank 2 --steps 2 --lr 0.1 --out %s/run'):format(
            words, dir, dir))
         assert.matches('have no name there; the adapters are merged into the weights', out, 1,
            true)
         local base, run = tide.model.load(dir .. '/g'), tide.model.load(dir .. '/run')
         assert.is_true(off(base, run) > 1e-4)
         assert.is_true(off(tide.model.load(dir .. '/run/model'), run) < 1e-5)
      end)
   end)

   it('go on bit for bit, and from a folder of adapters', function()
      case.with_data(function(dir, words)
         local base = words .. '--lr 3e-2 '
         words = base .. '--lora.targets "q_proj|v_proj" --lora.dropout 0.1 '
         ok(1, words .. '--lora.rank 4 --steps 6 --save-every 3 --out ' .. dir .. '/a')
         ok(1, ('--resume-from %s/a/step-00000003 --out %s/b'):format(dir, dir))
         for _, name in ipairs { 'step-00000006/model', 'step-00000006/optim',
                                 'adapter/adapter_model' } do
            local a = fs.read('spec', ('%s/a/%s.safetensors'):format(dir, name))
            assert.is_true(a == fs.read('spec', ('%s/b/%s.safetensors'):format(dir, name)))
         end
         local last = losses(dir .. '/a')
         bad(('--resume --out %s/a --lora.alpha 2'):format(dir),
            '--lora.alpha 2: the run was begun with none, and a resumed run keeps this '
            .. 'value; leave the option out')
         bad(('--resume --out %s/a --lora.dropout 0'):format(dir), 'the run was begun with 0.1')
         bad(('%s--adapter %s/a/adapter --steps 2 --out %s/c'):format(words, dir, dir),
            ('--lora.targets is only for new adapters, and --adapter %s/a/adapter already has')
            :format(dir))
         ok(2, ('%s--mesh.dp_shard 2 --adapter %s/a/adapter --steps 2 --out %s/c'):format(base, dir,
            dir))
         assert.is_true(losses(dir .. '/c')[1] < last[1])
         ok(1, ('%s--from %s/a --steps 1 --out %s/d'):format(base, dir, dir))
         assert.equal(fs.absolute(dir .. '/m'), fs.read_json('spec',
            dir .. '/d/adapter/adapter_config.json').base_model_name_or_path)
         bad(('%s--from %s/a --lora.alpha 2 --out %s/e'):format(base, dir, dir),
            '--lora.alpha is only for new adapters, and --from ' .. dir .. '/a already has')
         bad(('%s--from %s/a --lora.rank 2 --steps 1 --out %s/e'):format(words, dir, dir),
            'already has adapters, which this run trains further; leave out --lora.rank')
      end)
   end)

   it('are refused where they do not fit', function()
      case.with_data(function(dir, words)
         words = words .. '--steps 2 --out ' .. dir .. '/run '
         bad(words .. '--lora.rank 4 --lora.targets q_prj',
            "matches no layer; did you mean 'q_proj'?")
         bad(words .. '--lora.rank 99', "rank: 99 is larger than 'model.layers.0.self_attn.q_proj'")
         bad(words .. '--lora.targets q_proj',
            '--lora.targets needs adapters, but --lora.rank is 0, which trains all weights; give')
         bad(words .. '--lora.dora', '--lora.dora needs adapters, but --lora.rank is 0')
         bad(words .. '--adapter ' .. dir .. '/m', 'has no adapter_config.json')
         local model = tide.model.llama({ vocab_size = 258, hidden_size = 16,
            num_hidden_layers = 3, num_attention_heads = 2, intermediate_size = 8 })
         tide.nn.lora.attach(model, { rank = 2 })
         tide.model.save_adapter(model, dir .. '/other', { base = 'another' })
         bad(words .. '--adapter ' .. dir .. '/other', 'is of another base model (another)')
         bad(words .. '--from ' .. dir .. '/other', '/other holds adapters of another model '
            .. '(another); load that one, then these with')
      end)
   end)
end)
