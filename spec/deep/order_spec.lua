-- Training steps of models and dtypes on emulated CUDA have the same bits in whatever order a chip
-- takes blocks and threads, and whatever the runtime keeps as its last error.

if not require('spec.cuda.emulated').here() then return end

describe('two training steps have the same bits', function()
   for _, words in ipairs { 'llama f32 70', 'llama bf16 70', 'hybrid f32 70', 'hybrid bf16 70' } do
      it('in each order of blocks and threads: ' .. words, function()
         require('spec.cuda.orders').check(words, { 'TIDE_EMULATE_ORDER=reverse',
            'TIDE_EMULATE_ORDER=both', 'TIDE_EMULATE_NOT_READY=1' })
      end)
   end
end)
