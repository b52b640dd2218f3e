-- Rows, wrappers and cases of ops: three lists that must be one.

local ffi = require 'ffi'
local C = require('tide.ffi.lib').C
local files = require 'spec.support.files'
local rows = require 'spec.support.op_case'

local cases = {}
for _, row in ipairs(rows) do cases[row.op] = true end

-- A wrapper is where the binding calls C.tide_<op>, whatever its name in Lua, or a row of that name
-- (tide/ffi/row.lua).
local function text_of(pattern)
   local pipe = assert(io.popen('cat ' .. pattern))
   local text = pipe:read '*a'
   pipe:close()
   return text
end

-- Ops that only another op runs.
local inside = { attention_sinks_ = true }

-- Names of ops that people call (not those that only a derivative or another op uses).
local function public_ops()
   local names = {}
   for i = 0, C.tide_op_count() - 1 do
      local name = ffi.string(C.tide_op_name(i))
      if bit.band(C.tide_op_flags(i), C.TIDE_OPF_BACKWARD) == 0 and not inside[name] then
         names[#names + 1] = name
      end
   end
   return names
end

-- Where each op is defined: { [op] = { path, ... } }, of functions written out (not by a macro).
local function files_of_ops()
   local where = {}
   local function note(op, path)
      where[op] = where[op] or {}
      table.insert(where[op], path)
   end
   for _, path in ipairs(files.lines_of 'ls core/op/*.c') do
      for op in files.read(path):gmatch '\nint tide_([%w_]+)%b()%s*{' do note(op, path) end
   end
   for _, backend in ipairs { 'ref', 'cpu', 'cuda' } do
      local pattern = '\nint k_' .. backend .. '_([%w_]+)%b()%s*{'
      for _, path in ipairs(files.lines_of('find kernels/' .. backend .. ' -name "*.c*"')) do
         for op in files.read(path):gmatch(pattern) do note(op, path) end
      end
   end
   return where
end

-- Ops whose public function lies with its kin: what it checks and its derivative are theirs.
local with_kin = {
   arange = 'create movement', linear_cross_entropy = 'loss linear',
   foreach_copy_ = 'foreach elementwise', foreach_add_ = 'foreach elementwise',
}

describe('the table of ops', function()
   -- attention_fwd.c and attention_mma.cu are of the family attention.
   it('has one family of files for an op, on every side', function()
      local wrong, n = {}, 0
      for op, paths in pairs(files_of_ops()) do
         local family = paths[1]:match '([%a%d]+)[%w_]*%.%w+$'
         n = n + (#paths > 2 and 1 or 0)
         for _, path in ipairs(paths) do
            local own = path:match '([%a%d]+)[%w_]*%.%w+$'
            local kin = (' ' .. (with_kin[op] or family) .. ' '):find(' ' .. own .. ' ', 1, true)
            if not kin then wrong[#wrong + 1] = op .. ': ' .. table.concat(paths, ', ') end
         end
      end
      assert.same({}, wrong)
      assert.is_true(n > 30)
   end)

   it('has names, each once', function()
      local seen = {}
      assert.is_true(C.tide_op_count() > 60)
      for i = 0, C.tide_op_count() - 1 do
         local name = ffi.string(C.tide_op_name(i))
         assert.is_nil(seen[name], name)
         seen[name] = true
      end
      assert.is_true(C.tide_op_name(C.tide_op_count()) == nil)
      assert.is_true(C.tide_op_name(-1) == nil)
   end)

   it('has a wrapper for every op', function()
      local missing, text = {}, text_of 'bindings/tide/ffi/*.lua'
      for _, name in ipairs(public_ops()) do
         local called = text:find('C%.tide_' .. name .. '%f[^%w_]')
            or text:find("\n%a+ '" .. name .. '[:%(]')
         if not called then missing[#missing + 1] = name end
      end
      assert.same({}, missing)
   end)

   -- What a row cannot say (in place, many tensors at once) has a spec that names the op in quotes
   -- or as a call.
   it('has a case or a spec of its own for every op', function()
      local missing, text = {}, text_of 'spec/op/*_spec.lua'
      for _, name in ipairs(public_ops()) do
         local own = text:find('%f[%w_]' .. name .. '%f[^%w_]%s*[%(\'"]')
         if not cases[name] and not own then missing[#missing + 1] = name end
      end
      assert.same({}, missing)
   end)

   it('has no case without an op', function()
      local ops, extra = {}, {}
      for i = 0, C.tide_op_count() - 1 do ops[ffi.string(C.tide_op_name(i))] = true end
      for name in pairs(cases) do
         if not ops[name] then extra[#extra + 1] = name end
      end
      assert.same({}, extra)
   end)

   it('has a reference kernel for f32 or an integer of every op that computes', function()
      local missing = {}
      for i = 0, C.tide_op_count() - 1 do
         local any = false
         for dtype = 0, C.TIDE_NDTYPE - 1 do
            any = any or C.tide_op_supported(i, C.TIDE_DEV_REF, dtype) == 1
         end
         if not any and bit.band(C.tide_op_flags(i), C.TIDE_OPF_VIEW) == 0 then
            missing[#missing + 1] = ffi.string(C.tide_op_name(i))
         end
      end
      assert.same({}, missing)
   end)
end)
