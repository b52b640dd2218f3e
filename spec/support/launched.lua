-- The kernels that a function launches, by the trace.

local fs = require 'tide.util.fs'
local tide = require 'tide'
local tmp = require 'spec.support.tmp'

-- Runs fn() and returns the number of launches by op name; 0 where an op has none. ctx: of the
-- tensors, the default one if it is absent.
return function(fn, ctx)
   local C = require('tide.ffi.lib').C
   ctx = ctx or tide.default()
   local was = ctx:param 'trace'
   ctx:param('trace', 1)
   ctx:trace_span('launched', C.tide_trace_clock(), C.tide_trace_clock())
   local ok, problem = pcall(fn)
   ctx:param('trace', was)
   if not ok then error(problem, 0) end
   local doc = tmp.with(function(dir)
      ctx:trace_dump(dir .. '/t.json')
      return fs.read_json('spec', dir .. '/t.json')
   end)
   local counts = setmetatable({}, { __index = function() return 0 end })
   local first
   for i, e in ipairs(doc.traceEvents) do
      if e.name == 'launched' then first = i end
   end
   for i = assert(first, 'the ring of spans is too short') + 1, #doc.traceEvents do
      local e = doc.traceEvents[i]
      if e.cat == 'op' then counts[e.name] = counts[e.name] + 1 end
   end
   return counts
end
