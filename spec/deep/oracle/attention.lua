-- Attention by its definition, with its gradients, in plain loops over Lua numbers.
--
-- Arrays are flat lists: q [B, T, H, D], k [B, T, K, D], v [B, T, K, V], out and dout [B, T, H, V].
-- Head h reads key head floor(h / (H / K)). A row that sees nothing gives 0.

-- o: B, T, H, K, D, V, scale, softcap, sees(b, i, j) (whether token i of row b sees token j, from
-- 0). Returns { out, dq, dk, dv }.
return function(o, q, k, v, dout)
   local B, T, H, K, D, V = o.B, o.T, o.H, o.K, o.D, o.V
   local scale, cap, per = o.scale or 1 / math.sqrt(D), o.softcap, H / K
   local out, dq, dk, dv = {}, {}, {}, {}
   for i = 1, B * T * H * V do out[i] = 0 end
   for i = 1, B * T * H * D do dq[i] = 0 end
   for i = 1, B * T * K * D do dk[i] = 0 end
   for i = 1, B * T * K * V do dv[i] = 0 end

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
      local aq, ao, dp, mean = at_q(b, i, h), at_o(b, i, h), {}, 0
      for n, j in ipairs(seen) do
         local av, s = at_v(b, j, g), 0
         for d = 1, V do
            out[ao + d] = out[ao + d] + p[n] * v[av + d]
            s = s + dout[ao + d] * v[av + d]
            dv[av + d] = dv[av + d] + p[n] * dout[ao + d]
         end
         dp[n], mean = s, mean + p[n] * s
      end
      for n, j in ipairs(seen) do
         local ds, ak = p[n] * (dp[n] - mean) * slope[n] * scale, at_k(b, j, g)
         for d = 1, D do
            dq[aq + d] = dq[aq + d] + ds * k[ak + d]
            dk[ak + d] = dk[ak + d] + ds * q[aq + d]
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
   return { out = out, dq = dq, dk = dk, dv = dv }
end
