/* Rows of any floating dtype as rows of f32: read in place or widened, built in place or narrowed.
 *
 * row_read and row_begin return an address inside the tensor if it is f32, else the scratch row
 * passed to them, so a kernel has one loop, in f32, and f32 is never copied. `i` counts elements
 * from the tensor's first.
 */
#pragma once

#include "kernels/cpu/vec.h"

static inline void *row_at(const k_tensor *t, int64_t i)
{
  return (char *)t->data + i * vec_size(t->dtype);
}

/* vec_widen and vec_narrow as functions of their own, for loops outside TIDE_LEVELS. */
TIDE_LEVELS(void, row_widen,
            (float *dst, const void *src, int dtype, int64_t n), (dst, src, dtype, n))
{
  vec_widen(dst, src, dtype, n);
}

TIDE_LEVELS(void, row_narrow,
            (void *dst, const float *src, int dtype, int64_t n), (dst, src, dtype, n))
{
  vec_narrow(dst, src, dtype, n);
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

/* Fills `gain` with weight + offset, or with 1 without a weight, and returns it. */
static inline float *row_gain(float *gain, const k_tensor *weight, double offset, int64_t n)
{
  if (!k_absent(weight)) row_widen(gain, weight->data, weight->dtype, n);
  for (int64_t d = 0; d < n; d++) gain[d] = k_absent(weight) ? 1.0f : gain[d] + (float)offset;
  return gain;
}

/* Returns the sum of x[i] y[i]; x may be y. */
TIDE_LEVELS(float, row_dot, (const float *x, const float *y, int64_t n), (x, y, n))
{
  float a = 0, b = 0;
  int64_t q = n / 2;
#pragma omp simd reduction(+ : a, b)
  for (int64_t i = 0; i < q; i++) {
    a += x[i] * y[i];
    b += x[i + q] * y[i + q];
  }
  for (int64_t i = 2 * q; i < n; i++) a += x[i] * y[i];
  return a + b;
}

/* sum += v; returns the product of v with c. */
TIDE_LEVELS(float, row_add_dot, (float *sum, const float *v, const float *c, int64_t n),
            (sum, v, c, n))
{
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < n; i++) {
    sum[i] += v[i];
    dot += v[i] * c[i];
  }
  return dot;
}

/* y = x rstd gain; y may be x. */
TIDE_LEVELS(void, row_scale,
            (float *y, const float *x, const float *gain, float rstd, int64_t n),
            (y, x, gain, rstd, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * rstd * gain[i];
}

/* sum may be a or b. */
TIDE_LEVELS(void, row_add, (float *sum, const float *a, const float *b, int64_t n), (sum, a, b, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) sum[i] = a[i] + b[i];
}
