-- Reads chat records of the usual formats as { messages, tools } (a chat), { text } (plain text) or
-- { prompt, completion } (a pair of texts).
--
--    messages       { messages = [ { role, content, tool_calls, .. } ], tools }       (OpenAI)
--    sharegpt       { conversations = [ { from, value } ], system, tools }
--    alpaca         { instruction, input, output, system, history }
--    completion     { prompt, completion } (or response): texts, or lists of messages
--    text           { text } (or content)
--
-- What is wrong with a record is a text that begins with the name of the field.

local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local jsonl = require 'tide.data.jsonl'
local signature = require 'tide.util.signature'

local record = {}

local refuse, is_object = jsonl._wrong, jsonl._is_table

local function text_at(t, name, field)
   local v = t[name]
   if type(v) ~= 'string' then refuse(field or name, 'a text', v) end
   return v
end

-- Returns a text that may be absent, null or empty, else nil.
local function optional(t, name)
   local v = t[name]
   if fs.is_null(v) or v == '' then return nil end
   return text_at(t, name)
end

local function list_at(t, name)
   local v = t[name]
   if not fs.is_list(v) then refuse(name, 'a list', v) end
   if #v == 0 then refuse(name, 'at least one entry', v, 'none') end
   return v
end

-- ---- messages ----------------------------------------------------------------------------------

-- Raises unless the parts of a message's content are objects with a type.
local function check_parts(parts, field)
   for i, part in ipairs(parts) do
      local place = ('%s[%d]'):format(field, i)
      if not is_object(part) then refuse(place, 'an object { type, .. }', part) end
      if type(part.type) ~= 'string' then refuse(place .. '.type', 'a text', part.type) end
      if part.type == 'text' then text_at(part, 'text', place .. '.text') end
   end
end

local function check_message(message, field)
   if not is_object(message) then refuse(field, 'an object { role, content }', message) end
   local role = text_at(message, 'role', field .. '.role')
   if role == '' then refuse(field .. '.role', 'a name', role) end
   local content = message.content
   if is_object(content) then return check_parts(content, field .. '.content') end
   local has_calls = type(message.tool_calls) == 'table' and message.tool_calls[1] ~= nil
   local has_other = has_calls or message.function_call ~= nil or message.reasoning_content ~= nil
   if type(content) ~= 'string' and not (has_other and fs.is_null(content)) then
      refuse(field .. '.content', 'a text or a list of parts', content)
   end
end

local function checked(list, name)
   for i, message in ipairs(list) do check_message(message, ('%s[%d]'):format(name, i)) end
   return list
end

-- Returns the tools of a record: a list, or a text of JSON that holds one.
local function tools_of(t)
   local v = t.tools
   if fs.is_null(v) or v == '' then return nil end
   if type(v) == 'string' then
      local ok, list = pcall(fs.io().json.decode, v, { lossless = true })
      if not ok and err.fault(list) then
         refuse('tools', 'a list, or a text of JSON that holds one', v)
      end
      v = list
   end
   if type(v) ~= 'table' then refuse('tools', 'a list', v) end
   return v[1] ~= nil and v or nil
end

local forms = {}

-- Reads a chat as OpenAI writes it.
function forms.messages(t)
   return { messages = checked(list_at(t, 'messages'), 'messages'), tools = tools_of(t) }
end

local roles = { human = 'user', user = 'user', gpt = 'assistant', assistant = 'assistant',
   chatgpt = 'assistant', bing = 'assistant', bard = 'assistant', model = 'assistant',
   system = 'system', tool = 'tool', observation = 'tool', function_response = 'tool' }

-- Reads a chat of ShareGPT.
function forms.sharegpt(t)
   local list = {}
   local system = optional(t, 'system')
   if system then list[1] = { role = 'system', content = system } end
   for i, turn in ipairs(list_at(t, 'conversations')) do
      local field = ('conversations[%d]'):format(i)
      if not is_object(turn) then refuse(field, 'an object { from, value }', turn) end
      local from = text_at(turn, 'from', field .. '.from')
      if not roles[from] then
         refuse(field .. '.from', 'human, gpt, system, tool or another name of these', from)
      end
      list[#list + 1] = { role = roles[from], content = text_at(turn, 'value', field .. '.value') }
   end
   return { messages = list, tools = tools_of(t) }
end

-- Reads a question with its answer, and turns before them.
function forms.alpaca(t)
   local list, question = {}, text_at(t, 'instruction')
   local system, input = optional(t, 'system'), optional(t, 'input')
   if system then list[1] = { role = 'system', content = system } end
   local history = not fs.is_null(t.history) and t.history or {}
   if type(history) ~= 'table' then refuse('history', 'a list of pairs of texts', history) end
   for i, pair in ipairs(history) do
      local field = ('history[%d]'):format(i)
      if type(pair) ~= 'table' then refuse(field, 'a pair of texts', pair) end
      list[#list + 1] = { role = 'user', content = text_at(pair, 1, field .. '[1]') }
      list[#list + 1] = { role = 'assistant', content = text_at(pair, 2, field .. '[2]') }
   end
   list[#list + 1] = { role = 'user', content = input and question .. '\n' .. input or question }
   list[#list + 1] = { role = 'assistant', content = text_at(t, 'output') }
   return { messages = list }
end

-- Reads a pair: of texts, or of lists of messages.
function forms.completion(t)
   local name = t.completion == nil and t.response ~= nil and 'response' or 'completion'
   if not is_object(t.prompt) then
      return { prompt = text_at(t, 'prompt'), completion = text_at(t, name) }
   end
   local list = {}
   for _, field in ipairs { 'prompt', name } do
      for _, message in ipairs(checked(list_at(t, field), field)) do list[#list + 1] = message end
   end
   return { messages = list, tools = tools_of(t) }
end

-- Reads plain text.
function forms.text(t)
   return { text = text_at(t, t.text == nil and t.content ~= nil and 'content' or 'text') }
end

-- ---- forms -------------------------------------------------------------------------------------

-- The form of a record by the fields it has, in this order.
local signs = {
   { 'messages', 'messages' }, { 'conversations', 'sharegpt' }, { 'instruction', 'alpaca' },
   { 'prompt', 'completion' }, { 'text', 'text' }, { 'content', 'text' },
}

-- Names of the forms.
record.formats = { 'messages', 'sharegpt', 'alpaca', 'completion', 'text' }
record._format = "format: '" .. table.concat(record.formats, "' | '") .. "'?"

local function form_of(t)
   if t.chosen ~= nil and t.rejected ~= nil then
      jsonl._broken('the record is a pair of a chosen and a rejected answer; train on such pairs '
         .. 'with recipes/dpo.lua (data.preference.load)')
   end
   for _, row in ipairs(signs) do
      if t[row[1]] ~= nil then return row[2] end
   end
   local names = fs.io().json.keys(t) or {}
   refuse('record', 'one of the fields messages, conversations, instruction, prompt or text', t,
      #names == 0 and 'no field' or 'the fields ' .. table.concat(names, ', '))
end

-- Reads a record as read does, without checks: for readers of files (see data.jsonl).
function record._of(t, form) return forms[form or form_of(t)](t) end

-- Returns a record of a form (nil: by its fields) as one of the three kinds at the head of this
-- file; or nil and what is wrong with it, which begins with the name of the field.
function record.read(t, form) return jsonl._try(record._of, t, form) end

return signature.doors('data.record', record, {
   read = 't: table; ' .. record._format:gsub('^format', 'form'),
})
