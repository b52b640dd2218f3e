-- One draw from logits: penalties, temperature, top-k, top-p, min-p; the vocabulary is not sorted.
--
-- A heap gives tokens from the best on, as many as the draw needs; for top-k it holds k. Among
-- equal logits the lower id is first. Filters follow each other as in transformers: temperature,
-- top-k, top-p (a share of what top-k left), min-p (a share of the best).

local each = require 'tide.util.each'
local err = require 'tide.util.err'

local pick = {}

local exp, floor = math.exp, math.floor

-- Returns the index of the largest logit; raises of NaN.
local function best_of(op, logits)
   local best, most = 1, logits[1]
   for i = 1, #logits do
      local v = logits[i]
      if v > most then best, most = i, v end
      err.raise_if(v ~= v, 'E_STATE', op, 'the logit of id %d is NaN; the model, or its input, is '
         .. 'broken', i - 1)
   end
   return best
end

-- ---- heap --------------------------------------------------------------------------------------

-- Puts item at place i of a heap of n indices and moves it down to its place. sign: 1 for the best
-- on top, -1 for the worst; of equal logits the lower index is the better one.
local function sift(heap, n, logits, sign, i, item)
   local v = sign * logits[item]
   while 2 * i <= n do
      local child = 2 * i
      local a, b = heap[child], heap[child + 1]
      local w = sign * logits[a]
      if child < n then
         local u = sign * logits[b]
         if u > w or u == w and sign * b < sign * a then child, a, w = child + 1, b, u end
      end
      if v > w or v == w and sign * item < sign * a then break end
      heap[i], i = a, child
   end
   heap[i] = item
end

-- Returns next(), which gives the indices of a list from the best on; nil at its end.
local function ranking(indices, logits)
   local n = #indices
   for i = floor(n / 2), 1, -1 do sift(indices, n, logits, 1, i, indices[i]) end
   return function()
      if n == 0 then return nil end
      local top = indices[1]
      n = n - 1
      if n > 0 then sift(indices, n, logits, 1, 1, indices[n + 1]) end
      return top
   end
end

-- ---- draws -------------------------------------------------------------------------------------

-- Returns the indices whose weight is at least `least`, and the sum of all weights.
local function weighed(logits, most, o)
   local indices, total = {}, 0
   for i = 1, #logits do total = total + exp((logits[i] - most) / o.temperature) end
   -- A token below this share is never in the nucleus: all of its kind have less than 1 - top_p.
   local least = o.top_p < 1 and 0.999 * total * (1 - o.top_p) / #logits or 0
   for i = 1, #logits do
      if exp((logits[i] - most) / o.temperature) >= least then indices[#indices + 1] = i end
   end
   return indices, total
end

-- Returns the k best indices in order as next(), and the sum of their weights. One pass: an index
-- that is not among the k best so far costs a comparison; of equals the earlier one stays.
local function k_best(logits, most, o)
   local heap, total, k = {}, 0, math.min(o.top_k, #logits)
   for i = 1, k do heap[i] = i end
   for i = floor(k / 2), 1, -1 do sift(heap, k, logits, -1, i, heap[i]) end
   local least = logits[heap[1]]
   for i = k + 1, #logits do
      if logits[i] > least then
         sift(heap, k, logits, -1, 1, i)
         least = logits[heap[1]]
      end
   end
   for i = 1, k do total = total + exp((logits[heap[i]] - most) / o.temperature) end
   return ranking(heap, logits), total
end

-- Returns what the filters keep, from the best on, with weights and their sum.
local function kept_of(next_best, total, logits, most, o)
   local list, weights, sum = {}, {}, 0
   while sum < o.top_p * total or #list == 0 do
      local i = next_best()
      local w = i and exp((logits[i] - most) / o.temperature)
      if not i or w < o.min_p then break end
      list[#list + 1], weights[#list + 1], sum = i, w, sum + w
   end
   return list, weights, sum
end

-- Draws without filters: goes down the ranking until the sum of weights passes u.
local function draw_all(next_best, total, logits, most, u, o)
   local run, last = 0, nil
   while true do
      local i = next_best()
      if not i then return last - 1 end
      run, last = run + exp((logits[i] - most) / o.temperature), i
      if u * total < run then return i - 1 end
   end
end

-- Returns an id (from 0) drawn from a list of logits by the number u in [0, 1). o: temperature,
-- top_k, top_p, min_p, all given.
function pick.draw(op, logits, u, o)
   local best = best_of(op, logits)
   if o.temperature == 0 then return best - 1 end
   local most = logits[best]
   local next_best, total
   if o.top_k > 0 then
      next_best, total = k_best(logits, most, o)
   else
      local indices
      indices, total = weighed(logits, most, o)
      next_best = ranking(indices, logits)
      if o.top_p == 1 and o.min_p == 0 then
         return draw_all(next_best, total, logits, most, u, o)
      end
   end
   local list, weights, sum = kept_of(next_best, total, logits, most, o)
   local run = 0
   for k, i in ipairs(list) do
      run = run + weights[k]
      if u * sum < run then return i - 1 end
   end
   return list[#list] - 1
end

-- Changes logits by what was said: repetition_penalty divides positive and multiplies negative
-- logits of ids in the prompt or the answer; presence_penalty and frequency_penalty are subtracted
-- for ids of the answer, the latter once for each time. seen, said: numbers by id.
function pick.penalise(logits, seen, said, o)
   local r = o.repetition_penalty
   if r ~= 1 then
      for id in each(seen) do
         local v = logits[id + 1]
         if v then logits[id + 1] = v > 0 and v / r or v * r end
      end
   end
   if o.presence_penalty == 0 and o.frequency_penalty == 0 then return end
   for id, n in each(said) do
      logits[id + 1] = logits[id + 1] - o.presence_penalty - n * o.frequency_penalty
   end
end

return pick
