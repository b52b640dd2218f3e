/* The CPU attention kernels against the reference, over shapes, masks, types, instruction sets and
 * numbers of threads.
 *
 * Checked for each case: out and lse, the gradients of q, k, v and bias with and without a gradient
 * of lse, and the same bits from 1 and 3 threads.
 */
#include "attention_case.h"

/* Each element to tol of its own size plus tol of the largest, plus a floor: a logarithm is as
 * exact as the sum behind it is relative to itself, and where a gradient cancels (a query that
 * sees one key) the rounding of its terms remains. -inf must meet -inf. */
static void compare(const kase *c, const char *what, const k_tensor *got, const k_tensor *want,
                    double tol)
{
  const double least = !strcmp(what, "out") ? 0 : c->dtype == TIDE_F64 ? 1e-13 : 4e-6;
  double top = 0;
  if (want->ndim < 0) return;
  for (int64_t i = 0; i < k_numel(want); i++)
    if (get(want, i) > -INFINITY) top = fmax(top, fabs(get(want, i)));
  for (int64_t i = 0; i < k_numel(want); i++) {
    const double g = get(got, i), w = get(want, i);
    if (g == w) continue;
    if (!(fabs(g - w) <= tol * (fabs(w) + top) + least))
      fail_msg("%s[%d]: %.9g, should be %.9g (largest %g); %s", what, (int)i, g, w, top,
               describe(c));
  }
}

static double tolerance(int dtype, int is_bwd)
{
  switch (dtype) {
    case TIDE_F64: return 1e-12;
    case TIDE_F32: return is_bwd ? 4e-6 : 2e-6;
    case TIDE_F16: return is_bwd ? 2e-3 : 1e-3;
    default: return is_bwd ? 1.2e-2 : 6e-3;
  }
}

static void same_bits(const kase *c, const k_tensor *a, const k_tensor *b)
{
  if (a->ndim < 0) return;
  if (memcmp(a->data, b->data, (size_t)(k_numel(a) * width(a->dtype))))
    fail_msg("bits depend on the number of threads; %s", describe(c));
}

static void check_pass(run *r, const kase *c, int is_bwd)
{
  static const char *const name[2][4] = { { "out", "lse" }, { "dq", "dk", "dv", "dbias" } };
  int sets[NSET];
  k_tensor want[4], one[4];
  fill_sets(sets);
  make_outputs(r, c, is_bwd);
  memcpy(want, r->out, sizeof want);
  call(r, c, is_bwd, 1, -1);
  for (int s = 0; s < NSET; s++)
    for (int n = 1; n <= 3; n += 2) {
      if (s && s < AVX2_SET && c->dtype != TIDE_BF16) continue;
      if (s == AVX2_SET && (sets[s] == sets[0] || sets[s] == CPU_ISA_BASE)) continue;
      make_outputs(r, c, is_bwd);
      call(r, c, is_bwd, n, sets[s]);
      for (int i = 0; i < 4 && n == 1; i++) {
        const double tol = tolerance(is_bwd || i == 0 ? c->dtype : TIDE_F32, is_bwd);
        if (name[is_bwd][i]) compare(c, name[is_bwd][i], &r->out[i], &want[i], tol);
      }
      if (n == 1) memcpy(one, r->out, sizeof one);
      for (int i = 0; i < 4 && n > 1; i++) {
        same_bits(c, &r->out[i], &one[i]);
        drop(&r->out[i]);
      }
      for (int i = 0; i < 4 && n == 3; i++) drop(&one[i]);
    }
  for (int i = 0; i < 4; i++) {
    if (!is_bwd && i < 2) {
      memcpy(r->in[4 + i].data, want[i].data, (size_t)(k_numel(&want[i]) * width(want[i].dtype)));
    }
    drop(&want[i]);
  }
}

static void check(const kase *c)
{
  run r;
  make(&r, c);
  check_pass(&r, c, 0);
  check_pass(&r, c, 1);
  discard(&r);
}

/* ---- the grid ------------------------------------------------------------------------------- */

static void test_sizes(void **state)
{
  static const int64_t size[][4] = { /* Tq, Tk, D, Dv */
    { 1, 1, 1, 1 }, { 1, 33, 20, 20 }, { 33, 33, 20, 12 }, { 64, 128, 32, 32 }, { 65, 129, 33, 17 },
    { 130, 64, 64, 64 }, { 200, 200, 8, 48 }, { 16, 300, 40, 80 }, { 0, 5, 8, 8 }, { 5, 0, 8, 8 },
    { 31, 200, 128, 64 },
  };
  (void)state;
  for (size_t d = 0; d < 4; d++)
    for (size_t i = 0; i < sizeof size / sizeof *size; i++)
      for (int causal = 0; causal < (d < 2 ? 2 : 1); causal++) {
        kase c = plain(all_dtypes[d]);
        c.tq = size[i][0], c.tk = size[i][1], c.d = size[i][2], c.dv = size[i][3];
        c.causal = causal;
        c.q_start = causal && c.tk > c.tq ? c.tk - c.tq : 0;
        c.b = 1 + (int64_t)(i & 1);
        c.fused = (int)(i & 1);
        check(&c);
      }
}

/* As decoding has them: one to four queries, any width, masks of all kinds. */
static void test_few_queries(void **state)
{
  static const int64_t width[] = { 1, 15, 16, 40, 64, 72, 128, 136, 256 };
  (void)state;
  for (int i = 0; i < 120; i++) {
    kase c = plain(all_dtypes[i & 1]);
    c.b = 1 + (i & 2) / 2;
    c.tq = 1 + below(4), c.tk = 1 + below(300);
    c.hk = 1 + below(2), c.h = c.hk * (1 + below(3));
    c.d = width[below(9)], c.dv = i % 5 ? c.d : width[below(9)];
    c.causal = i % 3 != 0;
    c.q_start = c.causal ? below(c.tk + 8) - 4 : 0;
    c.left = i & 4 ? below(60) : -1;
    c.index = i % 7 == 0 ? PACKED : i % 7 == 1 ? SHUFFLED : i % 7 == 2 ? UNTIL : c.index;
    c.softcap = i & 8 ? 5.0f : 0.0f;
    check(&c);
  }
}

static void test_masks(void **state)
{
  (void)state;
  for (size_t d = 0; d < 4; d++)
    for (int i = 0; i < 16; i += d < 2 ? 1 : 3) {
      kase c = plain(all_dtypes[d]);
      c.tq = c.tk = 100;
      c.causal = i & 1;
      c.left = i & 2 ? below(60) : -1;
      c.right = i & 4 ? below(40) : -1;
      c.q_start = i & 8 ? below(200) - 100 : 0;
      check(&c);
    }
}

static void test_documents(void **state)
{
  (void)state;
  for (size_t d = 0; d < 4; d++)
    for (int i = 0; i < 12; i += d < 2 ? 1 : 3) {
      kase c = plain(all_dtypes[d]);
      c.b = 2;
      c.tq = 60 + below(80);
      c.tk = i & 1 ? c.tq : 60 + below(100);
      c.index = i % 5 == 4 ? UNTIL : i & 2 ? PACKED : SHUFFLED;
      c.causal = i % 3 != 0;
      c.left = i & 4 ? 20 : -1;
      c.dlse = 1;
      check(&c);
    }
}

static void test_heads_bias_softcap(void **state)
{
  (void)state;
  for (size_t d = 0; d < 4; d++)
    for (int i = 0; i < 16; i += d < 2 ? 1 : 3) {
      kase c = plain(all_dtypes[d]);
      c.h = 4, c.hk = i & 1 ? 1 : 2;
      c.tq = 70 + below(80), c.tk = 60 + below(100);
      c.bias = i & 3;
      c.softcap = i & 4 ? 5.0f : 0.0f;
      c.causal = i >> 3;
      c.index = i % 5 == 0 ? SHUFFLED : IMPLICIT;
      c.dlse = i & 1;
      check(&c);
    }
}

static void test_drawn(void **state)
{
  (void)state;
  for (int i = 0; i < 36; i++) {
    kase c = plain(all_dtypes[below(3)]);
    c.b = 1 + below(2), c.hk = 1 + below(2), c.h = c.hk * (1 + below(3));
    c.tq = 1 + below(i % 10 ? 100 : 300), c.tk = below(2) ? c.tq : 1 + below(i % 10 ? 160 : 300);
    c.d = 1 + below(70), c.dv = below(2) ? c.d : 1 + below(70);
    c.causal = (int)below(2), c.fused = (int)below(2), c.dlse = (int)below(2);
    c.left = below(3) ? -1 : below(50), c.right = below(3) ? -1 : below(50);
    c.q_start = below(3) ? 0 : below(100) - 30;
    c.softcap = below(4) ? 0.0f : 3.0f;
    c.bias = below(3) ? 0 : (int)below(4);
    c.index = (int)below(4);
    check(&c);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_sizes), cmocka_unit_test(test_few_queries),
    cmocka_unit_test(test_masks), cmocka_unit_test(test_documents),
    cmocka_unit_test(test_heads_bias_softcap), cmocka_unit_test(test_drawn),
  };
  seed = 7;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
