-- Random programs of asynchronous collectives with a failure in them: every process ends in time,
-- with an error where a rank failed, and no call that ends well holds other numbers than its own.
-- TIDE_SWEEP_SEED: the first seed (default: from the clock; printed), TIDE_SWEEP_COUNT: programs.

local shell = require('spec.comm.mpi_run').shell

local program = (os.getenv 'TIDE_BUILD' or 'build') .. '/tide'
local base = tonumber(os.getenv 'TIDE_SWEEP_SEED') or os.time() % 1000000
local count = tonumber(os.getenv 'TIDE_SWEEP_COUNT') or 300

-- Processes ended by `timeout -k`: 124, or 137 after SIGKILL.
local function run(n, seed)
   local command = ('%s run -n %d -t 1 spec/deep/async_case.lua %d'):format(program, n, seed)
   local out, status = shell(command, 120)
   local why = status >= 124 and 'did not end' or out:find 'WRONG' and 'gave wrong numbers'
      or status ~= 0 and not out:find 'tide: ' and 'failed without a line'
   if why then error(('`%s` %s (status %d):\n%s'):format(command, why, status, out), 0) end
   return status
end

describe('random asynchronous programs', function()
   for k, n in ipairs { 3, 4, 8 } do
      local first = base + 1000000 * k
      local last = first + math.ceil(count / 3) - 1
      it(('on %d ranks, seeds %d to %d'):format(n, first, last), function()
         local failed, well = 0, 0
         for seed = first, last do
            if run(n, seed) == 0 then well = well + 1 else failed = failed + 1 end
         end
         print(('# %d ranks, seeds %d to %d: %d failed as planned, %d ended well'):format(n, first,
            last, failed, well))
         assert.is_true(failed > well)
      end)
   end
end)
