-- Tensors moved between all pairs of placements over threads, for the specs: check(mesh, kind,
-- every).

local ranks = require 'spec.support.ranks'

local M = {}

-- Returns the message of the error that fn(...) must raise.
function M.refused(fn, ...)
   local ok, e = pcall(fn, ...)
   assert(not ok, 'nothing was raised')
   assert(type(e) == 'table' and e.code ~= nil, tostring(e))
   return tostring(e)
end

-- Returns a mesh of simulated ranks with these axes, as `rank` (0) of it.
function M.simulated(axes, rank)
   local tide, n = require 'tide', 1
   for _, a in ipairs(axes) do n = n * a[2] end
   return tide.parallel.mesh(axes, { comm = tide.comm.simulate(n, rank or 0) })
end

-- Returns pair k (from 0) of two lists of n placements, taken from `kinds`.
function M.pair(kinds, n, k)
   local lists, code = { {}, {} }, k
   for _, list in ipairs(lists) do
      for i = 1, n do
         list[i] = kinds[code % #kinds + 1]
         code = math.floor(code / #kinds)
      end
   end
   return lists[1], lists[2]
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

   local pair = require('spec.comm.placement_case').pair
   for s, shape in ipairs(shapes) do
      for k = s % every, (#kinds) ^ (2 * n) - 1, every do
         local from, to = pair(kinds, n, k)
         local wrong = one(shape, from, to)
         if wrong then
            return ('[%s] %s -> %s: %s'):format(table.concat(shape, ', '), place.text(from, m),
               place.text(to, m), wrong)
         end
      end
   end
   return true
end

local shapes = { { 4, 6 }, { 5, 3 }, { 0, 3 }, { 1, 7 } }

-- Numbers of ranks, axes, and which pairs of placements are taken: each so many-th.
M.meshes = {
   { 1, { { 'a', 1 } }, 1 }, { 2, { { 'a', 2 } }, 1 }, { 3, { { 'a', 3 } }, 1 },
   { 4, { { 'a', 4 } }, 1 }, { 2, { { 'a', 1 }, { 'b', 2 } }, 3 },
   { 4, { { 'a', 2 }, { 'b', 2 } }, 3 }, { 6, { { 'a', 2 }, { 'b', 3 } }, 5 },
   { 6, { { 'a', 3 }, { 'b', 2 } }, 5 }, { 8, { { 'a', 4 }, { 'b', 2 } }, 11 },
   { 8, { { 'a', 2 }, { 'b', 2 }, { 'c', 2 } }, 151 },
}

-- The sizes of a mesh as text.
function M.text(mesh)
   local sizes = {}
   for i, a in ipairs(mesh[2]) do sizes[i] = a[2] end
   return table.concat(sizes, ' x ')
end

-- Raises unless each `every`-th pair is right on every rank. kind: of the partial placement.
function M.check(mesh, kind, every)
   local out = ranks.run(mesh[1], pairs_of, mesh[2], shapes, kind, every)
   for r = 1, mesh[1] do assert(out[r] == true, out[r]) end
end

return M
