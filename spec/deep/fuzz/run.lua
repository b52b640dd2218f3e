-- Random cases from the command line, in the root of the tree:
--
--    luajit spec/deep/fuzz/run.lua [DOMAIN ...]
--
-- Without names: every domain. TIDE_SEED=n, TIDE_CASES=n (of each domain), TIDE_MINUTES=n (of all
-- together, 10), TIDE_FIRST=k (the case to begin with), TIDE_KEEP=folder (for the programs of
-- failures), TIDE_SLOWNESS=x (a factor on all limits of time, on a busy machine). Ends with 1 if a
-- case failed.

package.path = './?.lua;' .. package.path
require 'spec.support.helper'
local driver = require 'spec.deep.fuzz.driver'

local names = #arg > 0 and arg or driver.domains
local asked, bad = driver.asked(), 0
print(('TIDE_SEED=%s'):format(asked.seed))
for _, name in ipairs(names) do
   local report = driver.run(name, { seed = asked.seed, cases = asked.cases,
      first = tonumber(os.getenv 'TIDE_FIRST' or nil),
      seconds = asked.minutes and asked.minutes * 60 / #names })
   print(driver.summary(name, report))
   bad = bad + #report.failures
end
os.exit(bad == 0 and 0 or 1)
