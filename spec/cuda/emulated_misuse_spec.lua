-- What the emulated CUDA runtime says of programs that a chip would refuse, or get wrong silently
-- (emulate/misuse.cpp).

local emulated = require 'spec.cuda.emulated'

local program = emulated.misuse()

if not program then return end

local function run(name, env)
   return emulated.capture(('TIDE_EMULATE_DEVICES=2 %s %s %s'):format(env or '', program, name))
end

describe('the emulated runtime', function()
   local thread = 'kernel set_kernel, block %(0 0 0%), thread %(0 0 0%) writes 4 bytes at 0x%x+: '
   for name, said in require 'tide.util.each' {
      host_reads = 'the host touches device memory at 0x%x+: byte 12 of an allocation of 256 bytes '
         .. 'on device 0; the last kernel that it launched is set_kernel',
      kernel_reaches_host = thread .. 'memory of the host',
      behind_the_end = 'set_kernel, block %(0 0 0%), thread %(63 0 0%) writes 4 bytes at 0x%x+: '
         .. 'up to 4 bytes behind the end of an allocation of 252',
      freed = thread .. 'device memory that was freed',
      unaligned = 'kernel four_kernel.* writes 16 bytes at 0x%x+: it is not aligned to its size',
      map_of_freed = 'kernel box_kernel, .* reads 128 bytes at 0x%x+: device memory that was freed',
      map_behind_the_end = 'kernel box_kernel, .* reads 128 bytes at 0x%x+: up to 128 bytes behind '
         .. 'the end of an allocation of 2880',
      other_device = thread .. 'memory of device 1, and the kernel runs on device 0',
   } do
      it('ends a program: ' .. name, function()
         local text = run(name)
         assert.is_truthy(text:find('emulated CUDA: .*' .. said), text)
         assert.is_nil(text:find 'it ended', text)
      end)
   end

   for name, kernel in require 'tide.util.each' {
      races = 'race_kernel', blocks = 'last_block_kernel', blocks_in_place = 'double_kernel',
   } do
      it('runs each launch in two orders, where it is told to: ' .. name, function()
         assert.equal('it ended\n', run(name))
         local text = run(name, 'TIDE_EMULATE_ORDER=both')
         assert.is_truthy(text:find('kernel ' .. kernel .. ': the word at 0x%x+ is %x+, and %x+ '
            .. 'with blocks and threads in the other order'), text)
      end)
   end

   it('gives a kernel that adds in place the same memory in both orders', function()
      assert.equal('4\nit ended\n', run('in_place', 'TIDE_EMULATE_ORDER=both'))
   end)

   it('takes the tensor maps that the driver takes, and fills boxes with zeros outside', function()
      assert.equal('maps\nit ended\n', run 'tensor_maps')
   end)

   it('ends a program that gives NCCL memory of the host', function()
      local text = run 'nccl_reaches_host'
      assert.is_truthy(text:find('device memory\n.*emulated NCCL: rank 0 is given 256 bytes at '
         .. '0x%x+, which device 0 does not reach: memory of the host'), text)
      assert.is_nil(text:find 'it ended', text)
   end)

   it('answers as the runtime does', function()
      assert.equal('answers\nit ended\n', run 'answers')
   end)

   it('has as much memory as it is told', function()
      assert.equal('memory\nit ended\n', run('memory', 'TIDE_EMULATE_MEMORY=4096'))
   end)
end)
