-- Handles and bytes that a function left behind, after full collections.

local err = require 'tide.util.err'

local leak = {}

local function settled(ctx)
   ctx:collect()
   return ctx:stats()
end

-- Runs fn(...) and returns { tensors =, bytes =, nodes = }: what was live after it and not before.
function leak.measure(ctx, fn, ...)
   local op = 'debug.leak.measure'
   err.arg_if(type(ctx) ~= 'table' or type(ctx.collect) ~= 'function'
      or type(ctx.stats) ~= 'function', op, 'ctx', 'a context', ctx)
   err.func(op, 'fn', fn)
   local before = settled(ctx)
   fn(...)
   local after = settled(ctx)
   return {
      tensors = after.ntensor - before.ntensor, bytes = after.live - before.live,
      nodes = after.nnode - before.nnode,
   }
end

return leak
