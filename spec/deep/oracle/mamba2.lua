-- A Mamba-2 layer on a whole sequence, with its gradients: projection, convolution with silu, scan,
-- gated norm, projection, by oracle/ssm.lua.

local ssm = require 'spec.deep.oracle.ssm'

-- Columns first .. first + n - 1 of rows of `width`.
local function columns(list, width, first, n)
   local out = {}
   for t = 0, #list / width - 1 do
      for k = 1, n do out[t * n + k] = list[t * width + first + k - 1] end
   end
   return out
end

-- Rows of several lists, { list, width } each, joined.
local function joined(parts)
   local out, at, n = {}, 0, #parts[1][1] / parts[1][2]
   for t = 0, n - 1 do
      for _, part in ipairs(parts) do
         for k = 1, part[2] do
            at = at + 1
            out[at] = part[1][t * part[2] + k]
         end
      end
   end
   return out
end

-- o: B, T, H, P, G, N, K, M (width of the model), eps, gate_last, limit, seq. w: the parameters by
-- name, flat. x and dy [B, T, M]. Returns y, the gradients { x, and each parameter by name }, and
-- a function that returns the sums of the magnitudes of the terms of D, A_log and dt_bias.
return function(o, w, x, dy)
   local I, S = o.H * o.P, o.G * o.N
   local conv_dim, width = I + 2 * S, 2 * I + 2 * S + o.H
   local sizes = { B = o.B, T = o.T, H = o.H, P = o.P, G = o.G, N = o.N, C = conv_dim, K = o.K,
      silu = true, softplus = true, limit = o.limit, seq = o.seq }
   local projected, back_in = ssm.linear(x, w['in_proj.weight'], w['in_proj.bias'], o.M, width)
   local z = columns(projected, width, 1, I)
   local xBC, dt = columns(projected, width, I + 1, conv_dim), columns(projected, width,
      I + conv_dim + 1, o.H)
   local conv_in = { x = xBC, w = w['conv1d.weight'], bias = w['conv1d.bias'] }
   local function zeros(n)
      local list = {}
      for k = 1, n do list[k] = 0 end
      return list
   end
   local mixed = ssm.conv(sizes, conv_in, { y = zeros(#xBC) }).y
   local A = {}
   for h = 1, o.H do A[h] = -math.exp(w.A_log[h]) end
   local scan_in = { x = columns(mixed, conv_dim, 1, I), B = columns(mixed, conv_dim, I + 1, S),
      C = columns(mixed, conv_dim, I + S + 1, S), dt = dt, A = A, D = w.D, bias = w.dt_bias }
   local y = ssm.scan(sizes, scan_in, { y = zeros(#z) }).y
   local norm = { C = I, group = I / o.G, eps = o.eps, gate_last = o.gate_last }
   local normed = ssm.norm(norm, y, z, w['norm.weight'], zeros(#z))
   local out, back_out = ssm.linear(normed, w['out_proj.weight'], w['out_proj.bias'], I, o.M)

   local g_out = back_out(dy)
   local _, g_norm = ssm.norm(norm, y, z, w['norm.weight'], g_out.x)
   local _, g_scan = ssm.scan(sizes, scan_in, { y = g_norm.x })
   local d_mixed = joined { { g_scan.x, I }, { g_scan.B, S }, { g_scan.C, S } }
   local _, g_conv = ssm.conv(sizes, conv_in, { y = d_mixed })
   local g_in = back_in(joined { { g_norm.z, I }, { g_conv.x, conv_dim }, { g_scan.dt, o.H } })
   local dA_log = {}
   for h = 1, o.H do dA_log[h] = g_scan.A[h] * A[h] end
   return out, { x = g_in.x, ['in_proj.weight'] = g_in.w, ['in_proj.bias'] = w['in_proj.bias']
      and g_in.bias, ['conv1d.weight'] = g_conv.w, ['conv1d.bias'] = w['conv1d.bias']
      and g_conv.bias, A_log = dA_log, D = g_scan.D, dt_bias = g_scan.bias,
      ['norm.weight'] = g_norm.weight, ['out_proj.weight'] = g_out.w,
      ['out_proj.bias'] = w['out_proj.bias'] and g_out.bias }, function()
         -- sums over all tokens, which cancel: the norm behind the scan knows no scale
         local _, size = ssm.scan_sizes(sizes, scan_in, { y = g_norm.x })
         for h = 1, o.H do size.A[h] = size.A[h] * -A[h] end
         return { D = size.D, A_log = size.A, dt_bias = size.bias }
      end
end
