/* Output of ranks: whole lines with a prefix, and their standard streams and os.exit.
 *
 * The one idea: a rank's state gets other streams, which collect its text here; a line is printed
 * when it is complete, in one write.
 */
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static bool append(line_buffer *b, const char *text, size_t n)
{
  if (b->n + n > b->cap) {
    size_t cap = (b->n + n) * 2 + 256;
    char *more = realloc(b->text, cap);
    if (!more) return false;
    b->text = more;
    b->cap = cap;
  }
  memcpy(b->text + b->n, text, n);
  b->n += n;
  return true;
}

/* One write a line: a launcher's pipe then keeps lines of different processes apart. */
static void print_line(printer *p, int rank, int stream, const char *text, size_t n)
{
  FILE *to = stream ? stderr : stdout;
  char prefix[32];
  int k = snprintf(prefix, sizeof prefix, "[r%d] ", rank);
  pthread_mutex_lock(&p->lock);
  p->line.n = 0;
  if (append(&p->line, prefix, (size_t)k) && append(&p->line, text, n) &&
      append(&p->line, "\n", 1))
    fwrite(p->line.text, 1, p->line.n, to);
  fflush(to);
  pthread_mutex_unlock(&p->lock);
}

void cli_write(printer *p, int rank, int stream, const char *text, size_t n)
{
  line_buffer *b = &p->lines[rank - p->first][stream];
  const char *end;
  while (n > 0 && (end = memchr(text, '\n', n))) {
    size_t part = (size_t)(end - text);
    if (append(b, text, part)) print_line(p, rank, stream, b->text, b->n);
    b->n = 0;
    text = end + 1;
    n -= part + 1;
  }
  if (n > 0) append(b, text, n);
}

/* write(stream, text): stream 0 stdout, 1 stderr. Upvalues: the printer, the rank. */
static int l_write(lua_State *L)
{
  printer *p = lua_touserdata(L, lua_upvalueindex(1));
  int rank = (int)lua_tointeger(L, lua_upvalueindex(2));
  int stream = luaL_checkint(L, 1) != 0;
  size_t n;
  const char *text = luaL_checklstring(L, 2, &n);
  cli_write(p, rank, stream, text, n);
  return 0;
}

/* ---- os.exit of a rank ----------------------------------------------------------------------- */

/* It would end every rank; here it ends its own, by an error that nothing stops: a hook raises it
 * again at the next instruction wherever it has been caught (pcall, a coroutine, a handler), until
 * no Lua code of the rank is left. Hooks are the state's, not a coroutine's, and a caught error
 * comes to the interpreter, which asks for them, before any compiled code. */
static const char exit_key[] = "tide.host.exit";

static void raise_again(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  lua_getfield(L, LUA_REGISTRYINDEX, exit_key);
  lua_error(L);
}

static void tell_hook(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  lua_pushboolean(L, 1);
  lua_setfield(L, LUA_REGISTRYINDEX, exit_key);
}

/* Not in a finalizer: an error that leaves one which a compiled loop has called (by way of the
 * collector) takes the program down. Nor in another hook. */
static bool is_hooked_here(lua_State *L)
{
  lua_pushnil(L);
  lua_setfield(L, LUA_REGISTRYINDEX, exit_key);
  lua_sethook(L, tell_hook, LUA_MASKCOUNT, 1);
  if (luaL_loadstring(L, "local _ = 1") != 0 || lua_pcall(L, 0, 0, 0) != 0) lua_pop(L, 1);
  lua_getfield(L, LUA_REGISTRYINDEX, exit_key);
  bool told = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return told;
}

/* In C, since what is written in Lua would be stopped by the hook. */
static int exit_text(lua_State *L)
{
  lua_getfield(L, 1, "tide_exit");
  lua_pushfstring(L, "os.exit(%d)", (int)lua_tointeger(L, -1));
  return 1;
}

/* os.exit(code): nil and true are 0, false is 1, as in a stock luajit. Where no hook is asked it
 * returns, and the rank ends with the finalizer or hook that called it. */
static int l_exit(lua_State *L)
{
  int code = cli_given_code(L);
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

/* Lua code runs again in a state that os.exit has emptied. */
static void allow_code(lua_State *L)
{
  if (lua_gethook(L) == raise_again) lua_sethook(L, NULL, 0, 0);
}

/* ---- the state of a rank --------------------------------------------------------------------- */

/* Replaces what writes to the standard streams in the state of a rank, and os.exit. */
static const char redirect[] =
  "local write\n"
  "write, os.exit = ...\n"
  "local function proxy(stream)\n"
  "   local f = {}\n"
  "   function f:write(...)\n"
  "      for i = 1, select('#', ...) do\n"
  "         local v = select(i, ...)\n"
  "         if type(v) ~= 'string' and type(v) ~= 'number' then\n"
  "            error(('bad argument #%d to \\'write\\' (string expected, got %s)')\n"
  "               :format(i, type(v)), 2)\n"
  "         end\n"
  "         write(stream, tostring(v))\n"
  "      end\n"
  "      return self\n"
  "   end\n"
  "   function f:flush() return self end\n"
  "   function f:setvbuf() return true end\n"
  "   function f:close() return true end\n"
  "   return f\n"
  "end\n"
  "io.stdout, io.stderr = proxy(0), proxy(1)\n"
  "function io.write(...) return io.stdout:write(...) end\n"
  "function print(...)\n"
  "   local t = { ... }\n"
  "   for i = 1, select('#', ...) do t[i] = tostring(t[i]) end\n"
  "   write(0, table.concat(t, '\\t', 1, select('#', ...)) .. '\\n')\n"
  "end\n";

static int redirect_protected(lua_State *L)
{
  if (luaL_loadbuffer(L, redirect, sizeof redirect - 1, "=tide")) return lua_error(L);
  lua_pushvalue(L, 1);
  lua_pushvalue(L, 2);
  lua_pushcclosure(L, l_write, 2);
  lua_pushcfunction(L, l_exit);
  lua_call(L, 2, 0);
  return 0;
}

int cli_begin_rank(lua_State *L, int rank, void *user)
{
  const printer *p = user;
  if (!lua_checkstack(L, 4)) return -1;
  if (cli_describe_job(L, p->options) != 0) return -1;
  lua_pushcfunction(L, redirect_protected);
  lua_pushlightuserdata(L, user);
  lua_pushinteger(L, rank);
  int rc = lua_pcall(L, 2, 0, 0);
  if (rc) lua_pop(L, 1);
  return rc;
}

void cli_leave_trace(lua_State *L)
{
  static const char code[] =
    "local trace = require('tide.debug.trace')\n"
    "local ok, e = pcall(trace.dump, trace.folder())\n"
    "if not ok then io.stderr:write('tide: no trace: ', tostring(e), '\\n') end\n";
  allow_code(L);
  if (!getenv("TIDE_TRACE_DIR") || !lua_checkstack(L, 4)) return;
  if (luaL_loadbuffer(L, code, sizeof code - 1, "=trace") || lua_pcall(L, 0, 0, 0)) lua_pop(L, 1);
}

void cli_end_rank(lua_State *L, int rank, void *user)
{
  printer *p = user;
  (void)L;
  for (int stream = 0; stream < 2; stream++) {
    line_buffer *b = &p->lines[rank - p->first][stream];
    if (b->n > 0) print_line(p, rank, stream, b->text, b->n);
    free(b->text);
    *b = (line_buffer){0};
  }
}
