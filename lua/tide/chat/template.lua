-- Chat templates: the part of Jinja that published models use, without Python.
--
--    local t = tide.chat.template(text, { bos_token = '<s>', eos_token = '</s>' })
--    local prompt, ranges = t:render(messages, { add_generation_prompt = true, tools = tools })
--
-- Results equal those of transformers' apply_chat_template, byte for byte. A template reads only
-- its variables and returns text; it cannot reach files, Lua functions or other values. Its steps,
-- its output and its call depth are bounded.

local each = require 'tide.util.each'
local err = require 'tide.util.err'
local execute = require 'tide.chat.execute'
local fault = require 'tide.chat.fault'
local fs = require 'tide.util.fs'
local hidden = require 'tide.chat.hidden'
local globals = require 'tide.chat.globals'
local lexer = require 'tide.chat.lexer'
local parser = require 'tide.chat.parser'
local value = require 'tide.chat.value'

local op = 'chat.template'

local template = {}

local Template = {}
Template.__index = Template

-- Bounds of one rendering: steps (nodes evaluated, list members created), output (bytes of one
-- text), depth (nested calls of macros and recursive loops).
local limits = { steps = 2e6, output = 2^26, depth = 100 }

-- ---- one rendering -----------------------------------------------------------------------------

local Run = {}
Run.__index = Run

-- Counts n steps. An operation that makes a list of n members counts n, as it takes memory for n.
function Run:spend(n)
   self.steps = self.steps + n
   if self.steps > self.limits.steps or self.steps ~= self.steps then
      fault.raise('the template takes more than %d steps (limits.steps)', self.limits.steps)
   end
end

-- Counts a step at a node, whose place the next error reports.
function Run:step(node)
   self.node = node
   self:spend(1)
end

-- Raises if a text of n bytes exceeds the limit on output.
function Run:room(n)
   if n > self.limits.output or n ~= n then
      fault.raise('the template makes a text of more than %.0f bytes (limits.output)',
         self.limits.output)
   end
end

-- Counts a call of a macro or a recursive loop.
function Run:enter()
   self.depth = self.depth + 1
   if self.depth > self.limits.depth then
      fault.raise('macros call each other more than %d deep (limits.depth)', self.limits.depth)
   end
end

-- Undoes the count of enter.
function Run:leave() self.depth = self.depth - 1 end

-- Writes to the present output.
function Run:put(text)
   local out = self.out
   out.size = out.size + #text
   self:room(out.size)
   out[#out + 1] = text
end

-- ---- templates ---------------------------------------------------------------------------------

local function check_limits(given)
   local out = {}
   given = err.options(op, given, { 'steps', 'output', 'depth' })
   for name, default in each(limits) do
      out[name] = err.number(op, 'limits.' .. name, given[name] or default, 1)
   end
   return out
end

-- Parses a template. variables: strings that every rendering sees, such as bos_token; limits:
-- { steps, output, depth }. Raises E_FORMAT for a mistake in the template and E_UNSUPPORTED for
-- constructs outside the subset, both with line and column.
function template.new(text, variables, bounds)
   err.type(op, 'text', text, 'string')
   if variables ~= nil then err.type(op, 'variables', variables, 'table') end
   local tree = parser.parse(text, require 'tide.chat.filters', require('tide.chat.tests').table)
   return setmetatable({ tree = tree, hidden = hidden(tree.body), source = text,
      variables = variables or {}, limits = check_limits(bounds) }, Template)
end

-- Fields that may hold a message's reasoning, in order of preference.
local reasoning = { 'reasoning_content', 'thinking', 'reasoning' }

-- Copies the reasoning of a message to `thinking` and `reasoning_content`, as transformers does.
local function alias_reasoning(message)
   local found
   for _, name in ipairs(reasoning) do
      local v = message:get(name)
      if found == nil and v ~= nil and v ~= value.none then found = v end
   end
   if found == nil then return message end
   local out = value.dict()
   out:set('thinking', found)
   for _, key in ipairs(message.keys) do out:set(key, message:get(key)) end
   out:set('reasoning_content', found)
   return out
end

-- Returns the messages as a list of dicts.
local function read_messages(messages)
   err.type('chat.render', 'messages', messages, 'table')
   local list = value.list()
   for i, message in ipairs(messages) do
      list[i] = value.from_lua(message)
      err.arg_if(value.class(list[i]) ~= value.Dict, 'chat.render', ('messages[%d]'):format(i),
         'a table { role =, content = }', message)
      list[i] = alias_reasoning(list[i])
   end
   return list
end

local function context_of(self, messages, opts)
   local context = { tools = value.none, documents = value.none, add_generation_prompt = false }
   for _, from in ipairs { self.variables, opts } do
      for name, v in each(from) do
         err.raise_if(type(name) ~= 'string', 'E_ARG', 'chat.render', 'variables have names, got '
            .. 'the index %s', tostring(name))
         context[name] = value.from_lua(v)
      end
   end
   for _, name in ipairs { 'tools', 'documents' } do     -- an empty table of Lua is a list here
      if type(opts[name]) == 'table' and next(opts[name]) == nil then
         context[name] = value.list()
      end
   end
   context.messages = read_messages(messages)
   return context
end

-- Returns the top scope of a rendering. Names that Jinja hides there are undefined until set.
local function hidden_variables(self)
   local vars = {}
   for _, name in ipairs(self.hidden) do
      vars[name] = value.undefined(("'%s' is undefined"):format(name))
   end
   return vars
end

-- Raises the error of a rendering with line and column.
local function failed(self, rt, e)
   if not fault.is(e) then
      if type(e) ~= 'string' or not e:find('stack overflow', 1, true) then error(e, 0) end
      e = { code = 'E_ARG', message = 'expressions or calls are nested too deeply' }
   end
   local node = rt.node
   if not node then err.raise(e.code, 'chat.render', '%s', e.message) end
   local line, column = lexer.place(self.tree.text, node.at)
   err.raise(e.code, 'chat.render', 'line %d, column %d: %s', line, column, e.message)
end

-- Returns the text of a chat, and the byte ranges of its `generation` blocks as pairs
-- { start, stop }, counted from 0, stop excluded. messages: a list of { role =, content =, .. };
-- opts: variables of the template by name (add_generation_prompt, tools, documents, ...). Values
-- are plain Lua data; tables from json.decode with `lossless` keep the order of their keys, keys of
-- others are sorted. now: the time in seconds for strftime_now. Raises E_ARG with line and column
-- if the template fails or raises an exception about the chat.
function Template:render(messages, opts)
   opts = opts or {}
   err.type('chat.render', 'opts', opts, 'table')
   local root = { size = 0 }
   local rt = setmetatable({ limits = self.limits, steps = 0, depth = 0, out = root, root = root,
      ranges = {}, globals = globals.table, filters = require 'tide.chat.filters',
      tests = require('tide.chat.tests').table, now = opts.now }, Run)
   local ok, e = pcall(function()
      rt.context = context_of(self, messages, opts)
      execute(rt, self.tree.body, { vars = hidden_variables(self) })
   end)
   if not ok then failed(self, rt, e) end
   return table.concat(root), rt.ranges
end

-- Returns whether the template marks the assistant's text with `generation` blocks.
function Template:marks_generation()
   return self.source:find '{%%[-+]?%s*generation%s*[-+]?%%}' ~= nil
end

-- Returns the chat template of a model's folder; see tide.chat.folder.
function template.load(dir, name) return require('tide.chat.folder').load(dir, name) end

-- Returns a float for render, which takes the Lua number 1.0 as the int 1.
function template.float(v) return fs.io().json.float(v) end

return template
