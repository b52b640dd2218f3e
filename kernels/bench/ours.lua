-- Our side of the benchmark: a child of run.lua that runs tide.
--
-- Protocol, a line each: `open CASE key=value ...` makes the tensors; `save PATH` writes the inputs
-- (safetensors); `check` runs and answers numbers that the peer must agree with; `run N` answers
-- the seconds of N runs, by the clock and of the processor; `memory` answers resident and peak
-- bytes and forgets the peak; `version`.
-- An answer that starts with "error" is one.

-- The library to measure, if another than the one beside the sources.
if arg[1] then package.loaded['tide.host'] = { library = arg[1] } end
local tide = require 'tide'
local child = require 'kernels.bench.child'

local cases = {}

local function peak()
   local resident, top = 0, 0
   for line in io.lines '/proc/self/status' do
      resident = tonumber(line:match '^VmRSS:%s*(%d+)') or resident
      top = tonumber(line:match '^VmHWM:%s*(%d+)') or top
   end
   local f = io.open('/proc/self/clear_refs', 'w')
   if f then
      f:write '5'
      f:close()
   end
   return resident * 1024, top * 1024
end

local function randn(shape, dtype, wants, scale)
   local x = tide.randn(shape)
   if scale then x:mul_(scale) end
   if dtype ~= 'f32' then x = x:to(dtype) end
   return wants and x:requires_grad_() or x
end

local function ids(n, vocab)
   return tide.rand({ n }):mul_(vocab):floor():clamp(0, vocab - 1):to 'i64'
end

-- Size of a tensor as one number that any element changes.
local function size_of(x) return x:float():square():mean():sqrt():item() end

-- ---- the cases: each returns its inputs by name, a function to time and a function to check ----

local function llama_of(o)
   return tide.model.llama({
      vocab_size = o.vocab, hidden_size = o.dim, num_hidden_layers = o.layers,
      num_attention_heads = o.heads, intermediate_size = o.ffn, rms_norm_eps = 1e-5,
   }, { dtype = o.dtype, seed = 1 })
end

local function add_parameters(inputs, model)
   for _, entry in ipairs(model:named_parameters()) do inputs[entry.name] = entry.param end
end

-- A training step on one batch. Checked: loss and gradient norm of three steps.
local function step_of(model, inputs, batch)
   local optim = tide.optim.AdamW(model, { lr = 1e-4, beta2 = 0.95, decay_vectors = true })
   local step = tide.train.step.new { model = model, optim = optim, clip = 1 }
   add_parameters(inputs, model)
   local function run() return step:run { batch } end
   return inputs, run, function()
      local list = {}
      for _ = 1, 3 do
         local r = run()
         list[#list + 1], list[#list + 2] = r.loss, r.grad_norm
      end
      return list
   end
end

-- A training step on o.batch windows of o.seq tokens.
local function windows_step(model, o)
   local n = o.batch * o.seq
   local inputs = { ids = ids(n, o.vocab), labels = ids(n, o.vocab) }
   return step_of(model, inputs, {
      ids = inputs.ids:reshape(o.batch, o.seq), labels = inputs.labels:reshape(o.batch, o.seq),
      count = n,
   })
end

function cases.llama(o) return windows_step(llama_of(o), o) end

function cases.moe(o)
   return windows_step(tide.model.qwen3_moe({
      vocab_size = o.vocab, hidden_size = o.dim, num_hidden_layers = o.layers,
      num_attention_heads = o.heads, moe_intermediate_size = o.ffn, intermediate_size = o.ffn,
      num_experts = o.experts, num_experts_per_tok = o.topk, norm_topk_prob = true,
   }, { dtype = o.dtype, seed = 1 }), o)
end

function cases.latent(o)
   return windows_step(tide.model.deepseek_v3({
      vocab_size = o.vocab, hidden_size = o.dim, num_hidden_layers = o.layers,
      num_attention_heads = o.heads, moe_intermediate_size = o.ffn, intermediate_size = o.ffn,
      n_routed_experts = o.experts, num_experts_per_tok = o.topk, n_group = 1, topk_group = 1,
      first_k_dense_replace = 0, q_lora_rank = o.qlatent, kv_lora_rank = o.latent,
      qk_nope_head_dim = o.nope, qk_rope_head_dim = o.rope, v_head_dim = o.value,
   }, { dtype = o.dtype, seed = 1 }), o)
end

-- Documents of 50 to 1000 tokens, of which two thirds count, in `batch` rows of `seq`.
local function packed_batch(o)
   local ids_, mask, cu, state = {}, {}, { 0 }, 7
   local function draw(n)
      state = (state * 16807 + 11) % 2147483647
      return state % n
   end
   for d = 1, 64 do
      local n = 50 + draw(951)
      for i = 1, n do
         local id = draw(o.vocab)
         ids_[#ids_ + 1] = string.char(id % 256, math.floor(id / 256))
         mask[#mask + 1] = i > n / 3 and '\1' or '\0'
      end
      cu[d + 1] = #ids_
   end
   local source = tide.data.tokens.memory(table.concat(ids_), 2, table.concat(mask))
   local sampler = tide.data.packed.new { cu = cu, source = source, seq = o.seq, batch = o.batch,
      seed = 1, fit = 'best' }
   return sampler:make(source, sampler:next())
end

-- A step of all weights or, with o.lora, of adapters of that rank.
function cases.sft(o)
   local model = llama_of(o)
   if o.lora then tide.nn.lora.attach(model, { rank = o.lora, alpha = 2 * o.lora }) end
   if o.recompute then tide.parallel.recompute(model, o.recompute) end
   local batch = packed_batch(o)
   local inputs = { ids = batch.ids, labels = batch.labels:reshape(-1),
      positions = batch.positions,
      documents = batch.index:select(batch.index.ndim, 1):contiguous() }
   return step_of(model, inputs, batch)
end
cases.lora = cases.sft

-- Timed: a prompt and what follows it. Checked: the logits after a prompt and after eight tokens
-- more, one at a time.
function cases.decode(o)
   local model = llama_of(o):eval()
   local inputs = { ids = ids(o.prompt + 8, o.vocab) }
   local prompt = inputs.ids:narrow(1, 1, o.prompt):tolist()
   add_parameters(inputs, model)
   local function run()
      tide.train.sample.generate(model, prompt, { tokens = o.tokens, temperature = 0 })
   end
   return inputs, run, function()
      local list, caches, start = {}, {}, 0
      for i = 1, o.layers do caches[i] = {} end
      tide.no_grad(function()
         for i = 0, 8 do
            local n = i == 0 and o.prompt or 1
            local y = model(inputs.ids:narrow(1, start + 1, n):reshape(1, n), { caches = caches,
               positions = tide.arange(start, start + n, 1, { dtype = 'i64' }):reshape(1, n) })
            list[i + 1], start = size_of(y:select(2, n)), start + n
         end
      end)
      return list
   end
end

-- With o.packed = 1 over the documents of packed_batch, which the peer has no row for.
function cases.attention(o)
   local shape, wants, opts = { o.batch, o.seq, o.heads, o.dim }, o.train == 1, { causal = true }
   if o.packed == 1 then
      local index = packed_batch({ batch = o.batch, seq = o.seq, vocab = 256 }).index
      opts.q_index, opts.k_index = index, index
      shape[1], shape[2] = index:size(1), index:size(2)
   end
   local i = {
      q = randn(shape, o.dtype, wants), k = randn(shape, o.dtype, wants),
      v = randn(shape, o.dtype, wants), dy = randn(shape, o.dtype),
   }
   local function run()
      return tide.scope(function()
         local y = tide.attention(i.q, i.k, i.v, opts)
         if wants then
            y:backward(i.dy)
            for _, name in ipairs { 'q', 'k', 'v' } do i[name]:zero_grad() end
         end
      end)
   end
   return i, run, function()
      local y = tide.attention(i.q, i.k, i.v, opts)
      local list = { size_of(y) }
      if wants then
         y:backward(i.dy)
         for _, name in ipairs { 'q', 'k', 'v' } do
            list[#list + 1] = size_of(i[name].grad)
            i[name]:zero_grad()
         end
      end
      return list
   end
end

-- A function of differentiable inputs whose result is driven back: with the gradient i.dy, or as
-- a scalar without it.
local function forward_backward(i, names, f)
   local function once()
      local y = f()
      if i.dy then y:backward(i.dy) else y:backward() end
      return y
   end
   local function drop()
      for _, name in ipairs(names) do i[name]:zero_grad() end
   end
   local function run()
      tide.scope(function()
         once()
         drop()
      end)
   end
   return i, run, function()
      local list = { size_of(once():detach()) }
      for _, name in ipairs(names) do list[#list + 1] = size_of(i[name].grad) end
      drop()
      return list
   end
end

function cases.linear_loss(o)
   local i = {
      x = randn({ o.rows, o.dim }, o.dtype, true),
      w = randn({ o.vocab, o.dim }, o.dtype, true, 0.02), labels = ids(o.rows, o.vocab),
   }
   return forward_backward(i, { 'x', 'w' }, function()
      return tide.linear_cross_entropy(i.x, i.w, nil, i.labels) * (1 / o.rows)
   end)
end

function cases.cross_entropy(o)
   local i = { x = randn({ o.rows, o.vocab }, o.dtype, true), labels = ids(o.rows, o.vocab) }
   return forward_backward(i, { 'x' }, function()
      return tide.cross_entropy(i.x, i.labels, { reduction = 'sum' }) * (1 / o.rows)
   end)
end

function cases.rms_norm(o)
   local shape = { o.rows, o.dim }
   local i = {
      x = randn(shape, o.dtype, true), w = randn({ o.dim }, o.dtype, true),
      dy = randn(shape, o.dtype),
   }
   return forward_backward(i, { 'x', 'w' }, function() return tide.rms_norm(i.x, i.w, 1e-5) end)
end

function cases.swiglu(o)
   local shape = { o.rows, o.dim }
   local i = {
      g = randn(shape, o.dtype, true), u = randn(shape, o.dtype, true), dy = randn(shape, o.dtype),
   }
   return forward_backward(i, { 'g', 'u' }, function() return tide.swiglu(i.g, i.u) end)
end

function cases.ssd(o)
   local T, H, P, N = o.seq, o.heads, o.size, o.state
   local i = {
      x = randn({ 1, T, H, P }, o.dtype, true), dt = randn({ 1, T, H }, o.dtype, true),
      A = (-(tide.rand { H } + 0.5)):requires_grad_(), D = randn({ H }, 'f32', true),
      B = randn({ 1, T, 1, N }, o.dtype, true, 0.3), C = randn({ 1, T, 1, N }, o.dtype, true, 0.3),
      dy = randn({ 1, T, H, P }, o.dtype),
   }
   local opts = { D = i.D, softplus = true, chunk = o.chunk }
   return forward_backward(i, { 'x', 'dt', 'A', 'B', 'C', 'D' }, function()
      return tide.ssd_scan(i.x, i.dt, i.A, i.B, i.C, opts)
   end)
end

function cases.gated_delta(o)
   local T, H, D = o.seq, o.heads, o.dim
   local i = {
      q = randn({ 1, T, H, D }, o.dtype, true), k = randn({ 1, T, H, D }, o.dtype, true),
      v = randn({ 1, T, H, D }, o.dtype, true), dy = randn({ 1, T, H, D }, o.dtype),
      g = (-(tide.rand { 1, T, H })):requires_grad_(),
      beta = tide.rand({ 1, T, H }):requires_grad_(),
   }
   return forward_backward(i, { 'q', 'k', 'v', 'g', 'beta' }, function()
      return tide.gated_delta(i.q, i.k, i.v, i.g, i.beta, { l2norm = true })
   end)
end

function cases.mamba2(o)
   local layer = tide.nn.Mamba2 { dim = o.dim, heads = o.heads, head_dim = o.size, state = o.state,
      chunk = o.chunk, dtype = o.dtype, seed = 1 }
   local i = { x = randn({ 1, o.seq, o.dim }, o.dtype, true),
               dy = randn({ 1, o.seq, o.dim }, o.dtype) }
   local names = { 'x' }
   for k, entry in ipairs(layer:named_parameters()) do
      i[entry.name], names[k + 1] = entry.param, entry.name
   end
   table.sort(names)
   return forward_backward(i, names, function() return layer(i.x) end)
end

function cases.conv1d(o)
   local i = {
      x = randn({ 1, o.seq, o.dim }, o.dtype, true), w = randn({ o.dim, o.taps }, o.dtype, true),
      b = randn({ o.dim }, o.dtype, true), dy = randn({ 1, o.seq, o.dim }, o.dtype),
   }
   return forward_backward(i, { 'x', 'w', 'b' }, function()
      return tide.conv1d(i.x, i.w, i.b, { silu = true })
   end)
end

function cases.adamw(o)
   local inputs, list = {}, {}
   for k = 1, o.tensors do
      local p = randn({ o.size }, o.dtype, true)
      local g = randn({ o.size }, o.dtype)
      inputs['p' .. k], inputs['g' .. k] = p, g
      p:set_grad(g)
      list[k] = { name = 'p' .. k, param = p }
   end
   local optim = tide.optim.AdamW(list, { lr = 1e-3, weight_decay = 0.1, decay_vectors = true })
   local function run() optim:step() end
   return inputs, run, function()
      run()
      return { size_of(inputs.p1), inputs.p1:sum():item() }
   end
end

-- A chain of additions of 16 elements, recorded unless `plain`; with train, backward through all of
-- them.
function cases.op(o)
   local i = { x = randn({ 16 }, o.dtype, o.plain ~= 1), y = randn({ 16 }, o.dtype) }
   local function run()
      local z = i.x + i.y
      for _ = 2, o.count do z = z + i.y end
      if o.train == 1 then
         z:sum():backward()
         i.x:zero_grad()
      end
      return z
   end
   return i, run, function() return { size_of(run():detach()) } end
end

-- The bytes of a text as a tensor; string.byte returns some thousands at a time.
local function bytes_of(text)
   local parts = {}
   for i = 1, #text, 4096 do
      parts[#parts + 1] = tide.tensor({ text:byte(i, i + 4095) }, { dtype = 'i32' })
   end
   return tide.cat(parts, 1)
end

-- Ids of texts of about o.size bytes, one after the other: of the sources, a quarter in other
-- scripts. The tokenizer is that of o.file (a tokenizer.json), or trained on the sources.
function cases.tokenizer(o)
   local root = arg[0]:match '^(.*)kernels/bench/' or ''
   package.path = root .. '?.lua;' .. package.path
   local corpus = require 'kernels.bench.corpus'
   local sources = corpus.sources(root == '' and '.' or root)
   local text = sources .. corpus.words(#sources / 3, 1)
   local dir = os.tmpname() .. '.tok'
   if not o.file then
      local train = require 'tide.tokenizer.train'
      train.save(train.bpe({ text:sub(1, 2^20), corpus.words(2^18, 2) },
         { vocab_size = o.vocab, pattern = 'llama3', special = { '<|end|>' } }), dir)
   end
   local path = o.file or dir .. '/tokenizer.json'
   local file = tide.util.fs.read('bench', path)
   local tok, texts = tide.tokenizer.load(path), corpus.cut(text, o.size)
   if not o.file then tide.util.fs.remove_dir('bench', dir) end
   local how, rows = { add_special_tokens = false, special = true }, {}
   local function run()
      for i, part in ipairs(texts) do rows[i] = tok:encode(part, how) end
   end
   return { file = bytes_of(file), text = bytes_of(text) }, run, function()
      local n, sum = 0, 0
      for _, row in ipairs(rows) do
         for k, id in ipairs(row) do n, sum = n + 1, sum + id * (k % 97) end
      end
      return { n, sum % 1000003 }
   end
end

-- ---- the loop ----

local function parse(text)
   local o = {}
   for key, value in text:gmatch '(%w+)=(%S+)' do o[key] = tonumber(value) or value end
   return o
end

local verbs, case = {}, nil

function verbs.open(rest)
   local name, tail = rest:match '^(%S+)%s*(.*)$'
   local o = parse(tail)
   tide.set_nthread(o.threads or 1)
   tide.seed(1)
   local make = cases[name]
   if not make then return 'error no case ' .. name end
   case = {}
   case.inputs, case.run, case.check = make(o)
   return 'ok'
end

function verbs.save(path)
   require('tide.ffi.safetensors').save(path, case.inputs)
   return 'ok'
end

function verbs.check()
   local words = {}
   for k, v in ipairs(case.check()) do words[k] = ('%.9g'):format(v) end
   return table.concat(words, ' ')
end

function verbs.run(n)
   local run, clock = case.run, tide.clock
   local start, cpu = clock(), os.clock()
   for _ = 1, tonumber(n) do run() end
   return ('%.9g %.9g'):format(clock() - start, os.clock() - cpu)
end

function verbs.memory() return ('%d %d'):format(peak()) end

function verbs.stats()
   local s = tide.stats()
   return ('live %d peak %d cached %d'):format(s.live, s.peak, s.cached)
end

function verbs.version() return 'tide ' .. tide.version end

child.serve(verbs)
