/* The devices of a context: each backend with its state and its caching allocator; captured steps.
 */
#pragma once

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

/* Opens a range around an op or a derivative, and ends it, where parameter `ranges` asks for it. */
static inline void tide__range(const tide_ctx *ctx, const char *name)
{
  if (ctx->params.ranges == 0) return;
  const tide__backend *b = ctx->devices->device[TIDE_DEV_CUDA].backend;
  if (b) b->streams->range(name);
}

/* ---- plugin.c -------------------------------------------------------------------------------- */

/* Returns the table of a device's plugin (TIDE_DEV_CUDA), opened beside libtide or where the loader
 * searches. NULL for a device without one; NULL and a sentence in why if the library is missing or
 * of another version. The library stays open until the process ends. */
const tide__plugin *tide__plugin_find(int device, char *why, size_t size);
/* Finds a plugin as tide__plugin_find does, for a context: records E_DEVICE under op. */
const tide__plugin *tide__plugin_open(tide_ctx *ctx, int device, const char *op);

/* ---- memory.c -------------------------------------------------------------------------------- */

/* Segments of device memory, for the caching allocator: from the backend, or from the tensor_alloc
 * hook of a host that owns the memory of its tensors. */

enum { TIDE__ALIGN = 64 };    /* of every segment, and so of every block */

/* Returns whether the hooks of the context give this device its memory: pageable host memory. The
 * backend always gives the memory that a driver must know (a GPU's, pinned). */
bool tide__memory_is_hooked(const tide_ctx *ctx, const tide__backend *backend);
/* Returns memory, contents undefined, or NULL: out of memory, or the hook's is not aligned. */
void *tide__memory_alloc(tide_ctx *ctx, const tide__backend *backend, void *state, size_t size);
/* Frees memory. size: as allocated. */
void tide__memory_free(tide_ctx *ctx, const tide__backend *backend, void *state, void *ptr,
                       size_t size);
/* Declares contents as no longer needed. Returns whether whole pages went back to the device. */
bool tide__memory_discard(tide_ctx *ctx, const tide__backend *backend, void *state, void *ptr,
                          size_t size);

/* ---- cache.c --------------------------------------------------------------------------------- */

/* The caching allocator: freed bytes are reused by later tensors, split and merged to their size.
 *
 * One cache per device of a context, so no locks. Block headers are host memory, so the same code
 * serves devices whose memory the host cannot access. */

typedef struct tide__block tide__block;

int  tide__cache_new(tide_ctx *ctx, struct tide__cache **out, const tide__backend *backend,
                     void *state);
void tide__cache_close(tide_ctx *ctx, struct tide__cache *cache);
/* Allocates a block; *out is NULL on a device without bytes. E_NOMEM. Counts live, since, their
 * peaks and debt. */
int  tide__cache_take(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block **out);
/* Returns the address of a block, 64-byte aligned; NULL for NULL. */
void *tide__block_data(const tide__block *block);
/* Frees a block. size: as taken; epoch: ctx->stats_epoch when it was taken. */
void tide__cache_give(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block *block,
                      int64_t epoch);
/* For a captured step (capture.c). forbid_trim: never returns memory to the device. freeze: blocks
 * freed from now on are not reused until tide__cache_return; thaw ends that and returns the list of
 * them. retire: closes the cache now, or when its last block is freed. */
void tide__cache_forbid_trim(struct tide__cache *cache);
void tide__cache_freeze(struct tide__cache *cache);
tide__block *tide__cache_thaw(struct tide__cache *cache);
void tide__cache_return(tide_ctx *ctx, tide__block *list);
void tide__cache_retire(tide_ctx *ctx, struct tide__cache *cache);
/* Returns free bytes to the device. */
void tide__cache_trim(tide_ctx *ctx, struct tide__cache *cache);

/* ---- capture.c ------------------------------------------------------------------------------- */

/* Returns whether work enqueued on this device is being captured. */
bool tide__captures(const tide_ctx *ctx, int device);
/* Fails with E_STATE under op while a step is captured: op blocks on the device. */
int  tide__not_captured(tide_ctx *ctx, const char *op);

/* A capture participant: it enqueues work on streams of its own and may take part in a captured
 * step (a communicator). Its stream joins the capture after compute, and compute joins it again
 * before the capture ends. Members are called on the context's thread; an int is a status, with its
 * message recorded. */
typedef struct tide__participant tide__participant;
typedef struct tide__participant_calls {
  /* Before a capture, and before memory returns to the device: blocks until all work of it is
   * complete. */
  int  (*settle)(tide__participant *p);
  /* Takes a reference to the graph until drop. The participant stays open until leave. */
  int  (*enter)(tide__participant *p, tide_graph *g);
  /* Before the capture ends: orders compute after the participant's captured work. */
  int  (*join)(tide__participant *p);
  /* Before a launch: orders compute after its work so far. It stays open until leave. */
  int  (*begin)(tide__participant *p);
  /* After a launch: watches the launch as one of its own calls. */
  int  (*launched)(tide__participant *p, tide_graph *g);
  void (*leave)(tide__participant *p);
  void (*drop)(tide__participant *p, tide_graph *g);
} tide__participant_calls;
struct tide__participant {
  const tide__participant_calls *calls;
  tide__participant *next; /* of the context */
};
void tide__participant_add(tide_ctx *ctx, tide__participant *p);
void tide__participant_remove(tide_ctx *ctx, tide__participant *p);
int  tide__participants_settle(tide_ctx *ctx);
/* Adds p to the step being captured, before its first call in it. Idempotent. */
int  tide__participant_enter(tide_ctx *ctx, tide__participant *p);
/* Invalidates the graph of a participant that has failed for good: later launches fail. Thread-safe
 * between enter and drop. */
void tide__graph_kill(tide_graph *g);
