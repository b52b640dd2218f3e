-- The commands of a prompt.

local command = require 'tide.repl.command'
local files = require 'spec.support.files'
local session = require 'tide.repl.session'
local tide = require 'tide'

local function new(env)
   local out, bad = {}, {}
   env = env or {}
   env.tide = tide
   return session.new { env = env, write = function(t) out[#out + 1] = t end,
      fail = function(t) bad[#bad + 1] = t end }, out, bad
end

-- What a session writes for lines; errors come after "! ".
local function play(lines, env)
   local s, out, bad = new(env)
   for _, line in ipairs(lines) do s:feed(line) end
   return table.concat(out), table.concat(bad), s
end

local folder = os.tmpname()
os.remove(folder)
os.execute('mkdir ' .. folder)
teardown(function() os.execute('rm -r ' .. folder) end)

describe('a command', function()
   it('is listed by :help, and has a nearest name', function()
      local out = play { ':help' }
      for _, name in ipairs(command.names()) do assert.matches('   :' .. name, out, 1, true) end
      local _, bad = play { ':tme 1' }
      assert.matches("^:tme: no such command; did you mean ':time'?", bad)
   end)

   it(':plot of several rows of numbers fits 80 columns', function()
      local out = play { 's = { a = { 1, 2, 3 }, b = { 3, 2, 1 } }', ':plot s' }
      local most = 0
      for line in out:gmatch '[^\n]+' do most = math.max(most, #line) end
      assert.is_true(most > 60 and most < 80)
   end)

   it('says what it expects', function()
      for line, want in pairs { [':time'] = 'a line', [':plot'] = 'numbers', [':save'] = 'a file',
         [':load'] = 'a file', [':mesh'] = 'dp=2,tp=2', [':mesh dp=x'] = 'dp=2,tp=2',
         [':plan'] = 'a model', [':plan m'] = 'no mesh yet', [':mem all'] = ':mem reset',
         [':plot m'] = 'a list of numbers', [':time x ='] = 'unfinished',
         [':time x = = 1'] = 'unexpected symbol', [':load /nowhere/x'] = '/nowhere/x' } do
         local out, bad = play { line }
         assert.matches(want, bad, 1, true, line)
         assert.equal('', out)
      end
   end)

   it(':time runs a line once, and shows value and time', function()
      local out, _, s = play { 'n = 0', ':time n = n + 1', ':time n + 1', ':time error "x"' }
      assert.equal(1, s.env.n)
      assert.matches('^%S+ [um]?s\n2\n%S+ [um]?s\n$', out)
   end)

   it(':mem shows bytes and the tensors by name', function()
      local out = play { 'a = tide.ones { 100, 100 }', 'b = tide.ones { 2 }', ':mem', ':mem reset' }
      assert.matches('live in %d+, peak', out)
      assert.matches('   a            f32 [100, 100] cpu\n   b            f32 [2] cpu', out, 1,
         true)
   end)

   it(':plot draws blocks, several series, and a file', function()
      local path = folder .. '/p.svg'
      local out, bad = play { ':plot { 1, 2, 4 }', ':plot tide.arange(9) to ' .. path,
         ':plot { a = { 1, 2 }, b = tide.arange(3) }' }
      assert.equal('', bad)
      assert.matches('█', out, 1, true)
      assert.matches('written: ' .. path, out, 1, true)
      assert.matches('+ b', out, 1, true)
      assert.matches('^<svg', files.read(path))
   end)

   it(':save and :load keep tensors and plain values', function()
      local path = folder .. '/s.tide'
      local out, bad = play { 'x = tide.arange(3)', "y = { 1, 'é\\0\\n', t = { true, 0/0 } }",
         'f = function() end', 'z = 1 / 3', ':save ' .. path }
      assert.equal('', bad)
      assert.matches('saved 3 .*; not kept %(neither tensor nor plain%): f\n$', out)
      local loaded, _, s = play { ':load ' .. path }
      assert.equal('loaded x, y, z\n', loaded)
      assert.same({ 0, 1, 2 }, s.env.x:tolist())
      assert.equal('é\0\n', s.env.y[2])
      assert.is_true(s.env.y.t[1])
      assert.equal(1 / 3, s.env.z)
      assert.is_nil(rawget(s.env, 'f'))
      play({ ':save ' .. path .. ' z' }, { z = 7, q = 8 })
      _, _, s = play { ':load ' .. path }
      assert.equal(7, s.env.z)
      assert.is_nil(rawget(s.env, 'q'))
      _, bad = play { ':save ' .. path .. ' nothing' }
      assert.matches("no 'nothing' at this prompt", bad, 1, true)
      out = play { ':save ' .. path, ':load ' .. path }
      assert.equal(('saved 0 in %s\nloaded nothing\n'):format(path), out)
      out = play { 'v = tide.ones { 2 }', 'u = tide.ones { 1 }', 'print(1)', ':save ' .. path,
         ':load ' .. path }
      assert.equal(('saved 2 in %s\nloaded u, v\n'):format(path), out)
   end)

   it(':load leaves the names of the prompt as they are', function()
      local path = folder .. '/own.tide'
      local tide_ = require 'tide'
      tide_.util.fs.io().safetensors_save(path, { tide = tide_.ones { 1 }, _G = tide_.ones { 1 },
         w = tide_.ones { 1 } })
      local out, bad, s = play { ':load ' .. path, 'tide.ones { 1 }' }
      assert.equal('', bad)
      assert.matches("loaded w; left out, as the prompt's own: _G, tide\n", out, 1, true)
      assert.equal(s.env, s.env._G)
   end)

   it(':load runs a file of Lua in the session', function()
      local f = assert(io.open(folder .. '/a.lua', 'w'))
      f:write 'answer = 6 * 7\n'
      f:close()
      local _, bad, s = play { ':load ' .. folder .. '/a.lua' }
      assert.equal('', bad)
      assert.equal(42, s.env.answer)
      _, bad = play { ':load ' .. folder .. '/none.lua' }
      assert.matches('none.lua', bad, 1, true)
   end)

   it(':mesh and :plan name what they make', function()
      local out, bad, s = play({ ':mesh dp=1, tp=1', ':plan m' }, { m = tide.model.llama(
         { vocab_size = 16, hidden_size = 8, num_hidden_layers = 1, num_attention_heads = 1,
            num_key_value_heads = 1 }, { device = 'null' }) })
      assert.equal('', bad)
      assert.matches('^mesh dp=1 x tp=1', out)
      assert.matches('plan of Llama', out, 1, true)
      assert.is_truthy(s.env.mesh and s.env.plan)
   end)

   it(':trace shows where time went since it is on', function()
      local out, bad = play { ':trace on', 'x = tide.ones { 8, 8 }',
         'for i = 1, 3 do x:matmul(x) end',
         ':trace off', ':trace ' .. folder .. '/trace' }
      assert.equal('', bad)
      assert.matches('matmul%s+3%s', out)
      assert.is_truthy(files.read(folder .. '/trace/rank000.json'))
      tide.default():param('trace', 0)
   end)

   it(':trace names first what took longest', function()
      local out = play { ':trace on', 'x = tide.ones { 500, 500 }',
         'for i = 1, 3 do x:matmul(x); tide.ones { 2 }:add_(1) end', ':trace off', ':trace' }
      tide.default():param('trace', 0)
      local long, short = out:find 'matmul%s+3%s', out:find 'axpy_%s+3%s'
      assert.is_true(long < short, out)
   end)
end)
