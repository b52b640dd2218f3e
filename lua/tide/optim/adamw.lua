-- AdamW (Loshchilov and Hutter, arXiv 1711.05101): decoupled weight decay, f32 moments, and an
-- f32 master copy of 16-bit parameters. One fused call per group.

local class = require 'tide.class'
local signature = require 'tide.util.signature'
local Optimizer = require 'tide.optim.optimizer'

local AdamW = class('AdamW', Optimizer)

AdamW.fields = { 'm', 'v', 'master' }

-- Makes an optimiser of params (see Optimizer:init).
function AdamW:init(params, opts)
   Optimizer._begin(self, Optimizer, 'optim.AdamW', params, opts)
end

-- Returns the attributes of an update, for tide.update.
function AdamW._attrs(group, bucket, lr, opts)
   return { lr = lr, beta1 = group.beta1, beta2 = group.beta2, eps = group.eps,
      weight_decay = group.weight_decay, step = bucket.step, grad_scale = opts.scale or 1 }
end

-- Updates a bucket; see Optimizer:update.
function AdamW:update(group, bucket, lr, opts)
   require('tide').update.adamw_({
      p = bucket.p, g = bucket.g, m = self.column(bucket.states, 'm'),
      v = self.column(bucket.states, 'v'), master = self.column(bucket.states, 'master'),
      g_scale = opts.factor, rates = bucket.rates, found_inf = opts.found_inf,
   }, AdamW._attrs(group, bucket, lr, opts))
end

-- The options that AdamW8bit has, too.
AdamW._options = {
   'lr: number >= 0 | function = 1e-3 -- learning rate, or a function of the step',
   'beta1: number in [0, 1) = 0.9 -- decay of the mean of gradients',
   'beta2: number in [0, 1) = 0.95 -- decay of the mean of their squares',
   'eps: number >= 0 = 1e-8 -- added to the root of that mean',
   'weight_decay: number >= 0 = 0.1 -- decoupled decay, of matrices',
}
return signature.doors('optim.AdamW', AdamW, {
   update = Optimizer.takes.update,
   init = { opts = { AdamW._options, Optimizer.grouping } },
})
