-- What the compiler made of attention, read off the machine code with cuobjdump.
--
-- The products of a kernel (HMMA, HGMMA) are its loop over tiles: the cost of a tile lies from the
-- first to the last of them. M.kernels is the table, a row a kernel with its limits.
-- machine_attention_spec.lua holds libtide_cuda.so against it where there is one;
-- spec/deep/machine_attention_spec.lua compiles the files.

local toolkit = require 'spec.cuda.toolkit'

local capture = toolkit.capture

local M = {}

-- file: of kernels/cuda/attention; name: a part of the mangled name; chip: '90' unless said.
-- Limits, each "at most":
--   registers, stack (bytes), doubles (f64 arithmetic, anywhere in the kernel), and in the loop
--   branches, calls, loads (from global memory), conversions (from f64), reloads (of what did not
--   fit into registers), late (exponentials behind the wait for the products that they should
--   overlap)
-- and "at least": early (exponentials before it).
M.kernels = {}

local function add(file, name, limits)
   for _, half in ipairs { 'Lb0E', 'Lb1E' } do -- bf16, f16
      local row = { file = file, name = name:gsub('HALF', half), doubles = 0, calls = 0,
                    chip = '90' }
      for k, v in pairs(limits) do row[k] = v end
      M.kernels[#M.kernels + 1] = row
   end
end

-- A thread has `pairs` scores of a tile. What is loaded or converted by pair is a bias: 4 dtypes of
-- it have a loop of their own, of which one is entered, or none.
local function mma(file, name, pairs, registers, stack, more)
   local limits = { registers = registers, stack = stack or 0, branches = 24, loads = 4 * pairs,
                    conversions = pairs, reloads = 0 }
   for k, v in require 'tide.util.each'(more or {}) do limits[k] = v end
   add(file, name, limits)
end
mma('attention_mma.cu', 'forward_kernelILi64EHALF', 32, 128)
mma('attention_mma.cu', 'forward_kernelILi128EHALF', 32, 248)
mma('attention_mma.cu', 'forward_kernelILi256EHALF', 16, 248)
-- makes: 1 dq, 2 dk, 4 dv, 6 dk and dv
mma('attention_mma_bwd.cu', 'backward_kernelILi64EHALFLi1E', 32, 168, 8)
mma('attention_mma_bwd.cu', 'backward_kernelILi128EHALFLi1E', 16, 168)
mma('attention_mma_bwd.cu', 'backward_kernelILi256EHALFLi1E', 8, 248)
mma('attention_mma_bwd.cu', 'backward_kernelILi64EHALFLi6E', 32, 255, 16)
mma('attention_mma_bwd.cu', 'backward_kernelILi128EHALFLi6E', 16, 255, 16)
mma('attention_mma_bwd.cu', 'backward_kernelILi256EHALFLi2E', 8, 248)
mma('attention_mma_bwd.cu', 'backward_kernelILi256EHALFLi4E', 8, 248)

-- Chips with less shared memory a multiprocessor hold fewer blocks, which get more registers.
for chip, limits in require 'tide.util.each' {
   ['80'] = { d64 = 168, stack = 16 }, ['120'] = { d64 = 248, stack = 32, branches = 26 },
} do
   local more = { chip = chip, branches = limits.branches }
   for d, registers in require 'tide.util.each' { [64] = limits.d64, [128] = 255, [256] = 255 } do
      mma('attention_mma.cu', ('forward_kernelILi%dEHALF'):format(d), d == 256 and 16 or 32,
         registers, 0, more)
      local pairs_of = 2048 / d
      mma('attention_mma_bwd.cu', ('backward_kernelILi%dEHALFLi1E'):format(d), pairs_of, 255, 0,
         more)
      if d < 256 then
         mma('attention_mma_bwd.cu', ('backward_kernelILi%dEHALFLi6E'):format(d), pairs_of, 255,
            limits.stack, more)
      end
   end
   for _, makes in ipairs { 2, 4 } do
      mma('attention_mma_bwd.cu', ('backward_kernelILi256EHALFLi%dE'):format(makes), 8, 255, 0,
         more)
   end
end

-- 168 registers at the launch are 40 and 232 later. The forward's exponentials all stand before
-- the wait: one for each pair, one for its softcap, and two for the rows. Those of the backward do
-- for scores without a softcap; the others need what is waited for.
local function wgmma(file, name, limits)
   limits.registers, limits.branches, limits.loads, limits.conversions = 168, 24, 0, 0
   add(file, name, limits)
end
for d, exponentials in pairs { [64] = 130, [128] = 130, [256] = 66 } do
   wgmma('attention_wgmma.cu', ('forward_kernelILi%dEHALF'):format(d),
      { stack = 0, reloads = 0, early = exponentials, late = 0 })
end
for d, stack in pairs { [64] = 8, [128] = 24 } do
   wgmma('attention_wgmma_bwd.cu', ('backward_kernelILi%dEHALFLb0E'):format(d),
      { stack = 8, reloads = 0, early = 32 })
   wgmma('attention_wgmma_bwd.cu', ('backward_kernelILi%dEHALFLb1E'):format(d),
      { stack = stack, reloads = 2, early = 32 })
end

-- Of plain products in f32, and what the backward prepares.
for name, registers in pairs { forward_kernelIfE = 168, dq_kernelIfE = 216, dkv_kernelIfE = 168 } do
   M.kernels[#M.kernels + 1] = { file = 'attention.cu', name = name, registers = registers,
                                 stack = 0, doubles = 0, chip = '90' }
end
add('attention_marks.cu', 'piece_kernelIHALFE', { registers = 32, stack = 0 })

local arithmetic = { DADD = true, DMUL = true, DFMA = true, DSETP = true, DMNMX = true }

-- What the limits speak of, of a listing: instructions in their order, without guards.
function M.measure(lines)
   local k = { doubles = 0, branches = 0, calls = 0, loads = 0, conversions = 0, reloads = 0,
               early = 0, late = 0 }
   local first, last
   for i, text in ipairs(lines) do
      if text:match '^H?G?MMA%.' or text:match '^HGMMA' then first, last = first or i, i end
      if arithmetic[text:match '^%w+'] then k.doubles = k.doubles + 1 end
   end
   local wait = 'none' -- for which of two groups of products has been waited
   for i = first or 1, last or 0 do
      local text = lines[i]
      local op = text:match '^%w+'
      if op == 'BRA' then k.branches = k.branches + 1 end
      if op == 'CALL' then k.calls = k.calls + 1 end
      if op == 'LDG' or op == 'LD' then k.loads = k.loads + 1 end
      if op == 'F2F' and text:match 'F64' then k.conversions = k.conversions + 1 end
      if op == 'LDL' or op == 'STL' then k.reloads = k.reloads + 1 end
      if text:match 'WARPGROUP%.DEPBAR.*0x1' then
         wait = 'scores'
      elseif text:match 'WARPGROUP%.DEPBAR.*0x0' then
         wait = wait == 'scores' and 'both' or 'none'
      elseif op == 'HGMMA' then
         wait = 'none'
      elseif text:match '^MUFU%.EX2' and wait ~= 'none' then
         local when = wait == 'scores' and 'early' or 'late'
         k[when] = k[when] + 1
      end
   end
   return k
end

-- The kernels for a chip ('90': with those of 90a) in an object file or library: mangled name ->
-- what M.measure says, with registers and stack.
function M.read(cuobjdump, path, chip)
   local kernels, here = {}, true
   -- fn(name, line) for what follows the name of a kernel.
   local function each(option, fn)
      local name
      for line in capture(('%s %s %s'):format(cuobjdump, option, path)):gmatch '[^\n]+' do
         local found = line:match 'arch = sm_(%w+)' or line:match 'code for sm_(%w+)'
         if found then here = found == chip or found == chip .. 'a' end
         local kernel = line:match '^%s*Function : (%S+)' or line:match '^ Function ([^%s:]+):'
         if kernel then
            name = here and kernel or nil
         elseif name then
            fn(name, line)
         end
      end
   end
   each('-sass', function(name, line)
      local text = line:match '^%s*/%*%x%x%x%x+%*/%s+([^;]+);'
      if not text then return end
      local k = kernels[name] or { lines = {} }
      kernels[name], k.lines[#k.lines + 1] = k, (text:gsub('^@!?U?P%w+%s+', ''))
   end)
   for name, k in pairs(kernels) do kernels[name] = M.measure(k.lines) end
   each('-res-usage', function(name, line)
      local registers, stack = line:match 'REG:(%d+) STACK:(%d+)'
      if not registers or not kernels[name] then return end
      kernels[name].registers, kernels[name].stack = tonumber(registers), tonumber(stack)
   end)
   return kernels
end

-- How the kernel of a row breaks its limits, as a list of sentences. kernels: of M.read.
function M.faults(row, kernels)
   local faults, of, k = {}, row.file:gsub('%.', '_'), nil
   for name, found in pairs(kernels) do
      if name:find(of .. '_', 1, true) and name:find(row.name, 1, true) then k = found end
   end
   if not k then return { ('%s has no kernel %s'):format(row.file, row.name) } end
   for what, limit in pairs(row) do
      local is = type(limit) == 'number' and k[what]
      if is and (what == 'early' and is < limit or what ~= 'early' and is > limit) then
         faults[#faults + 1] = ('%s %s: %d %s, at %s %d'):format(row.file, row.name, is, what,
            what == 'early' and 'least' or 'most', limit)
      end
   end
   table.sort(faults)
   return faults
end

-- Compiles a file of kernels/cuda/attention as the library does, for a chip; raises with what the
-- compiler says.
function M.compile(nvcc, file, to, chip)
   local hopper = file:find 'wgmma' and '-arch=sm_90a -DTIDE_SM90A=1' or '-arch=sm_' .. chip
   local said = capture(('%s -O3 -DNDEBUG -std=c++17 %s -I. -Icore/include -cubin -o %s '
      .. 'kernels/cuda/attention/%s && echo compiled'):format(nvcc, hopper, to, file))
   if not said:find 'compiled' then error(said, 0) end
end

return M
