-- Regions over given buffers, and whole sequences out of shards: PyTorch's context_parallel and the
-- names of frozen targets.

local tide = require 'tide'
local err = require 'tide.util.err'
local cp = require 'tide.parallel.cp'
local signature = require 'tide.util.signature'
local cp_map = require 'tide.parallel.cp.map'

local regions = {}

-- ---- regions over given buffers --------------------------------------------------------------

local Region = { class_name = 'Region' }
Region.__index = Region

local rotation = {
   allgather = 'allgather', alltoall = 'ring', ring = 'ring', a2a = 'a2a', ['a2a+p2p'] = 'a2a+p2p',
}

-- Returns which buffers (by their places) stay cut.
local function staying(op, buffers, no_restore)
   local stays = {}
   for i, t in ipairs(no_restore or {}) do
      local found
      for k, b in ipairs(buffers) do
         if rawequal(b, t) then found = k end
      end
      if not found then err.arg(op, ('no_restore[%d]'):format(i), 'one of the buffers', t) end
      stays[found] = true
   end
   return stays
end

-- Returns the length of the sequence: that of every buffer along its dim.
local function common_length(op, buffers, dims)
   local length
   for i, t in ipairs(buffers) do
      local d = err.integer(op, ('dims[%d]'):format(i), dims[i], -t.ndim, t.ndim)
      length = length or t:size(d)
      err.raise_if(t:size(d) ~= length, 'E_ARG', op, 'buffer %d has %d tokens, buffer 1 has %d', i,
         t:size(d), length)
   end
   return length
end

-- Returns a region over buffers whose dims (one each) are cut over the ranks of axis. no_restore:
-- those of the buffers that stay cut afterwards. rotate_method: 'allgather' (default), 'alltoall'
-- (a ring), or a method of contexts. opts: kind of layout ('zigzag'), fills (a value for the
-- padding of each buffer; without them the length must fit the layout), and those of cp.context.
-- region:run(fn, ...) calls fn(shards, context, ...). The buffers themselves are never changed:
-- gradients of the shards reach them.
function regions.create_context_parallel_ctx(axis, buffers, dims, no_restore, rotate_method, opts)
   local op = 'parallel.cp.create_context_parallel_ctx'
   local stays, length = staying(op, buffers, no_restore), common_length(op, buffers, dims)
   local map = cp_map.new { kind = opts.kind, axis = axis, length = length,
      pad = opts.fills ~= nil, cu = opts.cu, cu_real = opts.cu_real, cu_slot = opts.cu_slot }
   local context = cp.context { map = map, method = rotation[rotate_method], window = opts.window,
      causal = opts.causal, index = opts.index, inner = opts.inner, outer = opts.outer }
   return setmetatable({ map = map, context = context, buffers = buffers, dims = dims,
      fills = opts.fills, stays = stays }, Region)
end

-- Returns this rank's part of each buffer, in order: new tensors with a history.
function Region:shards()
   local list = {}
   for i, t in ipairs(self.buffers) do
      list[i] = self.map:shard(t, self.dims[i], self.fills and self.fills[i])
   end
   return list
end

-- Returns fn(shards, context, ...).
function Region:run(fn, ...) return fn(self:shards(), self.context, ...) end

-- Returns the buffers as they are after the region: those of no_restore cut, the others whole.
function Region:after()
   local shards, list = self:shards(), {}
   for i, t in ipairs(self.buffers) do list[i] = self.stays[i] and shards[i] or t end
   return list
end

-- ---- a frozen model's inputs, contiguous -----------------------------------------------------

local function pad_right(t, n)
   if n == 0 then return t:clone() end
   return t:pad({ 0, 0 }, { 0, n })
end

-- Returns the inputs of a model that only runs forward, cut contiguously: a region (its run calls
-- fn({ ids, positions }, context)), new tensors of ids and positions padded to a multiple of the
-- ranks, and T. ids [B, T]; positions [B, T], [1, T] or nil. Attention gathers keys and values.
function regions.make_target_cp_ctx(axis, ids, positions)
   local B, T = ids:size(1), ids:size(2)
   if positions == nil then
      positions = tide.arange(T, { dtype = 'i64', device = ids.device }):reshape { 1, T }
   end
   positions = positions:to(ids.device):expand(B, T):contiguous()
   local map = cp_map.new { kind = 'contiguous', axis = axis, length = T }
   local extra = map.padded - T
   local buffers = { pad_right(ids, extra), pad_right(positions, extra) }
   local region = setmetatable({
      map = map, context = cp.context { map = map, method = 'allgather' },
      buffers = { ids, positions }, dims = { 2, 2 }, fills = { 0, 0 },
      stays = { true, true },
   }, Region)
   return region, buffers[1], buffers[2], T
end

-- Returns the plan of tensors of `count` tokens a rank: that of a region or context, or, over an
-- axis, contiguous with orig_len tokens and padding after them.
local function plan_of(op, map, axis, count, orig_len)
   if map then
      err.arg_if(orig_len and orig_len ~= map.length, op, 'orig_len',
         ('%d, as the plan has'):format(map.length), orig_len)
      return map
   end
   local total = count * axis.size
   err.integer(op, 'orig_len', orig_len, 0, total)
   return cp_map.new { kind = 'contiguous', axis = axis, multiple = math.max(total, 1),
      length = orig_len > 0 and orig_len or total }
end

-- Returns every token of each tensor again, without padding and without gradients. where: the
-- region or context whose layout the tensors have, or an axis (contiguous; then with orig_len).
-- Collective; E_COMM where ranks have other layouts, lengths or shapes.
function regions.gather_cp_seq(where, tensors, dim, orig_len)
   local op = 'parallel.cp.gather_cp_seq'
   local map = type(where) == 'table' and where.map
   local axis = map or cp.axis_of(op, where, 'cp') or { size = 1, rank = 0 }
   local plans, out = {}, {}
   for i, t in ipairs(tensors) do
      local count = t:size(err.integer(op, 'dim', dim, -t.ndim, t.ndim))
      local plan = plans[count] or plan_of(op, map, axis, count, orig_len)
      plans[count] = plan
      out[i] = tide.no_grad(function() return plan:gather(t:detach(), dim) end)
      if orig_len == 0 then out[i] = out[i]:narrow(dim, 1, 0):contiguous() end
   end
   return out
end

signature.doors('parallel.cp.region', Region, { run = 'fn: function' })
return signature.doors('parallel.cp', regions, {
   create_context_parallel_ctx = { {
      'buffers: tensor[]', 'dims: integer[]', 'no_restore: table?',
      "rotate_method: 'allgather' | 'alltoall' | 'ring' | 'a2a' | 'a2a+p2p' = 'allgather'",
      'where #buffers == #dims -- {#buffers} buffers and {#dims} dims: one for each',
      "where #buffers > 0 -- argument 'buffers': expected at least one tensor, got none" }, opts = {
      "kind: any = 'zigzag' -- layout of tide.parallel.cp_map",
      'fills: table? -- a value for the padding of each buffer; without them the length must fit',
      'window: any?', 'causal: boolean?', 'index: any?', 'inner: any?', 'outer: any?', 'cu: any?',
      'cu_real: any?', 'cu_slot: any?' } },
   make_target_cp_ctx = 'ids: tensor [B, T]; positions: tensor [B or 1, T]?',
   gather_cp_seq = 'tensors: tensor[]; dim: integer',
})
