-- Spellings of 0.1 that still work: each writes one line to standard error, once.

local said = {}

-- Warns about a spelling. old, new: the caller's, and the one to use.
return function(old, new)
   if said[old] then return end
   said[old] = true
   io.stderr:write(("tide: '%s' is a spelling of 0.1 and will go in 0.3; write '%s'\n"):format(old,
      new))
end
