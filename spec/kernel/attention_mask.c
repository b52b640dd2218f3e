/* What a mask hides, in the CPU attention kernels: the spans of keys that products are made of, and
 * values that are not finite. Where one document holds such values, the others have the bits that
 * they have without.
 */
#include "attention_case.h"

/* ---- spans ---------------------------------------------------------------------------------- */

/* Whether query i sees key j, by the definition. */
static int sees(const run *r, int64_t i, int64_t j)
{
  const int64_t n = r->in[7].shape[2], left = r->a.window_left, right = r->a.window_right;
  const int32_t *q = (const int32_t *)r->in[7].data + n * i;
  const int32_t *k = (const int32_t *)r->in[8].data + n * j;
  const int64_t back = (int64_t)q[1] - k[1];
  return q[0] >= 0 && q[0] == k[0] && (!r->a.causal || k[1] <= q[n - 1]) &&
         (left < 0 || back <= left) && (right < 0 || -back <= right);
}

/* Each span against the pairs of its group and block. */
static void check_spans(const run *r, const kase *c, const attn *s, int64_t qb, int64_t kb,
                        int step)
{
  attn_span span[ATTN_NG] = { { 0, 0, 1 }, { 0, 0, 1 }, { 0, 0, 1 }, { 0, 0, 1 } };
  tide__attn_spans(s, 0, qb, kb, step, span);
  const int64_t j0 = kb * ATTN_K, nkey = i64_min(c->tk - j0, ATTN_K);
  for (int g = 0; g < ATTN_NG; g++) {
    const int64_t i0 = qb * ATTN_Q + g * ATTN_LANE, i1 = i64_min(i0 + ATTN_LANE, c->tq);
    int64_t first = nkey, end = 0, hidden = 0;
    for (int64_t j = 0; j < nkey; j++)
      for (int64_t i = i0; i < i1; i++) {
        if (sees(r, i, j0 + j)) first = i64_min(first, j), end = j + 1;
        else hidden += j >= span[g].k0 && j < span[g].k1;
      }
    first = end ? first / step * step : 0;
    end = i64_min(i64_round_up(end, step), nkey);
    if (span[g].k0 != first || span[g].k1 != end || (span[g].full && hidden))
      fail_msg("block %d, %d, group %d, step %d: keys [%d, %d), full %d; not [%d, %d), %d hidden; "
               "%s", (int)qb, (int)kb, g, step, span[g].k0, span[g].k1, span[g].full, (int)first,
               (int)end, (int)hidden, describe(c));
  }
}

/* Products are made only of the keys that a group of queries sees, also where it holds two
 * documents or none. */
static void test_spans(void **state)
{
  (void)state;
  for (int n = 0; n < 12; n++) {
    kase c = plain(TIDE_F32);
    c.tq = 300 + below(100), c.tk = n & 1 ? c.tq : 300 + below(100);
    c.h = c.hk = 1, c.d = c.dv = 1;
    c.index = n % 4 == 3 ? SHUFFLED : n % 4 == 2 ? UNTIL : PACKED;
    c.causal = n % 3 != 0;
    c.left = n & 4 ? 40 : -1;
    run r;
    attn s;
    make(&r, &c);
    const k_tensor in[6] = { r.in[1], r.in[2], r.in[3], r.in[6], r.in[7], r.in[8] };
    const k_call call = { .nin = 6, .in = in, .attrs = &r.a };
    tide__attn_open(&s, &call, 0);
    void *work = aligned_alloc(64, (size_t)tide__attn_mask_bytes(&s));
    tide__attn_mask_fill(&s, work);
    for (int64_t qb = 0; qb < s.nqb; qb++)
      for (int64_t kb = 0; kb < s.nkb; kb++)
        for (int step = 1; step <= 32; step *= 2) check_spans(&r, &c, &s, qb, kb, step);
    free(work);
    discard(&r);
  }
}

/* ---- values that are not finite, in one document -------------------------------------------- */

enum { OUT, LSE, DQ, DK, DV, DBIAS, NRESULT };

/* Forward and backward; results must be dropped. */
static void both(run *r, const kase *c, int isa, k_tensor result[NRESULT])
{
  make_outputs(r, c, 0);
  call(r, c, 0, 1, isa);
  for (int i = 0; i < 2; i++) {
    result[OUT + i] = r->out[i];
    memcpy(r->in[4 + i].data, r->out[i].data,
           (size_t)(k_numel(&r->out[i]) * width(r->out[i].dtype)));
  }
  make_outputs(r, c, 1);
  call(r, c, 1, 1, isa);
  memcpy(result + DQ, r->out, 4 * sizeof(k_tensor));
}

static int document(const run *r, int64_t token) { return ((int32_t *)r->in[7].data)[2 * token]; }

/* Spoils every third token of document 2, from its second on: which has a bit for q, k, v, dout. */
static void spoil(const run *r, int which)
{
  static const int in[] = { 1, 2, 3, 0 };
  static const double bad[] = { NAN, INFINITY, -INFINITY };
  for (int i = 0; i < 4; i++) {
    const k_tensor *t = &r->in[in[i]];
    int seen = 0;
    for (int64_t row = 0; row < t->shape[1] && (which >> i & 1); row++) {
      if (document(r, row) != 2 || seen++ % 3 != 1) continue;
      for (int64_t d = seen % 2; d < t->stride[1]; d += 1 + seen % 5)
        put(t, row * t->stride[1] + d, bad[(seen / 3 + d) % 3]);
    }
  }
}

/* Whether element i of a result belongs to document 2. The batch is 1. */
static int is_spoilt(const run *r, const k_tensor *t, int what, int64_t i)
{
  if (what == LSE) return document(r, i % t->shape[2]) == 2;
  if (what == DBIAS)
    return document(r, i / t->shape[3] % t->shape[2]) == 2 && document(r, i % t->shape[3]) == 2;
  return document(r, i / t->stride[1]) == 2;
}

/* Returns how many elements of document 2 are not finite. */
static int64_t others_alike(const run *r, const kase *c, int isa, const k_tensor *a,
                            const k_tensor *b)
{
  static const char *const name[] = { "out", "lse", "dq", "dk", "dv", "dbias" };
  int64_t count = 0;
  for (int what = 0; what < NRESULT; what++) {
    if (a[what].ndim < 0) continue;
    const int64_t n = width(a[what].dtype);
    for (int64_t i = 0; i < k_numel(&a[what]); i++)
      if (is_spoilt(r, &a[what], what, i)) count += !isfinite(get(&b[what], i));
      else if (memcmp((char *)a[what].data + i * n, (char *)b[what].data + i * n, (size_t)n))
        fail_msg("%s[%d] is %g, without the other document's NaN %g; isa %d; %s", name[what],
                 (int)i, get(&b[what], i), get(&a[what], i), isa, describe(c));
  }
  return count;
}

static void check_spoilt(const kase *c, int which)
{
  int sets[NSET + 1];
  fill_sets(sets);
  sets[NSET] = -1;
  for (int s = 0; s <= NSET; s++) {
    run r;
    const uint64_t before = seed;
    k_tensor want[NRESULT], got[NRESULT];
    make(&r, c);
    const int32_t start[] = { 0, 37, 38, 103, 168, 169, 180 };
    for (int64_t i = 0, doc = 0; i < c->tq; i++) {
      while (doc < 6 && i >= start[doc + 1]) doc++;
      for (int k = 7; k < 9; k++) {
        ((int32_t *)r.in[k].data)[2 * i] = doc == 6 ? -1 : (int32_t)doc;
        ((int32_t *)r.in[k].data)[2 * i + 1] = (int32_t)(i - start[doc]);
      }
    }
    both(&r, c, sets[s], want);
    spoil(&r, which);
    both(&r, c, sets[s], got);
    assert_true(others_alike(&r, c, sets[s], want, got) > 0);
    for (int i = 0; i < NRESULT; i++) drop(&want[i]), drop(&got[i]);
    discard(&r);
    if (s < NSET - 1) seed = before;
  }
}

static void test_not_finite(void **state)
{
  (void)state;
  for (size_t d = 0; d < 4; d++)
    for (int i = 0; i < 12; i += d < 2 ? 1 : 3) {
      kase c = plain(all_dtypes[d]);
      c.tq = c.tk = 190 + i % 3 * 7, c.h = 2, c.hk = 1 + i % 2;
      c.d = i % 4 ? 40 : 16, c.dv = i % 3 ? 24 : 64;
      c.index = PACKED, c.causal = i & 1, c.left = i & 2 ? 20 : -1;
      c.softcap = i % 5 == 4 ? 5.0f : 0.0f;
      c.bias = i % 4 == 3, c.dlse = i & 1;
      check_spoilt(&c, i < 4 ? 1 << i : i < 8 ? 15 : 4 | 1 << i % 4);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_spans), cmocka_unit_test(test_not_finite),
  };
  seed = 7;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
