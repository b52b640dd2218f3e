-- The order in which the ranks of a pipeline work on the micro-batches of a step: one forward, one
-- backward (PipeDream-Flush; Narayanan et al., arXiv 2104.04473, figure 4).
--
--    4 micro-batches on 3 ranks; time goes to the right
--
--    rank 0   F1 F2 F3 .. .. B1 F4 .. B2 .. B3 .. B4
--    rank 1      F1 F2 .. B1 F3 B2 F4 B3 .. .. B4
--    rank 2         F1 B1 F2 B2 F3 B3 F4 B4
--
-- A rank begins with as many forwards as there are ranks behind it. Then the oldest backward
-- follows each forward. With several virtual stages, its parts, a rank works on a group of
-- micro-batches with its first part, then on the same group with the next one (interleaved 1F1B):
-- a rank waits for shorter forwards. A group has as many micro-batches as there are ranks, or more:
-- which of them have more is tried both ways, as one of them may let ranks wait far longer.
--
-- A rank exchanges hidden states and gradients between two computations. To find the exchanges, all
-- ranks run on a clock: two neighbours exchange what they have, both ways at once, as soon as
-- neither computes. So all ranks follow one order of exchanges, and no rank waits for one that
-- waits for it, also where the calls of a stream run strictly one after the other.

local copy = require 'tide.util.copy'

local schedule = {}

-- How long a forward and a backward take.
local cost = { forward = 1, backward = 2 }

-- Returns the stage, from 0, that a part of a rank is.
local function stage_of(o, rank, part) return (part - 1) * o.size + rank end

-- Returns the forwards of a rank and its backwards, each in order, and the size of the largest
-- group. o.round: math.ceil where larger groups come first, math.floor where they come last.
local function both(o)
   local forwards, backwards = {}, {}
   local groups = math.max(1, math.floor(o.n / o.size))
   for g = 1, groups do
      for part = 1, o.virtual do
         for i = o.round((g - 1) * o.n / groups) + 1, o.round(g * o.n / groups) do
            forwards[#forwards + 1] = { kind = 'forward', i = i, part = part }
            backwards[#backwards + 1] = { kind = 'backward', i = i, part = o.virtual + 1 - part }
         end
      end
   end
   return forwards, backwards, math.ceil(o.n / groups)
end

-- Returns the forwards and backwards of a rank in the order in which it computes them.
local function events_of(o, rank)
   local forwards, backwards, group = both(o)
   local ahead, list = o.size - 1 - rank, {}
   if o.virtual > 1 then ahead = 2 * ahead + (o.virtual - 1) * group end
   ahead = math.min(ahead, #forwards)
   for k = 1, #forwards + ahead do
      list[#list + 1] = forwards[k]
      local b = backwards[k - ahead]
      if b and stage_of(o, rank, b.part) >= o.first then list[#list + 1] = b end
   end
   return list
end

-- Returns a rank on the clock: events and the number of the one that is next; got, what it has
-- received; before and after, what waits to be sent; ends, when the present event ends; sends, to
-- which of the two its result goes; program, what the rank does.
local function new(o, rank)
   return { rank = rank, events = events_of(o, rank), next = 1, before = {}, after = {},
      got = { forward = {}, backward = {} }, program = {} }
end

-- Returns the place of a micro-batch and part in a table.
local function key(o, e) return (e.part - 1) * o.n + e.i end

-- Lets rank a and the one after it, b, exchange what they have. next: 1 where b is the first rank,
-- whose part is the next one.
local function exchange(o, a, b, next)
   local x, y = table.remove(a.after, 1), table.remove(b.before, 1)
   local for_a = y and { i = y.i, part = y.part - next }
   local for_b = x and { i = x.i, part = x.part + next }
   a.program[#a.program + 1] = { kind = 'exchange', with = 'after', send = x, receive = for_a }
   b.program[#b.program + 1] = { kind = 'exchange', with = 'before', send = y, receive = for_b }
   if x then b.got.forward[key(o, for_b)] = true end
   if y then a.got.backward[key(o, for_a)] = true end
end

-- Lets neighbours exchange until those that do not compute have nothing left for each other.
local function exchange_all(o, ranks)
   local again
   repeat
      again = false
      for r = 0, o.size - 1 do
         local a, b = ranks[r], ranks[(r + 1) % o.size]
         if not (a.ends or b.ends) and (a.after[1] or b.before[1]) then
            exchange(o, a, b, r == o.size - 1 and 1 or 0)
            again = true
         end
      end
   until not again
end

-- Begins the next event of a rank that is free and has what the event needs.
local function begin(o, rank, now)
   local e = rank.events[rank.next]
   if rank.ends or not e or rank.after[1] or rank.before[1] then return end
   local stage, is_forward = stage_of(o, rank.rank, e.part), e.kind == 'forward'
   local last = o.size * o.virtual - 1
   if stage ~= (is_forward and 0 or last) and not rank.got[e.kind][key(o, e)] then return end
   rank.next, rank.ends = rank.next + 1, now + cost[e.kind]
   rank.program[#rank.program + 1] = e
   if is_forward then rank.sends = stage < last and 'after' or nil
   else rank.sends = stage > o.first and 'before' or nil end
end

-- Ends the events that end now: their results wait to be sent.
local function finish(ranks, now)
   for r = 0, #ranks do
      local rank = ranks[r]
      if rank.ends == now then
         rank.ends = nil
         local to = rank.sends and rank[rank.sends]
         if to then to[#to + 1] = rank.program[#rank.program] end
      end
   end
end

-- Runs all ranks, with the groups of o.round. Returns them, from index 0, and how long it took.
local function run_groups(o)
   local ranks, now, next_end = {}, 0, 0
   for r = 0, o.size - 1 do ranks[r] = new(o, r) end
   while next_end < math.huge do
      now = next_end
      finish(ranks, now)
      exchange_all(o, ranks)
      next_end = math.huge
      for r = 0, o.size - 1 do
         begin(o, ranks[r], now)
         next_end = math.min(next_end, ranks[r].ends or math.huge)
      end
   end
   for r = 0, o.size - 1 do
      assert(not ranks[r].events[ranks[r].next], 'stages of a pipeline wait for each other')
   end
   return ranks, now
end

-- Runs all ranks, with the order of groups that takes less time. Returns what run_groups returns.
local function run(o)
   local ranks, time = run_groups(copy(o, { round = math.floor }))
   if o.virtual == 1 or o.n % o.size == 0 then return ranks, time end
   local others, other_time = run_groups(copy(o, { round = math.ceil }))
   if other_time < time then return others, other_time end
   return ranks, time
end

-- Returns what a rank does in a step, in order:
--
--    { kind = 'forward' | 'backward', i, part }                micro-batch i on a part
--    { kind = 'exchange', with = 'before' | 'after', send, receive }
--
-- send and receive are nil or { i, part }: with the rank after, the output of a forward and the
-- gradient of one; with the rank before, the gradient of an input and the input of a forward. Parts
-- are those of this rank, from 1. o: { size = ranks, virtual = parts of each, n = micro-batches,
-- first = the first stage, from 0, that trains something }.
function schedule.program(rank, o) return run(o)[rank].program end

-- Returns the share of a step in which the first rank waits, if all stages take equally long.
function schedule.idle(o)
   local _, time = run(o)
   return 1 - o.n * o.virtual * (cost.forward + cost.backward) / time
end

return schedule
