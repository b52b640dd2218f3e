-- Small helpers of the library that everything leans on: files, names, boxes, bytes, loggers, lazy
-- tables and guards, by tables of what they give.

local bins = require 'tide.util.bins'
local canonical = require 'tide.util.canonical'
local child = require 'spec.support.child'
local choice = require 'spec.deep.fuzz.choice'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local files = require 'spec.support.files'
local fs = require 'tide.util.fs'
local gcd = require 'tide.util.gcd'
local lazy = require 'tide.util.lazy'
local little = require 'tide.util.little'
local log = require 'tide.util.log'
local names = require 'tide.util.names'
local plot = require 'tide.util.plot'
local raised = require 'spec.support.raised'
local refused = require 'spec.support.refused'
local strict = require 'tide.util.strict'
local tide = require 'tide'
local timer = require 'tide.util.timer'
local tmp = require 'spec.support.tmp'

describe('util.fs', function()
   it('joins paths, and reads what is there', function()
      for _, row in ipairs { { 'a', 'b', 'a/b' }, { 'a/', 'b', 'a/b' }, { '', 'b', 'b' },
         { 'a', '/b', '/b' }, { '/', 'b', '/b' }, { 'a', '', 'a/' } } do
         assert.equal(row[3], fs.join(row[1], row[2]))
      end
      refused('E_ARG', "argument 'a'", fs.join, 1, 'b')
      refused('E_ARG', "argument 'b'", fs.join, 'a', 1)
      tmp.with(function(dir)
         local path = dir .. '/x'
         fs.write('spec', path, 'abc')
         assert.same({ 'abc', 3, true, true, false }, { fs.read('spec', path), fs.size(path),
            fs.exists(path), fs.is_present(path), fs.is_dir(path) })
         assert.same({ true, false }, { fs.is_dir(dir), fs.exists(dir .. '/y') })
         assert.is_nil(fs.size(dir))
         assert.is_nil(fs.size(dir .. '/y'))
         fs.io().symlink(dir .. '/nowhere', dir .. '/link')
         assert.same({ false, true }, { fs.exists(dir .. '/link'), fs.is_present(dir .. '/link') })
         assert.same({ 'link', 'x' }, fs.list('spec', dir))
         for fn, what in each { read = '', hash = '', list = '' } do
            local e = refused('E_IO', dir .. '/none' .. what, fs[fn], 'spec', dir .. '/none')
            assert.same({ 'spec', 1 }, { e.op, select(2, e.message:gsub(dir, '')) })
         end
         refused('E_ARG', "'path'", fs.write, 'spec', 5, 'x')
         refused('E_IO', path, fs.mkdirs, 'spec', path .. '/below')
         for text, said in each { ['5'] = 'it is a number', ['"x"'] = 'it is a string',
            ['true'] = 'it is a boolean', ['{'] = 'line 1', [''] = 'line 1' } do
            files.write(path, text)
            refused('E_FORMAT', { path .. ' holds no JSON object: ', said }, fs.read_json, 'spec',
               path)
         end
         fs.write_json('spec', path, { a = 1 / 0, b = { 1 } })
         assert.same({ a = 1 / 0, b = { 1 } }, fs.read_json('spec', path))
      end)
   end)

   it('removes folders but not what links lead to, and puts one in the place of another', function()
      tmp.with(function(dir)
         local function make(name)
            fs.mkdirs('spec', dir .. '/' .. name)
            files.write(dir .. '/' .. name .. '/' .. name, 'x')
            return dir .. '/' .. name
         end
         local a, b = make 'a', make 'b'
         fs.io().symlink(a, dir .. '/l')
         fs.remove_dir('spec', dir .. '/l')
         assert.is_true(fs.exists(a .. '/a'))
         fs.remove_dir('spec', dir .. '/none')
         assert.is_false(fs.take_place('spec', a, dir .. '/c', dir .. '/aside'))
         assert.is_true(fs.take_place('spec', b, dir .. '/c', dir .. '/aside'))
         assert.same({ { 'b' }, { 'a' } }, { fs.list('spec', dir .. '/c'),
            fs.list('spec', dir .. '/aside') })
         local ok = pcall(fs.take_place, 'spec', dir .. '/none', dir .. '/c', dir .. '/aside')
         assert.is_false(ok)
         assert.same({ 'c' }, fs.list('spec', dir))           -- what was there is back
         assert.same({ 'b' }, fs.list('spec', dir .. '/c'))
         fs.remove_dir('spec', dir .. '/c')
         assert.same({}, fs.list('spec', dir))
      end)
   end)
end)

describe('small helpers', function()
   it('are lists a dim, and boxes', function()
      assert.same({ { 2, 3 }, { 1, 2, 3 }, {}, { 0, 5, 0 }, 6, 3 }, { dims.slice({ 1, 2, 3 }, 2),
         dims.slice({ 1, 2, 3 }, 1, 3), dims.slice({ 1 }, 2), dims.only(3, 2, 5),
         dims.sum { 1, 2, 3 }, dims.sum({ 1, 2, 3 }, 2) })
      local t = tide.arange(24, { dtype = 'i64' }):reshape(4, 6)
      assert.same({ { 8, 9 }, { 14, 15 } }, dims.view(t, { 1, 2 }, { 2, 2 }):tolist())
      assert.same({ { 8, 9 }, { 14, 15 } }, dims.view(t, { 11, 2 }, { 2, 2 }, { 10, 0 }):tolist())
      assert.same({ 4, 6 }, dims.view(t, { 0, 0 }, { 4, 6 }).shape)
      assert.same({ { 1, 1 }, { true, false, false } }, { { gcd(7, 5), gcd(1, 0) },
         { dims.equal({}, {}), dims.equal({ 1 }, { 1, 2 }), dims.equal({ 1, 2 }, { 1, 3 }) } })
      for a = 0, 12 do
         for b = 0, 12 do
            local best = math.max(a, b)
            for d = 1, math.max(a, b) do if a % d == 0 and b % d == 0 then best = d end end
            assert.equal(a + b == 0 and 0 or best, gcd(a, b))
         end
      end
   end)

   it('fit things into the fullest bin that has room, the longest first', function()
      for seed = 1, 20 do
         local pick = choice.drawn('bins', seed)
         local lengths, order, size = {}, {}, pick:int(4, 9)
         for i = 1, pick:int(0, 12) do lengths[i], order[i] = pick:int(1, size), i end
         bins.longest_first(order, lengths)
         for k = 2, #order do
            local a, b = order[k - 1], order[k]
            assert.is_true(lengths[a] > lengths[b] or lengths[a] == lengths[b] and a < b)
         end
         local want, used = {}, {}
         for _, i in ipairs(order) do
            local best
            for k = 1, #want do
               if used[k] + lengths[i] <= size and (not best or used[k] > used[best]) then
                  best = k
               end
            end
            if not best then best = #want + 1; want[best], used[best] = {}, 0 end
            table.insert(want[best], i)
            used[best] = used[best] + lengths[i]
         end
         assert.same(want, bins.fullest(lengths, order, size))
      end
   end)

   it('write numbers as bytes, names as patterns, data as one text', function()
      for _, v in ipairs { 0, 1, 255, 256, 65535, 2 ^ 31, 2 ^ 52 + 1, 2 ^ 53 - 1 } do
         assert.equal(v, little.read('xx' .. little.write(v, 7) .. 'y', 3, 7))
      end
      assert.same({ '\1\2', 513, '' }, { little.write(513, 2), little.read('\1\2', 1, 2),
         little.write(5, 0) })
      for _, row in ipairs { { 'a.*.c', 'a.b.c', true }, { 'a.*.c', 'a.b.d.c', false },
         { 'a.b', 'axb', false }, { 'a', 'ab', false }, { '*', 'a-b', true },
         { 'a-b[1]', 'a-b[1]', true } } do
         assert.equal(row[3], row[2]:find(names.pattern(row[1])) ~= nil, row[1])
      end
      assert.same({ 'a.b', 'a', 'b', '', 'a.b.c', 'a.c' }, { names.join('a', 'b'),
         names.join('a', ''), names.join('', 'b'), names.join('', ''), names.join('a', 'b', 'c'),
         names.join('a', '', 'c') })
      local json = tide.json
      assert.equal('{1=a 2={} x=true}', canonical { 'a', {}, x = true, y = false, z = json.null,
         [true] = 1, _w = 2, f = print, t = tide.ones { 1 }, o = setmetatable({}, {}) })
      assert.equal(canonical { 1, { a = 2 } }, canonical(json.decode '[1, {"a": 2}]'))
   end)

   it('log by level, with ranks where there are several', function()
      local function lines(o)
         local out = {}
         o.sink = function(s) out[#out + 1] = s end
         local l = log.new(o)
         for _, level in ipairs { 'error', 'warn', 'info', 'debug' } do l[level](l, '%d%%', 5) end
         l:info 'raw %d'
         l:once('o %d', 1)
         return table.concat(out)
      end
      local all = 'error: 5%\nwarn: 5%\n5%\ndebug: 5%\nraw %d\no 1\n'
      assert.equal(all, lines { level = 'debug' })
      assert.equal((all:gsub('debug: 5%%\n', '')), lines {})
      assert.equal('error: 5%\nwarn: 5%\n', lines { level = 'warn' })
      assert.equal('error: 5%\n', lines { level = 'error' })
      assert.equal('[r1] error: 5%\n', lines { level = 'error', rank = 1, size = 2 })
      assert.equal('[r0] 5%\n', lines({ size = 2, rank = 0 }):match '\n(%[r0%] 5%%\n)')
      assert.is_nil(lines({ size = 2, rank = 1 }):find('o 1', 1, true))
      refused('E_ARG', 'fmt', log.new({}).info, (log.new {}), 5)
   end)

   it('guard tables: names that are not there, and globals', function()
      local t = lazy('spec', { A = 'tide.util.gcd', units = { 'tide.util.units', 'count' } },
         { have = 5 })
      assert.same({ 5, gcd }, { t.have, t.A })
      assert.equal('1.00k', t.units(1000))
      refused('E_ARG', "no 'unit'; did you mean 'units'?", function() return t.unit end)
      refused('E_ARG', "no 'Sequential'; instead: nn.Stack { a, b }", function()
         return tide.nn.Sequential
      end)
      assert.is_nil(tide.data.entropy[1])
      refused('E_ARG', "no 'order'; did you mean 'order2'?", function()
         return tide.data.entropy.order
      end)
      refused('E_ARG', "no 'load_adapter'; known: attach, layers, merge, remove, unmerge, without",
         function() return tide.nn.lora.load_adapter end)
      local env = {}
      assert.is_true(strict.on(env))
      assert.is_false(strict.on(env))
      local fn = setfenv(loadstring('x = 1', '=chunk'), env)
      assert.same({ false, 'chunk:1: assignment to undeclared global "x"' }, { pcall(fn) })
      fn = setfenv(loadstring('return y', '=chunk'), env)
      assert.same({ false, 'chunk:1: undeclared global "y"' }, { pcall(fn) })
      strict.off(env)
      assert.is_nil(fn())
      local other = setmetatable({}, { __index = function() return 7 end })
      assert.is_false(strict.on(other))
      strict.off(other)
      assert.equal(7, other.x)
   end)

   it('measure rates that forget', function()
      for _, half in ipairs { 1, 3, 10 } do
         local rate, amount, seconds, keep = timer.rate(half), 0, 0, 0.5 ^ (1 / half)
         for i = 1, 9 do
            amount, seconds = amount * keep + i, seconds * keep + i * i
            assert.is_true(math.abs(rate(i, i * i) - amount / seconds) < 1e-12)
         end
      end
      assert.equal(0, timer.rate()(5, 0))
      refused('E_ARG', 'half', timer.rate, 0)
      refused('E_ARG', { 'clock', 'returns seconds' }, timer.new, function() end)
      assert.equal('E_ARG', raised(timer.new, 5).code)
      assert.is_true(timer.new():total() >= 0)
      assert.is_truthy(err.of(raised(timer.new, 5)))
   end)
end)

describe('a plot', function()
   it('has round ticks within its bounds, of any size', function()
      for seed = 1, 60 do
         local pick = choice.drawn('ticks', seed)
         local lo = pick:int(-900, 900) / pick:pick { 1, 7, 1000 }
         local hi = lo + pick:int(1, 999) / pick:pick { 1, 3, 500 }
         local n = pick:int(1, 9)
         local list = plot.ticks(lo, hi, n)
         local raw = (hi - lo) / n
         for i = 2, #list do
            local step = list[i] - list[i - 1]
            local m = step / 10 ^ math.floor(math.log10(step) + 1e-9)
            local round = math.floor(m + 0.5)
            assert.is_true(math.abs(m - round) < 1e-6 and (round == 1 or round == 2 or round == 5
               or round == 10))
            assert.is_true(step >= raw * (1 - 1e-9) and step < 2.5 * raw * (1 + 1e-9))
         end
         for _, v in ipairs(list) do
            assert.is_true(v >= lo - 1e-6 * (hi - lo) and v <= hi + 1e-6 * (hi - lo))
         end
         assert.is_true(#list <= n + 1)
      end
   end)

   it('has equal values within a logarithmic axis, and no others than it can hold', function()
      for _, y in ipairs { { 1e-4, 1e-4 }, { 0.3 }, { 0, 1e-3 }, { 5e-324, 1e-323 }, { 0 },
         { -1e308, 1e308 }, { 1e-4, 1e-4 + 1e-14 } } do
         for _, opts in ipairs { {}, { logy = true } } do
            local series = { { name = 'a', x = { 1, 2 }, y = y, points = true } }
            plot.text(series, opts)
            local svg = plot.svg(series, opts)
            assert.is_nil(svg:find('nan', 1, true))
            for cy in svg:gmatch 'cy="([^"]*)"' do
               assert.is_true(tonumber(cy) >= 0 and tonumber(cy) <= 420, cy)
            end
         end
      end
   end)

   it('ends for values that differ by rounding, or are not finite', function()
      local one = 0.693147181
      for _, y in ipairs { { one, one * (1 + 2 ^ -52) }, { 1e300, 1e300 * (1 + 2 ^ -52) },
         { 5e-324, 1e-323 }, { 1, math.huge }, { 0 / 0, 1 }, { 0, 0 } } do
         for _, logy in ipairs { false, true } do
            local svg = plot.svg({ { name = 'a', x = { 1, 2 }, y = y } }, { logy = logy })
            assert.is_true(#svg < 4000)
         end
      end
   end)

   it('puts each point where its axes say', function()
      local xs, ys = { 1, 2, 4, 8 }, { 10, 40, 20, 30 }
      local svg = plot.svg({ { name = 'a', x = xs, y = ys, points = true } },
         { title = '<t>', xlabel = 'x', ylabel = 'y' })
      for i = 1, 4 do
         local cx, cy = 64 + (xs[i] - 1) / 7 * (720 - 16 - 64),
            420 - 48 + (ys[i] - 10) / 30 * (36 - 420 + 48)
         assert.matches(('<circle cx="%.1f" cy="%.1f"'):format(cx, cy), svg, 1, true)
      end
      assert.matches('&lt;t&gt;', svg, 1, true)
      assert.matches(' y="26" fill="', svg, 1, true)            -- names stand side by side
      local one = { name = 'a', x = xs, y = ys }
      assert.matches(' y="80" text-anchor="end" fill="', plot.svg({ one, one, one }, {}), 1, true)
      local logs = plot.svg({ { name = 'a', x = { 1, 10, 100, -5 }, y = { 1, 10, 100, 1 },
         points = true } }, { logx = true, logy = true })
      assert.equal(3, select(2, logs:gsub('<circle', '')))
      assert.matches('<circle cx="384.0" cy="204.0"', logs, 1, true)
      local x, y = {}, {}
      for i = 1, 2500 do x[i], y[i] = i, i % 2 end
      local line = plot.svg({ { name = 'a', x = x, y = y } }, {}):match 'points="([^"]*)"'
      assert.equal(834, select(2, line:gsub(',', ',')))         -- means of three
   end)
end)

describe("busted's helper", function()
   it('gives programs the absolute path of the tree, also where the shell sets no PWD', function()
      local out, status = child([[
         dofile 'spec/support/helper.lua'
         print(os.getenv 'LUA_PATH')
      ]], { env = 'env -u PWD' })
      assert.equal(0, status, out)
      assert.equal(fs.absolute 'bindings/?.lua', out:match '^[^;]*')
   end)
end)
