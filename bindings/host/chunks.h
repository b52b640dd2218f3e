/* Compiled chunks that the Lua states of ranks share.
 *
 * A table maps a chunk, its name and its text, to the bytecode that LuaJIT makes of it, so ranks
 * that load the same file compile it once. Bytecode keeps names and line numbers: errors,
 * tracebacks and debug.getinfo are those of the text. A file is read each time that it is loaded; a
 * file that has changed is another text, and is compiled.
 *
 * Any thread may use a table. A chunk that another thread compiles is waited for, other chunks are
 * not. The private state that compiles runs no Lua code, so no wait depends on the code of a rank.
 */
#pragma once

#include "ranks.h"

/* Adds a reference; returns c, which may be null. */
tide_host_chunks *chunks_retain(tide_host_chunks *c);

/* Makes L load modules through c, unless that is null: replaces the loader of Lua files in
 * package.loaders. May raise. c must outlive L. */
void chunks_install(lua_State *L, tide_host_chunks *c);

/* As luaL_loadbuffer and luaL_loadfile, through the table of L if it has one. May raise. */
int chunks_load(lua_State *L, const char *text, size_t n, const char *name);
int chunks_load_file(lua_State *L, const char *path);

/* A function of Lua, compile(text, name): as loadstring, through the table of L if it has one. */
int chunks_compile(lua_State *L);
