/* Lua code that runs at a prompt, and how Ctrl-C stops it.
 *
 * While a line runs, a signal sets a hook in its state, which raises an error at the next
 * instruction of the interpreter; compiled loops do not notice it, so the prompt keeps lines out of
 * the compiler. The hook is set on the thread that runs the state, as LuaJIT requires: for ranks
 * the signal is passed on to their threads.
 *
 * Lua code may catch that error and go on (a loop around pcall). From the second Ctrl-C of a line
 * on, the hook stays and raises again, until the error has left the line (l_line, in C).
 */
#include <lauxlib.h>
#include <signal.h>

#include "cli.h"

/* The state whose line runs on this thread, and how often it was to stop. */
static _Thread_local lua_State *volatile running;
static _Thread_local volatile sig_atomic_t asked;

static void raise_hook(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  if (asked < 2) lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted");
}

/* In a signal handler, on the thread that runs the state. */
static void stop_here(void)
{
  if (!running) return;
  if (asked < 2) asked++;
  lua_sethook(running, raise_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static void on_passed(int sig)
{
  (void)sig;
  stop_here(); /* changes no errno */
}

void cli_busy_here(void) { stop_here(); }

void cli_busy_interrupt(cli_busy *b)
{
  if (atomic_load(&b->on)) pthread_kill(b->thread, SIGURG);
}

void cli_busy_last(cli_busy *b)
{
  atomic_store(&b->over, true); /* first: this call or begin_line then stops the line */
  cli_busy_interrupt(b);
}

void cli_busy_end(cli_busy *b)
{
  atomic_store(&b->on, false);
  running = NULL;
}

static void begin_line(lua_State *L, cli_busy *b)
{
  asked = 0;
  if (b) b->thread = pthread_self();
  running = L;
  if (b) atomic_store(&b->on, true);
  if (b && atomic_load(&b->over)) stop_here();
}

/* Returns whether a line has ended by os.exit of a rank, whose own hook stays. */
static bool end_line(lua_State *L, cli_busy *b, bool failed)
{
  running = NULL;
  if (b) atomic_store(&b->on, false);
  bool is_exit = failed && lua_istable(L, -1);
  if (!is_exit) lua_sethook(L, NULL, 0, 0);
  return is_exit;
}

/* line(fn) returns what fn, an xpcall of a line, returns. Upvalue: the rank's cli_busy, or null.
 * An error is one of the hook, or of os.exit. */
static int l_line(lua_State *L)
{
  cli_busy *b = lua_touserdata(L, lua_upvalueindex(1));
  lua_settop(L, 1);
  begin_line(L, b);
  bool failed = lua_pcall(L, 0, LUA_MULTRET, 0) != 0;
  if (end_line(L, b, failed)) return lua_error(L);
  if (!failed && (asked < 2 || lua_toboolean(L, 1))) return lua_gettop(L);
  lua_pushboolean(L, 0);
  lua_pushliteral(L, "interrupted");
  return 2;
}

static void describe_busy(lua_State *L, const void *busy)
{
  lua_pushlightuserdata(L, (void *)busy);
  lua_pushcclosure(L, l_line, 1);
  lua_setfield(L, -2, "line");
}

int cli_busy_watch(lua_State *L, cli_busy *b)
{
  struct sigaction action = {.sa_handler = on_passed, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGURG, &action, NULL);
  return tide_host_describe(L, describe_busy, b);
}
