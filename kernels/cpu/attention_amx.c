/* bf16 attention on AMX tiles. See attention.h.
 *
 * The one idea: every product is a sum of 16 x 16 f32 tiles over 32 bf16 products each, operand A
 * being 16 rows of 32, operand B 16 pairs of rows by 16 columns. With scores transposed, P^T comes
 * out of softmax row by row, which is A of dV = P^T dO as it stands, and B of O^T = V^T P^T after
 * the rows are interleaved two by two; nothing is transposed in the inner loop. K, V and Q are
 * packed into whole tiles of 1 KB beforehand, zeros at the edges.
 *
 * Softmax, maxima and sums are f32; exponentials go to 3e-6, far inside the rounding of bf16.
 *
 * Visibility is handled for pairs of groups (32 queries) and steps of 32 keys.
 *
 * Layer 2k. Only called when the processor and the kernel permit AMX.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/pool.h"

/* MARK: words behind tiles that say whether something was left out of them. */
enum { L = ATTN_LANE, Q = ATTN_Q, K = ATTN_K, TILE = 512, STEP = 32, MARK = 32 };

#if defined(__x86_64__) && defined(__GNUC__)

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma")
#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

int tide__amx_built(void) { return 1; }

/* ---- tile instructions, written out so that the compiler sees that they touch memory ---- */

#define LOAD(t, p, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((int64_t)(stride)) : "memory")
#define STORE(t, p, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((int64_t)(stride)) \
                   : "memory")
#define ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
#define DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)

void tide__amx_begin(void)
{
  struct { uint8_t palette, start, zero[14]; uint16_t bytes[16]; uint8_t rows[16]; } config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int i = 0; i < 8; i++) {
    config.bytes[i] = 64;
    config.rows[i] = 16;
  }
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

void tide__amx_end(void) { __asm__ volatile("tilerelease" : : : "memory"); }

/* C[16 mt][16 nt] (+)= A B over kt tiles. Tile (i, p) of A is at a + i * a_i + p * a_k, tile (p, j)
 * of B at b + p * b_k + j * b_j; C is f32 with row stride ldc. */
typedef struct product {
  int64_t mt, nt, kt;
  const uint16_t *a;
  int64_t a_i, a_k;
  const uint16_t *b;
  int64_t b_k, b_j;
  float *c;
  int64_t ldc;
  int add;
} product;

static void tiles_2x2(const product *g, int64_t i, int64_t j)
{
  const uint16_t *a0 = g->a + i * g->a_i, *a1 = a0 + g->a_i;
  const uint16_t *b0 = g->b + j * g->b_j, *b1 = b0 + g->b_j;
  float *c0 = g->c + i * L * g->ldc + j * L, *c1 = c0 + L * g->ldc;
  const int64_t ld = g->ldc * 4, a_k = g->a_k, b_k = g->b_k;
  if (g->add) {
    LOAD(0, c0, ld);
    LOAD(1, c0 + L, ld);
    LOAD(2, c1, ld);
    LOAD(3, c1 + L, ld);
  } else {
    ZERO(0);
    ZERO(1);
    ZERO(2);
    ZERO(3);
  }
  for (int64_t p = g->kt; p > 0; p--, a0 += a_k, a1 += a_k, b0 += b_k, b1 += b_k) {
    LOAD(4, a0, 64);
    LOAD(6, b0, 64);
    DOT(0, 4, 6);
    LOAD(7, b1, 64);
    DOT(1, 4, 7);
    LOAD(5, a1, 64);
    DOT(2, 5, 6);
    DOT(3, 5, 7);
  }
  STORE(0, c0, ld);
  STORE(1, c0 + L, ld);
  STORE(2, c1, ld);
  STORE(3, c1 + L, ld);
}

static void tiles_1x1(const product *g, int64_t i, int64_t j)
{
  const uint16_t *a = g->a + i * g->a_i, *b = g->b + j * g->b_j;
  float *c = g->c + i * L * g->ldc + j * L;
  if (g->add) LOAD(0, c, g->ldc * 4);
  else ZERO(0);
  for (int64_t p = 0; p < g->kt; p++) {
    LOAD(4, a + p * g->a_k, 64);
    LOAD(6, b + p * g->b_k, 64);
    DOT(0, 4, 6);
  }
  STORE(0, c, g->ldc * 4);
}

static void multiply(const product *g)
{
  const int64_t mt = g->mt & ~1, nt = g->nt & ~1;
  for (int64_t i = 0; i < mt; i += 2)
    for (int64_t j = 0; j < nt; j += 2) tiles_2x2(g, i, j);
  for (int64_t i = 0; i < g->mt; i++)
    for (int64_t j = i < mt ? nt : 0; j < g->nt; j++) tiles_1x1(g, i, j);
}

/* ---- packing one tile: n rows of src, m columns; the rest of the tile is zero ---- */

INLINE __m512i load_row(const uint16_t *src, int64_t rs, int64_t i, int64_t n, int64_t m)
{
  const __mmask32 k = i < n ? (__mmask32)(((uint64_t)1 << m) - 1) : 0;
  return _mm512_maskz_loadu_epi16(k, src + (i < n ? i * rs : 0));
}

INLINE __m512i load_half(const uint16_t *src, int64_t rs, int64_t i, int64_t n, int64_t m)
{
  const __mmask16 k = (__mmask16)(i < n ? (1u << m) - 1 : 0);
  return _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(k, src + (i < n ? i * rs : 0)));
}

/* dword l = (a[l], b[l]) of the low 16 words of each. */
INLINE __m512i interleave(__m512i a, __m512i b)
{
  const __m512i lo = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(a));
  const __m512i hi = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(b));
  return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}

INLINE void transpose16(__m512i r[16])
{
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

INLINE void store16(uint16_t *dst, const __m512i r[16])
{
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) _mm512_storeu_si512(dst + 32 * i, r[i]);
}

/* A[i][p] = src[i][p]: n <= 16 rows, m <= 32 columns. */
static void pack_a(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m)
{
  for (int64_t i = 0; i < 16; i++) _mm512_storeu_si512(dst + 32 * i, load_row(src, rs, i, n, m));
}

/* A[i][p] = src[p][i]: n <= 32 rows, m <= 16 columns. */
static void pack_at(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m)
{
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++)
    r[i] = interleave(load_half(src, rs, 2 * i, n, m), load_half(src, rs, 2 * i + 1, n, m));
  transpose16(r);
  store16(dst, r);
}

/* B[p][j] = src[p][j]: n <= 32 rows, m <= 16 columns. */
static void pack_b(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m)
{
  for (int64_t i = 0; i < 16; i++)
    _mm512_storeu_si512(dst + 32 * i, interleave(load_half(src, rs, 2 * i, n, m),
                                                 load_half(src, rs, 2 * i + 1, n, m)));
}

/* B[p][j] = src[j][p]: n <= 16 rows, m <= 32 columns. */
static void pack_bt(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m)
{
  __m512i r[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) r[i] = load_row(src, rs, i, n, m);
  transpose16(r);
  store16(dst, r);
}

typedef void (*pack_fn)(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m);

/* Cuts n rows and m columns into tiles of tn rows and tm columns, at most nt tiles of rows; tile
 * (i, j) goes to dst + i * i_step + j * j_step. */
typedef struct cut { pack_fn fn; int64_t tn, tm, nt, i_step, j_step; } cut;

static void pack(uint16_t *dst, const uint16_t *src, int64_t rs, int64_t n, int64_t m,
                 const cut *c)
{
  for (int64_t i = 0; i < c->nt; i++)
    for (int64_t j = 0; j * c->tm < m; j++) {
      const int64_t left = n - i * c->tn, wide = m - j * c->tm;
      c->fn(dst + i * c->i_step + j * c->j_step, left > 0 ? src + i * c->tn * rs + j * c->tm : src,
            rs, left < 0 ? 0 : left < c->tn ? left : c->tn, wide < c->tm ? wide : c->tm);
    }
}

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to; }

/* which 0: [key group of 16][D / 32]; which 1: [key group of 32][D / 16], then the mark. */
int64_t tide__amx_tiles_size(int64_t d, int which)
{
  return which ? K / 32 * up(d, 16) * TILE + MARK : K / 16 * up(d, 32) * TILE;
}

/* ---- values that are not finite (see attention_odd.c) ----
 *
 * They never come into tiles whose products have P or dS as the other factor: 0 stands in their
 * place, the tiles are marked, and their terms are added singly where the weight is not 0. */

static float to_f32(uint16_t x)
{
  const uint32_t bits = (uint32_t)x << 16;
  float r;
  memcpy(&r, &bits, 4);
  return r;
}

static int word_is_odd(uint16_t x) { return (x & 0x7f80) == 0x7f80; }

/* Zeroes what is not finite among n words, a multiple of 32; returns whether there was any. */
static int clean(uint16_t *x, int64_t n)
{
  const __m512i high = _mm512_set1_epi16((short)0xff00);
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 32)
    most = _mm512_max_epu16(most, _mm512_slli_epi16(_mm512_loadu_si512(x + i), 1));
  if (!_mm512_cmpge_epu16_mask(most, high)) return 0;
  for (int64_t i = 0; i < n; i++)
    if (word_is_odd(x[i])) x[i] = 0;
  return 1;
}

/* Whether anything of this call may be hidden. */
static int has_mask(const attn *s)
{
  const k_attention_attrs *a = s->a;
  return a->causal || a->window_left >= 0 || a->window_right >= 0 || !k_absent(s->q_index);
}

typedef struct pack_job { const attn *s; const k_tensor *t; int which; uint16_t *dst; } pack_job;

static void pack_blocks(void *arg, int64_t begin, int64_t end, int thread)
{
  const pack_job *w = arg;
  const attn *s = w->s;
  const k_tensor *t = w->t;
  const int64_t d = t->shape[3], size = tide__amx_tiles_size(d, w->which);
  const cut rows = { pack_a, 16, 32, K / 16, up(d, 32) * TILE, TILE };
  const cut cols = { pack_at, 32, 16, K / 32, up(d, 16) * TILE, TILE };
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    const int64_t b = i / s->nkb / s->nhk, h = i / s->nkb % s->nhk, j0 = i % s->nkb * K;
    const uint16_t *src = (const uint16_t *)t->data + b * t->stride[0] + j0 * t->stride[1] +
                          h * t->stride[2];
    const int64_t n = s->tk - j0 < K ? s->tk - j0 : K;
    uint16_t *dst = w->dst + i * size;
    pack(dst, src, t->stride[1], n, d, w->which ? &cols : &rows);
    if (w->which) dst[size - MARK] = has_mask(s) && clean(dst, size - MARK);
  }
}

void tide__amx_pack(const attn *s, const k_tensor *t, int which, uint16_t *dst, int nthread)
{
  pack_job w = { s, t, which, dst };
  tide__pool_for(nthread, s->nb * s->nhk * s->nkb, 1, pack_blocks, &w);
}

static const uint16_t *block_of(const uint16_t *tiles, const attn *s, const attn_place *at,
                                int64_t size)
{
  return tiles + ((at->b * s->nhk + at->h / s->ng) * s->nkb + at->kb) * size;
}

/* to[d][query] += t[key][d] * weight[key][query] of pair p for the values that are not finite.
 * weight: B tiles [4 groups of 32 keys][4]. */
static void add_odd_keys(const attn *s, const k_tensor *t, const attn_place *at, attn_span span,
                         int p, const uint16_t *weight, float *to)
{
  const int64_t end = s->tk - at->kb * K < span.k1 ? s->tk - at->kb * K : span.k1;
  const uint16_t *src = (const uint16_t *)t->data + at->b * t->stride[0] +
                        at->kb * K * t->stride[1] + at->h / s->ng * t->stride[2];
  for (int64_t j = span.k0; j < end; j++)
    for (int64_t d = 0; d < t->shape[3]; d++) {
      const uint16_t x = src[j * t->stride[1] + d];
      if (!word_is_odd(x)) continue;
      for (int i = 2 * p * L; i < 2 * (p + 1) * L; i++) {
        const uint16_t *tile = weight + (j / 32 * ATTN_NG + i / L) * TILE;
        const float by = to_f32(tile[j % 32 / 2 * 32 + 2 * (i % L) + j % 2]);
        if (by != 0.0f) to[d * Q + i] += to_f32(x) * by;
      }
    }
}

/* to[key][d] += weight[key][query] * t[query][d] for the same. weight: A tiles [8 groups of 16
 * keys][2 pairs]. */
static void add_odd_queries(const attn *s, const k_tensor *t, const attn_place *at,
                            const attn_span span[2], const uint16_t *weight, float *to, int64_t ld)
{
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const uint16_t *src = (const uint16_t *)t->data + at->b * t->stride[0] + i0 * t->stride[1] +
                        at->h * t->stride[2];
  for (int64_t i = 0; i < n; i++)
    for (int64_t d = 0; d < t->shape[3]; d++) {
      const uint16_t x = src[i * t->stride[1] + d];
      if (!word_is_odd(x)) continue;
      const int64_t p = i / 32;
      for (int64_t j = span[p].k0; j < span[p].k1; j++) {
        const float by = to_f32(weight[(j / 16 * 2 + p) * TILE + j % 16 * 32 + i % 32]);
        if (by != 0.0f) to[j * ld + d] += to_f32(x) * by;
      }
    }
}

/* ---- visibility of pairs of groups ---- */

/* Like tide__attn_spans; k0 and k1 are multiples of STEP (the tail is hidden by the mask). */
static int pair_spans(const attn *s, const attn_place *at, attn_span pair[2])
{
  attn_span g[ATTN_NG];
  if (!tide__attn_spans(s, at->b, at->qb, at->kb, STEP, g)) return 0;
  for (int p = 0; p < 2; p++) {
    const attn_span a = g[2 * p], b = g[2 * p + 1];
    const int alone = at->qb * Q + (2 * p + 1) * L >= s->tq; /* b holds no queries at all */
    pair[p] = tide__attn_join(a, b);
    pair[p].full = a.full && (alone || (b.full && a.k0 == b.k0 && a.k1 == b.k1));
    if (pair[p].k1 % STEP) pair[p].full = 0;
    pair[p].k1 = (int32_t)attn_up(pair[p].k1, STEP);
  }
  return 1;
}

static attn_lanes lanes_at(const attn *s, const attn_place *at, int group, int32_t k0)
{
  attn_lanes r = tide__attn_lanes(s, at->b, at->qb, at->kb, group);
  r.kdoc += k0;
  r.kpos += k0;
  return r;
}

/* -inf in st where a lane of the group does not see the key. */
static void hide(float *st, const attn_lanes *m, int64_t n)
{
  const __m512i doc = _mm512_loadu_si512(m->qdoc), lo = _mm512_loadu_si512(m->qlo);
  const __m512i hi = _mm512_loadu_si512(m->qhi);
  const __m512 none = _mm512_set1_ps(-INFINITY);
  for (int64_t j = 0; j < n; j++, st += Q) {
    const __m512i pos = _mm512_set1_epi32(m->kpos[j]);
    __mmask16 k = _mm512_cmpeq_epi32_mask(doc, _mm512_set1_epi32(m->kdoc[j]));
    k = _mm512_mask_cmple_epi32_mask(k, lo, pos);
    k = _mm512_mask_cmpge_epi32_mask(k, hi, pos);
    _mm512_storeu_ps(st, _mm512_mask_loadu_ps(none, k, st));
  }
}

static void hide_pair(const attn *s, const attn_place *at, int p, attn_span span, float *st)
{
  for (int c = 2 * p; c < 2 * p + 2; c++) {
    const attn_lanes m = lanes_at(s, at, c, span.k0);
    hide(st + span.k0 * Q + c * L, &m, span.k1 - span.k0);
  }
}

/* ---- exponentials ---- */

/* 2^x to 3e-6; exactly 0 below -1000; NaN stays NaN. */
INLINE __m512 exp2_lane(__m512 x)
{
  x = _mm512_max_ps(_mm512_set1_ps(-1000.0f), x);
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(0.00957010199f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0559178613f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240247448f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693121815f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.999999261f));
  return _mm512_scalef_ps(p, n);
}

/* Words 0..15 of a in the low, of b in the high half; each rounded from f32. */
INLINE __m512i to_bf16(__m512 a, __m512 b) { return (__m512i)_mm512_cvtne2ps_pbh(b, a); }

/* dword l = (v[l], v[16 + l]). */
INLINE __m512i fold(__m512i v)
{
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, v);
}

/* ---- forward ---- */

/* Tiles of a thread: queries [D / 32][4], then P^T [4 groups of 32 keys][4]. */
int64_t tide__amx_fwd_size(const attn *s) { return (up(s->d, 32) * ATTN_NG + 4 * ATTN_NG) * TILE; }

static float factor(const attn *s)
{
  return s->modified ? 1.0f : s->a->scale * ATTN_LOG2E;
}

void tide__amx_fwd_start(const attn_fwd *w, const attn_fwd_bench *m, const attn_place *at)
{
  const attn *s = &w->s;
  const k_tensor *q = s->q;
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q;
  const uint16_t *src = (const uint16_t *)q->data + at->b * q->stride[0] + i0 * q->stride[1] +
                        at->h * q->stride[2];
  const cut c = { pack_bt, 16, 32, ATTN_NG, TILE, ATTN_NG * TILE };
  pack(m->packed, src, q->stride[1], n, s->d, &c);
}

INLINE __m512 column_max(const float *s, int64_t n)
{
  __m512 a[4];
  for (int u = 0; u < 4; u++) a[u] = _mm512_set1_ps(-INFINITY);
  for (int64_t j = 0; j < n; j += 4, s += 4 * Q)
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) a[u] = _mm512_max_ps(a[u], _mm512_loadu_ps(s + u * Q));
  return _mm512_max_ps(_mm512_max_ps(a[0], a[1]), _mm512_max_ps(a[2], a[3]));
}

/* As in attention_avx512.c: the maximum moves only when it grew by more than 8. */
static int raise_top(float *top, float *alpha, __m512 seen, float mul, __m512 *base)
{
  const __m512 none = _mm512_set1_ps(-INFINITY), old = _mm512_loadu_ps(top);
  const __mmask16 any = _mm512_cmp_ps_mask(seen, none, _CMP_NEQ_UQ);
  seen = _mm512_mask_mul_ps(none, any, seen, _mm512_set1_ps(mul));
  const __mmask16 grew =
    _mm512_cmp_ps_mask(seen, _mm512_add_ps(old, _mm512_set1_ps(8.0f)), _CMP_GT_OQ);
  const __m512 now = _mm512_mask_mov_ps(old, grew, seen);
  *base = _mm512_mask_mov_ps(now, _mm512_cmp_ps_mask(now, none, _CMP_EQ_OQ), _mm512_setzero_ps());
  const __m512 e = exp2_lane(_mm512_sub_ps(old, *base));
  _mm512_storeu_ps(top, now);
  _mm512_storeu_ps(alpha, _mm512_mask_mov_ps(_mm512_set1_ps(1.0f), grew, e));
  return (grew & _mm512_cmp_ps_mask(old, none, _CMP_NEQ_UQ)) != 0;
}

/* Softmax of one group over n keys (a multiple of 32); P^T goes to tiles ATTN_NG apart. */
static int soft(const attn_fwd_bench *m, int c, const float *st, int64_t n, float mul,
                uint16_t *tile)
{
  __m512 base, sum[4];
  const int grew = raise_top(m->top + c * L, m->alpha + c * L, column_max(st, n), mul, &base);
  const __m512 by = _mm512_set1_ps(mul);
  for (int u = 0; u < 4; u++) sum[u] = _mm512_setzero_ps();
  for (int64_t j0 = 0; j0 < n; j0 += 32, tile += ATTN_NG * TILE)
    for (int64_t j = 0; j < 32; j += 4, st += 4 * Q) {
      __m512 p[4];
#pragma GCC unroll 4
      for (int u = 0; u < 4; u++) {
        p[u] = exp2_lane(_mm512_fmsub_ps(_mm512_loadu_ps(st + u * Q), by, base));
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

/* S^T = K Q^T of one pair of groups. */
static void scores(const uint16_t *k, const uint16_t *q, float *st, int64_t d, attn_span span,
                   int p)
{
  const int64_t nd = up(d, 32);
  const product g = { .mt = (span.k1 - span.k0) / L, .nt = 2, .kt = nd,
                      .a = k + span.k0 / L * nd * TILE, .a_i = nd * TILE, .a_k = TILE,
                      .b = q + 2 * p * TILE, .b_k = ATTN_NG * TILE, .b_j = TILE,
                      .c = st + span.k0 * Q + 2 * p * L, .ldc = Q, .add = 0 };
  multiply(&g);
}

/* Softmax of pair p and its term of O^T. tile: P^T of the block; v: the block of V. */
static void weigh(const attn_fwd *w, const attn_fwd_bench *m, const attn_place *at,
                  attn_span span, int p, uint16_t *tile, const uint16_t *v)
{
  const int64_t n = span.k1 - span.k0, nd = up(w->s.dv, 16);
  uint16_t *first = tile + span.k0 / 32 * ATTN_NG * TILE;
  if (!span.full) hide_pair(&w->s, at, p, span, m->st);
  for (int c = 2 * p; c < 2 * p + 2; c++)
    if (soft(m, c, m->st + span.k0 * Q + c * L, n, factor(&w->s), first + c * TILE))
      w->tiles->rescale(m->ot + c * L, w->s.dv, m->alpha + c * L);
  const product g = { .mt = nd, .nt = 2, .kt = n / 32,
                      .a = v + span.k0 / 32 * nd * TILE, .a_i = TILE, .a_k = nd * TILE,
                      .b = first + 2 * p * TILE, .b_k = ATTN_NG * TILE, .b_j = TILE,
                      .c = m->ot + 2 * p * L, .ldc = Q, .add = 1 };
  multiply(&g);
  if (v[tide__amx_tiles_size(w->s.dv, 1) - MARK])
    add_odd_keys(&w->s, w->s.v, at, span, p, tile, m->ot);
}

void tide__amx_fwd_pair(const attn_fwd *w, const attn_fwd_bench *m, const attn_place *at)
{
  const attn *s = &w->s;
  attn_span span[2];
  if (!pair_spans(s, at, span)) return;
  const uint16_t *k = block_of(w->k_tiles, s, at, tide__amx_tiles_size(s->d, 0));
  const uint16_t *v = block_of(w->v_tiles, s, at, tide__amx_tiles_size(s->dv, 1));
  uint16_t *tile = m->packed + up(s->d, 32) * ATTN_NG * TILE;
  if (s->modified) {
    const attn_span all = tide__attn_join(span[0], span[1]);
    const int64_t end = all.k1 < s->tk - at->kb * K ? all.k1 : s->tk - at->kb * K;
    for (int p = 0; p < 2; p++) scores(k, m->packed, m->st, s->d, span[p], p);
    tide__attn_modify(s, at->b, at->h, at->qb, at->kb, all.k0, end, s->a->scale, m->st, 0, m->tmp);
  }
  for (int p = 0; p < 2; p++) {
    if (span[p].k0 == span[p].k1) continue;
    if (!s->modified) scores(k, m->packed, m->st, s->d, span[p], p);
    weigh(w, m, at, span[p], p, tile, v);
  }
}

/* ---- backward ---- */

/* Tiles of a thread. Of queries and dout: B of S^T and dP^T ([D / 32][4]), and B of dk and dv
 * ([2 pairs][D / 16]). Of P^T and dS^T: A of dv and dk ([8 groups of 16 keys][2 pairs]), and B of
 * dq^T ([4 groups of 32 keys][4]). mark: what is known of qb and dob. */
typedef struct bwd_tiles { uint16_t *qt, *dot, *qb, *dob, *pa, *da, *db, *mark; } bwd_tiles;

enum { UNSEEN, CLEAN, ODD };

static int64_t lay_tiles(const attn *s, uint16_t *base, bwd_tiles *t)
{
  struct { uint16_t **at; int64_t n; } part[] = {
    { &t->qt, up(s->d, 32) * ATTN_NG }, { &t->dot, up(s->dv, 32) * ATTN_NG },
    { &t->qb, 2 * up(s->d, 16) }, { &t->dob, 2 * up(s->dv, 16) },
    { &t->pa, K / 16 * 2 }, { &t->da, K / 16 * 2 }, { &t->db, K / 32 * ATTN_NG }, { &t->mark, 1 },
  };
  int64_t n = 0;
  for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
    if (base) *part[i].at = base + n;
    n += part[i].n * TILE;
  }
  return n;
}

int64_t tide__amx_bwd_size(const attn *s)
{
  bwd_tiles none;
  return lay_tiles(s, 0, &none);
}

static void pack_queries(const attn *s, const k_tensor *t, const attn_place *at, uint16_t *bt,
                         uint16_t *b)
{
  const int64_t i0 = at->qb * Q, n = s->tq - i0 < Q ? s->tq - i0 : Q, d = t->shape[3];
  const uint16_t *src = (const uint16_t *)t->data + at->b * t->stride[0] + i0 * t->stride[1] +
                        at->h * t->stride[2];
  const cut by_rows = { pack_b, 32, 16, 2, up(d, 16) * TILE, TILE };
  const cut by_cols = { pack_bt, 16, 32, ATTN_NG, TILE, ATTN_NG * TILE };
  pack(bt, src, t->stride[1], n, d, &by_cols);
  pack(b, src, t->stride[1], n, d, &by_rows);
}

void tide__amx_bwd_start(const attn_bwd *w, const attn_bwd_bench *m, const attn_place *at)
{
  bwd_tiles t;
  lay_tiles(&w->s, m->packed, &t);
  pack_queries(&w->s, w->s.q, at, t.qt, t.qb);
  pack_queries(&w->s, w->s.dout, at, t.dot, t.dob);
  *t.mark = UNSEEN;
}

/* What a row of lanes needs: of the two groups of a pair. */
typedef struct lane_stats { __m512 lse[2], delta[2], mul; } lane_stats;

/* One row of one pair: P^T and dS^T as 32 words each. */
INLINE void grad_row(const attn_bwd_bench *m, const lane_stats *x, int64_t at, int cap, int keep,
                     int cut, __m512i *p, __m512i *ds)
{
  const __m512 none = _mm512_set1_ps(-INFINITY);
  __m512 e[2], g[2];
#pragma GCC unroll 2
  for (int u = 0; u < 2; u++) {
    const float *st = m->st + at + u * L, *dp = m->dp + at + u * L;
    e[u] = exp2_lane(_mm512_fmsub_ps(_mm512_loadu_ps(st), x->mul, x->lse[u]));
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
INLINE __m512i zip(__m512i a, __m512i b, int half)
{
  const __m512i lo = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                      39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i to = half ? _mm512_add_epi16(lo, _mm512_set1_epi16(16)) : lo;
  return _mm512_permutex2var_epi16(a, to, b);
}

INLINE void grad_rows(const attn_bwd_bench *m, const bwd_tiles *t, int p, attn_span span, float mul,
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

static void gradients(const attn_bwd *w, const attn_bwd_bench *m, const bwd_tiles *t,
                      const attn_place *at, const attn_span span[2], int want)
{
  const attn *s = &w->s;
  const int cap = s->a->softcap != 0, keep = (want & ATTN_WANT_DQ) && !k_absent(w->dbias);
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
    else if (!span[p].full) grad_rows(m, t, p, span[p], factor(s), 0, 0, 1);
    else grad_rows(m, t, p, span[p], factor(s), 0, 0, 0);
    for (int c = 2 * p; c < 2 * p + 2 && keep; c++)
      tide__attn_put_dbias(w, m, at, c, span[p].k0, span[p].k1 < nkey ? span[p].k1 : nkey);
  }
}

/* dv += P^T dO and dk += dS^T Q for keys that pairs [p0, p1) see. */
static void add_keys(const attn_bwd *w, const bwd_tiles *t, int32_t k0, int32_t k1, int p0, int p1,
                     float *dk, float *dv)
{
  const int64_t nd = up(w->s.d, 16), nv = up(w->s.dv, 16);
  product g = { .mt = (k1 - k0) / L, .nt = nv, .kt = p1 - p0,
                .a = t->pa + (k0 / 16 * 2 + p0) * TILE, .a_i = 2 * TILE, .a_k = TILE,
                .b = t->dob + p0 * nv * TILE, .b_k = nv * TILE, .b_j = TILE,
                .c = dv + k0 * w->wide_dv, .ldc = w->wide_dv, .add = 1 };
  multiply(&g);
  g.nt = nd;
  g.a = t->da + (k0 / 16 * 2 + p0) * TILE;
  g.b = t->qb + p0 * nd * TILE;
  g.b_k = nd * TILE;
  g.c = dk + k0 * w->wide_d;
  g.ldc = w->wide_d;
  multiply(&g);
}

static void add_all_keys(const attn_bwd *w, const bwd_tiles *t, const attn_span span[2], float *dk,
                         float *dv)
{
  const attn_span four[ATTN_NG] = { span[0], span[0], span[1], span[1] };
  for (int32_t j = 0, end; j < K; j = end) {
    const attn_hull hull = tide__attn_hull(four, j, &end);
    if (hull.g0 < hull.g1) add_keys(w, t, j, end, hull.g0 / 2, hull.g1 / 2, dk, dv);
  }
}

/* Cleans the tiles of this block's queries once, before the first pair that the mask cuts. */
static void clean_queries(const attn *s, const bwd_tiles *t, const attn_span span[2])
{
  if (*t->mark != UNSEEN || (span[0].full && span[1].full)) return;
  const int odd = clean(t->qb, 2 * up(s->d, 16) * TILE) | clean(t->dob, 2 * up(s->dv, 16) * TILE);
  *t->mark = odd ? ODD : CLEAN;
}

void tide__amx_bwd_pair(const attn_bwd *w, const attn_bwd_bench *m, const attn_place *at, int want,
                        float *dk, float *dv)
{
  const attn *s = &w->s;
  const int64_t nd = up(s->d, 16);
  attn_span span[2];
  bwd_tiles t;
  if (!pair_spans(s, at, span)) return;
  lay_tiles(s, m->packed, &t);
  const uint16_t *k = block_of(w->k_tiles, s, at, tide__amx_tiles_size(s->d, 0));
  const uint16_t *v = block_of(w->v_tiles, s, at, tide__amx_tiles_size(s->dv, 0));
  const uint16_t *kt = block_of(w->kt_tiles, s, at, tide__amx_tiles_size(s->d, 1));
  for (int p = 0; p < 2; p++) {
    if (span[p].k0 == span[p].k1) continue;
    scores(k, t.qt, m->st, s->d, span[p], p);
    scores(v, t.dot, m->dp, s->dv, span[p], p);
  }
  gradients(w, m, &t, at, span, want);
  if (want & ATTN_WANT_DKV) {
    clean_queries(s, &t, span);
    add_all_keys(w, &t, span, dk, dv);
    if (*t.mark == ODD) {
      add_odd_queries(s, s->q, at, span, t.da, dk, w->wide_d);
      add_odd_queries(s, s->dout, at, span, t.pa, dv, w->wide_dv);
    }
  }
  for (int p = 0; p < 2 && (want & ATTN_WANT_DQ); p++) {
    const product g = { .mt = nd, .nt = 2, .kt = (span[p].k1 - span[p].k0) / 32,
                        .a = kt + span[p].k0 / 32 * nd * TILE, .a_i = TILE, .a_k = nd * TILE,
                        .b = t.db + (span[p].k0 / 32 * ATTN_NG + 2 * p) * TILE,
                        .b_k = ATTN_NG * TILE, .b_j = TILE,
                        .c = m->dqt + 2 * p * L, .ldc = Q, .add = 1 };
    if (g.kt == 0) continue;
    multiply(&g);
    if (kt[tide__amx_tiles_size(s->d, 1) - MARK])
      add_odd_keys(s, s->k, at, span[p], p, t.db, m->dqt);
  }
}

#pragma GCC pop_options

#else

int tide__amx_built(void) { return 0; }
int64_t tide__amx_tiles_size(int64_t d, int which) { return (void)d, (void)which, 0; }
int64_t tide__amx_fwd_size(const attn *s) { return (void)s, 0; }
int64_t tide__amx_bwd_size(const attn *s) { return (void)s, 0; }
void tide__amx_begin(void) {}
void tide__amx_end(void) {}

void tide__amx_pack(const attn *s, const k_tensor *t, int which, uint16_t *dst, int nthread)
{
  (void)s, (void)t, (void)which, (void)dst, (void)nthread;
}

void tide__amx_fwd_start(const attn_fwd *w, const attn_fwd_bench *m, const attn_place *at)
{
  (void)w, (void)m, (void)at;
}

void tide__amx_fwd_pair(const attn_fwd *w, const attn_fwd_bench *m, const attn_place *at)
{
  (void)w, (void)m, (void)at;
}

void tide__amx_bwd_start(const attn_bwd *w, const attn_bwd_bench *m, const attn_place *at)
{
  (void)w, (void)m, (void)at;
}

void tide__amx_bwd_pair(const attn_bwd *w, const attn_bwd_bench *m, const attn_place *at, int want,
                        float *dk, float *dv)
{
  (void)w, (void)m, (void)at, (void)want, (void)dk, (void)dv;
}

#endif
