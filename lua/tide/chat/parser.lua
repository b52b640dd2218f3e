-- Parser of statements: a template as a tree.
--
-- A body is a list of nodes { kind, at, ... }: data, output, for, if, set, set_block, macro, call
-- block, filter block, with, generation, break, continue. Other statements of Jinja (blocks,
-- includes, imports) raise E_UNSUPPORTED with line and column.

local each = require 'tide.util.each'
local Expression = require 'tide.chat.expression'
local lexer = require 'tide.chat.lexer'
local near = require 'tide.util.near'
local tree = require 'tide.chat.tree'

local parser = {}

local ChatParser = setmetatable({}, { __index = Expression })
ChatParser.__index = ChatParser

-- Returns a hint at the nearest of the names of a table.
function ChatParser.hint(name, known)
   local names = {}
   for key in each(known) do names[#names + 1] = key end
   return near.hint(name, names)
end

local statements = {}

-- ---- bodies ------------------------------------------------------------------------------------

-- Reads nodes up to a tag whose name is one of `ends`, which stays the present token; up to the end
-- of the template if `ends` is nil.
function ChatParser:body(ends, opener)
   local list = {}
   self.depth = self.depth + 1
   if self.depth > 150 then self:fail(nil, 'blocks are nested too deeply') end
   while true do
      local token = self:advance()
      if token.kind == 'data' then
         list[#list + 1] = { kind = 'data', at = token.at, text = token.text }
      elseif token.kind == 'output' then
         list[#list + 1] = { kind = 'output', at = token.at, value = self:tuple {} }
         self:expect 'output_end'
      elseif token.kind == 'block' then
         if ends and self.token.kind == 'name' and ends[self.token.text] then break end
         list[#list + 1] = self:statement()
      elseif ends then
         self:fail(opener, "'%s' has no end", opener.text)
      else
         break
      end
   end
   self.depth = self.depth - 1
   return list
end

-- Reads the rest of a tag and the body after it, and consumes end_NAME.
function ChatParser:block(opener, last)
   self:skip ':'
   self:expect 'block_end'
   local list = self:body({ [last] = true }, opener)
   self:advance()
   return list
end

local outside = {}
for name in ('block extends include import from autoescape do trans debug print'):gmatch '%a+' do
   outside[name] = true
end

function ChatParser:statement()
   local token = self.token
   local read = token.kind == 'name' and statements[token.text]
   if not read then
      if token.kind == 'name' and outside[token.text] then
         self:unsupported(token, "the tag '%s' is not supported in chat templates", token.text)
      end
      self:fail(token, 'unknown tag %s', self.words(token))
   end
   self:advance()
   local node = read(self, token)
   self:expect 'block_end'
   return node
end

-- ---- targets -----------------------------------------------------------------------------------

local reserved = { ['true'] = true, ['false'] = true, none = true, True = true, False = true,
   None = true }

-- Reads the name of an assignment target.
function ChatParser:target_name()
   local token = self:expect 'name'
   if reserved[token.text] then self:fail(token, "'%s' cannot be assigned to", token.text) end
   return { kind = 'name', at = token.at, name = token.text }
end

local function target_item(self)
   if self:is '(' then
      self:advance()
      local node = self:tuple { brackets = true, item = target_item }
      self:expect ')'
      return node
   end
   local node = self:target_name()
   if self.with_namespace and self:skip '.' then
      node = { kind = 'field', at = node.at, name = node.name, field = self:expect('name').text }
   end
   return node
end

-- Reads the target of a `for`, `set` or `with`. stop: the keyword after it.
function ChatParser:target(stop, with_namespace)
   self.with_namespace = with_namespace
   return self:tuple { item = target_item, stop = stop }
end

-- Reads parameters: a list of { name, default }.
function ChatParser:parameters()
   local list = {}
   self:expect '('
   while not self:is ')' do
      if #list > 0 then self:expect ',' end
      local row = { name = self:target_name().name }
      if self:skip '=' then
         row.default = self:expression()
      elseif #list > 0 and list[#list].default then
         self:fail(nil, 'a parameter without a default follows one with a default')
      end
      list[#list + 1] = row
   end
   self:expect ')'
   return list
end

-- ---- statements --------------------------------------------------------------------------------

-- Calls fn with whether a loop is around the present place set to `in_loop`.
local function with_loop(self, in_loop, fn, ...)
   local before = self.in_loop
   self.in_loop = in_loop
   local result = fn(self, ...)
   self.in_loop = before
   return result
end

local function no_condition(self) return self:either() end

statements['for'] = function(self, token)
   local node = { kind = 'for', at = token.at, target = self:target 'in' }
   self:expect('name', 'in')
   node.iter = self:tuple { item = no_condition, stop = 'recursive' }
   if self:skip('name', 'if') then node.test = self:expression() end
   node.recursive = self:skip('name', 'recursive')
   self:skip ':'
   self:expect 'block_end'
   node.body = with_loop(self, true, self.body, { endfor = true, ['else'] = true },
      token)
   if self:advance().text == 'else' then node.other = self:block(token, 'endfor') end
   return node
end

statements['if'] = function(self, token)
   local node = { kind = 'if', at = token.at, branches = {} }
   local ends = { ['elif'] = true, ['else'] = true, ['endif'] = true }
   self.conditions = self.conditions + 1
   repeat
      local branch = { test = self:tuple { item = no_condition } }
      self:skip ':'
      self:expect 'block_end'
      branch.body = self:body(ends, token)
      node.branches[#node.branches + 1] = branch
      local word = self:advance().text
      if word == 'else' then node.other = self:block(token, 'endif') end
   until word ~= 'elif'
   self.conditions = self.conditions - 1
   return node
end

function statements.set(self, token)
   local target = self:target(nil, true)
   if self:skip '=' then
      return { kind = 'set', at = token.at, target = target, value = self:tuple {} }
   end
   local filter
   while self:skip '|' do filter = self:filter(filter or { kind = 'block_text' }) end
   return { kind = 'set_block', at = token.at, target = target, filter = filter,
      body = self:block(token, 'endset') }
end

-- Notes which of `caller`, `varargs` and `kwargs` the body of a macro uses.
local function finish_macro(node)
   local names = tree.names(node.body)
   for _, name in ipairs { 'caller', 'varargs', 'kwargs' } do
      node['uses_' .. name] = names[name] == true
   end
   return node
end

function statements.macro(self, token)
   local node = { kind = 'macro', at = token.at, name = self:target_name().name }
   node.parameters = self:parameters()
   node.body = with_loop(self, false, self.block, token, 'endmacro')
   return finish_macro(node)
end

function statements.call(self, token)
   local node = { kind = 'call_block', at = token.at, parameters = {} }
   if self:is '(' then node.parameters = self:parameters() end
   node.call = self:expression()
   if node.call.kind ~= 'call' then self:fail(token, "a call must follow 'call'") end
   node.body = with_loop(self, false, self.block, token, 'endcall')
   return finish_macro(node)
end

function statements.filter(self, token)
   local node = { kind = 'filter_block', at = token.at }
   node.filter = self:filter { kind = 'block_text' }
   while self:skip '|' do node.filter = self:filter(node.filter) end
   node.body = self:block(token, 'endfilter')
   return node
end

statements['with'] = function(self, token)
   local node = { kind = 'with', at = token.at, targets = {}, values = {} }
   while not self:is 'block_end' do
      if #node.targets > 0 then self:expect ',' end
      node.targets[#node.targets + 1] = target_item(self)
      self:expect '='
      node.values[#node.values + 1] = self:expression()
   end
   node.body = self:block(token, 'endwith')
   return node
end

function statements.generation(self, token)
   return { kind = 'generation', at = token.at,
      body = with_loop(self, false, self.block, token, 'endgeneration') }
end

local function jump(kind)
   return function(self, token)
      if not self.in_loop then self:fail(token, "'%s' is outside of a loop", kind) end
      return { kind = kind, at = token.at }
   end
end
statements['break'], statements['continue'] = jump 'break', jump 'continue'

-- Returns the tree of a template { body, text }. filters, tests: tables whose keys are the names
-- that exist. Raises E_FORMAT for mistakes and E_UNSUPPORTED for what is not in the subset, with
-- line and column.
function parser.parse(source, filters, tests)
   local list, text = lexer.read(source)
   local self = setmetatable({ list = list, text = text, place = 1, token = list[1], depth = 0,
      conditions = 0, filters = filters, tests = tests }, ChatParser)
   return { body = self:body(), text = text }
end

return parser
