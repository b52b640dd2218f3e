-- The machine code of attention keeps the limits of spec/cuda/machine_attention.lua, where there is
-- a libtide_cuda.so and a cuobjdump.

local machine = require 'spec.cuda.machine_attention'
local toolkit = require 'spec.cuda.toolkit'

describe('the machine code of attention', function()
   local loop = { 'F2F.F64.F32 R2, R3', 'HMMA.16816.F32.BF16 R4, R4, R8, R4', 'FMUL R1, R2, R3',
                  'LDG.E R1, desc[UR4][R2.64]', 'F2F.F32.F64 R2, R2', 'BRA 0x100', 'LDL R1, [R1]',
                  'DADD R2, R2, R4', 'CALL.REL.NOINC 0x200', 'HMMA.16816.F32.BF16 R4, R4, R8, R4',
                  'LDG.E R1, desc[UR4][R2.64]', 'BRA 0x100' }

   it('is counted from the first product to the last', function()
      assert.same({ doubles = 1, branches = 1, calls = 1, loads = 1, conversions = 1, reloads = 1,
                    early = 0, late = 0 }, machine.measure(loop))
   end)

   it('has exponentials before and behind the wait that they overlap', function()
      local wait, exp = 'WARPGROUP.DEPBAR.LE gsb0, ', 'MUFU.EX2 R2, R3'
      local product = 'HGMMA.64x64x16.F32.BF16 R8, R4, gdesc[UR4], R8'
      local k = machine.measure { product, wait .. '0x0', exp, product, wait .. '0x1', exp, exp,
                                  wait .. '0x0', exp, product, exp, product, exp }
      assert.equal(2, k.early)
      assert.equal(1, k.late)
   end)

   it('breaks a limit in a sentence', function()
      local row = { file = 'a.cu', name = 'kernelILi64E', registers = 128, calls = 0, early = 66 }
      local k = { registers = 130, calls = 0, early = 16 }
      assert.same({ 'a.cu kernelILi64E: 130 registers, at most 128',
                    'a.cu kernelILi64E: 16 early, at least 66' },
         machine.faults(row, { _ZN1_4a_cu_1kernelILi64EEv = k }))
      assert.same({ 'a.cu has no kernel kernelILi64E' }, machine.faults(row, {}))
   end)

   local path = (os.getenv 'TIDE_BUILD' or 'build') .. '/libtide_cuda.so'
   local library, cuobjdump = io.open(path), toolkit.tool 'cuobjdump'
   if library then library:close() end
   if not library or not cuobjdump then
      pending('keeps its limits: there is no ' .. (library and 'cuobjdump' or path))
      return
   end
   local kernels = machine.read(cuobjdump, path, '90')
   if not next(kernels) then
      pending('keeps its limits: there is no code for an H100 in ' .. path)
      return
   end
   for _, row in ipairs(machine.kernels) do
      if row.chip == '90' then
         it(('keeps its limits: %s, %s'):format(row.file, row.name), function()
            assert.same({}, machine.faults(row, kernels))
         end)
      end
   end
end)
