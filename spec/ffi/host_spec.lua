-- Ranks as threads, and the tide program: arguments, results, the first failure, exit codes.

local tide = require 'tide'
local host = require 'tide.ffi.host'
local files = require 'spec.support.files'
local tmp = require 'spec.support.tmp'
local lib = require 'tide.ffi.lib'
local child = require 'spec.support.child'

describe('ranks', function()
   it('run the same function with their own state and context', function()
      local rows = host.run(3, function(rank, nrank, a, b)
         local tide = require 'tide'          -- luacheck: ignore
         local x = tide.full({ 4 }, rank + 1)
         return { rank = rank, nrank = nrank, sum = x:sum():item(), a = a, b = b }
      end, 'text', { 1, { deep = true } })
      for i = 1, 3 do
         assert.same({ rank = i - 1, nrank = 3, sum = 4 * i, a = 'text',
            b = { 1, { deep = true } } }, rows[i])
      end
   end)

   it('take source text', function()
      assert.same({ 0, 2 }, host.run(2, 'return rank * nrank'))
   end)

   it('draw the same numbers from the same seed', function()
      local rows = host.run(2, function()
         return require('tide').rand({ 5 }):tolist()
      end)
      assert.same(rows[1], rows[2])
   end)

   it('stop when one fails, and name it', function()
      local rows = host.try(3, nil, function(rank)
         local tide = require 'tide'          -- luacheck: ignore
         local x = tide.ones { 2 }
         if rank == 1 then return x:sum(7) end
         while true do x = x:mul(1) end
      end)
      assert.equal(1, rows.first)
      assert.equal('E_ARG', rows[2].status)
      assert.is_true(rows[2].message:find("argument 'dim'", 1, true) ~= nil)
      for _, i in ipairs { 1, 3 } do
         assert.equal('E_PEER', rows[i].status)
         assert.is_true(rows[i].message:find('rank 1 failed first', 1, true) ~= nil)
      end
      local ok, err = pcall(host.run, 2, 'if rank == 1 then error "boom" end')
      assert.is_false(ok)
      assert.equal('E_HOST', err.code)
      assert.is_true(err.message:find('rank 1: .*boom') ~= nil)
   end)

   it('refuse what cannot travel', function()
      local up = 3
      for _, case in ipairs {
         { function() return up end }, { print }, { 3 }, { nil },
         { 'return 1', function() end }, { 'return 1', tide.ones { 1 } },
      } do
         local ok, err = pcall(host.run, 2, unpack(case, 1, 2))
         assert.is_false(ok)
         assert.equal('E_ARG', err.code, tostring(err))
      end
      for _, n in ipairs { 0, 1025, 1.5, 0 / 0, 'a' } do
         assert.is_false(pcall(host.run, n, 'return 1'))
      end
      assert.is_false(pcall(host.run, 2, 'return tostring'))
      assert.is_false(pcall(host.run, 2, 'syntax error here'))
   end)

   it('start and end again and again', function()
      for _ = 1, 10 do
         assert.same({ 2, 2, 2, 2 }, host.run(4, function()
            return require('tide').ones({ 2 }):sum():item()
         end))
      end
   end)
end)

describe('options of ranks', function()
   it('are refused by name where they are of the wrong type', function()
      for _, bad in ipairs { { params = {} }, { params = false }, { params = 1 },
         { nthread = 'x' } } do
         local ok, err = pcall(host.try, 1, bad, 'return 1')
         assert.is_false(ok)
         assert.is_true(tide.is_error(err), tostring(err))
         assert.equal('E_ARG', err.code, tostring(err))
      end
      assert.equal('OK', host.try(1, { params = 'cache=0' }, 'return 1')[1].status)
   end)
end)

describe('a rank that does not stop after another has failed', function()
   local function loop(rank)
      local limit = os.time() + 4            -- beyond the grace period: it ends when it likes
      while rank == 1 and os.time() < limit do end
      error 'planned'
   end

   it('is given up after the grace period, by name', function()
      local rows = host.try(3, { grace = 0.5 }, loop)
      assert.equal('E_TIMEOUT', rows[2].status)
      assert.matches('rank 1 has not stopped 0.5 s after rank [02] failed; its thread goes on',
         rows[2].message)
      assert.matches('planned', rows[2].message, 1, true)
      assert.matches('planned', rows[1].message, 1, true)
   end)

   it('may take its time within it', function()
      local rows = host.try(2, { grace = 60 }, function(rank)
         local t = os.clock()
         if rank == 1 then error 'planned' end
         while os.clock() - t < 0.5 do end
         return 'done'
      end)
      assert.equal('done', rows[1].values[1])
   end)

   it('cannot have a grace period of less than nothing', function()
      assert.is_false(pcall(host.try, 2, { grace = -1 }, 'return 1'))
      assert.is_false(pcall(host.try, 2, { grace = 0 / 0 }, 'return 1'))
   end)
end)

describe('os.exit', function()
   it('on a rank ends that rank, not the process that runs the ranks', function()
      local rows = host.try(3, nil, 'if rank > 0 then pcall(os.exit, rank - 1) end return 5')
      assert.equal(5, rows[1].values[1])
      assert.same({ 'OK', 'E_HOST' }, { rows[2].status, rows[3].status })
      assert.equal('os.exit(1)', rows[3].message)
   end)
end)

describe('a host that lost its handle', function()
   it('gets a refusal, and an end without text', function()
      local ffi = require 'ffi'
      host.run(1, 'return 1')                               -- declares the functions
      local H, C = lib.state.host, lib.C
      local job, n = H.tide_host_ranks_new(0, nil), ffi.new('size_t[1]', 7)
      assert.is_true(job == nil)
      assert.equal(C.TIDE_E_ARG, H.tide_host_ranks_run(job))
      assert.equal(-1, H.tide_host_ranks_first(job))
      assert.equal(0, H.tide_host_ranks_running(job))
      assert.equal(C.TIDE_E_ARG, H.tide_host_ranks_status(job, 0))
      assert.equal('', ffi.string(H.tide_host_ranks_message(job, 0)))
      assert.is_true(H.tide_host_ranks_result(job, 0, n) == nil)
      assert.equal(0, tonumber(n[0]))
      H.tide_host_ranks_interrupt(job)
      H.tide_host_ranks_free(job)
      assert.equal(0, H.tide_host_chunks_compiled(nil))
   end)

   it('gets no Lua state on what is no context', function()
      local ffi = require 'ffi'
      ffi.cdef [[
         int tide_lua_open(void **out, void *ctx, const char *root, char *msg, size_t n);
         const char *tide_lua_message(void *L);
         const char *tide_lua_result(void *L, size_t *n);
      ]]
      host.run(1, 'return 1')
      local H, out, msg = lib.state.host, ffi.new 'void *[1]', ffi.new 'char[200]'
      local t, n = tide.ones { 1 }, ffi.new('size_t[1]', 7)
      assert.equal(lib.C.TIDE_E_ARG, H.tide_lua_open(out, t, nil, msg, 200))
      assert.matches("argument 'ctx': expected a context", ffi.string(msg), 1, true)
      assert.is_true(out[0] == nil)
      assert.equal('', ffi.string(H.tide_lua_message(out[0])))
      ffi.cdef 'void lua_close(void *L);'
      local ctx = ffi.new 'tide_ctx *[1]'
      assert.equal(0, lib.C.tide_ctx_new(ctx, nil, nil, 0))
      local first, second = ffi.new 'void *[1]', ffi.new 'void *[1]'
      for _ = 1, 2 do
         assert.equal(0, H.tide_lua_open(first, ctx[0], nil, msg, 200))
         assert.equal(lib.C.TIDE_E_STATE, H.tide_lua_open(second, ctx[0], nil, msg, 200))
         assert.matches("argument 'ctx': the context has a Lua state already; make another",
            ffi.string(msg), 1, true)
         assert.is_true(second[0] == nil)
         H.lua_close(first[0])
      end
      lib.C.tide_ctx_release(ctx[0])
      assert.is_true(H.tide_lua_result(out[0], n) == nil)
      assert.equal(0, tonumber(n[0]))
   end)
end)

-- Sanitizers cannot bear a limit of the address space.
local limited = tide.build_info():find('sanitizers: none', 1, true) and it or pending

describe('a state without memory', function()
   limited('works again after the chunk that took all', function()
      local out, status = child([[
         local ffi, lib = require 'ffi', require 'tide.ffi.lib'
         local tide = require 'tide'
         ffi.cdef 'int tide_lua_open(void **, void *, const char *, char *, size_t);'
         ffi.cdef 'int tide_lua_run_string(void *, const char *, size_t, void *, int, void *);'
         ffi.cdef 'const char *tide_lua_result(void *, size_t *);'
         local H, out, box = lib.load 'tide_host', ffi.new 'void *[1]', ffi.new 'tide_ctx *[1]'
         assert(lib.C.tide_ctx_new(box, nil, nil, 0) == 0)
         assert(H.tide_lua_open(out, box[0], nil, nil, 0) == 0)
         local function run(code) return H.tide_lua_run_string(out[0], code, #code, nil, 0, nil) end
         for _ = 1, 2 do
            print(run 'local t = {} for i = 1, 1e9 do t[i] = ("x"):rep(2^20) .. i end')
            print(run 'return 6 * 7', H.tide_lua_result(out[0], nil) ~= nil)
         end
      ]], { env = 'ulimit -v 800000;' })
      assert.equal('-5\n0\ttrue\n-5\n0\ttrue\n', out)
      assert.equal(0, status)
   end)
end)

describe('plain data', function()
   it('of a damaged file are numbers, no values of other types', function()
      local one = 'd' .. ('\0'):rep(6) .. '\240?'
      for _, bytes in ipairs { ('\255'):rep(8), '\1\2\3\4\5\128\251\255',
         '\1\0\0\0\0\0\240\127' } do
         local v = host.decode('{2:' .. one .. 'd' .. bytes .. 's1:n' .. one)
         assert.equal('number', type(v))
         assert.is_true(v ~= v)
         local ok, e = pcall(host.decode, '{2:d' .. bytes .. 'ts1:n' .. one)
         assert.is_false(ok)
         assert.equal('E_FORMAT', e.code)
      end
   end)

   it('travels as hex digits, and nothing else is taken for them', function()
      local plain, text = require 'tide.ffi.plain', {}
      for i = 0, 255 do text[i + 1] = string.char(i) end
      text = table.concat(text):rep(9)
      assert.equal(text, plain.unhex(plain.hex(text)))
      assert.equal(text, plain.unhex(plain.hex(text):upper()))
      assert.equal('00ff0a', plain.hex '\0\255\n')
      for _, bad in ipairs { 'a', 'ag', '0 00' } do
         local ok, e = pcall(plain.unhex, bad)
         assert.is_false(ok)
         assert.equal('E_FORMAT', e.code)
      end
   end)

   it('survives encoding', function()
      local values = { 'a\0b\n"\\', 0 / 0, 1 / 0, -1 / 0, 2^53, 0.1, true, false,
         { 1, x = { y = 'z' } } }
      local back = { host.decode(host.encode(unpack(values))) }
      assert.equal(values[1], back[1])
      assert.is_true(back[2] ~= back[2])
      for i = 3, 8 do assert.equal(values[i], back[i]) end
      assert.same(values[9], back[9])
      assert.equal(3, select('#', host.decode(host.encode(nil, nil, nil))))
   end)
end)

-- The program lies beside the library that this Lua state has loaded.
local program = lib.path:gsub('[^/]*$', '') .. 'tide'
local file = io.open(program, 'rb')
if file then file:close() end

describe('the tide program', function()
   local function run(args, recipe)
      return tmp.with(function(folder)
         local path = folder .. '/recipe.lua'
         files.write(path, recipe or '')
         -- without a process group of its own, so that a signal reaches the program once
         local command = ('unset LUA_INIT; exec >%s/out 2>%s/err; timeout --foreground -s KILL 120 '
            .. '%s %s'):format(folder, folder, program, (args:gsub('RECIPE', path)))
         local code = os.execute(command)
         return math.floor(code / 256) + code % 256, files.read(folder .. '/out'),
            files.read(folder .. '/err')
      end)
   end

   if not file then
      pending('is not built beside ' .. lib.path)
      return
   end

   it('runs a recipe with its arguments', function()
      local code, out = run('run RECIPE a --b=3',
         'print(arg[1], arg[2], #arg, require("tide").ones({2}):sum():item())')
      assert.equal(0, code)
      assert.equal('a\t--b=3\t2\t2\n', out)
   end)

   it('prefixes whole lines of several ranks', function()
      local code, out, err = run('run -n 2 RECIPE',
         'for i = 1, 50 do io.write("line ", i, "\\n") end io.stderr:write("e")')
      assert.equal(0, code)
      local count = 0
      for line in out:gmatch '[^\n]+' do
         assert.is_true(line:find '^%[r[01]%] line %d+$' ~= nil, line)
         count = count + 1
      end
      assert.equal(100, count)
      assert.is_true(err:find('[r0] e\n', 1, true) ~= nil and err:find('[r1] e\n', 1, true) ~= nil)
   end)

   it('has exit codes', function()
      assert.equal(1, (run('run RECIPE', 'error "x"')))
      local code, _, err = run('run -n 3 RECIPE',
         'if package.loaded["tide.host"].rank == 2 then error "bad rank" end')
      assert.equal(1, code)
      assert.is_true(err:find('rank 2 failed: .*bad rank') ~= nil)
      assert.equal(0, (run('run -n 2 RECIPE', 'os.exit(0)')))
      code, _, err = run('run -n 2 RECIPE', 'os.exit(3)')
      assert.equal(3, code)
      assert.matches('^tide: rank [01] ended the run with os.exit%(3%)\n$', err)
      assert.equal(3, (run('run RECIPE', 'os.exit(3)')))
      for _, how in ipairs { 'run RECIPE', 'run -n 2 RECIPE' } do
         for words, want in pairs { ['()'] = 0, ['(nil)'] = 0, ['(true)'] = 0, ['(false)'] = 1,
            ['(7.9)'] = 7, ['("5")'] = 5, ['(-1)'] = 255, ['(256)'] = 1, ['(512)'] = 1,
            ['(257)'] = 1, ['(3, true)'] = 3, ['(0.5)'] = 1, ['(-0.5)'] = 1, ['("256")'] = 1,
            ['(-256.5)'] = 1, ['(0 / 0)'] = 1, ['(1e300)'] = 1, ['(-2^31 - 5)'] = 1,
            ['(-0.0)'] = 0 } do
            assert.equal(want, (run(how, 'os.exit' .. words)), how .. words)
         end
         code, _, err = run(how, 'os.exit {}')
         assert.equal(1, code)
         assert.is_truthy(err:find('number expected, got table', 1, true), err)
      end
      assert.equal(2, (run 'run'))
      assert.equal(2, (run 'run -n 0 RECIPE'))
      assert.equal(2, (run 'run -x 1 RECIPE'))
      assert.equal(2, (run 'run no/such/file.lua'))
      assert.equal(2, (run 'nonsense'))
   end)

   it('ends although a rank loops for ever, and shows the cause once', function()
      local code, _, err = run('run -n 3 -t 1 --grace 1 RECIPE', [[
         local comm = require('tide').dist.init { timeout = 1 }
         comm:barrier()
         if comm.rank == 1 then while true do end end
         comm:barrier()]])
      assert.equal(1, code)
      local _, n = err:gsub('rank 1 has not arrived', '')
      assert.equal(1, n, err)
      assert.matches('tide: rank 1 has not stopped 1 s after rank [02] failed\n', err)
   end)

   it('fails if what it prints is lost', function()
      for _, row in ipairs { { 'run RECIPE', 'print "x"' },
         { 'run RECIPE', 'print "x" os.exit(0)' }, { 'run -n 2 RECIPE', 'print "x"' },
         { 'version', '' }, { 'help', '' } } do
         local code, _, err = run(row[1] .. ' >/dev/full', row[2])
         assert.equal(1, code, row[1])
         assert.matches('cannot write to the standard output', err, 1, true)
      end
   end)

   it('writes what it prints to no file of the recipe where a standard file is closed', function()
      for _, how in ipairs { 'run RECIPE', 'run -n 2 RECIPE' } do
         for closed, want in pairs { ['>&-'] = 1, ['<&- >&- 2>&-'] = 1, ['2>&-'] = 0 } do
            tmp.with(function(dir)
               local code = run(how .. ' ' .. closed, ([[
                  if (package.loaded['tide.host'].rank or 0) > 0 then return end
                  local f = io.open('%s/data', 'w')
                  f:write 'data'
                  print 'printed'
                  io.stdout:flush()
                  io.stderr:write 'shown'
                  f:close()]]):format(dir))
               assert.equal('data', files.read(dir .. '/data'))
               assert.equal(want, code, how .. closed)
            end)
         end
      end
   end)

   it('is called tide by ps', function()
      local code, out = run('run RECIPE', [[os.execute 'cat /proc/$PPID/comm']])
      assert.equal(0, code)
      assert.equal('tide\n', out)
   end)

   it('names the rank that failed first, not one that quotes it', function()
      local code, _, err = run('run -n 4 -t 1 RECIPE', [[
         local tide = require 'tide'
         local comm = tide.comm.world()
         comm:barrier()
         if comm.rank == 3 then
            tide.default():interrupt()
            tide.default():interrupt()
         end
         if comm.rank == 1 then repeat until comm:failure() end
         local ok, e = pcall(comm.barrier, comm)
         local limit = tide.clock() + 0.3    -- the others end first
         while comm.rank == 3 and tide.clock() < limit do end
         error(e, 0)]])
      assert.equal(1, code)
      assert.matches('tide: rank 3 failed: .*rank 3 was interrupted', err)
   end)

   it('ends a rank by os.exit, whatever stands around it', function()
      local around = {
         'pcall(os.exit, 4) print "after"',
         'while true do pcall(os.exit, 4) end',
         'for _ = 1, 1e9 do pcall(pcall, os.exit, 4) end',
         'xpcall(function() os.exit(4) end, function(e) return e end) print "after"',
         'xpcall(function() os.exit(4) end, function() os.exit(5) end) print "after"',
         [[local co = coroutine.create(function() os.exit(4) end)
           coroutine.resume(co) print "after"]],
         'coroutine.wrap(function() pcall(os.exit, 4) print "after" end)() print "after"',
         'table.sort({ 3, 1, 2 }, function() pcall(os.exit, 4) return false end) print "after"',
         '("x"):gsub(".", function() pcall(os.exit, 4) end) print "after"',
         'pcall(require("tide").no_grad, os.exit, 4) print "after"',
         -- compiled loops before and around
         [[local n = 0
           local function step() n = n + 1 if n == 5000 then os.exit(4) end end
           while true do pcall(step) end]],
         [[local dist, n = require 'tide.comm', 0
           while true do pcall(function() n = n + 1 if n > 300 then os.exit(4) end end) end]],
         -- a finalizer, called by the collector in a compiled loop; a hook
         [[local p = newproxy(true)
           getmetatable(p).__gc = function() os.exit(4) end
           p = nil
           while true do local t = {} for i = 1, 1000 do t[i] = {} end end]],
         'debug.sethook(function() os.exit(4) end, "", 1) while true do end',
      }
      for _, recipe in ipairs(around) do
         local code, out, err = run('run -n 2 RECIPE', recipe)
         assert.equal(4, code, recipe .. err)
         assert.equal('', out, recipe)
         assert.matches('^tide: rank [01] ended the run with os.exit%(4%)\n$', err)
      end
      -- a code of 0 is an end, not a failure
      assert.equal(0, (run('run -n 2 RECIPE', 'pcall(os.exit, 0) error "after"')))
      assert.equal(0, (run('run -n 2 RECIPE', 'pcall(os.exit, true) error "after"')))
      -- the others are ended, in a collective that a pcall guards
      local code, out = run('run -n 3 RECIPE', [[
         local tide = require 'tide'
         local comm = tide.comm.world()
         if comm.rank == 1 then pcall(os.exit, 6) print 'after' end
         tide.comm.together(comm, 'spec', function() return 1 end)
         print 'after']])
      assert.equal(6, code)
      assert.equal('', out)
   end)

   it('writes the trace of a rank that os.exit has ended', function()
      local folder = os.tmpname()
      os.remove(folder)
      local code = run('run --trace ' .. folder .. ' -n 2 RECIPE',
         'require("tide").ones { 2 } pcall(os.exit, 4)')
      assert.equal(4, code)
      for rank = 0, 1 do
         local f = assert(io.open(('%s/rank%03d.json'):format(folder, rank)))
         f:close()
      end
      os.execute('rm -r ' .. folder)
   end)

   it('tells errors whose text fails', function()
      local bad = 'error(setmetatable({}, { __tostring = function() %s end }))'
      for text, want in pairs { ['error "inner"'] = 'whose __tostring failed: .*inner',
         ['error {}'] = 'whose __tostring failed: without text',
         ['return nil'] = 'whose __tostring gave no text',
         ['return {}'] = 'whose __tostring gave no text' } do
         for _, how in ipairs { 'run RECIPE', 'run -n 2 RECIPE' } do
            local code, _, err = run(how, bad:format(text))
            assert.equal(1, code)
            assert.is_truthy(err:find('error value of type table, ' .. want), err)
            assert.is_truthy(err:find('stack traceback', 1, true), err)
         end
      end
   end)

   it('tells mistakes of people in one line, the same of several ranks once', function()
      local mistake = 'require("tide.util.args").parse("x", {}, { "--nothing" })'
      for _, how in ipairs { 'run RECIPE', 'run -n 3 RECIPE' } do
         local code, _, err = run(how, mistake)
         assert.equal(2, code)
         assert.equal("tide: args: unknown option '--nothing'; known: --help, --config, "
            .. '--print-config (E_ARG)\n', err)
         code, _, err = run(how:gsub('run', 'run --traceback'), mistake)
         assert.equal(2, code)
         assert.is_true(err:find('raised from:\n.*main chunk') ~= nil, err)
      end
      local code, _, err = run('run -n 3 RECIPE', 'require("tide").ones({ 2 }):sum(7)')
      assert.equal(1, code)
      local _, traces = err:gsub('stack traceback', '')
      assert.equal(1, traces, err)
   end)

   it('refuses folders and words too many', function()
      for _, words in ipairs { 'run .', 'version extra', 'params extra' } do
         assert.equal(2, (run(words)), words)
      end
      assert.equal(0, (run '-h'))
      local _, out = run 'version'
      local _, times = out:gsub('tide ' .. tide.version:gsub('%.', '%%.'), '')
      assert.equal(1, times)
   end)

   it('reads a pipe once, for one rank', function()
      local code, out = run('run /dev/stdin <<E\nprint(7)\nE', '')
      assert.equal('7\n', out)
      assert.equal(0, code)
      for _, options in ipairs { '-n 2', '--max-restarts 1' } do
         local err
         code, out, err = run(('run %s /dev/stdin </dev/null'):format(options), '')
         assert.equal('', out)
         assert.equal(2, code)
         assert.matches("^tide: run: '/dev/stdin' is no regular file, [^\n]*\n$", err)
      end
   end)

   it('explains itself', function()
      for _, command in ipairs { 'help', 'help run', 'help repl', 'help errors', 'help ops',
         'version', 'params' } do
         local code, out = run(command)
         assert.equal(0, code, command)
         assert.is_true(#out > 40, command)
      end
      for _, row in ipairs { { 'run --help', 'help run' }, { 'run -h', 'help run' },
         { 'trace --help', 'help run' }, { 'repl --help', 'help repl' },
         { 'params --help', 'help params' } } do
         local code, out = run(row[1])
         local _, want = run(row[2])
         assert.equal(0, code, row[1])
         assert.equal(want, out)
      end
      assert.equal(2, (run 'help nothing'))
   end)

   -- Starts a recipe that prints "ready", then runs shell text that signals $p. `until_err TEXT` in
   -- it waits until the program has said TEXT: no step rests on how fast the machine is.
   local function signalled(how, recipe, script)
      local prelude = [[until_err() { n=0; until grep -q "$1" "$err" || [ $n -ge 600 ]; do
         n=$((n + 1)); sleep 0.1; done; }; ]]
      return run(('run %s RECIPE & p=$!; err=$(dirname RECIPE)/err; %s until_err ready; %s wait $p')
         :format(how, prelude, script), recipe)
   end

   it('stops on signals with 128 + signal', function()
      local code = signalled('', [[
         local tide = require 'tide'
         local x = tide.ones { 2 }
         io.stderr:write 'ready\n'
         while not tide.interrupted() do x = x:mul(1) end
      ]], 'kill -TERM $p;')
      assert.equal(143, code)
   end)

   it('stops at the next op on the second signal', function()
      -- signals closer than 0.3 s are one request: the second is sent well after the first was seen
      local code, _, err = signalled('-n 2', [[
         local x = require('tide').ones { 2 }
         io.stderr:write 'ready\n'
         while true do x = x:mul(1) end
      ]], 'kill -INT $p; until_err "after this step"; sleep 0.5; kill -INT $p;')
      assert.equal(130, code)
      assert.is_true(err:find('stopping at the next op', 1, true) ~= nil, err)
   end)
end)
