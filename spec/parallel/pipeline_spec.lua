-- Pipeline parallelism: stages of blocks, one forward and one backward at a time. What one rank
-- computes is the oracle.

local copy = require 'tide.util.copy'
local steps = require 'spec.parallel.folder_steps'
local same = steps.same
local tmp = require 'spec.support.tmp'

describe('pp', function()
   it('gives the numbers of one rank on every mesh', function()
      same('llama_llama3', {
         [2] = {
            { name = 'two stages', mesh = { pp = 2 }, accum = 2 },
         },
         [4] = {
            { name = 'dp', mesh = { pp = 2, dp = 2 }, accum = 2 },
            { name = 'shards', mesh = { pp = 2, dp_shard = 2 }, accum = 2 },
            { name = 'tp', mesh = { pp = 2, tp = 2 }, tp = { sequence_parallel = true }, accum = 4 },
            { name = 'cp', mesh = { pp = 2, cp = 2 }, accum = 2 },
         },
      })
   end)
end)
