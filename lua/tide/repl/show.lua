-- Values as a prompt shows them: tensors in aligned rows, tables, both cut in the middle.
--
--    tensor f32 [2, 3] cpu
--        0.0314  -1.2200   0.5000
--       -0.7000   2.0000   0.0001

local err = require 'tide.util.err'
local help = require 'tide.repl.help'
local pretty = require 'tide.util.pretty'

local show = {}

-- Returns how many rows or leading indices are shown at either end, by the number of dims. Up to
-- three times as many are shown whole.
local function edge_of(ndim) return ndim <= 3 and 4 or ndim == 4 and 2 or 1 end
-- Lines of other values beyond this many are cut to `head` and `tail`.
local most_lines, head, tail = 60, 40, 10

-- ---- numbers ---------------------------------------------------------------------------------

local function is_finite(v) return v == v and math.abs(v) ~= math.huge end

-- Returns the largest magnitude of finite numbers, and whether all of them are whole.
local function survey(values)
   local top, whole = 0, true
   for _, v in ipairs(values) do
      if type(v) == 'number' and is_finite(v) then
         top = math.max(top, math.abs(v))
         whole = whole and v == math.floor(v)
      end
   end
   return top, whole
end

-- Returns a function that writes a number of the tensor, and the scale that all are divided by.
local function writer(values)
   local top, whole = survey(values)
   local scale, digits = 1, 4
   if whole and top < 1e9 then digits = 0
   elseif top >= 1e5 or top < 1e-2 then scale = 10 ^ math.floor(math.log10(top)) end
   return function(v)
      if type(v) ~= 'number' then return tostring(v) end
      if v ~= v then return 'nan' end
      if not is_finite(v) then return tostring(v) end
      return ('%.' .. digits .. 'f'):format(v / scale)
   end, scale
end

-- ---- what is read ----------------------------------------------------------------------------

-- Returns the first and last k of dim, with what lies between left out.
local function cut(tide, x, dim, k)
   local n = x.shape[dim]
   return tide.cat({ x:narrow(dim, 1, k), x:narrow(dim, n - k + 1, k) }, dim)
end

-- Returns how many of the last dim fit on a line, at most `columns` wide, beside the dots; or all.
local function fitting(n, width, columns)
   local room = math.max(2, math.floor((columns - 4) / (width + 2)))
   if n <= room then return n end
   return math.max(2, room - 1)
end

-- Appends the elements of nested lists to out, in order, and returns it.
local function flat(list, out)
   if type(list) ~= 'table' then
      out[#out + 1] = list
      return out
   end
   for _, v in ipairs(list) do flat(v, out) end
   return out
end

-- Returns x with long dims cut to their ends, and for each dim the number of elements before the
-- gap, or false.
local function shorten(tide, x)
   local gaps, ndim = {}, #x.shape
   for dim = 1, ndim do
      local k = dim == ndim and 32 or edge_of(ndim)
      gaps[dim] = x.shape[dim] > (dim == ndim and 2 or 3) * k and k
      if gaps[dim] then x = cut(tide, x, dim, k) end
   end
   return x, gaps
end

-- ---- rows ------------------------------------------------------------------------------------

-- Returns one row as text. gap: elements before the dots, or false.
local function row_text(row, width, gap)
   local parts = {}
   for i, text in ipairs(row) do
      parts[#parts + 1] = (' '):rep(width - #text) .. text
      if i == gap then parts[#parts + 1] = '...' end
   end
   return '   ' .. table.concat(parts, '  ')
end

-- Adds the rows of a nested list: lines of the last dim, below a heading for each leading index.
-- ctx: write, width, gaps, shape, gap (of the last dim), keep (how many at its ends).
local function add_rows(out, list, dim, prefix, ctx)
   if dim == #ctx.shape then
      local row = {}
      for i, v in ipairs(list) do
         if not ctx.gap or i <= ctx.gap or i > #list - ctx.gap then row[#row + 1] = ctx.write(v) end
      end
      out[#out + 1] = row_text(row, ctx.width, ctx.gap)
      return
   end
   for i, inner in ipairs(list) do
      local gap = ctx.gaps[dim]
      local at = gap and i > gap and ctx.shape[dim] - #list + i or i
      local name = prefix .. at .. ', '
      if dim == #ctx.shape - 2 then out[#out + 1] = '  [' .. name .. '..]' end
      add_rows(out, inner, dim + 1, name, ctx)
      if i == gap then out[#out + 1] = '   ...' end
   end
end

local function widest(values, write)
   local width = 0
   for _, v in ipairs(values) do width = math.max(width, #write(v)) end
   return width
end

-- Returns the lines below the heading of a tensor, and the scale of its numbers.
local function body(tide, x, columns)
   local short, gaps = shorten(tide, x)
   local list = short:tolist()
   local values = flat(list, {})
   local write, scale = writer(values)
   local shape = x.shape
   local width, n = widest(values, write), short.shape[#shape]
   local fit = fitting(n, width, columns)
   local gap = (fit < n or gaps[#shape]) and math.min(math.floor(fit / 2), gaps[#shape] or n) or nil
   local out = {}
   add_rows(out, list, 1, '', { write = write, width = width, gaps = gaps, shape = shape,
      gap = gap or false })
   return out, scale
end

-- Returns the text of a tensor. columns: of the terminal (80).
function show.tensor(x, columns)
   local tide = require 'tide'
   local text = tostring(x)
   local heading = text:match '^(tensor %S+ %[[%d, ]+%] [^{]-) {'
   if not heading or x:numel() == 0 then return text end
   local lines, scale
   tide.no_grad(function()
      tide.scope(function() lines, scale = body(tide, x:detach(), columns or 80) end)
   end)
   if scale ~= 1 then heading = ('%s, times %.0e'):format(heading, scale) end
   return heading .. '\n' .. table.concat(lines, '\n')
end

-- ---- other values ----------------------------------------------------------------------------

-- Returns a text with the middle of many lines left out.
local function cut_lines(text)
   local lines = {}
   for line in (text .. '\n'):gmatch '(.-)\n' do lines[#lines + 1] = line end
   if #lines <= most_lines then return text end
   local out = {}
   for i = 1, head do out[i] = lines[i] end
   out[head + 1] = ('   ... %d lines'):format(#lines - head - tail)
   for i = #lines - tail + 1, #lines do out[#out + 1] = lines[i] end
   return table.concat(out, '\n')
end

-- Returns whether a table loads its entries when they are used (util.lazy).
local function is_lazy(value)
   local mt = getmetatable(value)
   return type(mt) == 'table' and type(mt.entries) == 'table'
end

-- Returns the text of any value. columns: of the terminal, by default its width.
function show.text(value, columns)
   if columns ~= nil then err.number('repl.show.text', 'columns', columns, 20) end
   columns = columns or help.columns()
   if require('tide').is_tensor(value) then return show.tensor(value, columns) end
   if type(value) == 'table' and is_lazy(value) then
      return help.listing(value) .. '\n   (?name shows help on one of them)'
   end
   if type(value) == 'table' or type(value) == 'string' or type(value) == 'function' then
      return cut_lines(pretty.format(value, { width = math.max(columns - 1, 40) }))
   end
   return tostring(value)
end

return show
