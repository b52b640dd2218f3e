-- Figures of a model by the rules of lm-evaluation-harness: perplexity of a text, and accuracy on
-- multiple-choice questions.
--
-- The tokenizer is one of tide.tokenizer, or tide.data.bytes.

local err = require 'tide.util.err'
local dims = require 'tide.util.dims'
local score = require 'tide.train.score'
local signature = require 'tide.util.signature'
local utf = require 'tide.chat.unicode'

local evaluate = {}

-- ---- tokens ------------------------------------------------------------------------------------

-- Returns the ids of a text; is_bare: without the ids that a tokenizer puts around a text.
local function encode(tok, text, is_bare)
   return tok:encode(text, { add_special_tokens = not is_bare })
end

-- Returns the id before a text: bos_token or, without one, eos_token. config: of the
-- model, which is used if the tokenizer names neither.
function evaluate.prefix(tok, config)
   local id = tok.bos or tok.eos or config and (config.bos_token_id or config.eos_token_id)
   if type(id) == 'table' then id = id[1] end
   return id or err.raise('E_FORMAT', 'train.evaluate', 'the tokenizer has neither a bos_token nor '
      .. 'an eos_token, one of which begins a text')
end

-- Returns the ids of a context and of its continuation. White space at the end of the context goes
-- to the continuation; both are encoded as one text, which is cut after as many ids as the context
-- alone has. The prefix replaces an empty context.
function evaluate.pair(tok, context, continuation, opts)
   local kept = utf.strip(context, utf.is_space, false, true)
   if kept == '' then
      local ids = encode(tok, context .. continuation, true)
      local prefix = evaluate.prefix(tok, opts.config)
      if ids[1] == prefix then return { prefix }, dims.slice(ids, 2) end
      return { prefix }, ids
   end
   local whole, front = encode(tok, context .. continuation), encode(tok, kept)
   return front, dims.slice(whole, #front + 1)
end

-- ---- perplexity --------------------------------------------------------------------------------

-- Returns the number of words as Python's re.split(r'\s+', text) counts parts.
local function count_words(text)
   local n, at = 1, 1
   while true do
      local found = text:find('[%s\28-\31\194\225-\227]', at)
      if not found then return n end
      local behind = utf.skip_space(text, found)
      if behind > found then n = n + 1 end
      at = math.max(behind, found + 1)
   end
end

-- Returns the log-probability and the perplexity of a text. Its fields: logprob (the sum), tokens,
-- words, bytes, token_perplexity, word_perplexity, byte_perplexity, bits_per_byte, ids (the prefix
-- first), and values, the log-probabilities of the ids after the prefix. opts: those of
-- score.logprob. Collective.
function evaluate.perplexity(model, tok, text, opts)
   if text == '' then
      err.arg_text('train.evaluate.perplexity', 'text', 'a text', 'an empty one')
   end
   local ids = encode(tok, text)
   table.insert(ids, 1, evaluate.prefix(tok, model.config))
   local r = { ids = ids, values = score.logprob(model, ids, opts), tokens = #ids - 1,
      words = count_words(text), bytes = #text }
   r.logprob = dims.sum(r.values)
   for _, name in ipairs { 'token', 'word', 'byte' } do
      r[name .. '_perplexity'] = math.exp(-r.logprob / r[name .. 's'])
   end
   r.bits_per_byte = -r.logprob / r.bytes / math.log(2)
   return r
end

-- ---- choices -----------------------------------------------------------------------------------

-- Returns the requests of all choices of all items, in order, and how many contexts lose ids.
local function requests_of(model, tok, items, opts)
   local requests, cut = {}, 0
   for n, item in ipairs(items) do
      for i, choice in ipairs(item.choices) do
         local context, rest = evaluate.pair(tok, item.question, opts.delimiter .. choice,
            { config = model.config })
         if #rest == 0 or #rest > opts.seq then
            err.raise('E_FORMAT', 'train.evaluate.choices', '%s: choices[%d]: expected 1 to %d '
               .. 'tokens after the question, got %d', item.place or ('items[%d]'):format(n), i,
               opts.seq, #rest)
         end
         if #context + #rest > opts.seq + 1 then cut = cut + 1 end
         requests[#requests + 1] = { context = context, continuation = rest }
      end
   end
   return requests, cut
end

-- Returns the first of the largest values.
local function best(values)
   local at = 1
   for i = 2, #values do
      if values[i] > values[at] then at = i end
   end
   return at
end

local function over(values, texts, length)
   local out = {}
   for i, v in ipairs(values) do out[i] = v / length(texts[i]) end
   return out
end

-- Returns the values of an item's choices, with what each rule chooses.
local function judge(item, values)
   return { values = values, answer = item.answer, acc = best(values),
      acc_norm = best(over(values, item.choices, utf.length)),
      acc_bytes = best(over(values, item.choices, string.len)) }
end

-- Returns the mean of what is right, and the standard error of it, nil for one item.
local function mean_of(list, rule)
   local n, right = #list, 0
   for _, row in ipairs(list) do right = right + (row[rule] == row.answer and 1 or 0) end
   local mean = right / n
   return mean, n > 1 and math.sqrt(mean * (1 - mean) / (n - 1)) or nil
end

-- Returns the accuracy on a list of questions { question, choices, answer }. Its fields: acc (the
-- likeliest choice is the answer), acc_norm and acc_bytes (after division by the characters or the
-- bytes of a choice), each with its standard error (acc_stderr ..); count; cut (choices whose
-- question lost tokens on the left); items, with the values of the choices and what each rule
-- chooses. opts: those of score.logprob, and delimiter, the text between question and choice.
-- Collective.
function evaluate.choices(model, tok, items, opts)
   if #items == 0 then err.arg_text('train.evaluate.choices', 'items', 'at least one', 'none') end
   local requests, cut = requests_of(model, tok, items, opts)
   local parts = score.loglikelihood(model, requests, { seq = opts.seq, batch = opts.batch,
      sharded = opts.sharded, device = opts.device })
   local r, at = { count = #items, cut = cut, items = {} }, 0
   for n, item in ipairs(items) do
      local values = {}
      for i = 1, #item.choices do values[i] = dims.sum(parts[at + i]) end
      at = at + #values
      r.items[n] = judge(item, values)
   end
   for _, rule in ipairs { 'acc', 'acc_norm', 'acc_bytes' } do
      r[rule], r[rule .. '_stderr'] = mean_of(r.items, rule)
   end
   return r
end

local of_choices = { "delimiter: string = ' ' -- between question and choice", score.options }

return signature.doors('train.evaluate', evaluate, {
   prefix = 'tok: table; config: table?',
   pair = { 'tok: table; context: string; continuation: string',
      opts = { 'config: table? -- configuration of the model' } },
   perplexity = { 'model: module; tok: table; text: string', opts = score.options },
   choices = { 'model: module; tok: table; items: table', opts = of_choices },
})
