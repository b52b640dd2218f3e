-- Tensors moved between all pairs of placements over threads, and what is refused of them.

local case = require 'spec.comm.placement_case'
local tide = require 'tide'
local placement = require 'tide.parallel.placement'
local ranks = require 'spec.support.ranks'
local wide = require 'spec.support.wide'

local S, R, P = placement.shard, placement.replicate(), placement.partial

local refused, simulated = case.refused, case.simulated

describe('tensors on meshes of threads', function()
   -- More pairs: spec/deep/placement_spec.lua.
   for _, mesh in ipairs(case.meshes) do
      local many = mesh[1] > 4 and not wide
      for i, kind in ipairs { 'sum', not many and 'mean' or nil, not many and 'max' or nil } do
         it(('%s, Partial(%s)'):format(case.text(mesh), kind), function()
            case.check(mesh, kind, mesh[3] == 1 and 1 or mesh[3] * 4 + 2 * i + 1)
         end)
      end
   end

   it('come from one rank, or from local pieces', function()
      local out = ranks.run(4, function(rank)
         local tide_ = require 'tide'
         local par = tide_.parallel
         local m = par.mesh { dp = 2, tp = 2 }
         local t = tide_.arange(15):reshape { 5, 3 }
         local mine = rank == 2 and t or tide_.zeros { 5, 3 }
         local d = par.distribute(mine, m, { dp = par.Shard(1) }, { root = 2 })
         if not d:full_tensor():equal(t) then return 'root' end
         if d:offset()[1] ~= (rank < 2 and 0 or 3) then return 'offset' end
         if d:to_local():same_storage(mine) then return 'storage' end
         local e = par.from_local(d.part, m, { dp = par.Shard(1) })
         if e.shape[1] ~= 5 or e.shape[2] ~= 3 then return 'shape' end
         return tostring(d)
      end)
      assert.same({ 'DTensor [5, 3] f32, dp S(1), tp R; here [3, 3]',
         'DTensor [5, 3] f32, dp S(1), tp R; here [3, 3]',
         'DTensor [5, 3] f32, dp S(1), tp R; here [2, 3]',
         'DTensor [5, 3] f32, dp S(1), tp R; here [2, 3]' }, out)
   end)

   it('are refused when a piece does not fit', function()
      local m = simulated({ { 'a', 2 } }, 1)
      local par = tide.parallel
      local text = refused(par.from_local, tide.zeros { 3 }, m, { S(1) }, { 5 })
      assert.is_truthy(text:find('rank 1 of a [5] tensor with a S(1) on mesh a=2', 1, true), text)
      assert.is_truthy(text:find('holds [2], got [3]', 1, true), text)
      assert.is_truthy(refused(par.distribute, 3, m, { R }):find "argument 't'")
      assert.is_truthy(refused(par.distribute, tide.zeros { 3 }, m, { S(2) }):find 'a dim of')
      assert.is_truthy(refused(par.distribute, tide.zeros { 3 }, m, { R }, { root = 2 })
         :find "argument 'root'")
      local d = par.distribute(tide.zeros { 4 }, m, { S(1) })
      assert.is_truthy(refused(d.redistribute, d, { S(2) }):find 'a dim of')
      local x = tide.ones({ 4 }, { requires_grad = true })
      local p = par.from_local(x, m, { P 'max' }, { 4 })
      local y = p:redistribute { R }
      local text_of_max = refused(function() y.part:sum():backward() end)
      assert.is_truthy(text_of_max:find "'max' over ranks has no", text_of_max)
   end)
end)
