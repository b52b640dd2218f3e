-- Losses of the recipes equal stored curves: a change of init, order of data, schedule or any
-- default shows here, also one that keeps ranks equal.
--
-- Other numbers of threads and micro-batches, which sum in another order, differ by less than 1e-6
-- of a loss and 2e-5 of a norm; a limit of the norm of 1.05 in place of 1 by 6e-5 and 7e-3.

local case = require 'spec.recipe.curve_case'
local golden = require 'spec.golden.curves'

local function near(want, got, relative, what)
   assert.is_true(math.abs(got - want) <= relative * want, ('%s: %.9g, stored %.9g'):format(what,
      got, want))
end

describe('the stored curve of', function()
   for _, name in ipairs(case.recipes) do
      it(name .. ' is the losses of its first 8 steps', function()
         local want, got = golden[name], case.run(name)
         assert.equal(8, #got.loss)
         for s = 1, 8 do
            near(want.lr[s], got.lr[s], 1e-6, 'lr of step ' .. s)
            near(want.loss[s], got.loss[s], 2e-5, 'loss of step ' .. s)
            near(want.grad_norm[s], got.grad_norm[s], 1e-3, 'gradient norm of step ' .. s)
         end
         near(want.val_loss, got.val_loss, 2e-5, 'validation loss')
         assert.is_true(got.loss[8] < 0.8 * got.loss[1])
      end)
   end
end)
