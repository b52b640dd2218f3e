/* Ranks as threads: N Lua states on N contexts in one process, each running the same chunk.
 *
 * A job is made, filled and run once; the calling thread waits. Contexts are made before the first
 * thread starts and released after the last has ended, so tide_host_ranks_interrupt is safe at any
 * time in between, also in a signal handler.
 *
 * When a rank fails, the others are interrupted; the first to fail is the cause, those that stop
 * because of it answer E_PEER. What uses plain C types only is in ranks_abi.h, whose text the
 * library carries for LuaJIT.
 */
#ifndef TIDE_RANKS_H
#define TIDE_RANKS_H

#include <lua.h>

#include "tide/tide.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#include "ranks_abi.h"

/* C hosts only. begin is called on each rank's thread after its state is open (not 0: the rank
 * fails with E_HOST), end before it is closed. failed is called once, on the thread of the first
 * rank that fails, when the others have been told to stop but may go on for long; from then on
 * first, and status and message of that rank, may be asked for on any thread. Each may be null. */
typedef struct tide_host_ranks_hooks {
  int  (*begin)(lua_State *L, int rank, void *user);
  void (*end)(lua_State *L, int rank, void *user);
  void (*failed)(int rank, void *user);
  void *user;
} tide_host_ranks_hooks;
void tide_host_ranks_set_hooks(tide_host_ranks *r, const tide_host_ranks_hooks *hooks);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
