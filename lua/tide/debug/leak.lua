-- Handles and bytes that a function leaves, after full collections, and the lines of the program
-- that have made the tensors which are live.

local own = require 'tide.ffi.own'
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

-- Sets whether each new tensor notes the line that makes it; that costs a stack walk for each. An
-- error about memory then lists the ten lines that hold most of it.
function leak.track(on) own.track(on) end

-- Returns the lines that have made tensors since track(true) which are not collected yet, those
-- with most bytes first: a list of { site (file and line), count, bytes }.
function leak.sites() return own.sites() end

signature.record('ctx', 'a context', { 'collect: function', 'stats: function' })
return signature.doors('debug.leak', leak, {
   measure = 'ctx: ctx; fn: function', track = 'on: boolean' })
