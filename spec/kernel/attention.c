/* The CPU attention kernels against the reference, over shapes, masks, types, instruction sets and
 * numbers of threads. Kernels are called directly; no context and no dispatch takes part.
 *
 * Every case is drawn from a fixed seed. Checked for each: out and lse, the gradients of q, k, v
 * and bias with and without a gradient of lse, bytes before and after each result and the scratch
 * untouched, and the same bits from 1 and 3 threads. And what a mask hides has no effect, be it
 * NaN: where one document holds such values, the others have the bits that they have without.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/dtype.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/isa.h"

int k_ref_attention(const k_call *c);
int k_ref_attention_bwd(const k_call *c);

enum { IMPLICIT, PACKED, SHUFFLED };

typedef struct kase {
  int dtype;
  int64_t b, tq, tk, h, hk, d, dv;
  int causal;
  int64_t left, right, q_start;
  float softcap;
  int bias;   /* 0: none, 1: [B, H, Tq, Tk], 2: [1, H, 1, Tk] expanded, 3: with -inf entries */
  int index;
  int dlse, fused; /* fused: q, k and v lie side by side in one buffer */
} kase;

/* ---- numbers -------------------------------------------------------------------------------- */

static uint64_t seed;

static double uniform(void)
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(seed >> 11) * 0x1p-53;
}

static int64_t below(int64_t n) { return (int64_t)(uniform() * (double)n); }

static int64_t width(int dtype)
{
  return dtype == TIDE_F64 ? 8 : dtype == TIDE_F32 || dtype == TIDE_I32 ? 4 : 2;
}

static double get(const k_tensor *t, int64_t i)
{
  if (t->dtype == TIDE_F32) return ((const float *)t->data)[i];
  if (t->dtype == TIDE_F64) return ((const double *)t->data)[i];
  const uint16_t h = ((const uint16_t *)t->data)[i];
  return t->dtype == TIDE_BF16 ? tide__bf16_to_f32(h) : tide__f16_to_f32(h);
}

static void put(const k_tensor *t, int64_t i, double v)
{
  if (t->dtype == TIDE_F32) ((float *)t->data)[i] = (float)v;
  else if (t->dtype == TIDE_F64) ((double *)t->data)[i] = v;
  else if (t->dtype == TIDE_BF16) ((uint16_t *)t->data)[i] = tide__f32_to_bf16((float)v);
  else ((uint16_t *)t->data)[i] = tide__f32_to_f16((float)v);
}

/* ---- tensors: contiguous, with guard bytes on both sides ------------------------------------ */

enum { GUARD = 64, MARK = 0xa5 };

static k_tensor absent(void) { return (k_tensor){ .ndim = -1 }; }

static k_tensor fresh(int dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
  k_tensor t = { .shape = { s0, s1, s2, s3 }, .ndim = ndim, .dtype = dtype };
  int64_t n = 1;
  for (int d = ndim - 1; d >= 0; n *= t.shape[d--]) t.stride[d] = n;
  const size_t bytes = (size_t)(n * width(dtype));
  char *p = aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64);
  assert_non_null(p);
  memset(p, MARK, bytes + 2 * GUARD);
  t.data = p + GUARD;
  return t;
}

static void drop(k_tensor *t)
{
  if (t->ndim < 0 || !t->data) return;
  const unsigned char *p = (unsigned char *)t->data - GUARD;
  const int64_t bytes = k_numel(t) * width(t->dtype);
  for (int i = 0; i < GUARD; i++) {
    assert_int_equal(p[i], MARK);
    assert_int_equal(p[GUARD + bytes + i], MARK);
  }
  free((char *)t->data - GUARD);
}

static void fill(const k_tensor *t, double scale)
{
  for (int64_t i = 0; i < k_numel(t); i++) put(t, i, (uniform() * 2 - 1) * scale);
}

/* ---- one case ------------------------------------------------------------------------------- */

typedef struct run {
  k_attention_attrs a;
  k_tensor in[10], out[4]; /* forward: in[1..3] q k v, in[6..8]; backward: all */
  void *fused;
} run;

static k_tensor piece(char *base, const kase *c, int64_t t, int64_t h, int64_t d, int64_t row,
                      int64_t at)
{
  const k_tensor r = { .data = base + at * width(c->dtype), .ndim = 4, .dtype = c->dtype,
                       .shape = { c->b, t, h, d }, .stride = { t * row, row, d, 1 } };
  return r;
}

static void fill_fused(const k_tensor *t)
{
  for (int64_t b = 0; b < t->shape[0]; b++)
    for (int64_t i = 0; i < t->shape[1]; i++)
      for (int64_t d = 0; d < t->shape[2] * t->shape[3]; d++)
        put(t, b * t->stride[0] + i * t->stride[1] + d, uniform() * 4 - 2);
}

static void make_qkv(run *r, const kase *c)
{
  if (!c->fused || c->tq != c->tk) {
    r->in[1] = fresh(c->dtype, 4, c->b, c->tq, c->h, c->d);
    r->in[2] = fresh(c->dtype, 4, c->b, c->tk, c->hk, c->d);
    r->in[3] = fresh(c->dtype, 4, c->b, c->tk, c->hk, c->dv);
    for (int i = 1; i < 4; i++) fill(&r->in[i], 2.0);
    return;
  }
  const int64_t nq = c->h * c->d, nk = c->hk * c->d, row = nq + nk + c->hk * c->dv;
  char *base = malloc((size_t)(c->b * c->tq * row * width(c->dtype)) + 1);
  r->fused = base;
  r->in[1] = piece(base, c, c->tq, c->h, c->d, row, 0);
  r->in[2] = piece(base, c, c->tk, c->hk, c->d, row, nq);
  r->in[3] = piece(base, c, c->tk, c->hk, c->dv, row, nq + nk);
  for (int i = 1; i < 4; i++) fill_fused(&r->in[i]);
}

/* Documents of random length; SHUFFLED draws every token on its own. Some tokens see nothing. */
static k_tensor make_index(const kase *c, int64_t t)
{
  k_tensor x = fresh(TIDE_I32, 3, c->b > 1 && c->index == SHUFFLED ? c->b : 1, t, 2, 1);
  int32_t *p = x.data, doc = 0, pos = 0;
  for (int64_t i = 0; i < x.shape[0] * t; i++, pos++) {
    if (uniform() < 0.02) doc++, pos = 0;
    const int64_t any = below(4) - 1;
    p[2 * i] = c->index == SHUFFLED ? (int32_t)any : uniform() < 0.01 ? -1 : doc;
    p[2 * i + 1] = c->index == SHUFFLED ? (int32_t)below(t) : pos;
  }
  x.stride[2] = 1;
  if (x.shape[0] == 1) x.stride[0] = 0;
  return x;
}

static void make_bias(run *r, const kase *c)
{
  k_tensor *t = &r->in[6];
  *t = absent();
  if (!c->bias) return;
  const int wide = c->bias != 2;
  *t = fresh(c->dtype, 4, wide ? c->b : 1, c->h, wide ? c->tq : 1, c->tk);
  fill(t, 2.0);
  if (c->bias == 3)
    for (int64_t i = 0; i < k_numel(t); i++)
      if (uniform() < 0.3 || (c->tk > 0 && i / c->tk % 7 == 3)) put(t, i, -INFINITY);
}

static void make(run *r, const kase *c)
{
  const int stat = c->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32;
  memset(r, 0, sizeof *r);
  r->a = (k_attention_attrs){ .window_left = c->left, .window_right = c->right,
                              .q_start = c->q_start, .causal = c->causal,
                              .scale = 1.0f / sqrtf((float)(c->d ? c->d : 1)),
                              .softcap = c->softcap };
  make_qkv(r, c);
  make_bias(r, c);
  r->in[0] = fresh(c->dtype, 4, c->b, c->tq, c->h, c->dv);
  r->in[4] = fresh(c->dtype, 4, c->b, c->tq, c->h, c->dv);
  r->in[5] = fresh(stat, 3, c->b, c->h, c->tq, 1);
  r->in[7] = c->index ? make_index(c, c->tq) : absent();
  r->in[8] = c->index ? make_index(c, c->tk) : absent();
  r->in[9] = c->dlse ? fresh(stat, 3, c->b, c->h, c->tq, 1) : absent();
  fill(&r->in[0], 1.0);
  if (c->dlse) fill(&r->in[9], 1.0);
}

/* The bias as the kernel sees it: expanded by stride 0. Its memory is smaller than its shape. */
static k_tensor expanded(const kase *c, k_tensor t)
{
  if (c->bias != 2) return t;
  t.shape[0] = c->b;
  t.shape[2] = c->tq;
  t.stride[0] = t.stride[2] = 0;
  return t;
}

static void discard(run *r)
{
  for (int i = 0; i < 10; i++)
    if (!r->fused || i < 1 || i > 3) drop(&r->in[i]);
  free(r->fused);
}

typedef int64_t (*work_fn)(const k_call *c, int isa);
typedef int (*isa_fn)(const k_call *c, int isa);

static void call(run *r, const kase *c, int is_bwd, int nthread, int isa)
{
  k_tensor in[10];
  memcpy(in, r->in, sizeof in);
  in[6] = expanded(c, in[6]);
  const k_tensor fwd[6] = { in[1], in[2], in[3], in[6], in[7], in[8] };
  char msg[K_MSG];
  k_call k = { .nin = is_bwd ? 10 : 6, .nout = is_bwd ? 4 : 2, .in = is_bwd ? in : fwd,
               .out = r->out, .attrs = &r->a, .nthread = nthread, .msg = msg };
  if (isa < 0) {
    assert_int_equal(is_bwd ? k_ref_attention_bwd(&k) : k_ref_attention(&k), TIDE_OK);
    return;
  }
  const int64_t n = (is_bwd ? tide__attention_bwd_work_isa : tide__attention_work_isa)(&k, isa);
  char *work = aligned_alloc(64, (size_t)i64_round_up(n, 64) + 64);
  memset(work, 0xff, (size_t)n); /* NaN: scratch must be written before it is read */
  memset(work + n, MARK, 64);
  k.work = work;
  assert_int_equal((is_bwd ? tide__attention_bwd_isa : tide__attention_isa)(&k, isa), TIDE_OK);
  for (int i = 0; i < 64; i++) assert_int_equal((unsigned char)work[n + i], MARK);
  free(work);
}

static void make_outputs(run *r, const kase *c, int is_bwd)
{
  const int stat = c->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32;
  if (!is_bwd) {
    r->out[0] = fresh(c->dtype, 4, c->b, c->tq, c->h, c->dv);
    r->out[1] = fresh(stat, 3, c->b, c->h, c->tq, 1);
    r->out[2] = r->out[3] = absent();
    return;
  }
  r->out[0] = fresh(c->dtype, 4, c->b, c->tq, c->h, c->d);
  r->out[1] = fresh(c->dtype, 4, c->b, c->tk, c->hk, c->d);
  r->out[2] = fresh(c->dtype, 4, c->b, c->tk, c->hk, c->dv);
  r->out[3] = c->bias ? fresh(stat, 4, c->b, c->h, c->tq, c->tk) : absent();
}

static const char *describe(const kase *c)
{
  static char text[256];
  snprintf(text, sizeof text,
           "dtype %d B %d Tq %d Tk %d H %d/%d D %d Dv %d causal %d window %d %d start %d cap %g "
           "bias %d index %d dlse %d fused %d", c->dtype, (int)c->b, (int)c->tq, (int)c->tk,
           (int)c->h, (int)c->hk, (int)c->d, (int)c->dv, c->causal, (int)c->left, (int)c->right,
           (int)c->q_start, c->softcap, c->bias, c->index, c->dlse, c->fused);
  return text;
}

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

/* Sets of instructions, the machine's first. Those between it and AVX2 differ in bf16 alone. */
enum { NSET = 5, AVX2_SET = 3 };
static void fill_sets(int set[NSET])
{
  const int full = tide__cpu_isa(), pairs = full & ~CPU_ISA_AMX;
  const int all[NSET] = { full, pairs, pairs & ~CPU_ISA_BF16, full & CPU_ISA_AVX2, CPU_ISA_BASE };
  memcpy(set, all, sizeof all);
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

static const int all_dtypes[] = { TIDE_F32, TIDE_BF16, TIDE_F16, TIDE_F64 };

static kase plain(int dtype)
{
  const kase c = { .dtype = dtype, .b = 1, .tq = 70, .tk = 70, .h = 2, .hk = 2, .d = 16, .dv = 16,
                   .left = -1, .right = -1 };
  return c;
}

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
    c.index = i % 7 == 0 ? PACKED : i % 7 == 1 ? SHUFFLED : c.index;
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
      c.index = i & 2 ? PACKED : SHUFFLED;
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
    c.index = (int)below(3);
    check(&c);
  }
}

/* ---- spans ---------------------------------------------------------------------------------- */

/* Whether query i sees key j, by the definition. */
static int sees(const run *r, int64_t i, int64_t j)
{
  const int32_t *q = (const int32_t *)r->in[7].data + 2 * i;
  const int32_t *k = (const int32_t *)r->in[8].data + 2 * j;
  const int64_t back = (int64_t)q[1] - k[1], left = r->a.window_left, right = r->a.window_right;
  return q[0] >= 0 && q[0] == k[0] && (!r->a.causal || back >= 0) && (left < 0 || back <= left) &&
         (right < 0 || -back <= right);
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
    c.index = n % 4 == 3 ? SHUFFLED : PACKED;
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
  int64_t odd = 0;
  for (int what = 0; what < NRESULT; what++) {
    if (a[what].ndim < 0) continue;
    const int64_t n = width(a[what].dtype);
    for (int64_t i = 0; i < k_numel(&a[what]); i++)
      if (is_spoilt(r, &a[what], what, i)) odd += !isfinite(get(&b[what], i));
      else if (memcmp((char *)a[what].data + i * n, (char *)b[what].data + i * n, (size_t)n))
        fail_msg("%s[%d] is %g, without the other document's NaN %g; isa %d; %s", name[what],
                 (int)i, get(&b[what], i), get(&a[what], i), isa, describe(c));
  }
  return odd;
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
    cmocka_unit_test(test_sizes), cmocka_unit_test(test_few_queries),
    cmocka_unit_test(test_masks), cmocka_unit_test(test_documents),
    cmocka_unit_test(test_heads_bias_softcap), cmocka_unit_test(test_drawn),
    cmocka_unit_test(test_spans), cmocka_unit_test(test_not_finite),
  };
  seed = 7;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
