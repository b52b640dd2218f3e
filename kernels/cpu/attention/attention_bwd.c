/* Flash attention on the CPU, backward: scores are computed again from lse, O(T) memory.
 *
 * One pair (query block, key block) yields S^T, P^T, dP^T, dS^T, and from these a term of dq of the
 * queries and of dk, dv of the keys. Every dq sums its terms by ascending key block, every dk and
 * dv by (head of the group, query block), however the pairs are scheduled:
 *   one pass   a task is a key head and makes all three (5 products a pair); dk and dv of the
 *              whole sequence lie in the thread's scratch
 *   two passes a task is a key block for dk and dv (4 products), then a query block for dq (3)
 * Both give the same bits. Two passes are for calls with too few key heads to occupy the threads.
 *
 * Handles f32, and bf16 and f16 through f32 copies; bf16 in tiles is in attention_bf16_bwd.c, f64
 * in attention_f64.c.
 */
#include "kernels/cpu/attention/attention.h"

enum { L = ATTN_LANE, Q = ATTN_Q, K = ATTN_K };
enum { WANT_DQ = ATTN_WANT_DQ, WANT_DKV = ATTN_WANT_DKV };

typedef attn_bwd job;
typedef attn_bwd_scratch scratch;

/* Lays out the scratch of a thread and returns its size in floats; with base NULL it only
 * counts. */
static int64_t attn_bwd_lay_scratch(const job *w, float *base, scratch *m)
{
  const attn *s = &w->s;
  const int64_t block = s->modified ? K * Q : 0;
  const int64_t f32 = w->unit ? 0 : Q;
  float *packed = 0, *nonfinite = 0;
  struct { float **at; int64_t n; } part[] = {
    { &m->qt, f32 * s->d }, { &m->qr, f32 * w->wide_d }, { &m->dot, f32 * s->dv },
    { &m->dor, Q * w->wide_dv }, { &m->st, K * Q }, { &m->dp, K * Q }, { &m->dqt, Q * w->wide_d },
    { &m->lse, Q }, { &m->delta, Q }, { &m->rows, Q * i64_max(w->wide_d, w->wide_dv) },
    { &m->slope, block }, { &m->dbias, block }, { &m->tmp, 2 * block },
    { &m->dk, w->nrow * w->wide_d }, { &m->dv, w->nrow * w->wide_dv },
    { &nonfinite, 1 },
    { &packed, w->unit ? tide__attn_bf16_bwd_size(s) / 2 : 0 },
  };
  int64_t n = 0;
  for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
    if (base) *part[i].at = base + n;
    n += i64_round_up(part[i].n, 16);
  }
  m->packed = (uint16_t *)packed;
  m->nonfinite = (int *)nonfinite;
  return n;
}

/* Returns whether key heads alone keep the threads busy: two passes cost 7/5 of one. */
static int one_pass(const attn *s, int nthread)
{
  const int64_t n = s->nb * s->nhk;
  return n > 0 && i64_round_up(n, nthread) * 5 <= n * 7;
}

/* ---- one query block ---- */

/* sum[i] = row i of a times row i of b, width a multiple of the lanes. */
TIDE_LEVELS(void, dot_rows,
            (float *sum, const float *a, const float *b, int64_t n, int64_t width),
            (sum, a, b, n, width))
{
  for (int64_t i = 0; i < n; i++, a += width, b += width) {
    float acc[L] = { 0 }, r = 0.0f;
    for (int64_t d = 0; d < width; d += L)
      for (int l = 0; l < L; l++) acc[l] += a[d + l] * b[d + l];
    for (int l = 0; l < L; l++) r += acc[l];
    sum[i] = r;
  }
}

/* dor holds dout and rows holds out of the n queries, zero beyond Dv. */
static void load_stats(const job *w, const scratch *m, const attn_at *at, int64_t n)
{
  const attn *s = &w->s;
  const int64_t *ls = s->lse->stride, *gs = s->dlse->stride;
  dot_rows(m->delta, m->dor, m->rows, n, w->wide_dv);
  for (int64_t i = 0; i < Q; i++) {
    const int64_t q = at->qb * Q + i;
    float lse = -INFINITY;
    if (i < n) lse = ((const float *)s->lse->data)[at->b * ls[0] + at->h * ls[1] + q * ls[2]];
    if (lse == -INFINITY) {
      m->lse[i] = INFINITY;
      m->delta[i] = 0.0f;
      continue;
    }
    m->lse[i] = lse * ATTN_LOG2E;
    if (!k_absent(s->dlse))
      m->delta[i] -= ((const float *)s->dlse->data)[at->b * gs[0] + at->h * gs[1] + q * gs[2]];
  }
}

static void start_queries(const job *w, const scratch *m, const attn_at *at)
{
  const attn *s = &w->s;
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const float mul = s->modified ? 1.0f : s->a->scale * ATTN_LOG2E;
  if (n < Q || s->dv < w->wide_dv) {
    memset(m->dor, 0, (size_t)(Q * w->wide_dv) * sizeof(float));
    memset(m->rows, 0, (size_t)(Q * w->wide_dv) * sizeof(float));
  }
  tide__attn_rows(m->dor, w->wide_dv, s->dout, at->b, i0, at->h, n);
  tide__attn_rows(m->rows, w->wide_dv, s->out, at->b, i0, at->h, n);
  load_stats(w, m, at, n);
  if (w->unit) {
    tide__attn_bf16_bwd_start(w, m, at);
    return;
  }
  if (n < Q) {
    memset(m->qt, 0, (size_t)(Q * s->d) * sizeof(float));
    memset(m->dot, 0, (size_t)(Q * s->dv) * sizeof(float));
  }
  if (n < Q || s->d < w->wide_d) memset(m->qr, 0, (size_t)(Q * w->wide_d) * sizeof(float));
  tide__attn_rows(m->qr, w->wide_d, s->q, at->b, i0, at->h, n);
  w->tiles->transpose(m->qt, Q, m->qr, w->wide_d, n, s->d, mul);
  w->tiles->transpose(m->dot, Q, m->dor, w->wide_dv, n, s->dv, 1.0f);
  *m->nonfinite = tide__attn_search(s, m->qr, n, w->wide_d, w->wide_d) |
                  tide__attn_search(s, m->dor, n, w->wide_dv, w->wide_dv);
}

static void finish_queries(const job *w, const scratch *m, const attn_at *at)
{
  const attn *s = &w->s;
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const k_tensor *dq = w->dq;
  if (dq->dtype == TIDE_F32) {
    float *to = (float *)dq->data + at->b * dq->stride[0] + i0 * dq->stride[1];
    w->tiles->transpose(to + at->h * dq->stride[2], dq->stride[1], m->dqt, Q, s->d, n,
                        s->a->scale);
    return;
  }
  w->tiles->transpose(m->rows, w->wide_d, m->dqt, Q, s->d, n, 1.0f);
  tide__attn_put_rows(dq, at->b, i0, at->h, n, m->rows, w->wide_d, s->a->scale);
}

/* ---- one pair of blocks ---- */

/* Computes S^T = K Q^T and dP^T = V dO^T for the keys that some query group sees. */
static void attn_bwd_scores(const job *w, const scratch *m, const attn_span *span,
                            const attn_at *at)
{
  const attn *s = &w->s;
  const float *k = attn_source_row(&w->k, at->b, at->h / s->ng, at->kb * K);
  const float *v = attn_source_row(&w->v, at->b, at->h / s->ng, at->kb * K);
  for (int32_t j = 0, end; j < K; j = end) {
    const attn_hull hull = tide__attn_hull(span, j, &end);
    if (hull.g0 == hull.g1) continue;
    attn_gemm g = { .m = end - j, .k = s->d, .nv = hull.g1 - hull.g0, .add = 0,
                    .a = k + j * w->k.row, .rs = w->k.row, .cs = 1,
                    .b = m->qt + hull.g0 * L, .ldb = Q,
                    .c = m->st + j * Q + hull.g0 * L, .ldc = Q };
    w->tiles->gemm(&g);
    g.k = s->dv;
    g.a = v + j * w->v.row;
    g.rs = w->v.row;
    g.b = m->dot + hull.g0 * L;
    g.c = m->dp + j * Q + hull.g0 * L;
    w->tiles->gemm(&g);
  }
}

void tide__attn_put_dbias(const job *w, const scratch *m, const attn_at *at, int group, int32_t k0,
                          int32_t k1)
{
  const k_tensor *t = w->dbias;
  const int64_t i0 = at->qb * Q + group * L;
  for (int64_t i = 0; i < L && i0 + i < w->s.tq; i++) {
    float *to = (float *)t->data + at->b * t->stride[0] + at->h * t->stride[1] +
                (i0 + i) * t->stride[2] + at->kb * K * t->stride[3];
    for (int64_t j = k0; j < k1; j++) to[j * t->stride[3]] = m->dbias[j * Q + group * L + i];
  }
}

/* Computes P^T and dS^T, both zero in `all` where a group sees nothing. */
static void attn_bwd_gradients(const job *w, const scratch *m, const attn_span *span, attn_span all,
                               const attn_at *at, int want)
{
  const attn *s = &w->s;
  const int keep = (want & WANT_DQ) && !k_absent(w->dbias);
  if (s->modified)
    tide__attn_modify(s, at->b, at->h, at->qb, at->kb, all.k0, all.k1, s->a->scale, m->st,
                      m->slope, m->tmp);
  for (int c = 0; c < ATTN_NG; c++) {
    tide__attn_clear(m->st + c * L, span[c], all);
    tide__attn_clear(m->dp + c * L, span[c], all);
    if (span[c].k0 == span[c].k1) continue;
    attn_lanes lanes = tide__attn_lanes(s, at->b, at->qb, at->kb, c);
    lanes.kdoc += span[c].k0;
    lanes.kpos += span[c].k0;
    const int64_t from = span[c].k0 * Q + c * L;
    const attn_grad t = { .s = m->st + from, .dp = m->dp + from, .n = span[c].k1 - span[c].k0,
                          .slope = s->a->softcap != 0 ? m->slope + from : 0,
                          .dbias = keep ? m->dbias + from : 0,
                          .lanes = span[c].full ? 0 : &lanes, .bias = !k_absent(s->bias),
                          .lse = m->lse + c * L, .delta = m->delta + c * L };
    w->tiles->grad(&t);
    if (keep) tide__attn_put_dbias(w, m, at, c, span[c].k0, span[c].k1);
  }
}

/* Computes dq^T += K^T dS^T. */
static void add_dq(const job *w, const scratch *m, const attn_span *span, const attn_at *at)
{
  const float *k = attn_source_row(&w->k, at->b, at->h / w->s.ng, at->kb * K);
  const attn_gemm g = { .m = w->s.d, .a = k, .rs = 1, .cs = w->k.row, .b = m->dp, .ldb = Q,
                        .c = m->dqt, .ldc = Q };
  tide__attn_gemm_keys(w->tiles, span, &g, attn_source_nonfinite(&w->k, &w->s, at));
}

/* Computes dv += P^T dO and dk += dS^T Q; row 0 of both is key 0 of the block. */
static void add_dkv(const job *w, const scratch *m, const attn_span *span, float *dk, float *dv)
{
  for (int32_t j = 0, end; j < K; j = end) {
    const attn_hull hull = tide__attn_hull(span, j, &end);
    if (hull.g0 == hull.g1) continue;
    const int cut = *m->nonfinite == ATTN_OUT_OF_ALL ||
                    (*m->nonfinite &&
                     tide__attn_cut(span + hull.g0, hull.g1 - hull.g0, j, end));
    attn_gemm g = { .m = end - j, .k = (hull.g1 - hull.g0) * L, .nv = (int)(w->wide_dv / L),
                    .add = 1, .a = m->st + j * Q + hull.g0 * L, .rs = Q, .cs = 1,
                    .b = m->dor + hull.g0 * L * w->wide_dv, .ldb = w->wide_dv,
                    .c = dv + j * w->wide_dv, .ldc = w->wide_dv };
    if (cut) tide__attn_gemm_cut(w->tiles, &g, 1);
    else w->tiles->gemm(&g);
    g.nv = (int)(w->wide_d / L);
    g.a = m->dp + j * Q + hull.g0 * L;
    g.b = m->qr + hull.g0 * L * w->wide_d;
    g.c = dk + j * w->wide_d;
    g.ldb = g.ldc = w->wide_d;
    if (cut) tide__attn_gemm_cut(w->tiles, &g, 1);
    else w->tiles->gemm(&g);
  }
}

/* Computes the gradients of one pair of blocks. dk, dv: of this key block, or null. */
static void attn_bwd_run_pair(const job *w, const scratch *m, const attn_at *at, int want,
                              float *dk, float *dv)
{
  attn_span span[ATTN_NG], all;
  if (w->unit) {
    tide__attn_bf16_bwd_pair(w, m, at, want, dk, dv);
    return;
  }
  if (!tide__attn_spans(&w->s, at->b, at->qb, at->kb, ATTN_STEP, span)) return;
  all = span[0];
  for (int c = 1; c < ATTN_NG; c++) all = tide__attn_join(all, span[c]);
  attn_bwd_scores(w, m, span, at);
  attn_bwd_gradients(w, m, span, all, at, want);
  if (want & WANT_DKV) add_dkv(w, m, span, dk, dv);
  if (want & WANT_DQ) add_dq(w, m, span, at);
}

static void put_keys(const job *w, const scratch *m, int64_t b, int64_t hk, int64_t j0, int64_t n)
{
  tide__attn_put_rows(w->dk, b, j0, hk, n, m->dk, w->wide_d, w->s.a->scale);
  tide__attn_put_rows(w->dv, b, j0, hk, n, m->dv, w->wide_dv, 1.0f);
}

static void clear_keys(const job *w, const scratch *m)
{
  memset(m->dk, 0, (size_t)(w->nrow * w->wide_d) * sizeof(float));
  memset(m->dv, 0, (size_t)(w->nrow * w->wide_dv) * sizeof(float));
}

/* ---- schedules ---- */

static void query_block(const job *w, const scratch *m, attn_at at, int want)
{
  start_queries(w, m, &at);
  memset(m->dqt, 0, (size_t)(Q * w->wide_d) * sizeof(float));
  for (at.kb = 0; at.kb < w->s.nkb; at.kb++)
    attn_bwd_run_pair(w, m, &at, want, m->dk + (want & WANT_DKV ? at.kb * K * w->wide_d : 0),
                      m->dv + (want & WANT_DKV ? at.kb * K * w->wide_dv : 0));
  finish_queries(w, m, &at);
}

static void head_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const attn *s = &w->s;
  scratch m;
  attn_bwd_lay_scratch(w, w->scratch + thread * w->nscratch, &m);
  tide__attn_unit_begin(w->unit);
  for (int64_t t = begin; t < end; t++) {
    const int64_t b = t / s->nhk, hk = t % s->nhk;
    clear_keys(w, &m);
    for (int64_t h = hk * s->ng; h < (hk + 1) * s->ng; h++)
      for (int64_t qb = 0; qb < s->nqb; qb++)
        query_block(w, &m, (attn_at){ b, h, qb, 0 }, WANT_DQ | WANT_DKV);
    put_keys(w, &m, b, hk, 0, s->tk);
  }
  tide__attn_unit_end(w->unit);
}

static void attn_bwd_key_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const attn *s = &w->s;
  scratch m;
  attn_bwd_lay_scratch(w, w->scratch + thread * w->nscratch, &m);
  tide__attn_unit_begin(w->unit);
  for (int64_t t = begin; t < end; t++) {
    const int64_t b = t / s->nkb / s->nhk, hk = t / s->nkb % s->nhk, kb = t % s->nkb;
    const int64_t n = s->tk - kb * K < K ? s->tk - kb * K : K;
    attn_span span[ATTN_NG];
    clear_keys(w, &m);
    for (int64_t h = hk * s->ng; h < (hk + 1) * s->ng; h++)
      for (int64_t qb = 0; qb < s->nqb; qb++) {
        const attn_at at = { b, h, qb, kb };
        if (!tide__attn_spans(s, b, qb, kb, ATTN_STEP, span)) continue;
        start_queries(w, &m, &at);
        attn_bwd_run_pair(w, &m, &at, WANT_DKV, m.dk, m.dv);
      }
    put_keys(w, &m, b, hk, kb * K, n);
  }
  tide__attn_unit_end(w->unit);
}

static void attn_bwd_query_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const attn *s = &w->s;
  scratch m;
  attn_bwd_lay_scratch(w, w->scratch + thread * w->nscratch, &m);
  tide__attn_unit_begin(w->unit);
  for (int64_t t = begin; t < end; t++) {
    const attn_at at = { t / s->nqb / s->nh, t / s->nqb % s->nh, s->nqb - 1 - t % s->nqb, 0 };
    query_block(w, &m, at, WANT_DQ);
  }
  tide__attn_unit_end(w->unit);
}

static void clear_dbias(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  memset((float *)arg + begin, 0, (size_t)(end - begin) * sizeof(float));
}

static void attn_bwd_describe(job *w, const k_call *c, int isa)
{
  scratch none;
  tide__attn_open(&w->s, c, 1);
  w->tiles = tide__attn_tiles(isa);
  w->dq = &c->out[0];
  w->dk = &c->out[1];
  w->dv = &c->out[2];
  w->dbias = &c->out[3];
  w->unit = tide__attn_unit(w->s.q->dtype, isa);
  w->wide_d = i64_round_up(w->s.d, L);
  w->wide_dv = i64_round_up(w->s.dv, L);
  w->nrow = one_pass(&w->s, c->nthread) ? w->s.nkb * K : K;
  w->nscratch = attn_bwd_lay_scratch(w, 0, &none);
}

/* Lays out the work memory after the mask: K and V, then scratch. Returns its bytes; with base NULL
 * it only counts. */
static int64_t attn_bwd_prepare(job *w, char *base, int nthread)
{
  const attn *s = &w->s;
  int64_t n = tide__attn_keys(s, s->k, w->unit, 0, base, nthread, &w->k, &w->k_tiles);
  char *next = base ? base + n : 0;
  n += tide__attn_keys(s, s->v, w->unit, 0, next, nthread, &w->v, &w->v_tiles);
  next = base ? base + n : 0;
  if (w->unit) n += tide__attn_keys(s, s->k, w->unit, 1, next, nthread, 0, &w->kt_tiles);
  if (base) w->scratch = (float *)(base + n);
  return n + w->nscratch * 4 * nthread;
}

int64_t tide__attention_bwd_work_isa(const k_call *c, int isa)
{
  job w = { 0 };
  if (c->in[1].dtype == TIDE_F64) return tide__attn_f64_work(c, 1);
  attn_bwd_describe(&w, c, isa);
  return tide__attn_mask_bytes(&w.s) + attn_bwd_prepare(&w, 0, c->nthread);
}

int tide__attention_bwd_isa(const k_call *c, int isa)
{
  job w = { 0 };
  const attn *s = &w.s;
  if (c->in[1].dtype == TIDE_F64) return tide__attn_f64_bwd(c);
  attn_bwd_describe(&w, c, isa);
  tide__attn_mask_fill(&w.s, c->work);
  attn_bwd_prepare(&w, (char *)c->work + tide__attn_mask_bytes(s), c->nthread);
  if (!k_absent(w.dbias))
    tide__pool_for(c->nthread, k_numel(w.dbias), 65536, clear_dbias, w.dbias->data);
  if (one_pass(s, c->nthread)) {
    tide__pool_tasks(c->nthread, s->nb * s->nhk, 1, head_tasks, &w);
  } else {
    tide__pool_tasks(c->nthread, s->nb * s->nhk * s->nkb, 1, attn_bwd_key_tasks, &w);
    tide__pool_tasks(c->nthread, s->nb * s->nh * s->nqb, 1, attn_bwd_query_tasks, &w);
  }
  return TIDE_OK;
}

int64_t k_cpu_attention_bwd_work(const k_call *c)
{
  return tide__attention_bwd_work_isa(c, tide__cpu_isa());
}

int k_cpu_attention_bwd(const k_call *c) { return tide__attention_bwd_isa(c, tide__cpu_isa()); }
