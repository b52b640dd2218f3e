-- Parser of expressions: tokens to a tree of { kind, at, ... }, with Jinja's precedences.
--
-- Its methods belong to the parser of statements (tide.chat.parser), which holds the tokens.

local fault_at = require('tide.chat.lexer').fail

local Expression = {}

local deepest = 150                                   -- levels of nested expressions

-- Raises an error at a token (default: the present one).
function Expression:fail(token, message, ...)
   fault_at('E_FORMAT', self.text, (token or self.token).at, message, ...)
end

-- Raises E_UNSUPPORTED for a construct outside the subset.
function Expression:unsupported(token, message, ...)
   fault_at('E_UNSUPPORTED', self.text, token.at, message, ...)
end

-- Returns the present token and moves to the next.
function Expression:advance()
   local token = self.token
   self.place = self.place + 1
   self.token = self.list[self.place]
   return token
end

-- Returns whether the present token is of a kind; of names, with this text.
function Expression:is(kind, text)
   return self.token.kind == kind and (text == nil or self.token.text == text)
end

-- Consumes the present token if it has this kind and text; returns whether it did.
function Expression:skip(kind, text)
   if not self:is(kind, text) then return false end
   self:advance()
   return true
end

local shown = { eof = 'the end of the template', block_end = "'%}'", output_end = "'}}'",
   name = 'a name', string = 'a string' }

-- Returns a token in words.
function Expression.words(token)
   return token.kind ~= 'name' and shown[token.kind] or ("'%s'"):format(token.text)
end

-- Consumes and returns a token of this kind; raises at any other.
function Expression:expect(kind, text)
   if self:is(kind, text) then return self:advance() end
   self:fail(nil, 'expected %s, got %s', not text and shown[kind] or ("'%s'"):format(text or kind),
      self.words(self.token))
end

-- ---- operators ---------------------------------------------------------------------------------

-- Returns the tree of an expression.
function Expression:expression()
   self.depth = self.depth + 1
   if self.depth > deepest then self:fail(nil, 'expressions are nested too deeply') end
   local node = self:either()
   while self:is('name', 'if') do
      local at = self:advance().at
      local test, other = self:either(), nil
      if self:skip('name', 'else') then other = self:expression() end
      node = { kind = 'cond', at = at, test = test, yes = node, no = other }
   end
   self.depth = self.depth - 1
   return node
end

-- Returns the tree of a left-associative chain of operators of one precedence. signs: the token
-- kinds of the operators, or the keyword of one.
function Expression:grouped(operand, signs)
   local node, word = operand(self), type(signs) == 'string' and signs
   while word and self:is('name', word) or not word and signs[self.token.kind] do
      local token = self:advance()
      node = { kind = word or 'binary', sign = token.text, at = token.at, left = node,
         right = operand(self) }
   end
   return node
end

function Expression:either() return self:grouped(self.both, 'or') end
function Expression:both() return self:grouped(self.negation, 'and') end

function Expression:negation()
   local count, at = 0, self.token.at
   while self:skip('name', 'not') do count = count + 1 end
   local node = self:comparison()
   for _ = 1, math.min(count, 2 - count % 2) do node = { kind = 'not', at = at, value = node } end
   return node
end

local compared = { ['=='] = true, ['!='] = true, ['<'] = true, ['<='] = true, ['>'] = true,
   ['>='] = true }

-- Consumes a comparison operator and returns it; nil at any other token.
function Expression:compare_sign()
   if compared[self.token.kind] then return self:advance().text end
   if self:skip('name', 'in') then return 'in' end
   local following = self.list[self.place + 1]
   if self:is('name', 'not') and following.kind == 'name' and following.text == 'in' then
      self:advance()
      self:advance()
      return 'not in'
   end
end

function Expression:comparison()
   local node, at = self:sum(), self.token.at
   local sign = self:compare_sign()
   if not sign then return node end
   node = { kind = 'compare', at = at, first = node, rest = {} }
   while sign do
      node.rest[#node.rest + 1] = { sign = sign, value = self:sum() }
      sign = self:compare_sign()
   end
   return node
end

local sums = { ['+'] = true, ['-'] = true }
local products = { ['*'] = true, ['/'] = true, ['//'] = true, ['%'] = true }
local powers = { ['**'] = true }

function Expression:sum() return self:grouped(self.concat, sums) end

function Expression:concat()
   local node = self:product()
   if not self:is '~' then return node end
   node = { kind = 'concat', at = self.token.at, node }
   while self:skip '~' do node[#node + 1] = self:product() end
   return node
end

function Expression:product() return self:grouped(self.power, products) end
function Expression:power()
   return self:grouped(function(parser) return parser:unary(true) end, powers)
end

function Expression:unary(with_filter)
   local node
   if self:is '-' or self:is '+' then
      local token = self:advance()
      self.depth = self.depth + 1
      if self.depth > deepest then self:fail(nil, 'expressions are nested too deeply') end
      node = { kind = 'unary', sign = token.text, at = token.at, value = self:unary(false) }
      self.depth = self.depth - 1
   else
      node = self:primary()
   end
   node = self:postfix(node)
   return with_filter and self:filtered(node) or node
end

-- ---- primaries ---------------------------------------------------------------------------------

local constants = { ['true'] = true, ['True'] = true, ['false'] = false, ['False'] = false }

function Expression:named(token)
   if constants[token.text] ~= nil then
      return { kind = 'const', at = token.at, value = constants[token.text] }
   elseif token.text == 'none' or token.text == 'None' then
      return { kind = 'none', at = token.at }
   end
   return { kind = 'name', at = token.at, name = token.text }
end

-- Returns the tree of a literal, name, or what brackets hold.
function Expression:primary()
   local token = self.token
   if token.kind == 'name' then
      return self:named(self:advance())
   elseif token.kind == 'string' then
      local parts = {}
      while self:is 'string' do parts[#parts + 1] = self:advance().text end
      return { kind = 'const', at = token.at, value = table.concat(parts) }
   elseif token.kind == 'integer' then
      return { kind = 'const', at = token.at, value = self:advance().text }
   elseif token.kind == 'float' then
      return { kind = 'float', at = token.at, value = self:advance().text }
   elseif token.kind == '(' then
      self:advance()
      local node = self:tuple { brackets = true }
      self:expect ')'
      return node
   elseif token.kind == '[' then
      return self:list_display()
   elseif token.kind == '{' then
      return self:dict_display()
   end
   self:fail(token, 'expected an expression, got %s', self.words(token))
end

-- Returns whether the tuple ends at the present token.
function Expression:at_tuple_end(stop)
   local kind = self.token.kind
   return kind == 'output_end' or kind == 'block_end' or kind == ')'
      or stop ~= nil and self:is('name', stop)
end

-- Returns an expression, or a tuple where commas follow. opts: brackets (an empty one is allowed),
-- stop (a name that ends it), item (reads a member).
function Expression:tuple(opts)
   local at, items, is_tuple = self.token.at, {}, false
   while true do
      if #items > 0 then self:expect ',' end
      if self:at_tuple_end(opts.stop) then break end
      items[#items + 1] = opts.item and opts.item(self) or self:expression()
      if not self:is ',' then break end
      is_tuple = true
   end
   if not is_tuple then
      if items[1] then return items[1] end
      if not opts.brackets then
         self:fail(nil, 'expected an expression, got %s', self.words(self.token))
      end
   end
   return { kind = 'tuple', at = at, items = items }
end

-- Calls read() for each member between commas, up to the bracket `close`.
function Expression:members(close, read)
   local first = true
   while not self:is(close) do
      if not first then self:expect ',' end
      if self:is(close) then break end
      first = false
      read()
   end
   self:expect(close)
end

function Expression:list_display()
   local node = { kind = 'list', at = self:expect('[').at, items = {} }
   self:members(']', function() node.items[#node.items + 1] = self:expression() end)
   return node
end

function Expression:dict_display()
   local node = { kind = 'dict', at = self:expect('{').at, keys = {}, values = {} }
   self:members('}', function()
      node.keys[#node.keys + 1] = self:expression()
      self:expect ':'
      node.values[#node.values + 1] = self:expression()
   end)
   return node
end

-- ---- what follows a primary --------------------------------------------------------------------

function Expression:postfix(node)
   while true do
      if self:is '.' or self:is '[' then
         node = self:subscript(node)
      elseif self:is '(' then
         node = self:call(node)
      else
         return node
      end
   end
end

function Expression:call(node)
   local at = self.token.at
   return { kind = 'call', at = at, callee = node, args = self:arguments() }
end

function Expression:subscript(node)
   local token = self:advance()
   if token.kind == '.' then
      local name = self:advance()
      if name.kind == 'name' then
         return { kind = 'attribute', at = name.at, value = node, name = name.text }
      elseif name.kind ~= 'integer' then
         self:fail(name, "expected a name or number after '.'")
      end
      local index = { kind = 'const', at = name.at, value = name.text }
      return { kind = 'item', at = name.at, value = node, index = index }
   end
   local index = self:slice()
   if self:is ',' then self:unsupported(self.token, 'several subscripts are not supported') end
   self:expect ']'
   if index.kind == 'slice' then
      index.value = node
      return index
   end
   return { kind = 'item', at = token.at, value = node, index = index }
end

-- Returns a subscript: an expression, or { kind = 'slice', [1] to [3] } with parts left out.
function Expression:slice()
   local node, part = { kind = 'slice', at = self.token.at }, 1
   if not self:is ':' then
      local first = self:expression()
      if not self:is ':' then return first end
      node[1] = first
   end
   while self:skip ':' do
      part = part + 1
      if part > 3 then self:fail(nil, 'a slice has at most three parts') end
      if not (self:is ':' or self:is ']' or self:is ',') then node[part] = self:expression() end
   end
   return node
end

-- Returns the arguments of a call: a list, with names { name, value } in `named`, `star` and
-- `stars` for *x and **x.
function Expression:arguments()
   local token, args = self:expect '(', { named = {} }
   self:members(')', function() self:argument(args, token) end)
   return args
end

function Expression:argument(args, token)
   local following = self.list[self.place + 1]
   local late
   if self:skip '*' then
      late = args.star or args.stars
      args.star = self:expression()
   elseif self:skip '**' then
      late = args.stars
      args.stars = self:expression()
   elseif self:is 'name' and following.kind == '=' then
      late = args.stars
      local name = self:advance().text
      self:advance()
      args.named[#args.named + 1] = { name = name, value = self:expression() }
   else
      late = args.star or args.stars or args.named[1]
      args[#args + 1] = self:expression()
   end
   if late then self:fail(token, 'arguments are in an order that no call has') end
end

-- ---- filters and tests -------------------------------------------------------------------------

function Expression:filtered(node)
   while true do
      if self:is '|' then
         self:advance()
         node = self:filter(node)
      elseif self:is('name', 'is') then
         node = self:test(node)
      elseif self:is '(' then
         node = self:call(node)
      else
         return node
      end
   end
end

-- Raises at an unknown filter or test. Inside an `if` the error is raised at run time, as in Jinja,
-- because templates check there whether a filter is defined.
function Expression:check_known(name, what, known)
   if known[name.text] or self.conditions > 0 then return end
   self:unsupported(name, "there is no %s '%s'%s", what, name.text, self.hint(name.text, known))
end

-- Returns the filter whose name is the present token, over a tree (nil: over a block's text).
function Expression:filter(node)
   local name = self:expect 'name'
   self:check_known(name, 'filter', self.filters)
   local args = self:is '(' and self:arguments() or { named = {} }
   return { kind = 'filter', at = name.at, name = name.text, value = node, args = args }
end

local opens = { name = true, string = true, integer = true, float = true, ['('] = true,
   ['['] = true, ['{'] = true }
local stops = { ['else'] = true, ['or'] = true, ['and'] = true }

function Expression:test_arguments()
   if self:is '(' then return self:arguments() end
   local token = self.token
   if not opens[token.kind] or token.kind == 'name' and stops[token.text] then
      return { named = {} }
   end
   if token.kind == 'name' and token.text == 'is' then
      self:fail(token, "tests cannot be chained with 'is'")
   end
   return { self:postfix(self:primary()), named = {} }
end

function Expression:test(node)
   self:advance()
   local negated = self:skip('name', 'not')
   local name = self:expect 'name'
   self:check_known(name, 'test', self.tests)
   node = { kind = 'test', at = name.at, name = name.text, value = node,
      args = self:test_arguments() }
   return negated and { kind = 'not', at = name.at, value = node } or node
end

return Expression
