/* Pixels of images: u8 tensors [height, width, channels] on the host. */
#pragma once

#include "core/tensor/tensor.h"

enum { TIDE__RGB = 3 };

/* Sets *data to the bytes of a contiguous tensor on the host. name: of the argument. E_ARG, E_GONE,
 * E_DEVICE. */
int tide__host_data(tide_tensor *t, const char *op, const char *name, void **data);
/* Sets *data to pixels with this many channels. E_DTYPE, E_SHAPE, and as above. */
int tide__pixels(tide_tensor *x, int64_t channels, const char *op, const uint8_t **data);
/* Makes room for pixels [h, w, 3]. *data: its bytes. */
int tide__pixels_new(tide_tensor **out, tide_ctx *ctx, int64_t h, int64_t w, const char *op,
                     uint8_t **data);
