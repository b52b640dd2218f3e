-- The prompt over the processes of mpirun: the same rules as over threads.
-- Mostly waits.

local pty = require 'spec.support.pty'
local run = require 'spec.comm.mpi_run'

local case = run.cases(it, pending)

-- Output and exit status of `tide repl OPTIONS` on n processes, fed by a shell script, which writes
-- lines to descriptor 3 and sees the job as $pid.
local function play(n, options, script)
   local folder = os.tmpname()
   os.remove(folder)
   local program = run.program:sub(1, 1) == '/' and run.program or '"$OLDPWD"/' .. run.program
   local pipe = assert(io.popen(([[
      mkdir %s && cd %s && mkfifo in
      timeout -k 5 120 %s -np %d %s repl %s < in > out 2>&1 & pid=$!
      trap '' PIPE
      exec 3> in
      count=0
      tick() { count=$((count + 1)); sleep 0.1; [ $count -lt 300 ] || kill $pid; }
      await() { while ! [ -e $1 ] && tick; do :; done; rm $1; }
      %s
      exec 3>&-
      wait $pid; echo "status=$?" >> out; cat out; cd /; rm -r %s
   ]]):format(folder, folder, run.mpirun, n, program, options, script, folder)))
   local text = pipe:read '*a'
   pipe:close()
   local body, status = text:match '^(.*)status=(%d+)%s*$'
   return body, tonumber(status)
end

-- The same for a list of lines.
local function feed(n, options, lines)
   local quoted = {}
   for i, line in ipairs(lines) do quoted[i] = "'" .. line:gsub("'", [['\'']]) .. "'" end
   return play(n, options, "printf '%s\\n' " .. table.concat(quoted, ' ') .. ' >&3 2>/dev/null')
end

describe('a prompt over processes', function()
   case('runs a line on all of them, or on some', function()
      local out, status = feed(3, '-t 1 --device null -p trace=1', { '1 + 1', 'rank, size',
         '%0,2 x = rank + 5', 'x', '%1 rank, size', 'for i = 1, 2 do', 'y = i', 'end', 'y',
         'print("all", 1)', 'print("rank", rank)', '%0 tide.ones { 2 }.device',
         '%0 tide.default():param "trace"', 'quit', '1' })
      assert.equal('2\n[r0] 0\n[r1] 1\n[r2] 2\n     3\n[r0] 5\n[r1] nil\n[r2] 7\n1\n3\n2\nall\t1\n'
         .. '[r0] rank\t0\n[r1] rank\t1\n[r2] rank\t2\n"null"\n"1"\n', out)
      assert.equal(0, status)
   end)

   case('names the ranks that miss a collective, and goes on', function()
      local sum = 'world:all_reduce(tide.ones { 2 }):tolist()[1] '
      local both = sum .. '+ part:all_reduce(tide.ones { 1 }):tolist()[1]'
      local out, status = feed(3, '-t 1', {
         'world = tide.comm.world(); part = world:split(rank % 2, rank)', both,
         'if rank ~= 1 then world:barrier() end', both, '%2 world:barrier()', both,
         '%0 part:barrier()', both, 'if rank == 0 then error("planned", 0) end world:barrier()',
         both })
      assert.equal(5, run.count(out, '[r0,2] 5\n'), out) -- mpirun may mix the two streams
      assert.equal(5, run.count(out, '[r1]   4\n'), out)
      assert.matches("%[r0,2%] [^\n]*barrier[^\n]*on 'world' at input:1[^\n]*missing: rank 1 ", out)
      assert.matches("\ninput:1:[^\n]*on 'world'[^\n]*missing: ranks 0, 1 ", out)
      assert.matches("\ninput:1:[^\n]*on 'part'[^\n]*missing: rank 1 ", out)
      assert.matches('%[r0%]%s+planned\n%[r1,2%] [^\n]*missing: rank 0 ', out)
      assert.equal(1, status)
   end)

   case('is interrupted any number of times, and loses nothing', function()
      local out = play(2, '-t 1', [[
         echo 'x = 41 io.open("ready" .. rank, "w"):close()' >&3
         echo '%0 ffi = require "ffi"; ffi.cdef "int getpid(void); int getppid(void);"' >&3
         echo '%0 f = io.open("pid", "w"); f:write(ffi.C.getpid()); f:close()' >&3
         echo '%0 f = io.open("mpirun", "w"); f:write(ffi.C.getppid()); f:close()' >&3
         echo '%0 io.open("told", "w"):close()' >&3
         await ready0; await ready1; await told
         rank0=$(cat pid); mpirun=$(cat mpirun)
         stop() { while ! [ -e $1 ] && tick; do kill $2; done; rm $1; }
         for k in 1 2 3; do
            echo 'io.open("in_loop" .. rank, "w"):close() while true do end' >&3
            echo '%1 io.open("after", "w"):close()' >&3
            await in_loop0; await in_loop1; stop after "-INT $rank0"; sleep 0.3
         done
         echo 'io.open("in_call", "w"):close() if rank == 0 then while true do end end' \
            'tide.comm.world():barrier()' >&3
         echo '%1 io.open("after", "w"):close()' >&3
         await in_call; stop after "-USR1 $mpirun"; sleep 0.3
         echo 'part = tide.comm.world():split(0, rank)' >&3
         echo 'io.open("in_call", "w"):close()' \
            'if rank == 0 then part:barrier() else tide.comm.world():barrier() end' >&3
         echo '%1 io.open("after", "w"):close()' >&3
         await in_call; stop after "-INT $rank0"; sleep 0.3
         echo 'part:barrier()' >&3
         echo 'x + tide.comm.world():all_reduce(tide.ones { 1 }):tolist()[1]' >&3
      ]])
      assert.matches('\n43\n', out, 1, true)
      assert.matches('interrupted', out, 1, true)
   end)

   case('ends with the code of os.exit, and with an error where a rank dies', function()
      local out, status = feed(2, '-t 1', { '1', 'os.exit(3)', '2' })
      assert.matches('^1\ntide: rank [01] ended the prompt with os.exit%(3%)\n$', out)
      assert.equal(3, status)
      out, status = feed(2, '-t 1', { '1', '%1 os.exit(4)', '2' })
      assert.equal('1\ntide: rank 1 ended the prompt with os.exit(4)\n', out)
      assert.equal(4, status)
      out, status = feed(2, '-t 1', { '1', '%1 os.execute("kill -9 $PPID")', '2' })
      assert.matches('tide: rank 1 has died; the prompt ends', out, 1, true)
      assert.is_true(status ~= 0)
   end)

   case('prompts where the launcher reads a terminal', function()
      local p = pty.start { 'sh', '-c', ('exec %s -np 2 %s repl -t 1'):format(run.mpirun,
         run.program) }
      p:wait '2 ranks (? for help)\r\ntide> '
      p:send 'do\n'
      p:wait '   .. '
      p:send 'print(rank + 6) end\n'
      p:wait '[r0] 6\r\n[r1] 7\r\n'
      p:wait 'tide> '
      p:send 'quit\n'
      assert.equal(0, p:finish())
   end)

   case('refuses -n', function()
      local out, status = feed(2, '-n 2', { '1' })
      assert.matches('-n 2 inside a job of 2 processes', out, 1, true)
      assert.equal(2, status)
   end)
end)
