-- Pretraining with the sequence cut over ranks: one rank's losses, and mistakes told.

local case = require 'spec.parallel.cp_case'
local tmp = require 'spec.support.tmp'

describe('pretraining over a context axis', function()
   it('equals one rank, packed', function()
      tmp.with(function(dir)
         local want = case.recipe(dir, 1, '--steps 8 --packed --sliding-window 30')
         local got = case.recipe(dir, 4,
            '--steps 8 --packed --sliding-window 30 --mesh.dp_shard 2 --mesh.cp 2')
         assert.equal(9, #want)
         assert.equal(9, #got)
         for i, w in ipairs(want) do assert.is_true(math.abs(got[i] / w - 1) < 1e-5) end
      end)
   end)

   it('goes on with another number of ranks', function()
      tmp.with(function(dir)
         local more = '--packed --schedule constant --warmup 0 '
         local want = case.recipe(dir, 1, more .. '--steps 8')
         case.recipe(dir, 4, more .. '--steps 3 --mesh.dp_shard 2 --mesh.cp 2')
         case.recipe(dir, 3, more .. '--steps 6 --resume --mesh.cp 3 --cp.method a2a')
         local got = case.recipe(dir, 1, more .. '--steps 8 --resume --mesh.cp 1')
         -- after steps 3 and 6 there is a validation loss more
         table.remove(got, 8)
         table.remove(got, 4)
         assert.equal(#want, #got)
         for i, w in ipairs(want) do assert.is_true(math.abs(got[i] / w - 1) < 1e-5) end
      end)
   end)

   it('tells what does not go together', function()
      tmp.with(function(dir)
         for words, said in require 'tide.util.each' {
            ['--mesh.cp 3'] = '--mesh.cp 3', ['--cp.a2a 2'] = '--cp.a2a',
            ['--mesh.cp 2 --cp.method a2a+p2p'] = '--cp.a2a',
            ['--mesh.cp 2 --cp.method a2a+p2p --cp.a2a 3'] = 'must equal',
            ['--mesh.cp 2 --cp.layout zig'] = 'zigzag',
         } do
            local ok, problem = pcall(case.recipe, dir, 2, '--steps 2 ' .. words)
            assert.is_false(ok)
            assert.matches(said, problem, 1, true)
            assert.is_nil(problem:match '\n.*stack traceback')
         end
      end)
   end)
end)
