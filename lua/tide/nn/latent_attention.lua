-- LatentAttention: attention whose keys and values are products of a small latent vector of each
-- token (multi-head latent attention, DeepSeek-V2, arXiv 2405.04434).
--
--    latent, r = norm(A x), B x;  [k_h, v_h] = W_h latent;  the key of head h is [k_h, rope(r)]
--
-- A cache keeps latent and rope(r) alone. Queries that meet a cache are multiplied by the key part
-- of W_h, and the result by its value part, so that no key or value of an earlier token is made:
-- attention then has one head of keys.
-- Legend: B batch, T tokens, S tokens of the cache, H heads, N and r channels of a head without and
-- with rotary positions, V channels of a value, R of the latent, C model width.

local tide = require 'tide'
local class = require 'tide.class'
local private = require 'tide.util.private'
local product = require 'tide.nn.product'
local signature = require 'tide.util.signature'
local joined = require 'tide.nn.joined'
local context = require 'tide.nn.context'
local kv_cache = require 'tide.nn.kv_cache'
local rows_ = require 'tide.nn.rows'
local Module = require 'tide.nn.module'
local Attention = require 'tide.nn.attention'
local Linear = require 'tide.nn.linear'
local RMSNorm = require('tide.nn.norm').RMSNorm

local LatentAttention = class('LatentAttention', Attention)
LatentAttention.mixes = 'context'

-- Children that read the same input.
LatentAttention.shared_input = { 'q_a_proj', 'kv_a_proj_with_mqa' }
-- Children whose input is whole where the sequence is cut: `spread` gathers it.
LatentAttention.whole_input = { kv_b_proj = true }

-- Makes the layer and its projections.
function LatentAttention:init(opts)
   Module.init(self)
   local H, N, r, V = opts.heads, opts.nope_dim, opts.rope_dim, opts.value_dim
   self.heads, self.kv_heads, self.head_dim = H, H, N + r
   self.nope_dim, self.rope_dim, self.value_dim, self.latent_dim = N, r, V, opts.latent_dim
   self.rope, self.causal, self.dropout = opts.rope, true, opts.dropout
   self.scale = opts.scale or (N + r) ^ -0.5
   local function linear(name, nin, nout, bias)
      self:child(name, Linear(nin, nout, Module.inner(opts, { bias = bias, std = opts.std })))
   end
   local function norm(name, n)
      self:child(name, RMSNorm(n, Module.inner(opts, { eps = opts.norm_eps })))
   end
   if opts.q_latent_dim then
      linear('q_a_proj', opts.dim, opts.q_latent_dim, opts.bias)
      norm('q_a_layernorm', opts.q_latent_dim)
      linear('q_b_proj', opts.q_latent_dim, H * (N + r), false)
   else
      linear('q_proj', opts.dim, H * (N + r), false)
   end
   linear('kv_a_proj_with_mqa', opts.dim, opts.latent_dim + r, opts.bias)
   norm('kv_a_layernorm', opts.latent_dim)
   linear('kv_b_proj', opts.latent_dim, H * (N + V), false)
   self:child('o_proj', Linear(H * V, opts.dim, Module.inner(opts,
      { bias = opts.out_bias, std = opts.out_std or opts.std })))
   self:ready(opts)
end

-- Returns the queries [B, T, H (N + r)], the latent [B, T, R] and the channels [B, T, r] of the
-- keys that rotate.
function LatentAttention:project(x_BTC)
   local both = joined.call(self, LatentAttention.shared_input, x_BTC)
   local q, kv
   if self.q_proj then
      q = self.q_proj(x_BTC)
   else
      q = both and both[1] or self.q_a_proj(x_BTC)
      q = private.replace(q, self.q_a_layernorm(q))
      q = private.replace(q, self.q_b_proj(q))
   end
   kv = both and both[2] or self.kv_a_proj_with_mqa(x_BTC)
   local latent, rot = unpack(private.replace(kv, kv:split({ self.latent_dim, self.rope_dim }, -1)))
   return q, private.replace(latent, self.kv_a_layernorm(latent)), rot
end

-- Returns the latent and the rotating channels of all tokens. Tensor parallelism wraps it.
function LatentAttention:spread(latent, rot) return latent, rot end

-- Returns keys [B, S, H, N + r] and values [B, S, H, V] of latents [B, S, R] and rot [B, S, 1, r].
local function expanded(self, latent, rot)
   local B, S, H = latent:size(1), latent:size(2), self.heads
   local kv = self.kv_b_proj(latent)
   kv = private.replace(kv, kv:reshape(B, S, H, self.nope_dim + self.value_dim))
   local k, v = unpack(private.replace(kv, kv:split({ self.nope_dim, self.value_dim }, -1)))
   return private.replace(k, tide.cat({ k, rot:expand(B, S, H, self.rope_dim) }, -1)), v
end

-- Returns x [B, T, H, n] times the matrix [n, m] of each head, [B, T, H, m].
local function by_head(x, W_Hnm)
   local B, T, H, n = unpack(x.shape)
   local y = tide.matmul(x:permute(3, 1, 2, 4):reshape(H, B * T, n), W_Hnm)
   return private.replace(y, y:reshape(H, B, T, W_Hnm:size(3)):permute(2, 3, 1, 4))
end

-- Returns the result [B, T, H, V] of attention to the entries [B, S, 1, R + r] of a cache, without
-- their keys and values.
local function absorbed(self, q, rot, entries, options)
   local N, R = self.nope_dim, self.latent_dim
   local W = self.kv_b_proj.weight:reshape(self.heads, N + self.value_dim, R)
   local of_latent = by_head(q, W:narrow(2, 1, N))
   local joint = tide.cat({ of_latent, rot }, -1)
   private.spend(of_latent)
   local y = private.call(self.attend, self, joint, entries, entries:narrow(4, 1, R), options)
   private.spend(joint)
   return private.replace(y, by_head(y, W:narrow(2, N + 1, self.value_dim):transpose(2, 3)))
end

-- Returns whether attention to a cache needs no keys and values of its tokens.
local function can_absorb(self) return product.is_plain(self.kv_b_proj) and not self.training end

-- Returns the result [B, T, H, V] for queries q [B, T, H, N] and q_rot [B, T, H, r].
local function attended(self, q, q_rot, latent, k_rot, at, device)
   local B, R, entries, start = latent:size(1), self.latent_dim, nil, nil
   if at.cache ~= nil then
      kv_cache.check('nn.LatentAttention', at.cache)
      local new = tide.cat({ latent:unsqueeze(3), k_rot }, -1)
      local none = new:narrow(4, 1, 0)                       -- values are a part of the entries
      entries, none, start = kv_cache.extend(at.cache, new, none, nil)
      private.spend(none)
   end
   local past = start and start > 0
   local options = self:_attend_options(at, start, device,
      past and entries:size(2) or latent:size(2))
   if past and can_absorb(self) then return absorbed(self, q, q_rot, entries, options) end
   if past then
      latent = entries:narrow(4, 1, R):reshape(B, entries:size(2), R)
      k_rot = entries:narrow(4, R + 1, self.rope_dim)
   end
   local k, v = expanded(self, latent, k_rot)
   local both = tide.cat({ q, q_rot }, -1)
   local y = private.call(self.attend, self, both, k, v, options)
   private.spend(both, k, v)
   return y
end

-- Returns the output [B, T, C] of x. Fields of at: as of nn.Attention.
function LatentAttention:forward(x_BTC, at)
   at = context._place('nn.LatentAttention', at)
   local q, latent, rot = private.call(self.project, self, x_BTC)
   latent, rot = private.call(self.spread, self, latent, rot)
   local B, T = q:size(1), q:size(2)
   q = private.replace(q, q:reshape(B, T, self.heads, self.head_dim))
   local plain, q_rot = unpack(private.replace(q, q:split({ self.nope_dim, self.rope_dim }, -1)))
   local k_rot = private.replace(rot, rot:unsqueeze(3))
   if self.rope then q_rot, k_rot = Attention._rotated(self, q_rot, k_rot, at) end
   local y = attended(self, plain, q_rot, latent, k_rot, at, x_BTC.device)
   private.spend(plain, q_rot, latent, k_rot)
   y = private.replace(y, y:reshape(B, T, self.heads * self.value_dim))
   if at.rows then y = private.replace(y, rows_.pick(y, at.rows)) end
   return private.replace(y, self.o_proj(y))
end
private.note_methods(LatentAttention)

-- Cuts queries, keys and values by heads, all or none. Every rank makes the latents. See Module.tp.
function LatentAttention:tp(_, on)
   local into = { 'q_proj', 'q_b_proj', 'kv_b_proj' }
   local text = 'q_proj or q_b_proj, and kv_b_proj must be colwise and o_proj rowwise'
   if not on:all_or_none(into, 'o_proj', text) then return nil end
   on:check_heads(self.heads, self.heads)
   local from, summed = (on.children.q_proj or on.children.q_b_proj).input, {}
   for _, name in ipairs { 'q_a_proj', 'q_a_layernorm', 'kv_a_proj_with_mqa', 'kv_a_layernorm' } do
      if from == 'S(1)' and self[name] then summed[#summed + 1] = name end
   end
   return { summed = summed, done = function()
      self.heads, self.kv_heads = self.heads / on.ranks, self.heads / on.ranks
      on:spread_latents(from)
   end }
end

-- Returns the styles of the projections, see Module.tp_plan.
function LatentAttention:tp_plan()
   return { [self.q_proj and 'q_proj' or 'q_b_proj'] = 'colwise', kv_b_proj = 'colwise',
      o_proj = 'rowwise' }
end

-- Returns the sizes, for the text of a model.
function LatentAttention:detail()
   return ('%d heads of %d + %d, values of %d, latent of %d'):format(self.heads, self.nope_dim,
      self.rope_dim, self.value_dim, self.latent_dim)
end

return signature.doors('nn.LatentAttention', LatentAttention, {
   init = { opts = {
      'dim: integer >= 1 -- width of input and output',
      'heads: integer >= 1 -- heads',
      'nope_dim: integer >= 1 -- channels of a head without rotary positions',
      'rope_dim: integer >= 1 -- channels of a head with them; the keys of all heads share these',
      'value_dim: integer >= 1 -- channels of a value of a head',
      'latent_dim: integer >= 1 -- channels of the latent of keys and values',
      'q_latent_dim: integer? >= 1 -- those of the latent of queries; nil: one product makes them',
      'norm_eps: number >= 0 = 1e-6 -- of the norms of latents',
      'bias: boolean = false -- adds biases to the products that make latents',
      'out_bias: boolean = false -- adds one to the output',
      'rope: table? -- result of nn.rope for rope_dim channels',
      'scale: number? -- of scores; 1 / sqrt(nope_dim + rope_dim) by default',
      'std: number? >= 0 -- initial standard deviation', 'out_std: number? >= 0 -- that of o_proj',
      'dropout: number in [0, 1) = 0 -- of the probabilities while training',
      Module.common } },
})
