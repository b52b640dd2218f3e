-- The operations of Mamba-2 by their definitions, a token at a time, with their gradients, in plain
-- loops over Lua numbers. Arrays are flat lists; shapes are named beside them.
--
-- `round` (default: none) is applied to the result of each arithmetic step, so that the same loops
-- also say what a token loop in f32 would lose (ssm.f32).
--
-- Legend: B rows, T tokens, H heads, P head size, G groups, N state size, C channels, K taps. seq:
-- a function (row, token) -> number of the sequence, or nil; a sequence begins where it changes.

local ffi = require 'ffi'

local ssm = {}

local box = ffi.new 'float[1]'

-- The nearest f32.
function ssm.f32(v)
   box[0] = v
   return box[0]
end

local function exactly(v) return v end
local magnitude = math.abs

local function zeros(n)
   local list = {}
   for i = 1, n do list[i] = 0 end
   return list
end

local function sigmoid(v) return 1 / (1 + math.exp(-v)) end
local function silu(v) return v * sigmoid(v) end
local function silu_slope(v)
   local s = sigmoid(v)
   return s * (1 + v * (1 - s))
end
ssm.silu, ssm.silu_slope = silu, silu_slope

local function softplus(v)
   if v > 30 then return v + math.exp(-v) end
   local e = math.exp(v)
   return e < 1e-5 and e - e * e / 2 or math.log(1 + e)
end

-- ---- the scan --------------------------------------------------------------------------------

-- The step of a token and its slope in dt. o: softplus, limit { least, most } (0 and no most).
local function step_of(o, raw, r)
   local v, slope = raw, 1
   if o.softplus then v, slope = r(softplus(raw)), r(sigmoid(raw)) end
   local least, most = 0, math.huge
   if o.limit then least, most = o.limit[1], o.limit[2] end
   if v < least then return least, 0 end
   if v > most then return most, 0 end
   return v, slope
end

-- One head (h) of one row (b). i: the inputs; out: what the walk writes; r: rounds; m: what is
-- taken of factors that may be negative (all of it, or the magnitude).
local function scan_head(o, i, out, b, h, r, m)
   local T, H, P, G, N = o.T, o.H, o.P, o.G, o.N
   local g = math.floor(h / (H / G))
   local function at_x(t) return ((b * T + t) * H + h) * P end
   local function at_g(t) return ((b * T + t) * G + g) * N end
   local per_channel = i.D and #i.D == H * P
   local function skip(p) return i.D and (per_channel and i.D[h * P + p] or i.D[h + 1]) or 0 end
   local states, steps, keeps, slopes = { [0] = {} }, {}, {}, {}
   for k = 1, P * N do
      states[0][k] = i.initial and i.initial[(b * H + h) * P * N + k] or 0
   end

   for t = 0, T - 1 do
      local raw = r(i.dt[(b * T + t) * H + h + 1] + (i.bias and i.bias[h + 1] or 0))
      steps[t], slopes[t] = step_of(o, raw, r)
      keeps[t] = r(math.exp(r(steps[t] * i.A[h + 1])))
      if t > 0 and o.seq and o.seq(b, t) ~= o.seq(b, t - 1) then keeps[t] = 0 end
      local now, state, ax, ag = states[t], {}, at_x(t), at_g(t)
      for p = 1, P do
         local sum, x = r(skip(p) * i.x[ax + p]), r(steps[t] * i.x[ax + p])
         for n = 1, N do
            local k = (p - 1) * N + n
            local old = keeps[t] == 0 and 0 or r(keeps[t] * now[k])
            state[k] = r(old + r(x * i.B[ag + n]))
            sum = r(sum + r(state[k] * i.C[ag + n]))
         end
         out.plain[ax + p] = sum
         out.y[ax + p] = i.z and r(sum * m(r(silu(i.z[ax + p])))) or sum
      end
      states[t + 1] = state
   end
   for k = 1, P * N do out.last[(b * H + h) * P * N + k] = states[T][k] end
   return states, steps, keeps, slopes
end

local function back_head(o, i, g_, out, b, h, r, m, walk)
   local T, H, P, G, N = o.T, o.H, o.P, o.G, o.N
   local states, steps, keeps, slopes = unpack(walk)
   local g, per_channel = math.floor(h / (H / G)), i.D and #i.D == H * P
   local dstate = {}
   for k = 1, P * N do
      dstate[k] = g_.last and g_.last[(b * H + h) * P * N + k] or 0
   end
   for t = T - 1, 0, -1 do
      local ax, ag = ((b * T + t) * H + h) * P, ((b * T + t) * G + g) * N
      local after, before, dkeep, dstep = states[t + 1], states[t], 0, 0
      for p = 1, P do
         local d, x = g_.y[ax + p], i.x[ax + p]
         if i.z then
            out.z[ax + p] = r(r(d * out.plain[ax + p]) * m(r(silu_slope(i.z[ax + p]))))
            d = r(d * m(r(silu(i.z[ax + p]))))
         end
         local into = 0
         for n = 1, N do
            local k = (p - 1) * N + n
            out.C[ag + n] = r(out.C[ag + n] + r(d * after[k]))
            dstate[k] = r(dstate[k] + r(d * i.C[ag + n]))
            into = r(into + r(dstate[k] * i.B[ag + n]))
            out.B[ag + n] = r(out.B[ag + n] + r(r(dstate[k] * steps[t]) * x))
            if keeps[t] ~= 0 then dkeep = r(dkeep + r(dstate[k] * before[k])) end
            dstate[k] = keeps[t] == 0 and 0 or r(dstate[k] * keeps[t])
         end
         dstep = r(dstep + r(into * x))
         local D = i.D and (per_channel and i.D[h * P + p] or i.D[h + 1]) or 0
         out.x[ax + p] = r(r(into * steps[t]) + r(D * d))
         if i.D then
            local at = per_channel and h * P + p or h + 1
            out.D[at] = r(out.D[at] + r(d * x))
         end
      end
      local decay = r(dkeep * keeps[t])
      out.A[h + 1] = r(out.A[h + 1] + r(decay * steps[t]))
      local ddt = r(r(dstep + r(decay * m(i.A[h + 1]))) * slopes[t])
      out.dt[(b * T + t) * H + h + 1] = ddt
      if i.bias then out.bias[h + 1] = r(out.bias[h + 1] + ddt) end
   end
   for k = 1, i.initial and P * N or 0 do out.initial[(b * H + h) * P * N + k] = dstate[k] end
end

-- i: x [B, T, H, P], dt [B, T, H], A [H], B and C [B, T, G, N], and where they are given D ([H] or
-- [H, P]), bias [H], z (as x), initial [B, H, P, N]. g: gradients y (as x) and last (as initial, or
-- nil). o: sizes, softplus, limit, seq. Returns { y, last } and the gradients by input name.
function ssm.scan(o, i, g, round, part)
   local r, m = round or exactly, part or exactly
   local out = { y = zeros(#i.x), last = zeros(o.B * o.H * o.P * o.N), plain = zeros(#i.x) }
   local grads = { plain = out.plain }
   for name, list in pairs(i) do grads[name] = zeros(#list) end
   for b = 0, o.B - 1 do
      for h = 0, o.H - 1 do
         local walk = { scan_head(o, i, out, b, h, r, m) }
         back_head(o, i, g, grads, b, h, r, m, walk)
      end
   end
   return out, grads
end

-- As ssm.scan, of the magnitudes of all terms: each sum is the sum of the magnitudes of what is
-- added in ssm.scan. A rounding by a part u of what it rounds moves a result by u times this.
function ssm.scan_sizes(o, i, g)
   local sizes, dsizes = {}, {}
   local function fill(to, lists, kept)
      for name, list in pairs(lists) do
         to[name] = {}
         for k, v in ipairs(list) do to[name][k] = kept[name] and v or magnitude(v) end
      end
   end
   fill(sizes, i, { dt = true, A = true, bias = true, z = true })
   fill(dsizes, g, {})
   return ssm.scan(o, sizes, dsizes, nil, magnitude)
end

-- ---- the convolution -------------------------------------------------------------------------

-- Row t of x behind the K - 1 rows of initial, from -(K - 1), as a function (row, token, channel)
-- -> list and place in it, or nil.
local function rows_of(o, i)
   return function(b, t, c)
      if t >= 0 then return 'x', (b * o.T + t) * o.C + c + 1 end
      if i.initial then return 'initial', (b * (o.K - 1) + t + o.K - 1) * o.C + c + 1 end
   end
end

local function same(o, b, s, t)
   if not o.seq or o.T == 0 then return true end
   return o.seq(b, math.max(s, 0)) == o.seq(b, math.max(t, 0))
end

-- i: x [B, T, C], w [C, K], and where they are given bias [C], initial [B, K - 1, C]. g: gradients
-- y (as x) and last (as initial, or nil). o: B, T, C, K, silu, seq. Returns { y, last } and the
-- gradients by input name.
function ssm.conv(o, i, g)
   local out, grads = { y = {}, last = {} }, {}
   for name, list in pairs(i) do grads[name] = zeros(#list) end
   local row = rows_of(o, i)
   local function token(b, t, c)
      local sum, at = i.bias and i.bias[c + 1] or 0, (b * o.T + t) * o.C + c + 1
      for k = 0, o.K - 1 do
         local s = t - (o.K - 1) + k
         local name, place = row(b, s, c)
         if name and same(o, b, s, t) then sum = sum + i.w[c * o.K + k + 1] * i[name][place] end
      end
      out.y[at] = o.silu and silu(sum) or sum
      local d = g.y[at] * (o.silu and silu_slope(sum) or 1)
      if i.bias then grads.bias[c + 1] = grads.bias[c + 1] + d end
      for k = 0, o.K - 1 do
         local s, w = t - (o.K - 1) + k, c * o.K + k + 1
         local name, place = row(b, s, c)
         if name and same(o, b, s, t) then
            grads.w[w] = grads.w[w] + d * i[name][place]
            grads[name][place] = grads[name][place] + d * i.w[w]
         end
      end
   end
   local function last(b, c)
      for j = 0, o.K - 2 do
         local s, at = o.T - (o.K - 1) + j, (b * (o.K - 1) + j) * o.C + c + 1
         local name, place = row(b, s, c)
         local there = name and same(o, b, s, o.T - 1)
         out.last[at] = there and i[name][place] or 0
         if there and g.last then grads[name][place] = grads[name][place] + g.last[at] end
      end
   end
   for b = 0, o.B - 1 do
      for c = 0, o.C - 1 do
         for t = 0, o.T - 1 do token(b, t, c) end
         last(b, c)
      end
   end
   return out, grads
end

-- Magnitudes of the terms of one output, and of what its gradient adds: of s = bias + sum of w x
-- |bias| + sum of |w x|; of its gradient |dy| (|slope| + that), as an error of s moves the slope.
local function conv_token(o, i, g, out, grads, b, t, c, row)
   local bias, at = i.bias and i.bias[c + 1] or 0, (b * o.T + t) * o.C + c + 1
   local sum, size, terms = bias, magnitude(bias), {}
   for k = 0, o.K - 1 do
      local s, w = t - (o.K - 1) + k, c * o.K + k + 1
      local name, place = row(b, s, c)
      if name and same(o, b, s, t) then
         local v = i.w[w] * i[name][place]
         sum, size = sum + v, size + magnitude(v)
         terms[#terms + 1] = { name, place, w }
      end
   end
   local d = magnitude(g.y[at]) * (o.silu and magnitude(silu_slope(sum)) + size or 1)
   out.y[at] = size
   if i.bias then grads.bias[c + 1] = grads.bias[c + 1] + d end
   for _, e in ipairs(terms) do
      local name, place, w = unpack(e)
      grads.w[w] = grads.w[w] + d * magnitude(i[name][place])
      grads[name][place] = grads[name][place] + d * magnitude(i.w[w])
   end
end

-- As ssm.scan_sizes, of ssm.conv; without what `last` adds, which is copied.
function ssm.conv_sizes(o, i, g)
   local out, grads = { y = {}, last = {} }, {}
   for name, list in pairs(i) do grads[name] = zeros(#list) end
   local row = rows_of(o, i)
   for b = 0, o.B - 1 do
      for c = 0, o.C - 1 do
         for t = 0, o.T - 1 do conv_token(o, i, g, out, grads, b, t, c, row) end
      end
   end
   for k = 1, o.B * (o.K - 1) * o.C do out.last[k] = 0 end
   return out, grads
end

-- ---- the gated norm --------------------------------------------------------------------------

-- norm(x silu(z)) weight over groups of `group` channels, or with gate_last norm(x) weight silu(z).
-- x, z and dy are rows of o.C channels. Returns y and the gradients { x, z, weight }.
function ssm.norm(o, x, z, weight, dy)
   local y, grads = {}, { x = {}, z = {}, weight = zeros(o.C) }
   for base = 0, #x - o.group, o.group do
      local square, u, mean = 0, {}, 0
      for k = 1, o.group do
         u[k] = o.gate_last and x[base + k] or x[base + k] * silu(z[base + k])
         square = square + u[k] * u[k]
      end
      local rstd, v = 1 / math.sqrt(square / o.group + o.eps), {}
      for k = 1, o.group do
         local at = base + k
         local c = (at - 1) % o.C + 1
         local gate = o.gate_last and silu(z[at]) or 1
         y[at] = u[k] * rstd * weight[c] * gate
         v[k] = dy[at] * weight[c] * gate
         mean = mean + v[k] * u[k] / o.group
         grads.weight[c] = grads.weight[c] + dy[at] * u[k] * rstd * gate
      end
      for k = 1, o.group do
         local at = base + k
         local du = rstd * (v[k] - u[k] * rstd * rstd * mean)
         if o.gate_last then
            grads.x[at] = du
            local c = (at - 1) % o.C + 1
            grads.z[at] = dy[at] * u[k] * rstd * weight[c] * silu_slope(z[at])
         else
            grads.x[at], grads.z[at] = du * silu(z[at]), du * x[at] * silu_slope(z[at])
         end
      end
   end
   return y, grads
end

-- ---- a projection ----------------------------------------------------------------------------

-- x [n, In] times w [Out, In] transposed, plus bias. Returns y [n, Out] and a function of dy that
-- gives the gradients { x, w, bias }.
function ssm.linear(x, w, bias, n_in, n_out)
   local n, y = #x / n_in, {}
   for t = 0, n - 1 do
      for j = 0, n_out - 1 do
         local sum = bias and bias[j + 1] or 0
         for k = 1, n_in do sum = sum + x[t * n_in + k] * w[j * n_in + k] end
         y[t * n_out + j + 1] = sum
      end
   end
   return y, function(dy)
      local g = { x = zeros(#x), w = zeros(#w), bias = zeros(n_out) }
      for t = 0, n - 1 do
         for j = 0, n_out - 1 do
            local d = dy[t * n_out + j + 1]
            g.bias[j + 1] = g.bias[j + 1] + d
            for k = 1, n_in do
               g.x[t * n_in + k] = g.x[t * n_in + k] + d * w[j * n_in + k]
               g.w[j * n_in + k] = g.w[j * n_in + k] + d * x[t * n_in + k]
            end
         end
      end
      return g
   end
end

return ssm
