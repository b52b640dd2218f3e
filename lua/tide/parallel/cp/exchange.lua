-- The exchange of context parallelism: from all channels of some tokens to all tokens of some
-- channels. Channels are those of a Mamba layer, or the heads of attention with D channels each.
--
-- Channels and tokens are cut by two small tables made once, columns (which runs of channels each
-- rank works on) and rows (which runs of the sequence each rank has). The part that a rank keeps is
-- copied once. The other parts are packed, sent and unpacked into their places, which undoes rank
-- order, packed documents and load balancing in one step. Each direction is the derivative of the
-- other. Packing is one foreach_copy_, unpacking another.
--
-- A run of channels that several ranks work on is sent to each of them; their gradients are added
-- up. Legend: B batch, L tokens of this rank, T of all, w channels of a rank, P of all.

local tide = require 'tide'
local err = require 'tide.util.err'
local private = require 'tide.util.private'

local exchange = {}

-- ---- columns ---------------------------------------------------------------------------------

-- Makes the table of columns. parts: for each rank a list of runs { first, count } (from 0) of the
-- P channels, in the order in which the rank wants them. The first channels of the k-th runs must
-- not decrease from rank to rank.
function exchange.columns(parts, width)
   local self = { width = width, parts = {}, widths = {}, total = 0 }
   local mark = {}                              -- by family: channels below it were written
   for r, runs in ipairs(parts) do
      local list, at = {}, 0
      for k, run in ipairs(runs) do
         local first, count = run[1], run[2]
         local old = math.max(0, math.min(count, (mark[k] or 0) - first))
         if old > 0 then list[#list + 1] = { first, old, at, true } end
         if count > old then list[#list + 1] = { first + old, count - old, at + old, false } end
         mark[k] = math.max(mark[k] or 0, first + count)
         at = at + count
      end
      self.parts[r], self.widths[r] = list, at
      self.total = self.total + at
   end
   return self
end

-- ---- rows ------------------------------------------------------------------------------------

local MOST_RUNS = 64        -- of a rank; more are put by an index instead of one by one

local Rows = {}
Rows.__index = Rows

-- Makes the table of rows. list: for each rank its runs of the sequence { first, count, first,
-- count, ... } (from 0), in the order in which the rank has them.
function exchange.rows(list)
   local self = setmetatable({ size = #list, counts = {}, total = 0, keep = {}, runs = list }, Rows)
   for r, runs in ipairs(list) do
      local n = 0
      for i = 2, #runs, 2 do n = n + runs[i] end
      self.counts[r], self.total = n, self.total + n
      self.flat = self.flat or #runs > 2 * MOST_RUNS
   end
   if not self.flat then return self end
   local all, at = {}, 0
   self.runs = {}
   for r, runs in ipairs(list) do
      self.runs[r] = { at, self.counts[r] }
      at = at + self.counts[r]
      for _, v in ipairs(runs) do all[#all + 1] = v end
   end
   self.order = tide.run_index(tide.tensor(all, { dtype = 'i64', device = 'cpu' })
      :reshape { #all / 2, 2 }, 'i64')
   return self
end

-- Returns, for rows in rank order, the row of each position of the sequence, and the inverse.
function Rows:index(device)
   local found = self.keep[device]
   if found and not found.to:is_gone() then return found.to, found.from end
   found = { to = tide.inverse_index(self.order), from = self.order }
   if device ~= 'cpu' then found.to, found.from = found.to:to(device), found.from:to(device) end
   private.keep(found.to, found.from)
   self.keep[device] = found
   return found.to, found.from
end

-- ---- pieces ----------------------------------------------------------------------------------

local function like(x, shape) return tide.empty(shape, { dtype = x.dtype, device = x.device }) end

-- Returns an empty list of copies: element i of `from` will be copied to element i of `to`.
local function pieces() return { to = {}, from = {} } end

local function piece(list, to, from)
   local n = #list.to + 1
   list.to[n], list.from[n] = to, from
end

-- Calls fn(position in the sequence, place among the tokens of rank r, count) for each of its runs.
local function each_run(rows, r, fn)
   local runs, at = rows.runs[r + 1], 0
   for i = 1, #runs, 2 do
      fn(runs[i], at, runs[i + 1])
      at = at + runs[i + 1]
   end
end

-- Returns a view of `count` channels from `at` on of the tensors ts (side by side). A run lies in
-- one of them.
local function channels_of(ts, at, count)
   for _, t in ipairs(ts) do
      local w = t:size(3)
      if at < w then return t:narrow(3, at + 1, count) end
      at = at - w
   end
end

-- Calls fn(view of xs, view of ys, shared) for each run that stays on this rank, between its tokens
-- xs [B, L, P] and its channels ys.
local function own_part(xs, ys, comm, cols, rows, fn)
   for _, run in ipairs(cols.parts[comm.rank + 1]) do
      local first, count, at, shared = unpack(run)
      local from, to = channels_of(xs, first, count), channels_of(ys, at, count)
      each_run(rows, comm.rank, function(g, i, n)
         fn(from:narrow(2, i + 1, n), to:narrow(2, g + 1, n), shared)
      end)
   end
end

-- Calls fn(view of xs, view of part, shared) for each run of channels of rank r, between tokens xs
-- [B, L, P] and the part [B, L, w] for that rank.
local function tokens_part(xs, part, cols, r, fn)
   for _, run in ipairs(cols.parts[r + 1]) do
      local first, count, at, shared = unpack(run)
      fn(channels_of(xs, first, count), part:narrow(3, at + 1, count), shared)
   end
end

-- Calls fn(view of ys, view of part) for each run of the tokens of rank r, between channels ys and
-- the part [B, L, w] of that rank.
local function channels_part(ys, part, rows, r, fn)
   local at = 0
   for _, y in ipairs(ys) do
      local w = y:size(3)
      local columns = part:narrow(3, at + 1, w)
      each_run(rows, r, function(g, i, n)
         fn(y:narrow(2, g + 1, n), columns:narrow(2, i + 1, n))
      end)
      at = at + w
   end
end

-- ---- what travels ----------------------------------------------------------------------------

-- Returns a flat buffer like x with a part of shape shape_of(r) for every rank r but this one: {
-- flat, parts (those that hold anything), counts (of elements) }.
local function buffer(x, comm, shape_of)
   local parts, counts, n = {}, {}, 0
   for r = 0, comm.size - 1 do
      local B, L, w = unpack(shape_of(r))
      counts[r + 1] = r == comm.rank and 0 or B * L * w
      n = n + counts[r + 1]
   end
   local flat, at = like(x, { n }), 1
   for r = 0, comm.size - 1 do
      local count = counts[r + 1]
      if count > 0 then parts[r] = flat:narrow(1, at, count):reshape(shape_of(r)) end
      at = at + count
   end
   return { flat = flat, parts = parts, counts = counts }
end

-- Returns a buffer of this rank's tokens, with the channels of each rank; channels_buffer returns
-- one of each rank's tokens, with this rank's channels. enter sends the former, leave the latter.
local function tokens_buffer(x, B, comm, cols, rows)
   return buffer(x, comm, function(r)
      return { B, rows.counts[comm.rank + 1], cols.widths[r + 1] }
   end)
end

local function channels_buffer(x, B, comm, cols, rows)
   return buffer(x, comm, function(r)
      return { B, rows.counts[r + 1], cols.widths[comm.rank + 1] }
   end)
end

-- Fills the parts of buffer `out`, by fill(part, rank, put(view, view of part)), and exchanges it;
-- returns the parts that arrive in `into`.
local function travel(comm, into, out, fill)
   local list = pieces()
   local function put(from, to) piece(list, to, from) end
   for r = 0, comm.size - 1 do
      if out.parts[r] then fill(out.parts[r], r, put) end
   end
   tide.foreach_copy_(list.to, list.from)
   if comm.size > 1 then comm:all_to_all_v(out.flat, out.counts, into.counts, into.flat) end
   return into.parts
end

-- Returns ys [B, T, width], one for each of widths, which add up to this rank's channels. xs [B, L,
-- ..]: this rank's tokens, together all P channels.
local function to_channels(xs, comm, cols, rows, widths)
   local x, ys, here = xs[1], {}, pieces()
   local B = x:size(1)
   for i, w in ipairs(widths) do ys[i] = like(x, { B, rows.total, w }) end
   local come = travel(comm, channels_buffer(x, B, comm, cols, rows),
      tokens_buffer(x, B, comm, cols, rows), function(part, r, put)
         tokens_part(xs, part, cols, r, put)
      end)
   for r = 0, comm.size - 1 do
      if come[r] then
         channels_part(ys, come[r], rows, r, function(to, from) piece(here, to, from) end)
      end
   end
   own_part(xs, ys, comm, cols, rows, function(from, to) piece(here, to, from) end)
   tide.foreach_copy_(here.to, here.from)
   if rows.flat then
      local to = rows:index(x.device)
      for i, y in ipairs(ys) do if y:size(3) > 0 then ys[i] = y:index_select(2, to) end end
   end
   return ys
end

-- Exchanges in the other direction, into xs [B, L, ..]; channels that no rank has stay unchanged.
local function to_tokens(xs, ys, comm, cols, rows)
   if rows.flat then
      local _, from = rows:index(xs[1].device)
      local list = {}
      for i, y in ipairs(ys) do list[i] = y:size(3) > 0 and y:index_select(2, from) or y end
      ys = list
   end
   local B, first, more = xs[1]:size(1), pieces(), pieces()
   local come = travel(comm, tokens_buffer(ys[1], B, comm, cols, rows),
      channels_buffer(ys[1], B, comm, cols, rows), function(part, r, put)
         channels_part(ys, part, rows, r, put)
      end)
   local function put(into, from, shared) piece(shared and more or first, into, from) end
   for r = 0, comm.size - 1 do                      -- in rank order: sums are alike everywhere
      if r == comm.rank then
         own_part(xs, ys, comm, cols, rows, put)
      elseif come[r] then
         tokens_part(xs, come[r], cols, r, put)
      end
   end
   tide.foreach_copy_(first.to, first.from)
   tide.foreach_add_(more.to, more.from)
end

-- ---- the two exchanges -----------------------------------------------------------------------

-- plan: comm, cols, rows, widths, kept, wide.
local enter_fn = private.func {
   name = 'parallel.cp.exchange.enter',
   forward = function(self, plan, ...)
      local xs = { ... }
      self.plan, self.shapes = plan, {}
      for i, x in ipairs(xs) do self.shapes[i] = x.shape end
      self.like = { dtype = xs[1].dtype, device = xs[1].device }
      local ys = to_channels(xs, plan.comm, plan.cols, plan.rows, plan.widths)
      if plan.kept > 0 then ys[#ys + 1] = xs[1]:narrow(3, 1, plan.kept) end
      return unpack(ys)
   end,
   backward = function(self, ...)
      local plan, dys, ys, dxs = self.plan, { ... }, {}, {}
      local n, kept = #plan.widths, plan.kept
      for i, w in ipairs(plan.widths) do
         ys[i] = dys[i] or tide.zeros({ self.shapes[1][1], plan.rows.total, w }, self.like)
      end
      local dtype, device = self.like.dtype, self.like.device
      local wide = dtype == 'f64' and 'f64' or 'f32'          -- of sums of several ranks' gradients
      for i, shape in ipairs(self.shapes) do
         dxs[i] = tide.empty(shape, { device = device, dtype = plan.wide[i] and wide or dtype })
      end
      if kept > 0 then
         local part, dkept = dxs[1]:narrow(3, 1, kept), dys[n + 1]
         if dkept then part:copy_(dkept) else part:zero_() end
      end
      to_tokens(dxs, ys, plan.comm, plan.cols, plan.rows)
      for i, dx in ipairs(dxs) do dxs[i] = dx:to(dtype) end
      return nil, unpack(dxs)
   end,
}

local leave_fn = private.func {
   name = 'parallel.cp.exchange.leave',
   forward = function(self, y, comm, cols, rows)
      self.comm, self.cols, self.rows, self.widths = comm, cols, rows, { y:size(3) }
      local x = like(y, { y:size(1), rows.counts[comm.rank + 1], cols.width })
      to_tokens({ x }, { y }, comm, cols, rows)
      return x
   end,
   backward = function(self, dx)
      return to_channels({ dx }, self.comm, self.cols, self.rows, self.widths)[1]
   end,
}

local function check(op, xs, width, tokens)
   local P = 0
   for _, x in ipairs(xs) do
      err.arg_if(not tide.is_tensor(x) or x.ndim ~= 3, op, 'x', 'a tensor [B, T, channels]', x)
      err.raise_if(x.dtype ~= xs[1].dtype or x:size(1) ~= xs[1]:size(1), 'E_ARG', op,
         'expected tensors of one dtype and batch, got %s of %d rows and %s of %d', xs[1].dtype,
         xs[1]:size(1), x.dtype, x:size(1))
      err.raise_if(x:size(2) ~= tokens, 'E_SHAPE', op, 'expected %d tokens, got %d', tokens,
         x:size(2))
      P = P + x:size(3)
   end
   if P ~= width then err.raise('E_SHAPE', op, 'expected %d channels, got %d', width, P) end
end

-- Returns this rank's channels of all tokens, [B, T, w], in the order of the sequence: one result,
-- or one for each of widths, which add up to w. xs: x [B, L, P] of this rank's tokens, or a list of
-- tensors [B, L, ..] side by side (of one dtype). No run of channels crosses an edge of either
-- side. kept: the number of first channels of x that are not sent; they are the last result. wide:
-- a list of booleans; where true, the gradient of xs[i] is summed in f32 and rounded once, which
-- holds it in f32 meanwhile.
function exchange.enter(xs, comm, cols, rows, widths, kept, wide)
   local op = 'parallel.cp.exchange.enter'
   if type(xs) ~= 'table' then xs = { xs } end
   check(op, xs, cols.width, rows.counts[comm.rank + 1])
   return enter_fn({ comm = comm, cols = cols, rows = rows, kept = kept or 0, wide = wide or {},
      widths = widths or { cols.widths[comm.rank + 1] } }, unpack(xs))
end

-- Undoes enter: returns [B, L, P] of y [B, T, w]. cols: every channel is on exactly one rank.
function exchange.leave(y, comm, cols, rows)
   local op = 'parallel.cp.exchange.leave'
   check(op, { y }, cols.widths[comm.rank + 1], rows.total)
   return leave_fn(y, comm, cols, rows)
end

-- Returns the bytes that a rank sends in one exchange of its n tokens, of elements of `size` bytes;
-- the gradient sends the second number.
function exchange.bytes(cols, rank, n, size)
   local W, own = #cols.widths, cols.widths[rank + 1]
   return (cols.total - own) * n * size, (W - 1) * own * n * size
end

return exchange
