# Turns lua/ and bindings/tide/ into one C file, so that a host needs no Lua files beside it.
#
#   cmake -DROOT=<source tree> -DOUT=<file.c> -P pack.cmake
#
# state.c refers to the table weakly: built without this file it simply looks for the files.
# As a part of a CMake build: include this file and call tide_pack(<target> <source tree>), which
# adds the C file to the target and makes it again when a Lua file changes.

function(tide_pack_files root out)
  set(again CONFIGURE_DEPENDS) # a script has no configuration to make again
  if(CMAKE_SCRIPT_MODE_FILE)
    set(again "")
  endif()
  file(GLOB_RECURSE lua RELATIVE ${root} ${again} ${root}/lua/tide/*.lua)
  file(GLOB_RECURSE ffi RELATIVE ${root} ${again} ${root}/bindings/tide/*.lua)
  list(APPEND lua ${ffi})
  list(SORT lua)
  set(${out} ${lua} PARENT_SCOPE)
endfunction()

function(tide_pack target root)
  tide_pack_files(${root} files)
  list(TRANSFORM files PREPEND ${root}/)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/tide_pack.c)
  add_custom_command(OUTPUT ${out} DEPENDS ${files} ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    COMMAND ${CMAKE_COMMAND} -DROOT=${root} -DOUT=${out} -P ${CMAKE_CURRENT_FUNCTION_LIST_FILE}
    COMMENT "Packing the Lua files" VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()

if(CMAKE_SCRIPT_MODE_FILE AND OUT)
  tide_pack_files(${ROOT} files)
  set(arrays "")
  set(rows "")
  set(index 0)
  foreach(path IN LISTS files)
    string(REGEX REPLACE "^(lua|bindings)/" "" module ${path})
    string(REGEX REPLACE "(/init)?\\.lua$" "" module ${module})
    string(REPLACE "/" "." module ${module})
    # String literals, one a line: a compiler reads them ten times as fast as lists of bytes.
    file(READ ${ROOT}/${path} text)
    string(REPLACE "\\" "\\\\" text "${text}")
    string(REPLACE "\"" "\\\"" text "${text}")
    string(REPLACE "?" "\\?" text "${text}")
    string(REPLACE "\n" "\\n\"\n\"" text "${text}")
    string(APPEND arrays "static const char text_${index}[] = \"${text}\";\n")
    string(APPEND rows "  {\"${module}\", \"@tide:${path}\", text_${index}, sizeof text_${index} - 1},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  file(WRITE ${OUT} "/* Made by pack.cmake from the Lua files of tide. */
#include <stddef.h>

typedef struct tide__pack_entry {
  const char *module, *chunk, *text;
  size_t size;
} tide__pack_entry;

${arrays}
extern const tide__pack_entry tide__pack[];
const tide__pack_entry tide__pack[] = {
${rows}  {NULL, NULL, NULL, 0},
};
")
endif()
