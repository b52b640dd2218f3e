-- Names the rank that keeps the others waiting.
--
-- What a rank does between collectives is its own time; what it spends in them is
-- mostly waiting. So a rank counts, over a window of steps, the seconds of each section of its
-- program less the seconds that blocking collectives took meanwhile. At the end of a window the
-- ranks exchange these sums once, and every rank finds the same answer: the slowest rank, if its
-- own time is more than `ratio` of the median, and its section that is longest beyond the median.

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

-- From here on time counts for the section that lap names.
function Watch:mark()
   self.at, self.waited = self.clock(), self.comm.size > 1 and self.comm:waited() or 0
end

-- Section i (from 1) ends here.
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

-- With two ranks the median would be half of the slow one: the quicker is the measure.
local function usual(list)
   return #list == 2 and math.min(list[1], list[2]) or straggler.median(list)
end

-- rows[rank + 1][section]: nil, or { rank, ratio, section, seconds }.
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

-- A step ends. At the end of a window (all ranks call it the same number of times): what find
-- returns, and a line for people.
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
