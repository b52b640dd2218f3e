-- Figures of a run as lines, event files and progress, against plain loops and the bits of numbers.

local each = require 'tide.util.each'
local events = require 'tide.train.events'
local ffi = require 'ffi'
local little = require 'tide.util.little'
local metric = require 'tide.train.metric'
local progress = require 'tide.train.progress'
local refused = require 'spec.support.refused'
local tmp = require 'spec.support.tmp'
local files = require 'spec.support.files'
local watch = require 'tide.train.watch'

local function record(step, more)
   local r = { step = step, loss = 3 / step, grad_norm = 0.5, lr = 1e-3, tokens_per_second = 1234,
      memory_bytes = 2 ^ 20 }
   for k, v in each(more or {}) do r[k] = v end
   return r
end

describe('a line of metrics', function()
   it('has every figure in order, and is parsed back', function()
      assert.equal('{"step":3,"loss":1,"val_loss":2.5,"grad_norm":0.5,"lr":0.001,'
         .. '"tokens_per_second":1234,"memory_bytes":1048576,"skipped":1,"tokens":96,"time":1e+15,'
         .. '"a":null,"b":-999999999999999}', metric.line(record(3, { val_loss = 2.5, skipped = 1,
            tokens = 96, time = 1e15, more = { b = 1 - 1e15, a = 1 / 0 } })))
      for _, v in ipairs { 0, -1, 1.5, 1e-9, 123456789, 1e20, 1 / 3 } do
         local back = metric.parse(metric.line { step = 1, loss = v })
         assert.is_true(math.abs(back.loss - v) <= 1e-8 * math.abs(v))
      end
      for _, v in ipairs { 0 / 0, 1 / 0, -1 / 0 } do
         local back = metric.parse(metric.line { step = 1, loss = v })
         assert.is_true(back.loss ~= back.loss)
      end
      for _, text in ipairs { '', '{"step":1', '"step":1}', '{"loss":1}', 'x{"step":1}' } do
         assert.is_nil(metric.parse(text))
      end
      refused('E_ARG', { 'record.loss', 'a number' }, metric.line, { step = 1, loss = 'x' })
      refused('E_ARG', 'record.more', metric.line, { step = 1, more = 5 })
      for name, own in each { loss = true, time = true, last = true, more = true, skipped = true,
         mine = false, name = false } do
         assert.equal(own, metric.is_own(name))
      end
   end)

   it('goes into curves and means', function()
      local m = metric.new {}
      for step = 1, 9 do
         assert.is_true(m:add(record(step, { val_loss = step % 3 == 0 and step or nil })))
      end
      assert.same({ { 3, 6, 9 }, { 3, 6, 9 }, 9 }, { m.series.val.x, m.series.val.y,
         #m.series.loss.x })
      for n = 0, 12 do
         local sum, count = 0, 0
         for step = math.max(1, 10 - n), 9 do sum, count = sum + 3 / step, count + 1 end
         local got = m:average(n)
         if n == 0 then assert.is_true(got ~= got)
         else assert.is_true(math.abs(got - sum / count) < 1e-12) end
      end
      assert.matches('loss (nats per token)', m:svg 'T', 1, true)
      assert.equal(3, select(2, m:svg('T'):gsub('<circle', '')))        -- of the evaluations
      m:draw()
      assert.equal(0, m:close())
      assert.equal(0, m:close())
   end)

   it('waits while the disk takes none, up to a mebibyte, and what is lost is counted', function()
      tmp.with(function(dir)
         local m = metric.new { out = dir }
         local real, full = m.file, true
         m.file = { write = function(_, text)
               if full then return nil, 'full' end
               return real:write(text)
            end, seek = function(_, ...) return real:seek(...) end,
            close = function() return real:close() end }
         assert.same({ nil, 'full' }, { m:add(record(1)) })
         assert.same({ nil, 'full' }, { m:add(record(2)) })
         full = false
         assert.is_true(m:add(record(3)))
         assert.same({ metric.line(record(1)), metric.line(record(2)), metric.line(record(3)) },
            files.lines_of('cat ' .. dir .. '/metrics.jsonl'))
         full = true
         m.waiting = ('x'):rep(2 ^ 20 - 1)
         m:add(record(4))
         assert.is_true(#m.waiting > 2 ^ 20)
         m:add(record(5))
         m.waiting = ('x'):rep(2 ^ 20 - 1) .. '\n'
         m:add(record(6))
         assert.equal(2, m.lost)
         assert.equal(3, m:close())                        -- one waits, two are lost
      end)
   end)

   it('is written anew by a new run, and also as an event', function()
      tmp.with(function(dir)
         for step = 1, 2 do
            local m = metric.new { out = dir, tensorboard = true }
            assert.is_true(m:add(record(step)))
            assert.is_true(m:flush())
            m.events.add = function() return nil, 'no room' end
            assert.same({ nil, 'no room' }, { m:add(record(9)) })
            m:close()
            assert.same({ metric.line(record(step)), metric.line(record(9)) },
               files.lines_of('cat ' .. dir .. '/metrics.jsonl'))
         end
      end)
   end)
end)

describe('an event file', function()
   -- A message of protobuf as a list of { field, value }.
   local function fields(text)
      local list, at = {}, 1
      local function varint()
         local v, scale = 0, 1
         while text:byte(at) >= 128 do
            v, scale, at = v + (text:byte(at) - 128) * scale, scale * 128, at + 1
         end
         at = at + 1
         return v + text:byte(at - 1) * scale
      end
      while at <= #text do
         local tag = varint()
         local kind = tag % 8
         local n = kind == 1 and 8 or kind == 5 and 4 or kind == 2 and varint()
         list[#list + 1] = { math.floor(tag / 8), n and text:sub(at, at + n - 1) or varint() }
         at = at + (n or 0)
      end
      return list
   end

   it('has a scalar for each figure, by name, in framed records', function()
      tmp.with(function(dir)
         local file = events.new(dir, 1234.5)
         local long = ('n'):rep(200)
         assert.is_true(file:add(record(300, { val_loss = 2, time = 7, last = true, word = 'x',
            more = { zeta = 4, [long] = 1 } })))
         assert.is_true(file:add { step = 2 ^ 40, loss = 1 })
         file:close()
         file:close()
         local text, at, list = files.read(file.path), 1, {}
         while at <= #text do
            local n = little.read(text, at, 8)
            local head, body = text:sub(at, at + 7), text:sub(at + 12, at + 11 + n)
            for place, part in each { [at + 8] = head, [at + 12 + n] = body } do
               local c = events.crc32c(part)
               local turned = math.floor(c / 2 ^ 15) + c % 2 ^ 15 * 2 ^ 17
               assert.equal((turned + 0xa282ead8) % 2 ^ 32, little.read(text, place, 4))
            end
            list[#list + 1], at = body, at + 16 + n
         end
         assert.equal(3, #list)
         assert.same({ { 1, events.f64(1234.5) }, { 2, 0 }, { 3, 'brain.Event:2' } },
            fields(list[1]))
         local event = fields(list[2])
         assert.same({ { 1, events.f64(7) }, { 2, 300 } }, { event[1], event[2] })
         local got = {}
         for i, value in ipairs(fields(event[3][2])) do
            local inner = fields(value[2])
            got[i] = { inner[1][2], inner[2][2] }
         end
         assert.same({ { 'train/grad_norm', events.f32(0.5) }, { 'train/loss', events.f32(0.01) },
            { 'train/lr', events.f32(1e-3) }, { 'train/memory_bytes', events.f32(2 ^ 20) },
            { 'train/' .. long, events.f32(1) },
            { 'train/tokens_per_second', events.f32(1234) }, { 'val/loss', events.f32(2) },
            { 'train/zeta', events.f32(4) } }, got)
         assert.same({ { 1, events.f64(0) }, { 2, 2 ^ 40 } }, { fields(list[3])[1],
            fields(list[3])[2] })
      end)
      refused('E_IO', 'cannot write /nowhere/', events.new, '/nowhere', 0)
   end)

   it('has the bits of numbers as the processor has them', function()
      local double, single = ffi.new 'double[1]', ffi.new 'float[1]'
      local list = { 0, -0.0, 1, -1, 0.1, 1 / 3, 2 ^ -126, 2 ^ -149, 2 ^ -150, 1.5 * 2 ^ -150,
         2 ^ -151, 2 ^ 127, 3.4028234663852886e38, 3.4028235677973366e38, 1 / 0, -1 / 0,
         2 ^ -1022, 2 ^ -1074, 1.7976931348623157e308, 1 + 2 ^ -24, 1 + 3 * 2 ^ -24, 2 - 2 ^ -25,
         2 ^ -126 - 2 ^ -151, 16777217, 16777219, -123.456, 5e-324, 1e-40, 0.99999999 }
      for e = -160, 130, 7 do list[#list + 1] = 1.2345678 * 2 ^ e end
      for _, v in ipairs(list) do
         double[0], single[0] = v, v
         assert.equal(ffi.string(double, 8), events.f64(v), tostring(v))
         assert.equal(ffi.string(single, 4), events.f32(v), tostring(v))
      end
      assert.same({ '\0\0\192\127', '\0\0\0\0\0\0\248\127' }, { events.f32(0 / 0),
         events.f64(0 / 0) })
      assert.same({ 0xe3069283, 0 }, { events.crc32c '123456789', events.crc32c '' })
   end)
end)

describe('progress', function()
   local function new(o)
      local out, now = {}, 0
      o.sink = function(s) out[#out + 1] = s end
      o.clock = function() return now end
      return progress.new(o), out, function(t) now = t end
   end

   it('writes every figure, those of one\'s own by name', function()
      assert.equal('loss 1.0000 | val loss 2.5000 | grad norm 0.500 | a b 0.1235 | c 3 '
         .. '| lr 1.00e-03 | 1.50k tokens | 1.23k tok/s | 1.00 MiB',
         progress.fields(record(3, { val_loss = 2.5, tokens = 1500,
            more = { c = 3, a_b = 0.12345 } })))
      for _, name in ipairs { 'loss', 'grad_norm', 'lr', 'tokens_per_second', 'memory_bytes' } do
         refused('E_ARG', { 'r.' .. name, 'a number' }, progress.fields,
            record(3, { [name] = 'x' }))
      end
      refused('E_ARG', 'r.step', new({ steps = 3 }).update, (new { steps = 3 }),
         record(3, { step = 'x' }))
   end)

   it('writes plain lines at its interval, the first, the last and those of evaluations', function()
      for _, row in ipairs { { 0, 4 }, { 7, 5 }, { 10, 100 } } do
         local p, out, at = new { steps = 20, start = row[1], every = row[2], tty = false }
         local want = {}
         for step = row[1] + 1, 20 do
            at(2 * (step - row[1]))
            p:update(record(step, { val_loss = step == 13 and 1 or nil }))
            if step % row[2] == 0 or step == 20 or step == row[1] + 1 or step == 13 then
               want[#want + 1] = ('step %d/20 | %s | eta 0:%02d\n'):format(step,
                  progress.fields(record(step, { val_loss = step == 13 and 1 or nil })),
                  2 * (20 - step))
            end
         end
         assert.same(want, out)
      end
      local p, _, at = new { steps = 10, start = 4, tty = false }
      at(6)
      assert.same({ math.huge, math.huge, 30, 6 }, { p:eta(4), p:eta(3), p:eta(5), p:eta(7) })
      p:expect(13)
      assert.equal(12, p:eta(7))
   end)

   it('draws a bar on a terminal, over what was there', function()
      local p, out, at = new { steps = 16, tty = true, columns = 200 }
      at(3)
      p:update(record(3, { val_loss = 1.5 }))
      local function line(step, filled)
         return ('\r[%s%s] step %d/16 0:%02d | %s'):format(('#'):rep(filled),
            ('.'):rep(16 - filled), step, 3 / step * (16 - step), progress.fields(record(step,
               { val_loss = 1.5 })))
      end
      assert.equal(line(3, 3), out[1])
      p:update(record(12))
      assert.equal(line(12, 12) .. (' '):rep(math.max(0, #out[1] - #line(12, 12))), out[2])
      p:note('a %d', 5)
      assert.same({ '\r' .. (' '):rep(#line(12, 12) - 1) .. '\r', 'a 5\n' }, { out[3], out[4] })
      p:note 'b %d'
      p:finish()
      assert.same({ 'b %d\n' }, { unpack(out, 5) })
      p:update(record(12))
      p:finish()
      assert.equal('\n', out[#out])
      p:update(record(12))
      p:update(record(3))
      assert.equal(line(3, 3) .. ' ', out[#out])
      local edit = require 'tide.ffi.edit'
      local isatty, columns = edit.isatty, edit.columns
      edit.columns = function() return 33 end
      for _, tty in ipairs { false, true } do
         edit.isatty = function() return tty end
         local q = progress.new { steps = 1 }
         assert.same({ tty, tty and 33 or 80 }, { q.tty, q.columns })
      end
      edit.isatty, edit.columns = isatty, columns
      local small, cut = new { steps = 16, tty = true, columns = 20 }
      small:update(record(3))
      assert.equal(line(3, 3):sub(1, 20), cut[1])
      small:update(record(12))
      assert.equal(20, #cut[2])
   end)
end)

describe('runs that are looked at', function()
   it('become series with running means, and CSV', function()
      local list = {}
      for i = 1, 9 do
         list[i] = { step = 2 * i, loss = i == 4 and 0 / 0 or i * i, tokens = i ~= 6 and i or nil }
      end
      for n = 1, 5 do
         local s = watch.series(list, 'a', 'loss', 'tokens', n)
         local xs, ys = {}, {}
         for i = 1, 9 do if i ~= 4 and i ~= 6 then xs[#xs + 1], ys[#ys + 1] = i, i * i end end
         assert.same({ 'a', xs }, { s.name, s.x })
         for i = 1, #ys do
            local sum = 0
            for k = math.max(1, i - n + 1), i do sum = sum + ys[k] end
            assert.is_true(math.abs(s.y[i] - sum / math.min(i, n)) < 1e-9)
         end
      end
      assert.equal('step,b,loss\n1,,0.5\n2,3,nan\n', watch.csv { { step = 1, loss = 0.5 },
         { step = 2, loss = 0 / 0, b = 3 } })
      tmp.with(function(dir)
         for _, path in ipairs { 'a', 'b/c', 'b/d/e' } do
            os.execute(('mkdir -p %s/%s'):format(dir, path))
            files.write(('%s/%s/metrics.jsonl'):format(dir, path), '{"step":1}\n')
         end
         assert.same({ dir .. '/a', dir .. '/b/c' }, watch.find('spec', dir))
         assert.same({ dir .. '/b/d/e' }, watch.find('spec', dir .. '/b/d'))
         assert.same({ dir .. '/a' }, watch.find('spec', dir .. '/a'))
         assert.equal(1, watch.read('spec', dir .. '/a/metrics.jsonl')[1].step)
         refused('E_IO', dir .. ' holds no run', watch.read, 'spec', dir)
      end)
   end)
end)
