-- `tide score` in this process: what it prints of texts, ids and questions is what train.evaluate
-- and train.score compute.

local tide = require 'tide'
local command = require 'tide.train.score_command'
local each = require 'tide.util.each'
local files = require 'spec.support.files'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

local bytes, evaluate = tide.data.bytes, tide.train.evaluate

local function made(vocab, context)
   return tide.model.llama({ vocab_size = vocab, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 1, max_position_embeddings = context }, { seed = 3 })
end

-- What the command prints with a model in place of the one of --from.
local function run(model, ...)
   local out, real, stdout = {}, rawget(tide.model, 'load') or tide.model.load, io.stdout
   local host = package.loaded['tide.host']
   package.loaded['tide.host'] = {}
   rawset(tide.model, 'load', function() return model, {} end)
   rawset(io, 'stdout', { write = function(_, ...) out[#out + 1] = table.concat { ... } end })
   local ok, e = pcall(command, 'score', '--from', '/nowhere', ...)
   rawset(io, 'stdout', stdout)
   rawset(tide.model, 'load', real)
   package.loaded['tide.host'] = host
   if not ok then error(e, 0) end
   return table.concat(out)
end

local function summary(n, sum, what)
   local mean = -sum / n
   return ('%d %ss, log-probability %.4f: %.4f nats per %s, %.4f bits per %s, perplexity %.4f\n')
      :format(n, what, sum, mean, what, mean / math.log(2), what, math.exp(mean))
end

describe('tide score', function()
   local model = made(258, 16)
   local text = 'the quick brown fox  jumps over\nit'

   it('prints the figures of a text, in windows of the model or of --seq', function()
      tmp.with(function(dir)
         files.write(dir .. '/t.txt', text)
         for _, row in ipairs { { {}, 16 }, { { '--seq', '5' }, 5 }, { { '--seq', '99' }, 99 } } do
            local f = evaluate.perplexity(model, bytes, text, { seq = row[2] })
            local want = summary(#text, f.logprob, 'byte')
               .. ('%d words, %d bytes: word perplexity %.4f, byte perplexity %.4f, %.4f bits per '
               .. 'byte\n'):format(7, #text, f.word_perplexity, f.byte_perplexity,
                  f.bits_per_byte)
            assert.equal(want, run(model, '--text', text, unpack(row[1])))
            assert.equal(want, run(model, '--file', dir .. '/t.txt', '--batch', '3',
               unpack(row[1])))
            local lines = {}
            for i = 1, #text do
               local quoted = '"' .. text:sub(i, i):gsub('\n', '\\n') .. '"'
               lines[i] = ('%-8s %9.4f\n'):format(quoted, f.values[i])
            end
            assert.equal(table.concat(lines) .. want, run(model, '--text', text, '--tokens',
               unpack(row[1])))
         end
         for context, seq in each { [2 ^ 31 - 1] = 2048, [64] = 64 } do
            local other = made(258, context)
            local real, got = evaluate.perplexity, nil
            rawset(evaluate, 'perplexity', function(m, tok, s, how)
               got = how.seq
               return real(m, tok, s, how)
            end)
            run(other, '--text', 'ab')
            rawset(evaluate, 'perplexity', real)
            assert.equal(seq, got)
         end
      end)
   end)

   it('prints the log-probabilities of ids', function()
      local values = tide.train.score.logprob(model, { 1, 300 - 50, 3, 4 }, { seq = 16 })
      local sum, lines = 0, {}
      for i, v in ipairs(values) do
         sum, lines[i] = sum + v, ('%-8d %9.4f\n'):format(({ 250, 3, 4 })[i], v)
      end
      assert.equal(summary(3, sum, 'token'), run(model, '--ids', '1 250 3 4'))
      assert.equal(table.concat(lines) .. summary(3, sum, 'token'), run(made(258, 16), '--ids',
         '1,250,3,4', '--tokens'))
      refused('E_ARG', 'at least two ids', run, model, '--ids', '1')
      refused('E_ARG', 'whole numbers below 258', run, model, '--ids', '1 258')
   end)

   it('prints accuracy, and what each rule chooses', function()
      tmp.with(function(dir)
         local path = dir .. '/q.jsonl'
         local list = { { question = 'aa', choices = { 'b', 'ccccc', 'd' }, answer = 2 },
            { question = ('q'):rep(20), choices = { 'xy', 'z' }, answer = 1 } }
         local lines = {}
         for i, q in ipairs(list) do
            lines[i] = tide.json.encode { question = q.question, choices = q.choices,
               answer = q.answer - 1 }
         end
         files.write(path, table.concat(lines, '\n'))
         for _, d in ipairs { ' ', '-' } do
            local f = evaluate.choices(model, bytes, list, { seq = 16, delimiter = d })
            local want = '2 questions\n'
            for _, rule in ipairs { 'acc', 'acc_norm', 'acc_bytes' } do
               want = want .. ('%-10s %.4f +- %.4f\n'):format(rule, f[rule], f[rule .. '_stderr'])
            end
            want = want .. '2 choices did not fit into a window; their questions lost tokens on '
               .. 'the left\n'
            assert.equal(want, run(model, '--choices', path, '--delimiter', d))
            local items = {}
            for n, item in ipairs(f.items) do
               local values = {}
               for i, v in ipairs(item.values) do values[i] = ('%.4f'):format(v) end
               items[n] = ('%d: answer %d, acc %d, acc_norm %d, acc_bytes %d: %s\n'):format(n,
                  item.answer - 1, item.acc - 1, item.acc_norm - 1, item.acc_bytes - 1,
                  table.concat(values, ' '))
            end
            assert.equal(table.concat(items) .. want, run(model, '--choices', path, '--delimiter',
               d, '--tokens'))
         end
         for n, said in each { [1] = '1 broken line left out; ', [2] = '2 broken lines left out; ' }
         do
            files.write(path, lines[1] .. '\n' .. ('5\n'):rep(n))
            local out = run(model, '--choices', path, '--skip-bad')
            assert.matches('^1 question\nacc +[01].0000\nacc_norm +[01].0000\nacc_bytes', out)
            assert.matches('\n' .. said .. path .. ', line 2: ', out, 1, true)
            refused('E_FORMAT', path .. ', line 2: ', run, model, '--choices', path)
         end
      end)
   end)

   it('compares --seq with the positions of the model', function()
      local lines, stderr = {}, io.stderr
      rawset(io, 'stderr', { write = function(_, line) lines[#lines + 1] = line end })
      local done, e = pcall(function()
         for _, seq in ipairs { '16', '17' } do run(model, '--text', 'abc', '--seq', seq) end
         local learned = tide.model.gpt2({ vocab_size = 258, hidden_size = 8,
            num_hidden_layers = 1, num_attention_heads = 1, max_position_embeddings = 16 },
            { seed = 3 })
         refused('E_ARG', 'give --seq 16', run, learned, '--text', 'abc', '--seq', '17')
      end)
      rawset(io, 'stderr', stderr)
      if not done then error(e, 0) end
      assert.same({ '--seq 17: the model has 16 positions (max_position_embeddings); it was not '
         .. 'trained on longer texts\n' }, lines)
   end)

   it('says in one line what is wrong', function()
      tmp.with(function(dir)
         files.write(dir .. '/elf', '\127ELF\2\1\1\0')
         files.write(dir .. '/empty', '')
         for said, words in each { ['give one of --text, --file, --choices and --ids'] = {},
            ['give one of --text, --file'] = { '--text', 'a', '--ids', '1 2' },
            [dir .. '/elf is not text: it is a program'] = { '--file', dir .. '/elf' },
            ['there is nothing to score'] = { '--file', dir .. '/empty' } } do
            local e = refused('E_ARG', said, run, model, unpack(words))
            assert.is_true(e.brief)
         end
         refused('E_ARG', '/nowhere has a vocabulary of 100 and no tokenizer', run, made(100, 8),
            '--text', 'a')
         assert.is_nil(tide.tokenizer.find '/nowhere')          -- a folder of the root, too
         assert.is_nil(tide.tokenizer.find '/nowhere/')
         assert.matches('1 tokens, ', run(made(100, 8), '--ids', '1 2'), 1, true)
      end)
   end)
end)
