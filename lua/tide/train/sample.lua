-- Continuing prompts: one or several at a time, by draws that depend on the seed alone.
--
-- `pick` is pure. `generate` keeps keys, values and states of earlier tokens; when the context is
-- full it starts again from its second half.

local answers = require 'tide.train.answer'
local by_key = require 'tide.util.by_key'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local finally = require 'tide.util.finally'
local hash = require 'tide.util.hash'
local pick = require 'tide.train.pick'
local rows_ = require 'tide.train.rows'
local signature = require 'tide.util.signature'

local sample = {}

-- Returns an id (from 0) drawn from a list of logits with the number u in [0, 1).
function sample.pick(logits, u, opts)
   local op = 'train.sample.pick'
   for i, v in ipairs(logits) do
      if type(v) ~= 'number' then err.arg(op, ('logits[%d]'):format(i), 'a number', v) end
   end
   if #logits == 0 then err.arg_text(op, 'logits', 'at least one number', 'none') end
   return pick.draw(op, logits, u, opts)
end

-- ---- one group of prompts ----------------------------------------------------------------------

-- Returns the id of the largest logit of each row, found without copying the logits out; nil where
-- the draw needs more than that: it has penalties or a temperature, or refuses NaN.
local function best_ids(logits, o)
   if o.temperature ~= 0 or o.repetition_penalty ~= 1 or o.presence_penalty ~= 0
      or o.frequency_penalty ~= 0 then
      return nil
   end
   for _, most in ipairs(logits:amax(2):tolist()) do
      if most ~= most then return nil end
   end
   return logits:argmax(2):tolist()
end

-- Draws the next id of each answer that goes on; the others repeat their last one, so that their
-- rows stay. Returns whether any goes on.
local function draw_rows(group, logits, i, o)
   local goes_on, best = false, best_ids(logits, o)
   local lists = not best and logits:tolist()
   for r, answer in ipairs(group) do
      if not answer.reason and best then
         answer:add(best[r])
      elseif not answer.reason then
         pick.penalise(lists[r], answer.seen, answer.said, o)
         answer:add(pick.draw(o.op, lists[r], hash.mix(o.seed + answer.row - 1, i) / 2^32, o))
      end
      goes_on = goes_on or not answer.reason
   end
   return goes_on
end

-- Returns the ids of each answer that a model without keys and values of it must read: all in its
-- window, or the second half of the context where that is full.
local function windows(group, context)
   local lists = {}
   for r, answer in ipairs(group) do
      local n = answer.window and answer.window + 1 or #answer.all
      answer.window = n > context and math.floor(context / 2) or n
      lists[r] = dims.slice(answer.all, #answer.all - answer.window + 1)
   end
   return lists
end

-- Returns whether an answer's window has no room for another token, or holds none yet.
local function is_full(group, context)
   for _, answer in ipairs(group) do
      local n = answer.window
      if not answer.reason and (not n or n + 1 > context) then return true end
   end
   return false
end

-- Continues the answers of a group together. Answers that have ended leave it when the others are
-- read again.
local function run_group(rows, group, o)
   local context, goes_on = rows.context, true
   for i = 1, o.tokens do
      if not goes_on then break end
      local logits
      if is_full(group, context) or rows:switches() then
         local going = {}
         for _, answer in ipairs(group) do
            if not answer.reason then going[#going + 1] = answer end
         end
         group = going
         logits = rows:begin(windows(group, context))
      else
         local lists = {}
         for r, answer in ipairs(group) do
            lists[r], answer.window = { answer.all[#answer.all] }, answer.window + 1
         end
         logits = rows:advance(lists)
      end
      goes_on = draw_rows(group, logits, i, o)
   end
end

-- ---- doors -------------------------------------------------------------------------------------

-- Returns a prompt as ids.
local function ids_of(op, name, prompt, o)
   local ids = prompt
   if type(prompt) == 'string' then
      if not o.tokenizer then err.arg(op, name, 'ids, as there is no tokenizer', prompt) end
      ids = o.tokenizer:encode(prompt)
   end
   rows_.check_ids(op, name, ids, o.vocab)
   return ids
end

-- Completes the options.
local function settled(op, model, o)
   if type(model.config) ~= 'table' then err.arg(op, 'model', 'a model of tide.model', model) end
   o.op, o.stops, o.stop_strings = op, {}, o.stop_strings or {}
   o.vocab = model.config.vocab_size
   local stop = o.stop
   if stop ~= nil and type(stop) ~= 'table' then stop = { stop } end
   for _, id in ipairs(stop and err.integers(op, 'stop', stop, 0) or {}) do o.stops[id] = true end
   err.arg_if((o.stop_strings[1] or o.on_text) and not o.tokenizer, op, 'tokenizer',
      'a tokenizer, which stop_strings and on_text need', nil)
   for i, text in ipairs(o.stop_strings) do
      err.arg_if(text == '', op, ('stop_strings[%d]'):format(i), 'at least one character', text)
   end
   return o
end

-- Raises where a prompt without images has tokens that stand for one.
local function check_text(model, list, o)
   local c = model.config
   for _, answer in ipairs(model.image_fields and list or {}) do
      for t, id in ipairs(answer.all) do
         local kind = id == c.image_token_id and 'image' or id == c.video_token_id and 'video'
         err.raise_if(kind, 'E_ARG', o.op, 'token %d of the prompt is %s_token_id (%d), but there '
            .. 'are no images; give inputs = { pixel_values =, image_grid_thw = }%s', t, kind, id,
            c.video_token_id and ', or those of videos' or '')
      end
   end
end

-- Raises unless a model takes images, and has room for the answers: what is dropped when its
-- context is full could be a part of an image.
local function check_inputs(model, list, rows, o)
   if not o.inputs then return check_text(model, list, o) end
   err.arg_if(not model.image_fields, o.op, 'inputs', 'nil, as the model takes ids alone', o.inputs)
   err.options(o.op .. ': inputs', o.inputs, model.image_fields)
   for _, answer in ipairs(list) do
      local n = #answer.all + o.tokens
      err.raise_if(n > rows.context, 'E_ARG', o.op, 'a prompt of %d tokens and an answer of %d are '
         .. 'more than the context (%d), and a prompt with images is not shortened; give fewer '
         .. 'tokens', #answer.all, o.tokens, rows.context)
   end
end

-- Returns the columns for a call: those that opts.cache keeps, if they are of this model, or new
-- ones.
local function columns(model, o)
   local first = model:parameters()[1]
   local fresh = rows_.new(model, o.context, o.device or first and first.device)
   local kept = o.cache and o.cache.rows
   if not kept or kept.model ~= model or kept.device ~= fresh.device then kept = fresh end
   kept.context, kept.inputs, kept.keeps = fresh.context, o.inputs, o.cache ~= nil
   if o.cache then o.cache.rows = kept end
   return kept
end

-- Returns the groups of answers that run together: all, where the model takes rows of different
-- lengths.
local function grouped(model, list, o)
   if rows_.takes_ragged(model) then return { list } end
   err.raise_if(o.inputs and list[2], 'E_UNSUPPORTED', o.op, 'prompts with images of a model whose '
      .. 'rotary frequencies depend on the length run one at a time; call generate for each')
   local groups, of_length = by_key()
   for _, answer in ipairs(list) do table.insert(of_length(#answer.all), answer) end
   return groups
end

-- Continues all prompts; returns their results in order.
local function continue(op, model, prompts, o)
   local list = {}
   for row, ids in ipairs(prompts) do
      local name = #prompts == 1 and 'prompt' or ('prompts[%d]'):format(row)
      list[row] = answers.new(ids_of(op, name, ids, o), o, row)
   end
   local was_training = model.training
   model:eval()
   finally(function() model:train(was_training) end, require('tide').no_grad, function()
      for _, group in ipairs(grouped(model, list, o)) do
         local rows = columns(model, o)
         finally(function() rows.inputs = nil end, function()      -- a cache keeps no patches
            check_inputs(model, group, rows, o)
            run_group(rows, group, o)
         end)
      end
   end)
   for row, answer in ipairs(list) do list[row] = answer:finish() end
   return list
end

-- Continues a list of ids or, with a tokenizer, a text. Returns the list of new ids, and a table
-- { ids, text, reason }: text where there is a tokenizer, without the stop string; reason 'stop'
-- (an id), 'stop_string', 'callback' (on_token) or 'length'.
function sample.generate(model, prompt, opts)
   local op = 'train.sample.generate'
   local result = continue(op, model, { prompt }, settled(op, model, opts))[1]
   return result.ids, result
end

-- Continues several prompts of any lengths together; models whose rotary frequencies depend on the
-- length take those of equal length together. Returns a list of { ids, text, reason }, in order.
-- Prompt number r is drawn as generate draws it with the seed `seed + r - 1`; the callbacks get r
-- as second argument.
function sample.batch(model, prompts, opts)
   local op = 'train.sample.batch'
   if #prompts == 0 then err.arg_text(op, 'prompts', 'at least one prompt', 'none') end
   return continue(op, model, prompts, settled(op, model, opts))
end

local drawing = {
   'temperature: number >= 0 = 1 -- divides the logits; 0 takes the most likely id',
   'top_k: integer >= 0 = 0 -- draws among the k most likely ids; 0: all',
   'top_p: number in [1e-9, 1] = 1 -- draws among the likeliest ids that reach this share together',
   'min_p: number in [0, 1] = 0 -- leaves out ids less likely than this fraction of the most '
      .. 'likely one',
}
local going_on = {
   'repetition_penalty: number >= 1e-9 = 1 -- above 1: ids of prompt or answer get less likely',
   'presence_penalty: number = 0 -- is subtracted from the logits of ids in the answer',
   'frequency_penalty: number = 0 -- is subtracted from them as often as they occur in it',
   'tokens: integer >= 0 = 128 -- new ids, at most', 'seed: integer >= 0 = 0 -- seed of draws',
   'stop: any? -- an id that ends the answer, or a list of them',
   'stop_strings: string[]? -- texts that end the answer',
   'tokenizer: table? -- a tokenizer, or tide.data.bytes: prompts and answers as text',
   'device: string? -- device of the ids; by default that of the model',
   'context: integer? >= 2 -- most tokens seen at once; by default as the model was trained',
   "on_token: function? -- called with each id; returns 'stop' to end the answer",
   'on_text: function? -- called with each piece of text, which ends with a whole character',
   'inputs: table? -- what the model gets beside the ids of all prompts: pixel_values and '
      .. 'image_grid_thw, pixel_values_videos, video_grid_thw and second_per_grid_ts',
}
return signature.doors('train.sample', sample, {
   pick = { 'logits: table; u: number in [0, 1]', opts = { drawing, going_on } },
   generate = { 'model: module; prompt: string | integer[]', opts = { drawing, going_on,
      'cache: table? -- empty at first: keeps keys, values and states; the next call with it reads '
      .. 'only from the first id that differs' } },
   batch = { 'model: module; prompts: table', opts = { drawing, going_on } },
})
