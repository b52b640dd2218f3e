-- Published folders on the command line: read by the recipes on one rank and on two, learnt on
-- from, and written by tide export.

local tide = require 'tide'
local each = require 'tide.util.each'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local function ok(n, words)
   local out, status = recipe.ranks(n, words)
   assert.equal(0, status, out)
   return out
end

local function bad(n, words, text)
   local out, status = recipe.ranks(n, words)
   assert.is_true(status == 1 or status == 2, out)
   assert.matches(text, out, 1, true)
end

-- Calls fn(dir, folder of a Qwen3 with a vocabulary of n).
local function with_folder(n, fn)
   tmp.with(function(dir)
      fn(dir, tide.model.save(tide.model.qwen3({ vocab_size = n, hidden_size = 16, head_dim = 4,
         num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2,
         intermediate_size = 24, max_position_embeddings = 32 }, { seed = 5 }), dir .. '/m'))
   end)
end

describe('a published folder', function()
   it('continues and scores token ids, on one rank and on two', function()
      with_folder(40, function(_, folder)
         local words = 'generate.lua --from ' .. folder .. ' --ids "1 2 3" --tokens 4 '
            .. '--temperature 0'
         local one = ok(1, words)
         assert.matches('^1 2 3 %d+ %d+ %d+ %d+\n$', one)
         words = 'logprob.lua --from ' .. folder .. ' --ids "1 2 3 4 5"'
         one = ok(1, words)
         assert.matches('^4 tokens, log%-probability %-%d', one)
         assert.equal(one, (ok(2, words):gsub('%[r0%] ', '')))
         bad(1, words .. ' --ids "1 40"', "whole numbers below 40, got '40'")
         bad(1, 'generate.lua --from ' .. folder, 'a vocabulary of 40')
      end)
   end)

   it('is scored by `tide score` as by the recipe, on one rank and on two', function()
      with_folder(40, function(_, folder)
         local words = ' --from ' .. folder .. ' --ids "1 2 3 4 5"'
         local want = ok(1, 'logprob.lua' .. words)
         for _, n in ipairs { '', ' -n 2 -t 1' } do
            local out, status = recipe.shell(recipe.program .. ' score' .. n .. words)
            assert.equal(0, status, out)
            assert.equal(want, (out:gsub('%[r0%] ', '')))
         end
         for text, more in each { ['give one of --text'] = '', ['-n needs a number'] = ' -n x',
            ["did you mean '--file'"] = ' --fil x' } do
            local out, status = recipe.shell(recipe.program .. ' score' .. more)
            assert.equal(2, status, out)
            assert.matches(text, out, 1, true)
         end
      end)
   end)

   it('with a damaged tokenizer is refused in one line by each command', function()
      with_folder(40, function(dir, folder)
         write(dir .. '/c.jsonl', '{"text": "a b c"}\n')
         for text, damage in each { ['tokenizer.json: line 1, column 2: '] = '{x',
            ["tokenizer.json: model 'X' is not"] = '{"model": {"type": "X"}}' } do
            write(folder .. '/tokenizer.json', damage)
            for _, words in ipairs { 'generate.lua --prompt a', 'logprob.lua --text a',
               'generate.lua --chat --prompt a', 'finetune.lua --data ' .. dir .. '/c.jsonl --out '
               .. dir .. '/o', 'pretrain.lua --data ' .. dir .. '/c.jsonl --records' } do
               local out, status = recipe.ranks(1, words .. ' --from ' .. folder)
               assert.is_true(status == 1 or status == 2, out)
               assert.matches(text, out, 1, true)
               assert.is_nil(out:find('\n.', 1), words .. out)
            end
         end
      end)
   end)

   it('with a tokenizer is scored, and answers questions, on one rank and on two', function()
      local value = tide.json.decode(tide.util.fs.read('spec', 'spec/golden/tokenizer/gpt2.json'))
      with_folder(420, function(dir, folder)
         write(dir .. '/text.txt', 'the quick function returns\n')
         write(dir .. '/q.jsonl', '{"question":"the quick","choices":["function","x"],"answer":"A"}'
            .. '\n{"question":"the","choices":["x"]}\n')
         local words = 'logprob.lua --from ' .. folder
         bad(1, words .. ' --text ab', 'a vocabulary of 420 and no tokenizer')
         write(folder .. '/tokenizer.json', tide.json.encode(value.tokenizer))
         write(folder .. '/tokenizer_config.json', '{"eos_token":"<|endoftext|>"}')
         local file, ask = words .. ' --file ' .. dir .. '/text.txt', words .. ' --choices ' .. dir
            .. '/q.jsonl'
         local one = ok(1, file)
         assert.matches('tokens, log%-probability %-%d', one)
         assert.matches('\n5 words, 27 bytes: word perplexity', one)
         assert.equal(one, (ok(2, file):gsub('%[r0%] ', '')))
         bad(1, ask, 'q.jsonl, line 2: choices: expected at least 2, got 1')
         one = ok(1, ask .. ' --skip-bad')
         assert.matches('^1 question\nacc        [01]%.0000\nacc_norm   [01]%.0000\n', one)
         assert.matches('1 broken line left out', one, 1, true)
         assert.equal(one, (ok(2, ask .. ' --skip-bad'):gsub('%[r0%] ', '')))
         write(dir .. '/elf', '\127ELF\2\1\1')
         bad(1, words .. ' --file ' .. dir .. '/elf', '/elf is not text')
      end)
   end)

   it('with a tokenizer continues a prompt: special tokens are text, or tokens', function()
      local value = tide.json.decode(tide.util.fs.read('spec', 'spec/golden/tokenizer/gpt2.json'))
      with_folder(420, function(_, folder)
         write(folder .. '/tokenizer.json', tide.json.encode(value.tokenizer))
         local words = 'generate.lua --from ' .. folder .. ' --temperature 0 --tokens 6 '
            .. "--prompt 'the <|endoftext|>quick'"
         local out = ok(1, words)
         assert.matches('[<|endoftext|> in --prompt is read as text; --special reads it', out, 1,
            true)
         out = ok(1, words .. ' --special')
         assert.is_nil(out:find('is read as text', 1, true))
         local tok, model = tide.tokenizer.load(folder), tide.model.load(folder)
         local _, want = tide.train.sample.generate(model, tok:encode('the <|endoftext|>quick',
            { special = true }), { tokenizer = tok, temperature = 0, tokens = 6 })
         assert.equal('the <|endoftext|>quick' .. want.text .. '\n', out)
         bad(1, words .. ' --special --chat', '--special needs --prompt without --chat or --ids')
      end)
   end)

   it('of more ids than bytes is learnt on from by bytes, and its sample is ids', function()
      with_folder(300, function(dir, folder)
         write(dir .. '/text.txt', ('alpha, beta. gamma '):rep(300))
         local out = ok(1, ('pretrain.lua --threads 1 --data %s/text.txt --from %s --steps 1 '
            .. '--batch 4 --seq 16 --val-windows 2 --sample 30 --out %s/run'):format(dir, folder,
            dir))
         assert.matches('%(ids%) %d+ %d+', out)
      end)
   end)

   it('is learnt on from alike on one rank and on two, and written again', function()
      with_folder(258, function(dir, folder)
         write(dir .. '/text.txt', ('alpha, beta. gamma '):rep(300))
         local words = ('pretrain.lua --threads 1 --data %s/text.txt --from %s --steps 2 --batch 4 '
            .. '--seq 16 --val-windows 2 --sample 0 --out %s/'):format(dir, folder, dir)
         ok(1, words .. 'one')
         ok(2, words .. 'two --mesh.dp_shard 2')
         local one, two = recipe.losses(dir .. '/one'), recipe.losses(dir .. '/two')
         assert.near(one[1], two[1], 1e-5)
         assert.near(one[2], two[2], 1e-4)
         for _, name in ipairs { 'one', 'two' } do
            local out, status = recipe.shell(('%s export %s/%s %s/out-%s --max-shard 20kB'):format(
               recipe.program, dir, name, dir, name))
            assert.equal(0, status, out)
            local model, run = tide.model.load(dir .. '/out-' .. name)
            assert.equal('qwen3', run.family)
            assert.equal(258, model.config.vocab_size)
         end
         ok(1, 'pretrain.lua --resume --steps 3 --out ' .. dir .. '/one')
         assert.equal(3, #recipe.losses(dir .. '/one'))
      end)
   end)

   it('is learnt on from where it says rope_parameters, as transformers 5 writes', function()
      with_folder(258, function(dir, folder)
         local path = folder .. '/config.json'
         local c = tide.util.fs.read_json('spec', path)
         c.rope_theta, c.rope_scaling = nil, nil
         c.rope_parameters = { rope_theta = 10000, rope_type = 'default' }
         write(path, tide.json.encode(c))
         write(dir .. '/text.txt', ('alpha, beta. gamma '):rep(300))
         ok(1, ('pretrain.lua --threads 1 --data %s/text.txt --from %s --steps 1 --batch 4 '
            .. '--seq 16 --val-windows 2 --sample 0 --out %s/one'):format(dir, folder, dir))
         assert.equal(1, #recipe.losses(dir .. '/one'))
      end)
   end)

   it('that does not fit the data is refused', function()
      with_folder(40, function(dir, folder)
         write(dir .. '/text.txt', ('alpha, beta. gamma '):rep(300))
         bad(1, ('pretrain.lua --data %s/text.txt --out %s/run --from %s'):format(dir, dir, folder),
            'its vocabulary of 40 is smaller')
         local out, status = recipe.shell(recipe.program .. ' export ' .. dir)
         assert.equal(2, status)
         assert.matches('expected RUN DIR', out)
      end)
   end)
end)
