/* Attention of a few queries, as decoding asks for it: K and V are read once, in place.
 *
 * A tile holds 16 queries and packs the keys for them, which for one query costs several times what
 * reading the keys does. Here a task is one key head with the queries of all heads that share it.
 * It walks the blocks of keys in ascending order with a running maximum and sum for each query, all
 * in f32. See attention.h for the mask.
 */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/row.h"

/* At most ATTN_LANE queries: they are one group of the mask. */
enum { MOST_QUERIES = 4, AHEAD = 16 };

/* dots: to[j] = by . t[j]; sums: to += the sum of by[j] t[j]. t[j]: row j of n from element `at`
 * on. */
typedef void few_part(float *to, const float *by, const k_tensor *t, int64_t at, int64_t n);

typedef struct few {
  attn s;
  const k_tensor *out, *lse;
  float *scratch;
  int64_t rows, nscratch; /* queries of a task; floats per thread */
  few_part *dots, *sums;
} few;

typedef struct few_scratch { float *q, *x, *o, *top, *sum; } few_scratch;

int tide__attn_few_takes(const attn *s)
{
  if (s->tq < 1 || s->tq > MOST_QUERIES || s->nhk == 0 || !k_absent(s->bias)) return 0;
  return s->q->dtype == TIDE_F32 || s->q->dtype == TIDE_BF16;
}

/* Lays out the scratch of a thread and returns its size in floats; with base NULL it only
 * counts. */
static int64_t few_lay_out(const few *w, float *base, few_scratch *m)
{
  const int64_t size[] = { w->rows * w->s.d, w->rows * ATTN_K, w->rows * w->s.dv, w->rows,
                           w->rows };
  float **at[] = { &m->q, &m->x, &m->o, &m->top, &m->sum };
  int64_t n = 0;
  for (int i = 0; i < 5; i++) {
    if (base) *at[i] = base + n;
    n += i64_round_up(size[i], 16);
  }
  return n;
}

static void few_open(few *w, const attn *s)
{
  few_scratch none;
  w->s = *s;
  w->rows = s->ng * s->tq;
  w->nscratch = few_lay_out(w, 0, &none);
}

/* ---- the inner loops, n keys each; ld: distance of their rows ---- */

/* Fetches a row AHEAD of this one: rows of a head lie apart, and the processor does not guess
 * them. */
TIDE_INLINE void fetch(const void *t, int64_t row, int64_t ld, int64_t d, int size)
{
  const char *at = (const char *)t + (row + AHEAD) * ld * size;
  for (int64_t c = 0; c < d * size; c += 64) __builtin_prefetch(at + c);
}

TIDE_INLINE void dots_of(float *x, const float *q, const void *k, int64_t ld, int64_t n, int64_t d,
                         const int dtype)
{
  for (int64_t j = 0; j < n; j++) {
    float sum = 0;
    fetch(k, j, ld, d, dtype == TIDE_F32 ? 4 : 2);
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < d; c++) sum += q[c] * vec_get(k, j * ld + c, dtype);
    x[j] = sum;
  }
}

/* x[j] = q . k[j] */
TIDE_LEVELS(void, few_dots,
            (float *x, const float *q, const k_tensor *k, int64_t at, int64_t n),
            (x, q, k, at, n))
{
  const int64_t d = k->shape[3], ld = k->stride[1];
  if (k->dtype == TIDE_F32) dots_of(x, q, (const float *)k->data + at, ld, n, d, TIDE_F32);
  else dots_of(x, q, (const uint16_t *)k->data + at, ld, n, d, TIDE_BF16);
}

TIDE_INLINE void sums_of(float *o, const float *p, const void *v, int64_t ld, int64_t n, int64_t d,
                         const int dtype)
{
  for (int64_t j = 0; j < n; j++) {
    fetch(v, j, ld, d, dtype == TIDE_F32 ? 4 : 2);
    if (p[j] == 0.0f) continue; /* a hidden key has no effect, even where its value is NaN */
#pragma omp simd
    for (int64_t c = 0; c < d; c++) o[c] += p[j] * vec_get(v, j * ld + c, dtype);
  }
}

/* o += sum of p[j] v[j] */
TIDE_LEVELS(void, few_sums,
            (float *o, const float *p, const k_tensor *v, int64_t at, int64_t n), (o, p, v, at, n))
{
  const int64_t d = v->shape[3], ld = v->stride[1];
  if (v->dtype == TIDE_F32) sums_of(o, p, (const float *)v->data + at, ld, n, d, TIDE_F32);
  else sums_of(o, p, (const uint16_t *)v->data + at, ld, n, d, TIDE_BF16);
}

TIDE_LEVELS(void, few_cap, (float *x, int64_t n, float cap), (x, n, cap))
{
  for (int64_t j = 0; j < n; j++) x[j] = cap * tide__tanhf(x[j] / cap);
}

TIDE_LEVELS(void, few_hide,
            (float *x, int64_t n, const attn_lanes *m, int64_t i), (x, n, m, i))
{
  const int32_t doc = m->qdoc[i], lo = m->qlo[i], hi = m->qhi[i];
  for (int64_t j = 0; j < n; j++) {
    const int seen = (m->kdoc[j] == doc) & (m->kpos[j] >= lo) & (m->kpos[j] <= hi);
    x[j] = seen ? x[j] : -INFINITY;
  }
}

/* x becomes exp(x - top). Returns the factor for older sums. */
TIDE_LEVELS(float, few_soft, (float *x, int64_t n, float *top, float *sum), (x, n, top, sum))
{
  float most = *top, total = 0;
  for (int64_t j = 0; j < n; j++) most = x[j] > most ? x[j] : most;
  const float base = most == -INFINITY ? 0.0f : most;
#pragma omp simd reduction(+ : total)
  for (int64_t j = 0; j < n; j++) {
    x[j] = tide__expf(x[j] - base);
    total += x[j];
  }
  const float alpha = most > *top ? tide__expf(*top - base) : 1.0f;
  *sum = *sum * alpha + total;
  *top = most;
  return alpha;
}

TIDE_LEVELS(void, few_scale, (float *x, int64_t n, float by), (x, n, by))
{
  for (int64_t i = 0; i < n; i++) x[i] *= by;
}

/* ---- the same two in AVX-512 ---- */

#if defined(__x86_64__) && defined(__GNUC__)

enum { TOGETHER = 8 }; /* keys whose sums do not wait for one another */

TIDE_AVX512_INLINE void zmm_dots_of(float *x, const float *q, const void *k, int64_t ld, int64_t n,
                                    int64_t d, const int dtype)
{
  for (int64_t j = 0; j < n; j += TOGETHER) {
    __m512 sum[TOGETHER];
#pragma GCC unroll 8
    for (int i = 0; i < TOGETHER; i++) {
      sum[i] = _mm512_setzero_ps();
      fetch(k, j + i, ld, d, dtype == TIDE_F32 ? 4 : 2);
    }
    for (int64_t c = 0; c < d; c += 16) {
      const __mmask16 mask = vec_lanes(d - c);
      const __m512 y = _mm512_maskz_loadu_ps(mask, q + c);
#pragma GCC unroll 8
      for (int i = 0; i < TOGETHER; i++) {
        const int64_t at = (j + i < n ? j + i : n - 1) * ld + c;
        sum[i] = _mm512_fmadd_ps(y, vec_load16(k, at, dtype, mask), sum[i]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < TOGETHER; i++)
      if (j + i < n) x[j + i] = _mm512_reduce_add_ps(sum[i]);
  }
}

/* Adds p[j] v[j] to at most nvec vectors of o, which stay in registers meanwhile. */
TIDE_AVX512_INLINE void zmm_sums_of(float *o, const float *p, const void *v, int64_t ld, int64_t n,
                                    int64_t d, const int nvec, const int dtype)
{
  __m512 sum[8];
#pragma GCC unroll 8
  for (int i = 0; i < nvec; i++) sum[i] = _mm512_maskz_loadu_ps(vec_lanes(d - 16 * i), o + 16 * i);
  for (int64_t j = 0; j < n; j++) {
    fetch(v, j, ld, d, dtype == TIDE_F32 ? 4 : 2);
    if (p[j] == 0.0f) continue; /* as in sums_of */
    const __m512 by = _mm512_set1_ps(p[j]);
#pragma GCC unroll 8
    for (int i = 0; i < nvec; i++) {
      const __m512 y = vec_load16(v, j * ld + 16 * i, dtype, vec_lanes(d - 16 * i));
      sum[i] = _mm512_fmadd_ps(by, y, sum[i]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < nvec; i++) _mm512_mask_storeu_ps(o + 16 * i, vec_lanes(d - 16 * i), sum[i]);
}

TIDE_AVX512 static void zmm_dots(float *x, const float *q, const k_tensor *k, int64_t at, int64_t n)
{
  const int64_t d = k->shape[3], ld = k->stride[1];
  if (k->dtype == TIDE_F32) zmm_dots_of(x, q, (const float *)k->data + at, ld, n, d, TIDE_F32);
  else zmm_dots_of(x, q, (const uint16_t *)k->data + at, ld, n, d, TIDE_BF16);
}

TIDE_AVX512 static void zmm_sums(float *o, const float *p, const k_tensor *v, int64_t at, int64_t n)
{
  const int64_t d = v->shape[3], ld = v->stride[1];
  for (int64_t c = 0; c < d; c += 128) {
    const int64_t left = d - c;
    const float *f = (const float *)v->data + at + c;
    const uint16_t *h = (const uint16_t *)v->data + at + c;
    if (v->dtype == TIDE_F32 && left <= 64) zmm_sums_of(o + c, p, f, ld, n, left, 4, TIDE_F32);
    else if (v->dtype == TIDE_F32) zmm_sums_of(o + c, p, f, ld, n, left, 8, TIDE_F32);
    else if (left <= 64) zmm_sums_of(o + c, p, h, ld, n, left, 4, TIDE_BF16);
    else zmm_sums_of(o + c, p, h, ld, n, left, 8, TIDE_BF16);
  }
}

#endif

/* ---- a task ---- */

static void few_start(const few *w, const few_scratch *m, int64_t b, int64_t hk)
{
  const attn *s = &w->s;
  for (int64_t r = 0; r < w->rows; r++) {
    tide__attn_rows(m->q + r * s->d, s->d, s->q, b, r % s->tq, hk * s->ng + r / s->tq, 1);
    few_scale(m->q + r * s->d, s->d, s->a->scale);
    m->top[r] = -INFINITY;
    m->sum[r] = 0.0f;
  }
  memset(m->o, 0, (size_t)(w->rows * s->dv) * sizeof(float));
}

/* Computes one block of keys. */
static void few_block(const few *w, const few_scratch *m, int64_t b, int64_t hk, int64_t kb)
{
  const attn *s = &w->s;
  attn_span span[ATTN_NG];
  if (!tide__attn_spans(s, b, 0, kb, ATTN_LANE, span)) return;
  const int64_t j0 = span[0].k0, n = span[0].k1 - j0, row = kb * ATTN_K + j0;
  const int64_t k_at = b * s->k->stride[0] + row * s->k->stride[1] + hk * s->k->stride[2];
  const int64_t v_at = b * s->v->stride[0] + row * s->v->stride[1] + hk * s->v->stride[2];
  attn_lanes lanes = tide__attn_lanes(s, b, 0, kb, 0);
  lanes.kdoc += j0;
  lanes.kpos += j0;
  for (int64_t r = 0; r < w->rows; r++) {
    float *x = m->x + r * ATTN_K;
    w->dots(x, m->q + r * s->d, s->k, k_at, n);
    if (s->a->softcap != 0) few_cap(x, n, s->a->softcap);
    if (!span[0].full) few_hide(x, n, &lanes, r % s->tq);
  }
  for (int64_t r = 0; r < w->rows; r++) {
    float *o = m->o + r * s->dv, *x = m->x + r * ATTN_K;
    const float alpha = few_soft(x, n, &m->top[r], &m->sum[r]);
    if (alpha != 1.0f) few_scale(o, s->dv, alpha);
    w->sums(o, x, s->v, v_at, n);
  }
}

static void few_finish(const few *w, const few_scratch *m, int64_t b, int64_t hk)
{
  const attn *s = &w->s;
  const int64_t *at = w->lse->stride;
  for (int64_t r = 0; r < w->rows; r++) {
    const int64_t h = hk * s->ng + r / s->tq, i = r % s->tq;
    const float sum = m->sum[r], lse = m->top[r] + logf(sum);
    ((float *)w->lse->data)[b * at[0] + h * at[1] + i * at[2]] = sum == 0.0f ? -INFINITY : lse;
    tide__attn_put_rows(w->out, b, i, h, 1, m->o + r * s->dv, s->dv,
                        sum == 0.0f ? 0.0f : 1.0f / sum);
  }
}

static void few_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const few *w = arg;
  few_scratch m;
  few_lay_out(w, w->scratch + thread * w->nscratch, &m);
  for (int64_t t = begin; t < end; t++) {
    const int64_t b = t / w->s.nhk, hk = t % w->s.nhk;
    few_start(w, &m, b, hk);
    for (int64_t kb = 0; kb < w->s.nkb; kb++) few_block(w, &m, b, hk, kb);
    few_finish(w, &m, b, hk);
  }
}

int64_t tide__attn_few_work(const attn *s, int nthread)
{
  few w = { 0 };
  few_open(&w, s);
  return tide__attn_mask_bytes(s) + w.nscratch * 4 * nthread;
}

void tide__attn_few(const attn *s, const k_call *c)
{
  few w = { .out = &c->out[0], .lse = &c->out[1] };
  few_open(&w, s);
  w.dots = few_dots, w.sums = few_sums;
#if defined(__x86_64__) && defined(__GNUC__)
  if (tide__cpu_isa() & CPU_ISA_AVX512) w.dots = zmm_dots, w.sums = zmm_sums;
#endif
  tide__attn_mask_fill(&w.s, c->work);
  w.scratch = (float *)((char *)c->work + tide__attn_mask_bytes(s));
  tide__pool_tasks(c->nthread, s->nb * s->nhk, 1, few_tasks, &w);
}
