-- The exchange of hidden-parallel Mamba: all channels of some tokens against all tokens of some
-- channels (layer 8).
--
-- The one idea: channels and tokens are cut by two small tables made once, columns (which runs of
-- channels each rank works on) and rows (which runs of the sequence each rank has). What a rank
-- keeps is copied once, from its place to its place. What travels is packed, sent, and put where it
-- belongs, which undoes rank order, packed documents and load balancing at once. Each way is the
-- derivative of the other.
--
-- A run of channels that several ranks ask for goes to each of them; what comes back is added up.
-- Legend: B batch, L tokens of this rank, T of all, w channels of a rank, P of all.

local tide = require 'tide'
local err = require 'tide.util.err'

local exchange = {}

-- ---- columns ---------------------------------------------------------------------------------

-- parts: a list a rank of runs { first, count } (from 0) of the P channels, in the order in which
-- the rank wants them. Runs of equal place in the lists form a family whose first channels never
-- decrease from rank to rank.
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

-- list: for each rank its runs of the sequence { first, count, first, count, ... } (from 0) in the
-- order in which it has them; count tokens on each rank.
function exchange.rows(list, count)
   local self = setmetatable({ size = #list, count = count, keep = {}, runs = list }, Rows)
   for _, runs in ipairs(list) do self.flat = self.flat or #runs > 2 * MOST_RUNS end
   if not self.flat then return self end
   local all = {}
   self.runs = {}
   for r, runs in ipairs(list) do
      self.runs[r] = { (r - 1) * count, count }
      for _, v in ipairs(runs) do all[#all + 1] = v end
   end
   self.order = tide.run_index(tide.tensor(all, { dtype = 'i64', device = 'cpu' })
      :reshape { #all / 2, 2 }, 'i64')
   return self
end

-- Of rows in rank order: for each position of the sequence its row, and the inverse.
function Rows:index(device)
   local found = self.keep[device]
   if found and not found.to:is_gone() then return found.to, found.from end
   found = { to = tide.inverse_index(self.order), from = self.order }
   if device ~= 'cpu' then found.to, found.from = found.to:to(device), found.from:to(device) end
   self.keep[device] = found
   return found.to, found.from
end

-- ---- copies ----------------------------------------------------------------------------------

local function like(x, shape) return tide.empty(shape, { dtype = x.dtype, device = x.device }) end

local function put(into, from, add)
   if add then into:add_(from) else into:copy_(from) end
end

-- fn(position in the sequence, place among the tokens of rank r, count) for each of its runs.
local function each_run(rows, r, fn)
   local runs, at = rows.runs[r + 1], 0
   for i = 1, #runs, 2 do
      if runs[i + 1] > 0 then fn(runs[i], at, runs[i + 1]) end
      at = at + runs[i + 1]
   end
end

-- Channels at, at + count of the results ys (side by side), as a view; a run lies in one of them.
local function channels_of(ys, at, count)
   for _, y in ipairs(ys) do
      local w = y:size(3)
      if at < w then return y:narrow(3, at + 1, count) end
      at = at - w
   end
end

-- The own part, between tokens x [B, L, P] and channels ys: fn(view of x, view of ys, shared).
local function own_part(x, ys, comm, cols, rows, fn)
   for _, run in ipairs(cols.parts[comm.rank + 1]) do
      local first, count, at, shared = unpack(run)
      if count > 0 then
         local from, to = x:narrow(3, first + 1, count), channels_of(ys, at, count)
         each_run(rows, comm.rank, function(g, i, n)
            fn(from:narrow(2, i + 1, n), to:narrow(2, g + 1, n), shared)
         end)
      end
   end
end

-- A part [B, L, w] of rank r between its tokens x [B, L, P]: fn(view of x, view of part, shared).
local function tokens_part(x, part, cols, r, fn)
   for _, run in ipairs(cols.parts[r + 1]) do
      local first, count, at, shared = unpack(run)
      if count > 0 then
         fn(x:narrow(3, first + 1, count), part:narrow(3, at + 1, count), shared)
      end
   end
end

-- A part [B, L, w] of this rank's channels of rank r's tokens: fn(view of ys, view of part).
local function channels_part(ys, part, rows, r, fn)
   local at = 0
   for _, y in ipairs(ys) do
      local w = y:size(3)
      if w > 0 then
         local columns = part:narrow(3, at + 1, w)
         each_run(rows, r, function(g, i, n)
            fn(y:narrow(2, g + 1, n), columns:narrow(2, i + 1, n))
         end)
      end
      at = at + w
   end
end

-- ---- what travels ----------------------------------------------------------------------------

-- A flat buffer of a part [B, L, widths[r]] for every rank but this one, the parts, and numbers of
-- elements; widths: a list, or one for all.
local function buffer(x, comm, rows, widths)
   local B, L, parts, counts, n = x:size(1), rows.count, {}, {}, 0
   for r = 0, comm.size - 1 do
      local w = type(widths) == 'table' and widths[r + 1] or widths
      counts[r + 1] = r == comm.rank and 0 or B * L * w
      n = n + counts[r + 1]
   end
   local flat, at = like(x, { n }), 0
   for r = 0, comm.size - 1 do
      if counts[r + 1] > 0 then
         parts[r] = flat:narrow(1, at + 1, counts[r + 1])
            :reshape { B, L, counts[r + 1] / (B * L) }
      end
      at = at + counts[r + 1]
   end
   return flat, parts, counts
end

-- x [B, L, P] -> ys, [B, T, width] for each of widths, which add up to this rank's channels.
local function to_channels(x, comm, cols, rows, widths)
   local B, T, ys = x:size(1), rows.size * rows.count, {}
   for i, w in ipairs(widths) do ys[i] = like(x, { B, T, w }) end
   local flat, parts, out = buffer(x, comm, rows, cols.widths)
   local got, come, back = buffer(x, comm, rows, cols.widths[comm.rank + 1])
   for r = 0, comm.size - 1 do
      if parts[r] then
         tokens_part(x, parts[r], cols, r, function(from, to) to:copy_(from) end)
      end
   end
   if comm.size > 1 then comm:all_to_all_v(flat, out, back, got) end
   for r = 0, comm.size - 1 do
      if come[r] then
         channels_part(ys, come[r], rows, r, function(to, from) to:copy_(from) end)
      end
   end
   own_part(x, ys, comm, cols, rows, function(from, to) to:copy_(from) end)
   if rows.flat then
      local to = rows:index(x.device)
      for i, y in ipairs(ys) do if y:size(3) > 0 then ys[i] = y:index_select(2, to) end end
   end
   return ys
end

-- The way back, into x [B, L, P]; channels that no rank has stay as they are.
local function to_tokens(x, ys, comm, cols, rows)
   if rows.flat then
      local _, from = rows:index(x.device)
      local list = {}
      for i, y in ipairs(ys) do list[i] = y:size(3) > 0 and y:index_select(2, from) or y end
      ys = list
   end
   local flat, parts, out = buffer(x, comm, rows, cols.widths[comm.rank + 1])
   local got, come, back = buffer(x, comm, rows, cols.widths)
   for r = 0, comm.size - 1 do
      if parts[r] then
         channels_part(ys, parts[r], rows, r, function(from, to) to:copy_(from) end)
      end
   end
   if comm.size > 1 then comm:all_to_all_v(flat, out, back, got) end
   for r = 0, comm.size - 1 do                      -- in rank order: sums are alike everywhere
      if r == comm.rank then
         own_part(x, ys, comm, cols, rows, put)
      elseif come[r] then
         tokens_part(x, come[r], cols, r, put)
      end
   end
end

-- ---- the two exchanges -----------------------------------------------------------------------

local func = tide.grad.func

local enter_fn = func {
   name = 'mamba_cp.enter',
   forward = function(self, x, comm, cols, rows, widths, kept)
      self.comm, self.cols, self.rows, self.widths, self.kept = comm, cols, rows, widths, kept
      self.shape, self.like = x.shape, { dtype = x.dtype, device = x.device }
      local ys = to_channels(x, comm, cols, rows, widths)
      if kept > 0 then ys[#ys + 1] = x:narrow(3, 1, kept) end
      return unpack(ys)
   end,
   backward = function(self, ...)
      local rows, n, shape, dys = self.rows, #self.widths, self.shape, { ... }
      local dkept, ys = dys[n + 1], {}
      for i, w in ipairs(self.widths) do
         ys[i] = dys[i] or tide.zeros({ shape[1], rows.size * rows.count, w }, self.like)
      end
      local dx = tide.empty(shape, self.like)
      if self.kept > 0 then
         local part = dx:narrow(3, 1, self.kept)
         if dkept then part:copy_(dkept) else part:zero_() end
      end
      to_tokens(dx, ys, self.comm, self.cols, rows)
      return dx
   end,
}

local leave_fn = func {
   name = 'mamba_cp.leave',
   forward = function(self, y, comm, cols, rows)
      self.comm, self.cols, self.rows, self.widths = comm, cols, rows, { y:size(3) }
      local x = like(y, { y:size(1), rows.count, cols.width })
      to_tokens(x, { y }, comm, cols, rows)
      return x
   end,
   backward = function(self, dx)
      return to_channels(dx, self.comm, self.cols, self.rows, self.widths)[1]
   end,
}

local function check(op, x, comm, rows, width, tokens)
   if not tide.is_tensor(x) or x.ndim ~= 3 then err.arg(op, 'x', 'a tensor [B, T, channels]', x) end
   if x:size(2) ~= tokens then
      err.raise('E_SHAPE', op, 'expected %d tokens, got %d', tokens, x:size(2))
   end
   if x:size(3) ~= width then
      err.raise('E_SHAPE', op, 'expected %d channels, got %d', width, x:size(3))
   end
   if comm.size ~= rows.size then
      err.raise('E_ARG', op, 'the tokens lie on %d ranks, the communicator has %d', rows.size,
         comm.size)
   end
end

-- x [B, L, P] of this rank's tokens -> [B, T, w]: all tokens in the order of the sequence, of this
-- rank's channels, as one result or one for each of widths, which add up to w and cut no run. kept:
-- as many of the first channels do not travel; they are the last result.
function exchange.enter(x, comm, cols, rows, widths, kept)
   check('parallel.mamba_cp.enter', x, comm, rows, cols.width, rows.count)
   return enter_fn(x, comm, cols, rows, widths or { cols.widths[comm.rank + 1] }, kept or 0)
end

-- The way back: y [B, T, w] -> [B, L, P]. cols: every channel on exactly one rank.
function exchange.leave(y, comm, cols, rows)
   check('parallel.mamba_cp.leave', y, comm, rows, cols.widths[comm.rank + 1],
      rows.size * rows.count)
   return leave_fn(y, comm, cols, rows)
end

-- Bytes that a rank sends in one exchange of its n tokens, of elements of `size` bytes; the
-- gradient sends the second number.
function exchange.bytes(cols, rank, n, size)
   local W, own = #cols.widths, cols.widths[rank + 1]
   return (cols.total - own) * n * size, (W - 1) * own * n * size
end

return exchange
