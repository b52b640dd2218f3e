-- Mutants: breaks single lines of lua/tide in a copy of the tree and tells which breaks no given
-- spec notices.
--
--    luajit spec/deep/mutants.lua [--count N] [--seed N] [--under FOLDER] SPEC ...
--
-- --count: mutants (20); --seed (the time, printed); --under: where lines are taken from
-- (lua/tide). The spec files that name the broken file most often run first, and the first that
-- fails ends the mutant. The tree itself is never changed. A survivor is printed with its file,
-- line and text; it wants a spec, or does not matter. Ends with 0 whatever survives.

package.path = './?.lua;' .. package.path
local choice = require 'spec.deep.fuzz.choice'
local files = require 'spec.support.files'

-- What is broken in a line: a Lua pattern and what takes its place.
local breaks = {
   { ' == ', ' ~= ' }, { ' ~= ', ' == ' }, { ' < ', ' <= ' }, { ' > ', ' >= ' },
   { ' <= ', ' < ' }, { ' >= ', ' > ' }, { ' %+ 1', '' }, { ' %- 1', '' }, { ' and ', ' or ' },
   { ' %+ ', ' - ' }, { ' %* ', ' + ' }, { '%f[%w]true%f[%W]', 'false' }, { ' or 0', ' or 1' },
   { 'math%.max', 'math.min' }, { '%f[%w]not ', '' },
}

local opt, specs = { count = '20', seed = tostring(os.time()), under = 'lua/tide' }, {}
do
   local i = 1
   while arg[i] do
      local name = arg[i]:match '^%-%-(%w+)$'
      if name then opt[name], i = arg[i + 1], i + 1 else specs[#specs + 1] = arg[i] end
      i = i + 1
   end
end
if #specs == 0 then error('usage: luajit spec/deep/mutants.lua [--count N] SPEC ...', 0) end

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end
local function run(command) return os.execute(command) == 0 end

-- Whether a place in a line is inside a quoted text.
local function is_text(line, at)
   local _, single = line:sub(1, at - 1):gsub("'", '')
   local _, double = line:sub(1, at - 1):gsub('"', '')
   return single % 2 == 1 or double % 2 == 1
end

-- Lines that can be broken: { path, number, text, broken }.
local function candidates()
   local list = {}
   for _, path in ipairs(files.lines_of('find ' .. quote(opt.under) .. " -name '*.lua' | sort")) do
      local n = 0
      for line in io.lines(path) do
         n = n + 1
         for _, b in ipairs(line:find '^%s*%-%-' and {} or breaks) do
            local at, broken = line:find(b[1]), line:gsub(b[1], b[2], 1)
            if at and not is_text(line, at) then list[#list + 1] = { path, n, line, broken } end
         end
      end
   end
   return list
end

local function with_line(text, number, line)
   local n = 0
   return (text:gsub('[^\n]*\n', function()
      n = n + 1
      if n == number then return line .. '\n' end
   end))
end

local copy = os.tmpname()
os.remove(copy)
assert(run(('mkdir %s && cp -r bindings lua recipes spec Makefile README.md .busted %s'):format(
   copy, copy)))
-- `tide` takes the library beside it, so that a program that a spec starts has the mutant, too.
assert(run(('mkdir %s/build && cp -a build/tide build/libtide* %s/build && for f in build/*; do '
   .. '[ -e "%s/$f" ] || [ "$f" = build/CMakeCache.txt ] || ln -s "$PWD/$f" %s/build; done')
   :format(copy, copy, copy, copy)))

-- Whether a list of spec files notices the copy as it is.
local function is_noticed(list)
   return not run(('cd %s && LUA_PATH="bindings/?.lua;lua/?.lua;lua/?/init.lua;;" timeout 600 '
      .. 'luajit spec/support/run.lua --limit 120 %s >/dev/null 2>&1'):format(copy,
      table.concat(list, ' ')))
end

-- The spec files in the order of how often they name a file of the library.
local function ordered(path)
   local word = path:match '([%w_]+)/init%.lua$' or path:match '([%w_]+)%.lua$'
   local list, times = {}, {}
   for i, file in ipairs(files.lines_of('find ' .. table.concat(specs, ' ')
      .. " -name '*_spec.lua' | sort")) do
      local _, n = files.read(file):gsub('%f[%w_]' .. word .. '%f[^%w_]', '')
      list[i], times[file] = file, n * 1000 - i
   end
   table.sort(list, function(x, y) return times[x] > times[y] end)
   return list
end

local function is_killed(path)
   for _, file in ipairs(ordered(path)) do
      if is_noticed { file } then return file end
   end
end

print('seed ' .. opt.seed)
if is_noticed(specs) then
   run('rm -rf ' .. copy)
   error('the specs fail on the tree as it is', 0)
end
local all, pick, survived, made = candidates(), choice.drawn('mutants', opt.seed), 0, 0
while made < tonumber(opt.count) and #all > 0 do
   local path, number, old, broken = unpack(table.remove(all, pick:int(1, #all)))
   local text = files.read(path)
   local mutant = with_line(text, number, broken)
   if loadstring(mutant) and mutant ~= text then
      made = made + 1
      files.write(copy .. '/' .. path, mutant)
      if not is_killed(path) then
         survived = survived + 1
         print(('%s:%d survives\n   %s\n   %s'):format(path, number, old:match '^%s*(.*)$',
            broken:match '^%s*(.*)$'))
      end
      files.write(copy .. '/' .. path, text)
   end
end
run('rm -rf ' .. copy)
print(('%d mutants, %d survived'):format(made, survived))
