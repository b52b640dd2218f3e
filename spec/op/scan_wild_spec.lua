-- The scan in f32 with wild steps is as accurate as a token loop in f32, in every gradient.

local wide = require 'spec.support.wide'
local wild = require 'spec.op.scan_wild'

describe('ssd_scan with steps from 1e-3 to 1e5 is as accurate as its token loop', function()
   it('over many random scans', function() wild.check(1, wide and 200 or 70) end)

   -- the worst of a review of the sums: one large step between many small ones
   it('with one step in 25 a hundred thousand times the others', function()
      local list = {}
      for seed = 1, 40 do
         local c = wild.draw(seed)
         c.T, c.base, c.spike, c.chunk, c.softplus = 128, 1e-3, 1e5, 128, false
         list[seed] = c
      end
      wild.check_all(list)
   end)
end)
