-- `tide runs` and `tide plot`: what runs have written in metrics.jsonl, as tables and curves.

local args = require 'tide.util.args'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local metric = require 'tide.train.metric'
local plot = require 'tide.util.plot'
local units = require 'tide.util.units'

local watch = {}

-- ---- reading -----------------------------------------------------------------------------------

-- Returns the records of a run, in order. path: its folder, or the file. E_IO: it has no metrics.
function watch.read(op, path)
   local list, file = {}, path:find '%.jsonl$' and path or fs.join(path, 'metrics.jsonl')
   err.raise_if(not fs.exists(file), 'E_IO', op, '%s holds no run: it has no metrics.jsonl', path)
   for line in fs.read(op, file):gmatch '[^\n]+' do
      list[#list + 1] = metric.parse(line)
   end
   return list
end

-- Returns the folders of runs below dir (or dir itself), at most two levels down, sorted.
function watch.find(op, dir)
   local found = {}
   local function look(path, depth)
      if fs.exists(fs.join(path, 'metrics.jsonl')) then
         found[#found + 1] = path
      elseif depth < 2 then
         local names = fs.list(op, path)
         table.sort(names)
         for _, name in ipairs(names) do
            local below = fs.join(path, name)
            if fs.is_dir(below) then look(below, depth + 1) end
         end
      end
   end
   look(dir, 0)
   return found
end

-- ---- tide runs ---------------------------------------------------------------------------------

-- Returns the last figures of a run: { run, steps, tokens, loss, val_loss, best, speed, when }.
local function summary(path, records)
   local last = records[#records] or {}
   local s = { run = path, steps = last.step, tokens = last.tokens, loss = last.loss,
      speed = last.tokens_per_second, when = last.time }
   for _, r in ipairs(records) do
      local v = r.val_loss
      if v and v == v then s.val_loss, s.best = v, math.min(v, s.best or v) end
   end
   return s
end

local function shown(v, fn) return v == nil and '-' or v ~= v and 'nan' or fn(v) end

local function four(v) return ('%.4f'):format(v) end

local function row_of(s)
   return { plot._line(s.run), shown(s.steps, tostring), shown(s.tokens, units.count),
      shown(s.loss, four), shown(s.val_loss, four), shown(s.best, four),
      shown(s.speed, units.count),
      shown(s.when, function(t) return os.date('%Y-%m-%d %H:%M', t) end) }
end

local function print_table(rows)
   local wide = {}
   for _, row in ipairs(rows) do
      for i, text in ipairs(row) do wide[i] = math.max(wide[i] or 0, #text) end
   end
   for _, row in ipairs(rows) do
      local parts = {}
      for i, text in ipairs(row) do             -- string.format pads to 99 columns at most
         local space = (' '):rep(wide[i] - #text)
         parts[i] = i == 1 and text .. space or space .. text
      end
      io.stdout:write((table.concat(parts, '  '):gsub('%s+$', '')), '\n')
   end
end

-- Returns the names of all figures of records, sorted, `step` first.
local function figures(records)
   local names, seen = {}, {}
   for _, r in ipairs(records) do
      for k in each(r) do
         if not seen[k] then names[#names + 1], seen[k] = k, true end
      end
   end
   table.sort(names, function(a, b)
      if a == 'step' or b == 'step' then return a == 'step' and b ~= 'step' end
      return a < b
   end)
   return names
end

-- Returns the records of a run as CSV, a column for each figure; empty where a step has none.
function watch.csv(records)
   local names = figures(records)
   local lines = { table.concat(names, ',') }
   for _, r in ipairs(records) do
      local parts = {}
      for i, name in ipairs(names) do
         local v = r[name]
         parts[i] = v == nil and '' or v ~= v and 'nan' or ('%.15g'):format(v)
      end
      lines[#lines + 1] = table.concat(parts, ',')
   end
   return table.concat(lines, '\n') .. '\n'
end

local function people(fn, ...)
   return err.people({ 'E_ARG', 'E_IO', 'E_FORMAT' }, fn, ...)
end

local of_runs = { { 'csv', false, 'print every step of the run DIR as CSV' } }

-- Runs `tide runs` with the words after it.
function watch.runs(...)
   local places, rest = args.split(of_runs, { ... })
   local opt = args.parse('runs [DIR]: the runs in a folder with their last figures', of_runs,
      rest)
   if not opt then return end
   people(function()
      local dir = places[1] or 'runs'
      err.usage_if(#places > 1, 'runs', 'expected one folder, got %d', #places)
      if opt.csv then return io.stdout:write(watch.csv(watch.read('runs', dir))) end
      local rows = { { 'run', 'steps', 'tokens', 'loss', 'val', 'best', 'tok/s', 'last step' } }
      for _, path in ipairs(watch.find('runs', dir)) do
         rows[#rows + 1] = row_of(summary(path, watch.read('runs', path)))
      end
      err.usage_if(#rows == 1, 'runs', '%s holds no runs (folders with metrics.jsonl)', dir)
      print_table(rows)
   end)
end

-- ---- tide plot ---------------------------------------------------------------------------------

-- Returns the running means of the last n values. Such a run is the end of one block of n values
-- and the beginning of the next: sums of both need no subtraction, so a large value leaves no
-- rounding error in later means.
local function smooth(y, n)
   local list, rest, sum = {}, {}, 0
   for i, v in ipairs(y) do
      if (i - 1) % n == 0 then
         rest, sum = { [i] = 0 }, 0
         for k = i - 1, math.max(1, i - n), -1 do rest[k] = rest[k + 1] + y[k] end
      end
      sum = sum + v
      list[i] = (sum + (rest[math.max(1, i - n + 1)] or 0)) / math.min(i, n)
   end
   return list
end

-- Returns the figure `name` of records as a series for util.plot, smoothed over n steps; x: the
-- figure that it is drawn over. Steps without both, and values that are not finite, are left out.
function watch.series(records, label, name, x, n)
   local s = { name = label, x = {}, y = {} }
   for _, r in ipairs(records) do
      local at, v = r[x], r[name]
      local finite = v and math.abs(v) < math.huge
      if at and finite then s.x[#s.x + 1], s.y[#s.y + 1] = at, v end
   end
   s.y = smooth(s.y, n)
   return s
end

local rows = {
   { 'metric', 'loss', 'figure to plot', also = { 'y' } },
   { 'x', 'step', 'figure of the x axis', choices = { 'step', 'tokens', 'time' } },
   { 'smooth', 1, 'steps of the running mean', min = 1 },
   { 'log-x', false, 'logarithmic x axis' },
   { 'log-y', false, 'logarithmic y axis' },
   { 'out', nil, 'SVG file to write; default: plot in the terminal only', type = 'string' },
   { 'width', 78, 'columns of the terminal plot', min = 30, max = 400 },
   { 'height', 18, 'rows of the terminal plot', min = 5, max = 200 },
}

-- Runs `tide plot` with the words after it.
function watch.plot(...)
   local places, rest = args.split(rows, { ... })
   local opt = args.parse('plot RUN..: plot one figure of several runs in the terminal and in an '
      .. 'SVG', rows, rest)
   if not opt then return end
   people(function()
      err.usage_if(#places == 0, 'plot', 'expected folders of runs, got none; see tide plot --help')
      err.usage_if(opt.out and not opt.out:find '%.svg$', 'plot', '--out: expected a file .svg, '
         .. 'got %q', opt.out)
      local list = {}
      for i, path in ipairs(places) do
         local records = watch.read('plot', path)
         list[i] = watch.series(records, path, opt.metric, opt.x, opt.smooth)
         local has = #list[i].x == 0 and table.concat(figures(records), ', ')
         err.usage_if(has, 'plot', "%s has no '%s' over '%s'; its figures: %s", path, opt.metric,
            opt.x, has ~= '' and has or 'none')
      end
      local o = { xlabel = opt.x, ylabel = opt.metric, logx = opt.log_x, logy = opt.log_y,
         columns = opt.width, rows = opt.height }
      io.stdout:write(plot.text(list, o))
      if opt.out then fs.write('plot', opt.out, plot.svg(list, o)) end
   end)
end

return watch
