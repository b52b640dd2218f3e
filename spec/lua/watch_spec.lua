-- tide runs and tide plot: what they show of metrics.jsonl, and what they refuse.

local files = require 'spec.support.files'
local plot = require 'tide.util.plot'
local recipe = require 'spec.support.recipe'
local tmp = require 'spec.support.tmp'
local watch = require 'tide.train.watch'

local function write_run(dir, name, scale)
   tmp.mkdir(dir .. '/' .. name)
   local lines = {}
   for s = 1, 20 do
      lines[s] = ('{"step":%d,"loss":%.9g,%s"tokens":%d,"time":1700000000,"tokens_per_second":500}')
         :format(s, scale / s, s % 10 == 0 and ('"val_loss":%.9g,'):format(s / 10) or '', 100 * s)
   end
   files.write(dir .. '/' .. name .. '/metrics.jsonl', table.concat(lines, '\n') .. '\n{"torn')
end

local function program(words)
   return recipe.shell(('timeout -k 5 60 %s %s'):format(recipe.program, words))
end

describe('tide runs', function()
   it('lists the runs of a folder with their last figures', function()
      tmp.with(function(dir)
         write_run(dir, 'a', 8)
         write_run(dir, 'deep/b', 4)
         local out, status = program('runs ' .. dir)
         assert.equal(0, status, out)
         local a, b = out:match '(%S+/a +[^\n]+)\n(%S+/b +[^\n]+)'
         assert.matches('20 +2.00k +0.4000 +2.0000 +1.0000 +500 +20%d%d%-', a)
         assert.matches('20 +2.00k +0.2000', b)
      end)
   end)

   it('lists runs whose names are longer than a hundred characters', function()
      tmp.with(function(dir)
         local name = ('long'):rep(30)
         write_run(dir, name, 8)
         local out, status = program('runs ' .. dir)
         assert.equal(0, status, out)
         assert.matches('/' .. name .. '  ', out, 1, true)
      end)
   end)

   it('prints a run as CSV', function()
      tmp.with(function(dir)
         write_run(dir, 'a', 8)
         local out, status = program(('runs %s/a --csv'):format(dir))
         assert.equal(0, status, out)
         local lines = {}
         for line in out:gmatch '[^\n]+' do lines[#lines + 1] = line end
         assert.equal('step,loss,time,tokens,tokens_per_second,val_loss', lines[1])
         assert.equal('1,8,1700000000,100,500,', lines[2])
         assert.equal('10,0.8,1700000000,1000,500,1', lines[11])
         assert.equal(21, #lines)
      end)
   end)

   it('refuses folders without runs', function()
      tmp.with(function(dir)
         for _, words in ipairs { 'runs ' .. dir, 'runs a b', ('runs %s --csv'):format(dir),
               'plot', 'plot ' .. dir, 'plot --log' } do
            local out, status = program(words)
            assert.is_true(status == 1 or status == 2, out)
            assert.is_nil(out:find 'stack traceback', out)
         end
      end)
   end)
end)

describe('tide plot', function()
   it('draws several runs in the terminal and in one SVG, on log axes', function()
      tmp.with(function(dir)
         write_run(dir, 'a', 8)
         write_run(dir, 'b', 4)
         local out, status = program(('plot %s/a %s/b --log-x --log-y --x tokens --out %s/p.svg')
            :format(dir, dir, dir))
         assert.equal(0, status, out)
         assert.matches('%* %S+/a\n +%+ %S+/b\n$', out)
         local svg = files.read(dir .. '/p.svg')
         local curves = {}
         for text in svg:gmatch 'points="([^"]+)"' do curves[#curves + 1] = text end
         assert.equal(2, #curves)
         for _, text in ipairs(curves) do             -- c / s is straight on two log axes
            local points = {}
            for x, y in text:gmatch '([%d.]+),([%d.]+)' do points[#points + 1] = { x, y } end
            local first, last = points[1], points[20]
            for _, p in ipairs(points) do
               assert.near(first[2] + (p[1] - first[1]) / (last[1] - first[1])
                  * (last[2] - first[2]), p[2], 0.2)
            end
         end
      end)
   end)

   it('shows control characters of names as numbers, in text, SVG and tables', function()
      tmp.with(function(dir)
         write_run(dir, 'a\27[31m\nb', 8)
         local out, status = program(("plot '%s/a\27[31m\nb' --out %s/p.svg"):format(dir, dir))
         assert.equal(0, status, out)
         for _, text in ipairs { out, files.read(dir .. '/p.svg'), (program('runs ' .. dir)) } do
            assert.matches('a\\27[31m\\10b', text, 1, true)
            assert.is_nil(text:find '\27')
         end
      end)
   end)

   it('writes over no file but an SVG', function()
      tmp.with(function(dir)
         write_run(dir, 'a', 8)
         local before = files.read(dir .. '/a/metrics.jsonl')
         local out, status = program(('plot %s/a --out %s/a/metrics.jsonl'):format(dir, dir))
         assert.equal(2, status)
         assert.matches('plot: --out: expected a file .svg, got "', out, 1, true)
         assert.equal(before, files.read(dir .. '/a/metrics.jsonl'))
      end)
   end)

   it('names the figures of a run that has not what is asked for', function()
      tmp.with(function(dir)
         write_run(dir, 'a', 8)
         local out, status = program(('plot %s/a --metric nothing'):format(dir))
         assert.equal(2, status)
         assert.matches("a has no 'nothing' over 'step'; its figures: step, loss, time, tokens, "
            .. 'tokens_per_second, val_loss (E_ARG)\n', out, 1, true)
      end)
   end)

   it('smooths by a running mean, and leaves out what cannot be drawn', function()
      local records = { { step = 1, loss = 4 }, { step = 2, loss = 2 }, { step = 3 },
         { step = 4, loss = 0 / 0 }, { step = 5, loss = 9 } }
      assert.same({ name = 'r', x = { 1, 2, 5 }, y = { 4, 3, 5.5 } },
         watch.series(records, 'r', 'loss', 'step', 2))
      local spike = {}
      for s = 1, 12 do spike[s] = { step = s, loss = s == 4 and 1e20 or s == 8 and 1 / 0 or s } end
      assert.same({ 1, 1.5, 2, 1e20 / 3, 1e20 / 3, 1e20 / 3, 6, 22 / 3, 26 / 3, 10, 11 },
         watch.series(spike, 'r', 'loss', 'step', 3).y)
      local text = plot.text({ { name = 'r', x = { 0, 1, 10 }, y = { 1, 1, 10 } } },
         { logx = true, columns = 40, rows = 5 })
      local _, marks = text:gsub('%*', '')
      assert.equal(3, marks)                          -- two points and the legend
      assert.matches('%*', plot.text({ { name = 'r', x = {}, y = {} } }, { logy = true }))
   end)
end)
