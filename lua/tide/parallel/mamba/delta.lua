-- Gated delta nets over ranks by heads: inside the mixer a rank has all tokens of its heads of
-- values, as hidden.lua has of Mamba-2. Heads of keys take the place of groups: each rank gets
-- those that its heads of values read.

local tide = require 'tide'
local private = require 'tide.util.private'
local exchange = require 'tide.parallel.cp.exchange'
local split = require 'tide.parallel.mamba.split'
local hidden = require 'tide.parallel.mamba.hidden'
local GatedDeltaNet = require 'tide.nn.gated_delta'

local delta = {}

-- Returns the runs { first, count } of what a part reads of the channels [q | k | v], and with
-- after = true of b and a after them.
local function runs_of(part, layer, after)
   local N, D, H = layer.key_dim, layer.head_dim, layer.heads
   local keys, channels = layer.key_heads * N, layer.conv_dim
   local first, count = part.group * N, part.groups * N
   local runs = { { first, count }, { keys + first, count },
      { 2 * keys + part.head * D, part.heads * D } }
   if after then
      runs[4] = { channels + part.head, part.heads }
      runs[5] = { channels + H + part.head, part.heads }
   end
   return runs
end

-- Returns what stays the same from batch to batch: parts of every rank, channels that travel.
function delta.prepare(layer, comm)
   local parts = split.heads(layer.heads, layer.key_heads, comm.size)
   local go, back = {}, {}
   for r, part in ipairs(parts) do
      go[r] = runs_of(part, layer, true)
      back[r] = { { part.head * layer.head_dim, part.heads * layer.head_dim } }
   end
   return {
      part = parts[comm.rank + 1], parts = parts,
      go = exchange.columns(go, layer.conv_dim + 2 * layer.heads),
      back = exchange.columns(back, layer.inner_dim),
   }
end

-- Returns a view of `layer` with the heads of a part: what convolve and recur need.
local function part_of(layer, part)
   local weight = hidden.rows_of(private.call(layer.filter, layer), runs_of(part, layer))
   local own = {
      heads = part.heads, head_dim = layer.head_dim, key_dim = layer.key_dim, taps = layer.taps,
      key_heads = part.list and #part.list or part.groups,
      inner_dim = part.heads * layer.head_dim, conv = layer.conv, rule = layer.rule,
      filter = function() return weight, nil end,
   }
   own.conv_dim = 2 * part.groups * layer.key_dim + own.inner_dim
   for _, name in ipairs { 'dt_bias', 'A_log' } do
      own[name] = layer[name]:narrow(1, part.head + 1, part.heads)
   end
   return own
end

-- Returns q and k as the rule wants them, some heads several times, beside v.
local function spread(qkv, own, part)
   local width = 2 * part.groups * own.key_dim
   local index = split.channels(part.list, 0, 0, part.groups, own.key_dim)
   local of_keys = qkv:index_select(3, tide.tensor(index, { dtype = 'i64', device = qkv.device }))
   return tide.cat({ of_keys, qkv:narrow(3, width + 1, own.inner_dim) }, 3)
end

-- Computes layer:mix: y [B, L, I] of projected [B, L, P]. plan: of prepare; rows: of
-- cp/exchange.lua, rows(); sequence: [B or 1, T] of the whole sequence, or nil.
function delta.inner(layer, projected, comm, plan, rows, sequence)
   local part = plan.part
   local own = part_of(layer, part)
   local qkv, b, a = exchange.enter(projected, comm, plan.go, rows,
      { own.conv_dim, part.heads, part.heads })
   local y
   if part.heads == 0 then
      y = hidden.nothing(qkv, own.dt_bias, own.A_log, (own.filter()))
   else
      local at = { sequence = sequence }
      qkv = GatedDeltaNet.convolve(own, qkv, at)
      if part.list then qkv = spread(qkv, own, part) end
      y = GatedDeltaNet.recur(own, qkv, b, a, at)
   end
   return exchange.leave(y, comm, plan.back, rows)
end

return delta
