-- Operands as views: transposed, sliced, stepped, expanded and of one row give what contiguous
-- copies of the same numbers give. Products, losses, norms, attention and gathers, whose fast
-- kernels have rules of their own about strides.

local tide = require 'tide'
local fast = require 'spec.support.fast'
local numbers = require 'spec.cuda.compare'

-- name -> (device, dtype, rows, cols, seed) -> a view [rows, cols]
local layouts = {
   contiguous = function(put, rows, cols) return put { rows, cols } end,
   transposed = function(put, rows, cols) return put({ cols, rows }):transpose(1, 2) end,
   sliced = function(put, rows, cols) return put({ rows + 2, cols + 3 }):slice(1, 2, rows + 1)
      :slice(2, 3, cols + 2) end,
   stepped = function(put, rows, cols)
      return put({ rows, 2, cols }):select(2, 2)
   end,
   expanded = function(put, rows, cols) return put({ 1, cols }):expand { rows, cols } end,
   columns_expanded = function(put, rows, cols) return put({ rows, 1 }):expand { rows, cols } end,
   scalar_expanded = function(put, rows, cols) return put({ 1, 1 }):expand { rows, cols } end,
}
local names = {}
for name in pairs(layouts) do names[#names + 1] = name end
table.sort(names)

local targets = { 3, 0, 7, 1, 5 }

-- Each op of two matrices x [5, 24] and w [8, 24]; it returns a list of tensors.
local ops = {
   linear = function(x, w) return { tide.linear(x, w) } end,
   linear_three_dims = function(x, w)
      return { tide.linear(x:unsqueeze(1):expand { 3, 5, 24 }, w) }
   end,
   linear_outer = function(x, w) return { tide.linear(x:unsqueeze(2):expand { 5, 3, 24 }, w) } end,
   linear_relu = function(x, w) return { tide.linear_act(x, w, nil, 'relu') } end,
   linear_gelu = function(x, w) return { tide.linear_act(x, w, nil, 'gelu_tanh') } end,
   linear_fp8 = function(x, w) return { tide.linear_fp8(x, w) } end,
   linear_nf4 = function(x, w)
      local codes, scale = tide.quantize_nf4(w:to('f32'):contiguous())
      return { tide.linear_nf4(x, codes, scale, 8), (tide.quantize_nf4(w)) }
   end,
   matmul = function(x, w) return { tide.matmul(x, w:transpose(1, 2)) } end,
   matmul_batch = function(x, w)
      return { tide.matmul(x:unsqueeze(1):expand { 2, 5, 24 }, w:transpose(1, 2)) }
   end,
   linear_cross_entropy = function(x, w)
      local t = tide.tensor(targets, { dtype = 'i64', device = x.device })
      return { (tide.linear_cross_entropy(x, w, nil, t)) }
   end,
   cross_entropy = function(x) -- 24 classes
      local t = tide.tensor(targets, { dtype = 'i64', device = x.device })
      return { (tide.cross_entropy(x, t)) }
   end,
   rms_norm = function(x) return { tide.rms_norm(x) } end,
   softmax = function(x) return { x:softmax(2), x:softmax(1) } end,
   swiglu = function(x) return { tide.swiglu(x, x:neg()) } end,
   swiglu_clamped = function(x) return { tide.swiglu_clamped(x, x:neg(), 0.5) } end,
   sums = function(x) return { x:sum(1), x:sum(2), x:amax(1), x:mean() } end,
   gather = function(_, w)
      return { tide.embedding(w, tide.tensor(targets, { dtype = 'i64', device = w.device })) }
   end,
   attention = function(x, w)
      local q = x:reshape { 1, 5, 3, 8 }
      local k = w:reshape { 1, 8, 3, 8 }
      return { (tide.attention(q, k, k)) }
   end,
}
local op_names = {}
for name in pairs(ops) do op_names[#op_names + 1] = name end
table.sort(op_names)
local not_in_f64 = { linear_fp8 = true, linear_nf4 = true }

local function source(shape, dtype, seed, device)
   return numbers.random(shape, seed, 'f32'):to(dtype):to(device)
end

local function view(name, dtype, device, rows, cols, seed)
   return layouts[name](function(shape) return source(shape, dtype, seed, device) end, rows, cols)
end

-- x [rows, 1, cols] and w [9, cols], in rows folded from a batch and in single columns.
local folded = {
   matmul = function(x, w) return { tide.matmul(x, w:transpose(1, 2)) } end,
   linear = function(x, w) return { tide.linear(x, w), tide.linear(x:transpose(1, 2), w) } end,
   addmm = function(x, w)
      local y = tide.zeros({ x:size(1), 9 }, { device = x.device, dtype = x.dtype })
      return { y:addmm_(x:select(2, 1), w:transpose(1, 2)) }
   end,
}

describe('views of every layout', function()
   it('give what copies give where neither stride of a product is 1', function()
      local function stepped(rows, cols, seed)
         return source({ rows, cols, 2 }, 'f32', seed, fast):select(3, 2)
      end
      for _, cols in ipairs { 1, 3, 40 } do
         for _, rows in ipairs { 5, 30, 70 } do
            for _, x in ipairs { stepped(rows, cols, 1), stepped(cols, rows, 1):transpose(1, 2) } do
               x = x:unsqueeze(2)
               local w = stepped(9, cols, 2)
               for op, fn in pairs(folded) do
                  local want = fn(x:to('cpu'):contiguous():to 'ref',
                     w:to('cpu'):contiguous():to 'ref')
                  for i, got in ipairs(fn(x, w)) do
                     numbers.close(got, want[i], numbers.rounding.f32,
                        ('%s of %d rows, %d columns, result %d'):format(op, rows, cols, i))
                  end
               end
            end
         end
      end
   end)

   for _, op in ipairs(op_names) do
      for _, dtype in ipairs { 'f32', 'bf16', not not_in_f64[op] and 'f64' or nil } do
         it(('give what copies give: %s, %s'):format(op, dtype), function()
            for _, a in ipairs(names) do
               for _, b in ipairs { 'contiguous', a } do
                  local function operands(device)
                     return view(a, dtype, device, 5, 24, 1), view(b, dtype, device, 8, 24, 2)
                  end
                  local x, w = operands(fast)
                  local want = ops[op](x:to('cpu'):contiguous():to 'ref',
                     w:to('cpu'):contiguous():to 'ref')
                  for i, got in ipairs(ops[op](x, w)) do
                     numbers.close(got, want[i], numbers.rounding[dtype],
                        ('%s of x %s, w %s, result %d'):format(op, a, b, i))
                  end
               end
            end
         end)
      end
   end
end)
