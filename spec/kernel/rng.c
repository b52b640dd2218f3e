/* The generator against the known answers of its authors, and the normal quantile against erfc.
 *
 * The answers are those of Salmon et al. (SC 2011) for philox4x32-10: counter and key all zero, all
 * ones, and digits of pi. The public functions reach them only in part, since an index of 64 bits
 * counts words and a block holds four.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/base/rng.h"

static void check_block(uint64_t seed, uint64_t stream, uint64_t block, const uint32_t *want)
{
  uint32_t got[4];
  tide__philox_block(seed, stream, block, got);
  for (int i = 0; i < 4; i++) assert_int_equal(got[i], want[i]);
}

static void test_known_answers(void **state)
{
  static const uint32_t zeros[] = { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 };
  static const uint32_t ones[] = { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd };
  static const uint32_t pi[] = { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 };
  (void)state;
  check_block(0, 0, 0, zeros);
  check_block(UINT64_MAX, UINT64_MAX, UINT64_MAX, ones);
  check_block(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u, pi);
}

static void test_words_are_lanes_of_blocks(void **state)
{
  static const uint64_t index[] = { 0, 1, 2, 3, 4, 7, 1u << 20, (uint64_t)1 << 34, UINT64_MAX };
  (void)state;
  for (size_t i = 0; i < sizeof index / sizeof *index; i++) {
    uint32_t block[4];
    tide__philox_block(9, 8, index[i] / 4, block);
    assert_int_equal(tide__philox_word(9, 8, index[i]), block[index[i] % 4]);
  }
}

/* erfc is good to its last places, so the cdf of a quantile gives the probability back. */
static void test_quantile(void **state)
{
  (void)state;
  for (int i = 1; i < 4000; i++) {
    double p = i < 2000 ? pow(2, -i / 64.0) : (i - 1999) / 2002.0;
    double z = tide__normal_quantile(p), back = tide__normal_cdf(z);
    /* an error of z is multiplied by the slope of log cdf, about |z| in the tail */
    assert_true(fabs(back - p) <= 4e-15 * p * (1 + z * z));
    if (p < 0.5 && p > 1e-15)
      assert_true(fabs(z + tide__normal_quantile(1 - p)) <= 1e-15 / p + 1e-14 * fabs(z));
  }
  assert_true(tide__normal_quantile(0.5) == 0);
  assert_true(isinf(tide__normal_quantile(0)) && isinf(tide__normal_quantile(1)));
  assert_true(isnan(tide__normal_quantile(-0.1)) && isnan(tide__normal_quantile(1.1)));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_known_answers), cmocka_unit_test(test_words_are_lanes_of_blocks),
    cmocka_unit_test(test_quantile),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
