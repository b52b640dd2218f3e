-- One flat buffer of parameters: their shard, their gathered bytes, their gradients.
--
-- Three tensors. `shard` (this rank's rows, what the optimiser changes), `flat` (all rows in the
-- dtype of the computation, of which the module's fields are views), `gshard` (the reduced gradient
-- of the shard, in the wider of the shard's dtype and that of the reduction). Gathering fills flat
-- from the shards, reducing adds the full gradients into gshard. flat's bytes are freed and made
-- again; its handle and the fields stay.
--
-- Whatever saved a field for backward sees the same storage. Bytes that are dropped and gathered
-- again from unchanged shards are declared to be the same contents (`refilled`), so the tape's
-- version checks hold; after an update of the shard (`stale`) they are not, and an old graph fails.
-- Then flat gives its bytes up, unless the shard lies in it (not `apart`). A bucket that is neither
-- `full` nor one rank's whole (`is_whole`) shows tensors without bytes in place of its fields until
-- it is gathered (`hidden`): reading one raises an error instead of giving an old number. An
-- earlier view of a field sees what lies there.
--
-- Where nothing is cut and nothing is cast, shard and flat are one tensor; where all ranks keep
-- everything, the shard is this rank's part of flat.

local tide = require 'tide'
local class = require 'tide.class'
local dims = require 'tide.util.dims'
local weight = require 'tide.nn.weight'
local layout = require 'tide.parallel.fsdp.layout'
local outlive = require 'tide.util.outlive'

local Bucket = class 'FsdpBucket'

-- ---- making it -------------------------------------------------------------------------------

-- Returns the boxes of the whole parameter that rows p hold: { at (within the piece), offset
-- (within the whole), size }, lists a dim. A parameter of a tensor-parallel layer may be several
-- boxes.
local function parts_of(entry, size, p)
   local n, list = #size, {}
   local zeros = dims.zeros(n)
   local boxes = entry.boxes or { { at = zeros, offset = zeros, size = entry.shape } }
   for _, box in ipairs(boxes) do
      local part = { at = {}, offset = {}, size = {} }
      local some = true
      for d = 1, n do
         local first = d == 1 and p.row or 0
         local lo = math.max(box.at[d], first)
         local hi = math.min(box.at[d] + box.size[d], first + size[d])
         part.at[d], part.offset[d], part.size[d] = lo - first, box.offset[d] + lo - box.at[d],
            hi - lo
         some = some and hi > lo
      end
      if some then list[#list + 1] = part end
   end
   return list
end

-- Draws a piece into t by the declared initialiser, which gives every element the number that it
-- has in the whole.
local function draw(entry, piece, t, seed)
   local stride = dims.strides(piece.shape)
   for _, part in ipairs(piece.parts) do
      local start = 0
      for d = 1, #stride do start = start + part.offset[d] * stride[d] end
      weight.fill(dims.view(t, part.at, part.size), entry.spec, { seed = seed, path = entry.name,
         start = start, stride = #stride > 0 and stride or nil })
   end
end

-- Fills a piece with initial values: from the model's tensor, or drawn.
local function fill(entry, p, piece, opts)
   local t, dtype = piece.param, entry.param.dtype
   if entry.param.device ~= 'null' then
      local src = entry.param:detach()
      if #entry.shape > 0 then src = src:narrow(1, p.row + 1, p.rows) end
      return t:copy_(src)
   end
   if opts.init == false then return end
   if t.dtype == dtype then return draw(entry, piece, t, opts.seed) end
   tide.scope(function()            -- in the declared dtype: it rounds as it does without sharding
      local whole = tide.empty(t.shape, { dtype = dtype, device = t.device })
      draw(entry, piece, whole, opts.seed)
      t:copy_(whole)
   end)
end

local function make_pieces(self, opts)
   self.pieces = {}
   for i, p in ipairs(self.layout.pieces[self.comm.rank + 1]) do
      local entry = self.entries[p.index]
      local size = {}
      for d, n in ipairs(entry.shape) do size[d] = d == 1 and p.rows or n end
      local piece = { name = entry.name, size = size, entry = entry, at = p,
         shape = entry.whole, parts = parts_of(entry, size, p),
         param = self.shard:narrow(1, p.offset + 1, p.numel):reshape(size) }
      if #piece.parts == 1 then piece.offset = piece.parts[1].offset end
      fill(entry, p, piece, opts)
      self.pieces[i] = piece
   end
end

-- Makes the fields of the modules views of flat.
local function bind(self)
   for i, entry in ipairs(self.entries) do
      local item = self.layout.items[i]
      local view = self.flat:narrow(1, item.first + 1, item.numel):reshape(entry.shape)
      if entry.requires_grad then view:requires_grad_(true) end
      entry.view, entry.shown = view, view
      for _, place in ipairs(entry.places) do place.owner[place.field] = view end
   end
end

-- Returns a tensor like the entry's view without bytes.
local function hollow_of(e)
   local one = outlive(tide.empty({ 1 }, { dtype = e.view.dtype, device = e.view.device }))
   local t = one:detach()
   t = #e.shape == 0 and t:reshape {} or t:expand(e.shape)
   one:release()
   return t
end

-- Sets the fields of the modules to the views, or to tensors without bytes. They take requires_grad
-- from the tensors that they replace.
local function show(self, on)
   if self.full or self.is_whole or self.hidden == not on then return end
   self.hidden = not on
   for _, e in ipairs(self.entries) do
      e.hollow = e.hollow or hollow_of(e)
      local from, to = on and e.hollow or e.view, on and e.view or e.hollow
      if to.requires_grad ~= from.requires_grad then to:requires_grad_(from.requires_grad) end
      e.shown = to
      for _, place in ipairs(e.places) do place.owner[place.field] = to end
   end
end

-- Returns the dtype that holds the numbers of both.
local function wider(a, b)
   if a == b then return a end
   return (a == 'f64' or b == 'f64') and 'f64' or 'f32'
end

-- Returns the dtype in which gradients of `dtype` add up before they are reduced in another one.
local function summed_in(dtype, reduce_dtype)
   local half = dtype == 'bf16' or dtype == 'f16'
   return half and reduce_dtype ~= dtype and 'f32' or dtype
end

-- Returns the communicators along which distinct parts of a parameter lie.
local function comms_of(entry, shards)
   local list = { shards }
   for _, axis in ipairs(entry.cut and entry.cut:axes() or {}) do list[#list + 1] = axis.comm end
   return list
end

-- Makes a bucket. entries: { name, param, places, shape, whole, boxes, spec, requires_grad }. opts:
-- comm (ranks of the shards), replicas (ranks that hold the same shard), ep_size (of experts that
-- are dealt out, whose gradients are sums over as many ranks already; 1 for others), mean_scale
-- (the factor of gradients that are means over comm and replicas), full (bytes are freed between
-- uses), shard_dtype, dtype (of the computation), reduce_dtype, device,
-- shard_device, offload, pin (the shard in pinned memory), seed, init (false: no values).
function Bucket:init(entries, opts)
   self.entries, self.opts, self.comm, self.replicas = entries, opts, opts.comm, opts.replicas
   self.full = opts.full
   self.grad_dtype = wider(opts.shard_dtype, opts.reduce_dtype)
   self.sum_dtype = summed_in(opts.dtype, opts.reduce_dtype)   -- of gradients not yet reduced
   self.layout = layout.new(self:shapes(), self.comm.size)
   self.counts = self.layout.counts
   local count, at = self.counts[self.comm.rank + 1], self.layout.cuts[self.comm.rank + 1]
   self.flat = outlive(tide.empty({ self.layout.total },
      { dtype = opts.dtype, device = opts.device }))
   local same = opts.shard_dtype == opts.dtype and not opts.offload
   self.apart = not same or opts.pin or opts.full and self.comm.size > 1
   bind(self)
   if self.apart then                       -- bytes of flat first, so that both are never there
      self.flat:release()
      self.shard = outlive(tide.empty({ count }, { dtype = opts.shard_dtype,
         device = opts.shard_device }))
   else
      self.shard = self.flat:narrow(1, at + 1, count)
   end
   if opts.pin then                         -- copies to and from a GPU use pinned memory directly
      local pageable = self.shard
      self.shard = outlive(pageable:pin_memory())
      pageable:release()
   end
   self.is_whole = same and self.comm.size == 1     -- the shard is flat itself
   tide.no_grad(function() make_pieces(self, opts) end)
   self.state, self.stale = self.is_whole and 'present' or 'absent', true
   tide.no_grad(show, self, false)
   for _, e in ipairs(entries) do
      if e.param.device == 'null' then e.param:release() end
      e.param, e.comms = nil, comms_of(e, self.comm)
   end
end

-- ---- bytes of the parameters -----------------------------------------------------------------

-- Sets the ranks that keep a part of flat between forward and backward: comm of k of them.
function Bucket:set_small(comm)
   self.small = { comm = comm, counts = layout.new(self:shapes(), comm.size).counts }
end

-- Returns how many elements this rank keeps between forward and backward for the ranks of
-- set_small.
function Bucket:small_count() return self.small.counts[self.small.comm.rank + 1] end

-- Returns the whole shapes of the parameters, in order.
function Bucket:shapes()
   local list = {}
   for i, e in ipairs(self.entries) do list[i] = e.shape end
   return list
end

-- Returns the tensor that this rank sends, the ranks, their counts, and whether the tensor is a
-- copy made for this.
local function source(self)
   if self.small and self.small.part then
      return self.small.part, self.small.comm, self.small.counts
   end
   local send, made = self.shard, self.opts.shard_dtype ~= self.opts.dtype
   if made or self.opts.offload then
      send = send:to { dtype = self.opts.dtype, device = self.opts.device }
   end
   return send, self.comm, self.counts, made
end

-- Begins to fill flat; wait ends it. Nothing to do if it is under way or done.
function Bucket:gather(async)
   if self.state ~= 'absent' then return end
   self.state = 'gathering'
   if self.is_whole then return end
   local again = self.flat:is_gone()
   if again then self.flat:restore_bytes() end
   self.again = again and not self.stale
   tide.no_grad(function()
      local send, comm, counts, made = source(self)
      if comm.size == 1 then
         self.flat:copy_(send)
      else
         local work = comm:all_gather_v(send, counts, self.flat, async and { async = true } or nil)
         self.work = async and work or nil
      end
      self.sent = made and send or nil
   end)
end

-- Ends a gather that is under way; the fields then hold whole parameters.
function Bucket:wait()
   if self.state ~= 'gathering' then return end
   if self.work then
      self.work:wait()
      self.work:release()
      self.work = nil
   end
   if self.sent then
      self.sent:release()
      self.sent = nil
   end
   if self.again then self.flat:refilled() end
   self.state, self.stale, self.again = 'present', false, nil
   show(self, true)
end

-- Frees the gathered bytes. keep: a part stays for the ranks of set_small.
function Bucket:reshard(keep)
   if self.state == 'absent' or self.is_whole then return end
   self:wait()
   if not self.full then return end
   local small = self.small
   if small and keep and not small.part then
      local at = dims.sum(small.counts, small.comm.rank)
      small.part = outlive(self.flat:narrow(1, at + 1, self:small_count()):clone())
   elseif small and not keep then
      self:forget_small()
   end
   self.flat:release()
   self.state = 'absent'
end

-- Frees the part that stayed for the ranks of set_small.
function Bucket:forget_small()
   if self.small and self.small.part then
      self.small.part:release()
      self.small.part = nil
   end
end

-- Notes that the gathered parameters are those of the shards; is_written() then says whether they
-- were written since.
function Bucket:watch_writes() self.watched = self.flat:version() end

-- Returns whether gathered parameters were written in place since watch_writes().
function Bucket:is_written()
   return self.state == 'present' and not self.is_whole and self.watched ~= nil
      and self.flat:version() ~= self.watched
end

-- Returns the shard on the device of the computation, with what was written into the gathered
-- parameters. Elements that were not written keep the exact value of the shard, of which they are
-- the rounding.
local function written_shard(self)
   local o, at = self.opts, self.layout.cuts[self.comm.rank + 1]
   local now = self.flat:narrow(1, at + 1, self.counts[self.comm.rank + 1])
   local was = self.shard:to { dtype = o.dtype, device = o.device }
   return tide.where(now:eq(was), self.shard:to { dtype = o.shard_dtype, device = o.device },
      now:to(o.shard_dtype))
end

-- Copies what was written into the gathered parameters to the shard.
function Bucket:write_back()
   if not self.apart then return end
   tide.no_grad(function() self.shard:copy_(written_shard(self)) end)
   self:forget_small()
end

-- Adds copies of the whole parameters to `state` by name, in the dtype of the shards on the device
-- of the computation, gathered also over the ranks that tensor parallelism cuts them over. held: a
-- scope holds them whole, and what it has written so far counts. Collective.
function Bucket:add_whole(state, held)
   tide.no_grad(function()
      local own = held and self.apart and self:is_written() and written_shard(self)
         or self.shard:to { device = self.opts.device }
      local all = self.comm.size > 1 and self.comm:all_gather_v(own, self.counts) or own
      for i, entry in ipairs(self.entries) do
         local item = self.layout.items[i]
         local t = all:narrow(1, item.first + 1, item.numel):reshape(entry.shape)
         state[entry.name] = entry.cut and entry.cut:gather(t) or t:clone()
      end
      if not all:same_storage(self.shard) then all:release() end
   end)
end

-- Returns a copy of entry i as a whole, in the dtype of the shards on the device of the
-- computation. Collective.
function Bucket:whole(i)
   local counts = {}
   for r, list in ipairs(self.layout.pieces) do
      counts[r] = 0
      for _, p in ipairs(list) do
         if p.index == i then counts[r] = p.numel end
      end
   end
   local own = self.shard:narrow(1, 1, 0)
   for _, p in ipairs(self.pieces) do
      if p.at.index == i then own = self.shard:narrow(1, p.at.offset + 1, p.at.numel) end
   end
   own = own:to { device = self.opts.device }
   local all = self.comm.size > 1 and self.comm:all_gather_v(own, counts) or own:clone()
   return all:reshape(self.entries[i].shape)
end

-- Drops what was gathered, which is out of date where the shards have changed.
function Bucket:expire()
   if self.is_whole then return end
   self:wait()
   self:forget_small()
   if self.apart and not self.flat:is_gone() then self.flat:release() end
   self.state, self.stale = 'absent', true
   show(self, false)
end

-- ---- gradients -------------------------------------------------------------------------------

-- Returns whether any of its parameters gets a gradient.
function Bucket:wants_grad()
   for _, e in ipairs(self.entries) do
      if e.view.requires_grad then return true end
   end
   return false
end

-- Returns the first parameter whose gradient on this rank is not finite, or nil. The rehearsal of a
-- plan, on the null device, has no numbers to look at.
local function find_bad(self)
   for _, e in ipairs(self.entries) do
      local g = e.view.grad
      if g ~= nil then
         local is_finite = tide.isfinite(g):all()
         if g.device ~= 'null' and not is_finite:item() then return e.name end
      end
   end
end

-- Moves the gradients of the fields into one flat tensor; absent ones are zeros. Marks the entries
-- that have one as used in this step.
local function collect(self, flat, scale)
   local to, grads = {}, {}
   for i, e in ipairs(self.entries) do
      local item = self.layout.items[i]
      local part, g = flat:narrow(1, item.first + 1, item.numel):reshape(e.shape), e.view.grad
      if g == nil then
         part:zero_()
      else
         to[#to + 1], grads[#grads + 1] = part, g
         e.used = true
         e.view:zero_grad()
      end
   end
   tide.foreach_copy_(to, grads)
   for _, g in ipairs(grads) do g:release() end
   if scale ~= 1 then flat:mul_(scale) end
end

-- Sets whether the gradients that backward begins stay on this rank for a while: they then have the
-- dtype of the sum from the first product on.
function Bucket:accumulate(on)
   if self.sum_dtype == self.opts.dtype then return end
   for _, e in ipairs(self.entries) do
      e.view:set_grad_dtype(on and self.sum_dtype or self.opts.dtype)
   end
end

-- Begins to reduce. opts: async, check (look for values that are not finite), scale, op ('sum' or
-- 'mean'), take(bucket, n, dtype, device): a buffer, and whether it stays. Returns the name of a
-- bad parameter, or nil.
function Bucket:reduce(opts)
   if self.reducing or not self:wants_grad() then return nil end
   local o, bad = self.opts, opts.check and find_bad(self) or nil
   self.gshard = self.gshard or outlive(tide.empty(self.shard.shape, { dtype = self.grad_dtype,
      device = self.shard.device }))
   local gshard, begun = self.gshard, false                      -- it holds some of this step
   for _, p in ipairs(self.pieces) do begun = begun or p.param.grad ~= nil end
   local direct = not begun and o.reduce_dtype == gshard.dtype and not o.offload
   local r = { op = opts.op, begun = begun }
   local scale = opts.scale * (opts.op == 'mean' and o.mean_scale or 1)
   tide.no_grad(function()
      if self.comm.size == 1 then
         r.out = direct and gshard
            or tide.empty({ self.layout.total }, { dtype = o.reduce_dtype, device = o.device })
         collect(self, r.out, scale)
      else
         r.flat, r.kept = opts.take(self, self.layout.total, o.reduce_dtype, o.device)
         collect(self, r.flat, scale)
         r.out = direct and gshard or tide.empty({ self.counts[self.comm.rank + 1] },
            { dtype = o.reduce_dtype, device = o.device })
         local work = self.comm:reduce_scatter_v(r.flat, self.counts, opts.op, r.out,
            opts.async and { async = true } or nil)
         r.work = opts.async and work or nil
      end
      r.direct = direct
   end)
   self.reducing = r
   return bad
end

-- Ends what reduce began: over replicas too, into gshard, and the pieces get their gradients, but
-- for those of parameters that are frozen by now.
function Bucket:drain()
   local r = self.reducing
   if not r then return end
   if r.work then
      r.work:wait()
      r.work:release()
   end
   if r.flat and not r.kept then r.flat:release() end
   if self.replicas.size > 1 then self.replicas:all_reduce(r.out, r.op) end
   tide.no_grad(function()
      if not r.direct then
         local out = r.out:to { dtype = self.gshard.dtype, device = self.gshard.device }
         if r.begun then self.gshard:add_(out) else self.gshard:copy_(out) end
         r.out:release()
      end
   end)
   self.reducing = nil
   for _, p in ipairs(self.pieces) do
      if p.param.grad == nil and p.entry.view.requires_grad then
         p.param:set_grad(self.gshard:narrow(1, p.at.offset + 1, p.at.numel):reshape(p.size))
      end
   end
end

-- Resets the bucket after an error: no collective under way, no gradients, no gathered bytes.
function Bucket:reset()
   local r = self.reducing
   if r and r.work then pcall(r.work.wait, r.work) end
   if r and r.flat and not r.kept and not r.flat:is_gone() then r.flat:release() end
   self.reducing = nil
   self:zero_grad()
   if self.work then
      pcall(self.work.wait, self.work)
      self.work = nil
   end
   if self.state == 'gathering' then self.state = 'present' end
   self:expire()
end

-- Drops the whole gradients that are not reduced yet (accumulation without communication).
function Bucket:zero_grad()
   for _, e in ipairs(self.entries) do
      e.view:zero_grad()
      e.used = nil
   end
   for _, p in ipairs(self.pieces) do p.param:zero_grad() end
end

return Bucket
