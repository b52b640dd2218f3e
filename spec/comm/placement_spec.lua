-- Placements: pieces, plans and their price.

local case = require 'spec.comm.placement_case'
local tide = require 'tide'
local placement = require 'tide.parallel.placement'

local S, R, P = placement.shard, placement.replicate(), placement.partial

local refused, simulated = case.refused, case.simulated

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
      for _, row in ipairs(bad) do
         local text = refused(unpack(row, 2, 7))
         assert.is_truthy(text:find(row[1], 1, true), text)
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
         local total, every = (#kinds) ^ (2 * n), n == 3 and 7 or 1
         for rank = 0, n == 3 and 1 or 2 do
            for k = rank, total - 1, every do
               local from, to = case.pair(kinds, n, k)
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
