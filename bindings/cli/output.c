/* Output of ranks: whole lines with a prefix, and their standard streams.
 *
 * The streams of a rank's state collect its text here; a line is printed when it is complete, in
 * one write.
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

/* One write per line: a launcher's pipe then keeps lines of different processes apart. */
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

/* write(stream, text) writes to stdout (0) or stderr (1). Upvalues: the printer, the rank. */
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

/* ---- the state of a rank --------------------------------------------------------------------- */

/* Replaces the functions that write to the standard streams in the state of a rank. */
static const char redirect[] =
  "local write = ...\n"
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
  lua_call(L, 1, 0);
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
  tide_host_rank_code(L);
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
