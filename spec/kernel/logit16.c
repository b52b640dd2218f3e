/* Logits in 16 bits: the largest is exact, others are off by half a step, what lies far below is
 * -inf, and no code is read back as a NaN that was not written. For every length around a vector.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/cpu/logit16.h"

enum { MOST = 100 };

static float z[MOST], back[MOST];
static uint16_t codes[MOST];

static float uniform(void) { return (float)rand() / (float)RAND_MAX; }

static logit16_scale round_trip(int n)
{
  logit16_scale s = tide__logit16_write(codes, z, n);
  tide__logit16_read(back, codes, s, n);
  return s;
}

/* Values within `spread` of each other, around `center`. */
static void check_spread(float center, float spread)
{
  for (int n = 1; n <= MOST; n++) {
    float max = -INFINITY;
    for (int i = 0; i < n; i++) z[i] = center + spread * uniform();
    for (int i = 0; i < n; i++) max = z[i] > max ? z[i] : max;
    logit16_scale s = round_trip(n);
    assert_true(s.max == max);
    double room = 0.5 * s.step + 4e-7 * (fabs((double)center) + spread);
    for (int i = 0; i < n; i++) {
      if (z[i] == max) assert_true(back[i] == max);
      if (fabs((double)back[i] - z[i]) > room) fail_msg("%g of %g at %d", back[i], z[i], i);
    }
  }
}

static void is_near(void **state)
{
  (void)state;
  check_spread(0, 0);
  check_spread(-3, 1e-3f);
  check_spread(-5, 12);
  check_spread(1e4f, 30);
  check_spread(-32, 63.9f);
}

static void half_a_step_is_small(void **state)
{
  (void)state;
  z[0] = 0, z[1] = -1000;
  assert_true(round_trip(2).step <= 1.0f / 1023);
}

static void far_below_is_nothing(void **state)
{
  (void)state;
  float below[] = { 7, 7 - 63.9f, 7 - 64.1f, -1e30f, -INFINITY, 6 };
  for (int n = 2; n <= 6; n++) {
    for (int i = 0; i < n; i++) z[i] = below[i];
    round_trip(n);
    for (int i = 0; i < n; i++) {
      int gone = i >= 2 && i <= 4;
      if (gone) assert_true(back[i] == -INFINITY);
      else assert_true(fabsf(back[i] - z[i]) < 1e-3f);
    }
  }
}

static void all_minus_infinity(void **state)
{
  (void)state;
  for (int i = 0; i < MOST; i++) z[i] = -INFINITY;
  round_trip(MOST);
  for (int i = 0; i < MOST; i++) assert_true(back[i] == -INFINITY);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(is_near), cmocka_unit_test(half_a_step_is_small),
    cmocka_unit_test(far_below_is_nothing), cmocka_unit_test(all_minus_infinity)
  };
  return cmocka_run_group_tests_name("logit16", tests, 0, 0);
}
