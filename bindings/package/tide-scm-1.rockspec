-- `luarocks make bindings/package/tide-scm-1.rockspec` in a tree: installs tide into the folder
-- `tide` of the rock (luarocks moves `lib` and `bin` of its own) and a module `tide` that loads it.
rockspec_format = '3.0'
package = 'tide'
version = 'scm-1'
source = { url = 'git+file://.' }
description = {
   summary = 'Training of large models in parallel, from LuaJIT',
   license = 'MIT',
}
supported_platforms = { 'linux' }
dependencies = { 'lua == 5.1' }
build = {
   type = 'command',
   build_command = "make PREFIX='$(PREFIX)/tide' CMAKE_ARGS=-DTIDE_CUDA=AUTO",
   install_command = "make install PREFIX='$(PREFIX)/tide' && cmake '-DPREFIX=$(PREFIX)/tide' "
      .. "'-DLUADIR=$(LUADIR)' -P bindings/package/rock.cmake",
}
