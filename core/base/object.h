/* What every object behind a public handle begins with: its kind, its context, its releases.
 *
 * The kind lets a public function refuse a handle that is null, released or of another kind. So the
 * memory of a released object stays with its context, where the next object of its kind reuses it,
 * until the context ends: a stale handle never points at freed memory while its context lives.
 *
 * A release on a thread that does not own the context changes nothing but a lock-free stack of the
 * context. The owner settles what lies on it when it next makes a call of tide that looks (every
 * op, every collective, tide_ctx_attach, tide_ctx_release). Tensors have a stack of their own
 * (core/tensor/tensor.c).
 */
#ifndef TIDE_BASE_OBJECT_H
#define TIDE_BASE_OBJECT_H

#include "core/base/ctx.h"

/* An object that any thread may release. It is the first member of every public object but tensors,
 * groups and contexts, which begin with the same two: tag and, where there is one, context. */
typedef struct tide__object {
  uint32_t tag;                    /* TIDE__TAG of its kind, its complement once released */
  atomic_int count;                /* releases by other threads that are not settled */
  tide_ctx *ctx;                   /* counted */
  struct tide__object *next;       /* on the stack, or among the free ones of its kind */
  void (*release)(struct tide__object *o, int n); /* n releases, on the owner's thread */
  uint32_t kind, size;             /* TIDE__KIND_*, bytes */
} tide__object;

/* A released or new object of the kind: zeroed but for the header. Holds the context. Null: no
 * memory. The owner's thread. */
void *tide__object_new(tide_ctx *ctx, int kind, size_t size,
                       void (*release)(tide__object *o, int n));
/* Marks the handle as released: public functions refuse it from here on. The owner's thread. */
void tide__object_retire(tide__object *o);
/* Gives the memory to the next object of the kind and drops the context. The owner's thread. */
void tide__object_free(tide__object *o);
/* Frees the memory of released objects, at the end of the context. */
void tide__objects_close(tide_ctx *ctx);

/* Releases the object once, now on the owner's thread, else when the owner settles. A handle that
 * is null, released or of another kind is ignored. Thread-safe. */
void tide__object_release(void *object, int kind);
/* Settles. The owner's thread. */
void tide__objects_settle(tide_ctx *ctx);

#endif
