/* Scales of FP8 operands, each from the largest magnitude of its block ("current scaling"): a whole
 * tensor, 128 neighbours, or 128 x 128. Shared by the core and the kernels of every device, so that
 * all produce the same codes.
 *
 * FP8 has 4 or 5 exponent bits, so values are scaled to the upper end of its range first and the
 * product is divided by both scales: code = round(v * scale), v = code / scale. Formats and
 * rounding: core/base/dtype.h. Sizes and order of codes and scales are those that cuBLASLt reads.
 */
#pragma once

#include <float.h>
#include <string.h>

#include "kernels/kernel.h"

#ifdef __CUDACC__
#define K_FP8_FN static __host__ __device__ __forceinline__
#else
#define K_FP8_FN static inline
#endif

enum { K_FP8_STEP = 16, K_FP8_BLOCK = 128 };

/* Returns the largest finite value of e5m2, or of e4m3 (4 exponent bits, 3 mantissa bits). */
K_FP8_FN float k_fp8_top(int e5m2) { return e5m2 ? 57344.0f : 448.0f; }

/* Returns the factor that scales amax to the top of the format; amax is the largest magnitude
 * without NaN. 1 if amax is 0 or infinite; at most 2^126, so that 1 / scale is a normal number. */
K_FP8_FN float k_fp8_scale(float amax, int e5m2)
{
  if (!(amax > 0) || amax > FLT_MAX) return 1;
  float scale = k_fp8_top(e5m2) / amax;
  return scale < 0x1p126f ? scale : 0x1p126f;
}

/* Returns the same for a block of e4m3: at most 2^117, so that every number of the block but 0 is
 * normal; rounded down to a power of two unless f32_scale. */
K_FP8_FN float k_fp8_block_scale(float amax, int f32_scale)
{
  float scale = k_fp8_scale(amax, 0);
  if (!(scale < 0x1p117f)) scale = 0x1p117f;
  if (f32_scale) return scale;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof bits);
  bits &= 0x7f800000u;
  memcpy(&scale, &bits, sizeof bits);
  return scale;
}

/* Returns n in steps of 16; the number of blocks of 128 in n. */
K_FP8_FN int64_t k_fp8_wide(int64_t n) { return (n + K_FP8_STEP - 1) / K_FP8_STEP * K_FP8_STEP; }
K_FP8_FN int64_t k_fp8_blocks(int64_t n) { return (n + K_FP8_BLOCK - 1) / K_FP8_BLOCK; }

/* Returns the scales of a row of square blocks over n columns: in steps of 4. */
K_FP8_FN int64_t k_fp8_square_row(int64_t n) { return (k_fp8_blocks(n) + 3) / 4 * 4; }

/* Returns whether x is a transposed matrix. Sets *lies to x as it lies in memory: its transpose
 * then, else x. */
K_FP8_FN int k_fp8_lying(const k_tensor *x, k_tensor *lies)
{
  int turned = x->ndim == 2 && x->stride[0] == 1 && x->stride[1] != 1;
  *lies = *x;
  if (!turned) return 0;
  lies->shape[0] = x->shape[1], lies->stride[0] = x->stride[1];
  lies->shape[1] = x->shape[0], lies->stride[1] = x->stride[0];
  return 1;
}

/* Writes the shape of the scale of [rows, cols]; of TENSOR shape[0] alone. */
K_FP8_FN void k_fp8_scale_shape(int kind, int64_t rows, int64_t cols, int64_t *shape)
{
  shape[0] = kind == K_FP8_TENSOR ? 1 : k_fp8_blocks(kind == K_FP8_ROWS ? cols : rows);
  shape[1] = kind == K_FP8_ROWS ? k_fp8_wide(rows) : k_fp8_square_row(cols);
}

/* Returns the place, in the scale of [rows, cols], of that for row r and block b of columns. */
K_FP8_FN int64_t k_fp8_scale_at(int kind, int64_t rows, int64_t cols, int64_t r, int64_t b)
{
  if (kind == K_FP8_TENSOR) return 0;
  if (kind == K_FP8_ROWS) return b * k_fp8_wide(rows) + r;
  return r / K_FP8_BLOCK * k_fp8_square_row(cols) + b;
}
