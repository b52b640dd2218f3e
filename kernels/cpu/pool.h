/* Parallel loops for CPU kernels over the one OpenMP pool of the process.
 *
 * Work is cut by index, never by thread, so a kernel's result does not depend on the number of
 * threads. Below the grain, and with one thread, the loop runs inline at no cost. Inside a loop
 * body denormals are flushed to zero on every thread, rounding is to nearest and nothing traps; the
 * caller's floating-point state is restored on return.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* thread is in [0, nthread): an index for per-thread scratch. */
typedef void (*tide__pool_fn)(void *arg, int64_t begin, int64_t end, int thread);

/* Cuts [0, n) into at most nthread contiguous ranges of at least grain items. For even work. */
void tide__pool_for(int nthread, int64_t n, int64_t grain, tide__pool_fn fn, void *arg);

/* Distributes [0, n) in pieces of `chunk` to free threads. For uneven work; the body must give the
 * same result on any thread. Also used with n = number of tasks, chunk = 1. */
void tide__pool_tasks(int nthread, int64_t n, int64_t chunk, tide__pool_fn fn, void *arg);

/* Returns whether the pool's threads belong to a parent of this forked process; a loop with more
 * than one thread would then block forever. Thread-safe. */
bool tide__pool_is_lost(void);
