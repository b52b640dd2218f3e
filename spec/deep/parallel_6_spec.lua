-- Every way to spread a model, on every mesh of 6 ranks (spec/deep/parallel_sweep.lua).

local cases = require 'spec.deep.parallel_sweep'

describe('20 steps equal one rank', function()
   for _, n in ipairs { 6 } do
      for _, case in ipairs(cases(n)) do it(case[1], case[2]) end
   end
end)
