/* Exit codes: the end of a run, as the byte that a parent process sees. No failure has code 0. */
#include <errno.h>
#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

bool cli_is_exit(const char *message, int *code)
{
  return !strchr(message, '\n') && sscanf(message, "os.exit(%d)", code) == 1;
}

/* User errors: wrong options, and devices that this machine does not have. */
static bool is_user_error(int status)
{
  return status == TIDE_E_ARG || status == TIDE_E_DEVICE || status == TIDE_E_UNSUPPORTED;
}

int cli_exit_code(int status, const char *message)
{
  int code;
  if (cli_signal()) return 128 + cli_signal();
  if (status >= 0) return 0;
  if (cli_is_exit(message, &code)) return code;
  return is_user_error(status) && !strstr(message, "\nstack traceback:") ? EXIT_USAGE : EXIT_RAISED;
}

int cli_end_output(int code)
{
  const char *why = fflush(stdout) == 0 ? NULL : strerror(errno);
  if (!why && !ferror(stdout)) return code;
  fprintf(stderr, "tide: cannot write to the standard output%s%s\n", why ? ": " : "",
          why ? why : "");
  return code ? code : EXIT_RAISED;
}

/* ---- os.exit of a process -------------------------------------------------------------------- */

/* os.exit(code, close): closes the state first, unless close is false, so that its objects end in
 * order. Upvalue: LuaJIT's own os.exit. */
static int l_cli_exit(lua_State *L)
{
  bool keep = lua_isboolean(L, 2) && !lua_toboolean(L, 2);
  int code = cli_end_output(tide_host_exit_code(L));
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
  lua_pushcclosure(L, l_cli_exit, 1);
  lua_setfield(L, -2, "exit");
  return 0;
}

int cli_close_on_exit(lua_State *L) { return lua_cpcall(L, close_on_exit, NULL); }
