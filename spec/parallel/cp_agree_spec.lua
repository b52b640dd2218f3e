-- Plans, axes and batches that do not fit each other, on one rank or among ranks: refused where
-- they meet, never computed with.

local cp = require 'tide.parallel.cp'
local cp_map = require 'tide.parallel.cp.map'
local cp_attention = require 'tide.parallel.cp.attention'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'

local function axis(size, rank) return { size = size, rank = rank or 0 } end
local function sim(size, rank) return tide.comm.simulate(size, rank) end

describe('a plan and its axis', function()
   it('are those of one rank', function()
      local plan = cp_map.new { kind = 'contiguous', size = 2, rank = 0, length = 16 }
      refused('E_ARG', { 'plan is for rank 0', 'axis has rank 1' }, cp.context,
         { map = plan, axis = axis(2, 1) })
      assert.equal(1, cp.context { map = plan:at(1), axis = axis(2, 1) }.rank)
      refused('E_ARG', 'rank 0 of 2', plan.gather, plan, tide.zeros { 8 }, 1,
         { axis = sim(2, 1) })
      refused('E_ARG', 'rank 0 of 2', plan.gather, plan, tide.zeros { 8 }, 1,
         { axis = sim(4, 0) })
      local inner = cp_attention.new { axis = sim(2, 1) }
      local x = tide.zeros { 1, 8, 1, 4 }
      refused('E_ARG', { 'rank 0', 'on rank 1' }, inner, x, x, x,
         { context = cp.context { map = plan, axis = sim(2, 0) } })
   end)

   it('have neighbours inside and the others outside', function()
      for rank = 0, 5 do
         local near, far = rank % 3, math.floor(rank / 3)
         local plan = cp_map.new { size = 6, rank = rank, length = 24 }
         local opts = { map = plan, axis = axis(6, rank), method = 'a2a+p2p',
            inner = axis(3, near), outer = axis(2, far) }
         assert.equal(3, cp.context(opts).inner.size)
         -- a mesh whose axis of the all-to-all is the outer one
         opts.inner, opts.outer = axis(3, math.floor(rank / 2)), axis(2, rank % 2)
         if math.floor(rank / 2) + 3 * (rank % 2) ~= rank then
            refused('E_ARG', { 'inner', 'neighbours', 'exchanged' }, cp.context, opts)
         end
      end
      local function layer(near, far)
         return cp_attention.new { axis = sim(4, 1), method = 'a2a+p2p', near = near, far = far }
      end
      assert.is_truthy(layer(sim(2, 1), sim(2, 0)))
      refused('E_ARG', { 'near', 'exchanged' }, layer, sim(2, 0), sim(2, 1))
      refused('E_ARG', 'far', layer, sim(2, 1))
   end)
end)

-- On a rank: what gathering says where rank 1 differs in one thing.
local function gathered(rank, n, what)
   local t = require 'tide'
   local odd, comm = rank == 1, t.dist.world()
   local ok, e = pcall(function()
      local plan = t.parallel.cp_map.new { kind = odd and what == 'layout' and 'contiguous'
         or 'document', axis = comm, length = odd and what == 'length' and 11 or 12,
         cu_real = odd and what == 'documents' and { 0, 4, 7 } or { 0, 5, 8 },
         cu_slot = { 0, odd and what == 'slots' and 6 or 7, 10 } }
      local x = t.zeros { plan.count, plan.count }
      if what == 'dtype' and odd then x = x:to 'f64' end
      if what == 'second' then
         plan:gather(x, 1)
         return plan:gather(x, odd and 2 or 1)
      end
      return plan:gather(x, what == 'dim' and odd and 2 or 1)
   end)
   return n == 2 and (ok and 'nothing' or tostring(e))
end

-- On a rank: gather_cp_seq with another length on rank 1.
local function target(rank, _, what)
   local t = require 'tide'
   local length = rank == 1 and what == 'length' and 5 or 6
   local ok, e = pcall(t.parallel.cp.gather_cp_seq, t.dist.world(), { t.ones { 1, 4, 2 } }, 2,
      length)
   return ok and #e or tostring(e)
end

-- On a rank: a2a that differs.
local function split(rank)
   local t = require 'tide'
   local ok, e = pcall(require('tide.parallel.cp.attention').new, { axis = t.dist.world(),
      method = 'a2a+p2p', a2a = rank == 2 and 1 or 2 })
   return ok and 'nothing' or tostring(e)
end

describe('ranks whose plans differ', function()
   it('do not gather', function()
      for _, what in ipairs { 'layout', 'length', 'documents', 'slots', 'dim', 'dtype' } do
         for _, said in ipairs(ranks.run(2, gathered, what)) do
            assert.matches('different plans', said, 1, true)
         end
      end
      for _, said in ipairs(ranks.run(2, gathered, 'second')) do
         assert.matches('E_COMM', said, 1, true)
      end
      assert.same({ 'nothing', 'nothing' }, ranks.run(2, gathered, 'none'))
      assert.same({ 1, 1 }, ranks.run(2, target, 'none'))
      for _, said in ipairs(ranks.run(2, target, 'length')) do
         assert.matches('different plans', said, 1, true)
      end
      for _, said in ipairs(ranks.run(4, split)) do
         assert.matches('different a2a', said, 1, true)
      end
   end)
end)

-- On a rank: what a loop of one's own says in each of three steps, and the collectives that the
-- comparison of the batches took. `field` differs on rank 1 in step 2.
local function loop(rank, n, field)
   local t = require 'tide'
   local model = t.model.llama({ vocab_size = 29, hidden_size = 24, num_hidden_layers = 1,
      num_attention_heads = 4, intermediate_size = 40 }, { seed = 5 })
   local comm = t.parallel.mesh({ cp = n }):axis('cp').comm
   local handle, said = t.parallel.cp.attach(model, comm), {}
   for step = 1, 3 do
      local batch, calls = {}, comm:traffic().ncall
      for _, name in ipairs { 'ids', 'labels', 'positions', 'packed_seq_ids' } do
         batch[name] = t.arange(8, { dtype = 'i64' }):reshape { 1, 8 } + 1
         if step == 2 and rank == 1 and name == field then batch[name] = batch[name] + 1 end
      end
      local ok, e = pcall(function()
         local mine = handle:cut(batch)
         if comm:traffic().ncall ~= calls then return 'cutting communicated' end
         return model:loss(mine.ids, mine.labels, { context = mine.context, count = 8 }):item()
      end)
      said[step] = ok and type(e) == 'number' and 'fine' or tostring(e)
   end
   return table.concat(said, ' | ')
end

describe('ranks whose batches differ', function()
   it('are told so in any step, and cutting itself does not communicate', function()
      for _, field in ipairs { 'ids', 'labels', 'positions', 'packed_seq_ids' } do
         for _, said in ipairs(ranks.run(2, loop, field)) do
            assert.matches('^fine | .*different batches.*' .. field .. ' 1x8.* | fine$', said)
         end
      end
      assert.same({ 'fine | fine | fine', 'fine | fine | fine' }, ranks.run(2, loop, 'none'))
   end)
end)
