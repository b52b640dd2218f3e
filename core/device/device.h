/* The devices of a context: each backend with its state and its caching allocator.
 */
#ifndef TIDE_DEVICE_DEVICE_H
#define TIDE_DEVICE_DEVICE_H

#include "core/base/base.h"
#include "core/device/backend.h"

/* The device that pinned host memory is pinned for, and asynchronous copies go to. */
enum { TIDE__PINNING = TIDE_DEV_CUDA };

typedef struct tide__device {
  const tide__backend *backend; /* null: not in this build or not opened */
  void *state;
  struct tide__cache *cache;
  struct tide__cache *pinned;   /* pinned host memory for its copies; null: no streams */
  struct tide__async_copy *copies; /* asynchronous copies, newest first */
  void *queue;                  /* stream of its kernels; null: they run at once */
  const tide__plugin *plugin; /* its plugin; null: part of libtide */
} tide__device;

struct tide__device_table {
  tide__device device[TIDE_NDEV];
  int64_t host_live;   /* live bytes that are host memory (ref, cpu, pinned) */
  int64_t host_total;  /* tide__memory.total when the context was made; 0: unknown */
};

int  tide__devices_open(tide_ctx *ctx);
void tide__devices_close(tide_ctx *ctx);
/* Returns the device, or NULL with E_DEVICE recorded under op. Opens the device of a plugin at its
 * first use. */
tide__device *tide__device_get(tide_ctx *ctx, int device, const char *op);

#endif
