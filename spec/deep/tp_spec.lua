-- The families of spec/parallel/tp_spec.lua on the numbers of ranks that it leaves out.

local case = require 'spec.parallel.tp_case'
local each = require 'tide.util.each'

describe('tensor parallelism', function()
   for _, n in ipairs { 1, 4 } do
      for name in each(case.families) do
         it(('of %s on %d ranks is the whole model, with the sequence cut too'):format(name, n),
            function()
               case.check(n, { case.of(name, n), case.of(name, n, { sequence_parallel = true }) })
            end)
      end
   end
end)
