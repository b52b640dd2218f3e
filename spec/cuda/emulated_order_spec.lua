-- A training step on emulated CUDA has the same bits in whatever order a chip takes blocks and
-- threads, and whatever the runtime keeps as its last error. More models: spec/deep/order_spec.lua.

if not require('spec.cuda.emulated').here() then return end

it('two training steps have the same bits in each order of blocks and threads', function()
   require('spec.cuda.orders').check('hybrid f32 20',
      { 'TIDE_EMULATE_ORDER=both', 'TIDE_EMULATE_NOT_READY=1' })
end)
