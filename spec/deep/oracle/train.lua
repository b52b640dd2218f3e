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

-- Trains in place. steps: list of batches { ids, labels, says }; o: options of the optimiser with
-- kind; clip. Returns { losses, norms, weights by name }.
function train.run(model, steps, o, clip)
   local t = require 'tide'
   local states, out = {}, { losses = {}, norms = {}, weights = {} }
   for i, batch in ipairs(steps) do
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
   end
   for _, e in ipairs(model:named_parameters()) do out.weights[e.name] = listed(e.param) end
   return out
end

return train
