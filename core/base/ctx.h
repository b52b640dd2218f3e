/* struct tide_ctx: the state shared by all layers.
 *
 * There is no global: allocator, log, parameters, error record, counters, generator and one slot
 * for each higher layer live here; a second context shares none of it.
 *
 * Lifetime: counted. Every object made from a context holds it, so finalizers may run in any order;
 * the last release tears it down (core/tide.c). Threads: everything but `foreign`, `released` and
 * `interrupt` belongs to the owner thread.
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
  char message[TIDE__MESSAGE];      /* text of error.message */
  tide_stats stats;
  int64_t stats_epoch;              /* number of calls of tide_stats_mark */
  tide__params params;
  int nthread;
  pthread_t owner;
  const uint32_t *fork_mark;        /* 1; 0 in a child forked after the context was made */

  uint64_t rng_seed, rng_stream, rng_offset;
  int64_t nalloc;                   /* allocations so far while fail_alloc is set */
  double next_id;                   /* tensor ids, counted up, exact below 2^53 */

  struct tide__trace *trace;        /* spans, made at first use */
  struct tide__device_table *devices; /* backends and their caches */
  struct tide_graph *capture;       /* the step being captured, or null */
  struct tide__party *parties;      /* capture participants (capture.h) */
  struct tide__storage *storages;   /* free storage headers */
  struct tide__scope *scope;        /* innermost open step scope */
  struct tide__tensor_pool *tensors;/* free tensor handles */
  tide_tensor *rng_place;           /* counter of random ops in device memory, or null */
  struct tide__kernel_index *kernels; /* rows of kernel.def by (op, device, dtype) */
  const struct tide__recorder *recorder; /* calls into the tape */
  struct tide__tape *tape;          /* recorded nodes */
  bool recording;                   /* ops with inputs that need gradients are recorded */

  _Atomic(void *) foreign;          /* tensors released by other threads, a lock-free stack */
  _Atomic(struct tide__foreign *) released; /* other objects that they released: foreign.h */
  atomic_int interrupt;             /* set by tide_interrupt */
};

/* Adds a reference of an object to its context. */
static inline void tide__ctx_hold(tide_ctx *ctx) { ctx->refs++; }
/* Drops a reference; tears the context down at 0. Defined in core/tide.c. */
void tide__ctx_drop(tide_ctx *ctx);

#endif
