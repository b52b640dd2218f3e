-- MoE: a mixture of experts in place of an MLP. A router picks, for each token, k of E gated MLPs
-- (Shazeer et al., arXiv 1701.06538), in the form of Mixtral (arXiv 2401.04088) and Qwen3:
--
--    p = softmax(router x);  y = sum over the k largest p_e of w_e down_e(silu(gate_e x) * up_e x)
--
-- w_e is p_e, or with norm_topk p_e over the sum of the k. p is f32 at least. routing.lua has this
-- and the routing by sigmoid. Experts without a gate (act) are down_e(act(up_e x)). With `latent`
-- the experts work in that width: fc1_latent_proj takes x there, fc2_latent_proj takes y back.
-- The weights of all experts are one tensor for each projection, so each is one grouped product
-- over the slots of tide.group_rows. No token is dropped and nothing waits for a count on the host:
-- shapes do not depend on the routing, but for experts over ranks (parallel/expert_parallel.lua).
-- With bias and limit, experts have the form of gpt-oss:
--
--    gate = min(gate_e x + b, limit);  up = clamp(up_e x + b, -limit, limit)
--    down_e((up + 1) gate sigmoid(alpha gate)) + b
--
-- Legend: N tokens, C width, E experts, I hidden size of an expert, k experts of a token, L width
-- in which experts work.

local tide = require 'tide'
local balance = require 'tide.nn.balance'
local class = require 'tide.class'
local err = require 'tide.util.err'
local nf4_part = require 'tide.nn.nf4_part'
local private = require 'tide.util.private'
local routing = require 'tide.nn.routing'
local signature = require 'tide.util.signature'
local Module = require 'tide.nn.module'

local MoE = class('MoE', Module)
MoE.mixes = false
MoE.takes_at = true

-- The projections of an expert with a gate, and of one without.
local gated, ungated = { 'gate_proj', 'up_proj', 'down_proj' }, { 'up_proj', 'down_proj' }

MoE._order = { 'router', unpack(gated) }                -- of the parameters

local routes = { 'topk', 'norm_topk', 'score', 'groups', 'topk_groups', 'scale', 'wide_router' }

-- The activation of experts without a gate.
local plain = {
   relu2 = function(x)
      local y = x:relu()
      return private.replace(y, y:square())
   end,
   relu = function(x) return x:relu() end, silu = function(x) return x:silu() end,
   gelu = function(x) return x:gelu() end, gelu_tanh = function(x) return x:gelu_tanh() end,
}

-- Makes the layer: router [E, C], gate_proj and up_proj [E, I, L], down_proj [E, L, I]; with
-- latent, fc1_latent_proj [L, C] and fc2_latent_proj [C, L]; with bias, logit_bias [E] of the
-- router, gate_proj_bias and up_proj_bias [E, I], down_proj_bias [E, L]; with correction, buffer
-- router_bias [E], f32.
function MoE:init(opts)
   Module.init(self)
   local E, I, C, L = opts.experts, opts.hidden, opts.dim, opts.latent or opts.dim
   local out_std = opts.out_std or opts.std
   self.experts, self.dim, self.hidden, self._key = E, C, I, {}
   self.act, self.latent, self._inner = opts.act, opts.latent, L
   for _, name in ipairs(routes) do self[name] = opts[name] end
   local function weight(name, shape, fan_in, std)
      self:param(name, shape, std and { kind = 'normal', std = std }
         or { kind = 'kaiming', fan_in = fan_in, gain = 1 / math.sqrt(3) }, opts)
   end
   weight('router', { E, C }, C, opts.std)
   if self:_is_gated() then weight('gate_proj', { E, I, L }, L, opts.std) end
   weight('up_proj', { E, I, L }, L, opts.std)
   weight('down_proj', { E, L, I }, I, opts.latent and opts.std or out_std)
   if opts.latent then
      weight('fc1_latent_proj', { L, C }, C, opts.std)
      weight('fc2_latent_proj', { C, L }, L, out_std)
   end
   self.limit, self.alpha, self.bias_share = opts.limit, opts.alpha or 1.702, 1
   for _, row in ipairs(opts.bias and { { 'logit_bias', { E } }, { 'up_proj_bias', { E, I } },
      { 'down_proj_bias', { E, L } },
      self:_is_gated() and { 'gate_proj_bias', { E, I } } or nil } or {}) do
      self:param(row[1], row[2], { kind = 'zeros' }, opts)
   end
   if opts.correction then
      local bias = tide.zeros({ E }, { device = opts.device })
      self:buffer('router_bias', bias, { keeps_dtype = true })
   end
   self:ready(opts)
end

-- Returns the logits of the router for x [N, C], f32 at least [N, E].
function MoE:_logits(x)
   if self.wide_router and x.dtype ~= 'f64' then
      local bias = self.logit_bias and self.logit_bias:to 'f32'
      local wide = x:to 'f32'
      local y = tide.linear(wide, self.router:to 'f32', bias)
      if not rawequal(wide, x) then private.spend(wide) end
      return y
   end
   return tide.linear(x, self.router, self.logit_bias):to(x.dtype == 'f64' and 'f64' or 'f32')
end

-- Returns the experts of each row of x [N, C], i64 [N, k], the likeliest first, and their factors
-- [N, k] in x's dtype. record: of a call (nn.balance), or nil.
function MoE:route(x, record)
   local logits = self:_logits(x)
   -- ranks of tensor parallelism choose the same experts, and the first adds the term's gradient
   if record then logits = record:_watch(logits, self._key, self._leaves_balance ~= true) end
   local ids, w = routing.choose(logits, self, self.router_bias)
   private.spend(logits)
   if record then record:_count(ids, self._key, self.experts) end
   return ids, w:to(x.dtype)
end

-- Returns whether the experts have a gate, gate_proj.
function MoE:_is_gated() return plain[self.act] == nil end

-- Returns the names of the projections of an expert.
function MoE:_fields() return self:_is_gated() and gated or ungated end

-- Returns those of `names` (of parameters or buffers) that have a row for each expert and work on
-- its tokens.
function MoE:_of_experts(names)
   local list = {}
   for _, name in ipairs(names) do
      for _, field in ipairs(self:_fields()) do
         if name:sub(1, #field) == field then list[#list + 1] = name end
      end
   end
   return list
end

-- Returns the shape [out, in] of the weight of each expert at a field, or of the router, whole.
function MoE:_shape(field)
   if field == 'down_proj' then return self._inner, self.hidden end
   if field == 'router' then return self.experts, self.dim end
   return self.hidden, self._inner
end

-- Returns the products of the rows of x [slots, in], grouped by offsets, with the weight `name` of
-- each expert.
function MoE:_grouped(name, x, offsets)
   if self[name] then return tide.grouped_linear(x, self[name], offsets) end
   return nf4_part.grouped(self, x, name, offsets, self:_shape(name))
end

-- Returns the products of experts and their biases. of: the expert of each row, or nil.
local function product(self, name, x, offsets, of)
   local y = self:_grouped(name, x, offsets)
   local bias = self[name .. '_bias']
   if not bias then return y end
   if name == 'down_proj' and self.bias_share ~= 1 then bias = bias * self.bias_share end
   local rows = tide.embedding(bias, of)
   y = private.replace(y, y + rows)
   private.spend(rows)
   return y
end

-- Returns the hidden values [slots, I] of gate and up values, which it gives up. gate: nil of
-- experts without one.
local function activated(self, gate, up)
   if not gate then return private.replace(up, plain[self.act](up)) end
   local h = self.limit and tide.swiglu_clamped(gate, up, self.limit, self.alpha)
      or tide.swiglu(gate, up)
   private.spend(gate, up)
   return h
end

-- Returns the outputs [slots, L] of the experts for the rows of x [slots, L], grouped by offsets.
-- of: the expert of each row, where experts have biases.
local function of_experts(self, x, offsets, of)
   local gate = self:_is_gated() and product(self, 'gate_proj', x, offsets, of) or nil
   local h = activated(self, gate, product(self, 'up_proj', x, offsets, of))
   return private.replace(h, product(self, 'down_proj', h, offsets, of))
end

-- Returns the expert of each slot, i64 [slots]. ids: [N, k]; place: of tide.group_rows.
local function experts_of(ids, place)
   ids = ids:reshape(-1)
   return tide.zeros_like(ids):scatter_add(1, place:reshape(-1), ids)
end

-- Returns the output [.., C] of an input x of the same shape. at: nil, or where the tokens of a
-- model's call lie; its field balance records what is routed.
function MoE:forward(x, at)
   local C = self.router:size(2)
   if not tide.is_tensor(x) or x.ndim == 0 or x:size(-1) ~= C then
      err.arg('nn.MoE', 'x', ('a tensor [.., %d]'):format(C), x)
   end
   local flat = x:reshape(-1, C)
   local ids, w = private.call(self.route, self, flat, balance._call('nn.MoE', at))
   local rows, place, offsets = tide.group_rows(ids, self.experts)
   local inner = self.latent and tide.linear(flat, self.fc1_latent_proj) or flat
   local picked = inner:index_select(1, rows)
   if self.latent then private.spend(inner) end
   local of = (self.down_proj_bias or self._exchange) and experts_of(ids, place) or nil
   local y
   if self._exchange then                                  -- see parallel/expert_parallel.lua
      y = self._exchange:run(picked, of, offsets, function(...) return of_experts(self, ...) end)
   else
      y = of_experts(self, picked, offsets, of)
   end
   y = private.replace(picked, y)
   y = private.replace(y, y:index_select(1, place:reshape(-1)))
   y = private.replace(y, y:reshape(flat:size(1), self.topk, self.latent or C))
   y = private.replace(y, y * w:unsqueeze(-1))
   y = private.replace(y, y:sum(2))
   if self.latent then y = private.replace(y, tide.linear(y, self.fc2_latent_proj)) end
   if not rawequal(flat, x) then private.spend(flat) end          -- a view, which holds x
   return private.replace(y, y:reshape(x.shape))
end
private.note_methods(MoE)

-- Cuts every expert by its hidden channels, so that all ranks have the same work whatever the
-- routing is. Each rank routes all tokens, alike. The first one adds the biases of down_proj.
function MoE:tp(style, on)
   if not style then return nil end
   if style.shard ~= 'rows' then on:refuse('an MoE cannot be %s', tostring(style)) end
   on:check_size('the hidden size of the experts', self.hidden)
   local cut = {}
   for _, field in ipairs(self:_fields()) do
      local dim = field == 'down_proj' and 2 or 1             -- of the weight of an expert
      if self[field] then
         cut[field] = dim + 1
      else
         cut[field .. '_nf4'] = nf4_part.answer(self, on, field, { self:_shape(field) }, dim)
      end
      local adapter = field .. (dim == 2 and '_lora_A' or '_lora_B')
      if self[adapter] then cut[adapter] = dim + 1 end
   end
   for _, field in ipairs { 'gate_proj_bias', 'up_proj_bias' } do
      if self[field] then cut[field] = 2 end
   end
   return { cut = cut, gives = 'P', done = function()
      rawset(self, '_leaves_balance', on.rank > 0)
      self.bias_share = on.rank == 0 and 1 or 0
   end }
end

-- Returns the style of this module itself, see Module.tp_plan.
function MoE:tp_plan() return { [''] = 'colwise_rep' } end

-- Returns the number of elements of experts that a token does not use. numel: elements of the whole
-- layer.
function MoE:_idle_numel(numel)
   for _, field in ipairs { 'router', 'logit_bias', 'router_lora_A', 'router_lora_B' } do
      if self[field] then numel = numel - self[field]:numel() end
   end
   if self.latent then numel = numel - 2 * self.latent * self.dim end
   return numel * (self.experts - self.topk) / self.experts
end

-- Returns the sizes, for the text of a model.
function MoE:detail()
   local text = ('%d of %d experts'):format(self.topk, self.experts)
   if self.score ~= 'softmax' then text = text .. ' by ' .. self.score end
   if self.groups > 1 then
      text = ('%s, in %d of %d groups'):format(text, self.topk_groups, self.groups)
   end
   if self.limit then text = ('%s, clamped at %g'):format(text, self.limit) end
   if not self:_is_gated() then text = ('%s, %s'):format(text, self.act) end
   if self.latent then text = ('%s in %d channels'):format(text, self.latent) end
   text = text .. (self.norm_topk and ', factors sum to ' .. self.scale or '')
   return text .. (self.down_proj and '' or ', nf4')
end

return signature.doors('nn.MoE', MoE, {
   init = { opts = {
      'dim: integer >= 1 -- width of input and output',
      'hidden: integer >= 1 -- width of each expert between its products',
      'experts: integer >= 1 -- how many there are',
      'topk: integer >= 1 -- how many each token uses',
      'norm_topk: boolean = false -- the factors of a token are divided by their sum',
      "score: 'softmax' | 'sigmoid' = 'softmax' -- the scores of the experts, from the logits of "
         .. 'the router',
      'correction: boolean = false -- a buffer router_bias is added to the scores by which experts '
         .. 'are chosen, not to factors',
      'wide_router: boolean = false -- logits are f32 products also where x has 16 bits',
      'groups: integer >= 1 = 1 -- groups of experts',
      'topk_groups: integer >= 1 = 1 -- groups whose experts a token may use',
      'scale: number = 1 -- the factors are multiplied by it',
      'bias: boolean = false -- adds biases to the products of the experts and of the router',
      'limit: number? > 0 -- clamps gate and up, and adds 1 to up, as gpt-oss does',
      'alpha: number? > 0 -- with limit, of sigmoid(alpha gate); 1.702 by default',
      "act: 'swiglu' | 'gelu' | 'gelu_tanh' | 'relu' | 'relu2' | 'silu' = 'swiglu' -- the function "
         .. 'between the products of an expert; those but swiglu have no gate',
      'latent: integer? >= 1 -- width in which the experts work; dim by default',
      'std: number? >= 0 -- initial standard deviation',
      'out_std: number? >= 0 -- that of the projection into the output',
      Module.common,
      "where limit == nil or act == 'swiglu' -- limit is for act = 'swiglu'",
      'where alpha == nil or limit -- alpha has an effect with limit alone; give both',
      'where topk <= experts -- topk ({topk}) must be at most experts ({experts})',
      "where score == 'sigmoid' or not correction -- correction is for score = 'sigmoid'",
      'where topk_groups <= groups -- topk_groups ({topk_groups}) must be at most groups '
         .. '({groups})',
      'where groups == 1 or experts % groups == 0 and experts >= 2 * groups -- experts ({experts}) '
         .. 'must be a multiple of groups ({groups}), and two of each at least',
      'where topk * groups <= experts * topk_groups -- topk ({topk}) is more than the experts of '
         .. 'topk_groups ({topk_groups}) groups' } },
})
