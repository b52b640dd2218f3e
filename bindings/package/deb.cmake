# Debian packages by CPack: `make deb` configures build/deb with TIDE_DEB and runs cpack there.
#
#   libtide0      the shared libraries       libtide-dev   what a C program is compiled with
#   lua-tide      the library for LuaJIT     tide          the program, its manual page, recipes
#
# The release is 1 of this version. Times in the packages are those of SOURCE_DATE_EPOCH, which
# `make deb` sets to the date of the last commit, so that two builds give the same bytes.

set(TIDE_MAINTAINER "tide contributors <maintainers@tide.invalid>" CACHE STRING
    "Maintainer field of the packages")
set(TIDE_DEB_DATE "Thu, 01 Jan 1970 00:00:00 +0000" CACHE STRING "Date of the Debian changelog")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${TIDE_MAINTAINER})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENTS_ALL runtime dev lua tool)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS OFF)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/package)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # else it stands before each package's own
set(about "tide trains large models in parallel, from Lua: data, sharded, tensor and
context parallelism over threads, processes and GPUs, without Python.")
set(same_version "(= ${PROJECT_VERSION}-1)")

# package(COMPONENT NAME SECTION SUMMARY TEXT DEPENDS...)
macro(package component name section summary text)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${summary}\n${about}\n.\n${text}")
  string(REPLACE ";" ", " depends "${ARGN}")
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
  set(doc share/doc/${name})
  install(FILES ${PROJECT_BINARY_DIR}/package/changelog.gz
                ${PROJECT_BINARY_DIR}/package/${name}/changelog.Debian.gz
                ${PROJECT_BINARY_DIR}/package/copyright DESTINATION ${doc} COMPONENT ${component})
  # A first changelog closes no bug of Debian's, and CPack calls ldconfig beside its trigger.
  file(WRITE ${PROJECT_BINARY_DIR}/package/lintian/${name}
       "${name}: initial-upload-closes-no-bugs\n")
  if("${component}" STREQUAL runtime)
    file(APPEND ${PROJECT_BINARY_DIR}/package/lintian/${name} "${name}: maintscript-calls-ldconfig\n")
  endif()
  install(FILES ${PROJECT_BINARY_DIR}/package/lintian/${name}
          DESTINATION share/lintian/overrides COMPONENT ${component})
  file(WRITE ${PROJECT_BINARY_DIR}/package/${name}/changelog.Debian
       "tide (${PROJECT_VERSION}-1) unstable; urgency=medium\n\n"
       "  * Version ${PROJECT_VERSION}: see changelog.gz.\n\n"
       " -- ${TIDE_MAINTAINER}  ${TIDE_DEB_DATE}\n")
  zip(${PROJECT_BINARY_DIR}/package/${name}/changelog.Debian)
endmacro()

function(zip path)
  execute_process(COMMAND gzip -9nf ${path} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(COPY ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${PROJECT_BINARY_DIR}/package)
file(RENAME ${PROJECT_BINARY_DIR}/package/CHANGELOG.md ${PROJECT_BINARY_DIR}/package/changelog)
zip(${PROJECT_BINARY_DIR}/package/changelog)
file(READ ${PROJECT_SOURCE_DIR}/LICENSE licence)
string(REGEX REPLACE "^MIT License\n+Copyright[^\n]*\n+" "" licence "${licence}")
string(REGEX REPLACE "\n\n" "\n.\n" licence "${licence}")
string(REGEX REPLACE "\n$" "" licence "${licence}")
string(REGEX REPLACE "\n" "\n " licence "${licence}")
file(WRITE ${PROJECT_BINARY_DIR}/package/copyright
     "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
     "Upstream-Name: tide\n\nFiles: *\nCopyright: 2026 tide contributors\nLicense: Expat\n "
     "${licence}\n")

package(runtime libtide0 libs "library that trains large models in parallel"
        "This package has the shared libraries.")
package(dev libtide-dev libdevel "library that trains large models in parallel (development files)"
        "This package has headers and what pkg-config and CMake read."
        "libtide0 ${same_version}" "libluajit-5.1-dev | libluajit2-5.1-dev")
package(lua lua-tide interpreters "training of large models in parallel, for LuaJIT"
        "This package has the library that LuaJIT programs load by require 'tide',
and the guides."
        "libtide0 (>= ${PROJECT_VERSION})" "libluajit-5.1-2 | libluajit2-5.1-2")
package(tool tide science "program that trains large models in parallel"
        "This package has the program tide, which runs recipes and opens a prompt,
and recipes."
        "libtide0 ${same_version}")
install(FILES README.md bindings/package/README.Debian DESTINATION share/doc/lua-tide COMPONENT lua)
install(FILES bindings/package/README.Debian DESTINATION share/doc/tide COMPONENT tool)
install(DIRECTORY lua/guide DESTINATION share/doc/lua-tide/lua COMPONENT lua ${tide_guides})
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOL_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LUA_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_TOOL_PACKAGE_RECOMMENDS lua-tide)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_SUGGESTS
    "libopenmpi3, libutf8proc2, libturbojpeg0, libpng16-16, libwebp7")
file(WRITE ${PROJECT_BINARY_DIR}/package/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_RUNTIME_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/package/triggers)
set(CPACK_DEBIAN_RUNTIME_PACKAGE_RECOMMENDS libpcre2-8-0)
include(CPack)
