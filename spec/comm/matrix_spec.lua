-- The fault matrix of ranks, a case for each promise, by its number: R1-R5 killed, hanging and
-- failing ranks, leftovers, mismatches; R10 SIGTERM; R22 numbers that are not finite; R24 a network
-- that fails; R28 the host process; R29 libraries that are absent; R30 a slow rank. On threads, on
-- MPI processes, on two network namespaces. R6, what comparing calls costs: nothing that could be
-- left out, as threads compare one word in any case.
--
-- How soon ranks end is the promise in the comment; what is tested is that they do not wait for a
-- timeout that is longer than the job may take, so that a busy machine makes no difference.
-- Mostly waits.

local hosts = require 'spec.comm.hosts'
local mpi = require 'spec.comm.mpi_run'
local ranks = require 'spec.comm.ranks'
local straggler = require 'tide.comm.straggler'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

-- A folder that goes at the end.
local folders = {}
local function scratch()
   local dir = os.tmpname()
   os.remove(dir)
   tmp.mkdir(dir)
   folders[#folders + 1] = dir
   return dir
end

local missing = mpi.missing()
local script = 'spec/comm/fault_case.lua '

local function it_mpi(text, fn)
   if missing then pending(text .. ' (' .. missing .. ')') else it(text, fn) end
end

local function count(out, text)
   local _, n = out:gsub(text:gsub('%p', '%%%0'), '')
   return n
end

-- A job that must fail, without one wrong number, a rank that got through or waits for its timeout.
local function fails(run, n, words)
   local out, status = run(n, script .. words)
   assert.is_true(status ~= 0 and status ~= 124, words .. ': ' .. status .. '\n' .. out)
   assert.equal(0, count(out, 'finished'), out)
   assert.equal(0, count(out, 'wrong data'), out)
   return out, status
end

local function listing(command)
   local pipe = io.popen(command)
   local text = pipe:read '*a'
   pipe:close()
   return text
end

describe('R1: a rank killed in the middle', function()
   it_mpi('ends the job, at any point, in any collective', function() -- survivors within 2 s
      for _, n in ipairs { 2, 4 } do
         for _, seq in ipairs { 1, 2, 6, 12, 16 } do
            fails(mpi.job, n, ('kill %d'):format(seq))
         end
      end
   end)
end)

describe('R2: a rank that hangs', function()
   local function named(out, text)
      assert.is_true(count(out, 'rank 2 has not arrived') > 0, out)
      assert.is_true(count(out, text) > 0, out)
      assert.is_truthy(out:find 'fault_case.lua:%d+')
   end
   it('in a loop is named after the timeout (threads)', function() -- timeout + 1 s
      named(fails(mpi.threads, 3, 'loop 9 2'), 'its last call here was #8')
   end)
   it_mpi('in a loop is named after the timeout (MPI)', function()
      named(fails(mpi.job, 3, 'loop 9 2'), 'its last call here was #8')
   end)
   it_mpi('by SIGSTOP is named after the timeout', function()
      named(fails(mpi.job, 3, 'stop 10 2'), 'its last call here was #9')
   end)
end)

describe('R3: a rank that fails or leaves', function() -- the others within 2 s
   for _, row in ipairs { { 'threads', mpi.threads }, { 'MPI', mpi.job } } do
      local case = row[1] == 'MPI' and it_mpi or it
      case('by an error is the cause, shown once (' .. row[1] .. ')', function()
         for _, seq in ipairs { 1, 4, 11 } do
            local out, status = fails(row[2], 3, 'error ' .. seq)
            assert.equal(1, status)
            assert.equal(1, count(out, 'planned failure'), out)
            assert.equal(1, count(out, 'rank 2 failed'), out)
         end
      end)
      case('by os.exit gives its code (' .. row[1] .. ')', function()
         local _, status = fails(row[2], 2, 'exit 5')
         assert.equal(3, status)
      end)
      case('by an early return is named (' .. row[1] .. ')', function()
         local out = fails(row[2], 2, 'return 8')
         assert.is_truthy(out:find('rank 1 has left', 1, true), out)
      end)
   end
end)

describe('R4: after faults', function()
   -- Programs that run the case for `dir`, which is in their environment.
   local function left(dir)
      return listing(([[for f in /proc/[0-9]*/exe; do case $(readlink $f) in */tide)
         grep -q %s ${f%%exe}environ 2>/dev/null && tr '\\0' ' ' <${f%%exe}cmdline;; esac
         done; true]]):format(dir))
   end
   it_mpi('nothing is left: processes, shared memory, files', function()
      local dir = scratch()
      local function job(n, words, limit)
         return mpi.shell(('env TMPDIR=%s OMPI_MCA_btl_vader_backing_directory=%s %s -np %d %s '
            .. 'run %s'):format(dir, dir, mpi.mpirun, n, mpi.program, words), limit)
      end
      for _, kind in ipairs { 'kill', 'error', 'return', 'stop' } do
         fails(job, 2, kind .. ' 6 2')
      end
      fails(mpi.threads, 2, 'error 6 2')
      local processes, files
      for _ = 1, 600 do                             -- the launcher's last processes need a moment
         processes, files = left(dir), listing('find ' .. dir .. ' -type f')
         if processes == '' and files == '' then break end
         os.execute 'sleep 0.1'
      end
      assert.same({ '', '' }, { processes, files })
   end)
end)

describe('R5: calls that differ', function()
   it('are refused on every rank, with both places (threads; all cases: mismatch_spec)', function()
      for _, n in ipairs { 2, 4, 8 } do
         for _, big in ipairs { 1, 40000 } do
            local rows = ranks.try(n, nil, function(comm, size)
               local lua = require 'tide'
               local t = lua.ones { size }
               if comm.rank == 1 then
                  comm:all_reduce(t, 'max')
               else
                  comm:all_reduce(t)
               end
            end, big)
            for r = 1, n do
               assert.equal('E_COMM', rows[r].status)
               local _, places = rows[r].message:gsub('matrix_spec.lua:%d+', '')
               assert.is_true(places >= 2, rows[r].message)
            end
         end
      end
   end)
   -- Threads read each other's buffers: one that trusted the others would read past their ends.
   it('are refused where both sides are large, and no group of threads goes without', function()
      local rows = ranks.try(2, { timeout = 20 }, function(comm)
         local lua = require 'tide'
         if comm.rank == 1 then return comm:all_reduce(lua.ones { 40000 }) end
         comm:all_reduce(lua.ones { 4 })
      end)
      for r = 1, 2 do assert.equal('E_COMM', rows[r].status) end
      for _, differs in ipairs { 'count', 'dtype', 'root', 'counts', 'pair' } do
         rows = ranks.try(2, { timeout = 20 }, function(comm, what)
            local lua = require 'tide'
            local n = comm.rank == 1 and 4000000 or 40000
            local other = 1 - comm.rank
            if what == 'count' then
               comm:all_reduce(lua.ones { n })
            elseif what == 'dtype' then
               comm:all_gather(lua.ones({ 40000 }, { dtype = comm.rank == 1 and 'f64' or 'f32' }))
            elseif what == 'root' then
               comm:broadcast(lua.ones { 40000 }, comm.rank)
            elseif what == 'counts' then
               comm:all_to_all_v(lua.ones { 40001 }, { 40000, 1 }, { n, 1 })
            else
               comm:send_recv(lua.ones { n }, other, lua.ones { n }, other)
            end
         end, differs)
         for r = 1, 2 do
            assert.equal('E_COMM', rows[r].status, differs .. ': ' .. tostring(rows[r].message))
         end
      end
      local ok, e = pcall(require('tide.ffi.dist').group, 2, { check = false })
      assert.is_false(ok)
      assert.equal('E_ARG', e.code)
      assert.matches("unknown option 'check'", e.message, 1, true)
   end)
end)

describe('R10: SIGTERM', function()
   it('ends the step, saves, and the run can go on', function()
      local dir = scratch()
      os.execute('cat lua/tide/nn/*.lua >' .. dir .. '/text') -- of its own: it must not change
      local base = ('%s run -n 2 recipes/pretrain.lua --steps %s --dim 40 --layers 1 --seq 32 '
         .. '--sample 0 --val-windows 2 --data ' .. dir .. '/text --out %s')
      local run = base:format(mpi.program, '100000', dir .. '/r')
      local out, status = mpi.shell(([[sh -c '%s --val-every 0 & p=$!
         for i in $(seq 2500); do sleep 0.1; test -s %s/r/metrics.jsonl && break; done
         kill -TERM $p; wait $p; echo code=$?']]):format(run, dir))
      assert.equal(0, status, out)
      assert.is_truthy(out:find('code=143', 1, true), out)
      assert.is_truthy(out:find('interrupted after step', 1, true), out)
      local step = tonumber(out:match 'interrupted after step (%d+)')
      out, status = mpi.shell(base:format(mpi.program, tostring(step + 2), dir .. '/r')
         .. ' --resume')
      assert.equal(0, status, out)
   end)
end)

describe('R22: a gradient that is not finite on one rank', function()
   it('has every rank leave out the same step; weights stay', function()
      local out = ranks.run(3, function(comm)
         local lua = require 'tide'
         local model = lua.nn.Linear(4, 3, { seed = 1 })
         function model:loss(ids, labels, opts)
            local loss = self:forward(ids):sum() / opts.count
            return labels and loss * labels or loss
         end
         local optim = lua.optim.AdamW(model, { lr = 0.1 })
         local step = require('tide.train.step').new { model = model, optim = optim, comm = comm,
            clip = 1 }
         local log, cause = {}, nil
         for i = 1, 4 do
            local x, factor = lua.ones { 2, 4 }, nil
            if i == 3 and comm.rank == 1 then factor = lua.full({ 1 }, 0 / 0) end
            local before = model:parameters()[1]:to_string_bytes()
            local r = step:run { { ids = x, labels = factor, count = 2 } }
            local same = before == model:parameters()[1]:to_string_bytes()
            log[i] = tostring(r.applied) .. tostring(same)
            if not r.applied then step:skip() end
            cause = r.cause or cause
         end
         return { table.concat(log, ' '), cause }
      end)
      for r = 1, 3 do
         assert.equal('truefalse truefalse falsetrue truefalse', out[r][1])
         assert.equal("not finite on rank 1: its loss, the gradient of 'weight' and 1 more",
            out[r][2])
      end
   end)

   it('is named by rank and tensor, sharded too, though the loss is finite', function()
      local out = ranks.run(3, function(comm)
         local lua = require 'tide'
         local texts = {}
         for i, how in ipairs { 'plain', 'shard', 'check' } do
            local model = lua.nn.Stack { lua.nn.Linear(4, 3, { seed = 1 }), lua.nn.Linear(3, 2) }
            local sharded = how ~= 'plain' and lua.parallel.fully_shard(model,
               { check_for_nan_in_grad = how == 'check' }) or nil
            function model:loss(ids, labels, opts)
               local y = self(ids)
               local loss = y:sum() / opts.count
               -- the root's value is 0, its derivative is not finite
               return labels and loss + (y - y:detach()):sum():sqrt() or loss
            end
            local step = require('tide.train.step').new { model = model, parallel = sharded,
               optim = lua.optim.AdamW(sharded or model, { lr = 0.1 }), comm = comm }
            local ok, r = pcall(step.run, step, { { ids = lua.ones { 2, 4 }, count = 2,
               labels = comm.rank == 2 and lua.ones { 1 } or nil } })
            texts[i] = ok and tostring(r.applied) .. ' ' .. r.cause or tostring(r)
         end
         return texts
      end)
      for r = 1, 3 do
         local plain, shard, check = unpack(out[r])
         assert.equal("false not finite on rank 2: the gradient of '0.weight' and 3 more", plain)
         assert.matches("false not finite, summed over ranks: the gradient of '0.weight'", shard, 1,
            true)
         assert.matches("the gradient of '1.weight' on rank 2 is not finite", check, 1, true)
      end
   end)
end)

describe('R24: two hosts', function()
   local pair, why
   setup(function()
      if missing then why = missing else pair, why = hosts.new() end
   end)
   teardown(function() if pair then pair:close() end end)

   local function it_hosts(text, fn)
      it(text, function()
         if not pair then return pending(text .. ' (' .. why .. ')') end
         fn()
      end)
   end

   local function losses(folder)
      local list = {}
      for line in io.lines(folder .. '/metrics.jsonl') do
         list[#list + 1] = line:match '"loss":[^,}]+'
      end
      return list
   end

   it_hosts('give the same losses as one', function()
      local dir = scratch()
      local words = 'recipes/pretrain.lua --mesh.dp 2 --steps 6 --dim 40 --layers 1 --seq 32 '
         .. '--sample 0 --val-windows 2 --out ' .. dir
      local out, status = pair:job(words .. '/two')
      assert.equal(0, status, out)
      out, status = mpi.threads(2, words .. '/one')
      assert.equal(0, status, out)
      local one = losses(dir .. '/one')
      assert.equal(6, #one)
      assert.same(one, losses(dir .. '/two'))
   end)

   for _, row in ipairs { { 'packets lost', 'loss 5%' }, { 'long delays', 'delay 60ms' } } do
      it_hosts('with ' .. row[1] .. ' give correct results, or an error', function()
         local out, status = pair:network('tc qdisc add dev {link} root netem ' .. row[2])
         if status ~= 0 then return pending('netem is missing: ' .. out:sub(1, 80)) end
         out, status = pair:job(script .. 'none 0')
         pair:network 'tc qdisc del dev {link} root'
         assert.equal(0, status, out)
         assert.equal(2, count(out, 'finished'), out)
      end)
   end

   it_hosts('whose cable is cut end with an error after the timeout', function()
      local cut = scratch() .. '/cut'
      os.execute(('(until grep -q waiting %s/out; do sleep 0.1; done; ip netns exec %s ip link set '
         .. '%s down; touch %s) >/dev/null 2>&1 &'):format(pair.dir, pair.b, pair.link, cut))
      local out, status = pair:job(script .. 'wait 9 4 ' .. cut)
      assert.is_true(status ~= 0 and status ~= 124, out)
      assert.is_true(count(out, 'waited 4 s in #9 all_reduce') > 0, out)
      assert.is_true(count(out, 'rank 1 ') > 0, out)
      assert.equal(0, count(out, 'finished'), out)
      assert.equal(0, count(out, 'wrong data'), out)
      assert.is_true(pair:is_quiet())
   end)
end)

describe('R28: the host process', function()
   it('keeps its signals, environment and streams while 8 ranks come and go', function()
      local path = scratch() .. '/host.lua'
      local f = assert(io.open(path, 'w'))
      f:write [[
         local ranks = require 'spec.comm.ranks'
         local function state()
            local list = {}
            for line in io.lines '/proc/self/status' do
               -- not 32 and 33, which glibc keeps for threads
               if line:find '^Sig[BIC]' then list[#list + 1] = line:sub(1, 7) .. line:sub(-8) end
            end
            list[#list + 1] = io.open('/proc/self/environ'):read '*a'
            return table.concat(list, '\n')
         end
         require 'tide'
         local before = state()
         for i = 1, 3 do
            ranks.try(8, nil, function(comm)
               comm:barrier()
               if comm.rank == 3 then error 'planned' end
               comm:all_reduce(require('tide').ones { 5000 })
            end)
         end
         if state() ~= before then io.stderr:write 'changed' end
         os.exit(state() == before and 7 or 1, true)
      ]]
      f:close()
      local out, status = mpi.shell((os.getenv 'TIDE_LUAJIT' or 'luajit') .. ' ' .. path)
      assert.same({ '', 7 }, { out, status })
   end)
end)

describe('R29: a library that is absent', function()
   it('is one clear sentence, and the rest works', function()
      local good, e = pcall(tide.comm.init, { transport = 'mpi', library = 'libnothing.so.9' })
      assert.is_false(good)
      assert.equal('E_UNSUPPORTED', e.code)
      assert.is_truthy(e.message:find('libnothing.so.9', 1, true), e.message)
      assert.equal(3, tide.full({ 1 }, 3):item())
   end)

   it('or a device that is absent is the same for NCCL, on every rank', function()
      local out = ranks.run(3, function(comm)
         local lua, fd = require 'tide', require 'tide.ffi.dist'
         local texts = {}
         -- Only rank 1 lacks the library; then all have what there is.
         for i, library in ipairs { comm.rank == 1 and 'libnothing.so.9' or false, false } do
            local good, e = pcall(fd.nccl, comm, { library = library or nil })
            if good then e:close() end
            texts[i] = good and 'opened' or e.code .. ' ' .. e.message
         end
         return { texts[1], texts[2], comm:all_reduce(lua.ones { 1 }):item() }
      end)
      assert.is_truthy(out[2][1]:find('^E_UNSUPPORTED NCCL is not installed.*libnothing.so.9'))
      for r = 1, 3 do
         assert.is_truthy(out[r][1]:find '^E_UNSUPPORTED ')
         assert.is_nil(out[r][1]:find '\n')
         local text = out[r][2]
         assert.is_true(text == 'opened' or text:find '^E_UNSUPPORTED NCCL' ~= nil
            or text:find '^E_UNSUPPORTED rank %d cannot use NCCL' ~= nil or
            text:find '^E_COMM NCCL' ~= nil, text)
         assert.equal(3, out[r][3])
      end
   end)
end)

describe('R30: a slow rank', function()
   it('is named within 20 steps, with ratio and section', function()
      local out = ranks.run(3, function(comm)
         local lua = require 'tide'
         -- Time passes as the case says: 50 ms more a step on rank 1, for which the others wait.
         local now, waited = 0, 0
         local told = { rank = comm.rank, size = comm.size, waited = function() return waited end,
            all_gather = function(_, t) return comm:all_gather(t) end }
         local watch = require('tide.comm.straggler').new { comm = told,
            sections = { 'data', 'step' }, clock = function() return now end }
         local found
         for _ = 1, 20 do
            watch:mark()
            now = now + 0.02
            watch:lap(1)
            now = now + (comm.rank == 1 and 0.1 or 0.05)
            comm:all_reduce(lua.ones { 3 })
            if comm.rank ~= 1 then now, waited = now + 0.05, waited + 0.05 end
            watch:lap(2)
            found = watch:next() or found
         end
         return found and { found.rank, found.section, found.ratio, found.line } or {}
      end)
      for r = 1, 3 do
         assert.equal(1, out[r][1])
         assert.equal('step', out[r][2])
         assert.is_true(math.abs(out[r][3] / (0.12 / 0.07) - 1) < 1e-9, out[r][3])
         assert.is_truthy(out[r][4]:find("rank 1 is slow: 1.%d+ times the median over 20 steps"))
      end
   end)

   it('counts the time in collectives as waiting', function()
      local out = ranks.run(2, function(comm)
         local before = comm:waited()
         comm:barrier()
         return comm:waited() > before
      end)
      assert.same({ true, true }, out)
   end)

   it('is found by sums and medians', function()
      local names = { 'a', 'b' }
      assert.is_nil(straggler.find({ { 1, 1 }, { 1.1, 1.2 } }, names, 1.2))
      assert.is_nil(straggler.find({ { 1, 1 } }, names, 1.2))
      assert.is_nil(straggler.find({ { 0, 0 }, { 0, 0 } }, names, 1.2))
      local f = straggler.find({ { 1, 1 }, { 1, 1 }, { 3, 1 }, { 1, 1 } }, names, 1.2)
      assert.same({ 2, 'a', 2, 2 }, { f.rank, f.section, f.ratio, f.seconds })
      f = straggler.find({ { 1, 3 }, { 2, 1 } }, names, 1.2)
      assert.same({ 0, 'b' }, { f.rank, f.section })
   end)
end)
