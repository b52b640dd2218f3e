-- What commands, help and completion of a prompt write, against tables and plain formulas.

local chart = require 'tide.repl.chart'
local command = require 'tide.repl.command'
local complete = require 'tide.repl.complete'
local each = require 'tide.util.each'
local fs = require 'tide.util.fs'
local help = require 'tide.repl.help'
local hint = require 'tide.repl.hint'
local merge = require 'tide.repl.merge'
local session = require 'tide.repl.session'
local signature = require 'tide.util.signature'
local show = require 'tide.repl.show'
local stored = require 'tide.repl.stored'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'
local write = require('spec.support.files').write

-- A session with names of its own, and what it writes for a line; errors come after it.
local function new(env)
   local out = {}
   env = env or {}
   env.tide = tide
   local s = session.new { env = env, write = function(t) out[#out + 1] = t end,
      fail = function(t) out[#out + 1] = t end }
   return s, function(line)
      out = {}
      s:feed(line)
      return table.concat(out)
   end
end

-- fn() while t[name] is another value.
local function with(t, name, value, fn)
   local before = rawget(t, name)
   rawset(t, name, value)
   local ok, e = pcall(fn)
   rawset(t, name, before)
   assert(ok, e)
end

describe('a command', function()
   it(':time writes seconds in their unit', function()
      local _, say = new()
      for text, s in each { ['500 us'] = 5e-4, ['999 us'] = 9.99e-4, ['1 ms'] = 1e-3,
         ['250 ms'] = 0.25, ['1 s'] = 1, ['2.5 s'] = 2.5, ['0 us'] = 0 } do
         local now = 0
         with(tide, 'clock', function()
            now = now + s
            return now - s
         end, function() assert.equal(text .. '\n', say ':time x = 1') end)
      end
   end)

   it(':mem names ten tensors, the largest first, and resets the peak where it is told', function()
      for seed = 1, 5 do
         local env, want = {}, {}
         for i = 1, 4 + seed do
            local dtype = (i + seed) % 2 == 0 and 'f64' or 'u8'
            local n = (1 + (i * 7 + seed) % 5) * (dtype == 'u8' and 9 or 1)
            local name = ('t%02d'):format((i * 11 + seed) % 23)
            env[name] = tide.zeros({ n }, { dtype = dtype })
            want[i] = { name, n * tide.dtype_size(dtype), ('%s [%d]'):format(dtype, n) }
         end
         for i = 1, 3 do
            env['s' .. i] = tide.zeros({ 1 }, { dtype = 'u8' })
            want[#want + 1] = { 's' .. i, 1, 'u8 [1]' }
         end
         table.sort(want, function(a, b) return a[2] > b[2] or a[2] == b[2] and a[1] < b[1] end)
         local lines = {}
         for i = 1, math.min(#want, 10) do
            lines[i] = ('   %-12s %s cpu'):format(want[i][1], want[i][3])
         end
         local _, say = new(env)
         assert.equal(table.concat(lines, '\n') .. '\n', say(':mem'):match '\nLua[^\n]*\n(.*)$')
      end
      for n = 3, 10 do                                       -- of one size: by name
         local env, want = {}, {}
         for i = 1, n do
            env[('n%02d'):format(i * 7 % 11)] = tide.zeros { 1 }
            want[i] = ('n%02d'):format(i * 7 % 11)
         end
         table.sort(want)
         local got = {}
         local _, mem = new(env)
         for name in mem(':mem'):gmatch '\n   (n%d+)' do got[#got + 1] = name end
         assert.same(want, got)
      end
      local _, say = new()
      do local big = tide.zeros { 1e6 }; big:release() end
      local context = tide.default()
      say ':mem'
      assert.is_true(context:stats().peak > 4e6)
      local number, unit = say(':mem reset'):match '\nLua +([%d.]+) (%a+)\n'
      assert.is_true(context:stats().peak < 4e6)
      local bytes = number * 1024 ^ ({ KiB = 1, MiB = 2 })[unit]
      assert.is_true(math.abs(bytes / (collectgarbage 'count' * 1024) - 1) < 0.5)
   end)

   it(':plot takes numbers, tensors of one dim and tables of these, by name', function()
      local env = { many = {} }
      for i = 1, 7 do env.many[('n%d'):format(i * 3 % 7)] = { i, 2, 3 } end
      local _, say = new(env)
      local names = {}
      for name in say(':plot many'):gmatch '\n +%S (n%d)' do names[#names + 1] = name end
      assert.same({ 'n0', 'n1', 'n2', 'n3', 'n4', 'n5', 'n6' }, names)
      for _, line in ipairs { ':plot 5LL', ':plot tide.ones { 2, 2 }', ':plot {}', ':plot 3',
         ':plot { 1, "a" }', ':plot { a = { 1 }, b = 2 }' } do
         assert.matches('^:plot: expected a list of numbers, a tensor of one dim', say(line))
      end
   end)

   it(':trace sums the spans since it is on, the longest fifteen', function()
      local s, say = new { x = tide.ones { 4, 4 } }
      say ':trace on'
      assert.equal('   (no spans yet; :trace on records them)\n', say ':trace')
      for _, op in ipairs { 'exp', 'log', 'sqrt', 'neg', 'abs', 'relu', 'sigmoid', 'tanh', 'silu',
         'gelu', 'sin', 'cos', 'square', 'sum', 'mean', 'softmax', 'matmul', 'sum' } do
         say((op == 'matmul' and 'x:matmul(x)' or op == 'softmax' and 'x:softmax(1)'
            or ('x:%s()'):format(op)) .. ';')
      end
      local path = os.tmpname()
      tide.default():trace_dump(path)
      local rows, list, first = {}, {}, math.huge
      for _, e in ipairs(fs.read_json('spec', path).traceEvents) do
         if e.dur and e.ts >= s.traced then
            local name = e.name:gsub('#%d+', '')
            if not rows[name] then
               rows[name] = { name = name, count = 0, total = 0 }
               list[#list + 1] = rows[name]
            end
            rows[name].count, rows[name].total = rows[name].count + 1, rows[name].total + e.dur
            first = math.min(first, e.ts)
         end
      end
      os.remove(path)
      table.sort(list, function(a, b)
         return a.total > b.total or a.total == b.total and a.name < b.name
      end)
      assert.is_true(#list > 15)
      local lines = {}
      for i = 1, 15 do
         local s_ = list[i].total * 1e-6
         lines[i] = ('   %-28s %6d  %10s\n'):format(list[i].name, list[i].count,
            s_ < 1e-3 and ('%.3g us'):format(s_ * 1e6) or ('%.3g ms'):format(s_ * 1e3))
      end
      lines[16] = ('   ... %d more\n'):format(#list - 15)
      assert.equal(table.concat(lines), say ':trace')
      s.traced = first                                       -- a span that begins then counts
      assert.equal(table.concat(lines), say ':trace off')
      tide.default():param('trace', 0)
   end)

   it('reads the file that all ranks share where a rank has none of its own', function()
      tmp.with(function(dir)
         local path = dir .. '/s.tide'
         local alone, say_alone = new { x = 5 }
         say_alone(':save ' .. path)
         assert.equal(5, alone.env.x)
         local many, say = new { rank = 1, size = 2 }
         assert.equal('loaded x\n', say(':load ' .. path))
         assert.equal(5, many.env.x)
         many.env.x = 6
         assert.matches('^saved 1 in .*s.tide.r1\n$', say(':save ' .. path .. ' x'))
         many.env.x = 7
         say(':load ' .. path)
         assert.equal(6, many.env.x)
         assert.same({ path, path .. '.r1', dir .. '/a.r1.svg' }, { stored.path(path, { size = 1 }),
            stored.path(path, { size = 2, rank = 1 }), stored.path(dir .. '/a.svg',
               { size = 2, rank = 1 }) })
      end)
   end)
end)

describe('a session', function()
   it('keeps the last value, and a command runs what ends with a semicolon', function()
      local s, say = new { help = 3 }
      for _, row in ipairs { { '5', '5\n' }, { 'x = 1', '' }, { '_', '5\n' }, { '7;', '' },
         { '_', '7\n' }, { 'help(3)', '' } } do
         local out = say(row[1])
         assert.is_true(row[1] == 'help(3)' and out:find 'attempt to call' ~= nil
            or out == row[2], out)
      end
      assert.matches('^%S+ [um]?s\n$', say ':time 8;')
      assert.matches('input: unfinished', say ':plot f(', 1, true)
      assert.matches('input: input:1:3: ', say ':plot 1 1', 1, true)
      assert.equal(0, s.env._ - 8)
      assert.same({ true, true, true, false, false }, { session.is_command 'help(x)',
         session.is_command ' :mem', session.is_command '?x', session.is_command 'x',
         session.is_command ':: a ::' })
   end)

   it('shows where a line failed, and reports to the host while one runs', function()
      local told = {}
      local function as_line(fn)
         told[#told + 1] = true
         local r = { fn() }
         told[#told + 1] = false
         return unpack(r)
      end
      with(package.loaded, 'tide.host', { line = as_line },
         function()
            local _, say = new()
            for _, line in ipairs { 'function f() error "deep" end', 'function g() f(); x = 1 end',
               'function h() g(); x = 1 end' } do say(line) end
            local lines = {}
            for line in say('h(); x = 1'):gmatch '[^\n]+' do lines[#lines + 1] = line end
            assert.equal('input:1: deep', lines[1])
            assert.equal('stack traceback:', lines[2])
            local text = table.concat(lines, '\n')
            for _, name in ipairs { "'f'", "'g'", "'h'" } do assert.matches(name, text, 1, true) end
            assert.is_nil(text:find('session.lua', 1, true))
            assert.equal('input:1: flat\n', say('error "flat"'))
         end)
      for i = 1, #told, 2 do assert.same({ true, false }, { told[i], told[i + 1] }) end
      assert.is_true(#told >= 10)
   end)

   it('finds help among names of tide where a name stands alone', function()
      local _, say = new { tab = { one = 1 }, x = tide.ones { 1 } }
      assert.matches('^matmul%(', say '?matmul')
      assert.equal("no 'tab.matmull' here\n", say '?tab.matmull')
      assert.equal("no 'x:matmull' here; did you mean 'x:matmul'?\n", say '?x:matmull')
      assert.equal('x:shape', (say('?x.shape'):gsub('^x%.shape = table.*\n$', 'x:shape')
         :gsub('^x%.shape:.*\n$', 'x:shape')))
   end)

   it('saves tensors and plain values, and names the rest', function()
      tmp.with(function(dir)
         local _, say = new { a = 'text', b = 5LL, c = setmetatable({}, {}), d = print, e = { 1 },
            f = tide.ones { 1 }, g = false }
         assert.equal(('saved 4 in %s/s; not kept (neither tensor nor plain): b, c, d\n'):format(
            dir), say(':save ' .. dir .. '/s'))
         local s, say_two = new()
         assert.equal('loaded a, e, f, g\n', say_two(':load ' .. dir .. '/s'))
         assert.same({ 'text', { 1 }, { 1 }, false }, { s.env.a, s.env.e, s.env.f:tolist(),
            s.env.g })
      end)
   end)
end)

describe('lines of ranks', function()
   it('stay together by rank where none is shared, and wait for the others so long', function()
      assert.equal('[r0] a\n[r0] b\n[r1] c\n[r1] d\n', merge.text({ [0] = 'a\nb\n', 'c\nd\n' },
         { 0, 1 }))
      for given, patience in each { [0.3] = 0.3, [2] = 2 } do
         local out, now = {}, 0
         local s = merge.stream({ 0, 1 }, function(t) out[#out + 1] = t end,
            function() return now end, given ~= 0.3 and given or nil)
         s:add(0, 'x\n')
         now = patience - 0.01
         s:flush()
         assert.same({}, out)
         now = patience
         s:flush()
         assert.same({ '[r0] x\n' }, out)
      end
   end)
end)

describe('a chart', function()
   it('has a block for each number, by its place between the least and the greatest', function()
      local levels = { '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█' }
      for seed = 1, 20 do
         local values, lo, hi = {}, math.huge, -math.huge
         for i = 1, 3 + seed do
            values[i] = i == 2 and 0 / 0 or (i * 37 + seed * 11) % 29 / 4
            if i ~= 2 then lo, hi = math.min(lo, values[i]), math.max(hi, values[i]) end
         end
         local rows, lines = 1 + seed % 4, {}
         for r = rows, 1, -1 do
            local text = ''
            for _, v in ipairs(values) do
               local height = v == v and 1 + math.floor((v - lo) / (hi - lo) * (8 * rows - 1) + 0.5)
                  or 0
               local part = math.min(8, height - 8 * (r - 1))
               text = text .. (part < 1 and ' ' or levels[part])
            end
            local label = r == rows and ('%.4g'):format(hi) or r == 1 and ('%.4g'):format(lo) or ''
            lines[#lines + 1] = ('%10s %s%s\n'):format(label, label == '' and '│' or '┤',
               (text:gsub(' +$', '')))
         end
         assert.equal(table.concat(lines), chart.text(values, 72, rows))
      end
   end)
end)

describe('a tensor', function()
   it('is scaled below 0.01 and from 100000 on, and counts its rows from the ends', function()
      local function heading(list)
         return show.text(tide.tensor(list, { dtype = 'f64' })):match '^[^\n]*'
      end
      for text, list in each { [''] = { 99999.5, 0.5 }, [', times 1e+05'] = { 1e5, 0.5 },
         [', times 1e-03'] = { 0.0099, 0 } } do
         assert.equal('tensor f64 [2] cpu' .. text, heading(list))
      end
      assert.equal('tensor f64 [2] cpu', heading { 0.01, 0 })
      assert.equal('tensor f64 [2] cpu', heading { 0, 0 })
      assert.matches('inf  %-inf$', show.text(tide.tensor { 1 / 0, -1 / 0 }))
      for n, want in each { [12] = '1 2 3 4 5 6 7 8 9 10 11 12', [13] = '1 2 3 4 10 11 12 13',
         [20] = '1 2 3 4 17 18 19 20' } do
         local at = {}
         for i in show.text(tide.zeros { n, 1, 2 }):gmatch '%[(%d+), %.%.%]' do at[#at + 1] = i end
         assert.equal(want, table.concat(at, ' '))
      end
   end)
end)

describe('help', function()
   it('reads the comment above a line, up to a rule, an empty line or the first line', function()
      local lines = { '-- a', '--b', 'x = 1', '   -- ---- rule ----', '   -- c', '   --   d', '' }
      for at, want in ipairs { {}, { 'a' }, { 'a', 'b' }, {}, {}, { 'c' }, { 'c', '  d' }, {} } do
         assert.same(want, help.comment_above(lines, at), at)
      end
   end)

   it('shows parameters and what a function declares', function()
      local t = {}
      function t.f(a, b, opts) return a, b, opts end
      function t:m(x, ...) return self, x, ... end
      signature.doors('spec.prompt', t, { f = { 'a: integer >= 1 -- how many; b: number? = 2',
         opts = { 'c: boolean = true -- whether', 'd: string?' } } })
      assert.equal('f(a, b, opts)', help.signature('f', t.f))
      assert.equal('m(x, ...)', help.signature('m', t.m))
      assert.equal('print(...)', help.signature('print', print))
      local text = help.text('f', t.f)
      for _, want in ipairs { 'f(a, b, opts)\n', '\n      a: integer >= 1  how many\n',
         '\n      b: number? = 2\n', '\n      opts.c: boolean = true  whether\n',
         '\n      opts.d: string?\n', '\n   (spec/lua/prompt_line_spec.lua:' } do
         assert.matches(want, text, 1, true)
      end
   end)

   it('lists names in lines that fit, those of the class among them', function()
      local Base = { alpha = 1, beta = 2 }
      Base.__index = Base
      local Derived = setmetatable({ gamma = 3, beta = 4 }, Base)
      Derived.__index = Derived
      local object = setmetatable({ own = 1, _hidden = 2, [3] = 4 }, Derived)
      assert.same({ 'alpha', 'beta', 'gamma', 'own' }, help.names(object))
      for columns = 20, 60 do
         local lines, line, names = {}, '  ', {}
         for i = 1, 12 do names[('n'):rep(1 + i * 5 % 7) .. ('%02d'):format(i)] = true end
         with(help, 'columns', function() return columns end, function()
            for _, k in ipairs(help.names(names)) do
               if #line + 1 + #k > columns - 1 then lines[#lines + 1], line = line, '  ' end
               line = line .. ' ' .. k
            end
            lines[#lines + 1] = line
            assert.equal(table.concat(lines, '\n'), help.listing(names))
         end)
      end
      assert.matches('^AdamW:\nAdamW%(', help.text('AdamW', tide.optim.AdamW))
      assert.equal('x = 5', help.text('x', 5))
   end)
end)

describe('a message', function()
   it('names what was probably meant among globals, fields and methods', function()
      local env = { tab = { alpha = 1 }, x = tide.ones { 2 } }
      for message, want in each {
         ["attempt to call global 'prnt' (a nil value)"] = 'print',
         ["attempt to call global 'asert' (a nil value)"] = 'assert',
         ["attempt to index field 'alhpa' (a nil value)"] = 'tab.alpha',
         ["attempt to call method 'alhpa' (a nil value)"] = 'tab:alpha' } do
         local source = message:find 'field' and 'y = tab.alhpa' or 'y = tab:alhpa()'
         assert.equal(want, hint.name(message, source, env))
      end
      assert.is_nil(hint.name('another message', 'x', env))
      assert.is_nil(hint.name("attempt to call local 'prnt' (a nil value)", 'prnt()', env))
   end)
end)

describe('completion', function()
   it('of an empty word offers all names, behind what is no blank', function()
      local all = complete.matches({ mine = 1 }, 'f(')
      local has = {}
      for _, name in ipairs(all) do has[name] = true end
      assert.is_true(has.mine and has.print and has['while'] and has['and'] and #all > 40)
      assert.same({}, (complete.matches({ mine = 1 }, 'f( ')))
      assert.same({ 'print' }, (complete.matches({}, 'x = pri')))
      assert.same({ 'repeat', 'require', 'return' }, (complete.matches({}, 're')))
   end)

   it('of options gives way to names where no option begins so', function()
      local env = { tide = tide, lrate = 1, zebra = 2 }
      local function of(before) return (complete.matches(env, before)) end
      assert.same({ 'zebra' }, of 'tide.optim.AdamW(p, { ze')
      assert.same({ 'lr = ' }, of 'tide.optim.AdamW(p, { lr')
      assert.same({ 'seed = ', 'seq = ', 'size = ' }, of 'tide.data.sampler { s')
      assert.same({ 'comm = ', 'host_size = ' }, of 'tide.parallel.mesh(axes, { ')
      assert.same({ 'seed = ', 'seq = ', 'size = ' }, of 'tide.data.sampler.new { batch = 1; s')
   end)

   it('of a file follows folders, the home folder too, and hides what begins with a dot', function()
      tmp.with(function(dir)
         tmp.mkdir(dir .. '/sub')
         tmp.mkdir(dir .. '/sub/deep')
         write(dir .. '/sub/.hidden', '')
         write(dir .. '/sub/note', '')
         local function of(before) return (complete.matches({}, before)) end
         assert.same({ dir .. '/sub/' }, of(':load ' .. dir .. '/s'))
         assert.same({ dir .. '/sub/deep/', dir .. '/sub/note' }, of(':load ' .. dir .. '/sub/'))
         assert.same({ dir .. '/sub/.hidden' }, of('x = "' .. dir .. '/sub/.'))
         assert.same({ dir .. '/sub/note' }, of(':plot x to ' .. dir .. '/sub/n'))
         with(os, 'getenv', function() return dir end, function()
            assert.same({ '~/sub/' }, of ':load ~/')
            assert.same({ '~/sub/deep/', '~/sub/note' }, of ':load ~/sub/')
         end)
         with(os, 'getenv', function() end, function() assert.same({}, of ':load ~/sub/') end)
      end)
   end)

   it('knows that a quote at the end opens or ends a text', function()
      local function of(before) return (complete.matches({}, before)) end
      local has = {}
      for _, name in ipairs(of 'x = "') do has[name] = true end
      assert.is_true(has['spec/'] and has['README.md'])
      assert.is_true(#of 'x = "spec/lua/prompt_line_s"' > 40)
   end)

   it('begins commands with a blank behind those that need more', function()
      assert.same({ 'help', 'time ', 'mem', 'plot ', 'save ', 'load ', 'mesh ', 'plan ', 'trace ' },
         command.beginnings())
   end)
end)
