-- Attention by wgmma where the chip has no such thing. Not found by its name:
-- spec/cuda/emulated_wgmma_spec.lua runs it on an emulated chip of compute capability 8.0.

local tide = require 'tide'
local refused = require 'spec.support.refused'

describe('attention by wgmma on a chip without', function()
   before_each(function() tide.cuda.set_attention_kernel 'wgmma' end)
   after_each(function() tide.cuda.set_attention_kernel 'mma' end)

   local function attend(dtype, d)
      local x = tide.ones({ 1, 4, 1, d or 64 }, { dtype = dtype, device = 'cuda' })
      return tide.attention(x, x, x):to('f32'):sum():item()
   end

   it('is refused, not replaced', function()
      refused('E_UNSUPPORTED', { 'attention_kernel', '9.0', '8.0', 'mma' }, function()
         return attend 'bf16'
      end)
      local x = tide.ones({ 1, 4, 1, 64 }, { dtype = 'f16', device = 'cuda' }):requires_grad_()
      tide.cuda.set_attention_kernel 'mma'
      local y = tide.attention(x, x, x)
      tide.cuda.set_attention_kernel 'wgmma'
      refused('E_UNSUPPORTED', { 'attention_kernel', '9.0', '8.0', 'mma' }, function()
         (y * y):sum():backward()
      end)
   end)

   it('leaves alone what the table gives to other kernels', function()
      assert.equal(256, attend 'f32')
      assert.equal(272, attend('bf16', 68))
      tide.cuda.set_attention_kernel 'mma'
      assert.equal(256, attend 'bf16')
   end)
end)
