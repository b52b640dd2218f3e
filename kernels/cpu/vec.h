/* What the loops of all CPU kernels are made of: instruction sets, threads, functions of f32,
 * elements of a dtype, sizes. Each conversion and each polynomial is written here, once.
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
#pragma once

#include <float.h>
#include <math.h>

#include "core/base/float.h"
#include "kernels/cpu/integer.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/kernel.h"

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

/* ---- functions of f32 -----------------------------------------------------------------------*/

/* Returns e^x to 1 ulp. exp(-inf) = 0, exp(inf) = inf, NaN stays NaN. */
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

/* exp for arguments that are not large: above 88 it is exp(88). Below -87 it is 0, so that one
 * power of two scales the result, which makes it faster than tide__expf. 1 ulp between. Tests for
 * NaN, which the shifted exponent would turn into a number. */
TIDE_INLINE float vec_exp(float x)
{
  const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
  float c = x > 88.0f ? 88.0f : x;
  float t = c * 1.44269504f + shift;
  float n = t - shift;
  float r = c - n * 0.693145752f; /* ln 2 in two parts */
  r = r - n * 1.42860677e-6f;
  float p = 1.381314243e-3f;
  p = p * r + 8.369418792e-3f;
  p = p * r + 4.166845605e-2f;
  p = p * r + 1.666651517e-1f;
  p = p * r + 4.999999404e-1f;
  p = (p * r) * r + r + 1.0f;
  float y = tide__bits_f32(tide__f32_bits(p) + (tide__f32_bits(t) << 23));
  float low = 0.0f > x ? 0.0f : x; /* below -87: 0; NaN */
  return x >= -87.0f ? y : low;
}

/* Returns log(x) to 1 ulp. log(0) = -inf, log(x < 0) = NaN, log(inf) = inf. Denormals count as zero
 * when flushed. */
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

/* Returns tanh(x) to 2 ulp. */
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

/* Returns 1 / (1 + e^-x) to 3 ulp; 0 below about -88. */
TIDE_INLINE float tide__sigmoidf(float x) { return 1.0f / (1.0f + tide__expf(-x)); }

/* Returns erf(x) to 3 ulp. */
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

/* ---- elements of a dtype --------------------------------------------------------------------*/

/* Returns the bytes of an element of a floating dtype. */
TIDE_INLINE int64_t vec_size(int dtype)
{
  return dtype == TIDE_F64 ? 8 : dtype == TIDE_F32 ? 4 : 2;
}

/* Returns element i as f32; one of f64 is rounded. */
TIDE_INLINE float vec_get(const void *src, int64_t i, int dtype)
{
  switch (dtype) {
    case TIDE_F32: return ((const float *)src)[i];
    case TIDE_F64: return (float)((const double *)src)[i];
    case TIDE_BF16: return tide__bf16_to_f32(((const uint16_t *)src)[i]);
    default: return tide__f16_to_f32(((const uint16_t *)src)[i]);
  }
}

/* Stores v, rounded once, as element i. */
TIDE_INLINE void vec_put(void *dst, int64_t i, int dtype, float v)
{
  switch (dtype) {
    case TIDE_F32: ((float *)dst)[i] = v; break;
    case TIDE_F64: ((double *)dst)[i] = v; break;
    case TIDE_BF16: ((uint16_t *)dst)[i] = tide__f32_to_bf16(v); break;
    default: ((uint16_t *)dst)[i] = tide__f32_to_f16(v);
  }
}

/* Writes n elements of src as f32. */
TIDE_INLINE void vec_widen(float *dst, const void *src, int dtype, int64_t n)
{
  const uint16_t *half = src;
  const double *wide = src;
  if (dtype == TIDE_BF16) {
    for (int64_t i = 0; i < n; i++) dst[i] = tide__bf16_to_f32(half[i]);
  } else if (dtype == TIDE_F16) {
    for (int64_t i = 0; i < n; i++) dst[i] = tide__f16_to_f32(half[i]);
  } else if (dtype == TIDE_F64) {
    for (int64_t i = 0; i < n; i++) dst[i] = (float)wide[i];
  } else {
    memmove(dst, src, (size_t)n * sizeof(float));
  }
}

/* Writes n numbers of src, each rounded once to dtype. dst and src do not overlap unless dtype is
 * f32. */
TIDE_INLINE void vec_narrow(void *dst, const float *src, int dtype, int64_t n)
{
  uint16_t *half = dst;
  double *wide = dst;
  if (dtype == TIDE_BF16) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) half[i] = tide__f32_to_bf16(src[i]);
  } else if (dtype == TIDE_F16) {
    for (int64_t i = 0; i < n; i++) half[i] = tide__f32_to_f16(src[i]);
  } else if (dtype == TIDE_F64) {
    for (int64_t i = 0; i < n; i++) wide[i] = src[i];
  } else {
    memmove(dst, src, (size_t)n * sizeof(float));
  }
}

/* ---- 8 and 16 at a time, for tiles written by hand -------------------------------------------*/

#if defined(__x86_64__) && defined(__GNUC__)

/* Returns 8 elements from src[at] on as f32. */
TIDE_AVX2_INLINE __m256 vec_load8(const void *src, int64_t at, int dtype)
{
  if (dtype == TIDE_F32) return _mm256_loadu_ps((const float *)src + at);
  const __m128i h = _mm_loadu_si128((const __m128i *)((const uint16_t *)src + at));
  if (dtype == TIDE_F16) return _mm256_cvtph_ps(h);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Returns the mask of the first n of 16 lanes. */
TIDE_AVX512_INLINE __mmask16 vec_lanes(int64_t n)
{
  return n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1);
}

/* Returns 16 elements from src[at] on, those of the mask, as f32; the others are zero. */
TIDE_AVX512_INLINE __m512 vec_load16(const void *src, int64_t at, int dtype, __mmask16 mask)
{
  if (dtype == TIDE_F32) return _mm512_maskz_loadu_ps(mask, (const float *)src + at);
  __m256i h = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)src + at);
  if (dtype == TIDE_F16) return _mm512_cvtph_ps(h);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Returns 2^x to 1e-7; exactly 0 below -1000, NaN stays NaN (max returns its second operand
 * then). */
TIDE_AVX512_INLINE __m512 vec_exp2(__m512 x)
{
  x = _mm512_max_ps(_mm512_set1_ps(-1000.0f), x);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.00132764721f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00967554145f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0555071327f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240221197f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693146967f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

/* Returns 2^x to 3e-6; exactly 0 below -1000; NaN stays NaN. */
TIDE_AVX512_INLINE __m512 vec_exp2_short(__m512 x)
{
  x = _mm512_max_ps(_mm512_set1_ps(-1000.0f), x);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.00957010199f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0559178613f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240247448f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693121815f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999999261f));
  return _mm512_scalef_ps(p, n);
}

#endif
