-- The order in which a stage works on the micro-batches of a step: one forward, one backward
-- (PipeDream-Flush; Narayanan et al., arXiv 2104.04473, figure 4).
--
--    4 micro-batches on 3 stages; time goes to the right
--
--    stage 0   F1 F2 F3 .. .. B1 F4 .. B2 .. B3 .. B4
--    stage 1      F1 F2 .. B1 F3 B2 F4 B3 .. .. B4
--    stage 2         F1 B1 F2 B2 F3 B3 F4 B4
--
-- A stage begins with as many forwards as there are stages behind it. Then each forward is
-- followed by the oldest backward, so that it keeps the activations of at most that many
-- micro-batches and one. What two neighbours send each other is in the same order on both: where a
-- forward sends while a gradient is due, the two go in one exchange, so no stage waits for one that
-- waits for it, also where calls of a stream run strictly one after the other.

local schedule = {}

local function forward(i, take) return { kind = 'forward', i = i, take = take } end

-- Returns the events of a stage in order: { kind = 'forward' | 'backward', i = micro-batch, take,
-- joint }. take: the forward receives its input itself; else an earlier exchange has. joint: the
-- micro-batch whose gradient (of a forward) or whose input (of a backward) this event receives
-- while it sends. rank: of the stage, from 0; size: stages; n: micro-batches. has: { before =
-- whether gradients go to the stage before, here = whether this stage has a backward }.
function schedule.events(rank, size, n, has)
   local list = {}
   if not has.here then
      for i = 1, n do list[i] = forward(i, true) end
      return list
   end
   local warm = math.min(size - 1 - rank, n)
   for i = 1, warm do list[#list + 1] = forward(i, true) end
   for i = 1, n - warm do
      local f = forward(warm + i, i == 1 or not has.before)
      f.joint = rank < size - 1 and i or nil
      list[#list + 1] = f
      local next_input = i < n - warm and has.before and warm + i + 1 or nil
      list[#list + 1] = { kind = 'backward', i = i, joint = next_input }
   end
   for i = n - warm + 1, n do list[#list + 1] = { kind = 'backward', i = i } end
   return list
end

-- Returns the share of a step in which a stage waits, if all stages take equally long.
function schedule.idle(size, n) return (size - 1) / (n + size - 1) end

return schedule
