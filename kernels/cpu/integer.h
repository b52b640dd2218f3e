/* Integer arithmetic of sizes: minimum, maximum, division and rounding upwards. */
#ifndef TIDE_KERNELS_CPU_INTEGER_H
#define TIDE_KERNELS_CPU_INTEGER_H

#include <stdint.h>

static inline int64_t i64_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t i64_max(int64_t a, int64_t b) { return a > b ? a : b; }
/* n >= 0, by > 0. */
static inline int64_t i64_ceil_div(int64_t n, int64_t by) { return (n + by - 1) / by; }
static inline int64_t i64_round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

#endif
