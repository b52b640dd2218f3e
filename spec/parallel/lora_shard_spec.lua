-- Adapters with trained norms (DoRA) and without in a sharded model: what N ranks read, compute,
-- train, merge, unmerge and write is what one rank does.

local batch = require 'spec.support.batch'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local ranks = require 'spec.support.ranks'
local refused = require 'spec.support.refused'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

local config = { vocab_size = 29, hidden_size = 20, num_hidden_layers = 2, num_attention_heads = 4,
   num_key_value_heads = 2, head_dim = 6, intermediate_size = 22, attention_bias = true }

-- Runs on a rank. Returns what is off from one rank, by name.
local function check(rank, n, case)
   local t = require 'tide'
   local lora, layout = t.nn.lora, t.parallel.layout
   local dir, rows, T, V = case.dir, case.rows or 4, 8, case.config.vocab_size
   local one = t.model[case.family](case.config, { seed = 2 })
   lora.attach(one, case.lora)
   local model = t.model[case.family](case.config, { device = 'null' })
   lora.attach(model, case.lora)
   local run = t.parallel.plan(model, case.mesh, { ranks = n, fsdp = case.fsdp })
      :materialise { seed = 2 }
   local off = {}

   local function far(a, b)
      local most = math.max(1e-2, b:abs():amax():item())
      return (a:to 'f64' - b:to 'f64'):abs():amax():item() / most
   end
   local function gathered()
      local function get() return layout.gathered(run.model) end
      return run.sharded and t.parallel.unshard_fsdp2_model(run.sharded, get) or get()
   end
   local function compare(what)
      local all, worst = gathered(), 0
      for _, e in ipairs(one:named_parameters()) do
         worst = math.max(worst, far(all[e.name], e.param:detach()))
      end
      off[what] = worst
   end
   local function draw_batch(step, first, count)
      t.default():seed(step)
      local function draw()
         return t.rand({ rows, T }):mul(V - 1):to 'i64':narrow(1, first, count)
      end
      return { ids = draw(), labels = draw(), count = count * T }
   end
   local function loss_of(m, b) return m:loss(b.ids, b.labels, { count = rows * T }) end
   local function trainer(m, params, parallel, comm)
      return t.train.step.new { model = m, parallel = parallel, comm = comm, clip = 1,
         optim = t.optim.AdamW(params, { lr = 1e-2, eps = 1e-2 }) }
   end
   local solo = trainer(one, one, nil, t.comm.solo())
   local many = trainer(run.model, run.params, run.sharded, run.comm)
   local function train(what, step)
      local a = solo:run { draw_batch(step, 1, rows) }
      local per = rows / run.data.size
      local b = many:run { draw_batch(step, run.data.rank * per + 1, per) }
      off[what .. ' loss'] = math.abs(a.loss - b.loss) / a.loss
      off[what .. ' norm'] = math.abs(a.grad_norm - b.grad_norm) / a.grad_norm
      compare(what .. ' weights')
   end
   local function files(what)
      t.model.save_adapter(run.sharded, dir .. '/many')
      local name = '/adapter_model.safetensors'
      if rank == 0 then
         t.model.save_adapter(one, dir .. '/one')
         local a = t.train.checkpoint.tensors(dir .. '/one' .. name)
         local b = t.train.checkpoint.tensors(dir .. '/many' .. name)
         local worst, count = 0, 0
         for k, v in pairs(a) do
            worst, count = b[k] and math.max(worst, far(b[k], v)) or 1, count + 1
         end
         for _ in pairs(b) do count = count - 1 end
         off[what] = count == 0 and worst or 1
      end
      t.comm.world():barrier()
   end

   compare 'initial weights'
   train('first step', 1)
   files 'files'
   t.model.load_adapter(one, dir .. '/read')
   t.model.load_adapter(case.give == 'sharded' and run.sharded
      or case.give == 'model' and run.model or run, dir .. '/read')
   compare 'weights that were read'
   train('step after reading', 2)
   lora.merge(lora.merge(one))
   lora.merge(lora.merge(run.model))
   compare 'merged weights'
   local b = draw_batch(3, 1, rows)
   local want = t.no_grad(loss_of, one, b):item()
   if not run.context then
      off['merged loss'] = math.abs(t.no_grad(loss_of, run.model, b):item() - want) / want
      run.sharded:release()
   end
   files 'files of merged weights'
   t.model.save(run.sharded, dir .. '/whole', { overwrite = true })
   if rank == 0 then
      local plain = t.model.load(dir .. '/whole')
      off['written weights'] = math.abs(t.no_grad(loss_of, plain, b):item() - want) / want
   end
   lora.unmerge(lora.unmerge(one))
   lora.unmerge(lora.unmerge(run.model))
   compare 'unmerged weights'
   train('last step', 4)
   return off
end

-- Adapters in a folder, none of whose numbers is zero.
local function write(dir, opts, case)
   local model = tide.model[case and case.family or 'llama'](case and case.config or config,
      { seed = 2 })
   tide.nn.lora.attach(model, opts)
   tide.no_grad(function()
      for k, e in ipairs(model:named_parameters()) do
         if e.name:find 'lora_[Bm]$' then e.param:normal_(0, 0.1, { seed = k }) end
      end
   end)
   tide.model.save_adapter(model, dir .. '/read')
end

local cases = {
   { 2, { dp_shard = 2 } },
   { 3, { dp_shard = 3 }, rows = 3, give = 'sharded', fsdp = { strategy = 'optim' } },
   { 2, { dp_shard = 2 }, give = 'model', fsdp = { strategy = 'optim_grads',
      cpu_offload = true } },
   { 4, { dp_shard = 2, tp = 2 } },
   { 4, { dp_shard = 2, cp = 2 } },
   { 4, { dp_replicate = 2, dp_shard = 2 }, plain = true },
   { 2, { tp = 2 }, give = 'sharded' },
   { 2, { dp_shard = 2 }, experts = true },
   { 4, { dp_shard = 2, tp = 2 }, experts = true },
   { 2, { tp = 2 }, give = 'sharded', experts = true },
   { 2, { dp_shard = 2 }, experts = true, fsdp = { ep_size = 2 } },
   { 4, { dp_shard = 2, tp = 2 }, experts = true, fsdp = { ep_size = 2, strategy = 'optim' } },
}

-- Experts of an odd hidden size, in one layer of two.
local mixture = { vocab_size = 29, hidden_size = 20, num_hidden_layers = 2, num_attention_heads = 4,
   num_key_value_heads = 2, head_dim = 6, intermediate_size = 22, mlp_only_layers = { 1 },
   num_experts = 5, num_experts_per_tok = 2, moe_intermediate_size = 9, norm_topk_prob = true }

-- The case in `dir`, with adapters to read.
local function prepare(dir, case)
   write(dir, case.lora, case)
   return copy(case, { dir = dir })
end

-- The runs of this file, by the number of ranks.
local runs = {}
for n = 2, 4 do runs[n] = batch.new(n, check, { prepare = prepare }) end

describe('adapters in a sharded model', function()
   for i, c in ipairs(cases) do
      local of = c.experts and 'of experts ' or ''
      local ep = c.fsdp and c.fsdp.ep_size and ', ep' or ''
      runs[c[1]]:add(tostring(i), { family = c.experts and 'qwen3_moe' or 'llama',
         config = c.experts and mixture or config, mesh = c[2], fsdp = c.fsdp, give = c.give,
         rows = c.rows, lora = { rank = 3, alpha = 5, seed = 2,
            dora = not (c.plain or c.experts) } })
      it(('%sare those of one rank: %s%s'):format(of, tide.json.encode(c[2]), ep), function()
         for rank, off in ipairs(runs[c[1]]:get(tostring(i))) do
            for what, by in each(off) do
               assert.is_true(by <= 1e-6, ('rank %d: %s: %g'):format(rank - 1, what, by))
            end
         end
      end)
   end

   it('with norms are priced, also where tensor parallelism cuts them', function()
      local function price(mesh)
         local model = tide.model.llama(config, { device = 'null' })
         tide.nn.lora.attach(model, { rank = 2, dora = true })
         return tide.parallel.plan(model, mesh, { ranks = 2 }):price { batch = 1, seq = 4 }
      end
      local cut, whole = price { tp = 2 }, price { dp_shard = 2 }
      assert.is_true(cut.activations < whole.activations and cut.optimizer > 0)
   end)

   it('are read by a plan of tensor parallelism alone, which does not write its parts', function()
      tmp.with(function(dir)
         write(dir, { rank = 2, dora = true })
         local want = tide.model.llama(config, { seed = 2 })
         tide.model.load_adapter(want, dir .. '/read')
         local ids = tide.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' })
         local logits = want(ids):tolist()
         local function on_rank(_, n, c, from, list)
            local t = require 'tide'
            local model = t.model.llama(c, { seed = 2 })
            t.nn.lora.attach(model, { rank = 2, dora = true })
            t.parallel.tensor_parallel(model, t.parallel.mesh({ { 'tp', n } }):axis 'tp')
            t.model.load_adapter(model, from)
            local got = model(t.tensor({ { 3, 1, 4, 1, 5 } }, { dtype = 'i64' }))
            local said = {}
            for i, fn in ipairs { t.model.save, t.model.save_adapter, function()
               t.train.state.collect { model = model, optim = t.optim.AdamW(model, { lr = 1 }) }
            end } do
               said[i] = tostring(select(2, pcall(fn, model, from .. '.parts')))
            end
            return (got:detach() - t.tensor(list)):abs():amax():item(), said
         end
         for _, values in ipairs { ranks.run(2, on_rank, config, dir .. '/read', logits) } do
            assert.is_true(values[1] < 1e-6, values[1])
         end
         local rows = ranks.try(2, on_rank, config, dir .. '/read', logits)
         for _, row in ipairs(rows) do
            for _, text in ipairs(row.values[2]) do
               assert.matches('is cut over 2 ranks, and this one has parts.*E_STATE', text)
            end
         end
      end)
   end)

   it('are not removed, and a run with merged ones is not saved to be resumed', function()
      local model = tide.model.llama(config, { seed = 2 })
      tide.nn.lora.attach(model, { rank = 2 })
      tide.nn.lora.merge(model)
      local optim = tide.optim.AdamW(model, { lr = 1 })
      refused('E_STATE', 'the adapters of the model are merged, and a run that resumes would',
         tide.train.state.collect, { model = model, optim = optim, step = 1 })
      tide.nn.lora.unmerge(model)
      assert.is_table(tide.train.state.collect { model = model, optim = optim, step = 1 })
      tide.parallel.fully_shard(model, tide.comm.solo())
      refused('E_STATE', 'the model is sharded, with its adapters in', tide.nn.lora.remove, model)
      local part = tide.model.llama(config, { seed = 2 })
      tide.nn.lora.attach(part, { rank = 2, dora = true })
      tide.parallel.fully_shard(tide.nn.Stack { part }, tide.comm.solo())
      tmp.with(function(dir)
         write(dir, { rank = 2, dora = true })
         refused('E_STATE', 'the model is a part of a sharded one', tide.model.load_adapter, part,
            dir .. '/read')
      end)
      local weight = part:get('model.layers.0.mlp.up_proj').weight
      assert.is_true(tide.nn.lora.merge(part) == part and not weight:is_gone())
   end)
end)
