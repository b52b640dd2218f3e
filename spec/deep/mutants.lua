-- Mutants: breaks single lines of lua/tide in a copy of the tree and reports which breaks no given
-- spec notices.
--
--    luajit spec/deep/mutants.lua [--count N] [--seed N] [--under FOLDER] [--at FILE:LINE]
--       [--skip N] [--budget SECONDS] [--map FOLDER] SPEC ...
--
-- --count: mutants (20); --seed (the time, printed); --under: where lines are taken from
-- (lua/tide); --at: the breaks of one line in place of drawn ones; --skip: drawn mutants to pass
-- over, which continues a sweep; --budget: seconds of specs for each mutant (60).
--
-- A first run finds which functions and blocks each spec file enters, and keeps that in --map
-- (build/mutants). A mutant meets only the spec files that enter its block, cheap ones and those
-- that name its file first, until one fails or the budget is spent. The tree itself is never
-- changed. A survivor is printed with its file, line and text; it wants a spec, or does not matter.
-- Ends with 0 whatever survives. The map does not see that data of a spec file (spec/golden) has
-- changed: remove its file from the map then.

package.path = './?.lua;' .. package.path
local choice = require 'spec.deep.fuzz.choice'
local files = require 'spec.support.files'
local reach = require 'spec.support.reach'

-- What is broken in a line: a Lua pattern and what takes its place.
local breaks = {
   { ' == ', ' ~= ' }, { ' ~= ', ' == ' }, { ' < ', ' <= ' }, { ' > ', ' >= ' },
   { ' <= ', ' < ' }, { ' >= ', ' > ' }, { ' %+ 1', '' }, { ' %- 1', '' }, { ' and ', ' or ' },
   { ' %+ ', ' - ' }, { ' %* ', ' + ' }, { '%f[%w]true%f[%W]', 'false' }, { ' or 0', ' or 1' },
   { 'math%.max', 'math.min' }, { '%f[%w]not ', '' },
}

local opt, specs = {
   count = '20', seed = tostring(os.time()), under = 'lua/tide', skip = '0', budget = '60',
   map = 'build/mutants',
}, {}
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

-- Whether a break of a line changes nothing, by its text alone: the last argument of `find` for a
-- text without magic characters, and what two values that differ are compared by.
local function is_idle(line, from)
   local _, n = line:gsub(from, '')
   if n > 1 then return false end
   if from:find 'true' then
      local text = line:match "find%('([^']*)', [%w_ +]+, true%)"
      return text ~= nil and not text:gsub('\\.', ''):find '[%^%$%(%)%%%.%[%]%*%+%-%?]'
   end
   local a, b, c, sign, d = line:match '(%S+) ~= (%S+) then return (%S+)( [<>] )(%S+) end$'
   return sign == from and a == c and b == d
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
            if at and reach.is_program(line, at) and not is_idle(line, b[1]) then
               list[#list + 1] = { path, n, line, broken }
            end
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
assert(run(("mkdir %s && cp -r $(ls -A | grep -vx '.git\\|build\\|runs') %s"):format(copy, copy)))
-- `tide` takes the library beside it, so that a program that a spec starts has the mutant, too.
assert(run(('mkdir %s/build && cp -a build/tide build/libtide* %s/build && for f in build/*; do '
   .. '[ -e "%s/$f" ] || [ "$f" = build/CMakeCache.txt ] || ln -s "$PWD/$f" %s/build; done')
   :format(copy, copy, copy, copy)))

-- Runs a spec file in the copy: whether it passes, and its seconds.
local function passes(spec, limit, variables, options)
   local out = files.lines_of(('cd %s && begin=$(date +%%s%%N); env OMP_WAIT_POLICY=passive '
      .. 'TIDE_BUILD=build %s LUA_PATH="bindings/?.lua;lua/?.lua;lua/?/init.lua;;" '
      .. 'timeout -k 5 %d luajit /usr/bin/busted %s -o TAP %s >/dev/null 2>&1; '
      .. 'echo $?; echo $((($(date +%%s%%N) - begin) / 1000000))'):format(copy, variables or '',
      math.ceil(limit), options or '--no-keep-going', spec))
   return out[1] == '0', out[2] / 1000
end

-- Measures spec files, with a copy of the library that notes its functions and blocks as they
-- start.
local function measure(list, path_of)
   for _, path in ipairs(files.lines_of "find lua/tide -name '*.lua'") do
      local text = reach.marked(path, files.read(path))
      files.write(copy .. '/' .. path, reach.head .. text)
   end
   for _, spec in ipairs(list) do
      local log = path_of(spec) .. '.log'
      files.write(log, '')
      local ok, seconds = passes(spec, 240, ('TIDE_REACH="%s%s"'):format(
         log:find '^/' and '' or '$OLDPWD/', log), '--keep-going')
      -- the helper of busted has loaded the library, so there is something to note
      if files.read(log) == '' then error(('%s: nothing is noted in %s'):format(spec, log), 0) end
      reach.write(path_of(spec), seconds, log)
      print(('%s: %.1f s%s'):format(spec, seconds, ok and '' or ', fails when measured'))
      io.stdout:flush()
   end
   assert(run('cp -r lua/tide ' .. copy .. '/lua'))
end

local spec_files = files.lines_of('find ' .. table.concat(specs, ' ')
   .. " -name '*_spec.lua' | sort")
local map = reach.open(opt.map, spec_files, measure)

-- Whether a spec file passes on the tree as it is. Only what noticed a mutant is asked.
local sound = {}
local function is_sound(spec)
   if sound[spec] == nil then
      sound[spec] = passes(spec, 300)
      if not sound[spec] then print(spec .. ' fails on the tree as it is: left out') end
   end
   return sound[spec]
end

-- How often each spec file names a file of the library.
local function names_of(path)
   local word = path:match '([%w_]+)/init%.lua$' or path:match '([%w_]+)%.lua$'
   local names = {}
   for _, spec in ipairs(spec_files) do
      local _, n = files.read(spec):gsub('%f[%w_]' .. word .. '%f[^%w_]', '')
      names[spec] = math.min(n, 5)
   end
   return names
end

local kills = {}

-- The spec file that notices a mutant, or nil; and whether the budget ended the search.
local function killer(path, number, text, mutant)
   kills[path] = kills[path] or {}
   local left = tonumber(opt.budget)
   for _, spec in ipairs(map:specs_of(path, number, names_of(path), kills[path])) do
      if left <= 0 then return nil, true end
      if sound[spec] ~= false then
         files.write(copy .. '/' .. path, mutant)
         local ok, seconds = passes(spec, 3 * map.seconds[spec] + 20)
         files.write(copy .. '/' .. path, text)
         if not ok and is_sound(spec) then
            kills[path][spec] = (kills[path][spec] or 0) + 1
            return spec
         end
         left = left - seconds
      end
   end
end

-- Mutants to try: those of one line, or drawn ones.
local function drawn()
   local all, list, pick = candidates(), {}, choice.drawn('mutants', opt.seed)
   if opt.at then
      for _, c in ipairs(all) do
         if c[1] .. ':' .. c[2] == opt.at then list[#list + 1] = c end
      end
      return list
   end
   while #list < tonumber(opt.count) and #all > 0 do
      local c = table.remove(all, pick:int(1, #all))
      if loadstring(with_line(files.read(c[1]), c[2], c[4])) then list[#list + 1] = c end
   end
   return list
end

print('seed ' .. opt.seed)
local survived, made = 0, 0
for i, c in ipairs(drawn()) do
   local path, number, old, broken = unpack(c)
   if i > tonumber(opt.skip) then
      made = made + 1
      local text = files.read(path)
      local by, spent = killer(path, number, text, with_line(text, number, broken))
      print(('%d %s:%d %s'):format(i, path, number, by and 'killed by ' .. by
         or spent and 'survives the budget' or 'survives'))
      if not by then
         survived = survived + 1
         print(('   %s\n   %s'):format(old:match '^%s*(.*)$', broken:match '^%s*(.*)$'))
      end
      io.stdout:flush()
   end
end
run('rm -rf ' .. copy)
print(('%d mutants, %d survived'):format(made, survived))
