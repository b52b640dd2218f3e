-- Prints files, functions and folders above a size, to find what may need a cut. Run by
-- `make sizes`; nothing fails.

local lines_of = require('spec.support.files').lines_of

local limit = { file = 500, func = 60, folder = 24, line = 100 }

local found = { file = {}, func = {}, folder = {} }
local folders, lengths, total = {}, {}, 0

local function note(kind, n, what)
   if n > limit[kind] then table.insert(found[kind], { n = n, what = what }) end
end

-- Returns the indent of a line of Lua that opens a function, and its text; nil for other lines. A
-- block of cases (describe) is no function, a case (it) is.
local function opening(line)
   local lead, rest = line:match '^(%s*)(.*%f[%w_]function%f[^%w_].*)$'
   if not lead or rest:find '^%-%-' or rest:find '^describe%f[^%w_]' then return nil end
   local before = rest:match '^(.-)%f[%w_]function'
   local is_quoted = select(2, before:gsub("'", '')) % 2 == 1
   if is_quoted or rest:find 'end%W*$' then return nil end
   return lead, rest
end

-- C: a function opens with "{" in column 1 and ends with "}" there; Lua: by the indent of "end".
local function scan(path)
   local is_lua, n, start, indent, name = path:find '%.lua$', 0, nil, nil, nil
   local before
   for line in io.lines(path) do
      n = n + 1
      if not start then
         if is_lua then
            local lead, rest = opening(line)
            if lead then start, indent, name = n, lead, rest end
         elseif line == '{' then
            start, name = n, before
         end
      elseif is_lua and line:find('^' .. indent .. 'end%f[^%w]')
         or not is_lua and line == '}' then
         lengths[#lengths + 1] = n - start + 1
         note('func', n - start + 1, ('%s:%d %s'):format(path, start, name or ''))
         start = nil
      end
      before = line
   end
   return n
end

local files = lines_of("find core kernels bindings lua recipes spec -type f \\( -name '*.c' -o "
   .. "-name '*.h' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' -o -name '*.lua' \\)")
for _, path in ipairs(files) do
   local n = scan(path)
   total = total + n
   note('file', n, path)
   local folder = path:match '^(.*)/'
   folders[folder] = (folders[folder] or 0) + 1
end
for folder, n in pairs(folders) do note('folder', n, folder) end

print(('%d files, %d lines'):format(#files, total))
for _, kind in ipairs { 'file', 'func', 'folder' } do
   table.sort(found[kind], function(a, b) return a.n > b.n end)
   print(('%s above %d: %d'):format(kind, limit[kind], #found[kind]))
   for _, row in ipairs(found[kind]) do print(('%6d  %s'):format(row.n, row.what)) end
end
table.sort(lengths)
print(('functions: %d, half at most %d lines, nine in ten at most %d'):format(#lengths,
   lengths[math.ceil(#lengths / 2)] or 0, lengths[math.ceil(#lengths * 0.9)] or 0))
