-- Random cases: orders of tokens, exchanges of tokens against heads, and MambaContextParallel with
-- its slices of parameters; values and gradients must be exactly those of the definition.

local exchange = require 'spec.deep.oracle.exchange'
local layout = require 'spec.deep.oracle.layout'
local values = require 'spec.deep.fuzz.values'

local domain = { limit = 60 }

-- ---- cases -----------------------------------------------------------------------------------

-- Cumulative lengths of a few documents, each a multiple of `unit`.
local function lengths(c, unit)
   local cu = { 0 }
   for _ = 1, c:few(1, 4) do cu[#cu + 1] = cu[#cu] + unit * c:few(0, 4) end
   if cu[#cu] == 0 then cu[#cu + 1] = unit end
   return cu
end

local function order(c, n)
   local list = {}
   for k = 1, n do list[k] = k - 1 end
   for k = n, 2, -1 do
      local j = c:int(1, k)
      list[k], list[j] = list[j], list[k]
   end
   return list
end

-- kind: 'order' (one rank), 'all_to_all' or 'class'.
function domain.make(c)
   local o = { kind = c:pick { 'order', 'class', 'all_to_all' }, B = c:few(1, 3),
      dtype = c:pick { 'f64', 'f32' }, list = c:chance(0.5) }
   if o.kind == 'order' then
      o.n, o.W = 1, c:few(1, 6)
      o.what = c:pick { 'reorder_chunks', 'undo_attention_load_balancing',
         'redo_attention_load_balancing', 'deinterleave_packed_seqs',
         'reinterleave_packed_seqs' }
      local chunks = c:few(1, 6)
      if o.what == 'reorder_chunks' then o.order = order(c, chunks) end
      local inter = o.what:find 'interleave'
      o.packed = inter ~= nil or c:chance(0.5)
      o.cu = lengths(c, inter and 1 or o.order and #o.order or 2 * o.W)
      if not o.packed then o.cu = { 0, o.cu[#o.cu] } end
      o.width = c:few(1, 3)
      return o
   end
   o.n = c:pick { 1, 2, 3, 4, 6, 8 }
   if o.kind == 'all_to_all' then
      o.what = c:pick { 'all_to_all', 'all_to_all_cp2hp', 'all_to_all_hp2cp' }
      o.L, o.width, o.flat = c:few(1, 5), o.n * c:few(1, 3), c:chance(0.3)
      if o.what == 'all_to_all_hp2cp' then o.L = o.n * o.L end
      if o.what == 'all_to_all' then o.B = o.n * o.B end
      return o
   end
   local groups = {}
   for g = 1, 12 do
      if g < o.n and o.n % g == 0 or g >= o.n and g % o.n == 0 then groups[#groups + 1] = g end
   end
   o.G = c:pick(groups)
   local unit = layout.lcm(o.n, o.G)
   o.H, o.P, o.N = unit * c:few(1, 2), c:few(1, 3), c:few(1, 3)
   o.packed = c:chance(0.5)
   o.cu = lengths(c, 2 * o.n)
   if not o.packed then o.cu = { 0, o.cu[#o.cu] } end
   return o
end

-- ---- tide ------------------------------------------------------------------------------------

-- Rows of `width` values, each of its own: 1000 row + column (+ a number of the rank).
local function numbered(t, o, shape, base)
   local n, list = 1, {}
   for _, s in ipairs(shape) do n = n * s end
   for k = 1, n do list[k] = (base or 0) + k end
   return t.tensor(list, { dtype = 'f64' }):reshape(shape):to(o.dtype)
end

local function listed(x) return x and x:detach():to 'f64':reshape(-1):tolist() end

local function cu_of(t, o)
   if not o.packed then return nil end
   return o.list and o.cu or t.tensor(o.cu, { dtype = 'i32' })
end

local function pass(y, x, dy)
   y:backward(dy)
   return { shape = y.shape, y = listed(y), dx = listed(x.grad) }
end

local function run_order(t, o)
   local m, T = t.parallel.mamba_cp, o.cu[#o.cu]
   if o.what:find 'interleave' then T = T * o.W end
   local x = numbered(t, o, o.packed and { T, o.width } or { o.B, T, o.width }):requires_grad_()
   local y
   if o.what == 'reorder_chunks' then
      y = m.reorder_chunks(x, o.order, cu_of(t, o))
   elseif o.what:find 'load_balancing' then
      y = m[o.what](x, o.W, cu_of(t, o))
   else
      y = m[o.what](x, cu_of(t, o), o.W)
   end
   local got = pass(y, x, numbered(t, o, y.shape, 0.5))
   got.pre = m.pre_index(o.what:find 'balancing' and o.cu or { 0 }, o.W):tolist()
   return got
end

local function run_all_to_all(t, o, rank, comm)
   local m, shape = t.parallel.mamba_cp, { o.B, o.L, o.width }
   if o.flat and o.what ~= 'all_to_all' then shape = { o.L, o.width } end
   local x = numbered(t, o, shape, 10000 * rank):requires_grad_()
   local y = m[o.what](x, comm)
   return pass(y, x, numbered(t, o, y.shape, 10000 * rank + 0.5))
end

local function width_of(o) return 2 * o.H * o.P + 2 * o.G * o.N + o.H end

-- The whole projection, and gradients of the outputs of all ranks; rows [B, T, width].
local function run_class(t, o, rank, comm)
   local T, conv = o.cu[#o.cu], o.H * o.P + 2 * o.G * o.N
   local mixer = { conv1d = { weight = numbered(t, o, { conv, 1, 3 }):requires_grad_(),
      bias = numbered(t, o, { conv }) }, dt_bias = numbered(t, o, { o.H }):requires_grad_(),
      A_log = numbered(t, o, { o.H }, 100), D = numbered(t, o, { o.H * o.P }, 200) }
   local ssm = t.parallel.mamba_cp.MambaContextParallel(comm, o.H, o.P, o.G, o.N, mixer)
   local rows = {}
   for i, g in ipairs(layout.document(o.cu, o.n, rank)) do rows[i] = g end
   local B = o.packed and 1 or o.B
   local all = numbered(t, o, { B, T, width_of(o) })
   local x = all:index_select(2, t.tensor(rows, { dtype = 'i64' })):clone():requires_grad_()
   local given = o.packed and o.list and x:reshape { #rows, width_of(o) } or x
   local mid = ssm:pre_conv_ssm(given, cu_of(t, o))
   local dmid = numbered(t, o, mid.shape, 100000 * rank + 0.5)
   local got = pass(mid, x, dmid)
   local out = numbered(t, o, { B, T, o.H * o.P })
   local part = out:narrow(3, rank * o.H / o.n * o.P + 1, o.H / o.n * o.P):contiguous()
      :requires_grad_()
   local back = ssm:post_conv_ssm(part, cu_of(t, o))
   got.back = pass(back, part, numbered(t, o, back.shape, 100000 * rank + 0.5))
   got.groups = listed(ssm:repeat_group_state(numbered(t, o, { 1, o.G * o.N })))
   local w = ssm:get_conv1d_weight()
   w:backward(numbered(t, o, w.shape))
   got.w, got.dw, got.bias = listed(w), listed(mixer.conv1d.weight.grad),
      listed(ssm:get_conv1d_bias())
   got.dt, got.A, got.D = listed(ssm:get_dt_bias()), listed(ssm:get_A_log()), listed(ssm:get_D())
   return got
end

function domain.on_rank(o, rank)
   local t = require 'tide'
   local comm = t.dist.world()
   if o.kind == 'order' then return run_order(t, o) end
   if o.kind == 'all_to_all' then return run_all_to_all(t, o, rank, comm) end
   return run_class(t, o, rank, comm)
end

-- ---- the check -------------------------------------------------------------------------------

local function equal(name, got, want)
   for k = 1, math.max(#got, #want) do
      if got[k] ~= want[k] then
         return ('%s: entry %d is %s, expected %s'):format(name, k, tostring(got[k]),
            tostring(want[k]))
      end
   end
end

-- y[b, i] = x[b, rows[i]]; dx is the inverse of dy.
local function check_rows(got, rows, B, width)
   local y, dx, T = {}, {}, #rows
   for b = 0, B - 1 do
      for i, row in ipairs(rows) do
         for d = 1, width do
            local at, from = (b * T + i - 1) * width + d, (b * T + row) * width + d
            y[at], dx[from] = from, at + 0.5
         end
      end
   end
   return equal('y', got.y, y) or equal('dx', got.dx, dx)
end

local function check_order(o, got)
   local rows
   if o.what == 'reorder_chunks' then
      rows = exchange.reorder(o.order, o.cu)
   elseif o.what:find 'undo' then
      rows = exchange.reorder(exchange.inverse(exchange.redo_order(o.W)), o.cu)
   elseif o.what:find 'redo' then
      rows = exchange.reorder(exchange.redo_order(o.W), o.cu)
   else
      rows = exchange.deinterleave(o.cu, o.W)
      if o.what:find 're' == 1 then rows = exchange.inverse(rows) end
   end
   return check_rows(got, rows, o.packed and 1 or o.B, o.width)
      or o.what:find 'balancing' and equal('pre_index', got.pre, exchange.places(o.cu, o.W))
end

-- The source of the value of output k of rank r: rank and place (from 0).
local function source_of(o, W, r, k)
   local Wd, L = o.width, o.L
   local B = o.flat and o.what ~= 'all_to_all' and 1 or o.B
   if o.what == 'all_to_all' then
      local block = B / W * L * Wd
      return math.floor(k / block), r * block + k % block
   elseif o.what == 'all_to_all_cp2hp' then
      local part = Wd / W
      local b, row, d = math.floor(k / part / (W * L)), math.floor(k / part) % (W * L), k % part
      return math.floor(row / L), (b * L + row % L) * Wd + r * part + d
   end
   local l = L / W
   local b, row, d = math.floor(k / (Wd * W) / l), math.floor(k / (Wd * W)) % l, k % (Wd * W)
   return math.floor(d / Wd), (b * L + r * l + row) * Wd + d % Wd
end

local function check_all_to_all(o, all)
   local dx = {}
   for r = 1, o.n do dx[r] = {} end
   for r, got in ipairs(all) do
      for k, v in ipairs(got.y) do
         local from, place = source_of(o, o.n, r - 1, k - 1)
         if v ~= 10000 * from + place + 1 then
            return ('%s, rank %d: entry %d is %s, expected %s'):format(o.what, r - 1, k, v,
               10000 * from + place + 1)
         end
         dx[from + 1][place + 1] = 10000 * (r - 1) + k + 0.5
      end
   end
   for r, got in ipairs(all) do
      local bad = equal('dx of ' .. o.what, got.dx, dx[r])
      if bad then return bad end
   end
end

-- Adds up, over ranks, what each says of entries of a whole [B, T, width].
local function check_pre(o, all, B, T)
   local width, sum = width_of(o), {}
   for r, got in ipairs(all) do
      local columns = exchange.columns(o, o.n, r - 1)
      local want, at = {}, 0
      for row = 0, B * T - 1 do
         for _, col in ipairs(columns) do
            at = at + 1
            local place = row * width + col + 1
            want[at] = place
            sum[place] = (sum[place] or 0) + 100000 * (r - 1) + at + 0.5
         end
      end
      local bad = equal('pre_conv_ssm', got.y, want)
      if bad then return bad end
   end
   for r, got in ipairs(all) do
      local want, at = {}, 0
      local rows = layout.document(o.cu, o.n, r - 1)
      for b = 0, B - 1 do
         for _, g in ipairs(rows) do
            for col = 1, width do
               at = at + 1
               want[at] = o.n == 1 and at + 0.5 or sum[(b * T + g) * width + col]
            end
         end
      end
      local bad = equal('dx of pre_conv_ssm', got.dx, want)
      if bad then return bad end
   end
end

local function check_post(o, all, B, T)
   local I, part = o.H * o.P, o.H / o.n * o.P
   local dpart = {}
   for r, got in ipairs(all) do
      local want, at = {}, 0
      for b = 0, B - 1 do
         for _, g in ipairs(layout.document(o.cu, o.n, r - 1)) do
            for d = 0, I - 1 do
               at = at + 1
               want[at] = (b * T + g) * I + d + 1
               local owner = math.floor(d / part) + 1
               dpart[owner] = dpart[owner] or {}
               dpart[owner][(b * T + g) * part + d % part + 1] = 100000 * (r - 1) + at + 0.5
            end
         end
      end
      local bad = equal('post_conv_ssm', got.back.y, want)
      if bad then return bad end
   end
   for r, got in ipairs(all) do
      local bad = equal('dx of post_conv_ssm', got.back.dx, dpart[r])
      if bad then return bad end
   end
end

local function check_slices(o, r, got)
   local rows, w, dw, bias = exchange.conv_rows(o, o.n, r), {}, {}, {}
   local heads = o.H / o.n
   for k = 1, 3 * (o.H * o.P + 2 * o.G * o.N) do dw[k] = 0 end
   for i, row in ipairs(rows) do
      bias[i] = row + 1
      for k = 1, 3 do
         w[3 * (i - 1) + k] = 3 * row + k
         dw[3 * row + k] = 3 * (i - 1) + k
      end
   end
   local function run(first, n, base)
      local list = {}
      for k = 1, n do list[k] = base + first + k end
      return list
   end
   local groups, times = {}, o.G < o.n and o.n / o.G or 1
   for k = 0, o.G * times * o.N - 1 do
      groups[k + 1] = math.floor(k / (times * o.N)) * o.N + k % o.N + 1
   end
   return equal('repeat_group_state', got.groups, groups)
      or equal('get_conv1d_weight', got.w, w) or equal('dw', got.dw, dw)
      or equal('get_conv1d_bias', got.bias, bias)
      or equal('get_dt_bias', got.dt, run(r * heads, heads, 0))
      or equal('get_A_log', got.A, run(r * heads, heads, 100))
      or equal('get_D', got.D, run(r * heads * o.P, heads * o.P, 200))
end

local function check_class(o, all)
   local B, T = o.packed and 1 or o.B, o.cu[#o.cu]
   local bad = check_pre(o, all, B, T) or check_post(o, all, B, T)
   for r, got in ipairs(all) do bad = bad or check_slices(o, r - 1, got) end
   return bad
end

-- What is wrong with a case, or nil.
function domain.check(o)
   local all, text = values.ranks(o.n, 'spec.deep.domain.exchange', 'on_rank', o)
   if not all then return text end
   if o.kind == 'order' then return check_order(o, all[1]) end
   if o.kind == 'all_to_all' then return check_all_to_all(o, all) end
   return check_class(o, all)
end

return domain
