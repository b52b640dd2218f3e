-- Perplexity and multiple choice against the rules of lm-evaluation-harness, whose figures
-- spec/golden/harness.py computes with transformers, and questions read from JSON Lines.

local tide = require 'tide'
local case = require 'spec.lua.folder_case'
local fs = require 'tide.util.fs'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

local golden = tide.json.decode(fs.read('spec', 'spec/golden/harness.json'))
local bytes = tide.data.bytes
local evaluate = tide.train.evaluate

-- Writes the tokenizer of a row into a folder, and loads it.
local function tokenizer(row, dir)
   local value = tide.json.decode(fs.read('spec', 'spec/golden/tokenizer/' .. row.tokenizer
      .. '.json'))
   write(dir .. '/tokenizer.json', tide.json.encode(value.tokenizer))
   write(dir .. '/tokenizer_config.json', tide.json.encode(row.special))
   return tide.tokenizer.load(dir)
end

local function questions()
   local list = {}
   for i, q in ipairs(golden.questions) do
      list[i] = { question = q[1], choices = q[2], answer = q[3] + 1 }
   end
   return list
end

local function near(want, got, name)
   local difference = math.abs(want - got) / math.max(1, math.abs(want))
   assert.is_true(difference < 1e-7, ('%s: %.12g ~= %.12g'):format(name, want, got))
end

describe('figures of a model', function()
   for _, row in ipairs(golden.cases) do
      it('are those of lm-evaluation-harness with the tokenizer ' .. row.tokenizer, function()
         tmp.with(function(dir)
            local tok, model = tokenizer(row, dir), case.model(row, { dtype = 'f64' })
            local how = { seq = row.seq, batch = 3 }
            local got = evaluate.perplexity(model, tok, golden.text, how)
            for _, name in ipairs { 'logprob', 'tokens', 'words', 'bytes', 'word_perplexity',
                                    'byte_perplexity', 'bits_per_byte' } do
               near(row.text[name], got[name], name)
            end
            local r = evaluate.choices(model, tok, questions(), how)
            for n, values in ipairs(row.values) do
               for i, v in ipairs(values) do near(v, r.items[n].values[i], n .. '.' .. i) end
            end
            for _, rule in ipairs { 'acc', 'acc_norm', 'acc_bytes' } do
               near(row[rule], r[rule], rule)
               near(row[rule .. '_stderr'], r[rule .. '_stderr'], rule .. '_stderr')
            end
            assert.is_true(r.cut > 0)
         end)
      end)
   end

   it('do not depend on the batch, also where rotary positions depend on the length', function()
      local model = tide.model.llama({ vocab_size = 258, hidden_size = 16,
         num_hidden_layers = 2, num_attention_heads = 2, max_position_embeddings = 8,
         rope_scaling = { rope_type = 'dynamic', factor = 2 } }, { seed = 3, dtype = 'f64' }):eval()
      local list = {
         { question = 'a question', choices = { 'b', 'a much longer one' }, answer = 1 },
         { question = 'x', choices = { 'b', 'ccc', 'b' }, answer = 3 } }
      local one = evaluate.choices(model, bytes, list, { seq = 40, batch = 1 })
      local all = evaluate.choices(model, bytes, list, { seq = 40, batch = 8 })
      for n, item in ipairs(one.items) do
         for i, v in ipairs(item.values) do near(v, all.items[n].values[i], n .. '.' .. i) end
      end
      assert.equal(1, one.items[2].acc)            -- equal choices: the first of them
      assert.is_nil(evaluate.choices(model, bytes, { list[1] }, { seq = 40 }).acc_stderr)
   end)

   it('are the same on any number of ranks', function()
      local function scored(_, _, list)
         local t = require 'tide'
         local model = t.model.llama({ vocab_size = 258, hidden_size = 16, num_hidden_layers = 2,
            num_attention_heads = 2 }, { seed = 3, dtype = 'f64' }):eval()
         local sharded = t.parallel.fully_shard(model)
         local how = { seq = 12, batch = 2, sharded = sharded }
         local r = t.train.evaluate.choices(model, t.data.bytes, list, how)
         r.text = t.train.evaluate.perplexity(model, t.data.bytes, 'a text of several windows', how)
         return r
      end
      local list = { { question = 'one', choices = { 'b', 'a much long' }, answer = 1 },
         { question = 'two', choices = { 'yes', 'no', 'maybe' }, answer = 3 } }
      local one = ranks.run(1, scored, list)[1]
      for _, n in ipairs { 2, 3 } do
         for _, got in ipairs(ranks.run(n, scored, list)) do
            near(one.text.logprob, got.text.logprob, 'text')
            assert.equal(one.acc_norm, got.acc_norm)
            for k, item in ipairs(one.items) do
               for i, v in ipairs(item.values) do near(v, got.items[k].values[i], k .. '.' .. i) end
            end
         end
      end
   end)

   it('need tokens to predict, ids of the model, and a token before a text', function()
      local model = tide.model.llama({ vocab_size = 258, hidden_size = 8, num_hidden_layers = 1,
         num_attention_heads = 1 }):eval()
      refused('E_FORMAT', 'items[1]: choices[2]: expected 1 to 4 tokens after the question, got 6',
         evaluate.choices, model, bytes, { { question = 'a', choices = { 'b', 'ccccc' },
         answer = 1 } }, { seq = 4 })
      refused('E_ARG', 'the model has 258 ids, got 300; is this its tokenizer?',
         tide.train.score.logprob, model, { 1, 300 }, { seq = 4 })
      refused('E_FORMAT', 'neither a bos_token nor an eos_token', evaluate.prefix, {}, {})
      assert.equal(7, evaluate.prefix({}, { eos_token_id = { 7, 8 } }))
      refused('E_ARG', 'got an empty one', evaluate.perplexity, model, bytes, '', { seq = 4 })
   end)
end)

describe('the ids of a context and its continuation', function()
   it('are cut from the ids of both, with the prefix for a context of white space', function()
      local tok = { bos = 1, encode = function(_, text, o)
         local ids = { o.add_special_tokens and 1 or nil }
         for i = 1, #text do ids[#ids + 1] = text:byte(i) end
         return ids
      end }
      for _, row in ipairs { { 'a', 'b', { 1, 97 }, { 98 } }, { 'a ', 'b', { 1, 97 }, { 32, 98 } },
         { '', 'bc', { 1 }, { 98, 99 } }, { ' \t', 'b', { 1 }, { 32, 9, 98 } },
         { '', '\1b', { 1 }, { 98 } } } do
         local front, rest = evaluate.pair(tok, row[1], row[2], {})
         assert.same({ row[3], row[4] }, { front, rest })
      end
      for want, row in pairs { [1] = { tok }, [2] = { { eos = 2 } }, [3] = { {},
         { bos_token_id = 3, eos_token_id = 9 } }, [4] = { {}, { eos_token_id = { 4, 5 } } },
         [257] = { bytes } } do
         assert.equal(want, evaluate.prefix(row[1], row[2]))
      end
   end)
end)

describe('multiple choice from JSON Lines', function()
   local function read(record) return tide.data.choices.read(record) end

   it('takes the answer as index, letter, text or label, and published names', function()
      local want = { question = 'q', choices = { 'x', 'B' }, answer = 2 }
      for _, answer in ipairs { 1, 'B', '1' } do
         assert.same(want, read { question = 'q', choices = { 'x', 'B' }, answer = answer })
      end
      assert.equal(1, read { question = 'q', choices = { 'B', 'x' }, answer = 'B' }.answer)
      assert.same(want, read { ctx = 'q', endings = { 'x', 'B' }, label = '1' })
      assert.same(want, read { query = 'q', options = { 'x', 'B' }, gold = 1 })
      assert.same(want, read { question = 'q', choices = { text = { 'x', 'B' },
         label = { '1', '2' } }, answerKey = '2' })
   end)

   local broken = {
      { '{"choices":["a","b"],"answer":0}', 'question: expected a text, got nothing' },
      { '{"question":1,"choices":["a","b"],"answer":0}', 'question: expected a text, got 1' },
      { '{"question":"q","answer":0}', 'choices: expected a list of texts, got nothing' },
      { '{"question":"q","choices":["a"],"answer":0}', 'choices: expected at least 2, got 1' },
      { '{"question":"q","choices":["a",""],"answer":0}',
         'choices[2]: expected a text that is not empty, got ""' },
      { '{"question":"q","choices":["a",null],"answer":0}',
         'choices[2]: expected a text that is not empty' },
      { '{"question":"q","choices":["a","b"],"answer":2}',
         'answer: expected an index from 0 to 1, a letter from A to B, or the text of a choice, '
            .. 'got 2' },
      { '{"question":"q","choices":["a","b"],"answer":-1}', 'answer: expected an index' },
      { '{"question":"q","choices":["a","b"],"answer":0.5}', 'answer: expected an index' },
      { '{"question":"q","choices":["a","b"],"answer":"C"}', 'answer: expected an index' },
      { '{"question":"q","choices":["a","b"]}', 'answer: expected an index' },
      { '{"question":"q","choices":{"text":["a","b"],"label":["x"]},"answer":"x"}',
         'choices.label: expected at least 2, got 1' },
      { '{"question":', '' },
      { '[1]', 'expected an object' },
   }

   it('names the file, the line and the field of what is broken, or counts it', function()
      local good = '{"question":"q","choices":["a","b"],"answer":"B"}\n'
      tmp.with(function(dir)
         local path, load = dir .. '/q.jsonl', tide.data.choices.load
         for _, row in ipairs(broken) do
            write(path, good .. '\n' .. row[1] .. '\n' .. good)
            refused('E_FORMAT', path .. ', line 3: ' .. row[2], load, path, {})
            local list, bad = load(path, { skip_bad = true })
            assert.equal(2, #list)
            assert.equal(path .. ', line 4', list[2].place)
            assert.equal(1, #bad)
            assert.matches(', line 3: ' .. row[2], bad[1], 1, true)
         end
         write(path, '')
         refused('E_FORMAT', path .. ' has no question', load, path, {})
         write(path, broken[1][1])
         refused('E_FORMAT', 'no question that can be read; ' .. path .. ', line 1: question',
            load, path, { skip_bad = true })
         write(path, '\127ELF\2\1\1\0')
         refused('E_FORMAT', 'no JSON Lines', load, path, { skip_bad = true })
      end)
   end)
end)
