# Writes the module `tide` of a rock, which loads the installation below the rock's own folder:
# cmake -DPREFIX=... -DLUADIR=... -P rock.cmake
file(WRITE ${LUADIR}/tide.lua
     "return assert(loadfile '${PREFIX}/share/lua/5.1/tide.lua')(...)\n")
