-- The small helpers: err, canonical, dims, pretty, log, plot, hash, units, timer, strict, lazy.

local tide = require 'tide'
local canonical = require 'tide.util.canonical'
local dims = require 'tide.util.dims'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local hash = require 'tide.util.hash'
local log = require 'tide.util.log'
local plot = require 'tide.util.plot'
local pretty = require 'tide.util.pretty'
local strict = require 'tide.util.strict'
local timer = require 'tide.util.timer'
local units = require 'tide.util.units'

local function raised(fn, ...)
   local ok, e = pcall(fn, ...)
   assert.is_false(ok)
   return e
end

describe('the places of a folder', function()
   it('are it and the folder above, and those of a run are its own', function()
      local fs = require 'tide.util.fs'
      require('spec.support.tmp').with(function(dir)
         local run = dir .. '/run'
         for _, path in ipairs { run .. '/step-1', run .. '/aside-1/step-1' } do
            fs.mkdirs('spec', path)
         end
         assert.same({ run, dir }, fs.places(run))
         for _, path in ipairs { run, run .. '/aside-1' } do
            fs.write('spec', path .. '/LATEST', 'step-1')
         end
         assert.same({ run }, fs.places(run))
         assert.same({ run .. '/' }, fs.places(run .. '/'))
         assert.same({ run .. '/step-1', run }, fs.places(run .. '/step-1'))
         assert.same({ run .. '/aside-1', run }, fs.places(run .. '/aside-1'))
         assert.same({ run .. '/aside-1/step-1', run .. '/aside-1', run },
            fs.places(run .. '/aside-1/step-1'))
         assert.same({ 'a', '.' }, fs.places 'a')
         assert.same({ '/a', '/' }, fs.places '/a')
      end)
   end)
end)

describe('util.err', function()
   it('adds a stack trace to a raw error once, from the innermost function on', function()
      local function inner() return (nil).x end
      local function outer()
         local _, e = xpcall(inner, err.traced)
         error(e, 0)
      end
      local _, text = xpcall(outer, err.traced)
      assert.equal(1, select(2, text:gsub('stack traceback:', '')))
      assert.matches('stack traceback:%s+%S+util_spec.lua:%d+: in function', text)
      local _, e = xpcall(function() err.raise('E_ARG', 'f', 'm') end, err.traced)
      assert.equal('f', e.op)
   end)

   it('marks mistakes of people, and nothing else', function()
      local function mistake(code)
         return raised(err.people, { 'E_ARG' }, err.raise, code, 'f', 'm')
      end
      assert.is_true(mistake('E_ARG').brief)
      assert.equal('f: m (E_ARG)', tostring(mistake 'E_ARG'))
      assert.is_nil(mistake('E_IO').brief)
      assert.matches('boom\nstack traceback', raised(err.people, {}, error, 'boom'), 1, true)
      assert.same({ 1, nil, 3 }, { err.people({}, function(...) return ... end, 1, nil, 3) })
   end)

   it('has code, function, argument and the caller in its text', function()
      local e = raised(err.integer, 'f', 'n', 1.5, 1, 4)
      assert.equal('E_ARG', e.code)
      assert.equal('f', e.op)
      assert.matches("tide.f: argument 'n': expected an integer in [1, 4], got 1.5 (E_ARG)",
         tostring(e), 1, true)
      assert.matches('util_spec.lua:%d+: ', tostring(e))
   end)

   it('refuses every number that is no integer in range', function()
      for _, v in ipairs { 0 / 0, 1 / 0, -1 / 0, 1e20, 0.5, -1, '3', true, {} } do
         assert.equal('E_ARG', raised(err.integer, 'f', 'n', v, 0).code)
      end
      assert.equal(3, err.integer('f', 'n', 3, 0))
   end)

   it('names the nearest known option', function()
      local e = raised(err.options, 'f', { widht = 1 }, { 'width', 'height' })
      assert.matches("unknown option 'widht'; did you mean 'width'?", e.message, 1, true)
      assert.same({}, err.options('f', nil, {}))
      assert.equal('E_ARG', raised(err.options, 'f', 3, {}).code)
      -- of several the first by name, on every run
      local many = {}
      for c in ('kzbqamx'):gmatch '.' do many[c] = 1 end
      assert.matches("unknown option 'a'", raised(err.options, 'f', many, { 'w' }).message, 1, true)
   end)

   it('tells what an object is that stands in place of options', function()
      local function got(v) return raised(err.options, 'f', v, { 'axis' }).message end
      local expected = "argument 'options': expected a table { name = value }, got "
      assert.equal(expected .. 'a communicator', got(tide.dist.solo()))
      assert.equal(expected .. 'a Linear', got(tide.nn.Linear(2, 2)))
      assert.equal(expected .. 'an AdamW', got(tide.optim.AdamW(tide.nn.Linear(2, 2), { lr = 1 })))
      assert.equal('Linear', err.show(tide.nn.Linear))
      assert.equal('a table', err.show {})
   end)

   it('shows strings in bounds', function()
      assert.is_true(#err.show(('x'):rep(1000)) < 60)
   end)
end)

describe('util.canonical', function()
   local json = require 'tide.ffi.json'

   it('is the same for what means the same', function()
      local t = { b = { 1, 2, x = false }, a = 'word', f = print, _private = 3, n = json.null }
      assert.equal('{a=word b={1=1 2=2}}', canonical(t))
      assert.equal(canonical(t),
         canonical(json.decode '{"n": null, "a": "word", "b": [1, 2]}'))
      assert.equal('none', canonical(nil))
      assert.equal('none', canonical(json.null))
      assert.equal('none', canonical(false))
      assert.equal('true', canonical(true))
      assert.equal('0.5', canonical(0.5))
   end)

   it('holds data and constants, once each on the way down', function()
      local class = require 'tide.class'
      local Table, Holder = class 'Table', class 'Holder'
      Table.constant = true
      local constant, holder = Table(), Holder()
      constant.base, holder.rank = 10, 3
      local t = { constant = constant, holder = holder, x = { 1 } }
      t.me, t.y = t, t.x
      assert.equal('{constant={base=10} x={1=1} y={1=1}}', canonical(t))
   end)
end)

describe('util.dims', function()
   it('are lists a dim', function()
      local shape = { 2, 3, 4 }
      local other = dims.copy(shape)
      assert.same({ { 12, 4, 1 }, 24, { 0, 0 }, '[2, 3, 4]' },
         { dims.strides(shape), dims.numel(shape), dims.zeros(2), dims.text(shape) })
      assert.is_true(dims.equal(shape, other))
      other[3] = 5
      assert.is_false(dims.equal(shape, other))
      assert.is_false(dims.equal(shape, { 2, 3 }))
      assert.same({ {}, 1, '[]' }, { dims.strides {}, dims.numel {}, dims.text {} })
   end)
end)

describe('util.pretty', function()
   it('sorts keys and keeps short tables on a line', function()
      assert.equal('{ 1, 2, a = "x", b = { c = true } }',
         pretty.format { 1, 2, b = { c = true }, a = 'x' })
   end)

   it('breaks long tables and bounds depth, width and cycles', function()
      local t = {}
      for i = 1, 100 do t[i] = i end
      assert.matches('... 60 more', pretty.format(t), 1, true)
      local deep = { { { { { {} } } } } }
      assert.matches('{...}', pretty.format(deep), 1, true)
      local loop = {}
      loop.self = loop
      assert.equal('{ self = <cycle> }', pretty.format(loop))
   end)

   it('breaks a table where its line and indent are longer than the width', function()
      local t = { a = { b = 1, c = 'xy' } }
      local function at(width) return pretty.format(t, { width = width }) end
      assert.equal('{ a = { b = 1, c = "xy" } }', at(27))
      assert.equal('{\n   a = { b = 1, c = "xy" }\n}', at(26))
      assert.equal('{\n   a = { b = 1, c = "xy" }\n}', at(22))
      assert.equal('{\n   a = {\n      b = 1,\n      c = "xy"\n   }\n}', at(21))
   end)

   it('orders keys by type and shows so many entries and levels', function()
      local function f() end
      local t = { 'l', [0] = 0, [2.5] = 1, [-1] = 2, [true] = 3, ['a b'] = 4, ['1a'] = 5, _b = 6,
         [3] = 7 }
      assert.equal('{ [-1] = 2, [0] = 0, "l", [2.5] = 1, [3] = 7, [true] = 3, ["1a"] = 5, _b = 6, '
         .. '["a b"] = 4 }', pretty.format(t))
      assert.same({ 1, 2, false, true, 'a', 'b' },
         pretty.sorted_keys { 1, 2, b = 1, a = 2, [false] = 3, [true] = 4 })
      assert.equal('{ 1, 2 }', pretty.format({ 1, 2 }, { entries = 2 }))
      assert.equal('{ 1, 2, ... 1 more }', pretty.format({ 1, 2, 3 }, { entries = 2 }))
      assert.equal('{...}', pretty.format({ 1 }, { depth = 0 }))
      assert.equal('{}', pretty.format({}, { depth = 0 }))
      assert.equal('{ { 1 }, { {...} } }', pretty.format({ { 1 }, { { 2 } } }, { depth = 2 }))
      assert.equal('{ {...} }', pretty.format({ { 1 } }, { depth = 1 }))
      local same = { 1 }
      assert.equal('{ { 1 }, { 1 } }', pretty.format { same, same })
      assert.equal('<function>', pretty.format(print))
      assert.matches('^<function .*util_spec.lua:%d+>$', pretty.format(f))
      assert.equal('{ x = T }', pretty.format { x = setmetatable({}, { __tostring = function()
         return 'T'
      end }) })
      assert.equal('"a\\13\\0b"', pretty.format 'a\r\0b')
      for text, n in each { ['999999999999999'] = 1e15 - 1, ['1e+15'] = 1e15, ['-3'] = -3,
         ['1.234568'] = 1.2345678, ['inf'] = math.huge, ['-999999999999999'] = 1 - 1e15 } do
         assert.equal(text, pretty.format(n))
      end
   end)

   it('quotes text and prints numbers without noise', function()
      assert.equal('"a\\nb"', pretty.format 'a\nb')
      assert.equal('3', pretty.format(3))
      assert.equal('0.5', pretty.format(0.5))
      assert.equal('nan', pretty.format(0 / 0):gsub('-', ''))
   end)
end)

describe('util.log', function()
   local function collect(opts)
      local lines = {}
      opts.sink = function(s) lines[#lines + 1] = s end
      return log.new(opts), lines
   end

   it('prefixes ranks and drops lower levels', function()
      local l, lines = collect { rank = 1, size = 2, level = 'info' }
      l:info('a %d', 1)
      l:debug 'b'
      l:warn 'c%'
      l:once 'd'
      assert.same({ '[r1] a 1\n', '[r1] warn: c%\n' }, lines)
   end)

   it('writes single lines on rank 0', function()
      local l, lines = collect {}
      l:once 'd'
      assert.same({ 'd\n' }, lines)
   end)

   it('refuses an unknown level', function()
      assert.equal('E_ARG', raised(log.new, { level = 'loud' }).code)
   end)
end)

describe('util.plot', function()
   it('as text has a mark for each point, and its numbers below their marks', function()
      assert.equal([[
        4 |*
        3 |          *
        2 |                    *
        1 |                             *
        0 |                                       *
          +----------------------------------------
           0         10        20       30       40
         * loss
]], plot.text({ { name = 'loss', x = { 0, 10, 20, 30, 40 }, y = { 4, 3, 2, 1, 0 } } },
         { columns = 51, rows = 5 }))
      assert.equal([[
        4 |+                                      *
          |
        3 |                          *
          |
        2 |             *
          |
        1 |*                                      +
          +----------------------------------------
           1            10           100       1000
         * a
         + b
]], plot.text({ { name = 'a', x = { 1, 10, 100, 1000 }, y = { 1, 2, 3, 4 } },
         { name = 'b', x = { 1, 1000 }, y = { 4, 1 } } },
         { columns = 51, rows = 7, logx = true }))
   end)

   it('has round ticks', function()
      assert.same({ 0, 20, 40, 60, 80, 100 }, plot.ticks(0, 100, 6))
      assert.same({ 1, 1.5, 2, 2.5 }, plot.ticks(0.9, 2.6, 4))
      assert.equal('0', tostring(plot.ticks(0, 5, 5)[1]))
   end)

   it('draws every series and leaves out what is not finite', function()
      local svg = plot.svg({
         { name = 'a<b', x = { 1, 2, 3 }, y = { 1, 0 / 0, 3 } },
         { name = 'v', x = { 2 }, y = { 2 }, points = true },
      }, { title = 'T' })
      assert.matches('^<svg ', svg)
      assert.matches('a&lt;b', svg, 1, true)
      assert.is_nil(svg:find('nan', 1, true))
      local line = svg:match 'points="([^"]+)"'
      assert.equal(2, select(2, line:gsub(',', ',')))
      assert.matches('<circle', svg, 1, true)
   end)

   it('names an axis below its middle', function()
      local svg = plot.svg({ { name = 'a', x = { 1, 3 }, y = { 1, 3 } } }, { xlabel = 'step' })
      local first, last = svg:match 'points="([%d.]+),[%d.]+ ([%d.]+),'
      assert.equal((first + last) / 2, tonumber(svg:match 'x="(%d+)"[^>]*>step<'))
   end)

   it('draws axes without a point, and thins long series', function()
      assert.matches('</svg>', plot.svg({ { name = 'a', x = {}, y = {} } }), 1, true)
      local x, y = {}, {}
      for i = 1, 50000 do x[i], y[i] = i, 1 / i end
      assert.is_true(#plot.svg { { name = 'a', x = x, y = y } } < 40000)
   end)
end)

describe('util.hash', function()
   it('agrees with the published FNV-1a values', function()
      assert.equal(0x811c9dc5, hash.fnv32 '')
      assert.equal(0xe40c292c, hash.fnv32 'a')
      assert.equal(0xbf9cf968, hash.fnv32 'foobar')
   end)

   it('mixes as integers of 64 bits do', function()
      local function wide(v) return require('ffi').new('uint64_t', v) end
      local function scrambled(h)
         h = bit.band(h, 0xffffffffULL)
         h = bit.bxor(h, bit.rshift(h, 16))
         h = bit.band(h * 0x85ebca6bULL, 0xffffffffULL)
         h = bit.bxor(h, bit.rshift(h, 13))
         h = bit.band(h * 0xc2b2ae35ULL, 0xffffffffULL)
         return bit.bxor(h, bit.rshift(h, 16))
      end
      math.randomseed(5)
      for _ = 1, 50 do
         local values, h = {}, 0ULL
         for i = 1, math.random(1, 4) do
            values[i] = math.random(0, 2 ^ 21 - 1) * 2 ^ 32 + math.random(0, 2 ^ 31 - 1)
            local v = wide(values[i])
            h = scrambled(bit.bxor(h, bit.band(v, 0xffffffffULL)) + bit.rshift(v, 32) * 7919)
         end
         assert.equal(tonumber(h), hash.mix(unpack(values)))
      end
      assert.equal(tonumber(scrambled(123456789ULL)), hash.scramble(123456789))
      assert.equal(0, hash.mix())
   end)

   it('gives streams below 2^52 that differ', function()
      local seen = {}
      for i = 0, 2000 do
         local s = hash.stream('model.layers.' .. i .. '.weight')
         assert.is_true(s >= 0 and s < 2^52 and s == math.floor(s))
         assert.is_nil(seen[s])
         seen[s] = true
      end
   end)

   it('scrambles one to one and evenly', function()
      local seen, high = {}, 0
      for i = 0, 4095 do
         local h = hash.scramble(i)
         assert.is_nil(seen[h])
         seen[h] = true
         if h >= 2^31 then high = high + 1 end
      end
      assert.is_true(high > 1900 and high < 2200)
   end)
end)

-- Names are loaded when they are first used, so one whose file is elsewhere is told here.
describe('util.lazy', function()
   it('has a file for every name of the library', function()
      local seen, n = {}, 0
      local function walk(t)
         seen[t] = true
         local meta = getmetatable(t)
         for name in each(type(meta) == 'table' and rawget(meta, 'entries') or {}) do
            n = n + 1
            local value = t[name]
            assert.is_truthy(value)
            if type(value) == 'table' and not seen[value] then walk(value) end
         end
         for _, value in each(t) do
            if type(value) == 'table' and not seen[value] then walk(value) end
         end
      end
      for _, name in ipairs { 'nn', 'model', 'optim', 'data', 'train', 'parallel', 'dist', 'debug',
                              'util' } do
         walk(tide[name])
      end
      assert.is_true(n > 80)
   end)
end)

describe('util.dims', function()
   it('takes a box from another as boxes that meet neither, random ones too', function()
      math.randomseed(7)
      local function box(n)
         local b = { offset = {}, size = {} }
         for d = 1, n do b.offset[d], b.size[d] = math.random(0, 4), math.random(0, 4) end
         return b
      end
      local function has(b, at)
         for d, x in ipairs(at) do
            if x < b.offset[d] or x >= b.offset[d] + b.size[d] then return false end
         end
         return true
      end
      for _ = 1, 200 do
         local a, b, meet = box(2), box(2), false
         local rest = dims.minus(a, b)
         for x = 0, 8 do
            for y = 0, 8 do
               local at, n = { x, y }, 0
               for _, r in ipairs(rest) do n = n + (has(r, at) and 1 or 0) end
               assert.equal(has(a, at) and not has(b, at) and 1 or 0, n)
               meet = meet or has(a, at) and has(b, at)
            end
         end
         for _, r in ipairs(dims.overlap(a, b) and rest or {}) do
            assert.is_true(r.size[1] > 0 and r.size[2] > 0)
         end
         assert.equal(meet, dims.overlap(a, b))
      end
   end)
end)

describe('util.units and util.timer', function()
   it('change unit and digits at the same places', function()
      for text, v in each { ['0'] = 0, ['999'] = 999, ['1.00k'] = 1000, ['9.99k'] = 9990,
         ['10.0k'] = 10000, ['99.9k'] = 99900, ['100k'] = 100000, ['1.00M'] = 1e6, ['1.00G'] = 1e9,
         ['1.00T'] = 1e12, ['5000T'] = 5e15 } do
         assert.equal(text, units.count(v))
      end
      for text, v in each { ['1023 B'] = 1023, ['1.00 KiB'] = 1024, ['1.00 MiB'] = 2 ^ 20,
         ['10.0 GiB'] = 10 * 2 ^ 30, ['100 TiB'] = 100 * 2 ^ 40, ['2048 TiB'] = 2 ^ 51 } do
         assert.equal(text, units.bytes(v))
      end
      for text, v in each { ['0:00'] = -5, ['0:01'] = 0.5, ['0:59'] = 59.4, ['1:00'] = 59.5,
         ['59:59'] = 3599, ['1:00:00'] = 3600, ['27:46:40'] = 1e5, ['?'] = math.huge } do
         assert.equal(text, units.duration(v))
      end
      assert.equal('?', units.duration(0 / 0))
      assert.equal('E_ARG', raised(units.count, 'x').code)
   end)

   it('are short', function()
      assert.equal('999', units.count(999))
      assert.equal('1.23k', units.count(1234))
      assert.equal('12.3M', units.count(12345678))
      assert.equal('1.50 GiB', units.bytes(1.5 * 2^30))
      assert.equal('2:03', units.duration(123))
      assert.equal('1:02:03', units.duration(3723))
      assert.equal('?', units.duration(1 / 0))
   end)

   it('measures laps with the clock given', function()
      local now = 5
      local t = timer.new(function() return now end)
      now = 7
      assert.equal(2, t:lap())
      now = 8
      assert.equal(1, t:lap())
      assert.equal(3, t:total())
      local rate = timer.rate(1)
      assert.equal(10, rate(10, 1))
      assert.equal((5 + 20) / 1.5, rate(20, 1))
   end)
end)

describe('util.strict', function()
   it('traps reading and writing of undeclared names', function()
      local env = {}
      assert.is_true(strict.on(env))
      assert.has_error(function() env.x = 1 end)
      assert.has_error(function() return env.x end)
      rawset(env, 'x', 1)
      assert.equal(1, env.x)
      strict.off(env)
      assert.is_nil(env.y)
   end)
end)

describe('a lazy namespace', function()
   it('loads what it names and refuses the rest', function()
      local util = require 'tide.util'
      assert.equal(pretty, util.pretty)
      local e = raised(function() return util.prety end)
      assert.matches("did you mean 'pretty'", e.message, 1, true)
   end)

   it('names the nearest also for the functions of the files that it loads', function()
      for _, row in ipairs { { 'optim', 'schedule', 'cosin', 'cosine' },
         { 'nn', 'rope', 'nwe', 'new' }, { 'data', 'tokens', 'memry', 'memory' },
         { 'train', 'step', 'nwe', 'new' } } do
         local e = raised(function() return tide[row[1]][row[2]][row[3]] end)
         assert.equal('E_ARG', e.code)
         local text = ("%s.%s: no '%s'; did you mean '%s'?"):format(unpack(row))
         assert.matches(text, tostring(e), 1, true)
      end
      assert.is_function(tide.optim.schedule.cosine)
   end)

   it('answers names of other libraries with what does their work', function()
      local m = tide.nn.Linear(2, 2)
      for _, row in ipairs { { tide.nn, 'Sequential', 'nn.Stack { a, b }' },
         { tide.nn, 'ReLU', 'x:relu()' }, { tide.parallel, 'FSDP', 'parallel.fully_shard' },
         { tide.dist, 'get_rank', 'comm.world().rank' },
         { tide.dist, 'barrier', 'comm.world():barrier' }, { m, 'half', "m:to 'f16'" },
         { m, 'register_forward_hook', 'm:hook_post(fn)' } } do
         local e = raised(function() return row[1][row[2]] end)
         assert.matches(("no '%s'; instead: "):format(row[2]), e.message, 1, true)
         assert.matches(row[3], e.message, 1, true)
      end
      assert.is_nil(m.nothing)
   end)
end)

describe('a tensor where a word is expected', function()
   it('is none, also in loops that are compiled', function()
      local x, n = tide.ones { 2 }, 0
      local calls = {
         function() return err.same(x, 'auto') end,
         function() return (pcall(err.choice, 'spec', 'a', x, { 'auto', 'none' })) end,
         function() return (pcall(tide.parallel.recompute.scope, x)) end,
         function() return (pcall(tide.parallel.recompute, tide.nn.Stack {}, x)) end,
         function() return (pcall(tide.parallel.cp_map.new, { kind = x, length = 4 })) end,
         function()
            return (pcall(tide.model.llama, { vocab_size = 3, hidden_size = 4,
               num_hidden_layers = 1, num_attention_heads = 1, hidden_act = x },
               { device = 'null' }))
         end,
      }
      for _, call in ipairs(calls) do
         for _ = 1, 400 do
            if call() then n = n + 1 end
         end
      end
      assert.equal(0, n)
      assert.is_true(err.same('auto', 'auto') and err.same(2, 2) and err.same(false, false))
      assert.is_false(err.same(nil, false) or err.same('2', 2))
   end)
end)

describe('a module with a constructor', function()
   it('is called for what new makes', function()
      local opts = { count = 64, seq = 4, batch = 2, seed = 3 }
      assert.same(tide.data.sampler.new(opts):next(), tide.data.sampler(opts):next())
      assert.equal(getmetatable(tide.train.progress.new { steps = 1, sink = function() end }),
         getmetatable(tide.train.progress { steps = 1, sink = function() end }))
   end)

   it('keeps a call of its own, and the others have none', function()
      assert.is_table(tide.parallel.recompute)
      assert.is_false(pcall(tide.nn.weight, {}))
   end)
end)
