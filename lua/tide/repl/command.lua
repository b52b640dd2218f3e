-- The commands of a prompt: lines that begin with a colon.

local by_key = require 'tide.util.by_key'
local chart = require 'tide.repl.chart'
local each = require 'tide.util.each'
local err = require 'tide.util.err'
local fs = require 'tide.util.fs'
local help = require 'tide.repl.help'
local near = require 'tide.util.near'
local plot = require 'tide.util.plot'
local stored = require 'tide.repl.stored'
local units = require 'tide.util.units'

local command = {}

local function usage(name, want) err.raise('E_ARG', ':' .. name, 'expected %s', want) end

local function tide() return require 'tide' end

-- ---- time and memory -------------------------------------------------------------------------

local function seconds_text(s)
   if s < 1e-3 then return ('%.3g us'):format(s * 1e6) end
   return s < 1 and ('%.3g ms'):format(s * 1e3) or ('%.3g s'):format(s)
end

local function time(session, line)
   if line == '' then usage('time', 'a line, e.g. :time x:matmul(y)') end
   local fn, given = require('tide.repl.session').parse(line)
   if not fn then
      err.raise('E_ARG', ':time', '%s', given == true and 'the line is unfinished' or given)
   end
   local function finish()
      if tide().default().device == 'cuda' then tide().cuda.synchronize() end
   end
   finish()
   local begin = tide().clock()
   local ok = session:execute(fn, given, line)
   finish()
   if ok then session.write(seconds_text(tide().clock() - begin) .. '\n') end
end

-- Returns the tensors of the session by name, largest first: { name, bytes, text }.
local function tensors(env)
   local list = {}
   for name, v in each(env) do
      if type(name) == 'string' and tide().is_tensor(v) then
         local bytes = v:numel() * tide().dtype_size(v.dtype)
         list[#list + 1] = { name = name, bytes = bytes,
            text = ('%s [%s] %s'):format(v.dtype, table.concat(v.shape, ', '), v.device) }
      end
   end
   table.sort(list, function(a, b)
      if a.bytes ~= b.bytes then return a.bytes > b.bytes end
      return a.name < b.name
   end)
   return list
end

local function mem(session, rest)
   if rest ~= '' and rest ~= 'reset' then usage('mem', ':mem or :mem reset (restarts the peak)') end
   local context = tide().default()
   if rest == 'reset' then context:reset_peak() end
   local s = context:stats()
   session.write(('tensors  %s live in %d, peak %s, cached %s\nLua      %s\n'):format(
      units.bytes(s.live), s.ntensor, units.bytes(s.peak), units.bytes(s.cached),
      units.bytes(collectgarbage 'count' * 1024)))
   for i, t in ipairs(tensors(session.env)) do
      if i > 10 then break end
      session.write(('   %-12s %s\n'):format(t.name, t.text))
   end
end

-- ---- plots -----------------------------------------------------------------------------------

-- Returns the numbers of a list or of a tensor of one dim.
local function numbers_of(v)
   if tide().is_tensor(v) and #v.shape == 1 then v = v:tolist() end
   if type(v) ~= 'table' or #v == 0 then return nil end
   for _, x in ipairs(v) do if type(x) ~= 'number' then return nil end end
   return v
end

-- Returns the named series of an argument: one series, or a table of several.
local function series_of(name, v)
   local one = numbers_of(v)
   if one then return { { name = name, y = one } } end
   local list = {}
   for key, inner in each(type(v) == 'table' and v or {}) do
      local y = numbers_of(inner)
      if not y then return {} end
      list[#list + 1] = { name = tostring(key), y = y }
   end
   table.sort(list, function(a, b) return a.name < b.name end)
   return list
end

local function draw(session, rest)
   local what, path = rest:match '^(.-)%s+to%s+(%S+)$'
   what = what or rest
   if what == '' then usage('plot', 'numbers, e.g. :plot losses or :plot losses to loss.svg') end
   local series = series_of(what, session:_value(what))
   if #series == 0 then
      usage('plot', 'a list of numbers, a tensor of one dim, or a table of such by name')
   end
   for _, s in ipairs(series) do
      s.x = {}
      for i = 1, #s.y do s.x[i] = i end
   end
   local columns = math.max(30, math.min(help.columns() - 2, 78))
   session.write(#series == 1 and chart.text(series[1].y, math.min(columns, 72))
      or plot.text(series, { columns = columns }))
   if not path then return end
   path = stored.path(path, session.env)
   fs.write(':plot', path, plot.svg(series, { title = what }))
   session.write('written: ' .. path .. '\n')
end

-- ---- ranks -----------------------------------------------------------------------------------

local function mesh(session, rest)
   local axes = {}
   for name, size in rest:gmatch '([%a_][%w_]*)%s*=%s*(-?%d+)' do
      axes[#axes + 1] = { name, tonumber(size) }
   end
   local left = rest:gsub('[%a_][%w_]*%s*=%s*-?%d+', ''):gsub('[%s,]', '')
   if #axes == 0 or left ~= '' then usage('mesh', 'axes and sizes, e.g. :mesh dp=2,tp=2') end
   session.env.mesh = tide().parallel.mesh(axes)
   session.write(tostring(session.env.mesh) .. '\n')
end

local function plan(session, rest)
   if rest == '' then usage('plan', 'a model, e.g. :plan model') end
   local made = session.env.mesh
   if not made then
      err.raise('E_STATE', ':plan', 'no mesh yet; make one first, e.g. :mesh dp_shard=2,tp=2')
   end
   session.env.plan = tide().parallel.plan(session:_value(rest), made)
   session.write(tostring(session.env.plan) .. '\n')
   session.write('plan:price() computes the cost of a step, plan:materialise() distributes the '
      .. 'model\n')
end

-- ---- traces ----------------------------------------------------------------------------------

-- Returns the spans of the ring that began after `since` (microseconds): { name, count, total },
-- sorted by total.
local function spans(path, since)
   local list, at = by_key(function(name) return { name = name, count = 0, total = 0 } end)
   for _, e in ipairs(fs.read_json(':trace', path).traceEvents) do
      if e.dur and e.ts >= since then
         local name = e.name:gsub('#%d+', '')
         local row = at(name, name)
         row.count, row.total = row.count + 1, row.total + e.dur
      end
   end
   table.sort(list, function(a, b)
      if a.total ~= b.total then return a.total > b.total end
      return a.name < b.name
   end)
   return list
end

local function summary(session)
   local path = os.tmpname()
   tide().default():trace_dump(path)
   local ok, list = pcall(spans, path, session.traced or 0)
   os.remove(path)
   if not ok then error(list, 0) end
   for i, row in ipairs(list) do
      if i > 15 then
         session.write(('   ... %d more\n'):format(#list - 15))
         break
      end
      session.write(('   %-28s %6d  %10s\n'):format(row.name, row.count,
         seconds_text(row.total * 1e-6)))
   end
   if #list == 0 then session.write '   (no spans yet; :trace on records them)\n' end
end

local function trace(session, rest)
   local context = tide().default()
   if rest == 'on' then
      context:param('trace', 1)
      session.traced = tide().clock() * 1e6
   elseif rest == 'off' then
      summary(session)
      context:param('trace', 0)
   elseif rest == '' then
      summary(session)
   else
      session.write('written: ' .. require('tide.debug.trace').dump(rest) .. '\n')
   end
end

-- ---- files -----------------------------------------------------------------------------------

local function save(session, rest)
   local path, names = rest:match '^(%S+)%s*(.*)$'
   if not path then usage('save', 'a file, and names or nothing for all, e.g. :save s.tide x y') end
   local list
   for name in names:gmatch '[%a_][%w_]*' do
      list = list or {}
      list[#list + 1] = name
   end
   session.write(stored.save(stored.path(path, session.env), session.env, list) .. '\n')
end

local function load(session, rest)
   if rest == '' then usage('load', 'a file that :save wrote, or one of Lua, e.g. :load s.tide') end
   if rest:match '%.lua$' then
      local fn, message = loadfile(rest)
      if not fn then err.raise('E_IO', ':load', '%s', message) end
      return session:execute(fn, '', '')
   end
   session.write(stored.load(stored.path(rest, session.env, true), session.env) .. '\n')
end

-- ---- all -------------------------------------------------------------------------------------

local rows = {
   { 'help', 'this list', function(session) session.write(command.list() .. '\n') end },
   { 'time LINE', 'runs the line and shows how long it took', time },
   { 'mem [reset]', 'bytes of tensors and of Lua, and the largest tensors', mem },
   { 'plot XS [to FILE]', 'numbers as blocks here, and as SVG in a file', draw },
   { 'save FILE [NAMES]', "the session's tensors and plain values in a file", save },
   { 'load FILE', 'takes them back; a .lua file is run in the session', load },
   { 'mesh dp=2,tp=2', 'a mesh of the ranks, as `mesh`', mesh },
   { 'plan MODEL', 'a plan of the model over `mesh`, as `plan`', plan },
   { 'trace on|off|DIR', 'records ops; shows where time went, or writes a trace', trace },
}

local by_name, names = {}, {}
for i, row in ipairs(rows) do
   names[i] = row[1]:match '^%a+'
   by_name[names[i]] = row
end

local function unknown(name)
   return 'no such command' .. near.hint(name, names, function(known) return ':' .. known end)
end

-- Returns the names of all commands.
function command.names() return { unpack(names) } end

-- Returns the commands as they are typed, with a blank after those that take arguments.
function command.beginnings()
   local list = {}
   for i, row in ipairs(rows) do list[i] = names[i] .. (row[1]:find '^%a+ [^%[]' and ' ' or '') end
   return list
end

-- Returns the text of :help.
function command.list()
   local out = {}
   for i, row in ipairs(rows) do out[i] = ('   :%-18s %s'):format(row[1], row[2]) end
   return table.concat(out, '\n')
end

-- Returns the line of :help on one command, ':name'.
function command.about(name)
   err.type('repl.command.about', 'name', name, 'string')
   local row = by_name[name:sub(2)]
   return row and ('   :%s   %s'):format(row[1], row[2]) or name .. ': ' .. unknown(name:sub(2))
end

-- Runs a line `:name rest` in a session. Raises if it is invalid.
function command.run(session, line)
   err.type('repl.command.run', 'line', line, 'string')
   local name, rest = line:match '^%s*:(%a+)%s*(.-)%s*$'
   name = name or ''
   local row = by_name[name]
   if not row then err.raise('E_ARG', ':' .. name, '%s', unknown(name)) end
   return row[3](session, rest)
end

return command
