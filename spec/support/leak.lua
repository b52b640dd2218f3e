-- Live handles, nodes and bytes before and after: does a piece of code give everything back?
--
-- leak.check(fn) runs fn once to warm up (caches, module loading), then again, collects, and raises
-- if the default context holds more tensors, tape nodes or live bytes than before.

local M = {}

local function settled(ctx)
   ctx:collect()
   return ctx:stats()
end

-- Counters of ctx (default: the default context) after a full collection.
function M.count(ctx) return settled(ctx or require('tide').default()) end

local fields = { 'ntensor', 'nnode', 'live' }

-- Raises if `after` holds more than `before`.
function M.compare(before, after)
   for _, field in ipairs(fields) do
      if after[field] > before[field] then
         error(('leak: %s was %d, is %d'):format(field, before[field], after[field]), 2)
      end
   end
end

function M.check(fn, ctx)
   fn()
   local before = M.count(ctx)
   fn()
   M.compare(before, M.count(ctx))
end

return M
