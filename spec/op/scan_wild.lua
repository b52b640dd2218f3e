-- Random scans with wild steps: wild.draw(seed) makes one, wild.check(case) holds the f32 gradients
-- of the chunked scan to those of a token loop in f32; both are compared with the loop in f64.
--
-- Steps lie between 1e-3 and 1 and a few are up to 1e5 times as large, as a trained model has them
-- where it forgets. Then a gradient that is a difference of sums loses its digits; that of a token
-- loop does not.

local tide = require 'tide'
local fast = require 'spec.support.fast'

local wild = {}

-- A generator of this seed: whole numbers in [lo, hi], members of a list.
local function random(seed)
   local state = (seed * 2654435761) % 2^32
   local function int(lo, hi)
      state = (state * 1664525 + 1013904223) % 2^32
      return lo + math.floor(state / 2^32 * (hi - lo + 1))
   end
   for _ = 1, 4 do int(0, 1) end
   return int, function(list) return list[int(1, #list)] end
end

-- Sizes and options of the scan of a seed; all numbers of it follow from them.
function wild.draw(seed)
   local int, any = random(seed)
   local c = { seed = seed, T = int(2, 150), H = any { 1, 2, 4 }, P = int(1, 20), N = int(1, 20),
      B = int(1, 2), chunk = any { 1, 3, 16, 32, 64, 128 } }
   c.G = any { 1, c.H }
   c.base, c.spike = any { 1e-3, 1e-2, 0.1, 1 }, any { 1, 10, 100, 1e3, 1e5 }
   c.rate = any { 0.1, 1, 16 }
   c.softplus, c.bias, c.initial, c.last = any { true, false }, any { true, false },
      any { true, false }, any { true, false }
   c.cut = any { false, false, int(1, 40) }
   return c
end

function wild.name(c)
   local list = {}
   for k, v in pairs(c) do list[#list + 1] = k .. ' ' .. tostring(v) end
   table.sort(list)
   return table.concat(list, ', ')
end

local function normal(seed, ...) return tide.empty({ ... }, { dtype = 'f32' }):normal_(0, 1,
   { seed = seed }) end

-- Inputs by name, gradients of y and of the last state, numbers of the sequences.
local function inputs(c)
   local B, T, H, P, G, N, s = c.B, c.T, c.H, c.P, c.G, c.N, c.seed * 16
   local i = { x = normal(s, B, T, H, P), B = normal(s + 1, B, T, G, N),
      C = normal(s + 2, B, T, G, N), A = normal(s + 3, H):mul(0.3):exp():mul(-c.rate) }
   local steps = normal(s + 4, B, T, H):mul(0.3):exp():mul(c.base)
   local drawn = tide.empty({ B, T, H }, { dtype = 'f32' }):uniform_(0, 1, { seed = s + 5 })
   steps = tide.where(drawn:lt(0.04), steps * c.spike, steps)
   i.dt = c.softplus and steps + (1 - (-steps):exp()):log() or steps    -- softplus(dt) = step
   if c.bias then
      i.dt_bias = normal(s + 6, H):mul(c.softplus and 0.1 or 0.1 * c.base):abs()
   end
   if c.initial then i.initial = normal(s + 7, B, H, P, N) end
   local sequence
   if c.cut then
      sequence = {}
      for t = 0, T - 1 do sequence[t + 1] = math.floor(t / c.cut) end
   end
   return i, normal(s + 8, B, T, H, P), c.last and normal(s + 9, B, H, P, N), sequence
end

-- The token loop, of plain ops with the tape: y [B, T, H, P] and the last state.
local function loop(c, i, sequence)
   local each, state = c.H / c.G, i.initial
   local function heads(t)                     -- [B, G, N] -> [B, H, 1, N]
      return t:repeat_interleave(each, 2):reshape { c.B, c.H, 1, c.N }
   end
   local step_BTH = i.dt_bias and i.dt + i.dt_bias or i.dt
   if c.softplus then step_BTH = step_BTH:softplus() end
   local keep_BTH, rows = (step_BTH * (i.A_BTH or i.A)):exp(), {}
   for t = 1, c.T do
      local into = (i.x:select(2, t) * step_BTH:select(2, t):unsqueeze(3)):unsqueeze(4)
         * heads(i.B:select(2, t))
      local new = sequence and t > 1 and sequence[t] ~= sequence[t - 1]
      if state and not new then
         state = state * keep_BTH:select(2, t):reshape { c.B, c.H, 1, 1 } + into
      else
         state = into
      end
      rows[t] = (state * heads(i.C:select(2, t))):sum(4)
   end
   return tide.stack(rows, 2), state
end

local function scan(c, i, sequence)
   local q = sequence and tide.tensor({ sequence }, { dtype = 'i32', device = i.x.device })
   return tide.ssd_scan(i.x, i.dt, i.A, i.B, i.C, { dt_bias = i.dt_bias, softplus = c.softplus,
      initial = i.initial, chunk = c.chunk, sequence = q, return_last = true })
end

-- Gradients by name, f64 on the host.
local function gradients(rule, c, dtype, device)
   local given, dy, dlast, sequence = inputs(c)
   local i = {}
   for k, t in pairs(given) do i[k] = t:to(dtype):to(device):requires_grad_() end
   local y, last = rule(c, i, sequence)
   local loss = (y * dy:to(dtype):to(device)):sum()
   if dlast then loss = loss + (last * dlast:to(dtype):to(device)):sum() end
   loss:backward()
   local out = {}
   for k, t in pairs(i) do
      out[k] = (t.grad or tide.zeros(t.shape, { dtype = dtype })):to 'cpu':to 'f64'
   end
   return out
end

local function off(got, want) return (got - want):abs():amax():item() end

-- Gradients of A and dt_bias are sums over tokens, which may cancel: the largest of a head's root
-- of the sum of squares of their terms, by name. The loop in f64 gives them: A for each token.
local function terms(c)
   local function by_token(c_, i, sequence)
      i.A_BTH = i.A:expand { c_.B, c_.T, c_.H }:detach():clone():requires_grad_()
      return loop(c_, i, sequence)
   end
   local all = gradients(by_token, c, 'f64', 'cpu')
   local function root(t) return t:square():sum { 1, 2 }:amax():sqrt():item() end
   return { A = root(all.A_BTH), dt_bias = root(all.dt) }
end

-- Errors of the scan and the loop by gradient, relative to the largest element, or to the terms.
function wild.errors(c)
   local want = gradients(loop, c, 'f64', 'cpu')
   local slow, got = gradients(loop, c, 'f32', 'cpu'), gradients(scan, c, 'f32', fast)
   local out, sums = {}, terms(c)
   for k, t in pairs(want) do
      local scale = math.max(t:abs():amax():item(), sums[k] or 0, 1e-30)
      out[k] = { scan = off(got[k], t) / scale, loop = off(slow[k], t) / scale }
   end
   return out
end

-- The errors of both at a share of the cases, sorted by error.
local function at(list, share)
   table.sort(list)
   return list[math.ceil(share * #list)]
end

-- Raises if an error of the scan is more than four times that of the loop: in the median of the
-- cases, in one of ten, of a hundred and in the worst. A single case says little: its sum may be
-- right by luck.
function wild.check_all(cases)
   local scan_of, loop_of, worst = {}, {}, {}
   for _, c in ipairs(cases) do
      for k, e in pairs(wild.errors(c)) do
         scan_of[k], loop_of[k] = scan_of[k] or {}, loop_of[k] or {}
         table.insert(scan_of[k], e.scan)
         table.insert(loop_of[k], e.loop)
         if not worst[k] or e.scan > worst[k].error or e.scan ~= e.scan then
            worst[k] = { error = e.scan, name = wild.name(c) }
         end
      end
   end
   for k, list in pairs(scan_of) do
      for _, share in ipairs { 0.5, 0.9, 0.99, 1 } do
         local a, b = at(list, share), at(loop_of[k], share)
         if a > 4 * b or a ~= a then
            error(('d%s: %g of the scans are off by at most %.2g, of the token loops by %.2g; '
               .. 'worst: %.2g, %s'):format(k, share, a, b, worst[k].error, worst[k].name), 2)
         end
      end
   end
end

-- The cases of seeds first to last.
function wild.check(first, last)
   local list = {}
   for seed = first, last do list[#list + 1] = wild.draw(seed) end
   wild.check_all(list)
end

return wild
