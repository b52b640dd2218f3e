-- Dotted names of modules.

local names = {}

-- Returns the Lua pattern of a name in which '*' matches one part.
function names.pattern(text)
   return '^' .. text:gsub('[%-%.%+%[%]%(%)%$%^%%%?]', '%%%0'):gsub('%*', '[^.]+') .. '$'
end

-- Returns the parts joined by dots; empty ones are left out.
function names.join(a, b, ...)
   local path = a == '' and b or b == '' and a or a .. '.' .. b
   if select('#', ...) == 0 then return path end
   return names.join(path, ...)
end

-- Returns the path of the parent ('' at the top) and the last part of a path.
function names.split(path)
   local parent, last = path:match '^(.*)%.([^.]*)$'
   return parent or '', last or path
end

return names
