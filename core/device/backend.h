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

enum { TIDE__OPEN_MSG = 256 };

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
  /* May be null. state stays null then. open fails with a message in msg (TIDE__OPEN_MSG bytes). */
  int   (*open)(void **state, char *msg);
  void  (*close)(void *state);
  /* What kernels get as k_call.stream; may be null where kernels run at once. */
  void *(*queue)(void *state);
  /* May be null: the stream that kernels of this device run on, as its own libraries know it; and
   * whether all work on it is done: 1, 0 or, failed, negative. */
  void *(*stream)(void *state);
  int   (*stream_done)(void *state);
  /* Waits for all that was enqueued; may be null where nothing is. A status. */
  int   (*sync)(void *state);
  /* After a failed copy or wait: the reason, a sentence. May be null. */
  const char *(*why)(void *state);
} tide__backend;

/* What a device library of its own (libtide_cuda.so) gives to the core: its memory and its kernels.
 * The core links no driver: the first use of the device opens the library beside libtide and asks
 * the one function it exports, "tide_plugin". Kernels are listed by the name of their op, so the
 * two libraries share no numbers beyond the public enums; version guards the rest. */
struct k_row;
enum { TIDE__PLUGIN_VERSION = 1 };
typedef struct tide__plugin {
  uint32_t size;             /* sizeof(tide__plugin) */
  uint32_t version;          /* TIDE__PLUGIN_VERSION */
  const char *library;       /* tide_version() that it was built with */
  const tide__backend *backend;
  const struct k_row *rows;  /* kernels/row.h */
  int nrow;
} tide__plugin;
typedef const tide__plugin *(*tide__plugin_fn)(void);

extern const tide__backend tide__backend_ref, tide__backend_cpu, tide__backend_null;

#endif
