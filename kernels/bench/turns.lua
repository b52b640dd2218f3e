-- What programs that measure ranks share: two pieces of work in turns, and ranks of a moment.
--
-- What is compared takes turns, first and second alternately, so both meet the same
-- machine; medians are told, of seconds and of the pairs' ratios.

local stats = require 'kernels.bench.stats'

local turns = {}

local function timed(comm, fn)
   comm:barrier()
   local begin, cpu = require 'tide'.clock(), os.clock()
   fn()
   comm:barrier()
   return require 'tide'.clock() - begin, os.clock() - cpu
end

-- Runs work a and b `rounds` times in turns on every rank of comm. Returns medians: a, b (seconds),
-- a_cpu, b_cpu (processor seconds of the process), ratio and cpu_ratio (of b to a, by pairs).
function turns.compare(comm, rounds, a, b)
   local t = { a = {}, b = {}, a_cpu = {}, b_cpu = {}, ratio = {}, cpu_ratio = {} }
   local work = { a = a, b = b }
   for i = 1, rounds do
      for _, k in ipairs(i % 2 == 1 and { 'a', 'b' } or { 'b', 'a' }) do
         t[k][i], t[k .. '_cpu'][i] = timed(comm, work[k])
      end
      t.ratio[i], t.cpu_ratio[i] = t.b[i] / t.a[i], t.b_cpu[i] / t.a_cpu[i]
   end
   local medians = {}
   for k, list in pairs(t) do medians[k] = stats.median(list) end
   return medians
end

-- What body(rank, n, ...) returns on rank 0 of n ranks that share two threads; raises if one fails.
function turns.on(n, body, ...)
   local rows = require 'tide.ffi.host'.try(n, { nthread = 2 / n }, body, ...)
   for _, row in ipairs(rows) do
      if row.status ~= 'OK' then error(row.message or row.status, 0) end
   end
   return rows[1].values[1]
end

return turns
