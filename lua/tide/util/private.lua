-- Frees temporaries of the library at their last use.
--
-- The collector runs long after the last use of a handle, and the bytes would stay until then. A
-- module therefore gives up (spend, replace) the temporaries that it has made: the tape keeps what
-- it saved, and a later use of the handle is E_GONE.
--
-- User code (a hook, a forward, an inner call, a method of a derived class) may store what it sees:
-- such a value belongs to the user from then on and stays. The library's own functions, which store
-- nothing, are noted here; every other function counts as the user's.

local grad = require 'tide.ffi.grad'
local own = require 'tide.ffi.own'

local private = {
   spend = own.spend, spend_list = own.spend_list, replace = own.replace, keep = own.keep,
   frame = own.frame, func = grad.private_func, relay = grad.relay_func,
   checkpoint = grad.private_checkpoint,
}

local known = setmetatable({}, { __mode = 'k' })

-- Notes a function, or the metatable of objects that are called, and returns it.
function private.note(fn)
   known[fn] = true
   return fn
end

-- Notes every function in a table: the methods of a class.
function private.note_methods(class)
   for _, fn in require 'tide.util.each' (class) do
      if type(fn) == 'function' then known[fn] = true end
   end
   return class
end

-- Returns whether fn was noted.
function private.has(fn)
   return known[fn] or type(fn) == 'table' and known[getmetatable(fn)] or false
end

local function back(outer, ...)
   own.resume(outer)
   return ...
end

-- Returns fn(...), run as code that may keep its temporaries.
function private.apart(fn, ...) return back(own.pause(), fn(...)) end

-- Returns fn(...), whose values belong to the user unless fn was noted.
function private.call(fn, ...)
   if known[fn] or type(fn) == 'table' and known[getmetatable(fn)] then return fn(...) end
   return own.keep(private.apart(fn, own.keep(...)))
end

return private
