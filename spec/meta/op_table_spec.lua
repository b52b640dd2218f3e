-- Rows, wrappers and cases of ops: three lists that must be one.

local ffi = require 'ffi'
local C = require('tide.ffi.lib').C
local rows = require 'spec.support.op_case'

local cases = {}
for _, row in ipairs(rows) do cases[row.op] = true end

-- A wrapper is where the binding calls C.tide_<op>, whatever its name in Lua.
local function text_of(files)
   local pipe = assert(io.popen('cat ' .. files))
   local text = pipe:read '*a'
   pipe:close()
   return text
end

-- Names of ops that people call (not those that only a derivative uses).
local function public_ops()
   local names = {}
   for i = 0, C.tide_op_count() - 1 do
      if bit.band(C.tide_op_flags(i), C.TIDE_OPF_BACKWARD) == 0 then
         names[#names + 1] = ffi.string(C.tide_op_name(i))
      end
   end
   return names
end

describe('the table of ops', function()
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
         if not text:find('C%.tide_' .. name .. '%f[^%w_]') then missing[#missing + 1] = name end
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
