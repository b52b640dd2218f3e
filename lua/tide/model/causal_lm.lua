-- CausalLM: what language models have in common around their layers: a head that may be
-- the embedding, logits, and a loss that never makes them.
--
-- A family says how ids, or embeddings in their place, become final hidden states (`hidden`),
-- whether it can do so for some tokens alone (`picks_rows`), which options say where they lie
-- (`at_fields`) and which embedding a tied head is (`embedding`); the rest is here.
-- Tensor parallelism wraps `head_logits` and `head_loss`, which keep the vocabulary in parts then.

local tide = require 'tide'
local chunked = require 'tide.nn.chunked'
local class = require 'tide.class'
local rows_ = require 'tide.nn.rows'
local copy = require 'tide.util.copy'
local dims = require 'tide.util.dims'
local err = require 'tide.util.err'
local mixtures = require 'tide.nn.mixtures'
local private = require 'tide.util.private'
local nn = require 'tide.nn'
local nf4_part = require 'tide.nn.nf4_part'
local spread = require 'tide.nn.spread'

local Module = nn.Module

local CausalLM = class('CausalLM', Module)

CausalLM.mixes = false

local floats = { f32 = true, f64 = true, bf16 = true, f16 = true }

-- Begins a model. op: the name in its errors; c: the complete configuration; unused: names of
-- fields of the file that change nothing.
function CausalLM:init(op, c, unused)
   Module.init(self)
   self.op, self.config, self.unused_fields = op, c, unused or {}
end

-- Makes the output projection, unless it is the embedding. It is never in FP8, as the loss
-- multiplies by its weight itself. opts: those of every module.
function CausalLM:make_head(opts)
   local c = self.config
   err.type(self.op, 'opts', opts, 'table')
   if c.tie_word_embeddings then return end
   self:child('lm_head', nn.Linear(c.hidden_size, c.vocab_size,
      Module.inner(opts, { bias = false, fp8 = false, std = c.initializer_range })))
end

-- Returns the weight of the output projection, tied or not; the last stage of a pipeline has it.
function CausalLM:head()
   local m = self.lm_head or self:embedding()
   return m and m.weight
end

-- Refuses anything but ids, a tensor [batch, tokens], or embeddings of the width of the model in
-- their place, a tensor [batch, tokens, hidden_size].
function CausalLM:check_ids(ids)
   local C = self.config.hidden_size
   local fits = tide.is_tensor(ids) and (ids.ndim == 2
      or ids.ndim == 3 and ids:size(3) == C and floats[ids.dtype])
   err.arg_if(not fits, self.op, 'ids', ('a tensor [batch, tokens], or embeddings [batch, tokens, '
      .. '%d]'):format(C), ids)
end

-- Refuses labels of another shape than ids, such as transposed ones, which have as many elements.
-- Labels of one dim are a stream.
local function check_labels(op, ids, labels)
   if not tide.is_tensor(labels) then err.arg(op, 'labels', 'a tensor like ids', labels) end
   if labels.ndim == 2 and (labels:size(1) ~= ids:size(1) or labels:size(2) ~= ids:size(2)) then
      err.raise('E_SHAPE', op, 'labels: expected [%d, %d] as ids, got [%d, %d]', ids:size(1),
         ids:size(2), labels:size(1), labels:size(2))
   end
end

-- Returns the logits of final hidden states.
function CausalLM:head_logits(h)
   if self.lm_head then return self.lm_head:forward(h) end
   return self:embedding():as_output(h)
end

-- Returns the loss of final hidden states, without making logits. opts: those of nn.loss.linear.
function CausalLM:head_loss(h, labels, opts) return nn.loss.linear(h, self:head(), labels, opts) end

-- Returns the log-probabilities of labels after final hidden states, without making logits. opts:
-- those of nn.logprob.of_labels.
function CausalLM:head_logprobs(h, labels, opts)
   return nn.logprob.of_labels(h, self:head(), labels, opts)
end

-- Returns the loss of final hidden states against a teacher, and its parts. opts: those of
-- nn.distil.loss.
function CausalLM:head_distil(h, labels, teacher, opts)
   return nn.distil.loss(h, self:head(), labels, teacher, opts)
end

-- Returns logits under the soft cap of the configuration, if it has one.
local function capped(self, y) return chunked.capped(y, self.config.final_logit_softcapping) end

-- Calls a method head_* with final hidden states h, as a call of lm_head if there is one, and
-- returns its results.
local function at_head(self, method, h, ...)
   local head, a, b = self.lm_head, ...
   if not head then return private.call(self[method], self, h, a, b) end
   return head:as_call(private.note(function(_, x)
      return private.call(self[method], self, x, a, b)
   end), h)
end

-- Returns the final hidden states of a call; on a stage of a pipeline before the last one the
-- output of the stage. Further arguments: those of the method hidden.
local function final_states(self, ids, ...)
   local stage = spread.of(self).pp
   if not stage then return private.call(self.hidden, self, ids, ...) end
   return stage:within(ids, private.call, self.hidden, self, ids, ...)
end

-- Returns fn(h) of final hidden states; in a pipeline what the last stage computes (see
-- Stage:result).
local function at_end(self, h, fn, shape)
   local stage = spread.of(self).pp
   if not stage then return fn(h) end
   return stage:result(h, fn, shape)
end

local function logits(self, h) return capped(self, at_head(self, 'head_logits', h)) end

local function last_token(x)
   local n = x:size(2)
   return n > 1 and private.replace(x, x:slice(2, n, n):contiguous()) or x
end

-- Returns logits [B, T, V] of ids [B, T], or of embeddings [B, T, C]. Given embeddings get
-- gradients. They are not scaled, except by Granite's multiplier. opts.last_only picks the last
-- token, [B, 1, V]: before the head, or after it if this rank has a part of the sequence.
function CausalLM:forward(ids_BT, opts)
   local last_only = type(opts) == 'table' and opts.last_only
   if last_only then
      opts = copy(opts)
      opts.last_only = nil
   end
   local h, tp = final_states(self, ids_BT, opts), spread.of(self).tp
   return at_end(self, h, function(x)
      if last_only and not (tp and tp.sequence) then x = last_token(x) end
      local y = private.replace(x, logits(self, x))
      return last_only and last_token(y) or y
   end)
end
private.note(CausalLM.forward)
private.note(CausalLM.head_logits)
private.note(CausalLM.head_loss)
private.note(CausalLM.head_logprobs)
private.note(CausalLM.head_distil)

-- Returns the names of all options of a call of loss.
local function loss_options(self)
   local names = { 'shift', 'counted' }
   for _, list in ipairs { nn.loss.known, self.at_fields } do
      for _, name in ipairs(list) do names[#names + 1] = name end
   end
   return names
end

-- Returns the loss of final hidden states. If the user has put a hook on the head, logits are made,
-- as in PyTorch, and the hook sees them (with their soft cap). Otherwise logits are never made.
local function head_loss(self, h, labels, opts)
   local head, cap = self.lm_head, self.config.final_logit_softcapping
   if cap or head and head:has_hooks() then
      err.raise_if(self.keeps_logits_apart, 'E_UNSUPPORTED', self.op, '%s whole logits in '
         .. 'training, but gather_logits = false leaves them split over the ranks; leave it out',
         cap and 'the loss of soft-capped logits takes' or 'lm_head has hooks, which see')
      return nn.loss.of_logits(logits(self, h), labels, opts)
   end
   return at_head(self, 'head_loss', h, labels, opts)
end

-- Refuses places of labels that are no index.
local function check_counted(op, counted, labels)
   local fits = counted == nil or tide.is_tensor(counted) and counted.ndim == 1
      and counted.dtype == 'i64' and counted.device == labels.device
   err.arg_if(not fits, op, 'counted', ("an index [K] of i64 on '%s', as labels"):format(
      labels.device), counted)
end

-- Returns the final hidden states that a loss needs, and their labels. The states are [B, T, C], or
-- [1, K, C] of the rows whose labels count, with the index of these rows (see nn.rows).
local function states(self, ids_BT, labels_BT, place, ignore, counted)
   local rows
   check_counted(self.op, counted, labels_BT)
   local all = place.balance and place.balance.whole
   if not all and self.picks_rows and self:picks_rows() then
      rows = rows_.counted(labels_BT, ignore, counted)
   end
   local h = final_states(self, ids_BT, place, rows)
   return h, rows and rows_.pick_labels(labels_BT, rows) or labels_BT, rows
end

-- Returns how the loss balances experts in a call now, { coef, by_layer, layers } of nn.balance;
-- nil: it does not.
function CausalLM:balance_way()
   local c = self.config
   local coef = self.training and c.output_router_logits and c.router_aux_loss_coef or 0
   if coef <= 0 then return nil end
   local stage, by_layer = spread.of(self).pp, c.router_aux_loss_by_layer or false
   err.raise_if(stage and not by_layer, 'E_UNSUPPORTED', self.op, 'the loss that balances experts '
      .. 'over all layers together needs the choices of all stages of the pipeline; set '
      .. 'router_aux_loss_by_layer = true in the configuration (config.json), or '
      .. 'output_router_logits = false')
   return { coef = coef, by_layer = by_layer, layers = stage and stage.mixtures }
end

-- Returns whether a layer is a mixture of experts.
function CausalLM:has_experts() return #mixtures(self) > 0 end

-- Returns the loss with the term that balances experts, where it has one. counted: as of loss;
-- count: the labels by which the loss is divided, or nil.
local function with_balance(self, loss_, place, labels, ignore, counted, count)
   if not place.balance or not tide.is_grad_enabled() then return loss_ end
   local n = count and (counted and tide.full({ 1 }, counted:numel(), { device = labels.device })
      or labels:ne(ignore):sum())
   local sum, stage = place.balance:add(loss_, n, count), spread.of(self).pp
   if stage then sum = stage:with_terms(loss_, sum) end
   return private.replace(loss_, sum)
end

local function loss(self, ids_BT, labels_BT, opts)
   if opts ~= nil then err.type(self.op, 'opts', opts, 'table') end
   local place, rest = {}, copy(err.options(self.op, opts, loss_options(self)))
   for _, k in ipairs(self.at_fields) do place[k], rest[k] = rest[k], nil end
   if rest.shift then
      nn.context.check_shift(self.op, place.context)
      labels_BT = nn.loss.shift(labels_BT, rest.ignore)
   end
   local counted = rest.counted
   rest.shift, rest.counted = nil, nil
   self:check_ids(ids_BT)
   check_labels(self.op, ids_BT, labels_BT)
   nn.balance._begin(self, place)
   local ignore = rest.ignore or nn.loss.ignore
   local h, labels = states(self, ids_BT, labels_BT, place, ignore, counted)
   local value = at_end(self, h, function(x)
      return private.replace(x, head_loss(self, x, labels, rest))
   end, {})
   return with_balance(self, value, place, labels_BT, ignore, counted, rest.count)
end
private.note(loss)

-- Returns the sum of the token losses divided by opts.count (default: the labels counted in this
-- call). labels_BT[t] is the token after ids_BT[t], -100 to leave it out; opts.shift = true makes
-- the labels from labels_BT = ids. Further options: ignore, label_smoothing, z_loss, counted, and
-- those of forward. counted: the places of the labels that count, an index [K] i64 into all labels;
-- with it the last layers work on these alone, also where labels lie on a GPU. It is a call of the
-- model: its hooks see these arguments and the loss.
function CausalLM:loss(ids_BT, labels_BT, opts)
   err.arg_if(type(self) ~= 'table', 'model.loss', 'self', 'a model: call model:loss(ids, labels), '
      .. 'with a colon', self)
   return self:as_call(loss, ids_BT, labels_BT, opts)
end

local function label_logprobs(self, ids_BT, labels_BT, opts)
   local names = { 'ignore', 'chunk', 'counted' }
   for _, name in ipairs(self.at_fields) do names[#names + 1] = name end
   local place = copy(err.options(self.op, opts, names))
   local rest = { ignore = place.ignore or nn.loss.ignore, chunk = place.chunk,
      cap = self.config.final_logit_softcapping }
   local counted = place.counted
   place.ignore, place.chunk, place.counted = nil, nil, nil
   self:check_ids(ids_BT)
   check_labels(self.op, ids_BT, labels_BT)
   local h, labels, rows = states(self, ids_BT, labels_BT, place, rest.ignore, counted)
   return at_end(self, h, function(x)
      local values = private.replace(x, at_head(self, 'head_logprobs', x, labels, rest))
      if not rows then return values end
      return private.replace(values, rows_.spread(values, rows, labels_BT.shape))
   end, labels_BT.shape)
end
private.note(label_logprobs)

-- Returns the log-probability of each label, in their shape: 0 where it is opts.ignore (-100). The
-- gradients of losses over whole answers go through it; logits exist for opts.chunk tokens at a
-- time. Further options: counted, as of loss, and forward's. A call of the model, as loss is, on
-- every mesh.
function CausalLM:label_logprobs(ids_BT, labels_BT, opts)
   return self:as_call(label_logprobs, ids_BT, labels_BT, opts)
end

-- Calls fn(h, w, cap) with the final hidden states, the output head and the soft cap of its logits,
-- if there is one, while the head is whole here. Not with tensor parallelism.
function CausalLM:with_head(ids_BT, opts, fn)
   local head, cap = self.lm_head, self.config.final_logit_softcapping
   err.func(self.op, 'fn', fn)
   err.raise_if(spread.of(self).pp, 'E_UNSUPPORTED', self.op, 'the states and the head of a model '
      .. 'in stages of a pipeline lie on the last stage alone; leave out the axis pp')
   self:as_call(function(me)
      local h = private.call(me.hidden, me, ids_BT, opts)
      if not head then
         fn(h, me:head(), cap)
         return h
      end
      return head:as_call(function(_, x)
         fn(x, me:head(), cap)
         return x
      end, h)
   end)
end

-- Returns the loss of nn.distil and its parts. provide(fn) calls fn(teacher), once; place: options
-- of forward; rest: those of nn.distil.loss. It is a call of the model, as loss is. In a pipeline
-- the last stage alone calls provide and has the parts.
function CausalLM:distil_loss(ids_BT, labels_BT, provide, place, rest)
   local sums
   err.func(self.op, 'provide', provide)
   rest = copy(err.options(self.op, rest, { 'alpha', 'temperature', 'kind', 'chunk', 'count',
      'ignore', 'counted' }))
   rest.cap, place = self.config.final_logit_softcapping, copy(place or {})
   nn.balance._begin(self, place)
   local loss_ = self:as_call(function(me)
      me:check_ids(ids_BT)
      check_labels(me.op, ids_BT, labels_BT)
      check_counted(me.op, rest.counted, labels_BT)
      local function of_head(_, x)
         local value
         provide(function(teacher)
            value, sums = me:head_distil(x, labels_BT, teacher, rest)
         end)
         return value
      end
      local value = at_end(me, final_states(me, ids_BT, place), function(h)
         local head = me.lm_head
         if head then return head:as_call(of_head, h) end
         return of_head(nil, h)
      end, {})
      return with_balance(me, value, place, labels_BT, rest.ignore or nn.loss.ignore,
         rest.counted, rest.count)
   end)
   return loss_, sums
end

-- Most elements of logits that logprobs makes at a time.
local most = 2^24

-- Returns log-probabilities of targets_K after rows index_K of hidden states [N, C], by blocks of
-- rows.
local function logprobs_of(self, h_NC, index_K, targets_K)
   local n, list = index_K:size(1), {}
   local rows = math.max(1, math.floor(most / self.config.vocab_size))
   for first = 1, n, rows do
      local last = math.min(n, first + rows - 1)
      list[#list + 1] = tide.scope(function()
         local x = h_NC:index_select(1, index_K:slice(1, first, last))
         local z = capped(self, private.call(self.head_logits, self, x))
         return -tide.cross_entropy(z, targets_K:slice(1, first, last), { reduction = 'none' })
      end)
   end
   return #list == 1 and list[1] or tide.cat(list, 1)
end

local function logprobs(self, ids_BT, index_K, targets_K)
   return at_end(self, final_states(self, ids_BT), function(h)
      local flat = private.replace(h, h:reshape(h:size(1) * h:size(2), h:size(3)))
      local head = self.lm_head
      if not head then return logprobs_of(self, flat, index_K, targets_K) end
      return head:as_call(private.note(function(_, x)
         return logprobs_of(self, x, index_K, targets_K)
      end), flat)
   end)
end
private.note(logprobs)

local function check_list(op, name, t)
   err.arg_if(not tide.is_tensor(t) or t.ndim ~= 1 or t.dtype ~= 'i64', op, name,
      'a tensor [K] of i64', t)
end

-- Returns log-probabilities [K] of targets_K, i64, each after the token index_K, i64, which counts
-- the tokens of ids from 0, row after row. Logits exist for these tokens alone, a block at a time.
-- For scoring, without gradients; not with tensor parallelism.
function CausalLM:logprobs(ids_BT, index_K, targets_K)
   check_list(self.op, 'index', index_K)
   check_list(self.op, 'targets', targets_K)
   err.raise_if(spread.of(self).tp, 'E_UNSUPPORTED', self.op, 'logprobs needs whole hidden states, '
      .. 'but tensor parallelism splits them; use log_softmax of the logits')
   return self:as_call(logprobs, ids_BT, index_K, targets_K)
end

-- Loads a state. Published files of tied models may hold the weight of the head, too; it is
-- ignored.
function CausalLM:load_state_dict(state, opts)
   if self.config.tie_word_embeddings and type(state) == 'table' and state['lm_head.weight'] then
      state = copy(state)
      state['lm_head.weight'] = nil
   end
   return Module.load_state_dict(self, state, opts)
end

-- Returns the number of elements of the whole model, of which this rank may hold a part
-- (parallel.layout says which), those in NF4 among them.
local function whole_numel(model)
   local n, seen = 0, {}
   model:walk(function(m)
      n, seen[m] = n + (seen[m] and 0 or nf4_part.numel(m)), true
   end)
   for _, e in ipairs(model:named_parameters()) do
      local layout = rawget(e.owner, '_layout')
      n = n + dims.numel(layout and layout[e.field] and layout[e.field].shape or e.param.shape)
   end
   return n
end

CausalLM._whole_numel = whole_numel

-- Returns the number of elements of experts that a token does not use.
local function idle_numel(model)
   local n = 0
   for _, layer in ipairs(mixtures(model)) do n = n + layer.m:_idle_numel(whole_numel(layer.m)) end
   return n
end

-- Returns the number of elements of a module that multiply something for each token.
function CausalLM._multiplying(module) return whole_numel(module) - idle_numel(module) end

-- Returns the number of parameters of the whole model that multiply something for each token.
function CausalLM:multiplying()
   local stage = spread.of(self).pp
   if stage then return stage.multiplying end
   local c, n = self.config, whole_numel(self) - idle_numel(self)
   return c.tie_word_embeddings and n or n - c.vocab_size * c.hidden_size
end

return CausalLM
