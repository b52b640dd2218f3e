-- Files of options (--config): what they may hold, what wins, and what hostile ones are refused.

local args = require 'tide.util.args'
local files = require 'spec.support.files'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'

local rows = {
   { 'steps', 100, 'how many', min = 1 },
   { 'lr', 1e-3, 'rate', min = 0 },
   { 'mesh.dp', 1, 'ranks', min = 1 },
   { 'mesh.tp', 1, 'ranks', min = 1 },
   { 'tie', true, 'tied' },
   { 'data', nil, 'folders', list = true, type = 'string' },
}

-- What a program makes of words, where FILE is a file with this text.
local function parse(name, text, ...)
   local words = { ... }
   return tmp.with(function(dir)
      files.write(dir .. '/' .. name, text)
      for i, word in ipairs(words) do words[i] = word:gsub('FILE', dir .. '/' .. name) end
      return args.new('test', rows):parse(words)
   end)
end

local function refused(want, name, text, ...)
   local ok, e = pcall(parse, name, text, '--config', 'FILE', ...)
   assert.is_false(ok)
   assert.equal('E_ARG', type(e) == 'table' and e.code, tostring(e))
   assert.matches(want, tostring(e), 1, true)
end

describe('a config file', function()
   it('gives options, in Lua and in JSON, below the command line', function()
      for name, text in pairs {
         ['a.lua'] = 'local n = 3 * 4; return { steps = n, mesh = { dp = 2 }, ["mesh.tp"] = 3, '
            .. 'tie = false, data = { "x", "y" }, lr = 0.5 }',
         ['a.json'] = '{"steps": 12, "mesh": {"dp": 2, "tp": 3}, "tie": false, '
            .. '"data": ["x", "y"], "lr": 0.5}',
      } do
         local o, given, more = parse(name, text, '--lr', '2', '--config=FILE', '--set',
            'mesh.dp=4')
         assert.same({ steps = 12, lr = 2, mesh = { dp = 4, tp = 3 }, tie = false,
            data = { 'x', 'y' } }, o)
         assert.equal(12, given.steps)
         assert.equal('command line', more.of.lr)
         assert.matches(name, more.of.steps, 1, true)
         assert.same({ 'z' }, { parse(name, text, '--config', 'FILE', '--data', 'z').data })
      end
   end)

   it('is refused with the name of what is wrong, and the nearest', function()
      refused("unknown option 'stepps' in ", 'a.json', '{"stepps": 1}')
      refused("a.json; did you mean '--steps'?", 'a.json', '{"stepps": 1}')
      refused('--steps: expected an integer >= 1, got 0', 'a.json', '{"steps": 0}')
      refused('--steps: expected an integer', 'a.json', '{"steps": [1]}')
      refused('expected a text, a number, a boolean', 'a.json', '{"steps": null}')
      refused('expected a file .lua or .json', 'a.yaml', 'steps: 1')
      refused('expected a table of options', 'a.lua', 'return 1')
      refused('got a function', 'a.lua', 'return { steps = function() end }')
      refused('is no Lua', 'a.lua', 'return {')
      refused("' is given twice in ", 'a.lua', 'return { ["mesh.dp"] = 1, mesh = { dp = 2 } }')
      refused('expected one file, got ', 'a.lua', 'return { steps = 2 }', '--config', 'FILE')
      local ok, e = pcall(parse, 'a.json', '{', '--config', 'FILE')
      assert.is_false(ok)
      assert.equal('E_FORMAT', e.code)
      assert.is_true(e.brief)
   end)

   it('has nothing in reach and cannot run on', function()
      refused('a config holds data', 'a.lua', 'return { data = os.getenv "HOME" }')
      refused('a config holds data', 'a.lua', 'return { data = ("x"):rep(9) }')
      refused('a config holds data', 'a.lua', 'return { data = require "tide" }')
      refused('it runs too long', 'a.lua', 'while true do end')
      refused('it runs too long', 'a.lua', 'local function f() return f() end return f()')
      refused('it takes too much memory', 'a.lua',
         'local s = "xxxxxxxx" while true do s = s .. s end')
      refused('it takes too much memory', 'a.lua',
         'local t = {} for i = 1, 1e5 do t[i] = { i } end return t')
      refused('it is bytecode', 'a.lua', string.dump(function() return {} end))
      refused('lie deeper than', 'a.lua', 'local t = {} t.a = t return t')
      refused('holds more than 100000 values', 'a.lua',
         'local t = { 1 } for i = 1, 15 do t = { t, t, t, t, t, t, t, t } end return t')
      assert.equal('xx', ('x'):rep(2))                          -- strings have their methods again
      assert.is_nil((debug.gethook()))
   end)
end)

describe('recipes', function()
   it('print every value with its source, and keep what a file gave in the checkpoint', function()
      tmp.with(function(dir)
         files.write(dir .. '/text.txt', ('alpha beta gamma '):rep(200))
         files.write(dir .. '/c.lua', ('return { data = %q, dim = 16, layers = 1, seq = 16, '
            .. 'batch = 4, steps = 2, threads = 1, sample = 0, out = %q, heads = 2 }')
            :format(dir .. '/text.txt', dir .. '/run'))
         local words = ('pretrain.lua --config %s/c.lua'):format(dir)
         local out, status = recipe.ranks(1, words .. ' --seq 8 --print-config')
         assert.equal(0, status, out)
         for _, line in ipairs { 'seq = 8 (command line)', ('dim = 16 (%s/c.lua)'):format(dir),
               'clip = 1 (default)' } do
            assert.matches('\n' .. line .. '\n', out, 1, true)
         end
         assert.is_nil(io.open(dir .. '/run'))
         out, status = recipe.ranks(1, words .. ' --seq 8')
         assert.equal(0, status, out)
         out, status = recipe.ranks(1, ('pretrain.lua --out %s/run --resume --steps 3 '
            .. '--print-config'):format(dir))
         assert.equal(0, status, out)
         assert.matches('\ndim = 16 (checkpoint)\n', out, 1, true)
         assert.matches('\nsteps = 3 (command line)\n', out, 1, true)
      end)
   end)
end)
