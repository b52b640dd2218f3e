-- Random cases: an op on a device (TIDE_SPEC_DEVICE, cuda) against the same op on the CPU, over
-- dtypes, sizes and layouts of its operands, with gradients. The CPU gets contiguous copies of the
-- device's views. spec/deep/cuda_spec.lua runs these cases on emulated threads; domain/ops.lua
-- compares the CPU with the reference in the same way.

local ops = require 'spec.deep.domain.cuda_ops'
local values = require 'spec.deep.fuzz.values'

local cuda = { limit = 60 }

local is_float = { f32 = true, f64 = true, bf16 = true, f16 = true }
-- Of the largest element: sums are taken in other orders.
local rounding = { f32 = 2e-5, f64 = 1e-12, bf16 = 1.6e-2, f16 = 2e-3 }

-- ---- cases -----------------------------------------------------------------------------------

-- How a tensor of this shape lies in memory: the order of its dims (outermost first); for each dim
-- the elements before, between two and behind its own; whether all are one. Null: contiguous.
local function layout(c, shape)
   local how = c:pick { 'contiguous', 'transposed', 'sliced', 'stepped', 'expanded', 'mixed' }
   if how == 'contiguous' or #shape == 0 then return nil end
   local mixed = how == 'mixed'
   local l = { order = {}, before = {}, step = {}, behind = {}, expand = {} }
   for d = 1, #shape do
      l.order[d] = d
      l.before[d] = (mixed or how == 'sliced') and c:int(0, 2) or 0
      l.behind[d] = (mixed or how == 'sliced') and c:int(0, 2) or 0
      l.step[d] = (mixed or how == 'stepped') and c:int(1, 3) or 1
      l.expand[d] = how == 'expanded' and c:chance(0.6) or mixed and c:chance(0.2)
   end
   if mixed or how == 'transposed' then
      for d = #shape, 2, -1 do
         local e = c:int(1, d)
         l.order[d], l.order[e] = l.order[e], l.order[d]
      end
   end
   return l
end

function cuda.make(c)
   local names = {}
   for name in pairs(ops.list) do names[#names + 1] = name end
   table.sort(names)
   local o = { op = c:pick(names), seed = c:int(0, 9999) }
   local op = ops.list[o.op]
   o.dtype = c:pick(op.dtypes or { 'f32', 'bf16', 'f16', 'f64' })
   o.inputs, o.options = op.make(c)
   for _, input in ipairs(o.inputs) do input.layout = layout(c, input) end
   o.grad = op.grad ~= false and is_float[o.dtype] and c:chance(0.5)
   return o
end

-- ---- tensors ---------------------------------------------------------------------------------

local function filled(t, seed, shape, input, dtype)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   local list, below, least = values.normal(seed, n, 'bf16'), input.below, input.least
   for i, v in ipairs(list) do
      if below then list[i] = math.floor(math.abs(v) * 1e4) % below
      elseif least then list[i] = math.abs(v) + least
      elseif not is_float[dtype] then list[i] = math.floor(v * 4) end
      if dtype == 'u8' then list[i] = math.abs(list[i]) end
      if dtype == 'bool' then list[i] = list[i] % 2 end
   end
   local flat = n == 0 and t.zeros({ 0 }, { dtype = 'f64', device = 'cpu' })
      or t.tensor(list, { dtype = 'f64', device = 'cpu' })
   return flat:reshape(shape):to(dtype)
end

-- The whole memory of an input, and a function that makes the input of it.
local function stored(t, o, k)
   local input, shape = o.inputs[k], {}
   local l = input.layout
   local dtype = input.dtype or o.dtype
   for d = 1, #input do
      local n = input[d]
      if l and l.expand[d] and n > 0 then n = 1 end
      shape[l and l.order[d] or d] = l and l.before[d] + n * l.step[d] + l.behind[d] or n
   end
   local function view(x)
      if not l then return x end
      x = x:permute(unpack(l.order))
      for d = 1, #input do
         local n = l.expand[d] and input[d] > 0 and 1 or input[d]
         local first = l.before[d] + 1
         x = x:slice(d, first, first + n * l.step[d] - 1, l.step[d])
      end
      return x:expand { unpack(input, 1, #input) }
   end
   return filled(t, ('%d %d'):format(o.seed, k), shape, input, dtype), view
end

-- Results of the op, and behind them the gradients of its inputs' whole memory; how many are
-- results.
local function run(t, o, where, copies)
   local roots, list = {}, {}
   for k in ipairs(o.inputs) do
      local x, view = stored(t, o, k)
      x = x:to(where)
      local float = is_float[x.dtype] and not o.inputs[k].fixed
      if o.grad and float then roots[#roots + 1] = x:requires_grad_() end
      list[k] = view(x)
      if copies then list[k] = list[k]:contiguous() end
   end
   local results, total = { ops.list[o.op].run(t, o.options, unpack(list)) }, nil
   local nresult = #results
   for k, y in ipairs(o.grad and results or {}) do
      if is_float[y.dtype] and y.requires_grad and y:numel() > 0 then
         local w = filled(t, ('%d weight %d'):format(o.seed, k), y.shape, {}, y.dtype):to(where)
         local part = (y * w):sum():to 'f64'
         total = total and total + part or part
      end
   end
   if total then
      total:backward()
      for _, x in ipairs(roots) do results[#results + 1] = x.grad or false end
   end
   return results, nresult
end

-- ---- comparison ------------------------------------------------------------------------------

local function flat(y) return values.flat { y:to('cpu'):to('f64'):reshape(-1):tolist() } end

-- What is wrong with a result, or nil. least: the size of the terms whose sums it is made of, at
-- least, since those may cancel.
local function compare(got, want, room, least)
   if table.concat(got.shape, ' ') ~= table.concat(want.shape, ' ') then
      return ('shape [%s], the peer says [%s]'):format(table.concat(got.shape, ' '),
         table.concat(want.shape, ' '))
   end
   if got.dtype ~= want.dtype then return ('dtype %s, %s'):format(got.dtype, want.dtype) end
   local a, b, most = flat(got), flat(want), least
   for _, v in ipairs(b) do
      if v == v and math.abs(v) < math.huge then most = math.max(most, math.abs(v)) end
   end
   if not is_float[want.dtype] then room = 0 end
   for i = 1, #b do
      local same = a[i] == b[i] or a[i] ~= a[i] and b[i] ~= b[i]
      local near = same or math.abs(a[i] - b[i]) <= room * most      -- false where one is NaN
      if not near then
         return ('element %d is %.9g, the peer says %.9g'):format(i, a[i], b[i])
      end
   end
end

local function check(o, device, peer)
   local t = require 'tide'
   local op = ops.list[o.op]
   local want, nresult = run(t, o, peer, true)
   local got = run(t, o, device)
   if #want ~= #got then return ('%s: %d results, not %d'):format(o.op, #got, #want) end
   local room = rounding[o.dtype] and rounding[o.dtype] * (op.room or 1) or 0
   for i = 1, #want do
      if want[i] and got[i] then
         local wrong = compare(got[i], want[i], room * (i > nresult and 4 or 1),
            i > nresult and 1 or 1e-3)
         if wrong then return ('%s in %s, result %d: %s'):format(o.op, o.dtype, i, wrong) end
      elseif want[i] ~= got[i] then
         return ('%s in %s, result %d: only one device has a gradient'):format(o.op, o.dtype, i)
      end
   end
   return nil, o.grad and 'with gradients' or ''
end

function cuda.check(o) return check(o, os.getenv 'TIDE_SPEC_DEVICE' or 'cuda', 'cpu') end

function cuda.trait(o)
   local words = { o.dtype }
   for _, input in ipairs(o.inputs) do words[#words + 1] = input.layout and 'view' or 'whole' end
   return table.concat(words, ' ')
end

-- The same domain of another device, with views, and a peer, with copies of them.
function cuda.of(device, peer)
   return { limit = cuda.limit, make = cuda.make, trait = cuda.trait,
      check = function(o) return check(o, device, peer) end }
end

return cuda
