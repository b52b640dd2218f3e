-- Random cases: gated_delta with every option, forward and backward, held against the reference
-- kernel in f64, which is the token loop. Decays from none to wild.

local delta = { limit = 60 }

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

-- A case. decays: how g is drawn.
function delta.make(c)
   local o = { B = c:few(1, 3), T = c:few(0, 300), Hk = c:few(1, 3), Dk = c:few(1, 70),
      Dv = c:few(1, 70), dtype = c:pick { 'f64', 'f32', 'bf16', 'f16' }, seed = c:int(0, 999),
      norm = c:chance(0.7), initial = c:chance(0.4), last = c:chance(0.4),
      decays = c:pick { 'none', 'mild', 'strong', 'wild' }, threads = c:int(1, 3) }
   if o.norm then o.Dk = o.Dk + 5 end -- in few dims the gradient of a norm cancels
   o.Hv = o.Hk * c:few(1, 3)
   o.chunk = c:chance(0.5) and c:few(1, 200) or nil
   o.scale = c:chance(0.3) and 0.5 or nil
   o.sequence = sequence(c, o.T)
   return o
end

local function gate_of(o, t)
   local x = t.randn { o.B, o.T, o.Hv }
   if o.decays == 'none' then return x * 0 end
   if o.decays == 'wild' then return -((x * 6):exp()) end
   return -(x:abs()) * (o.decays == 'mild' and 0.05 or 3)
end

-- Inputs and the gradients of results, as numbers of the case's dtype.
local function inputs_of(o, t)
   local i = { q = t.randn { o.B, o.T, o.Hk, o.Dk }, k = t.randn { o.B, o.T, o.Hk, o.Dk },
      v = t.randn { o.B, o.T, o.Hv, o.Dv }, g = gate_of(o, t),
      beta = t.randn({ o.B, o.T, o.Hv }):sigmoid(),
      initial = o.initial and t.randn { o.B, o.Hv, o.Dk, o.Dv } or nil,
      y = t.randn { o.B, o.T, o.Hv, o.Dv },
      last = o.last and t.randn { o.B, o.Hv, o.Dk, o.Dv } or nil }
   if not o.norm then i.k = i.k * (0.5 / math.sqrt(o.Dk)) end
   for name, x in pairs(i) do i[name] = x:to(o.dtype) end
   return i
end

-- Results and gradients by name.
local function run(o, t, i, device, dtype)
   local x = {}
   for name, v in pairs(i) do x[name] = v:to(device):to(dtype):clone():requires_grad_() end
   local numbers = o.sequence and t.tensor(o.sequence, { dtype = 'i32', device = device })
      :reshape { 1, o.T }
   local y, last = t.gated_delta(x.q, x.k, x.v, x.g, x.beta, { l2norm = o.norm, scale = o.scale,
      initial = x.initial, sequence = numbers, chunk = o.chunk, return_last = o.last })
   local loss = (y:to 'f64' * x.y:detach():to 'f64'):sum()
   if o.last then loss = loss + (last:to 'f64' * x.last:detach():to 'f64'):sum() end
   loss:backward()
   local out = { y = y:detach(), last = last and last:detach() }
   x.y, x.last = nil, nil
   for name, v in pairs(x) do out['d' .. name] = v.grad end
   return out
end

-- Relative to the largest number: f32 sums in another order than the loop, over all tokens that a
-- state holds; 16 bits round results, and each gradient of y that the caller rounded.
local tolerance = { f64 = 1e-11, f32 = 2e-5, bf16 = 1e-2, f16 = 2e-3 }

-- What a failing case has.
function delta.trait(o) return ('%s %s'):format(o.dtype, o.decays) end

-- What is wrong with a case, or nil.
function delta.check(o)
   local t = require 'tide'
   t.default():set_nthread(o.threads)
   t.seed(o.seed)
   local i = inputs_of(o, t)
   local want, got = run(o, t, i, 'ref', 'f64'), run(o, t, i, 'cpu', o.dtype)
   for name, x in pairs(want) do
      if x:numel() > 0 then
         local largest = math.max(1e-2, x:abs():amax():item())
         local far = (got[name]:to('ref'):to 'f64' - x):abs():amax():item()
         if far ~= far or far > tolerance[o.dtype] * largest then
            return ('%s is off by %.3g where the largest is %.3g'):format(name, far, largest)
         end
      end
   end
end

return delta
