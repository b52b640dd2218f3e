-- Ranks that should have the same: which ranks are named, what is compared with what, and what
-- happens where ranks do not meet.

local ranks = require 'spec.support.ranks'
local agree = require 'tide.comm.agree'

-- On a rank: what agree.check raises for the text that `texts` has for it; '' if nothing.
local function said(rank, _, texts, fields)
   local world = require 'tide.comm'.world()
   local item = { 'plans', texts[rank + 1] }
   for k, v in require 'tide.util.each' (fields or {}) do item[k] = v end
   item[3] = fields and fields.how
   if fields and fields.among then item.among = fields.among[rank + 1] end
   local ok, e = pcall(require('tide.comm.agree').check, world, 'spec', 'E_STATE',
      { { 'seeds', 'same' }, item })
   return ok and '' or e.code .. ' ' .. e.message
end

describe('texts that ranks have agreed on', function()
   it('are remembered, but no more than 256', function()
      local comm, most = { size = 1 }, 0
      for i = 1, 600 do
         agree.once(comm, 'spec', 'plans', 'text ' .. i)
         if comm._agreed.count < 256 then agree.once(comm, 'spec', 'plans', 'text ' .. i) end
         local n = 0
         for _ in pairs(comm._agreed) do n = n + 1 end
         assert.equal(n - 1, comm._agreed.count)        -- each text once, beside the count
         most = math.max(most, comm._agreed.count)
      end
      assert.equal(256, most)
      assert.equal(600 - 2 * 256, comm._agreed.count)
   end)
end)

describe('ranks that differ', function()
   it('are named on every rank, with one text', function()
      for _, text in ipairs(ranks.run(4, said, { 'a', 'b', 'a', 'c' })) do
         assert.equal('E_STATE ranks 1, 3 have other plans than rank 0: these ranks have different '
            .. 'plans; every rank must give the same', text)
      end
      local fields = { how = 'shown', hint = 'why' }
      for _, text in ipairs(ranks.run(3, said, { 'b', 'a', 'a' }, fields)) do
         assert.equal('E_STATE ranks 1, 2 have other plans than rank 0: these ranks have different '
            .. 'plans; rank 0: b; ranks 1, 2: a; why', text)
      end
   end)

   it('are told in which lines their texts differ', function()
      local function lines(...) return table.concat({ ... }, '\n') end
      local same = lines('a.x = 1', 'a.y = 2', 'b.z = 3')
      for _, text in ipairs(ranks.run(3, said, { same, lines('a.x = 1', 'a.y = 5', 'b.z = 3'),
         same }, { how = 'lines' })) do
         assert.equal('E_STATE rank 1 has other plans than rank 0: these ranks have different '
            .. 'plans; a.y (rank 1: 5; ranks 0, 2: 2); every rank must give the same', text)
      end
      for _, text in ipairs(ranks.run(2, said, { lines('a = 1', 'b = 2', 'c = 3', 'e = 5'),
         lines('b = 3', 'c = 4', 'd = 4', 'e = 6') }, { how = 'lines' })) do
         assert.matches('; a (rank 1: absent; rank 0: 1), b (rank 1: 3; rank 0: 2), c (rank 1: 4; '
            .. 'rank 0: 3) and 2 more; every', text, 1, true)
      end
      -- values of 60 bytes are shown, longer ones are cut; three lines are all there is room for
      local long = ('x'):rep(60)
      for _, text in ipairs(ranks.run(2, said, { lines('a = ' .. long, 'b = y' .. long, 'c = 3'),
         lines('a = 1', 'b = 2', 'c = 4') }, { how = 'lines' })) do
         assert.matches(('; a (rank 1: 1; rank 0: %s), b (rank 1: 2; rank 0: y%s...), c (rank 1: '
            .. '4; rank 0: 3); every'):format(long, ('x'):rep(56)), text, 1, true)
      end
   end)

   it('are compared once for a text that repeats', function()
      local list = ranks.run(2, function(rank)
         local agree_, world = require 'tide.comm.agree', require 'tide.comm'.world()
         local function met(text)
            local before = world:traffic().ncall
            local ok, e = pcall(agree_.once, world, 'spec', 'plans', text)
            return { world:traffic().ncall - before > 0, ok and '' or e.code }
         end
         return { met 'a', met 'a', met 'b', met 'a', met('c' .. rank), met('c' .. rank) }
      end)
      local want = { { true, '' }, { false, '' }, { true, '' }, { false, '' },
         { true, 'E_COMM' }, { true, 'E_COMM' } }
      assert.same({ want, want }, list)
   end)

   it('are compared with those among which they are', function()
      local function run(texts, among) return ranks.run(4, said, texts, { among = among }) end
      assert.same({ '', '', '', '' }, run({ 'a', 'b', 'a', 'b' }, { 'x', 'y', 'x', 'y' }))
      for _, text in ipairs(run({ 'a', 'b', 'a', 'c' }, { 'x', 'y', 'x', 'y' })) do
         assert.matches('rank 3 has other plans than rank 1', text, 1, true)
      end
   end)

   it('are in other calls: all are told so, whatever the texts are about', function()
      for r, e in ipairs(ranks.run(3, function(rank)
         return tostring(select(2, pcall(require('tide.comm.agree').check,
            require 'tide.comm'.world(), rank == 1 and 'other' or 'spec', 'E_STATE',
            { { rank == 1 and 'seeds' or 'plans', 'same' } })))
      end)) do
         assert.matches((r == 2 and 'other' or 'spec') .. ': rank 1 has other calls than rank 0: '
            .. 'these ranks have different calls; rank 1: other; ranks 0, 2: spec; all ranks must '
            .. 'make the same calls in the same order (E_COMM)', e, 1, true)
      end
   end)

   it('are not all listed where they are many', function()
      local list = {}
      for r = 1, 40 do list[r] = r end
      assert.equal('rank 3', agree.ranks_text { 3 })
      assert.matches('^ranks 1, 2, .*, 16 and 24 more$', agree.ranks_text(list))
      assert.matches('^ranks 1, 2, .*, 16$', agree.ranks_text { unpack(list, 1, 16) })
   end)
end)

describe('nobody meets', function()
   it('on one rank, or imagined ranks, whose texts are not made', function()
      local dist = require 'tide.comm'
      for _, comm in ipairs { dist.solo(), dist.simulate(4, 1) } do
         agree.check(comm, 'spec', 'E_STATE', { { 'plans', error } })
      end
   end)

   it('for what is settled, on the ranks it is settled for or a part of them', function()
      local function met(rank)
         local agree_, world = require 'tide.comm.agree', require 'tide.comm'.world()
         local part, other = world:split(rank % 2, rank), world:split(0, rank)
         local function check(comm, model)
            return (pcall(agree_.check, comm, 'spec', 'E_STATE',
               { { 'plans', tostring(rank) } }, model))
         end
         local model, list = {}, {}
         local value = agree_.settled(other, model, function()
            list = { check(other, model), check(part, model), check(world, model),
               check(other, {}) }
            return 'value'
         end)
         assert(value == 'value' and model._settled == nil)
         assert(not pcall(agree_.settled, world, model, error, 'x') and model._settled == nil)
         agree_.settled(world, model, function() list[#list + 1] = check(part, model) end)
         list[#list + 1] = check(part, model)
         return list
      end
      for _, list in ipairs(ranks.run(4, met)) do
         assert.same({ true, false, false, false, true, false }, list)
      end
   end)
end)
