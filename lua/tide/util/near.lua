-- The nearest of a list of names, for messages about misspelt options.
--
-- Distance counts insertions, deletions, substitutions and swaps of neighbours.

local near = {}

function near.distance(a, b)
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

-- The closest name, or nil when none is close enough to be what was meant.
function near.best(name, list)
   local best, found = math.huge, nil
   for _, item in ipairs(list) do
      local d = near.distance(name, item)
      if d < best then best, found = d, item end
   end
   if found and best <= math.max(2, math.floor(#name / 2)) then return found end
end

-- "; did you mean 'x'?" or the whole list when it is short. spell(name): how a name is shown.
function near.hint(name, list, spell)
   local found = near.best(name, list)
   local shown = {}
   for i, item in ipairs(list) do shown[i] = spell and spell(item) or item end
   if found then return ("; did you mean '%s'?"):format(spell and spell(found) or found) end
   if #list > 0 and #list <= 12 then return '; known: ' .. table.concat(shown, ', ') end
   return ''
end

return near
