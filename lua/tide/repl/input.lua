-- Unfinished input of a prompt: the lines so far.
--
-- A prompt compiles what it has after each line, to run it or to name an error in it. Long input
-- would be compiled in time that grows with the square of its lines. So beyond some lines it is
-- compiled where its blocks and brackets are closed, and otherwise when it has grown by a quarter.

local class = require 'tide.class'

local Input = class 'Input'

local few = 50 -- lines that are compiled at each of them

local opens = { ['function'] = 1, ['do'] = 1, ['if'] = 1, ['repeat'] = 1, ['end'] = -1,
   ['until'] = -1, ['('] = 1, ['['] = 1, ['{'] = 1, [')'] = -1, [']'] = -1, ['}'] = -1 }

-- Begins an input without lines.
function Input:init()
   self.lines, self.depth, self.tried = {}, 0, 0
end

-- Returns the place behind a quoted string whose contents begin at `at`; nil if it continues in the
-- next line.
local function behind_quote(text, at, quote)
   while true do
      local found = text:find('[\\\n' .. quote .. ']', at)
      if not found then return #text + 1 end
      if text:sub(found, found) ~= '\\' then return found + 1 end
      if found == #text then return nil end
      at = found + 2
   end
end

-- Returns the place behind the word, string, comment or sign at a place of a text; nil if it goes
-- on in the next line. Counts open blocks and brackets.
local function behind_token(self, text, at)
   local mark, level, last = text:match('^(%-?%-?)%[(=*)%[()', at)
   if mark == '' or mark == '--' then
      self.ends = ']' .. level .. ']'
      return last
   end
   local comment = text:match('^%-%-[^\n]*()', at)
   if comment then return comment end
   local word = text:match('^[%a_][%w_]*', at) or text:match('^%d[%w%.]*', at)
      or text:sub(at, at)
   if word == '"' or word == "'" then
      last = behind_quote(text, at + 1, word)
      self.quote = not last and word or nil
      return last
   end
   self.depth = self.depth + (opens[word] or 0)
   return at + #word
end

-- Returns the place behind a string or comment that an earlier line began; nil if it continues.
local function behind_rest(self, text, at)
   if self.quote then
      at = behind_quote(text, at, self.quote)
      if at then self.quote = nil end
   elseif self.ends then
      local _, last = text:find(self.ends, at, true)
      at = last and last + 1
      if at then self.ends = nil end
   end
   return at
end

-- Adds a line, or several.
function Input:add(line)
   self.lines[#self.lines + 1] = line
   local at = 1
   while at and at <= #line do
      at = behind_rest(self, line, at)
      at = at and at <= #line and behind_token(self, line, line:match('^%s*()', at)) or nil
   end
end

-- Returns all lines as a text.
function Input:text() return table.concat(self.lines, '\n') end

-- Returns whether it is time to compile the text.
function Input:is_due()
   local n = #self.lines
   local closed = self.depth <= 0 and not self.quote and not self.ends
   local due = n <= few or closed or n >= 1.25 * self.tried
   if due then self.tried = n end
   return due
end

return Input
