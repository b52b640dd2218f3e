-- AdamW (Loshchilov and Hutter, arXiv 1711.05101): decoupled weight decay, f32 moments, and an
-- f32 master copy of 16-bit parameters. One fused call per group.

local class = require 'tide.class'
local err = require 'tide.util.err'
local Optimizer = require 'tide.optim.optimizer'

local AdamW = class('AdamW', Optimizer)

AdamW.fields = { 'm', 'v', 'master' }

local known = { 'lr', 'beta1', 'beta2', 'eps', 'weight_decay', 'decay_vectors' }

-- opts: lr (1e-3, or a function of the step), beta1 (0.9), beta2 (0.95), eps (1e-8),
-- weight_decay (0.1), decay_vectors (false: norms and biases do not decay).
function AdamW:init(params, opts)
   local op = 'optim.AdamW'
   opts = err.options(op, opts, known)
   local defaults = {
      beta1 = err.number(op, 'beta1', opts.beta1 or 0.9, 0, 1 - 1e-12),
      beta2 = err.number(op, 'beta2', opts.beta2 or 0.95, 0, 1 - 1e-12),
      eps = err.number(op, 'eps', opts.eps or 1e-8, 0),
      weight_decay = err.number(op, 'weight_decay', opts.weight_decay or 0.1, 0),
   }
   Optimizer.init(self, op, params, defaults,
      { lr = opts.lr or 1e-3, decay_vectors = opts.decay_vectors })
end

-- One update of a bucket; see Optimizer:check_update.
function AdamW:update(group, bucket, lr, opts)
   self:check_update(group, bucket, lr, opts)
   require('tide').update.adamw_({
      p = bucket.p, g = bucket.g, m = self.column(bucket.states, 'm'),
      v = self.column(bucket.states, 'v'), master = self.column(bucket.states, 'master'),
      g_scale = opts.factor, rates = bucket.rates, found_inf = opts.found_inf,
   }, {
      lr = lr, beta1 = group.beta1, beta2 = group.beta2, eps = group.eps,
      weight_decay = group.weight_decay, step = bucket.step, grad_scale = opts.scale or 1,
   })
end

return AdamW
