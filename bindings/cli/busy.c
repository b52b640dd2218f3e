/* Lua code that runs at a prompt, and how Ctrl-C stops it.
 *
 * While a line runs, a signal sets a hook in its state, which raises an error at the next
 * instruction of the interpreter; compiled loops do not notice it, so the prompt keeps lines out of
 * the compiler. The hook is set on the thread that runs the state, as LuaJIT requires: for ranks
 * the signal is passed on to their threads.
 */
#include <lauxlib.h>
#include <signal.h>

#include "cli.h"

/* The state whose line runs on this thread. */
static _Thread_local lua_State *volatile running;

static void raise_hook(lua_State *L, lua_Debug *ar)
{
  (void)ar;
  lua_sethook(L, NULL, 0, 0);
  luaL_error(L, "interrupted");
}

/* In a signal handler, on the thread that runs the state. */
static void stop_here(void)
{
  if (running) lua_sethook(running, raise_hook, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

static void on_passed(int sig)
{
  (void)sig;
  stop_here();
}

void cli_busy_here(void) { stop_here(); }

void cli_busy_interrupt(cli_busy *b)
{
  if (atomic_load(&b->on)) pthread_kill(b->thread, SIGURG);
}

void cli_busy_last(cli_busy *b)
{
  atomic_store(&b->over, true); /* first: this call or l_busy then stops the line */
  cli_busy_interrupt(b);
}

void cli_busy_end(cli_busy *b)
{
  atomic_store(&b->on, false);
  running = NULL;
}

/* busy(on): a line of this state begins or has ended. Upvalue: the rank's cli_busy, or null. */
static int l_busy(lua_State *L)
{
  cli_busy *b = lua_touserdata(L, lua_upvalueindex(1));
  bool on = lua_toboolean(L, 1);
  if (b && on) b->thread = pthread_self();
  running = on ? L : NULL;
  if (b) atomic_store(&b->on, on);
  if (!on) lua_sethook(L, NULL, 0, 0);
  else if (b && atomic_load(&b->over)) stop_here();
  return 0;
}

static void describe_busy(lua_State *L, const void *busy)
{
  lua_pushlightuserdata(L, (void *)busy);
  lua_pushcclosure(L, l_busy, 1);
  lua_setfield(L, -2, "busy");
}

int cli_busy_watch(lua_State *L, cli_busy *b)
{
  struct sigaction action = {.sa_handler = on_passed, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGURG, &action, NULL);
  return tide_host_describe(L, describe_busy, b);
}
