/* How the operand of an FP8 product is scaled: per tensor, by its own largest magnitude ("current
 * scaling"). Shared by the kernels of every device, so that all make the same codes.
 *
 * FP8 has 4 or 5 bits of exponent, so numbers are brought to the upper end of its
 * range first and the product is divided by the factors: code = round(v * scale), v = code / scale.
 * Formats and rounding: core/base/dtype.h.
 */
#ifndef TIDE_KERNELS_FP8_H
#define TIDE_KERNELS_FP8_H

#include <float.h>

#ifdef __CUDACC__
#define K_FP8_FN static __host__ __device__ __forceinline__
#else
#define K_FP8_FN static inline
#endif

/* The largest number of e4m3 (sign, 4 bits of exponent, 3 of fraction) and e5m2. */
K_FP8_FN float k_fp8_top(int e5m2) { return e5m2 ? 57344.0f : 448.0f; }

/* amax: the largest magnitude, NaN passed over. 1 where nothing can be brought to the top; at most
 * 2^126, so that 1 / scale is an ordinary number. */
K_FP8_FN float k_fp8_scale(float amax, int e5m2)
{
  if (!(amax > 0) || amax > FLT_MAX) return 1;
  float scale = k_fp8_top(e5m2) / amax;
  return scale < 0x1p126f ? scale : 0x1p126f;
}

#endif
