/* The standard normal: the quantile of normal.h out of line, and the cdf through erfc. */
#include "core/base/rng.h"

#include "core/base/normal.h"

double tide__normal_quantile(double p)
{
  return p >= 0.0 && p <= 1.0 ? tide__normal_quantile_inline(p) : NAN;
}

double tide__normal_cdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
