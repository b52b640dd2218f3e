/* The standard normal quantile, branch-free, as one expression that every device can repeat.
 *
 * Wichura's algorithm AS 241 (PPND16) with each product and sum spelled as fma, and a logarithm of
 * our own, so that a vector loop, plain C and a GPU compute the same bits. Three ratios of
 * polynomials of degree seven, chosen by the distance of p from one half; relative error about
 * 1e-16.
 *
 * Reference: M. J. Wichura, Applied Statistics 37 (1988) 477-484.
 *
 * Inline functions for loops; other code calls tide__normal_quantile.
 */
#pragma once

#include <math.h>
#include <string.h>

#include "core/base/rng.h"

/* Returns the natural logarithm of a positive normal number: m 2^e with m in [sqrt(1/2), sqrt(2)),
 * then log m = 2 atanh((m - 1) / (m + 1)) by its series. Within 2 ulp below 1/2. */
TIDE__ANYWHERE
static inline __attribute__((always_inline)) double tide__normal_log(double x)
{
  uint64_t u;
  double m;
  memcpy(&u, &x, 8);
  u -= 0x3fe6a09e667f3bcdu;
  int32_t e = (int32_t)(u >> 32) >> 20;
  u = (u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu;
  memcpy(&m, &u, 8);
  double s = (m - 1.0) / (m + 1.0), w = s * s;
  double t = 1.0 / 23;
  t = fma(t, w, 1.0 / 21);
  t = fma(t, w, 1.0 / 19);
  t = fma(t, w, 1.0 / 17);
  t = fma(t, w, 1.0 / 15);
  t = fma(t, w, 1.0 / 13);
  t = fma(t, w, 1.0 / 11);
  t = fma(t, w, 1.0 / 9);
  t = fma(t, w, 1.0 / 7);
  t = fma(t, w, 1.0 / 5);
  t = fma(t, w, 1.0 / 3);
  double s2 = s + s, log_m = fma(s2 * w, t, s2);
  return fma((double)e, 0.693147180559945309417, log_m);
}

/* Coefficient of r^k in numerator and denominator: near one half, in the tail, far in the tail. */
#define TIDE_QUANTILE_TERM(c_num, t_num, f_num, c_den, t_den, f_den) \
  num = fma(num, r, centre ? c_num : tail ? t_num : f_num); \
  den = fma(den, r, centre ? c_den : tail ? t_den : f_den);

/* Returns the quantile at p in [0, 1]; 0 and 1 give the infinities. */
TIDE__ANYWHERE
static inline __attribute__((always_inline)) double tide__normal_quantile_inline(double p)
{
  double q = p - 0.5, side = q < 0.0 ? p : 1.0 - p;
  double root = sqrt(-tide__normal_log(side > 0.0 ? side : 0.25));
  int centre = fabs(q) <= 0.425, tail = root <= 5.0;
  double r = centre ? fma(-q, q, 0.180625) : root - (tail ? 1.6 : 5.0), num = 0, den = 0;
  TIDE_QUANTILE_TERM(2.5090809287301226727e3, 7.74545014278341407640e-4,
                     2.01033439929228813265e-7, 5.2264952788528545610e3,
                     1.05075007164441684324e-9, 2.04426310338993978564e-15)
  TIDE_QUANTILE_TERM(3.3430575583588128105e4, 2.27238449892691845833e-2,
                     2.71155556874348757815e-5, 2.8729085735721942674e4,
                     5.47593808499534494600e-4, 1.42151175831644588870e-7)
  TIDE_QUANTILE_TERM(6.7265770927008700853e4, 2.41780725177450611770e-1,
                     1.24266094738807843860e-3, 3.9307895800092710610e4,
                     1.51986665636164571966e-2, 1.84631831751005468180e-5)
  TIDE_QUANTILE_TERM(4.5921953931549871457e4, 1.27045825245236838258e0,
                     2.65321895265761230930e-2, 2.1213794301586595867e4,
                     1.48103976427480074590e-1, 7.86869131145613259100e-4)
  TIDE_QUANTILE_TERM(1.3731693765509461125e4, 3.64784832476320460504e0,
                     2.96560571828504891230e-1, 5.3941960214247511077e3,
                     6.89767334985100004550e-1, 1.48753612908506148525e-2)
  TIDE_QUANTILE_TERM(1.9715909503065514427e3, 5.76949722146069140550e0,
                     1.78482653991729133580e0, 6.8718700749205790830e2,
                     1.67638483018380384940e0, 1.36929880922735805310e-1)
  TIDE_QUANTILE_TERM(1.3314166789178437745e2, 4.63033784615654529590e0,
                     5.46378491116411436990e0, 4.2313330701600911252e1,
                     2.05319162663775882187e0, 5.99832206555887937690e-1)
  TIDE_QUANTILE_TERM(3.3871328727963666080e0, 1.42343711074968357734e0,
                     6.65790464350110377720e0, 1.0, 1.0, 1.0)
  double z = num / den;
  z = centre ? q * z : q < 0.0 ? -z : z;
  z = p <= 0.0 ? -HUGE_VAL : z;
  return p >= 1.0 ? HUGE_VAL : z;
}

#undef TIDE_QUANTILE_TERM
