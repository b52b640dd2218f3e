/* Sigmoid and softplus of the reference kernels. */
#pragma once

#include <math.h>

static inline double ref_sigmoid(double x) { return 1 / (1 + exp(-x)); }
/* Returns log(1 + e^x), for any x. */
static inline double ref_softplus(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
