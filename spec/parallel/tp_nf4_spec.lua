-- Tensor parallelism of weights in NF4: N ranks against one, with LoRA and DoRA; the numbers that
-- parts stand for; codes that are joined again; and what is refused.

local batch = require 'spec.support.batch'
local each = require 'tide.util.each'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local wide = require 'spec.support.wide'

-- Runs on a rank: a model in NF4 with adapters, cut over all ranks, against the whole one.
local function check(_, n, case)
   local tide_ = require 'tide'
   local part = require 'tide.nn.nf4_part'
   local axis = tide_.parallel.mesh({ { 'tp', n } }):axis 'tp'
   local function make()
      local model = tide_.nn.nf4.quantise_(tide_.model[case.family](case.config, { seed = 3 }))
      tide_.nn.lora.attach(model, { rank = 2, dora = case.dora, targets = case.targets })
      tide_.no_grad(function()                       -- changes that are not zero
         for k, e in ipairs(model:named_parameters()) do
            if e.name:find 'lora_[Bm]$' then e.param:normal_(0, 0.1, { seed = k }) end
         end
      end)
      return model
   end
   local whole, cut = make(), make()
   tide_.parallel.tensor_parallel(cut, axis, { sequence_parallel = case.sequence })
   if case.recompute then tide_.parallel.recompute(cut, case.recompute) end
   local ncut = 0
   for _, b in ipairs(cut:named_buffers()) do
      local want = whole:get(b.name:match '^(.*)%.')
      local got = part.gather(b)
      if not got:equal(want[b.field]) then return b.name .. ': other codes are gathered' end
      local places = rawget(b.owner, '_layout')
      local layout = b.field == 'weight_nf4' and places.weight_nf4
      if b.field:find '_proj_nf4$' then
         ncut = ncut + 1
         if not places[b.field].blocks or b.buffer:numel() > 0.75 * want[b.field]:numel() then
            return b.name .. ' is whole'
         end
         b.buffer:zero_()
         part.fill(b, got)
      end
      if layout and layout.blocks then
         ncut = ncut + 1
         if b.buffer:numel() > 0.75 * want.weight_nf4:numel() then return b.name .. ' is whole' end
         local W = tide_.dequantize_nf4(want.weight_nf4, want.weight_scale, want.nout * want.nin)
         W = layout:cut(W:reshape(want.nout, want.nin))
         local rows = 0
         part.each_rows(b.owner, function(got_, row, count)
            rows = rows + count
            if not got_:equal(W:narrow(1, row + 1, count)) then rows = -1e9 end
         end)
         if rows ~= W:size(1) then return b.name .. ' stands for other numbers' end
         b.buffer:zero_()
         part.fill(b, got)
      end
   end
   if ncut == 0 then return 'nothing is cut' end
   local ids, labels = {}, {}
   for t = 1, 7 do ids[t], labels[t] = (7 * t + t * t) % 23, (5 * t) % 23 end
   ids = tide_.tensor({ ids, labels }, { dtype = 'i64' })
   labels = tide_.tensor({ labels, labels }, { dtype = 'i64' })
   local function far(a, b, what)
      local off, most = (a - b):abs():amax():item(), math.max(1e-2, b:abs():amax():item())
      if off <= 1e-5 * most then return nil end
      return ('%s: off by %g of %g'):format(what, off, most)
   end
   local a, b = cut:loss(ids, labels), whole:loss(ids, labels)
   local wrong = far(a:detach(), b:detach(), 'loss')
   if wrong then return wrong end
   a:backward()
   b:backward()
   local grads, count = tide_.parallel.layout.gathered(cut, true), 0
   for _, e in ipairs(whole:named_parameters()) do
      if (grads[e.name] ~= nil) ~= (e.param.grad ~= nil) then return 'gradient of ' .. e.name end
      wrong = grads[e.name] and far(grads[e.name], e.param.grad, 'gradient of ' .. e.name)
      if wrong then return wrong end
      count = count + (grads[e.name] and 1 or 0)
   end
   return count > 0 or 'no gradients'
end

-- The runs of this file, by the number of ranks.
local runs = { [2] = batch.new(2, check), [3] = batch.new(3, check) }

-- Declares a case: `check` holds on n ranks for each of a list.
local function holds(title, n, list)
   for i, case in ipairs(list) do runs[n]:add(('%s, %d'):format(title, i), case) end
   it(title, function()
      for i in ipairs(list) do
         for r, got in ipairs(runs[n]:get(('%s, %d'):format(title, i))) do
            if got ~= true then error(('rank %d: %s'):format(r - 1, tostring(got)), 2) end
         end
      end
   end)
end

-- Rows that are not whole blocks, and parts of them.
local function config(n, changes)
   local c = { vocab_size = 23, hidden_size = 40, num_hidden_layers = 2, head_dim = 6,
      num_attention_heads = 2 * n, num_key_value_heads = n, intermediate_size = 22 * n }
   for k, v in each(changes or {}) do c[k] = v end
   return c
end

local families = { llama = {}, phi3 = { hidden_size = 48 }, qwen2 = {}, gpt2 = {},
   ['llama of whole blocks'] = { hidden_size = 128, num_attention_heads = 12, head_dim = 64,
      num_key_value_heads = 6, intermediate_size = 768, num_hidden_layers = 1 },
   ['llama of several groups'] = { hidden_size = 170, num_attention_heads = 12, head_dim = 22,
      num_key_value_heads = 6, intermediate_size = 228, num_hidden_layers = 1 },
   -- more than 2^18 numbers in the columns of down_proj that a rank keeps
   ['llama of several panels'] = { hidden_size = 600, num_attention_heads = 12,
      num_key_value_heads = 6, intermediate_size = 1320, num_hidden_layers = 1 },
   qwen3_moe = { moe_intermediate_size = 24, num_experts = 5, num_experts_per_tok = 2 },
   ['qwen3_moe of whole blocks'] = { moe_intermediate_size = 384, num_experts = 3,
      num_experts_per_tok = 2, hidden_size = 64, num_hidden_layers = 1 },
   glm4_moe = { moe_intermediate_size = 24, n_routed_experts = 4, num_experts_per_tok = 2,
      n_shared_experts = 1, first_k_dense_replace = 1, n_group = 1, topk_group = 1, head_dim = 8 },
   hybrid = { hybrid_override_pattern = 'M*-', ssm_state_size = 4, mamba_num_heads = 6,
      mamba_head_dim = 4, n_groups = 6, chunk_size = 4, num_hidden_layers = 3 },
}

local function case_of(name, n, more)
   local case = { family = name:match '[%w_]+', config = config(n, families[name]) }
   if name == 'gpt2' then
      case.config = { vocab_size = 23, n_positions = 16, n_embd = 24 * n, n_layer = 2,
         n_head = 2 * n, resid_pdrop = 0, embd_pdrop = 0, attn_pdrop = 0 }
   end
   for k, v in each(more or {}) do case[k] = v end
   return case
end

-- What make test has of them on 3 ranks.
local few = { gpt2 = families.gpt2, phi3 = families.phi3, qwen3_moe = families.qwen3_moe,
   ['llama of several groups'] = families['llama of several groups'] }

describe('a base in NF4 over a tensor-parallel axis', function()
   for _, n in ipairs { 2, 3 } do
      for name in each(n == 3 and not wide and few or families) do
         holds(('of %s on %d ranks is the whole one'):format(name, n), n, { case_of(name, n),
            case_of(name, n, { dora = true, sequence = name ~= 'gpt2',
               targets = name:find 'moe' and 'q_proj|o_proj' or nil }) }) -- experts have no norms
      end
   end

   holds('is the same where some layers have no adapters, and recomputed', 2, {
      case_of('llama', 2, { targets = 'q_proj|down_proj', recompute = 'full' }),
      case_of('phi3', 2, { targets = 'o_proj', dora = true, recompute = 'full' }) })

   it('is priced with the part that a rank keeps, and is refused where it cannot be cut', function()
      local function plan(changes, opts, is_plain)
         local model = tide.model.llama(config(2, changes), { device = 'null' })
         if not is_plain then tide.nn.nf4.quantise_(model) end
         tide.nn.lora.attach(model, { rank = 2 })
         return tide.parallel.plan(model, { tp = 2 }, { ranks = 2, tp = opts })
      end
      local broad = { hidden_size = 256, head_dim = 64, intermediate_size = 512 }
      local cut, codes, count = plan(broad), 0, 0
      for _, b in ipairs(cut.model:named_buffers()) do
         codes = codes + b.buffer:numel() * tide.dtype_size(b.buffer.dtype)
      end
      for _, row in ipairs(cut.model.quantised.modules) do count = count + row[2] * row[3] end
      local one = { batch = 1, seq = 8 }
      local plain = plan(broad, nil, true):price(one).parameters - 4 * count / 2
      local kept = cut:price(one).parameters - plain
      assert.is_true(kept >= codes / 2 and kept <= codes / 2 * 1.01, kept / codes)
      assert.matches('layers%.%*%.mlp%.down_proj%.weight_nf4 +Shard%(2%)', tostring(cut))
      refused('E_ARG', { "'model.layers.0.mlp.down_proj'", '[40, 66]', 'tp of 2 ranks',
         'along dim 2', 'dp_shard' }, plan, { intermediate_size = 66 })
      local mixture = tide.nn.nf4.quantise_(tide.model.qwen3_moe(config(2,
         { moe_intermediate_size = 22, num_experts = 4, num_experts_per_tok = 2 }),
         { device = 'null' }))
      refused('E_ARG', { "'model.layers.0.mlp'", '[40, 22]', 'tp of 2 ranks', 'dp_shard' },
         tide.parallel.plan, mixture, { tp = 2 }, { ranks = 2 })
      refused('E_ARG', { 'NF4', 'async_tp' }, plan, {}, { sequence_parallel = true,
         async_tp = true })
   end)
end)
