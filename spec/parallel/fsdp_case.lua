-- What the FSDP specs run on each rank: a small decoder whose sizes divide by nothing, trained for
-- a few steps on a batch that does not depend on the number of ranks.

local tide = require 'tide'
local dist = require 'tide.comm'
local each = require 'tide.util.each'

local case = {}

case.config = {
   vocab_size = 37, hidden_size = 20, num_hidden_layers = 3, num_attention_heads = 2,
   intermediate_size = 27,
}

local T = 7

-- opts: config (fields over case.config), dtype, device.
function case.model(opts)
   opts = opts or {}
   local config = {}
   for k, v in each(case.config) do config[k] = v end
   for k, v in each(opts.config or {}) do config[k] = v end
   return tide.model.llama(config,
      { dtype = opts.dtype, device = opts.device or 'null', fp8 = opts.fp8 })
end

-- Rows of the global batch of a micro-batch that belong to a rank.
function case.batch(seed, rank, n, rows)
   tide.default():seed(seed)
   local ids = tide.rand({ rows, T }):mul(36):to 'i64'
   local labels = tide.rand({ rows, T }):mul(36):to 'i64'
   local per = rows / n
   local first = rank * per + 1
   return { ids = ids:narrow(1, first, per), labels = labels:narrow(1, first, per),
      count = per * T }
end

-- All elements of a state as one list, by sorted name.
function case.numbers(state)
   local names, list = {}, {}
   for name in each(state) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local t = state[name]:to 'f64'
      for _, v in ipairs(t:reshape { t:numel() }:tolist()) do list[#list + 1] = v end
   end
   return list
end

-- Trains and returns { losses, norms, weights, sharded, optim, model }. opts: plain (no sharding),
-- fsdp (options), mesh, accum, steps, recompute, clip, lr, before(run), after(run, step), captured,
-- model options, weights (false: none are returned).
function case.train(opts)
   local world = dist.world()
   local rows, accum = opts.rows or 12, opts.accum or 1
   local model = case.model(opts)
   local sharded
   if opts.plain then
      model:materialise('cpu', 3)
   else
      local o = { seed = 3 }
      for k, v in each(opts.fsdp or {}) do o[k] = v end
      if opts.mesh then sharded = tide.parallel.fully_shard(model, opts.mesh, o)
      else sharded = tide.parallel.fully_shard(model, o) end
   end
   if opts.recompute then tide.parallel.recompute(model, 'full') end
   local optim = tide.optim.AdamW(sharded or model, { lr = opts.lr or 1e-3 })
   local run = tide.train.step.new { model = model, optim = optim, clip = opts.clip or 1,
      parallel = sharded, comm = not sharded and world or nil, captured = opts.captured }
   local r = { losses = {}, norms = {}, sharded = sharded, optim = optim, model = model, run = run }
   if opts.before then opts.before(r) end
   local data = sharded and sharded.data_comm or world
   for s = 1, opts.steps or 3 do
      local batches = {}
      for a = 1, accum do batches[a] = case.batch(100 * s + a, data.rank, data.size, rows) end
      local done = run:run(batches)
      r.losses[s], r.norms[s] = done.loss, done.grad_norm
      if opts.after then opts.after(r, s) end
   end
   if opts.weights ~= false then
      r.weights = case.numbers(sharded and sharded:full_state_dict() or model:state_dict())
   end
   return r
end

-- The largest difference relative to the largest element.
function case.distance(a, b)
   local diff, most = #a == #b and 0 or math.huge, 0
   for i = 1, math.min(#a, #b) do
      if a[i] ~= a[i] or b[i] ~= b[i] then return math.huge end
      diff, most = math.max(diff, math.abs(a[i] - b[i])), math.max(most, math.abs(b[i]))
   end
   return diff / math.max(most, 1e-30)
end

return case
