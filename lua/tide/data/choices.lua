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

-- The value of the first of some fields that a record has, and its name; else nil and the first.
local function field_of(t, names)
   for _, name in ipairs(names) do
      if not is_null(t[name]) then return t[name], name end
   end
   return nil, names[1]
end

-- Returns what a value is, in words.
local function shown(v)
   if v == nil then return 'nothing' end
   if type(v) == 'table' then return fs.io().json.is_array(v) and 'a list' or 'an object' end
   return err.show(v)
end

-- Why a value of a field is wrong.
local function wrong(name, expected, v)
   return nil, ('%s: expected %s, got %s'):format(name, expected, shown(v))
end

-- Returns a list of texts, or nil and what is wrong with it.
local function texts(v, name, least)
   if type(v) ~= 'table' or not (fs.io().json.is_array(v) or v[1] ~= nil) then
      return wrong(name, 'a list of texts', v)
   end
   local list = {}
   for i, text in ipairs(v) do
      if type(text) ~= 'string' or text == '' then
         return wrong(('%s[%d]'):format(name, i), 'a text that is not empty', text)
      end
      list[i] = text
   end
   if #list < least then
      return nil, ('%s: expected at least %d, got %d'):format(name, least, #list)
   end
   return list
end

-- Returns the choices and, where the record names them, their labels; or nil and why.
local function choices_of(t)
   local v, name = field_of(t, { 'choices', 'options', 'endings' })
   local is_object = type(v) == 'table' and v.text ~= nil
   local list, why = texts(is_object and v.text or v, is_object and name .. '.text' or name, 2)
   if not list then return nil, why end
   local labels = {}
   if is_object and not is_null(v.label) then
      labels, why = texts(v.label, name .. '.label', #list)
      if not labels then return nil, why end
   end
   return list, labels
end

local function position(list, text)
   for i, v in ipairs(list) do
      if v == text then return i end
   end
end

-- Returns the number of the right choice, from 1; or nil and why.
local function answer_of(t, list, labels)
   local v, name = field_of(t, { 'answer', 'answerKey', 'label', 'gold' })
   local i
   if type(v) == 'number' then i = v + 1
   elseif type(v) == 'string' then
      i = position(labels, v) or position(list, v)
         or v:find '^%u$' and v:byte() - 64 or v:find '^%d+$' and tonumber(v) + 1
   end
   if not i or i % 1 ~= 0 or not list[i] then
      return wrong(name, ('an index from 0 to %d, a letter from A to %s, or the text of a choice')
         :format(#list - 1, string.char(64 + math.min(26, #list))), v)
   end
   return i
end

-- Returns a record as { question, choices, answer (from 1) }; or nil and what is wrong with it,
-- which begins with the name of the field.
function choices.read(t)
   local question, name = field_of(t, { 'question', 'query', 'ctx' })
   if type(question) ~= 'string' then return wrong(name, 'a text', question) end
   local list, labels = choices_of(t)
   if not list then return nil, labels end
   local answer, why = answer_of(t, list, labels)
   if not answer then return nil, why end
   return { question = question, choices = list, answer = answer }
end

-- Returns the questions of a file, each with its `place` in it ('FILE, line N'), and `bad`, a list
-- of what is wrong with the records left out, which is empty without skip_bad. E_FORMAT names the
-- file, the line and the field.
function choices.load(path, opts)
   local list, bad = {}, {}
   jsonl.each(path, function(t, place, problem)
      local item
      if t then item, problem = choices.read(t) end
      if item then
         item.place = place
         list[#list + 1] = item
      elseif opts.skip_bad then
         bad[#bad + 1] = place .. ': ' .. problem
      else
         err.raise('E_FORMAT', op, '%s: %s', place, problem)
      end
   end)
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
