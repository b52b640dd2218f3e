-- Runs everything a change must pass and counts it: luacheck, the C specs, the busted specs.
--
--   luajit spec/support/run.lua [--build DIR] [--jobs N] [--sanitize address|thread]
--      [--limit SECONDS] [--times N] [SPEC ...]
--
-- One process a file, so a crash costs one file and its signal is seen. What failed is shown in
-- full; the last line is "N passed, N failed" and the exit status is 0 iff nothing failed.
-- SPEC names spec files (spec/op/all_spec.lua, spec/kernel/gemm.c) or folders; without any,
-- everything runs but spec/deep, which is for `make test-deep`. --limit: seconds that a file may
-- take (900). --times: list the N slowest.

local opt = { build = 'build', jobs = 1, sanitize = nil, limit = '900', times = '0' }
local targets = {}
do
   local i = 1
   while arg[i] do
      local name = arg[i]:match('^%-%-(%w+)$')
      if name then
         opt[name] = arg[i + 1] or error('option ' .. arg[i] .. ' needs a value', 0)
         i = i + 1
      else
         targets[#targets + 1] = arg[i]
      end
      i = i + 1
   end
end

local passed, failed = 0, 0

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- Output (both streams) and exit status of a shell command.
local function capture(command)
   local pipe = assert(io.popen('{ ' .. command .. '; } 2>&1; echo "status=$?"'))
   local text = pipe:read('*a')
   pipe:close()
   local body, status = text:match('^(.*)status=(%d+)%s*$')
   return body or text, tonumber(status) or 255
end

local function lines(command)
   local list = {}
   for line in (capture(command)):gmatch('[^\n]+') do list[#list + 1] = line end
   return list
end

local function say(name, npass, nfail, note)
   passed, failed = passed + npass, failed + nfail
   print(string.format('%-44s %5d passed %3d failed%s', name, npass, nfail, note or ''))
   io.stdout:flush()
end

local function ending(status)
   if status == 124 then return ', ran past ' .. opt.limit .. ' s' end
   if status > 128 then return ', killed by signal ' .. (status - 128) end
   return ', exit status ' .. status
end

-- The environment of a process that loads the library. TIDE_LUAJIT is how a spec starts luajit; the
-- other programs it starts are not made for a preloaded sanitizer (helper.lua).
-- Threads that wait sleep: specs have many small products, files run side by side, and a thread
-- that spins takes the processor from the one it waits for (on a loaded machine, most of it).
local function environment()
   local env, preload = 'env OMP_WAIT_POLICY=passive TIDE_BUILD=' .. quote(opt.build), nil
   if opt.sanitize == 'address' then
      env = env .. ' ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1'
      preload = '$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)'
   elseif opt.sanitize == 'thread' then
      -- libgomp is not instrumented, so its barriers look like races: contexts and ranks are
      -- checked, loops inside a kernel are not.
      env = env .. ' TSAN_OPTIONS=halt_on_error=0:exitcode=66'
         .. ':ignore_noninstrumented_modules=1 OMP_THREAD_LIMIT=1'
      preload = '$(gcc -print-file-name=libtsan.so)'
   end
   if not preload then return env end
   preload = ' LD_PRELOAD="' .. preload .. '"'
   return ('%s TIDE_LUAJIT="env%s luajit"%s'):format(env, preload:gsub('"', "'"), preload)
end

-- What specs need and plain `make` leaves out, as targets of CMake: their own programs and, for
-- spec/cuda and spec/deep, the emulated CUDA libraries.
local function targets_of(programs, files)
   if #targets == 0 then return { 'specs' } end
   local list, emulated = {}, false
   for i, program in ipairs(programs) do list[i] = program:match '[^/]+$' end
   for _, file in ipairs(files) do
      emulated = emulated or file:find '^%.?/?spec/cuda/' or file:find '^%.?/?spec/deep/'
   end
   if emulated then list[#list + 1] = 'emulated' end
   return list
end

-- Builds targets. A folder that CMake did not make is taken as it is.
local function build(list)
   local cache = io.open(opt.build .. '/CMakeCache.txt')
   if not cache or #list == 0 then return end
   cache:close()
   local out, status = capture(('cmake --build %s --target %s -j %s'):format(quote(opt.build),
      table.concat(list, ' '), opt.jobs))
   if status == 0 then return end
   io.write(out)
   say('build of the C specs', 0, 1)
end

-- Returns the command that checks the Lua files. luacheck is a Lua program: under LuaJIT without its
-- compiler, and with few collections, it takes less than half of its time.
local function luacheck_command()
   local path = lines('command -v luacheck')[1] or 'luacheck'
   local file = io.open(path)
   local head = file and file:read '*l' or ''
   if file then file:close() end
   local run = head:match '^#!.*lua' and
      ('LUA_INIT=%s luajit -joff %s'):format(quote 'collectgarbage("setpause", 400)', quote(path))
   return (run or 'luacheck') .. ' -q lua bindings recipes spec .busted'
end

-- Counts luacheck, which is one case.
local function checked(name, out, status)
   local ok = status == 0
   if not ok then io.write(out) end
   say(name, ok and 1 or 0, ok and 0 or 1)
end

-- Cases are timed by `times` of the shell that ran them: processor time, and the wall clock beside.
local spent = {}

-- What a shell prints of the command that it ran before, which began at $begin.
local told = 'status=$?; echo; echo "wall=$((($(date +%s%N) - begin) / 1000000))"; times; '
   .. 'echo "status=$status"'

-- Takes the times off the end of what a timed command wrote: output, status.
local function note_times(name, text)
   local out, wall, times, status = (text or ''):match('^(.*)\nwall=(%d+)\n(.-)status=(%d+)%s*$')
   if not out then return text or '', 255 end
   local cpu = 0
   for minutes, seconds in times:gmatch('(%d+)m([%d.]+)s') do
      cpu = cpu + 60 * minutes + seconds
   end
   spent[#spent + 1] = { name = name, wall = wall / 1000, cpu = cpu }
   return out, tonumber(status)
end

local function say_times(n)
   table.sort(spent, function(a, b)
      return a.wall > b.wall or a.wall == b.wall and a.name < b.name
   end)
   if n > 0 then print(('%-44s %9s %9s'):format('slowest', 'wall', 'processor')) end
   for i = 1, math.min(n, #spent) do
      local s = spent[i]
      print(('%-44s %7.1f s %7.1f s'):format(s.name, s.wall, s.cpu))
   end
end

-- Counts a C spec: cmocka prints its totals; a program without any is one case.
local function totals(name, out, status)
   local npass, nfail = 0, 0
   for n in out:gmatch('%[  PASSED  %] (%d+) test') do npass = npass + tonumber(n) end
   for n in out:gmatch('%[  FAILED  %] (%d+) test') do nfail = nfail + tonumber(n) end
   local note
   if status ~= 0 then
      if nfail == 0 or status > 123 then nfail, note = nfail + 1, ending(status) end
      io.write(out)
   elseif npass == 0 then
      npass = 1
   end
   say(name, npass, nfail, note)
end

-- Prints a file's TAP without the cases that passed. Each case is announced as it starts, with its
-- place: what a file was in when it was ended or crashed is known, and shown.
local function show(out)
   local start
   for line in out:gmatch('[^\n]+') do
      if line:match('^# [^ ]+ @ %d+: ') then start = line
      elseif line:match('^ok ') then start = nil
      elseif line:match('^not ok ') then start = nil; print(line)
      else print(line) end
   end
   if start then print(start .. '   <- had started and did not end') end
end

-- Counts the TAP of a spec file. A file that ends early, or plans other than it ran, has failed.
local function tap(name, out, status)
   local npass, nfail = 0, 0
   for line in out:gmatch('[^\n]+') do
      if line:match('^ok ') then npass = npass + 1
      elseif line:match('^not ok ') then nfail = nfail + 1 end
   end
   local plan = tonumber(out:match('\n?1%.%.(%d+)'))
   local note
   if not plan or plan ~= npass + nfail or (status ~= 0 and nfail == 0) then
      nfail, note = nfail + 1, ending(status)
   end
   if nfail > 0 then show(out) end
   say(name, npass, nfail, note)
end

-- Whether a spec file says in its head that it mostly waits, for timeouts and for programs.
local function waits(path)
   local file = assert(io.open(path))
   local head = file:read(1000) or ''
   file:close()
   return head:find('\n-- Mostly waits', 1, true) ~= nil
end

-- Runs luacheck (if `check`), C specs and spec files opt.jobs at a time, each into a file of its
-- own. Of several jobs, one more takes the files that mostly wait, one after another.
local function run_all(programs, files, check)
   local dir = os.tmpname()                 -- of this run alone: several may go at once
   os.execute('rm -f ' .. quote(dir) .. ' && mkdir ' .. quote(dir))
   local env, all = environment(), {}
   local queues = { assert(io.open(dir .. '/list', 'w')), assert(io.open(dir .. '/waiting', 'w')) }
   local function add(path, kind, count, name)
      all[#all + 1] = { name = name, count = count }
      local queue = kind == 'lua' and tonumber(opt.jobs) > 1 and waits(path) and 2 or 1
      queues[queue]:write(('%d %s %s\n'):format(#all, kind, quote(path)))
   end
   if check then add('luacheck', 'check', checked, 'luacheck') end
   for _, path in ipairs(programs) do add(path, 'c', totals, path:match '[^/]*$') end
   for _, path in ipairs(files) do add(path, 'lua', tap, path) end
   for _, queue in ipairs(queues) do queue:close() end
   local limit = ' timeout -k 10 ' .. opt.limit
   local one = ('{ begin=$(date +%%s%%N); case $2 in check) %s ;; c) %s "$3" ;; *) %s "$3" ;; '
      .. 'esac; %s; } >"$0/$1" 2>&1; echo "$1"'):format(check and luacheck_command() or ':',
      env:gsub(' TIDE_LUAJIT=.*', '') .. limit,
      env .. limit .. ' luajit /usr/bin/busted -v -o TAP', told)
   local function queue(name, jobs)
      return ('xargs -r -a %s -P %d -L 1 sh -c %s %s'):format(quote(dir .. '/' .. name), jobs,
         quote(one), quote(dir))
   end
   local pipe = assert(io.popen(('{ %s & %s; wait; }'):format(queue('waiting', 1),
      queue('list', opt.jobs))))
   for index in pipe:lines() do
      local item, f = all[tonumber(index)], assert(io.open(dir .. '/' .. index))
      item.count(item.name, note_times(item.name, f:read '*a'))
      f:close()
   end
   pipe:close()
   os.execute('rm -rf ' .. quote(dir))
end

-- The C specs among the targets; all of them without any.
local function wanted_programs()
   local list = {}
   for line in io.lines(opt.build .. '/spec/programs.txt') do
      local program, source = line:match '^([^\t]+)\t([^\t]+)$'
      local wanted = program and #targets == 0
      for _, t in ipairs(program and targets or {}) do
         wanted = wanted or (source .. '/'):find(t:gsub('/*$', '/'), 1, true) == 1
      end
      if wanted then list[#list + 1] = program end
   end
   return list
end

local where = {}
for i, t in ipairs(targets) do
   where[i] = quote(t)
   local there = io.open(t)
   if not there then
      io.write('no spec file or folder ', t, '\n')
      os.exit(2)
   end
   there:close()
end
local files = lines('find '
   .. (#where > 0 and table.concat(where, ' ') or 'spec -path spec/deep -prune -o')
   .. " -name '*_spec.lua' -print | sort")
local programs = wanted_programs()
build(targets_of(programs, files))
if #targets > 0 and #files + #programs == 0 then
   io.write('no spec files in ', table.concat(targets, ' '), '\n')
   failed = failed + 1
end
run_all(programs, files, #targets == 0 and not opt.sanitize)
say_times(tonumber(opt.times))
print(('%d passed, %d failed'):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
