-- Gradient clipping by global norm, all on the device: the factor is a one-element tensor that
-- the optimiser multiplies into its reading of the gradients. Nothing is read back and the
-- gradients themselves are not written.

local err = require 'tide.util.err'

local clip = {}

-- grads: list of tensors. Returns the norm and, if max_norm > 0, the factor (else nil).
-- comm: given when each rank holds another shard of the gradients; the squares are summed.
function clip.by_norm(grads, max_norm, comm)
   err.number('optim.clip', 'max_norm', max_norm, 0)
   local update = require 'tide.ffi.update'
   local norm
   if comm and comm.size > 1 then
      local square = update.norm(grads, 2, true)
      comm:all_reduce(square)
      norm = square:sqrt()
   else
      norm = update.norm(grads, 2)
   end
   if max_norm == 0 then return norm, nil end
   return norm, update.clip_factor(norm, max_norm)
end

return clip
