-- Errors: one form for failures from C and for arguments refused in Lua.

local tide = require 'tide'
local status = require 'tide.ffi.status'

local function failure(fn, ...)
   local ok, err = pcall(fn, ...)
   assert.is_false(ok)
   assert.is_true(tide.is_error(err), tostring(err))
   return err
end

describe('status', function()
   it('turns a failure in C into a table with code, op and the shapes', function()
      local a, b = tide.ones { 2, 3 }, tide.ones { 2, 3 }
      local err = failure(function() return a:matmul(b) end)
      assert.equal('E_SHAPE', err.code)
      assert.equal('matmul', err.op)
      assert.equal(status.code.E_SHAPE, err.status)
      assert.is_true(err.message:find('[2, 3]', 1, true) ~= nil)
      assert.is_true(type(err.name) == 'string' and #err.name > 0)
   end)

   it('names the line outside tide', function()
      local a = tide.ones { 2 }
      local line = debug.getinfo(1, 'l').currentline + 1
      local err = failure(function() local _ = a:sum(9) end)
      assert.is_true(err.where:find('status_spec.lua:' .. line, 1, true) ~= nil, err.where)
      assert.equal(err.where .. ': tide.sum: ' .. err.message .. ' (E_ARG)', tostring(err))
   end)

   it('names function and argument for mistakes found in Lua', function()
      local a = tide.ones { 2, 3, 4 }
      local err = failure(a.sum, a, 5)
      assert.equal("argument 'dim': expected an integer in [-3, 3] without 0, got 5", err.message)
      err = failure(a.add, a, 'x')
      assert.equal("argument 'y': expected a tensor or a number, got \"x\"", err.message)
      err = failure(function() return a.no_such_method end)
      assert.equal('tensor', err.op)
   end)

   it('joins with text and survives a rethrow', function()
      local err = failure(function() return tide.ones { -1 } end)
      assert.is_true(('x: ' .. err):find 'E_ARG' ~= nil)
      local again = failure(function() error(err, 0) end)
      assert.equal(err, again)
   end)

   it('knows the names of all codes both ways', function()
      for _, name in ipairs { 'E_ARG', 'E_SHAPE', 'E_DTYPE', 'E_DEVICE', 'E_NOMEM',
         'E_UNSUPPORTED', 'E_GONE', 'E_STATE', 'E_IO', 'E_FORMAT', 'E_COMM', 'E_TIMEOUT', 'E_PEER',
         'E_HOST', 'E_INTERNAL', 'E_INTERRUPT' } do
         assert.is_true(status.code[name] < 0)
         assert.equal(name, status.code[status.code[name]])
      end
   end)

   it('returns nil and an error from open', function()
      local ctx, err = tide.open { params = 'no_such_parameter=1' }
      assert.is_nil(ctx)
      assert.is_true(tide.is_error(err))
      err = failure(tide.open, { devise = 'cpu' })
      assert.equal('E_ARG', err.code)
   end)

   it('raises E_INTERRUPT when asked to stop, and goes on afterwards', function()
      local ctx = assert(tide.open { nthread = 1 })
      local x = ctx:ones { 2 }
      ctx:interrupt()
      assert.is_true(ctx:interrupted())
      assert.is_false(ctx:interrupted())
      ctx:interrupt()
      ctx:interrupt()
      local err = failure(function() return x + 1 end)
      assert.equal('E_INTERRUPT', err.code)
      assert.equal(4, (x + 1):sum():item())
      ctx:close()
   end)
end)
