-- Attention by wgmma where the chip has no such thing. Not found by its name:
-- spec/cuda/emulated_wgmma_spec.lua runs it on an emulated chip of compute capability 8.0.

local tide = require 'tide'
local refused = require 'spec.support.refused'

describe('attention by wgmma on a chip without', function()
   before_each(function() tide.cuda.set_attention_kernel 'wgmma' end)
   after_each(function() tide.cuda.set_attention_kernel 'mma' end)

   local function attend(dtype, opts)
      local x = tide.ones({ 1, 4, 1, 64 }, { dtype = dtype, device = 'cuda' })
      return tide.attention(x, x, x, opts):to('f32'):sum():item()
   end

   it('is refused, not replaced', function()
      refused('E_UNSUPPORTED', { 'attention_kernel', '9.0', '8.0', 'mma' }, function()
         return attend 'bf16'
      end)
   end)

   it('leaves alone what the table gives to other kernels', function()
      assert.equal(256, attend 'f32')
      assert.equal(256, attend('bf16', { window = 2 }))
      tide.cuda.set_attention_kernel 'mma'
      assert.equal(256, attend 'bf16')
   end)
end)
