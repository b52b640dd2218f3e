-- Training steps on ranks that share a device, in each of which nothing is read back: what the
-- ordinary step does but for the loss and the norm that it logs. steps[name](rank, n) gives a
-- function that makes one step and returns this rank's loss, on the device.

local tide = require 'tide'
local clip = require 'tide.optim.clip'
local fsdp_case = require 'spec.parallel.fsdp_case'
local cp_case = require 'spec.parallel.cp_case'
local parallel_clip = require 'tide.parallel.clip'
local update = require 'tide.ffi.update'

local steps = {}

local function batch(seed, V, T)
   local ids = {}
   for i = 1, 2 * T do ids[i] = (7 * i * i + 3 * seed * i + seed) % V end
   local t = tide.tensor(ids, { dtype = 'i64' }):reshape { 2, T }
   return { ids = t, labels = t:roll(-1, 2), count = 2 * T }
end

local function on_device(b, device)
   local out = {}
   for k, v in pairs(b) do out[k] = tide.is_tensor(v) and v:to(device) or v end
   return out
end

-- Forward and backward; finish: of a sharded model.
local function backward(model, optim, b, finish)
   return (tide.scope(function()
      local loss = model:loss(b.ids, b.labels, { count = b.count, positions = b.positions,
         context = b.context })
      loss:backward()
      if finish then finish() end
      return loss:detach(), unpack(optim:grads())
   end))
end

-- Whole models: gradients are added over comm (nil: they are not), clipped, applied.
local function plain(model, b, comm)
   local optim = tide.optim.AdamW(model, { lr = 1e-2 })
   return function()
      optim:zero_grad()
      local loss = backward(model, optim, b)
      if comm then comm:all_reduce(optim:grads()) end
      local _, factor = clip.by_norm(optim:grads(), 1)
      optim:step { factor = factor }
      return loss
   end
end

function steps.dp(rank)
   local model = tide.model.llama(fsdp_case.config, { device = 'cuda', seed = 3 })
   return plain(model, on_device(batch(rank, 37, 7), 'cuda'), tide.comm.world())
end

function steps.fsdp(rank)
   local model = tide.model.llama(fsdp_case.config, { device = 'null' })
   local sharded = tide.parallel.fully_shard(model, { seed = 3, device = 'cuda' })
   local optim = tide.optim.AdamW(sharded, { lr = 1e-2 })
   local b = on_device(batch(rank, 37, 7), 'cuda')
   return function()
      sharded:zero_grad()
      local loss = backward(model, optim, b, function() sharded:finish() end)
      optim:step { factor = update.clip_factor(parallel_clip.norm(sharded), 1) }
      optim:zero_grad()
      sharded:zero_grad()
      return loss
   end
end

function steps.tp(_, n)
   local model = tide.model.llama(cp_case.config, { device = 'cuda', seed = 3 })
   tide.parallel.tensor_parallel(model, tide.parallel.mesh({ { 'tp', n } }):axis 'tp')
   return plain(model, on_device(batch(1, 29, 6), 'cuda'))
end

function steps.cp(_, n)
   local model = tide.model.llama(cp_case.config, { device = 'cuda', seed = 3 })
   local axis = tide.parallel.mesh({ { 'cp', n } }):axis 'cp'
   local handle = tide.parallel.cp.attach(model, axis)
   local b = handle:cut(on_device(batch(1, 29, 12), 'cuda'))
   return plain(model, b, axis.comm)
end

return steps
