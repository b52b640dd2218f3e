/* Opening a Lua state on a context: where the Lua files are, and what the state reads about its
 * host.
 *
 * The Lua side reads package.loaded['tide.host']: ctx (light userdata, borrowed), library and
 * host_library (paths of loaded libraries), and on a rank of several compile(text, name), which
 * compiles through the table that the ranks share. tide_host_describe adds fields.
 */
#include "state.h"

#include <dlfcn.h>
#include <lauxlib.h>
#include <limits.h>
#include <lualib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chunks.h"
#include "tide_lua.h"

/* Modules packed into the library by pack.cmake; absent when it was not run. */
typedef struct tide__pack_entry {
  const char *module, *chunk; /* "tide.nn.linear", "@tide:lua/tide/nn/linear.lua" */
  const char *text;
  size_t size;
} tide__pack_entry;
extern const tide__pack_entry tide__pack[] __attribute__((weak)); /* ends with a null module */

/* ---- where the Lua files are ----------------------------------------------------------------- */

static bool is_root(const char *folder)
{
  char path[PATH_MAX];
  int n = snprintf(path, sizeof path, "%s/lua/tide/init.lua", folder);
  return n > 0 && n < (int)sizeof path && access(path, R_OK) == 0;
}

/* Finds the absolute path of the loaded object that holds an address; false if unknown. */
static bool object_path(const void *address, char path[PATH_MAX])
{
  Dl_info info;
  return dladdr(address, &info) && info.dli_fname && realpath(info.dli_fname, path);
}

/* Returns the address of a function as data, by the conversion that ISO C permits. */
static const void *address_of(void (*fn)(void))
{
  const void *p;
  memcpy(&p, &fn, sizeof p);
  return p;
}

static const void *own_address(void) { return address_of((void (*)(void))tide_lua_open); }
static const void *core_address(void) { return address_of((void (*)(void))tide_version); }

static bool find_root(char root[PATH_MAX])
{
  static const char *const ups[] = {"..", "../..", "../share/tide", "../../share/tide", "."};
  char object[PATH_MAX], folder[PATH_MAX + 32];
  if (!object_path(own_address(), object)) return false;
  char *slash = strrchr(object, '/');
  if (slash) *slash = 0;
  for (size_t i = 0; i < sizeof ups / sizeof ups[0]; i++) {
    snprintf(folder, sizeof folder, "%s/%s", object, ups[i]);
    if (is_root(folder) && realpath(folder, root)) return true;
  }
  return false;
}

/* ---- opening --------------------------------------------------------------------------------- */

typedef struct open_job {
  tide_ctx *ctx;
  const char *root;         /* null: the packed modules */
  tide_host_chunks *chunks; /* null: the state compiles for itself */
  int status;               /* of the context's claim */
} open_job;

static int load_packed(lua_State *L)
{
  const tide__pack_entry *e = lua_touserdata(L, lua_upvalueindex(1));
  if (chunks_load(L, e->text, e->size, e->chunk)) return lua_error(L);
  lua_pushstring(L, e->module);
  lua_call(L, 1, 1);
  return 1;
}

static void preload_packed(lua_State *L)
{
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  for (const tide__pack_entry *e = tide__pack; e->module; e++) {
    lua_pushlightuserdata(L, (void *)e);
    lua_pushcclosure(L, load_packed, 1);
    lua_setfield(L, -2, e->module);
  }
  lua_pop(L, 2);
}

static void prepend_path(lua_State *L, const char *root)
{
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "path");
  lua_pushfstring(L, "%s/bindings/?.lua;%s/lua/?.lua;%s/lua/?/init.lua;%s/?.lua;%s", root, root,
                  root, root, lua_tostring(L, -1));
  lua_setfield(L, -3, "path");
  lua_pop(L, 2);
}

static void set_path_field(lua_State *L, const void *address, const char *field)
{
  char path[PATH_MAX];
  if (!object_path(address, path)) return;
  lua_pushstring(L, path);
  lua_setfield(L, -2, field);
}

static void describe_host(lua_State *L, const open_job *job)
{
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaded");
  lua_newtable(L);
  lua_pushlightuserdata(L, job->ctx);
  lua_setfield(L, -2, "ctx");
  set_path_field(L, core_address(), "library");
  set_path_field(L, own_address(), "host_library");
  if (job->chunks) {
    lua_pushcfunction(L, chunks_compile);
    lua_setfield(L, -2, "compile");
  }
  lua_setfield(L, -2, "tide.host");
  lua_pop(L, 2);
}

const char host_collect_key[] = "tide.host.collect";

static int collect_all(lua_State *L)
{
  lua_gc(L, LUA_GCCOLLECT, 0);
  return 0;
}

static int drop_claim(lua_State *L)
{
  tide_ctx **claimed = lua_touserdata(L, 1);
  if (*claimed) tide_ctx_claim(*claimed, 0);
  return 0;
}

/* Claims the context until lua_close. */
static void claim(lua_State *L, open_job *job)
{
  tide_ctx **claimed = lua_newuserdata(L, sizeof *claimed);
  *claimed = NULL;
  lua_newtable(L);
  lua_pushcfunction(L, drop_claim);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  lua_setfield(L, LUA_REGISTRYINDEX, "tide.host.claim");
  job->status = tide_ctx_claim(job->ctx, 1);
  if (job->status < 0)
    luaL_error(L, "tide_lua_open: argument 'ctx': %s", tide_error(job->ctx)->message);
  *claimed = job->ctx;
}

static int open_protected(lua_State *L)
{
  open_job *job = lua_touserdata(L, 1);
  claim(L, job);
  luaL_openlibs(L);
  lua_pushcfunction(L, collect_all);
  lua_setfield(L, LUA_REGISTRYINDEX, host_collect_key);
  describe_host(L, job);
  chunks_install(L, job->chunks);
  if (job->root) prepend_path(L, job->root);
  else preload_packed(L);
  lua_getglobal(L, "require");
  lua_pushliteral(L, "tide");
  lua_call(L, 1, 0);
  return 0;
}

static int refuse(int status, char *msg, size_t n, const char *text)
{
  if (msg && n) snprintf(msg, n, "%s", text);
  return status;
}

/* Returns whether the program has brought a Lua of its own whose functions hide those of LuaJIT
 * from this library: luaL_newstate lies where lua_callk does, a function that LuaJIT lacks. */
static bool is_hidden(Dl_info *other)
{
  Dl_info found;
  void *later = dlsym(RTLD_DEFAULT, "lua_callk"); /* Lua 5.2 and later; 5.1 opens, and lacks ffi */
  return later && dladdr(later, other) &&
         dladdr(address_of((void (*)(void))luaL_newstate), &found) &&
         found.dli_fbase == other->dli_fbase;
}

static int refuse_other_lua(char *msg, size_t n, const Dl_info *other)
{
  if (msg && n)
    snprintf(msg, n, "tide_lua_open: the Lua in '%s' hides LuaJIT, which tide needs; link the "
             "program to LuaJIT, or do not export its own Lua (no -rdynamic, RTLD_LOCAL)",
             other->dli_fname);
  return TIDE_E_HOST;
}

int host_error_text(lua_State *L)
{
  if (luaL_callmeta(L, 1, "__tostring")) return 1;
  if (!lua_isstring(L, 1)) lua_pushfstring(L, "(error value of type %s)", luaL_typename(L, 1));
  return 1;
}

int host_state_open(lua_State **out, tide_ctx *ctx, const char *root, tide_host_chunks *chunks,
                    char *msg, size_t n)
{
  if (!out) return refuse(TIDE_E_ARG, msg, n, "tide_lua_open: argument 'out' is null");
  *out = NULL;
  if (!ctx) return refuse(TIDE_E_ARG, msg, n, "tide_lua_open: argument 'ctx' is null");
  if (!tide_ctx_stats(ctx))
    return refuse(TIDE_E_ARG, msg, n, "tide_lua_open: argument 'ctx': expected a context of "
                  "tide_ctx_new, got another object");
  char found[PATH_MAX];
  if (root && !is_root(root))
    return refuse(TIDE_E_IO, msg, n, "tide_lua_open: 'root' holds no lua/tide/init.lua");
  if (!root && find_root(found)) root = found;
  if (!root && !tide__pack)
    return refuse(TIDE_E_IO, msg, n, "tide_lua_open: the Lua files of tide were not found next to "
                  "the library; give their folder as 'root'");
  Dl_info other;
  if (is_hidden(&other)) return refuse_other_lua(msg, n, &other);
  lua_State *L = luaL_newstate();
  if (!L) return refuse(TIDE_E_NOMEM, msg, n, "tide_lua_open: no memory for a Lua state");
  open_job job = {ctx, root, chunks, TIDE_OK};
  int rc = lua_cpcall(L, open_protected, &job);
  if (rc) {
    /* turn the error value into text without raising: the state may be out of memory */
    lua_pushcfunction(L, host_error_text);
    lua_insert(L, -2);
    const char *text = lua_pcall(L, 1, 1, 0) == 0 ? lua_tostring(L, -1) : NULL;
    refuse(0, msg, n, text ? text : "tide_lua_open: the Lua state could not be set up");
    lua_close(L);
    return job.status < 0 ? job.status : rc == LUA_ERRMEM ? TIDE_E_NOMEM : TIDE_E_HOST;
  }
  *out = L;
  return TIDE_OK;
}

int tide_lua_open(lua_State **out, tide_ctx *ctx, const char *root, char *msg, size_t n)
{
  return host_state_open(out, ctx, root, NULL, msg, n);
}

/* ---- package.loaded['tide.host'] ------------------------------------------------------------- */

typedef struct describe_job {
  void (*fill)(lua_State *L, const void *user);
  const void *user;
} describe_job;

static int describe_protected(lua_State *L)
{
  const describe_job *job = lua_touserdata(L, 1);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaded");
  lua_getfield(L, -1, "tide.host");
  job->fill(L, job->user);
  return 0;
}

int tide_host_describe(lua_State *L, void (*fill)(lua_State *L, const void *user),
                       const void *user)
{
  describe_job job = {fill, user};
  int rc = lua_cpcall(L, describe_protected, &job);
  if (rc) lua_pop(L, 1);
  return rc;
}
