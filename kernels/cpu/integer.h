/* Integer arithmetic of sizes: minimum, maximum, division and rounding upwards. */
#pragma once

#include <stdint.h>

static inline int64_t i64_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t i64_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* Returns n / by, rounded up, for n >= 0 and by > 0. */
static inline int64_t i64_ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline int64_t i64_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
/* Returns the i < n with first[i] <= k < first[i + 1]. first ascends. */
static inline int64_t i64_find(const int64_t *first, int64_t n, int64_t k)
{
  int64_t lo = 0, hi = n - 1;
  while (lo < hi) {
    int64_t mid = lo + (hi - lo + 1) / 2;
    if (first[mid] <= k) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}
