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
      other_device = thread .. 'memory of device 1, and the kernel runs on device 0',
   } do
      it('ends a program: ' .. name, function()
         local text = run(name)
         assert.is_truthy(text:find('emulated CUDA: .*' .. said), text)
         assert.is_nil(text:find 'it ended', text)
      end)
   end

   for name, kernel in require 'tide.util.each' {
      races = 'race_kernel', blocks = 'last_block_kernel',
   } do
      it('runs each launch in two orders, where it is told to: ' .. name, function()
         assert.equal('it ended\n', run(name))
         local text = run(name, 'TIDE_EMULATE_ORDER=both')
         assert.is_truthy(text:find('kernel ' .. kernel .. ': the word at 0x%x+ is %x+, and %x+ '
            .. 'with blocks and threads in the other order'), text)
      end)
   end

   it('answers as the runtime does', function()
      assert.equal('answers\nit ended\n', run 'answers')
   end)

   it('has as much memory as it is told', function()
      assert.equal('memory\nit ended\n', run('memory', 'TIDE_EMULATE_MEMORY=4096'))
   end)
end)
