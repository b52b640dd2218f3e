-- Sampling a continuation: temperature, top-k and top-p over host logits, a counter-based draw.
--
-- `pick` is pure. `generate` keeps keys and values of earlier tokens; when the context is full it
-- starts again from its second half.

local class = require 'tide.class'
local err = require 'tide.util.err'
local hash = require 'tide.util.hash'

local sample = {}

-- Candidates sorted by logit, at most k of them.
local function ranked(logits, k)
   local order = {}
   for i = 1, #logits do order[i] = i end
   table.sort(order, function(a, b)
      return logits[a] > logits[b] or logits[a] == logits[b] and a < b
   end)
   for i = #order, k + 1, -1 do order[i] = nil end
   return order
end

local known = { 'tokens', 'temperature', 'top_k', 'top_p', 'seed', 'device', 'stop', 'context',
                'on_token' }

local function check(op, opts)
   opts = err.options(op, opts, known)
   err.integer(op, 'tokens', opts.tokens or 128, 0)
   err.number(op, 'temperature', opts.temperature or 1, 0)
   err.integer(op, 'top_k', opts.top_k or 0, 0)
   err.number(op, 'top_p', opts.top_p or 1, 1e-9, 1)
   err.integer(op, 'seed', opts.seed or 0, 0)
   if opts.context ~= nil then err.integer(op, 'context', opts.context, 2) end
   if opts.on_token ~= nil then err.func(op, 'on_token', opts.on_token) end
   return opts
end

-- Id (0-based) drawn from a list of logits with the number u in [0, 1).
-- opts: temperature (1; 0 takes the best), top_k (0: all), top_p (1).
function sample.pick(logits, u, opts)
   local op = 'train.sample.pick'
   for i, v in ipairs(err.type(op, 'logits', logits, 'table')) do
      if type(v) ~= 'number' then err.arg(op, ('logits[%d]'):format(i), 'a number', v) end
   end
   if #logits == 0 then err.arg(op, 'logits', 'at least one number', 'none') end
   err.number(op, 'u', u, 0, 1)
   opts = check(op, opts)
   local temperature = opts.temperature or 1
   local k = opts.top_k and opts.top_k > 0 and opts.top_k or #logits
   local order = ranked(logits, temperature == 0 and 1 or k)
   if temperature == 0 then return order[1] - 1 end
   local weights, total = {}, 0
   for i, id in ipairs(order) do
      weights[i] = math.exp((logits[id] - logits[order[1]]) / temperature)
      total = total + weights[i]
   end
   local limit, kept, sum = (opts.top_p or 1) * total, #order, 0
   for i, w in ipairs(weights) do
      sum = sum + w
      if sum >= limit then
         kept = i
         break
      end
   end
   local target, run = u * math.min(sum, total), 0
   for i = 1, kept do
      run = run + weights[i]
      if target < run then return order[i] - 1 end
   end
   return order[kept] - 1
end

local function new_caches(model)
   local caches = {}
   for i = 1, model.config.num_hidden_layers do caches[i] = {} end
   return caches
end

-- Logits (a list) after `ids`, which follow the tokens already in the caches.
local function advance(tide, model, ids, start, caches, device)
   local n = #ids
   local x = tide.tensor({ ids }, { dtype = 'i64', device = device })
   local positions = tide.arange(start, start + n, 1, { dtype = 'i64', device = device })
      :reshape(1, n)
   local logits = model(x, { positions = positions, caches = caches })
   return logits:select(2, n):select(1, 1):float():tolist()
end

-- Continues a list of ids. opts: tokens (128), temperature (1), top_k, top_p, seed, stop (id that
-- ends it), context (most tokens seen at once), on_token(id). Returns the list of new ids.
function sample.generate(model, prompt, opts)
   local op = 'train.sample.generate'
   opts = check(op, opts)
   local tide = require 'tide'
   if not class.is(model, tide.nn.Module) or type(model.config) ~= 'table' then
      err.arg(op, 'model', 'a model of tide.model', model)
   end
   if #err.integers(op, 'prompt', prompt, 0) == 0 then
      err.arg(op, 'prompt', 'at least one id', 'none')
   end
   local context = opts.context or model.config.max_position_embeddings
   local out, seen = {}, {}
   for i, id in ipairs(prompt) do seen[i] = id end
   local was_training = model.training
   model:eval()
   tide.no_grad(function()
      local caches, start, pending
      for i = 1, opts.tokens or 128 do
         if not caches or start + #pending > context then
            caches, start, pending = new_caches(model), 0, {}
            local keep = #seen > context and math.floor(context / 2) or #seen
            for j = #seen - keep + 1, #seen do pending[#pending + 1] = seen[j] end
         end
         local logits = advance(tide, model, pending, start, caches, opts.device)
         start = start + #pending
         local id = sample.pick(logits, hash.mix(opts.seed or 0, i) / 2^32, opts)
         if id == opts.stop then break end
         out[#out + 1], seen[#seen + 1], pending = id, id, { id }
         if opts.on_token then opts.on_token(id) end
      end
   end)
   model:train(was_training)
   return out
end

return sample
