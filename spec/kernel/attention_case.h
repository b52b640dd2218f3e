/* What the specs of attention share: a case, its random operands, and calls of the kernels. Kernels
 * are called directly; no context and no dispatch takes part.
 *
 * A program draws its cases from a fixed seed. Bytes before and after each result and the scratch
 * must stay untouched.
 */
#pragma once

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

enum { IMPLICIT, PACKED, SHUFFLED, UNTIL };

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

static inline double uniform(void)
{
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(seed >> 11) * 0x1p-53;
}

static inline int64_t below(int64_t n) { return (int64_t)(uniform() * (double)n); }

static inline int64_t width(int dtype)
{
  return dtype == TIDE_F64 ? 8 : dtype == TIDE_F32 || dtype == TIDE_I32 ? 4 : 2;
}

static inline double get(const k_tensor *t, int64_t i)
{
  if (t->dtype == TIDE_F32) return ((const float *)t->data)[i];
  if (t->dtype == TIDE_F64) return ((const double *)t->data)[i];
  const uint16_t h = ((const uint16_t *)t->data)[i];
  return t->dtype == TIDE_BF16 ? tide__bf16_to_f32(h) : tide__f16_to_f32(h);
}

static inline void put(const k_tensor *t, int64_t i, double v)
{
  if (t->dtype == TIDE_F32) ((float *)t->data)[i] = (float)v;
  else if (t->dtype == TIDE_F64) ((double *)t->data)[i] = v;
  else if (t->dtype == TIDE_BF16) ((uint16_t *)t->data)[i] = tide__f32_to_bf16((float)v);
  else ((uint16_t *)t->data)[i] = tide__f32_to_f16((float)v);
}

/* ---- tensors: contiguous, with guard bytes on both sides ------------------------------------ */

enum { GUARD = 64, MARK = 0xa5 };

static inline k_tensor absent(void) { return (k_tensor){ .ndim = -1 }; }

static inline k_tensor fresh(int dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
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

static inline void drop(k_tensor *t)
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

static inline void fill(const k_tensor *t, double scale)
{
  for (int64_t i = 0; i < k_numel(t); i++) put(t, i, (uniform() * 2 - 1) * scale);
}

/* ---- one case ------------------------------------------------------------------------------- */

typedef struct run {
  k_attention_attrs a;
  k_tensor in[10], out[4]; /* forward: in[1..3] q k v, in[6..8]; backward: all */
  void *fused;
} run;

static inline k_tensor piece(char *base, const kase *c, int64_t t, int64_t h, int64_t d,
                             int64_t row, int64_t at)
{
  const k_tensor r = { .data = base + at * width(c->dtype), .ndim = 4, .dtype = c->dtype,
                       .shape = { c->b, t, h, d }, .stride = { t * row, row, d, 1 } };
  return r;
}

static inline void fill_fused(const k_tensor *t)
{
  for (int64_t b = 0; b < t->shape[0]; b++)
    for (int64_t i = 0; i < t->shape[1]; i++)
      for (int64_t d = 0; d < t->shape[2] * t->shape[3]; d++)
        put(t, b * t->stride[0] + i * t->stride[1] + d, uniform() * 4 - 2);
}

static inline void make_qkv(run *r, const kase *c)
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

/* Documents of random length; SHUFFLED draws every token on its own. Some tokens see nothing. UNTIL
 * adds a third number: up to where a token sees, most often its own position. */
static inline k_tensor make_index(const kase *c, int64_t t)
{
  const int64_t n = c->index == UNTIL ? 3 : 2;
  k_tensor x = fresh(TIDE_I32, 3, c->b > 1 && c->index == SHUFFLED ? c->b : 1, t, n, 1);
  int32_t *p = x.data, doc = 0, pos = 0;
  for (int64_t i = 0; i < x.shape[0] * t; i++, pos++) {
    if (uniform() < 0.02) doc++, pos = 0;
    const int64_t any = below(4) - 1;
    p[n * i] = c->index == SHUFFLED ? (int32_t)any : uniform() < 0.01 ? -1 : doc;
    p[n * i + 1] = c->index == SHUFFLED ? (int32_t)below(t) : pos;
    if (n == 3) p[n * i + 2] = uniform() < 0.7 ? pos : (int32_t)(pos + below(60) - 10);
  }
  x.stride[2] = 1;
  if (x.shape[0] == 1) x.stride[0] = 0;
  return x;
}

static inline void make_bias(run *r, const kase *c)
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

static inline void make(run *r, const kase *c)
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
static inline k_tensor expanded(const kase *c, k_tensor t)
{
  if (c->bias != 2) return t;
  t.shape[0] = c->b;
  t.shape[2] = c->tq;
  t.stride[0] = t.stride[2] = 0;
  return t;
}

static inline void discard(run *r)
{
  for (int i = 0; i < 10; i++)
    if (!r->fused || i < 1 || i > 3) drop(&r->in[i]);
  free(r->fused);
}

static inline void call(run *r, const kase *c, int is_bwd, int nthread, int isa)
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

static inline void make_outputs(run *r, const kase *c, int is_bwd)
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

static inline const char *describe(const kase *c)
{
  static char text[256];
  snprintf(text, sizeof text,
           "dtype %d B %d Tq %d Tk %d H %d/%d D %d Dv %d causal %d window %d %d start %d cap %g "
           "bias %d index %d dlse %d fused %d", c->dtype, (int)c->b, (int)c->tq, (int)c->tk,
           (int)c->h, (int)c->hk, (int)c->d, (int)c->dv, c->causal, (int)c->left, (int)c->right,
           (int)c->q_start, c->softcap, c->bias, c->index, c->dlse, c->fused);
  return text;
}

/* Sets of instructions, the machine's first. Those between it and AVX2 differ in bf16 alone. */
enum { NSET = 5, AVX2_SET = 3 };
static inline void fill_sets(int set[NSET])
{
  const int full = tide__cpu_isa(), pairs = full & ~CPU_ISA_AMX;
  const int all[NSET] = { full, pairs, pairs & ~CPU_ISA_BF16, full & CPU_ISA_AVX2, CPU_ISA_BASE };
  memcpy(set, all, sizeof all);
}

static const int all_dtypes[] = { TIDE_F32, TIDE_BF16, TIDE_F16, TIDE_F64 };

static inline kase plain(int dtype)
{
  const kase c = { .dtype = dtype, .b = 1, .tq = 70, .tk = 70, .h = 2, .hk = 2, .d = 16, .dv = 16,
                   .left = -1, .right = -1 };
  return c;
}
