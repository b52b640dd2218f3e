-- The prompt at a terminal.

local files = require 'spec.support.files'
local pty = require 'spec.support.pty'

local program = (os.getenv 'TIDE_BUILD' or 'build') .. '/tide'
-- What the editor writes when it begins to read, and when it has read.
local ready, done = '\27[?2004h', '\27[?2004l'
local home = os.tmpname()
os.remove(home)
os.execute('mkdir ' .. home)
teardown(function() os.execute('rm -r ' .. home) end)

local function start(...)
   local p = pty.start({ program, 'repl', ... }, { HOME = home, TERM = 'xterm' })
   p:wait(ready)
   return p
end

describe('tide repl at a terminal, its output in a file,', function()
   for _, options in ipairs { '', ' -n 2' } do
      it('asks for the rest of what is unfinished:' .. options, function()
         local path = home .. '/out'
         local p = pty.start({ 'sh', '-c', ('%s repl%s >%s'):format(program, options, path) },
            { HOME = home })
         p:send 'for i = 1, 2 do\nend\nexit\n'
         assert.equal(0, p:finish())
         assert.matches('%)\ntide>    .. tide> $', files.read(path))
      end)
   end
end)

for _, options in ipairs { {}, { '-n', '3' } } do
   local name = 'tide repl ' .. table.concat(options, ' ')
   describe(name .. ' at a terminal', function()
      it('edits, completes, keeps UTF-8, and ends at Ctrl-D', function()
         local p = start(unpack(options))
         p:send 'x = "héé" .. 41\r'
         p:wait(ready)
         p:send 'x\r'
         p:wait(done .. '"héé41"')
         p:wait(ready)
         p:send 'tide.ones{2}:numel() + tide.vers\t;\r'
         p:wait 'tide.version'
         p:wait(ready)
         p:send 'for i = 1, 2 do\rn = i\rend\r'
         p:wait '   .. '
         p:wait(ready)
         p:send '\27[200~m = 1\nfor i = 1, 3 do\n\nm = m + i\nend\n:time m = m * 2\nm\27[201~\r'
         p:wait(done)
         p:wait '\n14\r\n'
         p:wait(ready)
         p:send 'n * 21\r'
         p:wait(done .. '42\r\n')
         p:wait(ready)
         p:send '\4'
         assert.equal(0, p:finish())
         assert.matches('for i = 1, 2 do\\nn = i\\nend\nm = 1\\nfor [^\n]*\nn %* 21\n$',
            files.read(home .. '/.tide_history'))
      end)

      it('goes on after any number of Ctrl-C', function()
         local p = start(unpack(options))
         p:send 'kept = 7\r'
         p:wait(ready)
         for _ = 1, 4 do
            p:send 'half a li\3'
            p:wait(ready)
            p:send 'print "begun" while true do end\r'
            p:wait(done .. 'begun')
            p:send '\3'
            p:wait 'interrupted'
            p:wait(ready)
         end
         p:send '\27[A\3'
         p:wait 'while true'
         p:wait(ready)
         p:send 'kept * 6\r'
         p:wait(done .. '42\r\n')
         p:wait(ready)
         p:send 'quit\r'
         assert.equal(0, p:finish())
      end)

      it('ends a line that catches the first Ctrl-C at the second one', function()
         local p = start(unpack(options))
         for _, line in ipairs {
            'while true do pcall(function() while true do end end) end',
            'while true do xpcall(function() while true do end end, print) end',
            'local function f() while true do end end '
               .. 'while true do coroutine.wrap(function() pcall(f) end)() end',
         } do
            p:send('print "begun" ' .. line .. '\r')
            p:wait(done .. 'begun')
            p:send '\3'
            p:wait '^C'
            os.execute 'sleep 0.5' -- a signal that is pending takes up the next
            p:send '\3'
            p:wait 'interrupted'
            p:wait(ready)
         end
         p:send 'pcall(function() kept = 5 end); kept * 6\r'
         p:wait(done .. '30\r\n')
         p:wait(ready)
         p:send '\4'
         assert.equal(0, p:finish())
      end)

      it('ends at SIGTERM, with the terminal as it was', function()
         local p = start(unpack(options))
         p:signal(15)
         assert.equal(128 + 15, p:finish())
         p = start(unpack(options))
         p:send 'while true do end\r'
         p:wait(done)
         p:signal(15)
         assert.equal(128 + 15, p:finish())
      end)
   end)
end

describe('tide repl at a terminal that cannot move its cursor', function()
   it('writes its prompts only', function()
      local p = pty.start({ program, 'repl' }, { HOME = home, TERM = 'dumb' })
      p:wait 'tide> '
      p:send 'for i = 1, 2 do\n'
      p:wait '   .. '
      p:send 'print(i) end\n'
      assert.is_nil(p:wait('2\r\ntide> '):find('\27', 1, true))
      p:send '\3'
      p:wait '^C'
      os.execute 'sleep 0.1'
      p:send '(tide.ones { 2 } + 5):sum():item()\n'
      p:wait '12\r\ntide> '
      p:send '\4'
      assert.equal(0, p:finish())
   end)
end)
