-- The wrappers compile: a loop over any of them becomes machine code and stays there.

local tide = require 'tide'
local watch = require 'spec.support.jit'

local function f32(...) return tide.rand { ... } end
local ids = tide.tensor({ 0, 1, 1 }, { dtype = 'i64' })
local mask = tide.tensor { true, false, true }
local x, y = f32(4, 3), f32(4, 3)
local down, up = f32(2, 3), f32(4, 2)
local v = f32(3)
local q = f32(1, 4, 2, 8)
local series, taps, steps, decay = f32(1, 4, 3), f32(3, 2), f32(1, 4, 2), f32(2):neg()
local scalar = tide.tensor(2)
local shape = { 3, 4 }
local two, pair = { f32(4, 3), f32(3) }, { x, v }
local codes, scale = tide.quantize_nf4(y)
local group_codes, group_scale = codes:unsqueeze(1), scale:unsqueeze(1)
local offsets = tide.tensor({ 0, 2 }, { dtype = 'i64' })

local unary = { 'neg', 'abs', 'sign', 'floor', 'exp', 'log', 'sqrt', 'rsqrt', 'square',
   'reciprocal', 'sin', 'cos', 'tanh', 'sigmoid', 'silu', 'gelu', 'gelu_tanh', 'relu', 'softplus',
   'isfinite', 'clone', 'contiguous', 't', 'norm', 'detach', 'zero_', 'float', 'numel',
   'is_contiguous', 'version' }
local binary = { 'add', 'sub', 'mul', 'div', 'pow', 'minimum', 'maximum', 'eq', 'ne', 'lt', 'le',
   'gt', 'ge' }
local reductions = { 'sum', 'mean', 'prod', 'amax', 'amin' }

local cases = {
   logical_and = function() return mask:logical_and(mask) end,
   logical_or = function() return mask:logical_or(mask) end,
   logical_not = function() return mask:logical_not() end,
   any = function() return mask:any() end,
   all = function() return mask:all(1) end,
   clamp = function() return x:clamp(0, 1) end,
   affine = function() return tide.affine(x, 2, 1) end,
   where = function() return tide.where(mask, v, 0) end,
   masked_fill = function() return v:masked_fill(mask, 0) end,
   cast = function() return x:cast 'bf16' end,
   to = function() return x:to 'f64' end,
   argmax = function() return x:argmax(1) end,
   argmin = function() return x:argmin(-1, true) end,
   cumsum = function() return x:cumsum(1) end,
   softmax = function() return x:softmax(-1) end,
   log_softmax = function() return x:log_softmax(2) end,
   reshape = function() return x:reshape(3, 4) end,
   reshape_list = function() return x:reshape(shape) end,
   expand = function() return v:expand(4, 3) end,
   permute = function() return x:permute(2, 1) end,
   transpose = function() return x:transpose(1, 2) end,
   slice = function() return x:slice(1, 2, 3) end,
   narrow = function() return x:narrow(1, 2, 2) end,
   select = function() return x:select(1, 2) end,
   unsqueeze = function() return x:unsqueeze(1) end,
   squeeze = function() return x:squeeze() end,
   flatten = function() return x:flatten() end,
   roll = function() return x:roll(1, 1) end,
   gather = function() return v:gather(1, ids) end,
   index_select = function() return x:index_select(1, ids) end,
   index_add = function() return v:index_add(1, ids, v) end,
   scatter_add = function() return v:scatter_add(1, ids, v) end,
   embedding = function() return tide.embedding(x, ids) end,
   matmul = function() return x:matmul(v) end,
   linear = function() return tide.linear(x, y) end,
   linear_act = function() return tide.linear_act(x, y, nil, 'relu') end,
   linear_lora = function() return tide.linear_lora(x, y, down, up, 0.5) end,
   linear_fp8 = function() return tide.linear_fp8(x, y) end,
   linear_nf4 = function() return tide.linear_nf4(x, codes, scale, 4) end,
   linear_nf4_part = function() return tide.linear_nf4_part(x, codes, scale, nil, 4, 0, 3) end,
   grouped_linear_nf4 = function()
      return tide.grouped_linear_nf4(x, group_codes, group_scale, offsets, 4, 0, 3)
   end,
   layer_norm = function() return tide.layer_norm(x, v, v) end,
   rms_norm = function() return tide.rms_norm(x, v) end,
   add_rms_norm = function() return tide.add_rms_norm(x, y, v) end,
   swiglu = function() return tide.swiglu(x, y) end,
   dropout = function() return tide.dropout(x, 0.5) end,
   attention = function() return tide.attention(q, q, q) end,
   conv1d = function() return tide.conv1d(series, taps, nil) end,
   ssd_scan = function() return tide.ssd_scan(q, steps, decay, q, q) end,
   gated_delta = function() return tide.gated_delta(q, q, q, steps, steps) end,
   gated_rms_norm = function() return tide.gated_rms_norm(x, y, v) end,
   copy_ = function() return y:copy_(x) end,
   foreach_copy_ = function() return tide.foreach_copy_(two, pair) end,
   foreach_add_ = function() return tide.foreach_add_(two, pair) end,
   fill_ = function() return y:fill_(3) end,
   add_ = function() return y:add_(x, 0.5) end,
   mul_ = function() return y:mul_(0.5) end,
   uniform_ = function() return y:uniform_(0, 1) end,
   normal_ = function() return y:normal_(0, 1) end,
   item = function() return scalar:item() end,
   zeros = function() return tide.zeros(shape) end,
   empty = function() return tide.empty(shape) end,
   zeros_like = function() return tide.zeros_like(x) end,
   full_like = function() return x:full_like(2) end,
   ndim = function() return x.ndim end,
   id = function() return x.id end,
   dtype = function() return x.dtype end,
   device = function() return x.device end,
   requires_grad = function() return x.requires_grad end,
   grad = function() return x.grad end,
   size = function() return x:size(1) + x:stride(2) end,
   ['number methods'] = function() return x:add(1):sub(2) end,
}
for _, name in ipairs(unary) do cases[name] = function() return x[name](x) end end
for _, name in ipairs(binary) do
   cases[name] = function() return x[name](x, y) end
   cases[name .. ' number'] = function() return x[name](x, 3) end
end
for _, name in ipairs(reductions) do
   cases[name] = function() return x[name](x) end
   cases[name .. ' dim'] = function() return x[name](x, 2, true) end
end

local names = {}
for name in pairs(cases) do names[#names + 1] = name end
table.sort(names)

describe('compiled code', function()
   for _, name in ipairs(names) do
      it('runs ' .. name, function()
         tide.default():collect()
         watch.assert_compiles(name, cases[name], 400)
      end)
   end

   it('leaves operators to the interpreter, with the same results', function()
      local z = tide.zeros { 1 }
      for i = 1, 2000 do
         assert(((z + i) * 3 - 1 + z):item() == 3 * i - 1)
         assert((2 - z * i / 4 ^ z):item() == 2)
      end
   end)

   it('is what the assertion sees: an uncompilable loop fails it', function()
      assert.has_error(function()
         watch.assert_compiles('closure', function() return function() return x end end, 400)
      end)
   end)
end)
