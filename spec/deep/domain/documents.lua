-- What a batch says about documents: random ones, as plain data, and what it means, token by token.
--
-- A batch may say it in several fields at once. Two tokens of a row see each other only if every
-- field puts both into one document, and a token that any field calls padding is padding. Fields
-- that number documents and disagree may be refused.

local values = require 'spec.deep.fuzz.values'

local documents = {}

-- Numbers of documents of S tokens from 1 in runs; 0 is padding: none, at the end, at the start, or
-- any run.
local function numbered(c, S)
   local row, number = {}, 0
   local where = c:pick { 'none', 'tail', 'head', 'runs' }
   while #row < S do
      local n = 1 + c:few(0, S - #row - 1)
      local pad = where == 'runs' and c:chance(0.3) or where == 'head' and #row == 0
         or where == 'tail' and #row + n >= S and #row > 0
      if not pad then number = number + 1 end
      for _ = 1, n do row[#row + 1] = pad and 0 or number end
   end
   return row
end

local function rows_of(c, B, S, fn)
   local rows = {}
   for b = 1, B do rows[b] = fn(c, S) end
   return rows
end

-- A mask that numbers documents, or knows tokens and padding alone.
local function mask(c, S)
   local row = numbered(c, S)
   local plain = not c:chance(0.5)
   for i = 1, S do row[i] = plain and math.min(row[i], 1) or row[i] end
   return row
end

-- Cumulative lengths of documents and of their slots; they may end before the row does.
local function lengths(c, S)
   local real, slot = { 0 }, { 0 }
   local tight = not c:chance(0.4)
   while slot[#slot] < S and #real < 6 do
      local n = c:int(0, S - slot[#slot])
      slot[#slot + 1] = slot[#slot] + n
      real[#real + 1] = real[#real] + (tight and n or c:int(0, n))
   end
   if not c:chance(0.3) then
      local n = S - slot[#slot]
      slot[#slot], real[#real] = S, real[#real] + (tight and n or 0)
      if #slot == 1 then slot, real = { 0, S }, { 0, S } end
   end
   return real, slot, tight
end

-- (document, position) pairs: positions count from 0 in each document, or are shuffled.
local function pairs_of(c, S)
   local row, count = numbered(c, S), {}
   local shuffled = c:chance(0.3)
   for i, number in ipairs(row) do
      count[number] = (count[number] or -1) + 1
      row[i] = { number - 1, shuffled and c:int(0, S - 1) or number > 0 and count[number] or 0 }
   end
   return row
end

-- Fields of a batch of B rows of S tokens: attention_mask, packed_seq_ids (rows of numbers),
-- padding_mask (rows of 0 and 1), index (rows of pairs, one row or B), cu_real and cu_slot.
function documents.make(c, B, S)
   local o = {}
   if c:chance(0.35) then o.attention_mask = rows_of(c, B, S, mask) end
   if c:chance(0.2) then o.packed_seq_ids = rows_of(c, B, S, numbered) end
   if c:chance(0.25) then
      o.padding_mask = rows_of(c, B, S, function()
         local row = numbered(c, S)
         for i = 1, S do row[i] = row[i] == 0 and 1 or 0 end
         return row
      end)
   end
   if c:chance(0.2) then o.index = rows_of(c, c:chance(0.5) and 1 or B, S, pairs_of) end
   if B == 1 and c:chance(0.4) then
      local tight
      o.cu_real, o.cu_slot, tight = lengths(c, S)
      if tight and not c:chance(0.3) then o.cu_slot = nil end
   end
   return o
end

-- ---- meaning ---------------------------------------------------------------------------------

-- Document of token s (from 0) as cumulative lengths have it: a number, 0 for padding, and whether
-- it lies behind the last slot.
local function in_slots(real, slot, s)
   for d = 1, #slot - 1 do
      if s >= slot[d] and s < slot[d + 1] then
         return s - slot[d] < real[d + 1] - real[d] and d or 0, false
      end
   end
   return 0, true
end

-- What each field says of token s of row b (from 0): { name = document or 0 }, its position, and
-- whether it lies behind the last document.
local function said_of(o, b, s)
   local said, behind = {}, false
   for _, name in ipairs { 'attention_mask', 'packed_seq_ids' } do
      if o[name] then said[name] = o[name][b + 1][s + 1] end
   end
   if o.padding_mask then said.padding_mask = 1 - o.padding_mask[b + 1][s + 1] end
   local position = s
   if o.index then
      local pair = (o.index[b + 1] or o.index[1])[s + 1]
      said.index, position = math.max(0, pair[1] + 1), pair[2]
   end
   if o.cu_real then
      said.cu, behind = in_slots(o.cu_real, o.cu_slot or o.cu_real, s)
   end
   return said, position, behind
end

-- Tokens of a batch: list over rows of lists over tokens { key, position, pad, behind, said }; two
-- tokens of a row see each other if their keys are equal, none sees padding.
function documents.tokens(o, B, S)
   local rows = {}
   for b = 0, B - 1 do
      rows[b + 1] = {}
      for s = 0, S - 1 do
         local said, position, behind = said_of(o, b, s)
         local words, pad = {}, false
         for _, name in ipairs { 'attention_mask', 'packed_seq_ids', 'padding_mask', 'index',
            'cu' } do
            words[#words + 1] = tostring(said[name])
            pad = pad or said[name] == 0
         end
         rows[b + 1][s + 1] = { key = table.concat(words, ' '), position = position, pad = pad,
            behind = behind, said = said }
      end
   end
   return rows
end

-- Whether two fields that number documents part the tokens differently; a mask of 1 and 0 beside
-- others says where padding is and no more.
function documents.conflict(o, tokens)
   local names, plain = {}, true
   for _, v in ipairs(values.flat(o.attention_mask or {})) do plain = plain and v <= 1 end
   for _, name in ipairs { 'index', 'packed_seq_ids', 'attention_mask', 'cu' } do
      local there = o[name == 'cu' and 'cu_real' or name]
      if there and not (name == 'attention_mask' and plain) then names[#names + 1] = name end
   end
   for i = 2, #names do
      for _, row in ipairs(tokens) do
         local there, back = {}, {}
         for _, t in ipairs(row) do
            local a, b = t.said[names[1]], t.said[names[i]]
            if not t.pad then
               if (there[a] or b) ~= b or (back[b] or a) ~= a then return true end
               there[a], back[b] = b, a
            end
         end
      end
   end
   return false
end

-- Whether a query sees a key, both as documents.tokens has them.
function documents.sees(q, k, causal, window)
   if q.pad or k.pad or q.key ~= k.key then return false end
   local back = q.position - k.position
   if causal and back < 0 then return false end
   if window then
      if window[1] >= 0 and back > window[1] then return false end
      if window[2] >= 0 and -back > window[2] then return false end
   end
   return true
end

return documents
