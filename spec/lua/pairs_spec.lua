-- Pairs of answers: documents of records against the texts they must be, and sums of
-- log-probabilities under the reference against logits, with one rank and with several.

local tide = require 'tide'
local bytes = require 'tide.tokenizer.bytes'
local files = require 'spec.support.files'
local preference = require 'tide.data.preference'
local reference = require 'tide.train.reference'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'

-- The corpus of records, a line each.
local function load(records, o)
   local corpus
   tmp.with(function(dir)
      local lines = {}
      for i, r in ipairs(records) do lines[i] = type(r) == 'string' and r or tide.json.encode(r) end
      files.write(dir .. '/a.jsonl', table.concat(lines, '\n'))
      o = o or {}
      o.tokenizer, o.val = o.tokenizer or bytes, o.val or 0
      corpus = preference.load(dir .. '/a.jsonl', o)
   end)
   return corpus
end

-- The documents of a source as texts; tokens that count are in brackets.
local function shown(source, cu)
   local out = {}
   for i = 1, #cu - 1 do
      local text, inside = '', false
      for t = cu[i], cu[i + 1] - 1 do
         local raw, counts = source:raw(t, 1), source:mask(t, 1) == '\1'
         if counts ~= inside then text, inside = text .. (counts and '[' or ']'), counts end
         text = text .. (raw == '\1\1' and '$' or raw:sub(1, 1))
      end
      out[i] = text .. (inside and ']' or '')
   end
   return out
end

local template = { marks_generation = function() return false end,
   render = function(_, messages, vars)
      local out = {}
      for i, m in ipairs(messages) do out[i] = m.role:sub(1, 1) .. ':' .. m.content .. ';' end
      return table.concat(out) .. (vars.add_generation_prompt and 'a:' or '')
   end }

local function u(text) return { role = 'user', content = text } end
local function a(text) return { role = 'assistant', content = text } end

describe('a pair', function()
   it('is two documents that begin with the prompt, wherever that stands', function()
      for _, row in ipairs {
         { { prompt = 'ab', chosen = 'c', rejected = 'de' }, 'ab[c$]', 'ab[de$]' },
         { { chosen = 'ab cd', rejected = 'ab ef' }, 'ab[ cd$]', 'ab[ ef$]' },
         { { chosen = 'abc', rejected = 'abd' }, 'ab[c$]', 'ab[d$]' },
         { { chosen = 'x', rejected = 'y' }, '[x$]', '[y$]' },
         { { prompt = '', chosen = 'x', rejected = 'y' }, '[x$]', '[y$]' },
         { { prompt = 'p', chosen = 'c', rejected = 'd' }, 'u:p;a:[c;]', 'u:p;a:[d;]', true },
         { { prompt = 'p', chosen = { a 'c' }, rejected = { a 'd' } }, 'u:p;a:[c;]',
            'u:p;a:[d;]', true },
         { { prompt = { u 'p', a 'q', u 'r' }, chosen = 'c', rejected = 'd' },
            'u:p;a:q;u:r;a:[c;]', 'u:p;a:q;u:r;a:[d;]', true },
         { { chosen = { u 'p', a 'c' }, rejected = { u 'p', a 'd' } }, 'u:p;a:[c;]', 'u:p;a:[d;]',
            true },
         { { prompt = 'p', chosen = { u 'p', a 'c' }, rejected = { u 'p', a 'd' } },
            'u:p;a:[c;]', 'u:p;a:[d;]', true },
         { { chosen = { u 'p', a 'c', u 'x', a 'y' }, rejected = { u 'p', a 'c', u 'x', a 'z' } },
            'u:p;a:c;u:x;a:[y;]', 'u:p;a:c;u:x;a:[z;]', true },
      } do
         local corpus = load({ row[1] }, { template = row[4] and template or nil })
         assert.same({ row[2], row[3] }, shown(corpus.train, corpus.cu))
         assert.same({ 'preference', 1 }, { corpus.kind, corpus.documents })
      end
   end)

   it('is refused by what it lacks', function()
      for _, row in ipairs {
         { { prompt = 'p', chosen = 'c' }, 'rejected: expected an answer (a text, or a list' },
         { { prompt = 'p', rejected = 'c' }, 'chosen: expected an answer (a text, or a list' },
         { { prompt = 'p', chosen = ' ', rejected = 'c' },
            'chosen: expected an answer, got an empty one' },
         { { chosen = 'ab', rejected = 'abc' }, 'chosen: expected an answer, got an empty one '
            .. 'behind the prompt that both answers begin with' },
         { { chosen = 'abc', rejected = 'ab' }, 'rejected: expected an answer, got an empty one '
            .. 'behind the prompt' },
         { { prompt = { u 'p' }, chosen = 'c', rejected = 'd' }, 'the record has messages, and '
            .. 'there is no template' },
         { { prompt = 'p', chosen = 5, rejected = 'd' }, 'chosen: expected a text, got 5' },
         { { chosen = 'c', rejected = { a 'd' } }, 'rejected: expected a text, got a list' },
         { { chosen = { u 'p', a 'c' }, rejected = { u 'q', a 'c' } },
            'expected lists that begin with the same messages' },
         { { chosen = { a 'c' }, rejected = { a 'd' } }, 'they differ from the first one on' } } do
         refused('E_FORMAT', { 'a.jsonl, line 1: ', row[2] }, load, { row[1] })
      end
      local odd = { marks_generation = template.marks_generation,
         render = function(_, messages, vars)
            return (#messages > 1 and 'x' or '') .. template.render(nil, messages, vars)
         end }
      refused('E_FORMAT', 'the template writes the prompt otherwise where an answer follows', load,
         { { prompt = 'p', chosen = 'c', rejected = 'd' } }, { template = odd })
      local corpus = load({ { prompt = 'p', chosen = 'c', rejected = 'd' }, '{', '{"a":1}' },
         { skip_bad = true })
      assert.same({ 1, 2 }, { corpus.documents, corpus.bad.count })
   end)
end)

describe('the reference of pairs', function()
   local records = {}
   for i = 1, 6 do
      records[i] = { prompt = ('p'):rep(i), chosen = ('abc'):sub(1, 1 + i % 3) .. i,
         rejected = ('xyz'):sub(1, 1 + i % 2) }
   end
   local corpus = load(records, { val = 0.34 })
   local model = tide.model.llama({ vocab_size = 258, hidden_size = 16, num_hidden_layers = 1,
      num_attention_heads = 2 }, { seed = 2 })

   local function sampler()
      return preference.sampler { cu = corpus.cu, val_cu = corpus.val_cu, seq = 32, batch = 1,
         source = corpus.train, val_source = corpus.val, long = 'cut', fit = 'alone' }
   end

   -- The sum of the tokens of a document that count, from logits of the document alone.
   local function expected(source, first, last)
      local ids, sum = {}, 0
      for t = first, last - 1 do
         local raw = source:raw(t, 1)
         ids[#ids + 1] = raw:byte(1) + 256 * raw:byte(2)
      end
      local z = tide.no_grad(function()
         return model(tide.tensor({ ids }, { dtype = 'i64' })):log_softmax(3):tolist()[1]
      end)
      for k = 2, #ids do
         if source:mask(first + k - 1, 1) == '\1' then sum = sum + z[k - 1][ids[k] + 1] end
      end
      return sum
   end

   local function check(known, source, cu)
      for i = 1, #cu - 1 do
         local want = expected(source, cu[i], cu[i + 1])
         assert.is_true(math.abs(want - known[cu[i]]) < 1e-3, ('%d: %g ~= %g'):format(i, want,
            known[cu[i]] or 0))
      end
   end

   it('is the sum of log-probabilities of each answer, at any batch', function()
      assert.same({ 4, 2 }, { (#corpus.cu - 1) / 2, (#corpus.val_cu - 1) / 2 })
      for _, batch in ipairs { 1, 3 } do
         local s = sampler()
         model:train()
         reference.compute({ model = model, data = tide.dist.solo() }, s, corpus,
            { batch = batch })
         assert.is_true(model.training)
         check(s.reference.train, corpus.train, corpus.cu)
         check(s.reference.val, corpus.val, corpus.val_cu)
         for part, rows in pairs { train = s:all(), val = s:all(true) } do
            local source = part == 'train' and corpus.train or corpus.val
            local b = s:make(source, { rows[1], rows[2] })
            local want = {}
            for k = 1, 4 do
               want[k] = s.reference[part][rows[math.ceil(k / 2)][(k - 1) % 2 + 1][1]]
            end
            assert.same({ want, 2, 2 }, { b.reference, b.pairs, b.count })
            local answers, real = b.answers:tolist()[1], b.index:select(3, 1):tolist()[1]
            for t = 1, #answers do
               assert.equal(math.max(0, math.min(real[t], 3)), answers[t])
            end
         end
         local state, again = s:state(), sampler()
         again:restore(tide.json.decode(tide.json.encode(state)))
         for part, cu in pairs { train = corpus.cu, val = corpus.val_cu } do
            for i = 1, #cu - 1 do
               assert.is_true(math.abs(again.reference[part][cu[i]] - s.reference[part][cu[i]])
                  < 1e-6)
            end
         end
         assert.is_nil(sampler():make(corpus.train, { s:all()[1] }).reference)
         table.remove(state.reference.val)
         refused('E_ARG', 'the state was saved with 3 val answers, this run has 4', again.restore,
            again, state)
         state.reference = nil
         refused('E_ARG', 'the state was saved with 0 ', again.restore, again, state)
      end
   end)

   it('refuses answers that are no pairs', function()
      refused('E_ARG', 'together: the answers of a pair are 2, got 3', preference.sampler,
         { cu = { 0, 2, 4, 6 }, seq = 8, batch = 1, together = 3, long = 'cut' })
      assert.equal(2, preference.sampler({ cu = { 0, 2, 4 }, seq = 8, batch = 1, together = 2,
         long = 'cut' }).together)
   end)
end)
