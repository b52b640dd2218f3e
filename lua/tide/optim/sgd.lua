-- SGD with momentum, Nesterov's form, dampening and coupled weight decay; an f32 master copy of
-- 16-bit parameters. One fused call per group.

local class = require 'tide.class'
local signature = require 'tide.util.signature'
local Optimizer = require 'tide.optim.optimizer'

local SGD = class('SGD', Optimizer)

SGD.fields = { 'buf', 'master' }

-- Makes an optimiser of params (see Optimizer:init).
function SGD:init(params, opts)
   Optimizer._begin(self, Optimizer, 'optim.SGD', params, opts)
end

-- Returns whether each parameter has a momentum buffer, by name: where the optimiser or the group
-- has momentum. A group without it keeps the buffer that earlier checkpoints have of it.
local function buffer_by_name(self)
   local has, default = {}, self.defaults.momentum
   for _, group in ipairs(self.groups) do
      for _, entry in ipairs(group.params) do
         has[entry.name] = math.max(group.momentum, default) > 0
      end
   end
   return has
end

-- Returns the state of a parameter before its first update. entry: { name =, param = }.
function SGD:new_state(entry)
   local state = { step = 0, master = self.master(entry.param) }
   self.has_buffer = self.has_buffer or buffer_by_name(self)
   if self.has_buffer[entry.name] then state.buf = self.zeros_like(entry.param) end
   return state
end

-- Updates a bucket; see Optimizer:update.
function SGD:update(group, bucket, lr, opts)
   require('tide').update.sgd_({
      p = bucket.p, g = bucket.g, buf = self.column(bucket.states, 'buf'),
      master = self.column(bucket.states, 'master'), g_scale = opts.factor, rates = bucket.rates,
      found_inf = opts.found_inf,
   }, {
      lr = lr, momentum = group.momentum, dampening = group.dampening,
      weight_decay = group.weight_decay, nesterov = group.nesterov, first = bucket.step == 1,
      grad_scale = opts.scale or 1,
   })
end

return signature.doors('optim.SGD', SGD, {
   new_state = Optimizer.takes.new_state, update = Optimizer.takes.update,
   init = { opts = {
      'lr: number >= 0 | function = 1e-2 -- learning rate, or a function of the step',
      'momentum: number >= 0 = 0 -- share of earlier gradients that is kept',
      'dampening: number in [0, 1] = 0 -- share of the new gradient that is left out',
      'weight_decay: number >= 0 = 0 -- coupled decay, of matrices',
      "nesterov: boolean = false -- Nesterov's form of momentum",
      Optimizer.grouping,
      'where not nesterov or momentum > 0 and dampening == 0 -- nesterov: expected momentum > 0 '
         .. 'and dampening 0 with it' } },
})
