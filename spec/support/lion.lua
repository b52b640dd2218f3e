-- An optimiser as a user writes one: Lion without weight decay.

local class = require 'tide.class'
local Optimizer = require('tide').optim.Optimizer

local Lion = class('Lion', Optimizer)

Lion.fields = { 'm', 'master' }

function Lion:init(params, opts)
   Optimizer.init(self, 'Lion', params, { beta1 = 0.9, beta2 = 0.99 }, opts)
end

function Lion:update_parameter(weight, grad, state, group, lr)
   weight:add_((state.m * group.beta1 + grad * (1 - group.beta1)):sign(), -lr)
   state.m:mul_(group.beta2):add_(grad, 1 - group.beta2)
end

return Lion
