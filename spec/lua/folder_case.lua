-- Models of the stored configurations of transformers (golden/folders.lua), with the weights that
-- golden/folders.py gives them.

local tide = require 'tide'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local family = require 'tide.model.family'
local stored = require 'tide.model.stored'

local case = { V = 23 }

-- Around what the weights of norms lie, but those of gated delta nets; elsewhere 1.
local centres = { gemma2 = 0, gemma3 = 0, qwen3_next = 0, qwen3_5 = 0,
   qwen3_5_moe = 0 }

-- The fields of a stored configuration, and the family that they name.
function case.config(row)
   local config = tide.json.decode(row.config, { nonfinite = true })
   return config, family.saved('spec', { config = config })
end

-- Fills the parameters: sines, by the place of the stored name in sorted order.
local function sines(k, numel)
   return (tide.arange(numel, { dtype = 'f64' }) * 0.7 + 1.3 * k):sin() * 0.3
end

-- The entries of model:stored() for parameters.
function case.stored(model)
   local list, own = {}, {}
   for _, e in ipairs(model:named_parameters()) do own[e.name] = true end
   for _, entry in ipairs(model.stored and model:stored() or {}) do
      if own[entry.parts[1].name] then list[#list + 1] = entry end
   end
   return list
end

-- Fills the biases by which routers choose, which are buffers, in order of names.
local function fill_biases(model)
   local k = 0
   for _, b in ipairs(model:named_buffers()) do
      if b.field == 'router_bias' then
         b.buffer:copy_(sines(k, b.buffer:numel()))
         k = k + 1
      end
   end
end

-- The tensors of a published file of a model, as model:stored() gives those that differ from
-- parameters.
local function entries_of(model)
   local list, taken = case.stored(model), {}
   for _, entry in ipairs(list) do
      for _, part in ipairs(entry.parts) do taken[part.name] = true end
   end
   for _, e in ipairs(model:named_parameters()) do
      local name, shape = e.name, e.param.shape
      if not taken[name] then
         list[#list + 1] = { name = name, shape = shape,
            parts = { { name = name, shape = shape, first = 0 } } }
      end
   end
   return list
end

-- Copies the tensor t of a published file into a parameter that has a part of it, or is one.
local function put(entry, part, param, t)
   if part.slice then return param:select(1, part.slice + 1):copy_(t) end
   local at, n = stored.box(entry, part, dims.zeros(#part.shape), part.shape)
   for d = 1, #n do t = t:narrow(d, at[d] + 1, n[d]) end
   param:copy_(stored.part(entry, part, t))
end

local function fill(model, kind)
   local entries, of = entries_of(model), {}
   for _, e in ipairs(model:named_parameters()) do of[e.name] = e.param end
   table.sort(entries, function(a, b) return a.name < b.name end)
   tide.no_grad(function()
      for k, entry in ipairs(entries) do
         local t = sines(k - 1, dims.numel(entry.shape))
         if entry.name:find 'norm' or entry.name:find('.ln_', 1, true) then
            local own = entry.name:find('linear_attn.norm', 1, true)
            t = t / 3 + (own and 1 or centres[kind] or 1)
         end
         for _, part in ipairs(entry.parts) do
            put(entry, part, of[part.name], t:reshape(entry.shape))
         end
      end
      fill_biases(model)
   end)
   return model
end

-- The model of a row, filled, in eval mode. opts: of modules.
function case.model(row, opts)
   local config, kind = case.config(row)
   return fill(tide.model[kind](config, opts), kind):eval(), kind
end

local numbers

-- The numbers of a row: logits [2, 9, V] and grads [parameters, 1 + samples], in order of names.
local function numbers_of(name)
   numbers = numbers or tide.train.checkpoint.tensors 'spec/golden/folders.safetensors'
   return numbers[name .. '.logits'], numbers[name .. '.grads']
end

-- Raises unless tensors differ by at most tolerance * scale (default: the largest of want).
local function near(got, want, tolerance, what, scale)
   scale = scale or want:abs():amax():item()
   local off = (got:to 'f64' - want:to 'f64'):abs():amax():item()
   if off > tolerance * scale or off ~= off then
      err.raise('E_INTERNAL', 'spec', '%s: off by %.3g, largest %.3g', what, off, scale)
   end
end

-- Raises unless two numbers differ by at most tolerance, relative to `want` above 1.
function case.near(want, got, tolerance, what)
   local off = math.abs(want - got) / math.max(1, math.abs(want))
   err.raise_if(off > tolerance or off ~= off, 'E_INTERNAL', 'spec', '%s: %.12g ~= %.12g', what,
      want, got)
end

-- The norms of the gradients of a model, { name, norm } in order of names; 0 without a gradient.
function case.norms(model)
   local list = {}
   for _, e in ipairs(model:named_parameters()) do
      list[#list + 1] = { name = e.name, norm = e.param.grad and e.param.grad:norm():item() or 0 }
   end
   table.sort(list, function(a, b) return a.name < b.name end)
   return list
end

-- Samples of a gradient at the places that golden/folders.py takes.
local function samples(row, grad, n)
   local state, at, numel = row, {}, grad:numel()
   for i = 1, n do
      state = state * 16807 % 2147483647
      at[i] = state % numel
   end
   return grad:reshape(numel):index_select(1, tide.tensor(at, { dtype = 'i64' }))
end

-- Most that logits and gradients differ, relative to the largest. The stored numbers were computed
-- in doubles and are f32.
local tolerances = { f64 = { logits = 2e-7, grads = 1e-6 }, f32 = { logits = 2e-5, grads = 1e-4 } }

-- Compares logits [2, 9, V] with those of a row.
function case.check_logits(name, logits)
   near(logits, (numbers_of(name)), tolerances[logits.dtype].logits, 'logits of ' .. name)
end

-- Compares gradients { name =, grad = } with those of a row: the largest of each parameter, and
-- single numbers, against the largest of the parameter. A gradient that is 0 but for rounding is
-- compared with a thousandth of the largest of all.
function case.check_grads(name, grads)
   local _, want = numbers_of(name)
   table.sort(grads, function(a, b) return a.name < b.name end)
   err.raise_if(#grads ~= want:size(1), 'E_INTERNAL', 'spec', '%s: %d gradients', name, #grads)
   local floor = want:slice(2, 1, 1):amax():item() * 1e-3
   for row, g in ipairs(grads) do
      local one, n = want:slice(1, row, row):reshape(want:size(2)), want:size(2)
      local scale = math.max(one:at(1), floor)
      local tolerance = tolerances[g.grad.dtype].grads
      local what = ('gradient of %s of %s'):format(g.name, name)
      near(g.grad:abs():amax():reshape(1), one:slice(1, 1, 1), tolerance, what, scale)
      near(samples(row, g.grad, n - 1), one:slice(1, 2, n), tolerance, what, scale)
   end
end

-- Logits, loss and gradients of a whole model, under the names of published files.
function case.run(model, ids, labels)
   local logits, loss = model(ids):detach(), model:loss(ids, labels)
   loss:backward()
   local grads, list = {}, {}
   for _, e in ipairs(model:named_parameters()) do grads[e.name] = e.param.grad end
   grads = stored.published(case.stored(model), grads)
   for name, t in each(grads) do list[#list + 1] = { name = name, grad = t } end
   return { logits = logits, loss = loss:item(), grads = list }
end

-- Names of the rows, sorted.
function case.names(golden)
   local list = {}
   for name in each(golden) do list[#list + 1] = name end
   table.sort(list)
   return list
end

return case
