-- Packed streams over ranks: rows with several documents as one stream, cut document by document;
-- the entry points that use TransformerEngine's names.
--
-- Slots are padded inside the plan to a multiple of 2 W. What the stream says of its
-- documents follows the rule of documents.lua, as for rows.
--
-- Legend: T tokens of a stream, W ranks.

local tide = require 'tide'
local copy = require 'tide.util.copy'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local cp = require 'tide.parallel.cp'
local signature = require 'tide.util.signature'
local cp_map = require 'tide.parallel.cp.map'
local documents = require 'tide.parallel.cp.documents'
local stack = require 'tide.parallel.cp.stack'
local thd = require 'tide.parallel.names.thd'

local stream = {}

-- Value of padding of the fields of a stream.
local fills = {
   input_ids = 'pad', labels = -100, position_ids = 0, loss_mask = 0, packed_seq_ids = 0,
}
-- Fields that say how the stream lies: those of a rank's part are taken from the plan.
local layout = {
   cu_seqlens_padded = true, cu_seqlens = true, cu_real = true, cu_slot = true, index = true,
   gapless = true, max_seqlen = true, padding_mask = true, attention_mask = true, order = true,
}

-- ---- documents of a stream -------------------------------------------------------------------

-- Returns cumulative lengths without sentinels.
local function lengths_of(op, name, v, sentinel)
   if tide.is_tensor(v) then v = v:tolist() end
   if type(v) ~= 'table' then err.arg(op, name, 'a list of numbers or a tensor of one dim', v) end
   return cp_map.cu(op, name, stack.before(op, name, v, sentinel))
end

local function lists_of(op, batch, sentinel)
   local real, slot = 'cu_seqlens', 'cu_seqlens_padded'
   if batch.cu_real ~= nil and batch.cu_slot ~= nil then real, slot = 'cu_real', 'cu_slot' end
   err.raise_if(not batch[real], 'E_ARG', op, 'cu_seqlens is missing: the batch is not packed '
      .. '(BSHD format is not supported here)')
   local list = lengths_of(op, real, batch[real], sentinel)
   if batch[slot] == nil then return list, list end
   return list, lengths_of(op, slot, batch[slot], sentinel)
end

-- Returns a field [T, ..] or [1, T, ..] as one row; nil if it is missing.
local function as_row(t, ndim)
   return tide.is_tensor(t) and t.ndim == ndim and t:unsqueeze(1) or t
end

-- Returns what the fields of a stream say of its T tokens; see documents.of. own: thd made the
-- stream, so its masks and lengths agree.
local function documents_of(op, batch, T, opts, own)
   local real, slot = lists_of(op, batch, opts.seq_lens_padding_value)
   local fields = { cu_real = real, cu_slot = slot }
   local given = { index = 2, packed_seq_ids = 1, attention_mask = 1, padding_mask = 1 }
   for name, ndim in each(own and {} or given) do fields[name] = as_row(batch[name], ndim) end
   return documents.of(op, fields, 1, T, batch.input_ids.device)
end

-- ---- one stream ------------------------------------------------------------------------------

local function i32(list) return tide.tensor(list, { dtype = 'i32' }) end

local function put_documents(out, context, device)
   local plan, per, most = context.map, {}, 0
   for i, n in ipairs(plan.cu_slot) do
      per[i] = n / plan.size
      if i > 1 then most = math.max(most, n - plan.cu_slot[i - 1]) end
   end
   out.cu_seqlens, out.cu_slot, out.cu_real = i32(plan.cu_slot), i32(plan.cu_slot),
      i32(plan.cu_real)
   out.cu_local, out.max_seqlen = i32(per), most
   out.cp_size, out.cp_rank, out.qkv_format = plan.size, plan.rank, 'thd'
   out.index = context:q_index(device)
   out.padding_mask = out.index:select(3, 1):select(1, 1):lt(0)
end

-- Checks the tokens of a stream; returns how many there are.
local function tokens_of(op, batch)
   local ids = batch.input_ids
   local float = tide.is_tensor(ids) and ids.dtype:find 'f'
   err.arg_if(not tide.is_tensor(ids) or ids.ndim ~= (float and 2 or 1), op, 'input_ids',
      'a stream: ids [T] or embeddings [T, width] (make_cp_batch_for_te ' .. 'takes rows)', ids)
   return ids:size(1)
end

-- Returns the value of padding of a field; nil: the field stays whole.
local function fill_of(op, name, v, T, opts)
   local row = opts.fields and opts.fields[name]
   if not tide.is_tensor(v) or row == false then return nil end
   local fill = row and row.fill
   if fill == nil then fill = fills[name] end
   if fill ~= nil then return fill end
   for d = 1, T > 1 and v.ndim or 0 do
      err.raise_if(v:size(d) == T, 'E_ARG', op, "'%s' looks like a value for each token (dim %d "
         .. 'has %d places); give fields = { %s = { fill = 0 } } if its first dim counts tokens, '
         .. 'or false to leave it whole', name, d, T, name)
   end
end

local function shard(op, batch, axis, opts, own)
   local T, pad = tokens_of(op, batch), opts.padding_token_id
   local said = documents_of(op, batch, T, opts, own)
   local plan = cp_map.new { kind = 'document', axis = axis or nil, length = T,
      cu_real = said.cu_real, cu_slot = said.cu_slot }
   local whole, out = copy(batch), { order = batch.order }
   if said.pad then documents.fill(whole, said.pad:select(1, 1)) end
   for name, v in each(whole) do
      local fill = not layout[name] and fill_of(op, name, v, T, opts)
      if fill == 'pad' then fill = v.ndim == 1 and pad or 0 end
      if fill then
         out[name] = plan:shard(v, name == 'position_ids' and -1 or 1, fill)
      elseif not layout[name] then
         out[name] = v
      end
   end
   out.context = cp.context { map = plan, method = opts.method, index = said.index }
   put_documents(out, out.context, batch.input_ids.device)
   return out
end

-- Cuts a packed stream (a result of process_input_for_thd), every document head-tail. axis: of a
-- mesh, the mesh, a communicator, or nil for one rank. (The order of 0.1, batch before axis, is
-- taken, too.) Returns this rank's part as a new table: the tokens, labels (-100 in padding),
-- positions, cu_seqlens = cu_slot (slots, all ranks' tokens), cu_real, cu_local (this rank's),
-- max_seqlen (longest slot), padding_mask and index, cp_size, cp_rank, qkv_format, order (of the
-- whole stream, if it has one), and the context.
function stream.shard_thd_chunk(axis, batch, opts)
   local op = 'parallel.cp.shard_thd_chunk'
   if type(axis) == 'table' and axis.input_ids ~= nil then axis, batch = batch or nil, axis end
   signature.check(op, 'batch', batch, 'table')
   return shard(op, batch, cp.axis_of(op, axis or nil, 'cp'), opts)
end

-- ---- rows ------------------------------------------------------------------------------------

-- Adds the context to a stream that one rank has whole, and takes labels of padding out of
-- training.
local function keep_whole(op, batch, opts)
   local T = tokens_of(op, batch)
   local said = documents_of(op, batch, T, opts, true)
   if said.pad then documents.fill(batch, said.pad:select(1, 1)) end
   batch.context = cp.context { method = opts.method, index = said.index,
      map = cp_map.new { kind = 'document', length = T, cu_real = said.cu_real,
         cu_slot = said.cu_slot } }
end

-- Returns the rows with several documents (see process_input_for_thd) as a packed stream, this
-- rank's part of it. axis: of a mesh, or the mesh; nil or of one rank: the whole stream. num_chunks
-- > 1: groups of rows as streams of their own, in `chunks`; their tensors are stacked where they
-- are of one size, lists of cumulative lengths always (filled up with the sentinel), max_seqlen is
-- a list. Each stream has its context. Options as shard_thd_chunk.
function stream.make_cp_batch_for_te(axis, batch, opts)
   local op = 'parallel.cp.make_cp_batch_for_te'
   axis = cp.axis_of(op, axis, 'cp')
   local n = opts.num_chunks
   local packed = thd.split_batch_into_thd_chunks(batch, n, {
      padding_token_id = opts.padding_token_id,
      seq_lens_padding_value = opts.seq_lens_padding_value,
   })
   if not axis or axis.size <= 1 then
      packed.qkv_format = 'thd'
      for _, one in ipairs(packed.chunks or { packed }) do keep_whole(op, one, opts) end
      if packed.chunks then stack.tensors(packed, packed.chunks, { 'labels' }) end
      return packed
   end
   if n <= 1 then return shard(op, packed, axis, opts, true) end
   local out = { chunks = {}, cp_size = axis.size, cp_rank = axis.rank, qkv_format = 'thd' }
   for i, chunk in ipairs(packed.chunks) do out.chunks[i] = shard(op, chunk, axis, opts, true) end
   stack.tensors(out, out.chunks, { 'input_ids', 'labels', 'position_ids', 'padding_mask' })
   stack.lengths(out, out.chunks, opts.seq_lens_padding_value)
   stack.orders(out, out.chunks)
   return out
end

local options = { 'padding_token_id: integer = 0', 'num_chunks: integer = 1 -- groups of rows',
   'seq_lens_padding_value: integer < 0 = -1000', "qkv_format: 'thd' = 'thd'",
   'method: any? -- option of tide.parallel.cp.context',
   'fields: table? -- { name = { fill = } | false } for further tensors with a value a token' }
return signature.doors('parallel.cp', stream, {
   shard_thd_chunk = { opts = options }, make_cp_batch_for_te = { opts = options },
})
