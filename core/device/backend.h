/* The seam of a device: its memory and its name. Kernels are found through kernels/kernel.def.
 *
 * A backend is one constant struct of functions; its state, if any, hangs in the context. Members
 * marked "may be null" are optional. Layer 1, filled by kernels/<device>/backend.
 */
#ifndef TIDE_DEVICE_BACKEND_H
#define TIDE_DEVICE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tide/tide.h"

enum { TIDE__OPEN_MSG = 256, TIDE__DEVICE_RANKS = 64 };

struct tide__params;

/* Beside the stream that kernels run on (compute), a device has one for copies that nobody waits
 * for, and one for each communicator. Work on one stream is in order; between two, only what
 * `behind` and events say. Each member returns a status unless it says otherwise; those marked *
 * may be called by any thread. */
typedef struct tide__streams {
  /* * A new stream, as the libraries of the device know it; owned. */
  int  (*open)(void *state, void **stream);
  void (*close)(void *state, void *stream);
  /* * Whether all work on it is done: 1, 0 or, failed, negative. */
  int  (*done)(void *state, void *stream);
  /* * What is enqueued on it from now on starts after all that is on compute so far. */
  int  (*behind)(void *state, void *stream);
  /* * *event: comes when all that is on the stream (null: on compute) so far is done. Made anew
   * and owned where *event is null; else the same one is marked again: who ordered itself after it
   * before still waits for what it said then. */
  int  (*mark)(void *state, void *stream, void **event);
  /* * What is enqueued on the stream from now on starts after the event, which may be another
   * context's on the same device. The host does not wait. */
  int  (*order)(void *state, void *stream, void *event);
  /* * What is on the device is not what it should be, for this reason: the context's next kernel,
   * download or wait there fails with this status and text, once. */
  void (*spoil)(void *state, int status, const char *text);
  /* * Enqueues a copy between pinned host memory and the device on it. */
  int  (*move)(void *state, void *stream, void *dst, const void *src, size_t size, bool to_device);
  /* * The host waits for it. */
  int  (*wait)(void *state, void *stream);
  /* * Which of several devices it is. */
  int  (*index)(void *state);
  /* * The calling thread's device is this one from now on. */
  int  (*bind)(void *state);
  /* Host memory that copies on the copy stream may use, with the device's own state. */
  const struct tide__backend *pinned;
  /* A copy on the copy stream, to the device or, without to_device, to the host, after all work
   * on compute so far. The host's side is pinned. *event: comes when it is done, owned. */
  int  (*copy)(void *state, void *dst, const void *src, size_t size, bool to_device, void **event);
  int  (*event_done)(void *state, void *event); /* *; 1, 0 or, failed, negative */
  int  (*event_wait)(void *state, void *event); /* the host waits */
  int  (*event_order)(void *state, void *event);/* compute waits, the host does not */
  void (*event_free)(void *state, void *event); /* *; those that are ordered after it still are */
} tide__streams;

/* A recording of what is enqueued on the compute stream between begin and end (nothing of it runs),
 * which launch enqueues again as often as wanted, with the same addresses and numbers. */
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
  bool lazy;       /* memory that nobody has touched costs nothing: it may be asked for in bulk */
  /* Raw memory, 64-byte aligned, contents undefined. Null: out of memory. */
  void *(*alloc)(void *state, size_t size);
  void  (*free)(void *state, void *ptr, size_t size);
  /* Contents are no longer needed, the address stays; may be null. Whole pages are given back. */
  void  (*discard)(void *state, void *ptr, size_t size);
  /* To and from the host; may be null where host is true. Complete on return. */
  int   (*upload)(void *state, void *dst, const void *src, size_t size);
  int   (*download)(void *state, void *dst, const void *src, size_t size);
  /* May be null. state stays null then. params: of the context, to be read whenever needed (cuda_*,
   * matmul_precision, attention_kernel). open fails with a message in msg (TIDE__OPEN_MSG). */
  int   (*open)(void **state, const struct tide__params *params, char *msg);
  void  (*close)(void *state);
  /* What kernels get as k_call.stream; may be null where kernels run at once. */
  void *(*queue)(void *state);
  /* Waits for all that was enqueued; may be null where nothing is. A status. */
  int   (*sync)(void *state);
  /* After a failed copy or wait: the reason, a sentence. May be null. */
  const char *(*why)(void *state);
  /* Null, or why the device will answer no call of this state any more. Any thread. May be null. */
  const char *(*failed)(void *state);
  const tide__streams *streams; /* null: kernels run at once */
  const tide__graphs *graphs;   /* null: steps cannot be captured */
  /* How many there are, or a status with the reason in msg (TIDE__OPEN_MSG). Null: one. */
  int   (*count)(char *msg);
  /* Copies and reductions over ranks (kernels/reduce_ranks.h), on operands of this device. They are
   * enqueued on the stream, for at most TIDE__DEVICE_RANKS sources, or complete on return where the
   * device has no streams. Return a status. May be null where has_bytes is false. Thread-safe. */
  int   (*copy)(void *state, void *stream, void *dst, const void *src, size_t size);
  int   (*reduce)(void *state, void *stream, void *const *dst, int ndst, const void *const *src,
                  int nsrc, int64_t n, int dtype, int op);
} tide__backend;

/* What a device library of its own (libtide_cuda.so) gives to the core: its memory and its kernels.
 * The core links no driver: the first use of the device opens the library beside libtide and asks
 * the one function it exports, "tide_plugin". Kernels are listed by the name of their op, so the
 * two libraries share no numbers beyond the public enums; version guards the rest. */
struct k_row;
enum { TIDE__PLUGIN_VERSION = 6 };
typedef struct tide__plugin {
  uint32_t size;             /* sizeof(tide__plugin) */
  uint32_t version;          /* TIDE__PLUGIN_VERSION */
  const char *library;       /* tide_version() that it was built with */
  const tide__backend *backend;
  const struct k_row *rows;  /* kernels/plugin_row.h */
  int nrow;
} tide__plugin;
typedef const tide__plugin *(*tide__plugin_fn)(void);

extern const tide__backend tide__backend_ref, tide__backend_cpu, tide__backend_null;

#endif
