/* bf16 attention in tiles, forward, and the tiles of keys and values. See attention_bf16.h.
 *
 * With scores transposed, softmax produces P^T row by row, which is operand B of O^T = V^T P^T
 * after the rows are interleaved two by two, and operand A of dV = P^T dO unchanged. Softmax,
 * maxima and sums are f32.
 *
 * Only called when the processor has AVX512_BF16.
 */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/gemm/tile_amx.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "kernels/cpu/attention/attention_bf16.h"

attn_unit tide__attn_unit(int dtype, int isa)
{
  if (dtype != TIDE_BF16 || !(isa & CPU_ISA_BF16)) return ATTN_F32;
  return isa & CPU_ISA_AMX ? ATTN_AMX : ATTN_PAIRS;
}

void tide__attn_unit_begin(attn_unit unit)
{
  if (unit == ATTN_AMX) tide__tile_amx_begin();
}

void tide__attn_unit_end(attn_unit unit)
{
  if (unit == ATTN_AMX) tide__tile_amx_end();
}

/* ---- tiles of keys and values ---- */

/* A[i][p] = src[i][p]: n <= 16 rows, m <= 32 columns. */
TIDE_AVX512_BF16
static void pack_a(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m)
{
  for (int64_t i = 0; i < 16; i++) _mm512_storeu_si512(dst + 32 * i, load_row(src, rs, i, n, m));
}

/* A[i][p] = src[p][i]: n <= 32 rows, m <= 16 columns. */
TIDE_AVX512_BF16
static void pack_at(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m)
{
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++)
    r[i] = interleave(load_half(src, rs, 2 * i, n, m), load_half(src, rs, 2 * i + 1, n, m));
  transpose16(r);
  store16(dst, r);
}

/* which 0: [key group of 16][D / 32]; which 1: [key group of 32][D / 16], then the flag words. */
int64_t tide__attn_bf16_tiles_size(int64_t d, int which)
{
  return which ? K / 32 * i64_ceil_div(d, 16) * TILE + MARK : K / 16 * i64_ceil_div(d, 32) * TILE;
}

/* Returns whether this call may hide a key from a query. */
typedef struct pack_job { const attn *s; const k_tensor *t; int which; uint16_t *dst; } pack_job;

static void pack_blocks(void *arg, int64_t begin, int64_t end, int thread)
{
  const pack_job *w = arg;
  const attn *s = w->s;
  const k_tensor *t = w->t;
  const int64_t d = t->shape[3], size = tide__attn_bf16_tiles_size(d, w->which);
  const cut rows = { pack_a, 16, 32, K / 16, i64_ceil_div(d, 32) * TILE, TILE };
  const cut cols = { pack_at, 32, 16, K / 32, i64_ceil_div(d, 16) * TILE, TILE };
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / s->nkb / s->nhk, h = i / s->nkb % s->nhk, j0 = i % s->nkb * K;
    const uint16_t *src = (const uint16_t *)t->data + b * t->stride[0] + j0 * t->stride[1] +
                          h * t->stride[2];
    const int64_t n = s->tk - j0 < K ? s->tk - j0 : K;
    uint16_t *dst = w->dst + i * size;
    pack(dst, src, t->stride[1], n, d, w->which ? &cols : &rows);
    if (w->which) dst[size - MARK] = attn_hides(s) && clean(dst, size - MARK);
  }
}

void tide__attn_bf16_pack(const attn *s, const k_tensor *t, int which, uint16_t *dst, int nthread)
{
  pack_job w = { s, t, which, dst };
  tide__pool_for(nthread, s->nb * s->nhk * s->nkb, 1, pack_blocks, &w);
}

/* ---- forward ---- */

/* Tiles per thread: queries [D / 32][4], then P^T [4 groups of 32 keys][4]. */
int64_t tide__attn_bf16_fwd_size(const attn *s)
{
  return (i64_ceil_div(s->d, 32) * ATTN_NG + 4 * ATTN_NG) * TILE;
}

TIDE_AVX512_BF16
void tide__attn_bf16_fwd_start(const attn_fwd *w, const attn_fwd_scratch *m, const attn_at *at)
{
  const attn *s = &w->s;
  const k_tensor *q = s->q;
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const uint16_t *src = (const uint16_t *)q->data + at->b * q->stride[0] + i0 * q->stride[1] +
                        at->h * q->stride[2];
  const cut c = { pack_bt, 16, 32, ATTN_NG, TILE, ATTN_NG * TILE };
  pack(m->packed, src, q->stride[1], n, s->d, &c);
}

/* Returns a vector of dwords: l is (v[l], v[16 + l]). */
TIDE_AVX512_BF16_INLINE __m512i fold(__m512i v)
{
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, v);
}

/* Softmax of one group over n keys (a multiple of 32); P^T is stored in tiles ATTN_NG apart. */
TIDE_AVX512_BF16
static int attn_bf16_soft(const attn_fwd_scratch *m, int c, const float *st, int64_t n, float mul,
                         uint16_t *tile)
{
  __m512 sum[4];
  int grew;
  const __m512 base = raise_top(m->top + c * L, m->alpha + c * L, column_max(st, n), mul, 1, &grew);
  const __m512 by = _mm512_set1_ps(mul);
  for (int u = 0; u < 4; u++) sum[u] = _mm512_setzero_ps();
  for (int64_t j0 = 0; j0 < n; j0 += 32, tile += ATTN_NG * TILE)
    for (int64_t j = 0; j < 32; j += 4, st += 4 * Q) {
      __m512 p[4];
#pragma GCC unroll 4
      for (int u = 0; u < 4; u++) {
        p[u] = vec_exp2_short(_mm512_fmsub_ps(_mm512_loadu_ps(st + u * Q), by, base));
        sum[u] = _mm512_add_ps(sum[u], p[u]);
      }
      _mm512_storeu_si512(tile + 16 * j, fold(to_bf16(p[0], p[1])));
      _mm512_storeu_si512(tile + 16 * j + 32, fold(to_bf16(p[2], p[3])));
    }
  const __m512 total = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  float *to = m->sum + c * L;
  _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(to), _mm512_loadu_ps(m->alpha + c * L),
                                       total));
  return grew;
}

/* Computes the softmax of pair p and its term of O^T. tile: P^T of the block; v: the block of V. */
TIDE_AVX512_BF16 static void weigh(const attn_fwd *w, const attn_fwd_scratch *m, const attn_at *at,
                                   attn_span span, int p, uint16_t *tile, const uint16_t *v)
{
  const int64_t n = span.k1 - span.k0, nd = i64_ceil_div(w->s.dv, 16);
  uint16_t *first = tile + span.k0 / 32 * ATTN_NG * TILE;
  if (!span.full) hide_pair(&w->s, at, p, span, m->st);
  for (int c = 2 * p; c < 2 * p + 2; c++)
    if (attn_bf16_soft(m, c, m->st + span.k0 * Q + c * L, n, factor(&w->s), first + c * TILE))
      w->tiles->rescale(m->ot + c * L, w->s.dv, m->alpha + c * L);
  const product g = { .unit = w->unit, .mt = nd, .nt = 2, .kt = n / 32,
                      .a = v + span.k0 / 32 * nd * TILE, .a_i = TILE, .a_k = nd * TILE,
                      .b = first + 2 * p * TILE, .b_k = ATTN_NG * TILE, .b_j = TILE,
                      .c = m->ot + 2 * p * L, .ldc = Q, .add = 1 };
  tiles_multiply(&g);
  if (v[tide__attn_bf16_tiles_size(w->s.dv, 1) - MARK])
    add_nonfinite_keys(&w->s, w->s.v, at, span, p, tile, m->ot);
}

TIDE_AVX512_BF16
void tide__attn_bf16_fwd_pair(const attn_fwd *w, const attn_fwd_scratch *m, const attn_at *at)
{
  const attn *s = &w->s;
  attn_span span[2];
  if (!pair_spans(s, at, span)) return;
  const uint16_t *k = block_of(w->k_tiles, s, at, tide__attn_bf16_tiles_size(s->d, 0));
  const uint16_t *v = block_of(w->v_tiles, s, at, tide__attn_bf16_tiles_size(s->dv, 1));
  uint16_t *tile = m->packed + i64_ceil_div(s->d, 32) * ATTN_NG * TILE;
  if (s->modified) {
    const attn_span all = tide__attn_join(span[0], span[1]);
    const int64_t end = all.k1 < s->tk - at->kb * K ? all.k1 : s->tk - at->kb * K;
    for (int p = 0; p < 2; p++) scores(w->unit, k, m->packed, m->st, s->d, span[p], p);
    tide__attn_modify(s, at->b, at->h, at->qb, at->kb, all.k0, end, s->a->scale, m->st, 0, m->tmp);
  }
  for (int p = 0; p < 2; p++) {
    if (span[p].k0 == span[p].k1) continue;
    if (!s->modified) scores(w->unit, k, m->packed, m->st, s->d, span[p], p);
    weigh(w, m, at, span[p], p, tile, v);
  }
}

#else

attn_unit tide__attn_unit(int dtype, int isa) { return (void)dtype, (void)isa, ATTN_F32; }
void tide__attn_unit_begin(attn_unit unit) { (void)unit; }
void tide__attn_unit_end(attn_unit unit) { (void)unit; }
int64_t tide__attn_bf16_tiles_size(int64_t d, int which) { return (void)d, (void)which, 0; }
int64_t tide__attn_bf16_fwd_size(const attn *s) { return (void)s, 0; }

void tide__attn_bf16_pack(const attn *s, const k_tensor *t, int which, uint16_t *dst, int nthread)
{
  (void)s, (void)t, (void)which, (void)dst, (void)nthread;
}

void tide__attn_bf16_fwd_start(const attn_fwd *w, const attn_fwd_scratch *m, const attn_at *at)
{
  (void)w, (void)m, (void)at;
}

void tide__attn_bf16_fwd_pair(const attn_fwd *w, const attn_fwd_scratch *m, const attn_at *at)
{
  (void)w, (void)m, (void)at;
}

#endif
