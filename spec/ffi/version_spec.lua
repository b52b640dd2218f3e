-- Lua files beside a library that was built from other declarations: one line at require, not a
-- crash in a later call.

local child = require 'spec.support.child'
local files = require 'spec.support.files'
local tmp = require 'spec.support.tmp'

local abi, ranks = 'core/include/tide/tide_abi.h', 'bindings/host/ranks_abi.h'

-- Runs a program with copies of the Lua files and headers, of which `path` is edited by fn.
local function with(path, fn, program)
   local out, status
   tmp.with(function(dir)
      os.execute(('mkdir -p %s/core && cp -r bindings lua %s && cp -r core/include %s/core'):format(
         dir, dir, dir))
      local text = files.read(path)
      files.write(dir .. '/' .. path, fn(text))
      out, status = child(([[
         package.path = '%s/bindings/?.lua;%s/lua/?.lua;%s/lua/?/init.lua;' .. package.path
         local build = os.getenv 'TIDE_BUILD' or 'build'
         package.loaded['tide.host'] = { library = build .. '/libtide.so',
            host_library = build .. '/libtide_host.so' }
         local ok, e = pcall(function() %s end)
         print(ok and 'fine' or tostring(e))
      ]]):format(dir, dir, dir, program))
   end)
   assert.equal(0, status, out)
   return out
end

local function added(text) return text .. '\nint tide_of_tomorrow(void);\n' end
local use = "return require('tide').ones({ 2 }):sum():item()"
local run = "require 'tide'; require('tide.ffi.host').run(2, function(rank) return rank end)"

describe('Lua files and a library of different versions', function()
   it('are refused in one line at require', function()
      local out = with(abi, added, use)
      assert.matches('libtide.so is of another version than the Lua files in', out, 1, true)
      assert.matches('build again (make)', out, 1, true)
      assert.equal(1, select(2, out:gsub('\n', '\n')), out)
   end)

   it('are refused in one line before ranks start', function()
      local out = with(ranks, added, run)
      assert.matches('libtide_host.so is of another version than the Lua files in', out, 1, true)
      assert.equal(1, select(2, out:gsub('\n', '\n')), out)
   end)

   it('are taken where comments and spaces alone differ', function()
      local function reworded(text) return '/* other words */\n' .. text:gsub(';\n', ' ;\n\n') end
      assert.equal('fine\n', with(abi, reworded, use))
      assert.equal('fine\n', with(ranks, reworded, run))
   end)
end)
