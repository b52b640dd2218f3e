-- The nearest of a list of names, for messages about misspelt options.
--
-- Distance counts insertions, deletions, substitutions and swaps of neighbours. Plain Lua.

local each = pairs -- by another name: see "faults" in bindings/README.md

local near = {}

-- Checks an argument. tide.error requires this file, so this function requires tide.error late.
local function check(op, name, v, kind)
   if type(v) ~= kind then require 'tide.error'.type('util.near.' .. op, name, v, kind) end
end

-- Returns the least number of inserted, deleted, replaced and swapped characters that turn a into
-- b.
function near.distance(a, b)
   check('distance', 'a', a, 'string')
   check('distance', 'b', b, 'string')
   local before, row = nil, {}
   for j = 0, #b do row[j] = j end
   for i = 1, #a do
      local line = { [0] = i }
      for j = 1, #b do
         local same = a:byte(i) == b:byte(j) and 0 or 1
         line[j] = math.min(row[j] + 1, line[j - 1] + 1, row[j - 1] + same)
         if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
            line[j] = math.min(line[j], before[j - 2] + 1)
         end
      end
      before, row = row, line
   end
   return row[#b]
end

-- Returns the closest name, or nil if none is close enough: that of another word for it, else the
-- first that begins with name and a dot, else that of the least distance. also: other words for
-- names of the list, word -> name; of equal distances the first name of the list counts, then the
-- least word.
function near.best(name, list, also)
   check('best', 'name', name, 'string')
   check('best', 'list', list, 'table')
   check('best', 'also', also or {}, 'table')
   if also and also[name] then return also[name] end
   local best, found, by = math.huge, nil, nil
   for _, item in ipairs(list) do
      local d = near.distance(name, item)
      if item:sub(1, #name + 1) == name .. '.' then return item end
      if d < best then best, found = d, item end
   end
   for word, item in each(also or {}) do
      local d = near.distance(name, word)
      if d < best or d == best and by and word < by then best, found, by = d, item, word end
   end
   local most = #name <= 4 and 1 or math.max(2, math.floor(#name / 2))
   if found and best <= most then return found end
end

-- Returns a hint that follows a message, "; did you mean 'x'?", or the whole list when it is short.
-- spell(name): how a name is shown. also: see best.
function near.hint(name, list, spell, also)
   check('hint', 'name', name, 'string')
   check('hint', 'list', list, 'table')
   check('hint', 'also', also or {}, 'table')
   local found = near.best(name, list, also)
   local shown = {}
   for i, item in ipairs(list) do shown[i] = spell and spell(item) or item end
   if found then return ("; did you mean '%s'?"):format(spell and spell(found) or found) end
   if #list > 0 and #list <= 12 then return '; known: ' .. table.concat(shown, ', ') end
   return ''
end

return near
