-- train.sample: draws against a full sort, penalties, stop strings, streaming, batches.

local tide = require 'tide'
local class = require 'tide.class'
local pick = require 'tide.train.pick'
local raised = require 'spec.support.raised'

local bytes, sample = tide.data.bytes, tide.train.sample

-- The rule by a full sort: what the filters of transformers keep, in order, then the draw.
local function oracle(logits, u, o)
   local order, weights = {}, {}
   for i = 1, #logits do order[i] = i end
   table.sort(order, function(a, b)
      return logits[a] > logits[b] or logits[a] == logits[b] and a < b
   end)
   local n = o.top_k > 0 and math.min(o.top_k, #order) or #order
   local total = 0
   for k = 1, n do
      weights[k] = math.exp((logits[order[k]] - logits[order[1]]) / o.temperature)
      total = total + weights[k]
   end
   local kept, sum = 0, 0
   for k = 1, n do
      if kept > 0 and (sum >= o.top_p * total or weights[k] < o.min_p) then break end
      kept, sum = k, sum + weights[k]
   end
   local run = 0
   for k = 1, kept do
      run = run + weights[k]
      if u * sum < run then return order[k] - 1 end
   end
   return order[kept] - 1
end

describe('train.sample.pick', function()
   it('draws what a full sort draws', function()
      math.randomseed(5)
      local choose = math.random
      for case = 1, 400 do
         local logits = {}
         for i = 1, choose(1, 300) do
            logits[i] = choose() < 0.1 and -math.huge or math.floor(choose() * 40) / 4 - 5
         end
         logits[choose(#logits)] = 2
         local o = { temperature = choose() < 0.2 and 0.1 or choose() * 2 + 0.01,
            top_k = choose() < 0.5 and 0 or choose(1, 40),
            top_p = choose() < 0.5 and 1 or choose() * 0.98 + 0.01,
            min_p = choose() < 0.5 and 0 or choose() * 0.5 }
         for _ = 1, 3 do
            local u = choose()
            assert.equal(oracle(logits, u, o), sample.pick(logits, u, o), 'case ' .. case)
         end
      end
   end)

   it('takes the first of the best at temperature 0, and refuses NaN', function()
      assert.equal(1, sample.pick({ 0, 3, 3 }, 0.9, { temperature = 0 }))
      assert.matches('logit of id 1 is NaN', raised(sample.pick, { 1, 0 / 0 }, 0, {}).message)
      assert.equal('E_ARG', raised(sample.pick, { 1 }, 0, { min_p = 2 }).code)
   end)

   it('gives an id at every end of what rounding leaves', function()
      for seed = 1, 40 do                       -- the sum in another order falls short of the first
         local logits, least = {}, 1
         for i = 1, 1000 do
            logits[i] = (i * 7919 * seed % 1009) / 1009
            if logits[i] < logits[least] then least = i end
         end
         assert.equal(least - 1, sample.pick(logits, 1 - 2 ^ -53))
      end
   end)

   it('sorts no vocabulary', function()
      local logits, sort, calls = {}, table.sort, 0
      for i = 1, 5000 do logits[i] = (i * 7919 % 5000) / 500 end
      rawset(table, 'sort', function(...)
         calls = calls + 1
         return sort(...)
      end)
      for _, o in ipairs { {}, { top_k = 40 }, { top_p = 0.9 }, { min_p = 0.05 },
         { temperature = 0 } } do
         sample.pick(logits, 0.5, o)
      end
      rawset(table, 'sort', sort)
      assert.equal(0, calls)
   end)

   it('penalises as transformers and servers do', function()
      local logits = { 2, -2, 1, 4 }
      pick.penalise(logits, { [0] = 1, [1] = 2, [9] = 1 }, { [1] = 2, [2] = 1 },
         { repetition_penalty = 2, presence_penalty = 0.5, frequency_penalty = 0.25 })
      assert.same({ 1, -5, 0.25, 4 }, logits)
      for i, want in ipairs { 1.5, 0 } do             -- each of the two by itself
         logits = { 2 }
         pick.penalise(logits, {}, { [0] = 4 }, { repetition_penalty = 1,
            presence_penalty = i == 1 and 0.5 or 0, frequency_penalty = i == 2 and 0.5 or 0 })
         assert.same({ want }, logits)
      end
   end)
end)

-- A model whose next token is script[row][place], whatever the ids are.
local Script = class('Script', tide.nn.Module)
function Script:init(script)
   tide.nn.Module.init(self)
   self.script = script
   self.config = { num_hidden_layers = 1, max_position_embeddings = 1000, vocab_size = 258 }
   self.calls = 0
end
function Script:forward(x, at)
   local rows, positions = {}, at.positions:tolist()
   self.calls = self.calls + 1
   for r = 1, x:size(1) do
      rows[r] = {}
      for t = 1, x:size(2) do
         local logits = {}
         for i = 1, 258 do logits[i] = 0 end
         logits[self.script:byte(positions[r][t] + 1) + 1] = 100
         rows[r][t] = logits
      end
   end
   return tide.tensor(rows)
end

describe('train.sample.generate', function()
   local function answer(text, o)
      o.tokenizer, o.temperature, o.tokens = bytes, 0, o.tokens or #text
      local _, result = sample.generate(Script(text), 'x', o)
      return result
   end

   it('ends before a stop string, in whatever pieces it comes', function()
      local result = answer('hello END world', { stop_strings = { 'END', ' w' } })
      assert.equal('hello ', result.text)
      assert.equal('stop_string', result.reason)
      assert.equal(9, #result.ids)
      assert.equal('hello', answer('hello END',
         { stop_strings = { 'lo END', 'ENDE' }, tokens = 5 }).text)
      assert.equal('aab', answer('aabaac', { stop_strings = { 'aac' } }).text)
      assert.equal('', answer('abc', { stop_strings = { 'abc', 'a' } }).text)
      assert.equal('x', answer('xaab', { stop_strings = { 'aab', 'ab' } }).text)
   end)

   it('passes text on as soon as it is certain, in whole characters', function()
      local pieces = {}
      local result = answer('aé中<|x', { stop_strings = { '<|end' },
         on_text = function(text) pieces[#pieces + 1] = text end })
      assert.same({ 'a', 'é', '中', '<|x' }, pieces)
      assert.equal('aé中<|x', result.text)
      assert.equal('length', result.reason)
      assert.equal('é\228\184', answer('é中', { tokens = 4 }).text)
   end)

   it('stops at any of several ids', function()
      local ids, result = sample.generate(Script 'abcd', { 1 },
         { stop = { 99, 100 }, temperature = 0 })
      assert.same({ 97, 98 }, ids)
      assert.equal('stop', result.reason)
   end)

   it('takes the first of the best of each row, and refuses NaN, at temperature 0', function()
      local values = { 0, 3, 3, -1 }
      local model = Script 'x'
      function model.forward(_, ids)
         local rows = {}
         for r = 1, ids:size(1) do rows[r] = { values } end
         return tide.tensor(rows)
      end
      local o = { tokens = 2, temperature = 0, device = 'cpu' }
      assert.same({ 1, 1 }, (sample.generate(model, { 2 }, o)))
      values = { -math.huge, -math.huge }
      assert.same({ 0, 0 }, (sample.generate(model, { 1 }, o)))
      values = { 0, 1, 0 / 0 }
      local e = raised(sample.generate, model, { 1 }, o)
      assert.equal('E_STATE', e.code)
      assert.matches('logit of id 2 is NaN', e.message)
   end)

   it('refuses what it cannot do, and leaves the mode of the model alone', function()
      local model = Script 'abc'
      model:train(true)
      assert.matches('prompt%[2%]: the model has %d+ ids, got 99999; is this its tokenizer',
         raised(sample.generate, model, { 1, 99999 }, {}).message)
      assert.equal('E_ARG', raised(sample.generate, model, 'x', {}).code)
      assert.equal('E_ARG', raised(sample.generate, model, { 1 }, { stop_strings = { 'a' } }).code)
      assert.equal('E_ARG', raised(sample.generate, model, 'x', { tokenizer = bytes,
         stop_strings = { '' } }).code)
      assert.is_false(pcall(sample.generate, model, { 1 }, { on_token = function() error 'x' end }))
      assert.is_true(model.training)
   end)
end)

describe('train.sample.batch', function()
   local model = tide.model.llama({ vocab_size = 258, hidden_size = 32, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2, intermediate_size = 32,
      max_position_embeddings = 24 }, { seed = 3 })

   it('says what each prompt alone says', function()
      local prompts = { 'ab', 'xyz', 'cd', 'q', 'abc' }
      local o = { tokens = 30, seed = 7, tokenizer = bytes, top_k = 50, repetition_penalty = 1.1,
         stop = { 120, 121, 122, 123, 124, 125, 126, 127, 128 } }
      local list, reasons = sample.batch(model, prompts, o), {}
      for r, prompt in ipairs(prompts) do
         o.seed = 7 + r - 1
         local ids, result = sample.generate(model, prompt, o)
         assert.same(ids, list[r].ids)
         assert.same(result, list[r])
         reasons[result.reason] = true
      end
      assert.same({ length = true, stop = true }, reasons)
   end)

   it('runs prompts of one length together', function()
      local script = Script 'abcdef'
      local got = sample.batch(script, { 'x', 'y' },
         { tokenizer = bytes, temperature = 0, tokens = 4 })
      assert.same({ 'abcd', 'abcd' }, { got[1].text, got[2].text })
      assert.equal(4, script.calls)
      assert.equal('E_ARG', raised(sample.batch, script, {}, {}).code)
      assert.equal('E_ARG', raised(sample.batch, script, { { 1 }, {} }, {}).code)
   end)
end)
