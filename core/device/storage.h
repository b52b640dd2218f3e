/* Storage: reference-counted bytes that can be absent.
 *
 * Note: two levels of ownership. A tensor is a small handle that stays valid as long as somebody
 * holds it; its storage holds the bytes, which may go earlier (end of a step scope, explicit drop,
 * reshard). Touching absent bytes is E_GONE, never a crash. Views share a storage and its version,
 * which every in-place write bumps, so that the tape can tell a saved tensor that was changed.
 */
#ifndef TIDE_DEVICE_STORAGE_H
#define TIDE_DEVICE_STORAGE_H

#include "core/device/device.h"

typedef struct tide__storage {
  int64_t  refs;
  tide_ctx *ctx;
  void    *data;     /* null: absent, or the null device */
  struct tide__block *block; /* where data lies */
  size_t   size;     /* bytes asked for */
  int64_t  version;
  int32_t  device;
  bool     gone;     /* bytes dropped before the last handle */
  bool     refill;   /* restored since; tide__storage_refilled may declare the contents */
  int32_t  pins;     /* asynchronous readers and writers: no one may drop or write the bytes */
  int32_t  writers;  /* those of them that write: no one may read either */
  int32_t  kept;     /* communicators that have registered the bytes: no one may drop them */
  int64_t  dropped;  /* version at the last drop */
  bool     pinned;   /* host memory that the device's copies may use */
  struct tide__async_copy *copy; /* an asynchronous copy from or to it; null: none */
  int64_t  mark;     /* of the context when the bytes were taken: see tide_stats_mark */
  /* The step scope that will drop the bytes; null: none. A doubly linked list per scope. */
  struct tide__scope *scope;
  struct tide__storage *scope_prev, *scope_next;
} tide__storage;

/* New bytes on a device, contents undefined, linked into the innermost scope of the context. */
int  tide__storage_new(tide__storage **out, tide_ctx *ctx, int device, size_t size);
/* The same in pinned host memory of the CUDA device, which has been opened. */
int  tide__storage_new_pinned(tide__storage **out, tide_ctx *ctx, size_t size);
void tide__storage_retain(tide__storage *s);
void tide__storage_release(tide__storage *s);
/* Gives the bytes up; handles stay and answer E_GONE. */
void tide__storage_drop(tide__storage *s);
/* Another storage with the bytes of s, which has none afterwards; owned. Null: no host memory. */
tide__storage *tide__storage_detach(tide__storage *s);
/* Free headers back to the host; every storage has been released. */
void tide__storage_pool_close(tide_ctx *ctx);
/* Bytes again for a dropped storage, contents undefined: a write, so the version moves on. */
int  tide__storage_restore(tide__storage *s);
/* The contents are again what they were at the drop: the version of then. False: it was not
 * restored since. */
bool tide__storage_refilled(tide__storage *s);

/* Scope list surgery, for core/tensor/scope.c and for whoever must outlive a scope. */
struct tide__scope {
  struct tide__scope *outer;
  int depth;
  tide__storage *first;
};
void tide__scope_link(struct tide__scope *scope, tide__storage *s);
/* The storage outlives every open scope from here on. */
void tide__scope_escape(tide__storage *s);

#endif
