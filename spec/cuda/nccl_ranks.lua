-- Ranks over NCCL, for the specs: threads, each on a CUDA device of its own. TIDE_SPEC_NCCL names
-- the file of an emulated NCCL; unset, it is the machine's.

local ranks = require 'spec.comm.ranks'

local M = { library = os.getenv 'TIDE_SPEC_NCCL' }

-- Runs source `body`, which sees comm (NCCL), over, tide and args, on n ranks; rows of ranks.try.
-- opts: check, timeout, same (all on the first device).
function M.run(n, opts, body, ...)
   local source = [[
      local over, opts, body = ...
      local tide = require 'tide'
      tide.param('cuda_device', opts.same and 0 or over.rank)
      tide.default().device = 'cuda'
      local comm = require('tide.ffi.dist').nccl(over, { library = opts.library,
         check = opts.check })
      if opts.timeout then comm:set_timeout(opts.timeout) end
      return assert(loadstring('local comm, over, tide = ... ' .. body))(comm, over, tide,
         select(4, ...))
   ]]
   opts = opts or {}
   opts.library = M.library
   return ranks.try(n, { timeout = 60 }, loadstring(source), opts, body, ...)
end

-- The first value of each rank; raises what a rank raised.
function M.values(n, opts, body, ...)
   local rows, list = M.run(n, opts, body, ...), {}
   for i, row in ipairs(rows) do
      if row.status ~= 'OK' then error(('rank %d: %s'):format(i - 1, row.message or '?'), 0) end
      list[i] = row.values[1]
   end
   return list
end

return M
