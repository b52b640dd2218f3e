-- Multiple-choice questions from JSON Lines.
--
--    { "question": "2 + 2 =", "choices": ["3", "4"], "answer": 1 }
--
-- The answer is an index from 0, a letter (A is the first choice), or the text of a choice. Forms
-- of published files are read too: `query` or `ctx` for the question, `options` or `endings` for
-- the choices, `answerKey`, `label` or `gold` for the answer, choices as
-- { text = [..], label = [..] } with an answer that is one of the labels, and an index as a text.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local jsonl = require 'tide.data.jsonl'
local signature = require 'tide.util.signature'

local choices = {}

local op = 'data.choices'

local is_null = fs.is_null

-- Returns the value of the first of some fields that a record has, and its name; else nil and the
-- first.
local function field_of(t, names)
   for _, name in ipairs(names) do
      if not is_null(t[name]) then return t[name], name end
   end
   return nil, names[1]
end

-- Returns a list of texts.
local function texts(v, name, least)
   local list = {}
   if not fs.is_list(v) then jsonl._wrong(name, 'a list of texts', v) end
   for i, text in ipairs(v) do
      if type(text) ~= 'string' or text == '' then
         jsonl._wrong(('%s[%d]'):format(name, i), 'a text that is not empty', text)
      end
      list[i] = text
   end
   if #list < least then
      jsonl._broken('%s: expected at least %d, got %d', name, least, #list)
   end
   return list
end

-- Returns the choices and, where the record names them, their labels.
local function choices_of(t)
   local v, name = field_of(t, { 'choices', 'options', 'endings' })
   local is_object = type(v) == 'table' and v.text ~= nil
   if not is_object then return texts(v, name, 2), {} end
   local list = texts(v.text, name .. '.text', 2)
   return list, is_null(v.label) and {} or texts(v.label, name .. '.label', #list)
end

local function position(list, text)
   for i, v in ipairs(list) do
      if v == text then return i end
   end
end

-- Returns the number of the right choice, from 1.
local function answer_of(t, list, labels)
   local v, name = field_of(t, { 'answer', 'answerKey', 'label', 'gold' })
   local i
   if type(v) == 'number' then i = v + 1
   elseif type(v) == 'string' then
      i = position(labels, v) or position(list, v)
         or v:find '^%u$' and v:byte() - 64 or v:find '^%d+$' and tonumber(v) + 1
   end
   if not i or i % 1 ~= 0 or not list[i] then
      jsonl._wrong(name, ('an index from 0 to %d, a letter from A to %s, or the text of a choice')
         :format(#list - 1, string.char(64 + math.min(26, #list))), v)
   end
   return i
end

local function item_of(t, place)
   local question, name = field_of(t, { 'question', 'query', 'ctx' })
   if type(question) ~= 'string' then jsonl._wrong(name, 'a text', question) end
   local list, labels = choices_of(t)
   return { question = question, choices = list, answer = answer_of(t, list, labels),
      place = place }
end

-- Returns a record as { question, choices, answer (from 1) }; or nil and what is wrong with it,
-- which begins with the name of the field.
function choices.read(t) return jsonl._try(item_of, t) end

-- Returns the questions of a file, each with its `place` in it ('FILE, line N'), and bad = { count,
-- the first messages } of the records left out. E_FORMAT names the file, the line and the field.
function choices.load(path, opts)
   local bad = { count = 0 }
   local list = jsonl._records(op, path, opts.skip_bad, bad, item_of)
   if #list == 0 then
      err.raise('E_FORMAT', op, '%s has no question%s', path,
         bad[1] and ' that can be read; ' .. bad[1] or '')
   end
   return list, bad
end

return signature.doors('data.choices', choices, {
   read = 't: table',
   load = { 'path: string', opts = {
      'skip_bad: boolean = false -- leave broken records out, and list them' } },
})
