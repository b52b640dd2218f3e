-- Random cases: padding rules, packed parameters, splits and gathers of images and videos over
-- ranks, with gradients; no frame lost, no tubelet cut, the largest part as small as it can be.

local values = require 'spec.deep.fuzz.values'
local vision = require 'spec.deep.oracle.vision'

local domain = { limit = 60 }

-- ---- cases -----------------------------------------------------------------------------------

local make = {}

function make.padding(c, o)
   o.n, o.seq, o.cp, o.tp = 1, c:few(0, 3000), c:few(1, 8), c:few(1, 8)
   o.sp, o.first = c:chance(0.5), c:chance(0.5)
   o.recipe = c:pick { 'none', 'delayed', 'mxfp8' }
   o.block = ({ none = 1, delayed = 16, mxfp8 = 32 })[o.recipe]
end

function make.params(c, o)
   o.n, o.B, o.S, o.image = 1, c:few(1, 4), c:few(1, 20), c:few(0, 20)
   o.pad, o.cp, o.packed = c:few(0, o.S + o.image), c:few(1, 4), c:chance(0.5)
end

function make.cuts(c, o)
   o.n, o.T, o.W, o.frames = 1, c:few(1, 5), c:few(1, 9), {}
   for i = 1, c:few(1, 6) do o.frames[i] = c:few(0, 12) end
   o.costs = {}
   for i = 1, c:few(1, 14) do o.costs[i] = 1 + c:few(0, 40) end
   o.alpha = c:few(0, 20)
end

function make.even(c, o)
   o.n, o.N, o.width, o.fill = c:pick { 1, 2, 3, 4, 5 }, c:few(0, 12), c:few(1, 3), c:int(0, 2)
   if o.N == 0 then o.N = 1 end
end

function make.dynamic(c, o)
   o.n, o.T, o.patch = c:pick { 1, 2, 3, 4, 5 }, c:few(1, 4), c:few(1, 2)
   o.video, o.frames, o.lens = o.T > 1 or c:chance(0.4), {}, {}
   for i = 1, c:few(1, 4) do
      o.frames[i] = c:few(1, 7)
      local len = c:few(1, 9)
      for _ = 1, o.frames[i] do
         o.lens[#o.lens + 1] = c:chance(0.3) and c:few(1, 9) or len
      end
   end
   o.partition = c:pick { 'balanced', 'compatible' }
   o.alpha = c:few(0, 6)
   o.recipe = c:pick { 'none', 'delayed', 'mxfp8' }
   o.block = ({ none = 1, delayed = 16, mxfp8 = 32 })[o.recipe]
   o.dtype = c:pick { 'f64', 'f32' }
end

-- A case; kind says of what.
function domain.make(c)
   local o = { kind = c:pick { 'dynamic', 'even', 'cuts', 'padding', 'params' } }
   make[o.kind](c, o)
   return o
end

-- ---- on a rank -------------------------------------------------------------------------------

local function listed(x) return x and x:detach():to 'f64':reshape(-1):tolist() end

local function numbered(t, shape, base, dtype)
   local n, list = 1, {}
   for _, s in ipairs(shape) do n = n * s end
   for k = 1, n do list[k] = base + k end
   return t.tensor(list, { dtype = 'f64' }):reshape(shape):to(dtype or 'f64')
end

local run = {}

function run.padding(o, t)
   return t.parallel.multimodal.get_padding(o.seq, { cp_size = o.cp, tp_size = o.tp,
      has_sp = o.sp, fp8_enabled = o.block > 1, fp8_recipe = o.block > 1 and o.recipe or nil,
      rule = o.first and 'first' or 'all' })
end

function run.params(o, t)
   local p = t.parallel.multimodal.get_packed_seq_params(t.zeros { o.B, o.S }, o.image, o.pad,
      o.cp, o.packed)
   for _, name in ipairs { 'cu_seqlens_q', 'cu_seqlens_kv', 'cu_seqlens_q_padded',
      'cu_seqlens_kv_padded' } do
      p[name] = p[name] and p[name]:tolist()
   end
   return p
end

function run.cuts(o, t)
   local split, singles = t.parallel.vision_split, {}
   local total = 0
   for _, n in ipairs(o.frames) do total = total + n end
   for i = 1, total do singles[i] = split.frame_cost(i % 5 + 1, o.alpha) end
   return { units = split.units(o.frames, o.T), points = split.points(o.frames, o.T, o.W),
      partition = split.partition(o.costs, o.W), proportional = split.proportional(o.costs, o.W),
      balanced = split.balanced(o.frames, o.T, o.W, singles), costs = singles,
      even = { split.even(#o.costs, o.W) }, clip = split.clip(o.frames, 2, total - 1 > 2
      and total - 1 or 2) }
end

function run.even(o, t, rank, axis)
   local m = t.parallel.multimodal
   local x = numbered(t, { o.N, o.width, 2 }, 0):requires_grad_()
   local mine, pad = m.split_to_context_parallel_ranks(x, axis, o.fill)
   local rows = mine:transpose(1, 2):contiguous()
   local all = m.gather_from_context_parallel_ranks(rows, pad, axis)
   all:backward(numbered(t, all.shape, 1000 * rank))
   local y = numbered(t, { 2, 2 * o.n, 3 }, 100 * rank):requires_grad_()
   local part = m.reduce_scatter_along_second_dim(y, axis)
   part:backward(numbered(t, part.shape, 1000 * rank))
   return { mine = listed(mine), pad = pad, all = listed(all), shape = all.shape,
      dx = listed(x.grad), part = listed(part), dy = listed(y.grad) }
end

function run.dynamic(o, t, rank, axis)
   local m, cu, sizes, T = t.parallel.multimodal, { 0 }, {}, 0
   for i, n in ipairs(o.lens) do
      T = T + n
      cu[i + 1], sizes[i] = T, { o.patch, o.patch * n }
   end
   local x = numbered(t, { 1, T, 3 * o.patch * o.patch }, 0, o.dtype):requires_grad_()
   local got = m.split_to_context_parallel_ranks_dynamic_res(x, sizes, cu, { axis = axis,
      patch_dim = o.patch, num_frames = o.video and o.frames or nil,
      temporal_patch_size = o.video and o.T or nil, fp8_enabled = o.block > 1,
      fp8_recipe = o.block > 1 and o.recipe or nil, partition = o.partition, alpha = o.alpha })
   local features = (got.tokens * 2):reshape { got.tokens:size(2), got.tokens:size(3) }
   local all = m.gather_from_context_parallel_ranks_dynamic_res(features, got.plan, axis)
   all:backward(numbered(t, all.shape, 0, o.dtype) * (rank + 1))
   return { tokens = listed(got.tokens), count = got.tokens:size(2), sizes = got.sizes:tolist(),
      cu = got.packed.cu_seqlens_q:tolist(), most = got.packed.max_seqlen_q,
      has_padding = got.has_padding, padded = got.num_padded_ranks, frames = got.num_frames,
      bounds = got.plan.bounds, empty = got.plan.empty, all = listed(all), rows = all:size(1),
      dx = x.grad and listed(x.grad) }
end

function domain.on_rank(o, rank, n)
   local t = require 'tide'
   return run[o.kind](o, t, rank, t.parallel.mesh({ cp = n }):axis 'cp')
end

-- ---- checks ----------------------------------------------------------------------------------

local function equal(name, got, want)
   if type(want) ~= 'table' or type(got) ~= 'table' then
      return got ~= want and ('%s is %s, expected %s'):format(name, tostring(got), tostring(want))
         or nil
   end
   for k = 1, math.max(#got, #want) do
      local bad = equal(('%s[%d]'):format(name, k), got[k], want[k])
      if bad then return bad end
   end
end

local check = {}

function check.padding(o, all)
   local unit = vision.multiple(o)
   return equal('padding', all[1], math.ceil(o.seq / unit) * unit - o.seq)
end

function check.params(o, all)
   local p, whole = all[1], o.S + o.image
   local thd = o.cp > 1 and (o.pad > 0 or o.packed)
   local cu, slots = {}, {}
   for b = 0, o.B do cu[b + 1], slots[b + 1] = b * (whole - o.pad), b * whole end
   return equal('cu_seqlens_q', p.cu_seqlens_q, cu) or equal('cu_seqlens_kv', p.cu_seqlens_kv, cu)
      or equal('cu_seqlens_q_padded', p.cu_seqlens_q_padded, thd and slots or nil)
      or equal('cu_seqlens_kv_padded', p.cu_seqlens_kv_padded, thd and slots or nil)
      or equal('max_seqlen_q', p.max_seqlen_q, whole) or equal('qkv_format', p.qkv_format,
      thd and 'thd' or 'sbhd')
end

-- Whether bounds are those of an optimal partition of units.
local function check_partition(name, bounds, costs, parts)
   if #bounds ~= parts + 1 or bounds[1] ~= 0 or bounds[parts + 1] ~= #costs then
      return name .. ': elements are lost'
   end
   local most = 0
   for r = 1, parts do
      local sum = 0
      if bounds[r + 1] < bounds[r] then return name .. ': bounds go down' end
      if bounds[r + 1] == bounds[r] and r <= math.min(parts, #costs) then
         return name .. ': a part is empty'
      end
      for i = bounds[r] + 1, bounds[r + 1] do sum = sum + costs[i] end
      most = math.max(most, sum)
   end
   return #costs > 0 and equal(name .. ': the largest part', most, vision.least(costs, parts))
end

local function in_units(frames, T, costs, bounds)
   local units, sums, index, at = vision.units(frames, T), {}, { [0] = 0 }, 0
   for u, n in ipairs(units) do
      sums[u] = 0
      for i = at + 1, at + n do sums[u] = sums[u] + costs[i] end
      at = at + n
      index[at] = u
   end
   local list = {}
   for r, b in ipairs(bounds) do
      if not index[b] then return nil end
      list[r] = index[b]
   end
   return sums, list
end

function check.cuts(o, all)
   local got, units = all[1], vision.units(o.frames, o.T)
   local sums, bounds = in_units(o.frames, o.T, got.costs, got.balanced)
   if not sums then return 'balanced: a tubelet is cut' end
   local clip, at, total = {}, 0, 0
   for _, n in ipairs(o.frames) do total = total + n end
   for _, n in ipairs(o.frames) do
      local over = math.min(math.max(2, total - 1), at + n) - math.max(2, at)
      if over > 0 then clip[#clip + 1] = over end
      at = at + n
   end
   local added = math.max(0, o.W - #o.costs)
   local even = {}
   for r = 0, o.W - 1 do even[r + 1] = r * math.floor((#o.costs + added) / o.W) end
   even[o.W + 1] = #o.costs + added
   return equal('units', got.units, units) or equal('points', got.points, vision.points(o.frames,
      o.T, o.W)) or equal('proportional', got.proportional, vision.proportional(o.costs, o.W))
      or check_partition('partition', got.partition, o.costs, o.W)
      or check_partition('balanced', bounds, sums, o.W) or equal('even', got.even, { even, added })
      or equal('clip', got.clip, clip)
end

function check.even(o, all)
   local n, row, W = math.ceil(o.N / o.n), o.width * 2, o.n
   for r, got in ipairs(all) do
      local mine, dx, whole, first = {}, {}, {}, (r - 1) * n * row
      for k = 1, n * row do mine[k] = first + k <= o.N * row and first + k or o.fill end
      if W == 1 then n = o.N end
      for k = 1, o.N * row do dx[k] = 0 end
      -- gathered: [width, N, 2], row i of x at place i of dim 2
      for k = 1, o.N * row do
         local i, d, e = math.floor((k - 1) / row), math.floor((k - 1) / 2) % o.width, (k - 1) % 2
         local place = (d * o.N + i) * 2 + e + 1
         whole[place] = k
         if math.floor(i / n) == r - 1 or W == 1 then
            for s = 0, W - 1 do dx[k] = dx[k] + 1000 * s + place end
         end
      end
      local bad = equal('split', got.mine, mine) or equal('pad', got.pad, W == 1 and 0
         or n * W - o.N) or equal('gather', got.all, whole) or equal('dx of gather', got.dx, dx)
      if bad then return bad end
      local part, dy = {}, {}
      for a = 0, 1 do
         for i = 0, 2 * W - 1 do
            for d = 1, 3 do
               local place, sum = (a * 2 * W + i) * 3 + d, 0
               for s = 0, W - 1 do sum = sum + 100 * s + place end
               local owner, at = math.floor(i / 2), (a * 2 + i % 2) * 3 + d
               if owner == r - 1 then part[at] = sum end
               dy[place] = 1000 * owner + at
            end
         end
      end
      bad = equal('reduce_scatter', got.part, part) or equal('dx of reduce_scatter', got.dy, dy)
      if bad then return bad end
   end
end

-- What one rank must hold of frames lo .. hi - 1 (from 0).
local function check_part(o, got, lo, hi, first)
   local width, lens, tokens, sizes = 3 * o.patch * o.patch, {}, {}, {}
   for i = lo + 1, hi do
      lens[#lens + 1], sizes[#sizes + 1] = o.lens[i], { o.patch, o.patch * o.lens[i] }
   end
   local T = 0
   for _, n in ipairs(lens) do T = T + n end
   for k = 1, T * width do tokens[k] = first * width + k end
   if hi == lo then
      local dummies = #got.sizes - ((got.has_padding and 1) or 0)
      if dummies < 1 then return 'a rank without frames has no token' end
      for k = 1, dummies do lens[k], sizes[k] = 1, { o.patch, o.patch } end
      T = dummies
   end
   local extra = math.ceil(T / o.block) * o.block - T
   if extra > 0 then
      lens[#lens + 1], sizes[#sizes + 1] = extra, { o.patch, o.patch * extra }
   end
   local cu, most = { 0 }, 0
   for i, n in ipairs(lens) do cu[i + 1], most = cu[i] + n, math.max(most, n) end
   for k = #tokens + 1, cu[#cu] * width do tokens[k] = 0 end
   return equal('tokens', got.tokens, tokens) or equal('sizes', got.sizes, sizes)
      or equal('cu', got.cu, cu) or equal('max_seqlen', got.most, most)
      or equal('has_padding', got.has_padding, extra > 0)
      or equal('empty', got.empty, got.empty)
end

-- Frames of each video in [lo, hi).
local function frames_in(o, lo, hi)
   local list, at = {}, 0
   for _, n in ipairs(o.frames) do
      local over = math.min(hi, at + n) - math.max(lo, at)
      if over > 0 then list[#list + 1] = over end
      at = at + n
   end
   return list
end

local function check_bounds(o, bounds)
   local costs, singles = {}, {}
   for i, n in ipairs(o.lens) do costs[i], singles[i] = n * (n + o.alpha), 1 end
   local sums, list = in_units(o.video and o.frames or singles, o.video and o.T or 1, costs,
      bounds)
   if not sums then return 'a tubelet is cut' end
   if o.partition == 'balanced' then return check_partition('bounds', list, sums, o.n) end
   if bounds[1] ~= 0 or bounds[o.n + 1] ~= #o.lens then return 'frames are lost' end
   for r = 1, o.n do
      if bounds[r + 1] < bounds[r] then return 'bounds go down' end
   end
end

function check.dynamic(o, all)
   local width, T, padded = 3 * o.patch * o.patch, 0, 0
   for _, n in ipairs(o.lens) do T = T + n end
   local bounds = all[1].bounds
   local bad = check_bounds(o, bounds)
   for r = 1, o.n do padded = padded + (bounds[r + 1] == bounds[r] and 1 or 0) end
   local first, scale = 0, o.n * (o.n + 1) / 2
   for r, got in ipairs(all) do
      local lo, hi, whole, dx = bounds[r], bounds[r + 1], {}, {}
      local count = 0
      for i = lo + 1, hi do count = count + o.lens[i] end
      for k = 1, T * width do
         whole[k] = 2 * k
         local mine = k > first * width and k <= (first + count) * width
         dx[k] = mine and 2 * k * scale or 0
      end
      bad = bad or equal('bounds', got.bounds, bounds) or check_part(o, got, lo, hi, first)
         or equal('num_padded_ranks', got.padded, padded) or equal('gathered', got.all, whole)
         or o.video and hi > lo and equal('num_frames', got.frames, frames_in(o, lo, hi))
         or (got.dx or count > 0) and equal('dx', got.dx, dx)
      first = first + count
   end
   return bad
end

-- What a failing case has.
function domain.trait(o) return ('%s %s'):format(o.kind, o.partition or '') end

-- What is wrong with a case, or nil.
function domain.check(o)
   local all, text = values.ranks(o.n, 'spec.deep.domain.vision', 'on_rank', o)
   if not all then return text end
   return check[o.kind](o, all) or nil
end

return domain
