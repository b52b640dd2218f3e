-- Names the rank that keeps the others waiting.
--
-- Time between collectives is a rank's own; time inside them is mostly waiting. So a rank counts,
-- over a window of steps, the seconds of each section of its program less the seconds of blocking
-- collectives. At the end of a window the ranks exchange these sums once, and every rank finds the
-- same answer: the slowest rank, if its own time is more than `ratio` of the median, and the
-- section that exceeds its median most.

local copy = require('tide.util.dims').copy
local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local straggler = {}

local Watch = {}
Watch.__index = Watch

-- Begins to measure which rank is slow, and in which section of a step.
function straggler.new(opts)
   local self = setmetatable({
      comm = opts.comm, sections = opts.sections or { 'step' }, own = {}, step = 0,
      steps = opts.steps, ratio = opts.ratio,
      clock = opts.clock or require('tide').clock,
   }, Watch)
   self:clear()
   self:mark()
   return self
end

-- Forgets the time of all sections and the steps that were counted.
function Watch:clear()
   for i = 1, #self.sections do self.own[i] = 0 end
   self.step = 0
end

-- Starts the time of the section that the next lap names.
function Watch:mark()
   self.at, self.waited = self.clock(), self.comm.size > 1 and self.comm:waited() or 0
end

-- Ends section i (from 1).
function Watch:lap(i)
   err.integer('comm.straggler.lap', 'i', i, 1, #self.sections)
   local at, waited = self.at, self.waited
   self:mark()
   self.own[i] = self.own[i] + math.max(0, self.at - at - (self.waited - waited))
end

-- Returns the median of a list of numbers.
function straggler.median(list)
   local sorted = copy(list)
   table.sort(sorted)
   local n = #sorted
   return n % 2 == 1 and sorted[(n + 1) / 2] or (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

-- Returns the usual time: the median, or of two ranks the smaller one.
local function usual(list)
   return #list == 2 and math.min(list[1], list[2]) or straggler.median(list)
end

-- Returns the slow rank of rows[rank + 1][section] as { rank, ratio, section, seconds }, or nil.
function straggler.find(rows, sections, ratio)
   local sums, slow = {}, 1
   for r, row in ipairs(rows) do
      sums[r] = 0
      for i = 1, #sections do sums[r] = sums[r] + row[i] end
      if sums[r] > sums[slow] then slow = r end
   end
   local base = usual(sums)
   if #rows < 2 or base <= 0 or sums[slow] <= ratio * base then return nil end
   local worst, extra = 1, -math.huge
   for i = 1, #sections do
      local column = {}
      for r, row in ipairs(rows) do column[r] = row[i] end
      local beyond = rows[slow][i] - usual(column)
      if beyond > extra then worst, extra = i, beyond end
   end
   return { rank = slow - 1, ratio = sums[slow] / base, section = sections[worst],
            seconds = sums[slow] - base }
end

-- Ends a step; all ranks call it the same number of times. At the end of a window it returns what
-- find returns, and a line of text.
function Watch:next()
   self.step = self.step + 1
   if self.step < self.steps or self.comm.size == 1 then return nil end
   local tide = require 'tide'
   local mine = tide.tensor(self.own, { dtype = 'f64', device = 'cpu' }):reshape { 1, #self.own }
   local rows = self.comm:all_gather(mine):tolist()
   local steps = self.step
   self:clear()
   self:mark()
   local f = straggler.find(rows, self.sections, self.ratio)
   if not f then return nil end
   f.line = ("rank %d is slow: %.2f times the median over %d steps, most of it in '%s' (%.0f ms a "
      .. 'step)'):format(f.rank, f.ratio, steps, f.section, f.seconds / steps * 1e3)
   return f
end

return signature.doors('comm.straggler', straggler, {
   new = { op = 'comm.straggler', opts = {
      'comm: table -- the ranks', 'sections: string[]? -- parts of a step, by name',
      'steps: integer >= 1 = 20 -- steps of a window',
      'ratio: number >= 1 = 1.2 -- a rank is slow from this times the median on',
      'clock: function? -- seconds' } },
})
