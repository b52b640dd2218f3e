-- Backbone: decoders of blocks around any mixers, from a published configuration.
--
-- A class says what its configuration has (_rows and _rules, see published.read), which options it
-- takes beside those of every module (_options), and makes the mixer of each layer (_mixers(c,
-- opts)). Names follow published checkpoints, which a class gives in `form`; by default they are
-- backbone.embeddings, backbone.layers.0.norm / .mixer, backbone.norm_f, lm_head, and blocks are
-- x + mixer(norm(x)).
-- Legend: B batch, T tokens, C model width, V vocabulary.

local tide = require 'tide'
local CausalLM = require 'tide.model.causal_lm'
local class = require 'tide.class'
local rows_ = require 'tide.nn.rows'
local copy = require 'tide.util.copy'
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local private = require 'tide.util.private'
local mask_ = require 'tide.nn.mask'
local mixing = require 'tide.nn.mixing'
require 'tide.nn.balance'                               -- the type of an option
local nn = require 'tide.nn'
local published = require 'tide.model.published'
local spread = require 'tide.nn.spread'
local tiles = require 'tide.nn.tiles'
local sequence_of = require('tide.nn.mamba').sequence_of

local Module = nn.Module

local Body = class('BackboneModel', Module)
Body.mixes = false
Body.holds_parts = true

-- Makes the body. c: the complete configuration; blocks: a list; opts: those of every module; form:
-- that of the class; own: nil, or fields of the body: rope (that of its layers), embed_scale,
-- scales_given, out_scale, norm_offset.
function Body:init(c, blocks, opts, form, own)
   Module.init(self)
   self._form, self.class_name = form, form.name           -- nil: of the class Body
   copy(own or {}, self)
   if form.positions then
      self:child(form.positions, nn.Embedding(c.max_position_embeddings, c.hidden_size,
         Module.inner(opts, { std = c.initializer_range })))
   end
   self:child(form.embed, nn.Embedding(c.vocab_size, c.hidden_size,
      Module.inner(opts, { std = c.initializer_range })))
   self:child('layers', nn.Stack(blocks))
   self:child(form.norm, (form.Norm or nn.RMSNorm)(c.hidden_size,
      Module.inner(opts, { eps = c[form.eps], offset = self.norm_offset })))
   local dropout = form.dropout and form.dropout(c)
   if dropout then self:child('dropout', dropout) end
end

-- Adds learned positions to the embeddings x of a call with n tokens. is_own: x is given up.
local function placed(self, x, n, at, is_own)
   local positions = nn.context._positions(at, x:size(2), x.device)
   err.raise_if(x:size(2) ~= n, 'E_UNSUPPORTED', 'model',
      'sequence_parallel is not supported of a model with learned positions; leave it out')
   local p = self[self._form.positions](positions)
   local y = x + p
   private.spend(p, is_own and x or nil)
   return self.dropout and private.replace(y, self.dropout(y)) or y
end

-- Returns what the first block reads of ids or of given embeddings, and whether it may be given up:
-- the caller's may not (at.is_made: the model has made them). scales_given: embed_scale counts for
-- given embeddings, too.
local function embedded(self, x, at)
   local is_ids, n, scale = x.ndim == 2, at.length or x:size(2), self.embed_scale
   local is_own = is_ids or at.is_made
   if not is_ids and not self.scales_given then scale = nil end
   if is_ids then x = self[self._form.embed](x) end
   if self._form.positions then x, is_own = placed(self, x, n, at, is_own), true end
   if not scale then return x, is_own end
   local y = x * scale
   private.spend(is_own and x or nil)
   return y, true
end

-- Returns the output of the blocks for x, which may be given up if is_own. ends: it is normed and
-- scaled, as the model ends there; rows are picked then, too.
local function through(self, x, is_own, at, beside, ends)
   local norm = self[self._form.norm]
   local y = ends and self.layers:normed(norm, x, at, beside) or self.layers(x, at, beside)
   x = is_own and private.replace(x, y) or y
   if not ends then return x end
   if at.last_rows then x = private.replace(x, rows_.pick(x, at.last_rows)) end
   return self.out_scale and private.replace(x, x * self.out_scale) or x
end

-- Returns the final hidden states [B, T, C] of ids [B, T], or of their embeddings [B, T, C]. With
-- at.last_rows [K] it returns those of these tokens alone, [1, K, C]. at: where the tokens lie;
-- beside: nil, or the tensor of at.after (see nn.Stack). In a pipeline it returns the output of the
-- last part that runs (see Stage:through).
function Body:forward(ids, at, beside)
   local stage = spread.of(self).pp
   if not stage then
      local x, is_own = embedded(self, ids, at)
      return through(self, x, is_own, at, beside, true)
   end
   return stage:through(ids, function(part, x)
      local is_own = true
      if not x then x, is_own = embedded(self, ids, at) end
      local here = copy({ blocks = part.here }, copy(at))
      if not part.ends then here.last_rows = nil end
      return through(self, x, is_own, here, beside, part.ends)
   end)
end
private.note(Body.forward)

-- Keeps what a rank of a pipeline runs.
function Body:_cut_stage(stage)
   local form, ranges = self._form, {}
   for v, part in ipairs(stage.parts) do ranges[v] = part.blocks end
   self.layers:_keep(ranges)
   if not stage.first then
      if form.positions then self:_remove(form.positions) end
      if self.dropout then self:_remove 'dropout' end
      if not (stage.last and stage.tied) then self:_remove(form.embed) end
   end
   if not stage.last then self:_remove(form.norm) end
   spread.set(self, 'pp', stage)
end

-- Returns the number of learned positions, beyond which no token can lie; nil without a table.
function Body:_positions()
   local name = self._form.positions
   return name and self[name].weight:size(1)
end

local Backbone = class('Backbone', CausalLM)
Backbone.mixes = false

-- Names of the body and its parts, the field with the eps of norms, and what makes a block; or nil:
-- name (of the body's class), positions (the name of a table of learned ones), Norm (of the end)
-- and dropout (of the embeddings).
Backbone.form = {
   body = 'backbone', embed = 'embeddings', norm = 'norm_f', eps = 'layer_norm_epsilon',
   block = function(c, mixer, norm)
      return nn.Block { names = { norm1 = 'norm', mixer = 'mixer' }, mixer = mixer,
         norm1 = nn.RMSNorm(c.hidden_size, norm) }
   end,
}

-- Returns the operations of a token of training, of the whole model, that do not read weights: {
-- fixed, for each token of the sequence }. A layer with a state has products of it with two vectors
-- of each head, a gated delta net with three.
local function mixing_of(mixers)
   local sum = { 0, 0 }
   for _, m in ipairs(mixers) do
      if class.is(m, nn.Mamba2) then sum[1] = sum[1] + 12 * m.inner_dim * m.state end
      if class.is(m, nn.GatedDeltaNet) then sum[1] = sum[1] + 18 * m.inner_dim * m.key_dim end
      if class.is(m, nn.Attention) then
         sum[2] = sum[2] + 3 * m.heads * (m.head_dim + (m.value_dim or m.head_dim))
      end
   end
   return sum
end

-- Returns the complete configuration, and the names of fields that change nothing.
function Backbone:_read(config) return published.read(self.op, config, self._rows, self._rules) end

-- Returns the blocks, their mixers, and fields of the body or nil.
function Backbone:_blocks(c, opts)
   local blocks, mixers, norm = {}, self._mixers(c, opts), { eps = c[self.form.eps] }
   for i, mixer in ipairs(mixers) do
      blocks[i] = self.form.block(c, mixer, Module.inner(opts, norm), opts)
   end
   return blocks, mixers
end

-- Makes a model of a published configuration. opts: dtype, device ('null' for shapes only), seed,
-- init; of models with layers that keep a state recurrence_dtype (see nn.Mamba2), too.
function Backbone:init(config, opts)
   local op = self.op or self.family.op
   opts = Module.options(op, opts, self._options or {})
   CausalLM.init(self, op, self:_read(config))
   local blocks, mixers, own = self:_blocks(self.config, opts)
   self.mixing = mixing_of(mixers)
   self:child(self.form.body, Body(self.config, blocks, opts, self.form, own))
   self:make_head(opts)
   self:ready(opts)
end

-- Returns the embedding, whose weight a tied head shares.
function Backbone:embedding() return self[self.form.body][self.form.embed] end

-- Returns the list of blocks.
function Backbone:blocks() return self[self.form.body].layers end

-- Returns the weights of a block that multiply a token.
function Backbone:_block_cost(block) return CausalLM._multiplying(block) end

-- Returns how many blocks the first stage of a pipeline needs.
function Backbone:first_blocks() return 1 end

-- Keeps what a stage of parallel.pipeline_parallel runs.
function Backbone:_cut_stage(stage)
   self[self.form.body]:_cut_stage(stage)
   if self.lm_head and not stage.last then self:_remove 'lm_head' end
   spread.set(self, 'pp', stage)
end

Backbone.at_fields = { 'positions', 'index', 'q_index', 'k_index', 'attention_mask', 'sequence',
   'caches', 'context', 'balance' }

-- Options beside ids in a call of a model without layers that keep a state.
Backbone._place_options = {
   'positions: tensor? -- [batch or 1, tokens], or [3, batch or 1, tokens] with mrope_section',
   'caches: table?',
   'index: tensor? [batch or 1, tokens, 2 or 3] of i32, i64',
   'q_index: tensor? [batch or 1, tokens, 2 or 3] of i32, i64',
   'k_index: tensor? [batch or 1, keys, 2 or 3] of i32, i64', 'attention_mask: any?',
   'context: any?',
   'balance: balance?',
}
Backbone._read_without_sequence = signature.options(Backbone._place_options)
Backbone._read_place = signature.options { Backbone._place_options, 'sequence: tensor?' }

-- Returns whether caches of a call (or nil) hold keys of earlier tokens.
function Backbone._has_keys(caches)
   for _, cache in ipairs(caches or {}) do
      if type(cache) == 'table' and cache.k then return true end
   end
   return false
end

-- Returns the caches of a call with this body: nil, or a table for each layer, which the first call
-- fills.
local function checked_caches(op, body, caches)
   if caches == nil then return nil end
   local n = #body.layers
   if #caches ~= n then
      err.arg_text(op, 'caches', ('a list of %d tables, one for each layer, {} before the first '
         .. 'call'):format(n), ('a list of %d'):format(#caches))
   end
   for i, cache in ipairs(caches) do err.type(op, ('caches[%d]'):format(i), cache, 'table') end
   return caches
end

-- Returns `at` of a call (see nn.context), from the options that describe where the tokens lie.
-- opts: index [B or 1, T, 2 or 3] (see nn.mask) for packed streams, or sequence [B or 1, T] and,
-- for attention, q_index and k_index; attention_mask [B, T] in place of an index, 1 and 0 or
-- documents numbered from 1; positions (three rows of them where rope_scaling has an
-- mrope_section); caches, one table a layer, for generation; context, if ids are this rank's part
-- of a sequence (parallel.cp).
local function placement(self, opts, ids, context)
   local op = self.op
   local sequence = opts.sequence
   local of_mask = mask_.of_call(op, opts, ids, context)
   local index = nn.context._whole_index(context, ids.device) or opts.q_index or opts.index
   if not sequence and self.mixing[1] > 0 and (index or of_mask) then
      sequence = sequence_of((index or of_mask):select(3, 1))
   end
   local positions = nn.context._given_positions({ positions = opts.positions, context = context,
      q_index = index }, ids.device)
   local rope, T, length = self[self.form.body].rope, ids:size(2), nil
   local caches = checked_caches(op, self[self.form.body], opts.caches)
   err.arg_if(not positions and (rope or self.form.positions) and Backbone._has_keys(caches), op,
      'positions', 'those of the tokens in the whole sequence, [batch or 1, tokens], beside caches '
         .. 'that hold earlier ones', nil)
   if rope then
      length = positions and rope:length_of(positions, context and context.comm) or T
      positions = positions or nn.context._plain_positions(T, ids.device)
   end
   return {
      positions = positions, rope_length = length, q_index = index,
      k_index = opts.k_index or index,
      tiles = tiles.list(index or of_mask, opts.k_index or index or of_mask),
      sequence = sequence, caches = caches,
      context = opts.context, length = T, attention_mask = opts.attention_mask,
      mask_index = of_mask, mask_checked = true, balance = opts.balance, after = opts.after,
   }
end

-- Returns fn(at), whose routers note what they choose in at.balance. What runs without recording
-- is not trained and not noted.
local function balanced(self, at, ids, fn)
   local record = at.balance
   if not record then return fn(at) end
   if not tide.is_grad_enabled() then
      at.balance = nil
      return fn(at)
   end
   local c, index = at.context, at.q_index or at.mask_index
   if c and not c.null then index = c:q_index(ids.device) end
   at.balance = record:_open(self:balance_way(), index, ids:size(1), ids:size(2))
   local h = fn(at)
   at.balance:_close()
   return h
end

-- Returns what the body reads of ids, or of given embeddings: the same, of embeddings the tokens
-- that this rank has between layers. A family that replaces some embeddings by features of images
-- does it here. opts: those of the call, read, which this may complete, also with `after` and
-- `beside` (see nn.Stack); context: theirs, nil without one or for null.
function Backbone:_inputs(ids, _, _)
   local tp = spread.of(self).tp
   return ids.ndim == 3 and tp and tp.sequence and tp.cut(ids) or ids
end
private.note(Backbone._inputs)

-- Returns the final hidden states [B, T, C] of ids [B, T] or of embeddings [B, T, C]. With an index
-- rows [K] (see nn.rows) it returns those of these tokens alone, [1, K, C].
function Backbone:hidden(ids, opts, rows)
   self:check_ids(ids)
   local stage = spread.of(self).pp
   err.raise_if(stage and not stage.inside, 'E_UNSUPPORTED', self.op, 'hidden states lie on the '
      .. 'last stage of the pipeline alone; call the model, or its loss or label_logprobs')
   err.arg_if(rows ~= nil and not tide.is_tensor(rows), self.op, 'rows', 'an index tensor [K]',
      rows)
   opts = self._read_place(self.op, opts)
   local context = nn.context.of(self.op, opts, ids)
   local x = self:_inputs(ids, opts, context)
   if context then context = opts.context end    -- _inputs may replace it (see model.vision_spans)
   local at, body = placement(self, opts, ids, context), self[self.form.body]
   -- a hook or wrap of the body may need its input again
   at.last_rows, at.is_made = rows, not rawequal(x, ids) and body._call == Module._call
   local y = balanced(self, at, ids, function() return body(x, at, opts.beside) end)
   if body._call == Module._call then private.spend(opts.beside) end
   return y
end
private.note(Backbone.hidden)

-- Returns whether a module computes each token by itself, the same whatever the other tokens are,
-- and has no hook of the user that sees tokens. mixer: a part of it that is exempt, or nil.
local function is_by_token(module, mixer)
   local is = true
   module:walk(function(m)
      local draws = class.is(m, nn.Dropout) and m.training and m.p > 0
      is = is and not draws and not m:has_hooks() and (m == mixer or mixing(m) == false)
   end)
   return is
end

-- Returns whether hidden can compute some rows alone. With tensor parallelism it cannot: the ranks
-- would have to agree on the rows, and the head picks rows by itself there. A loss that balances
-- experts is over all tokens.
function Backbone:picks_rows()
   local body, adapter = self[self.form.body], rawget(self, '_adapter')
   local stage = spread.of(self).pp
   if stage and not stage:at_end() or self:balance_way()
      or self.hidden ~= Backbone.hidden or body.forward ~= Body.forward
      or spread.of(self).tp or body:has_hooks() or body.layers:has_hooks()
      or adapter and adapter.dropout > 0 and self.training then
      return false
   end
   local last = body.layers[#body.layers]
   local is_block = last and last.picks_rows and last:picks_rows()
   return is_by_token(body[self.form.norm])
      and (not self.lm_head or is_by_token(self.lm_head))
      and (not is_block or is_by_token(last, last:part 'mixer'))
end

-- Returns the operations of a token of training: 6 N for the weights, the state products of each
-- Mamba layer, causal attention. A multiply-add counts as two.
function Backbone:flops_per_token(seq)
   err.number(self.op, 'seq', seq, 0)
   return 6 * self:multiplying() + self.mixing[1] + self.mixing[2] * seq
end

return Backbone
