-- Sets of characters in brackets, translated to PCRE2.
--
-- Oniguruma and Rust know sets in sets, [a[^b]], and their intersection, [a&&b]. PCRE2 10.42 knows
-- neither: a set with one becomes a group that matches one character.

local fold = require 'tide.tokenizer.fold'
local property = require 'tide.tokenizer.property'

local brackets = {}

-- Returns { sets = (list of nested ones), items = (list of pieces of PCRE2) }, which are joined.
local function new_part() return { items = {}, sets = {} } end

-- Adds the items, or, negated, all characters that they are not. Those without one property are
-- items of their own, as PCRE2 matches a set faster than a group, and repeats it without memory.
local function put(part, items, negated)
   local others = negated and property.set(items, true)
   local list = others and not others:find '^\\P' and part.sets or part.items
   list[#list + 1] = others or items
end

-- Reads an escape at `at`. Returns the place behind it.
local function escape(part, text, at, rust)
   local name, is_other, after = property.braced(text, at + 1)
   if name then
      put(part, property.named(name, rust), is_other)
      return after
   end
   local c = property.char(text, at + 1)
   local items, negated = property.escape(c, 'in', rust)
   local hex = text:match('^u(%x%x%x%x)', at + 1)
   local is_letter = not rust and (c == 'p' or c == 'P')   -- to Oniguruma, where no brace follows
   put(part, items or hex and ('\\x{%s}'):format(hex) or (is_letter and '' or '\\') .. c, negated)
   return at + 1 + (hex and 5 or #c)
end

-- Reads the item at `at`. Returns the place behind it.
local function item(part, text, at, rust, folds)
   local c = property.char(text, at)
   if c == '\\' then return escape(part, text, at, rust) end
   local caret, name = text:match('^%[:(%^?)(%a+):%]', at)
   if name then
      put(part, property.class(name, ('[:%s:]'):format(name), rust), caret == '^')
      return at + #caret + #name + 4
   end
   if c == '[' then
      if folds then fold.check_nested(text, at) end
      local set, behind = brackets.translate(text, at, rust, folds)
      part.sets[#part.sets + 1] = set
      return behind
   end
   if folds then fold.check(text, c) end
   part.items[#part.items + 1] = c:find '[.:=]' and '\\' .. c or c -- [. and [= begin names in PCRE2
   return at + #c
end

-- Returns a pattern of one character of a part.
local function alternatives(part)
   local list = { unpack(part.sets) }
   if #part.items > 0 then table.insert(list, 1, property.set(table.concat(part.items))) end
   return #list == 1 and list[1] or ('(?:%s)'):format(table.concat(list, '|'))
end

-- Returns a pattern of one character that is in all parts, or, negated, not in all of them.
local function render(parts, negated)
   if #parts == 1 and #parts[1].sets == 0 then
      return property.set(table.concat(parts[1].items), negated)
   end
   local list = {}
   for i, part in ipairs(parts) do list[i] = alternatives(part) end
   local last = table.remove(list)
   for i, one in ipairs(list) do list[i] = ('(?=%s)'):format(one) end
   local all = table.concat(list) .. last
   return negated and ('(?:(?!%s)(?s:.))'):format(all) or #list > 0 and ('(?:%s)'):format(all)
      or all
end

-- Returns the set whose bracket is at `at` of a pattern, and the place behind it. folds: case does
-- not count.
function brackets.translate(text, at, rust, folds)
   local negated = text:sub(at + 1, at + 1) == '^'
   at = at + (negated and 2 or 1)
   local part = new_part()
   local parts = { part }
   if text:sub(at, at) == ']' then                        -- the first one is a character
      part.items[1], at = '\\]', at + 1
   end
   while at <= #text do
      if text:sub(at, at) == ']' then return render(parts, negated), at + 1 end
      if text:find('^&&', at) then
         part, at = new_part(), at + 2
         parts[#parts + 1] = part
      else
         at = item(part, text, at, rust, folds)
      end
   end
   -- No bracket ends the set: PCRE2 reports that.
   return '[' .. table.concat(part.items), at
end

return brackets
