-- Translates patterns of published files to PCRE2.
--
-- A tokenizer.json is written for Oniguruma (Ruby): ^ and $ match at every line, (?m) lets the
-- point match a line feed, {,3} is {0,3}, and a plus behind {1,3} repeats it. A pattern of tiktoken
-- or tekken.json is written for Rust (`rust`), as PCRE2 is. Classes of characters: property.lua.

local brackets = require 'tide.tokenizer.brackets'
local fold = require 'tide.tokenizer.fold'
local property = require 'tide.tokenizer.property'

local pattern = {}

pattern.space, pattern.word = property.space, property.rust_word
-- ASCII characters in Unicode's symbol categories, and all punctuation.
pattern.punctuation = '[\\p{P}$+<=>^`|~]'
-- The pattern of GPT-2.
pattern.gpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

-- Returns a pattern that matches this text literally.
function pattern.literal(text)
   return (text:gsub('[%^%$%(%)%%%.%[%]%*%+%-%?{}|\\#]', '\\%0'))
end

-- Puts the start of an atom, what a quantifier behind it repeats.
local function put_atom(self, text)
   self.out[#self.out + 1] = text
   self.atom = #self.out
end

-- Puts text that begins no atom.
local function put(self, text) self.out[#self.out + 1] = text end

-- Returns the pattern of the ends of words, or of all other places.
local function edge(rust, inner)
   local w = ('[%s]'):format(rust and property.rust_word or property.ruby_word)
   local form = inner and '(?:(?<=W)(?=W)|(?<!W)(?!W))' or '(?:(?<=W)(?!W)|(?<!W)(?=W))'
   return (form:gsub('W', (w:gsub('%%', '%%%%'))))
end

-- Escapes outside of brackets that PCRE2 reads otherwise. Each returns the place behind it.
local escapes = {}

-- Reads \p{name}; to Oniguruma \p is a letter where no brace follows.
function escapes.p(self, text, at, rust)
   local name, negated, after = property.braced(text, at)
   if name then
      put_atom(self, property.set(property.named(name, rust), negated))
      return after
   end
   put_atom(self, (rust and '\\' or '') .. text:sub(at, at))
   return at + 1
end
escapes.P = escapes.p

-- Reads a character by its number, which PCRE2 writes with x.
function escapes.u(self, text, at)
   local hex = text:match('^u(%x%x%x%x)', at)
   put_atom(self, hex and ('\\x{%s}'):format(hex) or '\\u')
   return at + (hex and 5 or 1)
end

-- Reads a character by its number, so that an interval behind it repeats all of it.
function escapes.x(self, text, at)
   local what = text:match('^x{%x+}', at) or text:match('^x%x%x?', at) or 'x'
   put_atom(self, '\\' .. what)
   return at + #what
end

-- Reads the end of a word, or its absence: \b and \B of PCRE2 do not count marks.
function escapes.b(self, text, at, rust)
   put_atom(self, edge(rust, text:sub(at, at) == 'B'))
   return at + 1
end
escapes.B = escapes.b

-- Translates an escape whose letter is at `at`. Returns the place behind it.
local function escape(self, text, at, rust)
   local c = property.char(text, at)
   if escapes[c] then return escapes[c](self, text, at, rust) end
   local items, negated = property.escape(c, 'out', rust)
   put_atom(self, items and property.set(items, negated) or '\\' .. c)
   return at + #c
end

-- Translates {n,m} of Oniguruma at `at`. Returns the place behind it.
local function interval(self, text, at)
   local low, comma, high = text:match('^{(%d*)(,?)(%d*)}', at)
   if not low or low == '' and high == '' then
      put_atom(self, '{')
      return at + 1
   end
   local behind = at + #low + #comma + #high + 2
   put(self, ('{%s%s%s}'):format(low == '' and '0' or low, comma, high))
   local next_ = text:sub(behind, behind)
   if next_ == '+' or next_ == '?' and comma == '' then   -- neither possessive nor lazy
      self.out[self.atom] = '(?:' .. self.out[self.atom]
      put(self, ')')
   end
   return behind
end

-- Puts the start of a group. is_rest: it holds the rest of the group around it.
local function put_group(self, text, is_rest)
   put_atom(self, text)
   self.groups[#self.groups + 1] = { at = #self.out, is_rest = is_rest, folds = self.folds }
end

-- Translates a parenthesis that opens a group, with its options. To Oniguruma a(?i)b|c is
-- a(?i:b|c). Returns the place behind it.
local function open(self, text, at, rust)
   local flags, last = text:match('^%(%?([%a%-]+)([:)])', at)
   if rust or not flags then
      put_group(self, '(')
      return at + 1
   end
   put_group(self, ('(?%s:'):format(flags:gsub('m', 's')), last == ')')
   local on, off = flags:match '^([^%-]*)%-?(.*)$'
   self.folds = (self.folds or on:find 'i' ~= nil) and not off:find 'i'
   return at + #flags + 3
end

-- Ends the groups that hold the rest of the innermost group of the pattern, and returns that one;
-- or nil without one.
local function end_rests(self)
   local group = table.remove(self.groups)
   while group and group.is_rest do
      put(self, ')')
      self.folds = group.folds
      group = table.remove(self.groups)
   end
   if group then self.folds = group.folds end
   return group
end

-- Translates the pattern at `at`. Returns the place behind it.
local function step(self, text, at, rust)
   local c, before = property.char(text, at), self.before
   self.before = nil
   if c == '\\' and at < #text then return escape(self, text, at + 1, rust) end
   if c == '[' then
      local set, behind = brackets.translate(text, at, rust, self.folds)
      put_atom(self, set)
      return behind
   end
   if c == '(' then return open(self, text, at, rust) end
   if c == '{' and not rust then return interval(self, text, at) end
   if c == ')' then
      local group = end_rests(self)
      put(self, c)
      self.atom = group and group.at or #self.out
   elseif c == '*' or c == '+' or c == '?' then
      put(self, c)
   else
      if self.folds then fold.check(text, c, before) end
      self.before = c
      put_atom(self, c)
      self.anchors = self.anchors or c == '^' or c == '$'
   end
   return at + #c
end

-- Returns a pattern translated to PCRE2. rust: it is written for Rust, not for Oniguruma.
function pattern.translate(text, rust)
   local self, at = { out = {}, groups = {}, anchors = false }, 1
   while at <= #text do at = step(self, text, at, rust) end
   end_rests(self)
   return (self.anchors and not rust and '(?m)' or '') .. table.concat(self.out)
end

return pattern
