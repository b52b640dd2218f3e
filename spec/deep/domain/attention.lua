-- Random cases: attention of a batch over ranks. Documents in any fields and any combination of
-- them, masks, layouts, methods, heads and ranks, by the doors a training step uses; outputs, all
-- gradients and the fields of the cut batch are held against the definition.

local attend = require 'spec.deep.oracle.attention'
local documents = require 'spec.deep.domain.documents'
local layout = require 'spec.deep.oracle.layout'
local values = require 'spec.deep.fuzz.values'

local attention = { limit = 60, idle = { refused = true } }

-- ---- cases -----------------------------------------------------------------------------------

local function divisor(c, n)
   local list = {}
   for d = 1, n do
      if n % d == 0 then list[#list + 1] = d end
   end
   return c:pick(list)
end

-- A case: n ranks, B rows of S tokens, H query heads on K of size D with values of size V, the mask
-- of the call, how it is cut, and `says`, the fields that tell of documents.
function attention.make(c)
   local o = { n = c:pick { 1, 2, 3, 4, 5, 8 }, B = c:few(1, 3), S = c:few(1, 40), K = c:few(1, 3),
      seed = c:int(0, 999) }
   o.H, o.D = o.K * c:few(1, 3), c:pick { 4, 8, 16 }
   o.V = c:chance(0.15) and 2 * o.D or o.D
   o.dtype = c:pick { 'f64', 'f32', 'bf16' }
   o.door = c:pick { 'batch', 'cut', 'contiguous' }
   o.method = c:pick { 'ring', 'allgather', 'a2a', 'a2a+p2p' }
   o.a2a = o.method == 'a2a+p2p' and divisor(c, o.n) or nil
   o.kind = o.door == 'contiguous' and 'contiguous'
      or c:pick { 'zigzag', 'contiguous', 'document', 'balanced' }
   o.causal = not c:chance(0.3)
   if c:chance(0.3) then o.window = { c:int(-1, 6), c:int(-1, 6) } end
   if c:chance(0.15) then o.softcap = c:pick { 2, 0.5 } end
   if c:chance(0.15) then o.scale = 0.3 end
   o.says = documents.make(c, o.B, o.S)
   o.mask_dtype = c:pick { 'i64', 'i32', 'bool' }
   o.nan = c:chance(0.2)
   if c:chance(0.3) then o.pad_id = 9999 end
   if c:chance(0.2) then o.loss_mask = true end
   if c:chance(0.2) then o.extra = true end
   if o.door == 'contiguous' then
      o.pad_multiple = c:int(1, 4)
   elseif c:chance(0.25) then
      o.multiple, o.tp, o.block = c:int(1, 6), c:int(1, 2), c:int(1, 3)
   end
   return o
end

-- ---- on a rank -------------------------------------------------------------------------------

local function label(id) return 3 * id + 1 end

-- Token b, s (from 0) has the id b S + s + 1; 0 and other numbers are padding.
local function batch_of(t, o)
   local ids, labels = {}, {}
   for b = 1, o.B do
      ids[b], labels[b] = {}, {}
      for s = 1, o.S do
         ids[b][s] = (b - 1) * o.S + s
         labels[b][s] = label(ids[b][s])
      end
   end
   local function tensor(list, dtype) return t.tensor(list, { dtype = dtype }) end
   local batch = { ids = tensor(ids, 'i64'), labels = tensor(labels, 'i64') }
   local says = o.says
   local function mask(name)
      if not says[name] then return end
      local numbered = false
      for _, v in ipairs(values.flat(says[name])) do numbered = numbered or v > 1 end
      local dtype = o.mask_dtype == 'bool' and numbered and 'i64' or o.mask_dtype
      batch[name] = tensor(says[name], 'i64'):to(dtype)
   end
   mask 'attention_mask'
   mask 'packed_seq_ids'
   if says.padding_mask then batch.padding_mask = tensor(says.padding_mask, 'i64'):to 'bool' end
   if says.index then batch.index = tensor(says.index, 'i32') end
   batch.cu_real, batch.cu_slot = says.cu_real, says.cu_slot
   if o.extra then batch.extra = tensor(labels, 'i64') + 5 end
   return batch, o.loss_mask and tensor(labels, 'f32') or nil
end

-- The context and this rank's part by one of the doors.
local function cut(t, o, axis)
   local cp = t.parallel.cp
   local batch, loss_mask = batch_of(t, o)
   local more = { loss_mask = loss_mask, padding_token_id = o.pad_id,
      fields = o.extra and { extra = { dim = 2, fill = -7 } } or nil }
   if o.door == 'contiguous' then
      batch.make_cp_batch_fn = cp.contiguous_batch { pad_multiple = o.pad_multiple,
         method = 'allgather', fields = more.fields }
      more.fields = nil
   else
      more.multiple, more.tp, more.block = o.multiple, o.tp, o.block
   end
   if o.door ~= 'cut' then
      if o.door == 'batch' then more.kind = o.kind end
      return cp.make_cp_batch_and_ctx(axis, batch, more)
   end
   local model = t.model.llama({ vocab_size = 8, hidden_size = 8, num_hidden_layers = 1,
      num_attention_heads = 1, intermediate_size = 8 }, { seed = 1 })
   local handle = cp.attach(model, axis, { method = o.method, a2a = o.a2a,
      layout = o.kind })
   local mine = handle:cut(batch, more)
   return mine.context or cp.null, mine
end

-- Contents of the whole sequence, flat: q, k, v, dout.
local function contents(o)
   local round = o.dtype == 'bf16' and 'bf16' or nil
   local function draw(i, width)
      return values.normal(('%d %d'):format(o.seed, i), o.B * o.S * width, round)
   end
   return draw(1, o.H * o.D), draw(2, o.K * o.D), draw(3, o.K * o.V), draw(4, o.H * o.V)
end

-- Rows of this rank out of a flat whole, by token ids; padding is noise or NaN.
local function rows_of(t, o, whole, ids, heads, size, padding)
   local list, width = {}, heads * size
   for _, row in ipairs(ids) do
      for _, id in ipairs(row) do
         local known = id >= 1 and id <= o.B * o.S and not padding[id]
         for d = 1, width do
            list[#list + 1] = known and whole[(id - 1) * width + d] or o.nan and 0 / 0 or 0.5
         end
      end
   end
   return t.tensor(list, { dtype = 'f64' }):reshape { #ids, #ids[1], heads, size }:to(o.dtype)
end

-- Ids of tokens that are padding.
local function padding_of(o)
   local set = {}
   for b, row in ipairs(documents.tokens(o.says, o.B, o.S)) do
      for s, token in ipairs(row) do
         if token.pad then set[(b - 1) * o.S + s] = true end
      end
   end
   return set
end

local function listed(x) return x and x:detach():to 'f64':reshape(-1):tolist() end

-- What one rank computes: its fields and its rows of outputs and gradients.
function attention.on_rank(o, _, n)
   local t = require 'tide'
   local axis = t.parallel.mesh({ cp = n }):axis 'cp'
   local context, mine = cut(t, o, axis)
   local ids = mine.ids:tolist()
   local got = { ids = ids, labels = mine.labels:tolist(), loss_mask = mine.loss_mask and
      mine.loss_mask:tolist(), extra = mine.extra and mine.extra:tolist(),
      padding_mask = mine.padding_mask and mine.padding_mask:to 'i64':tolist() }
   local q, k, v, dout = contents(o)
   local pads = padding_of(o)
   local tq, tk = rows_of(t, o, q, ids, o.H, o.D, pads), rows_of(t, o, k, ids, o.K, o.D, pads)
   local tv = rows_of(t, o, v, ids, o.K, o.V, pads)
   for _, x in ipairs { tq, tk, tv } do x:requires_grad_() end
   local inner = require('tide.parallel.cp.attention').new { axis = axis, method = o.method,
      a2a = o.a2a }
   local out = inner(tq, tk, tv, { context = context, causal = o.causal, window = o.window,
      softcap = o.softcap, scale = o.scale })
   local grad = rows_of(t, o, dout, ids, o.H, o.V, pads)
   out:backward(grad:masked_fill(grad:ne(grad), 1))
   got.out, got.dq, got.dk, got.dv = listed(out), listed(tq.grad), listed(tk.grad), listed(tv.grad)
   return got
end

-- ---- the check -------------------------------------------------------------------------------

-- Whole positions that a rank has by the definition of the layout, as ids of row 1; nil where the
-- layout may choose.
local function expected_ids(o, rank)
   if o.kind == 'balanced' then return nil end
   local W, S = o.n, o.S
   local padded = layout.padded(S, W, o.door == 'contiguous'
      and { kind = 'contiguous', multiple = W * math.max(o.pad_multiple, 2) } or o)
   local at, from
   if o.kind == 'contiguous' then
      at = layout.contiguous(padded, W, rank)
   elseif o.kind == 'zigzag' or W == 1 and not o.says.cu_real then
      at = layout.zigzag(padded, W, rank)
   else
      at, from = layout.slots(o.says.cu_slot or o.says.cu_real or { 0, S }, S, W, o, rank)
   end
   local ids = {}
   for i, g in ipairs(at) do
      local s = g
      if from then s = from[g + 1] or S end
      ids[i] = s < S and s + 1 or o.pad_id or 0
   end
   return ids
end

local function check_order(o, rank, got)
   local want = expected_ids(o, rank)
   if want and o.n == 1 and #got.ids[1] == o.S then          -- one rank need not pad
      for s = 1, o.S do want[s] = s end
      for s = o.S + 1, #want do want[s] = nil end
   end
   if not want then return end
   for i = 1, math.max(#want, #got.ids[1]) do
      if got.ids[1][i] ~= want[i] then
         return ('layout %s, rank %d: token %d has id %s, expected %s'):format(o.kind, rank, i - 1,
            tostring(got.ids[1][i]), tostring(want[i]))
      end
   end
end

-- Every token once, and what lies beside it in the other fields.
local function check_fields(o, all, tokens)
   local seen, count = {}, 0
   for r, got in ipairs(all) do
      for b, row in ipairs(got.ids) do
         for i, id in ipairs(row) do
            local real = id >= 1 and id <= o.B * o.S
            local function field(name, want)
               local v = got[name] and got[name][b][i]
               if v ~= want then
                  return ('rank %d: %s at id %d is %s, expected %s'):format(r - 1, name, id,
                     tostring(v), tostring(want))
               end
            end
            local token = real and tokens[math.floor((id - 1) / o.S) + 1][(id - 1) % o.S + 1]
            if real then
               if seen[id] then return ('token %d is there twice'):format(id) end
               seen[id], count = true, count + 1
               if math.floor((id - 1) / o.S) ~= b - 1 then return 'a token changed its row' end
            end
            local pad = not real or token.pad
            local bad = field('labels', pad and -100 or label(id))
               or o.loss_mask and field('loss_mask', pad and 0 or label(id))
               or o.extra and field('extra', real and label(id) + 5 or -7)
               or got.padding_mask and field('padding_mask', pad and 1 or 0)
            if bad then return bad end
         end
      end
   end
   if count ~= o.B * o.S then return ('%d of %d tokens are there'):format(count, o.B * o.S) end
end

-- Relative to the largest element: what sums in f64 and f32 do, also between roundings to bf16.
local tolerance = { f64 = 1e-11, f32 = 5e-5, bf16 = 5e-5 }

-- Roundings to bf16, each by at most 2^-8 of the value, on the way of a term into a result:
--    out      p, the part of a block of keys, the sum of the parts                            3
--    dq       through out (3); ds, the part of a block, the sum of the parts                  3
--    dk       through out (3); ds, the part, the sum, the sum over ranks with the same head   4
--    dv       p, the part, the sum, the sum over ranks with the same head                     4
-- Differences cancel, so a result may be far smaller than what is rounded: what counts is the sum
-- of the magnitudes of its terms (`sizes` of the oracle).
local roundings = { f64 = 0, f32 = 0, bf16 = 4 }

local function oracle_of(o, tokens)
   local q, k, v, dout = contents(o)
   -- gradients of padding rows do not count: their outputs are 0 whatever they are
   return attend({ B = o.B, T = o.S, H = o.H, K = o.K, D = o.D, V = o.V, scale = o.scale,
      softcap = o.softcap, sees = function(b, i, j)
         return documents.sees(tokens[b + 1][i + 1], tokens[b + 1][j + 1], o.causal, o.window)
      end }, q, k, v, dout)
end

-- What is wrong with a result, or nil.
local function outside(o, name, got, want)
   local most, u = 0.1, roundings[o.dtype] * 2^-8
   for _, v in ipairs(want[name]) do most = math.max(most, math.abs(v)) end
   for i, v in ipairs(want[name]) do
      local allowed = u * want.sizes[name][i] + tolerance[o.dtype] * most
      local off = math.abs(got[i] - v)
      if off > allowed or off ~= off then
         return ('%s is %.5g, expected %.5g within %.3g'):format(name, got[i], v, allowed)
      end
   end
end

local function check_numbers(o, all, tokens)
   local want = oracle_of(o, tokens)
   for _, part in ipairs { { 'out', o.H * o.V }, { 'dq', o.H * o.D }, { 'dk', o.K * o.D },
      { 'dv', o.K * o.V } } do
      local name, width = part[1], part[2]
      local whole = {}
      for i = 1, o.B * o.S * width do whole[i] = 0 / 0 end
      for r, got in ipairs(all) do
         local at = 0
         for _, row in ipairs(got.ids) do
            for _, id in ipairs(row) do
               for d = 1, width do
                  local x = got[name][at + d]
                  if id >= 1 and id <= o.B * o.S then
                     whole[(id - 1) * width + d] = x
                  elseif x ~= 0 then
                     return ('%s of padding on rank %d is %g'):format(name, r - 1, x)
                  end
               end
               at = at + width
            end
         end
      end
      local problem = outside(o, name, whole, want)
      if problem then return problem end
   end
end

-- What a failing case has: its door and the fields that tell of documents.
function attention.trait(o)
   local names = {}
   for name in pairs(o.says) do names[#names + 1] = name end
   table.sort(names)
   return table.concat({ o.door, unpack(names) }, ' ')
end

-- What is wrong with a case, or nil and a word on it.
function attention.check(o)
   local tokens = documents.tokens(o.says, o.B, o.S)
   local all, text, code = values.ranks(o.n, 'spec.deep.domain.attention', 'on_rank', o)
   if not all then
      if code and documents.conflict(o.says, tokens) then return nil, 'refused' end
      return text
   end
   for r, got in ipairs(all) do
      local bad = check_order(o, r - 1, got)
      if bad then return bad end
   end
   return check_fields(o, all, tokens) or check_numbers(o, all, tokens)
end

return attention
