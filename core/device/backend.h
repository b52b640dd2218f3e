/* The interface of a device: memory, streams and graphs. Kernels are found through
 * kernels/kernel.def.
 *
 * A backend is one constant struct of functions; its state, if any, is held by the context. Members
 * marked "may be null" are optional. Filled by kernels/<device>/backend.
 */
#pragma once

#include "tide/tide.h"

enum { TIDE__OPEN_MSG = 256, TIDE__DEVICE_RANKS = 64 };

struct tide__params;

/* Streams of a device beside the one that kernels run on (compute): one for asynchronous copies,
 * and one per communicator. Work on one stream is in order; between two streams, only as `behind`
 * and events say. Members return a status unless stated otherwise; members marked "any thread" are
 * thread-safe. */
typedef struct tide__streams {
  /* Any thread. Opens a stream, as the libraries of the device know it; owned. */
  int  (*open)(void *state, void **stream);
  void (*close)(void *state, void *stream);
  /* Any thread. Returns whether all work on the stream is complete: 1, 0 or, after a failure,
   * negative. */
  int  (*done)(void *state, void *stream);
  /* Any thread. Orders later work on the stream after all work on compute so far. */
  int  (*behind)(void *state, void *stream);
  /* Any thread. Records an event on the stream (NULL: on compute). Creates *event if NULL, owned;
   * otherwise re-records it, and earlier waiters keep waiting on the earlier record. */
  int  (*record_event)(void *state, void *stream, void **event);
  /* Any thread. Orders later work on the stream after the event, which may be of another context on
   * the same device. Does not block the host. */
  int  (*wait_event)(void *state, void *stream, void *event);
  /* Any thread. Marks device memory as invalid: the context's next kernel, download or wait there
   * fails with this status and text, once. */
  void (*set_error)(void *state, int status, const char *text);
  /* Any thread. Enqueues a copy between pinned host memory and the device on the stream. */
  int  (*move)(void *state, void *stream, void *dst, const void *src, size_t size, bool to_device);
  /* Any thread. Blocks until the stream is complete. */
  int  (*wait)(void *state, void *stream);
  /* Any thread. Returns the number of the device among those of its kind. */
  int  (*index)(void *state);
  /* Any thread. Makes this the current device of the calling thread. */
  int  (*bind)(void *state);
  /* Pinned host memory for the copy stream, with the device's own state. */
  const struct tide__backend *pinned;
  /* Enqueues a copy on the copy stream, to the device or, without to_device, to the host, after all
   * work on compute so far. The host's side is pinned. *event: recorded after it, owned. */
  int  (*copy)(void *state, void *dst, const void *src, size_t size, bool to_device, void **event);
  int  (*event_done)(void *state, void *event); /* any thread; 1, 0 or, failed, negative */
  int  (*event_wait)(void *state, void *event); /* blocks the host */
  int  (*event_order)(void *state, void *event);/* orders compute, not the host */
  void (*event_free)(void *state, void *event); /* any thread; waiters stay ordered */
  /* Records an event that keeps its time on compute. Creates *event if NULL, owned. */
  int  (*time_event)(void *state, void **event);
  /* Blocks until both events are reached; *ms: from one to the other. */
  int  (*event_ms)(void *state, void *from, void *to, double *ms);
  /* Opens a named range of the thread for profilers; null ends the newest. */
  void (*range)(const char *name);
} tide__streams;

/* A recording of the work enqueued on the compute stream between begin and end (nothing of it
 * runs); launch enqueues it again any number of times, with the same addresses and numbers. */
typedef struct tide__graphs {
  int  (*begin)(void *state);
  int  (*end)(void *state, void **graph); /* on failure *graph is null and recording has ended */
  int  (*launch)(void *state, void *graph);
  void (*free)(void *state, void *graph);
} tide__graphs;

typedef struct tide__backend {
  int  device;     /* TIDE_DEV_* */
  bool host;       /* the host may read and write its memory */
  bool has_bytes;  /* false: shapes only (the null device) */
  bool lazy;       /* untouched memory costs nothing: large segments are free */
  /* Allocates memory, 64-byte aligned, contents undefined. NULL: out of memory. */
  void *(*alloc)(void *state, size_t size);
  void  (*free)(void *state, void *ptr, size_t size);
  /* Declares contents as no longer needed; the address stays valid. Frees whole pages. May be
   * null. */
  void  (*discard)(void *state, void *ptr, size_t size);
  /* Copies to and from the host; may be null where host is true. Complete on return. */
  int   (*upload)(void *state, void *dst, const void *src, size_t size);
  int   (*download)(void *state, void *dst, const void *src, size_t size);
  /* Opens the device; may be null, state then stays NULL. params: of the context, to be read
   * whenever needed (cuda_*, matmul_precision, attention_kernel). Fails with a message in msg
   * (TIDE__OPEN_MSG). */
  int   (*open)(void **state, const struct tide__params *params, char *msg);
  void  (*close)(void *state);
  /* Returns k_call.stream of kernels; may be null where kernels run at once. */
  void *(*queue)(void *state);
  /* Blocks until all enqueued work is complete; may be null where kernels run at once. Returns a
   * status. */
  int   (*sync)(void *state);
  /* Returns the reason of a failed copy or wait, a sentence. May be null. */
  const char *(*why)(void *state);
  /* Any thread. Returns NULL, or the reason if the device fails all later calls of this state. May
   * be null. */
  const char *(*failed)(void *state);
  const tide__streams *streams; /* null: kernels run at once */
  const tide__graphs *graphs;   /* null: steps cannot be captured */
  /* Returns the number of devices, or a status with the reason in msg (TIDE__OPEN_MSG). Null:
   * one. */
  int   (*count)(char *msg);
  /* Copies and reductions over ranks (kernels/reduce_ranks.h), on operands of this device. They are
   * enqueued on the stream, for at most TIDE__DEVICE_RANKS sources, or complete on return where the
   * device has no streams. Return a status. May be null where has_bytes is false. Thread-safe. */
  int   (*copy)(void *state, void *stream, void *dst, const void *src, size_t size);
  int   (*reduce)(void *state, void *stream, void *const *dst, int ndst, const void *const *src,
                  int nsrc, int64_t n, int dtype, int op);
  /* Runs fn(arg) with the floating-point modes of the device's kernels (subnormals are zero). May
   * be null where the host does not compute. */
  void  (*with_modes)(void (*fn)(void *arg), void *arg);
} tide__backend;

/* The table of a device plugin (libtide_cuda.so): its memory and its kernels. The core links no
 * driver: the first use of the device opens the library beside libtide and calls the one function
 * it exports, "tide_plugin". Kernels are listed by the name of their op, so the two libraries share
 * no numbers beyond the public enums; version guards the rest. */
struct k_row;
enum { TIDE__PLUGIN_VERSION = 8 };
typedef struct tide__plugin {
  uint32_t size;             /* sizeof(tide__plugin) */
  uint32_t version;          /* TIDE__PLUGIN_VERSION */
  const char *library;       /* tide_version() of its build */
  const tide__backend *backend;
  const struct k_row *rows;  /* kernels/plugin_row.h */
  int nrow;
} tide__plugin;
typedef const tide__plugin *(*tide__plugin_fn)(void);

extern const tide__backend tide__backend_ref, tide__backend_cpu, tide__backend_null;
