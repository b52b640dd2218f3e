/* Sums of exponentials by their logarithms: lse = log(e^a + e^b + ...), as attention keeps them. */
#pragma once

#include <math.h>

/* Returns log(e^a + e^b); -inf is the logarithm of an empty sum. */
static inline double ref_log_add_exp(double a, double b)
{
  double hi = a > b ? a : b, lo = a > b ? b : a;
  if (a != a || b != b) return NAN;
  return lo == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}

/* Returns the share e^(score - total) of a score, or of the sum of some, in the whole. */
static inline double ref_share(double score, double total)
{
  return score == -INFINITY ? 0 : exp(score - total);
}
