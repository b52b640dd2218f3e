-- What fully_shard gives against one rank, for the specs: check(n, accum, dtype).

local case = require 'spec.parallel.fsdp_case'
local ranks = require 'spec.support.ranks'

local M = {}

-- On a rank: every strategy, with and without recomputation, for one accumulation; what differs
-- from `want` by more than 1e-5, as text. In doubles, ten times the rate and 1e-9: what f32 shows
-- is rounding, which AdamW amplifies, and nothing else. (Norms are f32 numbers in both.)
local function compare(_, n, accum, want, dtype)
   local here = require 'spec.parallel.fsdp_case'
   local out = {}
   for _, strategy in ipairs { 'no_shard', 'optim', 'optim_grads', 'optim_grads_params' } do
      for _, recompute in ipairs { false, true } do
         local r = here.train { fsdp = { strategy = strategy }, accum = accum, rows = 24,
            recompute = recompute, dtype = dtype, lr = dtype == 'f64' and 1e-2 or 1e-3 }
         for _, k in ipairs { 'losses', 'norms', 'weights' } do
            local d = here.distance(r[k], want[k])
            local most = dtype == 'f64' and k ~= 'norms' and 1e-9 or 1e-5
            if d >= most then
               out[#out + 1] = ('%s %s recompute %s ranks %d: %s differ by %g'):format(dtype,
                  strategy, tostring(recompute), n, k, d)
            end
         end
      end
   end
   return out
end

-- What one rank gives: losses, norms and weights.
function M.wanted(accum, dtype)
   local r = case.train { plain = true, accum = accum, rows = 24, dtype = dtype,
      lr = dtype == 'f64' and 1e-2 or 1e-3 }
   return { losses = r.losses, norms = r.norms, weights = r.weights }
end

local known = {}

-- Raises unless n ranks give in every strategy what one rank gives.
function M.check(n, accum, dtype)
   local key = dtype .. accum
   known[key] = known[key] or M.wanted(accum, dtype)
   for _, out in ipairs(ranks.run(n, compare, accum, known[key], dtype)) do
      assert(#out == 0, table.concat(out, '\n'))
   end
end

return M
