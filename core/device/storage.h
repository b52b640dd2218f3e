/* Storage: reference-counted bytes that can be absent.
 *
 * There are two levels of ownership. A tensor is a small handle that stays valid while it is
 * referenced; its storage holds the bytes, which may be freed earlier (end of a step scope,
 * explicit drop, reshard). Access to absent bytes is E_GONE, never a crash. Views share a storage
 * and its version, which every in-place write increments, so that the tape detects a saved tensor
 * that was changed.
 */
#pragma once

#include "core/device/device.h"

/* Memory of the host, which gets it back by give (may be null) when the bytes are dropped. */
typedef struct tide__lent {
  void *data;
  tide_give give;
  void *user;
} tide__lent;

/* The fields that each op touches come first. */
typedef struct tide__storage {
  int64_t  refs;
  tide_ctx *ctx;
  void    *data;     /* null: absent, or the null device */
  struct tide__block *block; /* allocation of data; null: absent, or the host's memory */
  size_t   size;     /* bytes requested */
  int64_t  version;
  struct tide__async_copy *copy; /* an asynchronous copy from or to it, or null */
  int32_t  device;
  bool     gone;     /* bytes were dropped before the last handle */
  bool     hollow;   /* in place of the bytes of spent handles: gone, and never restored */
  bool     refill;   /* restored since; tide__storage_refilled may declare the contents */
  bool     pinned;   /* pinned host memory, for asynchronous copies */
  int32_t  pins;     /* asynchronous users: the bytes must not be dropped or written */
  int32_t  parts;    /* references of tensors that share no element with each other */
  int32_t  parts_given_up; /* those whose elements are no longer needed */
  int32_t  writers;  /* those that write: the bytes must not be read either */
  int64_t  epoch;    /* ctx->stats_epoch when the bytes were allocated */
  /* The step scope that will drop the bytes, or null. A doubly linked list per scope. */
  struct tide__scope *scope;
  struct tide__storage *scope_prev, *scope_next;
  tide__lent lent;   /* of the host's memory; data null otherwise */
  int64_t  dropped;  /* version at the last drop */
  int32_t  kept;     /* communicators that have registered the bytes: they must not be dropped */
} tide__storage;

/* Allocates bytes on a device, contents undefined, linked into the innermost scope of the context.
 * pinned: of host memory that is pinned for the CUDA device, which is open. */
int  tide__storage_new(tide__storage **out, tide_ctx *ctx, int device, size_t size, bool pinned);
/* Makes a storage over memory of the host on a host device; on failure the host keeps the
 * memory. */
int  tide__storage_new_lent(tide__storage **out, tide_ctx *ctx, int device, size_t size,
                            const tide__lent *lent);
void tide__storage_retain(tide__storage *s);
void tide__storage_release(tide__storage *s);
/* Makes a storage without bytes, to which spent handles of a device point; belongs to no scope. */
int  tide__storage_new_hollow(tide__storage **out, tide_ctx *ctx, int device);
/* Frees the bytes; handles stay and return E_GONE. */
void tide__storage_drop(tide__storage *s);
/* Moves the bytes of s to another storage and returns it; owned. NULL: no host memory. */
tide__storage *tide__storage_detach(tide__storage *s);
/* Frees the unused headers; every storage has been released. */
void tide__storage_pool_close(tide_ctx *ctx);
/* Allocates bytes for a dropped storage, contents undefined. Counts as a write: the version
 * grows. */
int  tide__storage_restore(tide__storage *s);
/* Declares that the contents are again those at the drop: restores the version at the drop. Returns
 * false if the storage was not restored since. */
bool tide__storage_refilled(tide__storage *s);

/* The list of a step scope, for core/tensor/scope.c and for code whose storages outlive a scope. */
struct tide__scope {
  struct tide__scope *outer;
  int depth;
  tide__storage *first;
};
void tide__scope_link(struct tide__scope *scope, tide__storage *s);
/* Removes the storage from its scope: it outlives every open scope. */
void tide__scope_escape(tide__storage *s);

/* ---- async_copy.c ---------------------------------------------------------------------------- */

/* Asynchronous copies between host and device.
 *
 * Both storages point at the copy, and the next use of one of them waits as little as is correct:
 * the host blocks for its bytes, the device's compute stream (not the host) is ordered after the
 * copy for its own. So asynchronous copies give the results of blocking ones. */

/* Starts a copy of size bytes between pinned host memory and a device, at the given addresses.
 * Neither storage has a copy in progress. Returns a status; on failure nothing has started. */
int tide__async_copy_start(tide__storage *dst, void *to, tide__storage *src, const void *from,
                           size_t size, const char *op);
/* Waits until the storage may be read, written and dropped: blocks the host for its side, orders
 * compute for the device's. Returns a status. */
int  tide__async_copy_wait(tide__storage *s);
/* Lets a copy continue with the bytes of s, which is being dropped while the caller holds it.
 * Returns false if s is not the host's side; the caller then waits. */
bool tide__async_copy_detach(tide__storage *s);
/* Records the failure of tide__async_copy_wait and returns its status. */
int  tide__async_copy_failed(const tide__storage *s, const char *op);
/* Remove copies: reap those that are complete, finish all, after waiting for them. */
void tide__async_copies_reap(tide__device *d);
void tide__async_copies_finish(tide__device *d);
/* Orders compute after all copies; the host does not wait. Returns a status. */
int  tide__async_copies_order(tide__device *d);
