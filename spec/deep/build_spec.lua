-- The tree built by the other compiler, in a folder with a space: no warning, and the specs of
-- kernels, ops, recipes and packages pass there.

local tmp = require 'spec.support.tmp'

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function run(command)
   local pipe = assert(io.popen('{ ' .. command .. '; } 2>&1; echo "status=$?"'))
   local text, status = pipe:read('*a'):match '^(.*)status=(%d+)%s*$'
   pipe:close()
   return text, tonumber(status)
end

local clang = select(2, run 'clang --version && clang++ --version') == 0

describe('a tree in a folder with a space, built by clang', function()
   if not clang then
      pending 'needs clang'
      return
   end
   it('builds without a warning, and its specs pass', function()
      tmp.with(function(dir)
         local tree = dir .. '/a tree'
         tmp.mkdir(tree)
         assert.equal(0, select(2, run(('tar --exclude=./build --exclude=./runs --exclude=./.git '
            .. '-cf - . | tar -xf - -C %s'):format(quote(tree)))))
         local at = 'cd ' .. quote(tree) .. ' && env -u TIDE_BUILD -u LUA_PATH '
         local out, status = run(at .. 'CC=clang CXX=clang++ make CMAKE_ARGS=-DTIDE_CUDA=OFF')
         assert.equal(0, status, out:sub(-3000))
         assert.is_nil(out:match '[^\n]*warning:[^\n]*')
         out = run(at .. 'luajit spec/support/run.lua --jobs 2 spec/kernel spec/native spec/op '
            .. 'spec/recipe/smoke_spec.lua spec/package')
         assert.matches('\n%d+ passed, 0 failed\n$', out, 1, false)
      end)
   end)
end)
