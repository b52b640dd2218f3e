-- What the compiler did while a function ran: traces made, and aborts with place and reason.

local finally = require 'tide.util.finally'
local signature = require 'tide.util.signature'

local jitlog = {}

local vmdef_ok, vmdef = pcall(require, 'jit.vmdef')

local function reason(code, detail)
   if type(code) ~= 'number' then return tostring(code) end
   local text = vmdef_ok and vmdef.traceerr and vmdef.traceerr[code] or ('code ' .. code)
   local ok, filled = pcall(string.format, text, detail)
   return ok and filled or text
end

local function place(fn, pc)
   local info = require 'jit.util'.funcinfo(fn, pc)
   return info.loc or tostring(info.addr)
end

-- Runs fn(...) from a cold compiler. Returns { traces = number, aborts = list of { at, why } } and
-- the results of fn.
function jitlog.run(fn, ...)
   local report = { traces = 0, aborts = {} }
   local function listen(what, _, func, pc, code, detail)
      if what == 'stop' then
         report.traces = report.traces + 1
      elseif what == 'abort' then
         table.insert(report.aborts, { at = place(func, pc), why = reason(code, detail) })
      end
   end
   jit.flush()
   jit.attach(listen, 'trace')
   return report, finally(function() jit.attach(listen) end, fn, ...)
end

-- Returns the aborts of a report as text, most frequent first.
function jitlog.text(report)
   local counts, order = {}, {}
   for _, a in ipairs(report.aborts) do
      local line = a.at .. ': ' .. a.why
      if not counts[line] then order[#order + 1] = line end
      counts[line] = (counts[line] or 0) + 1
   end
   table.sort(order, function(a, b)
      return counts[a] > counts[b] or counts[a] == counts[b] and a < b
   end)
   local lines = { ('%d traces, %d aborts'):format(report.traces, #report.aborts) }
   for _, line in ipairs(order) do lines[#lines + 1] = ('  %d x %s'):format(counts[line], line) end
   return table.concat(lines, '\n')
end

signature.record('jit_report', 'a table { traces =, aborts = }', { 'traces: number',
   'aborts: table' })
return signature.doors('debug.jit', jitlog, { run = 'fn: function', text = 'report: jit_report' })
