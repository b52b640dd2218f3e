/* Shared by the files of this folder: declarations, blobs, UTF-8. Uses core/base, core/device and
 * core/tensor. */
#ifndef TIDE_IO_IO_H
#define TIDE_IO_IO_H

#include "core/base/base.h"

struct tide_blob {
  tide__object object;
  char     *data;
  int64_t   size; /* without the final zero */
};

/* Makes a blob of size zero bytes and a final zero. Owned. */
int tide__blob_new(tide_blob **out, tide_ctx *ctx, int64_t size, const char *op);

#endif
