-- Random cases: rows of packed documents as streams, in chunks, over ranks. Lengths, masks and
-- every token are held against the definition, and attention over the stream against plain loops.

local attend = require 'spec.deep.oracle.attention'
local layout = require 'spec.deep.oracle.layout'
local stream = require 'spec.deep.oracle.stream'
local values = require 'spec.deep.fuzz.values'

local packed = { limit = 60 }

-- ---- cases -----------------------------------------------------------------------------------

local function row_of(c, S, full)
   local lens, slots, left = {}, {}, S
   while left > 0 and #lens < 4 do
      local n = c:few(1, left)
      if full and #lens == 3 then n = left end
      slots[#slots + 1], left = n, left - n
      lens[#lens + 1] = c:chance(0.3) and c:int(0, n) or n
      if not full and c:chance(0.3) then break end
   end
   if full and left > 0 then
      slots[#slots], lens[#lens] = slots[#slots] + left, lens[#lens]
   end
   return lens, slots
end

-- A case: chunks groups of rows, slots as `seq_lens_padded` unless bare, and how lengths are given.
function packed.make(c)
   local o = { n = c:pick { 1, 2, 3, 4 }, chunks = c:few(1, 3), S = c:few(1, 24),
      seed = c:int(0, 999), lens = {}, slots = {} }
   o.B = o.chunks * c:few(1, 3)
   local full, bare = not c:chance(0.4), c:chance(0.2)
   for b = 1, o.B do
      o.lens[b], o.slots[b] = row_of(c, o.S, full)
      if bare then o.lens[b] = o.slots[b] end
   end
   o.bare, o.lists = bare, c:chance(0.4)
   o.sentinel = c:chance(0.2) and -7 or -1000
   o.bidirectional = c:chance(0.2)
   o.pad_id = c:chance(0.3) and 9999 or 0
   o.positions = c:pick { 'rows', 'one', 'three', 'none' }
   o.method = c:pick { 'ring', 'allgather', 'a2a' }
   o.K = c:few(1, 2)
   o.H = o.K * c:few(1, 2)
   o.extra = c:chance(0.3)
   return o
end

-- ---- on a rank -------------------------------------------------------------------------------

local function label(id) return 2 * id + 1 end

-- Lengths with the sentinel behind each row, as a tensor or lists.
local function lengths(t, o, rows)
   local most, list = 1, {}
   for _, row in ipairs(rows) do most = math.max(most, #row) end
   for b, row in ipairs(rows) do
      list[b] = { unpack(row) }
      for k = #row + 1, most do list[b][k] = o.sentinel end
   end
   return o.lists and list or t.tensor(list, { dtype = 'i64' })
end

-- Token b, s has the id b S + s + 1 and the position 100 s + b.
local function batch_of(t, o)
   local ids, labels, positions = {}, {}, {}
   for b = 1, o.B do
      ids[b], labels[b], positions[b] = {}, {}, {}
      for s = 1, o.S do
         ids[b][s] = (b - 1) * o.S + s
         labels[b][s] = label(ids[b][s])
         positions[b][s] = 100 * (s - 1) + (o.positions == 'one' and 0 or b - 1)
      end
   end
   local function i64(list) return t.tensor(list, { dtype = 'i64' }) end
   local p = o.positions
   return { input_ids = i64(ids), labels = i64(labels),
      position_ids = p == 'rows' and i64(positions) or p == 'one' and i64 { positions[1] }
         or p == 'three' and t.stack({ i64(positions), i64(positions), i64(positions) }, 1),
      seq_lens = lengths(t, o, o.lens), seq_lens_padded = not o.bare and lengths(t, o, o.slots),
      extra = o.extra and i64(labels) + 5 or nil }
end

local function listed(x) return x and x:detach():to 'f64':reshape(-1):tolist() end

local function content(o, name, width)
   return values.normal(('%d %s'):format(o.seed, name), o.B * o.S * width)
end

-- Outputs of attention over a stream's tokens; gradients of q, k and v.
local function attention(t, o, axis, one)
   local ids = one.input_ids:tolist()
   local function rows(name, heads)
      local whole, list = content(o, name, heads * 4), {}
      for _, id in ipairs(ids) do
         for d = 1, heads * 4 do
            list[#list + 1] = id >= 1 and id <= o.B * o.S and whole[(id - 1) * heads * 4 + d] or 0.5
         end
      end
      return t.tensor(list, { dtype = 'f64' }):reshape { 1, #ids, heads, 4 }
   end
   local q, k, v = rows('q', o.H):requires_grad_(), rows('k', o.K):requires_grad_(),
      rows('v', o.K):requires_grad_()
   local inner = require('tide.parallel.cp.attention').new { axis = axis, method = o.method }
   local y = inner(q, k, v, { context = one.context, causal = not o.bidirectional })
   y:backward(rows('do', o.H))
   return { out = listed(y), dq = listed(q.grad), dk = listed(k.grad), dv = listed(v.grad) }
end

-- A stream as plain data.
local function plain_of(one)
   local out = {}
   for name, v in pairs(one) do
      if type(v) == 'cdata' then
         out[name], out[name .. '_shape'] = listed(v), v.shape
      elseif type(v) ~= 'table' or type(v[1]) == 'number' then
         out[name] = v
      end
   end
   return out
end

function packed.on_rank(o, _, n)
   local t = require 'tide'
   local axis = t.parallel.mesh({ cp = n }):axis 'cp'
   local batch, opts = batch_of(t, o), { seq_lens_padding_value = o.sentinel,
      padding_token_id = o.pad_id }
   local one = t.parallel.thd.process_input_for_thd(batch, { seq_lens_padding_value = o.sentinel,
      padding_token_id = o.pad_id, causal = not o.bidirectional })
   opts.num_chunks, opts.method = o.chunks, o.method
   opts.fields = o.extra and { extra = { fill = -9 } } or nil
   local cut = t.parallel.cp.make_cp_batch_for_te(axis, batch, opts)
   local got = { stream = plain_of(one), chunks = {}, top = plain_of(cut) }
   for i, chunk in ipairs(cut.chunks or { cut }) do
      got.chunks[i] = plain_of(chunk)
      got.chunks[i].numbers = attention(t, o, axis, chunk)
   end
   return got
end

-- ---- the check -------------------------------------------------------------------------------

local function equal(name, got, want)
   if type(want) ~= 'table' or type(got) ~= 'table' then
      return got ~= want and ('%s is %s, expected %s'):format(name, tostring(got), tostring(want))
         or nil
   end
   for k = 1, math.max(#got, #want) do
      if got[k] ~= want[k] then
         return ('%s: entry %d is %s, expected %s'):format(name, k, tostring(got[k]),
            tostring(want[k]))
      end
   end
end

-- cu_seqlens and cu_seqlens_padded as attention libraries take them: padding behind the last
-- document alone becomes its own, if both lengths were given and it sees nothing of it.
local function absorbed(o, s, T)
   local n = #s.real
   local same = not o.bare and not o.bidirectional and n > 1 and s.real[n] < T
   for k = 1, n - 1 do same = same and s.real[k] == s.slot[k] end
   if same then
      local cu = { unpack(s.real, 1, n - 1) }
      cu[n] = T
      return cu
   end
   for k = 1, n do
      if s.real[k] ~= s.slot[k] then return s.real, s.slot end
   end
   return s.real
end

local function longest(cu)
   local most
   for k = 2, #cu do most = math.max(most or 0, cu[k] - cu[k - 1]) end
   return most
end

-- The stream of all rows.
local function check_stream(o, s, got)
   local T, ids, labels, mask, extra, index = o.B * o.S, {}, {}, {}, {}, {}
   for k = 1, T do
      ids[k] = s.from[k] + 1
      mask[k] = s.document[k] < 0 and 1 or 0
      labels[k], extra[k] = mask[k] == 1 and -100 or label(ids[k]), label(ids[k]) + 5
      index[2 * k - 1] = s.document[k]
      index[2 * k] = s.document[k] >= 0 and s.position[k] or got.index and got.index[2 * k]
   end
   local cu, padded = absorbed(o, s, T)
   local bad = equal('input_ids', got.input_ids, ids) or equal('padding_mask', got.padding_mask,
      mask) or equal('index', got.index, index) or equal('cu_real', got.cu_real, s.real)
      or equal('cu_slot', got.cu_slot, s.slot) or equal('cu_seqlens', got.cu_seqlens, cu)
      or equal('cu_seqlens_padded', got.cu_seqlens_padded, padded)
      or equal('max_seqlen', got.max_seqlen, longest(cu))
      or o.extra and equal('extra', got.extra, extra)
   for k = 1, T do                                   -- labels of padding are the caller's here
      if mask[k] == 1 then labels[k] = got.labels[k] end
   end
   return bad or equal('labels', got.labels, labels)
end

-- The part of one chunk that each rank has: tokens in order and what lies beside them.
local function check_chunk(o, s, first, parts)
   local T = #s.from
   for r, got in ipairs(parts) do
      local at, from
      if o.n == 1 then
         at, from = {}, {}
         for k = 1, T do at[k], from[k] = k - 1, k - 1 end
      else
         at, from = layout.slots(s.slot, T, o.n, {}, r - 1)
      end
      local ids, labels, mask, extra = {}, {}, {}, {}
      for k, g in ipairs(at) do
         local token = from[g + 1]
         local place = token and first + s.from[token + 1]
         ids[k] = place and place + 1 or o.pad_id
         mask[k] = token and s.document[token + 1] >= 0 and 0 or 1
         labels[k] = place and label(place + 1) or -100
         if mask[k] == 1 then labels[k] = -100 end
         extra[k] = place and label(place + 1) + 5 or -9
      end
      local bad = equal('ids of a rank', got.input_ids, ids)
         or equal('labels of a rank', got.labels, labels)
         or equal('mask of a rank', got.padding_mask, mask)
         or o.extra and equal('extra of a rank', got.extra, extra)
         or o.n > 1 and (equal('cp_size', got.cp_size, o.n) or equal('cp_rank', got.cp_rank, r - 1))
         or equal('qkv_format', got.qkv_format or 'thd', 'thd')
      if bad then return bad end
   end
end

local function check_numbers(o, s, first, parts)
   local T, D = #s.from, 4
   local function content_of(name, heads)
      local whole, list = content(o, name, heads * D), {}
      for k = 1, T do
         for d = 1, heads * D do
            list[#list + 1] = whole[(first + s.from[k]) * heads * D + d]
         end
      end
      return list
   end
   local want = attend({ B = 1, T = T, H = o.H, K = o.K, D = D, V = D, sees = function(_, i, j)
      return s.document[i + 1] >= 0 and s.document[i + 1] == s.document[j + 1]
         and (o.bidirectional or j <= i)
   end }, content_of('q', o.H), content_of('k', o.K), content_of('v', o.K), content_of('do', o.H))
   local at_of = {}
   for k = 1, T do at_of[first + s.from[k] + 1] = k end
   for _, part in ipairs { { 'out', o.H }, { 'dq', o.H }, { 'dk', o.K }, { 'dv', o.K } } do
      local name, width, list = part[1], part[2] * D, {}
      for k = 1, T * width do list[k] = 0 / 0 end
      for _, got in ipairs(parts) do
         for i, id in ipairs(got.input_ids) do
            local k = at_of[id]
            for d = 1, k and width or 0 do
               list[(k - 1) * width + d] = got.numbers[name][(i - 1) * width + d]
            end
         end
      end
      local far = values.far(list, want[name], 0.1)
      if far > 1e-11 then return ('%s of a stream is off by %.3g'):format(name, far) end
   end
end

-- What a failing case has.
function packed.trait(o)
   return ('%s %s'):format(o.n > 1 and 'ranks' or 'one', o.chunks > 1 and 'chunks' or 'whole')
end

-- What is wrong with a case, or nil.
function packed.check(o)
   local all, text = values.ranks(o.n, 'spec.deep.domain.packed', 'on_rank', o)
   if not all then return text end
   local bad
   for _, got in ipairs(all) do
      bad = bad or check_stream(o, stream(o.lens, o.slots, o.S), got.stream)
   end
   local per = o.B / o.chunks
   for i = 1, bad and 0 or o.chunks do
      local lens, slots, parts = {}, {}, {}
      for b = 1, per do
         lens[b], slots[b] = o.lens[(i - 1) * per + b], o.slots[(i - 1) * per + b]
      end
      for r = 1, o.n do parts[r] = all[r].chunks[i] end
      local s, first = stream(lens, slots, o.S), (i - 1) * per * o.S
      bad = bad or check_chunk(o, s, first, parts) or check_numbers(o, s, first, parts)
   end
   local top = all[1].top
   if not bad and o.chunks > 1 and not (top.cu_seqlens and top.max_seqlen) then
      local even = true
      for i = 2, o.chunks do
         even = even and #all[1].chunks[i].input_ids == #all[1].chunks[1].input_ids
      end
      if even then bad = 'chunks without stacked cu_seqlens and max_seqlen' end
   end
   return bad
end

return packed
