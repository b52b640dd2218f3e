-- A text that is being edited, of one line or several: characters, a place, and actions of keys.
--
-- Plain logic without a terminal. Positions count characters from 1; the place is before one.

local line = {}

local Line = {}
Line.__index = Line

-- Returns the characters of a text.
local function characters(text)
   local list = {}
   for c in text:gmatch '[%z\1-\127\192-\255][\128-\191]*' do list[#list + 1] = c end
   return list
end
line.characters = characters

-- Returns a text to edit, with the place at its end.
function line.new(text)
   local self = setmetatable({ killed = '' }, Line)
   self:set(text or '')
   return self
end

-- Replaces the text; the place is at its end.
function Line:set(text)
   self.chars = characters(text)
   self.at = #self.chars + 1
end

-- Returns the whole text.
function Line:text() return table.concat(self.chars) end

-- Returns the text before the place.
function Line:before() return table.concat(self.chars, '', 1, self.at - 1) end

-- Inserts a text at the place, which moves after it.
function Line:insert(text)
   for _, c in ipairs(characters(text)) do
      table.insert(self.chars, self.at, c)
      self.at = self.at + 1
   end
end

-- Removes the characters from first up to before last.
local function remove(self, first, last)
   for _ = first, last - 1 do table.remove(self.chars, first) end
   if self.at >= last then self.at = self.at - (last - first)
   elseif self.at > first then self.at = first end
end

-- Removes characters as remove does, and keeps them for ctrl-y.
local function kill(self, first, last)
   if last <= first then return end
   self.killed = table.concat(self.chars, '', first, last - 1)
   remove(self, first, last)
end

local function line_start(self)
   local i = self.at
   while i > 1 and self.chars[i - 1] ~= '\n' do i = i - 1 end
   return i
end

local function line_end(self)
   local i = self.at
   while i <= #self.chars and self.chars[i] ~= '\n' do i = i + 1 end
   return i
end

local function is_word(c) return c ~= nil and c:find '[%w_\128-\255]' ~= nil end

local function word_left(self)
   local i = self.at
   while i > 1 and not is_word(self.chars[i - 1]) do i = i - 1 end
   while i > 1 and is_word(self.chars[i - 1]) do i = i - 1 end
   return i
end

local function word_right(self)
   local i, n = self.at, #self.chars
   while i <= n and not is_word(self.chars[i]) do i = i + 1 end
   while i <= n and is_word(self.chars[i]) do i = i + 1 end
   return i
end

-- Moves to the same column of the line above (-1) or below (1). Returns whether there is one.
function Line:vertical(way)
   local start = line_start(self)
   local column = self.at - start
   local target
   if way < 0 then
      if start == 1 then return false end
      self.at = start - 1
      target = line_start(self)
   else
      target = line_end(self) + 1
      if target > #self.chars + 1 then return false end
      self.at = target
   end
   self.at = math.min(target + column, line_end(self))
   return true
end

local does = {
   left = function(self) self.at = math.max(1, self.at - 1) end,
   right = function(self) self.at = math.min(#self.chars + 1, self.at + 1) end,
   home = function(self) self.at = line_start(self) end,
   ['end'] = function(self) self.at = line_end(self) end,
   ['alt-b'] = function(self) self.at = word_left(self) end,
   ['alt-f'] = function(self) self.at = word_right(self) end,
   backspace = function(self)
      if self.at > 1 then remove(self, self.at - 1, self.at) end
   end,
   delete = function(self)
      if self.at <= #self.chars then remove(self, self.at, self.at + 1) end
   end,
   ['ctrl-k'] = function(self)
      local stop = line_end(self)
      kill(self, self.at, stop == self.at and math.min(stop + 1, #self.chars + 1) or stop)
   end,
   ['ctrl-u'] = function(self) kill(self, line_start(self), self.at) end,
   ['ctrl-w'] = function(self) kill(self, word_left(self), self.at) end,
   ['alt-d'] = function(self) kill(self, self.at, word_right(self)) end,
   ['ctrl-y'] = function(self) self:insert(self.killed) end,
   ['ctrl-t'] = function(self)
      local i = math.min(self.at, #self.chars)
      if i < 2 then return end
      self.chars[i - 1], self.chars[i] = self.chars[i], self.chars[i - 1]
      self.at = i + 1
   end,
   ['alt-enter'] = function(self) self:insert '\n' end,
}
does['ctrl-a'], does['ctrl-e'], does['ctrl-b'], does['ctrl-f'] = does.home, does['end'], does.left,
   does.right
does['alt-\127'] = does['ctrl-w']

-- Performs the action of a key in the text. Returns false if it has none.
function Line:key(name, text)
   if name == 'char' or name == 'paste' then
      self:insert(text)
      return true
   end
   if not does[name] then return false end
   does[name](self)
   return true
end

return line
