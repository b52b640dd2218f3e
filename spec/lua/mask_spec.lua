-- nn/mask: attention masks as documents, and whether one agrees with pairs that are there.

local tide = require 'tide'
local mask = require 'tide.nn.mask'
local raised = require 'spec.support.raised'

local function ints(rows) return tide.tensor(rows, { dtype = 'i32' }) end
local function index(rows) return mask.index('spec', 'mask', ints(rows)) end

-- Whether mask.check takes a mask beside pairs of other numbers.
local function agrees(rows, own)
   local ok, e = pcall(mask.check, 'spec', type(rows) == 'table' and ints(rows) or rows, index(own))
   if not ok then assert.equal('E_ARG', e.code) end
   return ok
end

describe('nn.mask', function()
   it('numbers documents from 0, padding is -1, positions count on', function()
      assert.same({ { { 0, 0 }, { 1, 1 }, { -1, 2 } } }, index({ { 1, 2, 0 } }):tolist())
   end)

   it('agrees with pairs that part the tokens alike, under whatever numbers', function()
      assert.is_true(agrees({ { 1, 1, 2, 0 } }, { { 1, 1, 2, 0 } }))
      assert.is_true(agrees({ { 3, 3, 7, 0 } }, { { 1, 1, 2, 0 } }))
      assert.is_true(agrees({ { 1, 1, 2 }, { 5, 5, 6 } }, { { 1, 1, 2 } }))
      assert.is_true(agrees({ { 1, 2 }, { 3, 3 } }, { { 1, 2 }, { 1, 1 } }))
   end)

   it('of 1 and 0 agrees wherever it calls no token of a document padding', function()
      assert.is_true(agrees({ { 1, 1, 1, 0 } }, { { 1, 1, 2, 0 } }))
      assert.is_true(agrees({ { 1, 1, 1, 1 } }, { { 1, 1, 2, 0 } }))
      assert.is_true(agrees(ints({ { 1, 1, 0 } }):to 'bool', { { 1, 2, 0 } }))
      assert.is_false(agrees({ { 1, 1, 0, 0 } }, { { 1, 1, 2, 0 } }))
   end)

   it('of other documents, rows or tokens is refused', function()
      assert.is_false(agrees({ { 2, 2, 3, 3 } }, { { 1, 1, 1, 2 } }))
      assert.is_false(agrees({ { 2, 3, 3 } }, { { 1, 1, 2 } }))
      assert.is_false(agrees({ { 1, 2, 2 }, { 3, 3, 4 } }, { { 1, 2, 2 } }))
      assert.is_false(agrees({ { 1, 1, 1 } }, { { 1, 1 } }))
      assert.is_false(agrees({ { 1, 1 } }, { { 1, 1, 1 } }))
      assert.is_false(agrees({ { 1, 1 } }, { { 1, 1 }, { 1, 1 } }))
      assert.is_false(agrees({ { 1, 2 }, { 1, 2 }, { 1, 2 } }, { { 1, 2 }, { 1, 2 } }))
   end)

   it('of 64 bits is refused where 32 do not hold its numbers', function()
      local function wide(n) return tide.tensor({ { 1, n } }, { dtype = 'i64' }) end
      assert.same({ { { 0, 0 }, { 2 ^ 31 - 2, 1 } } },
         mask.index('spec', 'mask', wide(2 ^ 31 - 1)):tolist())
      assert.same({ { { 0, 0 }, { -1, 1 } } }, mask.index('spec', 'mask', wide(-2 ^ 40)):tolist())
      assert.matches('document numbers below 2^31', raised(mask.index, 'spec', 'mask',
         wide(2 ^ 31)).message, 1, true)
      assert.same({ 0, 2, 2 }, mask.index('spec', 'mask', tide.empty({ 0, 2 }, { dtype = 'i64' }))
         .shape)
   end)

   it('of a call has the shape of the ids and stands alone', function()
      local ids, rows = ints { { 1, 2, 3 }, { 4, 5, 6 } }, { { 1, 1, 0 }, { 1, 2, 2 } }
      local function of(opts, ...) return mask.of_call('spec', opts, ids, ...) end
      assert.is_nil(of {})
      assert.same(index(rows):tolist(), of({ attention_mask = ints(rows) }):tolist())
      for _, other in ipairs { { { 1, 1, 0 } }, { { 1, 1 }, { 1, 1 } } } do
         assert.matches('a tensor [2, 3], as ids',
            raised(of, { attention_mask = ints(other) }).message, 1, true)
      end
      for _, name in ipairs { 'index', 'q_index', 'k_index', 'sequence', 'caches' } do
         assert.matches('nil beside ' .. name .. ',', raised(of, { attention_mask = ints(rows),
            [name] = false }).message, 1, true)
      end
      local context = { q_index = function() return index(rows) end }
      assert.is_nil(of({ attention_mask = ints(rows) }, context))
      assert.equal('E_ARG', raised(of, { attention_mask = ints { { 1, 1, 1 }, { 2, 2, 0 } } },
         context).code)
   end)

   it('of a layer is made unless the model has made or checked it', function()
      local rows = { { 1, 1, 0 } }
      local function of(at, ...) return mask.of_layer('spec', at, ...) end
      assert.is_nil(of {})
      assert.equal('made', of { mask_index = 'made' })
      assert.equal('made', of { mask_index = 'made', attention_mask = ints(rows),
         mask_checked = true })
      assert.same(index(rows):tolist(), of({ attention_mask = ints(rows) }):tolist())
      assert.same(index(rows):tolist(), of({ attention_mask = ints(rows) }, { null = true })
         :tolist())
      for _, name in ipairs { 'q_index', 'k_index' } do
         assert.matches('nil with q_index and k_index', raised(of, {
            attention_mask = ints(rows), [name] = index(rows) }).message, 1, true)
      end
      local context = { q_index = function() return index(rows) end }
      assert.is_nil(of({ attention_mask = ints(rows) }, context))
      assert.equal('E_ARG', raised(of, { attention_mask = ints { { 0, 1, 0 } } }, context).code)
   end)

   it('must be numbers [B, T]', function()
      for _, bad in ipairs { tide.ones { 2, 3 }, ints { 1, 2 } } do
         assert.equal('E_UNSUPPORTED', raised(mask.index, 'spec', 'mask', bad).code)
      end
   end)
end)
