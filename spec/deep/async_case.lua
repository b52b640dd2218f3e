-- A random program of asynchronous and blocking collectives on every rank, which fails at a random
-- point in a random way. The seed makes the program, the same on all ranks; each call that ends
-- well must hold the right numbers: WRONG is printed if not.
--
--     tide run -n RANKS -t 1 spec/deep/async_case.lua SEED [explain]

local tide = require 'tide'
local ffi = require 'ffi'
ffi.cdef 'int usleep(unsigned usec);'

local world = tide.comm.init { timeout = 20 }
local seed, explain = tonumber((...)), select(2, ...) == 'explain'

-- ---- what all ranks know ---------------------------------------------------------------------

-- Numbers 0 .. n - 1 from a generator of our own: math.random differs between builds.
local state = seed
local function below(n)
   state = (state * 16807 + 12345) % 2147483647
   return math.floor(state / 7) % n
end
for _ = 1, 5 do below(2) end

local function pick(list) return list[1 + below(#list)] end

-- Floats: on one page, just on it, just off it, and far off.
local sizes = { 1, 4, 4, 64, 512, 513, 3000 }
local kinds = { 'all_reduce', 'all_reduce', 'all_reduce', 'broadcast', 'all_gather', 'shift',
   'all_to_all', 'reduce_scatter', 'barrier', 'object' }
local parts = { 'world', 'world', 'world', 'half', 'odd' }
local failures = { 'error', 'error', 'error', 'abort', 'exit', 'return', 'close', 'mismatch',
   'skip', 'none' }

local program = {}
for i = 1, 4 + below(36) do
   program[i] = { kind = pick(kinds), part = pick(parts), n = pick(sizes), async = below(3) > 0,
      wait = below(4) == 0, nap = below(6) == 0 and below(world.size) or nil }
end
local failure = { kind = pick(failures), rank = below(world.size), at = 1 + below(#program),
   hurry = below(2) == 0 }

-- ---- calls -----------------------------------------------------------------------------------

local comms = { world = world }

local function value(i, rank) return 100 * i + rank end

local function total(i, n) return n * 100 * i + n * (n - 1) / 2 end

-- kind -> fn(comm, call, i, opts): starts it; returns what it returns, and what the first and last
-- element of the result must be.
local start = {}

function start.all_reduce(c, call, i, opts)
   local x = tide.full({ call.n }, value(i, c.rank))
   return c:all_reduce(x, 'sum', opts), total(i, c.size), total(i, c.size)
end

function start.broadcast(c, call, i, opts)
   local root = i % c.size
   return c:broadcast(tide.full({ call.n }, value(i, c.rank)), root, opts), value(i, root),
      value(i, root)
end

function start.all_gather(c, call, i, opts)
   return c:all_gather(tide.full({ call.n }, value(i, c.rank)), opts), value(i, 0),
      value(i, c.size - 1)
end

function start.shift(c, call, i, opts)
   local from = (c.rank - 1) % c.size
   return c:shift(tide.full({ call.n }, value(i, c.rank)), 1, opts), value(i, from), value(i, from)
end

function start.all_to_all(c, call, i, opts)
   return c:all_to_all(tide.full({ call.n * c.size }, value(i, c.rank)), opts), value(i, 0),
      value(i, c.size - 1)
end

function start.reduce_scatter(c, call, i, opts)
   return c:reduce_scatter(tide.full({ call.n * c.size }, value(i, c.rank)), 'sum', opts),
      total(i, c.size), total(i, c.size)
end

function start.barrier(c) return c:barrier() end

function start.object(c, _, i)
   local got = c:broadcast_object({ value(i, c.rank) }, 0)[1]
   return tide.full({ 1 }, got), value(i, 0), value(i, 0)
end

-- After a rank has skipped a call, its next one meets the others' skipped one, and may be like it.
local function check(i, result, first, last)
   if first == nil or failure.kind == 'skip' and i >= failure.at then return end
   local a, b = result:at(1), result:at(result:numel())
   if a ~= first or b ~= last then
      io.stderr:write(('WRONG rank %d call %d: got %g .. %g, expected %g .. %g\n')
         :format(world.rank, i, a, b, first, last))
   end
end

local pending = {}

local function finish()
   for _, p in ipairs(pending) do check(p.i, p.work:wait(), p.first, p.last) end
   pending = {}
end

local function run(i, call)
   local comm = comms[call.part]
   local async = call.async and call.kind ~= 'barrier' and call.kind ~= 'object'
   local result, first, last = start[call.kind](comm, call, i, async and { async = true } or nil)
   if async then pending[#pending + 1] = { i = i, work = result, first = first, last = last }
   else check(i, result, first, last) end
   if call.wait then finish() end
end

-- kind -> what the failing rank does in the place of a call. True: it ends here.
local fail = {
   none = function() end,
   skip = function() end,
   error = function() error 'planned failure' end,
   abort = function() world:abort 'planned failure' end,
   exit = function() os.exit(3) end,
   ['return'] = function() return true end,
   close = function() world:close() return true end,
   mismatch = function(call) comms[call.part]:all_reduce(tide.ones { 7 }, 'max') end,
}

if explain and world.rank == 0 then
   print(('failure: %s of rank %d at call %d'):format(failure.kind, failure.rank, failure.at))
   for i, call in ipairs(program) do
      print(('%3d %s on %s, %d elements%s%s%s'):format(i, call.kind, call.part, call.n,
         call.async and ', async' or '', call.wait and ', then wait' or '',
         call.nap and ', rank ' .. call.nap .. ' late' or ''))
   end
end

comms.half = world:split(world.rank < world.size / 2 and 0 or 1, 0, 'half')
comms.odd = world:split(world.rank % 2, 0, 'odd')
for i, call in ipairs(program) do
   if call.nap == world.rank then ffi.C.usleep(2000) end
   if failure.at == i and failure.rank == world.rank then
      if failure.kind ~= 'none' and not failure.hurry then finish() end
      if fail[failure.kind](call) then return end
   end
   if not (failure.kind == 'skip' and failure.at == i and failure.rank == world.rank) then
      run(i, call)
   end
end
finish()
world:barrier()
