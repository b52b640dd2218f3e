/* Ranks as threads: N Lua states on N contexts in one process, each running the same chunk.
 *
 * A job is made, filled and run once; the calling thread waits. Contexts are made before the first
 * thread starts and released after the last has ended, so tide_host_ranks_interrupt is safe at any
 * time in between, also in a signal handler.
 *
 * When a rank fails, the others are interrupted; the first to fail is the cause, those that stop
 * because of it have the status E_PEER. os.exit(code) on a rank ends that rank alone: code 0 well,
 * any other with the message "os.exit(code)". What uses plain C types only is in ranks_abi.h, whose
 * text the library carries for LuaJIT.
 */
#ifndef TIDE_RANKS_H
#define TIDE_RANKS_H

#include "tide/tide.h"

#ifdef __cplusplus
extern "C" {
#endif
#include <lua.h> /* has no C linkage of its own */
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#include "ranks_abi.h"

/* C hosts only; each may be null. begin is called on each rank's thread after its state is open
 * (not 0: the rank fails with E_HOST), end before it is closed, but not on a rank that was
 * abandoned: what begin has put into the state must outlive that rank's thread. failed is called
 * once, on the thread of the first rank that fails, after the others have been interrupted; from
 * then on tide_host_ranks_first, and status and message of that rank, may be read on any thread. */
typedef struct tide_host_ranks_hooks {
  int  (*begin)(lua_State *L, int rank, void *user);
  void (*end)(lua_State *L, int rank, void *user);
  void (*failed)(int rank, void *user);
  void *user;
} tide_host_ranks_hooks;
void tide_host_ranks_set_hooks(tide_host_ranks *r, const tide_host_ranks_hooks *hooks);

/* Calls fill(L, user) with the table package.loaded['tide.host'] on top of the stack, for fields
 * that describe the host to the Lua side; fill may raise. Returns 0, or a status of lua_cpcall. */
int  tide_host_describe(lua_State *L, void (*fill)(lua_State *L, const void *user),
                        const void *user);
/* Makes os.exit end the chunk that runs in L, not the process (see rank_exit.c); ranks have it.
 * Returns 0, or a status of lua_cpcall. */
int  tide_host_rank_exit(lua_State *L);
/* Lets Lua code run again in a state that os.exit has ended. */
void tide_host_rank_code(lua_State *L);
/* Returns the exit code in [0, 255] of the first argument of os.exit: nil and true are 0, false is
 * 1, as in a stock luajit. Raises unless it is a number. */
int  tide_host_exit_code(lua_State *L);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
