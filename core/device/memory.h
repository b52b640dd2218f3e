/* Segments of device memory, for the caching allocator: from the backend, or from the tensor_alloc
 * hook of a host that owns the memory of its tensors.
 */
#ifndef TIDE_DEVICE_MEMORY_H
#define TIDE_DEVICE_MEMORY_H

#include "core/base/base.h"
#include "core/device/backend.h"

enum { TIDE__ALIGN = 64 };    /* of every segment, and so of every block */

/* Returns whether the hooks of the context give this device its memory: pageable host memory. What
 * a driver has to know (a GPU's, pinned) is the backend's in any case. */
bool tide__memory_is_hooked(const tide_ctx *ctx, const tide__backend *backend);
/* Returns memory, contents undefined, or NULL: out of memory, or the hook's is not aligned. */
void *tide__memory_alloc(tide_ctx *ctx, const tide__backend *backend, void *state, size_t size);
/* size: as allocated. */
void tide__memory_free(tide_ctx *ctx, const tide__backend *backend, void *state, void *ptr,
                       size_t size);
/* Declares contents as no longer needed. Returns whether whole pages went back to the device. */
bool tide__memory_discard(tide_ctx *ctx, const tide__backend *backend, void *state, void *ptr,
                          size_t size);

#endif
