/* Decays within a piece of tokens, for recurrences in which each token multiplies the state by
 * exp(a). Exponents are differences of cumulative sums of a: these run in f64 and are split into
 * two floats hi and lo, so that a difference is as exact as its own size allows.
 */
#pragma once

#include "kernels/cpu/row.h"

/* Adds a of token i to sum, stores the split sum and returns it. A decay below exp(-1e5) is 0 in
 * any case, and so limited sums stay small. */
static inline double decay_add(float *hi, float *lo, int64_t i, double sum, double a)
{
  sum += a < -1e5 ? -1e5 : a;
  hi[i] = (float)sum;
  lo[i] = (float)(sum - hi[i]);
  return sum;
}

/* Computes the decay from before the piece to each token, and from each token to the last. */
TIDE_LEVELS(void, decay_ends,
            (float *in, float *out, const float *hi, const float *lo, int64_t n),
            (in, out, hi, lo, n))
{
  float top = hi[n - 1], low = lo[n - 1];
  for (int64_t i = 0; i < n; i++) {
    in[i] = tide__expf(hi[i] + lo[i]);
    out[i] = tide__expf((top - hi[i]) + (low - lo[i]));
  }
}

/* Returns the decay that token i applies. */
static inline float decay_step(const float *hi, const float *lo, int64_t i)
{
  return i == 0 ? expf(hi[0] + lo[0]) : expf((hi[i] - hi[i - 1]) + (lo[i] - lo[i - 1]));
}
