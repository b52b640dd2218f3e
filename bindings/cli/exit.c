/* Exit codes: what os.exit is given, and how a run ends, as the byte that a parent sees.
 *
 * The one idea: a number is made a code here and nowhere else. What is no success never looks like
 * one: what no int holds, and what would be cut to 0, is 1.
 */
#include <lauxlib.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

static int code_of(lua_Number v)
{
  int code = v > INT_MIN && v < INT_MAX ? (int)v & 255 : EXIT_RAISED;
  return code == 0 && v != 0 ? EXIT_RAISED : code;
}

int cli_given_code(lua_State *L)
{
  return lua_isboolean(L, 1) ? !lua_toboolean(L, 1) : code_of(luaL_optnumber(L, 1, 0));
}

bool cli_is_exit(const char *message, int *code)
{
  return !strchr(message, '\n') && sscanf(message, "os.exit(%d)", code) == 1;
}

/* What people can ask for in vain: wrong options, and devices that this machine has not. */
static bool is_wish(int status)
{
  return status == TIDE_E_ARG || status == TIDE_E_DEVICE || status == TIDE_E_UNSUPPORTED;
}

/* Errors without a stack trace are mistakes of people. */
int cli_exit_code(int status, const char *message)
{
  int code;
  if (cli_signal()) return 128 + cli_signal();
  if (status >= 0) return 0;
  if (cli_is_exit(message, &code)) return code;
  return is_wish(status) && !strstr(message, "\nstack traceback:") ? EXIT_USAGE : EXIT_RAISED;
}

/* ---- os.exit of a process -------------------------------------------------------------------- */

/* os.exit(code, close): closes the state first, unless close is false: what it holds ends in order.
 * Upvalue: LuaJIT's own. */
static int l_exit(lua_State *L)
{
  bool keep = lua_isboolean(L, 2) && !lua_toboolean(L, 2);
  int code = cli_given_code(L);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushinteger(L, code);
  lua_pushboolean(L, !keep);
  lua_call(L, 2, 0);
  return 0;
}

static int close_on_exit(lua_State *L)
{
  lua_getglobal(L, "os");
  lua_getfield(L, -1, "exit");
  lua_pushcclosure(L, l_exit, 1);
  lua_setfield(L, -2, "exit");
  return 0;
}

int cli_close_on_exit(lua_State *L) { return lua_cpcall(L, close_on_exit, NULL); }
