-- Ops of layers with a state: causal convolution, the SSD scan, the gated delta rule, the gated
-- norm.
--
-- A step of generation is the same op on one token, with the state before and after it. Legend: B
-- batch, T tokens, C channels, K taps, H heads, P head size, G groups, N state size.

local ffi = require 'ffi'
local lib = require 'tide.ffi.lib'
local arg = require 'tide.ffi.arg'
local status = require 'tide.ffi.status'
local each = pairs -- by another name: see "faults" in bindings/README.md
local C = lib.C

local M = {}
local raw = {}                              -- behind a wrapper that checks the arguments
local call, _, _, two = require('tide.ffi.row').adders(raw, 'raw')
call 'gated_rms_norm(x, z, weight, eps, group, gate_last)'
call 'conv1d(x, w, bias, attrs) -> nil, x, w, bias, attrs'
two 'conv1d: conv1d_last(x, w, bias, attrs)'
call 'ssd_scan(x, dt, A, B, Cs, attrs) -> nil, x, dt, A, B, Cs, attrs'
two 'ssd_scan: ssd_scan_last(x, dt, A, B, Cs, attrs)'
call 'gated_delta(q, k, v, g, beta, attrs) -> nil, q, k, v, g, beta, attrs'
two 'gated_delta: gated_delta_last(q, k, v, g, beta, attrs)'
local make = require('tide.ffi.row').adders(M)
local tensor, tensor_or_nil, flag, int = arg.tensor, arg.tensor_or_nil, arg.flag, arg.int
local finite, bad = arg.finite, status.bad_arg

-- Returns the number of the sequence of each token of a packed stream, i32 [1, ntoken], from
-- cumulative lengths {0, ..., ntoken}.
make 'sequence_index(cu, ntoken: int 0)'

-- ---- convolution -----------------------------------------------------------------------------

local conv_opts = arg.set { 'silu', 'initial', 'sequence', 'return_last' }
local new_conv_attrs = ffi.typeof 'tide_conv1d_attrs'

-- Returns the causal convolution of each channel: y_BTC[t] = bias + sum_k w_CK[k] x_BTC[t - (K-1) +
-- k]. opts: silu, initial [B, K-1, C], sequence [B or 1, T], return_last (then also the initial
-- rows of the next call).
function M.conv1d(x, w, bias, opts)
   tensor('conv1d', 'x', x)
   tensor('conv1d', 'w', w)
   tensor_or_nil('conv1d', 'bias', bias)
   local a = new_conv_attrs()
   C.tide_conv1d_attrs_init(a)
   opts = arg.opts('conv1d', opts, conv_opts)
   a.silu = flag('conv1d', 'opts.silu', opts.silu) and 1 or 0
   a.initial = tensor_or_nil('conv1d', 'opts.initial', opts.initial)
   a.sequence = tensor_or_nil('conv1d', 'opts.sequence', opts.sequence)
   local last = flag('conv1d', 'opts.return_last', opts.return_last)
   return (last and raw.conv1d_last or raw.conv1d)(x, w, bias, a)
end

local step_opts = arg.set { 'silu' }

-- Returns one token y_BC of conv1d and the state for the next, from x_BC and the state [B, K-1, C]
-- (nil: zeros).
function M.conv1d_step(x, w, bias, state, opts)
   tensor('conv1d_step', 'x', x)
   if arg.ndim(x) ~= 2 then bad('conv1d_step', 'x', 'a tensor [B, C]', x) end
   tensor_or_nil('conv1d_step', 'state', state)
   opts = arg.opts('conv1d_step', opts, step_opts)
   local y, last = M.conv1d(x:unsqueeze(2), w, bias,
      { silu = opts.silu, initial = state, return_last = true })
   return y:squeeze(2), last
end

-- ---- the scan --------------------------------------------------------------------------------

local scan_opts = arg.set { 'D', 'dt_bias', 'z', 'initial', 'sequence', 'softplus', 'chunk',
   'dt_limit', 'return_last' }
local new_scan_attrs = ffi.typeof 'tide_ssd_attrs'

-- Writes the limits {least, most} of a call; most may be math.huge.
local function fill_limit(a, limit)
   if limit == nil then return end
   if type(limit) ~= 'table' then
      bad('ssd_scan', 'opts.dt_limit', '{least, most} or nil', limit)
   end
   local lo = limit[1] == nil and 0 or finite('ssd_scan', 'opts.dt_limit[1]', limit[1], 0)
   local hi = limit[2] == nil and math.huge or limit[2]
   if type(hi) ~= 'number' or hi ~= hi or hi < lo then
      bad('ssd_scan', 'opts.dt_limit[2]', ('a number >= %g'):format(lo), hi)
   end
   a.dt_min, a.dt_max = lo, hi
end

local function fill_scan(opts)
   local a = new_scan_attrs()
   C.tide_ssd_attrs_init(a)
   opts = arg.opts('ssd_scan', opts, scan_opts)
   a.softplus = flag('ssd_scan', 'opts.softplus', opts.softplus) and 1 or 0
   if opts.chunk ~= nil then a.chunk = int('ssd_scan', 'opts.chunk', opts.chunk, 1) end
   fill_limit(a, opts.dt_limit)
   a.D = tensor_or_nil('ssd_scan', 'opts.D', opts.D)
   a.dt_bias = tensor_or_nil('ssd_scan', 'opts.dt_bias', opts.dt_bias)
   a.z = tensor_or_nil('ssd_scan', 'opts.z', opts.z)
   a.initial = tensor_or_nil('ssd_scan', 'opts.initial', opts.initial)
   a.sequence = tensor_or_nil('ssd_scan', 'opts.sequence', opts.sequence)
   return a, flag('ssd_scan', 'opts.return_last', opts.return_last)
end

-- Returns y_BTHP of the scan h = exp(dt A) h + dt x B', y = h C + D x, for x_BTHP, dt_BTH, A_H,
-- B_BTGN and C_BTGN. opts: D [H] or [H, P], dt_bias_H, softplus (of dt + bias), dt_limit {least,
-- most}, z_BTHP (y times silu(z)), initial [B, H, P, N], sequence [B or 1, T], chunk, return_last
-- (then also the state).
function M.ssd_scan(x, dt, A, B, Cs, opts)
   tensor('ssd_scan', 'x', x)
   tensor('ssd_scan', 'dt', dt)
   tensor('ssd_scan', 'A', A)
   tensor('ssd_scan', 'B', B)
   tensor('ssd_scan', 'C', Cs)
   local a, want_last = fill_scan(opts)
   return (want_last and raw.ssd_scan_last or raw.ssd_scan)(x, dt, A, B, Cs, a)
end

local ssd_step_opts = arg.set { 'D', 'dt_bias', 'z', 'softplus', 'dt_limit' }

-- Returns one token y_BHP of ssd_scan and the next state, from x_BHP, dt_BH, A_H, B_BGN, C_BGN and
-- the state [B, H, P, N] (nil: zeros). opts: those of ssd_scan that concern a token.
function M.ssd_step(x, dt, A, B, Cs, state, opts)
   tensor('ssd_step', 'x', x)
   tensor('ssd_step', 'dt', dt)
   tensor('ssd_step', 'B', B)
   tensor('ssd_step', 'C', Cs)
   if arg.ndim(x) ~= 3 then bad('ssd_step', 'x', 'a tensor [B, H, P]', x) end
   if arg.ndim(dt) ~= 2 then bad('ssd_step', 'dt', 'a tensor [B, H]', dt) end
   if arg.ndim(B) ~= 3 then bad('ssd_step', 'B', 'a tensor [B, G, N]', B) end
   if arg.ndim(Cs) ~= 3 then bad('ssd_step', 'C', 'a tensor [B, G, N]', Cs) end
   local o = { initial = tensor_or_nil('ssd_step', 'state', state), return_last = true }
   for key, value in each(arg.opts('ssd_step', opts, ssd_step_opts)) do o[key] = value end
   if o.z ~= nil then o.z = tensor('ssd_step', 'opts.z', o.z):unsqueeze(2) end
   local y, last = M.ssd_scan(x:unsqueeze(2), dt:unsqueeze(2), A, B:unsqueeze(2),
      Cs:unsqueeze(2), o)
   return y:squeeze(2), last
end

-- ---- the gated delta rule -----------------------------------------------------------------------

local delta_opts = arg.set { 'scale', 'l2norm', 'eps', 'initial', 'sequence', 'chunk',
   'return_last' }
local new_delta_attrs = ffi.typeof 'tide_gated_delta_attrs'

local function fill_delta(opts)
   local a = new_delta_attrs()
   C.tide_gated_delta_attrs_init(a)
   opts = arg.opts('gated_delta', opts, delta_opts)
   a.l2norm = flag('gated_delta', 'opts.l2norm', opts.l2norm) and 1 or 0
   if opts.chunk ~= nil then a.chunk = int('gated_delta', 'opts.chunk', opts.chunk, 1) end
   if opts.scale ~= nil then
      a.scale = finite('gated_delta', 'opts.scale', opts.scale)
      if a.scale == 0 then bad('gated_delta', 'opts.scale', 'a number other than 0', 0) end
   end
   if opts.eps ~= nil then a.eps = finite('gated_delta', 'opts.eps', opts.eps, 0) end
   a.initial = tensor_or_nil('gated_delta', 'opts.initial', opts.initial)
   a.sequence = tensor_or_nil('gated_delta', 'opts.sequence', opts.sequence)
   return a, flag('gated_delta', 'opts.return_last', opts.return_last)
end

-- Returns o [B, T, Hv, Dv] of the gated delta rule R = exp(g) S, u = beta (v - R' k), S = R + k u',
-- o = scale S' q, for q and k [B, T, Hk, Dk], v [B, T, Hv, Dv], g and beta [B, T, Hv]. opts: scale
-- (default Dk^-0.5), l2norm (q and k are divided by sqrt(sum of squares + eps) first), eps (default
-- 1e-6), initial [B, Hv, Dk, Dv], sequence [B or 1, T], chunk, return_last (then also the state).
function M.gated_delta(q, k, v, g, beta, opts)
   tensor('gated_delta', 'q', q)
   tensor('gated_delta', 'k', k)
   tensor('gated_delta', 'v', v)
   tensor('gated_delta', 'g', g)
   tensor('gated_delta', 'beta', beta)
   local a, want_last = fill_delta(opts)
   return (want_last and raw.gated_delta_last or raw.gated_delta)(q, k, v, g, beta, a)
end

local delta_step_opts = arg.set { 'scale', 'l2norm', 'eps' }

-- Returns one token o [B, Hv, Dv] of gated_delta and the next state, from q and k [B, Hk, Dk], v
-- [B, Hv, Dv], g and beta [B, Hv] and the state [B, Hv, Dk, Dv] (nil: zeros). opts: those of
-- gated_delta that concern a token.
function M.gated_delta_step(q, k, v, g, beta, state, opts)
   tensor('gated_delta_step', 'q', q)
   tensor('gated_delta_step', 'k', k)
   tensor('gated_delta_step', 'v', v)
   tensor('gated_delta_step', 'g', g)
   tensor('gated_delta_step', 'beta', beta)
   if arg.ndim(q) ~= 3 then bad('gated_delta_step', 'q', 'a tensor [B, Hk, Dk]', q) end
   if arg.ndim(k) ~= 3 then bad('gated_delta_step', 'k', 'a tensor [B, Hk, Dk]', k) end
   if arg.ndim(v) ~= 3 then bad('gated_delta_step', 'v', 'a tensor [B, Hv, Dv]', v) end
   if arg.ndim(g) ~= 2 then bad('gated_delta_step', 'g', 'a tensor [B, Hv]', g) end
   if arg.ndim(beta) ~= 2 then bad('gated_delta_step', 'beta', 'a tensor [B, Hv]', beta) end
   tensor_or_nil('gated_delta_step', 'state', state)
   opts = arg.opts('gated_delta_step', opts, delta_step_opts)
   local o, last = M.gated_delta(q:unsqueeze(2), k:unsqueeze(2), v:unsqueeze(2), g:unsqueeze(2),
      beta:unsqueeze(2), { scale = opts.scale, l2norm = opts.l2norm, eps = opts.eps,
         initial = state, return_last = true })
   return o:squeeze(2), last
end

-- ---- the norm --------------------------------------------------------------------------------

local norm_opts = arg.set { 'eps', 'group', 'gate_last' }

-- Returns norm(x silu(z)) weight over groups of opts.group channels (default: the whole last dim),
-- or with opts.gate_last norm(x) weight silu(z). weight may be nil. opts.eps is 1e-5 by default.
function M.gated_rms_norm(x, z, weight, opts)
   tensor('gated_rms_norm', 'x', x)
   tensor('gated_rms_norm', 'z', z)
   tensor_or_nil('gated_rms_norm', 'weight', weight)
   opts = arg.opts('gated_rms_norm', opts, norm_opts)
   local eps = finite('gated_rms_norm', 'opts.eps', opts.eps == nil and 1e-5 or opts.eps, 0)
   local group = opts.group == nil and 0 or int('gated_rms_norm', 'opts.group', opts.group, 1)
   local gate_last = flag('gated_rms_norm', 'opts.gate_last', opts.gate_last)
   return raw.gated_rms_norm(x, z, weight, eps, group, gate_last)
end

return M
