/* Random numbers: the fast CPU kernels against the reference, the generator against its published
 * vectors, ranges; and the numbers of 16 bits that they are rounded to. */
#include "case.h"

#define OP_LIST_RANDOM(X) X(uniform_, K_FLOAT) X(normal_, K_FLOAT) X(trunc_normal_, K_FLOAT)

OP_LIST_RANDOM(DECLARE) DECLARE(dropout, K_FLOAT)
ONE(dropout, K_FLOAT)

static k_random_attrs random_attrs(int ndim, const int64_t *shape)
{
  k_random_attrs a = { .seed = draw(), .stream = below(3), .offset = (uint64_t)below(1000),
                       .a = -0.5, .b = 1.5, .lo = -1, .hi = 2, .start = below(10) };
  int64_t step = 1;
  if (below(2)) return a;
  a.ndim = ndim; /* a shard: gaps between its rows */
  for (int d = ndim - 1; d >= 0; d--) {
    a.gstride[d] = step;
    step *= shape[d] + below(5);
  }
  return a;
}

static void random_numbers(void **state)
{
  static const op_case ops[] = { OP_LIST_RANDOM(ROW) };
  (void)state;
  for (int k = 0; k < COUNT(ops) * REPEAT; k++) {
    const op_case *op = &ops[k % COUNT(ops)];
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 3), dtype = random_dtype(op->mask);
    k_random_attrs attrs = random_attrs(ndim, shape);
    case_begin();
    if (below(4) == 0) attrs.lo = 3, attrs.hi = HUGE_VAL;
    int64_t three = 3, words[] = { (int64_t)draw(), below(3), (int64_t)draw() };
    k_tensor out = make(dtype, ndim, shape, NO_BROADCAST);
    k_tensor place = make(TIDE_I64, 1, &three, PLAIN), absent = { .ndim = -1, .dtype = -1 };
    memcpy(place.data, words, sizeof words);
    int given = (int)below(3); /* no place, one that is absent, one */
    check_case(op, given > 0, given > 1 ? &place : &absent, &out, &attrs, 0, 1);
    k_tensor in[] = { random_tensor(dtype, ndim, shape, ANY_LAYOUT), given > 1 ? place : absent };
    attrs.a = below(5) / 4.0;
    check_case(&op_dropout, 1 + (given > 0), in, &out, &attrs, 2, 0);
  }
}

/* Published vectors: Random123, kat_vectors, philox4x32 10. */
static void philox_vectors(void **state)
{
  static const struct { uint64_t block, stream, seed; uint32_t word[4]; } known[] = {
    { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { ~0ull, ~0ull, ~0ull, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { 0x85a308d3243f6a88ull, 0x0370734413198a2eull, 0x299f31d0a4093822ull,
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } }
  };
  (void)state;
  for (int i = 0; i < COUNT(known); i++) {
    uint32_t word[4];
    tide__philox_block(known[i].seed, known[i].stream, known[i].block, word);
    assert_memory_equal(word, known[i].word, sizeof word);
  }
}

static void normal_quantile(void **state)
{
  (void)state;
  assert_true(fabs(tide__normal_quantile(0.25) + 0.6744897501960817) < 1e-15);
  assert_true(fabs(tide__normal_quantile(0.001) + 3.090232306167814) < 2e-15);
  assert_true(fabs(tide__normal_quantile(1e-20) + 9.262340089798408) < 4e-15);
  assert_true(tide__normal_quantile(0) == -HUGE_VAL && tide__normal_quantile(1) == HUGE_VAL);
  assert_true(isnan(tide__normal_quantile(-0.1)) && isnan(tide__normal_quantile(NAN)));
  for (double p = 1e-300; p < 1; p *= 1.37) {
    double z = tide__normal_quantile(p);
    assert_true(fabs(tide__normal_cdf(z) - p) <= 4e-15 * p * (1 + z * z));
  }
}

/* [lo, hi) holds in the dtype, where rounding alone would reach hi. */
static void uniform_range(void **state)
{
  static const int dtypes[] = { TIDE_F32, TIDE_BF16, TIDE_F16, TIDE_F64 };
  int64_t n = 20000;
  char msg[K_MSG];
  (void)state;
  for (int k = 0; k < 4; k++) {
    k_random_attrs attrs = { .a = 1, .b = 1.1 };
    case_begin();
    k_tensor t = make(dtypes[k], 1, &n, PLAIN);
    assert_int_equal(run_one(k_cpu_uniform_, NULL, 2, 0, NULL, &t, &attrs, msg), TIDE_OK);
    for (int64_t i = 0; i < n; i++) assert_true(ref_get(&t, i) >= 1 && ref_get(&t, i) < 1.1);
  }
}

static void half_round_trip(void **state)
{
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    float f = tide__f16_to_f32((uint16_t)h);
    if (f == f) assert_int_equal(tide__f32_to_f16(f), h);
    else assert_true(isnan(tide__f16_to_f32(tide__f32_to_f16(f))));
  }
  assert_int_equal(tide__f32_to_f16(65519.996f), 0x7bff);
  assert_int_equal(tide__f32_to_f16(65520.0f), 0x7c00);
  assert_int_equal(tide__f32_to_f16(0x1p-25f), 0);          /* halfway: to even */
  assert_int_equal(tide__f32_to_f16(0x1.000002p-25f), 1);
  assert_int_equal(tide__f32_to_f16(1 + 0x1p-11f), 0x3c00);
  assert_int_equal(tide__f32_to_f16(1 + 0x3p-11f), 0x3c02);
}

static void promotion(void **state)
{
  (void)state;
  assert_int_equal(tide__dtype_promote(TIDE_BOOL, TIDE_U8), TIDE_U8);
  assert_int_equal(tide__dtype_promote(TIDE_I64, TIDE_BF16), TIDE_BF16);
  assert_int_equal(tide__dtype_promote(TIDE_F16, TIDE_BF16), TIDE_F32);
  assert_int_equal(tide__dtype_promote(TIDE_F16, TIDE_F16), TIDE_F16);
  assert_int_equal(tide__dtype_promote(TIDE_F64, TIDE_F16), TIDE_F64);
  assert_int_equal(tide__dtype_promote(TIDE_F64, 8), -1);
  assert_null(tide_dtype_name(-1));
  assert_int_equal(tide_dtype_size(8), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(half_round_trip), cmocka_unit_test(promotion),
    cmocka_unit_test(philox_vectors), cmocka_unit_test(normal_quantile),
    cmocka_unit_test(random_numbers), cmocka_unit_test(uniform_range)
  };
  return RUN_CASES(tests);
}
