-- Files that tide reads, changed at random in processes of their own: TIDE_COUNT (200) of each kind
-- from TIDE_SEED on; see spec/deep/mutant_files.lua.

local files = require 'spec.support.mutant_files'

describe('files with random changes', function()
   local seed, count = os.getenv 'TIDE_SEED' or os.time() % 1000000, os.getenv 'TIDE_COUNT' or 200

   for _, name in ipairs(files.names) do
      it(('work or are refused in one line: %s, TIDE_SEED=%s'):format(name, seed), function()
         local pipe = assert(io.popen(
            ('%s spec/deep/mutant_files.lua --count %d --seed %d %s 2>&1; echo "status=$?"'):format(
            os.getenv 'TIDE_LUAJIT' or 'luajit', count, seed, name)))
         local out = pipe:read '*a'
         pipe:close()
         assert.matches('status=0%s*$', out)
         assert.matches(('%s +%%d+ work'):format(name), out)
      end)
   end
end)
