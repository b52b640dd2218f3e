/* Operands, mask tables and row transport of the attention kernels. See attention.h.
 *
 * The rules of a mask (causal, windows, q_start) are about differences of positions, so for one
 * query they are an interval of key positions. Implicit, packed and permuted layouts all fill the
 * same tables.
 */
#include "kernels/cpu/attention/attention.h"

#include "kernels/cpu/row.h"

enum { L = ATTN_LANE, WIDE = 256 };

void tide__attn_open(attn *s, const k_call *c, int is_bwd)
{
  const k_tensor *in = c->in;
  memset(s, 0, sizeof *s);
  s->a = c->attrs;
  if (is_bwd) {
    s->dout = &in[0];
    s->out = &in[4];
    s->lse = &in[5];
    s->dlse = &in[9];
  }
  s->q = &in[is_bwd ? 1 : 0];
  s->k = s->q + 1;
  s->v = s->q + 2;
  s->bias = &in[is_bwd ? 6 : 3];
  s->q_index = s->bias + 1;
  s->k_index = s->bias + 2;
  s->nb = s->q->shape[0];
  s->tq = s->q->shape[1];
  s->nh = s->q->shape[2];
  s->d = s->q->shape[3];
  s->tk = s->k->shape[1];
  s->nhk = s->k->shape[2];
  s->dv = s->v->shape[3];
  s->ng = s->nhk > 0 ? s->nh / s->nhk : 1;
  s->nqb = (s->tq + ATTN_Q - 1) / ATTN_Q;
  s->nkb = (s->tk + ATTN_K - 1) / ATTN_K;
  /* Also for a negative scale: the maximum of raw scores must be the maximum of scaled ones. */
  s->modified = s->a->softcap != 0 || !k_absent(s->bias) || s->a->scale < 0;
  s->mask.rows = k_absent(s->q_index) ? 1 : s->nb;
  if (!k_absent(s->q_index) && s->q_index->shape[0] == 1 && s->k_index->shape[0] == 1)
    s->mask.rows = 1;
}

/* ---- mask tables ---- */

/* Assigns the tables in order and returns their bytes; with base NULL it only counts. */
static int64_t attn_lay_out(attn *s, char *base)
{
  attn_mask *m = &s->mask;
  const int64_t nq = m->rows * s->nqb, nk = m->rows * s->nkb;
  struct { void **at; int64_t bytes; } part[] = {
    { (void **)&m->qdoc, nq * ATTN_Q * 4 },
    { (void **)&m->qlo, nq * ATTN_Q * 4 },
    { (void **)&m->qhi, nq * ATTN_Q * 4 },
    { (void **)&m->kdoc, nk * ATTN_K * 4 },
    { (void **)&m->kpos, nk * ATTN_K * 4 },
    { (void **)&m->qgroup, nq * ATTN_NG * (int64_t)sizeof(attn_qrange) },
    { (void **)&m->qblock, nq * (int64_t)sizeof(attn_qrange) },
    { (void **)&m->kgroup, nk * ATTN_NKG * (int64_t)sizeof(attn_krange) },
    { (void **)&m->kblock, nk * (int64_t)sizeof(attn_krange) },
  };
  int64_t n = 0;
  for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
    if (base) *part[i].at = base + n;
    n += i64_round_up(part[i].bytes, 64);
  }
  return n;
}

int64_t tide__attn_mask_bytes(const attn *s)
{
  attn copy = *s;
  return attn_lay_out(&copy, 0);
}

static int32_t attn_index_at(const k_tensor *t, int64_t row, int64_t i, int64_t what)
{
  const int64_t at = (t->shape[0] == 1 ? 0 : row * t->stride[0]) + i * t->stride[1];
  return ((const int32_t *)t->data)[at + what * t->stride[2]];
}

static int64_t plus(int64_t a, int64_t b)
{
  int64_t r;
  if (!__builtin_add_overflow(a, b, &r)) return r;
  return b > 0 ? INT64_MAX : INT64_MIN;
}

/* Sets [*lo, *hi] to the positions that a query at `pos` of document `doc` sees, up to `until` if
 * causal; [1, 0] for none. */
static void interval(const k_attention_attrs *a, int32_t doc, int64_t pos, int64_t until,
                     int32_t *lo, int32_t *hi)
{
  int64_t first = INT32_MIN, last = INT32_MAX;
  if (a->window_left >= 0) first = plus(pos, -a->window_left);
  if (a->window_right >= 0) last = plus(pos, a->window_right);
  if (a->causal && last > until) last = until;
  if (doc < 0 || first > INT32_MAX || last < INT32_MIN || first > last) {
    *lo = 1;
    *hi = 0;
    return;
  }
  *lo = first < INT32_MIN ? INT32_MIN : (int32_t)first;
  *hi = last > INT32_MAX ? INT32_MAX : (int32_t)last;
}

static attn_qrange no_queries(void)
{
  const attn_qrange r = { INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 0, 0 };
  return r;
}

static attn_krange no_keys(void)
{
  const attn_krange r = { INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN };
  return r;
}

static int32_t min32(int32_t a, int32_t b) { return a < b ? a : b; }
static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

static void fill_queries(attn *s, int64_t row)
{
  attn_mask *m = &s->mask;
  int32_t *doc = m->qdoc + row * s->nqb * ATTN_Q, *lo = m->qlo + row * s->nqb * ATTN_Q;
  int32_t *hi = m->qhi + row * s->nqb * ATTN_Q;
  const int given = !k_absent(s->q_index);
  for (int64_t i = 0; i < s->nqb * ATTN_Q; i++) {
    doc[i] = -1;
    if (i < s->tq) doc[i] = given ? attn_index_at(s->q_index, row, i, 0) : 0;
    int64_t pos = plus(s->a->q_start, i), until;
    if (given && i < s->tq) pos = attn_index_at(s->q_index, row, i, 1);
    until = given && i < s->tq && s->q_index->shape[2] > 2 ? attn_index_at(s->q_index, row, i, 2)
                                                           : pos;
    interval(s->a, doc[i], pos, until, &lo[i], &hi[i]);
  }
  for (int64_t g = 0; g < s->nqb * ATTN_NG; g++) {
    attn_qrange r = no_queries();
    for (int64_t i = g * L; i < (g + 1) * L && i < s->tq; i++) {
      if (lo[i] > hi[i]) {
        r.ndead++;
        continue;
      }
      r.nlive++;
      r.doc0 = min32(r.doc0, doc[i]), r.doc1 = max32(r.doc1, doc[i]);
      r.lo0 = min32(r.lo0, lo[i]), r.lo1 = max32(r.lo1, lo[i]);
      r.hi0 = min32(r.hi0, hi[i]), r.hi1 = max32(r.hi1, hi[i]);
    }
    m->qgroup[row * s->nqb * ATTN_NG + g] = r;
  }
}

static void fill_keys(attn *s, int64_t row)
{
  attn_mask *m = &s->mask;
  int32_t *doc = m->kdoc + row * s->nkb * ATTN_K, *pos = m->kpos + row * s->nkb * ATTN_K;
  const int given = !k_absent(s->k_index);
  for (int64_t j = 0; j < s->nkb * ATTN_K; j++) {
    doc[j] = -1;
    pos[j] = 0;
    if (j >= s->tk) continue;
    doc[j] = given ? attn_index_at(s->k_index, row, j, 0) : 0;
    pos[j] = given ? attn_index_at(s->k_index, row, j, 1) : (int32_t)j;
  }
  for (int64_t g = 0; g < s->nkb * ATTN_NKG; g++) {
    attn_krange r = no_keys();
    for (int64_t j = g * L; j < (g + 1) * L && j < s->tk; j++) {
      r.doc0 = min32(r.doc0, doc[j]), r.doc1 = max32(r.doc1, doc[j]);
      r.pos0 = min32(r.pos0, pos[j]), r.pos1 = max32(r.pos1, pos[j]);
    }
    m->kgroup[row * s->nkb * ATTN_NKG + g] = r;
  }
}

static void merge_blocks(attn *s, int64_t row)
{
  attn_mask *m = &s->mask;
  for (int64_t i = 0; i < s->nqb; i++) {
    const attn_qrange *g = m->qgroup + (row * s->nqb + i) * ATTN_NG;
    attn_qrange r = no_queries();
    for (int c = 0; c < ATTN_NG; c++) {
      r.doc0 = min32(r.doc0, g[c].doc0), r.doc1 = max32(r.doc1, g[c].doc1);
      r.lo0 = min32(r.lo0, g[c].lo0), r.lo1 = max32(r.lo1, g[c].lo1);
      r.hi0 = min32(r.hi0, g[c].hi0), r.hi1 = max32(r.hi1, g[c].hi1);
      r.nlive += g[c].nlive, r.ndead += g[c].ndead;
    }
    m->qblock[row * s->nqb + i] = r;
  }
  for (int64_t j = 0; j < s->nkb; j++) {
    const attn_krange *g = m->kgroup + (row * s->nkb + j) * ATTN_NKG;
    attn_krange r = no_keys();
    for (int c = 0; c < ATTN_NKG; c++) {
      r.doc0 = min32(r.doc0, g[c].doc0), r.doc1 = max32(r.doc1, g[c].doc1);
      r.pos0 = min32(r.pos0, g[c].pos0), r.pos1 = max32(r.pos1, g[c].pos1);
    }
    m->kblock[row * s->nkb + j] = r;
  }
}

void tide__attn_mask_fill(attn *s, void *work)
{
  attn_lay_out(s, work);
  for (int64_t row = 0; row < s->mask.rows; row++) {
    fill_queries(s, row);
    fill_keys(s, row);
    merge_blocks(s, row);
  }
}

enum { NONE, SOME, ALL };

static int cover(const attn_qrange *q, const attn_krange *k)
{
  if (q->nlive == 0 || q->doc0 > k->doc1 || q->doc1 < k->doc0) return NONE;
  if (k->pos0 > q->hi1 || k->pos1 < q->lo0) return NONE;
  const int one_doc = q->doc0 == q->doc1 && k->doc0 == k->doc1;
  return !q->ndead && one_doc && k->pos1 <= q->hi0 && k->pos0 >= q->lo1 ? ALL : SOME;
}

/* Returns the first, or the last, of the L keys from `from` on that some lane sees, or -1. */
TIDE_LEVELS(int, seen_key, (const attn_lanes *m, int from, int last), (m, from, last))
{
  for (int i = 0; i < L; i++) {
    const int j = from + (last ? L - 1 - i : i);
    int any = 0;
    for (int l = 0; l < L; l++) any |= attn_visible(m, j, l);
    if (any) return j;
  }
  return -1;
}

/* Returns the hull of the keys that the queries see, widened to multiples of `step`. Key groups
 * beyond the sequence have an empty range, which is NONE. Ranges of groups that hold two documents
 * say SOME although no pair is visible, so those are looked at: a tile of products costs fifty
 * times that. */
static attn_span group_span(const attn_qrange *q, const attn_krange *k, const attn_lanes *lanes,
                            int32_t nkey, int step)
{
  int32_t first = -1, end = 0;
  int full = 1;
  for (int g = 0; g < ATTN_NKG; g++) {
    const int what = cover(q, &k[g]);
    const int32_t seen = what == SOME ? seen_key(lanes, g * L, 0) : g * L;
    if (what == NONE || seen < 0) continue;
    full &= what == ALL && (first < 0 || end == g * L);
    if (first < 0) first = seen;
    end = what == SOME ? seen_key(lanes, g * L, 1) + 1 : (g + 1) * L;
  }
  if (first < 0) return (attn_span){ 0, 0, 1 };
  const int32_t k0 = first / step * step, k1 = (int32_t)i64_round_up(end, step);
  return (attn_span){ k0, k1 < nkey ? k1 : nkey, full && k0 == first && k1 == end };
}

attn_lanes tide__attn_lanes(const attn *s, int64_t b, int64_t qb, int64_t kb, int group)
{
  const attn_mask *m = &s->mask;
  const int64_t row = m->rows == 1 ? 0 : b;
  const int64_t iq = (row * s->nqb + qb) * ATTN_Q + group * L, ik = (row * s->nkb + kb) * ATTN_K;
  const attn_lanes r = { m->qdoc + iq, m->qlo + iq, m->qhi + iq, m->kdoc + ik, m->kpos + ik };
  return r;
}

int tide__attn_spans(const attn *s, int64_t b, int64_t qb, int64_t kb, int step,
                     attn_span span[ATTN_NG])
{
  const attn_mask *m = &s->mask;
  const int64_t row = m->rows == 1 ? 0 : b, nkey = s->tk - kb * ATTN_K;
  const int32_t n = (int32_t)(nkey < ATTN_K ? nkey : ATTN_K);
  const int what = cover(&m->qblock[row * s->nqb + qb], &m->kblock[row * s->nkb + kb]);
  int any = 0;
  if (what == NONE) return 0;
  for (int c = 0; c < ATTN_NG; c++) {
    const attn_qrange *q = &m->qgroup[(row * s->nqb + qb) * ATTN_NG + c];
    span[c] = (attn_span){ 0, n, 1 };
    if (qb * ATTN_Q + c * L >= s->tq) span[c] = (attn_span){ 0, 0, 1 };
    else if (what == SOME) {
      const attn_lanes lanes = tide__attn_lanes(s, b, qb, kb, c);
      span[c] = group_span(q, &m->kgroup[(row * s->nkb + kb) * ATTN_NKG], &lanes, n, step);
    }
    any |= span[c].k1 > span[c].k0;
  }
  return any;
}

/* ---- rows ---- */

/* n rows of src, ld apart, times scale; the first goes to element `at` of t. */
TIDE_LEVELS(void, put_scaled,
            (const k_tensor *t, int64_t at, int64_t n, const float *src, int64_t ld, float scale),
            (t, at, n, src, ld, scale))
{
  const int64_t width = t->shape[3];
  float tmp[WIDE];
  for (int64_t i = 0; i < n; i++, at += t->stride[1], src += ld) {
    if (t->dtype == TIDE_F32) {
      float *to = row_at(t, at);
      for (int64_t j = 0; j < width; j++) to[j] = src[j] * scale;
      continue;
    }
    for (int64_t j0 = 0; j0 < width; j0 += WIDE) {
      const int64_t m = i64_min(width - j0, WIDE);
      for (int64_t j = 0; j < m; j++) tmp[j] = src[j0 + j] * scale;
      vec_narrow(row_at(t, at + j0), tmp, t->dtype, m);
    }
  }
}

void tide__attn_rows(float *dst, int64_t ld, const k_tensor *t, int64_t b, int64_t row0,
                     int64_t h, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = b * t->stride[0] + (row0 + i) * t->stride[1] + h * t->stride[2];
    row_widen(dst + i * ld, row_at(t, at), t->dtype, t->shape[3]);
  }
}

void tide__attn_put_rows(const k_tensor *t, int64_t b, int64_t row0, int64_t h, int64_t n,
                         const float *src, int64_t ld, float scale)
{
  const int64_t at = b * t->stride[0] + row0 * t->stride[1] + h * t->stride[2];
  put_scaled(t, at, n, src, ld, scale);
}

/* ---- softcap and bias ---- */

TIDE_LEVELS(void, cap_row,
            (float *x, float *slope, int64_t n, float scale, float cap), (x, slope, n, scale, cap))
{
  for (int64_t i = 0; i < n; i++) {
    const float th = tide__tanhf(x[i] * (scale / cap));
    x[i] = cap * th;
    if (slope) slope[i] = 1.0f - th * th;
  }
}

TIDE_LEVELS(void, scale_row, (float *x, int64_t n, float scale), (x, n, scale))
{
  for (int64_t i = 0; i < n; i++) x[i] *= scale;
}

TIDE_LEVELS(void, add_row, (float *x, const float *bias, int64_t n), (x, bias, n))
{
  for (int64_t i = 0; i < n; i++) x[i] = (x[i] + bias[i]) * ATTN_LOG2E;
}

/* Loads bias_T[key][query] of a block: reads rows along the keys, then transposes. Behind the last
 * query it is -inf, so that a value which is not finite meets no score there. */
static void load_bias(const attn *s, int64_t b, int64_t h, int64_t qb, int64_t kb, int64_t k0,
                      int64_t k1, float *tmp)
{
  const k_tensor *t = s->bias;
  const int64_t i0 = qb * ATTN_Q, n = s->tq - i0 < ATTN_Q ? s->tq - i0 : ATTN_Q;
  float *row = tmp + ATTN_Q * ATTN_K;
  for (int64_t i = 0; i < n; i++) {
    const int64_t at = b * t->stride[0] + h * t->stride[1] + (i0 + i) * t->stride[2];
    if (t->stride[3] == 1) {
      row_widen(row, row_at(t, at + kb * ATTN_K + k0), t->dtype, k1 - k0);
    } else {
      for (int64_t j = k0; j < k1; j++)
        row_widen(row + j - k0, row_at(t, at + (kb * ATTN_K + j) * t->stride[3]), t->dtype, 1);
    }
    for (int64_t j = k0; j < k1; j++) tmp[j * ATTN_Q + i] = row[j - k0];
  }
  for (int64_t j = k0; j < k1; j++)
    for (int64_t i = n; i < ATTN_Q; i++) tmp[j * ATTN_Q + i] = -INFINITY;
}

void tide__attn_modify(const attn *s, int64_t b, int64_t h, int64_t qb, int64_t kb, int64_t k0,
                       int64_t k1, float scale, float *st, float *slope, float *tmp)
{
  const int64_t n = (k1 - k0) * ATTN_Q, at = k0 * ATTN_Q;
  if (s->a->softcap != 0) cap_row(st + at, slope ? slope + at : 0, n, scale, s->a->softcap);
  else if (scale != 1.0f) scale_row(st + at, n, scale);
  if (!k_absent(s->bias)) {
    load_bias(s, b, h, qb, kb, k0, k1, tmp);
    add_row(st + at, tmp + at, n);
  } else {
    scale_row(st + at, n, ATTN_LOG2E);
  }
}

/* ---- spans ---- */

attn_span tide__attn_join(attn_span a, attn_span b)
{
  if (a.k0 == a.k1) return b;
  if (b.k0 == b.k1) return a;
  return (attn_span){ min32(a.k0, b.k0), max32(a.k1, b.k1), 0 };
}

attn_hull tide__attn_hull(const attn_span span[ATTN_NG], int32_t j, int32_t *end)
{
  attn_hull r = { ATTN_NG, 0 };
  *end = ATTN_K;
  for (int c = 0; c < ATTN_NG; c++) {
    if (span[c].k0 > j) *end = min32(*end, span[c].k0);
    if (span[c].k1 > j) *end = min32(*end, span[c].k1);
    if (span[c].k0 > j || span[c].k1 <= j) continue;
    if (r.g0 > c) r.g0 = c;
    r.g1 = c + 1;
  }
  if (r.g1 == 0) r.g0 = 0;
  return r;
}

static void attn_clear(float *st, int32_t k0, int32_t k1)
{
  for (int32_t j = k0; j < k1; j++) memset(st + j * ATTN_Q, 0, L * sizeof(float));
}

void tide__attn_clear(float *st, attn_span own, attn_span all)
{
  if (own.k0 == own.k1) {
    attn_clear(st, all.k0, all.k1);
    return;
  }
  attn_clear(st, all.k0, own.k0);
  attn_clear(st, own.k1, all.k1);
}

/* ---- copies ---- */

/* Returns whether the kernels read t where it lies. Rows of many heads side by side map to few
 * cache sets; a copy pays only if several blocks of queries read it. */
static int attn_in_place(const attn *s, const k_tensor *t)
{
  if (t->dtype != TIDE_F32) return 0;
  return s->nqb * s->ng < 8 || t->stride[1] <= t->shape[3] + L;
}

/* Returns the bytes of the copy; the table of non-finite blocks follows it. */
static int64_t copy_bytes(const attn *s, const k_tensor *t)
{
  if (attn_in_place(s, t)) return 0;
  return i64_round_up(s->nb * s->nhk * s->tk * t->shape[3] * 4, 64);
}

int64_t tide__attn_source_bytes(const attn *s, const k_tensor *t)
{
  return copy_bytes(s, t) + i64_round_up(s->nb * s->nhk * s->nkb, 64);
}

typedef struct open_job { const attn *s; const k_tensor *t; const attn_source *to; } open_job;

/* Prepares blocks of keys: copies each unless it is read in place, and searches it for non-finite
 * values while it is in the cache. */
static void open_blocks(void *arg, int64_t begin, int64_t end, int thread)
{
  const open_job *w = arg;
  const attn *s = w->s;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / s->nkb / s->nhk, h = i / s->nkb % s->nhk, j0 = i % s->nkb * ATTN_K;
    const int64_t n = i64_min(s->tk - j0, ATTN_K), d = w->t->shape[3];
    float *to = (float *)attn_source_row(w->to, b, h, j0);
    if (w->to->data != w->t->data) tide__attn_rows(to, d, w->t, b, j0, h, n);
    w->to->nonfinite[i] = (uint8_t)tide__attn_search(s, to, n, w->to->row, d);
  }
}

void tide__attn_source_open(attn_source *r, const attn *s, const k_tensor *t, void *work,
                            int nthread)
{
  const int64_t row = t->shape[3];
  uint8_t *nonfinite = (uint8_t *)work + copy_bytes(s, t);
  if (attn_in_place(s, t))
    *r = (attn_source){ t->data, t->stride[0], t->stride[2], t->stride[1], nonfinite };
  else
    *r = (attn_source){ work, s->nhk * s->tk * row, s->tk * row, row, nonfinite };
  open_job w = { s, t, r };
  tide__pool_for(nthread, s->nb * s->nhk * s->nkb, 1, open_blocks, &w);
}

int64_t tide__attn_keys(const attn *s, const k_tensor *t, attn_unit unit, int which, char *base,
                        int nthread, attn_source *rows, const uint16_t **tiles)
{
  if (unit == ATTN_F32) {
    if (base) tide__attn_source_open(rows, s, t, base, nthread);
    return tide__attn_source_bytes(s, t);
  }
  if (base) tide__attn_bf16_pack(s, t, which, (uint16_t *)base, nthread);
  *tiles = (uint16_t *)base;
  return s->nb * s->nhk * s->nkb * 2 * tide__attn_bf16_tiles_size(t->shape[3], which);
}
