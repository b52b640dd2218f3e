-- One scan beside the token loop in f64, for the specs: case.check(tokens, chunk, option, dtype).

local tide = require 'tide'
local fast = require 'spec.support.fast'

local case = {}

-- Fields: H, P, G, N, B; D ('head', 'channel'), z, bias, softplus, limit, initial, last, cu (of
-- the batch) or cut (documents of as many tokens).
case.options = {
   { name = 'nothing' }, { name = 'D of heads', D = 'head' },
   { name = 'D of channels', D = 'channel', softplus = true },
   { name = 'softplus and bias', softplus = true, bias = true },
   { name = 'limits', softplus = true, bias = true, limit = { 0.3, 0.9 } },
   { name = 'the gate', z = true, D = 'head' },
   { name = 'states on both sides', initial = true, last = true },
   { name = 'states and documents', initial = true, last = true, cut = 3, D = 'head' },
   { name = 'documents of 17 tokens', cut = 17, softplus = true, G = 1 },
   { name = 'a group a head', G = 4, initial = true, D = 'channel' },
   { name = 'one head', H = 1, G = 1, last = true },
   { name = 'many heads of a group', H = 19, G = 1, P = 3, D = 'head' },
   { name = 'sizes of one', H = 1, P = 1, G = 1, N = 1, B = 1, D = 'head' },
   { name = 'sizes off the tiles', H = 2, P = 17, G = 2, N = 33, last = true },
}

local function draw(seed, scale, ...)
   return (tide.empty({ ... }, { dtype = 'f32' }):normal_(0, 1, { seed = seed }) * scale)
end

local function inputs(T, o)
   local H, P, G, N, B = o.H or 4, o.P or 5, o.G or 2, o.N or 6, o.B or 2
   local i = {
      x = draw(1, 1, B, T, H, P), dt = draw(2, 0.5, B, T, H),
      A = -draw(3, 1, H):abs(), B = draw(4, 0.5, B, T, G, N), C = draw(5, 0.5, B, T, G, N),
   }
   if not o.softplus then i.dt = i.dt:abs() end
   if o.D then i.D = o.D == 'head' and draw(6, 1, H) or draw(6, 1, H, P) end
   if o.bias then i.dt_bias = draw(7, 1, H) end
   if o.z then i.z = draw(8, 1, B, T, H, P) end
   if o.initial then i.initial = draw(9, 1, B, H, P, N) end
   return i, draw(10, 1, B, T, H, P), o.last and draw(11, 1, B, H, P, N)
end

local function sequence_of(T, o)
   local cu = o.cu
   if o.cut then
      cu = {}
      for t = 0, T - 1, o.cut do cu[#cu + 1] = t end
      cu[#cu + 1] = T
   end
   return cu and tide.sequence_index(tide.tensor(cu, { dtype = 'i32' }), T)
end

local main = { x = true, z = true, B = true, C = true }

-- Results and gradients by name, f64 on the host.
local function run(device, dtype, values, dy, dlast, sequence, chunk, o)
   local i = {}
   for name, t in pairs(values) do
      local kind = dtype == 'f64' and 'f64' or main[name] and dtype or 'f32'
      i[name] = t:to(kind):to(device):requires_grad_()
   end
   local y, last = tide.ssd_scan(i.x, i.dt, i.A, i.B, i.C, { D = i.D, dt_bias = i.dt_bias,
      z = i.z, initial = i.initial, softplus = o.softplus, dt_limit = o.limit, chunk = chunk,
      sequence = sequence and sequence:to(device), return_last = o.last })
   local loss = (y:to 'f64' * dy:to 'f64':to(device)):sum()
   if dlast then loss = loss + (last:to 'f64' * dlast:to 'f64':to(device)):sum() end
   loss:backward()
   local out = { y = y:detach(), last = last and last:detach() }
   for name, t in pairs(i) do out['d' .. name] = t.grad end
   for name, t in pairs(out) do out[name] = t:to 'f64':to 'cpu' end
   return out
end

-- Relative to the largest element; bf16 and f16 round operands of products and results. A gradient
-- that is a sum over tokens may cancel: it is held to a tenth of that, relative to the sum of what
-- its terms are without their signs, if this is more.
local tolerance = { f32 = 2e-5, bf16 = 4e-2, f16 = 5e-3 }
local sums = { dA = true, dD = true, ddt_bias = true }

-- The same scan with nothing that is negative but A: no term of a sum cancels another.
local function positive(values, dy, dlast, sequence, chunk, o)
   local all = {}
   for name, t in pairs(values) do
      all[name] = (name == 'A' or name == 'dt' or name == 'dt_bias') and t or t:abs()
   end
   return run('ref', 'f64', all, dy:abs(), dlast and dlast:abs(), sequence, chunk, o)
end

function case.check(T, chunk, o, dtype)
   local values, dy, dlast = inputs(T, o)
   if dtype ~= 'f32' then
      for name in pairs(main) do
         if values[name] then values[name] = values[name]:to(dtype):to 'f32' end
      end
      dy = dy:to(dtype):to 'f32'
   end
   local sequence = sequence_of(T, o)
   local want = run('ref', 'f64', values, dy, dlast, sequence, chunk, o)
   local got = run(fast, dtype, values, dy, dlast, sequence, chunk, o)
   local terms
   for name, t in pairs(want) do
      local scale = math.max(1e-2, t:abs():amax():item())
      if sums[name] then
         terms = terms or positive(values, dy, dlast, sequence, chunk, o)
         scale = math.max(scale, terms[name]:abs():amax():item() / 10)
      end
      local off = (got[name] - t):abs():amax():item()
      if off ~= off or off > tolerance[dtype] * scale then
         error(('%s, %d tokens in chunks of %d, %s: off by %g of %g'):format(o.name, T, chunk, name,
            off, scale), 2)
      end
   end
end

return case
