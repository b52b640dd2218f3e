-- parallel.layout: random cuts against the elements that each rank should hold.

local layout = require 'tide.parallel.layout'
local placement = require 'tide.parallel.placement'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'

local function axis(size, rank) return { size = size, rank = rank or 0, name = 'tp' } end

-- Indices of the cut dim that a rank holds, in order, from 0; counts: a list for each block.
local function held(blocks, rank)
   local out, at = {}, 0
   for _, counts in ipairs(blocks) do
      for r, n in ipairs(counts) do
         for _ = 1, n do
            if r == rank + 1 then out[#out + 1] = at end
            at = at + 1
         end
      end
   end
   return out
end

local function pick(whole, dim, indices)
   if #indices == 0 then return whole:narrow(dim, 1, 0) end
   local list = {}
   for i, k in ipairs(indices) do list[i] = whole:narrow(dim, k + 1, 1) end
   return tide.cat(list, dim)
end

describe('parallel.layout', function()
   it('shares things as evenly as possible, the first ranks having one more', function()
      assert.same({ 3, 3, 2 }, layout.balanced(8, 3))
      assert.same({ 1, 0 }, layout.balanced(1, 2))
      assert.same({ 0, 0 }, layout.balanced(0, 2))
      assert.same({ 2, 2 }, layout.balanced(4, 2))
   end)

   it('cuts what its boxes say, in random shapes, blocks and counts', function()
      math.randomseed(9)
      for case = 1, 60 do
         local n, dim, k = math.random(1, 4), math.random(1, 3), math.random(1, 3)
         local shape, blocks, size = { 2, 3, 2 }, {}, 0
         for b = 1, k do
            blocks[b] = {}
            for r = 1, n do
               blocks[b][r] = math.random(0, 3)
               size = size + blocks[b][r]
            end
         end
         shape[dim] = size
         local whole = tide.arange(12 / ({ 2, 3, 2 })[dim] * size):reshape(unpack(shape))
         local flat = whole:reshape(-1):tolist()
         for rank = 0, n - 1 do
            local entry = layout.new { axis = axis(n, rank), placement = placement.shard(dim),
               shape = shape, blocks = k, counts = k > 1 and blocks or blocks[1] }
            local want = pick(whole, dim, held(blocks, rank))
            assert.same(want.shape, entry:local_shape(rank))
            local part = entry:cut(whole, rank)
            assert.is_true(part:equal(want), case)
            for i, p in ipairs(entry:parts(part)) do
               local box = entry:boxes()[i]
               assert.same(box.size, p.view.shape)
               assert.same({ box.start, box.stride }, { p.start, p.stride })
               local at, got = {}, p.view:contiguous():reshape(-1):tolist()
               for d = 1, 3 do at[d] = 0 end
               for _, v in ipairs(got) do
                  local place = box.start
                  for d = 1, 3 do place = place + at[d] * box.stride[d] end
                  assert.equal(flat[place + 1], v)
                  local d = 3
                  at[d] = at[d] + 1
                  while d > 1 and at[d] == box.size[d] do
                     at[d], d = 0, d - 1
                     at[d] = at[d] + 1
                  end
               end
            end
         end
      end
   end)

   it('that cuts nothing is whole everywhere', function()
      local entry = layout.new { axis = axis(2, 1), placement = placement.replicate(),
         shape = { 2, 3 } }
      local whole = tide.arange(6):reshape(2, 3)
      assert.same({ 2, 3 }, entry:local_shape(1))
      assert.is_true(entry:cut(whole, 1):equal(whole))
      assert.is_false(entry:cut(whole, 1):same_storage(whole))
      assert.is_true(entry:gather(whole):equal(whole))
      local box = entry:boxes()[1]
      assert.same({ { 0, 0 }, { 2, 3 }, 0, { 3, 1 } },
         { box.offset, box.size, box.start, box.stride })
      local one = layout.new { axis = axis(1), placement = placement.shard(1), shape = { 2, 3 } }
      assert.is_true(one:gather(whole):equal(whole))
   end)

   it('gathers what it has cut', function()
      for n = 1, 3 do
         for _, wrong in ipairs(ranks.run(n, function(rank, size)
            local t, cut = require 'tide', require 'tide.parallel.layout'
            local axis_, list = t.parallel.mesh({ tp = size }):axis 'tp', {}
            local at = 5
            local function draw(most)
               at = at * 48271 % 2147483647
               return at % (most + 1)
            end
            for case = 1, 8 do
               local dim, k, blocks, shape = 1 + draw(2), 1 + draw(2), {}, { 2, 3, 2 }
               shape[dim] = 0
               for b = 1, k do
                  blocks[b] = {}
                  for r = 1, size do
                     blocks[b][r] = draw(2)
                     shape[dim] = shape[dim] + blocks[b][r]
                  end
               end
               local whole = t.arange(t.zeros(shape):numel()):reshape(unpack(shape))
               local entry = cut.new { axis = axis_, placement = t.parallel.Shard(dim),
                  shape = shape, blocks = k, counts = k > 1 and blocks or blocks[1] }
               local m = t.nn.Linear(2, 2)
               m.weight = entry:cut(whole, rank)
               cut.set(m, 'weight', entry)
               local all, grads = cut.gathered(m), cut.gathered(m, true)
               if not all.weight:equal(whole) then list[#list + 1] = case end
               if next(grads) ~= nil then list[#list + 1] = 'gradient' end
            end
            return table.concat(list, ' ')
         end)) do
            assert.equal('', wrong)
         end
      end
   end)

   it('is kept by its module', function()
      local m = tide.nn.Linear(3, 4)
      assert.is_nil(layout.get(m, 'weight'))
      assert.same({ 4, 3 }, layout.shape(m, 'weight'))
      assert.same({ { 0, 0 }, { 4, 3 } }, { layout.box(m, 'weight') })
      local entry = layout.set(m, 'weight', { axis = axis(2, 1), placement = placement.shard(1),
         shape = { 8, 3 } })
      assert.equal(entry, layout.set(m, 'weight', entry))
      assert.equal(entry, layout.get(m, 'weight'))
      assert.same({ 8, 3 }, layout.shape(m, 'weight'))
      assert.same({ { 4, 0 }, { 4, 3 } }, { layout.box(m, 'weight') })
      layout.set(m, 'weight', { axis = axis(2, 1), placement = placement.shard(1),
         shape = { 8, 3 }, blocks = 2 })
      refused('E_STATE', "'weight' is 2 boxes", layout.box, m, 'weight')
      refused('E_ARG', "'field'", layout.shape, m, 'nothing')
   end)

   it('refuses what does not add up', function()
      local function new(o)
         return layout.new { axis = axis(2), placement = o.placement or placement.shard(1),
            shape = { 6, 3 }, counts = o.counts, blocks = o.blocks }
      end
      refused('E_ARG', 'counts that add up to 6, the size of dim 1', new, { counts = { 3, 2 } })
      refused('E_ARG', '2 counts', new, { counts = { 2, 2, 2 } })
      refused('E_ARG', 'counts[2]', new, { counts = { 7, -1 } })
      refused('E_ARG', 'a divisor of 6', new, { blocks = 4 })
      refused('E_ARG', 'Shard of a dim in [1, 2]', new, { placement = placement.shard(3) })
      refused('E_ARG', 'Shard of a dim in [1, 2]', new, { placement = placement.partial 'sum' })
      assert.same({ { 2, 1 }, { 2, 1 } }, new({ blocks = 2 }).counts)
      local counts = { { 3, 0 }, { 1, 2 } }
      assert.same(counts, new({ blocks = 2, counts = counts }).counts)
   end)
end)
