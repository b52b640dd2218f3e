-- finally(after, fn, ...): the results of fn(...). Calls after(failed) in between, also when fn
-- raises; the error then propagates.

local function ended(after, ok, ...)
   after(not ok)
   if not ok then error((...), 0) end
   return ...
end

return function(after, fn, ...) return ended(after, pcall(fn, ...)) end
