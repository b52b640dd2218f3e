-- Training of a model on one rank by hand: the whole batch of a step at once, the loss of each
-- label counted, and the update of each parameter in plain loops. Only forward and backward of the
-- model are tide's.

local documents = require 'spec.deep.domain.documents'
local optim = require 'spec.deep.oracle.optim'

local train = {}

local function listed(x) return x:detach():to 'f64':reshape(-1):tolist() end

-- (document, position) pairs and labels of rows, after what the batch says of documents.
local function settled(t, b)
   local B, T = #b.ids, #b.ids[1]
   local pairs_, labels, count = {}, {}, 0
   for r, row in ipairs(documents.tokens(b.says, B, T)) do
      local number, numbers = 0, {}
      pairs_[r], labels[r] = {}, {}
      for s, token in ipairs(row) do
         if not token.pad and not numbers[token.key] then
            numbers[token.key], number = number, number + 1
         end
         pairs_[r][s] = { token.pad and -1 or numbers[token.key], token.position }
         labels[r][s] = token.pad and -100 or b.labels[r][s]
         count = count + (labels[r][s] >= 0 and 1 or 0)
      end
   end
   return t.tensor(pairs_, { dtype = 'i32' }), t.tensor(labels, { dtype = 'i64' }), count
end

-- Whether each token of a batch is no padding, a list in order.
local function tokens_of(b)
   local list = {}
   for _, row in ipairs(documents.tokens(b.says, #b.ids, #b.ids[1])) do
      for _, token in ipairs(row) do list[#list + 1] = not token.pad end
   end
   return list
end

-- Loss and gradients (lists by name) of a batch { ids, labels, says } of whole rows.
local function gradients(t, model, b)
   local index, labels, count = settled(t, b)
   model:zero_grad()
   local loss = model:loss(t.tensor(b.ids, { dtype = 'i64' }), labels, { index = next(b.says)
      and index or nil, count = math.max(1, count) })
   loss:backward()
   local list = {}
   for _, e in ipairs(model:named_parameters()) do
      if e.param.grad ~= nil then list[e.name] = listed(e.param.grad) end
   end
   return loss:item(), list, count
end

-- ---- correction biases of routers (DeepSeek-V3) -------------------------------------------------

-- Returns the correction biases of a model, lists by name.
function train.biases(model)
   local list = {}
   for _, b in ipairs(model:named_buffers()) do
      if b.field == 'router_bias' then list[b.name] = listed(b.buffer) end
   end
   return list
end

-- Lets the routers of a model count; returns the loads by router, which a caller empties. real():
-- whether each token of the batch is one, a list in order.
local function counting(model, real)
   local loads = {}
   model:walk(function(m)
      if not m.router_bias then return end
      m:hook_pre(function(self, x)
         local ids = require 'tide'.no_grad(self.route, self, x:reshape(-1, self.dim)):tolist()
         loads[self] = {}
         for e = 1, self.experts do loads[self][e] = 0 end
         for i, is_token in ipairs(real()) do
            for _, e in ipairs(is_token and ids[i] or {}) do
               loads[self][e + 1] = loads[self][e + 1] + 1
            end
         end
      end)
   end)
   return loads
end

local function correct(t, router, load, rate)
   local sum, bias = 0, listed(router.router_bias)
   for _, n in ipairs(load) do sum = sum + n end
   for e, n in ipairs(load) do
      if n * #load < sum then bias[e] = bias[e] + rate end
      if n * #load > sum then bias[e] = bias[e] - rate end
   end
   t.no_grad(function() router.router_bias:copy_(t.tensor(bias, { dtype = 'f64' })) end)
end

-- ---- the run -----------------------------------------------------------------------------------

-- Trains in place. steps: list of batches { ids, labels, says }; o: options of the optimiser with
-- kind; clip; rate: of correction biases, nil without. Returns { losses, norms, weights and biases
-- by name }.
function train.run(model, steps, o, clip, rate)
   local t = require 'tide'
   local states, out = {}, { losses = {}, norms = {}, weights = {} }
   local real
   local loads = rate and counting(model, function() return real end) or {}
   for i, batch in ipairs(steps) do
      real = tokens_of(batch)
      local loss, grads = gradients(t, model, batch)
      local all = {}
      for _, list in pairs(grads) do all[#all + 1] = list end
      local norm = optim.norm(all)
      local factor = optim.factor(norm, clip)
      out.losses[i], out.norms[i] = loss, norm
      for _, e in ipairs(model:named_parameters()) do
         local g, p = grads[e.name], listed(e.param)
         if g then
            for k = 1, #g do g[k] = g[k] * factor end
            local options = {}
            for k, v in pairs(o) do options[k] = v end
            local vector = e.param.ndim < 2 or e.name:find '_bias$'       -- of experts: [E, n]
            if vector and not o.decay_vectors then options.weight_decay = 0 end
            states[e.name] = states[e.name] or {}
            optim[o.kind](p, g, states[e.name], options)
            t.no_grad(function()
               e.param:copy_(t.tensor(p, { dtype = 'f64' }):reshape(e.param.shape))
            end)
         end
      end
      for router, load in pairs(loads) do correct(t, router, load, rate) end
   end
   for _, e in ipairs(model:named_parameters()) do out.weights[e.name] = listed(e.param) end
   out.biases = train.biases(model)
   return out
end

return train
