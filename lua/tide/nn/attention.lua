-- Attention: multi-head and grouped-query self-attention with rotary positions.
--
-- The methods `attend(q_BTHD, k_BTKD, v_BTKD, options)` and `project(x)` may be wrapped: context
-- parallelism wraps attend to split the sequence over ranks, tensor parallelism wraps project to
-- join the products with the gathering of x. Which token sees which is data: positions and, for
-- packed streams, an index (see nn.mask).
-- Legend: B batch, T tokens, H query heads, K key heads, D head size, C model width.

local class = require 'tide.class'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local product = require 'tide.nn.product'
local signature = require 'tide.util.signature'
local attend = require 'tide.nn.attend'
local context = require 'tide.nn.context'
local joined = require 'tide.nn.joined'
local kv_cache = require 'tide.nn.kv_cache'
local mask_ = require 'tide.nn.mask'
local Module = require 'tide.nn.module'
local Linear = require 'tide.nn.linear'
local RMSNorm = require('tide.nn.norm').RMSNorm
local old = require 'tide.util.old'
local rows_ = require 'tide.nn.rows'
local tiles = require 'tide.nn.tiles'
local window = require 'tide.nn.window'
local divide = require('tide.nn.mamba').divide
local wrap = require 'tide.nn.wrap'

local Attention = class('Attention', Module)
Attention.mixes = 'context'

-- Children that read the same input.
Attention.shared_input = { 'q_proj', 'k_proj', 'v_proj' }

-- Makes the layer and its projections.
function Attention:init(opts)
   Module.init(self)
   local H, K, D = opts.heads, opts.kv_heads, opts.head_dim or opts.dim / opts.heads
   self.heads, self.kv_heads, self.head_dim = H, K, D
   self.rope, self.causal, self.dropout = opts.rope, opts.causal, opts.dropout
   self.window = window.check('nn.Attention', 'window', opts.window)
   self.softcap, self.scale, self.gated = opts.softcap, opts.scale, opts.gate
   if opts.sinks then
      self:param('sinks', { H }, { kind = 'normal', std = opts.std or 0.02 }, opts)
   end
   local qkv = { bias = opts.bias, std = opts.std }
   local parts = opts.fused and { qkv = H + 2 * K }
      or { q = opts.gate and 2 * H or H, k = K, v = K }
   for _, name in ipairs { 'qkv', 'q', 'k', 'v' } do
      if parts[name] then
         local inner = Module.inner(opts, qkv)
         if not opts.fused then inner.device = 'null' end
         self:child(name .. '_proj', Linear(opts.dim, parts[name] * D, inner))
      end
   end
   if not opts.fused then joined.lay(self, opts.device) end
   self:child('o_proj', Linear(H * D, opts.dim, Module.inner(opts,
      { bias = opts.out_bias, std = opts.out_std or opts.std })))
   self.norms_whole = opts.qk_norm_whole
   if opts.qk_norm then
      local whole = opts.qk_norm_whole
      self:child('q_norm', RMSNorm(whole and H * D or D, Module.inner(opts, opts.qk_norm)))
      self:child('k_norm', RMSNorm(whole and K * D or D, Module.inner(opts, opts.qk_norm)))
   end
   self:ready(opts)
end

-- Returns queries, keys and values of x, with their heads still joined: [B, T, heads D]. With a
-- gate, the query of each head is followed by its gate.
function Attention:project(x_BTC)
   if not self.qkv_proj then
      local list = joined.call(self, Attention.shared_input, x_BTC)
      if list then return list[1], list[2], list[3] end
      return self.q_proj(x_BTC), self.k_proj(x_BTC), self.v_proj(x_BTC)
   end
   local nq, nk = self.heads * self.head_dim, self.kv_heads * self.head_dim
   local all = self.qkv_proj(x_BTC)
   return unpack(private.replace(all, all:split({ nq, nk, nk }, -1)))
end

-- Returns softmax(scale q k' + mask) v. options: as of tide.attention, and dropout (of the
-- probabilities).
function Attention:attend(q_BTHD, k_BTKD, v_BTKD, options)
   return attend(q_BTHD, k_BTKD, v_BTKD, options)
end

-- attention.inner = fn is the 0.1 spelling of a wrap of attend.
Attention.inner = attend

function Attention:__newindex(key, value)
   if key ~= 'inner' or type(value) ~= 'function' then
      return Module.__newindex(self, key, value)
   end
   old('attention.inner = fn', "attention:wrap(name, fn, { of = 'attend' })")
   wrap.drop(self, 'inner', 'attend')
   self:wrap('inner', function(_, _, ...) return value(...) end, { of = 'attend' })
end

-- Returns whether the results of project belong to this layer alone: no user code has seen them.
local function is_own(self)
   if self.project ~= Attention.project then return false end
   for _, name in ipairs(self.qkv_proj and { 'qkv_proj' } or Attention.shared_input) do
      if not product.is_plain(self[name]) then return false end
   end
   return true
end

-- Returns q and k [B, T, heads, D] rotated by their positions, and gives q and k up; the results
-- take their memory where nothing else needs it.
local function rotated(self, q, k, at)
   local rope, positions = self.rope, context._positions(at, q:size(2), q.device)
   local length = at.rope_length
      or rope:length_of(positions, at.context and at.context.comm or nil)
   local turned_q, turned_k
   if rope.apply_both then
      turned_q, turned_k = private.call(rope.apply_both, rope, q, k, positions, length,
         not self.q_norm and not self.gated and is_own(self))
   else
      turned_q = private.call(rope.apply, rope, q, positions, length)
      turned_k = private.call(rope.apply, rope, k, positions, length)
   end
   q, k = private.replace(q, turned_q), private.replace(k, turned_k)
   if rope.attention_factor == 1 then return q, k end
   return private.replace(q, q * rope:factors(q)), k
end

Attention._rotated = private.note(rotated)

-- Returns the queries and their gates, both [B, T, H, D], of q [B, T, 2 H D], which is given up.
local function parted(self, q)
   local D = self.head_dim
   q = private.replace(q, q:reshape(q:size(1), q:size(2), self.heads, 2 * D))
   local query, gate = divide(q, { D, D })
   private.spend(q)
   return query, gate
end

-- Returns y times sigmoid(gate), both of a shape and given up.
local function times_gate(y, gate)
   gate = private.replace(gate, gate:sigmoid())
   y = private.replace(y, y * gate)
   private.spend(gate)
   return y
end

-- Returns the entries of an index [B, T, 2 or 3] of all tokens for the last n, which a cache has
-- kept.
local function last_of(index, n)
   local T = index and index:size(2) or n
   return T > n and index:narrow(2, T - n + 1, n) or index
end

-- Returns the options of attend, beside its tensors. n: how many keys there are.
function Attention:_attend_options(at, q_start, device, n)
   err.type('nn.Attention', 'at', at, 'table')
   local over, whole = context.for_layer('nn.Attention', self, at)
   local causal, of_mask = self.causal, mask_.of_layer('nn.Attention', at, over or whole)
   if at.is_causal ~= nil then causal = at.is_causal end
   local o = { causal = causal, window = self.window, softcap = self.softcap,
      scale = self.scale, sinks = self.sinks, q_start = q_start, q_index = at.q_index or of_mask,
      k_index = last_of(at.k_index, n) or of_mask, context = over,
      dropout = self.training and self.dropout > 0 and self.dropout or nil }
   if whole then
      o.q_index, o.window = whole:q_index(device), self.window or whole.window
      o.k_index = o.q_index
   end
   return at.tiles and tiles.put(o, at.tiles) or o
end

-- Returns the output [B, T, C] of x. Fields of at (see nn.context): positions, q_index and k_index
-- or in their place attention_mask, tiles, is_causal, cache, context and rows.
function Attention:forward(x_BTC, at)
   at = context._place('nn.Attention', at)
   local gate
   local q, k, v = private.call(self.project, self, x_BTC)
   if self.gated then q, gate = parted(self, q) end
   if self.q_norm and self.norms_whole then
      q, k = private.replace(q, self.q_norm(q)), private.replace(k, self.k_norm(k))
   end
   local B, T, D = q:size(1), q:size(2), self.head_dim
   if not gate then q = private.replace(q, q:reshape(B, T, self.heads, D)) end
   k = private.replace(k, k:reshape(B, T, self.kv_heads, D))
   v = private.replace(v, v:reshape(B, T, self.kv_heads, D))
   if self.q_norm and not self.norms_whole then
      q, k = private.replace(q, self.q_norm(q)), private.replace(k, self.k_norm(k))
   end
   if self.rope then q, k = rotated(self, q, k, at) end
   local cache, q_start = at.cache, nil
   if cache ~= nil then
      kv_cache.check('nn.Attention', cache)
      k, v, q_start = kv_cache.extend(cache, k, v, not at.context and self.window or nil)
   end
   local y = private.call(self.attend, self, q, k, v,
      self:_attend_options(at, q_start, x_BTC.device, k:size(2)))
   private.spend(q, k, v)
   if gate then y = times_gate(y, gate) end
   y = private.replace(y, y:reshape(B, T, self.heads * D))
   if at.rows then y = private.replace(y, rows_.pick(y, at.rows)) end
   return private.replace(y, self.o_proj(y))
end
private.note(Attention.forward)
private.note(Attention.project)
private.note(Attention.attend)

-- Cuts queries, keys and values by heads, all or none, and the output's columns with them. See
-- Module.tp.
function Attention:tp(_, on)
   local into = { 'q_proj', 'k_proj', 'v_proj' }
   local text = 'q_proj, k_proj and v_proj must be colwise and o_proj rowwise'
   if not on:all_or_none(into, 'o_proj', text) then return nil end
   if self.qkv_proj then on:refuse 'fused projections cannot be cut by heads' end
   if self.norms_whole then on:refuse 'norms over all heads cannot be cut by heads' end
   on:check_heads(self.heads, self.kv_heads)
   return { summed = self.q_norm and { 'q_norm', 'k_norm' } or nil, done = function()
      if self.sinks then on:cut('sinks', 1) end
      self.heads, self.kv_heads = self.heads / on.ranks, self.kv_heads / on.ranks
   end }
end

-- Returns the styles of the projections, see Module.tp_plan. Fused queries, keys and values cannot
-- be cut by heads, nor can those that a norm over all heads reads. In both cases every rank
-- computes the whole attention, and only its weights are sharded.
function Attention:tp_plan()
   if self.norms_whole then
      return { q_proj = 'rowwise_rep', k_proj = 'rowwise_rep', v_proj = 'rowwise_rep',
         o_proj = 'colwise_rep' }
   end
   if self.qkv_proj then return { qkv_proj = 'rowwise_rep', o_proj = 'colwise_rep' } end
   return { q_proj = 'colwise', k_proj = 'colwise', v_proj = 'colwise', o_proj = 'rowwise' }
end

-- Returns the sizes, for the text of a model.
function Attention:detail()
   return ('%d heads of %d, %d for keys%s%s'):format(self.heads, self.head_dim, self.kv_heads,
      self.gated and ', gate' or '',
      self.dropout > 0 and (', dropout %g'):format(self.dropout) or '')
end

return signature.doors('nn.Attention', Attention, {
   init = { opts = {
      'dim: integer >= 1 -- width of input and output',
      'heads: integer >= 1 -- heads of queries',
      'kv_heads: integer >= 1 = heads -- heads of keys and values',
      'head_dim: integer? >= 1 -- channels of a head; dim / heads by default',
      'where heads % kv_heads == 0 -- heads ({heads}) must be a multiple of kv_heads ({kv_heads})',
      'where head_dim or dim % heads == 0 -- dim ({dim}) must be a multiple of heads ({heads}), or '
         .. 'give head_dim',
      'bias: boolean = false -- adds biases to queries, keys and values',
      'out_bias: boolean = false -- adds one to the output',
      'rope: table? -- result of nn.rope, which rotates queries and keys',
      'causal: boolean = true -- a token sees none after it',
      'window: any? -- distances { left, right }: n tokens, itself included, are { n - 1, -1 }',
      'softcap: number? -- scores become softcap * tanh(score / softcap)',
      'scale: number? -- of scores; 1 / sqrt(head_dim) by default',
      'sinks: boolean = false -- a learnt score of each head takes a share of the softmax',
      'std: number? >= 0 -- initial standard deviation', 'out_std: number? >= 0 -- that of o_proj',
      'fused: boolean = false -- one qkv_proj',
      'gate: boolean = false -- multiplies the result before o_proj by a sigmoid of channels that '
         .. 'q_proj makes beside the query of each head',
      'where not (gate and fused) -- gate is of q_proj, which fused does not make; leave one out',
      'where not (gate and qk_norm_whole) -- gate lies between the heads over which qk_norm_whole '
         .. 'takes the norm; leave one out',
      'qk_norm: table? -- options of an RMSNorm over each head of queries and of keys',
      'qk_norm_whole: boolean = false -- over all heads together in place of each',
      'dropout: number in [0, 1) = 0 -- of the probabilities while training, which are then made '
         .. 'in full, a block of queries at a time',
      Module.common } },
})
