-- Random cases: products and rotations of tensors that lie side by side (linear_joined,
-- rope_joined) within a graph that uses their results in some way, on TIDE_SPEC_DEVICE (cpu),
-- against linear and rope of each by itself on the CPU.

local values = require 'spec.deep.fuzz.values'

local joined = { limit = 60 }

local device = os.getenv 'TIDE_SPEC_DEVICE' or 'cpu'
local rounding = { f32 = 2e-5, f64 = 1e-11, bf16 = 4e-2, f16 = 6e-3 }

-- ---- cases -----------------------------------------------------------------------------------

-- What becomes of the results, as a list of uses. Queries, keys and values are results 1, 2 and 3.
local uses = { 'attention', 'swiglu', 'square', 'cat', 'twice', 'sum', 'reshape', 'head' }

function joined.make(c)
   local o = { seed = c:int(0, 9999), B = c:int(1, 3), T = c:int(1, 9), K = c:few(1, 24) }
   o.dtype = c:pick { 'f32', 'f64', 'bf16', 'f16' }
   o.D, o.kv, o.groups = 2 * c:int(1, 6), c:int(1, 2), c:int(1, 3)
   o.n = c:int(2, 4)
   o.bias = c:pick { 'none', 'all', 'some' }
   o.x = c:pick { 'whole', 'transposed', 'sliced', 'expanded', 'leaf' }
   -- where weight i lies: behind the one before, or with bytes of its own, or with a gap before it
   o.place, o.frozen = {}, {}
   for i = 1, o.n do
      o.place[i] = c:pick { 'behind', 'behind', 'behind', 'apart', 'gap' }
      o.frozen[i] = c:chance(0.15)
   end
   o.same = c:chance(0.1)                      -- weight 2 is weight 1 once more
   o.view = c:chance(0.15)                     -- weights are slices that the tape records
   o.main = c:chance(0.4)                      -- gradients in f32
   o.rope = c:pick { 'none', 'new', 'reuse' }
   o.between = c:chance(0.2)                   -- an op between product and rotation
   o.interleaved = c:chance(0.3)
   o.rebind = c:chance(0.1)                    -- the last weight gets other bytes after a step
   o.retain, o.steps = c:chance(0.2), c:int(1, 3)
   o.uses = {}
   for i = 1, c:int(1, 4) do o.uses[i] = { c:pick(uses), c:int(1, o.n), c:int(1, o.n) } end
   return o
end

-- ---- both sides ------------------------------------------------------------------------------

local function sizes_of(o)
   local list = { o.kv * o.groups * o.D, o.kv * o.D, o.kv * o.D, o.kv * o.D }
   return { unpack(list, 1, o.n) }
end

local function filled(t, o, name, shape, where)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   local list = values.normal(('%d %s'):format(o.seed, name), n, 'bf16')
   return t.tensor(list, { dtype = 'f64', device = 'cpu' }):mul(0.5):to(o.dtype):reshape(shape)
      :to(where)
end

-- Leaves of these sizes and K columns (0: vectors), placed as o says, or each by itself.
local function leaves(t, o, name, sizes, K, where, near)
   local list, all, at, rows = {}, nil, 1, 4
   for _, n in ipairs(sizes) do rows = rows + 2 * n end
   if near then
      all = t.zeros(K > 0 and { rows, K } or { rows }, { dtype = o.dtype, device = where })
   end
   for i, n in ipairs(sizes) do
      local w = filled(t, o, name .. i, K > 0 and { n, K } or { n }, where)
      if near and o.place[i] ~= 'apart' then
         if o.place[i] == 'gap' then at = at + 1 end
         local part = all:narrow(1, at, n):detach()
         part:copy_(w)
         w, at = part, at + n
      end
      list[i] = w:requires_grad_(not o.frozen[i])
      if o.main and (o.dtype == 'bf16' or o.dtype == 'f16') and not o.frozen[i] then
         w:set_grad_dtype 'f32'
      end
   end
   return list
end

-- The leaf that x is made of, and a function that makes x.
local function input(t, o, where)
   local B, T, K = o.B, o.T, o.K
   local shape, view = { B, T, K }, function(x) return x end
   if o.x == 'transposed' then
      shape, view = { T, B, K }, function(x) return x:transpose(1, 2) end
   elseif o.x == 'sliced' then
      shape, view = { B, T, K + 3 }, function(x) return x:narrow(3, 2, K) end
   elseif o.x == 'expanded' then
      shape, view = { B, 1, K }, function(x) return x:expand { B, T, K } end
   end
   return filled(t, o, 'x', shape, where):requires_grad_(o.x ~= 'whole'), view
end

local function rotate(t, o, near, q, k, where)
   if o.rope == 'none' then return q, k end
   local p = t.arange(o.T, { dtype = 'i64' }):reshape(1, o.T):to(where)
   local f = t.tensor({ 1, 0.25 }, { dtype = 'f32' }):narrow(1, 1, o.D > 2 and 2 or 1):to(where)
   if not near then
      local opts = { interleaved = o.interleaved }
      return t.rope(q, p, f, opts), t.rope(k, p, f, opts)
   end
   return unpack(t.rope_joined({ q, k }, p, f, { interleaved = o.interleaved,
      reuse = o.rope == 'reuse' }))
end

-- A sum over what the uses make of the results.
local function total(t, o, x, ws, bs, where, near)
   local y = {}
   if near then
      y = t.linear_joined(x, ws, bs)
   else
      for i, w in ipairs(ws) do y[i] = t.linear(x, w, bs and bs[i] or nil) end
   end
   local sum
   local function add(v, name)
      local w = filled(t, o, name, v.shape, where)
      local part = (v * w):to(o.dtype == 'f64' and 'f64' or 'f32'):sum()
      sum = sum and sum + part or part
   end
   local heads = {}
   for i = 1, o.n do heads[i] = y[i]:reshape { o.B, o.T, -1, o.D } end
   if o.between then heads[1] = heads[1] * 1.5 end
   heads[1], heads[2] = rotate(t, o, near, heads[1], heads[2], where)
   for k, use in ipairs(o.uses) do
      local how, a, b = unpack(use)
      local name = 'use ' .. k
      local function flat(i) return heads[i]:reshape { o.B, o.T, -1 } end
      if how == 'attention' then
         local v = heads[o.n > 2 and 3 or 2]
         add(t.attention(heads[1], heads[2], v, { causal = true }), name)
      elseif how == 'swiglu' then
         local up = flat(a):size(3) == flat(b):size(3) and b or a
         add(t.swiglu(flat(a), flat(up)), name)
      elseif how == 'square' then add(heads[a]:square(), name)
      elseif how == 'cat' then add(t.cat({ heads[a], heads[b] }, 3), name)
      elseif how == 'twice' then add(heads[a] + heads[a], name)
      elseif how == 'sum' then add(flat(a):sum { 1 }, name)
      elseif how == 'head' then add(heads[a]:narrow(3, 1, 1):tanh(), name)
      else add(flat(a):reshape { o.B * o.T, -1 }:exp():neg(), name) end
   end
   return sum
end

-- Returns the loss of each step, and the gradient of each parameter (false: it has no gradient).
local function run(t, o, where, near)
   local leaf, view = input(t, o, where)
   local sizes = sizes_of(o)
   local ws = leaves(t, o, 'w', sizes, o.K, where, near)
   local bs = o.bias ~= 'none' and leaves(t, o, 'b', sizes, 0, where, near) or nil
   if o.same and sizes[1] == sizes[2] then ws[2] = ws[1] end
   local params, losses, list = { leaf, unpack(ws) }, {}, {}
   for i = 1, o.n do
      if bs and o.bias == 'some' and i % 2 == 0 then bs[i] = false end
      if bs and bs[i] then params[#params + 1] = bs[i] end
   end
   for s = 1, o.steps do
      local used = {}
      for i, w in ipairs(ws) do used[i] = o.view and w:narrow(1, 1, w:size(1)) or w end
      local loss = total(t, o, view(leaf), used, bs, where, near)
      losses[s] = loss:item()
      if loss.requires_grad then
         if o.retain then loss:backward(nil, { retain = true }) end
         loss:backward()
      end
      if o.rebind and s == 1 then
         t.no_grad(function() ws[o.n]:copy_(filled(t, o, 'again', ws[o.n].shape, where)) end)
      end
   end
   for i, p in ipairs(params) do list[i] = p.grad or false end
   return losses, list
end

local function flat(g) return values.flat { g:to('cpu'):to('f64'):reshape(-1):tolist() } end

-- Returns how two gradients differ by more than `room`, or nil. A gradient may be absent (false).
local function compare(got, want, room)
   if not (got and want) then return got ~= want and 'only one side has it' or nil end
   if got.dtype ~= want.dtype then return ('%s, by itself %s'):format(got.dtype, want.dtype) end
   local far = values.far(flat(got), flat(want), 1)
   return far > room and ('differs by %.3g'):format(far) or nil         -- far: infinite for NaN
end

function joined.check(o)
   local t = require 'tide'
   local room = rounding[o.dtype]
   local losses, got = run(t, o, device, true)
   local wanted, want = run(t, o, 'cpu', false)
   for i, v in ipairs(wanted) do
      if values.far({ losses[i] }, { v }, 1) > 40 * room then
         return ('loss %d is %.9g, by itself %.9g'):format(i, losses[i], v)
      end
   end
   for i = 1, math.max(#got, #want) do
      local wrong = compare(got[i], want[i], 4 * room)
      if wrong then return ('gradient %d: %s'):format(i, wrong) end
   end
end

function joined.trait(o) return o.dtype .. ' ' .. o.rope end

return joined
