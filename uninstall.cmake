# cmake -P uninstall.cmake, in a build folder: removes the files that the last installation wrote,
# and the folders that it leaves empty. DESTDIR in the environment is put in front, as for the
# installation.
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
