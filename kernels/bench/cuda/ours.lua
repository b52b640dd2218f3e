-- Our side of the CUDA benchmark: a child of main.lua that runs tide on device 'cuda'.
--
-- Protocol, a line each: `open CASE key=value ...` makes the tensors and runs once; `time N`
-- answers the milliseconds of N runs between two events of the device; `close` gives the memory
-- back; `version`. An answer that starts with "error" is one.

-- The library to measure, if another than the one beside the sources.
if arg[1] and arg[1] ~= '' then package.loaded['tide.host'] = { library = arg[1] } end
local tide = require 'tide'
local child = require 'kernels.bench.child'

local cases = {}

local function randn(shape, dtype)
   local x = tide.randn(shape, { device = 'cuda' })
   return dtype == 'f32' and x or x:to(dtype or 'bf16')
end

local function leaf(shape) return randn(shape):requires_grad_(true) end

-- A run of fn(...) and, way 'both', its derivative for dy; gradients do not add up.
local function both(way, shape, leaves, fn)
   if way == 'fwd' then
      return function() return tide.no_grad(function() return (fn(unpack(leaves))) end) end
   end
   local dy = randn(shape)
   return function()
      fn(unpack(leaves)):backward(dy)
      for _, x in ipairs(leaves) do x:set_grad(nil) end
   end
end

function cases.gemm(o)
   local x, w, dy = randn { o.rows, o.inner }, randn { o.cols, o.inner }, randn { o.rows, o.cols }
   if o.way == 'fwd' then return function() return tide.linear(x, w) end end
   if o.way == 'dx' then return function() return tide.matmul(dy, w) end end
   return function() return tide.matmul(dy:transpose(1, 2), x) end
end

function cases.linear(o)
   local x, w = leaf { o.rows, o.inner }, leaf { o.cols, o.inner }
   return both(o.way, { o.rows, o.cols }, { x, w }, function(a, b)
      if o.scaling == 'none' then return tide.linear(a, b) end
      return tide.linear_fp8(a, b, nil, { scaling = o.scaling })
   end)
end

-- (document, position) of o.docs equal documents in a row, i32 [1, seq, 2].
local function index_of(o)
   local list, size = {}, o.seq / o.docs
   for i = 0, o.seq - 1 do list[i + 1] = { math.floor(i / size), i % size } end
   return tide.tensor({ list }, { dtype = 'i32' }):to 'cuda'
end

function cases.attention(o)
   tide.cuda.set_attention_kernel(o.kernel)
   local shape = { o.batch, o.seq, o.heads, o.head }
   local q, k = leaf(shape), leaf { o.batch, o.seq, o.kv, o.head }
   local v, opts = leaf { o.batch, o.seq, o.kv, o.head }, { causal = true }
   if o.docs > 1 then
      local index = index_of(o)
      opts.q_index, opts.k_index = index, index
   end
   return both(o.way, shape, { q, k, v }, function(...)
      return (tide.attention(select(1, ...), select(2, ...), select(3, ...), opts))
   end)
end

function cases.norm(o)
   local shape, w, b = { o.rows, o.cols }, leaf { o.cols }, leaf { o.cols }
   local x = leaf(shape)
   if o.kind == 'layer' then return both(o.way, shape, { x, w, b }, tide.layer_norm) end
   if o.kind == 'rms' then return both(o.way, shape, { x, w }, tide.rms_norm) end
   return both(o.way, shape, { x, leaf(shape), w }, tide.add_rms_norm)
end

function cases.swiglu(o)
   local shape = { o.rows, o.cols }
   return both(o.way, shape, { leaf(shape), leaf(shape) }, tide.swiglu)
end

function cases.rope(o)
   local x = randn { o.batch, o.seq, o.heads, o.head }
   local at = tide.arange(o.seq, { dtype = 'i64', device = 'cuda' }):reshape(1, o.seq)
   local frequencies = tide.ones({ o.head / 2 }, { device = 'cuda' })
   return function() return tide.rope(x, at, frequencies) end
end

local function ids(n, vocab)
   return tide.rand { n }:mul_(vocab):floor():clamp(0, vocab - 1):to 'i64':to 'cuda'
end

function cases.embedding(o)
   local at = ids(o.rows, o.vocab)
   return both('both', { o.rows, o.dim }, { leaf { o.vocab, o.dim } }, function(w)
      return tide.embedding(w, at)
   end)
end

function cases.add(o)
   local a, b = randn { o.rows, o.cols }, randn { o.rows, o.cols }
   return function() return a + b end
end

function cases.copy(o)
   local a, b = randn { o.elements }, randn { o.elements }
   return function() return b:copy_(a) end
end

function cases.cast(o)
   local a = randn({ o.elements }, 'f32')
   return function() return a:to 'bf16' end
end

function cases.cross_entropy(o)
   local x, w, targets = leaf { o.rows, o.dim }, leaf { o.vocab, o.dim }, ids(o.rows, o.vocab)
   return function()
      tide.linear_cross_entropy(x, w, nil, targets):backward()
      x:set_grad(nil)
      w:set_grad(nil)
   end
end

function cases.adamw(o)
   local list, n = { p = {}, g = {}, m = {}, v = {}, master = {} }, o.elements / o.tensors
   for i = 1, o.tensors do
      list.p[i], list.g[i], list.master[i] = randn { n }, randn { n }, randn({ n }, 'f32')
      list.m[i], list.v[i] = randn({ n }, 'f32'), tide.ones({ n }, { device = 'cuda' })
   end
   local how = { lr = 1e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, step = 3,
      grad_scale = 1 }
   return function() tide.update.adamw_(list, how) end
end

function cases.grad_norm(o)
   local g = { randn { o.elements } }
   return function() return tide.update.norm(g, 2) end
end

function cases.scan(o)
   local shape = { 1, o.seq, o.heads, o.head }
   local dt = randn({ 1, o.seq, o.heads }, 'f32'):requires_grad_(true)
   local A = tide.ones({ o.heads }, { device = 'cuda' }):mul(-1):requires_grad_(true)
   local B, C = leaf { 1, o.seq, 1, o.states }, leaf { 1, o.seq, 1, o.states }
   return both(o.way, shape, { leaf(shape), dt, A, B, C }, function(...)
      local a = { ... }
      a[6] = { softplus = true, chunk = o.chunk }
      return (tide.ssd_scan(unpack(a)))
   end)
end

function cases.delta(o)
   local key, value = { 1, o.seq, o.heads / 2, o.dim }, { 1, o.seq, o.heads, o.dim }
   local gate = { 1, o.seq, o.heads }
   local g = randn(gate, 'f32'):abs():neg():detach():requires_grad_(true)
   local beta = randn(gate, 'f32'):sigmoid():detach():requires_grad_(true)
   return both(o.way, value, { leaf(key), leaf(key), leaf(value), g, beta }, function(...)
      local q, k, v, decay, rate = ...
      return (tide.gated_delta(q, k, v, decay, rate, { l2norm = true }))
   end)
end

function cases.conv1d(o)
   local x, w = randn { 1, o.seq, o.channels }, randn { o.channels, 4 }
   return function() return (tide.conv1d(x, w, nil, { silu = true })) end
end

function cases.llama(o)
   local model = tide.model.llama({
      vocab_size = o.vocab, hidden_size = o.dim, num_hidden_layers = o.layers,
      num_attention_heads = o.heads, num_key_value_heads = o.kv, intermediate_size = o.ffn,
   }, { dtype = 'bf16', device = 'cuda', seed = 1 })
   local step = tide.train.step.new { model = model, clip = 1, captured = o.way == 'captured',
      optim = tide.optim.AdamW(model, { lr = 1e-4, beta2 = 0.95 }) }
   local n = o.batch * o.seq
   local batch = { ids = ids(n, o.vocab):reshape(o.batch, o.seq),
      labels = ids(n, o.vocab):reshape(o.batch, o.seq), count = n }
   local function run() return step:run { batch } end
   run()                                       -- captured: the second one records
   run()
   return run
end

-- ---- the loop ----

local verbs, run = {}, nil

local function parse(text)
   local o = {}
   for key, value in text:gmatch '(%w+)=(%S+)' do o[key] = tonumber(value) or value end
   return o
end

function verbs.close()
   run = nil
   tide.cuda.set_attention_kernel 'mma'
   tide.default():collect()
   tide.default():trim()
   return 'ok'
end

function verbs.open(rest)
   verbs.close()
   local name, tail = rest:match '^(%S+)%s*(.*)$'
   tide.seed(1)
   if not cases[name] then return 'error no case ' .. name end
   run = cases[name](parse(tail))
   run()
   tide.cuda.synchronize()
   return 'ok'
end

function verbs.time(n)
   local from, to = tide.cuda.event():record(), tide.cuda.event()
   for _ = 1, tonumber(n) do run() end
   to:record()
   return ('%.9g'):format(from:elapsed_time(to))
end

function verbs.version()
   local there, why = tide.cuda.is_available()
   if not there then return 'error ' .. tostring(why):gsub('\n', ' ') end
   return 'tide ' .. tide.version
end

child.serve(verbs)
