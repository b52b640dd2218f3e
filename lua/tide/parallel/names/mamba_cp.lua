-- Mamba-2 with its sequence on several ranks.
--
--    local mamba = tide.parallel.mamba_cp.attach(model, mesh:axis 'cp')
--    model:loss(ids, labels, { context = context, count = count }):backward()
--    mamba:restore()
--
-- Two methods give what one rank would compute. `hidden` trades tokens for heads in the mixer (one
-- exchange there, one back); `state` leaves the tokens where they are and passes the state of the
-- recurrence. The bytes of `hidden` grow with the tokens, those of `state` do not, so the plan can
-- choose; see attach and price.
--
-- This file has the pieces of the first method under the names they have elsewhere, each by
-- itself, and MambaContextParallel, which makes one exchange with one index of them. All have
-- gradients; losses are sums over ranks. cu: cumulative lengths from 0, a list or tensor.
-- x [B, T, ...], packed also [T, ...].

local tide = require 'tide'
local class = require 'tide.class'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local agree = require 'tide.comm.agree'
local axis_of = require 'tide.parallel.axis_of'
local collective = require 'tide.parallel.collective_op'
local cp_map = require 'tide.parallel.cp.map'
local exchange = require 'tide.parallel.cp.exchange'
local fingerprint = require 'tide.parallel.fingerprint'
local signature = require 'tide.util.signature'
local split = require 'tide.parallel.mamba.split'
local zigzag = require 'tide.parallel.zigzag'

local mamba_cp = { split_heads = split.heads }

-- ---- exchanges -------------------------------------------------------------------------------

-- Returns the ranks of argument `comm` of op. Raises E_COMM on all of them unless they give tensors
-- of one shape, and E_SHAPE unless dim `cut` divides among them.
local function same_shape(op, x, axis, cut)
   local comm, W = axis_of(op, 'comm', axis)
   agree.once(comm, op, 'tensors', ('[%s] %s'):format(table.concat(x.shape, ', '), x.dtype))
   err.raise_if(x:size(cut) % W ~= 0, 'E_SHAPE', op, 'x: dim %d has %d elements, which do not '
      .. 'divide among %d ranks', cut, x:size(cut), W)
   return comm
end

-- Sends block j of dim 1 to rank j; its own derivative. x has the same shape on every rank.
function mamba_cp.all_to_all(x, comm)
   comm = same_shape('parallel.mamba_cp.all_to_all', x, comm, 1)
   return collective.all_to_all(x, comm, 1)
end

local function dims_of(op, x, batch_size)
   local rows = x.ndim == 3 and x:size(1) or 1
   err.arg_if(batch_size ~= nil and batch_size ~= rows, op, 'batch_size',
      ('%d, as x has'):format(rows), batch_size)
   return x.ndim - 1, x.ndim
end

-- Exchanges tokens for width: returns [B, W L, H / W] of x [B, L, H]. The result has the tokens of
-- all ranks, rank after rank, and a part of the width. x has the same shape on every rank.
function mamba_cp.all_to_all_cp2hp(x, comm, batch_size)
   local op = 'parallel.mamba_cp.all_to_all_cp2hp'
   local tokens, width = dims_of(op, x, batch_size)
   comm = same_shape(op, x, comm, width)
   return collective.all_to_all(x, comm, width, tokens)
end

-- Returns the inverse of all_to_all_cp2hp.
function mamba_cp.all_to_all_hp2cp(x, comm, batch_size)
   local op = 'parallel.mamba_cp.all_to_all_hp2cp'
   local tokens, width = dims_of(op, x, batch_size)
   comm = same_shape(op, x, comm, tokens)
   return collective.all_to_all(x, comm, tokens, width)
end

-- ---- orders of tokens ------------------------------------------------------------------------

-- Returns the numbers (from 0) of the 2 W chunks of a sequence, in rank order.
function mamba_cp.redo_order(W)
   local list = {}
   for r = 0, W - 1 do
      local runs = zigzag({ 0, 2 * W }, W, r)
      list[2 * r + 1], list[2 * r + 2] = runs[1], runs[3]
   end
   return list
end

-- Returns the places in rank order of the 2 W chunks of a sequence: the inverse of redo_order.
function mamba_cp.undo_order(W)
   local list = {}
   for place, k in ipairs(mamba_cp.redo_order(W)) do list[k + 1] = place - 1 end
   return list
end

local function i64(list) return tide.tensor(list, { dtype = 'i64', device = 'cpu' }) end

local function select(x, dim, index)
   return x:index_select(dim, x.device == 'cpu' and index or index:to(x.device))
end

local function runs_index(runs) return tide.run_index(i64(runs):reshape { #runs / 2, 2 }, 'i64') end

-- Returns cu as a list that covers `tokens`.
local function covered(op, name, cu, tokens)
   cu = cp_map.cu(op, name, cu)
   err.raise_if(cu[#cu] ~= tokens, 'E_ARG', op, "argument '%s' ends at %d, there are %d tokens: "
      .. 'give those after the last document a document of their own', name, cu[#cu], tokens)
   return cu
end

-- Cuts every document (the whole dim without cu) into #order equal chunks and moves chunk order[k]
-- to place k (from 0). Dim 2, with cu and x [T, ...] dim 1.
local function reorder(op, x, order, cu)
   local dim, n, runs = (cu and x.ndim < 3) and 1 or 2, #order, {}
   if x.ndim < dim then err.arg(op, 'x', ('at least %d dims'):format(dim), x) end
   cu = cu and covered(op, 'cu', cu, x:size(dim)) or { 0, x:size(dim) }
   for d = 1, #cu - 1 do
      local length = cu[d + 1] - cu[d]
      if length % n ~= 0 then
         err.raise('E_ARG', op, '%s has %d tokens, expected a multiple of %d',
            #cu > 2 and ('document %d'):format(d - 1) or 'the sequence', length, n)
      end
      for _, k in ipairs(order) do
         runs[#runs + 1] = cu[d] + k * length / n
         runs[#runs + 1] = length / n
      end
   end
   return select(x, dim, runs_index(runs))
end

-- Returns x with every document (without cu: the whole dim) in #order equal chunks: chunk order[k],
-- from 0, moves to place k. Dim 2, with cu and x [T, ...] dim 1.
function mamba_cp.reorder_chunks(x, order, cu)
   return reorder('parallel.mamba_cp.reorder_chunks', x, order, cu)
end

-- Moves tokens (of every document) from rank order, in which the balanced layout of attention
-- leaves them, into the order of the sequence.
function mamba_cp.undo_attention_load_balancing(x, W, cu)
   local op = 'parallel.mamba_cp.undo_attention_load_balancing'
   return reorder(op, x, mamba_cp.undo_order(W), cu)
end

-- Undoes undo_attention_load_balancing.
function mamba_cp.redo_attention_load_balancing(x, W, cu)
   local op = 'parallel.mamba_cp.redo_attention_load_balancing'
   return reorder(op, x, mamba_cp.redo_order(W), cu)
end

-- Returns the index [rows] of deinterleave_packed_seqs; cu_local in tokens of one rank.
function mamba_cp.deinterleave_index(cu_local, W, rows)
   local op, each, runs = 'parallel.mamba_cp.deinterleave_packed_seqs', rows / W, {}
   local cu = covered(op, 'cu_local', cu_local, each)
   for d = 1, #cu - 1 do
      for r = 0, W - 1 do
         runs[#runs + 1] = r * each + cu[d]
         runs[#runs + 1] = cu[d + 1] - cu[d]
      end
   end
   return runs_index(runs)
end

local function tokens_dim(x) return x.ndim < 3 and 1 or 2 end

-- Moves the parts of documents from rank order (each rank with its parts of all documents) into
-- document order (each document with the parts of all ranks).
function mamba_cp.deinterleave_packed_seqs(x, cu_local, W)
   local dim = tokens_dim(x)
   return select(x, dim, mamba_cp.deinterleave_index(cu_local, W, x:size(dim)))
end

-- Undoes deinterleave_packed_seqs.
function mamba_cp.reinterleave_packed_seqs(x, cu_local, W)
   local dim = tokens_dim(x)
   return select(x, dim, tide.inverse_index(mamba_cp.deinterleave_index(cu_local, W,
      x:size(dim))))
end

-- Returns the place in rank order of each token of the sequence, which undoes chunks and documents
-- at once. cu in tokens of all ranks.
function mamba_cp.pre_index(cu, W) return tide.zigzag_places(i64(cu), W, 'i64') end

-- ---- MambaContextParallel --------------------------------------------------------------------

local MambaContextParallel = class 'MambaContextParallel'
mamba_cp.MambaContextParallel = MambaContextParallel

local name = 'parallel.mamba_cp.MambaContextParallel'

-- Makes the parts of a Mamba layer on a rank of cp_group, a communicator or an axis. mixer: a layer
-- with conv1d, dt_bias, A_log and D, read at each call (may be nil where only tokens are
-- exchanged).
function MambaContextParallel:init(cp_group, num_heads, head_dim, n_groups, d_state, mixer)
   self.comm, self.cp_size, self.cp_rank = axis_of(name, 'cp_group', cp_group)
   self.num_heads, self.head_dim, self.n_groups = num_heads, head_dim, n_groups
   self.d_state, self.mixer = d_state, mixer
   local W, H, G = self.cp_size, num_heads, n_groups
   self.num_heads_local, self.group_repeat_count = H / W, G < W and W / G or 1
   self.n_groups_local = G < W and 1 or G / W
   self.d_inner, self.d_inner_local = H * head_dim, H / W * head_dim
   local s = { heads = num_heads, head_dim = head_dim, groups = n_groups, state = d_state }
   local go, back, P = {}, {}, self.d_inner_local
   for r, part in ipairs(split.heads(num_heads, n_groups, self.cp_size)) do
      go[r] = split.runs(part, s, self.d_inner, true)
      table.insert(go[r], 1, { (r - 1) * P, P })
      back[r] = { { (r - 1) * P, P } }
      if r == self.cp_rank + 1 then self.conv_runs = split.runs(part, s, 0) end
   end
   self.width = 2 * self.d_inner + 2 * n_groups * d_state + num_heads
   self.go, self.back = exchange.columns(go, self.width), exchange.columns(back, self.d_inner)
end

-- Returns the runs of every rank where each document is a zigzag of its own.
local function zigzag_runs(op, cu, W)
   local list = {}
   for d = 1, #cu - 1 do
      local length = cu[d + 1] - cu[d]
      err.raise_if(length % (2 * W) ~= 0, 'E_ARG', op, 'document %d has %d tokens, expected a '
         .. 'multiple of %d (2 W)', d - 1, length, 2 * W)
   end
   for r = 0, W - 1 do list[r + 1] = zigzag(cu, W, r) end
   return list
end

-- Returns whether what is kept was made for cumulative lengths `cu` and is still there (its index
-- may have been made in a step scope).
local function holds(kept, cu)
   return kept and dims.equal(kept.cu, cu) and not (kept.rows.order and kept.rows.order:is_gone())
end

-- Returns where the tokens of all ranks lie, kept for calls with equal lengths. They are compared
-- by value: the caller may write the next batch into the same list.
local function rows_for(self, op, cu, tokens)
   local list = cu and covered(op, 'cu', cu, tokens) or { 0, tokens }
   if holds(self.rows, list) then return self.rows.rows end
   err.raise_if(cu == nil and tokens % (2 * self.cp_size) ~= 0, 'E_ARG', op, 'the sequence has %d '
      .. 'tokens, expected a multiple of %d', tokens, 2 * self.cp_size)
   local rows = exchange.rows(zigzag_runs(op, list, self.cp_size))
   self.rows = { cu = dims.copy(list), rows = rows }
   return rows
end

-- Returns x, argument `what`, as [B, T, width], and whether it was [T, width].
local function batched(op, what, x, width)
   signature.check(op, what, x, ('tensor [batch, tokens, %d] or [tokens, %d]'):format(width, width))
   return x.ndim == 2 and x:reshape { 1, x:size(1), x:size(2) } or x, x.ndim == 2
end

-- Raises E_COMM on every rank unless all give tensors x of one shape, the same documents and the
-- same sizes of the layer.
local function check_agreed(self, op, x, cu)
   agree.once(self.comm, op, 'calls of the mixer', ('[%s] %s, %s, %d heads of %d, %d groups, '
      .. 'state %d'):format(table.concat(x.shape, ', '), x.dtype, cu and fingerprint.documents(
      cp_map.cu(op, 'cu', cu)) or 'not packed', self.num_heads, self.head_dim, self.n_groups,
      self.d_state))
end

local function as_given(y, flat) return flat and y:reshape { y:size(2), y:size(3) } or y end

-- Returns z, x, B, C, dt of this rank's heads and all tokens, [B, T, P'], in the order of the
-- sequence. projected [B, L, P]: those of this rank's tokens. cu in tokens of all ranks: packed,
-- [L, P] or [1, L, P]; every document a multiple of 2 W.
function MambaContextParallel:pre_conv_ssm(projected, cu)
   local op = name .. '.pre_conv_ssm'
   local x, flat = batched(op, 'projected', projected, self.width)
   if self.cp_size == 1 then return projected end
   check_agreed(self, op, x, cu)
   local rows = rows_for(self, op, cu, x:size(2) * self.cp_size)
   return as_given(exchange.enter(x, self.comm, self.go, rows), flat)
end

-- Undoes pre_conv_ssm for y [B, T, d_inner / W].
function MambaContextParallel:post_conv_ssm(y, cu)
   local op = name .. '.post_conv_ssm'
   local x, flat = batched(op, 'y', y, self.d_inner_local)
   if self.cp_size == 1 then return y end
   check_agreed(self, op, x, cu)
   local rows = rows_for(self, op, cu, x:size(2))
   return as_given(exchange.leave(x, self.comm, self.back, rows), flat)
end

-- ---- its parameters --------------------------------------------------------------------------

-- Returns the field of the mixer under a name.
local function of_mixer(self, field)
   local v = type(self.mixer) == 'table' and self.mixer[field] or nil
   err.raise_if(v == nil, 'E_ARG', name, "argument 'mixer': expected a layer with '%s'", field)
   return v
end

-- Returns this rank's channels of a parameter of the convolution, dim 1: a copy.
function MambaContextParallel:slice_conv_param(p)
   local list, channels = {}, self.d_inner + 2 * self.n_groups * self.d_state
   signature.check(name .. '.slice_conv_param', 'p', p, 'tensor [channels, ..]',
      { channels = channels })
   for i, run in ipairs(self.conv_runs) do list[i] = p:narrow(1, run[1] + 1, run[2]) end
   return tide.cat(list, 1)
end

-- Returns the part of a vector for this rank's heads: a view.
function MambaContextParallel:slice_vector_param(p)
   signature.check(name .. '.slice_vector_param', 'p', p, 'tensor [heads] or [channels]',
      { heads = self.num_heads, channels = self.d_inner })
   local n = p:numel() / self.cp_size
   return p:narrow(1, self.cp_rank * n + 1, n)
end

-- Returns [channels of this rank, K] of the weight [channels, 1, K].
function MambaContextParallel:get_conv1d_weight()
   local w = self:slice_conv_param(of_mixer(self, 'conv1d').weight)
   return w:reshape { w:size(1), w:size(w.ndim) }
end

-- Returns this rank's part of the convolution's bias, or nil without one.
function MambaContextParallel:get_conv1d_bias()
   local bias = of_mixer(self, 'conv1d').bias
   return bias and self:slice_conv_param(bias)
end

for _, field in ipairs { 'dt_bias', 'A_log', 'D' } do
   -- Returns this rank's part of the parameter of that name, or of p.
   MambaContextParallel['get_' .. field] = function(self, p)
      return self:slice_vector_param(p or of_mixer(self, field))
   end
end

-- Returns s [.., g n] with each group repeated, [.., g repeats n]: the copies of a group follow
-- each other.
function MambaContextParallel:repeat_group_state(s)
   if not tide.is_tensor(s) or s.ndim < 1 or s:size(s.ndim) % self.n_groups ~= 0 then
      err.arg(name .. '.repeat_group_state', 's', ('a tensor whose last dim holds %d groups')
         :format(self.n_groups), s)
   end
   if self.group_repeat_count == 1 then return s end
   local shape = s.shape
   local n = #shape
   shape[n], shape[n + 1] = self.n_groups, s:size(n) / self.n_groups
   local y = s:reshape(shape):repeat_interleave(self.group_repeat_count, n)
   shape[n], shape[n + 1] = s:size(n) * self.group_repeat_count, nil
   return y:reshape(shape)
end

for _, field in ipairs { 'attach', 'price', 'explain' } do
   -- Calls the function of this name in tide.parallel.mamba.attach, whose comment describes it: m =
   -- require 'tide.parallel.mamba.attach', then ?m.NAME.
   mamba_cp[field] = function(...) return require('tide.parallel.mamba.attach')[field](...) end
end

signature.doors(name, MambaContextParallel, { init = { op = name, {
   'cp_group: axis', 'num_heads: integer >= 1', 'head_dim: integer >= 1', 'n_groups: integer >= 1',
   'd_state: integer >= 1',
   'where num_heads % cp_group.size == 0 -- num_heads ({num_heads}) must be divisible by cp_size '
      .. '({cp_group.size}); attach splits them unevenly',
   'where n_groups % cp_group.size == 0 or cp_group.size % n_groups == 0 -- n_groups ({n_groups}) '
      .. 'must divide cp_size ({cp_group.size}), or be divisible by it; attach takes any',
   'where num_heads % n_groups == 0 -- num_heads ({num_heads}) must be a multiple of n_groups '
      .. '({n_groups})' } } })
local ranks = 'W: integer in [1, 1048576]'
local balancing = 'x: tensor [tokens, ..]; ' .. ranks
local packed = 'x: tensor [tokens, ..]; cu_local: cu; ' .. ranks
return signature.doors('parallel.mamba_cp', mamba_cp, {
   all_to_all = 'x: tensor [rows, ..]',
   all_to_all_cp2hp = 'x: tensor [batch, tokens, width] or [tokens, width]',
   all_to_all_hp2cp = 'x: tensor [batch, tokens, width] or [tokens, width]',
   redo_order = ranks, undo_order = ranks,
   reorder_chunks = { { 'x: tensor [tokens, ..]', 'order: integer[]',
      'where #order > 0 and permutes(order) -- order: expected each of the chunks 0 .. '
         .. '{math.max(#order - 1, 0)} once' } },
   undo_attention_load_balancing = balancing, redo_attention_load_balancing = balancing,
   deinterleave_index = { { 'cu_local: cu', ranks, 'rows: integer >= 0',
      'where rows % W == 0 -- {rows} tokens do not divide among {W} ranks' } },
   deinterleave_packed_seqs = packed, reinterleave_packed_seqs = packed,
   pre_index = 'cu: cu; ' .. ranks,
})
