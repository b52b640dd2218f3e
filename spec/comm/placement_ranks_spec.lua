-- Tensors moved between all pairs of placements over threads, and what is refused of them.

local tide = require 'tide'
local placement = require 'tide.parallel.placement'
local ranks = require 'spec.support.ranks'

local S, R, P = placement.shard, placement.replicate(), placement.partial

local function refused(fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok, 'nothing was raised')
   assert.is_true(type(e) == 'table' and e.code ~= nil, tostring(e))
   return tostring(e)
end

local function simulated(axes, rank)
   local n = 1
   for _, a in ipairs(axes) do n = n * a[2] end
   return tide.parallel.mesh(axes, { comm = tide.comm.simulate(n, rank or 0) })
end

-- On one rank: every pair of placements (each `every`-th, from `first`), for each shape; values,
-- shapes and gradients. Returns nil or what was wrong.
local function pairs_of(_, _, axes, shapes, kind, every)
   local tide_ = require 'tide'
   local place = require 'tide.parallel.placement'
   local par = tide_.parallel
   local m = par.mesh(axes)
   local kinds = { par.Shard(1), par.Shard(2), par.Replicate(), par.Partial(kind) }
   local n = #axes

   -- small whole numbers, so that every sum is exact
   local function whole(shape, from)
      local list = {}
      for i = 1, shape[1] * shape[2] do list[i] = (i * 7 + from) % 13 - 6 end
      return tide_.tensor(list, { dtype = 'f64' }):reshape(shape)
   end
   local function same(a, b)
      return a.ndim == b.ndim and a:size(1) == b:size(1) and a:size(2) == b:size(2) and a:equal(b)
   end
   local function slice(t, list)
      local size, offset = place.local_shape(t.shape, list, m)
      return t:narrow(1, offset[1] + 1, size[1]):narrow(2, offset[2] + 1, size[2]):clone()
   end
   -- this rank's share: whole numbers that give the value when combined
   local function share(t, list)
      local part = slice(t, list)
      for i, p in ipairs(list) do
         local c, size = m.axes[i].rank, m.axes[i].size
         if p.kind == 'partial' and kind == 'sum' then
            local last = 1 - (size - 1) * size / 2
            part = part * (c == size - 1 and last or c + 1)
         elseif p.kind == 'partial' and kind == 'max' then
            part = part - c
         elseif p.kind == 'partial' and kind == 'mean' then
            part = part + (c - (size - 1) / 2) * 4
         end
      end
      return part
   end
   local function scale(list)                -- of gradients: a mean gives each share its fraction
      local f = 1
      for i, p in ipairs(list) do
         if p.kind == 'partial' and kind == 'mean' then f = f / m.axes[i].size end
      end
      return f
   end

   local function one(shape, from, to)
      local t, w = whole(shape, 0), whole(shape, 5)
      local leaf = share(t, from)
      if kind ~= 'max' then leaf:requires_grad_(true) end
      local d = par.from_local(leaf, m, from, shape)
      local e = d:redistribute(to)
      if not e.placements[1] then return 'placements' end
      local plain = true
      for _, p in ipairs(to) do plain = plain and p.kind ~= 'partial' end
      if plain and not same(e.part:detach(), slice(t, to)) then return 'part' end
      local full = e:full_tensor()
      if not same(full:detach(), t) then return 'whole' end
      if kind == 'max' then return end
      (full * w):sum():backward()
      local want = slice(w, from) * scale(from)
      if not leaf.grad or (leaf.grad - want):abs():sum():item() > 1e-9 then return 'gradient' end
   end

   local total = (#kinds) ^ n
   for s, shape in ipairs(shapes) do
      for k = s % every, total * total - 1, every do
         local from, to, code = {}, {}, k
         for i = 1, n do
            from[i] = kinds[code % #kinds + 1]
            code = math.floor(code / #kinds)
         end
         for i = 1, n do
            to[i] = kinds[code % #kinds + 1]
            code = math.floor(code / #kinds)
         end
         local wrong = one(shape, from, to)
         if wrong then
            return ('[%s] %s -> %s: %s'):format(table.concat(shape, ', '), place.text(from, m),
               place.text(to, m), wrong)
         end
      end
   end
   return true
end

describe('tensors on meshes of threads', function()
   local shapes = { { 4, 6 }, { 5, 3 }, { 0, 3 }, { 1, 7 } }
   local cases = {
      { 1, { { 'a', 1 } }, 1 }, { 2, { { 'a', 2 } }, 1 }, { 3, { { 'a', 3 } }, 1 },
      { 4, { { 'a', 4 } }, 1 }, { 2, { { 'a', 1 }, { 'b', 2 } }, 3 },
      { 4, { { 'a', 2 }, { 'b', 2 } }, 3 }, { 6, { { 'a', 2 }, { 'b', 3 } }, 5 },
      { 6, { { 'a', 3 }, { 'b', 2 } }, 5 }, { 8, { { 'a', 4 }, { 'b', 2 } }, 11 },
      { 8, { { 'a', 2 }, { 'b', 2 }, { 'c', 2 } }, 151 },
   }
   for _, case in ipairs(cases) do
      local name = {}
      for i, a in ipairs(case[2]) do name[i] = a[2] end
      for _, kind in ipairs { 'sum', 'mean', 'max' } do
         it(('%s, Partial(%s)'):format(table.concat(name, ' x '), kind), function()
            local out = ranks.run(case[1], pairs_of, case[2], shapes, kind,
               kind == 'sum' and case[3] or case[3] * 2 + 1)
            for r = 1, case[1] do assert.equal(true, out[r]) end
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
