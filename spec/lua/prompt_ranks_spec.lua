-- The prompt over several ranks: what they print, ranks that miss a call, Ctrl-C.

local each = require 'tide.util.each'
local merge = require 'tide.repl.merge'

describe('what ranks print', function()
   local all = { 0, 1, 2, 3 }

   it('names ranks briefly', function()
      for want, ranks in each { ['r0'] = { 0 }, ['r0,2'] = { 0, 2 }, ['r1,2'] = { 1, 2 },
         ['r0-2'] = { 0, 1, 2 }, ['r0,2-5,9'] = { 0, 2, 3, 4, 5, 9 } } do
         assert.equal(want, merge.name(ranks))
      end
   end)

   it('is shown once where it is equal', function()
      assert.equal('a\n', merge.text({ [0] = 'a\n', 'a\n', 'a\n', 'a\n' }, all))
      assert.equal('b\n', merge.text({ [2] = 'b' }, { 2 }))
      assert.equal('', merge.text({ [0] = '', '', '', '' }, all))
   end)

   it('is shown with its ranks where it differs, also if some say nothing', function()
      assert.equal('[r0,2] a\n[r1,3] b\n', merge.text({ [0] = 'a\n', 'b\n', 'a\n', 'b\n' }, all))
      assert.equal('[r2] x\n', merge.text({ [0] = '', '', 'x\n', '' }, all))
      assert.equal('[r0]   a\n[r0]   b\n[r1-3] c\n',
         merge.text({ [0] = 'a\nb\n', 'c\n', 'c\n', 'c\n' }, all))
   end)

   it('shares lines of texts of one length', function()
      assert.equal('     head\n[r0] 1\n[r1] 2\n     tail\n',
         merge.text({ [0] = 'head\n1\ntail\n', 'head\n2\ntail\n' }, { 0, 1 }))
   end)

   it('arrives line by line', function()
      local out, time = {}, 0
      local s = merge.stream({ 0, 1 }, function(t) out[#out + 1] = t end,
         function() return time end, 1)
      s:add(0, 'one\ntw')
      assert.same({}, out)
      s:add(1, 'one\n')
      assert.same({ 'one\n' }, out)
      s:add(0, 'o\n')
      time = 2
      s:flush()
      assert.equal('[r0] two\n', out[2])
      s:add(1, 'late')
      s:finish(0)
      assert.equal(2, #out)
      s:finish(1)
      assert.equal('[r1] late\n', out[3])
      assert.equal(3, #out)
   end)
end)

describe('a session over ranks', function()
   local plain = require 'tide.ffi.plain'
   local ranks = require 'tide.repl.ranks'

   -- A session on `size` ranks that answer a line with say(rank, text): what it shows and why it
   -- failed. Returns it, what it wrote, its failures, and the requests of each rank.
   local function new(size, say, processes)
      local out, bad, requests, queue = {}, {}, {}, {}
      local function reply(rank, t) queue[#queue + 1] = { rank, plain.encode(t, 'spec') } end
      local board = { size = size, processes = processes, now = function() return 0 end }
      function board.post(rank, text)
         local r = plain.decode(text)
         requests[#requests + 1] = rank .. ' ' .. r.kind .. (r.text and ' ' .. r.text or '')
            .. (r.whole and ' whole' or '')
         if r.kind == 'complete' then
            reply(rank, { kind = 'done', list = { r.text .. '!' }, word = r.text })
            return
         end
         local shown, failed = '', ''
         if r.kind == 'line' then shown, failed = say(rank, r.text) end
         if shown == 'prints' then
            reply(rank, { kind = 'out', text = 'p' .. rank .. '\n' })
            shown = ''
         end
         reply(rank, { kind = 'done', shown = shown, failed = failed or '' })
      end
      function board.next()
         local row = table.remove(queue, 1)
         if not row then return nil, 'ended' end
         return row[1], row[2]
      end
      for rank = 0, size - 1 do reply(rank, { kind = 'done', version = '9.9' }) end
      local s = ranks.session(board, { write = function(text) out[#out + 1] = text end,
         fail = function(text) bad[#bad + 1] = text end })
      return s, out, bad, requests
   end

   local function echo(rank, text) return rank .. ':' .. text .. '\n' end

   it('asks the ranks that a line names', function()
      local s, _, bad, requests = new(4, echo)
      assert.equal('9.9, 4 ranks', s.version)
      for line, want in each { ['x'] = '0 1 2 3', ['%0 x'] = '0', ['%0,2 x'] = '0 2',
         ['%1-2 x'] = '1 2', ['%3,0-1,1 x'] = '0 1 3', ['  %2-2  x'] = '2',
         ['%0-3 x'] = '0 1 2 3' } do
         for i = #requests, 1, -1 do requests[i] = nil end
         assert.is_false(s:feed(line))
         local asked = {}
         for i, text in ipairs(requests) do
            asked[i] = text:match '^%d'
            assert.equal(want == '0 1 2 3' and 'line x whole' or 'line x', text:sub(3))
         end
         assert.equal(want, table.concat(asked, ' '), line)
      end
      assert.equal(0, s.errors)
      for i = #requests, 1, -1 do requests[i] = nil end
      for line, want in each { ['%4 x'] = '%4: the ranks are 0 to 3', ['%2-1 x'] = 'are 0 to 3',
         ['%1- x'] = 'expected %0 or %0,2-3', ['%, x'] = 'expected %0 or %0,2-3',
         ['%0-4 x'] = 'are 0 to 3' } do
         assert.is_false(s:feed(line))
         assert.matches(want, table.remove(bad), 1, true)
         assert.same({}, bad)
      end
      assert.equal(5, s.errors)
      assert.is_false(s:feed '%1   ')
      assert.is_false(s:feed '')
      assert.same({}, requests)
   end)

   it('of processes has the others take part', function()
      local s, _, _, requests = new(3, echo, true)
      s:feed '%1 x'
      assert.same({ '0 idle', '2 idle', '1 line x' }, requests)
      s:feed 'y'
      assert.same({ '0 line y whole', '1 line y whole', '2 line y whole' },
         { unpack(requests, 4) })
   end)

   it('shows what ranks show, print and complain of', function()
      local s, out, bad = new(2, function(rank, text)
         if text == 'a' then return 'same\n' end
         if text == 'b' then return 'prints' end
         return rank .. '\n', rank == 1 and 'no ' .. text .. '\n' or ''
      end)
      s:feed 'a'
      assert.equal('same\n', table.concat(out))
      s:feed 'b'
      assert.equal('same\n[r0] p0\n[r1] p1\n', table.concat(out))
      assert.equal(0, s.errors)
      s:feed 'c'
      assert.equal('[r0] 0\n[r1] 1\n', out[#out])
      assert.same({ '[r1] no c\n' }, bad)
      assert.equal(1, s.errors)
   end)

   it('waits for the end of an input, sends it to the ranks named first, and may drop it',
   function()
      local s, _, bad, requests = new(2, echo)
      assert.is_true(s:feed '%1 for i = 1, 2 do')
      assert.is_false(s:feed '%0 y')               -- an input that goes on names no ranks
      assert.equal(0, #requests)
      assert.equal(1, #bad)
      assert.is_true(s:feed '%1 for i = 1, 2 do')
      assert.is_true(s:feed 'exit()')
      assert.is_false(s:feed 'end')
      assert.same({ '1 line for i = 1, 2 do\nexit()\nend' }, requests)
      assert.is_true(s:feed 'f(')
      s:drop()
      s:finish()
      assert.equal(1, #bad)
      assert.is_true(s:feed 'f(')
      s:finish()
      s:finish()
      assert.equal('input: unfinished at the end of the input\n', bad[2])
      assert.equal(2, #bad)
      assert.is_false(s:feed ':help')
      assert.equal('1 line :help whole', requests[#requests])
   end)

   it('completes on rank 0, and ends with its words or its ranks', function()
      local s, _, _, requests = new(2, echo)
      assert.same({ { 'ab!' }, 'ab' }, { s.complete 'ab' })
      assert.same({ '0 complete ab' }, requests)
      for _, word in ipairs { 'exit', ' quit() ;', 'exit();' } do
         s = new(2, echo)
         assert.is_nil(s.ended)
         assert.is_false(s:feed(word))
         assert.is_true(s.ended)
         assert.is_false(s:feed 'x')
      end
      s, _, _, requests = new(2, echo)
      s.board.next = function() return nil, 'ended' end
      assert.is_false(s:feed 'x')
      assert.is_true(s.ended)
      assert.equal(2, #requests)
      assert.is_nil((s.complete 'ab'))
   end)
end)

local program = (os.getenv 'TIDE_BUILD' or 'build') .. '/tide'

-- Output and exit status of `tide repl OPTIONS` fed with lines by a shell script, which sees the
-- program as $pid and writes lines to descriptor 3.
local function play(options, script)
   local folder = os.tmpname()
   os.remove(folder)
   local command = ([[
      mkdir %s && cd %s && mkfifo in
      %s repl %s < in > out 2>&1 & pid=$!
      trap '' PIPE                  # a program that refuses its options reads nothing
      exec 3> in
      %s
      exec 3>&-
      wait $pid; echo "status=$?" >> out; cat out; cd /; rm -r %s
   ]]):format(folder, folder, '"$OLDPWD"/' .. program, options, script, folder)
   if program:sub(1, 1) == '/' then command = command:gsub('"%$OLDPWD"/', '') end
   local pipe = assert(io.popen(command))
   local text = pipe:read '*a'
   pipe:close()
   local body, status = text:match '^(.*)status=(%d+)%s*$'
   return body, tonumber(status)
end

-- The same for a list of lines.
local function feed(options, lines)
   local quoted = {}
   for i, line in ipairs(lines) do quoted[i] = "'" .. line:gsub("'", [['\'']]) .. "'" end
   return play(options, "printf '%s\\n' " .. table.concat(quoted, ' ') .. ' >&3 2>/dev/null')
end

describe('a prompt over ranks', function()
   it('runs a line on all of them, or on some', function()
      local out, status = feed('-n 3', { '1 + 1', 'rank', '%0,2 x = rank + 5', 'x', '%1 rank, size',
         'for i = 1, 2 do', 'y = i', 'end', 'y', '%0-1 rank' })
      assert.equal('2\n[r0] 0\n[r1] 1\n[r2] 2\n[r0] 5\n[r1] nil\n[r2] 7\n1\n3\n2\n[r0] 0\n[r1] 1\n',
         out)
      assert.equal(0, status)
   end)

   it('prints what all ranks print once', function()
      local out = feed('-n 2', { 'print("all", 1)', 'print("rank", rank)',
         'io.write("no ", "end");', 'if rank == 1 then print "one" end' })
      assert.equal('all\t1\n[r0] rank\t0\n[r1] rank\t1\nno end\n[r1] one\n', out)
   end)

   it('names the ranks that miss a collective, and goes on', function()
      local sum = 'tide.comm.world():all_reduce(tide.ones { 2 }):tolist()[1]'
      local out, status = feed('-n 3', { sum, 'if rank ~= 1 then tide.comm.world():barrier() end',
         sum, '%2 tide.comm.world():barrier()', sum,
         'if rank == 0 then error("planned", 0) end tide.comm.world():barrier()', sum })
      assert.matches('^3\n%[r0,2%] [^\n]*barrier[^\n]*input:1[^\n]*missing: rank 1 [^\n]*\n3\n'
         .. '[^\n]*missing: ranks 0, 1 [^\n]*\n3\n%[r0%]%s+planned\n'
         .. '%[r1,2%] [^\n]*missing: rank 0 [^\n]*\n3\n$', out)
      assert.equal(1, status)
   end)

   it('says what is wrong with a line once', function()
      local out, status = feed('-n 2', { '%2 x', '%a x', '%1- x', 'x = = 2', 'x = (' })
      assert.matches('ranks are 0 to 1', out, 1, true)
      assert.matches('expected %0 or %0,2-3', out, 1, true)
      local _, n = out:gsub('unexpected symbol', '')
      assert.equal(2, n)
      assert.matches('unfinished', out, 1, true)
      assert.equal(1, status)
   end)

   it('ends with the code of os.exit, and at quit', function()
      local _, status = feed('-n 2', { '1', 'os.exit(3)', '2' })
      assert.equal(3, status)
      local out
      for code = 0, 3, 3 do
         for _, line in ipairs { '%%1 os.exit(%d)',
            'if rank == 1 then os.exit(%d) end while 1 do end',
            'if rank == 1 then os.exit(%d) end tide.comm.world():barrier()' } do
            out, status = feed('-n 3', { '1', line:format(code), '2' })
            assert.matches(('^1\n.*tide: rank 1 ended the prompt with os.exit%%(%d%%)\n$')
               :format(code), out)
            assert.equal(code, status)
         end
      end
      out, status = feed('-n 2', { '1', 'quit', '2' })
      assert.equal('1\n', out)
      assert.equal(0, status)
   end)

   it('stops a line that begins after a rank has ended the prompt', function()
      local mark = os.tmpname()
      os.remove(mark)
      local wait = 'do local t = tide.clock() while tide.clock() - t < %g do end end '
      local out, status = feed('-n 3', {
         -- Rank 2 begins its next line late: it waits where a rank forgets agreements.
         ('%%2 d = require "tide.ffi.dist" open = d.open d.open = function() %s return open() end')
            :format(wait:format(0.5)),
         ('if rank == 1 then %s os.exit(3) end %s io.open(%q, "w"):close()'):format(
            wait:format(0.2), wait:format(1), mark) })
      assert.matches('rank 1 ended the prompt with os.exit(3)', out, 1, true)
      assert.equal(3, status)
      assert.is_nil(io.open(mark))
   end)

   for _, options in ipairs { '', '-n 3' } do
      it('is interrupted any number of times, and loses nothing: tide repl ' .. options, function()
         local out = play(options, [[
            echo 'x = 41 io.open("ready", "w"):close()' >&3
            count=0
            tick() { count=$((count + 1)); sleep 0.1; [ $count -lt 300 ] || kill -9 $pid; }
            await() { while ! [ -e $1 ] && tick; do :; done; rm $1; }
            stop() { while ! [ -e $1 ] && tick; do kill -INT $pid; done; rm $1; }
            await ready
            for k in 1 2 3 4 5; do
               echo 'io.open("in_loop", "w"):close() while true do end' >&3
               echo 'io.open("after", "w"):close()' >&3
               await in_loop; stop after; sleep 0.1
            done
            echo 'io.open("in_loop", "w"):close() while true do tide.ones{9}:add(1) end' >&3
            echo 'io.open("after", "w"):close()' >&3
            await in_loop; stop after; sleep 0.3
            echo 'x + 1' >&3
         ]])
         assert.matches('\n42\n$', out)
         assert.matches('interrupted', out, 1, true)
      end)
   end

   it('takes the options of tide run', function()
      local out = feed('-n 2 -t 1 -p trace=1 --device null', { 'tide.ones { 2 }.device',
         'tide.default():param "trace"' })
      assert.equal('"null"\n"1"\n', out)
      for options, text in each { ['-n 0'] = 'needs a number of ranks', ['--bad'] = "'--bad'",
         ['--device tpu'] = 'tpu', ['-p bogus=1'] = 'bogus', ['file.lua'] = "'file.lua'",
         ['-t'] = 'needs a number of threads' } do
         local said, status = feed(options, { '1' })
         assert.matches(text, said, 1, true)
         assert.equal(2, status)
      end
   end)
end)
