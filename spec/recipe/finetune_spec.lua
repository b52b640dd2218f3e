-- recipes/finetune.lua: equal losses on every mesh, packed rows of chats, best checkpoint and early
-- stop, exact resumption, folders that are read again, and what newcomers get wrong.

local tide = require 'tide'
local fs = require 'tide.util.fs'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local function ok(n, words)
   local out, status = recipe.ranks(n, words)
   assert.equal(0, status, out)
   return out
end

local function bad(words, text)
   local out, status = recipe.ranks(1, words)
   assert.is_true(status == 1 or status == 2, status .. ': ' .. out)
   assert.is_nil(out:find('stack traceback', 1, true), out)
   assert.matches(text, out, 1, true)
end

local template = '{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}'
   .. '{% if add_generation_prompt %}<assistant>{% endif %}'

local function chats(n)
   local list = {}
   for i = 1, n do
      list[i] = ('{"messages": [{"role": "user", "content": "say %d%s"}, {"role": "assistant", '
         .. '"content": "%s"}]}\n'):format(i % 9, ('x'):rep(i % 37),
         ('yes %d '):format(i % 9):rep(1 + i % 11))
   end
   return table.concat(list)
end

local config = { vocab_size = 258, hidden_size = 16, num_hidden_layers = 2,
   num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 24,
   max_position_embeddings = 128 }

-- Calls fn(dir, the words of a run) with a model in dir/m and chats in dir/c.jsonl.
local function with_data(fn)
   tmp.with(function(dir)
      tide.model.save(tide.model.llama(config, { seed = 5 }), dir .. '/m')
      write(dir .. '/m/chat_template.jinja', template)
      write(dir .. '/c.jsonl', chats(80))
      local words = ('finetune.lua --threads 1 --from %s/m --seq 96 --batch 4 --lr 3e-3 '
         .. '--val-every 3 --save-every 0 '):format(dir)
      fn(dir, ('%s--data %s/c.jsonl '):format(words, dir), words)
   end)
end

local function losses(out)
   local list = {}
   for line in io.lines(out .. '/metrics.jsonl') do
      list[#list + 1] = tonumber(line:match '"loss":([%d.e+-]+)')
   end
   return list
end

local function same_losses(a, b)
   assert.equal(#a, #b)
   for i = 1, #a do
      assert.is_true(math.abs(a[i] - b[i]) <= 1e-6 * a[i], ('%d: %.9g %.9g'):format(i, a[i], b[i]))
   end
end

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
         assert.matches('80 records: %d+ tokens, %d+ of them trained on', out)
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
         out = ok(1, 'finetune.lua --resume --out ' .. dir .. '/stop')
         assert.matches('ended at step ' .. at, out, 1, true)

         words = words .. '--keep-best --keep 9 '
         ok(1, words .. '--steps 8 --save-every 5 --out ' .. dir .. '/a')
         ok(1, ('finetune.lua --resume-from %s/a/step-00000005 --out %s/b'):format(dir, dir))
         for _, name in ipairs { 'model', 'optim' } do
            name = ('/step-00000008/%s.safetensors'):format(name)
            local a = fs.read('spec', dir .. '/a' .. name)
            assert.is_true(a == fs.read('spec', dir .. '/b' .. name))
         end
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
         bad('finetune.lua --data x', '--from is needed')
         bad('finetune.lua --from ' .. dir .. '/m', '--data is needed')
         bad(words .. '--from ' .. dir, 'LATEST')
         bad(data '{"messages": []}\n', 'x.jsonl, line 1: messages: expected at least one entry')
         bad(data '{"messages": [{"role": "user", "content": "a"}]}\n',
            'no token of the record counts')
         bad(data '{"messages": [{"role": "user"}]}\n', 'messages[1].content: expected a text')
         bad(data '', 'has no record that can be used')
         bad(words .. '--batch 3 --accum 2', '--batch (3) must be a multiple')
         tide.model.save(tide.model.llama({ vocab_size = 40, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 2, intermediate_size = 8 }, { seed = 1 }),
            dir .. '/small')
         bad(words .. '--from ' .. dir .. '/small', 'give --tokenizer')
      end)
   end)
end)
