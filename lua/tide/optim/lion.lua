-- Lion (Chen et al., arXiv 2302.06675): the sign of an interpolation of momentum and gradient, with
-- decoupled weight decay. One moment; rates are about a tenth of AdamW's.

local class = require 'tide.class'
local signature = require 'tide.util.signature'
local Optimizer = require 'tide.optim.optimizer'

local Lion = class('Lion', Optimizer)

Lion.fields = { 'm', 'master' }

-- Makes an optimiser of params (see Optimizer:init).
function Lion:init(params, opts)
   Optimizer._begin(self, Optimizer, 'optim.Lion', params, opts)
end

-- Updates one weight; see Optimizer:update.
function Lion:update_parameter(weight, grad, state, group, lr)
   grad = grad:to(state.m.dtype)
   local direction = (state.m * group.beta1 + grad * (1 - group.beta1)):sign()
   weight:mul_(1 - lr * group.weight_decay):add_(direction, -lr)
   state.m:mul_(group.beta2):add_(grad, 1 - group.beta2)
end

-- Returns the bytes of state for an element of a parameter.
function Lion.state_bytes(dtype) return Optimizer.bytes_of(dtype, 1) end

return signature.doors('optim.Lion', Lion, {
   init = { opts = {
      'lr: number >= 0 | function = 1e-4 -- learning rate, or a function of the step',
      'beta1: number in [0, 1) = 0.9 -- share of the momentum in the direction',
      'beta2: number in [0, 1) = 0.99 -- decay of the momentum',
      'weight_decay: number >= 0 = 0.1 -- decoupled decay, of matrices',
      Optimizer.grouping } },
})
