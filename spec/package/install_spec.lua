-- An installation as others use it: below a prefix with a space, found by CMake and pkg-config,
-- started from there, and removed without a trace.

local each = require 'tide.util.each'
local files = require 'spec.support.files'
local install = require 'spec.support.install'
local tmp = require 'spec.support.tmp'
local tide = require 'tide'

local build, quote, run, exists = install.build, install.quote, install.run, install.exists

local project = [[
cmake_minimum_required(VERSION 3.20)
project(host C)
find_package(tide 0.1 REQUIRED COMPONENTS host)
add_executable(plain plain.c)
target_link_libraries(plain PRIVATE tide::tide)
add_executable(scripted scripted.c)
target_link_libraries(scripted PRIVATE tide::host)
]]

local plain = [[
#include <stdio.h>
#include <tide/tide.h>
int main(void)
{
  tide_ctx *ctx;
  char msg[256];
  if (tide_ctx_new(&ctx, NULL, msg, sizeof msg) < 0) return puts(msg), 1;
  puts(tide_version());
  tide_ctx_release(ctx);
  return 0;
}
]]

local scripted = [[
#include <stdio.h>
#include <string.h>
#include <tide/tide_lua.h>
#include <tide/ranks.h>
static int run_ranks(void)
{
  const char *code = "assert(require 'tide'.comm.world().size == 2)";
  tide_host_ranks *ranks = tide_host_ranks_new(2, NULL);
  tide_host_ranks_code(ranks, code, strlen(code), "=ranks");
  int rc = tide_host_ranks_run(ranks);
  if (rc) puts(tide_host_ranks_message(ranks, 0));
  tide_host_ranks_free(ranks);
  return rc;
}
int main(void)
{
  const char *code = "print(require 'tide'.ones({ 3 }):sum():item())";
  tide_ctx *ctx;
  lua_State *L;
  char msg[512];
  if (tide_ctx_new(&ctx, NULL, msg, sizeof msg) < 0) return puts(msg), 1;
  if (tide_lua_open(&L, ctx, NULL, msg, sizeof msg) < 0) return puts(msg), 1;
  if (tide_lua_run_string(L, code, strlen(code), "job", 0, NULL)) return puts(tide_lua_message(L));
  return run_ranks();
}
]]

-- Files below a prefix that one component installs, or all do.
local function names_of(component)
   local lines
   tmp.with(function(dir)
      install.install(dir .. '/p', dir, component)
      lines = files.lines_of('cd ' .. quote(dir .. '/p') .. ' && find . ! -type d | sort')
   end)
   return lines
end

local has_host = exists(build .. '/libtide_host.so')
if tide.build_info():find('sanitizers: none', 1, true) == nil then
   pending 'packages are made of builds without sanitizers'
   return
end

describe('an installation', function()
   it('has libraries with a version, the licence and the guide', function()
      install.with(function(prefix)
         local lines = files.lines_of('cd ' .. quote(prefix) .. ' && find . | sort')
         local list = table.concat(lines, '\n')
         for _, name in ipairs { 'libtide.so.0', 'LICENSE', 'README.md', 'lua/guide/embed.md',
            'tide.pc', 'tideConfig.cmake', 'tideConfigVersion.cmake', 'include/tide/tide.h' } do
            assert.matches('/' .. name .. '\n', list .. '\n', 1, true)
         end
         local soname = run(('LC_ALL=C readelf -d %s/lib*/libtide.so'):format(quote(prefix)))
         assert.matches('soname: [libtide.so.0]', soname, 1, true)
      end)
   end)

   it('consists of the components that packages are made of', function()
      local all, sum = names_of(), {}
      for _, component in ipairs { 'runtime', 'dev', 'lua', 'tool', 'doc' } do
         for _, name in ipairs(names_of(component)) do
            assert.is_nil(sum[name], name)
            sum[name] = component
         end
      end
      for _, name in ipairs(all) do assert.is_string(sum[name], name) end
      local count = 0
      for _ in pairs(sum) do count = count + 1 end
      assert.equal(#all, count)
      if has_host then
         assert.equal('tool', sum['./share/man/man1/tide.1'])
         assert.equal('lua', sum['./share/tide/lua/types/tide.d.lua'])
      end
   end)

   it('is loaded without its development files', function()
      install.with(function(prefix, dir)
         run(('rm %s/lib*/libtide.so'):format(quote(prefix)))
         files.write(dir .. '/x.lua', "print(require('tide').zeros({ 2 }):sum():item())")
         assert.equal('0\n', run(('cd / && LUA_PATH=%s luajit %s'):format(
            quote(prefix .. '/share/lua/5.1/?.lua'), quote(dir .. '/x.lua'))))
      end)
   end)

   it('has a manual page with what tide help says', function()
      if not has_host then return end
      install.with(function(prefix)
         local page = files.read(prefix .. '/share/man/man1/tide.1')
         assert.matches('^%.TH TIDE 1 "" "tide ' .. tide.version:gsub('%.', '%%.') .. '"', page)
         for line in run(quote(build) .. '/tide help run'):gmatch '[^\n]+' do
            local roff = line:gsub('\\', '\\e'):gsub('%-', '\\-')
            assert.matches(roff, page, 1, true)
         end
         for macro in page:gmatch '\n%.(%u*%l*)' do
            assert.truthy(({ SH = 1, nf = 1, fi = 1, TP = 1, I = 1 })[macro], macro)
         end
         assert.is_nil(page:find('Recipes: ', 1, true))          -- folders of the build tree
      end)
   end)

   it('says where its recipes and guides are', function()
      if not has_host then return end
      install.with(function(prefix, dir)
         local tide_here = quote(prefix) .. '/bin/tide'
         local recipes = prefix .. '/share/tide/recipes'
         local text = run(tide_here .. ' help')
         assert.matches('\nRecipes: ' .. recipes .. '\n', text, 1, true)
         assert.matches('\nGuides:  ' .. prefix .. '/share/doc/tide/lua/guide\n', text, 1, true)
         for name, hint in each { ['pretrain.lua'] = 'did you mean ' .. recipes .. '/pretrain.lua?',
            ['recipes/pretrain.lua'] = 'did you mean ' .. recipes .. '/pretrain.lua?',
            ['no.lua'] = 'the recipes of tide are in ' .. recipes } do
            assert.equal(("tide: run: cannot read '%s'; %s\n"):format(name, hint),
               run(('cd %s && %s run %s 2>&1; test $? = 2'):format(dir, tide_here, name)))
         end
         assert.equal("tide: run: cannot read '/': it is a folder\n",
            run(tide_here .. ' run / 2>&1; test $? = 2'))
      end)
   end)

   it('is found by CMake', function()
      install.with(function(prefix, dir)
         files.write(dir .. '/plain.c', plain)
         files.write(dir .. '/scripted.c', scripted)
         files.write(dir .. '/CMakeLists.txt', has_host and project
            or project:gsub(' COMPONENTS host', ''):gsub('add_executable%(scripted.*', ''))
         run(('cd %s && cmake -B out -DCMAKE_PREFIX_PATH=%s && cmake --build out'):format(
            quote(dir), quote(prefix)))
         assert.equal(tide.version .. '\n', run(quote(dir) .. '/out/plain'))
         if has_host then assert.equal('3\n', run(quote(dir) .. '/out/scripted')) end
      end)
   end)

   it('is found by pkg-config, wherever it was moved to', function()
      install.with(function(prefix, dir)
         files.write(dir .. '/plain.c', plain)
         local moved = dir .. '/moved'
         run(('mv %s %s'):format(quote(prefix), quote(moved)))
         run(('cd %s && export PKG_CONFIG_PATH=$(echo %s/lib*/pkgconfig) && cc plain.c -o plain '
            .. '$(pkg-config --cflags --libs tide) -Wl,-rpath,$(pkg-config --variable=libdir tide)')
            :format(quote(dir), quote(moved)))
         assert.equal(tide.version .. '\n', run(quote(dir) .. '/plain'))
      end)
   end)

   it('runs scripts from its own files', function()
      if not has_host then return end
      install.with(function(prefix, dir)
         files.write(dir .. '/x.lua',
            "print(require('tide').zeros({ 2 }):sum():item(), (package.path))")
         local out = run(('cd / && env -u LUA_PATH %s/bin/tide run %s'):format(quote(prefix),
            quote(dir .. '/x.lua')))
         assert.equal('0', out:match '^%d')
         assert.matches(prefix, out, 1, true)
      end)
   end)

   it('is removed as a whole, and nothing else with it', function()
      install.with(function(prefix, dir)
         files.write(prefix .. '/bin/mine', '')
         files.write(prefix .. '/share/tide/.mine', '')
         local script = run('readlink -f ' .. quote(build)):gsub('\n', '') .. '/uninstall.cmake'
         run(('cd %s && cmake -P %s'):format(quote(dir), quote(script)))
         assert.same({ './bin/mine', './share/tide/.mine' },
            files.lines_of('cd ' .. quote(prefix) .. ' && find . -type f -o -type l | sort'))
         assert.same({ './share/tide' }, files.lines_of('cd ' .. quote(prefix)
            .. " && find . -type d -path '*/tide*'"))
      end)
   end)
end)
