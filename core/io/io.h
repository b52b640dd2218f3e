/* What the files of this folder share: declarations, blobs, UTF-8, sorting.
 *
 * Layer 3, a sibling of core/op: uses core/base, core/device and core/tensor.
 */
#ifndef TIDE_IO_IO_H
#define TIDE_IO_IO_H

#include "core/base/alloc.h"
#include "core/base/status.h"

struct tide_blob {
  tide_ctx *ctx;
  char     *data;
  int64_t   size; /* without the final zero */
};

/* size bytes and a final zero, all zero. */
int tide__blob_new(tide_blob **out, tide_ctx *ctx, int64_t size, const char *op);

/* Sorts n indices in place, without memory of its own. less(arg, a, b): a comes before b. */
typedef bool (*tide__less)(const void *arg, int32_t a, int32_t b);
void tide__sort(int32_t *index, int64_t n, tide__less less, const void *arg);

#endif
