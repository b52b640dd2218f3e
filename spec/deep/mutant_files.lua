-- Files that tide reads, changed at random, from the command line in the root of the tree:
--
--    luajit spec/deep/mutant_files.lua [--count 300] [--seed 1] [KIND ...]
--
-- Each mutant works, or is refused by one clear line of tide, within 5 seconds of the processor and
-- 256 MiB more. Workers run them, so that a crash or a hang is one failure with its seed. Kinds are
-- those of spec/support/mutant_files.lua; without names, all. Ends with 1 if one failed.

package.path = './?.lua;' .. package.path
require 'spec.support.helper'
local files = require 'spec.support.mutant_files'
local tmp = require 'spec.support.tmp'
local read_file, write_file = require('spec.support.files').read,
   require('spec.support.files').write

local most_seconds, most_bytes = 5, 256 * 2 ^ 20

local function memory(name)
   return tonumber(read_file('/proc/self/status'):match(name .. ':%s*(%d+)')) * 1024
end

-- Runs one mutant; returns 'works', 'refused', or what is wrong.
local function judged(dir, name, seed)
   write_file('/proc/self/clear_refs', '5')             -- the peak begins at what is there now
   local start, before = os.clock(), memory 'VmRSS'
   local ok, e = files.try(dir, name, seed)
   local seconds, more = os.clock() - start, memory 'VmHWM' - before
   if seconds > most_seconds then return ('takes %.1f s'):format(seconds) end
   if more > most_bytes then return ('takes %.0f MiB'):format(more / 2 ^ 20) end
   if ok then return 'works' end
   return files.complaint(e) or 'refused'
end

-- A worker: runs mutants first .. last and writes a line for each, ahead of it its seed.
local function work(dir, name, first, last)
   for seed = first, last do
      io.write(seed, ' ')
      io.flush()
      io.write((judged(dir, name, seed):gsub('\n', ' | ')), '\n')
      if seed % 20 == 0 then collectgarbage() end
   end
end

if arg[1] == '--work' then return work(arg[2], arg[3], tonumber(arg[4]), tonumber(arg[5])) end

local function worker(dir, name, first, last)
   local command = ('timeout -s KILL %d %s spec/deep/mutant_files.lua --work %s %s %d %d 2>&1')
      :format(20 + (last - first + 1) * 2, os.getenv 'TIDE_LUAJIT' or 'luajit', dir, name, first,
      last)
   local pipe = assert(io.popen(command))
   local out = pipe:read '*a'
   pipe:close()
   return out
end

-- Runs the mutants of a kind; returns counts by verdict, and prints failures.
local function sweep(dir, name, first, last)
   local counts = { works = 0, refused = 0, failed = 0 }
   while first <= last do
      local out, at = worker(dir, name, first, last), first
      for line in out:gmatch '[^\n]+' do
         local seed, verdict = line:match '^(%d+) (.*)$'
         if seed then at = tonumber(seed) + 1 end
         if counts[verdict] then counts[verdict] = counts[verdict] + 1
         else
            counts.failed = counts.failed + 1
            print(('%s %s'):format(name, seed and line or at - 1 .. ' crashes: ' .. line))
         end
      end
      if at == first then error('the worker does not start: ' .. out) end
      first = at
   end
   return counts
end

local function options(args)
   local o, names = { count = 300, seed = 1 }, {}
   local i = 1
   while args[i] do
      local option = args[i]:match '^%-%-(%a+)$'
      if option then
         o[option], i = tonumber(args[i + 1]), i + 1
      else
         names[#names + 1] = args[i]
      end
      i = i + 1
   end
   return o, #names > 0 and names or files.names
end

local o, names = options(arg)
local failed = 0
print(('--seed %d --count %d'):format(o.seed, o.count))
tmp.with(function(dir)
   for _, name in ipairs(names) do
      local c = sweep(dir, name, o.seed, o.seed + o.count - 1)
      print(('%-14s %5d work %5d refused %5d failed'):format(name, c.works, c.refused, c.failed))
      io.flush()
      failed = failed + c.failed
   end
end)
os.exit(failed == 0 and 0 or 1)
