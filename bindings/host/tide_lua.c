/* Running chunks in a Lua state of a C host.
 *
 * Everything that may raise runs inside lua_cpcall or lua_pcall; the result is a status plus a text
 * kept in the registry of the state.
 */
#include "tide_lua.h"

#include <lauxlib.h>
#include <string.h>

#include "chunks.h"
#include "state.h"

static const char message_key[] = "tide.host.message";
static const char result_key[] = "tide.host.result";

typedef struct run_job {
  const char *path;         /* a file, or null */
  const char *code, *name;  /* else a chunk */
  size_t ncode;
  int narg;
  const char *const *args;
  int status;               /* set by the message handler */
} run_job;

static int status_of_name(const char *name)
{
  for (int status = -1; status > -64; status--)
    if (strcmp(tide_status_name(status), name) == 0) return status;
  return TIDE_E_HOST;
}

enum { QUIET = 1 }; /* the status of an error that is a quiet end */

/* Returns the status of an error value: that of a structured error, E_HOST, or QUIET. */
static int status_of(lua_State *L, int index)
{
  int status = TIDE_E_HOST;
  if (!lua_istable(L, index)) return status;
  lua_pushliteral(L, "tide_exit");
  lua_rawget(L, index);
  bool quiet = lua_isnumber(L, -1) && lua_tonumber(L, -1) == 0;
  lua_pushliteral(L, "code");
  lua_rawget(L, index);
  if (lua_type(L, -1) == LUA_TSTRING) status = status_of_name(lua_tostring(L, -1));
  lua_pop(L, 2);
  return quiet ? QUIET : status;
}

/* Returns whether an error is printed in one line: a table whose field `brief` is set. */
static bool is_brief(lua_State *L, int index)
{
  if (!lua_istable(L, index)) return false;
  lua_pushliteral(L, "brief");
  lua_rawget(L, index);
  bool brief = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  return brief;
}

/* Pushes what tide.error.<name> returns for the value at index 1; returns false, with nothing
 * pushed, unless that is of `type`. */
static bool push_of_error(lua_State *L, const char *name, int type)
{
  int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
  if (lua_istable(L, -1)) lua_getfield(L, -1, "tide.error");
  if (lua_istable(L, -1)) lua_getfield(L, -1, name);
  if (lua_isfunction(L, -1)) {
    lua_pushvalue(L, 1);
    if (lua_pcall(L, 1, 1, 0) == 0 && lua_type(L, -1) == type) return true;
  }
  lua_settop(L, top);
  return false;
}

/* Pushes the text of a table without __tostring at index 1; returns false for any other value. */
static bool push_fields(lua_State *L)
{
  if (!lua_istable(L, 1)) return false;
  if (!luaL_getmetafield(L, 1, "__tostring")) return push_of_error(L, "text", LUA_TSTRING);
  lua_pop(L, 1);
  return false;
}

/* Pushes the text of the error value at index 1, whose __tostring may fail or return another
 * type. */
static void push_text(lua_State *L)
{
  if (push_fields(L)) return;
  lua_pushcfunction(L, host_error_text);
  lua_pushvalue(L, 1);
  int rc = lua_pcall(L, 1, 1, 0);
  if (rc == 0 && lua_isstring(L, -1)) return;
  const char *why = rc ? lua_tostring(L, -1) : NULL;
  lua_pushfstring(L, "(error value of type %s, whose __tostring %s%s)", luaL_typename(L, 1),
                  rc ? "failed: " : "gave no text", why ? why : rc ? "without text" : "");
}

/* Replaces the text at index 1 by the error object that tide raised as this text, if it did. */
static void find_object(lua_State *L)
{
  if (lua_type(L, 1) == LUA_TSTRING && push_of_error(L, "of", LUA_TTABLE)) lua_replace(L, 1);
  lua_settop(L, 1);
}

/* Adds what to write to the text on top of a method that was called with a dot. */
static void add_colon(lua_State *L)
{
  const char *text = lua_tostring(L, -1);
  if (text && strstr(text, "attempt to index local 'self' (a nil value)"))
    lua_pushfstring(L, "%s; call a method with a colon: object:method(...)", text);
}

/* Handles an error: stores the status, returns text and traceback. */
static int explain(lua_State *L)
{
  run_job *job = lua_touserdata(L, lua_upvalueindex(1));
  find_object(L);
  job->status = status_of(L, 1);
  push_text(L);
  add_colon(L);
  if (is_brief(L, 1)) return 1;
  luaL_traceback(L, L, lua_tostring(L, -1), 1);
  return 1;
}

/* Stores the value on top of the stack, or nil, under key in the registry and pops it. */
static void keep(lua_State *L, const char *key) { lua_setfield(L, LUA_REGISTRYINDEX, key); }

static void forget_last(lua_State *L)
{
  lua_pushnil(L);
  keep(L, message_key);
  lua_pushnil(L);
  keep(L, result_key);
}

/* Sets the global `arg`. */
static void set_arg(lua_State *L, const run_job *job)
{
  lua_createtable(L, job->narg, 1);
  lua_pushstring(L, job->path ? job->path : job->name);
  lua_rawseti(L, -2, 0);
  for (int i = 0; i < job->narg; i++) {
    lua_pushstring(L, job->args[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setglobal(L, "arg");
}

/* Loads and calls the chunk. Returns a status of lua_pcall, and pushes the value or the error. */
static int call_chunk(lua_State *L, run_job *job)
{
  lua_pushlightuserdata(L, job);
  lua_pushcclosure(L, explain, 1);
  int handler = lua_gettop(L);
  int rc = job->path ? chunks_load_file(L, job->path)
                     : luaL_loadbuffer(L, job->code, job->ncode, job->name);
  if (rc) return rc;
  for (int i = 0; i < job->narg; i++) lua_pushstring(L, job->args[i]);
  return lua_pcall(L, job->narg, 1, handler);
}

/* Runs the job, a light userdata at index 1; keeps its status, and its message or result. */
static int run_protected(lua_State *L)
{
  run_job *job = lua_touserdata(L, 1);
  forget_last(L);
  if (!lua_checkstack(L, job->narg + 8)) {
    lua_pushfstring(L, "%d arguments are too many", job->narg);
    keep(L, message_key);
    return 0;
  }
  set_arg(L, job);
  int rc = call_chunk(L, job), type = lua_type(L, -1);
  if (rc == LUA_ERRMEM) {
    job->status = TIDE_E_NOMEM;
    lua_gc(L, LUA_GCCOLLECT, 0); /* keep allocates */
  }
  if (rc == 0 || job->status == QUIET) job->status = TIDE_OK;
  if (rc && job->status < 0 && type == LUA_TSTRING) keep(L, message_key);
  if (rc == 0 && lua_tostring(L, -1)) keep(L, result_key); /* a number is a text from here on */
  return 0;
}

/* LuaJIT does not collect before it raises "not enough memory": what a chunk has left would keep
 * the state out of memory. The function was made when the state was opened, since without memory
 * none can be made. */
static void collect_garbage(lua_State *L)
{
  lua_getfield(L, LUA_REGISTRYINDEX, host_collect_key);
  if (!lua_isfunction(L, -1) || lua_pcall(L, 0, 0, 0)) lua_pop(L, 1);
}

/* Runs a job. Everything that may raise is below lua_cpcall: an error outside of it would end the
 * process. */
static int host_run(lua_State *L, run_job *job)
{
  job->status = TIDE_E_HOST;
  int rc = lua_cpcall(L, run_protected, job);
  if (rc) lua_pop(L, 1);
  if (rc) job->status = rc == LUA_ERRMEM ? TIDE_E_NOMEM : TIDE_E_HOST;
  if (job->status == TIDE_E_NOMEM) collect_garbage(L);
  return job->status;
}

int tide_lua_run_file(lua_State *L, const char *path, int narg, const char *const *args)
{
  if (!L || !path || narg < 0 || (narg > 0 && !args)) return TIDE_E_ARG;
  run_job job = {.path = path, .narg = narg, .args = args};
  return host_run(L, &job);
}

int tide_lua_run_string(lua_State *L, const char *code, size_t ncode, const char *name, int narg,
                        const char *const *args)
{
  if (!L || !code || narg < 0 || (narg > 0 && !args)) return TIDE_E_ARG;
  run_job job = {.code = code, .ncode = ncode, .name = name ? name : "=chunk", .narg = narg,
                 .args = args};
  return host_run(L, &job);
}

/* Returns a string that the registry keeps alive. Reading it with a string key that is interned
 * there already does not allocate. */
static const char *kept(lua_State *L, const char *key, size_t *n)
{
  lua_getfield(L, LUA_REGISTRYINDEX, key);
  const char *text = lua_tolstring(L, -1, n);
  lua_pop(L, 1);
  return text;
}

const char *tide_lua_message(lua_State *L)
{
  const char *text = L ? kept(L, message_key, NULL) : NULL;
  return text ? text : "";
}

const char *tide_lua_result(lua_State *L, size_t *n)
{
  if (L) return kept(L, result_key, n);
  if (n) *n = 0;
  return NULL;
}
