-- The variable `loop` of a for loop.

local fault = require 'tide.chat.fault'
local value = require 'tide.chat.value'

local Loop = { type_name = 'LoopContext' }

local A = {}

function A.index(v) return v.index end
function A.index0(v) return v.index - 1 end
function A.length(v) return #v.items end
function A.revindex(v) return #v.items - v.index + 1 end
function A.revindex0(v) return #v.items - v.index end
function A.first(v) return v.index == 1 end
function A.last(v) return v.index == #v.items end
function A.depth(v) return v.depth0 + 1 end
function A.depth0(v) return v.depth0 end

function A.previtem(v)
   local item = v.items[v.index - 1]
   if item == nil then return value.undefined 'there is no previous item' end
   return item
end

function A.nextitem(v)
   local item = v.items[v.index + 1]
   if item == nil then return value.undefined 'there is no next item' end
   return item
end

function A.cycle(v)
   return value.callable('cycle', function(_, args)
      if #args == 0 then fault.raise 'no items for cycling given' end
      return args[(v.index - 1) % #args + 1]
   end)
end

function A.changed(v)
   return value.callable('changed', function(_, args)
      local now = value.tuple(args)
      if v.seen and value.equal(v.seen, now) then return false end
      v.seen = now
      return true
   end)
end

-- Returns an attribute of a loop, or nil.
function Loop.attribute(v, name) return A[name] and A[name](v) end

-- Returns len(loop) as Python does.
function Loop.length(v) return #v.items end

-- Runs a recursive loop over other items: loop(items).
function Loop.call(_, v, args)
   if not v.recurse then
      fault.raise "the loop must have the 'recursive' marker to be called"
   end
   return v.recurse(args[1] or value.list())
end

local loops = {}

-- Returns the variable of a loop over a Lua list, before its first item.
function loops.new(items, depth0)
   return setmetatable({ items = items, index = 0, depth0 = depth0 }, Loop)
end

return loops
