-- A line plot as one self-contained SVG text: axes with round ticks, a legend, no scripts.
--
-- series: list of { name=, x = {...}, y = {...}, points=bool }. Points that are not finite are
-- left out. Long series are thinned by taking the mean of equal runs, so a file stays small.
-- The colours are distinguishable in greyscale and for the common colour deficiencies.

local err = require 'tide.util.err'
local signature = require 'tide.util.signature'

local plot = {}

local colours = { '#0b5394', '#cc5500', '#2e7d32', '#7b1fa2', '#b8860b', '#555555' }
local width, height = 720, 420
local left, right, top, bottom = 64, 16, 36, 48

local function is_finite(v) return v == v and math.abs(v) ~= math.huge end

-- Finite points of a series, at most `limit` of them.
local function thin(series, limit)
   local xs, ys = {}, {}
   for i = 1, #series.x do
      if is_finite(series.x[i]) and is_finite(series.y[i] or 0 / 0) then
         xs[#xs + 1], ys[#ys + 1] = series.x[i], series.y[i]
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

-- Steps of 1, 2 or 5 times a power of ten, about n of them.
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
   for k = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9) do
      list[#list + 1] = k * step
   end
   return list
end

local function bounds(lists)
   local lo, hi = math.huge, -math.huge
   for _, list in ipairs(lists) do
      for _, v in ipairs(list) do lo, hi = math.min(lo, v), math.max(hi, v) end
   end
   if lo > hi then return 0, 1 end
   if lo == hi then return lo - 0.5, hi + 0.5 end
   return lo, hi
end

local function escape(text)
   return (tostring(text):gsub('[&<>"]', {
      ['&'] = '&amp;', ['<'] = '&lt;', ['>'] = '&gt;', ['"'] = '&quot;',
   }))
end

local function axes(out, frame, xlabel, ylabel)
   local function put(fmt, ...) out[#out + 1] = fmt:format(...) end
   for _, v in ipairs(plot.ticks(frame.xlo, frame.xhi, 6)) do
      local x = frame.px(v)
      put('<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e0e0e0"/>', x, top, x,
         height - bottom)
      put('<text x="%.1f" y="%d" text-anchor="middle">%.6g</text>', x, height - bottom + 16, v)
   end
   for _, v in ipairs(plot.ticks(frame.ylo, frame.yhi, 6)) do
      local y = frame.py(v)
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
   for i = 1, #xs do points[i] = ('%.1f,%.1f'):format(frame.px(xs[i]), frame.py(ys[i])) end
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

-- opts: title, xlabel, ylabel.
function plot.svg(series, opts)
   local xs, ys = {}, {}
   for i, s in ipairs(series) do xs[i], ys[i] = thin(s, 1000) end
   local frame = {}
   frame.xlo, frame.xhi = bounds(xs)
   frame.ylo, frame.yhi = bounds(ys)
   function frame.px(v)
      return left + (v - frame.xlo) / (frame.xhi - frame.xlo) * (width - left - right)
   end
   function frame.py(v)
      return height - bottom - (v - frame.ylo) / (frame.yhi - frame.ylo) * (height - top - bottom)
   end
   local out = {
      ('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
         .. 'font-family="sans-serif" font-size="12">'):format(width, height, width, height),
      '<rect width="100%" height="100%" fill="white"/>',
   }
   axes(out, frame, opts.xlabel or '', opts.ylabel or '')
   local x = left
   for i, s in ipairs(series) do
      local colour = colours[(i - 1) % #colours + 1]
      curve(out, frame, xs[i], ys[i], colour, s.points)
      out[#out + 1] = ('<text x="%d" y="26" fill="%s">%s</text>'):format(x, colour, escape(s.name))
      x = x + 14 + 7 * #tostring(s.name)
   end
   out[#out + 1] = ('<text x="%d" y="26" text-anchor="end">%s</text>')
      :format(width - right, escape(opts.title or ''))
   out[#out + 1] = '</svg>'
   return table.concat(out, '\n') .. '\n'
end

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
   svg = { 'series: series[]', opts = { 'title: any?', 'xlabel: any?', 'ylabel: any?' } },
})
