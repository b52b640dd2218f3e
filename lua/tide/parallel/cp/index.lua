-- What a cp_map plan gives as tensors: indices, documents, shards, and every token again.
--
-- Each is an index tensor, made once for each device and kept; sharding and
-- gathering are then one selection, with padding filled in afterwards, so both have a gradient.
--
-- Source positions, whole positions and places: see cp_map. Adds its methods to the class it gets.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local kept = require 'tide.parallel.kept'
local signature = require 'tide.util.signature'
local agree = require 'tide.comm.agree'
local axis_of = require 'tide.parallel.axis_of'
local collective = require 'tide.parallel.collective_op'
local fingerprint = require 'tide.parallel.fingerprint'

return function(Map)

-- ---- index tensors ---------------------------------------------------------------------------

-- Copies a table to a device. There is a new one for each batch, so the host does not wait until it
-- is on a GPU.
local function place_on(t, device)
   if not device or err.same(device, 'cpu') then return t end
   if not err.same(device, 'cuda') then return t:to(device) end
   return t:pin_memory():to(device, { non_blocking = true })
end

local function host(list) return tide.tensor(list, { dtype = 'i64', device = 'cpu' }) end

-- Returns runs as an index tensor.
local function written(runs, dtype)
   return tide.run_index(host(runs):reshape { #runs / 2, 2 }, dtype)
end

local function all_of(self, dtype)
   if self.custom then return host(self.custom):to(dtype) end
   if self.kind == 'contiguous' or self.size == 1 then
      return tide.arange(self.padded, { dtype = dtype, device = 'cpu' })
   end
   if not self.all_runs then return tide.zigzag_index(host(self.cut), self.size, nil, dtype) end
   local joined = {}
   for _, runs in ipairs(self.all_runs) do
      for i = 1, #runs do joined[#joined + 1] = runs[i] end
   end
   return written(joined, dtype)
end

local function key_of(...) return table.concat({ ... }, ' ') end

local function device_of(device) return device or tide.default().device end

-- Returns the whole positions of a rank's tokens (its own by default).
function Map:index(dtype, device, rank)
   device, rank = device_of(device), rank or self.rank
   return kept(self, key_of('index', dtype, device, rank), function()
      if not self.all_runs and self.kind ~= 'contiguous' then
         return place_on(tide.zigzag_index(host(self.cut), self.size, rank, dtype), device)
      end
      return place_on(written(self:runs(rank), dtype), device)
   end)
end

-- Returns the whole positions of all ranks' tokens, in rank order: place -> whole position.
function Map:order(dtype, device)
   device = device_of(device)
   return kept(self, key_of('order', dtype, device), function()
      return place_on(all_of(self, dtype), device)
   end)
end

-- Returns the inverse: whole position -> place.
function Map:restore(dtype, device)
   device = device_of(device)
   return kept(self, key_of('restore', dtype, device), function()
      if not self.all_runs and self.kind ~= 'contiguous' then
         return place_on(tide.zigzag_places(host(self.cut), self.size, dtype), device)
      end
      return place_on(tide.inverse_index(all_of(self, dtype)), device)
   end)
end

-- Returns the source position of each whole position; padding is `length` and more.
local function sources(self)
   return kept(self, 'sources', function()
      local runs, from, to = {}, self.from, self.cu_slot
      if not from then return tide.arange(self.padded, { dtype = 'i64', device = 'cpu' }) end
      for d = 1, #to - 1 do
         local first = from[d] or self.length
         local n = (from[d + 1] or self.length) - first
         local m = #runs
         runs[m + 1], runs[m + 2] = first, n
         runs[m + 3], runs[m + 4] = self.length, to[d + 1] - to[d] - n
      end
      return written(runs, 'i64')
   end)
end

-- Returns the place of each source position.
local function places(self, device)
   return kept(self, key_of('places', device), function()
      local restore, from, to = self:restore('i64', 'cpu'), self.from, self.cu_slot
      if self.gapless then return place_on(restore, device) end
      if not from then return place_on(restore:narrow(1, 1, self.length):contiguous(), device) end
      local runs = {}
      for d = 1, #to - 1 do
         local n = (from[d + 1] or self.length) - (from[d] or self.length)
         runs[2 * d - 1], runs[2 * d] = to[d], n
      end
      return place_on(restore:index_select(1, written(runs, 'i64')), device)
   end)
end

-- Returns the source positions of a rank's tokens, and a mask of its padding (nil: it has none).
local function source_of(self, rank, device)
   if self.gapless then return self:index('i64', device, rank) end
   local at = kept(self, key_of('source', device, rank), function()
      return place_on(sources(self):index_select(1, self:index('i64', 'cpu', rank)), device)
   end)
   return at:clamp(0, math.max(0, self.length - 1)), at:ge(self.length)
end

-- Returns (document, position) of every whole position, i32 [1, padded, 2]; padding is document -1.
function Map:documents(device)
   device = device_of(device)
   return kept(self, key_of('documents', device), function()
      return place_on(tide.slot_index(host(self.cu_slot), host(self.cu_real), self.padded), device)
   end)
end

-- Returns the documents of a rank's tokens (its own by default), i32 [1, count, 2].
function Map:document_index(device, rank)
   device, rank = device_of(device), rank or self.rank
   return kept(self, key_of('pairs', device, rank), function()
      return self:documents(device):index_select(2, self:index('i64', device, rank))
   end)
end

-- ---- moving tensors --------------------------------------------------------------------------

local function number_of(fill)
   if type(fill) == 'boolean' then return fill and 1 or 0 end
   return fill
end

local function filled(op, x, dim, mask, fill)
   fill = number_of(fill)
   if x.dtype == 'bool' then fill = fill ~= 0 end
   local shape = {}
   for d = 1, x.ndim do shape[d] = d == dim and x:size(d) or 1 end
   local y = x:masked_fill(mask:reshape(shape), fill)
   if y.dtype ~= x.dtype then          -- it would be another dtype, with rounded token ids
      err.arg(op, 'fill', 'a value that ' .. x.dtype .. ' holds', fill)
   end
   return y
end

local function need_fill(self, op, fill)
   err.arg_if(fill == nil and not self.gapless, op, 'fill', ('a value for the %d padding tokens')
      :format(self.padded - self.length), fill)
   return fill == nil and 0 or fill
end

-- Returns the tokens of a rank (its own by default) out of x, whose dim has all `length` tokens.
-- fill: value of padding. Differentiable; a new tensor, x stays as it is.
function Map:shard(x, dim, fill, rank)
   local op = 'parallel.cp_map.shard'
   fill, rank = need_fill(self, op, fill), rank or self.rank
   if self.length == 0 then
      local shape = x.shape
      shape[dim] = self.count
      return tide.full(shape, number_of(fill),
         { dtype = x.dtype, device = x.device })
   end
   local at, pad = source_of(self, rank, x.device)
   local y = x:index_select(dim, at)
   return pad and filled(op, y, dim, pad, fill) or y
end

-- Returns x with its padding in place: dim has `padded` tokens, in order.
function Map:pad(x, dim, fill)
   local op = 'parallel.cp_map.pad'
   fill = need_fill(self, op, fill)
   if self.gapless then return x end
   if not self.from or self.length == 0 then
      return x:pad(dims.zeros(x.ndim), dims.only(x.ndim, dim, self.padded - self.length),
         number_of(fill))
   end
   local at = place_on(sources(self), x.device)
   return filled(op, x:index_select(dim, at:clamp(0, self.length - 1)), dim, at:ge(self.length),
      fill)
end

-- Returns the tensors of all ranks joined in rank order (dim has `padded` tokens) back into the
-- caller's order, without padding.
function Map:unshard(x, dim)
   return x:index_select(dim, places(self, x.device))
end

-- Returns the communicator of an axis, whose ranks have this plan and gather tensors alike; what
-- they have in common is compared at the first call of its kind with the plan.
local function comm_of(self, op, axis, x, dim)
   local comm, size, rank = axis_of(op, 'axis', axis)
   err.raise_if(size ~= self.size or rank ~= self.rank, 'E_ARG', op, "argument 'axis': expected "
      .. 'rank %d of %d, as the plan has, got rank %d of %d', self.rank, self.size, rank, size)
   local kind = ('%s %s in dim %d'):format(table.concat(x.shape, 'x'), x.dtype, dim)
   if not self.agreed[kind] then
      agree.check(comm, op, 'E_COMM',
         { { 'plans', fingerprint.plan(self) .. ', ' .. kind, 'shown' } })
      self.agreed[kind] = true
   end
   return comm
end

-- Returns every token again, from each rank's own: the inverse of shard. Collective over the plan's
-- axis and differentiable; the gradient is that of the sum of all ranks' losses, or, with
-- opts.once, of a loss that every rank computes alike. E_COMM where ranks have other plans or
-- shapes.
function Map:gather(x, dim, opts)
   local op = 'parallel.cp_map.gather'
   local axis = opts.axis or self.axis
   err.arg_if(not axis and self.size > 1, op, 'axis', 'an axis or communicator, here or in the '
      .. 'plan', axis)
   local all = x
   if self.size > 1 then
      local comm = comm_of(self, op, axis, x, dim)
      all = (opts.once and collective.gather_from or collective.all_gather)(x, comm, dim)
   end
   return self:unshard(all, dim)
end

-- Returns every token's value replaced by that of the token k further on in the sequence (0 beyond
-- its end), for shards x of all ranks. Collective and differentiable.
function Map:shift(x, dim, k, opts)
   local all = self:gather(x, dim, opts)
   local n = all.ndim
   return self:shard(all:pad(dims.only(n, dim, -k), dims.only(n, dim, k)), dim, 0)
end

-- Returns a row of a signature: x, whose dim has `count` tokens, of the kind that `what` says.
local function tokens(count, what)
   return ("x: tensor; dim: dim of x; where x:size(dim) == self.%s -- argument 'x': expected "
      .. '{self.%s} tokens in dim {dim}, %s, got {x:size(dim)}'):format(count, count, what)
end
local in_order, share = tokens('length', 'as the plan has'), tokens('count', "a rank's share")
local of_index, rank = "dtype: 'i64' | 'i32' = 'i64'; device: string?",
   '; rank: integer? in [0, self.size - 1]'
local gathering = { 'once: boolean?', 'axis: any? -- the ranks; those of the plan by default' }
signature.doors('parallel.cp_map', Map, {
   index = of_index .. rank, order = of_index, restore = of_index,
   documents = 'device: string?', document_index = 'device: string?' .. rank,
   shard = in_order .. rank, pad = in_order, unshard = tokens('padded', 'those of all ranks'),
   gather = { share, opts = gathering },
   shift = { share .. '; k: integer in [0, self.length]', opts = gathering },
})

end
