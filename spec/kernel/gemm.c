/* Products on the CPU against plain sums: odd shapes, dtypes, layouts, threads, instruction sets.
 *
 * Every case is drawn at random from a fixed seed and checked three ways: within the
 * rounding of f32 sums of a f64 sum of the same operands; the same bits for 1, 2 and 7 threads;
 * nothing written outside C's rows or past the scratch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/vec.h"
#include "kernels/cpu/gemm/plan.h"
#include "kernels/cpu/gemm/tile.h"
#include "tide/tide.h"

typedef struct draw { uint64_t x; } draw;

static uint64_t next(draw *d)
{
  d->x ^= d->x << 13, d->x ^= d->x >> 7, d->x ^= d->x << 17;
  return d->x;
}

static int64_t between(draw *d, int64_t lo, int64_t hi)
{
  return lo + (int64_t)(next(d) % (uint64_t)(hi - lo + 1));
}

static int coin(draw *d) { return (int)(next(d) >> 40 & 1); }

static int64_t size_of(int dtype) { return dtype == TIDE_F64 ? 8 : dtype == TIDE_F32 ? 4 : 2; }

static double get(const void *p, int dtype, int64_t i)
{
  switch (dtype) {
  case TIDE_F32: return ((const float *)p)[i];
  case TIDE_F64: return ((const double *)p)[i];
  case TIDE_BF16: return tide__bf16_to_f32(((const uint16_t *)p)[i]);
  default: return tide__f16_to_f32(((const uint16_t *)p)[i]);
  }
}

static void put(void *p, int dtype, int64_t i, double v)
{
  switch (dtype) {
  case TIDE_F32: ((float *)p)[i] = (float)v; break;
  case TIDE_F64: ((double *)p)[i] = v; break;
  case TIDE_BF16: ((uint16_t *)p)[i] = tide__f32_to_bf16((float)v); break;
  default: ((uint16_t *)p)[i] = tide__f32_to_f16((float)v); break;
  }
}

/* Exactly n elements, so that a sanitizer sees one read too many. */
static void *array(draw *d, int dtype, int64_t n)
{
  void *p = malloc((size_t)(n > 0 ? n * size_of(dtype) : 1));
  assert_non_null(p);
  for (int64_t i = 0; i < n; i++)
    put(p, dtype, i, (double)(int64_t)(next(d) >> 11) * 0x1p-52 - 1);
  return p;
}

/* A product, the C it starts from, and how many elements C spans. */
typedef struct product {
  cpu_gemm g;
  void    *c0;
  int64_t  nc;
} product;

/* n or k is thin, or m, and the others are of several blocks. */
static void draw_thin(draw *d, cpu_gemm *g)
{
  int64_t *thin[3] = {&g->n, &g->k, &g->m};
  g->m = between(d, 6, 300), g->n = between(d, 1, 600), g->k = between(d, 1, 1600);
  int which = (int)between(d, 0, 5);
  if (which < 3) *thin[which] = between(d, 1, which == 2 ? 64 : coin(d) ? 33 : 260);
}

/* large: 1, every dim is more than one block of the fast kernels; 2, few rows and a B of 8 MiB; 3,
 * one dim is thin. */
static void draw_shape(draw *d, cpu_gemm *g, int large)
{
  if (large == 3) {
    draw_thin(d, g);
    return;
  }
  if (large == 2) {
    g->m = between(d, 17, 140), g->n = between(d, 2400, 2600), g->k = between(d, 1750, 1900);
    return;
  }
  if (large) {
    g->m = between(d, 400, 800), g->n = between(d, 300, 700), g->k = between(d, 710, 1500);
    return;
  }
  int kind = (int)between(d, 0, 8);
  g->m = between(d, 1, kind == 0 ? 300 : 70);
  g->n = between(d, 1, kind == 1 ? 400 : 90);
  g->k = between(d, 0, kind == 2 ? 1500 : kind == 3 ? 5000 : 80);
  if (kind >= 6) g->m = between(d, 1, 17), g->n = between(d, 60, 1200), g->k = between(d, 20, 300);
  if (kind == 5) g->n = between(d, 1, 3);
}

/* Draws the strides of a matrix: along rows, across, or neither of them 1. Returns the elements
 * from the first to the last. */
static int64_t draw_strides(draw *d, int64_t rows, int64_t cols, int64_t *rs, int64_t *cs)
{
  int64_t gap = coin(d) * between(d, 0, 3), kind = between(d, 0, 4);
  if (kind < 2) *rs = cols + gap, *cs = 1;
  else if (kind < 4) *rs = 1, *cs = rows + gap;
  else *cs = 2, *rs = 2 * cols + gap;
  return rows && cols ? (rows - 1) * *rs + (cols - 1) * *cs + 1 : 0;
}

static void draw_product(draw *d, product *p, int large)
{
  static const int dtypes[4] = {TIDE_F32, TIDE_BF16, TIDE_F16, TIDE_F64};
  cpu_gemm *g = &p->g;
  memset(p, 0, sizeof *p);
  draw_shape(d, g, large);
  g->ab_dtype = large == 3 ? TIDE_F32 : dtypes[between(d, 0, 3)];
  int half = g->ab_dtype == TIDE_BF16 || g->ab_dtype == TIDE_F16;
  g->c_dtype = half && coin(d) ? TIDE_F32 : g->ab_dtype;
  int64_t na = draw_strides(d, g->m, g->k, &g->a_rs, &g->a_cs);
  int64_t nb = draw_strides(d, g->k, g->n, &g->b_rs, &g->b_cs);
  g->c_rs = g->n + coin(d) * between(d, 0, 5);
  p->nc = (g->m - 1) * g->c_rs + g->n;
  g->a = array(d, g->ab_dtype, na), g->b = array(d, g->ab_dtype, nb);
  g->bias = coin(d) ? array(d, g->c_dtype, g->n) : 0;
  p->c0 = array(d, g->c_dtype, p->nc);
  g->accumulate = coin(d);
  for (int64_t i = 0; i < p->nc && !g->accumulate; i++) put(p->c0, g->c_dtype, i, NAN);
}

static void drop(product *p)
{
  free((void *)p->g.a), free((void *)p->g.b), free((void *)p->g.bias), free(p->c0);
}

static void *run(const product *p, int nthread, int isa)
{
  enum { GUARD = 64 };
  cpu_gemm g = p->g;
  size_t bytes = (size_t)(p->nc * size_of(g.c_dtype));
  g.c = malloc(bytes);
  assert_non_null(g.c);
  memcpy(g.c, p->c0, bytes);
  cpu_gemm_plan plan;
  tide__cpu_gemm_plan_isa(&plan, &g, nthread, isa);
  size_t work = (size_t)(plan.bytes + 63) / 64 * 64;
  unsigned char *scratch = aligned_alloc(64, work + GUARD);
  assert_non_null(scratch);
  memset(scratch, 0xff, work + GUARD);
  tide__cpu_gemm_run(&plan, &g, scratch);
  for (int i = 0; i < GUARD; i++) assert_int_equal(scratch[work + (size_t)i], 0xff);
  free(scratch);
  return g.c;
}

static void check_element(const product *p, const void *c, int64_t i, int64_t j)
{
  const cpu_gemm *g = &p->g;
  double sum = 0, size = 0;
  for (int64_t q = 0; q < g->k; q++) {
    double v = get(g->a, g->ab_dtype, i * g->a_rs + q * g->a_cs) *
               get(g->b, g->ab_dtype, q * g->b_rs + j * g->b_cs);
    sum += v, size += fabs(v);
  }
  double old = g->accumulate ? get(p->c0, g->c_dtype, i * g->c_rs + j) : 0;
  double bias = g->bias ? get(g->bias, g->c_dtype, j) : 0;
  sum += old + bias, size += fabs(old) + fabs(bias);
  double each = g->ab_dtype == TIDE_F64 ? 0x1p-52 : 0x1p-23; /* per term of the sum */
  double last = g->c_dtype == TIDE_F64 ? 0x1p-53 : g->c_dtype == TIDE_F32 ? 0x1p-24
                : g->c_dtype == TIDE_BF16 ? 0x1p-8 : 0x1p-11;
  double least = g->c_dtype == TIDE_F16 ? 0x1p-24 : 0x1p-120;
  double limit = each * size * sqrt((double)g->k + 4) + last * 1.01 * fabs(sum) + least;
  double got = get(c, g->c_dtype, i * g->c_rs + j);
  if (!(fabs(got - sum) <= limit))
    fail_msg("m %ld n %ld k %ld dtype %d to %d at %ld, %ld: got %g, expected %g", (long)g->m,
             (long)g->n, (long)g->k, g->ab_dtype, g->c_dtype, (long)i, (long)j, got, sum);
}

/* Nothing is written between the rows of C. */
static void check_gaps(const product *p, const void *c)
{
  const cpu_gemm *g = &p->g;
  int64_t size = vec_size(g->c_dtype);
  for (int64_t i = 0; i + 1 < g->m; i++) {
    int64_t gap = (i * g->c_rs + g->n) * size;
    assert_memory_equal((const char *)c + gap, (const char *)p->c0 + gap,
                        (size_t)((g->c_rs - g->n) * size));
  }
}

static void check_product(const product *p, const void *c)
{
  for (int64_t i = 0; i < p->g.m; i++)
    for (int64_t j = 0; j < p->g.n; j++) check_element(p, c, i, j);
  check_gaps(p, c);
}

static void products_match_plain_sums(void **state)
{
  (void)state;
  static const int levels[5] = {
    CPU_ISA_BASE, CPU_ISA_AVX2, CPU_ISA_AVX2 | CPU_ISA_AVX512,
    CPU_ISA_AVX2 | CPU_ISA_AVX512 | CPU_ISA_BF16, ~0
  };
  draw d = {88172645463325252u};
  for (int i = 0; i < 150; i++) {
    product p;
    draw_product(&d, &p, 0);
    int isa = levels[i % 5] & tide__cpu_isa();
    void *one = run(&p, 1, isa), *two = run(&p, 2, isa), *seven = run(&p, 7, isa);
    check_product(&p, one);
    assert_memory_equal(one, two, (size_t)(p.nc * size_of(p.g.c_dtype)));
    assert_memory_equal(one, seven, (size_t)(p.nc * size_of(p.g.c_dtype)));
    free(one), free(two), free(seven);
    drop(&p);
  }
}

/* The scratch of a product is within what was promised for its m and k or larger ones. */
static void the_most_scratch_suffices(void **state)
{
  (void)state;
  static const int levels[5] = {
    CPU_ISA_BASE, CPU_ISA_AVX2, CPU_ISA_AVX2 | CPU_ISA_AVX512,
    CPU_ISA_AVX2 | CPU_ISA_AVX512 | CPU_ISA_BF16, ~0
  };
  static const int dtypes[4] = {TIDE_F32, TIDE_F64, TIDE_BF16, TIDE_F16};
  static const int64_t sizes[4] = {20, 200, 3000, 40000};
  draw d = {88172645463325252u};
  for (int i = 0; i < 20000; i++) {
    cpu_gemm g = {.ab_dtype = dtypes[between(&d, 0, 3)]}, most;
    g.c_dtype = g.ab_dtype == TIDE_F64 || coin(&d) ? g.ab_dtype : TIDE_F32;
    g.m = between(&d, 1, sizes[between(&d, 0, 3)]), g.n = between(&d, 1, sizes[between(&d, 0, 3)]);
    g.k = between(&d, 1, sizes[between(&d, 0, 3)]);
    int a = coin(&d), b = coin(&d), nthread = (int)between(&d, 1, 9);
    g.a_rs = a ? 1 : g.k, g.a_cs = a ? g.m : 1, g.b_rs = b ? 1 : g.n, g.b_cs = b ? g.k : 1;
    g.c_rs = g.n;
    most = g;
    g.m = between(&d, 0, g.m), g.k = between(&d, 0, g.k);
    cpu_gemm_plan plan;
    int isa = levels[i % 5]; /* a plan runs nothing: of any processor */
    tide__cpu_gemm_plan_isa(&plan, &g, (int)between(&d, 1, nthread), isa);
    if (plan.bytes > tide__cpu_gemm_most_isa(&most, nthread, isa))
      fail_msg("m %ld of %ld, n %ld, k %ld of %ld, dtype %d to %d, level %d: %ld bytes, promised "
               "%ld", (long)g.m, (long)most.m, (long)g.n, (long)g.k, (long)most.k, g.ab_dtype,
               g.c_dtype, i % 5, (long)plan.bytes,
               (long)tide__cpu_gemm_most_isa(&most, nthread, isa));
  }
}

/* Products of many blocks: a sample of elements, and the same bits for any number of threads. */
static void large_products_match_plain_sums(void **state)
{
  (void)state;
  draw d = {3935559000370003845u};
  for (int i = 0; i < 32; i++) {
    product p;
    draw_product(&d, &p, i < 16 ? 1 : 2);
    int isa = i % 2 ? ~0 : CPU_ISA_AVX2 | CPU_ISA_AVX512;
    isa &= tide__cpu_isa();
    void *one = run(&p, 1, isa), *three = run(&p, 3, isa);
    for (int n = 0; n < 300; n++)
      check_element(&p, one, between(&d, 0, (int)p.g.m - 1), between(&d, 0, (int)p.g.n - 1));
    assert_memory_equal(one, three, (size_t)(p.nc * size_of(p.g.c_dtype)));
    free(one), free(three);
    drop(&p);
  }
}

/* Products in f32 with a thin dimension: a sample of elements, the same bits for any number of
 * threads, and at least a third of them by the tiles that read an operand in place. */
static void thin_products_match_plain_sums(void **state)
{
  (void)state;
  int isa = CPU_ISA_AVX2 & tide__cpu_isa(), nthin = 0;
  draw d = {2463534242u};
  for (int i = 0; i < 90; i++) {
    product p;
    draw_product(&d, &p, 3);
    cpu_gemm_plan plan;
    tide__cpu_gemm_plan_isa(&plan, &p.g, 1, isa);
    nthin += plan.method == GEMM_THIN;
    void *one = run(&p, 1, isa), *two = run(&p, 2, isa), *seven = run(&p, 7, isa);
    for (int n = 0; n < 300; n++)
      check_element(&p, one, between(&d, 0, (int)p.g.m - 1), between(&d, 0, (int)p.g.n - 1));
    check_gaps(&p, one);
    assert_memory_equal(one, two, (size_t)(p.nc * size_of(p.g.c_dtype)));
    assert_memory_equal(one, seven, (size_t)(p.nc * size_of(p.g.c_dtype)));
    free(one), free(two), free(seven);
    drop(&p);
  }
  if (isa) assert_true(nthin >= 30);
}

static void empty_products_touch_nothing(void **state)
{
  (void)state;
  cpu_gemm g = {.m = 0, .n = 5, .k = 3, .a_rs = 3, .a_cs = 1, .b_rs = 5, .b_cs = 1, .c_rs = 5};
  g.ab_dtype = g.c_dtype = TIDE_F32;
  assert_int_equal(tide__cpu_gemm_work(&g, 2), 0);
  tide__cpu_gemm(&g, 2, 0);
  g.m = 5, g.n = 0;
  assert_int_equal(tide__cpu_gemm_work(&g, 2), 0);
  tide__cpu_gemm(&g, 2, 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(products_match_plain_sums),
    cmocka_unit_test(the_most_scratch_suffices),
    cmocka_unit_test(large_products_match_plain_sums),
    cmocka_unit_test(thin_products_match_plain_sums),
    cmocka_unit_test(empty_products_touch_nothing),
  };
  return cmocka_run_group_tests(tests, 0, 0);
}
