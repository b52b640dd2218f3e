-- A line plot as one self-contained SVG text: axes with round ticks, a legend, no scripts.
--
-- series: list of { name=, x = {...}, y = {...}, points=bool }. Points that are not finite, or have
-- a number beyond 1e300, are left out. Long series are thinned by taking the mean of equal runs, so
-- a file stays small.
-- The colours are distinguishable in greyscale and for the common colour deficiencies.

local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local plot = {}

local colours = { '#0b5394', '#cc5500', '#2e7d32', '#7b1fa2', '#b8860b', '#555555' }
local width, height = 720, 420
local left, right, top, bottom = 64, 16, 36, 48

local function fits(v) return math.abs(v) <= 1e300 end       -- sums and ranges stay finite

-- Returns the points of a series that fit, above 0 on logarithmic axes, averaged to at most `limit`
-- points.
local function thin(series, limit, opts)
   local xs, ys = {}, {}
   for i = 1, #series.x do
      local x, y = series.x[i], series.y[i] or 0 / 0
      if fits(x) and fits(y) and (x >= 1e-300 or not opts.logx)
         and (y >= 1e-300 or not opts.logy) then
         xs[#xs + 1], ys[#ys + 1] = x, y
      end
   end
   local run = math.ceil(#xs / limit)
   if run <= 1 then return xs, ys end
   local tx, ty = {}, {}
   for first = 1, #xs, run do
      local last = math.min(first + run - 1, #xs)
      local sx, sy = 0, 0
      for i = first, last do sx, sy = sx + xs[i], sy + ys[i] end
      tx[#tx + 1], ty[#ty + 1] = sx / (last - first + 1), sy / (last - first + 1)
   end
   return tx, ty
end

-- Returns about n ticks, in steps of 1, 2 or 5 times a power of ten.
function plot.ticks(lo, hi, n)
   local raw = (hi - lo) / n
   local power = 10 ^ math.floor(math.log10(raw))
   local step = 10 * power
   for _, m in ipairs { 1, 2, 5 } do
      if m * power >= raw then
         step = m * power
         break
      end
   end
   local list = {}
   for k = math.ceil(lo / step - 1e-9) + 0, math.floor(hi / step + 1e-9) do      -- no -0
      list[#list + 1] = k * step
   end
   return list
end

-- Returns the ends of an axis with the values lo to hi. A range that rounding makes is widened:
-- ticks a rounding error apart cannot be counted.
local function widened(lo, hi, log)
   if log and hi / lo > 1 + 1e-9 then return lo, hi end
   if log then return lo / 2, hi * 2 end
   local size = math.max(math.abs(lo), math.abs(hi))
   if hi - lo > math.max(1e-9 * size, 1e-300) then return lo, hi end
   local half = math.max(0.5, 1e-6 * size)
   return lo - half, hi + half
end

-- Returns the ends of an axis with these lists of values; without any those of [0, 1], or [1, 10].
local function bounds(lists, log)
   local lo, hi = math.huge, -math.huge
   for _, list in ipairs(lists) do
      for _, v in ipairs(list) do lo, hi = math.min(lo, v), math.max(hi, v) end
   end
   if lo <= hi then return widened(lo, hi, log) end
   return log and 1 or 0, log and 10 or 1
end

-- Returns the values of 1 (2 and 5, below three powers) times a power of ten between lo and hi.
local function log_ticks(lo, hi)
   local list = {}
   for e = math.floor(math.log10(lo)), math.ceil(math.log10(hi)) do
      for _, m in ipairs(hi / lo < 1000 and { 1, 2, 5 } or { 1 }) do
         local v = m * 10 ^ e
         if v >= lo * (1 - 1e-9) and v <= hi * (1 + 1e-9) then list[#list + 1] = v end
      end
   end
   return list
end

-- Returns an axis from place a to place b: { at(value), ticks(n) }.
local function axis(lists, log, a, b)
   local lo, hi = bounds(lists, log)
   local function to(v) return log and math.log10(v) or v end
   local first, span = to(lo), to(hi) - to(lo)
   local self = {}
   function self.at(v) return a + (to(v) - first) / span * (b - a) end
   function self.ticks(n)
      local list = log and log_ticks(lo, hi) or {}
      return #list > 1 and list or plot.ticks(lo, hi, n)
   end
   return self
end

-- Returns a text on one line: a control character is a backslash and its number.
function plot._line(text)
   return (tostring(text):gsub('%c', function(c) return ('\\%d'):format(c:byte()) end))
end

local function escape(text)
   return (plot._line(text):gsub('[&<>"]', {
      ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;',
   }))
end

local function axes(out, frame, xlabel, ylabel)
   local function put(fmt, ...) out[#out + 1] = fmt:format(...) end
   for _, v in ipairs(frame.x.ticks(6)) do
      local x = frame.x.at(v)
      put('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e0e0e0"/>', x, top, x,
         height - bottom)
      put('<text x="%.1f" y="%d" text-anchor="middle">%.6g</text>', x, height - bottom + 16, v)
   end
   for _, v in ipairs(frame.y.ticks(6)) do
      local y = frame.y.at(v)
      put('<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#e0e0e0"/>', left, y,
         width - right, y)
      put('<text x="%d" y="%.1f" text-anchor="end">%.6g</text>', left - 6, y + 4, v)
   end
   put('<text x="%d" y="%d" text-anchor="middle">%s</text>', (left + width - right) / 2,
      height - 10, escape(xlabel))
   put('<text x="14" y="%d" text-anchor="middle" transform="rotate(-90 14 %d)">%s</text>',
      height / 2, height / 2, escape(ylabel))
end

local function curve(out, frame, xs, ys, colour, with_points)
   local points = {}
   for i = 1, #xs do
      points[i] = ('%.1f,%.1f'):format(frame.x.at(xs[i]), frame.y.at(ys[i]))
   end
   if #points > 1 then
      out[#out + 1] = ('<polyline fill="none" stroke="%s" stroke-width="1.5" points="%s"/>')
         :format(colour, table.concat(points, ' '))
   end
   if with_points or #points == 1 then
      for _, p in ipairs(points) do
         out[#out + 1] = ('<circle cx="%s" cy="%s" r="2.5" fill="%s"/>')
            :format(p:match '^[^,]+', p:match '[^,]+$', colour)
      end
   end
end

-- Returns the points of all series, thinned: lists of x and of y.
local function points_of(series, opts)
   local xs, ys = {}, {}
   for i, s in ipairs(series) do xs[i], ys[i] = thin(s, 1000, opts) end
   return xs, ys
end

-- Adds the names of series: beside each other, or below each other if there are more than two.
local function legend(out, series)
   local x = left
   for i, s in ipairs(series) do
      local below = #series > 2
      out[#out + 1] = ('<text x="%d" y="%d"%s fill="%s">%s</text>'):format(
         below and width - right - 6 or x, below and top + 2 + 14 * i or 26,
         below and ' text-anchor="end"' or '', colours[(i - 1) % #colours + 1], escape(s.name))
      x = x + 14 + 7 * #tostring(s.name)
   end
end

-- Returns a plot as SVG. opts: title, xlabel, ylabel, logx and logy (logarithmic axes: what is not
-- above 0 is left out).
function plot.svg(series, opts)
   local xs, ys = points_of(series, opts)
   local frame = { x = axis(xs, opts.logx, left, width - right),
      y = axis(ys, opts.logy, height - bottom, top) }
   local out = {
      ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
         .. 'font-family="sans-serif" font-size="12">'):format(width, height, width, height),
      '<rect width="100%" height="100%" fill="white"/>',
   }
   axes(out, frame, opts.xlabel or '', opts.ylabel or '')
   for i, s in ipairs(series) do
      curve(out, frame, xs[i], ys[i], colours[(i - 1) % #colours + 1], s.points)
   end
   legend(out, series)
   out[#out + 1] = ('<text x="%d" y="26" text-anchor="end">%s</text>')
      :format(width - right, escape(opts.title or ''))
   out[#out + 1] = '</svg>'
   return table.concat(out, '\n') .. '\n'
end

local marks = { '*', '+', 'o', 'x', '#', '@', '%', '=' }

-- Returns the rows of characters of a plot, without axes.
local function grid_of(xs, ys, x, y, columns, rows)
   local grid = {}
   for r = 1, rows do
      grid[r] = {}
      for c = 1, columns do grid[r][c] = ' ' end
   end
   for i = 1, #xs do
      for k = 1, #xs[i] do
         local c, r = math.floor(x.at(xs[i][k]) + 0.5), math.floor(y.at(ys[i][k]) + 0.5)
         grid[r][c] = marks[(i - 1) % #marks + 1]
      end
   end
   return grid
end

-- Returns the line of numbers below the x axis, at most `wide` columns.
local function numbers_of(x, wide)
   local line = (' '):rep(wide)
   for _, v in ipairs(x.ticks(5)) do
      local text = ('%.6g'):format(v)
      local at = math.min(10 + math.floor(x.at(v) + 0.5), wide - #text)
      line = line:sub(1, at) .. text .. line:sub(at + #text + 1)
   end
   return (line:gsub('%s+$', ''))
end

-- Returns the plot as text, a mark for each series. opts: as of svg; columns (78) and rows (18).
function plot.text(series, opts)
   local xs, ys = points_of(series, opts)
   local columns, rows = (opts.columns or 78) - 11, opts.rows or 18
   local x, y = axis(xs, opts.logx, 1, columns), axis(ys, opts.logy, rows, 1)
   local grid, labels, out = grid_of(xs, ys, x, y, columns, rows), {}, {}
   for _, v in ipairs(y.ticks(4)) do labels[math.floor(y.at(v) + 0.5)] = ('%.4g'):format(v) end
   for r = 1, rows do
      out[r] = (('%9s |%s'):format(labels[r] or '', table.concat(grid[r])):gsub('%s+$', ''))
   end
   out[rows + 1] = (' '):rep(10) .. '+' .. ('-'):rep(columns)
   out[rows + 2] = numbers_of(x, columns + 11)
   for i, s in ipairs(series) do
      out[#out + 1] = ('%10s %s'):format(marks[(i - 1) % #marks + 1], plot._line(s.name))
   end
   return table.concat(out, '\n') .. '\n'
end

local opts = { 'title: any?', 'xlabel: any?', 'ylabel: any?', 'logx: boolean?', 'logy: boolean?',
   'columns: integer? >= 30', 'rows: integer? >= 3' }
signature.reader('points', 'numbers', function(op, name, v)
   for j, x in ipairs(err.type(op, name, v, 'table')) do
      err.arg_if(type(x) ~= 'number', op, ('%s[%d]'):format(name, j), 'a number', x)
   end
   return v
end, 'number[]')
signature.record('series', 'a table { x =, y = }', { 'x: points', 'y: points' })
return signature.doors('util.plot', plot, {
   ticks = 'lo: number; hi: number; n: integer in [1, 1000]; where lo < hi -- '
      .. "argument 'hi': expected a number > {lo}, got {hi}",
   svg = { 'series: series[]', opts = opts }, text = { 'series: series[]', opts = opts },
})
