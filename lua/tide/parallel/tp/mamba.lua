-- Tensor parallelism of a Mamba-2 layer: its heads among the ranks.
--
-- The code between the two projections treats each head by itself, so a rank runs the layer with
-- fewer heads. z, x, dt and what belongs to heads are cut by heads. B and C are cut by groups where
-- no group has heads on two ranks; else they are cut anywhere, evenly, and a rank gathers them (2 G
-- N channels of activations and of the convolution) and takes the groups that its heads read. So
-- every parameter lies on exactly one rank, whatever heads and groups are. The norm is over groups
-- of channels; where one has channels on several ranks, its sums of squares are added over them.
-- Legend: H heads, P head size, G groups, N state size, I = H P, K taps.

local tide = require 'tide'
local private = require 'tide.util.private'
local layer = require 'tide.parallel.tp.layer'
local layout = require 'tide.parallel.layout'
local collective = require 'tide.parallel.collective_op'
local split = require 'tide.parallel.mamba.split'
local divide = require('tide.nn.mamba').divide
local sum = require('tide.util.dims').sum

local tp_mamba = {}

local function counts_of(parts, field, factor)
   local list = {}
   for r, part in ipairs(parts) do list[r] = part[field] * factor end
   return list
end

-- Returns which rank holds what: parts (see mamba/split.lua), and counts a rank for each block of
-- rows of in_proj, of channels of the convolution, of inner channels and of heads. gathered: counts
-- of [B | C].
function tp_mamba.plan(m, n)
   local P, N, G = m.head_dim, m.state, m.groups
   local parts = split.heads(m.heads, G, n)
   local plan = { parts = parts, heads = counts_of(parts, 'heads', 1),
      inner = counts_of(parts, 'heads', P), channels = 2 * G * N, norm_group = m.norm.group }
   local groups = counts_of(parts, 'groups', N)
   if sum(groups) == G * N then
      plan.conv = { plan.inner, groups, groups }
   else
      plan.gathered = layout.balanced(plan.channels, n)
      plan.conv = { plan.inner, plan.gathered }
   end
   plan.rows = { plan.inner, unpack(plan.conv) }
   plan.rows[#plan.rows + 1] = plan.heads
   return plan
end

-- ---- B and C of the own groups ---------------------------------------------------------------

-- Returns which of the gathered channels (from 0) a rank's heads read, in the order of the layer;
-- nil: all.
local function wanted(m, part)
   local own = part.list
   if not own then
      if part.groups == m.groups then return nil, m.groups end
      own = {}
      for k = 1, part.groups do own[k] = k - 1 end
   end
   return split.channels(own, part.group, 0, m.groups, m.state), #own
end

-- Gathers t [.., channels of this rank, ..] along dim into the channels of the rank's groups.
local function gather(env, plan, take, t, dim)
   t = collective.all_gather_v(t, env.axis, dim, plan.gathered)
   if not take then return t end
   return t:index_select(dim, tide.tensor(take, { dtype = 'i64', device = t.device }))
end

-- ---- the norm --------------------------------------------------------------------------------

-- Returns the pieces { group, first, count } of this rank's channels that lie in one group of the
-- norm.
local function pieces_of(first, count, group)
   local list, at = {}, 0
   while at < count do
      local k = math.floor((first + at) / group)
      local n = math.min(count - at, (k + 1) * group - first - at)
      list[#list + 1] = { group = k, first = at, count = n }
      at = at + n
   end
   return list
end

local function wide(t) return t.dtype == 'f64' and t or t:float() end

local function joined(list) return #list == 1 and list[1] or tide.cat(list, -1) end

-- Returns 1 / rms of each own piece, [B, T, 1]; u [B, T, own channels].
local function rates(norm, env, pieces, u, groups)
   local sums, at = {}, {}
   for i, p in ipairs(pieces) do at[p.group + 1] = i end
   for k = 1, groups do
      local p = pieces[at[k]]
      sums[k] = p and u:narrow(-1, p.first + 1, p.count):square():sum(-1, true)
         or tide.zeros({ u:size(1), u:size(2), 1 }, { dtype = u.dtype, device = u.device })
   end
   local all = collective.all_reduce(joined(sums), env.axis)
   local out = {}
   for i, p in ipairs(pieces) do
      out[i] = (all:narrow(-1, p.group + 1, 1) / norm.group + norm.eps):rsqrt()
   end
   return out
end

-- Replaces the forward of a norm whose groups lie over ranks. Statistics are f32 (f64), as in the
-- fused one.
local function spread_norm(norm, env, plan)
   local first = sum(plan.inner, env.axis.rank)
   local groups = sum(plan.inner) / plan.norm_group
   local pieces = pieces_of(first, plan.inner[env.axis.rank + 1], plan.norm_group)
   local function normed(self, x, z)
      local y, gate = wide(x), wide(z)
      if not self.gate_last then y = tide.swiglu(gate, y) end
      local rate, list = rates(self, env, pieces, y, groups), {}
      for i, p in ipairs(pieces) do list[i] = y:narrow(-1, p.first + 1, p.count) * rate[i] end
      y = joined(list) * wide(self.weight)
      if self.gate_last then y = tide.swiglu(gate, y) end
      return y:to(x.dtype)
   end
   layer.around(norm, function(_, self, x, z) return private.frame(normed, self, x, z) end)
end

-- ---- the layer -------------------------------------------------------------------------------

-- Returns a function that makes what a layer with fewer heads expects of what this rank's rows of
-- in_proj give; nil: they are the same.
function tp_mamba.after(m, env, plan)
   if not plan.gathered then return nil end
   local take = wanted(m, plan.parts[env.axis.rank + 1])
   local widths = {}
   for i, counts in ipairs(plan.rows) do widths[i] = counts[env.axis.rank + 1] end
   local function joint(projected)
      local z, x, channels, dt = divide(projected, widths)
      return tide.cat({ z, x, gather(env, plan, take, channels, 3), dt }, -1)
   end
   return function(projected) return private.frame(joint, projected) end
end

-- Makes the layer one of this rank's heads, but for its two projections.
function tp_mamba.apply(m, env, plan)
   local part, rank = plan.parts[env.axis.rank + 1], env.axis.rank + 1
   local take, groups
   if plan.gathered then take, groups = wanted(m, part) else groups = part.groups end
   local width = plan.inner[rank]
   for _, field in ipairs { 'dt_bias', 'A_log', 'D' } do
      local each = m[field]:numel() / m.heads
      layer.place(m, field, env, 1, { counts_of(plan.parts, 'heads', each) })
   end
   layer.place(m.conv1d, 'weight', env, 1, plan.conv)
   if m.conv1d.bias then layer.place(m.conv1d, 'bias', env, 1, plan.conv) end
   layer.place(m.norm, 'weight', env, 1, { plan.inner })
   if plan.gathered then
      spread_norm(m.norm, env, plan)
      -- Returns the rows of x, then the gathered ones.
      local function whole(t)
         local n = plan.gathered[rank]
         return tide.cat({ t:narrow(1, 1, width), gather(env, plan, take,
            t:narrow(1, width + 1, n), 1) }, 1)
      end
      layer.around(m, function(next, self)
         local weight, bias = next(self)
         return whole(weight), bias and whole(bias)
      end, { of = 'filter' })
   end
   m.norm.dim = width
   m.heads, m.groups, m.inner_dim = part.heads, groups, width
   m.conv_dim = width + 2 * groups * m.state
end

return tp_mamba
