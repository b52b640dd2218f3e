-- Random cases: a Mamba-2 layer whose sequence lies over ranks, by heads or by states, for any
-- layout, documents, heads and groups; output, gradient of the input and of every parameter are
-- held against the layer on the whole sequence in plain loops.

local documents = require 'spec.deep.domain.documents'
local mamba2 = require 'spec.deep.oracle.mamba2'
local ssm = require 'spec.deep.oracle.ssm'
local values = require 'spec.deep.fuzz.values'

local mamba = { limit = 60, idle = { refused = true } }

-- ---- cases -----------------------------------------------------------------------------------

-- A case: n ranks, B rows of S tokens, the layer's sizes, how the sequence is cut, and `says`, the
-- fields that tell of documents.
function mamba.make(c)
   local o = { n = c:pick { 1, 2, 3, 4, 5, 8 }, B = c:few(1, 2), S = c:few(1, 48), G = c:few(1, 3),
      seed = c:int(0, 999) }
   o.H, o.P, o.N = o.G * c:few(1, 4), c:pick { 2, 3, 4 }, c:few(1, 5)
   o.K, o.M = c:int(2, 4), c:few(1, 6)
   o.chunk = c:chance(0.7) and c:few(1, 20) or nil
   o.dtype = c:pick { 'f64', 'f64', 'f32' }
   o.method = c:pick { 'hidden', 'state', 'auto' }
   o.kind = o.method == 'state' and c:pick { 'contiguous', 'zigzag' }
      or c:pick { 'zigzag', 'contiguous', 'document', 'balanced' }
   o.bias, o.conv_bias, o.channel = c:chance(0.3), c:chance(0.5), c:chance(0.3)
   o.gate_last = c:chance(0.3)
   if c:chance(0.3) then o.limit = c:pick { { 0.1, 0.7 }, { 0.01, 2 } } end
   o.steps = c:pick { 'mild', 'wild' }
   o.says = not c:chance(0.3) and {} or documents.make(c, o.B, o.S)
   if c:chance(0.3) then o.says = { cu_real = nil } end
   if c:chance(0.3) and o.B == 1 then
      local cu = { 0 }
      while cu[#cu] < o.S do cu[#cu + 1] = cu[#cu] + 1 + c:few(0, o.S - cu[#cu] - 1) end
      o.says = { cu_real = cu }
   end
   return o
end

-- ---- contents --------------------------------------------------------------------------------

-- Numbers of the dtype of the case.
local function draw(o, name, n, scale, shift)
   local list = values.normal(('%d %s'):format(o.seed, name), n)
   for k = 1, n do
      list[k] = list[k] * scale + (shift or 0)
      if o.dtype == 'f32' then list[k] = ssm.f32(list[k]) end
   end
   return list
end

-- Parameters by name, flat.
local function weights(o)
   local I, S = o.H * o.P, o.G * o.N
   local conv_dim, width = I + 2 * S, 2 * I + 2 * S + o.H
   local wild = o.steps == 'wild'
   local w = { ['in_proj.weight'] = draw(o, 'in', width * o.M, 0.7),
      ['conv1d.weight'] = draw(o, 'conv', conv_dim * o.K, 0.6),
      A_log = draw(o, 'A', o.H, wild and 1.5 or 0.5), dt_bias = draw(o, 'dt', o.H, wild and 3 or 1),
      D = draw(o, 'D', o.channel and I or o.H, 1), ['norm.weight'] = draw(o, 'norm', I, 0.5, 1),
      ['out_proj.weight'] = draw(o, 'out', o.M * I, 0.7) }
   if o.bias then
      w['in_proj.bias'], w['out_proj.bias'] = draw(o, 'inb', width, 0.3), draw(o, 'outb', o.M, 0.3)
   end
   if o.conv_bias then w['conv1d.bias'] = draw(o, 'convb', conv_dim, 0.3) end
   return w
end

local function contents(o)
   local n = o.B * o.S * o.M
   return draw(o, 'x', n, 1), draw(o, 'dy', n, 1)
end

-- ---- on a rank -------------------------------------------------------------------------------

local function layer_of(t, o)
   local layer = t.nn.Mamba2 { dim = o.M, heads = o.H, head_dim = o.P, groups = o.G, state = o.N,
      conv = o.K, chunk = o.chunk, bias = o.bias, conv_bias = o.conv_bias,
      gate_last = o.gate_last, per_channel_D = o.channel, dt_limit = o.limit, dtype = o.dtype }
   local state, w = {}, weights(o)
   for _, e in ipairs(layer:named_parameters()) do
      state[e.name] = t.tensor(w[e.name], { dtype = 'f64' }):reshape(e.param.shape):to(o.dtype)
   end
   layer:load_state_dict(state)
   return layer
end

local function batch_of(t, o)
   local ids = {}
   for b = 1, o.B do
      ids[b] = {}
      for s = 1, o.S do ids[b][s] = (b - 1) * o.S + s end
   end
   local batch = { ids = t.tensor(ids, { dtype = 'i64' }) }
   batch.labels = batch.ids:clone()
   for _, name in ipairs { 'attention_mask', 'packed_seq_ids' } do
      if o.says[name] then batch[name] = t.tensor(o.says[name], { dtype = 'i64' }) end
   end
   if o.says.padding_mask then
      batch.padding_mask = t.tensor(o.says.padding_mask, { dtype = 'i64' }):to 'bool'
   end
   if o.says.index then batch.index = t.tensor(o.says.index, { dtype = 'i32' }) end
   batch.cu_real, batch.cu_slot = o.says.cu_real, o.says.cu_slot
   return batch
end

-- Rows [B, count, M] of this rank by token ids; padding is `other`.
local function rows_of(t, o, whole, ids, other)
   local list = {}
   for _, row in ipairs(ids) do
      for _, id in ipairs(row) do
         for d = 1, o.M do list[#list + 1] = id > 0 and whole[(id - 1) * o.M + d] or other end
      end
   end
   return t.tensor(list, { dtype = 'f64' }):reshape { #ids, #ids[1], o.M }:to(o.dtype)
end

-- dy without the tokens that are padding.
local function without_padding(o, dy)
   for b, row in ipairs(documents.tokens(o.says, o.B, o.S)) do
      for s, token in ipairs(row) do
         for d = 1, token.pad and o.M or 0 do dy[((b - 1) * o.S + s - 1) * o.M + d] = 0 end
      end
   end
   return dy
end

-- What one rank computes: ids, output and dx of its tokens, and its share of the gradients.
function mamba.on_rank(o, _, n)
   local t = require 'tide'
   local cp, axis = t.parallel.cp, t.parallel.mesh({ cp = n }):axis 'cp'
   local layer = layer_of(t, o)
   local handle = t.parallel.mamba_cp.attach(layer, axis, { method = o.method })
   local context, mine = cp.make_cp_batch_and_ctx(axis, batch_of(t, o), { kind = o.kind })
   local ids = mine.ids:tolist()
   local x, dy = contents(o)
   local lx = rows_of(t, o, x, ids, 0.5):requires_grad_()
   local y = layer(lx, { context = context })
   y:backward(rows_of(t, o, without_padding(o, dy), ids, 0))
   local function listed(v) return v and v:detach():to 'f64':reshape(-1):tolist() end
   local got = { ids = ids, y = listed(y), x = listed(lx.grad), grads = {} }
   for _, e in ipairs(layer:named_parameters()) do got.grads[e.name] = listed(e.param.grad) end
   handle:restore()
   return got
end

-- ---- the check -------------------------------------------------------------------------------

-- Numbers of sequences: one more wherever a row's documents or padding change.
local function sequences(tokens)
   return function(b, s)
      local row, number = tokens[b + 1], 0
      for k = 2, s + 1 do
         local a, z = row[k - 1], row[k]
         if a.pad ~= z.pad or not z.pad and a.key ~= z.key then number = number + 1 end
      end
      return number
   end
end

local tolerance = { f64 = 1e-9, f32 = 2e-4 }

-- Outputs or gradients of tokens, put in their places; padding does not count.
local function whole_of(o, all, name, tokens)
   local list = {}
   for i = 1, o.B * o.S * o.M do list[i] = 0 / 0 end
   for _, got in ipairs(all) do
      local at = 0
      for _, row in ipairs(got.ids) do
         for _, id in ipairs(row) do
            for d = 1, id > 0 and o.M or 0 do list[(id - 1) * o.M + d] = got[name][at + d] end
            at = at + o.M
         end
      end
   end
   for b, row in ipairs(tokens) do
      for s, token in ipairs(row) do
         for d = 1, token.pad and o.M or 0 do list[((b - 1) * o.S + s - 1) * o.M + d] = 0 end
      end
   end
   return list
end

local function sum_of(all, name)
   local sum = {}
   for _, got in ipairs(all) do
      for k, v in ipairs(got.grads[name] or {}) do sum[k] = (sum[k] or 0) + v end
   end
   return sum
end

-- Whether a difference is at most 256 roundings of the magnitudes of the terms of a sum.
local function is_rounding(got, wanted, size)
   local off, most = 0, 0
   for k, v in ipairs(wanted) do
      off, most = math.max(off, math.abs((got[k] or math.huge) - v)), math.max(most, size[k])
   end
   return off <= 256 * 2 ^ -24 * most
end

-- What a failing case has.
function mamba.trait(o)
   local names = {}
   for name in pairs(o.says) do names[#names + 1] = name end
   table.sort(names)
   return table.concat({ o.method, o.kind, unpack(names) }, ' ')
end

-- What is wrong with a case, or nil and a word on it.
function mamba.check(o)
   local tokens = documents.tokens(o.says, o.B, o.S)
   local all, text, code = values.ranks(o.n, 'spec.deep.domain.mamba', 'on_rank', o)
   if not all then
      if code and documents.conflict(o.says, tokens) then return nil, 'refused' end
      if code == 'E_UNSUPPORTED' and o.method == 'state' then return nil, 'refused' end
      return text
   end
   local x, dy = contents(o)
   local y, want, sizes = mamba2({ B = o.B, T = o.S, H = o.H, P = o.P, G = o.G, N = o.N, K = o.K,
      M = o.M, eps = 1e-5, gate_last = o.gate_last, limit = o.limit, seq = sequences(tokens) },
      weights(o), x, without_padding(o, dy))
   local function far(name, got, wanted)
      local d = values.far(got, wanted, 1e-2)
      if d <= tolerance[o.dtype] then return end
      local size = o.dtype == 'f32' and sizes()[name]
      if size and is_rounding(got, wanted, size) then return end
      return ('%s is off by %.3g'):format(name, d)
   end
   local out = whole_of(o, all, 'y', tokens)
   for i, v in ipairs(out) do
      if v == 0 then y[i] = tokens[math.floor((i - 1) / o.M / o.S) + 1][
         math.floor((i - 1) / o.M) % o.S + 1].pad and 0 or y[i] end
   end
   local bad = far('y', out, y) or far('dx', whole_of(o, all, 'x', tokens), want.x)
   for name in pairs(weights(o)) do bad = bad or far(name, sum_of(all, name), want[name]) end
   return bad
end

return mamba
