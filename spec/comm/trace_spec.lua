-- The trace of ranks: what a run leaves, what the reader makes of it, overlap that can be seen.

local mpi = require 'spec.comm.mpi_run'
local tmp = require 'spec.support.tmp'
local trace = require 'tide.debug.trace'

local function call(seq, op, begin, finish, site, count)
   return { seq = seq, op = op, reduce = 'sum', dtype = 'f32', count = count or 4, begin = begin,
            finish = finish, status = 'OK', site = site or 'a.lua:' .. seq, async = false }
end

local function doc(rank, calls, clock)
   return { rank = rank, size = 3, clock = clock or 'one', traceEvents = {},
            comms = { { id = 'world', name = 'world', rank = rank, size = 3, calls = calls } } }
end

local function report(docs) return table.concat(trace.report(docs), '\n') end

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
         -- a limit of file size stands for a disk: the report is last, and so is trace.json
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
         assert.is_nil(text:find('never came', 1, true), text)
         local docs = trace.read(dir .. '/t')
         for _, d in ipairs(docs) do assert.equal(1, #d.comms) end
      end)
   end)
end)

describe('the reader of traces', function()
   it('names who came last, by how much, and where', function()
      local docs = {}
      for r = 0, 2 do
         docs[r + 1] = doc(r, { call(1, 'all_reduce', r == 2 and 1 or 0.01 * r, 1.5),
            call(2, 'barrier', 2 + (r == 2 and 3.1 or 0), 5.2, 'train/step.lua:55') })
      end
      local text = report(docs)
      has(text, 'rank 2 arrived 3.1 s after the others at barrier #2 (train/step.lua:55)')
      has(text, 'rank 2 arrived 990.0 ms after the others at all_reduce #1 (a.lua:1)')
      has(text, 'rank 2 came last in 2 of 2 collectives; the others waited 4.1 s for it')
   end)

   it('names the first of the ranks that others waited for equally long', function()
      local docs = {}
      for r = 0, 2 do
         docs[r + 1] = doc(r, { call(1, 'barrier', r == 1 and 1 or 0, 2),
            call(2, 'barrier', r == 2 and 4 or 3, 5) })
      end
      has(report(docs), 'rank 1 came last in 1 of 2 collectives; the others waited 1.0 s for it')
   end)

   it('shows the first call that differs, and nothing after it', function()
      local docs = {}
      for r = 0, 2 do
         docs[r + 1] = doc(r, { call(7, 'all_reduce', 0, 1), call(8, 'all_reduce', 2, 3, nil,
            r == 1 and 5 or 4), call(9, 'barrier', r == 0 and 9 or 4, 9) })
      end
      local text = report(docs)
      has(text, "the ranks part at #8 on 'world':")
      has(text, 'ranks 0, 2: all_reduce(sum, f32, 4 elements) at a.lua:8')
      has(text, 'rank 1: all_reduce(sum, f32, 5 elements) at a.lua:8')
      assert.is_nil(text:find '#9')
   end)

   it('names a rank that never came', function()
      local docs = { doc(0, { call(1, 'barrier', 0, 1), call(2, 'all_reduce', 1, 2) }),
         doc(1, { call(1, 'barrier', 0, 1) }), doc(2, {}) }
      local text = report(docs)
      has(text, 'rank 2 never came to #1 barrier')
      has(text, 'it made no call there')
      docs[3] = docs[1]
      has(report(docs), "rank 1 never came to #2 all_reduce(sum, f32, 4 elements) on 'world' "
         .. '(a.lua:2); its last call there was #1 barrier')
   end)

   it('refuses what is no trace of a rank, and two of one rank', function()
      tmp.with(function(dir)
         local function says(words, ...)
            for i, text in ipairs { ... } do
               local f = assert(io.open(('%s/rank%03d.json'):format(dir, i - 1), 'w'))
               f:write(text)
               f:close()
            end
            local ok, e = pcall(trace.read, dir)
            assert.is_false(ok)
            assert.equal('E_FORMAT', e.code)
            has(tostring(e), words)
         end
         says("field 'rank': expected an integer in [0, 1048575], got -1",
            '{"rank":-1,"comms":[],"traceEvents":[]}')
         says("field 'rank': expected an integer in [0, 1048575], got 3000000",
            '{"rank":3000000,"comms":[],"traceEvents":[]}')
         says("field 'comms[1]': expected a table, got 3",
            '{"rank":0,"comms":[3],"traceEvents":[]}')
         says("field 'comms[1].calls[1]': expected a table, got 4",
            '{"rank":0,"comms":[{"id":"a","name":"a","calls":[4]}],"traceEvents":[]}')
         says("field 'traceEvents[1]': expected a table, got 1",
            '{"rank":0,"comms":[],"traceEvents":[1]}')
         local one = '{"rank":0,"comms":[],"traceEvents":[]}'
         says('both of rank 0', one, one)
      end)
   end)

   it('refuses any value of a wrong kind, and is not long about a strange one', function()
      tmp.with(function(dir)
         local json = require('tide').json
         local docs = {}
         for r = 0, 1 do
            docs[r + 1] = doc(r, { call(1, 'barrier', 0, 1), call(2, 'all_reduce', 1, 2) })
            docs[r + 1].size, docs[r + 1].run = 2, 'x/0'
            docs[r + 1].traceEvents = { { ph = 'X', ts = 1, dur = 2, name = 'op' } }
         end
         local strange = { -1, 1.5, 1e300, 2 ^ 40, 'x', true, {}, { 1 }, json.null }
         -- every value below t in turn; returns it to what it was
         local function walk(t, fn)
            local keys = {}
            for k in require 'tide.util.each'(t) do keys[#keys + 1] = k end
            for _, k in ipairs(keys) do
               local old = t[k]
               for _, v in ipairs(strange) do
                  t[k] = v
                  fn(k, v)
               end
               t[k] = old
               if type(old) == 'table' then walk(old, fn) end
            end
         end
         local refused = 0
         local function show(k, v)
            for r = 0, 1 do
               local f = assert(io.open(('%s/rank%03d.json'):format(dir, r), 'w'))
               f:write(json.encode(docs[r + 1]))
               f:close()
            end
            local ok, e = pcall(trace.show, dir)
            refused = refused + (ok and 0 or 1)
            assert.is_true(ok or e.code == 'E_FORMAT' and e.message:find(dir, 1, true) ~= nil,
               ('%s = %s: %s'):format(k, tostring(v), tostring(e)))
         end
         show()
         assert.equal(0, refused)
         walk(docs[2], show)
         assert.is_true(refused > 100)
      end)
   end)

   it('lets counts of uneven parts differ', function()
      local docs = {}
      for r = 0, 1 do
         docs[r + 1] = doc(r, { call(1, 'all_gather_v', 0, 1, nil, 3 + r),
            call(2, 'send_recv', 1, 2, nil, r) })
      end
      assert.same({}, trace.compare(docs).parted)
   end)

   it('brings clocks of other hosts together by the ends of collectives', function()
      local docs = {}
      for r = 0, 1 do
         local calls, shift = {}, r * 5000
         for i = 1, 9 do
            calls[i] = call(i, 'all_reduce', shift + i + (r == 1 and i == 4 and 0.25 or 0),
               shift + i + 0.5)
         end
         docs[r + 1] = doc(r, calls, r == 0 and 'one' or 'two')
      end
      has(report(docs), 'rank 1 arrived 250.0 ms after the others at all_reduce #4')
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
               has(text, "rank 2 never came to #9 all_reduce(sum, f32, 7 elements) on 'world'")
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

-- How many products the ranks' traces show during the collective: the least of both ranks.
local function products_inside(dir)
   local out, status = mpi.shell(('%s run -n 2 -t 1 --trace %s/t %s/overlap.lua'):format(
      mpi.program, dir, dir))
   assert.equal(0, status, out)
   out, status = mpi.shell(mpi.program .. ' trace ' .. dir .. '/t')
   assert.equal(0, status, out)
   local merged = require('tide.util.fs').read_json('spec', dir .. '/t/trace.json')
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
         for _ = 1, 5 do
            if inside == 0 then inside = products_inside(dir) end
         end
         assert.is_true(inside >= 1)
      end)
   end)
end)
