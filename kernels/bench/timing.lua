-- Ours and the peer in turn, each between two calibration slices.
--
-- Absolute figures drift with the neighbours of a shared machine, so what counts is the median of
-- the per-pair ratio and the share of the adjacent calibration. Pairs whose three calibrations all
-- reach four fifths of the best seen are quiet; with at least five of them only they count.

local ffi = require 'ffi'
local stats = require 'kernels.bench.stats'

local M = {}

ffi.cdef 'int usleep(unsigned usec);'

-- A team of threads goes on spinning for some milliseconds after its last loop; let it fall asleep
-- before another process is timed.
local function settle() ffi.C.usleep(20000) end

local function calibrate(opts, seconds, threads)
   local ms = math.max(2, math.min(30, 1000 * seconds / 20))
   return opts.limit:numbers(('%s %d %.1f %s'):format(opts.kind, threads or opts.threads, ms,
      opts.cpu and 'cpu' or ''))[1]
end

-- Seconds of one run out of n; cpu: of processor time.
local function time(side, n, cpu)
   local t = side:numbers('run ' .. n)[cpu and 2 or 1] / n
   settle()
   return t
end

-- Repetitions that fill about `want` seconds; warms up at the same time.
local function repeats(side, want)
   local t = time(side, 1)
   if t < want then t = time(side, 1) end
   return math.max(1, math.min(100000, math.ceil(want / math.max(t, 1e-7))))
end

local function quiet(lows, tops)
   local best, keep = 0, {}
   for _, x in ipairs(tops) do best = math.max(best, x) end
   for i, x in ipairs(lows) do
      if x >= 0.8 * best then keep[#keep + 1] = i end
   end
   return keep
end

local function pick(list, keep)
   local out = {}
   for i, k in ipairs(keep) do out[i] = list[k] end
   return out
end

local function take(s, i, opts, n)
   local sides = { opts.ours, opts.peer }
   local first = i % 2 == 1 and 1 or 2
   if not opts.peer then first = 1 end
   local before = calibrate(opts, s.span)
   local got, around = {}, {}
   local low, top = before, before
   for k = 0, opts.peer and 1 or 0 do
      local side = k == 0 and first or 3 - first
      got[side] = time(sides[side], n[side], opts.cpu)
      local after = calibrate(opts, s.span)
      around[side] = 0.5 * (before + after)
      low, top, before = math.min(low, after), math.max(top, after), after
   end
   s.ours[i], s.low[i], s.top[i] = got[1], low, top
   s.share[i] = opts.work / got[1] / around[1]
   if opts.peer then
      s.peer[i], s.ratio[i] = got[2], got[2] / got[1]
      s.peer_share[i] = opts.work / got[2] / around[2]
   end
   if opts.peer_threads then
      local many = calibrate(opts, s.span)
      s.machine[i] = many / calibrate(opts, s.span, opts.peer_threads)
   end
end

-- opts: ours, peer (or nil), limit (children), kind, threads, work (operations or bytes of one
-- run), rounds, sample (seconds a sample should last at least), cpu (processor time instead of the
-- clock's, which other programs cannot disturb; one thread only), peer_threads (of a peer with
-- another number of threads: `machine` is the ratio of the calibrations with either number).
-- Returns medians and quartiles.
function M.run(opts)
   local s = { ours = {}, peer = {}, ratio = {}, share = {}, peer_share = {}, low = {}, top = {},
      machine = {} }
   local n = { repeats(opts.ours, opts.sample), opts.peer and repeats(opts.peer, opts.sample) }
   s.span = opts.sample
   for i = 1, opts.rounds do take(s, i, opts, n) end
   local keep = quiet(s.low, s.top)
   local counted = keep
   if #keep < 5 then
      counted = {}
      for i = 1, opts.rounds do counted[i] = i end
   end
   local ratio = pick(s.ratio, counted)
   local result = {
      rounds = opts.rounds, quiet = #keep, ours = stats.median(s.ours),
      ours_best = stats.quantile(s.ours, 0), share = stats.median(pick(s.share, counted)),
      limit = stats.median(s.top),
   }
   if not opts.peer then return result end
   result.peer, result.peer_best = stats.median(s.peer), stats.quantile(s.peer, 0)
   result.peer_share = stats.median(pick(s.peer_share, counted))
   result.ratio = stats.median(ratio)
   result.q1, result.q3 = stats.quantile(ratio, 0.25), stats.quantile(ratio, 0.75)
   if opts.peer_threads then result.machine = stats.median(pick(s.machine, counted)) end
   return result
end

return M
