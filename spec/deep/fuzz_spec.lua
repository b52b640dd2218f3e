-- Random cases of every domain against independent oracles, ten minutes together. The seed is
-- printed; TIDE_SEED, TIDE_CASES and TIDE_MINUTES set what is run (see spec/deep/fuzz/run.lua).

local driver = require 'spec.deep.fuzz.driver'

describe('random cases', function()
   local asked = driver.asked()

   for _, name in ipairs(driver.domains) do
      it(('of %s do what the oracle says, TIDE_SEED=%s'):format(name, asked.seed), function()
         local report = driver.run(name, { seed = asked.seed, cases = asked.cases,
            seconds = asked.minutes and asked.minutes * 60 / #driver.domains,
            say = function(text) io.stderr:write(text, '\n') end })
         local summary = driver.summary(name, report)
         io.stderr:write(summary, '\n')
         assert.equal(0, #report.failures, summary)
      end)
   end
end)
