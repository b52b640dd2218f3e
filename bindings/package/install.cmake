# What `make install` and the Debian packages install, by component:
#
#   runtime   libtide.so.0, libtide_host.so.0, libtide_cuda.so.0
#   dev       headers, links for the linker, pkg-config, find_package(tide)
#   lua       the library in Lua, for any LuaJIT
#   tool      the program tide, its manual page, recipes
#   doc       licence, README, CHANGELOG, guides

install(TARGETS tide EXPORT tideTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        COMPONENT runtime NAMELINK_COMPONENT dev)
install(DIRECTORY core/include/tide DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT dev
        FILES_MATCHING PATTERN "*.h")
install(DIRECTORY lua/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tide/lua COMPONENT lua
        FILES_MATCHING PATTERN "*.lua" PATTERN guide EXCLUDE)
install(DIRECTORY bindings/tide DESTINATION ${CMAKE_INSTALL_DATADIR}/tide/bindings COMPONENT lua
        FILES_MATCHING PATTERN "*.lua")
install(DIRECTORY recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tide/recipes COMPONENT tool
        FILES_MATCHING PATTERN "*.lua" PATTERN "*.c" PATTERN "*.py" PATTERN "*.conf")
# A stock luajit finds tide.lua below /usr/local by itself; it knows where the rest is.
file(RELATIVE_PATH tide_up /prefix/share/lua/5.1 /prefix/${CMAKE_INSTALL_DATADIR}/tide)
file(CONFIGURE OUTPUT tide.lua @ONLY CONTENT [=[
-- Loads the installed library: `require 'tide'` first, then its parts (`require 'tide.nn'`).
-- Relative to this file, so that the whole installation can be moved.
local here = debug.getinfo(1, 'S').source:match '^@(.*/)[^/]*$' or './'
local root = here .. '@tide_up@/'
package.path = root .. 'bindings/?.lua;' .. root .. 'lua/?.lua;' .. root .. 'lua/?/init.lua;'
   .. root .. '?.lua;' .. package.path
return assert(loadfile(root .. 'lua/tide/init.lua'))(...)
]=])
install(FILES ${PROJECT_BINARY_DIR}/tide.lua DESTINATION share/lua/5.1 COMPONENT lua)
# Relative to its own file, too.
file(RELATIVE_PATH pc_up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
file(CONFIGURE OUTPUT tide.pc @ONLY CONTENT [=[
prefix=${pcfiledir}/@pc_up@
libdir=${prefix}/@CMAKE_INSTALL_LIBDIR@
includedir=${prefix}/@CMAKE_INSTALL_INCLUDEDIR@
luadir=${prefix}/@CMAKE_INSTALL_DATADIR@/tide

Name: tide
Description: @PROJECT_DESCRIPTION@
Version: @PROJECT_VERSION@
Cflags: -I${includedir}
Libs: -L${libdir} -ltide
]=])
install(FILES ${PROJECT_BINARY_DIR}/tide.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig
        COMPONENT dev)

# Type annotations for editors, from what the Lua files declare.
if(TARGET tide_cli AND NOT CMAKE_CROSSCOMPILING)
  set(types ${PROJECT_BINARY_DIR}/types/tide.d.lua)
  set(maker ${CMAKE_CURRENT_LIST_DIR}/types.lua)
  tide_pack_files(${PROJECT_SOURCE_DIR} declared)
  list(TRANSFORM declared PREPEND ${PROJECT_SOURCE_DIR}/)
  # A package's program has no path to the build folder.
  add_custom_command(OUTPUT ${types} DEPENDS ${maker} ${declared}
                     COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${PROJECT_BINARY_DIR}
                             $<TARGET_FILE:tide_cli> run ${maker} ${types}
                     COMMENT "Writing type annotations" VERBATIM)
  add_custom_target(tide_types ALL DEPENDS ${types})
  add_dependencies(tide_types tide_cli) # which runs the maker; a new program is no new declaration
  install(FILES ${types} DESTINATION ${CMAKE_INSTALL_DATADIR}/tide/lua/types COMPONENT lua)
endif()

# tide(1), from what `tide help` says.
if(TARGET tide_cli AND NOT CMAKE_CROSSCOMPILING)
  find_program(TIDE_LUAJIT luajit)
  mark_as_advanced(TIDE_LUAJIT)
endif()
if(TIDE_LUAJIT)
  set(page ${PROJECT_BINARY_DIR}/tide.1)
  set(maker ${CMAKE_CURRENT_LIST_DIR}/man.lua)
  add_custom_command(
    OUTPUT ${page} DEPENDS ${maker} tide_cli tide_host tide
    COMMAND ${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${PROJECT_BINARY_DIR} ${TIDE_LUAJIT} ${maker}
            $<TARGET_FILE:tide_cli> ${PROJECT_VERSION} ${page} VERBATIM)
  if(TIDE_DEB)
    add_custom_command(OUTPUT ${page}.gz DEPENDS ${page} COMMAND gzip -9nkf ${page} VERBATIM)
    set(page ${page}.gz)
  endif()
  add_custom_target(tide_page ALL DEPENDS ${page})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tool)
endif()

# For find_package(tide): tide::tide, and tide::host where LuaJIT was there at the build.
include(CMakePackageConfigHelpers)
set(tide_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tide)
file(CONFIGURE OUTPUT tideConfig.cmake @ONLY CONTENT [=[
# Defines tide::tide, the library, and tide::host, which opens Lua states in a C program. The latter
# is a component: find_package(tide REQUIRED COMPONENTS host).
include(${CMAKE_CURRENT_LIST_DIR}/tideTargets.cmake)
if(EXISTS ${CMAKE_CURRENT_LIST_DIR}/tideHostTargets.cmake)
  find_package(PkgConfig QUIET)
  if(PKG_CONFIG_FOUND AND NOT TARGET PkgConfig::LUAJIT)
    pkg_check_modules(LUAJIT QUIET IMPORTED_TARGET luajit)
  endif()
  if(TARGET PkgConfig::LUAJIT)
    include(${CMAKE_CURRENT_LIST_DIR}/tideHostTargets.cmake)
  endif()
endif()
foreach(part IN LISTS tide_FIND_COMPONENTS)
  if(TARGET tide::${part})
    set(tide_${part}_FOUND TRUE)
  elseif(tide_FIND_REQUIRED_${part})
    set(tide_FOUND FALSE)
    set(tide_NOT_FOUND_MESSAGE "tide::${part} is not there. The component 'host' needs the \
development files of LuaJIT and pkg-config, here and when tide was built.")
  endif()
endforeach()
]=])
write_basic_package_version_file(tideConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tideConfig.cmake ${PROJECT_BINARY_DIR}/tideConfigVersion.cmake
        DESTINATION ${tide_cmake_dir} COMPONENT dev)
install(EXPORT tideTargets NAMESPACE tide:: DESTINATION ${tide_cmake_dir} COMPONENT dev)
if(TARGET tide_host)
  install(EXPORT tideHostTargets NAMESPACE tide:: DESTINATION ${tide_cmake_dir} COMPONENT dev)
endif()
install(FILES LICENSE README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT doc)
# At the places that README links to.
set(tide_guides FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(DIRECTORY lua/guide DESTINATION ${CMAKE_INSTALL_DOCDIR}/lua COMPONENT doc ${tide_guides})
# `make uninstall`: removes the files that the last installation from this build folder wrote, and
# the folders that it leaves empty. DESTDIR is put in front, as for the installation.
file(WRITE ${PROJECT_BINARY_DIR}/uninstall.cmake [=[
set(manifest ${CMAKE_CURRENT_BINARY_DIR}/install_manifest.txt)
if(NOT EXISTS ${manifest})
  message(FATAL_ERROR "nothing was installed from ${CMAKE_CURRENT_BINARY_DIR}: "
                      "install_manifest.txt is not there")
endif()
file(STRINGS ${manifest} files)
set(folders)
foreach(path IN LISTS files)
  set(path "$ENV{DESTDIR}${path}")
  if(EXISTS ${path} OR IS_SYMLINK ${path})
    message(STATUS "Removing ${path}")
    file(REMOVE ${path})
  endif()
  get_filename_component(folder ${path} DIRECTORY)
  list(APPEND folders ${folder})
endforeach()

# A folder of ours has tide in its path; others (lib, bin) stay. The deepest first.
list(REMOVE_DUPLICATES folders)
foreach(folder IN LISTS folders)
  while(folder MATCHES "/tide(/|$)")
    list(APPEND ours ${folder})
    get_filename_component(folder ${folder} DIRECTORY)
  endwhile()
endforeach()
list(REMOVE_DUPLICATES ours)
list(SORT ours ORDER DESCENDING)
foreach(folder IN LISTS ours)
  execute_process(COMMAND rmdir ${folder} ERROR_QUIET) # empty ones only
endforeach()
file(REMOVE ${manifest})
]=])
add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -P ${PROJECT_BINARY_DIR}/uninstall.cmake
                  WORKING_DIRECTORY ${PROJECT_BINARY_DIR} VERBATIM)
