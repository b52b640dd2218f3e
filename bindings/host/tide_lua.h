/* For C hosts: a Lua state with `tide` ready on a context of the host's.
 *
 *   tide_ctx *ctx;   lua_State *L;   char msg[512];
 *   tide_ctx_new(&ctx, NULL, msg, sizeof msg);
 *   if (tide_lua_open(&L, ctx, NULL, msg, sizeof msg) < 0) ...
 *   if (tide_lua_run_file(L, "job.lua", 0, NULL) < 0) puts(tide_lua_message(L));
 *   lua_close(L);
 *   tide_ctx_release(ctx);
 *
 * The context is borrowed: it must outlive the Lua state, and both belong to one thread. One Lua
 * state per context at a time: two would free memory and count it for each other, and share the
 * random numbers. Nothing here prints, exits or touches signals; a Lua error becomes a status
 * and a text with the traceback.
 */
#ifndef TIDE_LUA_H
#define TIDE_LUA_H

#include "tide/tide.h"

#ifdef __cplusplus
extern "C" {
#endif
#include <lua.h> /* has no C linkage of its own */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* Opens a state with the standard libraries and `require 'tide'` done; ctx is its default context.
 * root: folder that holds lua/ and bindings/. Null: looked for next to this library (a build tree
 * or an installed prefix), then the modules packed into it. On failure *out is null and msg (may
 * be null) receives up to n bytes of text. E_NOMEM, E_IO (files not found), E_STATE (the context
 * has an open Lua state), E_HOST (also where the program exports another Lua, which would hide
 * LuaJIT). */
int tide_lua_open(lua_State **out, tide_ctx *ctx, const char *root, char *msg, size_t n);

/* Runs a file or a chunk (source or bytecode; name is for messages) with string arguments, which it
 * sees as `...` and as the global `arg`. Returns 0, the status of a tide error that was raised, or
 * E_HOST for any other Lua error. An error value {tide_exit = 0} counts as 0; one whose field
 * `brief` is true has no traceback. */
int tide_lua_run_file(lua_State *L, const char *path, int narg, const char *const *args);
int tide_lua_run_string(lua_State *L, const char *code, size_t ncode, const char *name, int narg,
                        const char *const *args);

/* Returns message and traceback of the last run, "" if it succeeded. Borrowed until the next
 * run. */
const char *tide_lua_message(lua_State *L);
/* Returns the first value that the last run returned, if it was a string or number, else NULL.
 * Borrowed until the next run. n may be null. */
const char *tide_lua_result(lua_State *L, size_t *n);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
