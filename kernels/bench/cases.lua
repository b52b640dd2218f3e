-- The rows of the benchmark: what is run, how much work it is, what limits it.
--
-- A row names a case that ours.lua and peer.py both know, with its options; `work` counts f32 or
-- bf16 operations (kind fma, bf16: multiply-adds count two) or bytes that must move at least once
-- (kind copy, near), so that work / seconds / calibration is the share of the limit. A `long` row
-- is left out of a short run. The peer is tried eager and, unless `eager`, compiled.

local cases = {}

local function add(row) cases[#cases + 1] = row end

local function limit_of(dtype) return dtype == 'bf16' and 'bf16' or 'fma' end

-- ---- a training step of a Llama-shaped model ----

local llama = { dim = 512, layers = 8, heads = 8, ffn = 1408, vocab = 4096 }

-- Operations of a training step: three times the forward products, and causal attention.
local function llama_work(m, batch, seq)
   local per_layer = 4 * m.dim * m.dim + 3 * m.dim * m.ffn
   local weights = m.layers * per_layer + m.vocab * m.dim
   return batch * seq * (6 * weights + 6 * m.layers * m.dim * seq)
end

local function add_llama(name, batch, seq, dtype, must)
   local options = { batch = batch, seq = seq, dtype = dtype }
   for k, v in pairs(llama) do options[k] = v end
   add {
      name = name, case = 'llama', options = options, kind = limit_of(dtype), must = must,
      work = llama_work(llama, batch, seq), tokens = batch * seq, rounds = 7, sample = 0.5,
      memory = 'peak', variants = dtype == 'bf16' and { 'master', 'autocast' } or nil,
      tolerance = dtype == 'bf16' and 1e-2 or 1e-3,
   }
end

add_llama('llama-f32', 4, 512, 'f32', 1.2)
add_llama('llama-bf16', 4, 512, 'bf16', 1.5)
add_llama('llama-long-f32', 1, 2048, 'f32', 1.5)
add_llama('llama-long-bf16', 1, 2048, 'bf16', 1.5)

-- ---- fine-tuning: packed rows of documents of 50 to 1000 tokens, two thirds of them trained on

local sft = { dim = 512, layers = 8, heads = 8, ffn = 1408, vocab = 32000, batch = 2, seq = 1024 }

-- Attention within documents is left out of the work; adapters need no gradients of weights.
-- recompute: a policy of parallel.recompute for our side; the peer keeps its activations. batch:
-- rows in place of two, where activations weigh more beside weights and optimiser states.
local function add_sft(name, dtype, lora, recompute, batch)
   local options = { dtype = dtype, lora = lora, recompute = recompute }
   for k, v in pairs(sft) do options[k] = v end
   options.batch = batch or options.batch
   local tokens = options.batch * sft.seq
   local layers = sft.layers * (4 * sft.dim * sft.dim + 3 * sft.dim * sft.ffn)
   local bf16 = dtype == 'bf16'
   add {
      name = name, case = lora and 'lora' or 'sft', options = options, kind = limit_of(dtype),
      must = 1.5, needs = lora and 'peft' or nil, tokens = tokens, rounds = 7, sample = 0.5,
      work = tokens * (lora and 4 or 6) * (layers + 2 / 3 * sft.vocab * sft.dim),
      memory = 'peak', tolerance = bf16 and 1e-2 or 1e-3,
      variants = not lora and (bf16 and { 'master-mask', 'master-documents', 'autocast-mask',
         'autocast-documents' } or { 'whole-mask', 'whole-documents' }) or nil,
   }
end

add_sft('sft-f32', 'f32')
add_sft('sft-bf16', 'bf16')
add_sft('sft-f32-recompute', 'f32', nil, 'selective')
add_sft('sft-bf16-recompute', 'bf16', nil, 'selective')
add_sft('sft-4-f32-recompute', 'f32', nil, 'selective', 4)
add_sft('lora-f32', 'f32', 16)

-- ---- a training step with experts: each token uses 4 of 32 ----

-- Adds a row. attends: the weights of an attention, and the channels of its scores and of its
-- values, of all heads; shared: experts that each token uses beside the routed ones.
local function add_moe(name, case, attends, shared, more)
   local o = { dim = 512, layers = 4, heads = 8, ffn = 256, experts = 32, topk = 4, vocab = 4096,
      batch = 2, seq = 1024 }
   for k, v in pairs(more or {}) do o[k] = v end
   local weights, channels = attends(o)
   local tokens = o.batch * o.seq
   local per_layer = weights + o.experts * o.dim + 3 * (o.topk + shared) * o.dim * o.ffn
   local all = o.layers * per_layer + o.vocab * o.dim
   add {
      name = name, case = case, options = o, kind = 'fma', must = 1, tokens = tokens,
      work = tokens * (6 * all + 3 * o.layers * channels * o.seq), rounds = 7, sample = 0.5,
      memory = 'peak', needs = 'transformers', tolerance = 1e-3,
      variants = { 'grouped_mm', 'eager' }, eager = true,
   }
end

add_moe('moe-f32', 'moe', function(o) return 4 * o.dim * o.dim, 2 * o.dim end, 0)
-- ---- the same with latent attention and a shared expert, as in DeepSeek-V3 ----
add_moe('latent-f32', 'latent', function(o)
   local size = o.nope + o.rope
   return o.dim * (o.qlatent + o.latent + o.rope) + o.heads * (o.qlatent * size
      + o.latent * (o.nope + o.value) + o.value * o.dim), o.heads * (size + o.value)
end, 1, { nope = 48, rope = 16, value = 64, qlatent = 192, latent = 128 })

-- ---- generation: one sequence, greedy, with a cache ----

-- The weights that a token reads: all but the table of embeddings. Work is their bytes alone, so
-- that the share of the limit is what decoding makes of the memory's bandwidth.
for _, dtype in ipairs { 'f32', 'bf16' } do
   local o = { dim = 768, layers = 12, heads = 12, ffn = 2048, vocab = 32000, prompt = 128,
      tokens = 384, dtype = dtype }
   local weights = o.layers * (4 * o.dim * o.dim + 3 * o.dim * o.ffn) + o.vocab * o.dim
   add {
      name = 'decode-' .. dtype, case = 'decode', options = o, kind = 'read', must = 2,
      needs = 'transformers', rounds = 5, sample = 0.5, tokens = o.tokens,
      work = o.tokens * weights * (dtype == 'f32' and 4 or 2),
      tolerance = dtype == 'bf16' and 2e-2 or 1e-3,
   }
end

-- ---- causal attention ----

local function add_attention(batch, heads, seq, dtype, train)
   local dim = 64
   local forward = 2 * batch * heads * seq * seq * dim
   add {
      name = ('attention-%d-%s-%s'):format(seq, dtype, train and 'train' or 'forward'),
      case = 'attention', kind = limit_of(dtype), must = 1.2, rounds = 11, sample = 0.02,
      long = seq > 2048,
      options = {
         batch = batch, heads = heads, seq = seq, dim = dim, dtype = dtype,
         train = train and 1 or 0,
      },
      work = train and 3.5 * forward or forward, tolerance = dtype == 'bf16' and 2e-2 or 1e-3,
   }
end

for _, dtype in ipairs { 'f32', 'bf16' } do
   for _, train in ipairs { false, true } do
      add_attention(4, 8, 512, dtype, train)
      add_attention(1, 8, 2048, dtype, train)
      add_attention(1, 4, 4096, dtype, train)
   end
end

-- ---- losses ----

add {
   name = 'linear-loss-f32', case = 'linear_loss', kind = 'fma', must = 1.1, rounds = 5,
   options = { rows = 1024, dim = 512, vocab = 50257, dtype = 'f32' }, sample = 0.2,
   work = 6 * 1024 * 512 * 50257, memory = 'extra', variants = { 'whole', 'chunked' },
   tolerance = 1e-3,
}
add {
   name = 'linear-loss-bf16', case = 'linear_loss', kind = 'bf16', rounds = 5,
   options = { rows = 1024, dim = 512, vocab = 50257, dtype = 'bf16' }, sample = 0.2,
   work = 6 * 1024 * 512 * 50257, memory = 'extra', variants = { 'whole', 'chunked' },
   tolerance = 2e-2,
}
add {
   name = 'cross-entropy', case = 'cross_entropy', kind = 'copy', must = 2, rounds = 9,
   options = { rows = 1024, vocab = 50257, dtype = 'f32' }, sample = 0.05,
   work = 2 * 4 * 1024 * 50257, tolerance = 1e-3, -- logits read once, their gradient written
}

-- ---- norm, activation ----

add {
   name = 'rms-norm', case = 'rms_norm', kind = 'near', must = 2, rounds = 11,
   options = { rows = 4096, dim = 1024, dtype = 'f32' }, sample = 0.02,
   work = 5 * 4 * 4096 * 1024, tolerance = 1e-3,  -- x, y; dy, x, dx
}
add {
   name = 'swiglu', case = 'swiglu', kind = 'near', must = 2, rounds = 11,
   options = { rows = 4096, dim = 1024, dtype = 'f32' }, sample = 0.02,
   work = 8 * 4 * 4096 * 1024, tolerance = 1e-3,  -- g, u, y; dy, g, u, dg, du
}

-- ---- state-space layers ----

-- Operations of the chunked scan, forward and backward three times that: C B', S x, the states and
-- what they give, whole squares, as the peer's products count them.
local function ssd_work(o)
   local per_token = 2 * o.chunk * o.state + o.heads * o.size * (2 * o.chunk + 4 * o.state)
   return 3 * o.seq * per_token
end

for _, dtype in ipairs { 'f32', 'bf16' } do
   for _, seq in ipairs { 2048, 8192 } do
      local o = { seq = seq, heads = 16, size = 64, state = 128, chunk = 256, dtype = dtype }
      add {
         name = ('ssd-%d-%s'):format(seq, dtype), case = 'ssd', options = o, must = 2,
         long = seq > 2048,
         kind = limit_of(dtype), rounds = 9, sample = 0.05, work = ssd_work(o), tokens = seq,
         tolerance = dtype == 'bf16' and 3e-2 or 1e-3,
      }
   end
   local o = { seq = 2048, dim = 512, heads = 16, size = 64, state = 128, chunk = 256,
               dtype = dtype }
   local inner = o.heads * o.size
   add {
      name = 'mamba2-block-' .. dtype, case = 'mamba2', options = o, kind = limit_of(dtype),
      must = 1.5, rounds = 9, sample = 0.05, tokens = o.seq,
      work = ssd_work(o) + 6 * o.seq * o.dim * (3 * inner + 2 * o.state + o.heads),
      tolerance = dtype == 'bf16' and 4e-2 or 1e-3,
   }
end
add {
   name = 'ssd-65536-f32', case = 'ssd', kind = 'fma', rounds = 3, sample = 0.05, tokens = 65536,
   long = true,
   options = { seq = 65536, heads = 4, size = 64, state = 128, chunk = 256, dtype = 'f32' },
   work = ssd_work { seq = 65536, heads = 4, size = 64, state = 128, chunk = 256 },
   tolerance = 1e-3,
}

-- Operations of the gated delta rule over pieces of c tokens, forward and backward three times
-- that: K K', K Q' and the inverse with what it multiplies, triangles; the state into two products
-- and out of one.
local function delta_work(o, c)
   return 3 * o.seq * o.heads * (2 * c * o.dim * 2 + 3 * 2 * o.dim * o.dim)
end

for _, seq in ipairs { 2048, 8192 } do
   local o = { seq = seq, heads = 16, dim = 128, dtype = 'f32' }
   add {
      name = ('gated-delta-%d-f32'):format(seq), case = 'gated_delta', options = o, must = 2,
      long = seq > 2048, needs = 'transformers', eager = true, kind = 'fma', rounds = 5,
      sample = 0.05, -- eager: torch.compile unrolls the loop over the chunks
      work = delta_work(o, 64), tokens = seq, tolerance = 1e-3,
   }
end
add {
   name = 'conv1d', case = 'conv1d', kind = 'near', must = 2, rounds = 11,
   options = { seq = 4096, dim = 1280, taps = 4, dtype = 'f32' }, sample = 0.02,
   work = 5 * 4 * 4096 * 1280, tolerance = 1e-3,  -- x, y; dy, x, dx
}

-- ---- optimiser ----

add {
   name = 'adamw', case = 'adamw', eager = true, kind = 'copy', must = 1, rounds = 11,
   options = { tensors = 75, size = 333333, dtype = 'f32' }, sample = 0.05,
   work = 7 * 4 * 75 * 333333, tolerance = 1e-3,  -- p, m, v read and written, g read
}

-- ---- overhead of one op: without gradients, recorded, and with its backward ----

add {
   name = 'op-plain', case = 'op', eager = true, kind = 'fma', rounds = 11, sample = 0.05,
   per = 1000, must = 1 / 0.9,
   options = { train = 0, plain = 1, count = 1000, dtype = 'f32' }, tolerance = 1e-6,
   only_threads = 1,
}
add {
   name = 'op-forward', case = 'op', eager = true, kind = 'fma', rounds = 11, sample = 0.05,
   per = 1000,
   options = { train = 0, count = 1000, dtype = 'f32' }, at_most = 1.2e-6, tolerance = 1e-6,
   only_threads = 1,
}
add {
   name = 'op-train', case = 'op', eager = true, kind = 'fma', rounds = 11, sample = 0.05,
   per = 1000,
   options = { train = 1, count = 1000, dtype = 'f32' }, tolerance = 1e-6, only_threads = 1,
}

-- ---- tokenizers ----

-- Texts of 4 kB; the second row is for a published tokenizer.json.
local function add_tokenizer(name, options)
   options.size = 4096
   add {
      name = name, case = 'tokenizer', eager = true, variants = { 'fast', 'single' }, kind = 'fma',
      must = 1, needs = 'tokenizers', rounds = 7, sample = 0.5, options = options,
      tolerance = 1e-12, only_threads = 1,
   }
end

add_tokenizer('tokenizer', { vocab = 8192 })
local published = os.getenv 'TIDE_BENCH_TOKENIZER'
if published then add_tokenizer('tokenizer-file', { file = published }) end

-- ---- programs of their own ----

add {
   name = 'start', case = 'start', at_most = 0.060, at_most_bytes = 30e6, rounds = 11,
   only_threads = 1,
}

return cases
