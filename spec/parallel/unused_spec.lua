-- Plain data parallelism where ranks use different parameters: the same as one rank that has all
-- the data, and no collective more where they use the same.

local ranks = require 'spec.support.ranks'

-- Trains `steps` steps of a model of three layers. A row uses the layers that its word in `rows`
-- names; rank r of n has the rows r + 1, r + 1 + n, ...
local function trained(rank, n, rows, steps, fsdp)
   local tide = require 'tide'
   local class = require 'tide.class'
   local Part = class('Part', tide.nn.Module)
   Part.mixes = false
   function Part:init()
      tide.nn.Module.init(self)
      for _, name in ipairs { 'a', 'b', 'c' } do
         self:child(name, tide.nn.Linear(3, 1, { seed = 4 }))
      end
      self:ready {}
   end
   function Part:loss(ids, _, opts)
      local x, loss = tide.ones { 1, 3 } * (ids:item() + 1), tide.zeros {}
      for name in rows[ids:item() + 1]:gmatch '%a' do loss = loss + self[name](x):sum() end
      return loss / opts.count
   end
   local model, world = Part(), n > 1 and tide.comm.world() or nil
   local sharded = fsdp and tide.parallel.fully_shard(model, tide.comm.world(), fsdp)
   local step = tide.train.step.new { model = model, clip = 1, comm = world, parallel = sharded,
      optim = tide.optim.AdamW(sharded or model, { lr = 0.1, weight_decay = 0.1 }) }
   local norms, calls = {}, world and #world:history() or 0
   for s = 1, steps do
      local batches = {}
      for i = rank + 1, #rows, n do
         batches[#batches + 1] = { ids = tide.full({ 1, 1 }, i - 1, { dtype = 'i64' }), count = 1 }
      end
      norms[s] = step:run(batches).grad_norm
   end
   local weights, all = {}, sharded and sharded:full_state_dict() or model:state_dict()
   for _, name in ipairs { 'a', 'b', 'c' } do weights[name] = all[name .. '.weight']:tolist()[1] end
   return { norms = norms, weights = weights, calls = world and #world:history() - calls }
end

local function near(want, got)
   for name, list in pairs(want.weights) do
      for k, v in ipairs(list) do assert.near(v, got.weights[name][k], 1e-5) end
   end
   for s, v in ipairs(want.norms) do assert.near(v, got.norms[s], 1e-4 * v) end
end

describe('data parallelism of a whole model', function()
   it('adds zeros for parameters that a rank does not use', function()
      for _, rows in ipairs { { 'ab', 'a' }, { 'a', 'b' }, { 'a', 'a', 'a', 'ab', 'b', 'a' } } do
         local want = trained(0, 1, rows, 3)
         for _, got in ipairs(ranks.run(2, trained, rows, 3)) do near(want, got) end
      end
   end)

   it('does so where the model is sharded, also in several micro-batches', function()
      for _, rows in ipairs { { 'ab', 'a' }, { 'c', 'b' }, { 'a', 'b', 'a', 'ab', 'b', 'a' },
         { 'ab', 'c', 'b', 'c', 'b', 'b' } } do
         local want = trained(0, 1, rows, 3)
         for _, fsdp in ipairs { { sync_each_backward = true }, { sync_each_backward = false },
            { strategy = 'no_shard' }, { strategy = 'optim', sync_each_backward = true } } do
            near(want, ranks.run(1, trained, rows, 3, fsdp)[1])
            for _, got in ipairs(ranks.run(2, trained, rows, 3, fsdp)) do near(want, got) end
         end
      end
   end)

   it('leaves alone what no rank uses', function()
      local row = ranks.run(2, trained, { 'ab', 'a' }, 3)[1]
      assert.same(trained(0, 1, { 'a' }, 1).weights.c, row.weights.c)
      local one = trained(0, 1, { 'c' }, 1).weights.c
      assert.not_same(one, row.weights.c)
   end)

   it('takes as many collectives as before where all ranks use the same', function()
      local same = ranks.run(2, trained, { 'ab', 'ab' }, 2)[1].calls
      assert.equal(2 * 3, same)        -- counts, losses and marks, gradients
      assert.is_true(ranks.run(2, trained, { 'ab', 'a' }, 2)[1].calls > same)
   end)

   it('leaves it alone in a loop by hand over a sharded model', function()
      for _, row in ipairs(ranks.run(2, function(rank)
         local tide = require 'tide'
         local Parts = require 'tide.class'('Parts', tide.nn.Module)
         function Parts:init()
            tide.nn.Module.init(self)
            for i = 1, 3 do self:child('part' .. i, tide.nn.Linear(3, 2, { seed = i })) end
            self:ready {}
         end
         function Parts:forward(x, more)                  -- rank 1 may use two parts, rank 0 one
            local y = self.part1(x)
            return rank == 1 and more and y + self.part2(x) or y
         end
         local model = Parts()
         local sharded = tide.parallel.fully_shard(model, tide.comm.world(), {})
         local optim = tide.optim.AdamW(sharded, { lr = 0.1, weight_decay = 0.5 })
         local moved = {}
         for _, more in ipairs { true, false } do
            local before = sharded:full_state_dict()
            model(tide.ones { 1, 3 }, more):sum():backward()
            sharded:finish()
            sharded:drop_unused()
            optim:step()
            optim:zero_grad()
            local after = sharded:full_state_dict()
            for i = 1, 3 do
               local name = ('part%d.weight'):format(i)
               moved[#moved + 1] = (before[name] - after[name]):abs():sum():item() > 0
            end
         end
         return moved
      end)) do
         assert.same({ true, true, false, true, false, false }, row)
      end
   end)
end)
