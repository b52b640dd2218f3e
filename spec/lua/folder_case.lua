-- Models of the stored configurations of transformers (golden/folders.lua), with the weights that
-- golden/folders.py gives them.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local family = require 'tide.model.family'
local stored = require 'tide.pretrained.stored'

local case = { V = 23 }

-- Around what the weights of norms lie; elsewhere 1.
local centres = { gemma2 = 0, gemma3 = 0 }

-- The fields of a stored configuration, and the family that they name.
function case.config(row)
   local config = tide.json.decode(row.config, { nonfinite = true })
   return config, family.saved('spec', { config = config })
end

-- Fills the parameters: sines, by the place of the stored name in sorted order.
local function sines(k, numel)
   return (tide.arange(numel, { dtype = 'f64' }) * 0.7 + 1.3 * k):sin() * 0.3
end

-- The same of a family whose files have other tensors than its parameters.
local function fill_stored(model)
   local entries, of = model:stored(), {}
   for _, e in ipairs(model:named_parameters()) do of[e.name] = e.param end
   table.sort(entries, function(a, b) return a.name < b.name end)
   tide.no_grad(function()
      for k, entry in ipairs(entries) do
         local t = sines(k - 1, dims.numel(entry.shape))
         if entry.name:find('.ln_', 1, true) then t = t / 3 + 1 end
         t = t:reshape(entry.shape)
         for _, part in ipairs(entry.parts) do
            local at, n = stored.box(entry, part, dims.zeros(#part.shape), part.shape)
            local box = t
            for d = 1, #n do box = box:narrow(d, at[d] + 1, n[d]) end
            of[part.name]:copy_(stored.part(entry, box))
         end
      end
   end)
   return model
end

local function fill(model, kind)
   if model.stored then return fill_stored(model) end
   local entries = model:named_parameters()
   table.sort(entries, function(a, b) return a.name < b.name end)
   tide.no_grad(function()
      for k, e in ipairs(entries) do
         local t = sines(k - 1, e.param:numel())
         if e.name:find('norm', 1, true) then
            t = t / 3 + (centres[kind] or 1)
         end
         e.param:copy_(t:reshape(e.param.shape))
      end
   end)
   return model
end

-- The model of a row, filled, in eval mode. opts: of modules.
function case.model(row, opts)
   local config, kind = case.config(row)
   return fill(tide.model[kind](config, opts), kind):eval(), kind
end

-- Compares logits, loss and gradients with the row. of(name): the norm of a gradient.
function case.check(row, got, tolerance)
   local function near(want, v, what)
      if math.abs(want - v) > tolerance * math.max(1, math.abs(want)) then
         err.raise('E_INTERNAL', 'spec', '%s: %.12g ~= %.12g', what, want, v)
      end
   end
   for i, want in ipairs(row.logits) do near(want, got.logits[i], 'logit ' .. i) end
   near(row.loss, got.loss, 'loss')
   table.sort(got.grads, function(a, b) return a.name < b.name end)
   near(#row.grads, #got.grads, 'number of parameters')
   for i, g in ipairs(got.grads) do near(row.grads[i], g.norm, 'gradient of ' .. g.name) end
end

-- Logits, loss and gradients of a whole model.
function case.run(model, ids, labels)
   local logits, loss = model(ids), model:loss(ids, labels)
   loss:backward()
   local got = { loss = loss:item(), grads = {}, logits = { logits:at(1, 1, 1),
      logits:at(2, 9, 23), logits:at(1, 5, 12) } }
   local grads = {}
   for _, e in ipairs(model:named_parameters()) do grads[e.name] = e.param.grad end
   if model.stored then
      local by_name = grads
      grads = {}
      for _, entry in ipairs(model:stored()) do
         grads[entry.name] = stored.whole(entry, function(name) return by_name[name] end)
      end
   end
   for name, t in each(grads) do
      got.grads[#got.grads + 1] = { name = name, norm = t:norm():item() }
   end
   return got
end

-- Names of the rows, sorted.
function case.names(golden)
   local list = {}
   for name in each(golden) do list[#list + 1] = name end
   table.sort(list)
   return list
end

return case
