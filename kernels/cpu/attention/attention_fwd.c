/* Flash attention on the CPU, forward: online softmax over blocks of keys, O(T) memory.
 *
 * A task is one block of ATTN_Q queries of one head and walks the blocks of keys in ascending
 * order, holding S^T, P^T (in place of S^T) and O^T in scratch that stays in cache. K and V are
 * read in place; only types that the tiles cannot read are converted first. See attention.h for the
 * transposed layout and arXiv 2205.14135, 2307.08691 for the method.
 *
 * Handles f32, and bf16 and f16 through f32 copies; bf16 in tiles is in attention_bf16.c, f64 in
 * attention_f64.c, one to four queries in attention_few.c.
 */
#include "kernels/cpu/attention/attention.h"

enum { L = ATTN_LANE, Q = ATTN_Q };

typedef attn_fwd job;
typedef attn_fwd_scratch scratch;

/* Lays out the scratch of a thread and returns its size in floats; with base NULL it only
 * counts. */
static int64_t attn_fwd_lay_scratch(const job *w, float *base, scratch *m)
{
  const attn *s = &w->s;
  float *packed = 0;
  struct { float **at; int64_t n; } part[] = {
    { &m->qt, w->unit ? 0 : Q * s->d }, { &m->st, Q * ATTN_K }, { &m->ot, Q * w->wide_dv },
    { &m->rows, Q * i64_max(s->d, s->dv) }, { &m->top, Q }, { &m->sum, Q }, { &m->alpha, Q },
    { &m->tmp, s->modified ? 2 * Q * ATTN_K : 0 },
    { &packed, w->unit ? tide__attn_bf16_fwd_size(s) / 2 : 0 },
  };
  int64_t n = 0;
  for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
    if (base) *part[i].at = base + n;
    n += i64_round_up(part[i].n, 16);
  }
  m->packed = (uint16_t *)packed;
  return n;
}

static void attn_fwd_start(const job *w, const scratch *m, const attn_at *at)
{
  const attn *s = &w->s;
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const float mul = s->modified ? 1.0f : s->a->scale * ATTN_LOG2E;
  const k_tensor *q = s->q;
  if (n < Q) memset(m->qt, 0, (size_t)(Q * s->d) * sizeof(float));
  if (q->dtype == TIDE_F32) {
    const float *src = (const float *)q->data + at->b * q->stride[0] + i0 * q->stride[1];
    w->tiles->transpose(m->qt, Q, src + at->h * q->stride[2], q->stride[1], n, s->d, mul);
  } else {
    tide__attn_rows(m->rows, s->d, q, at->b, i0, at->h, n);
    w->tiles->transpose(m->qt, Q, m->rows, s->d, n, s->d, mul);
  }
}

/* Computes S^T = K Q^T for the keys that some query group sees. */
static void attn_fwd_scores(const job *w, const scratch *m, const attn_span *span, const float *k)
{
  const attn *s = &w->s;
  for (int32_t j = 0, end; j < ATTN_K; j = end) {
    const attn_hull hull = tide__attn_hull(span, j, &end);
    if (hull.g0 == hull.g1) continue;
    const attn_gemm g = { .m = end - j, .k = s->d, .nv = hull.g1 - hull.g0, .add = 0,
                          .a = k + j * w->k.row, .rs = w->k.row, .cs = 1,
                          .b = m->qt + hull.g0 * L, .ldb = Q,
                          .c = m->st + j * Q + hull.g0 * L, .ldc = Q };
    w->tiles->gemm(&g);
  }
}

static void softmax(const job *w, const scratch *m, const attn_span *span, const attn_at *at)
{
  for (int c = 0; c < ATTN_NG; c++) {
    if (span[c].k0 == span[c].k1) continue;
    attn_lanes lanes = tide__attn_lanes(&w->s, at->b, at->qb, at->kb, c);
    lanes.kdoc += span[c].k0;
    lanes.kpos += span[c].k0;
    const attn_soft t = { .s = m->st + span[c].k0 * Q + c * L, .n = span[c].k1 - span[c].k0,
                          .lanes = span[c].full ? 0 : &lanes, .top = m->top + c * L,
                          .sum = m->sum + c * L, .alpha = m->alpha + c * L };
    if (w->tiles->soft(&t)) w->tiles->rescale(m->ot + c * L, w->s.dv, t.alpha);
  }
}

/* Computes O^T += V^T P^T. */
static void values(const job *w, const scratch *m, const attn_span *span, const attn_at *at)
{
  const float *v = attn_source_row(&w->v, at->b, at->h / w->s.ng, at->kb * ATTN_K);
  for (int c = 0; c < ATTN_NG; c++)
    tide__attn_clear(m->st + c * L, span[c],
                     tide__attn_part(w->tiles, span, c / w->tiles->together));
  const attn_gemm g = { .m = w->s.dv, .a = v, .rs = 1, .cs = w->v.row, .b = m->st, .ldb = Q,
                        .c = m->ot, .ldc = Q };
  tide__attn_gemm_keys(w->tiles, span, &g, attn_source_nonfinite(&w->v, &w->s, at));
}

/* alpha becomes 1 / sum and top the lse; 0 and -inf for a query that saw no key. */
TIDE_LEVELS(void, close_sums, (const scratch *m), (m))
{
  for (int i = 0; i < Q; i++) {
    const float sum = m->sum[i], lse = m->top[i] * ATTN_LN2 + tide__logf(sum);
    m->alpha[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
    m->top[i] = sum == 0.0f ? -INFINITY : lse;
  }
}

static void attn_fwd_finish(const job *w, const scratch *m, const attn_at *at)
{
  const attn *s = &w->s;
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const k_tensor *lse = w->lse;
  close_sums(m);
  for (int64_t i = 0; i < n; i++) {
    const int64_t to = at->b * lse->stride[0] + at->h * lse->stride[1] + (i0 + i) * lse->stride[2];
    ((float *)lse->data)[to] = m->top[i];
  }
  for (int c = 0; c < ATTN_NG; c++) w->tiles->rescale(m->ot + c * L, s->dv, m->alpha + c * L);
  const k_tensor *out = w->out;
  if (out->dtype == TIDE_F32) {
    float *to = (float *)out->data + at->b * out->stride[0] + i0 * out->stride[1];
    w->tiles->transpose(to + at->h * out->stride[2], out->stride[1], m->ot, Q, s->dv, n, 1.0f);
    return;
  }
  w->tiles->transpose(m->rows, s->dv, m->ot, Q, s->dv, n, 1.0f);
  tide__attn_put_rows(w->out, at->b, i0, at->h, n, m->rows, s->dv, 1.0f);
}

/* Computes one pair of blocks, with f32 tiles. */
static void attn_fwd_run_pair(const job *w, const scratch *m, const attn_at *at)
{
  const attn *s = &w->s;
  attn_span span[ATTN_NG];
  if (!tide__attn_spans(s, at->b, at->qb, at->kb, ATTN_STEP, span)) return;
  attn_fwd_scores(w, m, span, attn_source_row(&w->k, at->b, at->h / s->ng, at->kb * ATTN_K));
  if (s->modified) {
    attn_span all = span[0];
    for (int c = 1; c < ATTN_NG; c++) all = tide__attn_join(all, span[c]);
    tide__attn_modify(s, at->b, at->h, at->qb, at->kb, all.k0, all.k1, s->a->scale, m->st, 0,
                      m->tmp);
  }
  softmax(w, m, span, at);
  values(w, m, span, at);
}

static void attn_fwd_run_block(const job *w, const scratch *m, attn_at at)
{
  memset(m->ot, 0, (size_t)(Q * w->wide_dv) * sizeof(float));
  for (int i = 0; i < Q; i++) {
    m->top[i] = -INFINITY;
    m->sum[i] = 0.0f;
    m->alpha[i] = 1.0f;
  }
  (w->unit ? tide__attn_bf16_fwd_start : attn_fwd_start)(w, m, &at);
  for (at.kb = 0; at.kb < w->s.nkb; at.kb++)
    (w->unit ? tide__attn_bf16_fwd_pair : attn_fwd_run_pair)(w, m, &at);
  attn_fwd_finish(w, m, &at);
}

static void attn_fwd_run_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const attn *s = &w->s;
  scratch m;
  attn_fwd_lay_scratch(w, w->scratch + thread * w->nscratch, &m);
  tide__attn_unit_begin(w->unit);
  for (int64_t t = begin; t < end; t++) {
    /* The last queries first: with a causal mask they cost most. */
    const attn_at at = { t / s->nqb / s->nh, t / s->nqb % s->nh, s->nqb - 1 - t % s->nqb, 0 };
    attn_fwd_run_block(w, &m, at);
  }
  tide__attn_unit_end(w->unit);
}

static void attn_fwd_describe(job *w, const k_call *c, int isa)
{
  scratch none;
  tide__attn_open(&w->s, c, 0);
  w->tiles = tide__attn_tiles(isa);
  w->out = &c->out[0];
  w->lse = &c->out[1];
  w->unit = tide__attn_unit(w->s.q->dtype, isa);
  w->wide_dv = i64_round_up(w->s.dv, L);
  w->nscratch = attn_fwd_lay_scratch(w, 0, &none);
}

/* Lays out the work memory after the mask: K and V, then scratch. Returns its bytes; with base NULL
 * it only counts. */
static int64_t attn_fwd_prepare(job *w, char *base, int nthread)
{
  const attn *s = &w->s;
  int64_t n = tide__attn_keys(s, s->k, w->unit, 0, base, nthread, &w->k, &w->k_tiles);
  char *next = base ? base + n : 0;
  n += tide__attn_keys(s, s->v, w->unit, 1, next, nthread, &w->v, &w->v_tiles);
  if (base) w->scratch = (float *)(base + n);
  return n + w->nscratch * 4 * nthread;
}

int64_t tide__attention_work_isa(const k_call *c, int isa)
{
  job w = { 0 };
  if (c->in[0].dtype == TIDE_F64) return tide__attn_f64_work(c, 0);
  attn_fwd_describe(&w, c, isa);
  if (tide__attn_few_takes(&w.s)) return tide__attn_few_work(&w.s, c->nthread);
  return tide__attn_mask_bytes(&w.s) + attn_fwd_prepare(&w, 0, c->nthread);
}

int tide__attention_isa(const k_call *c, int isa)
{
  job w = { 0 };
  if (c->in[0].dtype == TIDE_F64) return tide__attn_f64(c);
  attn_fwd_describe(&w, c, isa);
  if (tide__attn_few_takes(&w.s)) {
    tide__attn_few(&w.s, c);
    return TIDE_OK;
  }
  tide__attn_mask_fill(&w.s, c->work);
  attn_fwd_prepare(&w, (char *)c->work + tide__attn_mask_bytes(&w.s), c->nthread);
  tide__pool_tasks(c->nthread, w.s.nb * w.s.nh * w.s.nqb, 1, attn_fwd_run_tasks, &w);
  return TIDE_OK;
}

int64_t k_cpu_attention_work(const k_call *c)
{
  return tide__attention_work_isa(c, tide__cpu_isa());
}

int k_cpu_attention(const k_call *c) { return tide__attention_isa(c, tide__cpu_isa()); }
