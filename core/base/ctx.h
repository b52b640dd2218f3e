/* struct tide_ctx: what every layer shares, and nothing else.
 *
 * There is no global. Allocator, log, parameters, error record, counters, generator
 * and one slot for each higher layer live here; a second context shares none of it.
 *
 * Lifetime: counted. Every object made from a context holds it, so finalizers may run in any
 * order; the last release tears it down (core/tide.c).
 * Threads: everything but `foreign`, `released` and `interrupt` belongs to the owner thread.
 */
#ifndef TIDE_BASE_CTX_H
#define TIDE_BASE_CTX_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/param.h"
#include "tide/tide.h"

struct tide__trace;
struct tide__cache;
struct tide__scope;
struct tide__tape;
struct tide__recorder;
struct tide__tensor_pool;
struct tide__kernel_index;
struct tide__device_table;
struct tide__storage;
struct tide__party;

enum { TIDE__MESSAGE = 1024 };

struct tide_ctx {
  int64_t refs;                     /* the handle of the user plus one for every object */
  tide_opts hooks;                  /* resize, log, user */
  tide_error_record error;
  char message[TIDE__MESSAGE];      /* text behind error.message */
  tide_stats stats;
  int64_t mark;               /* how often tide_stats_mark was called */
  tide__params params;
  int nthread;
  pthread_t owner;
  const uint32_t *fork_mark;        /* 1; 0 in a child forked after the context was made */

  uint64_t rng_seed, rng_stream, rng_offset;
  int64_t nalloc;                   /* allocations so far while fail_alloc is set */
  double next_id;                   /* tensor ids, counted up, exact below 2^53 */

  struct tide__trace *trace;        /* layer 0 */
  struct tide__device_table *devices; /* layer 1: backends and their caches */
  struct tide_graph *capture;       /* layer 1: the step being recorded, or null */
  struct tide__party *parties;      /* layer 1: who may take part in one (capture.h) */
  struct tide__storage *storages;   /* layer 1: free storage headers */
  struct tide__scope *scope;        /* layer 2: innermost open step scope */
  struct tide__tensor_pool *tensors;/* layer 2: free tensor handles */
  tide_tensor *rng_place;           /* layer 3: where random ops begin, or null */
  struct tide__kernel_index *kernels; /* layer 3: rows of kernel.def by (op, device, dtype) */
  const struct tide__recorder *recorder; /* layer 3's window to the tape */
  struct tide__tape *tape;          /* layer 4 */
  bool recording;                   /* ops with inputs that need gradients are recorded */

  _Atomic(void *) foreign;          /* tensors released by other threads, a lock-free stack */
  _Atomic(struct tide__foreign *) released; /* other objects that they released: foreign.h */
  atomic_int interrupt;             /* set by tide_interrupt */
};

/* Counted reference of an object to its context. */
static inline void tide__ctx_hold(tide_ctx *ctx) { ctx->refs++; }
/* Filled by the composition root: tears the context down when refs reaches 0. */
void tide__ctx_drop(tide_ctx *ctx);

#endif
