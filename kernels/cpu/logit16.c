/* See logit16.h. */
#include "kernels/cpu/logit16.h"

#include "kernels/cpu/vec.h"

/* Logits this far below the maximum get the last code. */
static const float RANGE = 64.0f, LAST = 65535.0f;

/* Returns the smallest of n values and `start`; a NaN is passed over. */
TIDE_LEVELS(float, logit16_least, (const float *z, int64_t n, float start), (z, n, start))
{
  float least = start;
#pragma omp simd reduction(min : least)
  for (int64_t i = 0; i < n; i++) least = z[i] < least ? z[i] : least;
  return least;
}

TIDE_LEVELS(float, logit16_most, (const float *z, int64_t n), (z, n))
{
  return tide__max_f32_n(z, n, -INFINITY);
}

/* `per` is 1 / step. Written so that a NaN, too, gets the last code. */
TIDE_LEVELS(void, logit16_encode,
            (uint16_t *codes, const float *z, float max, float per, int64_t n),
            (codes, z, max, per, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float code = (max - z[i]) * per + 0.5f;
    codes[i] = (uint16_t)(int32_t)(code < LAST ? code : LAST);
  }
}

TIDE_LEVELS(void, logit16_decode, (float *z, const uint16_t *codes, logit16_scale s, int64_t n),
            (z, codes, s, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float value = s.max - s.step * (float)(int32_t)codes[i];
    z[i] = codes[i] == 65535 ? -INFINITY : value;
  }
}

logit16_scale tide__logit16_write(uint16_t *codes, const float *z, int64_t n)
{
  logit16_scale s = { .max = logit16_most(z, n) };
  float below = s.max - logit16_least(z, n, s.max);
  s.step = (below < RANGE ? below : RANGE) / (LAST - 1);
  logit16_encode(codes, z, s.max, s.step > 0 ? 1 / s.step : 0, n);
  return s;
}

void tide__logit16_read(float *z, const uint16_t *codes, logit16_scale s, int64_t n)
{
  logit16_decode(z, codes, s, n);
}
