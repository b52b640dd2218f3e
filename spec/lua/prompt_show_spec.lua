-- What a prompt shows: tensors, tables, charts, and what it adds to messages.

local chart = require 'tide.repl.chart'
local each = require 'tide.util.each'
local hint = require 'tide.repl.hint'
local session = require 'tide.repl.session'
local show = require 'tide.repl.show'
local tide = require 'tide'

local function shown(...) return table.concat({ ... }, '\n') end

describe('a tensor', function()
   it('is shown in aligned rows', function()
      assert.equal(shown('tensor f32 [2, 3] cpu', '     1.5000   -2.0000    0.2500',
         '   100.0000    0.0000   -0.0010'),
         show.text(tide.tensor { { 1.5, -2, 0.25 }, { 100, 0, -0.001 } }))
      assert.equal(shown('tensor i32 [2] cpu', '       7  -1234'),
         show.text(tide.tensor({ 7, -1234 }, { dtype = 'i32' })))
      assert.equal(shown('tensor bool [2] cpu', '    true  false'),
         show.text(tide.tensor { true, false }))
   end)

   it('has one scale for all its numbers', function()
      assert.equal(shown('tensor f32 [2] cpu, times 1e+06', '    1.5000  -0.0200'),
         show.text(tide.tensor { 1.5e6 + 0.5, -2e4 }))
      assert.equal(shown('tensor f64 [2] cpu, times 1e-07', '   4.0000  0.1000'),
         show.text(tide.tensor({ 4e-7, 1e-8 }, { dtype = 'f64' })))
      assert.equal(shown('tensor f32 [4] cpu', '      inf     nan    -inf  1.5000'),
         show.text(tide.tensor { 1 / 0, 0 / 0, -1 / 0, 1.5 }))
   end)

   it('is cut in the middle, to the width of the terminal', function()
      local text = show.text(tide.arange(100 * 1000):reshape { 100, 1000 }, 60)
      assert.matches('\n       0      1      2  ...    997    998    999\n', text, 1, true)
      assert.matches('\n   ...\n', text, 1, true)
      assert.matches('99999$', text)
      local count = 0
      for line in text:gmatch '[^\n]+' do
         assert.is_true(#line <= 60, line)
         count = count + 1
      end
      assert.equal(10, count)
   end)

   it('shows the ends of each dim, by the number of dims', function()
      -- The numbers that are shown of a range of a shape, and the number of dots.
      local function numbers(shape, columns)
         local n = 1
         for _, size in ipairs(shape) do n = n * size end
         local text = show.text(tide.arange(n, { dtype = 'i32' }):reshape(unpack(shape)), columns)
         local list = {}
         for line in text:gmatch '\n   (%s*%d[^\n]*)' do
            for v in line:gmatch '%d+' do list[#list + 1] = tonumber(v) end
         end
         return list, select(2, text:gsub('%.%.%.', ''))
      end
      for ndim, edge in ipairs { false, 4, 4, 2, 1 } do
         for n = 1, edge and 3 * edge + 2 or 0 do
            for dim = 1, ndim - 1 do
               local shape, want, step = {}, {}, 2
               for d = 1, ndim do shape[d] = d == ndim and 2 or d == dim and n or 1 end
               for i = 0, n - 1 do
                  if n <= 3 * edge or i < edge or i >= n - edge then
                     want[#want + 1], want[#want + 2] = i * step, i * step + 1
                  end
               end
               local got, dots = numbers(shape)
               assert.same(want, got)
               assert.equal(n > 3 * edge and 1 or 0, dots)
            end
         end
      end
      for n, shown_ in each { [63] = 63, [64] = 64, [65] = 64, [100] = 64 } do
         local got, dots = numbers({ n }, 2000)
         assert.equal(shown_, #got)
         assert.equal(n - 1, got[#got])
         assert.equal(n > 64 and 1 or 0, dots)
      end
      for columns = 20, 60 do                  -- two characters a number, and two between
         local got = numbers({ 16 }, columns)
         local room = math.floor((columns - 4) / 4)
         assert.equal(16 <= room and 16 or room - 1 - (room - 1) % 2, #got, columns)
         assert.same({ 0, 15 }, { got[1], got[#got] })
      end
   end)

   it('scales numbers that are large or small, and only these', function()
      local function of(...)
         return show.text(tide.tensor({ ... }, { dtype = 'f64' })):match '%] cpu(.*)$'
      end
      assert.equal('\n   99999.5000', of(99999.5))
      assert.equal(', times 1e+05\n   1.0000', of(100000.25))
      assert.equal('\n   0.0100', of(0.01))
      assert.equal(', times 1e-03\n   9.9000', of(0.0099))
      assert.equal('\n   0  0', of(0, 0))
      assert.equal('\n   999999999', of(999999999))
      assert.equal(', times 1e+09\n   1.0000', of(1e9))
      assert.equal('\n   -2', of(-2))
      assert.equal(', times 1e+05\n   -1.0000', of(-100000.25))
   end)

   it('is cut only where its row is longer than the terminal', function()
      local all = '   0  1  2  3  4  5  6  7  8  9'
      assert.equal(shown('tensor f32 [10] cpu', all), show.text(tide.arange(10), 34))
      assert.matches('\n   0  1  2  3  ...  6  7  8  9$', show.text(tide.arange(10), 33))
   end)

   it('of more dims has a heading for each matrix', function()
      local text = show.text(tide.arange(12):reshape { 3, 2, 2 })
      assert.equal(shown('tensor f32 [3, 2, 2] cpu', '  [1, ..]', '    0   1', '    2   3',
         '  [2, ..]', '    4   5', '    6   7', '  [3, ..]', '    8   9', '   10  11'), text)
      text = show.text(tide.zeros { 20, 20, 3, 3 })
      assert.matches('  [20, 20, ..]', text, 1, true)
      assert.is_nil(text:find('[3, ', 1, true))
   end)

   it('of any size and dtype has a text, and keeps its gradient', function()
      math.randomseed(3)
      for _, dtype in ipairs { 'f32', 'f64', 'bf16', 'f16', 'i32', 'i64', 'u8', 'bool' } do
         for _ = 1, 6 do
            local shape = {}
            for d = 1, math.random(0, 5) do shape[d] = math.random(0, 15) end
            local text = show.text(tide.ones(shape, { dtype = dtype }), math.random(20, 120))
            assert.matches('^tensor ' .. dtype, text)
         end
      end
      local x = tide.randn({ 40, 40 }, { requires_grad = true })
      local y = (x * 2):sum()
      show.text(x)
      y:backward()
      assert.equal(2, x.grad:tolist()[1][1])
      assert.equal('tensor f32 [2] null', show.text(tide.ones({ 2 }, { device = 'null' })))
      assert.equal('tensor f32 [] cpu 5', show.text(tide.full({}, 5)))
   end)
end)

describe('other values', function()
   it('are cut in the middle', function()
      local list = {}
      for i = 1, 39 do list[i] = { a = { b = { i } }, text = ('x'):rep(90) } end
      local text = show.text(list)
      local _, lines = text:gsub('\n', '')
      assert.equal(50, lines)
      assert.matches('   ... %d+ lines\n', text)
      assert.equal('{ 1, 2, a = "é" }', show.text { 1, 2, a = 'é' })
   end)

   it('are broken where the terminal ends, at 40 columns or more', function()
      local function line_of(n)                -- a table whose line has n characters
         return { ('x'):rep(n - #'{ "" }') }
      end
      for columns, most in each { [100] = 99, [60] = 59, [41] = 40, [30] = 40, [20] = 40 } do
         assert.equal(most, #show.text(line_of(most), columns))
         assert.matches('^{\n', show.text(line_of(most + 1), columns))
      end
      local function list_of(n)
         local list = {}
         for i = 1, n do list[i] = ('%02d'):format(i):rep(20) end
         return list
      end
      local whole = show.text({ list_of(27), list_of(27) }, 80)
      assert.equal(59, select(2, whole:gsub('\n', '')))
      local list = { list_of(27), list_of(28) }
      local many = show.text(list, 80)
      assert.matches('\n   ... 11 lines\n', many, 1, true)
      assert.equal(50, select(2, many:gsub('\n', '')))
   end)

   it('have no addresses, which would differ from rank to rank', function()
      local Thing = require 'tide.class' 'Thing'
      assert.matches('Thing: 0x', tostring(Thing()))
      assert.equal('<Thing>', show.text(Thing()))
      assert.equal('{ a = <Thing> }', show.text { a = Thing() })
      assert.matches('^<function .*prompt_show_spec.lua:%d+>$', show.text(function() end))
      assert.equal('<function>', show.text(print))
      assert.matches('train/sample.lua:%d+>', show.text(tide.train.sample.generate))
      local text = setmetatable({}, { __tostring = function() return 'hash: 0x12 and more' end })
      assert.equal('hash: 0x12 and more', show.text(text))
   end)
end)

describe('a chart', function()
   it('has a block for each number, and its bounds', function()
      local eight = shown('         8 ┤       █',
         '           │      ██', '           │     ███',
         '           │    ████', '           │   █████',
         '           │  ██████', '           │ ███████',
         '         1 ┤▁▇▇▇▇▇▇▇', '')
      assert.equal(eight:gsub('[▁-█]+', ''):gsub(' +\n', '\n'),
         chart.text({ 1, 2, 3, 4, 5, 6, 7, 8 }):gsub('[▁-█]+', ''):gsub(' +\n', '\n'))
      assert.equal('         2 ┤ ██\n           │ ██\n         1 ┤▁██\n',
         chart.text({ 1, 2, 2 }, 72, 3))
      assert.equal('         3 ┤▁ ▁\n', chart.text({ 3, 0 / 0, 3 }, 72, 1))
      assert.equal('(no finite numbers)\n', chart.text { 0 / 0 })
      local long = {}
      for i = 1, 1000 do long[i] = i end
      for line in chart.text(long, 40):gmatch '[^\n]+' do
         assert.is_true(select(2, line:gsub('[^\128-\191]', '')) <= 40)
      end
   end)
end)

describe('a syntax error', function()
   it('points at the token', function()
      for source, want in each {
         ['x = = 2'] = { 5, "unexpected symbol near '='" }, ['1 1'] = { 3, 'expected near' },
         ['f(1, 2))'] = { 8, "near ')'" }, ['é = é 1'] = { 7, '' },
         ['x = "abc'] = { 5, 'unfinished string' },
         ['print(i end'] = { 9, "near 'end'" }, ['a.b..c = 1'] = { 8, '' } } do
         local fn, message = session.parse(source)
         assert.is_nil(fn)
         local column, said, caret = message:match '^input:1:(%d+): ([^\n]*)\n   [^\n]*\n   ( *%^)$'
         assert.equal(want[1], tonumber(column), source .. ': ' .. message)
         assert.equal(want[1], #caret)
         assert.matches(want[2], said, 1, true)
      end
   end)

   it('knows the line, and what is only unfinished', function()
      local _, message = session.parse 'x = 1\nlocal y = 2\nx y z'
      assert.matches('^input:3:3: .*\n   x y z\n     %^$', message)
      for _, source in ipairs { 'for i = 1, 2 do', 'x = [[a', 'f(', 'x =', '{ 1,', 'a +' } do
         local fn, more = session.parse(source)
         assert.is_nil(fn)
         assert.is_true(more)
      end
   end)
end)

describe('a misspelt name', function()
   it('is answered with the nearest', function()
      local env = { tide = tide, m = { forward = 1, backward = 2 } }
      local function said(source)
         local _, e = pcall(setfenv(assert(loadstring(source, '=input')),
            setmetatable(env, { __index = _G })))
         return hint.error(tostring(e), source, env)
      end
      assert.matches("did you mean 'tide'?", said 'tid.ones { 2 }', 1, true)
      assert.matches("did you mean 'print'?", said 'prnt(1)', 1, true)
      assert.matches("did you mean 'm:forward'?", said 'm:forwardd(1)', 1, true)
      assert.matches('?m lists what it has', said 'm:apply(1)', 1, true)
      assert.is_nil(said('q.r:apply(1)'):find('lists what', 1, true))
      assert.matches("did you mean 'm.backward'?", said 'local x = m.bakward()', 1, true)
      assert.matches('x:select(dim, i)', said 'local x = tide.ones({ 2 })[1]', 1, true)
      assert.is_nil(said('qqqqqqqq()'):find('did you mean', 1, true))
      assert.is_nil(said('error "own"'):find('did you mean', 1, true))
   end)
end)
