-- Random cases: products whose weight has a change of low rank (linear_lora), on TIDE_SPEC_DEVICE
-- (cpu), against the products that it means, computed in f64 on the CPU: of odd and empty
-- sizes, of views, some parts frozen or shared, used once or more, remade by checkpoints.

local values = require 'spec.deep.fuzz.values'

local lora = { limit = 60 }

local device = os.getenv 'TIDE_SPEC_DEVICE' or 'cpu'
-- Of sums over hundreds of products, each of which is rounded: gradients of expanded operands.
local rounding = { f32 = 2e-5, f64 = 1e-11, bf16 = 9e-2, f16 = 1.2e-2 }

-- ---- cases -----------------------------------------------------------------------------------

local layouts = { 'whole', 'transposed', 'sliced', 'expanded' }

-- 1 to 40, sometimes none, sometimes more than a tile.
local function size(c)
   local kind = c:int(1, 12)
   return kind == 12 and 0 or kind == 11 and c:int(60, 150) or c:few(1, 40)
end

function lora.make(c)
   local o = { seed = c:int(0, 9999), rows = {}, lie = {}, trained = {} }
   o.dtype = c:pick { 'f32', 'f64', 'bf16', 'f16' }
   for i = 1, c:int(0, 3) do o.rows[i] = i == 1 and size(c) or c:int(1, 4) end
   o.n, o.k, o.rank = size(c), size(c), c:few(1, 12)
   if c:chance(0.05) then o.rank = 0 end
   if c:chance(0.1) then o.n, o.k, o.rank = o.rank, o.rank, o.rank end
   o.scale = c:pick { 0.5, 1, -2, 0 }
   o.bias = c:chance(0.5)
   for i = 1, 5 do
      o.lie[i] = c:int(1, 3) > 1 and 'whole' or c:pick(layouts)
      o.trained[i] = c:chance(0.7)
   end
   o.one = c:chance(0.1) and o.n == o.k and o.k == o.rank   -- weight, a and b are one tensor
   o.main = c:chance(0.4)                                   -- gradients in f32
   o.calls = c:int(1, 3)                                    -- of one x and one weight
   o.own = c:chance(0.5)                                    -- each call with an a and b of its own
   o.dy = c:pick { 'whole', 'transposed', 'expanded' }
   o.checkpoint, o.retain = c:chance(0.2), c:chance(0.2)
   o.written = not o.checkpoint and c:chance(0.15) and c:int(1, 4) or 0
   return o
end

-- ---- both sides ------------------------------------------------------------------------------

local function filled(t, o, name, shape, dtype, where)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   local list = values.normal(('%d %s'):format(o.seed, name), n, 'bf16')
   if n == 0 then return t.zeros(shape, { dtype = dtype, device = where }) end
   return t.tensor(list, { dtype = 'f64', device = 'cpu' }):mul(0.5):to(dtype):reshape(shape)
      :to(where)
end

-- A leaf of a shape that lies as `how` says, and a function that gives its view of the shape.
local function leaf(t, o, i, name, shape, dtype, where)
   local how, last, n = o.lie[i], #shape, { unpack(shape) }
   local view = function(x) return x end
   if how == 'transposed' and last > 1 then
      n[1], n[last] = n[last], n[1]
      view = function(x) return x:transpose(1, last) end
   elseif how == 'sliced' and last > 0 then
      n[last] = n[last] + 3
      view = function(x) return x:narrow(last, 2, shape[last]) end
   elseif how == 'expanded' and shape[1] > 0 then
      n[1] = 1
      view = function(x) return x:expand(shape) end
   end
   local x = filled(t, o, name, n, dtype, where)
   if o.trained[i] then
      x:requires_grad_(true)
      if o.main and (dtype == 'bf16' or dtype == 'f16') then x:set_grad_dtype 'f32' end
   end
   return { leaf = x, view = view }
end

local function composed(t, x, w, a, b, scale, bias)
   return t.linear(x, w, bias) + t.linear(t.linear(x, a), b) * scale
end

-- The parts of the case: x, weight, a and b of each call, bias.
local function parts_of(t, o, dtype, where)
   local shape = { unpack(o.rows) }
   shape[#shape + 1] = o.k
   local p = { leaf(t, o, 1, 'x', shape, dtype, where),
      leaf(t, o, 2, 'w', { o.n, o.k }, dtype, where) }
   for call = 1, o.own and o.calls or 1 do
      local name = tostring(call)
      p[#p + 1] = o.one and p[2] or leaf(t, o, 3, 'a' .. name, { o.rank, o.k }, dtype, where)
      p[#p + 1] = o.one and p[2] or leaf(t, o, 4, 'b' .. name, { o.n, o.rank }, dtype, where)
   end
   if o.bias then p.bias = leaf(t, o, 5, 'bias', { o.n }, dtype, where) end
   return p
end

-- The sum over a result with weights that lie in some way.
local function weighed(t, o, y, name, where)
   local shape = { unpack(y.shape) }
   if o.dy == 'expanded' then
      for i = 1, #shape - 1 do shape[i] = math.min(shape[i], 1) end
   end
   local m = filled(t, o, name, shape, y.dtype, where)
   if o.dy == 'transposed' and #y.shape > 1 then
      return (y:transpose(1, -1) * m:transpose(1, -1)):to(o.sum):sum()
   end
   return (y * m):to(o.sum):sum()
end

-- Returns results and gradients as lists of tensors (false: none), or nil and the error's code.
local function run(t, o, dtype, where, product)
   local p = parts_of(t, o, dtype, where)
   o.sum = dtype == 'f64' and 'f64' or 'f32'
   local x, w, bias = p[1].view(p[1].leaf), p[2].view(p[2].leaf), nil
   if p.bias then bias = p.bias.view(p.bias.leaf) end
   local results, total = {}, nil
   for call = 1, o.calls do
      local at = o.own and 2 * call + 1 or 3
      local a, b = p[at].view(p[at].leaf), p[at + 1].view(p[at + 1].leaf)
      local function fn(...) return product(t, ...) end
      local y = o.checkpoint and t.checkpoint(fn, x, w, a, b, o.scale, bias)
         or fn(x, w, a, b, o.scale, bias)
      results[call] = y:detach()
      local part = weighed(t, o, y, 'dy' .. call, where)
      total = total and total + part or part
   end
   if o.written > 0 then
      t.no_grad(function() p[o.written].leaf:detach():add_(0) end)
   end
   if total.requires_grad then
      local ok, e = pcall(total.backward, total, nil, { retain = o.retain })
      if not ok then return nil, e.code or e end
      if o.retain then total:backward() end
   end
   for _, name in ipairs { 1, 2, 3, 4, 5, 6, 7, 8, 'bias' } do
      if p[name] then results[#results + 1] = p[name].leaf.grad or false end
   end
   return results
end

local function flat(g) return values.flat { g:to('cpu'):to('f64'):reshape(-1):tolist() } end

-- Returns how a result differs from the wanted one by more than `room`, or nil.
local function compare(got, want, room)
   if not (got and want) then return got ~= want and 'only one side has it' or nil end
   if table.concat(got.shape, ' ') ~= table.concat(want.shape, ' ') then
      return ('[%s], wanted [%s]'):format(table.concat(got.shape, ' '),
         table.concat(want.shape, ' '))
   end
   local far = values.far(flat(got), flat(want), 1)
   return far > room and ('differs by %.3g'):format(far) or nil         -- far: infinite for NaN
end

function lora.check(o)
   local t = require 'tide'
   local got, code = run(t, o, o.dtype, device, function(m, x, w, a, b, scale, bias)
      return m.linear_lora(x, w, a, b, scale, bias)
   end)
   if not got then
      if o.written > 0 and code == 'E_STATE' then return nil, 'refused' end
      return 'backward: ' .. tostring(code)
   end
   local written = o.written
   o.written = 0
   local want = run(t, o, 'f64', 'cpu', composed)
   o.written = written
   for i = 1, math.max(#got, #want) do
      local wrong = compare(got[i], want[i], 4 * rounding[o.dtype])
      local what = i > o.calls and 'gradient' or 'result'
      if wrong then return ('%s %d: %s'):format(what, i, wrong) end
   end
end

function lora.trait(o) return o.dtype end

return lora
