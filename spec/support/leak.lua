-- Live handles, nodes and bytes before and after: does a piece of code give everything back?
--
-- Two things falsify such a count, and both are luck. Older garbage that is collected in between
-- looks like a saving: count from a mark (leak.since, leak.peak), which sees only what is made
-- after it. And a dead value in a slot of the Lua stack that nothing has written over looks like a
-- leak: slots above the caller are cleared here before each collection. What compiled code left in
-- a slot below remains; where one count decides, run interpreted (setup(leak.interpret),
-- teardown(leak.compile)), else repeat (leak.check): a leak grows every time.

local M = {}

local function default(ctx) return ctx or require('tide').default() end

-- Writes nil over 180 slots of the stack above its caller; compiled it would write nothing.
local clear = assert(loadstring('local ' .. ('_, '):rep(179) .. '_ = nil'))
jit.off(clear)
M.clear = clear

-- Collects until nothing more goes.
local function settled(ctx)
   local now
   for _ = 1, 8 do
      local before = now
      clear()
      ctx:collect()
      now = ctx:stats()
      if before and now.live == before.live and now.nnode == before.nnode
         and now.ntensor == before.ntensor then
         break
      end
   end
   return now
end

-- Counters of ctx (default: the default context) after everything without a reference is freed.
function M.count(ctx) return settled(default(ctx)) end

-- Everything older is collected, then counts from nothing: for leak.since and leak.peak.
function M.mark(ctx)
   ctx = default(ctx)
   settled(ctx)
   ctx:mark()
end

-- Bytes that were handed out since the mark and are held, garbage collected; the most there were.
function M.since(ctx) return settled(default(ctx)).since end
function M.peak(ctx) return default(ctx):stats().since_peak end

-- For setup and teardown: nothing is compiled between them.
function M.interpret()
   jit.off()
   jit.flush()
end

function M.compile()
   if require('tide.ffi.compiler').fault(jit.arch, jit.version) ~= 'all' then jit.on() end
end

local fields = { 'ntensor', 'nnode', 'live' }

-- Raises if `after` holds more than `before`.
function M.compare(before, after)
   for _, field in ipairs(fields) do
      if after[field] > before[field] then
         error(('leak: %s was %d, is %d'):format(field, before[field], after[field]), 2)
      end
   end
end

-- Runs fn once to warm up (caches, module loading), then again; raises if the context holds more
-- tensors, tape nodes or live bytes after it than before, in each of six runs more than ever.
function M.check(fn, ctx)
   fn()
   local most, err = M.count(ctx), nil
   for _ = 1, 6 do
      fn()
      local now = M.count(ctx)
      local ok
      ok, err = pcall(M.compare, most, now)
      if ok then return end
      for _, field in ipairs(fields) do most[field] = math.max(most[field], now[field]) end
   end
   error(err, 2)
end

return M
