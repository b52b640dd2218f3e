/* Scale of an FP8 operand: one factor per tensor, from its largest magnitude ("current scaling").
 * Shared by the kernels of every device, so that all produce the same codes.
 *
 * FP8 has 4 or 5 exponent bits, so values are scaled to the upper end of its range first and the
 * product is divided by both scales: code = round(v * scale), v = code / scale. Formats and
 * rounding: core/base/dtype.h.
 */
#pragma once

#include <float.h>

#ifdef __CUDACC__
#define K_FP8_FN static __host__ __device__ __forceinline__
#else
#define K_FP8_FN static inline
#endif

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
