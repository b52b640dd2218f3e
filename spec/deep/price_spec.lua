-- The cases of spec/recipe/price_case.lua that `make test` leaves out.

local cases = require 'spec.recipe.price_case'

describe('the peak that a plan promises is the peak of the run', function()
   for _, case in ipairs(cases(false)) do it(case[1], case[2]) end
end)
