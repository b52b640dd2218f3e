/* The rows of kernels/kernel.def, by (op, device, dtype). */
#pragma once

#include "core/op/op.h"

/* One kernel row of kernels/kernel.def. */
typedef struct tide__kernel {
  int op, device;
  k_fn fn;
  k_work_fn work; /* null: no scratch */
  uint32_t dtypes;
  int layout;
} tide__kernel;
/* Indexes the rows by (op, device, dtype), once per context. */
int  tide__kernels_open(tide_ctx *ctx);
void tide__kernels_close(tide_ctx *ctx);
/* Returns the row, or null if the device has no such kernel. */
const tide__kernel *tide__kernel_find(tide_ctx *ctx, int op, int device, int dtype);
