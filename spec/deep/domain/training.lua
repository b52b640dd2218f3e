-- Random cases: a random decoder of any family trained a few steps over a random mesh with random
-- options, against the same model on one rank trained by hand (oracle/train.lua).

local models = require 'spec.deep.domain.models'
local own = require 'spec.deep.domain.own'
local train = require 'spec.deep.oracle.train'
local values = require 'spec.deep.fuzz.values'

local training = { limit = 90 }

-- ---- cases -----------------------------------------------------------------------------------

local function fsdp(c, o)
   local f = { strategy = c:pick { 'optim_grads_params', 'optim_grads', 'optim', 'no_shard' } }
   for _, name in ipairs { 'overlap_grad_reduce', 'overlap_param_gather' } do
      if c:chance(0.2) then f[name] = false end
   end
   for _, name in ipairs { 'nccl_ub', 'fsdp_double_buffer', 'cpu_offload', 'disable_bucketing',
      'check_for_nan_in_grad' } do
      if c:chance(0.15) then f[name] = true end
   end
   if c:chance(0.2) then
      f.calculate_per_token_loss = false
      f.average_in_collective = c:chance(0.5)
   end
   if c:chance(0.2) then f.sync_each_backward = c:chance(0.5) end
   if c:chance(0.3) then f.forward_prefetch, f.backward_prefetch = c:int(0, 2), c:int(0, 2) end
   if f.strategy == 'optim_grads_params' and c:chance(0.3) then
      f.reshard_after_forward = c:chance(0.5) and c:chance(0.5)
         or models.divisor(c, o.axes.dp_shard * o.axes.cp)
   end
   return f
end

-- The number of layers of a configuration.
function training.layers(config)
   return config.num_hidden_layers or #config.hybrid_override_pattern
end

-- A case: family and config, axes of n ranks, sections of the plan, optimiser, clip, steps of
-- `accum` micro-batches of `rows` rows a data rank, and own parts (domain/own.lua).
function training.make(c)
   local o = { n = c:pick { 1, 2, 3, 4, 6, 8 }, seed = c:int(0, 999) }
   o.axes = models.mesh(c, o.n)
   o.family = c:pick(models.trained)
   local virtual = o.axes.pp > 1 and c:few(1, 3) or 1
   local stages = o.axes.pp * virtual
   o.config = models.config(c, o.family, o.axes.tp, stages)
   o.T, o.rows, o.accum, o.steps = c:few(1, 20), c:few(1, 2), c:few(1, 3), c:few(1, 3)
   if o.axes.dp_shard > 1 or not c:chance(0.3) then o.fsdp = fsdp(c, o) end
   o.ep = models.divisor(c, o.axes.dp_shard * o.axes.cp)
   if o.axes.tp > 1 then
      o.tp = { sequence_parallel = c:chance(0.5) and o.family ~= 'gpt2' }    -- is refused there
      o.tp.async_tp = o.tp.sequence_parallel and c:chance(0.3) or nil
   end
   if o.axes.pp > 1 then
      o.accum = c:few(1, 7)
      local n, list = training.layers(o.config), {}
      for s = stages, 2, -1 do
         list[s] = c:int(1, n - s + 1)
         n = n - list[s]
      end
      list[1] = n
      o.pp = { layers = c:chance(0.5) and list or nil, virtual = virtual }
   end
   if o.axes.cp > 1 then
      o.cp = { method = c:pick { 'ring', 'allgather', 'a2a' },
         layout = c:pick { 'zigzag', 'contiguous', 'document', 'balanced' } }
      if models.keeps_state(o.family, o.config) then
         o.cp.mamba = c:pick { 'auto', 'hidden' }
      end
   end
   local mlp = o.family ~= 'mamba2' and not (o.config.hybrid_override_pattern or '-'):find '^[^-]*$'
   o.recompute = c:pick { 'none', 'full', 'every:2', mlp and 'mlp' or 'full' }
   o.clip = c:pick { 0, 0.5, 3 }
   o.optim = models.optim(c)
   local all = o.rows * o.axes.dp_shard * o.axes.dp_replicate * o.accum
   o.says = {}
   for s = 1, o.steps do o.says[s] = models.says(c, all, o.T) end
   o.own = own.make(c, o)
   if models.has_bias(o.family, o.config) and not (o.own and o.own.mlp) then
      o.bias_rate = c:chance(0.7) and c:pick { 0.01, 0.3 } or nil
   end
   return o
end

-- ---- on a rank -------------------------------------------------------------------------------

local function step_rows(o) return o.rows * o.axes.dp_shard * o.axes.dp_replicate * o.accum end

local function optimiser(t, o, params)
   local opts = {}
   for k, v in pairs(o.optim) do opts[k] = v end
   opts.kind = nil
   return t.optim[o.optim.kind](params, opts)
end

function training.on_rank(o)
   local t = require 'tide'
   local plan = own.plan(t, o, { recompute = o.recompute, fsdp = o.fsdp, tp = o.tp, cp = o.cp,
      pp = o.pp })
   local run = plan:materialise { seed = o.seed }
   local step = t.train.step.new { model = run.model, parallel = run.sharded, comm = run.comm,
      optim = optimiser(t, o, run.params), clip = o.clip, router_bias_rate = o.bias_rate }
   local got = { losses = {}, norms = {} }
   for s = 1, o.steps do
      local ids, labels = models.tokens(o.seed + s, step_rows(o), o.T, o.config.vocab_size)
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
   got.weights = {}
   for name, v in pairs(state) do
      got.weights[name] = v:detach():to 'f64':reshape(-1):tolist()
   end
   got.biases = train.biases(run.model)
   return got
end

-- ---- the check -------------------------------------------------------------------------------

-- Norms are f32, and so is the factor that clips: SGD may make more of that in three steps.
local function allowed(o) return o.clip > 0 and 1e-5 or 1e-6 end

local function counts(o, labels, says)
   local documents = require 'spec.deep.domain.documents'
   for r, row in ipairs(documents.tokens(says, #labels, o.T)) do
      for s, token in ipairs(row) do
         if not token.pad and labels[r][s] >= 0 then return true end
      end
   end
   return false
end

-- What a failing case has.
function training.trait(o)
   local list = { o.family }
   for _, name in ipairs { 'pp', 'dp_replicate', 'dp_shard', 'cp', 'tp' } do
      if o.axes[name] > 1 then list[#list + 1] = name end
   end
   if o.fsdp then list[#list + 1] = o.fsdp.strategy end
   if o.fsdp and (o.fsdp.ep_size or 1) > 1 then list[#list + 1] = 'ep' end
   if o.own then list[#list + 1] = 'own' end
   return table.concat(list, ' ')
end

-- What is wrong with a case, or nil and a word on it.
function training.check(o)
   local t = require 'tide'
   local steps = {}
   local replaced = o.own and o.own.mlp                     -- may take the experts away
   if o.fsdp and not replaced and o.ep <= models.fewest_experts(t, o) then o.fsdp.ep_size = o.ep end
   for s = 1, o.steps do
      local ids, labels = models.tokens(o.seed + s, step_rows(o), o.T, o.config.vocab_size)
      steps[s] = { ids = ids, labels = labels, says = o.says[s] }
      if not counts(o, labels, o.says[s]) then return nil, 'empty' end
   end
   local all, text = values.ranks(o.n, 'spec.deep.domain.training', 'on_rank', o)
   if not all then return text end
   local model = own.model(t, o)
   if o.own then own.wrap(model, o.own) end
   local want = train.run(model, steps, o.optim, o.clip, o.bias_rate)
   for r, got in ipairs(all) do
      for _, what in ipairs { 'losses', 'norms' } do
         local far = values.far(got[what], want[what], 1e-3)
         if far > allowed(o) then
            return ('%s of rank %d are off by %.3g'):format(what, r - 1, far)
         end
      end
      for name, list in pairs(want.biases) do
         -- a stage has those of its own layers
         local has = o.axes.pp == 1 or got.biases[name]
         local far = has and values.far(got.biases[name], list, 1e-2) or 0
         if far > 1e-4 then return ('%s of rank %d is off by %.3g'):format(name, r - 1, far) end
      end
      for name, list in pairs(want.weights) do
         if got.weights[name] then
            local far = values.far(got.weights[name], list, 1e-2)
            if far > allowed(o) then return ('%s is off by %.3g'):format(name, far) end
         elseif name ~= 'lm_head.weight' then
            return ('%s is not in the state'):format(name)
         end
      end
   end
   return nil, o.own and 'with own parts' or o.bias_rate and 'with biases' or nil
end

training.idle = { empty = true }

return training
