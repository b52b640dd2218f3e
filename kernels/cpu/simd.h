/* Loops that the compiler vectorises for the processor at run time, and the f32 functions they use.
 *
 *   TIDE_LEVELS(void, scale_row, (float *x, int64_t n, float by), (x, n, by))
 *   {
 *     for (int64_t i = 0; i < n; i++) x[i] *= by;
 *   }
 *
 * defines the static function scale_row, whose body is compiled for AVX-512, for AVX2 with FMA and
 * for the base instruction set; a call takes the one that tide__cpu_isa() returns. The body holds a
 * whole loop, since the call costs a branch and is not inlined. The helpers here are branch-free
 * and always inlined, so such a loop vectorises as a whole. They need -O3, -fno-math-errno and
 * -fno-trapping-math to do so (the build sets these for kernels/cpu), and are right with and
 * without contraction to FMA and with denormals flushed or kept.
 *
 * Accuracy is stated beside each function, in units in the last place (ulp).
 */
#ifndef TIDE_KERNELS_CPU_SIMD_H
#define TIDE_KERNELS_CPU_SIMD_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/base/float.h"
#include "kernels/cpu/isa.h"

#define TIDE_INLINE static inline __attribute__((always_inline, unused))

#if defined(__x86_64__) && defined(__GNUC__)
#define TIDE_LEVELS_AS(storage, type, name, params, args) \
  TIDE_INLINE type name##_body params; \
  TIDE_AVX512 static type name##_avx512 params { return name##_body args; } \
  TIDE_AVX2 static type name##_avx2 params { return name##_body args; } \
  static type name##_base params { return name##_body args; } \
  storage type name params \
  { \
    const int isa_ = tide__cpu_isa(); \
    if (isa_ & CPU_ISA_AVX512) return name##_avx512 args; \
    if (isa_ & CPU_ISA_AVX2) return name##_avx2 args; \
    return name##_base args; \
  } \
  TIDE_INLINE type name##_body params
#else
#define TIDE_LEVELS_AS(storage, type, name, params, args) storage type name params
#endif

#define TIDE_LEVELS(type, name, params, args) \
  TIDE_LEVELS_AS(static inline __attribute__((unused)), type, name, params, args)
#define TIDE_LEVELS_GLOBAL(type, name, params, args) \
  TIDE_LEVELS_AS(extern, type, name, params, args)

/* 1 ulp. exp(-inf) = 0, exp(inf) = inf, NaN stays NaN. */
TIDE_INLINE float tide__expf(float x)
{
  const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
  float c = x > 89.0f ? 89.0f : x;
  c = c < -104.5f ? -104.5f : c;
  float t = c * 1.44269504f + shift;
  uint32_t n = tide__f32_bits(t) - tide__f32_bits(shift);
  float nf = t - shift;
  float r = c - nf * 0.693145752f; /* ln 2 in two parts; the first has 15 bits */
  r = r - nf * 1.42860677e-6f;
  float p = 1.381314243e-3f;
  p = p * r + 8.369418792e-3f;
  p = p * r + 4.166845605e-2f;
  p = p * r + 1.666651517e-1f;
  p = p * r + 4.999999404e-1f;
  p = (p * r) * r + r + 1.0f;
  /* 2^n in two factors, so that results up to the largest float and denormals are right. */
  uint32_t h = (uint32_t)((int32_t)n >> 1);
  float s1 = tide__bits_f32((h + 127u) << 23), s2 = tide__bits_f32((n - h + 127u) << 23);
  return (p * s1) * s2;
}

/* 1 ulp. log(0) = -inf, log(x < 0) = NaN, log(inf) = inf. Denormals count as zero when flushed. */
TIDE_INLINE float tide__logf(float x)
{
  float tiny = x < 1.17549435e-38f ? 1.0f : 0.0f;
  float xs = tiny != 0.0f ? x * 8388608.0f : x;
  uint32_t u = tide__f32_bits(xs) - 0x3f3504f3u; /* the mantissa goes to [sqrt(1/2), sqrt(2)) */
  int32_t e = (int32_t)u >> 23;
  float f = tide__bits_f32((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float ef = (float)e - tiny * 23.0f;
  float p = 6.746684015e-2f;
  p = p * f - 1.167577207e-1f;
  p = p * f + 1.188820899e-1f;
  p = p * f - 1.240557358e-1f;
  p = p * f + 1.421954483e-1f;
  p = p * f - 1.666799635e-1f;
  p = p * f + 2.000211924e-1f;
  p = p * f - 2.500000894e-1f;
  p = p * f + 3.333331347e-1f;
  float z = f * f;
  float y = (p * f) * z + ef * 1.42860677e-6f;
  y = y - 0.5f * z;
  y = (f + y) + ef * 0.693145752f;
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x < INFINITY ? y : x + x; /* inf and NaN: themselves */
}

/* 2 ulp. */
TIDE_INLINE float tide__tanhf(float x)
{
  float a = fabsf(x), u = x * x;
  float p = -5.717036780e-3f;
  p = p * u + 2.065057866e-2f;
  p = p * u - 5.374349654e-2f;
  p = p * u + 1.333149076e-1f;
  p = p * u - 3.333328366e-1f;
  float small = (p * u) * a + a;
  float large = 1.0f - 2.0f / (tide__expf(a + a) + 1.0f);
  float y = a < 0.625f ? small : large;
  return copysignf(y, x);
}

/* 3 ulp; 0 below about -88. */
TIDE_INLINE float tide__sigmoidf(float x) { return 1.0f / (1.0f + tide__expf(-x)); }

/* 3 ulp. */
TIDE_INLINE float tide__erff(float x)
{
  float a = fabsf(x), u = x * x;
  float p = 8.316772437e-5f;
  p = p * u - 8.130011847e-4f;
  p = p * u + 5.199906416e-3f;
  p = p * u - 2.685894072e-2f;
  p = p * u + 1.128368750e-1f;
  p = p * u - 3.761263192e-1f;
  p = p * u + 1.128379226f;
  float small = p * a;
  float c = a > 4.0f ? 4.0f : a;
  float q = -2.116190990e-5f; /* log(1 - erf) */
  q = q * c + 4.352189135e-4f;
  q = q * c - 4.174643196e-3f;
  q = q * c + 2.512862533e-2f;
  q = q * c - 1.082939506e-1f;
  q = q * c - 6.333346367e-1f;
  q = q * c - 1.129520774f;
  q = q * c + 1.758746075e-4f;
  float large = 1.0f - tide__expf(q);
  float y = a < 0.93f ? small : large;
  return copysignf(y, x);
}

/* Returns the largest of start and n values; ignores NaN. clang starts an OpenMP maximum at the
 * lowest finite number instead of -inf, so if that is the result, the values are read again. */
TIDE_INLINE float tide__max_f32_n(const float *x, int64_t n, float start)
{
  float max = start;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
  if (max > -FLT_MAX) return max;
  max = start;
  for (int64_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
  return max;
}

TIDE_INLINE void tide__bf16_to_f32_n(float *dst, const uint16_t *src, int64_t n)
{
  for (int64_t i = 0; i < n; i++) dst[i] = tide__bf16_to_f32(src[i]);
}

TIDE_INLINE void tide__f32_to_bf16_n(uint16_t *dst, const float *src, int64_t n)
{
  for (int64_t i = 0; i < n; i++) dst[i] = tide__f32_to_bf16(src[i]);
}

TIDE_INLINE void tide__f16_to_f32_n(float *dst, const uint16_t *src, int64_t n)
{
  for (int64_t i = 0; i < n; i++) dst[i] = tide__f16_to_f32(src[i]);
}

TIDE_INLINE void tide__f32_to_f16_n(uint16_t *dst, const float *src, int64_t n)
{
  for (int64_t i = 0; i < n; i++) dst[i] = tide__f32_to_f16(src[i]);
}

#endif
