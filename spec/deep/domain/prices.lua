-- Random cases: what a plan says that a rank sends and holds, against a run: bytes sent but for
-- sums of single numbers, the peak within 2 % or 256 KiB.

local each = require 'tide.util.each'
local training = require 'spec.deep.domain.training'
local values = require 'spec.deep.fuzz.values'

local prices = { limit = 90, idle = { refused = true } }

-- A case: that of training, and lora (options of nn.lora.attach), nf4, dtype, kind of optimiser,
-- and factors by which widths and rows are larger. Experts are on every rank: what travels to
-- others depends on the tokens.
function prices.make(c)
   local o = training.make(c)
   o.own, o.says, o.clip = nil, nil, 0
   o.lora = c:chance(0.3) and { rank = c:few(1, 2), dora = c:chance(0.4) } or nil
   o.nf4 = o.lora and c:chance(0.4)
   o.dtype = c:pick { 'f32', 'bf16' }
   if o.fsdp and c:chance(0.3) then o.fsdp.cpu_offload = true end
   if o.fsdp and c:chance(0.3) then
      o.fsdp.mp_policy = { param_dtype = 'bf16', reduce_dtype = 'f32',
         output_dtype = c:chance(0.5) and 'f32' or nil }
   end
   o.kind = c:pick { 'AdamW', 'SGD', 'Lion', 'AdamW8bit', 'Adafactor', 'Muon' }
   o.factor = c:pick { 1, 8, 16 }
   o.long = o.family == 'gpt2' and 1 or c:pick { 1, 8 }
   return o
end

local widths = {}
for name in ([[hidden_size intermediate_size moe_intermediate_size vocab_size head_dim
   shared_expert_intermediate_size shared_intermediate_size linear_key_head_dim mamba_head_dim
   linear_value_head_dim moe_shared_expert_intermediate_size mamba_d_head ssm_state_size state_size
   mamba_d_state kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim]]):gmatch '%S+' do
   widths[name] = true
end

local function make_model(t, o)
   local config = {}
   for k, v in each(o.config) do config[k] = widths[k] and v * o.factor or v end
   local model = t.model[o.family](config, { dtype = o.dtype, device = 'null' })
   if o.nf4 then t.nn.nf4.quantise_(model) end
   if o.lora then t.nn.lora.attach(model, o.lora) end
   return model
end

-- Returns a function that gives the bytes that this rank has sent so far.
local function counter(run)
   local comms, mesh, sharded = {}, run.mesh.root, run.sharded
   local function add(comm)
      if comm and comm.size > 1 then comms[comm] = true end
   end
   add(mesh.comm)
   add(sharded and sharded.small_comm)
   add(sharded and sharded.ep and sharded.ep.comm)
   for _, link in ipairs(run.stage and run.stage:links() or {}) do add(link.comm) end
   for _, over in each(sharded and sharded.over or {}) do
      add(over.shards)
      add(over.replicas)
   end
   add(run.context and run.context.near)
   add(run.context and run.context.far)
   for _, comm in each(mesh.comms) do add(comm) end
   for _, axis in each(mesh.flat) do add(axis.comm) end
   return function()
      local bytes = 0
      for comm in each(comms) do
         local nbyte = comm:traffic().nbyte
         bytes = bytes + nbyte[1] + nbyte[2]
      end
      return bytes
   end
end

function prices.on_rank(o, rank)
   local t, T = require 'tide', o.T * o.long
   local function optimiser(params) return t.optim[o.kind](params, { lr = 1e-3 }) end
   local plan = t.parallel.plan(make_model(t, o), o.axes, { recompute = o.recompute,
      fsdp = o.fsdp, tp = o.tp, cp = o.cp, pp = o.pp })
   local want = plan:price { batch = o.rows, seq = T, accum = o.accum, rank = rank,
      optim = optimiser }
   local run = plan:materialise { seed = o.seed }
   local sent_so_far = counter(run)
   local step = t.train.step.new { model = run.model:train(), parallel = run.sharded,
      comm = run.comm, optim = optimiser(run.params) }
   local sent
   for s = 1, 3 do                                      -- the first makes what stays
      local list = {}
      for a = 1, o.accum do
         local ids = t.rand({ o.rows, T }):mul(o.config.vocab_size - 1):to 'i64'
         list[a] = { ids = ids, labels = ids:clone() }
      end
      if s == 2 then
         collectgarbage()
         collectgarbage()
         t.default():reset_peak()
      end
      local before = sent_so_far()
      step:run(list)
      sent = sent_so_far() - before
   end
   return { sent = sent, wire = want.wire, peak = t.default():stats().peak, priced = want.peak }
end

-- What a failing case has.
function prices.trait(o)
   return ('%s %s%s%s'):format(training.trait(o), o.dtype, o.lora and ' lora' or '',
      o.nf4 and ' nf4' or '')
end

-- What is wrong with a case, or nil and a word on it.
function prices.check(o)
   local all, text = values.ranks(o.n, 'spec.deep.domain.prices', 'on_rank', o)
   if not all and (text:find ' in NF4 ' or text:find 'nn.lora.attach') then
      return nil, 'refused'
   end
   if not all then return text end
   for r, got in ipairs(all) do
      local single = got.sent - got.wire                -- counts, losses, norms, texts of contexts
      if single < 0 or single > 300 * (o.accum + 3) * o.n then
         return ('rank %d sends %d bytes, priced %d'):format(r - 1, got.sent, got.wire)
      end
      if math.abs(got.peak - got.priced) > math.max(0.02 * got.peak, 2 ^ 18) then
         return ('the peak of rank %d is %d bytes, priced %d'):format(r - 1, got.peak, got.priced)
      end
   end
end

return prices
