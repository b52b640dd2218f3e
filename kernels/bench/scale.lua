-- How the cost of a training step grows with its sizes, against the operations and bytes that it
-- cannot do without:
--
--    tide run kernels/bench/scale.lua [rounds] [FILE.svg]
--
-- One size of a Llama step (f32, AdamW) is changed at a time. `floor` is the time of its products
-- and attention at the rate of a large product, and of its bytes at the rate of a large copy, both
-- measured right before and right after the step. `share` is floor / time. `growth` is the share of
-- the largest size over that of the smallest: below 1 the step grows faster than its floor. Ranks
-- share the same two threads and the same batch, so their floor stays as it is.

local tide = require 'tide'
local median = require('kernels.bench.stats').median
local turns = require 'kernels.bench.turns'

local base = { T = 256, B = 4, L = 4, d = 256, V = 4096, ranks = 1 }
local axes = {
   { 'T', { 128, 256, 512, 1024, 2048 } }, { 'B', { 1, 2, 4, 8, 16 } }, { 'L', { 2, 4, 8, 16 } },
   { 'd', { 128, 256, 512, 1024 } }, { 'V', { 1024, 4096, 16384, 65536 } },
   { 'ranks', { 1, 2 } },
}

local function ffn(o) return o.d * 11 / 4 end

-- Multiply-adds of a step, times two: products, three times, and causal attention.
local function operations(o)
   local per_layer = 4 * o.d * o.d + 3 * o.d * ffn(o)
   local weights = o.L * per_layer + o.V * o.d
   return o.B * o.T * (6 * weights + 6 * o.L * o.d * o.T)
end

-- Bytes of a step: AdamW reads four numbers of a parameter and writes three; a result of the
-- forward is written, read, and read again in backward, and its gradient is written and read.
local function bytes(o)
   local weights = o.L * (4 * o.d * o.d + 3 * o.d * ffn(o)) + 2 * o.V * o.d
   return 4 * (7 * weights + 5 * o.B * o.T * o.L * (11 * o.d + 3 * ffn(o)))
end

local function seconds_of(fn, least)
   fn()
   local times, begin = {}, tide.clock()
   repeat
      local start = tide.clock()
      fn()
      times[#times + 1] = tide.clock() - start
   until tide.clock() - begin > least
   return median(times)
end

-- Operations a second of a large product, and bytes a second of a large copy.
local a, b = tide.randn { 1024, 1024 }, tide.randn { 1024, 1024 }
local from, to = tide.zeros { 2^24 }, tide.zeros { 2^24 }
local function limits()
   return 2 * 1024^3 / seconds_of(function() return a:matmul(b) end, 0.2),
      2 * 4 * 2^24 / seconds_of(function() to:copy_(from) end, 0.1)
end

-- On a rank: seconds of a step, the median.
local function body(_, _, o, least)
   local t = require 'tide'
   local plan = t.parallel.plan({ family = 'llama', config = { vocab_size = o.V, hidden_size = o.d,
      num_hidden_layers = o.L, num_attention_heads = o.d / 64, intermediate_size = o.d * 11 / 4,
      max_position_embeddings = o.T } }, { dp = o.ranks })
   local run, world = plan:materialise { seed = 1 }, t.comm.world()
   local step = t.train.step.new { model = run.model, parallel = run.sharded, comm = run.comm,
      optim = t.optim.AdamW(run.params, { lr = 1e-4 }), clip = 1 }
   local rows = o.B / run.data.size
   local ids = (t.arange(rows * o.T, { dtype = 'i64' }) * 37):clamp(0, o.V - 1):reshape(rows, o.T)
   local data, times, begin = { { ids = ids, labels = ids, count = rows * o.T } }, {}, nil
   for i = 1, 1000 do
      world:barrier()
      local start = t.clock()
      step:run(data)
      world:barrier()
      if i == 2 then begin = t.clock() end
      if i > 2 then times[#times + 1] = t.clock() - start end
      local over = i > 4 and t.clock() - begin > least and 1 or 0
      if t.comm.sum(world, { over })[1] > 0 then break end
   end
   return require('kernels.bench.stats').median(times)
end

local function sizes(axis, value)
   local o = {}
   for k, v in pairs(base) do o[k] = v end
   o[axis] = value
   return o
end

local rounds, path = tonumber((...)) or 3, select(2, ...)
local seconds, floors = {}, {}
for _ = 1, rounds do
   for _, axis in ipairs(axes) do
      for _, value in ipairs(axis[2]) do
         local o, key = sizes(axis[1], value), axis[1] .. ' ' .. value
         seconds[key], floors[key] = seconds[key] or {}, floors[key] or {}
         local rate, bandwidth = limits()
         table.insert(seconds[key], turns.on(o.ranks, body, o, 0.5))
         local rate_after, bandwidth_after = limits()
         table.insert(floors[key], 2 * operations(o) / (rate + rate_after)
            + 2 * bytes(o) / (bandwidth + bandwidth_after))
         collectgarbage()
      end
   end
end

local series = {}
for _, axis in ipairs(axes) do
   local s, first = { name = axis[1], x = {}, y = {}, points = true }, nil
   for _, value in ipairs(axis[2]) do
      local key = axis[1] .. ' ' .. value
      local time, floor = median(seconds[key]), median(floors[key])
      first = first or { time = time, floor = floor }
      print(('%-6s %6d  %9.2f ms  floor %9.2f ms  share %.2f  growth %.2f'):format(axis[1], value,
         time * 1e3, floor * 1e3, floor / time, floor / time / (first.floor / first.time)))
      table.insert(s.x, math.log(floor / first.floor) / math.log(2))
      table.insert(s.y, math.log(time / first.time) / math.log(2))
   end
   if axis[1] ~= 'ranks' then series[#series + 1] = s end
end
if path then
   series[#series + 1] = { name = 'floor', x = { 0, 5 }, y = { 0, 5 } }
   tide.util.fs.write('scale', path, tide.util.plot.svg(series, {
      title = 'cost of a Llama step, one size changed', xlabel = 'floor, doublings',
      ylabel = 'time, doublings' }))
end
