-- Which spec files enter a function or block of lua/tide, and how long each takes. The reach is a
-- folder with one file for each spec file: its seconds, then `optim/groups.lua:14` for each
-- function and block that it enters, by the line that begins it. It is kept between runs; a spec
-- file that has changed is measured again.

local files = require 'spec.support.files'

local reach = {}

local Reach = {}
Reach.__index = Reach

-- The head of a function, and the words that begin a block, with the places before and behind them.
local head_pattern, word_pattern = '()%f[%w_]function[%w_.: ]*%b()()', '()%f[%w_]%l+%f[^%w_]()'
local begins = { ['then'] = true, ['else'] = true, ['do'] = true }

-- Whether the text at `at` of a line is program: neither in a comment nor in a quoted text.
function reach.is_program(line, at)
   local before = line:sub(1, at - 1):gsub("\\.", '..'):gsub("'[^']*'", ''):gsub('"[^"]*"', '')
   return not before:find "['\"]" and not before:find('--', 1, true)
end

-- The places in a line behind which a function or a block begins, in order.
local function beginnings(line)
   local list = {}
   for at, behind in line:gmatch(head_pattern) do
      if reach.is_program(line, at) then list[#list + 1] = behind end
   end
   for at, behind in line:gmatch(word_pattern) do
      if begins[line:sub(at, behind - 1)] and reach.is_program(line, at) then
         list[#list + 1] = behind
      end
   end
   table.sort(list)
   return list
end

-- Adds to a file's text a call that notes each function and block as it starts. Lines keep their
-- numbers.
function reach.marked(path, text)
   local name, number = path:match 'lua/tide/(.*)$', 0
   local marked = text:gsub('[^\n]*\n', function(line)
      number = number + 1
      local parts, from = {}, 1
      for _, behind in ipairs(beginnings(line)) do
         parts[#parts + 1] = ("%s REACHED '%s:%d'; "):format(line:sub(from, behind - 1), name,
            number)
         from = behind
      end
      return table.concat(parts) .. line:sub(from)
   end)
   return loadstring(marked) and marked or text
end

-- What defines REACHED in each Lua state: the file that TIDE_REACH names gets a line, once each.
-- It precedes the first line of each file, as any may be the first that a program loads.
reach.head = [[
if not rawget(_G, 'REACHED') then
   local out, seen = io.open(os.getenv 'TIDE_REACH' or '', 'a'), {}
   if out then out:setvbuf 'line' end
   rawset(_G, 'REACHED', function(at)
      if out and not seen[at] then seen[at] = true; out:write(at, '\n') end
   end)
end ]]
reach.head = reach.head:gsub('\n', ' ')

-- The lines that begin the function or block around line `number`, innermost first: the
-- nearest line above of less indentation, and the line itself if a function begins there. Empty for
-- a line of the file itself, which runs whenever the file is loaded.
local function beginnings_of(path, number)
   local lines, list, indent = files.lines_of("cat '" .. path .. "'"), {}, nil
   for n = number, 1, -1 do
      local line = lines[n]
      local before = #line:match '^%s*'
      if line ~= '' and (not indent or before < indent) then
         local is_start = #beginnings(line) > 0
            and (n < number or line:find '%f[%w_]function%f[^%w_]')
         if is_start then list[#list + 1] = n end
         if before == 0 or is_start and n < number then return list end
         indent = before
      end
   end
   return list
end

local function is_older(path, than)
   return #files.lines_of(("find '%s' -newer '%s' 2>&1"):format(than, path)) > 0
end

-- Reads one file of the reach into `self`. In a file of the library that has changed since,
-- lines have moved, so all of it counts as called.
local function read(self, spec, path)
   local changed = {}
   for _, file in ipairs(files.lines_of(("find lua/tide -name '*.lua' -newer '%s'"):format(path)))
   do
      changed[file:match '^lua/tide/(.*)$'] = true
   end
   local function add(key)
      self.called[key] = self.called[key] or {}
      self.called[key][spec] = true
   end
   for line in io.lines(path) do
      local file = line:match '^(.-):%d+$'
      if file then
         add(file)
         add(changed[file] and file .. ':changed' or line)
      else
         self.seconds[spec] = tonumber(line)
      end
   end
end

-- Opens the reach in `folder` of a list of spec files. `measure(list, log_of)` runs those without a
-- measurement, has their functions written to `log_of(spec)`, and returns the seconds of each.
function reach.open(folder, specs, measure)
   local self = setmetatable({ called = {}, seconds = {} }, Reach)
   local function path_of(spec) return folder .. '/' .. spec:gsub('/', '+') end
   local missing = {}
   assert(os.execute(("mkdir -p '%s'"):format(folder)) == 0)
   for _, spec in ipairs(specs) do
      if is_older(path_of(spec), spec) then missing[#missing + 1] = spec end
   end
   if #missing > 0 then measure(missing, path_of) end
   for _, spec in ipairs(specs) do read(self, spec, path_of(spec)) end
   return self
end

-- Writes the measurement of one spec file.
function reach.write(path, seconds, log)
   assert(os.execute(("{ echo %.1f; sort -u '%s'; } >'%s' && rm '%s'"):format(seconds, log, path,
      log)) == 0)
end

-- The spec files that enter the function or block of a line (all of them for a file of which
-- nothing is known): a list, cheap ones and those that name the file often first. `names` is how
-- often each names it, `kills` how many breaks of this file it has noticed.
function Reach:specs_of(path, number, names, kills)
   local file, list, cost = path:match 'lua/tide/(.*)$', {}, {}
   local starts = beginnings_of(path, number)
   local function add(found)
      for spec in pairs(found or {}) do
         if not cost[spec] then
            list[#list + 1] = spec
            cost[spec] = (self.seconds[spec] + 0.5)
               / (1 + 4 * names[spec] + 20 * (kills[spec] or 0))
         end
      end
   end
   if not self.called[file] then
      add(self.seconds)
   elseif #starts > 0 then
      for _, n in ipairs(starts) do add(self.called[file .. ':' .. n]) end
      add(self.called[file .. ':changed'])
   else
      add(self.called[file])
   end
   table.sort(list, function(x, y)
      return cost[x] < cost[y] or cost[x] == cost[y] and x < y
   end)
   return list
end

return reach
