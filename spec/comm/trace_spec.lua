-- The trace of ranks: what a run leaves, and overlap that can be seen.

local mpi = require 'spec.comm.mpi_run'
local tmp = require 'spec.support.tmp'
local trace = require 'tide.debug.trace'

local function has(text, part) assert.is_truthy(text:find(part, 1, true), text) end

describe('a full disk', function()
   it('is told with the file that found no place', function()
      tmp.with(function(dir)
         local program = require('tide.ffi.lib').path:match '^(.*/)' .. 'tide'
         local f = assert(io.open(dir .. '/recipe.lua', 'w'))
         f:write "require('tide').ones { 2 }"
         f:close()
         local function sh(command)
            local pipe = assert(io.popen('{ ' .. command .. '; } 2>&1; echo "status=$?"'))
            local text = pipe:read '*a'
            pipe:close()
            return text
         end
         has(sh(('%s run --trace %s/t -n 2 %s/recipe.lua'):format(program, dir, dir)), 'status=0')
         -- a limit of file size acts as a full disk: the report is last, and so is trace.json
         local text = sh(('(trap "" XFSZ; ulimit -f 0; %s trace %s/t)'):format(program, dir))
         has(text, dir .. '/t/trace.json')
         has(text, 'status=1')
         if io.open '/dev/full' then
            text = sh(('%s trace %s/t >/dev/full'):format(program, dir))
            has(text, 'standard output')
            has(text, 'status=1')
         end
      end)
   end)
end)

describe('a trace of a run that planned', function()
   it('knows nothing of imagined ranks', function()
      tmp.with(function(dir)
         local program = require('tide.ffi.lib').path:match '^(.*/)' .. 'tide'
         local f = assert(io.open(dir .. '/recipe.lua', 'w'))
         f:write [[
            local tide = require 'tide'
            local world = tide.comm.world()
            imagined = tide.comm.simulate(2, 0)
            world:barrier()
            imagined:barrier()
         ]]
         f:close()
         local pipe = assert(io.popen(('{ %s run --trace %s/t -n 2 %s/recipe.lua && %s trace '
            .. '%s/t; } 2>&1; echo "status=$?"'):format(program, dir, dir, program, dir)))
         local text = pipe:read '*a'
         pipe:close()
         has(text, 'status=0')
         has(text, '2 ranks in')
         assert.is_nil(text:find('never arrived', 1, true), text)
         local docs = trace.read(dir .. '/t')
         for _, d in ipairs(docs) do assert.equal(1, #d.comms) end
      end)
   end)
end)

describe('tide run --trace', function()
   for _, row in ipairs { { 'threads', mpi.threads }, { 'MPI', mpi.job } } do
      it('leaves a file a rank, also of a run that fails (' .. row[1] .. ')', function()
         if row[1] == 'MPI' and mpi.missing() then return pending 'no MPI' end
         tmp.with(function(dir)
            local words = ('--trace %s/t spec/comm/fault_case.lua loop 9 1'):format(dir)
            local out, status = row[2](3, words)
            assert.is_true(status ~= 0 and status ~= 124, out)
            local text, code = mpi.shell(mpi.program .. ' trace ' .. dir .. '/t')
            assert.equal(0, code, text)
            if row[1] == 'MPI' then                 -- the abort ends a rank that loops
               has(text, 'rank 2 left no file here')
            else
               has(text, "rank 2 never arrived at #9 all_reduce(sum, f32, 7 elements) on 'world'")
               has(text, 'its last call there was #8 all_to_all')
            end
            local merged = require('tide.util.fs').read_json('spec', dir .. '/t/trace.json')
            local seen = {}
            for _, e in ipairs(merged.traceEvents) do
               if e.cat == 'comm' then seen[e.pid] = true end
            end
            assert.same({ [0] = true, true, row[1] == 'threads' or nil }, seen)
         end)
      end)
   end

   it('says what is missing, and that a folder cannot be used, before it starts', function()
      tmp.with(function(dir)
         local function refused(words, part)
            local text, code = mpi.shell(mpi.program .. ' run ' .. words)
            assert.equal(2, code, text)
            has(text, part)
            assert.is_nil(text:find 'started')
         end
         local f = assert(io.open(dir .. '/a.lua', 'w'))
         f:write "print 'started'"
         f:close()
         refused('--trace', '--trace needs a folder')
         refused(('--trace %s/a.lua/t %s/a.lua'):format(dir, dir), 'cannot write to')
         refused(('-n 2 --trace /proc/t %s/a.lua'):format(dir), 'cannot write to')
         local run = ('%s run -n 2 --trace %s/t/u %s/a.lua'):format(mpi.program, dir, dir)
         local text, code = mpi.shell(run)
         assert.equal(0, code, text)
         refused(('--trace %s/t/u %s/a.lua'):format(dir, dir), 'holds the trace of another run')
      end)
   end)

   it('keeps the runs of a folder apart', function()
      tmp.with(function(dir)
         for r = 0, 1 do
            local f = assert(io.open(('%s/rank%03d.json'):format(dir, r), 'w'))
            f:write(('{"run":"%d/0","rank":%d,"size":2,"comms":[],"traceEvents":[]}'):format(r, r))
            f:close()
         end
         local text, code = mpi.shell(mpi.program .. ' trace ' .. dir)
         assert.equal(1, code, text)
         has(text, "'rank000.json' and 'rank001.json'")
         has(text, 'belong to different runs')
      end)
   end)

   it('is refused with a sentence where there is no trace', function()
      tmp.with(function(dir)
         local text, code = mpi.shell(mpi.program .. ' trace ' .. dir)
         assert.equal(1, code)
         has(text, 'has no rank*.json')
      end)
   end)
end)

-- A collective and, while it is under way, products.
local overlap = [[
   local tide = require 'tide'
   local comm = tide.comm.world()
   local big, x = tide.ones { 2000000 }, tide.ones { 500, 500 }
   comm:barrier()
   local work = comm:all_reduce(big, 'sum', { async = true })
   for i = 1, 2000 do
      tide.matmul(x, x)
      if work:test() then break end
   end
   assert(work:wait():sum():item() == 4000000)
]]

-- Returns how many products the traces of run i show during the collective: the least of both
-- ranks.
local function products_inside(dir, i)
   local traces = ('%s/t%d'):format(dir, i)
   local out, status = mpi.shell(('%s run -n 2 -t 1 --trace %s %s/overlap.lua'):format(
      mpi.program, traces, dir))
   assert.equal(0, status, out)
   out, status = mpi.shell(mpi.program .. ' trace ' .. traces)
   assert.equal(0, status, out)
   local merged = require('tide.util.fs').read_json('spec', traces .. '/trace.json')
   local least = math.huge
   for r = 0, 1 do
      local span, inside = nil, 0
      for _, e in ipairs(merged.traceEvents) do
         if e.pid == r and e.name:find '^all_reduce#' then span = e end
      end
      for _, e in ipairs(merged.traceEvents) do
         local meets = e.ts and e.ts < span.ts + span.dur and e.ts + e.dur > span.ts
         if e.pid == r and e.name == 'matmul' and meets then inside = inside + 1 end
      end
      least = math.min(least, inside)
   end
   return least
end

describe('a collective issued before a large product', function()
   -- On a loaded machine the collective may end before a rank gets a processor for its product.
   it('proceeds during it, as the trace of one run in five shows', function()
      tmp.with(function(dir)
         local f = assert(io.open(dir .. '/overlap.lua', 'w'))
         f:write(overlap)
         f:close()
         local inside = 0
         for i = 1, 5 do
            if inside == 0 then inside = products_inside(dir, i) end
         end
         assert.is_true(inside >= 1)
      end)
   end)
end)
