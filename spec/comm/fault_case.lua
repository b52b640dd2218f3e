-- What the fault matrix runs on every rank: `tide run spec/comm/fault_case.lua KIND SEQ [TIMEOUT
-- [FILE]]`. A cycle of collectives with checked results; after SEQ of them, from when on TIMEOUT
-- holds, the last rank has the fault KIND. Fault `wait`: rank 0 waits until FILE exists.

local tide = require 'tide'

local kind, at, timeout, file = ..., tonumber((select(2, ...))), tonumber((select(3, ...))),
   (select(4, ...))
local comm = tide.comm.init { timeout = 1000 }
local n, me = comm.size, comm.rank
local victim = me == n - 1

local function check(t, value)
   local list = t:tolist()
   for i = 1, #list do
      if list[i] ~= value then
         error(('wrong data: element %d is %s, expected %s'):format(i, list[i], value))
      end
   end
end

local sum = n * (n + 1) / 2
local function mine(count) return tide.full({ count }, me + 1) end

local cycle = {
   function() check(comm:all_reduce(mine(7)), sum) end,
   function() check(comm:all_reduce(mine(30000)), sum) end,
   function() check(comm:broadcast(mine(5), n - 1), n) end,
   function() check(comm:reduce_scatter(mine(n * 600)), sum) end,
   function() comm:barrier() end,
   function() check(comm:shift(mine(3000)), (me - 1) % n + 1) end,
   function() check(comm:all_gather(tide.full({ 3 }, 4)), 4) end,
   function() check(comm:all_to_all(tide.full({ n * 900 }, 2)), 2) end,
}

local fault = {}
local pid = io.open('/proc/self/stat'):read '*n'
function fault.none() end
function fault.kill() os.execute('kill -9 ' .. pid) end
function fault.stop() os.execute('kill -STOP ' .. pid) end
function fault.error() error('planned failure', 0) end
function fault.exit() os.exit(3) end
function fault.loop() while not comm:failure() do tide.interrupted() end end
-- Tells by a file that the ranks are here, goes on when another file says so.
function fault.wait()
   print 'waiting'
   while not io.open(file) do tide.interrupted() end
end

for seq = 1, 40 do
   if seq == at then
      if timeout then comm:set_timeout(kind == 'wait' and me > 0 and 60 or timeout) end
      if kind == 'wait' and me == 0 then fault.wait() end
      if victim and kind == 'return' then return end
      if victim and kind ~= 'wait' then fault[kind]() end
   end
   cycle[(seq - 1) % #cycle + 1]()
end
print 'finished'
