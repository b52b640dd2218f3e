/* Rows of any floating dtype as rows of f32: read in place or widened, built in place or narrowed.
 *
 * row_read and row_begin return an address inside the tensor if it is f32, else the scratch row
 * passed to them, so a kernel has one loop, in f32, and f32 is never copied. `i` counts elements
 * from the tensor's first.
 */
#ifndef TIDE_KERNELS_CPU_ROW_H
#define TIDE_KERNELS_CPU_ROW_H

#include "kernels/cpu/simd.h"
#include "kernels/kernel.h"

static inline int64_t row_element_size(int dtype)
{
  return dtype == TIDE_F64 ? 8 : dtype == TIDE_F32 ? 4 : 2;
}

static inline void *row_at(const k_tensor *t, int64_t i)
{
  return (char *)t->data + i * row_element_size(t->dtype);
}

TIDE_LEVELS(void, row_widen,
            (float *dst, const void *src, int dtype, int64_t n), (dst, src, dtype, n))
{
  if (dtype == TIDE_BF16) {
    tide__bf16_to_f32_n(dst, src, n);
  } else if (dtype == TIDE_F16) {
    tide__f16_to_f32_n(dst, src, n);
  } else if (dtype == TIDE_F64) {
    const double *s = src;
    for (int64_t i = 0; i < n; i++) dst[i] = (float)s[i];
  } else {
    memmove(dst, src, (size_t)n * sizeof(float));
  }
}

TIDE_LEVELS(void, row_narrow,
            (void *dst, const float *src, int dtype, int64_t n), (dst, src, dtype, n))
{
  if (dtype == TIDE_BF16) {
    uint16_t *d = dst;
#pragma omp simd
    for (int64_t i = 0; i < n; i++) d[i] = tide__f32_to_bf16(src[i]);
  } else if (dtype == TIDE_F16) {
    tide__f32_to_f16_n(dst, src, n);
  } else if (dtype == TIDE_F64) {
    double *d = dst;
    for (int64_t i = 0; i < n; i++) d[i] = src[i];
  } else {
    memmove(dst, src, (size_t)n * sizeof(float));
  }
}

/* exp for arguments that are not large: above 88 it is exp(88). Below -87 it is 0, so that one
 * power of two scales the result, which makes it faster than tide__expf. 1 ulp between. Tests for
 * NaN, which the shifted exponent would turn into a number. */
TIDE_INLINE float row_exp(float x)
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

/* Returns n elements from i on; tmp holds n floats. */
static inline float *row_read(const k_tensor *t, int64_t i, float *tmp, int64_t n)
{
  if (t->dtype == TIDE_F32) return row_at(t, i);
  row_widen(tmp, row_at(t, i), t->dtype, n);
  return tmp;
}

/* Returns the buffer for the row that row_write then stores at i. An absent tensor takes tmp. */
static inline float *row_begin(const k_tensor *t, int64_t i, float *tmp)
{
  return t->dtype == TIDE_F32 && !k_absent(t) ? row_at(t, i) : tmp;
}

static inline void row_write(const k_tensor *t, int64_t i, const float *row, int64_t n)
{
  if (k_absent(t) || (t->dtype == TIDE_F32 && row_at(t, i) == row)) return;
  row_narrow(row_at(t, i), row, t->dtype, n);
}

/* sum may be a or b. */
TIDE_LEVELS(void, row_add, (float *sum, const float *a, const float *b, int64_t n), (sum, a, b, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) sum[i] = a[i] + b[i];
}

#endif
