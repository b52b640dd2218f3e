-- Mamba-2 over ranks by heads: inside the mixer a rank has all tokens of its heads.
--
-- The code between the two projections of a layer treats each head by itself, so it runs unchanged
-- on a smaller layer: a view of the real one with fewer heads and the matching parts of its
-- parameters. Two exchanges bring tokens to heads and back; the gate stays where it is.
--
-- The parameters are read at the call, so sharded and replaced ones are seen; a rank's gradient is
-- that of its heads, zeros elsewhere, and the sum over ranks is the whole.

local tide = require 'tide'
local private = require 'tide.util.private'
local exchange = require 'tide.parallel.cp.exchange'
local split = require 'tide.parallel.mamba.split'
local Mamba2 = require('tide.nn.mamba').Mamba2

local hidden = {}

-- Returns what stays the same from batch to batch: parts of every rank, channels that travel.
function hidden.prepare(layer, comm)
   local parts = split.heads(layer.heads, layer.groups, comm.size)
   local go, back = {}, {}
   for r, part in ipairs(parts) do
      go[r] = split.runs(part, layer, layer.inner_dim, true)
      back[r] = { { part.head * layer.head_dim, part.heads * layer.head_dim } }
   end
   local width = layer.inner_dim + layer.conv_dim + layer.heads
   return {
      part = parts[comm.rank + 1], parts = parts, go = exchange.columns(go, width),
      back = exchange.columns(back, layer.inner_dim),
   }
end

-- ---- the smaller layer -----------------------------------------------------------------------

-- Returns the rows of t in runs { first, count }.
function hidden.rows_of(t, runs)
   local list = {}
   for i, run in ipairs(runs) do list[i] = t:narrow(1, run[1] + 1, run[2]) end
   return #list == 1 and list[1] or tide.cat(list, 1)
end

-- Returns a view of `layer` with the heads of a part: what Mamba2.convolve and Mamba2.recur need.
local function part_of(layer, part)
   local P, N = layer.head_dim, layer.state
   local runs = split.runs(part, layer, 0)
   local D = layer.D
   local weight, bias = private.call(layer.filter, layer)
   weight, bias = hidden.rows_of(weight, runs), bias and hidden.rows_of(bias, runs)
   local each = D:numel() / layer.heads
   local own = {
      heads = part.heads, head_dim = P, groups = part.list and #part.list or part.groups, state = N,
      inner_dim = part.heads * P, conv_dim = part.heads * P + 2 * part.groups * N,
      taps = layer.taps, chunk = layer.chunk, dt_limit = layer.dt_limit,
      conv = layer.conv, scan = layer.scan, filter = function() return weight, bias end,
      D = D:narrow(1, part.head * each + 1, part.heads * each),
   }
   for _, name in ipairs { 'dt_bias', 'A_log' } do
      own[name] = layer[name]:narrow(1, part.head + 1, part.heads)
   end
   return own
end

-- Returns the groups of B and C as the rule of the scan wants them: some of them several times.
local function spread(xBC, own, part)
   local I = own.inner_dim
   local index = split.channels(part.list, 0, I, part.groups, own.state)
   local of_groups = xBC:index_select(3, tide.tensor(index, { dtype = 'i64', device = xBC.device }))
   return tide.cat({ xBC:narrow(3, 1, I), of_groups }, 3)
end

-- Returns the result of a rank without heads: nothing, but attached to all parameters (empty parts
-- of them), as that of a rank with heads is.
function hidden.nothing(mine, ...)
   local y = mine
   for _, t in ipairs { ... } do y = y + t:reshape { 0 }:to(mine.dtype) end
   return y
end

-- ---- the call --------------------------------------------------------------------------------

-- Computes layer:mix: y and z [B, L, I] of projected [B, L, P]. plan: of prepare; rows: of
-- cp/exchange.lua, rows(); sequence: [B or 1, T] of the whole sequence, or nil.
function hidden.inner(layer, projected, comm, plan, rows, sequence)
   local part = plan.part
   local own = part_of(layer, part)
   local xBC, dt, z = exchange.enter(projected, comm, plan.go, rows, { own.conv_dim, part.heads },
      layer.inner_dim)
   local y
   if part.heads == 0 then
      y = hidden.nothing(xBC, own.D, own.dt_bias, own.A_log, own.filter())
   else
      local at = { sequence = sequence }
      xBC = Mamba2.convolve(own, xBC, at)
      if part.list then xBC = spread(xBC, own, part) end
      y = Mamba2.recur(own, xBC, dt, at)
   end
   return exchange.leave(y, comm, plan.back, rows), z
end

-- Returns the bytes that this rank sends for a layer: forward and backward.
function hidden.bytes(plan, rank, n, size)
   local go, go_back = exchange.bytes(plan.go, rank, n, size)
   local back_grad, back = exchange.bytes(plan.back, rank, n, size)
   return go + back, go_back + back_grad
end

return hidden
