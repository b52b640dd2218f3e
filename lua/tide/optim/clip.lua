-- Gradient clipping by global norm, all on the device: the factor is a one-element tensor that
-- the optimiser multiplies into its reading of the gradients. Nothing is read back and the
-- gradients themselves are not written.

local signature = require 'tide.util.signature'
local update = require('tide').update

local clip = {}

-- Returns the norm of a list of gradients and, if max_norm > 0, their factor (else nil).
-- parallel.clip does this for gradients that lie in parts over ranks.
function clip.by_norm(grads, max_norm)
   local norm = update.norm(grads, 2)
   if max_norm == 0 then return norm, nil end
   return norm, update.clip_factor(norm, max_norm)
end

return signature.doors('optim.clip', clip, {
   by_norm = { 'max_norm: number >= 0', op = 'optim.clip' } })
