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

   it('must be numbers [B, T]', function()
      for _, bad in ipairs { tide.ones { 2, 3 }, ints { 1, 2 } } do
         assert.equal('E_UNSUPPORTED', raised(mask.index, 'spec', 'mask', bad).code)
      end
   end)
end)
