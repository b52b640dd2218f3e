-- recipes/finetune.lua with a base in NF4: equal losses on every mesh, exact resumption, the
-- adapters and the merged model that are written, and what is refused.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local fs = require 'tide.util.fs'
local wide = require 'spec.support.wide'

local ok, bad, losses, same_losses = case.ok, case.bad, case.losses, case.same_losses
local ids = tide.tensor({ { 5, 6, 7, 8 } }, { dtype = 'i64' })

-- The largest difference of two models' logits.
local function off(a, b) return (a(ids) - b(ids)):abs():amax():item() end

describe('a base in NF4 in recipes/finetune.lua', function()
   it('loses on every mesh what it loses on one rank, and its adapters are read', function()
      case.with_data(function(dir, words)
         words = words .. '--lora.rank 4 --lora.quantise nf4 --lr 3e-2 --steps 4 '
         ok(1, ('%s--out %s/one --export %s/merged'):format(words, dir, dir))
         local one = losses(dir .. '/one')
         assert.is_true(one[4] < one[1])
         local base = tide.model.load(dir .. '/m', { quantise = 'nf4' })
         local a = tide.model.load_adapter(base, dir .. '/one/adapter')
         assert.is_true(off(a, tide.model.load(dir .. '/merged')) < 1e-5)
         assert.is_true(off(a, tide.model.load(dir .. '/one')) == 0)
         assert.is_true(off(a, tide.model.load_adapter(tide.model.load(dir .. '/m'),
            dir .. '/one/adapter')) > 1e-4)                 -- the base was rounded
         for i, mesh in ipairs { { 2, '--mesh.cp 2' }, { 2, '--mesh.dp_shard 2 --recompute full' },
                                 { 4, '--mesh.dp_shard 2 --mesh.tp 2 --sequence-parallel '
                                    .. '--recompute full' }, wide and { 2, '--mesh.dp 2' } or nil,
                                 wide and { 2, '--mesh.tp 2' } or nil } do
            ok(mesh[1], ('%s%s --out %s/run%d'):format(words, mesh[2], dir, i))
            same_losses(one, losses(dir .. '/run' .. i))
            local b = tide.model.load_adapter(tide.model.load(dir .. '/m', { quantise = 'nf4' }),
               ('%s/run%d/adapter'):format(dir, i))
            assert.is_true(off(a, b) < 1e-4)
         end
      end)
   end)

   it('loses the same with trained norms (DoRA) on every mesh', function()
      case.with_data(function(dir, words)
         words = words .. '--lora.rank 4 --lora.dora --lora.quantise nf4 --lr 3e-2 --steps 4 '
         ok(1, ('%s--out %s/one --export %s/merged'):format(words, dir, dir))
         local one, want = losses(dir .. '/one'), tide.model.load(dir .. '/one')
         assert.is_true(off(want, tide.model.load(dir .. '/merged')) < 1e-5)
         for i, mesh in ipairs { { 2, '--mesh.dp_shard 2' },
                                 { 2, '--mesh.tp 2 --sequence-parallel' },
                                 wide and { 2, '--mesh.tp 2' } or nil } do
            ok(mesh[1], ('%s%s --out %s/run%d --export %s/merged%d'):format(words, mesh[2], dir, i,
               dir, i))
            same_losses(one, losses(dir .. '/run' .. i))
            assert.is_true(off(want, tide.model.load(dir .. '/merged' .. i)) < 1e-4)
            local b = tide.model.load_adapter(tide.model.load(dir .. '/m', { quantise = 'nf4' }),
               ('%s/run%d/adapter'):format(dir, i))
            assert.is_true(off(want, b) < 1e-4)
         end
         words = ('%s--adapter %s/one/adapter '):format(words:gsub('%-%-lora%.%l+ 4 ', '')
            :gsub('%-%-lora.dora ', ''), dir)
         ok(1, ('%s--out %s/on'):format(words, dir))
         assert.is_true(losses(dir .. '/on')[1] < one[2])
         ok(2, ('%s--mesh.tp 2 --out %s/tp'):format(words, dir))
         ok(2, ('%s--mesh.dp_shard 2 --out %s/shard'):format(words, dir))
         same_losses(losses(dir .. '/on'), losses(dir .. '/tp'))
         same_losses(losses(dir .. '/on'), losses(dir .. '/shard'))
      end)
   end)

   it('goes on bit for bit, whole, sharded and cut', function()
      case.with_data(function(dir, words)
         words = words .. '--lora.rank 4 --lora.quantise nf4 --lr 3e-2 --steps 4 --save-every 2 '
         for i, row in ipairs { { 1, '' }, { 2, '--mesh.dp_shard 2 ' },
                                { 2, '--mesh.tp 2 --sequence-parallel ' } } do
            local n, mesh, to = row[1], row[2], dir .. '/r' .. i
            ok(n, ('%s%s--out %s'):format(words, mesh, to))
            ok(n, ('--resume-from %s/step-00000002 --out %s-again'):format(to, to))
            local name = '/adapter/adapter_model.safetensors'
            assert.is_true(fs.read('spec', to .. name) == fs.read('spec', to .. '-again' .. name))
         end
      end)
   end)

   it('goes on over other ranks, and from its adapters', function()
      case.with_data(function(dir, words)
         words = words .. '--lora.quantise nf4 --lr 3e-2 --steps 4 --save-every 2 '
         ok(1, words .. '--lora.rank 4 --out ' .. dir .. '/one')
         ok(2, words .. '--lora.rank 4 --mesh.tp 2 --out ' .. dir .. '/two')
         local one = losses(dir .. '/one')
         local function goes_on(n, from, mesh, to)
            ok(n, ('--resume-from %s/%s/step-00000002 --out %s/%s %s'):format(dir, from, dir, to,
               mesh))
            local list = losses(('%s/%s'):format(dir, to))
            same_losses({ one[3], one[4] }, { list[#list - 1], list[#list] })
         end
         goes_on(1, 'two', '--mesh.tp 1', 'three')
         goes_on(2, 'one', '--mesh.tp 2 --sequence-parallel', 'four')
         goes_on(2, 'two', '--mesh.tp 1 --mesh.dp_shard 2', 'five')
         -- the codes of a checkpoint do not depend on the ranks that wrote it
         for _, name in ipairs { 'two', 'five' } do
            tide.model.export(dir .. '/' .. name, ('%s/%s-merged'):format(dir, name))
            assert.is_true(off(tide.model.load(('%s/%s-merged'):format(dir, name)),
               tide.model.load(dir .. '/one')) < 1e-4)
         end
         words = ('%s--adapter %s/two/adapter '):format(words, dir)
         ok(1, ('%s--out %s/six'):format(words, dir))
         ok(2, ('%s--mesh.tp 2 --out %s/seven'):format(words, dir))
         same_losses(losses(dir .. '/six'), losses(dir .. '/seven'))
         assert.is_true(losses(dir .. '/six')[1] < one[2])
      end)
   end)

   it('of a mixture of experts loses on every mesh what it loses on one rank', function()
      case.with_data(function(dir, words)
         case.save(dir .. '/moe', tide.model.qwen3_moe({ vocab_size = 258, hidden_size = 16,
            num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 4,
            moe_intermediate_size = 24, num_experts = 6, num_experts_per_tok = 2,
            max_position_embeddings = 128 }, { seed = 5 }))
         words = ('%s--from %s/moe --lora.rank 4 --lora.quantise nf4 --lr 3e-2 --steps 4 ')
            :format(words:gsub('%-%-from %S+', ''), dir)
         local text = ok(1, ('%s--out %s/one --save-every 2'):format(words, dir))
         assert.matches('%d+ in NF4', text)
         local one, want = losses(dir .. '/one'), tide.model.load(dir .. '/one')
         assert.is_true(one[4] < one[1])
         assert.is_true(#want:get('model.layers.0.mlp').gate_proj_nf4.shape == 2)
         tide.model.export(dir .. '/one', dir .. '/merged')
         assert.is_true(off(want, tide.model.load(dir .. '/merged')) < 1e-5)
         for i, mesh in ipairs { { 2, '--mesh.dp_shard 2 --recompute full' },
                                 { 2, '--mesh.tp 2 --sequence-parallel' } } do
            ok(mesh[1], ('%s%s --out %s/run%d'):format(words, mesh[2], dir, i))
            same_losses(one, losses(dir .. '/run' .. i))
         end
         ok(2, ('--resume-from %s/one/step-00000002 --out %s/on --mesh.tp 2'):format(dir, dir))
         local list = losses(dir .. '/on')
         same_losses({ one[3], one[4] }, { list[#list - 1], list[#list] })
      end)
   end)

   it('is refused where it cannot be', function()
      case.with_data(function(dir, words)
         words = words .. '--steps 2 --out ' .. dir .. '/run --lora.quantise nf4 '
         bad(words, 'weights in NF4 cannot be trained')
         bad(words .. '--lora.rank 4 --fp8', 'multiplies in FP8; leave out fp8')
         case.save(dir .. '/odd', tide.model.llama { vocab_size = 258, hidden_size = 16,
            num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
            intermediate_size = 22, max_position_embeddings = 128 })
         bad(('%s--lora.rank 4 --from %s/odd --mesh.tp 2 --plan'):format(words, dir),
            "'model.layers.0.mlp.down_proj': a weight [16, 22] in NF4")
         bad(words:gsub('nf4', 'fp4') .. '--lora.rank 4', 'one of nf4')
      end)
   end)
end)
