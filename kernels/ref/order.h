/* The order of the elements of a row, by which topk chooses. */
#pragma once

#include "kernels/ref/load.h"

/* Returns whether the element at a precedes the one at b, another: it is larger (smallest:
 * smaller), or equal and at a lower position. NaN is larger than every number. */
static inline int ref_precedes(const k_tensor *x, int64_t base, int64_t step, int64_t a,
                               int64_t b, int smallest)
{
  int larger, smaller;
  if (ref_is_float(x)) {
    const double u = ref_get(x, base + a * step), v = ref_get(x, base + b * step);
    larger = u > v || (u != u && v == v);
    smaller = u < v || (u == u && v != v);
  } else {
    const int64_t u = ref_get_int(x, base + a * step), v = ref_get_int(x, base + b * step);
    larger = u > v;
    smaller = u < v;
  }
  if (larger || smaller) return smallest ? smaller : larger;
  return a < b;
}
