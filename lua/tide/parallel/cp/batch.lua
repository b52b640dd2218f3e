-- Batches for context parallelism: every tensor with a value a token is cut by one plan.
--
-- A table says for each field which dim counts tokens and what its padding is. A tensor of another
-- name with a dim of S tokens is an error, so nothing is left whole by oversight. documents.lua
-- says which tokens see each other; packed streams are in names/stream.lua. Batches are never
-- changed: a new table is returned.
--
-- Legend: B rows of S tokens, W ranks.

local tide = require 'tide'
local each = require 'tide.util.each'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local cp = require 'tide.parallel.cp'
local cp_map = require 'tide.parallel.cp.map'
local documents = require 'tide.parallel.cp.documents'
local image_fields = require 'tide.nn.image_fields'
local in_documents = require('tide.nn.context')._in_documents
local mask_ = require 'tide.nn.mask'

local batch_ = {}

-- Names of the tokens themselves; a batch has exactly one of them.
local primary = { 'input_ids', 'inputs_embeds', 'ids', 'embeds' }

-- dim that counts tokens (from the end: -1 is the last) and the value of padding; 'pad' is
-- padding_token_id, 'next' continues to count.
batch_.fields = {
   input_ids = { dim = 2, fill = 'pad' }, ids = { dim = 2, fill = 'pad' },
   inputs_embeds = { dim = 2, fill = 0 }, embeds = { dim = 2, fill = 0 },
   labels = { dim = 2, fill = -100 }, loss_mask = { dim = 2, fill = 0 },
   position_ids = { dim = -1, fill = 0 }, positions = { dim = -1, fill = 0 },
   padding_mask = { dim = 2, fill = true }, index = { dim = 2, fill = -1 },
   token_type_ids = { dim = 2, fill = 0 }, mm_token_type_ids = { dim = 2, fill = 0 },
   per_layer_inputs = { dim = 2, fill = 0 }, packed_seq_ids = { dim = 2, fill = 0 },
   answers = { dim = 2, fill = 0 }, teacher_ids = { dim = 2, fill = 0 },
   teacher_logp = { dim = 2, fill = 0 }, feature_rows = { dim = 2, fill = -1 },
}
-- Fields that the context replaces: the result leaves them out.
local masks = { attention_mask = true }

-- ---- positions -------------------------------------------------------------------------------

-- Gives a batch without position_ids the positions 0 .. S - 1, i64 [1, S]; one that has them stays
-- untouched, since packed rows count from 0 in each document. Changes and returns the batch.
function batch_.build_position_ids(batch)
   if batch.position_ids ~= nil then return batch end
   local ids = signature.check('parallel.cp.build_position_ids', 'input_ids', batch.input_ids,
      'tensor [B, S]')
   local S = ids:size(2)
   batch.position_ids = tide.arange(S, { dtype = 'i64', device = ids.device }):reshape { 1, S }
   return batch
end

-- Returns the name, tensor, B and S of the tokens.
local function primary_of(op, batch)
   local name
   for _, n in ipairs(primary) do
      if batch[n] ~= nil then
         err.raise_if(name, 'E_ARG', op, 'a batch must have exactly one of input_ids and '
            .. 'inputs_embeds, this one has %s and %s', name, n)
         name = n
      end
   end
   err.raise_if(not name, 'E_ARG', op, 'a batch must have exactly one of input_ids and '
      .. 'inputs_embeds, this one has neither')
   local t = signature.check(op, name, batch[name],
      name:find 'embeds' and 'tensor [B, S, width]' or 'tensor [B, S]')
   return name, t, t:size(1), t:size(2)
end

-- Returns the positions of a batch that gives none, i64 [B or 1, S]: those that order its
-- documents, which the context gives, too; else the places in the row.
local function default_positions(said, S, device)
   if not said.index and not said.cu_real then
      return tide.arange(S, { dtype = 'i64', device = device }):reshape { 1, S }
   end
   return in_documents(said.index or documents.cu_index(said.cu_real, said.cu_slot, S, device))
end

-- Adds positions for every row: one given row repeats for all, three-row ones stay as they are, and
-- the default ones are used if there are no others.
local function with_positions(op, out, said, name, t, B, S)
   local key = (name == 'ids' or name == 'embeds') and 'positions' or 'position_ids'
   if out.positions ~= nil then key = 'positions' end
   if out.position_ids ~= nil then key = 'position_ids' end
   local p = out[key]
   if p == nil then p = default_positions(said, S, t.device) end
   signature.check(op, key, p, 'tensor [B or 1, S] or [n, B or 1, S]', { B = B, S = S })
   if p.ndim == 2 and p:size(1) == 1 then p = p:expand(B, S):contiguous() end
   out[key] = p
end

-- Returns (document, position) pairs i32 [B, S, 2] of a mask [B, S] that numbers documents from 1
-- (0 or false: padding). Positions are those in the row, which orders tokens inside a document as
-- well.
function batch_.document_index_of(mask)
   return mask_.index('parallel.cp.document_index_of', 'mask', mask)
end

-- ---- cutting ---------------------------------------------------------------------------------

-- Returns a dim of v that has as many places as a row has tokens. Dims of 1 mean nothing, so rows
-- of one token are known by [B, 1, ..] alone.
local function token_dim(v, B, S)
   if S == 1 then
      local has = v.ndim >= 2 and v:size(2) == 1 and (v:size(1) == B or v:size(1) == 1)
      return has and 2 or nil
   end
   for d = 1, v.ndim do
      if v:size(d) == S then return d end
   end
end

-- Returns how to cut a field; nil: it stays whole.
local function field_of(op, fields, name, v, B, S)
   local row = fields and fields[name]
   if row == false or row == nil and image_fields.is[name] then return nil end
   row = row or batch_.fields[name]
   if not tide.is_tensor(v) then
      if row and v ~= false then err.arg(op, name, 'a tensor with a value for each token', v) end
      return nil
   end
   local dim = row and (row.dim or 2) or token_dim(v, B, S)
   if row and (math.abs(dim) > v.ndim or v:size(dim) ~= S) then
      err.raise('E_ARG', op, "field '%s': expected %d tokens in dim %d, got %s", name, S, dim,
         err.show(v))
   elseif dim and not row then
      err.raise('E_ARG', op, "'%s' looks like a value for each token (dim %d has %d values), and "
         .. 'fields does not say how to split it; give fields = { %s = { dim = %d, fill = 0 } }, '
         .. 'or false to leave it whole', name, dim, S, name, dim)
   end
   return row
end

-- Returns this rank's part of v; padding at the end continues to count from its last value.
local function counted_on(plan, v, dim)
   local n = plan.padded - plan.length
   if n == 0 or plan.length == 0 or plan.from then return plan:shard(v, dim, 0) end
   local shape = {}
   for d = 1, v.ndim do shape[d] = d == dim and n or 1 end
   local more = (tide.arange(n, { dtype = v.dtype, device = v.device }) + 1):reshape(shape)
   local whole = tide.cat({ v, v:narrow(dim, -1, 1) + more }, dim)
   return whole:index_select(dim, plan:index('i64', v.device))
end

local function cut(plan, v, row, pad)
   local dim = (row.dim or 2) % (v.ndim + 1)
   if row.fill == 'next' then return counted_on(plan, v, dim) end
   return plan:shard(v, dim, row.fill == 'pad' and pad or row.fill)
end

-- Returns a new table in which every field with a value a token is this rank's part.
local function cut_all(op, plan, batch, fields, pad, B, S)
   local out = {}
   for name, v in each(batch) do
      if not masks[name] then
         local row = field_of(op, fields, name, v, B, S)
         out[name] = row and cut(plan, v, row, pad) or v
      end
   end
   return out
end

-- Returns a copy of a batch, checked: labels, loss mask and positions are there and fit; what
-- documents and padding say of other fields is done. Returns the copy, what documents.of says, B
-- and S.
local function begin(op, batch, loss_mask)
   local out = copy(batch)
   local name, t, B, S = primary_of(op, out)
   documents.check_rows(op, out)
   if loss_mask ~= nil then out.loss_mask = loss_mask end
   signature.check(op, 'labels', out.labels, 'tensor [B, S]', { B = B, S = S })
   signature.check(op, 'loss_mask', out.loss_mask, 'tensor [B, S]?', { B = B, S = S })
   local said = documents.of(op, out, B, S, t.device)
   documents.settle(said, out)
   out.cu_real, out.cu_slot, out.counted = nil, nil, nil
   with_positions(op, out, said, name, t, B, S)
   return out, said, B, S
end

-- ---- a step's batch --------------------------------------------------------------------------

-- Raises unless each of the caller's fields says how it is padded.
local function check_fields(op, fields)
   for name, row in each(fields or {}) do
      if row ~= false then
         signature.check(op, 'fields.' .. tostring(name), row, 'cut_field')
         err.options(op, row, { 'dim', 'fill' })
      end
   end
end

-- Returns whether the rows of a batch are whole documents without padding, seen as the layers have
-- it: on one rank there is nothing to do then.
local function is_plain(batch, opts)
   for _, name in ipairs(documents.fields) do
      if batch[name] ~= nil then return false end
   end
   return opts.loss_mask == nil and opts.window == nil and opts.causal ~= false
end

-- Returns the context of a step and this rank's part of its batch. mesh: a mesh with an axis 'cp',
-- the axis itself, or nil. batch: input_ids [B, S] (or ids) or inputs_embeds [B, S, H] (or embeds),
-- labels, and what else there is for each token; documents as index [B or 1, S, 2], packed_seq_ids
-- [B, S], cu_real and cu_slot (one row), or a mask [B, S] (attention_mask; padding_mask: true at
-- padding). Without context parallelism: the same, with a context of one rank, which models take
-- without being attached; cp.null and the very same batch where each row is one document, seen as
-- the layers have it. A batch with make_cp_batch_fn (or _cp_make_batch_fn) is cut by that function:
-- fn(cp_axis, tp_axis, batch, { loss_mask, padding_token_id }) returns what this does.
function batch_.make_cp_batch_and_ctx(mesh, batch, opts)
   local op = 'parallel.cp.make_cp_batch_and_ctx'
   local pad = opts.padding_token_id
   check_fields(op, opts.fields)
   local axis, tp = cp.axis_of(op, mesh, 'cp'), cp.axis_of(op, mesh, 'tp')
   local own = batch.make_cp_batch_fn or batch._cp_make_batch_fn
   if own then
      err.type(op, 'make_cp_batch_fn', own, 'function')
      local rest = copy(batch)
      rest.make_cp_batch_fn, rest._cp_make_batch_fn = nil, nil
      return own(axis, tp, rest, { loss_mask = opts.loss_mask, padding_token_id = pad })
   end
   if opts.use_te then
      local out = cp.make_cp_batch_for_te(axis, batch, { padding_token_id = pad,
         num_chunks = opts.num_chunks, seq_lens_padding_value = opts.seq_lens_padding_value,
         method = opts.method, fields = opts.fields })
      return out.context or cp.null, out
   end
   documents.check_rows(op, batch)
   if (not axis or axis.size <= 1) and is_plain(batch, opts) then return cp.null, batch end
   local out, said, B, S = begin(op, batch, opts.loss_mask)
   local plan = cp_map.new { kind = opts.kind, axis = axis, length = S,
      cu_real = said.cu_real, cu_slot = said.cu_slot, multiple = opts.multiple, tp = opts.tp,
      block = opts.block, mask = opts.mask }
   local context = cp.context { map = plan, method = opts.method, inner = opts.inner,
      outer = opts.outer, window = opts.window, causal = opts.causal, index = said.index }
   return context, cut_all(op, plan, out, opts.fields, pad, B, S)
end

-- Adds packed_seq_ids [B, S], i64, to a batch without them: its documents, numbered from 1; 0 is
-- padding.
local function number_documents(out, said, B, S, device)
   if out.packed_seq_ids ~= nil then return end
   local index = said.index or said.cu_real
      and documents.cu_index(said.cu_real, said.cu_slot, S, device)
   local doc = index and index:select(3, 1):to 'i64' + 1
      or tide.ones({ 1, S }, { dtype = 'i64', device = device })
   out.packed_seq_ids = doc:expand(B, S):contiguous()
end

-- Returns a make_cp_batch_fn for models that need contiguous shards. Batches are padded to
-- W * max(pad_multiple, 2), positions that continue to count in padding, documents numbered in
-- packed_seq_ids (made where a batch has none).
function batch_.contiguous_batch(opts)
   local op = 'parallel.cp.contiguous_batch'
   local multiple = math.max(opts.pad_multiple, 2)
   return function(axis, _, batch, more)
      local out, said, B, S = begin(op, batch, more and more.loss_mask)
      number_documents(out, said, B, S, out.labels.device)
      axis = axis or { size = 1, rank = 0 }
      local plan = cp_map.new { kind = 'contiguous', axis = axis, length = S,
         multiple = axis.size * multiple, cu_real = said.cu_real, cu_slot = said.cu_slot }
      local counting = { dim = -1, fill = 'next' }
      local fields = copy(opts.fields or {}, { position_ids = counting, positions = counting })
      local context = cp.context { map = plan, method = opts.method, index = said.index }
      return context, cut_all(op, plan, out, fields, more and more.padding_token_id or 0, B, S)
   end
end

signature.record('cut_field', 'a table { dim =, fill = }', { 'fill: any -- a value for padding',
   'where fill ~= nil -- fill: expected a value for padding, got nil' })
return signature.doors('parallel.cp', batch_, {
   build_position_ids = 'batch: table',
   make_cp_batch_and_ctx = { 'batch: table', opts = {
      'loss_mask: any?', 'padding_token_id: integer = 0',
      'use_te: any? -- a packed stream, see make_cp_batch_for_te', 'num_chunks: any?',
      'seq_lens_padding_value: any?', 'fields: table? -- { name = { dim =, fill = } | false }',
      "kind: any = 'zigzag' -- layout, rules and mask as of tide.parallel.cp_map",
      'multiple: any?', 'tp: any?', 'block: any?', 'mask: any?',
      'method: any? -- this and the next are options of tide.parallel.cp.context',
      'inner: any?',
      'outer: any?', 'window: any?', 'causal: any?' } },
   contiguous_batch = { opts = {
      'pad_multiple: integer >= 1 = 1 -- tokens of a rank are a multiple of it',
      "method: any = 'allgather' -- as of tide.parallel.cp.context",
      'fields: table? -- { name = { dim =, fill = } | false }' } },
})
