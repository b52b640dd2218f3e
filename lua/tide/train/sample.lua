-- Sampling a continuation: temperature, top-k and top-p over host logits, a counter-based draw.
--
-- `pick` is pure. `generate` keeps keys and values of earlier tokens; when the context is full it
-- starts again from its second half.

local err = require 'tide.util.err'
local hash = require 'tide.util.hash'
local signature = require 'tide.util.signature'

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

-- The same of checked options.
local function pick(logits, u, opts)
   local temperature = opts.temperature
   local k = opts.top_k > 0 and opts.top_k or #logits
   local order = ranked(logits, temperature == 0 and 1 or k)
   if temperature == 0 then return order[1] - 1 end
   local weights, total = {}, 0
   for i, id in ipairs(order) do
      weights[i] = math.exp((logits[id] - logits[order[1]]) / temperature)
      total = total + weights[i]
   end
   local limit, kept, sum = opts.top_p * total, #order, 0
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

-- Id (0-based) drawn from a list of logits with the number u in [0, 1).
function sample.pick(logits, u, opts)
   for i, v in ipairs(logits) do
      if type(v) ~= 'number' then
         err.arg('train.sample.pick', ('logits[%d]'):format(i), 'a number', v)
      end
   end
   if #logits == 0 then err.arg('train.sample.pick', 'logits', 'at least one number', 'none') end
   return pick(logits, u, opts)
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

-- Continues a list of ids. Returns the list of new ids.
function sample.generate(model, prompt, opts)
   local op, tide = 'train.sample.generate', require 'tide'
   if type(model.config) ~= 'table' then err.arg(op, 'model', 'a model of tide.model', model) end
   if #prompt == 0 then err.arg(op, 'prompt', 'at least one id', 'none') end
   local context = opts.context or model.config.max_position_embeddings
   local out, seen = {}, {}
   for i, id in ipairs(prompt) do seen[i] = id end
   local was_training = model.training
   model:eval()
   tide.no_grad(function()
      local caches, start, pending
      for i = 1, opts.tokens do
         if not caches or start + #pending > context then
            caches, start, pending = new_caches(model), 0, {}
            local keep = #seen > context and math.floor(context / 2) or #seen
            for j = #seen - keep + 1, #seen do pending[#pending + 1] = seen[j] end
         end
         local logits = advance(tide, model, pending, start, caches, opts.device)
         start = start + #pending
         local id = pick(logits, hash.mix(opts.seed, i) / 2^32, opts)
         if id == opts.stop then break end
         out[#out + 1], seen[#seen + 1], pending = id, id, { id }
         if opts.on_token then opts.on_token(id) end
      end
   end)
   model:train(was_training)
   return out
end

local drawing = {
   'temperature: number >= 0 = 1 -- logits are divided by it; 0 takes the best',
   'top_k: integer >= 0 = 0 -- draws among so many of the best; 0: all',
   'top_p: number in [1e-9, 1] = 1 -- draws among the best that have this share together',
   'tokens: integer >= 0 = 128 -- new ids, at most', 'seed: integer >= 0 = 0 -- of the draw',
   'device: string? -- of the model', 'stop: any? -- the id that ends it',
   'context: integer? >= 2 -- most tokens seen at once; by default as the model was trained',
   'on_token: function? -- called with each id',
}
return signature.doors('train.sample', sample, {
   pick = { 'logits: table; u: number in [0, 1]', opts = drawing },
   generate = { 'model: module; prompt: integer[] >= 0', opts = drawing },
})
