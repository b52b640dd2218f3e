-- Rows with several documents as one packed stream, by definition: slots lie one behind the other
-- in the order of rows, and what is left of rows moves to the end.

-- lens, slots: lists over rows of lists of lengths; S: tokens of a row. Returns a table:
--    from      list: stream position + 1 -> place of the token (row S + column, from 0)
--    document  list: number of the document (from 0), or -1 in padding; position: place in it
--    behind    list: true behind the last slot
--    real, slot   cumulative lengths
return function(lens, slots, S)
   local o = { from = {}, document = {}, position = {}, behind = {}, real = { 0 }, slot = { 0 } }
   local function put(place, document, position, behind)
      local at = #o.from + 1
      o.from[at], o.document[at], o.position[at], o.behind[at] = place, document, position, behind
   end
   local number = 0
   for b, row in ipairs(slots) do
      local at = (b - 1) * S
      for d, n in ipairs(row) do
         local real = lens[b][d]
         for i = 0, n - 1 do put(at + i, i < real and number or -1, i, false) end
         at, number = at + n, number + 1
         o.real[#o.real + 1] = o.real[#o.real] + real
         o.slot[#o.slot + 1] = o.slot[#o.slot] + n
      end
   end
   for b, row in ipairs(slots) do
      local used = 0
      for _, n in ipairs(row) do used = used + n end
      for i = used, S - 1 do put((b - 1) * S + i, -1, 0, true) end
   end
   return o
end
