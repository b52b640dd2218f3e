-- SGD with momentum, Nesterov's form, dampening and coupled weight decay; an f32 master copy of
-- 16-bit parameters. One fused call per group.

local class = require 'tide.class'
local err = require 'tide.util.err'
local Optimizer = require 'tide.optim.optimizer'

local SGD = class('SGD', Optimizer)

SGD.fields = { 'buf', 'master' }

local known = { 'lr', 'momentum', 'dampening', 'weight_decay', 'nesterov', 'decay_vectors' }

-- opts: lr (1e-2, or a function of the step), momentum (0), dampening (0), weight_decay (0),
-- nesterov (false), decay_vectors (false: norms and biases do not decay).
function SGD:init(params, opts)
   local op = 'optim.SGD'
   opts = err.options(op, opts, known)
   local defaults = {
      momentum = err.number(op, 'momentum', opts.momentum or 0, 0),
      dampening = err.number(op, 'dampening', opts.dampening or 0, 0, 1),
      weight_decay = err.number(op, 'weight_decay', opts.weight_decay or 0, 0),
      nesterov = opts.nesterov or false,
   }
   if defaults.nesterov and (defaults.momentum == 0 or defaults.dampening ~= 0) then
      err.arg(op, 'nesterov', 'momentum > 0 and dampening 0 with it', true)
   end
   Optimizer.init(self, op, params, defaults,
      { lr = opts.lr or 1e-2, decay_vectors = opts.decay_vectors })
end

-- The state of a parameter before its first update. entry: { name =, param = }.
function SGD:new_state(entry)
   self:check_entry(entry)
   local state = { step = 0, master = self.master(entry.param) }
   if self.defaults.momentum > 0 then state.buf = self.zeros_like(entry.param) end
   return state
end

-- One update of a bucket; see Optimizer:check_update.
function SGD:update(group, bucket, lr, opts)
   self:check_update(group, bucket, lr, opts)
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

return SGD
