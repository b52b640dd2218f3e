-- GatedDeltaNet: linear attention by the gated delta rule (Yang, Kautz and Hatamizadeh, arXiv
-- 2412.06464), with the parameter names and shapes of its published form in Qwen3-Next.
--
-- Projections give queries, keys, values, a gate z, and for each head of values a rate b and a
-- decay a. Queries, keys and values go through a causal convolution, the rule mixes along time, a
-- norm of each head with the gate and a projection end the layer. A head of keys serves as many
-- heads of values as the others. Rows of in_proj_qkvz and in_proj_ba lie by heads of keys: those of
-- q, k, v and z (b and a) of the first head, then those of the second. With `apart` there are four
-- projections instead: in_proj_qkv, in_proj_z, in_proj_b and in_proj_a.
--
-- A plan wraps `mix` (everything between the projections but the norm) to spread the work over
-- ranks; `conv` and `rule` are its two ops, and `filter` gives the weights of the convolution.
-- Legend: B batch, T tokens, M model width, K heads of keys, N their size, H heads of values, D
-- their size, I = H D inner width, C = 2 K N + I channels of the convolution.

local tide = require 'tide'
local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'
local joined = require 'tide.nn.joined'
local mamba = require 'tide.nn.mamba'
local Linear = require 'tide.nn.linear'
local Module = require 'tide.nn.module'

local divide = mamba.divide

local GatedDeltaNet = class('GatedDeltaNet', Module)
GatedDeltaNet.mixes = 'context'

-- Names of the projections that read the same input, in both forms.
local grouped = { 'in_proj_qkvz', 'in_proj_ba' }
local apart = { 'in_proj_qkv', 'in_proj_z', 'in_proj_b', 'in_proj_a' }

-- ---- parameters --------------------------------------------------------------------------------

-- Declares the parameters of the decay with the published initial values: exp(A_log) is uniform in
-- A_range, dt_bias is one.
local function decay(self, opts)
   if opts.recurrence_dtype ~= nil then
      opts = Module.inner(opts, opts)
      opts.dtype = opts.recurrence_dtype
   end
   local A = opts.A_range or { 0.01, 16 }
   err.number('nn.GatedDeltaNet', 'A_range[1]', A[1], 1e-9)
   err.number('nn.GatedDeltaNet', 'A_range[2]', A[2], A[1])
   self:param('dt_bias', { self.heads }, 'ones', opts)
   self:param('A_log', { self.heads }, { kind = 'log_uniform', lo = A[1], hi = A[2] }, opts)
end

-- Makes the layer and its parts.
function GatedDeltaNet:init(opts)
   Module.init(self)
   self.dim, self.key_heads, self.heads = opts.dim, opts.key_heads, opts.heads
   self.key_dim, self.head_dim, self.taps = opts.key_dim, opts.head_dim, opts.conv
   self.inner_dim = self.heads * self.head_dim
   self.conv_dim = 2 * self.key_heads * self.key_dim + self.inner_dim
   self.apart, self.shared_input = opts.apart, opts.apart and apart or grouped
   local widths = opts.apart and { self.conv_dim, self.inner_dim, self.heads, self.heads }
      or { self.conv_dim + self.inner_dim, 2 * self.heads }
   for i, name in ipairs(self.shared_input) do
      local inner = Module.inner(opts, { bias = false, std = opts.std })
      inner.device = 'null'
      self:child(name, Linear(self.dim, widths[i], inner))
   end
   joined.lay(self, opts.device)
   self:child('conv1d', mamba.Conv1d(self.conv_dim, self.taps, Module.inner(opts,
      { bias = false })))
   decay(self, opts)
   self:child('norm', mamba.GatedRMSNorm(self.head_dim, Module.inner(opts,
      { eps = opts.norm_eps, gate_last = true })))
   self:child('out_proj', Linear(self.inner_dim, self.dim, Module.inner(opts,
      { bias = false, std = opts.out_std or opts.std })))
   self:ready(opts)
end

-- The two ops of mix.
GatedDeltaNet.conv, GatedDeltaNet.rule = mamba.Mamba2.conv, private.note(tide.gated_delta)

-- ---- from the order of the projections to that of the convolution ------------------------------

-- Returns views [B, T, K, n] of x [B, T, ..]: for each heads of n channels, one after another.
local function by_head(x, heads, sizes)
   local views, at = {}, 1
   for i, n in ipairs(sizes) do
      views[i] = x:narrow(3, at, heads * n):reshape(x:size(1), x:size(2), heads, n)
      at = at + heads * n
   end
   return unpack(views)
end

-- Returns views of x [B, T, K n], whose channels of each head lie together: one [B, T, K, size] for
-- each of sizes, which add up to n.
local function within_heads(x, heads, sizes)
   return unpack(x:reshape(x:size(1), x:size(2), heads, x:size(3) / heads):split(sizes, -1))
end

-- Returns the channels of q, k, v, b and a [B, T, C + 2 H], and z [B, T, I], of the products of
-- in_proj_qkvz and in_proj_ba. Its own derivative, since that of slices would add up tensors that
-- are zeros but for a slice.
local regroup = private.func {
   name = 'nn.GatedDeltaNet.regroup',
   forward = function(self, qkvz, ba, K, N, V, R)
      self.K, self.N, self.V, self.R = K, N, V, R
      self.like = { dtype = qkvz.dtype, device = qkvz.device }
      local B, T = qkvz:size(1), qkvz:size(2)
      self.B, self.T = B, T
      local mixed = tide.empty({ B, T, K * (2 * N + V + 2 * R) }, self.like)
      local z = tide.empty({ B, T, K * V }, self.like)
      local q, k, v, zs = within_heads(qkvz, K, { N, N, V, V })
      local b, a = within_heads(ba, K, { R, R })
      local to = { by_head(mixed, K, { N, N, V, R, R }) }
      to[6] = by_head(z, K, { V })
      tide.foreach_copy_(to, { q, k, v, b, a, zs })
      return mixed, z
   end,
   backward = function(self, dmixed, dz)
      local B, T, K, N, V, R = self.B, self.T, self.K, self.N, self.V, self.R
      dmixed = dmixed or tide.zeros({ B, T, K * (2 * N + V + 2 * R) }, self.like)
      dz = dz or tide.zeros({ B, T, K * V }, self.like)
      local dqkvz = tide.empty({ B, T, K * 2 * (N + V) }, self.like)
      local dba = tide.empty({ B, T, K * 2 * R }, self.like)
      local q, k, v, zs = within_heads(dqkvz, K, { N, N, V, V })
      local b, a = within_heads(dba, K, { R, R })
      local from = { by_head(dmixed, K, { N, N, V, R, R }) }
      from[6] = by_head(dz, K, { V })
      tide.foreach_copy_({ q, k, v, b, a, zs }, from)
      return dqkvz, dba
   end,
}

-- Returns the products of x with the weights of the projections, as a list.
local function products(self, x)
   local list = joined.call(self, self.shared_input, x)
   if list then return list end
   list = {}
   for i, name in ipairs(self.shared_input) do list[i] = self[name](x) end
   return list
end

-- Returns what mix reads [B, T, C + 2 H], the channels of q, k, v, b and a side by side, and the
-- gate z [B, T, I], of x [B, T, M].
function GatedDeltaNet:read(x_BTM)
   local p, K = products(self, x_BTM), self.key_heads
   if self.apart then
      local mixed = tide.cat({ p[1], p[3], p[4] }, -1)
      private.spend(p[1], p[3], p[4])
      -- a view of one product for all would keep the others until backward
      return mixed, private.replace(p[2], p[2]:contiguous())
   end
   local mixed, z = regroup(p[1], p[2], K, self.key_dim, self.inner_dim / K, self.heads / K)
   private.spend(p[1], p[2])
   return mixed, z
end

-- ---- along the sequence ------------------------------------------------------------------------

-- Returns the convolution's weight [C, taps] and no bias.
function GatedDeltaNet:filter()
   local weight = self.conv1d.weight
   return weight:reshape(weight:size(1), self.taps), nil
end

-- Returns the convolution of q, k and v. opts: initial, sequence, return_last, as of tide.conv1d.
-- Works on anything that has filter and conv, for some of the channels too.
function GatedDeltaNet:convolve(qkv_BTC, opts)
   return mamba.Mamba2.convolve(self, qkv_BTC, opts)
end

-- Returns the logarithms of the decay [B, T, H] in f32 (f64 for f64): -exp(A_log) softplus(a +
-- dt_bias).
function GatedDeltaNet:decays(a_BTH)
   local function wide(t) return t.dtype == 'f64' and t or t:float() end
   local rates, sum = mamba.Mamba2.rates(self), wide(a_BTH) + wide(self.dt_bias)
   local step = private.replace(sum, sum:softplus())
   local g = step * rates
   private.spend(step, rates)
   return g
end

-- Returns the result y [B, T, I] of the rule for what the convolution gave [B, T, C], b and a [B,
-- T, H], and the state. opts: initial, sequence, return_last, as of tide.gated_delta.
function GatedDeltaNet:recur(qkv_BTC, b_BTH, a_BTH, opts)
   local B, T, I = qkv_BTC:size(1), qkv_BTC:size(2), self.inner_dim
   local K, N = self.key_heads, self.key_dim
   local q, k, v = divide(qkv_BTC, { K * N, K * N, I })
   q = private.replace(q, q:reshape(B, T, K, N))
   k = private.replace(k, k:reshape(B, T, K, N))
   v = private.replace(v, v:reshape(B, T, self.heads, self.head_dim))
   local g, beta = GatedDeltaNet.decays(self, a_BTH), b_BTH:sigmoid()
   local y, last = private.call(self.rule, q, k, v, g, beta, { l2norm = true,
      sequence = opts.sequence, initial = opts.initial, return_last = opts.return_last })
   private.spend(q, k, v, g, beta)
   return private.replace(y, y:reshape(B, T, I)), last
end

-- Computes the part between the projections: returns y [B, T, I] of what read gives [B, T, C + 2
-- H]. at: { sequence = [B or 1, T], cache = table of this layer or nil }.
function GatedDeltaNet:mix(projected_BTP, at)
   local qkv, b, a = divide(projected_BTP, { self.conv_dim, self.heads, self.heads })
   local cache, kept = at.cache, at.cache ~= nil
   local rows, last, y
   local before = qkv
   qkv, rows = private.call(self.convolve, self, qkv, { sequence = at.sequence,
      initial = cache and cache.conv, return_last = kept })
   private.spend(before)
   y, last = private.call(self.recur, self, qkv, b, a, { sequence = at.sequence,
      initial = cache and cache.state, return_last = kept })
   private.spend(qkv, b, a)
   if cache then cache.conv, cache.state = private.keep(rows, last) end
   return y
end

signature.doors('nn.GatedDeltaNet', GatedDeltaNet, {
   read = 'x_BTM: tensor [B, T, M]', convolve = 'qkv_BTC: tensor [B, T, C]; opts: table',
   recur = 'qkv_BTC: tensor [B, T, C]; b_BTH: tensor [B, T, H]; a_BTH: tensor [B, T, H]; '
      .. 'opts: table',
   mix = 'projected_BTP: tensor [B, T, C]; at: table',
})

-- Returns the output [B, T, M] of x. Fields of at: sequence, the number of the sequence of each
-- token [B or 1, T]; cache, a table or nil; context. A cache holds the last rows of the convolution
-- and the state, so its size does not depend on the number of tokens.
function GatedDeltaNet:forward(x_BTM, at)
   at = mamba.place('nn.GatedDeltaNet', self, x_BTM, at)
   local p, z = private.call(self.read, self, x_BTM)
   local B, T = p:size(1), p:size(2)
   local y = private.call(self.mix, self, p, at)
   private.spend(p)
   y = private.replace(y, y:reshape(B, T, self.heads, self.head_dim))
   z = private.replace(z, z:reshape(B, T, self.heads, self.head_dim))
   local n = self.norm(y, z)
   private.spend(y, z)
   n = private.replace(n, n:reshape(B, T, self.inner_dim))
   return private.replace(n, self.out_proj(n))
end
private.note_methods(GatedDeltaNet)

-- Cuts the layer by heads of keys, with the heads of values that they serve, or not at all. See
-- Module.tp.
function GatedDeltaNet:tp(_, on)
   local into = self.shared_input
   local text = table.concat(into, ', ') .. ' must be colwise and out_proj rowwise'
   if not on:all_or_none(into, 'out_proj', text) then return nil end
   for _, name in ipairs(into) do
      if on.children[name].blocks ~= 1 then on:refuse('%s, all or none', text) end
   end
   on:check_size('the number of key heads', self.key_heads)
   return on:by_key_heads()
end

-- Returns the styles of the projections, see Module.tp_plan.
function GatedDeltaNet:tp_plan()
   local plan = { out_proj = 'rowwise' }
   for _, name in ipairs(self.shared_input) do plan[name] = 'colwise' end
   return plan
end

-- Returns the sizes, for the text of a model.
function GatedDeltaNet:detail()
   return ('%d heads of %d, %d of %d for keys'):format(self.heads, self.head_dim, self.key_heads,
      self.key_dim)
end

return signature.doors('nn.GatedDeltaNet', GatedDeltaNet, {
   init = { opts = {
      'dim: integer >= 1 -- width of input and output',
      'heads: integer >= 1 -- heads of values', 'head_dim: integer >= 1 = 128 -- channels of one',
      'key_heads: integer >= 1 = heads -- heads of queries and keys, which heads of values share',
      'key_dim: integer >= 1 = head_dim -- channels of one',
      'where heads % key_heads == 0 -- heads ({heads}) must be a multiple of key_heads '
         .. '({key_heads})',
      'conv: integer in [2, 4] = 4 -- taps of the convolution',
      'apart: boolean = false -- four projections, in place of two by heads of keys',
      'norm_eps: number >= 0 = 1e-6 -- eps of the norm',
      'A_range: table? -- { 0.01, 16 }: exp(A_log) is uniform in it at first',
      'std: number? >= 0 -- initial standard deviation',
      'out_std: number? >= 0 -- initial standard deviation of out_proj',
      "recurrence_dtype: 'f32' | 'f64' | 'bf16' | 'f16'? -- of A_log and dt_bias: a bf16 model "
         .. "keeps small changes of them in 'f32'; that of the layer by default",
      Module.common } },
})
