/* Releases from threads that do not own the context.
 *
 * Such a release changes nothing but a lock-free stack of the context. The owner settles what lies
 * on it when it next makes a call of tide that looks (every op, every collective, tide_ctx_attach,
 * tide_ctx_release). Tensors have a stack of their own (core/tensor/tensor.c).
 */
#ifndef TIDE_BASE_FOREIGN_H
#define TIDE_BASE_FOREIGN_H

#include "core/base/ctx.h"

/* A member of an object that any thread may release. */
typedef struct tide__foreign {
  struct tide__foreign *next;      /* on the stack */
  atomic_int count;                /* releases that are not settled */
  void (*release)(struct tide__foreign *f, int n); /* n releases, on the owner's thread */
} tide__foreign;

/* Releases the object once, now on the owner's thread, else when the owner settles. Thread-safe. */
void tide__foreign_release(tide_ctx *ctx, tide__foreign *f);
/* Settles. The owner's thread. */
void tide__foreign_settle(tide_ctx *ctx);

#endif
