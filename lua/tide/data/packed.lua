-- Rows of whole documents: which documents make up which step, a pure function of (seed, position).
--
-- The documents of an epoch are visited in the order of a keyed permutation (see data.sampler) and
-- packed into rows of `seq` tokens: one after the other or, with fit = 'best', 512 at a time, the
-- longest first, each into the fullest row with room. A document longer than a row is cut into
-- pieces, each a document of its own to attention (or see the option `long`). Row k of the
-- endless list of rows belongs to step floor(k / batch), whatever the number of ranks, so a run
-- resumes on another mesh.
--
-- An image of a source lies whole in a piece, whatever is cut (see data.image_parts).
--
-- A batch is one stream [1, rows * seq]: ids, labels (-100 at the end of a document and in
-- padding), positions that restart in each document, index i32 [1, T, 2] of (document,
-- position), and cumulative lengths cu_real (tokens) and cu_slot (places), i32. On a GPU it has
-- counted, too: the places of the labels that count, i64. Its stamp says that these fields agree
-- (util.stamp), so a step does not read them back to compare or count.
--
-- Held-out documents are packed the same way, in their order (`held_out`), so a model is evaluated
-- as it is trained, whatever the mesh.

local tide = require 'tide'
local bins = require 'tide.util.bins'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local image_parts = require 'tide.data.image_parts'
local little = require 'tide.util.little'
local signature = require 'tide.util.signature'
local sampler = require 'tide.data.sampler'
local stamp = require 'tide.util.stamp'
local upload = require 'tide.util.upload'
require 'tide.data.tokens'              -- the kind 'source'

local packed = {}

-- ---- documents of a source -------------------------------------------------------------------

-- Returns cumulative lengths of the documents of a token source. Each document ends with the token
-- `eos`, which belongs to it.
function packed.boundaries(source, eos)
   local cu, at, width = { 0 }, 0, source.width
   while at < source.count do
      local n = math.min(2^18, source.count - at)
      local text = source:raw(at, n)
      for i = 0, n - 1 do
         if little.read(text, i * width + 1, width) == eos then cu[#cu + 1] = at + i + 1 end
      end
      at = at + n
   end
   if cu[#cu] < source.count then cu[#cu + 1] = source.count end
   return cu
end

-- ---- the sampler -----------------------------------------------------------------------------

local Packed = {}
Packed.__index = Packed
packed._Packed = Packed                   -- what data.preference derives from
Packed.ahead = true                       -- make reads data alone (see train.ahead)

local function check_cu(op, name, cu)
   if cu[1] ~= 0 then err.arg(op, name .. '[1]', '0', cu[1]) end
   for i = 2, #cu do err.integer(op, ('%s[%d]'):format(name, i), cu[i], cu[i - 1]) end
   if cu[#cu] == 0 then err.raise('E_ARG', op, 'the documents have no tokens') end
end

-- Refuses documents that are longer than a row.
local function check_long(op, cu, seq, together)
   local count, most = 0, 0
   for i = together + 1, #cu, together do
      local n = cu[i] - cu[i - together]
      count, most = count + (n > seq and 1 or 0), math.max(most, n)
   end
   if count == 0 then return end
   local one = together == 1
   err.raise('E_ARG', op, '%d of %d %s are longer than seq (%d tokens), the longest has %d; give a '
      .. 'larger seq, or long = %s', count, (#cu - 1) / together, one and 'documents'
      or ('groups of %d documents'):format(together), seq, most, one and "'split' or 'cut'"
      or "'cut'")
end

local function check_together(op, self)
   local k = self.together
   if k == 1 then return end
   err.raise_if(self.long == 'split', 'E_ARG', op, "documents that share a row (together = %d) are "
      .. "not split; give long = 'cut' or 'refuse'", k)
   err.raise_if(self.seq < k * self.unit, 'E_ARG', op, 'seq (%d) has no room for %d documents',
      self.seq, k)
   for _, name in ipairs { 'cu', 'val_cu' } do
      local n = self[name] and #self[name] - 1 or 0
      err.raise_if(n % k ~= 0, 'E_ARG', op, '%s has %d documents, which is no multiple of together '
         .. '(%d)', name, n, k)
   end
end

-- Makes a sampler of rows at the beginning of its order.
function packed.new(opts)
   local op, self = 'data.packed.new', setmetatable(opts, Packed)
   self.epoch, self.row, self.unit = 0, 0, self.cp > 1 and 2 * self.cp or 1
   check_cu(op, 'cu', self.cu)
   if self.val_cu then check_cu(op, 'val_cu', self.val_cu) end
   for _, cu in ipairs(self.long == 'refuse' and { self.cu, self.val_cu } or {}) do
      check_long(op, cu, self.seq, self.together)
   end
   check_together(op, self)
   for _, source in ipairs { self.source, self.val_source } do
      image_parts._check_fit(op, source.images, self.seq)
   end
   err.raise_if(self.seq % self.unit ~= 0, 'E_ARG', op, 'seq (%d) must be a multiple of %d, to be '
      .. 'cut over %d ranks', self.seq, self.unit, self.cp)
   return self
end

-- Returns whether a label of a piece counts; true without a source, or of one without a mask.
local function is_trained(source, at, n, goes_on)
   local mask = source and source.mask and source:mask(at, goes_on and n + 1 or n)
   return not mask or mask:find('\1', 2, true) ~= nil
end

-- Returns the pieces { start, length, goes_on, slot } of the documents. order(k): the document
-- (from 0) at place k (from 0). source: of the documents, or nil; its pieces without a label that
-- counts are left out.
local function pieces_of(self, cu, order, source)
   local list, seq, unit, images = {}, self.seq, self.unit, source and source.images
   for k = 0, #cu - 2 do
      local d = order(k) + 1
      local at, stop = cu[d], cu[d + 1]
      while at < stop do
         local n = math.min(seq, stop - at)
         if images and at + n < stop then n = image_parts._break(images, at + n) - at end
         local goes_on = at + n < stop
         if is_trained(source, at, n, goes_on) then
            list[#list + 1] = { at, n, goes_on, math.ceil(n / unit) * unit }
         end
         at = self.long == 'cut' and stop or at + n
      end
   end
   return list
end

-- Returns the pieces of the documents first .. first + together - 1 that have a label that counts,
-- and the places they take. In a group longer than a row each document keeps seq / together tokens.
local function members_from(self, cu, first, source)
   local unit, list, slot, most = self.unit, {}, 0, math.huge
   local images = source and source.images
   local function rounded(n) return math.ceil(n / unit) * unit end
   for d = first, first + self.together - 1 do slot = slot + rounded(cu[d + 1] - cu[d]) end
   if slot > self.seq then most = math.floor(self.seq / self.together / unit) * unit end
   slot = 0
   for d = first, first + self.together - 1 do
      local at, n = cu[d], math.min(most, cu[d + 1] - cu[d])
      if images and at + n < cu[d + 1] then n = image_parts._break(images, at + n) - at end
      if is_trained(source, at, n, false) then
         list[#list + 1] = { at, n, false, rounded(n) }
         slot = slot + rounded(n)
      end
   end
   return list, slot
end

-- Returns the pieces { start, places, false, places, members } of groups of documents that share a
-- row. A group with a document without a label that counts is left out.
local function groups_of(self, cu, order, source)
   local list, k = {}, self.together
   for g = 0, (#cu - 1) / k - 1 do
      local first = order(g) * k + 1
      local members, slot = members_from(self, cu, first, source)
      if #members == k then list[#list + 1] = { cu[first], slot, false, slot, members } end
   end
   return list
end

-- Splits the groups in rows into their pieces again.
local function members_of(rows)
   local list = {}
   for r, row in ipairs(rows) do
      list[r] = {}
      for _, piece in ipairs(row) do
         for _, member in ipairs(piece[5]) do table.insert(list[r], member) end
      end
   end
   return list
end

-- Rules: rows of pieces.
local rules = {}

-- Packs pieces one after the other.
function rules.next(pieces, seq)
   local rows, free = {}, 0
   for _, piece in ipairs(pieces) do
      if piece[4] > free then rows[#rows + 1], free = {}, seq end
      table.insert(rows[#rows], piece)
      free = free - piece[4]
   end
   return rows
end

-- Gives each piece a row of its own.
function rules.alone(pieces)
   local rows = {}
   for i, piece in ipairs(pieces) do rows[i] = { piece } end
   return rows
end

-- Returns the rows of n pieces after the first `before`, as lists of places in increasing order.
local function best_of(pieces, before, n, seq)
   local slots, order = {}, {}
   for i = 1, n do slots[i], order[i] = pieces[before + i][4], i end
   local rows = bins.fullest(slots, bins.longest_first(order, slots), seq)
   for _, row in ipairs(rows) do table.sort(row) end
   table.sort(rows, function(a, b) return a[1] < b[1] end)
   return rows
end

-- Pieces that are packed at a time.
local group = 512

-- Packs each piece into the fullest row with room; rows keep the order of their first pieces.
function rules.best(pieces, seq)
   local rows = {}
   for before = 0, #pieces - 1, group do
      for _, places in ipairs(best_of(pieces, before, math.min(group, #pieces - before), seq)) do
         local row = {}
         for i, place in ipairs(places) do row[i] = pieces[before + place] end
         rows[#rows + 1] = row
      end
   end
   return rows
end

local function lay_rows(self, cu, order, source)
   if self.together > 1 then
      return members_of(rules[self.fit](groups_of(self, cu, order, source), self.seq))
   end
   return rules[self.fit](pieces_of(self, cu, order, source), self.seq)
end

local function rows_of(self, epoch)
   local order = sampler.permutation((#self.cu - 1) / self.together, self.seed, epoch)
   local rows = lay_rows(self, self.cu, order, self.source)
   if #rows > 0 then return rows end
   err.raise('E_ARG', 'data.packed', 'no label of the documents counts within seq (%d tokens); '
      .. 'give a larger seq%s', self.seq, self.together == 1 and ", or long = 'split'" or '')
end

-- Returns all rows of the documents in their order, of those that are held out with is_val: each
-- document once, for what is computed before training.
function Packed:all(is_val)
   local cu, source = self.cu, self.source
   if is_val then cu, source = self.val_cu, self.val_source end
   if not cu then return {} end
   return lay_rows(self, cu, function(k) return k end, source)
end

-- Returns the rows of the documents held out (val_cu), in their order: at most `limit`, evenly
-- spaced.
function Packed:held_out(limit)
   err.raise_if(not self.val_cu, 'E_STATE', 'data.packed.held_out', 'the sampler has no '
      .. 'documents of the validation data; give it val_cu, their cumulative lengths')
   local rows, list = self:all(true), {}
   local take = math.min(#rows, limit)
   for i = 1, take do list[i] = rows[math.floor((i - 1) * #rows / take) + 1] end
   return list
end

-- Returns the number of rows of the first pass through the data; further ones may differ by a few.
function Packed:rows_per_epoch()
   if not self.first_rows then self.first_rows = #rows_of(self, 0) end
   return self.first_rows
end

-- Returns the row after the last one given out.
local function take(self)
   if self.rows_epoch ~= self.epoch then
      self.rows, self.rows_epoch = rows_of(self, self.epoch), self.epoch
   end
   self.row = self.row + 1
   local row = self.rows[self.row]
   if self.row == #self.rows then self.epoch, self.row = self.epoch + 1, 0 end
   return row
end

-- Returns this rank's rows of the next global batch.
function Packed:next()
   local per_rank, mine = self.batch / self.size, {}
   for i = 0, self.batch - 1 do
      local row = take(self)
      if math.floor(i / per_rank) == self.rank then mine[#mine + 1] = row end
   end
   return mine
end

-- Returns the rows as a batch on a device. same_rows: ranks that make the same one.
function Packed:make(source, rows, device, same_rows)
   return packed.make(source, rows, self.seq, { device = device, same_rows = same_rows })
end

-- Returns the passes through the data so far.
function Packed:epochs()
   if self.row == 0 then return self.epoch end
   return self.epoch + self.row / #self.rows
end

-- Returns the state that restore needs to continue from here: plain data.
function Packed:state()
   return { seed = self.seed, epoch = self.epoch, row = self.row, seq = self.seq, unit = self.unit,
      documents = #self.cu - 1, tokens = self.cu[#self.cu], fit = self.fit, long = self.long,
      masked = self.source ~= nil, together = self.together }
end

-- The options of states of earlier versions, which do not store them.
local before = { fit = 'next', long = 'split', masked = false, together = 1 }

-- Continues where a state was taken; the global batch and the number of ranks may differ.
function Packed:restore(state)
   local op = 'data.packed.restore'
   sampler._check_state(op, { 'seed', 'seq', 'unit', 'documents', 'tokens', 'fit', 'long', 'masked',
      'together' }, state, self:state(), before)
   local epoch = err.integer(op, 'epoch', state.epoch, 0)
   local rows = self.rows_epoch == epoch and self.rows or rows_of(self, epoch)
   self.row = err.integer(op, 'row', state.row, 0, #rows - 1)
   self.epoch, self.rows, self.rows_epoch = epoch, rows, epoch
end

-- ---- batches ---------------------------------------------------------------------------------

-- Fills the lists from place `at` with one piece in its slot. lists.counted gets the places of the
-- labels that count, from 0.
local function put_piece(lists, source, piece, at, slot, pad)
   local start, n, goes_on = piece[1], piece[2], piece[3]
   local seen = goes_on and n + 1 or n
   local text, width = source:raw(start, seen), source.width
   local mask, counted = source.mask and source:mask(start, seen), lists.counted
   for i = 1, slot do
      local id, label = pad, -100
      if i <= n then
         id = little.read(text, (i - 1) * width + 1, width)
         if (i < n or goes_on) and not (mask and mask:byte(i + 1) == 0) then
            label = little.read(text, i * width + 1, width)
            counted[#counted + 1] = at + i - 1
         end
      end
      lists.ids[at + i], lists.labels[at + i], lists.positions[at + i] = id, label, i - 1
   end
end

local is_count = err.is_count

local function check_rows(op, rows)
   if #rows == 0 then err.arg_text(op, 'rows', 'at least one row', 'none') end
   for r, row in ipairs(rows) do
      for _, piece in ipairs(err.type(op, ('rows[%d]'):format(r), row, 'table')) do
         local start, n, goes_on, slot = unpack(type(piece) == 'table' and piece or {}, 1, 4)
         if not (is_count(start) and is_count(n) and type(goes_on) == 'boolean'
            and is_count(slot) and n <= slot) then
            err.arg(op, ('rows[%d]'):format(r), 'a row that next() of a sampler gave', row)
         end
      end
   end
end

-- Adds to a batch the images of rows, and what their model reads off whole rows: positions in the
-- place of those of a text, and the feature of each token. ids: a list; index: on the host, where
-- grids stay.
local function add_images(batch, images, rows, ids, index, opts)
   local fields = image_parts._fields(images, rows, opts.same_rows)
   if not fields then return end
   fields.ids = tide.tensor({ ids }, { dtype = 'i64', device = 'cpu' })
   fields = image_parts._placed(images, fields, index)
   fields.ids = nil
   for name, t in each(fields) do
      local here = name == 'image_grid_thw' and 'cpu' or opts.device
      batch[name] = upload(function(where) return t:to(where or 'cpu') end, here)
   end
end

-- Returns the rows of a sampler as tensors of one stream. Cumulative lengths stay on the host: it
-- reads them without waiting for a device. Beside the tensors: count, the number of labels that
-- count; of rows with images those of a call of their model.
function packed.make(source, rows, seq, opts)
   check_rows('data.packed.make', rows)
   local lists, at = { ids = {}, labels = {}, positions = {}, counted = {} }, 0
   local real, slots = { 0 }, { 0 }
   for r, row in ipairs(rows) do
      for i, piece in ipairs(row) do
         local slot = i == #row and r * seq - at or piece[4]      -- the last takes what is left
         put_piece(lists, source, piece, at, slot, opts.pad)
         at = at + slot
         real[#real + 1], slots[#slots + 1] = real[#real] + piece[2], at
      end
   end
   local out = { count = #lists.counted }
   local function tensor_of(list, dtype)
      return upload(function(here)
         return tide.tensor(list, { dtype = dtype, device = here })
      end, opts.device)
   end
   for _, name in ipairs { 'ids', 'labels', 'positions' } do
      out[name] = tensor_of({ lists[name] }, 'i64')
   end
   local host = { dtype = 'i32', device = 'cpu' }
   out.cu_real, out.cu_slot = tide.tensor(real, host), tide.tensor(slots, host)
   local index = tide.slot_index(out.cu_slot, out.cu_real, at)
   out.index = upload(function(here) return index:to(here or 'cpu') end, opts.device)
   if out.count > 0 and out.labels.device ~= 'cpu' then
      out.counted = tensor_of(lists.counted, 'i64')
   end
   if source.images then
      add_images(out, source.images, rows, lists.ids, index, opts)
   end
   out.stamp = stamp.of(out, { 'index', 'cu_real', 'cu_slot', 'labels', 'counted' })
   return out
end

-- Returns the grids { frames, rows, columns } of the images of rows of a sampler, and in the field
-- patches how many patches they have together.
function packed.images(source, rows)
   check_rows('data.packed.images', rows)
   local list = source.images and image_parts._of_rows(source.images, rows) or {}
   local out = { patches = image_parts._patches(list) }
   for i, e in ipairs(list) do out[i] = e.grid end
   return out
end

-- Options of a sampler of documents and of samplers derived from it.
packed.options = {
   'cu: table -- cumulative lengths of the documents',
   'val_cu: table? -- cumulative lengths of the documents that are held out',
   'seq: integer >= 1 -- tokens of a row',
   'batch: integer >= 1 -- rows of a step, over all ranks',
   sampler.options,
   'cp: integer >= 1 = 1 -- ranks that a row will be cut over; slots are multiples of 2 cp',
   "fit: 'next' | 'best' | 'alone' = 'next' -- the row of a document: the last one, the fullest "
      .. 'that has room, or one of its own',
   "long: 'split' | 'cut' | 'refuse' = 'split' -- documents longer than a row: in pieces, their "
      .. 'beginning, or an error',
   'together: integer >= 1 = 1 -- consecutive documents that share a row, cut to its '
      .. 'length: 2 for pairs of answers',
   'source: source? -- tokens of the documents; pieces without a label are left out',
   'val_source: source? -- tokens of the documents that are held out',
}

signature.doors('data.packed', Packed, {
   held_out = 'limit: integer >= 1', all = 'is_val: boolean?', restore = 'state: table',
})
return signature.doors('data.packed', packed, {
   boundaries = 'source: source; eos: integer >= 0',
   new = { opts = packed.options },
   images = 'source: source; rows: table',
   make = { 'source: source; rows: table; seq: integer >= 1', opts = {
      'pad: integer >= 0 = 0 -- token id of padding',
      'device: string? -- device of the tensors',
      'same_rows: comm? -- ranks that make the same batch now: each image is decoded on one of '
         .. 'them, and the call is collective' } },
})
