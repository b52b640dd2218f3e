-- The rows of the CUDA benchmark: what is run, and what it cannot do without.
--
-- A row: name, case (known to ours.lua and peer.py), its options, flop (operations on tensor cores;
-- a multiply-add is two) and bytes (what must be read or written at least once). Sizes are those of
-- a Llama of 1.1 billion parameters in bf16 on 4 x 2048 tokens. `ours_only`: torch has no such op
-- of its own. `eager`: nothing to compile.

local sizes = {
   big = { tokens = 8192, rows = 4, dim = 2048, ffn = 5632, vocab = 32000, layers = 22, heads = 32,
      kv = 4, square = 8192, long = 8192, elements = 2^28, scan_heads = 80,
      delta_heads = 32, delta_dim = 128, channels = 5376 },
   small = { tokens = 64, rows = 2, dim = 64, ffn = 96, vocab = 200, layers = 2, heads = 4, kv = 2,
      square = 64, long = 64, elements = 2^10, scan_heads = 2,
      delta_heads = 2, delta_dim = 8, channels = 64 },
}

-- Adds the rows of some sizes to a list through add(name, case, options, flop, bytes, more).
local families = {}

function families.gemm(s, add)
   for _, m in ipairs { { 'qo', s.dim, s.dim }, { 'kv', s.dim * s.kv / s.heads, s.dim },
                        { 'up', s.ffn, s.dim }, { 'down', s.dim, s.ffn },
                        { 'head', s.vocab, s.dim }, { 'square', s.square, s.square } } do
      local rows, cols, inner = m[1] == 'square' and s.square or s.tokens, m[2], m[3]
      for _, way in ipairs { 'fwd', 'dx', 'dw' } do
         add(('gemm-%s-%s'):format(m[1], way), 'gemm',
            { rows = rows, cols = cols, inner = inner, way = way }, 2 * rows * cols * inner,
            2 * (rows * inner + cols * inner + rows * cols), { eager = true })
      end
   end
end

-- A linear in bf16 and the same in FP8, whose forward makes codes for its backward.
function families.fp8(s, add)
   for _, scaling in ipairs { 'none', 'tensor', 'block' } do
      local m, k, n = s.tokens, s.dim, s.ffn
      local name = scaling == 'none' and 'bf16' or 'fp8-' .. scaling
      for _, way in ipairs { 'fwd', 'both' } do
         local times = way == 'fwd' and 1 or 3
         add(('linear-%s-%s'):format(name, way), 'linear',
            { rows = m, inner = k, cols = n, scaling = scaling, way = way }, 2 * m * k * n * times,
            2 * (m * k + n * k + m * n) * times, { eager = true, ours_only = true })
      end
   end
end

-- Causal attention looks at half of the pairs; that of `docs` equal documents at one of docs parts
-- of them. Backward recomputes the scores: five products to the forward's two.
function families.attention(s, add)
   for _, a in ipairs {
      { 'd64', s.rows, s.tokens / s.rows, s.heads, s.kv, 64, 1 },
      { 'd128', 1, s.long, s.heads / 2, s.heads / 2, 128, 1 },
      { 'd128-gqa', 1, s.long, s.heads / 2, s.kv, 128, 1 },
      { 'd128-packed', 1, s.long, s.heads / 2, s.kv, 128, 8 },
   } do
      local o = { batch = a[2], seq = a[3], heads = a[4], kv = a[5], head = a[6], docs = a[7] }
      local flop = 2 * o.batch * o.heads * o.seq ^ 2 * o.head / o.docs
      local one = 2 * o.batch * o.seq * o.head
      for _, kernel in ipairs { 'mma', 'wgmma' } do
         local name = ('attention-%s%s-'):format(a[1], kernel == 'mma' and '' or '-wgmma')
         local function row(way, times, moved)
            add(name .. way, 'attention', { batch = o.batch, seq = o.seq, heads = o.heads,
               kv = o.kv, head = o.head, docs = o.docs, way = way, kernel = kernel }, flop * times,
               moved, { eager = true, ours_only = kernel == 'wgmma' })
         end
         row('fwd', 1, one * (2 * o.heads + 2 * o.kv))
         row('both', 3.5, one * (6 * o.heads + 6 * o.kv))
      end
   end
end

function families.rows(s, add)
   local n, wide = 2 * s.tokens * s.dim, 2 * s.tokens * s.ffn
   for _, kind in ipairs { 'rms', 'layer' } do
      add('norm-' .. kind .. '-fwd', 'norm', { kind = kind, way = 'fwd', rows = s.tokens,
         cols = s.dim }, 0, 2 * n)
      add('norm-' .. kind .. '-both', 'norm', { kind = kind, way = 'both', rows = s.tokens,
         cols = s.dim }, 0, 5 * n)
   end
   add('norm-add-rms-fwd', 'norm', { kind = 'add', way = 'fwd', rows = s.tokens, cols = s.dim }, 0,
      4 * n)
   add('swiglu-fwd', 'swiglu', { way = 'fwd', rows = s.tokens, cols = s.ffn }, 0, 3 * wide)
   add('swiglu-both', 'swiglu', { way = 'both', rows = s.tokens, cols = s.ffn }, 0, 8 * wide)
   add('rope', 'rope', { batch = s.rows, seq = s.tokens / s.rows, heads = s.heads,
      head = s.dim / s.heads }, 0, 2 * n)
   add('embedding-both', 'embedding', { rows = s.tokens, vocab = s.vocab, dim = s.dim }, 0,
      4 * n + 2 * s.vocab * s.dim, { eager = true })
   add('add', 'add', { rows = s.tokens, cols = s.dim }, 0, 3 * n, { eager = true })
   add('copy', 'copy', { elements = s.elements }, 0, 4 * s.elements, { eager = true })
   add('cast', 'cast', { elements = s.elements }, 0, 6 * s.elements, { eager = true })
end

-- The loss makes logits and both gradients: three products.
function families.loss(s, add)
   add('cross-entropy', 'cross_entropy', { rows = s.tokens, vocab = s.vocab, dim = s.dim },
      6 * s.tokens * s.vocab * s.dim, 0)
end

-- 28 bytes an element on both sides: ours has bf16 parameters and gradients with f32 copies, the
-- peer f32 parameters and gradients.
function families.update(s, add)
   add('adamw', 'adamw', { elements = s.elements, tensors = 8 }, 0, 28 * s.elements,
      { eager = true })
   add('grad-norm', 'grad_norm', { elements = s.elements }, 0, 2 * s.elements, { eager = true })
end

function families.ssm(s, add)
   local o = { seq = s.long, heads = s.scan_heads, head = 64, states = 128, chunk = 128 }
   local x, state = 2 * o.seq * o.heads * o.head, 2 * o.seq * o.states
   for _, way in ipairs { 'fwd', 'both' } do
      add('scan-' .. way, 'scan', { seq = o.seq, heads = o.heads, head = o.head, states = o.states,
         chunk = o.chunk, way = way }, 0, (way == 'fwd' and 1 or 3) * (2 * x + 2 * state
         + 4 * o.seq * o.heads), { ours_only = true })
   end
   local heads, dim = s.delta_heads, s.delta_dim -- two value heads share a key head
   for _, way in ipairs { 'fwd', 'both' } do
      add('delta-' .. way, 'delta', { seq = s.long, heads = heads, dim = dim, way = way }, 0,
         (way == 'fwd' and 1 or 3) * s.long * heads * (6 * dim + 8), { ours_only = true })
   end
   add('conv1d-fwd', 'conv1d', { seq = s.long, channels = s.channels }, 0,
      4 * s.long * s.channels)
end

-- Model FLOPs as MFU counts them: six a parameter that multiplies and token, and causal attention.
function families.step(s, add)
   local o = { batch = s.rows, seq = s.tokens / s.rows, dim = s.dim, ffn = s.ffn, vocab = s.vocab,
      layers = s.layers, heads = s.heads, kv = s.kv }
   local layer = (2 + 2 * s.kv / s.heads) * s.dim ^ 2 + 3 * s.dim * s.ffn
   local flop = s.tokens * (6 * (s.layers * layer + s.vocab * s.dim)
      + 6 * s.layers * s.dim * o.seq)
   for _, way in ipairs { 'eager', 'captured' } do
      local options = { way = way }
      for k, v in pairs(o) do options[k] = v end
      add('llama-step-' .. way, 'llama', options, flop, 0, { step = true, tokens = s.tokens,
         ours_only = way == 'captured' })
   end
end

local order = { 'gemm', 'fp8', 'attention', 'rows', 'loss', 'update', 'ssm', 'step' }

-- The rows, in order; small: of tiny sizes, which try the benchmark and measure nothing.
return function(small)
   local list = {}
   local function add(name, case, options, flop, bytes, more)
      local row = { name = name, case = case, options = options, flop = flop, bytes = bytes }
      for k, v in pairs(more or {}) do row[k] = v end
      list[#list + 1] = row
   end
   for _, name in ipairs(order) do families[name](sizes[small and 'small' or 'big'], add) end
   return list
end
