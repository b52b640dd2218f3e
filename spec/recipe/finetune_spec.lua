-- recipes/finetune.lua: equal losses on every mesh, packed rows of chats, best checkpoint and early
-- stop, exact resumption, folders that are read again, and what newcomers get wrong.

local tide = require 'tide'
local case = require 'spec.recipe.finetune_case'
local fs = require 'tide.util.fs'
local write = require('spec.support.files').write

local ok, bad, losses, same_losses = case.ok, case.bad, case.losses, case.same_losses
local with_data = case.with_data

local meshes = {
   { 2, '--mesh.dp 2' }, { 4, '--mesh.dp_shard 2 --mesh.cp 2' },
   { 2, '--mesh.tp 2 --sequence-parallel' },
   { 2, '--mesh.dp_shard 2 --recompute full --offload --accum 2' },
}

describe('recipes/finetune.lua', function()
   it('loses on every mesh what one rank loses, and writes folders that are read again', function()
      with_data(function(dir, words)
         words = words .. '--steps 6 '
         local out = ok(1, words .. '--out ' .. dir .. '/one')
         assert.matches('80 records, 4 of them held out: %d+ tokens, %d+ of them trained on', out)
         local one = losses(dir .. '/one')
         assert.equal(6, #one)
         for i, mesh in ipairs(meshes) do
            local to = dir .. '/run' .. i
            ok(mesh[1], words .. mesh[2] .. ' --out ' .. to)
            same_losses(one, losses(to))
            local a, b = tide.model.load(dir .. '/one/model'), tide.model.load(to .. '/model')
            local ids = tide.tensor({ { 5, 6, 7, 8 } }, { dtype = 'i64' })
            assert.is_true((a(ids) - b(ids)):abs():amax():item() < 1e-5)
         end
         assert.is_true(fs.exists(dir .. '/one/model/chat_template.jinja'))
         ok(1, words .. ('--from %s/one --out %s/on'):format(dir, dir))
      end)
   end)

   it('evaluates on --val-data as on the records that it would hold out', function()
      with_data(function(dir, words, rest)
         local function val(text) return text:match 'validation loss (%d%.%d+)' end
         local share = ok(1, words .. '--steps 2 --out ' .. dir .. '/share')
         local lines = {}
         for line in fs.read('spec', dir .. '/c.jsonl'):gmatch '[^\n]+\n' do
            lines[#lines + 1] = line
         end
         write(dir .. '/train.jsonl', table.concat(lines, '', 1, 76))
         write(dir .. '/val.jsonl', table.concat(lines, '', 77) .. '{"messages": 5}\n')
         rest = ('%s --steps 2 --data %s/train.jsonl --val-data %s/val.jsonl '):format(rest, dir,
            dir)
         bad(rest .. '--out ' .. dir .. '/bad', 'val.jsonl, line 5')
         local own = ok(1, rest .. '--skip-bad --out ' .. dir .. '/own')
         assert.matches('76 records, and 4 of --val-data: ', own, 1, true)
         assert.matches('; 1 broken left out: ', own, 1, true)
         assert.equal(val(share), val(own))
      end)
   end)

   it('loses on shards what one rank loses in bf16: both begin from the weights of the file',
      function()
         with_data(function(dir, words)
            case.save(dir .. '/w', tide.model.llama({ vocab_size = 258, hidden_size = 32,
               num_hidden_layers = 2, num_attention_heads = 4, intermediate_size = 48,
               max_position_embeddings = 128, initializer_range = 0.1 }, { seed = 5 }))
            words = ('%s--from %s/w --steps 6 --val-every 0 --dtype bf16 '):format(words, dir)
            ok(1, words .. '--out ' .. dir .. '/one')
            ok(2, words .. '--mesh.dp_shard 2 --out ' .. dir .. '/two')
            local one, two, sum = losses(dir .. '/one'), losses(dir .. '/two'), 0
            for i = 1, 6 do sum = sum + math.abs(one[i] - two[i]) / one[i] end
            assert.is_true(sum / 6 < 1e-4, sum / 6)
         end)
      end)

   it('packs as it is asked to, and counts micro-batches by tokens', function()
      with_data(function(dir, words)
         ok(1, words .. '--steps 4 --out ' .. dir .. '/a')
         ok(1, words .. '--steps 4 --accum 4 --out ' .. dir .. '/b')
         same_losses(losses(dir .. '/a'), losses(dir .. '/b'))
         local best = ok(1, words .. '--epochs 1 --out ' .. dir .. '/c')
         local alone = ok(1, words .. '--epochs 1 --pack none --out ' .. dir .. '/d')
         local function steps(text) return tonumber(text:match 'step %d+/(%d+)') end
         assert.is_true(steps(alone) > steps(best))
         bad(words .. '--long refuse --seq 32 --out ' .. dir .. '/e',
            'are longer than seq (32 tokens), the longest')
         ok(1, words .. '--long cut --seq 48 --steps 2 --out ' .. dir .. '/e')
      end)
   end)

   it('keeps the best checkpoint, ends when nothing gets better, resumes bit for bit', function()
      with_data(function(dir, words)
         local out = ok(1, words .. '--steps 40 --lr 3 --val-every 1 --patience 2 --keep 1 --out '
            .. dir .. '/stop')
         local at, best = out:match 'ended at step (%d+): 2 evaluations since step (%d+) were not'
         assert.equal(tonumber(best) + 2, tonumber(at))
         assert.matches(('step-%08d is written as'):format(best), out, 1, true)
         assert.is_true(fs.exists(('%s/stop/step-%08d/manifest.json'):format(dir, at)))
         out = ok(1, '--resume --out ' .. dir .. '/stop')
         assert.matches('ended at step ' .. at, out, 1, true)

         words = words .. '--keep-best --keep 9 '
         ok(1, words .. '--steps 8 --save-every 5 --out ' .. dir .. '/a')
         ok(1, ('--resume-from %s/a/step-00000005 --out %s/b'):format(dir, dir))
         for _, name in ipairs { 'model', 'optim' } do
            name = ('/step-00000008/%s.safetensors'):format(name)
            local a = fs.read('spec', dir .. '/a' .. name)
            assert.is_true(a == fs.read('spec', dir .. '/b' .. name))
         end
      end)
   end)

   it('replaces an exported folder when it is asked to, or has written it', function()
      with_data(function(dir, words)
         local taken = ('--export %s/m '):format(dir)
         bad(words .. '--steps 2 --out ' .. dir .. '/a ' .. taken, '/m exists already; choose '
            .. 'another folder, or give --overwrite to replace it')
         assert.is_false(fs.exists(dir .. '/a'))
         local export = ('--schedule constant --export %s/e '):format(dir)
         ok(1, words .. '--steps 2 --out ' .. dir .. '/a ' .. export)
         local function weights() return fs.read('spec', dir .. '/e/model.safetensors') end
         local first = weights()
         ok(1, '--resume --steps 4 --out ' .. dir .. '/a')
         assert.is_false(first == weights())
         bad(('--resume-from %s/a/step-00000002 --out %s/b'):format(dir, dir),
            '/e exists already')
         bad(('--resume --out %s/a --from %s/e'):format(dir, dir), 'the run was begun with ' .. dir)
         ok(1, words .. '--steps 2 --overwrite --out ' .. dir .. '/a ' .. export)
         assert.is_true(first == weights())
      end)
   end)

   it('with --overwrite removes the model of the run before, unless it reads it', function()
      with_data(function(dir, words)
         local model = dir .. '/a/model/config.json'
         words = words .. '--steps 1 --out ' .. dir .. '/a '
         ok(1, words)
         ok(1, words .. ('--overwrite --from %s/a/model --export %s/e'):format(dir, dir))
         assert.is_true(fs.exists(model))
         write(dir .. '/a/model/own.jsonl', fs.read('spec', dir .. '/c.jsonl'))
         ok(1, words .. ('--overwrite --val-data %s/a/model/own.jsonl --export %s/e2'):format(dir,
            dir))
         assert.is_true(fs.exists(model))
         -- adapters at --from whose base it is: the adapters of this run name it, too
         ok(1, words:gsub('%-%-out.*', '') .. ('--from %s/a/model --lora.rank 2 --out %s/b'):format(
            dir, dir))
         ok(1, words .. ('--overwrite --from %s/b'):format(dir))
         assert.equal(dir .. '/a/model', fs.read_json('spec',
            dir .. '/a/adapter/adapter_config.json').base_model_name_or_path)
         assert.is_true(fs.exists(model))
         fs.io().mkdir(dir .. '/a/model/mine')
         bad(words .. '--overwrite', 'model, which holds the folder mine; move that elsewhere, or '
            .. 'choose another --out')
         assert.is_true(fs.exists(model))
         os.remove(dir .. '/a/model/mine')
         ok(1, words .. ('--overwrite --export %s/f'):format(dir))
         assert.is_false(fs.exists(model))
         -- a folder without a run: its model is the user's
         fs.io().rename(dir .. '/f', dir .. '/g')
         fs.io().rename(dir .. '/a', dir .. '/old')
         fs.io().mkdir(dir .. '/a')
         fs.io().rename(dir .. '/g', dir .. '/a/model')
         ok(1, words .. ('--overwrite --export %s/h'):format(dir))
         assert.is_true(fs.exists(model))
      end)
   end)

   it('refuses what newcomers get wrong, with what to do', function()
      with_data(function(dir, words, without_data)
         local run = '--steps 2 --out ' .. dir .. '/run '
         words = words .. run
         local function data(text)
            write(dir .. '/x.jsonl', text)
            return ('%s%s--data %s/x.jsonl'):format(without_data, run, dir)
         end
         bad('--data x', '--from is needed')
         bad('--from ' .. dir .. '/m', '--data is needed')
         bad(words .. '--from ' .. dir, 'LATEST')
         bad(data '{"messages": []}\n', 'x.jsonl, line 1: messages: expected at least one entry')
         bad(data '{"messages": [{"role": "user", "content": "a"}]}\n',
            "no token of the record counts as a label: its roles are 'user', and those that count "
            .. "are 'assistant' (train_on, --train-on)")
         bad(data('{"messages": [{"role": "user", "content": "a"}, {"role": "banana", '
            .. '"content": "b"}]}\n'), "its roles are 'user', 'banana'")
         bad(words .. '--chat-template "{% for m in messages %}"', 'give a file that holds the '
            .. 'template')
         bad(data('{"messages": [{"role": "user", "content": "a"}, {"role": "asistant", '
            .. '"content": "b"}]}\n'), "messages[2].role: expected a role such as 'assistant'")
         bad(data '{"messages": [{"role": "user"}]}\n', 'messages[1].content: expected a text')
         bad(data '', 'has no record that can be used')
         bad(data '{"prompt": "a", "chosen": "b", "rejected": "c"}\n', 'the record is a pair of a '
            .. 'chosen and a rejected answer; train on such pairs with recipes/dpo.lua')
         bad(words .. '--keep-best --val-share 0', '--keep-best needs a validation loss')
         bad(words .. '--patience 2 --val-share 0', '--patience needs a validation loss')
         bad(('%s --data %s/c.jsonl --steps 2 --out %s/m'):format(without_data, dir, dir),
            'holds a published model, which a run would be mixed with')
         write(dir .. '/b.json', '{"lora": {"rnk": 2}}')
         bad(words .. '--config ' .. dir .. '/b.json', ("unknown option 'lora.rnk' in %s/b.json; "
            .. "did you mean '--lora.rank'?"):format(dir))
         bad(words .. '--batch 3 --accum 2', '--batch (3) must be a multiple')
         tide.model.save(tide.model.llama({ vocab_size = 40, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 8 }, { seed = 1 }),
            dir .. '/small')
         bad(words .. '--from ' .. dir .. '/small', 'give --tokenizer')
      end)
   end)

   it('compares the longest text with the positions of the model', function()
      with_data(function(dir, words)
         case.save(dir .. '/g', tide.model.gpt2({ vocab_size = 258, n_positions = 64, n_embd = 8,
            n_layer = 1, n_head = 2 }, { seed = 1 }))
         words = words .. '--steps 1 --out ' .. dir .. '/run '
         bad(('%s--from %s/g'):format(words, dir), '--seq 96: texts have up to 96 tokens, and the '
            .. 'model has 64 positions (max_position_embeddings); give --seq 64')
         assert.is_nil(ok(1, words):find('positions', 1, true))
         case.save(dir .. '/p', tide.model.llama({ vocab_size = 258, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, max_position_embeddings = 64 },
            { seed = 1 }))
         assert.matches('--seq 96: texts have up to 96 tokens, and the model has 64 positions '
            .. '%(max_position_embeddings%); it was not trained on longer ones',
            ok(1, ('%s--from %s/p --overwrite'):format(words, dir)))
      end)
   end)

   it('takes the tokenizer of the model along, and refuses one that does not fit', function()
      with_data(function(dir, words)
         local function folder(name, n)
            case.save(dir .. name, tide.model.llama({ vocab_size = n, hidden_size = 16,
               num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 16 },
               { seed = 1 }))
            local value = tide.json.decode(fs.read('spec', 'spec/golden/tokenizer/gpt2.json'))
            write(dir .. name .. '/tokenizer.json', tide.json.encode(value.tokenizer))
            return dir .. name
         end
         local words_of = words .. '--steps 2 --from ' .. folder('/t', 420)
         ok(1, words_of .. ' --save-every 1 --out ' .. dir .. '/a')
         ok(1, ('--resume-from %s/a/step-00000001 --out %s/b'):format(dir, dir))
         for _, run in ipairs { '/a', '/b' } do
            assert.equal(420, tide.tokenizer.load(dir .. run .. '/model').vocab_size)
            assert.is_true(fs.exists(dir .. run .. '/model/chat_template.jinja'))
         end
         bad(words .. '--steps 2 --from ' .. folder('/u', 400) .. ' --out ' .. dir .. '/c',
            'the tokenizer has 420 ids and the model a vocabulary of 400')
      end)
   end)

   it('goes on as if nothing was, when a rank was killed', function()
      with_data(function(dir, words)
         case.survives(dir, 2, 'finetune.lua ' .. words .. '--mesh.dp_shard 2 --lora.rank 2')
      end)
   end)
end)
