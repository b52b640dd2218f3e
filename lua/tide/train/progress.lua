-- Progress of a run on standard error: one line that is rewritten on a terminal, with a bar and
-- the time left; plain lines, now and then, otherwise.
--
-- Where it writes and whether that is a terminal are given, so that it can be tested.

local err = require 'tide.util.err'
local signature = require 'tide.util.signature'
local units = require 'tide.util.units'
local sorted_keys = require('tide.util.pretty').sorted_keys

local progress = {}

local Progress = {}
Progress.__index = Progress

-- Begins the line of a run.
function progress.new(opts)
   local tty, columns = opts.tty, opts.columns
   if tty == nil then
      local ok, edit = pcall(require, 'tide.ffi.edit')
      tty = ok and edit.isatty(2) or false
      columns = tty and edit.columns() or nil
   end
   local clock = opts.clock or os.time
   return setmetatable({
      steps = opts.steps, start = opts.start, every = opts.every, tty = tty,
      columns = columns or 80, sink = opts.sink or function(s) io.stderr:write(s) end,
      clock = clock, began = clock(), quiet = opts.quiet, width = 0,
   }, Progress)
end

local function bar(done, width)
   local full = math.floor(done * width + 0.5)
   return '[' .. ('#'):rep(full) .. ('.'):rep(width - full) .. ']'
end

-- Returns a record as text, with figures of the caller (run:metric) after the norm: "loss 2.345 |
-- val 2.5 | norm 0.9 | lr 3.00e-04 | 1.2M tokens | 12.3k tok/s | 1.2 GiB"
function progress.fields(r)
   for _, k in ipairs { 'loss', 'grad_norm', 'lr', 'tokens_per_second', 'memory_bytes' } do
      err.arg_if(type(r[k]) ~= 'number', 'train.progress.fields', 'r.' .. k, 'a number', r[k])
   end
   local parts = { ('loss %.4f'):format(r.loss) }
   if r.val_loss then parts[#parts + 1] = ('val loss %.4f'):format(r.val_loss) end
   parts[#parts + 1] = ('grad norm %.3f'):format(r.grad_norm)
   for _, name in ipairs(sorted_keys(r.more or {})) do
      parts[#parts + 1] = ('%s %.4g'):format((name:gsub('_', ' ')), r.more[name])
   end
   parts[#parts + 1] = ('lr %.2e'):format(r.lr)
   if type(r.tokens) == 'number' then parts[#parts + 1] = units.count(r.tokens) .. ' tokens' end
   parts[#parts + 1] = units.count(r.tokens_per_second) .. ' tok/s'
   parts[#parts + 1] = units.bytes(r.memory_bytes)
   return table.concat(parts, ' | ')
end

-- Returns the seconds that are left after `step`, at the pace so far.
function Progress:eta(step)
   local done = step - self.start
   if done < 1 then return math.huge end
   return (self.clock() - self.began) / done * (self.steps - step)
end

local function rewrite(self, text)
   text = text:sub(1, self.columns - 1)
   local pad = (' '):rep(math.max(0, self.width - #text))
   self.width = #text
   self.sink('\r' .. text .. pad)
end

-- Sets the number of steps in all.
function Progress:expect(steps) self.steps = steps end

-- Shows a record, as train.metric takes it.
function Progress:update(r)
   err.number('train.progress.update', 'r.step', r.step)
   if self.quiet then return end
   local head = ('step %d/%d'):format(r.step, self.steps)
   if self.tty then
      self.last_val = r.val_loss or self.last_val
      local shown = setmetatable({ val_loss = self.last_val }, { __index = r })
      rewrite(self, ('%s %s %s | %s'):format(bar(r.step / self.steps, 16), head,
         units.duration(self:eta(r.step)), progress.fields(shown)))
   elseif r.val_loss or r.step % self.every == 0 or r.step == self.steps
      or r.step == self.start + 1 then
      self.sink(('%s | %s | eta %s\n'):format(head, progress.fields(r),
         units.duration(self:eta(r.step))))
   end
end

-- Prints a line of its own, above the bar if there is one.
function Progress:note(fmt, ...)
   if self.quiet then return end
   local text = select('#', ...) > 0 and fmt:format(...) or fmt
   if self.tty and self.width > 0 then
      self.sink('\r' .. (' '):rep(self.width) .. '\r')
      self.width = 0
   end
   self.sink(text .. '\n')
end

-- Leaves the bar on its line.
function Progress:finish()
   if not self.quiet and self.tty and self.width > 0 then self.sink '\n' end
   self.width = 0
end

signature.doors('train.progress', Progress, {
   eta = 'step: number', expect = 'steps: integer >= 0', update = 'r: table', note = 'fmt: string',
})
return signature.doors('train.progress', progress, {
   new = { opts = {
      'steps: integer? >= 0 -- steps of the whole run',
      'start: integer >= 0 = 0 -- steps before it',
      'every: integer >= 0 = 10 -- steps between plain lines',
      'tty: boolean? -- whether to draw a progress bar; by default on a terminal',
      'columns: integer? >= 0 -- width of the terminal', 'sink: function? -- takes a text',
      'clock: function? -- seconds', 'quiet: boolean = false -- writes nothing' } },
   fields = 'r: table',
})
