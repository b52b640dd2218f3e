-- Runs random cases of a domain, a process of its own for a time, so that a crash or a hang costs
-- no more than this process; driver.lua starts it and reads the lines that it prints.
--
--    luajit spec/deep/fuzz/worker.lua DOMAIN SEED FIRST LAST SECONDS
--    luajit spec/deep/fuzz/worker.lua DOMAIN @FILE            a case that FILE returns
--    luajit spec/deep/fuzz/worker.lua DOMAIN =FILE SECONDS    shrinks the record that FILE returns,
--                                                             beside the kind of its failure
--
-- Lines: "@case K" when case K begins, then one of "@good NOTE" and "@bad TEXT" (TEXT as %q prints
-- it, on one line), "@best RECORD" for a smaller one, and "@done" at the end.

package.path = './?.lua;' .. package.path
require 'spec.support.helper'
local choice = require 'spec.deep.fuzz.choice'
local kind_of = require 'spec.deep.fuzz.kind'
local shrink = require 'spec.deep.fuzz.shrink'
local values = require 'spec.deep.fuzz.values'

local clock = require('tide').clock
local domain = require('spec.deep.domain.' .. arg[1])

local function say(...)
   io.stdout:write(table.concat({ ... }, ' '), '\n')
   io.stdout:flush()
end

local function one_line(text) return (('%q'):format(text):gsub('\\\n', '\\n'):gsub('\r', '\\r')) end

local function trace(e)
   if type(e) == 'table' then return tostring(e) end
   return debug.traceback(tostring(e), 2)
end

-- What is wrong with a case, or nil and a word on it.
local function judge(case)
   local ok, problem, note = xpcall(function() return domain.check(case) end, trace)
   collectgarbage()
   if not ok then return 'raised: ' .. problem end
   return problem, note
end

local function run(case)
   local problem, note = judge(case)
   if problem then say('@bad', one_line(problem)) else say('@good', note or '') end
end

local function run_many(first, last, seconds)
   local begin = clock()
   for k = first, last do
      if clock() - begin > seconds then break end
      say('@case', k)
      run(domain.make(choice.drawn(arg[2], arg[1], k)))
   end
end

local function run_shrink(record, kind, seconds)
   local begin = clock()
   shrink(record, function(candidate)
      local c = choice.taken(candidate)
      local ok, case = pcall(domain.make, c)
      local problem = ok and judge(case)
      if not problem or kind_of(problem) ~= kind then return nil end
      say('@best', (values.literal(c.record):gsub('\n%s*', ' ')))
      return c.record
   end, function() return clock() - begin < seconds end)
end

local how, file = arg[2]:match '^([@=])(.*)$'
if how == '@' then
   say '@case 0'
   run(assert(dofile(file)))
elseif how == '=' then
   local record, kind = dofile(file)
   run_shrink(record, kind, tonumber(arg[3]))
else
   run_many(tonumber(arg[3]), tonumber(arg[4]), tonumber(arg[5]))
end
say '@done'
