-- What each process of spec/comm/mpi_turn_spec.lua runs: turns given by name, and after each one a
-- turn that sums over all communicators. Rank 0 prints what each rank says.

local tide = require 'tide'
local world = tide.comm.world()

local me, env = world.rank, {}
world:pause()
world:resume()
env.half = world:split(math.floor(me / 2), me)
env.keep = {}

local turns = {
   missing = function() if me ~= 1 then world:barrier() end end,
   missing_two = function()
      if me == 2 then world:all_reduce(tide.ones { 100000 }) end
   end,
   in_part = function() if me == 0 then env.half:barrier() end end,
   error = function()
      if me == 0 then error('planned', 0) end
      world:barrier()
   end,
   async = function()
      if me ~= 0 then env.keep[1] = world:all_reduce(tide.ones { 7 }, 'sum', { async = true }) end
   end,
   mismatch = function() world:all_reduce(tide.ones { me + 1 }) end,
   interrupt = function()
      if me == 1 then
         tide.default():interrupt()
         tide.default():interrupt()
      end
      world:all_reduce(tide.ones { 4 })
   end,
   large = function()
      local sum = world:all_reduce(tide.ones { 3000000 })
      assert(sum:sum():item() == 3000000 * world.size)
   end,
}

local function turn(fn)
   world:resume()
   local ok, e = pcall(fn)
   world:pause()
   tide.default():interrupted()
   return ok and 'well' or tostring(e)
end

local function sums()
   local x = world:all_reduce(tide.full({ 3 }, me + 1)):tolist()[1]
   local y = env.half:all_reduce(tide.full({ 3 }, me + 1)):tolist()[1]
   return x, y
end

world:pause()
for _, name in ipairs(arg) do
   local row = { said = turn(turns[name]) }
   row.after = turn(function() row.world, row.half = sums() end)
   world:resume()
   local all = world:all_gather_object(row)
   world:pause()
   for r, said in ipairs(me == 0 and all or {}) do
      print(('%s %d: %s / %s %s %s'):format(name, r - 1, said.said:gsub('%s*\n.*', ''), said.after,
         said.world, said.half))
   end
end
world:resume()
