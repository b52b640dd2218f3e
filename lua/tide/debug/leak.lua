-- Handles and bytes that a function leaves, after full collections.

local signature = require 'tide.util.signature'

local leak = {}

local function settled(ctx)
   ctx:collect()
   return ctx:stats()
end

-- Runs fn(...) and returns { tensors =, bytes =, nodes = }: what was live after it and not before.
function leak.measure(ctx, fn, ...)
   local before = settled(ctx)
   fn(...)
   local after = settled(ctx)
   return {
      tensors = after.ntensor - before.ntensor, bytes = after.live - before.live,
      nodes = after.nnode - before.nnode,
   }
end

signature.record('ctx', 'a context', { 'collect: function', 'stats: function' })
return signature.doors('debug.leak', leak, { measure = 'ctx: ctx; fn: function' })
