-- What the compiler made of the CUDA kernels, read off the machine code with cuobjdump: registers,
-- spills, the width of loads and stores, and how many bytes a thread asks for before it needs the
-- first of them.
--
-- A kernel that memory limits keeps an H100 busy if an SM has some 32 KiB in flight (3.35 TB/s for
-- 700 ns over 132 SMs is 18 KiB; the rest is slack). That is the product of a thread's bytes and of
-- the threads that find registers.
--
-- M.kernels is the table, a row a kernel: add rows there. machine_spec.lua holds libtide_cuda.so
-- against it where there is one; spec/deep/machine_spec.lua compiles the files.

local toolkit = require 'spec.cuda.toolkit'

local capture = toolkit.capture

local M = {}

-- file: of kernels/cuda. name: a part of the mangled name, or two with * between. registers: at
-- most. flight: bytes a thread has in flight, at least. loads, stores: of 16 bytes, at least.
-- doubles: true where the arithmetic is f64 by intent; elsewhere no f64 instruction follows the
-- first load of 16 bytes. spills: bytes of stack, 0 unless said.
M.kernels = {}

-- Adds rows of a file: common fields, then a list of { name, registers, flight, field = ... }.
function M.rows(file, common, list)
   for _, own in ipairs(list) do
      local row = { file = file, name = own[1], registers = own[2], flight = own[3], loads = 1,
                    stores = 1, spills = 0 }
      for _, fields in ipairs { common, own } do
         for k, v in pairs(fields) do if type(k) == 'string' then row[k] = v end end
      end
      M.kernels[#M.kernels + 1] = row
   end
end

local bf16, f16 = '13__nv_bfloat16', '6__half'
local types = { f32 = 'f', bf16 = bf16, f16 = f16 }

-- One row a dtype of a template whose first argument is the type in memory.
local function by_type(file, head, tail, list)
   for dtype, row in pairs(list) do
      row[3], row[2], row[1] = row[2], row[1], head .. 'I' .. types[dtype] .. tail
      M.rows(file, {}, { row })
   end
end

-- { registers, bytes in flight }. rms_norm, layer_norm and rms_norm of a sum hold 1, 2 or 4 packs.
for each, r in ipairs { { 32, 32 }, { 40, 64 }, false, { 64, 128 } } do
   for dtype in pairs(r and types or {}) do
      local tail = ('Li%dELi%dELb0ELb0EE'):format(dtype == 'f32' and 4 or 8, each)
      by_type('norm.cu', 'norm_kernel', tail, { [dtype] = { r[1], r[2], stores = each } })
   end
end
by_type('norm.cu', 'norm_kernel', 'Li8ELi1ELb0ELb1EE', { bf16 = { 32, 32, stores = 2 },
                                                         f16 = { 32, 32, stores = 2 } })
by_type('norm.cu', 'norm_kernel', 'Li8ELi1ELb1ELb0EE', { bf16 = { 40, 32 }, f16 = { 40, 32 } })
-- The backward of rms_norm has 1024 threads an SM where a thread sums 8 columns, else 512.
by_type('norm.cu', 'norm_bwd_kernel', 'Li8ELi1ELb0EE', { bf16 = { 64, 48, stores = 3 },
                                                         f16 = { 64, 48, stores = 3 } })
by_type('norm.cu', 'norm_bwd_kernel', 'Li8ELi2ELb0EE', { bf16 = { 128, 96, stores = 6 },
                                                         f16 = { 128, 96, stores = 6 } })
by_type('norm.cu', 'norm_bwd_kernel', 'Li4ELi2ELb0EE', { f32 = { 64, 96, stores = 4 } })
by_type('norm.cu', 'norm_bwd_kernel', 'Li8ELi1ELb1EE', { bf16 = { 96, 48, stores = 5 },
                                                         f16 = { 96, 48, stores = 5 } })
by_type('gated_norm.cu', 'forward_kernel', 'Li8ELi1EE', { bf16 = { 40, 48 }, f16 = { 40, 48 } })
by_type('gated_norm.cu', 'backward_kernel', 'Li8ELi1EE', { bf16 = { 96, 48, stores = 4 },
                                                           f16 = { 96, 48, stores = 4 } })
by_type('gated_norm.cu', 'backward_kernel', 'Li4ELi1EE', { f32 = { 64, 64, stores = 3 } })
-- A tile: 64 elements a thread, of which 16 make one store in each direction.
by_type('fp8_codes.cu', 'codes_kernel', 'Lb1EE', { f32 = { 128, 256, loads = 16, stores = 8 },
                                                  bf16 = { 128, 128, loads = 8, stores = 8 },
                                                  f16 = { 128, 128, loads = 8, stores = 8 } })
-- Li1: operands have one layout; Li3, Li4: they are columns of one matrix.
for form, registers in pairs { plain_form = 48, clamped_form = 54 } do
   local rest = ('ENS*%d%s'):format(#form, form)
   for dtype in pairs(types) do
      for _, tail in ipairs { 'Li1', 'Li3' } do
         by_type('swiglu.cu', 'swiglu_job', tail .. rest, { [dtype] = { 40, 64, stores = 2 } })
      end
      for _, tail in ipairs { 'Li1', 'Li4' } do
         by_type('swiglu.cu', 'swiglu_bwd_job', tail .. rest,
            { [dtype] = { registers, 96, stores = 4 } })
      end
   end
end
-- A copy that is not contiguous, by the size of an element; casts have 16 bytes on the wide side.
M.rows('elementwise_move.cu', { loads = 4, stores = 4 }, {
   { 'copy_jobIt', 40, 64 }, { 'copy_jobIj', 40, 64 }, { 'copy_jobIm', 40, 64 },
   { 'cast_jobI' .. bf16 .. 'fE', 40, 64, stores = 0 },
   { 'cast_jobIf' .. bf16 .. 'E', 40, 32, loads = 0 },
   { 'cast_jobI' .. bf16 .. f16, 40, 64 },
   { 'axpy_jobIffLb0E', 32, 64, stores = 2 }, { 'axpy_jobIffLb1E', 32, 64, stores = 2 },
   { 'axpy_jobI' .. bf16 .. 'S2_Lb0E', 32, 64, stores = 2 },
   { 'axpy_jobIf' .. bf16 .. 'Lb0E', 32, 48, loads = 2, stores = 2 },
   { 'fill_jobIt', 40, 0, loads = 0 }, { 'fill_jobIj', 40, 0, loads = 0 },
})
-- adamw and sgd of { p, g, with master }. Their numbers are f64 until the first load.
M.rows('update.cu', { loads = 4, stores = 2 }, {
   { 'adamw_ruleENS_10adamw_argsEffLb0E', 64, 128 },
   { 'adamw_ruleENS_10adamw_argsE' .. bf16 .. 'S3_Lb1E', 64, 112 },
   { 'adamw_ruleENS_10adamw_argsE' .. bf16 .. 'S3_Lb0E', 64, 96 },
   { 'adamw_ruleENS_10adamw_argsE' .. f16 .. 'S3_Lb1E', 64, 112 },
   { 'sgd_ruleENS_8sgd_argsEffLb0E', 64, 96 },
   { 'sgd_ruleENS_8sgd_argsE' .. bf16 .. 'S3_Lb1E', 64, 80 },
})
by_type('update.cu', 'scale_kernel', 'EE', { f32 = { 32, 64 }, bf16 = { 40, 64 } })
-- Squares of f32 may lie beyond f32, so norms are sums of f64.
by_type('update.cu', 'norm_kernel', 'Li0EE', { f32 = { 32, 64, stores = 0, doubles = true },
                                               bf16 = { 32, 64, stores = 0, doubles = true } })
-- The loss of smoothed labels sums in f64, in a loop of its own.
by_type('loss.cu', 'loss_kernel', 'EE', { f32 = { 64, 64, stores = 0, doubles = true },
                                          bf16 = { 64, 64, stores = 0, doubles = true } })
by_type('loss.cu', 'loss_bwd_kernel', 'EE', { f32 = { 64, 64, doubles = true },
                                              bf16 = { 64, 64, doubles = true } })
by_type('softmax.cu', 'softmax_kernel', 'Lb0EE', { f32 = { 64, 64 }, bf16 = { 64, 64 } })
by_type('softmax.cu', 'softmax_bwd_kernel', 'Lb0EE', { f32 = { 64, 32 }, bf16 = { 64, 32 } })
by_type('index_add.cu', 'pack_columns', 'EE', { f32 = { 64, 64, stores = 8 },
                                                bf16 = { 64, 64, stores = 8 } })
M.rows('index.cu', { loads = 4, stores = 4 }, { { 'rows_kernel', 64, 64 } })
for _, e in ipairs { 'f', bf16, f16 } do
   M.rows('elementwise.cu', { loads = 4 }, {
      { 'tide_job1I' .. e .. '*6silu_f', 64, 64, stores = 4 },
      { 'tide_job2I' .. e .. '*5add_f', 48, 64, stores = 2 },
      { 'tide_job2I' .. e .. '*10silu_bwd_f', 64, 64, stores = 2 },
   })
end

local width = { ['128'] = 16, ['64'] = 8, ['U16'] = 2, ['S16'] = 2, ['U8'] = 1, ['S8'] = 1 }

-- A load's bytes and its first register, or nil.
local function load_of(text)
   local kind, register = text:match 'LDG%.?([%w%.]*)%s+R(%d+)'
   if not kind then return end
   local bytes = 4
   for part in kind:gmatch '[^%.]+' do bytes = width[part] or bytes end
   return bytes, tonumber(register)
end

local doubles = { DADD = true, DMUL = true, DFMA = true, DSETP = true }
local function is_double(text)
   local op = text:gsub('^@!?U?P%w+%s+', ''):match '^%S+' or ''
   return doubles[op:match '^%w+'] or op:match 'F64' ~= nil or op:match 'MUFU%.R%w+64H' ~= nil
end

-- Follows a listing in its order. Loads are pending until an instruction names their registers;
-- those before it have then arrived too.
local function read_listing(lines)
   local k = { loads = 0, stores = 0, flight = 0, doubles = 0 }
   local pending, bytes, wide = {}, 0, false
   for _, text in ipairs(lines) do
      local size, first = load_of(text)
      local sources = size and text:match ',(.*)' or text
      for register in sources:gmatch '%f[%w]R(%d+)' do
         local r = tonumber(register)
         for i = #pending, 1, -1 do
            local p = pending[i]
            if r >= p.first and r < p.first + math.max(p.bytes / 4, 1) then
               for _ = 1, i do bytes = bytes - table.remove(pending, 1).bytes end
               break
            end
         end
      end
      if size then
         pending[#pending + 1] = { first = first, bytes = size }
         bytes = bytes + size
         k.flight = math.max(k.flight, bytes)
         if size == 16 then k.loads, wide = k.loads + 1, true end
      elseif text:match 'STG%.[%w%.]*128' then
         k.stores = k.stores + 1
      elseif text:match '%f[%w]BAR%.' then
         pending, bytes = {}, 0
      end
      if wide and is_double(text) then k.doubles = k.doubles + 1 end
   end
   return k
end

-- The kernels in an object file or library: mangled name -> what M.kernels speaks of.
function M.read(cuobjdump, path)
   local kernels, name, lines = {}, nil, nil
   local function finish() if name then kernels[name] = read_listing(lines) end end
   for line in capture(cuobjdump .. ' -sass ' .. path .. ' 2>/dev/null'):gmatch '[^\n]+' do
      local found = line:match '^%s*Function : (%S+)'
      if found then
         finish()
         name, lines = found, {}
      elseif name then
         local text = line:match '^%s*/%*%x+%*/%s+([^;]+);'
         if text then lines[#lines + 1] = text end
      end
   end
   finish()
   for found, text in capture(cuobjdump .. ' -res-usage ' .. path .. ' 2>/dev/null')
      :gmatch ' Function ([^%s:]+):%s*\n([^\n]*)' do
      local k = kernels[found]
      if k then
         k.registers = tonumber(text:match 'REG:(%d+)')
         k.spills = tonumber(text:match 'STACK:(%d+)') + tonumber(text:match 'LOCAL:(%d+)')
      end
   end
   return kernels
end

-- Threads that an SM of 65536 registers and 2048 threads holds, in warps.
function M.threads(registers)
   local each = math.ceil(registers / 8) * 8
   return math.min(2048, math.floor(65536 / each / 128) * 128)
end

-- What a kernel breaks of its row, as a list of sentences.
function M.faults(row, k)
   local faults = {}
   local function fault(...) faults[#faults + 1] = row.name .. ': ' .. string.format(...) end
   if not k then
      fault 'no such kernel'
      return faults
   end
   for _, what in ipairs { 'registers', 'spills' } do
      if k[what] > row[what] then fault('%d %s, at most %d', k[what], what, row[what]) end
   end
   for _, what in ipairs { 'loads', 'stores', 'flight' } do
      if k[what] < row[what] then fault('%d %s, at least %d', k[what], what, row[what]) end
   end
   if k.doubles > 0 and not row.doubles then fault('%d instructions of f64', k.doubles) end
   return faults
end

-- The kernel of a row among those that M.read found, the first by name. Or nil.
function M.find(row, kernels)
   local names = {}
   for name in pairs(kernels) do names[#names + 1] = name end
   table.sort(names)
   for _, name in ipairs(names) do
      local at = 1
      for part in row.name:gmatch '[^*]+' do
         at = at and select(2, name:find(part, at, true))
      end
      if at then return kernels[name] end
   end
end

return M
