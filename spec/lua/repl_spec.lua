-- repl: sessions fed line by line, help and completion.

local complete = require 'tide.repl.complete'
local each = require 'tide.util.each'
local help = require 'tide.repl.help'
local repl = require 'tide.repl'

local function new(env)
   local out, bad = {}, {}
   local s = repl.session {
      env = env,
      write = function(t) out[#out + 1] = t end,
      fail = function(t) bad[#bad + 1] = t end,
   }
   return s, out, bad
end

describe('a session', function()
   it('prints expressions and runs statements', function()
      local s, out, bad = new()
      s:feed '1 + 1'
      s:feed '=2 + 2'
      s:feed 'x = 5'
      s:feed 'x, "a"'
      s:feed '{ b = 1, 2 }'
      assert.same({ '2\n', '4\n', '5\n', '"a"\n', '{ 2, b = 1 }\n' }, out)
      assert.same({}, bad)
      assert.is_nil(rawget(_G, 'x'))
   end)

   it('keeps locals, functions and the last value', function()
      local s, out = new()
      s:feed 'local a, b = 3, 4'
      s:feed 'a * b'
      s:feed '_ + 1'
      s:feed 'local function twice(v) return 2 * v end'
      s:feed 'twice(a)'
      s:feed 'local a = nil'
      s:feed 'b'
      assert.same({ '12\n', '13\n', '6\n', '4\n' }, out)
      assert.is_nil(s.env.__keep)
   end)

   it('asks for more until the input is complete', function()
      local s, out = new()
      assert.is_true(s:feed 'for i = 1, 2 do')
      assert.is_true(s:feed '  y = i')
      assert.is_false(s:feed 'end')
      s:feed 'y'
      assert.is_true(s:feed 'z = [[a')
      assert.is_false(s:feed 'b]]')
      s:feed 'z'
      assert.same({ '2\n', '"a\\nb"\n' }, out)
   end)

   -- Feeds lines; returns the session, its errors and how many sources it compiled.
   local function feed(lines)
      local s, _, bad = new()
      local compile, count = loadstring, 0
      rawset(_G, 'loadstring', function(...)
         count = count + 1
         return compile(...)
      end)
      local ok, e = pcall(function()
         for i, line in ipairs(lines) do assert(s:feed(line) == (i < #lines), i .. ': ' .. line) end
      end)
      rawset(_G, 'loadstring', compile)
      assert(ok, e)
      return s, bad, count
   end

   it('compiles a long statement a few times, not at each line', function()
      local lines = { 'x = {' }
      for i = 1, 1000 do
         lines[#lines + 1] = i .. ', -- ] } end'
         lines[#lines + 1] = '{ "}\\"end", [[ end } ]] .. \'{\' },'
         lines[#lines + 1] = '(function() if true then for _ = 1, 2 do return ' .. i .. ' end end'
         lines[#lines + 1] = ' repeat until 1 end)(), [==['
         lines[#lines + 1] = 'end ]] } ]==], "a\\'
         lines[#lines + 1] = 'b}", --[[ function'
         lines[#lines + 1] = ''
         lines[#lines + 1] = ']] #{},'
      end
      lines[#lines + 1] = '}'
      local s, bad, count = feed(lines)
      assert.same({}, bad)
      assert.equal(6000, #s.env.x)
      assert.same({ 1000, { '}"end', ' end } {' }, 1000, 'end ]] } ', 'a\nb}', 0 },
         { unpack(s.env.x, 5995) })
      assert.is_true(count < 500, count)
   end)

   it('finds an error in a long statement', function()
      local lines, s, _, bad = { 'x = {' }, new()
      for i = 1, 300 do lines[#lines + 1] = i == 200 and '1 1,' or '1,' end
      local more = true
      for i = 1, #lines do
         more = s:feed(lines[i])
         if not more then break end
      end
      assert.is_false(more)
      assert.matches("input:201:3:", bad[1], 1, true)
   end)

   it('runs at the end of the input what was complete', function()
      local s, out = new()
      for _ = 1, 100 do s:feed '(' end
      s:feed '1'
      for _ = 1, 100 do s:feed ')' end
      s:finish()
      assert.same({ '1\n' }, out)
   end)

   it('is silent after a semicolon and about nothing', function()
      local s, out = new()
      s:feed 'f = function() end'
      s:feed 'f()'
      s:feed '3;'
      s:feed ''
      s:feed '-- a comment'
      assert.same({}, out)
   end)

   it('shows an expression behind a semicolon', function()
      local s, out, bad = new()
      s:feed 'x = 4; x'
      s:feed '_ + 1'
      s:feed 'local y = 6; x = y; x, y'
      s:feed 'y'
      s:feed 's = "a;b"; s -- a comment'
      s:feed 'x = 1; x = 2;'
      assert.same({ '4\n', '5\n', '6\n', '6\n', '6\n', '"a;b"\n' }, out)
      assert.is_nil(s.env.__keep)
      assert.is_true(s:feed 'for i = 1, 3 do x = i; x')          -- the loop has no end yet
      assert.is_false(s:feed '= 8 end')
      assert.same({}, bad)
      s:feed 'x; error("b", 0)'
      s:feed 'x = 9; error("c", 0)'
      assert.equal(9, s.env.x)
      assert.equal('c\n', bad[#bad])
   end)

   it('puts the caret below the token that is wrong', function()
      local hint = require 'tide.repl.hint'
      for source, place in pairs {
         ['x = = 2'] = '1:5', ['f(1 2)'] = '1:5', ["'a' 'b' = 3"] = '1:5', ["x = 'ab"] = '1:5',
         ['x ... y'] = '1:3', ['a == = b'] = '1:6', ['a <= >= b'] = '1:6',
         ['a >= >= b'] = '1:6', ['a ~= ~= b'] = '1:6', ['a .. b .. .'] = '1:11',
         ['a = b .. .. c'] = '1:10', ['goto ::x'] = '1:6', ['-- c\nx x x'] = '2:3',
         ['--[[ a\nb ]] y y y'] = '2:8', ['--[x\n= 2'] = '2:1', ['x = [==[ ]] ]==] z z z'] = '1:20',
         ['[[a]] [[b]] = 1'] = '1:7', ['1.5.2'] = '1:1', ['x = .5 .5'] = '1:8',
         ['x = 0x1F 3'] = '1:10', ['é = = 1'] = '1:5', ["x = 'é' = 2"] = '1:9',
         ['x = "a\\"b" "c"'] = '1:12', ["x = 'a\nb' c"] = '1:5', ['@'] = '1:1',
         ['x = {1 2}'] = '1:8',
         ['for i = 1 2 do'] = '1:11', ['return return'] = '1:8', ['x =\n\n = 3'] = '3:2',
      } do
         local text = hint.syntax(source, 'M')
         assert.equal(place, text:match '^input:(%d+:%d+): ', source)
         assert.equal(tonumber(place:match '%d+$') + 3, #text:match '[^\n]*$', source)
      end
      assert.equal('M', hint.syntax('f(', 'M'))
   end)

   it('answers to a long line that is wrong at once', function()
      local s, _, bad = new()
      local began = os.clock()
      s:feed('x = {' .. ('1, '):rep(8000) .. '} = y')
      s:feed(('x = 1; '):rep(4000) .. ')')
      assert.is_true(s:feed('x = {' .. ('1, '):rep(8000)))
      s:feed '} )'
      assert.is_true(os.clock() - began < 2)
      assert.matches('^input:1:24008: ', bad[1])
      assert.matches('^input:1:28001: ', bad[2])
      assert.matches('^input:2:3: ', bad[3])
   end)

   it('reports errors and goes on', function()
      local s, out, bad = new()
      s:feed 'error "broken"'
      s:feed 'x ='
      s:finish()
      s:feed '1 1'
      s:feed 'nothing.at.all'
      s:feed 'error { 1 }'
      s:feed '7'
      assert.same({ '7\n' }, out)
      assert.equal(5, s.errors)
      assert.matches('broken', bad[1], 1, true)
      assert.matches("<eof>", bad[2], 1, true)
      assert.matches('attempt to index', bad[4], 1, true)
   end)

   it('drops unfinished input', function()
      local s, out = new()
      s:feed 'do'
      s:drop()
      s:feed '1'
      assert.same({ '1\n' }, out)
   end)

   it('knows help, exit and quit, unless they are names of the session', function()
      for _, word in ipairs { 'exit', 'quit', 'exit()', ' quit; ' } do
         local s = new()
         assert.is_false(s:feed(word))
         assert.is_true(s.ended)
      end
      local s, out, bad = new { quit = 5 }
      s:feed 'help'
      s:feed '?help'
      s:feed 'quit'
      assert.matches('Ctrl%-D', out[1])
      assert.equal(out[1], out[2])
      assert.equal('5\n', out[3])
      assert.is_nil(s.ended)
      assert.same({}, bad)
   end)

   it('survives a value whose text fails', function()
      local mute = setmetatable({}, { __tostring = function() error 'no text' end })
      local s, _, bad = new { v = mute }
      s:feed 'v'
      assert.matches('no text', bad[1], 1, true)
   end)
end)

describe('help', function()
   it('shows the comment above a function and its parameters', function()
      local text = help.text('help.comment_above', help.comment_above)
      assert.matches('help.comment_above(lines, at)', text, 1, true)
      assert.matches('Returns the comment lines directly above a line', text, 1, true)
      assert.matches('repl/help.lua:%d+', text)
   end)

   it('describes what calling a table does, and what is written elsewhere', function()
      local tide = require 'tide'
      for name, want in pairs { mesh = { 'mesh(axes, opts)', 'ranks that are left. Collective.' },
         recompute = { 'recompute(model, policy, opts)', 'Sets what a model recomputes' },
         plan = { 'plan(model, mesh, opts)' } } do
         for _, text in ipairs(want) do
            assert.matches(text, help.text(name, tide.parallel[name]), 1, true)
         end
      end
      assert.matches('gradcheck(fn, inputs, opts)', help.text('gradcheck', tide.gradcheck), 1, true)
      local cp = tide.parallel.cp
      for name, want in pairs { attach = 'attach(model, axis, opts)',
         make_cp_batch_and_ctx = 'make_cp_batch_and_ctx(', self_check = '(model, probe, opts)' } do
         local text = help.text(name, cp[name])
         assert.matches(want, text, 1, true)
         assert.matches('opts', text, 1, true)
         assert.is_nil(text:find('(...)', 1, true))
      end
      assert.matches('attach_cp_sdpa_hooks', table.concat(help.names(cp), ' '), 1, true)
   end)

   it('lists tables, lazy ones too, and answers a line', function()
      assert.matches('sampler', help.text('d', require 'tide.data'), 1, true)
      local s, out = new { data = require 'tide.data' }
      s:feed '?data.sampler'
      assert.matches('permutation', out[1], 1, true)
      s:feed '?nowhere'
      assert.equal("no 'nowhere' here\n", out[2])
      s:feed '?'
      assert.matches('Ctrl%-D', out[3])
      s:feed 'help(data.sampler)'
      assert.equal(out[1], out[4])
      s:feed '?tide.sort'
      assert.matches("no 'tide.sort' here; instead: x:topk(x:size(dim), dim)", out[5], 1, true)
      local names = table.concat(help.names(require 'tide'), ' ')
      for _, part in ipairs { 'nn', 'optim', 'data', 'train', 'dist', 'gradcheck' } do
         assert.matches(' ' .. part .. ' ', ' ' .. names .. ' ', 1, true)
      end
      names = table.concat(help.names(require('tide').nn.Linear), ' ')
      local _, forwards = names:gsub('%f[%w_]forward%f[^%w_]', '')
      assert.equal(1, forwards)                -- of the class, not again of the one it is made of
   end)
end)

describe('completion', function()
   local env = setmetatable({ tab = { alpha = 1, alps = { deep = 2 } }, tall = 1 },
      { __index = _G })

   it('names the nearest name where help is asked on one that is not there', function()
      local tide = require 'tide'
      local s, out = new { tide = tide, table_of_mine = 1, x = tide.ones { 2 } }
      for asked, want in pairs { ['tide.nn.Liner'] = 'tide.nn.Linear',
         ['tide.matmull'] = 'tide.matmul', ['x:summ'] = 'x:sum', matmull = 'matmul',
         table_of_min = 'table_of_mine', ['tide.optim.adamW'] = 'tide.optim.AdamW' } do
         s:feed('?' .. asked)
         assert.equal(("no '%s' here; did you mean '%s'?\n"):format(asked, want), out[#out])
      end
      s:feed '?x:sum'
      assert.matches('x:sum(', out[#out], 1, true)
   end)

   it('keeps its lists within 80 columns where it prints to no terminal', function()
      for _, text in ipairs { help.intro, require('tide.repl.command').list(),
         help.listing(require 'tide') } do
         for line in text:gmatch '[^\n]+' do assert.is_true(#line < 80, line) end
      end
   end)

   it('shows help on commands', function()
      local s, out = new {}
      s:feed '?:mem'
      assert.matches('^   :mem %[reset%]   bytes of tensors', out[1])
      s:feed '?:mm'
      assert.equal(":mm: no such command; did you mean ':mem'?\n", out[2])
   end)

   it('shows a part of the library as the list of its names', function()
      local s, out = new { tide = require 'tide' }
      s:feed 'tide.nn'
      assert.matches('RMSNorm', out[1], 1, true)
      assert.matches('Linear', out[1], 1, true)
      assert.matches('?name shows help', out[1], 1, true)
   end)

   it('completes behind a blank only what a call or a command takes', function()
      local with = { tide = require 'tide' }
      assert.same({}, (complete.matches(with, '')))
      assert.same({}, (complete.matches(with, 'x = ')))
      local list, word = complete.matches(with, 'tide.optim.AdamW(p, { ')
      assert.equal('', word)
      assert.matches('lr = ', table.concat(list, '|'), 1, true)
   end)

   it('completes names, fields and keywords', function()
      for before, want in each { ta = { 'tab', 'table', 'tall' },
         ['x = tab.al'] = { 'tab.alpha', 'tab.alps' }, ['tab.alps.'] = { 'tab.alps.deep' },
         ['x = y-tab.alph'] = { 'tab.alpha' }, whi = { 'while' }, ['none.x'] = {},
         ['%0,2 tal'] = { 'tall' }, ['?tab.alph'] = { 'tab.alpha' }, [':ti'] = { 'time ' } } do
         assert.same(want, (complete.matches(env, before)))
      end
      local list, word = complete.matches(env, 'x = tab.al')
      assert.equal(2, #list)
      assert.equal('tab.al', word)
   end)

   it('completes methods of tensors, and options of calls', function()
      local tide = require 'tide'
      local with = setmetatable({ tide = tide, x = tide.ones { 2 } }, { __index = _G })
      assert.same({ 'x:matmul' }, (complete.matches(with, 'y = x:matm')))
      local names = table.concat(complete.matches(with, 'tide.optim.AdamW(p, { l'), '|')
      assert.matches('lr = ', names, 1, true)
      names = table.concat(complete.matches(with, 's = tide.data.sampler.new { seq = 4, s'), '|')
      assert.matches('seed = ', names, 1, true)
      assert.is_nil(names:find('batch', 1, true))
   end)

   it('knows which quote is open', function()
      for _, before in ipairs { "x = 'spec/lua/repl_s", 'x = "spec/lua/repl_s',
         "x = 'a' .. 'spec/lua/repl_s", "x = 'a\\'' .. 'spec/lua/repl_s",
         [[x = 'a"' .. "spec/lua/repl_s]], [[x = "a'" .. 'spec/lua/repl_s]],
         "x = 1 - 2 .. 'spec/lua/repl_s", "x = '--' .. 'spec/lua/repl_s" } do
         assert.same({ 'spec/lua/repl_spec.lua' }, (complete.matches(env, before)), before)
      end
      for _, before in ipairs { "x = 'spec' .. spec/lua/repl_s", "-- 'spec/lua/repl_s",
         "x = 'a\\\\' .. spec/lua/repl_s", "x = 1 -- 'spec/lua/repl_s" } do
         assert.same({}, (complete.matches(env, before)), before)
      end
   end)

   it('completes files in strings and behind commands', function()
      local list, word = complete.matches(env, 'io.open("spec/lua/repl_s')
      assert.same({ 'spec/lua/repl_spec.lua' }, list)
      assert.equal('spec/lua/repl_s', word)
      assert.same({ 'load ' }, (complete.matches(env, ':lo')))
      assert.same({ 'time ', 'trace ' }, (complete.matches(env, ':t')))
      assert.same({ 'mem', 'mesh ' }, (complete.matches(env, ':me')))
      assert.same({ 'spec/lua/' }, (complete.matches(env, ':load spec/lu')))
      assert.same({}, (complete.matches(env, "x = 'no/such/folder/")))
   end)
end)

describe('input from a pipe', function()
   -- Output and exit status of a session fed with lines. program: the command that reads them.
   local function feed(lines, program)
      program = program or (os.getenv 'TIDE_LUAJIT' or 'luajit')
         .. ' -e "os.exit(require(\'tide.repl\').run(), true)"'
      local command = ("printf '%%s\\n' %s | timeout -k 5 120 %s 2>&1; "
         .. 'echo "status=$?"'):format(lines, program)
      local pipe = assert(io.popen(command))
      local text = pipe:read '*a'
      pipe:close()
      local body, status = text:match '^(.*)status=(%d+)%s*$'
      return body, tonumber(status)
   end

   it('prints values without prompts, tensors too', function()
      local out, status = feed "'x = tide.ones {2, 2}' 'x + 1' 'for i = 1, 2 do' 'y = i' 'end' 'y'"
      assert.equal(0, status)
      assert.equal('tensor f32 [2, 2] cpu\n   2  2\n   2  2\n2\n', out)
   end)

   it('ends at quit', function()
      local out, status = feed "'1' 'quit' '2'"
      assert.equal(0, status)
      assert.equal('1\n', out)
   end)

   it('keeps errors and output in their order, and survives errors whose text fails', function()
      local out, status = feed(("'print(1)' 'error \"two\"' '3' 'error(setmetatable({}, "
         .. "{ __tostring = function() error \"inner\" end }))' 'print(4)'"))
      assert.equal(1, status)
      assert.is_truthy(out:find('^1\n[^\n]*two.*\n3\n.*__tostring failed: [^\n]*inner.*\n4\n$'),
         out)
   end)

   it('goes on after an error and says so in its status', function()
      local out, status = feed "'tide.ones(-1)' 'x = (' '3)' 'x'"
      assert.equal(1, status)
      assert.matches('tide.ones: ', out, 1, true)
      assert.matches('3\n$', out)
   end)

   it('that is closed is an error of one line', function()
      local out, status = feed('', 'sh -c "' .. (os.getenv 'TIDE_BUILD' or 'build')
         .. '/tide repl <&-"')
      assert.equal('tide: repl: cannot read the standard input: Bad file descriptor\n', out)
      assert.equal(1, status)
   end)

   it('has its status as exit code of the program', function()
      local repl_of = (os.getenv 'TIDE_BUILD' or 'build') .. '/tide repl'
      local out, status = feed("'1 + 1' 'error \"two\"' '3'", repl_of)
      assert.equal(1, status)
      assert.matches('^2\n.*two.*\n3\n$', out)
      out, status = feed("'1 + 1'", repl_of)
      assert.equal(0, status)
      assert.equal('2\n', out)
   end)
end)
