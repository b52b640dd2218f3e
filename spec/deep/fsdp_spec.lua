-- fully_shard against one rank: every number of ranks, micro-batches and dtype.

local compare = require 'spec.parallel.fsdp_compare'

describe('a sharded model equals one rank', function()
   for _, accum in ipairs { 1, 3 } do
      for _, dtype in ipairs { 'f32', 'f64' } do
         for _, n in ipairs { 1, 2, 3, 4 } do
            it(('%d ranks, %d micro-batches, %s'):format(n, accum, dtype), function()
               compare.check(n, accum, dtype)
            end)
         end
      end
   end
end)
