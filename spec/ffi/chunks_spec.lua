-- Compiled files that ranks share: each is compiled once, and nothing else can be told from a state
-- that compiles for itself.

local files = require 'spec.support.files'
local host = require 'tide.ffi.host'
local lib = require 'tide.ffi.lib'
local ranks = require 'spec.support.ranks'
local tmp = require 'spec.support.tmp'

-- The number of files that the ranks of this state have compiled so far.
local function compiled()
   ranks.run(1, 'return 1')
   return lib.state.host.tide_host_chunks_compiled(lib.state.chunks)
end

-- What `see` of a module in the folder returns, here, with LuaJIT's own loader, and on n ranks.
local function here(dir)
   local path = package.path
   package.path = dir .. '/?.lua;' .. path
   local ok, said = pcall(function() return require('see')(dir) end)
   package.path, package.loaded.see = path, nil
   assert(ok, said)
   return said
end

local function there(n, dir)
   return ranks.run(n, function(_, _, folder)
      package.path = folder .. '/?.lua;' .. package.path
      return require('see')(folder)
   end, dir)
end

-- Writes the files of a folder; `see` is the module that the states run.
local function write(dir, texts)
   for name, text in pairs(texts) do files.write(dir .. '/' .. name, text) end
end

local function same_everywhere(texts, folder)
   tmp.with(function(dir)
      if folder then tmp.mkdir(dir .. '/' .. folder) end
      write(dir, texts)
      local expected = here(dir)
      for _ = 1, 2 do
         for _, seen in ipairs(there(3, dir)) do assert.same(expected, seen) end
      end
   end)
end

-- A traceback as far as the function that asked, without addresses.
local see_errors = [[
local list = {}
local function trace(e)
   return (debug.traceback(tostring(e), 2):gsub('0x%x+', '0x'):gsub('(see%.lua:%d+:).*', '%1'))
end
return function(dir)
   for _, name in ipairs { 'raises', 'wrong', 'absent', 'deep', 'folder', 'cut', 'bom' } do
      local ok, said = xpcall(function() return require(name) end, trace)
      list[#list + 1] = name .. ' ' .. tostring(ok) .. ' ' .. tostring(said)
   end
   for _, path in ipairs { false, 3 } do
      package.path = path or nil
      list[#list + 1] = tostring(select(2, pcall(require, 'absent')))
   end
   package.path = dir .. '/?.lua'
   list[#list + 1] = tostring(select(2, pcall(require)))
   list[#list + 1] = tostring(select(2, pcall(require, 'absent')))
   return list
end
]]

local see_things = [[
return function(dir)
   local m, info = require 'things', nil
   local again = require 'things'
   info = debug.getinfo(m.fn, 'SlunL')
   local lines = {}
   for line in pairs(info.activelines) do lines[#lines + 1] = line end
   table.sort(lines)
   local loader = debug.getinfo(package.loaders[2], 'S')
   return { m == again, package.loaded.things == m, m.name, m.count, info.source, info.short_src,
      info.linedefined, info.lastlinedefined, info.what, info.nups, info.nparams, lines,
      debug.getupvalue(m.fn, 1), debug.getlocal(m.fn, 1), m.fn(2), m.big, m.text, m.nan ~= m.nan,
      1 / m.zero, tostring(m.wide), tostring(m.imaginary), #package.loaders, loader.what,
      require 'empty', require 'hash', require 'first', package.searchpath('things', package.path) }
end
]]

describe('ranks that share compiled files', function()
   it('compile each file once, in all jobs of a state', function()
      tmp.with(function(dir)
         for i = 1, 20 do write(dir, { ['once' .. i .. '.lua'] = 'return ' .. i }) end
         local before = compiled()
         for _ = 1, 2 do
            local sums = ranks.run(4, function(_, _, folder)
               package.path = folder .. '/?.lua;' .. package.path
               local sum = 0
               for i = 1, 20 do sum = sum + require('once' .. i) end
               return sum
            end, dir)
            assert.same({ 210, 210, 210, 210 }, sums)
            assert.equal(before + 20, compiled())
         end
      end)
   end)

   it('report errors as a state that compiles for itself', function()
      same_everywhere({
         ['see.lua'] = see_errors,
         ['raises.lua'] = 'local t\nlocal function inner()\n   return t.x\nend\n\n'
            .. 'return inner() + 1\n',
         ['wrong.lua'] = 'local a = 1\nlocal b = = 2\n',
         ['deep.lua'] = 'local x = 1\nreturn require "wrong"\n',
         ['cut.lua'] = string.dump(loadstring 'return nil + 1'):sub(1, -9),
         ['bom.lua'] = '\239\187\191return ((\n',
      }, 'folder.lua')
   end)

   it('have functions with the names, lines and constants of their text', function()
      same_everywhere {
         ['see.lua'] = see_things,
         ['things.lua'] = '#!/usr/bin/luajit\nlocal count, wide = 0, 9007199254740993LL\n'
            .. 'local function fn(step)\n   count = count + step\n\n   return count\nend\n'
            .. 'return { fn = fn, name = ..., count = select("#", ...), big = 1e300, '
            .. 'text = "a\\0b\\200", nan = 0 / 0, zero = -0.0, wide = wide, imaginary = 2i }\n',
         ['empty.lua'] = '',
         ['hash.lua'] = '# a line that LuaJIT skips\nreturn debug.getinfo(1, "l").currentline\n',
         ['first.lua'] = '\239\187\191return "behind a mark"\n',
      }
   end)

   it('run bytecode files, stripped or not', function()
      same_everywhere {
         ['see.lua'] = 'return function() return { require "plain", require "bare" } end',
         ['plain.lua'] = string.dump(loadstring('return debug.getinfo(1, "S").source', '@of')),
         ['bare.lua'] = string.dump(loadstring('return debug.getinfo(1, "S").source', '@of'), true),
      }
   end)

   it('see a file that changed between two jobs, and within one', function()
      tmp.with(function(dir)
         for i, text in ipairs { 'return 1', 'return 2', 'return 1', 'return 33' } do
            write(dir, { ['see.lua'] = 'return function() return require "changed" end',
               ['changed.lua'] = text })
            local value = tonumber(text:match '%d+')
            assert.same({ value, value }, there(2, dir), i)
         end
         assert.same({ 5 }, ranks.run(1, function(_, _, folder)
            package.path = folder .. '/?.lua;' .. package.path
            local sum = 0
            for i = 1, 2 do
               local f = io.open(folder .. '/changed.lua', 'w')
               f:write('return ', i + 1)
               f:close()
               package.loaded.changed = nil
               sum = sum + require 'changed'
            end
            return sum
         end, dir))
      end)
   end)

   it('do not wait for a rank that fails while it loads', function()
      tmp.with(function(dir)
         write(dir, { ['bad.lua'] = 'return = 1', ['raises.lua'] = 'error "boom"',
            ['good.lua'] = 'return 7' })
         local rows = ranks.run(4, function(rank, _, folder)
            package.path = folder .. '/?.lua;' .. package.path
            local said = {}
            for i = 1, 10 do
               local name = (rank + i) % 2 == 0 and 'bad' or 'raises'
               local ok, e = pcall(require, name)
               package.loaded[name] = nil
               said[i] = tostring(ok) .. tostring(e):match '%w+%.lua:1: .*'
            end
            table.sort(said)
            said[11] = require 'good'
            return said
         end, dir)
         assert.equal("falsebad.lua:1: unexpected symbol near '='", rows[1][1])
         assert.equal('falseraises.lua:1: boom', rows[1][10])
         assert.equal(7, rows[1][11])
         for rank = 2, 4 do assert.same(rows[1], rows[rank]) end
         local failed = host.try(3, nil, function(_, _, folder)
            package.path = folder .. '/?.lua;' .. package.path
            return require 'bad'
         end, dir)
         for _, row in ipairs(failed) do
            assert.equal('E_HOST', row.status)
            assert.truthy(row.message:find("bad.lua:1: unexpected symbol near '='", 1, true))
         end
      end)
   end)

   it('load different files at once, in different orders', function()
      tmp.with(function(dir)
         for i = 1, 40 do
            local more = i <= 30 and ('require "m%d" + '):format(i + 10) or ''
            write(dir, { ['m' .. i .. '.lua'] = ('return %s%d'):format(more, i) })
         end
         local before = compiled()
         local sums = ranks.run(16, function(rank, _, folder)
            package.path = folder .. '/?.lua;' .. package.path
            local sum, step = 0, ({ 1, 3, 7, 9, 11, 13, 17, 19 })[rank % 8 + 1]
            for i = 0, 39 do sum = sum + require('m' .. (rank + i * step) % 40 + 1) end
            return sum
         end, dir)
         for rank = 2, 16 do assert.equal(sums[1], sums[rank]) end
         assert.equal(before + 40, compiled())
      end)
   end)

   it('compile for themselves where the compiler is watched', function()
      tmp.with(function(dir)
         write(dir, { ['watched.lua'] = 'local function one() return 1 end\nreturn one() + 1' })
         local before = compiled()
         assert.same({ 2, 2 }, ranks.run(2, function(_, _, folder)
            package.path = folder .. '/?.lua;' .. package.path
            local seen = 0
            local function note() seen = seen + 1 end
            jit.attach(note, 'bc')
            require 'watched'
            jit.attach(note)
            return seen
         end, dir))
         assert.equal(before, compiled())
      end)
   end)

   it('compile for themselves in a forked child', function()
      tmp.with(function(dir)
         write(dir, { ['child.lua'] = 'return 7' })
         local before = compiled()
         assert.same({ 7, 7 }, ranks.run(2, function(_, _, folder)
            package.path = folder .. '/?.lua;' .. package.path
            local ffi = require 'ffi'
            ffi.cdef 'int fork(void); int waitpid(int, int *, int); void _exit(int);'
            local pid, status = ffi.C.fork(), ffi.new 'int[1]'
            if pid == 0 then
               local ok, v = pcall(require, 'child')
               ffi.C._exit(ok and v or 1)
            end
            ffi.C.waitpid(pid, status, 0)
            return status[0] / 256
         end, dir))
         assert.equal(before, compiled())
      end)
   end)

   it('share the file that they run', function()
      tmp.with(function(dir)
         local path, before, H = dir .. '/recipe.lua', compiled(), lib.state.host
         write(dir, { ['recipe.lua'] = "return debug.getinfo(1, 'S').source" })
         for _ = 1, 2 do
            local job = H.tide_host_ranks_new(3, nil)
            assert.equal(0, H.tide_host_ranks_file(job, path))
            assert.equal(0, H.tide_host_ranks_chunks(job, lib.state.chunks))
            assert.equal(0, H.tide_host_ranks_run(job))
            for i = 0, 2 do
               local said = require('ffi').string(H.tide_host_ranks_result(job, i, nil))
               assert.equal('@' .. path, said)
            end
            assert.equal(lib.C.TIDE_E_STATE, H.tide_host_ranks_chunks(job, nil))
            H.tide_host_ranks_free(job)
         end
         assert.equal(before + 1, compiled())
      end)
   end)

   it('share the modules that the library carries', function()
      tmp.with(function(dir)
         local build = os.getenv 'TIDE_BUILD' or 'build'
         assert.equal(0, os.execute(('cp %s/libtide_host.so %s'):format(build, dir)))
         write(dir, { ['packed.lua'] = [[
            local real = debug.getinfo(1, 'S').source
            local dir, build = ...
            package.loaded['tide.host'] = { library = build .. '/libtide.so',
               host_library = dir .. '/libtide_host.so' }
            local host, lib = require 'tide.ffi.host', require 'tide.ffi.lib'
            for _ = 1, 2 do
               for _, source in ipairs(host.run(3, function()
                  require 'tide.nn.linear'
                  return debug.getinfo(require('tide.ffi.ctx').open, 'S').source
               end)) do assert(source == '@tide:bindings/tide/ffi/ctx.lua', source) end
            end
            local n = lib.state.host.tide_host_chunks_compiled(lib.state.chunks)
            assert(n > 20, n)
            print 'packed'
         ]] })
         local run = io.popen(('LUA_PATH="bindings/?.lua;lua/?.lua;lua/?/init.lua;;" '
            .. '%s %s/packed.lua %s %s 2>&1'):format(os.getenv 'TIDE_LUAJIT' or 'luajit', dir, dir,
            build))
         local said = run:read '*a'
         run:close()
         assert.equal('packed\n', said)
      end)
   end)
end)
