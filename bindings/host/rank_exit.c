/* os.exit in the Lua state of a rank.
 *
 * LuaJIT's own ends the process, and with it every rank of a group of threads. Here os.exit ends
 * its own rank, by an error that no handler stops: a debug hook raises it again at the next
 * instruction wherever it was caught (pcall, a coroutine, a message handler), until no Lua code of
 * the rank is left. Hooks belong to the state, not to a coroutine, and a caught error returns to
 * the interpreter, which calls hooks, before it enters compiled code.
 *
 * The error is a table { tide_exit = code, brief = true } whose text is "os.exit(code)".
 */
#include <lauxlib.h>
#include <limits.h>

#include "ranks.h"

static const char exit_key[] = "tide.host.exit";

/* Returns the code as the byte that a parent process sees. A number that does not fit is 1, never
 * 0. */
static int code_of(lua_Number v)
{
  int code = v > INT_MIN && v < INT_MAX ? (int)v & 255 : 1;
  return code == 0 && v != 0 ? 1 : code;
}

int tide_host_exit_code(lua_State *L)
{
  return lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : code_of(luaL_optnumber(L, 1, 0));
}

static void raise_again(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  lua_getfield(L, LUA_REGISTRYINDEX, exit_key);
  lua_error(L);
}

static void note_hook(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  lua_pushboolean(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, exit_key);
}

/* Returns whether hooks run here. They do not in another hook, nor in a finalizer: an error that
 * leaves a finalizer which a compiled loop has called (through the collector) ends the process. */
static bool is_hooked_here(lua_State *L)
{
  lua_pushnil(L);
  lua_setfield(L, LUA_REGISTRYINDEX, exit_key);
  lua_sethook(L, note_hook, LUA_MASKCOUNT, 1);
  if (luaL_loadstring(L, "local _ = 1") != 0 || lua_pcall(L, 0, 0, 0) != 0) lua_pop(L, 1);
  lua_getfield(L, LUA_REGISTRYINDEX, exit_key);
  bool hooked = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return hooked;
}

/* Returns the text of the error. It is C, since the hook would stop a function written in Lua. */
static int exit_text(lua_State *L)
{
  lua_getfield(L, 1, "tide_exit");
  lua_pushfstring(L, "os.exit(%d)", (int)lua_tointeger(L, -1));
  return 1;
}

/* os.exit(code) ends the rank. Where hooks do not run it returns, and the rank ends with the
 * finalizer or hook that called it. */
static int l_rank_exit(lua_State *L)
{
  int code = tide_host_exit_code(L);
  bool hooked = is_hooked_here(L);
  lua_createtable(L, 0, 2);
  lua_pushinteger(L, code);
  lua_setfield(L, -2, "tide_exit");
  lua_pushboolean(L, 1);
  lua_setfield(L, -2, "brief");
  lua_createtable(L, 0, 1);
  lua_pushcfunction(L, exit_text);
  lua_setfield(L, -2, "__tostring");
  lua_setmetatable(L, -2);
  lua_pushvalue(L, -1);
  lua_setfield(L, LUA_REGISTRYINDEX, exit_key);
  lua_sethook(L, raise_again, LUA_MASKCOUNT, 1);
  return hooked ? lua_error(L) : 0;
}

static int install(lua_State *L)
{
  lua_getglobal(L, "os");
  lua_pushcfunction(L, l_rank_exit);
  lua_setfield(L, -2, "exit");
  return 0;
}

int tide_host_rank_exit(lua_State *L) { return lua_cpcall(L, install, NULL); }

void tide_host_rank_code(lua_State *L)
{
  if (lua_gethook(L) == raise_again) lua_sethook(L, NULL, 0, 0);
}
