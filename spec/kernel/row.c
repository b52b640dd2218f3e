/* vec_exp, the exponential of cross entropy and SwiGLU loops: against libm over its range, at its
 * ends, and for NaNs of every payload, which the shifted exponent must not turn into numbers.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/row.h"

enum { N = 1 << 16 };
static float x[N], y[N];

TIDE_LEVELS(void, exp_all, (float *to, const float *from, int64_t n), (to, from, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) to[i] = vec_exp(from[i]);
}

/* Every payload in turn: all 23 bits of the mantissa, quiet and signalling, both signs. */
static uint32_t fill_nans(uint32_t payload)
{
  for (int i = 0; i < N; i++, payload++) {
    uint32_t bits = 0x7f800000u | (payload & 0x7fffffu) | (payload >> 23 & 1) << 31;
    if (!(payload & 0x7fffffu)) bits |= 1; /* not infinity */
    memcpy(&x[i], &bits, sizeof bits);
  }
  return payload;
}

static void nan_payloads(void **state)
{
  (void)state;
  for (uint32_t payload = 0; payload < 1u << 24;) {
    uint32_t first = payload;
    payload = fill_nans(payload);
    exp_all(y, x, N);
    for (int i = 0; i < N; i++)
      if (y[i] == y[i]) fail_msg("payload %x gives %g", (unsigned)(first + (uint32_t)i), y[i]);
    if (vec_exp(x[1]) == vec_exp(x[1])) fail_msg("payload %x alone", (unsigned)first + 1);
  }
}

/* In units of the last place of the exact value. */
static void accuracy(void **state)
{
  (void)state;
  double worst = 0;
  for (int pass = 0; pass < 16; pass++) {
    for (int i = 0; i < N; i++) x[i] = (float)(-87 + 175.0 * (i + pass / 16.0) / N);
    exp_all(y, x, N);
    for (int i = 0; i < N; i++) {
      double want = exp((double)x[i]);
      float near = (float)want, ulp = nextafterf(near, HUGE_VALF) - near;
      worst = fmax(worst, fabs(y[i] - want) / ulp);
    }
  }
  if (worst > 1.5) fail_msg("%g units of the last place", worst);
}

static void ends(void **state)
{
  (void)state;
  static const float low[] = {-87.01f, -88, -104, -1e30f, -HUGE_VALF};
  static const float high[] = {88, 88.01f, 100, 1e30f, HUGE_VALF};
  exp_all(y, low, 5);
  for (int i = 0; i < 5; i++) assert_true(y[i] == 0);
  exp_all(y, high, 5);
  for (int i = 0; i < 5; i++) assert_true(y[i] == vec_exp(88) && y[i] > 1.6e38f);
  assert_true(vec_exp(0) == 1 && vec_exp(-0.0f) == 1 && vec_exp(1e-40f) == 1);
  assert_true(vec_exp(-87) > 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(nan_payloads), cmocka_unit_test(accuracy), cmocka_unit_test(ends),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
