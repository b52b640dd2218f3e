-- A row of numbers as blocks in the terminal.
--
--    2.31 ┤█▅▃
--         │███▆▄▂▁
--    0.12 ┤████████

local err = require 'tide.util.err'

local chart = {}

local levels = { '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█' }

local function is_finite(v) return v == v and math.abs(v) ~= math.huge end

-- Returns at most `columns` numbers: means of equal runs. Runs without a finite number are nan.
local function thin(values, columns)
   local out = {}
   local n = math.min(#values, columns)
   for c = 1, n do
      local sum, count = 0, 0
      for i = math.floor((c - 1) * #values / n) + 1, math.floor(c * #values / n) do
         if is_finite(values[i]) then sum, count = sum + values[i], count + 1 end
      end
      out[c] = sum / count
   end
   return out
end

local function bounds(values)
   local lo, hi = math.huge, -math.huge
   for _, v in ipairs(values) do
      if is_finite(v) then lo, hi = math.min(lo, v), math.max(hi, v) end
   end
   return lo, hi
end

-- Returns the chart of a list of numbers: bars from the least to the greatest, which are printed
-- beside them. Numbers that are not finite leave a gap. columns: of the whole (72); rows (8).
function chart.text(values, columns, rows)
   err.type('repl.chart.text', 'values', values, 'table')
   columns, rows = columns or 72, rows or 8
   local shown = thin(values, columns - 12)
   local lo, hi = bounds(shown)
   if lo > hi then return '(no finite numbers)\n' end
   local span, lines = hi > lo and hi - lo or 1, {}
   for r = rows, 1, -1 do
      local label = r == rows and ('%.4g'):format(hi) or r == 1 and ('%.4g'):format(lo) or ''
      local parts = {}
      for c, v in ipairs(shown) do
         local eighths = 1 + math.floor((v - lo) / span * (8 * rows - 1) + 0.5) - 8 * (r - 1)
         parts[c] = is_finite(v) and levels[math.min(eighths, 8)] or ' '
      end
      lines[#lines + 1] = ('%10s %s%s'):format(label, label ~= '' and '┤' or '│',
         table.concat(parts):gsub('%s+$', '') .. '')
   end
   return table.concat(lines, '\n') .. '\n'
end

return chart
