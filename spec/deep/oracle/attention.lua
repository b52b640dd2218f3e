-- Attention by its definition, with its gradients, in plain loops over Lua numbers.
--
-- Arrays are flat lists: q [B, T, H, D], k [B, T, K, D], v [B, T, K, V], out and dout [B, T, H, V].
-- Head h reads key head floor(h / (H / K)). A row that sees nothing gives 0.

local function zeros(n)
   local list = {}
   for i = 1, n do list[i] = 0 end
   return list
end

-- o: B, T, H, K, D, V, scale, softcap, sees(b, i, j) (whether token i of row b sees token j, from
-- 0). Returns { out, dq, dk, dv } and `sizes`, the same lists of sums of magnitudes: of p |v| in
-- out, of p |dout| in dv, and of w |k| and w |q| in dq and dk, where with Delta = sum of dout out
--    ds = p slope scale (dp - Delta)
--    w  = p slope scale (|dp - Delta| + sum of |dout| times the size of out)
-- A rounding of relative error u of out, p, ds or a sum adds at most u times the size, since an
-- error u times the size of out moves each ds by what the second term of w says.
return function(o, q, k, v, dout)
   local B, T, H, K, D, V = o.B, o.T, o.H, o.K, o.D, o.V
   local scale, cap, per = o.scale or 1 / math.sqrt(D), o.softcap, H / K
   local out, dq, dk, dv = zeros(B * T * H * V), zeros(B * T * H * D), zeros(B * T * K * D),
      zeros(B * T * K * V)
   local sizes = { out = zeros(#out), dq = zeros(#dq), dk = zeros(#dk), dv = zeros(#dv) }

   -- Starts of the rows of a token and head.
   local function at_q(b, i, h) return ((b * T + i) * H + h) * D end
   local function at_k(b, j, g) return ((b * T + j) * K + g) * D end
   local function at_v(b, j, g) return ((b * T + j) * K + g) * V end
   local function at_o(b, i, h) return ((b * T + i) * H + h) * V end

   -- Weights of the keys that a query sees, and the slope of its capped scores.
   local function weights(b, i, h, seen)
      local g, aq = math.floor(h / per), at_q(b, i, h)
      local p, slope, most, sum = {}, {}, -math.huge, 0
      for n, j in ipairs(seen) do
         local s, ak = 0, at_k(b, j, g)
         for d = 1, D do s = s + q[aq + d] * k[ak + d] end
         s, slope[n] = s * scale, 1
         if cap then
            local t = math.tanh(s / cap)
            s, slope[n] = cap * t, 1 - t * t
         end
         p[n], most = s, math.max(most, s)
      end
      for n = 1, #p do
         p[n] = math.exp(p[n] - most)
         sum = sum + p[n]
      end
      for n = 1, #p do p[n] = p[n] / sum end
      return p, slope
   end

   local function one(b, i, h, seen)
      local g = math.floor(h / per)
      local p, slope = weights(b, i, h, seen)
      local aq, ao, dp, mean, blur = at_q(b, i, h), at_o(b, i, h), {}, 0, 0
      for n, j in ipairs(seen) do
         local av, s = at_v(b, j, g), 0
         for d = 1, V do
            out[ao + d] = out[ao + d] + p[n] * v[av + d]
            s = s + dout[ao + d] * v[av + d]
            dv[av + d] = dv[av + d] + p[n] * dout[ao + d]
            sizes.out[ao + d] = sizes.out[ao + d] + p[n] * math.abs(v[av + d])
            sizes.dv[av + d] = sizes.dv[av + d] + p[n] * math.abs(dout[ao + d])
         end
         dp[n], mean = s, mean + p[n] * s
      end
      for d = 1, V do blur = blur + math.abs(dout[ao + d]) * sizes.out[ao + d] end
      for n, j in ipairs(seen) do
         local ds, ak = p[n] * (dp[n] - mean) * slope[n] * scale, at_k(b, j, g)
         local w = p[n] * (math.abs(dp[n] - mean) + blur) * math.abs(slope[n] * scale)
         for d = 1, D do
            dq[aq + d] = dq[aq + d] + ds * k[ak + d]
            dk[ak + d] = dk[ak + d] + ds * q[aq + d]
            sizes.dq[aq + d] = sizes.dq[aq + d] + w * math.abs(k[ak + d])
            sizes.dk[ak + d] = sizes.dk[ak + d] + w * math.abs(q[aq + d])
         end
      end
   end

   for b = 0, B - 1 do
      for i = 0, T - 1 do
         local seen = {}
         for j = 0, T - 1 do
            if o.sees(b, i, j) then seen[#seen + 1] = j end
         end
         for h = 0, H - 1 do one(b, i, h, seen) end
      end
   end
   return { out = out, dq = dq, dk = dk, dv = dv, sizes = sizes }
end
