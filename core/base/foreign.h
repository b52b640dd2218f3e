/* Releases from threads that do not own the context.
 *
 * Such a release changes nothing but a lock-free stack of the context. The owner settles the stack
 * in its next call that does so (every op, every collective, tide_ctx_attach, tide_ctx_release).
 * Tensors have a stack of their own (core/tensor/tensor.c).
 */
#ifndef TIDE_BASE_FOREIGN_H
#define TIDE_BASE_FOREIGN_H

#include "core/base/ctx.h"

/* The first member of an object that any thread may release. */
typedef struct tide__foreign {
  struct tide__foreign *next;      /* link of the stack */
  atomic_int count;                /* releases that are not settled */
  void (*release)(struct tide__foreign *f, int n); /* performs n releases, on the owner's thread */
} tide__foreign;

/* Releases the object once: now on the owner's thread, else when the owner settles. Thread-safe. */
void tide__foreign_release(tide_ctx *ctx, tide__foreign *f);
/* Performs the pending releases. Owner's thread only. */
void tide__foreign_settle(tide_ctx *ctx);

#endif
