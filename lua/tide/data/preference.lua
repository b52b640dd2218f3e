-- Preferences from files: a prompt with a chosen and a rejected answer, as trl has them.
--
--    { prompt, chosen, rejected }      texts, or lists of messages { role, content }
--    { chosen, rejected }              whole chats or texts, which begin with the same prompt
--
-- A pair becomes two neighbouring documents, the prompt with each answer; the mask is 1 for tokens
-- of the answer. data.packed keeps pairs in a row with together = 2. `sampler` here does that, and
-- makes batches for nn.preference.objective.

local chat = require 'tide.data.chat'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local image_parts = require 'tide.data.image_parts'
local jsonl = require 'tide.data.jsonl'
local packed = require 'tide.data.packed'
local record = require 'tide.data.record'
local signature = require 'tide.util.signature'

local preference = {}

-- ---- records -----------------------------------------------------------------------------------

local is_table = jsonl._is_table

local function same_message(a, b)
   return type(a) == 'table' and type(b) == 'table' and a.role == b.role
      and fs.io().json.encode(a.content) == fs.io().json.encode(b.content)
end

-- Returns the length of the common beginning of two lists or texts.
local function alike(a, b)
   local n = 0
   local text = type(a) == 'string'
   for i = 1, math.min(#a, #b) do
      if text and a:byte(i) ~= b:byte(i) or not text and not same_message(a[i], b[i]) then break end
      n = i
   end
   return n
end

-- Returns whether byte i of a text continues a character of UTF-8.
local function continues(s, i) return (s:byte(i) or 0) >= 0x80 and s:byte(i) < 0xC0 end

-- Splits two answers that hold their prompt. Texts part at a space, or at the character that
-- differs.
local function split(a, b)
   local n = alike(a, b)
   if type(a) ~= 'string' then
      n = math.min(n, #a - 1, #b - 1)
      if n < 1 then
         jsonl._broken('chosen, rejected: expected lists that begin with the same messages, the '
            .. 'prompt, where the record has none of its own; they differ from the first one on')
      end
      return { unpack(a, 1, n) }, { unpack(a, n + 1) }, { unpack(b, n + 1) }
   end
   while n > 0 and (continues(a, n + 1) or continues(b, n + 1)) do n = n - 1 end
   if a:sub(n, n) == ' ' then n = n - 1 end
   return a:sub(1, n), a:sub(n + 1), b:sub(n + 1)
end

-- Returns prompt, chosen, rejected, where an answer may hold the prompt as well.
local function parts_of(t)
   local prompt, chosen, rejected = t.prompt, t.chosen, t.rejected
   if is_table(chosen) and is_table(rejected) and type(prompt) == 'string' then
      local first = chosen[1]
      if type(first) == 'table' and first.role ~= 'assistant' then
         return split(chosen, rejected)
      end
      return { { role = 'user', content = prompt } }, chosen, rejected
   end
   if not fs.is_null(prompt) then return prompt, chosen, rejected end
   if type(chosen) ~= type(rejected) then return '', chosen, rejected end
   return split(chosen, rejected)
end

local function is_empty(v)
   if type(v) == 'string' then return not v:find '%S' end
   if not is_table(v) then return false end
   for _, m in ipairs(v) do
      if type(m) ~= 'table' or m.tool_calls or is_table(m.content)
         or type(m.content) == 'string' and m.content:find '%S' then return false end
   end
   return true
end

local function check_given(t, name)
   if fs.is_null(t[name]) then
      jsonl._broken('%s: expected an answer (a text, or a list of messages), got nothing; a pair '
         .. 'has a chosen and a rejected answer', name)
   end
end

-- ---- documents ---------------------------------------------------------------------------------

local function joined(a, b)
   local out = { unpack(a) }
   for _, m in ipairs(b) do out[#out + 1] = m end
   return out
end

-- Returns the text that a template writes for a prompt and an answer (messages), and the bytes of
-- the answer.
local function chat_text(prompt, answer, tools, o)
   if not o.template then
      jsonl._broken('the record has messages, and there is no template to write them with '
         .. '(template, --chat-template)')
   end
   chat._check_roles(joined(prompt, answer), o)
   local text, before = jsonl._guard('the template: ', function()
      return (o.template:render(joined(prompt, answer), { tools = tools })),
         (o.template:render(prompt, { tools = tools, add_generation_prompt = true }))
   end)
   if text:sub(1, #before) ~= before then
      jsonl._broken('the template writes the prompt otherwise where an answer follows, so that the '
         .. 'part of the answer is not known')
   end
   return text, { { #before, #text } }
end

-- Returns prompt and answer, lists of messages, with the parts of images in one spelling, and these
-- images. at: { record, file, place }. Messages that both answers share are copied.
local function with_images(prompt, answer, name, at, o)
   local messages = {}
   for i, m in ipairs(joined(prompt, answer)) do messages[i] = copy(m) end
   local found = image_parts._take(at.record, messages, at.file, at.place, o.images, function(i)
      return i <= #prompt and ('prompt[%d]'):format(i) or ('%s[%d]'):format(name, i - #prompt)
   end)
   if #found == 0 then return prompt, answer, found end
   return { unpack(messages, 1, #prompt) }, { unpack(messages, #prompt + 1) }, found
end

-- Returns the document of a prompt with an answer. at: { record, file, place }.
local function document(prompt, answer, name, at, o)
   local tools = at.record.tools
   if is_table(prompt) and type(answer) == 'string' then
      answer = { { role = 'assistant', content = answer } }
   end
   local example, problem = record.read({ prompt = prompt, completion = answer, tools = tools },
      'completion')
   if not example then jsonl._broken('%s', (problem:gsub('^completion', name))) end
   if not example.messages and not o.template then
      local n = #prompt
      image_parts._take(at.record, nil, at.file, at.place, o.images)
      return chat._tokenized(prompt .. answer, { { n, n + #answer } }, false, o)
   end
   if not example.messages then
      prompt, answer = { { role = 'user', content = prompt } },
         { { role = 'assistant', content = answer } }
   end
   local found
   prompt, answer, found = with_images(prompt, answer, name, at, o)
   local text, ranges = chat_text(prompt, answer, example.tools, o)
   return chat._tokenized(text, ranges, true, o, nil, found)
end

-- Returns the two documents of a record. file, place: where it is.
local function read(t, o, file, place)
   check_given(t, 'chosen')
   check_given(t, 'rejected')
   local prompt, chosen, rejected = parts_of(t)
   local function of(answer, name)
      if is_empty(answer) then
         jsonl._broken('%s: expected an answer, got an empty one%s', name,
            t.prompt == nil and ' behind the prompt that both answers begin with' or '')
      end
      return document(prompt, answer, name, { record = t, file = file, place = place }, o)
   end
   return { of(chosen, 'chosen'), of(rejected, 'rejected') }
end

-- Reads pairs of JSON Lines. paths: a file or folder, or a list of them. Returns what
-- data.chat.load returns, with two documents for each of `documents` records. E_FORMAT names file,
-- line and field of what is broken.
function preference.load(paths, opts)
   local corpus = chat._load('data.preference.load', paths, opts, read)
   corpus.kind = 'preference'
   return corpus
end

-- ---- batches -----------------------------------------------------------------------------------

local Packed = packed._Packed
local Sampler = setmetatable({}, { __index = Packed })
Sampler.__index = Sampler

-- Returns the sums of log-probabilities under the reference, by the first token of an answer.
local function reference_of(self, source)
   return source == self.val_source and self.reference.val or self.reference.train
end

-- Adds to a batch of rows what a loss over answers needs: answers i64 [1, T] (the answer of each
-- token), pairs, count (the same), reference (a list of 2 pairs numbers, nil until it is known).
function Sampler:make(source, rows, device, same_rows)
   local batch = Packed.make(self, source, rows, device, same_rows)
   local known, list, n = reference_of(self, source), {}, 0
   for _, row in ipairs(rows) do
      for _, piece in ipairs(row) do
         n = n + 1
         list[n] = known[piece[1]]
      end
   end
   batch.answers = batch.index:select(3, 1):clamp(0, n - 1):to 'i64'
   batch.pairs, batch.count = n / 2, n / 2
   batch.reference = #list == n and list or nil
   return batch
end

-- Returns the sums in the order of the documents, for a checkpoint; 0 for answers that no row has.
local function listed(known, cu)
   local list = {}
   for i = 1, #cu - 1 do list[i] = known[cu[i]] or 0 end
   return list
end

-- Sets the sums of a part ('train' or 'val'): by the first token of each answer.
function Sampler:set_reference(part_name, known) self.reference[part_name] = known end

-- Returns the state of data.packed with the sums under the reference.
function Sampler:state()
   local s = Packed.state(self)
   s.reference = { train = listed(self.reference.train, self.cu),
      val = self.val_cu and listed(self.reference.val, self.val_cu) or nil }
   return s
end

-- Continues where a state was taken, with its reference.
function Sampler:restore(state)
   local op = 'data.preference.restore'
   Packed.restore(self, state)
   for name, cu in require 'tide.util.each' { train = self.cu, val = self.val_cu } do
      local list, known = (state.reference or {})[name], {}
      err.raise_if(not list or #list ~= #cu - 1, 'E_ARG', op, 'the state was saved with %d %s '
         .. 'answers, this run has %d', list and #list or 0, name, #cu - 1)
      for i, sum in ipairs(list) do known[cu[i]] = sum end
      self.reference[name] = known
   end
end

-- Returns a sampler of rows of pairs: data.packed.new with together = 2, whose batches say which
-- tokens are of which answer. Its state holds the sums under the reference.
function preference.sampler(opts)
   err.raise_if(opts.together ~= 1 and opts.together ~= 2, 'E_ARG', 'data.preference.sampler',
      'together: the answers of a pair are 2, got %d', opts.together)
   opts.together = 2
   local self = packed.new(opts)
   self.reference = { train = {}, val = {} }
   return setmetatable(self, Sampler)
end

return signature.doors('data.preference', preference, {
   load = { 'paths: string | string[]', opts = {
      'tokenizer: table -- of tide.tokenizer, or tide.data.bytes',
      'template: table? -- of tide.chat, which writes messages as text',
      'train_on: string[]? -- roles that are known beside the assistant',
      'images: table? -- of data.chat.images; without it a pair with images is a broken record',
      'skip_bad: boolean = false -- broken records are counted and left out',
      'val: number in [0, 0.5] = 0.05 -- share of the records of a file that is held out' } },
   sampler = { opts = packed.options },
})
