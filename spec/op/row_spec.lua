-- Norms, softmax, losses and elementwise ops over rows of every length: two elements, less than 16
-- bytes, more than registers or a block hold, whole and odd, at aligned addresses and others; many
-- short rows, whose gradients of the weight are summed in parts.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local compare = require 'spec.cuda.compare'
local wide = require 'spec.support.wide'

-- Long rows and sums over many rows round more than short ones.
local room = { f32 = 1e-5, f64 = 1e-12, bf16 = 2e-2, f16 = 4e-3 }

-- { rows, length }. Emulated threads are slow: there are fewer and shorter rows.
local sizes = fast == 'cuda' and not wide
   and { { 3, 2 }, { 5, 7 }, { 300, 8 }, { 37, 136 }, { 3, 1031 }, { 2, 4104 }, { 1, 17000 } }
   or { { 3, 2 }, { 5, 7 }, { 300, 8 }, { 70, 64 }, { 37, 136 }, { 21, 1024 }, { 18, 1031 },
      { 3, 2056 }, { 2, 4104 }, { 2, 8200 }, { 2, 17000 } }

local function cut(t, shifted)
   return shifted and t:slice(1, 2, t.shape[1]) or t
end

-- Random [rows, length], from an address that 16 divides or, shifted, from one that it does not.
local function operand(shape, seed, dtype, device, shifted)
   local n = 1
   for _, s in ipairs(shape) do n = n * s end
   return cut(compare.random({ n + (shifted and 1 or 0) }, seed, dtype):to(device), shifted)
      :reshape(shape):requires_grad_()
end

-- name -> (operands by place, row length) -> result. Operands: 'row' [rows, length] or 'weight'.
local ops = {
   rms_norm = { { 'row', 'weight' }, function(x, w) return tide.rms_norm(x, w, 1e-5, 1) end },
   rms_norm_plain = { { 'row' }, function(x) return tide.rms_norm(x, nil, 1e-2) end },
   layer_norm = { { 'row', 'weight', 'weight' },
                  function(x, w, b) return tide.layer_norm(x, w, b, 1e-2) end },
   add_rms_norm = { { 'row', 'row', 'weight' }, function(x, r, w)
      local y, sum = tide.add_rms_norm(x, r, w, 1e-5)
      return y + sum
   end },
   gated_rms_norm = { { 'row', 'row', 'weight' },
                      function(x, z, w) return tide.gated_rms_norm(x, z, w) end },
   gate_last = { { 'row', 'row', 'weight' }, function(x, z, w)
      return tide.gated_rms_norm(x, z, w, { gate_last = true })
   end },
   swiglu = { { 'row', 'row' }, tide.swiglu },
   swiglu_clamped = { { 'row', 'row' }, tide.swiglu_clamped },
   softmax = { { 'row' }, function(x) return x:softmax(2) end },
   log_softmax = { { 'row' }, function(x) return x:log_softmax(2) end },
   cross_entropy = { { 'row' }, function(x)
      local targets = {}
      for i = 1, x.shape[1] do targets[i] = i * 5 % x.shape[2] end
      return tide.cross_entropy(x, tide.tensor(targets, { dtype = 'i64', device = x.device }))
   end },
   silu = { { 'row' }, function(x) return x:silu() end },
   product = { { 'row', 'row' }, function(a, b) return a * b + a end },
}
local names = {}
for name in pairs(ops) do names[#names + 1] = name end
table.sort(names)

local function results(name, size, dtype, device, shifted)
   local kinds, fn = ops[name][1], ops[name][2]
   local operands = {}
   for i, kind in ipairs(kinds) do
      operands[i] = operand(kind == 'row' and size or { size[2] }, i, dtype, device, shifted)
   end
   local y = fn(unpack(operands))
   y:backward(compare.random(y.shape, 9, y.dtype):to(device))
   local list = { y:detach() }
   for _, x in ipairs(operands) do list[#list + 1] = x.grad end
   return list
end

describe('rows of every length', function()
   for _, name in ipairs(names) do
      for dtype in pairs(room) do
         for _, shifted in ipairs { false, true } do
            it(('%s of %s%s'):format(name, dtype, shifted and ', not aligned' or ''), function()
               for _, size in ipairs(sizes) do
                  local got = results(name, size, dtype, fast, shifted)
                  for i, want in ipairs(results(name, size, dtype, 'ref', shifted)) do
                     compare.close(got[i], want, room[dtype],
                        ('%d rows of %d, result %d'):format(size[1], size[2], i))
                  end
               end
            end)
         end
      end
   end
end)
