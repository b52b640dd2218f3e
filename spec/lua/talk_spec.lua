-- Conversations over a stand-in for the model, and what a teacher says of a corpus, with one rank.

local bytes = require 'tide.tokenizer.bytes'
local copy = require 'tide.util.copy'
local conversation = require 'tide.train.conversation'
local each = require 'tide.util.each'
local files = require 'spec.support.files'
local answers = require 'tide.train.answer'
local raised = require 'spec.support.raised'
local refused = require 'spec.support.refused'
local sample = require 'tide.train.sample'
local teacher = require 'tide.train.teacher'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

-- ---- conversations -----------------------------------------------------------------------------

local special = { ['<end>'] = 300, ['<en'] = 301, ['<user>'] = 302, ['<bot>'] = 303,
   ['<system>'] = 304, ['<developer>'] = 305, ['[INST]'] = 306 }

-- A tokenizer of bytes, where special tokens are ids of their own unless they are text.
local function tokenizer()
   local texts, by_id = {}, { [307] = 'plain' }
   for text, id in each(special) do texts[#texts + 1], by_id[id] = text, text end
   table.sort(texts, function(a, b) return #a > #b end)
   return { special_texts = function() return texts end, added = by_id, stream = bytes.stream,
      encode = function(_, text, o)
         assert.is_false(o.add_special_tokens)
         local out, at = {}, 1
         while at <= #text do
            local name = o.special and (text:match('^<[a-z]+>', at) or text:match('^%[INST%]', at))
            if special[name] then out[#out + 1], at = special[name], at + #name
            else out[#out + 1], at = text:byte(at), at + 1 end
         end
         return out
      end }
end

local names = { user = '<user>', assistant = '<bot>', system = '<system>',
   developer = '<developer>' }
local template = { render = function(_, messages, vars)
   local out = { vars.first or '' }
   for _, m in ipairs(messages) do
      out[#out + 1] = names[m.role] .. m.content .. (m.role == 'assistant' and ' ' or '') .. '<end>'
   end
   return table.concat(out) .. (vars.add_generation_prompt and '<bot>' or '')
end }

local function new(context, o)
   local model = { config = { max_position_embeddings = context },
      named_modules = function() return {} end }
   return conversation.new(model, copy(o or {}, { tokenizer = tokenizer(),
      template = template }))
end

-- Calls fn while sample.generate is answer(ids, options).
local function answering(answer, fn)
   local real = rawget(sample, 'generate')
   rawset(sample, 'generate', function(_, ids, o)
      local r = answer(ids, o)
      return r.ids, r
   end)
   local ok, e = pcall(fn)
   rawset(sample, 'generate', real)
   if not ok then error(e, 0) end
end

local function shown(ids)
   local out = {}
   for i, id in ipairs(ids) do
      out[i] = id < 256 and string.char(id) or '{' .. id .. '}'
   end
   return table.concat(out)
end

describe('a conversation', function()
   it('lets the template alone write special tokens', function()
      local talk = new(1000, { messages = { { role = 'user', content = 'a<end>b<en<user>\1' },
         { role = 'assistant', content = 'x<end>y' }, { role = 'user', content = '<<end>end>' } },
         variables = { first = '>' } })
      assert.equal('>{302}a<end>b<en<user>\1{300}{303}x{300}y {300}{302}<<end>end>{300}{303}',
         shown(talk:ids()))
      assert.same({ 300 }, talk.stops)                 -- behind an answer and its blank
      talk.messages = { { role = 'user', content = 'SIT [INST] [' },
         { role = 'assistant', content = '[INST]' } }
      assert.equal('>{302}SIT [INST] [{300}{303}{306} {300}{303}', shown(talk:ids()))
      assert.same({ 7, 8, 300 }, new(9, { stop = { 7, 8 } }).stops)
      assert.same({ 7, 300 }, new(9, { stop = 7 }).stops)
      local plain = { render = function() return 'an answer of tide, and no mark' end }
      assert.same({}, new(9, { template = plain }).stops)
      assert.same({}, new(9, { template = { render = function() error 'no' end } }).stops)
      assert.same({}, new(9, { tokenizer = bytes }).stops)
      assert.equal('<user>hi<end><bot>', shown(new(9, { tokenizer = bytes, messages = {
         { role = 'user', content = 'hi' } } }):ids()))
   end)

   it('adds what is said and answered, and is as before where an answer fails', function()
      local talk = new(100, { messages = { { role = 'system', content = 's' } } })
      answering(function(ids, o)
         assert.same({ tokens = 5, seed = 3, tokenizer = talk.tokenizer, stop = talk.stops,
            cache = talk.cache }, o)
         assert.equal('{304}s{300}{302}hi{300}{303}', shown(ids))
         return { ids = { 65 }, text = 'A', reason = 'stop' }
      end, function()
         local r = talk:say('hi', { tokens = 5, seed = 3 })
         assert.same({ ids = { 65 }, text = 'A', reason = 'stop', dropped = 0, full = false }, r)
      end)
      local want = { { role = 'system', content = 's' }, { role = 'user', content = 'hi' },
         { role = 'assistant', content = 'A' } }
      assert.same(want, talk.messages)
      answering(function() error 'no' end, function()
         assert.is_false((pcall(talk.say, talk, 'more')))
      end)
      assert.same(want, talk.messages)
      talk:system 'other'
      assert.same({ { role = 'system', content = 'other' } }, talk.messages)
      talk:system(nil)
      assert.same({}, talk.messages)
      talk = new(100, { messages = { { role = 'developer', content = 'd' },
         { role = 'user', content = 'u' } } })
      answering(function() return { ids = {}, text = '', reason = 'stop' } end, function()
         talk:say(nil)                                     -- the messages end with the user's
      end)
      assert.equal(3, #talk.messages)
      talk:system 'x'
      assert.same({ { role = 'system', content = 'x' }, { role = 'user', content = 'u' } },
         talk.messages)
   end)

   it('drops the oldest turns until there is room, and keeps what leads', function()
      for context = 20, 60 do
         for _, tokens in ipairs { 1, 4, 40 } do
            local messages = { { role = 'system', content = 'ss' } }
            for i = 1, 4 do
               messages[#messages + 1] = { role = 'user', content = ('u'):rep(i) }
               messages[#messages + 1] = { role = 'assistant', content = ('a'):rep(i) }
            end
            local talk = new(context, { messages = messages })
            -- a user message and an answer take their letters and 3 or 2 more; 2 + 2 lead, 1 opens
            local sizes, most = { 1 + 2 + 1 + 3, 2 + 2 + 2 + 3, 3 + 2 + 3 + 3, 4 + 2 + 4 + 3, 3 }, 0
            local room = math.max(1, math.min(tokens, math.floor(context / 4)))
            local length, dropped = 4 + 1, 0
            for _, n in ipairs(sizes) do length = length + n end
            for i = 1, 4 do
               if length + room <= context then break end
               length, dropped, most = length - sizes[i], dropped + 2, i
            end
            if length < context then
               answering(function(ids, o)
                  assert.same({ length, math.min(tokens, context - length) }, { #ids, o.tokens })
                  local out = {}
                  for i = 1, o.tokens do out[i] = 65 end
                  return { ids = out, text = 'A', reason = 'length' }
               end, function()
                  local r = talk:say('x', { tokens = tokens })
                  assert.same({ dropped, length + math.min(tokens, context - length) >= context },
                     { r.dropped, r.full })
                  assert.equal(9 - 2 * most + 2, #talk.messages)
                  assert.equal('ss', talk.messages[1].content)
                  assert.equal(most < 4 and ('u'):rep(most + 1) or 'x', talk.messages[2].content)
               end)
            end
         end
      end
      local talk = new(8)
      local e = raised(talk.say, talk, 'abcdef')
      assert.matches('the message makes 9 tokens, the model reads 8', e.message, 1, true)
      assert.matches('makes 8 tokens', raised(talk.say, talk, 'abcde').message, 1, true)
      assert.same({}, talk.messages)
      answering(function() return { ids = { 1 }, text = 'A', reason = 'stop' } end, function()
         assert.is_false(talk:say('abcd').full)
      end)
   end)
end)

describe('an answer', function()
   it('ends at the first stop string, holds back what may begin one, and counts ids', function()
      for _, row in ipairs { { 'hello STOP more', { 'STOP' }, 'hello ' },
         { 'aab', { 'ab' }, 'a' }, { 'xxyz', { 'yz', 'xy' }, 'x' }, { 'abcabd', { 'abd' }, 'abc' },
         { 'ab', { 'abc' }, 'ab' }, { 'STO', { 'STOP' }, 'STO' }, { 'aXbY', { 'Y', 'X' }, 'a' },
         { 'aX', { 'X', 'Y' }, 'a' }, { 'ab.[', { '.[' }, 'ab' },
         { 'xab', { 'abc', 'bz' }, 'xab' } } do
         local pieces, tokens = {}, {}
         local a = answers.new({ 5, 5 }, { stops = { [0] = true }, stop_strings = row[2],
            tokenizer = { stream = bytes.stream }, on_text = function(text, r)
               assert.equal(3, r)
               pieces[#pieces + 1] = text
            end, on_token = function(id) tokens[#tokens + 1] = id end }, 3)
         for i = 1, #row[1] do
            if a.reason then break end
            a:add(row[1]:byte(i))
            local said, rest = table.concat(pieces), row[1]:sub(1, i)
            if not a.reason then
               assert.equal(rest:sub(1, #said), said)
               local held = rest:sub(#said + 1)
               local most = 0                            -- the longest end that begins a stop
               for _, stop in ipairs(row[2]) do
                  for n = 1, math.min(#stop - 1, #rest) do
                     if rest:sub(-n) == stop:sub(1, n) then most = math.max(most, n) end
                  end
               end
               assert.equal(most, #held)
            end
         end
         local r = a:finish()
         assert.same({ row[3], row[3] }, { r.text, table.concat(pieces) })
         assert.equal(row[3] == row[1] and 'length' or 'stop_string', r.reason)
         assert.same(tokens, r.ids)
         assert.equal(2 + #tokens, #a.all)
      end
      local a = answers.new({ 5, 5 }, { stops = { [0] = true }, stop_strings = {},
         on_token = function(id) return id == 9 and 'stop' or nil end }, 1)
      for _, id in ipairs { 5, 7, 7 } do a:add(id) end
      assert.same({ { [5] = 3, [7] = 2 }, { [5] = 1, [7] = 2 } }, { a.seen, a.said })
      a:add(0)
      assert.same({ ids = { 5, 7, 7 }, reason = 'stop' }, a:finish())
      a.reason = nil
      a:add(9)
      assert.equal('callback', a:finish().reason)
   end)
end)

-- ---- a teacher ---------------------------------------------------------------------------------

describe('a teacher', function()
   local model = tide.model.llama({ vocab_size = 32, hidden_size = 16, num_hidden_layers = 1,
      num_attention_heads = 2 }, { seed = 3 })
   local ids = {}
   for i = 1, 60 do ids[i] = string.char((i * 7 + i * i) % 32) end
   local corpus = { train = tide.data.tokens.memory(table.concat(ids), 1),
      val = tide.data.tokens.memory(table.concat(ids):sub(7, 26), 1) }
   local function sampler(o)
      local opts = copy(o or {}, { cu = { 0, 9, 14, 40, 44, 60 }, val_cu = { 0, 12, 20 },
         seq = 16, batch = 2, seed = 1 })
      if opts.no_val then opts.no_val, opts.val_cu = nil, nil end
      return tide.data.packed(opts)
   end
   local run = { model = model, comm = tide.comm.solo and tide.comm.solo() or tide.dist.solo() }

   -- The K likeliest ids behind each token of a batch, and their log-probabilities, from logits.
   local function expected(batch, K)
      local z = tide.no_grad(function()
         return model(batch.ids, { positions = batch.positions, index = batch.index })
            :log_softmax(3):tolist()[1]
      end)
      local out = {}
      for t, row in ipairs(z) do
         local order = {}
         for i = 1, #row do order[i] = i end
         table.sort(order, function(a, b) return row[a] > row[b] end)
         out[t] = { ids = {}, logp = {} }
         for k = 1, K do
            out[t].ids[k], out[t].logp[k] = order[k] - 1, row[order[k]]
         end
      end
      return out
   end

   it('gives each token of the corpus its likeliest ids, in the batches of any order', function()
      for _, o in ipairs { {}, { cp = 2 }, { fit = 'best' } } do
         local s = sampler(o)
         local top = teacher.top(run, s, corpus, { k = 3, batch = 2 })
         local used = teacher.use(sampler(o), corpus, top)
         local function check(source, rows)
            local batch = used:make(source, rows)
            local want, real = expected(batch, 3), batch.index:select(3, 1):tolist()[1]
            local got_ids, got_logp = batch.teacher_ids:tolist()[1], batch.teacher_logp:tolist()[1]
            assert.equal('i64', batch.teacher_ids.dtype)
            for t = 1, #want do
               if real[t] < 0 then
                  assert.same({ { 0, 0, 0 }, { 0, 0, 0 } }, { got_ids[t], got_logp[t] })
               else
                  assert.same(want[t].ids, got_ids[t])
                  for k = 1, 3 do
                     assert.is_true(math.abs(want[t].logp[k] - got_logp[t][k]) < 1e-4)
                  end
               end
            end
         end
         for _ = 1, 3 do check(corpus.train, used:next()) end
         check(corpus.val, used:held_out(9))
      end
   end)

   it('is computed by ranks that share the rows, each once', function()
      local whole = teacher.top(run, sampler(), corpus, { k = 2 })
      for _, batch in ipairs { 1, 2, 5 } do
         local top_ids, logp, reduced = nil, nil, 0
         for rank = 0, 2 do
            local top = teacher.top({ model = model, comm = { size = 3, rank = rank,
               all_reduce = function() reduced = reduced + 1 end } }, sampler(), corpus, { k = 2,
               batch = batch })
            top_ids = top_ids and top_ids + top.train.ids or top.train.ids
            logp = logp and logp + top.train.logp or top.train.logp
         end
         assert.same({ whole.train.ids:tolist(), 12 }, { top_ids:tolist(), reduced })
         for t, row in ipairs(whole.train.logp:tolist()) do
            for k, v in ipairs(row) do
               assert.is_true(math.abs(v - logp:tolist()[t][k]) < 1e-4)
            end
         end
      end
   end)

   it('is kept in a file, which fits its corpus alone', function()
      tmp.with(function(dir)
         local path, s = dir .. '/top.safetensors', sampler()
         local top = teacher.top(run, s, corpus, { k = 2, teacher = 'me' })
         teacher.save(path, top)
         local function load(o, change, other)
            return teacher.load(path, sampler(change), other or corpus,
               copy(o or {}, { vocab = 32 }))
         end
         for _, o in ipairs { {}, { k = 2 }, { teacher = 'me' } } do
            local back = load(o)
            for _, part in ipairs { 'train', 'val' } do
               assert.same({ top[part].ids:tolist(), top[part].logp:tolist() },
                  { back[part].ids:tolist(), back[part].logp:tolist() })
            end
            assert.same({ 2, 'me' }, { back.k, back.teacher })
         end
         for text, row in each { ['vocab = 32, this run has 33'] = { { vocab = 33 } },
            ['seq = 16, this run has 20'] = { {}, { seq = 20 } },
            ['long = split, this run has cut'] = { {}, { long = 'cut' } },
            ['train = 60:1:'] = { {}, {}, { train = corpus.val, val = corpus.val } },
            ['val = 20:1:'] = { {}, {}, { train = corpus.train, val = corpus.train } },
            ['k = 2, this run has 3'] = { { k = 3 } },
            ['teacher = me, this run has you'] = { { teacher = 'you' } } } do
            refused('E_ARG', { path .. ' was written with ' .. text, 'remove the file' }, load,
               unpack(row, 1, 3))
         end
         local text = files.read(path)
         files.write(path, text:sub(1, -101) .. ('\0'):rep(100))
         refused('E_FORMAT', { path, 'differs from its checksum: the file is damaged; remove it' },
            load)
         top.teacher, top.val, top.conditions.val = nil, nil, nil
         teacher.save(path, top)
         refused('E_ARG', 'teacher = a model that it does not name, this run has you', load,
            { teacher = 'you' }, { no_val = true })
         local back = load({}, { no_val = true })
         assert.is_nil(back.val)
         tide.util.fs.io().safetensors_save(path, { a = tide.ones { 1 } }, { other = 'x' })
         refused('E_FORMAT', path .. ' holds no output of a teacher', load)
         refused('E_IO', 'none', teacher.load, dir .. '/none', s, corpus, { vocab = 32 })
      end)
   end)
end)

