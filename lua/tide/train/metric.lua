-- Metrics of a run: one JSON line a step, averages for people, a loss curve.
--
-- metrics.jsonl is append-only and each line is one write, so it survives a crash; a resumed run
-- first drops the lines after the step it continues from. The curve is rewritten from the kept
-- points. A line that the disk does not take waits in memory and is written with a later one: a run
-- does not end for its metrics. Only rank 0 writes. Pure Lua.

local err = require 'tide.util.err'
local events = require 'tide.train.events'
local fs = require 'tide.util.fs'
local plot = require 'tide.util.plot'
local signature = require 'tide.util.signature'
local sorted_keys = require('tide.util.pretty').sorted_keys

local metric = {}

local Metric = {}
Metric.__index = Metric

local function number_text(v)
   if v ~= v or math.abs(v) == math.huge then return 'null' end
   if v == math.floor(v) and math.abs(v) < 1e15 then return ('%d'):format(v) end
   return ('%.9g'):format(v)
end

local order = { 'step', 'loss', 'val_loss', 'grad_norm', 'lr', 'tokens_per_second',
                'memory_bytes', 'skipped', 'tokens', 'time' }

local own = { last = true, more = true }
for _, name in ipairs(order) do own[name] = true end

-- Returns whether a name is that of a figure that every step has.
function metric.is_own(name) return own[name] == true end

-- Returns a line of JSON from a record of numbers: those of every step in a fixed order, then those
-- of the table `more` by name.
function metric.line(record)
   local op, parts = 'train.metric.line', {}
   err.type(op, 'record', record, 'table')
   local more = err.type(op, 'record.more', record.more or {}, 'table')
   local function add(k, v)
      if v == nil then return end
      if type(v) ~= 'number' then err.arg(op, 'record.' .. k, 'a number', v) end
      parts[#parts + 1] = ('"%s":%s'):format(k, number_text(v))
   end
   for _, k in ipairs(order) do add(k, record[k]) end
   for _, k in ipairs(sorted_keys(more)) do add(k, more[k]) end
   return '{' .. table.concat(parts, ',') .. '}'
end

-- Returns the record of a line of metrics.jsonl; nil for a torn last line.
function metric.parse(line)
   if not line:match '^{.*}$' then return nil end
   local record = {}
   for k, v in line:gmatch '"([%w_]+)":([^,}]+)' do
      record[k] = v == 'null' and 0 / 0 or tonumber(v)
   end
   return record.step and record or nil
end

local function keep(self, record)
   local s = self.series
   s.loss.x[#s.loss.x + 1], s.loss.y[#s.loss.y + 1] = record.step, record.loss
   if record.val_loss then
      s.val.x[#s.val.x + 1], s.val.y[#s.val.y + 1] = record.step, record.val_loss
   end
end

-- Reads the lines up to `step` back in and rewrites the file without the rest.
local function rewind(self, step)
   if not fs.exists(self.path) then return end
   local lines = {}
   for line in fs.read('train.metric', self.path):gmatch '[^\n]+' do
      local record = metric.parse(line)
      if record and record.step <= step then
         lines[#lines + 1] = line
         keep(self, record)
         if self.events then self.events:add(record) end
      end
   end
   fs.write('train.metric', self.path, #lines > 0 and table.concat(lines, '\n') .. '\n' or '')
end

-- Opens the record of a run.
function metric.new(opts)
   local self = setmetatable({
      waiting = '', lost = 0,
      series = {
         loss = { name = 'training loss', x = {}, y = {} },
         val = { name = 'validation loss', x = {}, y = {}, points = true },
      },
   }, Metric)
   if opts.out then
      self.out, self.path = opts.out, fs.join(opts.out, 'metrics.jsonl')
      if opts.tensorboard then self.events = events.new(opts.out, os.time()) end
      if opts.step > 0 then rewind(self, opts.step) else os.remove(self.path) end
      local why
      self.file, why = io.open(self.path, 'ab')
      if not self.file then err.raise('E_IO', 'train.metric.new', 'cannot write %s', why) end
      self.file:setvbuf 'no'
   end
   return self
end

local most_waiting = 2^20 -- bytes

-- Adds a record: step, loss, grad_norm, lr, tokens_per_second, memory_bytes, val_loss if evaluated,
-- and more (figures of one's own by name). True when all lines are in the file; else nil and the
-- system's reason.
function Metric:add(record)
   keep(self, record)
   if not self.file then return true end
   if #self.waiting < most_waiting then
      self.waiting = self.waiting .. metric.line(record) .. '\n'
   else
      self.lost = self.lost + 1
   end
   local ok, why = self:flush()
   if self.events then
      local written, reason = self.events:add(record)
      if not written then return nil, reason end
   end
   return ok, why
end

-- Writes the lines that wait. True when none is left; else nil and the system's reason.
function Metric:flush()
   if not self.file or self.waiting == '' then return true end
   local before = self.file:seek 'end'
   local ok, why = self.file:write(self.waiting)
   local written = ok and #self.waiting or (self.file:seek 'end') - before
   self.waiting = self.waiting:sub(written + 1)
   if not ok then return nil, why end
   return true
end

-- Returns the mean training loss of the last n steps; NaN without one.
function Metric:average(n)
   local y = self.series.loss.y
   local sum, count = 0, 0
   for i = math.max(1, #y - n + 1), #y do sum, count = sum + y[i], count + 1 end
   return sum / count
end

-- Returns the curves of training and validation loss as the text of an SVG.
function Metric:svg(title)
   return plot.svg({ self.series.loss, self.series.val },
      { title = title or '', xlabel = 'step', ylabel = 'loss (nats per token)' })
end

-- Writes loss.svg beside the metrics.
function Metric:draw(title)
   if self.out then fs.write('train.metric', fs.join(self.out, 'loss.svg'), self:svg(title)) end
end

-- Closes the file; idempotent. Returns the number of lines that could not be written.
function Metric:close()
   if self.file then
      self:flush()
      self.file:close()
   end
   if self.events then self.events:close() end
   self.file, self.events = nil, nil
   local _, waiting = self.waiting:gsub('\n', '')
   return self.lost + waiting
end

signature.doors('train.metric', Metric, { add = 'record: table', average = 'n: integer >= 0' })
return signature.doors('train.metric', metric, {
   new = { opts = {
      'out: string? -- folder of the file; without it nothing is written to disk',
      'tensorboard: boolean? -- writes an event file of the same figures, too',
      'step: integer >= 0 = 0 -- step to continue after; 0: a new run' } },
   parse = 'line: string',
})
