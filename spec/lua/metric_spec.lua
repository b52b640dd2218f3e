-- train/metric and train/progress: lines, curves, resumption, terminal and plain output.

local metric = require 'tide.train.metric'
local progress = require 'tide.train.progress'
local read = require('spec.support.files').read
local tmp = require 'spec.support.tmp'

local function record(step, val)
   return {
      step = step, loss = 3 / step, val_loss = val, grad_norm = 0.5, lr = 1e-3,
      tokens_per_second = 1234, memory_bytes = 2^20,
   }
end

local function lines_of(path)
   local list = {}
   for line in io.lines(path) do list[#list + 1] = line end
   return list
end

describe('train.metric', function()
   local events = require 'tide.train.events'

   local function records_of(text)
      local list, at = {}, 1
      while at <= #text do
         local n = text:byte(at) + 256 * text:byte(at + 1)
         list[#list + 1] = text:sub(at + 12, at + 11 + n)
         at = at + 16 + n
      end
      return list
   end

   it('writes TensorBoard records, and those up to the step that it goes on after', function()
      tmp.with(function(dir)
         local function written(first, last)
            local m = metric.new { out = dir, step = first - 1, tensorboard = true }
            for s = first, last do m:add(record(s)) end
            m:close()
            local file = assert(io.open(dir .. '/events.out.tfevents.0.tide', 'rb'))
            local text = file:read '*a'
            file:close()
            return records_of(text)
         end
         assert.equal(6, #written(1, 5))
         local list = written(4, 4)
         assert.equal(5, #list)
         assert.equal('\26\13brain.Event:2', list[1]:sub(-15))
         assert.equal('\16\4', list[5]:sub(10, 11))
         assert.matches('train/loss\21\0\0\64\63', (list[5]:gsub('%z', '\0')), 1, true)
      end)
   end)

   it('begins anew where all lines are of later steps', function()
      tmp.with(function(dir)
         local m = metric.new { out = dir, step = 0 }
         m:add(record(5))
         m:close()
         metric.new({ out = dir, step = 4 }):close()
         assert.equal('', read(dir .. '/metrics.jsonl'))
      end)
   end)

   it('has the check sum of the format, and the bits of its numbers', function()
      assert.equal(0xe3069283, events.crc32c '123456789')
      local ffi = require 'ffi'
      for i = 1, 2000 do
         local v = math.sin(i) * 2 ^ (i % 300 - 150)
         assert.equal(ffi.string(ffi.new('double[1]', v), 8), events.f64(v))
         assert.equal(ffi.string(ffi.new('float[1]', v), 4), events.f32(v))
      end
      for _, v in ipairs { 0, -0.0, 1 / 0, -1 / 0, 1e39, 5e-324, 3.4028235e38, 1 + 2 ^ -24 } do
         assert.equal(ffi.string(ffi.new('float[1]', v), 4), events.f32(v))
      end
   end)

   it('writes one line a step with the agreed names', function()
      tmp.with(function(dir)
         local m = metric.new { out = dir }
         m:add(record(1))
         m:add(record(2, 1.25))
         m:close()
         assert.same({
            '{"step":1,"loss":3,"grad_norm":0.5,"lr":0.001,"tokens_per_second":1234,'
               .. '"memory_bytes":1048576}',
            '{"step":2,"loss":1.5,"val_loss":1.25,"grad_norm":0.5,"lr":0.001,'
               .. '"tokens_per_second":1234,"memory_bytes":1048576}',
         }, lines_of(dir .. '/metrics.jsonl'))
      end)
   end)

   it('writes null for what is not finite', function()
      assert.equal('{"step":1,"loss":null}', metric.line { step = 1, loss = 0 / 0 })
      assert.equal('{"step":1,"loss":null}', metric.line { step = 1, loss = 1 / 0 })
   end)

   it('drops the lines after the step it goes on from, and a torn one', function()
      tmp.with(function(dir)
         local m = metric.new { out = dir }
         for s = 1, 5 do m:add(record(s)) end
         m:close()
         local f = io.open(dir .. '/metrics.jsonl', 'ab')
         f:write '{"step":6,"lo'
         f:close()
         m = metric.new { out = dir, step = 3 }
         m:add(record(4))
         m:close()
         local lines = lines_of(dir .. '/metrics.jsonl')
         assert.equal(4, #lines)
         assert.equal(4, metric.parse(lines[4]).step)
         assert.equal(4, #m.series.loss.x)
      end)
   end)

   -- A disk that takes `room` bytes more, as a file does.
   local function full(file, room)
      local disk = { room = room }
      function disk:seek() return file:seek 'end' end
      function disk:close() return file:close() end
      function disk:write(text)
         local n = math.min(#text, self.room)
         self.room = self.room - n
         file:write(text:sub(1, n))
         if n < #text then return nil, 'No space left on device' end
         return file
      end
      return disk
   end

   it('writes lines that found no room when there is some, each once', function()
      for room = 0, 280, 7 do
         tmp.with(function(dir)
            local m = metric.new { out = dir }
            m.file = full(m.file, room)
            local ok, why
            for s = 1, 3 do ok, why = m:add(record(s)) end
            assert.is_nil(ok)
            assert.equal('No space left on device', why)
            m.file.room = 1000
            assert.is_true(m:add(record(4)))
            assert.equal(0, m:close())
            local lines = lines_of(dir .. '/metrics.jsonl')
            assert.equal(4, #lines)
            for s = 1, 4 do assert.equal(metric.line(record(s)), lines[s]) end
         end)
      end
   end)

   it('starts anew without a step', function()
      tmp.with(function(dir)
         local m = metric.new { out = dir }
         m:add(record(1))
         m:close()
         metric.new({ out = dir }):close()
         assert.equal(0, #lines_of(dir .. '/metrics.jsonl'))
      end)
   end)

   it('draws and averages', function()
      tmp.with(function(dir)
         local m = metric.new { out = dir }
         m:add(record(1))
         m:add(record(3, 2))
         m:draw 'title'
         m:close()
         assert.matches('validation loss', table.concat(lines_of(dir .. '/loss.svg')), 1, true)
         assert.equal(2, m:average(2))
         assert.equal(1, m:average(1))
      end)
   end)

   it('says so when the folder cannot be written', function()
      local ok, e = pcall(metric.new, { out = '/nowhere/at/all' })
      assert.is_false(ok)
      assert.equal('E_IO', e.code)
   end)
end)

describe('train.progress', function()
   local function new(opts)
      local out, now = {}, 0
      opts.sink = function(s) out[#out + 1] = s end
      opts.clock = function() return now end
      opts.steps = 20
      local p = progress.new(opts)
      return p, out, function(t) now = t end
   end

   it('prints plain lines now and then, with every figure', function()
      local p, out, at = new { tty = false, every = 10 }
      for s = 1, 20 do
         at(s)
         p:update(record(s, s == 5 and 2.5 or nil))
      end
      p:finish()
      assert.equal(4, #out)
      assert.equal('step 1/20 | loss 3.0000 | grad norm 0.500 | lr 1.00e-03 | 1.23k tok/s'
         .. ' | 1.00 MiB | eta 0:19\n', out[1])
      assert.matches('val loss 2.5000', out[2], 1, true)
   end)

   it('rewrites one line on a terminal and keeps inside it', function()
      local p, out, at = new { tty = true, columns = 60 }
      at(1)
      p:update(record(1))
      p:update(record(10))
      p:note 'hello'
      p:update(record(20))
      p:finish()
      assert.matches('^\r%[#%.+%] step 1/20 0:19 | loss', out[1])
      for _, s in ipairs { out[1], out[2] } do
         assert.is_nil(s:find '\n')
         assert.is_true(#s <= 60)
      end
      assert.equal('hello\n', out[4])
      assert.equal('\n', out[#out])
   end)

   it('leaves a terminal alone where it has shown nothing', function()
      local p, out = new { tty = true, columns = 60 }
      p:finish()
      assert.same({}, out)
   end)

   it('is silent when told', function()
      local p, out = new { tty = true, quiet = true }
      p:update(record(1))
      p:note 'x'
      p:finish()
      assert.same({}, out)
   end)
end)
