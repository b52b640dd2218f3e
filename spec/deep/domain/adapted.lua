-- Random cases: adapters (LoRA, DoRA) on a random decoder, its weights plain or in NF4, trained a
-- few steps over a random mesh, against the same on one rank; also without adapters, in f32 and
-- with casts to bf16.

local each = require 'tide.util.each'
local models = require 'spec.deep.domain.models'
local training = require 'spec.deep.domain.training'
local values = require 'spec.deep.fuzz.values'

local adapted = { limit = 90, idle = { empty = true, refused = true } }

-- A case: that of training, and lora (options of nn.lora.attach), nf4, dtype, mp.
function adapted.make(c)
   local o = training.make(c)
   o.own = nil
   o.lora = { rank = c:few(1, 2), alpha = c:pick { 2, 5 }, rslora = c:chance(0.3), seed = o.seed }
   if c:chance(0.2) then o.lora = nil end
   o.nf4 = o.lora and c:chance(0.4)
   if o.lora and c:chance(0.4) then o.lora.dora = true end
   o.dtype = o.nf4 and 'f32' or c:pick { 'f64', 'f32' }
   if o.fsdp and c:chance(0.3) then o.fsdp.cpu_offload = true end
   if o.fsdp and not o.lora and c:chance(0.5) then
      o.fsdp.mp_policy = { param_dtype = 'bf16', reduce_dtype = 'f32',
         output_dtype = c:chance(0.5) and 'f32' or nil }
      o.dtype = 'f32'
   end
   o.optim = { kind = 'SGD', lr = 0.02, momentum = 0, weight_decay = 0 }
   return o
end

local function make_model(t, o)
   local model = t.model[o.family](o.config, { dtype = o.dtype, seed = o.seed })
   if o.nf4 then t.nn.nf4.quantise_(model) end
   if not o.lora then return model end
   t.nn.lora.attach(model, o.lora)
   t.no_grad(function()
      for k, e in ipairs(model:named_parameters()) do
         if e.name:find 'lora_[Bm]$' then e.param:normal_(0, 0.1, { seed = k }) end
      end
   end)
   return model
end

function adapted.on_rank(o)
   local t = require 'tide'
   local plan = t.parallel.plan(function() return make_model(t, o) end, o.axes,
      { recompute = o.recompute, fsdp = o.fsdp, tp = o.tp, cp = o.cp, pp = o.pp })
   local run = plan:materialise { seed = o.seed }
   local step = t.train.step.new { model = run.model, parallel = run.sharded, comm = run.comm,
      optim = t.optim.SGD(run.params, { lr = o.optim.lr }), clip = o.clip }
   local got = { losses = {}, norms = {}, weights = {} }
   for s = 1, o.steps do
      local ids, labels = models.tokens(o.seed + s, o.all, o.T, o.config.vocab_size)
      local list = {}
      for a = 1, o.accum do
         local first = ((a - 1) * run.data.size + run.data.rank) * o.rows + 1
         list[a] = models.batch(t, ids, labels, o.says[s], first, o.rows)
      end
      local done = step:run(list)
      got.losses[s], got.norms[s] = done.loss, done.grad_norm
      if not done.applied then error('the step was not applied: ' .. tostring(done.cause)) end
   end
   local function whole() return t.parallel.layout.gathered(run.model) end
   local state = run.stage and run.sharded:full_state_dict()
      or run.sharded and t.parallel.unshard_fsdp2_model(run.sharded, whole) or whole()
   for name, v in each(state) do
      if v.dtype ~= 'u8' then got.weights[name] = v:detach():to 'f64':reshape(-1):tolist() end
   end
   return got
end

-- What a failing case has.
function adapted.trait(o)
   return ('%s %s%s%s'):format(training.trait(o), o.dtype,
      o.lora and (o.lora.dora and ' dora' or ' lora') or '', o.nf4 and ' nf4' or '')
end

local function counts(o, labels, says)
   local documents = require 'spec.deep.domain.documents'
   for r, row in ipairs(documents.tokens(says, #labels, o.T)) do
      for s, token in ipairs(row) do
         if not token.pad and labels[r][s] >= 0 then return true end
      end
   end
   return false
end

-- The case on one rank, whose one micro-batch has all rows.
local function alone(o)
   local one, half = {}, o.fsdp and o.fsdp.mp_policy
   for k, v in each(o) do one[k] = v end
   one.n, one.axes, one.rows, one.accum, one.recompute = 1, { dp_shard = 1 }, o.all, 1, 'none'
   one.tp, one.cp, one.pp, one.fsdp = nil, nil, nil, half and { mp_policy = half } or nil
   return one
end

-- Refusals of cases: NF4 cannot be cut between two numbers of a byte, and does not overlap.
local function is_refused(text) return text:find ' in NF4 ' ~= nil end

-- How far losses and weights, and norms, may be: sums in another order; bf16 rounds each product,
-- and a router may then choose others.
local function allowed(o)
   if o.fsdp and o.fsdp.mp_policy then
      local loose = o.config.num_experts_per_tok and 2 or 0.05
      return loose, 4 * loose
   end
   local tight = o.dtype == 'f64' and 1e-6 or 2e-4
   return tight, tight
end

local function compare(o, rank, got, want)
   local most, most_norm = allowed(o)
   for what, limit in each { losses = most, norms = most_norm } do
      local far = values.far(got[what], want[what], 1e-3)
      if far > limit then return ('%s of rank %d are off by %.3g'):format(what, rank, far) end
   end
   for name, list in each(want.weights) do
      local far = got.weights[name] and values.far(got.weights[name], list, 1e-1)
      if far and far > most then return ('%s is off by %.3g'):format(name, far) end
      if not far and name ~= 'lm_head.weight' then return name .. ' is not in the state' end
   end
end

-- What is wrong with a case, or nil and a word on it.
function adapted.check(o)
   local t = require 'tide'
   if o.fsdp and o.ep <= models.fewest_experts(t, o) then o.fsdp.ep_size = o.ep end
   o.all = o.rows * o.axes.dp_shard * o.axes.dp_replicate * o.accum
   for s = 1, o.steps do
      local _, labels = models.tokens(o.seed + s, o.all, o.T, o.config.vocab_size)
      if not counts(o, labels, o.says[s]) then return nil, 'empty' end
   end
   if not pcall(make_model, t, o) then return nil, 'refused' end      -- the rank is too large
   local want, text = values.ranks(1, 'spec.deep.domain.adapted', 'on_rank', alone(o))
   if not want then return 'alone: ' .. text end
   local all
   all, text = values.ranks(o.n, 'spec.deep.domain.adapted', 'on_rank', o)
   if not all then
      if is_refused(text) then return nil, 'refused' end
      return text
   end
   for r, got in ipairs(all) do
      local bad = compare(o, r - 1, got, want[1])
      if bad then return bad end
   end
   return nil, o.lora and (o.nf4 and 'nf4' or 'lora') or nil
end

return adapted
