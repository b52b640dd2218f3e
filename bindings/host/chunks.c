/* The table of compiled chunks: see chunks.h.
 *
 * Invariants: an entry is added once and stays until the table is freed. Its name and text never
 * change; its code does not once it is READY. `lock` guards the buckets, the states of the entries,
 * the count, the bytes and the idle compiler.
 */
#include "chunks.h"

#include <fcntl.h>
#include <lauxlib.h>
#include <lualib.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUCKETS = 512, MOST_BYTES = 64 << 20 };

typedef struct entry {
  struct entry *next;
  char *code;
  size_t ncode, room, ntext;
  enum { BUSY, READY, FAILED } state;
  const char *name; /* in text, behind its ntext bytes */
  char text[];
} entry;

struct tide_host_chunks {
  pthread_mutex_t lock;
  pthread_cond_t compiled; /* an entry is no longer BUSY */
  entry *buckets[BUCKETS];
  lua_State *idle;         /* a compiler for the next text; null: a new one is made */
  int count;               /* of texts that were compiled */
  size_t bytes;            /* of texts and bytecode */
  pid_t pid;
  atomic_int refs;
};

static const char key[] = "tide.host.chunks";

tide_host_chunks *tide_host_chunks_new(void)
{
  tide_host_chunks *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  pthread_mutex_init(&c->lock, NULL);
  pthread_cond_init(&c->compiled, NULL);
  atomic_init(&c->refs, 1);
  c->pid = getpid();
  return c;
}

tide_host_chunks *chunks_retain(tide_host_chunks *c)
{
  if (c) atomic_fetch_add(&c->refs, 1);
  return c;
}

/* Returns whether this process made the table. In a forked child an entry may be BUSY, and the lock
 * taken, by a thread that is not there. */
static bool is_ours(const tide_host_chunks *c) { return c->pid == getpid(); }

void tide_host_chunks_free(tide_host_chunks *c)
{
  if (!c || atomic_fetch_sub(&c->refs, 1) > 1 || !is_ours(c)) return;
  for (int i = 0; i < BUCKETS; i++) {
    for (entry *e = c->buckets[i], *next; e; e = next) {
      next = e->next;
      free(e->code);
      free(e);
    }
  }
  if (c->idle) lua_close(c->idle);
  pthread_mutex_destroy(&c->lock);
  pthread_cond_destroy(&c->compiled);
  free(c);
}

int tide_host_chunks_compiled(tide_host_chunks *c)
{
  if (!c) return 0;
  pthread_mutex_lock(&c->lock);
  int count = c->count;
  pthread_mutex_unlock(&c->lock);
  return count;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static int append_code(lua_State *L, const void *p, size_t n, void *user)
{
  entry *e = user;
  (void)L;
  if (e->ncode + n > e->room) {
    size_t room = 2 * e->room + n;
    char *more = realloc(e->code, room);
    if (!more) return 1;
    e->code = more;
    e->room = room;
  }
  memcpy(e->code + e->ncode, p, n);
  e->ncode += n;
  return 0;
}

/* LuaJIT opens its library ffi at the first literal like 1LL, and keeps that in package.loaded:
 * without this table a collection frees what it still uses. */
static int open_package(lua_State *L)
{
  lua_pushcfunction(L, luaopen_package);
  lua_pushliteral(L, LUA_LOADLIBNAME);
  lua_call(L, 1, 0);
  return 0;
}

/* Returns a state that compiles, or null without memory. */
static lua_State *new_compiler(void)
{
  lua_State *L = luaL_newstate();
  if (!L || lua_cpcall(L, open_package, NULL) == 0) return L;
  lua_close(L);
  return NULL;
}

/* Fills the code of an entry; returns whether its text compiles. Runs without the lock. */
static bool compile_text(lua_State *L, entry *e)
{
  bool done = luaL_loadbuffer(L, e->text, e->ntext, e->name) == 0 &&
              lua_dump(L, append_code, e) == 0;
  lua_settop(L, 0);
  return done;
}

/* Compiles a new entry, without the lock meanwhile; requires the lock. */
static void fill_entry(tide_host_chunks *c, entry *e)
{
  lua_State *L = c->idle;
  c->idle = NULL;
  pthread_mutex_unlock(&c->lock);
  if (!L) L = new_compiler();
  bool done = L && compile_text(L, e);
  pthread_mutex_lock(&c->lock);
  e->state = done ? READY : FAILED;
  c->count += done;
  c->bytes += e->ncode;
  pthread_cond_broadcast(&c->compiled);
  if (c->idle && L) lua_close(L);
  else if (L) c->idle = L;
}

/* ---- the table ------------------------------------------------------------------------------- */

static entry **bucket_of(tide_host_chunks *c, const char *name, size_t n)
{
  unsigned hash = 2166136261u ^ (unsigned)n;
  for (; *name; name++) hash = (hash ^ (unsigned char)*name) * 16777619u;
  return &c->buckets[hash % BUCKETS];
}

/* Adds an entry that is BUSY; returns null without memory or room. Requires the lock. */
static entry *add_entry(tide_host_chunks *c, const char *text, size_t n, const char *name)
{
  size_t bytes = sizeof(entry) + n + strlen(name) + 1;
  if (n > MOST_BYTES || c->bytes + bytes > MOST_BYTES) return NULL;
  entry *e = malloc(bytes), **bucket = bucket_of(c, name, n);
  if (!e) return NULL;
  *e = (entry){.next = *bucket, .ntext = n, .state = BUSY, .name = e->text + n};
  memcpy(e->text, text, n);
  strcpy(e->text + n, name);
  c->bytes += bytes;
  *bucket = e;
  return e;
}

/* Returns the entry of a chunk, compiled, or null where the state has to compile the text itself:
 * the text is wrong, or there is no memory. */
static const entry *obtain(tide_host_chunks *c, const char *text, size_t n, const char *name)
{
  pthread_mutex_lock(&c->lock);
  entry *e = *bucket_of(c, name, n);
  while (e && (e->ntext != n || strcmp(e->name, name) != 0 || memcmp(e->text, text, n) != 0))
    e = e->next;
  if (!e && (e = add_entry(c, text, n, name))) fill_entry(c, e);
  while (e && e->state == BUSY) pthread_cond_wait(&c->compiled, &c->lock);
  const entry *ready = e && e->state == READY ? e : NULL;
  pthread_mutex_unlock(&c->lock);
  return ready;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Returns whether the state watches its compiler (jit.attach, as `luajit -jbc` and -jv do). Such a
 * state compiles its texts itself. */
static bool is_watched(lua_State *L)
{
  int top = lua_gettop(L);
  lua_getfield(L, LUA_REGISTRYINDEX, "_VMEVENTS");
  lua_pushnil(L);
  bool watched = lua_istable(L, top + 1) && lua_next(L, top + 1) != 0;
  lua_settop(L, top);
  return watched;
}

static tide_host_chunks *chunks_of(lua_State *L)
{
  lua_getfield(L, LUA_REGISTRYINDEX, key);
  tide_host_chunks *c = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return c && is_ours(c) && !is_watched(L) ? c : NULL;
}

/* Pushes the function of an entry. */
static int push_entry(lua_State *L, const entry *e)
{
  return luaL_loadbuffer(L, e->code, e->ncode, e->name);
}

int chunks_load(lua_State *L, const char *text, size_t n, const char *name)
{
  tide_host_chunks *c = chunks_of(L);
  const entry *e = c ? obtain(c, text, n, name) : NULL;
  return e ? push_entry(L, e) : luaL_loadbuffer(L, text, n, name);
}

int chunks_compile(lua_State *L)
{
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  if (chunks_load(L, text, n, luaL_checkstring(L, 2)) == 0) return 1;
  lua_pushnil(L);
  lua_insert(L, -2);
  return 2;
}

/* Returns the n bytes of an open file, to be freed; null unless it has exactly these. */
static char *read_bytes(int fd, size_t n)
{
  char *text = malloc(n + 1);
  size_t have = 0;
  ssize_t got = 1;
  while (text && got > 0 && have <= n) {
    got = read(fd, text + have, n + 1 - have);
    have += got > 0 ? (size_t)got : 0;
  }
  if (got == 0 && have == n) return text;
  free(text);
  return NULL;
}

/* Returns the entry of an open file, which it closes; null where LuaJIT has to read it. That is so
 * for a pipe, which can be read only once. name: "@" and the path. */
static const entry *obtain_file(tide_host_chunks *c, int fd, const char *name)
{
  struct stat what;
  bool regular = c && fstat(fd, &what) == 0 && S_ISREG(what.st_mode) && what.st_size < MOST_BYTES;
  char *text = regular ? read_bytes(fd, (size_t)what.st_size) : NULL;
  close(fd);
  const entry *e = text ? obtain(c, text, (size_t)what.st_size, name) : NULL;
  free(text);
  return e;
}

int chunks_load_file(lua_State *L, const char *path)
{
  tide_host_chunks *c = chunks_of(L);
  const char *name = lua_pushfstring(L, "@%s", path);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  const entry *e = fd >= 0 ? obtain_file(c, fd, name) : NULL;
  int rc = e ? push_entry(L, e) : luaL_loadfile(L, path);
  lua_remove(L, -2);
  return rc;
}

/* Pushes the path of a module, behind "@", and opens it; returns -1, with nothing pushed, if no
 * template leads to a file. */
static int open_module(lua_State *L, const char *module, const char *templates)
{
  int top = lua_gettop(L);
  const char *name = luaL_gsub(L, module, ".", LUA_DIRSEP), *end;
  for (; *templates; templates = end + (*end == ';')) {
    end = strchrnul(templates, ';');
    lua_pushliteral(L, "@");
    lua_pushlstring(L, templates, (size_t)(end - templates));
    luaL_gsub(L, lua_tostring(L, -1), "?", name);
    lua_remove(L, -2);
    lua_concat(L, 2);
    int fd = open(lua_tostring(L, -1) + 1, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      lua_settop(L, top + 1);
      continue;
    }
    lua_replace(L, top + 1);
    return fd;
  }
  lua_settop(L, top);
  return -1;
}

/* Pushes the text of a module that is not found: the places where it is not. */
static int push_absent(lua_State *L)
{
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushvalue(L, 1);
  lua_getfield(L, lua_upvalueindex(1), "path");
  lua_call(L, 2, 2);
  return 1;
}

/* Loads Lua files for package.loaders, as LuaJIT's own loader. Upvalues: the table `package` and
 * its function `searchpath`. */
static int load_module(lua_State *L)
{
  const char *module = luaL_checkstring(L, 1);
  lua_getfield(L, lua_upvalueindex(1), "path");
  const char *templates = lua_tostring(L, -1);
  if (!templates) return luaL_error(L, LUA_QL("package.path") " must be a string");
  tide_host_chunks *c = chunks_of(L);
  int fd = open_module(L, module, templates);
  if (fd < 0) return push_absent(L);
  const char *name = lua_tostring(L, -1), *path = name + 1;
  const entry *e = obtain_file(c, fd, name);
  if ((e ? push_entry(L, e) : luaL_loadfile(L, path)) == 0) return 1;
  return luaL_error(L, "error loading module " LUA_QS " from file " LUA_QS ":\n\t%s", module, path,
                    lua_tostring(L, -1));
}

void chunks_install(lua_State *L, tide_host_chunks *c)
{
  if (!c) return;
  lua_pushlightuserdata(L, c);
  lua_setfield(L, LUA_REGISTRYINDEX, key);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaders");
  lua_pushvalue(L, -2);
  lua_getfield(L, -3, "searchpath");
  lua_pushcclosure(L, load_module, 2);
  lua_rawseti(L, -2, 2);
  lua_pop(L, 2);
}
