-- Which spec files call a function of lua/tide, and how long each takes. The reach is a folder with
-- one file for each spec file: its seconds, then `optim/groups.lua:14` for each function that it
-- calls, by the line of its head. It is kept between runs; a spec file that has changed is measured
-- anew.

local files = require 'spec.support.files'

local reach = {}

local Reach = {}
Reach.__index = Reach

-- The head of a function, with its place before and behind it.
local head_pattern = '()%f[%w]function[%w_.: ]*%b()()'

-- Whether a line has the head of a function at `at`: neither a comment nor a text is one.
local function is_head(line, at)
   if line:find '^%s*%-%-' then return false end
   local before = line:sub(1, at - 1)
   return select(2, before:gsub("'", '')) % 2 == 0 and select(2, before:gsub('"', '')) % 2 == 0
end

-- Adds to a file's text a call that notes each function as it starts. Lines keep their numbers.
function reach.marked(path, text)
   local name, number = path:match 'lua/tide/(.*)$', 0
   local marked = text:gsub('[^\n]*\n', function(line)
      number = number + 1
      return (line:gsub(head_pattern, function(at, behind)
         if not is_head(line, at) then return nil end
         return ("%s REACHED '%s:%d' "):format(line:sub(at, behind - 1), name, number)
      end))
   end)
   return loadstring(marked) and marked or text
end

-- What defines REACHED in each process: the file that TIDE_REACH names gets a line, once each.
-- It stands in front of the first line of the library.
reach.head = [[
do
   local out, seen = io.open(os.getenv 'TIDE_REACH' or '', 'a'), {}
   if out then out:setvbuf 'line' end
   rawset(_G, 'REACHED', function(at)
      if out and not seen[at] then seen[at] = true; out:write(at, '\n') end
   end)
end ]]
reach.head = reach.head:gsub('\n', ' ')

-- The line of the head of the function that line `number` stands in, or nil above the first one and
-- for a line of the file itself, which runs whenever the file is loaded.
local function head_of(path, number)
   local n, head = 0, nil
   for line in io.lines(path) do
      n = n + 1
      local at = line:match(head_pattern)
      local is_new = at and is_head(line, at)
      if n == number and not is_new and line:find '^[^%s]' then return nil end
      if is_new then head = n end
      if n == number then return head end
   end
end

local function is_older(path, than)
   return #files.lines_of(("find '%s' -newer '%s' 2>&1"):format(than, path)) > 0
end

-- Reads one file of the reach into `self`. In a file of the library that has changed since, heads
-- have moved, so all of it counts as called.
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

-- The spec files that call the function a line stands in (all of them for a file of which nothing
-- is known): a list, cheap ones and those that name the file often first. `names` is how often each
-- names it, `kills` how many breaks of this file it has noticed.
function Reach:specs_of(path, number, names, kills)
   local file, list, cost = path:match 'lua/tide/(.*)$', {}, {}
   local head = head_of(path, number)
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
   elseif head then
      add(self.called[file .. ':' .. head])
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
