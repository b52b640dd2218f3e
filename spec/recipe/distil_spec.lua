-- recipes/distil.lua: equal losses on every mesh, with and without adapters, exact resumption, and
-- mistakes.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local fs = require 'tide.util.fs'
local wide = require 'spec.support.wide'

local ok, bad = case.runs 'distil.lua'
local losses, same_losses = case.losses, case.same_losses

local function decoder(vocab, width)
   return tide.model.llama({ vocab_size = vocab, hidden_size = width, num_hidden_layers = 3,
      num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 40,
      max_position_embeddings = 128, initializer_range = 0.2 }, { seed = 9 })
end

-- Calls fn(dir, words) with a student in dir/m, a wider teacher in dir/t and chats in dir/c.jsonl.
local function with_data(fn)
   case.with_data(function(dir, words)
      case.save(dir .. '/t', decoder(258, 32))
      fn(dir, ('%s--teacher %s/t --alpha 0.7 --temperature 2 '):format(words, dir))
   end)
end

local meshes = {
   { 4, '--mesh.dp_shard 2 --mesh.cp 2' }, { 2, '--mesh.tp 2 --sequence-parallel' },
   wide and { 2, '--mesh.dp 2' } or nil,
   wide and { 2, '--mesh.dp_shard 2 --recompute full --offload --accum 2' } or nil,
}

describe('recipes/distil.lua', function()
   it('loses on every mesh what one rank loses, and comes nearer to its teacher', function()
      with_data(function(dir, words)
         words = words .. '--steps 6 --val-windows 3 --keep-best '
         local out = ok(1, words .. '--out ' .. dir .. '/one')
         assert.matches('the teacher %(%S+/t%) has %d+ parameters', out)
         assert.matches('| ce %d[%d.]+ | kl 0[%d.]+ |', out)
         local one = losses(dir .. '/one')
         assert.is_true(#one == 6 and one[6] < one[1] - 0.05)
         for i, mesh in ipairs(meshes) do
            local to = dir .. '/run' .. i
            ok(mesh[1], words .. mesh[2] .. ' --out ' .. to)
            same_losses(one, losses(to))
         end
         assert.matches('the teacher needs up to [%d.]+ KiB more on a rank, with its weights over '
            .. '2 ranks\n', ok(1, words .. '--mesh.dp_shard 2 --plan'))
         local a, b = tide.model.load(dir .. '/one/model'), tide.model.load(dir .. '/run2/model')
         local ids = tide.tensor({ { 5, 6, 7, 8 } }, { dtype = 'i64' })
         assert.is_true((a(ids) - b(ids)):abs():amax():item() < 1e-5)
      end)
   end)

   it('from a teacher whose experts stay on their ranks', function()
      with_data(function(dir, words)
         words = words:gsub('/t ', '/e ') .. '--steps 2 '
         case.save(dir .. '/e', tide.model.qwen3_moe({ vocab_size = 258, hidden_size = 16,
            num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1, head_dim = 8,
            moe_intermediate_size = 8, num_experts = 3, num_experts_per_tok = 2,
            max_position_embeddings = 128, initializer_range = 0.2 }, { seed = 9 }))
         ok(1, words .. '--out ' .. dir .. '/one')
         ok(2, words .. '--mesh.dp 2 --teacher-ep 2 --out ' .. dir .. '/two')
         same_losses(losses(dir .. '/one'), losses(dir .. '/two'))
         bad(words .. '--teacher-ep 2 --out ' .. dir .. '/no', 'must divide the ranks of the run')
      end)
   end)

   it('the other way and with adapters, too', function()
      with_data(function(dir, words)
         words = words .. '--steps 4 --lora.rank 4 --lr 3e-2 --kl reverse --alpha 1 '
         ok(1, words .. '--out ' .. dir .. '/one')
         ok(4, words .. '--mesh.tp 2 --mesh.cp 2 --out ' .. dir .. '/four')
         same_losses(losses(dir .. '/one'), losses(dir .. '/four'))
         assert.is_true(fs.exists(dir .. '/four/adapter/adapter_config.json'))
      end)
   end)

   it('with the most likely ids of the teacher, on every mesh and from a file', function()
      with_data(function(dir, words)
         local top = words .. '--steps 4 --teacher-top-k 8 '
         local file = ('--teacher-cache %s/new/place/top.safetensors '):format(dir)
         bad(('%s--teacher-cache %s/c.jsonl/top --out %s/no'):format(top, dir, dir), 'c.jsonl')
         ok(1, top .. file .. '--out ' .. dir .. '/one')
         local one = losses(dir .. '/one')
         for i, mesh in ipairs { meshes[1], wide and meshes[2] or nil } do
            ok(mesh[1], ('%s%s --out %s/run%d'):format(top, mesh[2], dir, i))
            same_losses(one, losses(dir .. '/run' .. i))
         end
         local out = ok(2, ('%s%s--mesh.dp 2 --teacher %s/none --out %s/two'):format(top, file, dir,
            dir))
         assert.matches('top.safetensors has the 8 most likely ids', out)
         assert.matches('none does not exist, so tide cannot check', out, 1, true)
         same_losses(one, losses(dir .. '/two'))
         ok(1, words .. '--steps 4 --out ' .. dir .. '/all')
         ok(1, words .. '--steps 4 --teacher-top-k 258 --out ' .. dir .. '/every')
         same_losses(losses(dir .. '/all'), losses(dir .. '/every'))

         local other = decoder(258, 32)
         local w = other:named_parameters()[1].param
         tide.no_grad(function() w:narrow(1, 200, 1):add_(1e-3) end)
         case.save(dir .. '/u', other)
         bad(('%s%s--teacher %s/u --out %s/no'):format(top, file, dir, dir), 'with teacher = ')
         os.execute(('cp -r %s/t %s/copy'):format(dir, dir))
         ok(1, ('%s%s--teacher %s/copy --out %s/copied'):format(top, file, dir, dir))
         bad(top .. file .. '--teacher-top-k 9 --out ' .. dir .. '/no', 'was written with k = 8')
         bad(top .. file .. '--seq 80 --out ' .. dir .. '/no', 'was written with seq = 96')
         bad(('%s--teacher-cache %s/c.jsonl --out %s/no'):format(top, dir, dir), 'c.jsonl')
         bad(top .. '--kl reverse --out ' .. dir .. '/no', 'leave out --teacher-top-k')
         bad(words .. file .. '--out ' .. dir .. '/no', 'needs --teacher-top-k')
         bad(top .. '--teacher-top-k 259 --out ' .. dir .. '/no', 'at most the 258 ids')
      end)
   end)

   it('resumes bit for bit', function()
      with_data(function(dir, words)
         ok(1, words .. '--steps 6 --save-every 3 --out ' .. dir .. '/a')
         ok(1, ('--resume-from %s/a/step-00000003 --out %s/b'):format(dir, dir))
         for _, name in ipairs { 'model', 'optim' } do
            name = ('/step-00000006/%s.safetensors'):format(name)
            local a = fs.read('spec', dir .. '/a' .. name)
            assert.is_true(a == fs.read('spec', dir .. '/b' .. name))
         end
      end)
   end)

   it('goes on as if nothing was, when the last rank was killed', function() -- the first: dpo
      with_data(function(dir, words)
         case.survives(dir, 2, ('distil.lua %s--mesh.dp 2 --teacher-top-k 8 --teacher-cache '
            .. '%s/top.safetensors'):format(words, dir), 'last')
      end)
   end)

   it('refuses what newcomers get wrong, with what to do', function()
      with_data(function(dir, words)
         words = words .. '--steps 2 --out ' .. dir .. '/run '
         case.save(dir .. '/other', decoder(300, 16))
         bad(words .. '--teacher ' .. dir .. '/other', 'has a vocabulary of 300 and the student of')
         bad((words:gsub('%-%-teacher %S+', '')), '--teacher is needed')
         bad(words .. '--teacher ' .. dir, 'LATEST')
      end)
   end)
end)
