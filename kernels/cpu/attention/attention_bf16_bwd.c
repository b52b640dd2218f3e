/* bf16 attention in tiles, backward. See attention_bf16.h.
 *
 * S^T and dP^T are produced as tiles and P^T and dS^T consumed as tiles: operand A of dV = P^T dO
 * and dK = dS^T Q as rows of keys, and dS^T again as B of dQ^T = K^T dS^T, its rows interleaved two
 * by two.
 *
 * Only called when the processor has AVX512_BF16.
 */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/gemm/tile_amx.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "kernels/cpu/attention/attention_bf16.h"

/* ---- tiles of queries ---- */

/* Tiles per thread. Of queries and dout: B of S^T and dP^T ([D / 32][4]), and B of dk and dv ([2
 * pairs][D / 16]). Of P^T and dS^T: A of dv and dk ([8 groups of 16 keys][2 pairs]), and B of dq^T
 * ([4 groups of 32 keys][4]). mark: whether qb and dob were searched and held values that are not
 * finite. */
typedef struct bwd_tiles { uint16_t *qt, *dot, *qb, *dob, *pa, *da, *db, *mark; } bwd_tiles;

enum { UNSEEN, CLEAN, NONFINITE };

static int64_t lay_tiles(const attn *s, uint16_t *base, bwd_tiles *t)
{
  struct { uint16_t **at; int64_t n; } part[] = {
    { &t->qt, i64_ceil_div(s->d, 32) * ATTN_NG }, { &t->dot, i64_ceil_div(s->dv, 32) * ATTN_NG },
    { &t->qb, 2 * i64_ceil_div(s->d, 16) }, { &t->dob, 2 * i64_ceil_div(s->dv, 16) },
    { &t->pa, K / 16 * 2 }, { &t->da, K / 16 * 2 }, { &t->db, K / 32 * ATTN_NG }, { &t->mark, 1 },
  };
  int64_t n = 0;
  for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
    if (base) *part[i].at = base + n;
    n += part[i].n * TILE;
  }
  return n;
}

int64_t tide__attn_bf16_bwd_size(const attn *s)
{
  bwd_tiles none;
  return lay_tiles(s, 0, &none);
}

/* B[p][j] = src[p][j]: n <= 32 rows, m <= 16 columns. */
TIDE_AVX512_BF16
static void pack_b(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m)
{
  for (int64_t i = 0; i < 16; i++)
    _mm512_storeu_si512(dst + 32 * i, interleave(load_half(src, rs, 2 * i, n, m),
                                                 load_half(src, rs, 2 * i + 1, n, m)));
}

static void pack_queries(const attn *s, const k_tensor *t, const attn_at *at, uint16_t *bt,
                         uint16_t *b)
{
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q, d = t->shape[3];
  const uint16_t *src = (const uint16_t *)t->data + at->b * t->stride[0] + i0 * t->stride[1] +
                        at->h * t->stride[2];
  const cut by_rows = { pack_b, 32, 16, 2, i64_ceil_div(d, 16) * TILE, TILE };
  const cut by_cols = { pack_bt, 16, 32, ATTN_NG, TILE, ATTN_NG * TILE };
  pack(bt, src, t->stride[1], n, d, &by_cols);
  pack(b, src, t->stride[1], n, d, &by_rows);
}

TIDE_AVX512_BF16
void tide__attn_bf16_bwd_start(const attn_bwd *w, const attn_bwd_scratch *m, const attn_at *at)
{
  bwd_tiles t;
  lay_tiles(&w->s, m->packed, &t);
  pack_queries(&w->s, w->s.q, at, t.qt, t.qb);
  pack_queries(&w->s, w->s.dout, at, t.dot, t.dob);
  *t.mark = UNSEEN;
}

/* ---- P^T and dS^T ---- */

/* Statistics of the two groups of a pair. */
typedef struct lane_stats { __m512 lse[2], delta[2], mul; } lane_stats;

/* One row of one pair: P^T and dS^T as 32 words each. */
TIDE_AVX512_BF16_INLINE
void grad_row(const attn_bwd_scratch *m, const lane_stats *x, int64_t at, int cap, int keep,
              int cut, __m512i *p, __m512i *ds)
{
  const __m512 none = _mm512_set1_ps(-INFINITY);
  __m512 e[2], g[2];
#pragma GCC unroll 2
  for (int u = 0; u < 2; u++) {
    const float *st = m->st + at + u * L, *dp = m->dp + at + u * L;
    e[u] = vec_exp2_short(_mm512_fmsub_ps(_mm512_loadu_ps(st), x->mul, x->lse[u]));
    g[u] = _mm512_mul_ps(e[u], _mm512_sub_ps(_mm512_loadu_ps(dp), x->delta[u]));
    const __mmask16 seen = cut ? _mm512_cmp_ps_mask(_mm512_loadu_ps(st), none, _CMP_NEQ_UQ) : 0;
    if (cut) {
      e[u] = _mm512_maskz_mov_ps(seen, e[u]);
      g[u] = _mm512_maskz_mov_ps(seen, g[u]);
    }
    if (keep) _mm512_storeu_ps(m->dbias + at + u * L, g[u]);
    if (cap) g[u] = _mm512_mul_ps(g[u], _mm512_loadu_ps(m->slope + at + u * L));
    if (cut && cap) g[u] = _mm512_maskz_mov_ps(seen, g[u]);
  }
  *p = to_bf16(e[0], e[1]);
  *ds = to_bf16(g[0], g[1]);
}

/* dwords (a[l], b[l]) of words l = 16 * half + 0..15. */
TIDE_AVX512_BF16_INLINE __m512i zip(__m512i a, __m512i b, int half)
{
  const __m512i lo = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                      39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i to = half ? _mm512_add_epi16(lo, _mm512_set1_epi16(16)) : lo;
  return _mm512_permutex2var_epi16(a, to, b);
}

TIDE_AVX512_BF16_INLINE
void grad_rows(const attn_bwd_scratch *m, const bwd_tiles *t, int p, attn_span span, float mul,
               int cap, int keep, int cut)
{
  lane_stats x = { .mul = _mm512_set1_ps(mul) };
  for (int u = 0; u < 2; u++) {
    x.lse[u] = _mm512_loadu_ps(m->lse + (2 * p + u) * L);
    x.delta[u] = _mm512_loadu_ps(m->delta + (2 * p + u) * L);
  }
  for (int64_t j = span.k0; j < span.k1; j += 2) {
    __m512i e[2], g[2];
#pragma GCC unroll 2
    for (int u = 0; u < 2; u++) {
      grad_row(m, &x, (j + u) * Q + 2 * p * L, cap, keep, cut, &e[u], &g[u]);
      const int64_t row = (j / 16 * 2 + p) * TILE + (j % 16 + u) * 32;
      _mm512_storeu_si512(t->pa + row, e[u]);
      _mm512_storeu_si512(t->da + row, g[u]);
    }
    uint16_t *to = t->db + (j / 32 * ATTN_NG + 2 * p) * TILE + j % 32 / 2 * 32;
    _mm512_storeu_si512(to, zip(g[0], g[1], 0));
    _mm512_storeu_si512(to + TILE, zip(g[0], g[1], 1));
  }
}

TIDE_AVX512_BF16
static void attn_bf16_bwd_grads(const attn_bwd *w, const attn_bwd_scratch *m, const bwd_tiles *t,
                                const attn_at *at, const attn_span span[2], int want)
{
  const attn *s = &w->s;
  const int cap = s->a->softcap != 0, keep = (want & ATTN_WANT_DQ) && !k_absent(w->dbias);
  const int bias = !k_absent(s->bias);
  const int32_t nkey = (int32_t)(s->tk - at->kb * K < K ? s->tk - at->kb * K : K);
  if (s->modified) {
    const attn_span all = tide__attn_join(span[0], span[1]);
    tide__attn_modify(s, at->b, at->h, at->qb, at->kb, all.k0, all.k1 < nkey ? all.k1 : nkey,
                      s->a->scale, m->st, m->slope, m->tmp);
    for (int64_t i = nkey * Q; i < all.k1 * Q; i++) m->slope[i] = 0.0f;
  }
  for (int p = 0; p < 2; p++) {
    if (span[p].k0 == span[p].k1) continue;
    if (!span[p].full) hide_pair(s, at, p, span[p], m->st);
    if (cap || keep) grad_rows(m, t, p, span[p], factor(s), cap, keep, 1);
    else if (!span[p].full || bias) grad_rows(m, t, p, span[p], factor(s), 0, 0, 1);
    else grad_rows(m, t, p, span[p], factor(s), 0, 0, 0);
    for (int c = 2 * p; c < 2 * p + 2 && keep; c++)
      tide__attn_put_dbias(w, m, at, c, span[p].k0, span[p].k1 < nkey ? span[p].k1 : nkey);
  }
}

/* ---- products ---- */

/* dv += P^T dO and dk += dS^T Q for keys that pairs [p0, p1) see. */
TIDE_AVX512_BF16
static void add_keys(const attn_bwd *w, const bwd_tiles *t, int32_t k0, int32_t k1, int p0, int p1,
                     float *dk, float *dv)
{
  const int64_t nd = i64_ceil_div(w->s.d, 16), nv = i64_ceil_div(w->s.dv, 16);
  product g = { .unit = w->unit, .mt = (k1 - k0) / L, .nt = nv, .kt = p1 - p0,
                .a = t->pa + (k0 / 16 * 2 + p0) * TILE, .a_i = 2 * TILE, .a_k = TILE,
                .b = t->dob + p0 * nv * TILE, .b_k = nv * TILE, .b_j = TILE,
                .c = dv + k0 * w->wide_dv, .ldc = w->wide_dv, .add = 1 };
  tiles_multiply(&g);
  g.nt = nd;
  g.a = t->da + (k0 / 16 * 2 + p0) * TILE;
  g.b = t->qb + p0 * nd * TILE;
  g.b_k = nd * TILE;
  g.c = dk + k0 * w->wide_d;
  g.ldc = w->wide_d;
  tiles_multiply(&g);
}

TIDE_AVX512_BF16
static void add_all_keys(const attn_bwd *w, const bwd_tiles *t, const attn_span span[2], float *dk,
                         float *dv)
{
  const attn_span four[ATTN_NG] = { span[0], span[0], span[1], span[1] };
  for (int32_t j = 0, end; j < K; j = end) {
    const attn_hull hull = tide__attn_hull(four, j, &end);
    if (hull.g0 < hull.g1) add_keys(w, t, j, end, hull.g0 / 2, hull.g1 / 2, dk, dv);
  }
}

/* Adds weight[key][query] * t[query][d] to to[key][d] for the values of t that are not finite.
 * weight: A tiles [8 groups of 16 keys][2 pairs]. */
TIDE_AVX512_BF16 static void add_nonfinite_queries(const attn *s, const k_tensor *t,
                                                   const attn_at *at, const attn_span span[2],
                                                   const uint16_t *weight, float *to, int64_t ld)
{
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const uint16_t *src = (const uint16_t *)t->data + at->b * t->stride[0] + i0 * t->stride[1] +
                        at->h * t->stride[2];
  for (int64_t i = 0; i < n; i++)
    for (int64_t d = 0; d < t->shape[3]; d++) {
      const uint16_t x = src[i * t->stride[1] + d];
      if (!word_is_nonfinite(x)) continue;
      const int64_t p = i / 32;
      for (int64_t j = span[p].k0; j < span[p].k1; j++) {
        const float by = tide__bf16_to_f32(weight[(j / 16 * 2 + p) * TILE + j % 16 * 32 + i % 32]);
        if (by != 0.0f) to[j * ld + d] += tide__bf16_to_f32(x) * by;
      }
    }
}

/* Removes the values that are not finite from this block's query tiles, once, before the first pair
 * that the mask cuts, or with a bias the first pair. */
TIDE_AVX512_BF16
static void clean_queries(const attn *s, const bwd_tiles *t, const attn_span span[2])
{
  const int all_seen = span[0].full && span[1].full && k_absent(s->bias);
  if (*t->mark != UNSEEN || all_seen) return;
  const int found = clean(t->qb, 2 * i64_ceil_div(s->d, 16) * TILE) |
                    clean(t->dob, 2 * i64_ceil_div(s->dv, 16) * TILE);
  *t->mark = found ? NONFINITE : CLEAN;
}

TIDE_AVX512_BF16
void tide__attn_bf16_bwd_pair(const attn_bwd *w, const attn_bwd_scratch *m, const attn_at *at,
                              int want, float *dk, float *dv)
{
  const attn *s = &w->s;
  const int64_t nd = i64_ceil_div(s->d, 16);
  attn_span span[2];
  bwd_tiles t;
  if (!pair_spans(s, at, span)) return;
  lay_tiles(s, m->packed, &t);
  const uint16_t *k = block_of(w->k_tiles, s, at, tide__attn_bf16_tiles_size(s->d, 0));
  const uint16_t *v = block_of(w->v_tiles, s, at, tide__attn_bf16_tiles_size(s->dv, 0));
  const uint16_t *kt = block_of(w->kt_tiles, s, at, tide__attn_bf16_tiles_size(s->d, 1));
  for (int p = 0; p < 2; p++) {
    if (span[p].k0 == span[p].k1) continue;
    scores(w->unit, k, t.qt, m->st, s->d, span[p], p);
    scores(w->unit, v, t.dot, m->dp, s->dv, span[p], p);
  }
  attn_bf16_bwd_grads(w, m, &t, at, span, want);
  if (want & ATTN_WANT_DKV) {
    clean_queries(s, &t, span);
    add_all_keys(w, &t, span, dk, dv);
    if (*t.mark == NONFINITE) {
      add_nonfinite_queries(s, s->q, at, span, t.da, dk, w->wide_d);
      add_nonfinite_queries(s, s->dout, at, span, t.pa, dv, w->wide_dv);
    }
  }
  for (int p = 0; p < 2 && (want & ATTN_WANT_DQ); p++) {
    const product g = { .unit = w->unit, .mt = nd, .nt = 2, .kt = (span[p].k1 - span[p].k0) / 32,
                        .a = kt + span[p].k0 / 32 * nd * TILE, .a_i = TILE, .a_k = nd * TILE,
                        .b = t.db + (span[p].k0 / 32 * ATTN_NG + 2 * p) * TILE,
                        .b_k = ATTN_NG * TILE, .b_j = TILE,
                        .c = m->dqt + 2 * p * L, .ldc = Q, .add = 1 };
    if (g.kt == 0) continue;
    tiles_multiply(&g);
    if (kt[tide__attn_bf16_tiles_size(s->d, 1) - MARK])
      add_nonfinite_keys(s, s->k, at, span[p], p, t.db, m->dqt);
  }
}

#else

int64_t tide__attn_bf16_bwd_size(const attn *s) { return (void)s, 0; }

void tide__attn_bf16_bwd_start(const attn_bwd *w, const attn_bwd_scratch *m, const attn_at *at)
{
  (void)w, (void)m, (void)at;
}

void tide__attn_bf16_bwd_pair(const attn_bwd *w, const attn_bwd_scratch *m, const attn_at *at,
                              int want, float *dk, float *dv)
{
  (void)w, (void)m, (void)at, (void)want, (void)dk, (void)dv;
}

#endif
