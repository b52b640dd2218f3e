-- Template text as a list of tokens { kind, text, at }, `at` the byte where it starts.
--
-- Kinds: 'data'; 'output' and 'output_end'; 'block' and 'block_end'; between these 'name',
-- 'string', 'integer', 'float', and operators, whose kind is the operator itself. Comments and raw
-- blocks become data. White space follows Jinja's trim_blocks and lstrip_blocks.

local err = require 'tide.util.err'
local escapes = require 'tide.chat.escapes'
local utf = require 'tide.chat.unicode'

local lexer = {}

-- Returns line and column (in bytes), both from 1, of byte `at`.
function lexer.place(text, at)
   local line, start = 1, 1
   for stop in text:gmatch '()\n' do
      if stop >= at then break end
      line, start = line + 1, stop + 1
   end
   return line, at - start + 1
end

-- Raises an error of the template at byte `at`.
function lexer.fail(code, text, at, message, ...)
   local line, column = lexer.place(text, at)
   err.raise(code, 'chat.template', 'line %d, column %d: %s', line, column, message:format(...))
end

local Lexer = {}
Lexer.__index = Lexer

function Lexer:fail(at, message, ...) lexer.fail('E_FORMAT', self.text, at, message, ...) end

function Lexer:add(kind, text, at)
   self.list[#self.list + 1] = { kind = kind, text = text, at = at }
end

-- ---- text between tags -------------------------------------------------------------------------

local function is_space(c) return utf.is_space(c) end

-- Returns text stripped as the tag after it demands; sign: '-', '+' or '' after the tag's opening.
function Lexer:left_stripped(text, sign, is_output)
   if sign == '-' then return utf.strip(text, is_space, false, true) end
   if sign == '+' or is_output then return text end
   local line = text:match '.*\n()' or 1
   if line > 1 or self.line_starts then
      if utf.skip_space(text, line) > #text then return text:sub(1, line - 1) end
   end
   return text
end

-- Adds data from self.at up to the tag that opens at byte `stop`.
function Lexer:data(stop, sign, is_output)
   local text = self.text:sub(self.at, stop - 1)
   local kept = self:left_stripped(text, sign, is_output)
   if kept ~= '' then self:add('data', kept, self.at) end
end

-- Moves past the end of a tag whose last byte is `last`. sign: '-', '+' or '' before the closing.
function Lexer:after(last, sign, is_output)
   local at = last + 1
   if sign == '-' then
      at = utf.skip_space(self.text, at)
   elseif sign ~= '+' and not is_output and self.text:sub(at, at) == '\n' then
      at = at + 1
   end
   self.line_starts = self.text:sub(at - 1, at - 1) == '\n'
   self.at = at
end

function Lexer:comment(open)
   local from = self.text:match('^[-+]?()', open + 2)
   local stop = self.text:find('#}', from, true)
   if not stop then self:fail(open, 'the comment has no end') end
   local sign = stop > from and self.text:sub(stop - 1, stop - 1) or ''
   self:after(stop + 1, sign)
end

-- Reads a raw block that opens at byte `open`; returns false if the tag is another one.
function Lexer:raw(open)
   local sign, right, body = self.text:match('^{%%([-+]?)%s*raw%s*(%-?)%%}()', open)
   if not sign then return false end
   self:data(open, sign)
   if right == '-' then body = utf.skip_space(self.text, body) end
   local stop, left, close, last = self.text:match('(){%%([-+]?)%s*endraw%s*([-+]?)%%}()', body)
   if not stop then self:fail(open, 'the raw block has no endraw') end
   self.at, self.line_starts = body, false              -- after the tag, or after all blanks
   self:data(stop, left)
   self:after(last - 1, close)
   return true
end

-- ---- inside of tags ----------------------------------------------------------------------------

local closing = { ['('] = ')', ['['] = ']', ['{'] = '}' }
local two = {}
for op in ('// ** == != >= <='):gmatch '%S+' do two[op] = true end

-- Returns the byte after the string that opens at `at`.
function Lexer:string(at)
   local mark, i = self.text:sub(at, at), at + 1
   while true do
      i = self.text:find('[\\' .. mark .. ']', i)
      if not i then self:fail(at, 'the string has no end') end
      if self.text:sub(i, i) == mark then break end
      i = i + 2
   end
   local value, problem = escapes.read(self.text:sub(at + 1, i - 1))
   if problem then self:fail(at, '%s', problem) end
   self:add('string', value, at)
   return i + 1
end

-- Returns the byte after the digits (with single underscores) at `at`, or nil.
local function digits(text, at)
   local stop = text:match('^%d+()', at)
   while stop do
      local more = text:match('^_%d+()', stop)
      if not more then return stop end
      stop = more
   end
end

-- Returns the byte after a float at `at`, or nil.
local function float_end(text, at)
   if text:sub(at - 1, at - 1) == '.' then return nil end
   local whole = digits(text, at)
   local fraction = whole and text:sub(whole, whole) == '.' and digits(text, whole + 1)
   local e = text:match('^[eE][+-]?()', fraction or whole or at)
   return e and digits(text, e) or fraction or nil
end

local bases = { b = 2, o = 8, x = 16 }

function Lexer:number(at)
   local text = self.text
   local stop = float_end(text, at)
   if stop then
      self:add('float', tonumber((text:sub(at, stop - 1):gsub('_', ''))), at)
      return stop
   end
   local letter, body, last = text:match('^0([bBoOxX])_?(%x[%x_]*)()', at)
   local n = letter and tonumber((body:gsub('_', '')), bases[letter:lower()])
   if not n then
      last = digits(text, at)
      n = tonumber((text:sub(at, last - 1):gsub('_', '')))
   end
   if n >= 2^53 then self:fail(at, 'integers of 2^53 and more are not supported') end
   self:add('integer', n, at)
   return last
end

-- Reads an operator and updates the stack of open brackets; returns the byte after it.
function Lexer:operator(at, open)
   local op = self.text:sub(at, at + 1)
   if not two[op] then op = op:sub(1, 1) end
   if not op:find '^[-+*/%%~%[%](){}=!<>.:|,;]' or op == '!' then
      self:fail(at, "unexpected character '%s'", op)
   end
   if closing[op] then
      open[#open + 1] = closing[op]
   elseif op == ')' or op == ']' or op == '}' then
      if open[#open] ~= op then self:fail(at, "unexpected '%s'", op) end
      open[#open] = nil
   end
   self:add(op, op, at)
   return at + #op
end

-- Reads one token inside a tag; returns the byte after it.
function Lexer:token(at, open)
   local text = self.text
   local c = text:sub(at, at)
   if c:find '[%a_\128-\255]' then
      local name = text:match('^[%w_\128-\255]+', at)
      self:add('name', name, at)
      return at + #name
   elseif c:find '%d' then
      return self:number(at)
   elseif c == '"' or c == "'" then
      return self:string(at)
   end
   return self:operator(at, open)
end

-- Reads a tag up to its closing text ('}}' or '%}').
function Lexer:tag(open_at, close, is_output)
   local text, brackets = self.text, {}
   local at = self.at
   while true do
      at = utf.skip_space(text, at)
      if at > #text then self:fail(open_at, "the tag has no '%s'", close) end
      local sign = text:match('^[-+]', at) or ''
      if is_output and sign == '+' then sign = '' end
      if #brackets == 0 and text:sub(at + #sign, at + #sign + 1) == close then
         self:add(is_output and 'output_end' or 'block_end', close, at)
         return self:after(at + #sign + 1, sign, is_output)
      end
      at = self:token(at, brackets)
   end
end

-- ---- the whole ---------------------------------------------------------------------------------

local function open_tag(self, open)
   local mark = self.text:sub(open + 1, open + 1)
   local sign = self.text:match('^[-+]', open + 2) or ''
   local is_output = mark == '{'
   self:data(open, sign, is_output)
   if mark == '#' then return self:comment(open) end
   self:add(is_output and 'output' or 'block', mark, open)
   self.at = open + 2 + #sign
   self:tag(open, is_output and '}}' or '%}', is_output)
end

-- Returns the tokens of a template, and its text with line ends normalized to '\n'.
function lexer.read(source)
   local text = source:gsub('\r\n?', '\n')
   if text:sub(-1) == '\n' then text = text:sub(1, -2) end
   local self = setmetatable({ text = text, list = {}, at = 1, line_starts = true }, Lexer)
   while self.at <= #text do
      local open = text:find('{[{%%#]', self.at)
      if not open then
         self:data(#text + 1, '+')
         break
      end
      if not self:raw(open) then open_tag(self, open) end
   end
   self:add('eof', '', #text + 1)
   return self.list, text
end

return lexer
