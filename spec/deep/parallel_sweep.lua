-- Every way to spread a model, on every mesh of n ranks: 20 steps equal one rank's. Each spec file
-- takes a few n, as a file has a limit of time. TIDE_SWEEP_SHOW=1 prints how far the furthest way
-- of each mesh was.

local case = require 'spec.deep.parallel_case'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'

local function compare(_, _, axes, ways, want)
   return require('spec.deep.parallel_case').compare(axes, ways, want)
end

local function alone(_, _, way)
   return require('spec.deep.parallel_case').train({ dp_shard = 1, tp = 1, cp = 1 }, way)
end

-- What one rank does, without recomputation, by kind and accumulation; made once.
local made
local function wanted()
   if made then return made end
   made = {}
   for kind in each(case.kinds) do
      for _, accum in ipairs { 1, 3 } do
         local way = { kind = kind, accum = accum, recompute = 'none', strategy = 'no_shard' }
         made[case.key(way)] = ranks.run(1, alone, way)[1]
      end
   end
   return made
end

-- Meshes of n ranks: every product of dp_replicate, dp_shard and tp, and some with cp.
local function meshes(n)
   local list = {}
   for r = 1, n do
      for s = 1, n do
         if n % (r * s) == 0 then
            list[#list + 1] = { dp_replicate = r, dp_shard = s, cp = 1, tp = n / r / s }
            local rest = n / r / s
            if rest > 1 and r == 1 then
               list[#list + 1] = { dp_replicate = 1, dp_shard = s, cp = rest, tp = 1 }
            end
            if r == 1 and rest > 2 and rest % 2 == 0 then
               list[#list + 1] = { dp_replicate = 1, dp_shard = s, cp = rest / 2, tp = 2 }
            end
         end
      end
   end
   return list
end

-- Of the ways of a run (kind x strategy x recompute x accumulation) the share of mesh `i` of `m`:
-- every kind and strategy on each mesh, with another recomputation and accumulation on the next, so
-- that up to six meshes of a number of ranks share the whole product. TIDE_SWEEP=all: all of it on
-- each mesh.
local function ways_of(axes, i, m)
   local list, at = {}, 0
   local shared = os.getenv 'TIDE_SWEEP' == 'all' and 1 or math.min(m, 6)
   for _, kind in ipairs { 'f64', 'f32', 'bf16' } do
      for s, strategy in ipairs { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } do
         for _, recompute in ipairs { 'none', 'mlp', 'full' } do
            for _, accum in ipairs { 1, 3 } do
               at = at + 1
               list[#list + 1] = (at + i) % shared == 0 and { kind = kind, strategy = strategy,
                  recompute = recompute, accum = accum,
                  tp = axes.tp > 1 and s % 2 == i % 2 and { sequence_parallel = true } or nil }
                  or nil
            end
         end
      end
   end
   return list
end

local show = os.getenv 'TIDE_SWEEP_SHOW'

-- Returns the cases of n ranks, a list of { name, run }: run raises where a rank differs.
return function(n)
   local list, all = {}, meshes(n)
   for i, axes in ipairs(all) do
      local name = ('ranks %d: dp_replicate %d, dp_shard %d, cp %d, tp %d'):format(n,
         axes.dp_replicate, axes.dp_shard, axes.cp, axes.tp)
      list[i] = { name, function()
         local ways = ways_of(axes, i, #all)
         local rows = ranks.run(n, compare, axes, ways, wanted())
         if show then io.stderr:write(name, ': ', rows[1][2], '\n') end
         for _, row in ipairs(rows) do
            if row[1] ~= #ways then error(row[1], 0) end
         end
      end }
   end
   return list
end
