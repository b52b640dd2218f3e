-- What ops say to shapes, dtypes and numbers they cannot take: one table, a row for each mistake,
-- the words that the message must hold.

local tide = require 'tide'
local refused = require 'spec.support.refused'

local function f(...) return tide.zeros { ... } end
local function i(...) return tide.zeros({ ... }, { dtype = 'i64' }) end
local function b(...) return tide.zeros({ ... }, { dtype = 'bool' }) end
local function at(list) return tide.tensor(list, { dtype = 'i64' }) end

local x, m = f(2, 3), f(3, 4)

local rows = {
   elementwise = {
      { 'E_SHAPE', { 'add', '[2, 3]', '[3, 4]' }, function() return x + m end },
      { 'E_SHAPE', { 'mul', '[2, 3]', '[2]' }, function() return x * f(2) end },
      { 'E_SHAPE', { 'lt', '[2, 3]', '[4]' }, function() return x:lt(f(4)) end },
      { 'E_SHAPE', { 'maximum' }, function() return x:maximum(f(2, 2)) end },
      { 'E_SHAPE', { 'where', '[2]', '[3]' }, function() return tide.where(b(2), f(2), f(3)) end },
      { 'E_SHAPE', { 'where', 'cond', '[4]' }, function() return tide.where(b(4), x, x) end },
      { 'E_DTYPE', { 'where', 'cond', 'bool', 'f32' }, function() return tide.where(x, x, x) end },
      { 'E_DTYPE', { 'affine', 'i64', '0.5' }, function() return tide.affine(i(2), 0.5, 0) end },
      { 'E_ARG', { 'clamp', 'lo <= hi' }, function() return x:clamp(2, 1) end },
      { 'E_ARG', { 'clamp' }, function() return x:clamp(0 / 0, 1) end },
      { 'E_ARG', { 'add', 'y', 'got "1"' }, function() return x:add('1') end },
      { 'E_ARG', { 'to', 'dtype', 'f32' }, function() return x:to { dtype = 'float' } end },
   },
   reductions = {
      { 'E_ARG', { 'sum', 'dim', '3' }, function() return x:sum(3) end },
      { 'E_ARG', { 'sum', 'dim', '0' }, function() return x:sum(0) end },
      { 'E_ARG', { 'mean', 'dim', 'once' }, function() return x:mean { 1, -2 } end },
      { 'E_ARG', { 'amax', 'dim', '1.5' }, function() return x:amax(1.5) end },
      { 'E_ARG', { 'sum', 'keepdim' }, function() return x:sum(1, 1) end },
      { 'E_DTYPE', { 'mean', 'i64' }, function() return i(2):mean() end },
      { 'E_SHAPE', { 'amax' }, function() return f(0, 3):amax(1) end },
      { 'E_SHAPE', { 'amin' }, function() return f(0):amin() end },
      { 'E_SHAPE', { 'argmax' }, function() return f(3, 0):argmax(2) end },
      { 'E_ARG', { 'argmin', 'dim' }, function() return x:argmin() end },
      { 'E_ARG', { 'cumsum', 'dim' }, function() return x:cumsum(-3) end },
   },
   movement = {
      { 'E_SHAPE', { 'reshape', '[2, 3]', '4' }, function() return x:reshape(4, 2) end },
      { 'E_SHAPE', { 'reshape' }, function() return x:reshape(-1, -1) end },
      { 'E_SHAPE', { 'reshape' }, function() return x:reshape(-1, 4) end },
      { 'E_SHAPE', { 'reshape' }, function() return f(0, 3):reshape(-1, 0) end },
      { 'E_ARG', { 'reshape', '-2' }, function() return x:reshape(-2, 3) end },
      { 'E_SHAPE', { 'expand', '[2, 3]', '[2, 4]' }, function() return x:expand(2, 4) end },
      { 'E_SHAPE', { 'expand' }, function() return x:expand(3) end },
      { 'E_ARG', { 'permute' }, function() return x:permute(1, 1) end },
      { 'E_ARG', { 'permute' }, function() return x:permute(1) end },
      { 'E_ARG', { 'transpose', 'dim1', '3' }, function() return x:transpose(1, 3) end },
      { 'E_ARG', { 'slice' }, function() return x:slice(2, 1, 4) end },
      { 'E_ARG', { 'slice' }, function() return x:slice(2, 1, 3, 0) end },
      { 'E_ARG', { 'slice', 'dim' }, function() return x:slice(3, 1, 1) end },
      { 'E_ARG', { 'select', '4' }, function() return x:select(2, 4) end },
      { 'E_ARG', { 'unsqueeze', 'dim' }, function() return x:unsqueeze(4) end },
      { 'E_SHAPE', 'squeeze: dim: expected one of size 1, got size 2',
         function() return x:squeeze(1) end },
      { 'E_SHAPE', 'index [4, 4] does not fit x [2, 3]: it may be larger along dim only',
         function() return x:gather(2, i(4, 4)) end },
      { 'E_SHAPE', 'they may differ along dim only',
         function() return tide.cat({ x, f(3, 4) }, 2) end },
      { 'E_SHAPE', 'the size 3 cannot be padded by -4 and 0',
         function() return x:pad({ 0, -4 }, { 0, 0 }) end },
      { 'E_SHAPE', 'do not fit x [2, 3]: src has the shape of x, and along dim the size of index',
         function() return x:index_add(2, i(1), x) end },
      { 'E_SHAPE', { 'cat', '[2, 3]', '[3, 4]' }, function() return tide.cat({ x, m }, 1) end },
      { 'E_SHAPE', { 'cat' }, function() return tide.cat({ x, f(2) }, 1) end },
      { 'E_ARG', { 'cat' }, function() return tide.cat({}, 1) end },
      { 'E_ARG', { 'cat', '[2]' }, function() return tide.cat({ x, 1 }, 1) end },
      { 'E_SHAPE', { 'cat', 'piece 2' }, function() return tide.stack { x, m } end },
      { 'E_ARG', { 'pad' }, function() return x:pad({ 0 }, { 0, 0 }, 0) end },
      { 'E_ARG', { 'pad', 'value' }, function() return x:to 'u8':pad({ 0, 1 }, { 0, 0 }, -1) end },
      { 'E_SHAPE', { 'pad' }, function() return x:pad({ 0, -2 }, { 0, -2 }, 0) end },
      { 'E_ARG', { 'roll', 'dim' }, function() return x:roll(1, 3) end },
      { 'E_ARG', { 'reshape', '8' }, function()
         return f(1):reshape(1, 1, 1, 1, 1, 1, 1, 1, 1)
      end },
   },
   index = {
      { 'E_DTYPE', { 'gather', 'index', 'f32' }, function() return x:gather(1, x) end },
      { 'E_SHAPE', { 'gather' }, function() return x:gather(1, i(3)) end },
      { 'E_ARG', { 'gather', '5' }, function() return x:gather(2, at { { 0, 5 }, { 1, 1 } }) end },
      { 'E_ARG', { 'gather', '-1' }, function() return x:gather(2, at { { -1 }, { 1 } }) end },
      { 'E_SHAPE', { 'scatter_add' }, function() return x:scatter_add(1, i(2, 3), m) end },
      { 'E_ARG', { 'scatter_add', '7' }, function()
         return x:scatter_add(2, at { { 7 }, { 0 } }, f(2, 1))
      end },
      { 'E_ARG', { 'index_select', '9' }, function() return x:index_select(1, at { 0, 9 }) end },
      { 'E_SHAPE', { 'index_select' }, function() return x:index_select(1, i(2, 2)) end },
      { 'E_SHAPE', { 'index_add' }, function() return x:index_add(1, i(2), f(3, 3)) end },
      { 'E_ARG', { 'embedding', '4' }, function() return tide.embedding(m, at { 0, 4 }) end },
      { 'E_ARG', { 'embedding', '-1' }, function() return tide.embedding(m, at { -1 }) end },
      { 'E_SHAPE', { 'embedding', '[3]' }, function() return tide.embedding(f(3), i(2)) end },
      { 'E_DTYPE', { 'embedding', 'f32' }, function() return tide.embedding(m, x) end },
      { 'E_ARG', { 'one_hot', '3' }, function() return tide.one_hot(at { 3 }, 3) end },
      { 'E_ARG', { 'one_hot', '-1' }, function() return tide.one_hot(i(1), -1) end },
   },
   products = {
      { 'E_SHAPE', { 'matmul', '[2, 3]', '[2, 3]' }, function() return x:matmul(x) end },
      { 'E_SHAPE', { 'matmul' }, function() return f(2, 2, 3):matmul(f(3, 3, 4)) end },
      { 'E_SHAPE', { 'matmul' }, function() return f():matmul(x) end },
      { 'E_SHAPE', { 'linear', '[2, 3]', '[4, 5]' }, function()
         return tide.linear(x, f(4, 5))
      end },
      { 'E_SHAPE', { 'linear', 'bias' }, function() return tide.linear(x, f(4, 3), f(3)) end },
      { 'E_SHAPE', { 'linear' }, function() return tide.linear(x, f(3)) end },
      { 'E_SHAPE', { 'linear_act', '[4, 5]' }, function()
         return tide.linear_act(x, f(4, 5), nil, 'relu')
      end },
      { 'E_ARG', { 'linear_act', 'activation', 'gelu_tanh', 'silu' }, function()
         return tide.linear_act(x, f(4, 3), nil, 'silu')
      end },
   },
   norms = {
      { 'E_SHAPE', { 'layer_norm', 'weight', '[2]' }, function() return x:layer_norm(f(2)) end },
      { 'E_SHAPE', { 'layer_norm', 'bias' }, function() return x:layer_norm(f(3), f(4)) end },
      { 'E_SHAPE', { 'rms_norm', 'weight' }, function() return x:rms_norm(f(3, 3)) end },
      { 'E_ARG', { 'rms_norm', 'eps' }, function() return x:rms_norm(nil, -1) end },
      { 'E_DTYPE', { 'rms_norm', 'i64' }, function() return i(2, 3):rms_norm() end },
      { 'E_SHAPE', { 'add_rms_norm' }, function() return tide.add_rms_norm(x, f(3)) end },
      { 'E_SHAPE', { 'rope' }, function() return tide.rope(x, i(1, 2), f(1)) end },
      { 'E_SHAPE', { 'rope', 'positions' }, function()
         return tide.rope(f(1, 2, 1, 4), i(1, 3), f(2))
      end },
      { 'E_SHAPE', { 'rope', 'inv_freq' }, function()
         return tide.rope(f(1, 2, 1, 4), i(1, 2), f(3))
      end },
      { 'E_ARG', { 'softmax', 'dim' }, function() return x:softmax(3) end },
      { 'E_DTYPE', { 'softmax', 'i64' }, function() return i(2):softmax(1) end },
      { 'E_SHAPE', { 'swiglu', '[2, 3]', '[3, 4]' }, function() return tide.swiglu(x, m) end },
      { 'E_ARG', { 'swiglu_clamped', 'limit', '0' },
         function() return tide.swiglu_clamped(x, x, 0) end },
      { 'E_ARG', { 'dropout', 'p' }, function() return x:dropout(1) end },
      { 'E_ARG', { 'dropout', 'p' }, function() return x:dropout(-0.1) end },
      { 'E_DTYPE', { 'dropout', 'i64' }, function() return i(2):dropout(0.5) end },
   },
   losses = {
      { 'E_SHAPE', { 'cross_entropy' }, function() return tide.cross_entropy(x, i(3)) end },
      { 'E_SHAPE', { 'cross_entropy' }, function() return tide.cross_entropy(f(3), i(3)) end },
      { 'E_DTYPE', { 'cross_entropy', 'targets' }, function()
         return tide.cross_entropy(x, f(2))
      end },
      { 'E_ARG', { 'cross_entropy', '3' }, function()
         return tide.cross_entropy(x, at { 0, 3 })
      end },
      { 'E_ARG', { 'cross_entropy', '-1' }, function()
         return tide.cross_entropy(x, at { -1, 0 })
      end },
      { 'E_ARG', { 'cross_entropy', 'label_smoothing' }, function()
         return tide.cross_entropy(x, i(2), { label_smoothing = 1.5 })
      end },
      { 'E_ARG', { 'cross_entropy', 'reduction' }, function()
         return tide.cross_entropy(x, i(2), { reduction = 'avg' })
      end },
      { 'E_SHAPE', { 'linear_cross_entropy' }, function()
         return tide.linear_cross_entropy(x, m, nil, i(2))
      end },
      { 'E_SHAPE', { 'linear_cross_entropy', 'bias' }, function()
         return tide.linear_cross_entropy(x, f(5, 3), f(3), i(2))
      end },
      { 'E_ARG', { 'linear_cross_entropy', '5' }, function()
         return tide.linear_cross_entropy(x, f(5, 3), nil, at { 0, 5 })
      end },
   },
   creation = {
      { 'E_SHAPE', { 'full', 'many' }, function() return f(2 ^ 40, 2 ^ 40) end },
      { 'E_NOMEM', 'alloc', function() return f(2 ^ 50) end },
      { 'E_ARG', { 'zeros', 'shape', '-1' }, function() return f(-1) end },
      { 'E_ARG', { 'zeros', 'shape', '1.5' }, function() return f(1.5) end },
      { 'E_ARG', { 'zeros', 'shape', 'nan' }, function() return f(0 / 0) end },
      { 'E_ARG', { 'full', 'value', 'u8' }, function()
         return tide.full({ 1 }, 256, { dtype = 'u8' })
      end },
      { 'E_ARG', { 'arange', 'step' }, function() return tide.arange(0, 5, 0) end },
      { 'E_ARG', { 'arange', 'stop' }, function() return tide.arange(1 / 0) end },
      { 'E_ARG', { 'from_bytes', '4 bytes', '3' }, function()
         return tide.from_string('abc', { 1 })
      end },
      { 'E_ARG', { 'tensor', 'list' }, function() return tide.tensor { { 1, 2 }, { 3 } } end },
      { 'E_SHAPE', { 'item', '[2, 3]' }, function() return x:item() end },
      { 'E_ARG', { 'at', 'i[2]' }, function() return x:at(1, 4) end },
   },
}

for family, list in pairs(rows) do
   describe(family .. ' refuse', function()
      for k, row in ipairs(list) do
         local words = type(row[2]) == 'table' and table.concat(row[2], ' ') or row[2]
         it(('%d: %s'):format(k, words), function()
            local err = refused(row[1], row[2], row[3])
            assert.is_truthy(err.where:find 'spec/', tostring(err)) -- the caller's line, not tide's
         end)
      end
   end)
end

describe('a refused call', function()
   it('leaves no tensor and no node behind', function()
      local leak = require 'spec.support.leak'
      local w = f(2, 3):requires_grad_()
      local shared = { x, m, w }
      local versions = {}
      for k, t in ipairs(shared) do versions[k] = t:version() end
      local before, state = leak.count(), tide.default():rng_state()
      for _ = 1, 50 do
         for name, list in pairs(rows) do
            for k, row in ipairs(list) do
               assert.is_false(pcall(row[3]), ('%s %d was not refused'):format(name, k))
            end
         end
         assert.is_false(pcall(function() return w + m end))
         assert.is_false(pcall(function() return w:matmul(x) end))
      end
      leak.compare(before, leak.count())
      assert.same(state, tide.default():rng_state())
      for k, t in ipairs(shared) do
         assert.equal(versions[k], t:version())
         assert.equal(0, t:detach():abs():sum():item())
      end
   end)
end)
