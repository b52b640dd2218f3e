-- by_key(make): an empty list, and at(key, ...), which returns the entry of a key in it. make(...)
-- gives the entry when a key is new; default: an empty table. Entries lie in the order of their
-- keys' first uses.

return function(make)
   local list, entries = {}, {}
   return list, function(key, ...)
      local entry = entries[key]
      if not entry then
         entry = make and make(...) or {}
         entries[key], list[#list + 1] = entry, entry
      end
      return entry
   end
end
