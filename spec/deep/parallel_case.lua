-- What the sweep of parallel training runs on each rank: a decoder whose sizes divide by nothing
-- (its heads must divide by the ranks of tp), trained for 20 steps in every way on one mesh.

local tide = require 'tide'
local dist = require 'tide.comm'
local distance = require('spec.parallel.fsdp_case').distance
local each = require 'tide.util.each'

local case = { steps = 20, rows = 24, length = 5 }

case.config = { vocab_size = 37, hidden_size = 20, num_hidden_layers = 2, num_attention_heads = 24,
   num_key_value_heads = 24, head_dim = 2, intermediate_size = 27, max_position_embeddings = 8 }

-- Of a kind of numbers: parameters, sums of gradients, and how far 20 steps may be from one rank's,
-- relative to the largest number. f64: nothing but the order of sums may differ. bf16: sums of a
-- micro-batch are rounded to 8 bits, and AdamW makes whole steps of gradients near zero.
case.kinds = {
   f64 = { dtype = 'f64', losses = 1e-9, weights = 1e-8 },
   f32 = { dtype = 'f32', losses = 1e-5, weights = 1e-5 },
   bf16 = { dtype = 'f32', mp = { param_dtype = 'bf16', reduce_dtype = 'f32',
      output_dtype = 'f32' }, losses = 1e-3, weights = 2e-2 },
}

local function batch(seed, data)
   tide.default():seed(seed)
   local shape, last = { case.rows, case.length }, case.config.vocab_size - 1
   local ids = tide.rand(shape):mul(last):to 'i64'
   local labels = tide.rand(shape):mul(last):to 'i64'
   local per = case.rows / data.size
   return { ids = ids:narrow(1, data.rank * per + 1, per),
      labels = labels:narrow(1, data.rank * per + 1, per), count = per * case.length }
end

local function numbers(state)
   local names, list = {}, {}
   for name in each(state) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local t = state[name]:to 'f64'
      for _, v in ipairs(t:reshape(-1):tolist()) do list[#list + 1] = v end
   end
   return list
end

-- Losses and final weights. way: kind, strategy ('plain': no sharding), recompute, accum, lr, tp
-- (options).
function case.train(axes, way)
   local kind = case.kinds[way.kind]
   local fsdp = way.strategy ~= 'plain' and { strategy = way.strategy, mp_policy = kind.mp } or nil
   local plan = tide.parallel.plan({ family = 'llama', config = case.config, dtype = kind.dtype },
      axes, { recompute = way.recompute, fsdp = fsdp, tp = axes.tp > 1 and way.tp or nil,
      cp = axes.cp > 1 and {} or nil })
   local run = plan:materialise { seed = 5 }
   local step = tide.train.step.new { model = run.model, parallel = run.sharded, comm = run.comm,
      optim = tide.optim.AdamW(run.params, { lr = way.lr or 1e-3 }), clip = run.sharded and 1 or 0 }
   local losses = {}
   for s = 1, case.steps do
      local batches = {}
      for a = 1, way.accum do batches[a] = batch(10 * s + a, run.data) end
      losses[s] = step:run(batches).loss
   end
   local function whole() return tide.parallel.layout.gathered(run.model) end
   local state = run.sharded and tide.parallel.unshard_fsdp2_model(run.sharded, whole) or whole()
   return { losses = losses, weights = numbers(state) }
end

function case.key(way) return ('%s, %d micro-batches'):format(way.kind, way.accum) end

-- On a rank: trains in all ways and returns how many, or what is not as `want` (by case.key), as
-- text; and by how much at most.
function case.compare(axes, ways, want)
   local bad, far = {}, {}
   for _, way in ipairs(ways) do
      local got = case.train(axes, way)
      for _, k in ipairs { 'losses', 'weights' } do
         local d = distance(got[k], want[case.key(way)][k])
         local name = way.kind .. ' ' .. k
         far[name] = math.max(far[name] or 0, d)
         if d > case.kinds[way.kind][k] then
            bad[#bad + 1] = ('%s, %s, recompute %s%s: %s off by %.3g'):format(case.key(way),
               way.strategy, way.recompute, way.tp and ', sequence cut' or '', k, d)
         end
      end
   end
   dist.world():barrier()
   local text = {}
   for name, d in each(far) do text[#text + 1] = ('%s %.2g'):format(name, d) end
   table.sort(text)
   return { #bad == 0 and #ways or table.concat(bad, '\n'), table.concat(text, ', ') }
end

return case
