/* struct tide_ctx: the state shared by all layers.
 *
 * There is no global: allocator, log, parameters, error record, counters, generator and one slot
 * for each higher layer live here; a second context shares none of it.
 *
 * Lifetime: counted. Every object made from a context holds it, so finalizers may run in any order;
 * the last release tears it down (core/tide.c). Threads: everything but `foreign`, `released` and
 * `interrupt` belongs to the owner thread.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/param.h"

struct tide__trace;
struct tide__cache;
struct tide__scope;
struct tide__tape;
struct tide__recorder;
struct tide__tensor_pool;
struct tide__kernel_index;
struct tide__device_table;
struct tide__storage;
struct tide__participant;
struct tide__object;

enum { TIDE__MESSAGE = 1024 };

/* Kinds of public objects. */
enum {
  TIDE__KIND_CTX, TIDE__KIND_TENSOR, TIDE__KIND_BACKWARD, TIDE__KIND_COMM, TIDE__KIND_WORK,
  TIDE__KIND_GROUP, TIDE__KIND_GRAPH, TIDE__KIND_EVENT, TIDE__KIND_BLOB, TIDE__KIND_JSON,
  TIDE__KIND_FILE, TIDE__KIND_SAVING, TIDE__KIND_LOCK, TIDE__KIND_TOKENIZER, TIDE__NKIND
};

struct tide_ctx {
  uint32_t tag;                     /* TIDE__TAG of its kind (base/door.h) */
  tide_opts hooks;                  /* resize, log, user */
  tide_error_record error;
  char message[TIDE__MESSAGE];      /* text of error.message */
  tide_stats stats;                 /* nref keeps the context alive */
  int64_t stats_epoch;              /* number of calls of tide_stats_mark */
  tide__params params;
  int nthread;
  int nwork;                        /* asynchronous collectives that are not settled */
  pthread_t owner;
  const uint32_t *fork_mark;        /* 1; 0 in a child forked after the context was made */
  bool closed;                      /* the host has released the handle; objects keep the rest */
  bool claimed;                     /* see tide_ctx_claim */

  uint64_t rng_seed, rng_stream, rng_offset;
  int64_t nalloc;                   /* allocations so far while fail_alloc is set */
  double next_id;                   /* tensor ids, counted up, exact below 2^53 */

  struct tide__trace *trace;        /* spans, made at first use */
  struct tide__device_table *devices; /* backends and their caches */
  struct tide_graph *capture;       /* the step being captured, or null */
  int64_t graph_turns;              /* captures begun, ended and replayed so far */
  struct tide__participant *participants; /* capture participants (device.h) */
  struct tide__storage *storages;   /* free storage headers */
  struct tide__scope *scope;        /* innermost open step scope */
  struct tide__tensor_pool *tensors;/* free tensor handles */
  tide_tensor *rng_place;           /* counter of random ops in device memory, or null */
  struct tide__kernel_index *kernels; /* rows of kernel.def by (op, device, dtype) */
  const struct tide__recorder *recorder; /* calls into the tape */
  struct tide__tape *tape;          /* recorded nodes */
  bool recording;                   /* ops with inputs that need gradients are recorded */

  _Atomic(void *) foreign;          /* tensors released by other threads, a lock-free stack */
  _Atomic(struct tide__object *) released; /* other objects that they released: door.h */
  struct tide__object *spare[TIDE__NKIND]; /* released objects, for reuse */
  atomic_int interrupt;             /* set by tide_interrupt */
};

/* Runs a statement, for example rc = tide_clone(&y, x), whose ops are not recorded. The statement
 * must not return. */
#define TIDE__UNRECORDED(context, ...)            \
  do {                                            \
    tide_ctx *const unrecorded_ctx = (context);   \
    const bool outer = unrecorded_ctx->recording; \
    unrecorded_ctx->recording = false;            \
    __VA_ARGS__;                                  \
    unrecorded_ctx->recording = outer;            \
  } while (0)

/* Adds a reference of an object to its context. */
static inline void tide__ctx_hold(tide_ctx *ctx) { ctx->stats.nref++; }
/* Drops a reference; tears the context down at 0. Defined in core/tide.c. */
void tide__ctx_drop(tide_ctx *ctx);
