-- What the reader of traces makes of the files of ranks.

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

describe("a rank's file", function()
   it('has the calls of each communicator that ranks share, once', function()
      tmp.with(function(dir)
         local function comm(id, rank, transport)
            return { id = id, name = 'the ' .. id, rank = rank, size = 4, transport = transport,
               history = function()
                  local list = {}
                  for seq = 1, rank do list[seq] = call(seq, 'barrier', seq, seq + 1) end
                  return list
               end }
         end
         local path = trace.dump(dir, { comm('world', 3, 'local'), comm('made', 2, 'sim'),
            comm('world', 0, 'self'), comm('world/a', 1, 'mpi') })
         assert.equal(dir .. '/rank003.json', path)
         local d = trace.read(dir)[1]
         assert.same({ 3, 4 }, { d.rank, d.size })
         local said = {}
         for i, c in ipairs(d.comms) do
            said[i] = ('%s %s %d %d %d'):format(c.id, c.name, c.rank, c.size, #c.calls)
         end
         assert.same({ 'world the world 3 4 3', 'world/a the world/a 1 4 1' }, said)
         for _, e in ipairs(d.traceEvents) do assert.equal(3, e.pid) end
         assert.same(call(1, 'barrier', 1, 2), d.comms[1].calls[1])
      end)
      tmp.with(function(dir)
         assert.equal(dir .. '/rank000.json', trace.dump(dir, {}))
         assert.same({ 0, 1, 0 }, { trace.read(dir)[1].rank, trace.read(dir)[1].size,
            #trace.read(dir)[1].comms })
      end)
   end)

   it('is shown with those of others as one trace', function()
      tmp.with(function(dir)
         local json = require('tide').json
         for r = 0, 1 do
            local d = doc(r, { call(1, 'barrier', 70 * r, 70 * r + 1) }, r == 0 and 'a' or 'b')
            d.size = 2
            d.traceEvents = { { ph = 'X', ts = 7e7 * r + 5, dur = 2, name = 'op' }, { ph = 'M' } }
            local f = assert(io.open(('%s/rank%03d.json'):format(dir, r), 'w'))
            f:write(json.encode(d))
            f:close()
         end
         assert.matches('2 ranks in ' .. dir .. '/trace.json', trace.show(dir), 1, true)
         local f = assert(io.open(dir .. '/trace.json'))
         local events = json.decode(f:read '*a').traceEvents
         f:close()
         assert.equal(6, #events)
         assert.same({ 'process_name', 1, 'rank 1' }, { events[4].name, events[4].pid,
            events[4].args.name })
         assert.same({ 5, 5 }, { events[2].ts, events[5].ts })       -- 70 s apart
         os.remove(dir .. '/rank001.json')
         assert.matches('rank 1 left no file', trace.show(dir), 1, true)
         assert.matches('1 rank in ', trace.show(dir), 1, true)
      end)
   end)
end)

describe('the reader of traces', function()
   it('names the rank that arrived last, by how much, and where', function()
      local docs = {}
      for r = 0, 2 do
         docs[r + 1] = doc(r, { call(1, 'all_reduce', r == 2 and 1 or 0.01 * r, 1.5),
            call(2, 'barrier', 2 + (r == 2 and 3.1 or 0), 5.2, 'train/step.lua:55') })
      end
      local text = report(docs)
      has(text, 'rank 2 arrived 3.1 s after the others at barrier #2 (train/step.lua:55)')
      has(text, 'rank 2 arrived 990.0 ms after the others at all_reduce #1 (a.lua:1)')
      has(text, 'rank 2 was last in 2 of 2 collectives; the others waited 4.1 s for it')
   end)

   it('names the first of the ranks that others waited for equally long', function()
      local docs = {}
      for r = 0, 2 do
         docs[r + 1] = doc(r, { call(1, 'barrier', r == 1 and 1 or 0, 2),
            call(2, 'barrier', r == 2 and 4 or 3, 5) })
      end
      has(report(docs), 'rank 1 was last in 1 of 2 collectives; the others waited 1.0 s for it')
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

   it('names a rank that never arrived', function()
      local docs = { doc(0, { call(1, 'barrier', 0, 1), call(2, 'all_reduce', 1, 2) }),
         doc(1, { call(1, 'barrier', 0, 1) }), doc(2, {}) }
      local text = report(docs)
      has(text, 'rank 2 never arrived at #1 barrier')
      has(text, 'it made no call there')
      docs[3] = docs[1]
      has(report(docs), "rank 1 never arrived at #2 all_reduce(sum, f32, 4 elements) on 'world' "
         .. '(a.lua:2); its last call there was #1 barrier')
   end)

   it('is refused by the program in one line without a place in it', function()
      tmp.with(function(dir)
         local pipe = io.popen(('%s/tide trace %s 2>&1'):format(os.getenv 'TIDE_BUILD' or 'build',
            dir))
         local out = pipe:read '*a'
         pipe:close()
         assert.equal(("tide: debug.trace.read: '%s' has no rank*.json; write them with tide run "
            .. '--trace (E_IO)\n'):format(dir), out)
      end)
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

   it('finds in random runs what a loop over all calls finds', function()
      math.randomseed(6)
      local parted, late = 0, 0
      for _ = 1, 150 do
         local n, m, docs = math.random(1, 4), math.random(1, 5), {}
         for r = 0, n - 1 do
            local calls = {}
            for i = 1, math.random(4) == 1 and math.random(0, m) or m do
               calls[i] = call(i, 'all_reduce', 10 * i + math.random(0, 8), 10 * i + 9, nil,
                  math.random(12) == 1 and 5 or 4)
            end
            docs[r + 1] = doc(r, calls)
         end
         local want = { parted = {}, late = {}, waits = {} }
         for i = 1, m do
            local counts, absent, times, any = {}, {}, {}, nil
            for r = 0, n - 1 do
               local c = docs[r + 1].comms[1].calls[i]
               if not c then
                  absent[#absent + 1] = r
               else
                  any = any or c
                  counts[c.count] = true
                  times[#times + 1] = { c.begin, -r }
               end
            end
            if counts[4] and counts[5] then
               want.parted[1] = 'differs ' .. i
               break
            elseif any and #absent > 0 then
               want.parted[1] = 'missing ' .. i .. ' ' .. table.concat(absent, ' ')
               break
            elseif #times > 1 then
               table.sort(times, function(a, b)
                  return a[1] > b[1] or a[1] == b[1] and a[2] > b[2]
               end)
               local rank, seconds = -times[1][2], times[1][1] - times[2][1]
               want.late[#want.late + 1] = ('%d %d %g'):format(i, rank, seconds)
               local w = want.waits[rank] or { count = 0, seconds = 0 }
               w.count, w.seconds = w.count + 1, w.seconds + seconds
               want.waits[rank] = w
            end
         end
         local got, list = trace.compare(docs), { parted = {}, late = {} }
         for i, f in ipairs(got.parted) do
            local ranks = {}
            for k, r in ipairs(f.ranks or {}) do
               ranks[k] = r.rank
               local calls = docs[r.rank + 1].comms[1].calls
               assert.equal(calls[#calls], r.last)
            end
            list.parted[i] = f.kind .. ' ' .. f.seq
               .. (f.ranks and ' ' .. table.concat(ranks, ' ') or '')
         end
         for i, f in ipairs(got.late) do
            assert.is_true(i == 1 or f.seconds <= got.late[i - 1].seconds)
            list.late[i] = ('%d %d %g'):format(f.seq, f.rank, f.seconds)
         end
         table.sort(list.late)
         table.sort(want.late)
         list.waits = got.waits
         assert.same(want, list)
         parted, late = parted + #want.parted, late + #want.late
         local first = trace.report(docs, 2)[1] or ''
         assert.equal(#want.parted > 0, first:find '^the ranks part' ~= nil
            or first:find 'never arrived' ~= nil)
      end
      assert.is_true(parted > 20 and late > 100)
   end)

   it('writes calls and seconds as they are', function()
      local function two(a, b)
         local first, second = { call(1, 'broadcast', 0, 1) }, { call(1, 'broadcast', 0, 1) }
         for k, v in pairs(a) do first[1][k] = v end
         for k, v in pairs(b) do second[1][k] = v end
         return report { doc(0, first), doc(1, second) }
      end
      has(two({ root = 0, site = '' }, { root = 1 }),
         'rank 0: broadcast(sum, f32, 4 elements, root 0) at ?')
      has(two({ dtype = 'f16' }, {}), 'rank 0: broadcast(sum, f16, 4 elements) at a.lua:1')
      has(two({ reduce = 'max' }, {}), "the ranks part at #1 on 'world':")
      has(two({ op = 'barrier' }, {}), 'rank 1: broadcast(sum')
      local bare = call(1, 'barrier', 0, 1)
      bare.reduce, bare.dtype = nil, nil
      has(report { doc(0, { bare }), doc(1, {}) }, 'rank 1 never arrived at #1 barrier() on')
      assert.is_nil(two({ op = 'send_recv', count = 1 }, { op = 'send_recv', dtype = 'f64' })
         :find('part at', 1, true))
      for at, text in pairs { [1] = '1.0 s', [0.5] = '500.0 ms', [1e-3] = '1.0 ms',
         [4e-4] = '400 us' } do
         has(two({ begin = at }, {}), 'rank 0 arrived ' .. text .. ' after the others')
      end
   end)

   it('says which ranks left no file, and lists as many late ones as it is asked for', function()
      local docs = { doc(1, { call(1, 'barrier', 0, 1), call(2, 'barrier', 3, 4) }),
         doc(2, { call(1, 'barrier', 0.5, 1), call(2, 'barrier', 2, 4) }) }
      has(report(docs), 'rank 0 left no file here')
      for worst = 0, 3 do
         local n = 0
         for _, line in ipairs(trace.report(docs, worst)) do
            n = n + (line:find ' arrived ' and 1 or 0)
         end
         assert.equal(math.min(worst, 2), n)
      end
      assert.is_nil(report { doc(0, {}), doc(1, {}), doc(2, {}) }:find('no file', 1, true))
      for _, d in ipairs(docs) do d.size = 9 end
      has(report(docs), 'ranks 0, 3, 4, 5, 6, 7, 8 left no file')
   end)

   it('compares clocks of hosts by calls that ended well on both', function()
      local function run(change)
         local docs = {}
         for r = 0, 1 do
            local calls = {}
            for i = 1, 3 do calls[i] = call(i, 'barrier', 70 * r + i, 70 * r + i + 0.5) end
            docs[r + 1] = doc(r, calls, r == 0 and 'one' or 'two')
         end
         change(docs[2].comms[1].calls)
         return report(docs)
      end
      has(run(function(calls) calls[2].begin = 72.25 end),
         'rank 1 arrived 250.0 ms after the others at barrier #2')
      has(run(function(calls)
         calls[1].finish, calls[2].finish = 900, 800
         calls[1].status, calls[2].status = 'E_TIMEOUT', 'E_TIMEOUT'
         calls[2].begin = 72.25
      end), 'rank 1 arrived 250.0 ms after the others at barrier #2')
   end)
end)
