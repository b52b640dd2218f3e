-- Placements: pieces, plans and their price, and tensors moved between all pairs over threads.

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

describe('pieces', function()
   it('follow ceil(n / k) until n is used up', function()
      local cases = {
         { 10, 4, { 3, 3, 3, 1 } }, { 5, 4, { 2, 2, 1, 0 } }, { 4, 4, { 1, 1, 1, 1 } },
         { 6, 4, { 2, 2, 2, 0 } }, { 1, 3, { 1, 0, 0 } }, { 0, 2, { 0, 0 } }, { 7, 1, { 7 } },
         { 9, 8, { 2, 2, 2, 2, 1, 0, 0, 0 } },
      }
      for _, c in ipairs(cases) do
         assert.same(c[3], placement.pieces(c[1], c[2]))
         local at = 0
         for r = 1, c[2] do
            local before, count = placement.piece(c[1], c[2], r - 1)
            assert.same({ at, c[3][r] }, { before, count })
            at = at + count
         end
      end
   end)

   it('tile the whole, whatever axes cut', function()
      for _, axes in ipairs { { { 'a', 3 } }, { { 'a', 2 }, { 'b', 3 } },
         { { 'a', 3 }, { 'b', 2 } }, { { 'a', 2 }, { 'b', 2 }, { 'c', 2 } } } do
         local m = simulated(axes)
         for _, list in ipairs { { S(1), S(1), S(1) }, { S(1), S(2), S(1) }, { S(2), S(-1), R },
            { R, S(1), S(2) }, { P(), R, S(2) } } do
            for _, shape in ipairs { { 5, 4 }, { 1, 7 }, { 0, 3 }, { 12, 8 } } do
               local seen, copies = {}, m:size()
               local here = { unpack(list, 1, #axes) }
               for i, p in ipairs(here) do
                  if p.kind == 'shard' then copies = copies / axes[i][2] end
               end
               for rank = 0, m:size() - 1 do
                  local size, offset = placement.local_shape(shape, here, m, rank)
                  for i = 1, size[1] do
                     for j = 1, size[2] do
                        local at = (offset[1] + i - 1) * shape[2] + offset[2] + j
                        seen[at] = (seen[at] or 0) + 1
                     end
                  end
               end
               local n = 0
               for _, count in pairs(seen) do
                  assert.equal(copies, count)
                  n = n + 1
               end
               assert.equal(shape[1] * shape[2], n)
            end
         end
      end
   end)

   it('of two axes on one dim: the outer cuts first', function()
      local m = simulated { { 'a', 2 }, { 'b', 2 } }
      local got = {}
      for rank = 0, 3 do
         local size, offset = placement.local_shape({ 5 }, { a = S(1), b = S(1) }, m, rank)
         got[rank + 1] = offset[1] .. '+' .. size[1]
      end
      assert.same({ '0+2', '2+1', '3+1', '4+1' }, got)
   end)
end)

describe('placements', function()
   it('are values', function()
      assert.equal(S(1), S(1))
      assert.equal(P(), P 'sum')
      assert.equal(tide.parallel.Replicate(), R)
      assert.not_equal(S(1), S(2))
      assert.same({ 'S(1)', 'R', 'P(max)' }, { tostring(S(1)), tostring(R), tostring(P 'max') })
   end)

   it('are refused with a reason', function()
      local m = simulated { { 'a', 2 }, { 'b', 2 } }
      local function shape(list) return placement.local_shape({ 4, 4 }, list, m) end
      local bad = {
         { "argument 'dim'", S, 0 }, { "argument 'dim'", S, 1.5 }, { "argument 'dim'", S, 'x' },
         { 'one of sum, mean, min, max, prod', P, 'avg' },
         { 'a dim of a tensor with 2', shape, { a = S(3) } },
         { 'a dim of a tensor with 2', shape, { a = S(-3) } },
         { "no axis 'c'", shape, { c = R } },
         { '2 placements for mesh a=2 x b=2', shape, { R } },
         { 'a list of 2 placements', shape, R }, { 'a list of 2 placements', shape, nil },
         { 'Shard(dim), Replicate() or Partial(op)', shape, { a = 1 } },
         { 'a list or a map, not both', shape, { R, R, a = R } },
         { 'depend on their order', shape, { P 'sum', P 'max' } },
         { "argument 'mesh'", placement.local_shape, { 4 }, { R }, 3 },
         { "argument 'shape[1]'", placement.local_shape, { -1 }, { R, R }, m },
         { "argument 'dtype'", placement.route, { 4 }, 'f31', m, { R, R }, { R, R } },
         { "argument 'rank'", placement.local_shape, { 4 }, { R, R }, m, 4 },
      }
      for _, case in ipairs(bad) do
         local text = refused(unpack(case, 2, 7))
         assert.is_truthy(text:find(case[1], 1, true), text)
      end
      assert.same({ 4, 2 }, { unpack(shape { P 'sum', P 'mean' }, 1, 1),
         unpack(shape { a = S(-1) }, 2, 2) })
   end)
end)

describe('plans', function()
   local function actions(axes, shape, from, to)
      local plan, list = placement.route(shape, 'f32', simulated(axes), from, to), {}
      for i, s in ipairs(plan.steps) do list[i] = s.name .. ' ' .. s.action end
      return table.concat(list, ', ')
   end

   it('take the best collective of each pair', function()
      local one = { { 'a', 4 } }
      local cases = {
         { P(), S(1), 'a reduce_scatter' }, { P(), R, 'a all_reduce' }, { S(1), R, 'a all_gather' },
         { S(1), S(2), 'a all_to_all' }, { R, S(2), 'a slice' }, { R, R, '' }, { S(1), S(1), '' },
         { P(), P(), '' }, { R, P(), 'a keep_first' }, { R, P 'max', 'a rename' },
         { S(1), P(), 'a place' }, { S(1), P 'max', 'a all_gather, a rename' },
         { P 'max', P(), 'a all_reduce, a keep_first' }, { P 'max', S(1), 'a reduce_scatter' },
      }
      for _, c in ipairs(cases) do
         assert.equal(c[3], actions(one, { 8, 12 }, { c[1] }, { c[2] }))
      end
      assert.equal('a all_gather_v', actions(one, { 6, 4 }, { S(1) }, { R }))
      assert.equal('a reduce_scatter_v', actions(one, { 6, 4 }, { P() }, { S(1) }))
      assert.equal('a all_to_all_v', actions(one, { 6, 4 }, { S(1) }, { S(2) }))
      assert.equal('a rename', actions({ { 'a', 1 } }, { 6 }, { P() }, { R }))
   end)

   it('cut from outer to inner, shrink first, grow last', function()
      local two = { { 'a', 2 }, { 'b', 2 } }
      local function of(from, to) return actions(two, { 8, 8 }, from, to) end
      assert.equal('a all_reduce, b all_gather', of({ P(), S(1) }, { R, R }))
      assert.equal('b slice, a all_reduce', of({ P(), R }, { R, S(1) }))
      assert.equal('a slice, b reduce_scatter', of({ R, P() }, { S(1), S(1) }))
      assert.equal('b all_gather, a all_gather', of({ S(1), S(1) }, { R, R }))
      assert.equal('a slice, b slice', of({ R, R }, { S(1), S(1) }))
      -- the inner cut has to give way
      assert.equal('b all_gather, a slice, b slice', of({ R, S(1) }, { S(1), S(1) }))
      assert.equal('b all_gather, a all_to_all, b slice', of({ S(1), S(1) }, { S(2), S(2) }))
   end)

   it('print and have a price', function()
      local plan = placement.route({ 8, 6 }, 'f32', simulated { { 'dp', 2 }, { 'tp', 2 } },
         { dp = S(1), tp = P() }, { dp = R, tp = R })
      assert.equal([[
redistribute [8, 6] f32: dp S(1), tp P(sum) -> dp R, tp R
  1  tp           P(sum)  -> R       all_reduce       [4, 6] -> [4, 6], 96 bytes
  2  dp           S(1)    -> R       all_gather       [4, 6] -> [8, 6], 96 bytes
2 collectives, 192 bytes sent by this rank]], tostring(plan))
      assert.equal(192, plan.bytes)
      assert.equal(2, plan.collectives)
      assert.equal(192 / 1e9 + 2 * 1e-6, plan:seconds(1e9, 1e-6))
      assert.is_truthy(refused(plan.seconds, plan, 0):find "argument 'bandwidth'")
   end)

   -- Every pair on simulated ranks: the plan ends, its shapes are those of the placements, and its
   -- price is what the communicators count when it runs.
   it('cost what communicators count', function()
      local kinds = { S(1), S(2), R, P() }
      for _, axes in ipairs { { { 'a', 3 } }, { { 'a', 2 }, { 'b', 3 } },
         { { 'a', 2 }, { 'b', 2 }, { 'c', 2 } } } do
         local n = #axes
         local total, every = (#kinds) ^ n, n == 3 and 7 or 1
         for rank = 0, n == 3 and 1 or 2 do
            for k = rank, total * total - 1, every do
               local from, to, code = {}, {}, k
               for i = 1, n do
                  from[i] = kinds[code % #kinds + 1]
                  code = math.floor(code / #kinds)
               end
               for i = 1, n do
                  to[i] = kinds[code % #kinds + 1]
                  code = math.floor(code / #kinds)
               end
               local m = simulated(axes, rank)
               local shape = k % 2 == 0 and { 12, 24 } or { 5, 7 }
               local part = tide.empty(placement.local_shape(shape, from, m), { device = 'null' })
               local d = tide.parallel.from_local(part, m, from, shape)
               local plan = d:plan(to)
               local e = d:redistribute(to)
               assert.same(placement.local_shape(shape, to, m), e.part.shape)
               local bytes, calls, seen = 0, 0, {}
               for _, axis in ipairs(m.axes) do
                  local t = axis.comm:traffic()
                  if not seen[axis.comm] then
                     bytes, calls = bytes + t.nbyte[1] + t.nbyte[2], calls + t.ncall
                  end
                  seen[axis.comm] = true
               end
               assert.equal(calls, plan.collectives, tostring(plan))
               assert.equal(bytes, plan.bytes, tostring(plan))
            end
         end
      end
   end)
end)

-- ---- over threads ----------------------------------------------------------------------------

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
