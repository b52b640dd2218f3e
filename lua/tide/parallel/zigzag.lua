-- zigzag(cut, W, rank): the runs { start, length, start, length, ... } of a rank where each piece,
-- from cut[d] to cut[d + 1], is 2 W equal chunks and a rank has chunks rank and 2 W - 1 - rank of
-- it. Under a causal mask all ranks then have equal work. Integers only.

return function(cut, W, rank)
   local runs = {}
   for d = 1, #cut - 1 do
      local c = (cut[d + 1] - cut[d]) / (2 * W)
      local n = #runs
      runs[n + 1], runs[n + 2] = cut[d] + rank * c, c
      runs[n + 3], runs[n + 4] = cut[d] + (2 * W - 1 - rank) * c, c
   end
   return runs
end
