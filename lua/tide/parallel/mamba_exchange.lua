-- The exchange of hidden-parallel Mamba: all channels of some tokens against all tokens of some
-- channels (layer 8).
--
-- The one idea: channels and tokens are cut by two small tables made once, columns (which runs of
-- channels each rank works on) and rows (where each token of the sequence lies). An exchange is
-- then one copy that packs, one all-to-all, and one selection of rows that undoes rank order,
-- packed documents and load balancing at once. Each is the derivative of the other.
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
   local self = { width = width, parts = {}, widths = {}, even = true }
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
      self.even = self.even and at == self.widths[1]
   end
   return self
end

-- ---- rows ------------------------------------------------------------------------------------

local Rows = {}
Rows.__index = Rows

-- places: i64 tensor on the host, for each position of the sequence its place among the tokens of
-- all ranks in rank order; count tokens on each of size ranks.
function exchange.rows(places, size, count)
   return setmetatable({ places = places, size = size, count = count, keep = {} }, Rows)
end

-- For rows [B, T] of the sequence their places in what the all-to-all brings, which is
-- [rank, B, count]; and the inverse. Made once for each B and device.
function Rows:index(B, device)
   local key = B .. device
   local found = self.keep[key]
   if found and not found.to:is_gone() then return found.to, found.from end
   local W, n, to = self.size, self.count, self.places
   if B > 1 then
      to = tide.arange(W * B * n, { dtype = 'i64', device = 'cpu' }):reshape { W, B, n }
         :permute(2, 1, 3):contiguous():reshape { B, W * n }:index_select(2, to)
         :reshape { B * W * n }
   end
   found = { to = to, from = tide.inverse_index(to) }
   if device ~= 'cpu' then found.to, found.from = found.to:to(device), found.from:to(device) end
   self.keep[key] = found
   return found.to, found.from
end

-- ---- copies ----------------------------------------------------------------------------------

local function like(x, shape) return tide.empty(shape, { dtype = x.dtype, device = x.device }) end

local function total(list)
   local n = 0
   for _, c in ipairs(list) do n = n + c end
   return n
end

-- x [B, L, P] -> flat: for each rank [B * L, w].
local function pack(x, cols)
   local n = x:size(1) * x:size(2)
   local rows = x:reshape { n, x:size(3) }
   local out, at = like(x, { n * total(cols.widths) }), 1
   for r, runs in ipairs(cols.parts) do
      local w = cols.widths[r]
      local part = out:narrow(1, at, n * w):reshape { n, w }
      for _, run in ipairs(runs) do
         part:narrow(2, run[3] + 1, run[2]):copy_(rows:narrow(2, run[1] + 1, run[2]))
      end
      at = at + n * w
   end
   return out
end

-- The way back, into y [n, P]; channels that no rank has stay as they are.
local function unpack_into(y, flat, cols)
   local n, at = y:size(1), 1
   for r, runs in ipairs(cols.parts) do
      local w = cols.widths[r]
      local part = flat:narrow(1, at, n * w):reshape { n, w }
      for _, run in ipairs(runs) do
         local into, from = y:narrow(2, run[1] + 1, run[2]), part:narrow(2, run[3] + 1, run[2])
         if run[4] then into:add_(from) else into:copy_(from) end
      end
      at = at + n * w
   end
end

local function times(list, n)
   local out = {}
   for i, c in ipairs(list) do out[i] = c * n end
   return out
end

-- `out` elements go to each rank, `back` come from each.
local function all_to_all(flat, comm, cols, out, back)
   if comm.size == 1 then return flat end
   if cols.even then return comm:all_to_all(flat) end
   return comm:all_to_all_v(flat, out, back)
end

-- What goes to rank j has its channels; what comes has the own ones.
local function counts(cols, comm, n)
   local own = {}
   for r = 1, comm.size do own[r] = n * cols.widths[comm.rank + 1] end
   return times(cols.widths, n), own
end

local function to_channels(x, comm, cols, rows)
   local B, n, w = x:size(1), x:size(1) * x:size(2), cols.widths[comm.rank + 1]
   local out, back = counts(cols, comm, n)
   local got = all_to_all(pack(x, cols), comm, cols, out, back):reshape { n * comm.size, w }
   local T = rows.size * rows.count
   if w == 0 then return like(x, { B, T, 0 }) end
   return got:index_select(1, (rows:index(B, x.device))):reshape { B, T, w }
end

-- y [B, T, w] -> flat parts of every rank for the tokens of this one.
local function to_tokens(y, comm, cols, rows)
   local B, w = y:size(1), cols.widths[comm.rank + 1]
   local _, from = rows:index(B, y.device)
   local flat = y:reshape { y:numel() }
   if w > 0 then
      flat = y:contiguous():reshape { B * y:size(2), w }:index_select(1, from)
         :reshape { y:numel() }
   end
   local out, back = counts(cols, comm, B * rows.count)
   return all_to_all(flat, comm, cols, back, out)
end

-- ---- the two exchanges -----------------------------------------------------------------------

local func = tide.grad.func

local enter_fn = func {
   name = 'mamba_cp.enter',
   forward = function(self, x, comm, cols, rows, kept)
      self.comm, self.cols, self.rows, self.kept = comm, cols, rows, kept
      self.shape = x.shape
      local y = to_channels(x, comm, cols, rows)
      if kept == 0 then return y end
      return y, x:narrow(3, 1, kept)
   end,
   backward = function(self, dy, dkept)
      local cols, shape = self.cols, self.shape
      local B, L = shape[1], shape[2]
      if not dy then
         local T = self.rows.size * self.rows.count
         dy = tide.zeros({ B, T, cols.widths[self.comm.rank + 1] },
            { dtype = dkept.dtype, device = dkept.device })
      end
      local flat = to_tokens(dy, self.comm, cols, self.rows)
      local dx = like(flat, { B * L, shape[3] })
      if self.kept > 0 then
         local part = dx:narrow(2, 1, self.kept)
         if dkept then part:copy_(dkept:reshape { B * L, self.kept }) else part:zero_() end
      end
      unpack_into(dx, flat, cols)
      return dx:reshape(shape)
   end,
}

local leave_fn = func {
   name = 'mamba_cp.leave',
   forward = function(self, y, comm, cols, rows)
      self.comm, self.cols, self.rows = comm, cols, rows
      local B, L = y:size(1), rows.count
      local flat = to_tokens(y, comm, cols, rows)
      local x = like(flat, { B * L, cols.width })
      unpack_into(x, flat, cols)
      return x:reshape { B, L, cols.width }
   end,
   backward = function(self, dx) return to_channels(dx, self.comm, self.cols, self.rows) end,
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

-- x [B, L, P] of this rank's tokens -> [B, T, w], all tokens in the order of the sequence, this
-- rank's channels. kept: as many of the first channels do not travel; they are the second result.
function exchange.enter(x, comm, cols, rows, kept)
   check('parallel.mamba_cp.enter', x, comm, rows, cols.width, rows.count)
   return enter_fn(x, comm, cols, rows, kept or 0)
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
   return (total(cols.widths) - own) * n * size, (W - 1) * own * n * size
end

return exchange
