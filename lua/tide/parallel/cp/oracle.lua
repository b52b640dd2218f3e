-- The reference of cp.self_check: which tokens of a batch see each other, token by token from the
-- definition, and attention with the dense mask that follows.
--
-- It shares no code with documents.lua, contexts, plans or tide.attention, so that one fault cannot
-- hide in both. It takes B T^2 bytes for the mask and B H T^2 numbers for the scores of a layer.
--
-- Legend: B rows of T tokens, H query heads, K key heads, D head size.

local tide = require 'tide'

local oracle = {}

local function list(v) return tide.is_tensor(v) and v:tolist() or v end

-- ---- what each field says of a token ---------------------------------------------------------

-- Each of these functions takes a field as a list, and the probe. It gives fn(row, token), both
-- from 1: the document as a value, false at padding, nil where the field says nothing.

local function of_index(rows)
   return function(b, t)
      local doc = (rows[b] or rows[1])[t][1]
      return doc >= 0 and doc
   end
end

local function of_numbers(rows)
   return function(b, t)
      local n = rows[b][t]
      if type(n) == 'boolean' then n = n and 1 or 0 end
      return n > 0 and n
   end
end

local function of_padding(rows)
   return function(b, t)
      local is_pad = rows[b][t]
      if is_pad == true or is_pad ~= false and is_pad ~= 0 then return false end
      return nil
   end
end

local function of_lengths(real, probe)
   local slot = list(probe.cu_slot) or real
   return function(_, t)
      for d = 1, #slot - 1 do
         if t <= slot[d + 1] then
            return t - slot[d] <= real[d + 1] - real[d] and d
         end
      end
      return false
   end
end

local says = {
   { 'index', of_index }, { 'cu_real', of_lengths }, { 'padding_mask', of_padding },
   { 'packed_seq_ids', of_numbers },
   -- A mask of ones and zeros alone: one document, which adds nothing to what other fields say.
   { 'attention_mask', of_numbers },
}

-- Returns the document of each token, numbered from 0 in each row; -1 is padding: lists of lists.
-- nil if no field of the batch says anything.
function oracle.documents(probe, B, T)
   local words = {}
   for _, row in ipairs(says) do
      local field = probe[row[1]]
      if field ~= nil then words[#words + 1] = row[2](list(field), probe) end
   end
   if #words == 0 then return nil end
   local rows = {}
   for b = 1, B do
      local numbers, count, row = {}, 0, {}
      for t = 1, T do
         local text, is_pad = '', false
         for _, word in ipairs(words) do
            local w = word(b, t)
            is_pad, text = is_pad or w == false, text .. ' ' .. tostring(w)
         end
         if not is_pad and not numbers[text] then numbers[text], count = count, count + 1 end
         row[t] = is_pad and -1 or numbers[text]
      end
      rows[b] = row
   end
   return rows
end

-- Returns whether a mask numbers documents from 1, and does not only mark padding.
local function numbers_documents(mask)
   for _, row in ipairs(mask ~= nil and list(mask) or {}) do
      for _, n in ipairs(row) do
         if type(n) == 'number' and n > 1 then return true end
      end
   end
   return false
end

-- Returns where the document that holds place t (from 0) begins, by cumulative lengths of slots.
local function start_of(slot, t)
   local first = 0
   for _, at in ipairs(slot) do first = at <= t and at or first end
   return first
end

-- Returns the positions that order the tokens of a row and measure windows: those of an index, else
-- the places, which count from the start of each document where cu_real alone gives documents.
local function positions_of(probe, B, T)
   local rows, index = {}, probe.index ~= nil and list(probe.index) or nil
   local slot = list(probe.cu_slot ~= nil and probe.cu_slot or probe.cu_real)
   if probe.packed_seq_ids ~= nil or numbers_documents(probe.attention_mask) then slot = nil end
   for b = 1, B do
      rows[b] = {}
      for t = 1, T do
         rows[b][t] = index and (index[b] or index[1])[t][2] or t - 1 - start_of(slot or {}, t - 1)
      end
   end
   return rows
end

-- Returns the positions up to which the tokens of a row see (see tide.attention): their own, where
-- no index says another. at: of positions_of.
local function untils_of(probe, B, T, at)
   local index = probe.index ~= nil and probe.index:size(3) > 2 and list(probe.index) or nil
   if not index then return at end
   local rows = {}
   for b = 1, B do
      rows[b] = {}
      for t = 1, T do rows[b][t] = (index[b] or index[1])[t][3] end
   end
   return rows
end

-- ---- attention -------------------------------------------------------------------------------

-- Returns the bytes of a mask: whether query i sees key j, for all of a row.
local function seen(docs, at, untils, causal, left, right)
   local T, out = #at, {}
   for i = 1, T do
      for j = 1, T do
         local back = at[i] - at[j]                     -- how far key j lies behind query i
         local ok = docs == nil or docs[i] >= 0 and docs[i] == docs[j]
         ok = ok and not (causal and at[j] > untils[i]) and not (left >= 0 and back > left)
            and not (right >= 0 and -back > right)
         out[#out + 1] = ok
      end
   end
   return out
end

local function bounds(window)
   if type(window) == 'table' then return window[1] or -1, window[2] or -1 end
   return window or -1, window or -1
end

-- Returns the heads of x [B, T, n, D] as [B, H, T, D], each n repeated for the query heads that
-- read it.
local function heads_of(x, H)
   local n, at = x:size(3), {}
   for h = 1, H do at[h] = math.floor((h - 1) * n / H) end
   return x:index_select(3, tide.tensor(at, { dtype = 'i64', device = x.device })):transpose(2, 3)
end

-- Returns a call like tide.attention(q, k, v, { causal, window, softcap, scale, sinks }), whose
-- mask is dense and follows from the fields of the probe.
function oracle.attention(probe, B, T)
   local docs, at, masks = oracle.documents(probe, B, T), positions_of(probe, B, T), {}
   local untils = untils_of(probe, B, T, at)
   local function hidden(o, device)
      local left, right = bounds(o.window)
      local key = ('%s %s %d %d'):format(device, tostring(o.causal), left, right)
      if not masks[key] then
         local rows = {}
         for b = 1, B do
            rows[b] = seen(docs and docs[b], at[b], untils[b], o.causal, left, right)
         end
         masks[key] = tide.tensor(rows, { dtype = 'bool', device = device })
            :reshape { B, 1, T, T }:logical_not()
      end
      return masks[key]
   end
   return function(q, k, v, o)
      local wide = q.dtype == 'f64' and 'f64' or 'f32'
      local H, D, hide = q:size(3), q:size(4), hidden(o, q.device)
      local scores = tide.matmul(heads_of(q:to(wide), H), heads_of(k:to(wide), H):transpose(3, 4))
         * (o.scale or 1 / math.sqrt(D))
      if o.softcap and o.softcap > 0 then scores = (scores / o.softcap):tanh() * o.softcap end
      local share = scores:masked_fill(hide, -1e30)
      if o.sinks then
         local last = o.sinks:to(wide):reshape(1, H, 1, 1):expand(q:size(1), H, T, 1)
         share = tide.cat({ share, last }, -1)
      end
      share = share:softmax(-1):narrow(-1, 1, T):masked_fill(hide, 0)
      return tide.matmul(share, heads_of(v:to(wide), H)):transpose(2, 3):to(q.dtype)
   end
end

-- ---- a whole batch ---------------------------------------------------------------------------

-- Returns what one rank is given for the probe: { ids, labels (-100 at padding), positions, index
-- (nil: one document a row) }.
function oracle.batch(probe)
   local B, T = probe.ids:size(1), probe.ids:size(2)
   local docs, device = oracle.documents(probe, B, T), probe.ids.device
   local out = { ids = probe.ids, labels = probe.labels, positions = probe.positions }
   if not docs then return out end
   local at, labels, index = positions_of(probe, B, T), probe.labels:tolist(), {}
   local untils = untils_of(probe, B, T, at)
   for b, row in ipairs(docs) do
      index[b] = {}
      for t, doc in ipairs(row) do
         index[b][t] = { doc, at[b][t], untils ~= at and untils[b][t] or nil }
         if doc < 0 then labels[b][t] = -100 end
      end
   end
   out.index = tide.tensor(index, { dtype = 'i32', device = device })
   out.positions = out.positions or tide.tensor(at, { dtype = 'i64', device = device }):clamp(0,
      2^31 - 1)
   out.labels = tide.tensor(labels, { dtype = probe.labels.dtype, device = device })
   return out
end

return oracle
