-- Balance: how evenly routers spread tokens over their experts, and the loss that evens it out
-- (Switch Transformer, arXiv 2101.03961, eq. 4 to 6):
--
--    loss + coef E sum_e f_e P_e
--
-- f_e is the number of choices of expert e, P_e the sum of its probabilities, each divided by the
-- number of tokens. transformers adds up the tokens of all layers, so one layer may make up for
-- another; by_layer, as in Megatron-LM, it is the mean of a term of each layer. Padding is no
-- token. f has no gradient.
--
--    local balance = tide.nn.balance.new { comm = comm }     -- of a batch
--    local loss = model:loss(ids, labels, { count = n, balance = balance })
--    balance:counts()                                        -- choices of each layer and expert
--
-- Ranks of comm have tokens of their own: f and P are those of all ranks, and the terms of the
-- ranks add up to the whole. The gradient enters at the logits of each router. A recomputed layer
-- is therefore counted once: the backward of the loss, which was recorded last, runs before that of
-- the layers and leaves them their slopes. Ranks that tensor parallelism gives the same tokens have
-- the same term, and one of them adds the gradient.
--
-- Routers with a correction bias (nn.MoE) need no such loss: `_correct` moves the bias of an expert
-- against its load after each step (DeepSeek-V3; Wang et al., arXiv 2408.15664).
-- Legend: L layers, N tokens, E experts, k experts of a token.

local tide = require 'tide'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local private = require 'tide.util.private'
local signature = require 'tide.util.signature'

local balance = {}

local Balance = { class_name = 'Balance' }
Balance.__index = Balance

-- Makes the record of a batch.
function balance.new(opts)
   return setmetatable({ comm = opts.comm, whole = opts.whole, calls = {}, pending = {} }, Balance)
end

-- Gives a call of a model the record of its experts, and returns it, where the loss of the model
-- has the term now; else returns nil. place: options of the call.
function balance._begin(model, place)
   if not (model.balance_way and model:balance_way() and tide.is_grad_enabled()) then return nil end
   place.balance = place.balance or balance.new {}
   return place.balance
end

-- ---- a call of a model -------------------------------------------------------------------------

local Call = {}
Call.__index = Call

-- Begins a call of a model, and returns its record, which the routers get. way: nil, or coef and
-- by_layer of the loss and layers, the layers with experts of the whole model where a stage of a
-- pipeline has some of them; index: i32 [B or 1, T, 2] of the tokens [B, T], or nil.
function Balance:_open(way, index, B, T)
   local call = setmetatable({ way = way, layers = {}, of = {}, is_open = true }, Call)
   if index then
      call.mask = tide.no_grad(function()
         return index:select(3, 1):ge(0):expand(B, T):to('f32'):reshape(B * T, 1)
      end)
   end
   self.calls[#self.calls + 1], self.pending[#self.pending + 1] = call, call
   return call
end

-- Returns the record of the call of a model in which a layer runs; nil without one.
function balance._call(op, at)
   if at == nil then return nil end
   local call = err.type(op, 'at', at, 'table').balance
   err.arg_if(call ~= nil and getmetatable(call) ~= Call, op, 'at.balance', 'what a model makes of '
      .. 'its opts.balance', call)
   return call
end

-- Ends the call: what runs from here on is recomputed.
function Call:_close() self.is_open = false end

-- Returns the record of a layer; key: any value of its own.
local function layer_of(self, key)
   local layer = self.of[key]
   if not layer then
      layer = { place = #self.layers + 1 }
      self.of[key], self.layers[layer.place] = layer, layer
   end
   return layer
end

local function add(layer, field, t)
   layer[field] = private.keep(layer[field] and layer[field] + t or t)
end

-- Adds the gradient of the term to the one that the rest of the model gives the logits of a router.
local watched = tide.grad.func {
   name = 'nn.balance',
   forward = function(self, logits, call, key)
      self.call, self.place = call, layer_of(call, key).place
      self:save(logits)
      return logits
   end,
   backward = function(self, dy)
      local slopes, mask = self.call.slopes, self.call.mask
      if not slopes then return dy end
      local p = self:saved():softmax(-1)
      local g = p * slopes:narrow(1, self.place, 1):to(p.dtype)
      g = g - p * g:sum(-1, true)
      if mask then g = g * mask:to(g.dtype) end
      return dy and dy + g or g
   end,
}

-- Returns the logits [N, E] of a router, through which the loss reaches it. key: of the layer;
-- adds: false on ranks that leave the gradient to another.
function Call:_watch(logits, key, adds)
   if not self.way then return logits end
   if self.is_open then
      add(layer_of(self, key), 'probs', tide.no_grad(function()
         local p = logits:detach():softmax(-1)
         return (self.mask and p * self.mask:to(p.dtype) or p):sum(1)
      end))
   end
   return adds and watched(logits, self, key) or logits
end

-- Counts the experts ids [N, k] that the router of a layer has chosen.
function Call:_count(ids, key, E)
   if not self.is_open then return end
   local N, k = ids:size(1), ids:size(2)
   self.topk = k
   add(layer_of(self, key), 'counts', tide.no_grad(function()
      local like = { dtype = 'f32', device = ids.device }
      -- a layer that works on the tokens of the loss alone has others than the mask
      local mask = self.mask and self.mask:size(1) == N and self.mask
      local ones = mask and mask:expand(N, k):contiguous() or tide.ones({ N, k }, like)
      return tide.zeros({ N, E }, like):scatter_add(2, ids, ones):sum(1)
   end))
end

-- ---- the loss ----------------------------------------------------------------------------------

-- Returns a field of all layers, [L, E].
local function stacked(self, field)
   local list = {}
   for i, layer in ipairs(self.layers) do list[i] = layer[field] end
   return tide.stack(list, 1)
end

local added = tide.grad.func {
   name = 'nn.balance.loss',
   forward = function(self, loss, call, term)
      self.call, self.slopes = call, term.slopes
      return loss + term.value:to(loss.dtype)
   end,
   backward = function(self, dy)
      self.call.slopes = self.slopes * dy:to(self.slopes.dtype)
      return dy
   end,
}

-- Returns the choices [L, E] of a call and n, summed over the ranks of comm, in dtype.
local function summed(call, comm, n, dtype)
   local counts = stacked(call, 'counts'):to(dtype)
   local L, E = counts:size(1), counts:size(2)
   if not (comm and comm.size > 1) then return counts, n:to(dtype) end
   local all = tide.cat({ counts:reshape(-1), n:to(dtype):reshape(1) }, 1)
   comm:all_reduce(all)
   return all:narrow(1, 1, L * E):reshape(L, E), all:narrow(1, L * E + 1, 1)
end

-- Returns the derivatives [L, E] of the term by the sums of probabilities; share: how much the call
-- counts.
local function slopes_of(call, counts, share)
   local way, L, E = call.way, counts:size(1), counts:size(2)
   local layers = way.layers or L
   if not way.by_layer then counts = counts:sum(1, true):expand(L, E) end
   local tokens = (counts:sum(2, true) * (1 / call.topk)):clamp(1, math.huge)
   local factor = way.coef * E / (way.by_layer and layers or 1)
   return counts / (tokens * tokens) * (share * factor)
end

-- Returns the term of a call, { value, slopes }. weight: its factor; n, count: as of Balance:add.
local function term_of(call, comm, weight, n, count)
   local probs = stacked(call, 'probs')
   local counts, trained = summed(call, comm, n, probs.dtype)
   local slopes = slopes_of(call, counts, trained:sum() * (weight / (count or 1)))
   return { value = (slopes * probs):sum(), slopes = slopes }
end

-- Returns the loss of a batch with the term of its routers: the mean of those of the calls since
-- the last add. n: a tensor of one element, the labels of this batch that count; count: those that
-- the loss was divided by, of all batches and ranks. The term counts by its share n / count. Both
-- nil: the loss is a mean of this batch. model:loss calls it.
function Balance:add(loss, n, count)
   local calls = {}
   for _, call in ipairs(self.pending) do calls[#calls + 1] = call.way and call or nil end
   self.pending = {}
   err.raise_if(#calls > 0 and self.comm and self.comm.size > 1 and not count, 'E_ARG',
      'nn.balance', 'a loss over ranks (comm) needs opts.count, the labels that count on all of '
      .. 'them; got nil')
   n = n or tide.ones({ 1 }, { device = loss.device })
   for _, call in ipairs(calls) do
      local ran = #call.layers > 0                -- a stage of a pipeline may have no routers
      err.raise_if(not ran and not call.way.layers, 'E_STATE', 'nn.balance', 'no router of the '
         .. 'model ran in this call')
      local term = ran and tide.no_grad(term_of, call, self.comm, 1 / #calls, n, count)
      loss = term and added(loss, call, term) or loss
   end
   return loss
end

-- ---- figures -----------------------------------------------------------------------------------

-- Returns the place of each layer in counts: its key -> 1 to L. E_STATE: calls of other layers.
function Balance:_places()
   local places, keys = {}, {}
   for _, call in ipairs(self.calls) do
      for key, layer in each(call.of) do
         local other = (places[key] or layer.place) ~= layer.place
            or (keys[layer.place] or key) ~= key
         err.raise_if(other, 'E_STATE', 'nn.balance', 'two models were called with this balance, '
            .. 'which would add up what their routers choose; give a teacher or a reference no '
            .. 'opts.balance, or call it under tide.no_grad')
         places[key], keys[layer.place] = layer.place, key
      end
   end
   return places
end

-- Returns how often the tokens of this rank chose each expert of each layer with experts, f32 [L,
-- E], and how many experts a token uses; nil where no router ran.
function Balance:counts()
   self:_places()
   local sum, topk
   for _, call in ipairs(self.calls) do
      local here = #call.layers > 0 and tide.no_grad(stacked, call, 'counts') or nil
      topk = topk or call.topk
      sum = sum and here and tide.no_grad(function() return sum + here end) or sum or here
   end
   return sum, topk
end

-- Adds rate to the correction bias of each expert with fewer tokens than the mean of its layer, and
-- subtracts it from those with more. counts [L, E]: choices of a step, of all ranks; places: of
-- Balance:_places; factor: nil, or a tensor of one element, 0 where the step changes nothing. It
-- does not wait for a device.
function balance._correct(model, counts, places, rate, factor)
   tide.no_grad(function()
      model:walk(function(m)
         local place = m.router_bias and places[m._key]
         if not place then return end
         local load = counts:select(1, place):to 'f64'       -- whose mean is exact
         local change = (load:mean() - load):sign() * rate
         if factor then change = change * factor end
         m.router_bias:add_(change:to(m.router_bias.dtype))
      end)
   end)
end

-- Returns the largest and the smallest share of the tokens of a layer that use one expert, as a
-- tensor [2], over the ranks of comm. counts [L, E]: of calls; topk: experts of a token. It does
-- not wait for a device. Collective.
function balance.shares(counts, topk, comm)
   err.arg_if(counts.ndim ~= 2 or counts:numel() == 0, 'nn.balance.shares', 'counts',
      'choices [layers, experts]', counts)
   return tide.no_grad(function()
      counts = counts:clone()
      if comm and comm.size > 1 then comm:all_reduce(counts) end
      local share = counts / (counts:sum(2, true) * (1 / topk)):clamp(1, math.huge)
      return tide.stack({ share:amax(), share:amin() }, 1)
   end)
end

signature.doors('nn.balance', Balance, { add = 'loss: tensor; n: tensor?; count: number?' })
signature.kind('balance', 'a balance of tide.nn.balance.new', function(v)
   return getmetatable(v) == Balance
end, 'tide.Balance')

return signature.doors('nn.balance', balance, {
   new = { opts = { 'comm: comm? -- ranks with tokens of their own; this one by default',
      'whole: boolean = false -- counts all tokens in the last layer too, not those of the loss '
         .. 'alone' } },
   shares = 'counts: tensor; topk: integer >= 1; comm: comm?',
})
