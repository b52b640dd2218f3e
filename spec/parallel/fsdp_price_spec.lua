-- What a way of sharding costs, added up parameter by parameter, on imagined ranks.

local tide = require 'tide'
local each = require 'tide.util.each'
local refused = require 'spec.support.refused'

local sizes = { f32 = 4, bf16 = 2, f64 = 8 }

local function model_of(dtype, frozen)
   local m = tide.model.llama({ vocab_size = 11, hidden_size = 8, num_hidden_layers = 3,
      num_attention_heads = 2, num_key_value_heads = 1, intermediate_size = 7 },
      { device = 'null', dtype = dtype })
   for _, e in ipairs(m:named_parameters()) do
      if frozen and e.name:find(frozen) then e.param:requires_grad_(false) end
   end
   return m
end

local function sharded_of(case)
   local n, m = case.n or 2, case.m or 1
   local comm = tide.comm.simulate(n * m, case.rank or 0)
   local mesh = tide.parallel.mesh({ { 'dp_replicate', m }, { 'dp_shard', n } }, { comm = comm })
   return tide.parallel.fully_shard(model_of(case.dtype or 'f32', case.frozen), mesh, case.opts)
end

-- Sums over the parameters of a case. o: micro, state_bytes (a number).
local function plain(sharded, case, o)
   local n, m, micro = case.n or 2, case.m or 1, o.micro or 1
   local opts = case.opts or {}
   local strategy = opts.strategy or 'optim_grads_params'
   local full = strategy == 'optim_grads_params'
   local mp = opts.mp_policy or {}
   local stored = case.dtype or 'f32'
   local compute = sizes[mp.param_dtype or stored]
   local sync_each = opts.sync_each_backward
   if sync_each == nil then sync_each = full or strategy == 'optim_grads' end
   local reductions = (micro > 1 and not sync_each) and 1 or micro
   local sum = { parameters = 0, gradients = 0, optimizer = 0, unit = 0, gather = 0, reduce = 0,
      collectives = { gather = 0, reduce = 0, replicas = 0 } }
   local begun = {}
   local first = nil
   for i, e in ipairs(sharded.entries) do
      if e.view.requires_grad then first = first or i end
      for _, unit in ipairs(sharded:all_units()) do
         for _, mine in ipairs(unit.entries) do
            if mine == e then begun[unit] = first ~= nil end
         end
      end
   end
   for _, unit in ipairs(sharded:all_units()) do
      local gathered = 0
      for _, b in ipairs(unit.buckets) do
         local trained = b.entries[1].view.requires_grad
         local half = (mp.param_dtype or stored) == 'bf16' or stored == 'bf16'
         local shard = trained and half and 4 or sizes[stored]
         local reduce = sizes[mp.reduce_dtype or mp.param_dtype or stored]
         local total, own = 0, 0
         for _, e in ipairs(b.entries) do
            local numel = 1
            for _, s in ipairs(e.shape) do numel = numel * s end
            total = total + numel
         end
         for _, p in ipairs(b.pieces) do own = own + p.param:numel() end
         local whole_too = not full or n == 1
         if shard == compute and whole_too then
            sum.parameters = sum.parameters + total * compute
         else
            sum.parameters = sum.parameters + own * shard + (full and 0 or total * compute)
            gathered = gathered + (full and total * compute or 0)
         end
         local times = full and micro or 1
         if full and unit.reshard_after_forward and begun[unit] then times = times + micro end
         sum.gather = sum.gather + (n - 1) / n * total * compute * times
         if n > 1 then sum.collectives.gather = sum.collectives.gather + times end
         if trained then
            local wide = math.max(shard, reduce)
            local adds = (compute == 2 and reduce ~= 2) and 4 or compute
            sum.gradients = sum.gradients + (reductions < micro
               and math.max(own * wide, total * adds) or own * wide)
            sum.optimizer = sum.optimizer + own * (o.state_bytes or 8)
            local bytes = total * reduce * reductions
            sum.reduce = sum.reduce + (n - 1) / n * bytes + 2 * (m - 1) / m * bytes / n
            local c = sum.collectives
            if n > 1 then c.reduce = c.reduce + reductions end
            if m > 1 then c.replicas = c.replicas + reductions end
         end
      end
      sum.unit = math.max(sum.unit, gathered)
   end
   sum.wire = sum.gather + sum.reduce
   return sum
end

describe('the price of sharding', function()
   local half = { param_dtype = 'bf16', reduce_dtype = 'f32' }
   for name, case in each {
      ['one rank'] = { n = 1 }, ['two ranks'] = {}, ['three ranks, the last'] = { n = 3, rank = 2 },
      replicas = { n = 2, m = 3, rank = 3 }, ['replicas alone'] = { n = 1, m = 2 },
      ['optim'] = { opts = { strategy = 'optim' } },
      ['optim_grads'] = { n = 3, opts = { strategy = 'optim_grads' } },
      ['optim in bf16'] = { opts = { strategy = 'optim', mp_policy = half } },
      ['computed in bf16'] = { n = 3, rank = 1, opts = { mp_policy = half } },
      ['stored in bf16'] = { dtype = 'bf16' },
      ['nothing freed'] = { opts = { reshard_after_forward = false } },
      ['all freed'] = { n = 4, opts = { reshard_after_forward = true } },
      ['reduced at the end'] = { n = 2, m = 2, opts = { sync_each_backward = false } },
      ['the end in bf16'] = { opts = { sync_each_backward = false, mp_policy = half } },
      ['frozen layers'] = { frozen = 'layers%.[01]' }, ['frozen embedding'] = { frozen = 'embed' },
      ['frozen, optim'] = { frozen = 'mlp', opts = { strategy = 'optim' } },
   } do
      it('of ' .. name .. ' is that of its parameters', function()
         local sharded = sharded_of(case)
         for micro = 1, 3 do
            for _, state in ipairs { 8, 12.5 } do
               local want = plain(sharded, case, { micro = micro, state_bytes = state })
               local got = sharded:price { micro = micro, state_bytes = state }
               for k, v in each(want) do
                  if type(v) == 'table' then
                     assert.same(v, got[k])
                  else
                     assert.is_true(math.abs(v - got[k]) <= 1e-9 * math.max(1, v),
                        ('%s with %d: %g, not %g'):format(k, micro, got[k], v))
                  end
               end
               assert.is_nil(got.gathered)
            end
         end
      end)
   end

   it('keeps what lies between steps in blocks, and asks for each state', function()
      local sharded = sharded_of { n = 2 }
      local function up(n) return math.ceil(n / 64) * 64 end
      local kept, optim = 0, 0
      for _, unit in ipairs(sharded:all_units()) do
         for _, b in ipairs(unit.buckets) do
            local own = 0
            for _, p in ipairs(b.pieces) do
               own = own + p.param:numel()
               optim = optim + p.param:numel() * #p.entry.shape
               kept = kept + up(p.param:numel() * 4) * math.floor(#p.entry.shape * 3 / 4)
                  + up(p.param:numel() * (#p.entry.shape * 3 % 4))
            end
            kept = kept + 2 * up(own * 4)                 -- shard and gradient
         end
      end
      local got = sharded:price { block = up, state_bytes = function(e) return #e.shape * 3 end }
      assert.same({ kept, 3 * optim }, { got.kept, got.optimizer })
      refused('E_ARG', 'state_bytes(..)', sharded.price, sharded,
         { state_bytes = function() return -1 end })
      refused('E_ARG', "'rank'", sharded.price, sharded, { rank = 2 })
      refused('E_ARG', 'result of block', sharded.price, sharded,
         { block = function() return 'x' end })
   end)
end)
