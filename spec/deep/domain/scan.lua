-- Random cases: ssd_scan and conv1d with every option, forward and backward, held against the token
-- loop; steps from tiny to wild. In f32 the loop in f32 says how much may be lost, in bf16 the
-- roundings of the operands do.

local ssm = require 'spec.deep.oracle.ssm'
local values = require 'spec.deep.fuzz.values'

local scan = { limit = 60 }

-- ---- cases -----------------------------------------------------------------------------------

-- Numbers of sequences of T tokens that never go down, or nil.
local function sequence(c, T)
   if not c:chance(0.4) then return nil end
   local row, number = {}, 0
   while #row < T do
      for _ = 1, 1 + c:few(0, T - #row - 1) do row[#row + 1] = number end
      number = number + c:int(1, 2)
   end
   return row
end

-- A case. kind: 'scan' or 'conv'; steps: how dt and A are drawn.
function scan.make(c)
   local o = { kind = c:pick { 'scan', 'conv' }, B = c:few(1, 3), T = c:few(0, 90),
      dtype = c:pick { 'f64', 'f32', 'bf16' }, seed = c:int(0, 999),
      initial = c:chance(0.3), bias = c:chance(0.4), last = c:chance(0.4) }
   o.sequence = sequence(c, o.T)
   o.threads = c:int(1, 3)
   if o.kind == 'conv' then
      o.C, o.K, o.silu = c:few(1, 40), c:int(2, 4), c:chance(0.5)
      return o
   end
   o.G, o.P, o.N = c:few(1, 3), c:few(1, 20), c:few(1, 20)
   o.H = o.G * c:few(1, 4)
   o.chunk = c:chance(0.7) and c:few(1, 70) or nil
   o.D, o.z = c:pick { 'none', 'head', 'channel' }, c:chance(0.3)
   o.softplus = c:chance(0.5)
   if c:chance(0.3) then o.limit = c:pick { { 0, 0.5 }, { 0.3, 0.9 }, { 0.001, 1 } } end
   o.steps = c:pick { 'mild', 'tiny', 'spikes', 'large', 'strong' }
   return o
end

-- ---- contents --------------------------------------------------------------------------------

local function draw(o, i, n, scale, round)
   local list = values.normal(('%d %d'):format(o.seed, i), n, round)
   for k = 1, n do list[k] = list[k] * (scale or 1) end
   return list
end

-- dt before softplus, and A, of a kind of steps; made of f32 numbers.
local function steps_of(o, n)
   local dt, A = draw(o, 2, n, 0.5), draw(o, 3, o.H)
   local size = ({ mild = 1, tiny = 1e-3, spikes = 1e-2, large = 3, strong = 0.1 })[o.steps]
   local rate = ({ mild = 1, tiny = 1, spikes = 1, large = 2, strong = 16 })[o.steps]
   local pick = values.normal(('%d spikes'):format(o.seed), n)
   for k = 1, n do
      dt[k] = (o.softplus and dt[k] or math.abs(dt[k])) * size
      if o.steps == 'spikes' and math.abs(pick[k]) > 1.9 then dt[k] = 100 end
      if o.softplus and size < 1 and dt[k] < 50 then dt[k] = dt[k] + math.log(size) end
      dt[k] = ssm.f32(dt[k])
   end
   for h = 1, o.H do A[h] = ssm.f32(-rate * (0.05 + math.abs(A[h]))) end
   return dt, A
end

-- f32 numbers, of 8 bits each for bf16.
local function round_of(o)
   return o.dtype == 'bf16' and 'bf16' or nil
end

local function in_f32(list)
   for k = 1, list and #list or 0 do list[k] = ssm.f32(list[k]) end
   return list
end

local function scan_inputs(o)
   local n, round = o.B * o.T * o.H, round_of(o)
   local i = { x = draw(o, 1, n * o.P, 1, round),
      B = draw(o, 4, o.B * o.T * o.G * o.N, 1, round),
      C = draw(o, 5, o.B * o.T * o.G * o.N, 1, round) }
   i.dt, i.A = steps_of(o, n)
   if o.D ~= 'none' then i.D = draw(o, 6, o.D == 'head' and o.H or o.H * o.P) end
   if o.bias then i.bias = draw(o, 7, o.H, 0.3) end
   if o.z then i.z = draw(o, 8, n * o.P, 1, round) end
   if o.initial then i.initial = draw(o, 9, o.B * o.H * o.P * o.N) end
   local g = { y = draw(o, 10, n * o.P, 1, round) }
   if o.last then g.last = draw(o, 11, o.B * o.H * o.P * o.N) end
   return i, g
end

local function conv_inputs(o)
   local round = round_of(o)
   local n, r = o.B * o.T * o.C, o.B * (o.K - 1) * o.C
   local i = { x = draw(o, 1, n, 1, round), w = draw(o, 2, o.C * o.K, 1, round) }
   if o.bias then i.bias = draw(o, 3, o.C, 1, round) end
   if o.initial then i.initial = draw(o, 4, r, 1, round) end
   local g = { y = draw(o, 5, n, 1, round) }
   if o.last then g.last = draw(o, 6, r, 1, round) end
   return i, g
end

-- ---- tide ------------------------------------------------------------------------------------

local main = { x = true, z = true, B = true, C = true, w = true }

local function shapes_of(o)
   local B, T, H, P, G, N = o.B, o.T, o.H, o.P, o.G, o.N
   if o.kind == 'conv' then
      return { x = { B, T, o.C }, w = { o.C, o.K }, bias = { o.C },
         initial = { B, o.K - 1, o.C } }
   end
   return { x = { B, T, H, P }, dt = { B, T, H }, A = { H }, B = { B, T, G, N },
      C = { B, T, G, N }, D = o.D == 'head' and { H } or { H, P }, bias = { H },
      z = { B, T, H, P }, initial = { B, H, P, N } }
end

local function sequence_tensor(t, o)
   if not o.sequence then return nil end
   return t.tensor(o.sequence, { dtype = 'i32' }):reshape { 1, o.T }
end

local function call(t, o, x)
   local sequence_ = sequence_tensor(t, o)
   if o.kind == 'conv' then
      return t.conv1d(x.x, x.w, x.bias, { silu = o.silu, initial = x.initial,
         sequence = sequence_, return_last = o.last })
   end
   return t.ssd_scan(x.x, x.dt, x.A, x.B, x.C, { D = x.D, dt_bias = x.bias, z = x.z,
      initial = x.initial, softplus = o.softplus, dt_limit = o.limit, chunk = o.chunk,
      sequence = sequence_, return_last = o.last })
end

local function listed(x) return x:detach():to 'f64':reshape(-1):tolist() end

-- Results and gradients by name.
local function run(o, inputs, g)
   local t = require 'tide'
   local shape, x = shapes_of(o), {}
   for name, list in pairs(inputs) do
      local kind = o.dtype == 'f64' and 'f64' or (main[name] or o.kind == 'conv') and o.dtype
         or 'f32'
      x[name] = t.tensor(list, { dtype = 'f64' }):reshape(shape[name]):to(kind):requires_grad_()
   end
   local y, last = call(t, o, x)
   local function weighed(v, d)
      return (v:to 'f64' * t.tensor(d, { dtype = 'f64' }):reshape(v.shape)):sum()
   end
   local loss = weighed(y, g.y)
   if g.last then loss = loss + weighed(last, g.last) end
   loss:backward()
   local out, grads = { y = listed(y), last = last and listed(last) }, {}
   for name, v in pairs(x) do grads[name] = v.grad and listed(v.grad) end
   return out, grads
end

-- ---- the check -------------------------------------------------------------------------------

-- What is wrong with results beside the wanted ones: each number is within most(name) of the
-- largest, and of `part` of the magnitudes of its own terms (sizes, or nil).
local function compare(got, want, what, most, part, sizes)
   for name, list in pairs(want) do
      local largest = 1e-2
      for _, v in ipairs(list) do largest = math.max(largest, math.abs(v)) end
      if got[name] and #got[name] ~= #list then return what .. name .. ' has another size' end
      for k, v in ipairs(got[name] and list or {}) do
         local allowed = most(name) * largest + (sizes and part * sizes[name][k] or 0)
         local off = math.abs(got[name][k] - v)
         if off > allowed or off ~= off then
            return ('%s%s is %.6g, expected %.6g within %.3g'):format(what, name, got[name][k], v,
               allowed)
         end
      end
   end
end

local function oracle_of(o)
   return o.kind == 'conv' and ssm.conv or ssm.scan
end

-- How far the token loop in f32 is from that in f64, by name: results, gradients.
local function loss_in_f32(o, inputs, g, want, wanted)
   local out, grads = ssm.scan(o, inputs, g, ssm.f32)
   local far = { {}, {} }
   for name, list in pairs(want) do far[1][name] = values.far(out[name], list, 1e-2) end
   for name, list in pairs(wanted) do far[2][name] = values.far(grads[name], list, 1e-2) end
   return far
end

-- What f32 may lose, relative to the largest number of a result: four times what the loop in f32
-- loses, and at least what sums in another order lose.
local function limits(o, inputs, g, want, wanted)
   if o.dtype == 'f64' then
      local function exact() return 1e-11 end
      return exact, exact
   elseif o.kind == 'conv' then
      local function sums() return o.dtype == 'bf16' and 4e-2 or 5e-6 end
      return sums, sums
   end
   local far = loss_in_f32(o, inputs, g, want, wanted)
   local function of(k)
      return function(name) return math.max(1e-5, 4 * far[k][name]) end
   end
   return of(1), of(2)
end

-- What is lost relative to the magnitudes of the terms, since differences cancel.
--    bf16   a rounding by at most 2^-8 of each operand of a product on the way of a term: steps x;
--           decays C B, or the state; gradients of y, of the state; and of the result: 5. A gate
--           rounds y, silu(z) and their product, in backward their gradients: 3 more.
--    f32    a rounding by at most 2^-24 of each partial sum that a term is in: of the longest sums,
--           over the tokens and channels of all rows, 16 run beside each other and then join in 4.
local function part_of(o)
   if o.dtype == 'f64' or o.kind == 'conv' and o.dtype == 'bf16' then return 0 end
   if o.dtype == 'bf16' then return (o.z and 8 or 5) * 2^-8 end
   return (o.B * o.T * (o.kind == 'conv' and 1 or math.max(o.P, o.N)) / 16 + 4) * 2^-24
end

-- What a failing case has.
function scan.trait(o) return ('%s %s %s'):format(o.kind, o.dtype, o.steps or '') end

-- What is wrong with a case, or nil.
function scan.check(o)
   require('tide').default():set_nthread(o.threads)
   local inputs, g
   if o.kind == 'conv' then inputs, g = conv_inputs(o) else inputs, g = scan_inputs(o) end
   if o.dtype ~= 'f64' then
      for _, list in pairs(inputs) do in_f32(list) end
      in_f32(g.y)
      in_f32(g.last)
   end
   o.seq = o.sequence and function(_, s) return o.sequence[s + 1] end
   local want, wanted = oracle_of(o)(o, inputs, g)
   wanted.plain = nil
   if not o.last then want.last = nil end
   want.plain = nil
   local most, most_grad = limits(o, inputs, g, want, wanted)
   local sizes, dsizes
   if part_of(o) > 0 then
      sizes, dsizes = (o.kind == 'conv' and ssm.conv_sizes or ssm.scan_sizes)(o, inputs, g)
   end
   local out, grads = run(o, inputs, g)
   o.seq = nil
   if o.kind == 'conv' and o.T == 0 then grads.bias, grads.w = nil, nil end
   return compare(out, want, '', most, part_of(o), sizes)
      or compare(grads, wanted, 'd', most_grad, part_of(o), dsizes)
end

return scan
