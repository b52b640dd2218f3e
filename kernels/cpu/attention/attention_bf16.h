/* Shared by forward and backward of bf16 attention: tiles for AMX or vdpbf16ps. See attention.h.
 *
 * Every product is a sum of 16 x 16 f32 tiles over 32 bf16 products each: operand A is 16 rows of
 * 32, operand B 16 pairs of rows by 16 columns. K, V and Q are packed into whole tiles of 1 KB
 * beforehand, zeros at the edges; the inner loop transposes nothing.
 *
 * Visibility is handled for pairs of groups (32 queries) and steps of 32 keys. Exponentials are
 * exact to 3e-6, far below the rounding of bf16.
 *
 * Included by attention_bf16.c and attention_bf16_bwd.c; each has its own copy, so that the
 * compiler can specialise the products for their calls.
 */
#pragma once

#include "kernels/cpu/attention/attention_soft.h"
#include "kernels/cpu/gemm/tile_amx.h"
#include "kernels/cpu/transpose16.h"

/* MARK: flag words behind the tiles, non-zero if values were removed from them. */
enum { L = ATTN_LANE, Q = ATTN_Q, K = ATTN_K, TILE = 512, STEP = 32, MARK = 32 };

/* ---- products of tiles ---- */

/* C[16 mt][16 nt] (+)= A B over kt tiles. Tile (i, p) of A is at a + i * a_i + p * a_k, tile (p, j)
 * of B at b + p * b_k + j * b_j; C is f32 with row stride ldc. */
typedef struct product {
  attn_unit unit;
  int64_t mt, nt, kt;
  const uint16_t *a;
  int64_t a_i, a_k;
  const uint16_t *b;
  int64_t b_k, b_j;
  float *c;
  int64_t ldc;
  int add;
} product;

TIDE_AVX512_BF16 static void tiles_2x2(const product *g, int64_t i, int64_t j)
{
  const uint16_t *a0 = g->a + i * g->a_i, *a1 = a0 + g->a_i;
  const uint16_t *b0 = g->b + j * g->b_j, *b1 = b0 + g->b_j;
  float *c0 = g->c + i * L * g->ldc + j * L, *c1 = c0 + L * g->ldc;
  const int64_t ld = g->ldc * 4, a_k = g->a_k, b_k = g->b_k;
  if (g->add) {
    TILE_LOAD(0, c0, ld);
    TILE_LOAD(1, c0 + L, ld);
    TILE_LOAD(2, c1, ld);
    TILE_LOAD(3, c1 + L, ld);
  } else {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  }
  for (int64_t p = g->kt; p > 0; p--, a0 += a_k, a1 += a_k, b0 += b_k, b1 += b_k) {
    TILE_LOAD(4, a0, 64);
    TILE_LOAD(6, b0, 64);
    TILE_DOT(0, 4, 6);
    TILE_LOAD(7, b1, 64);
    TILE_DOT(1, 4, 7);
    TILE_LOAD(5, a1, 64);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
  }
  TILE_STORE(0, c0, ld);
  TILE_STORE(1, c0 + L, ld);
  TILE_STORE(2, c1, ld);
  TILE_STORE(3, c1 + L, ld);
}

TIDE_AVX512_BF16 static void tiles_1x1(const product *g, int64_t i, int64_t j)
{
  const uint16_t *a = g->a + i * g->a_i, *b = g->b + j * g->b_j;
  float *c = g->c + i * L * g->ldc + j * L;
  if (g->add) TILE_LOAD(0, c, g->ldc * 4);
  else TILE_ZERO(0);
  for (int64_t p = 0; p < g->kt; p++) {
    TILE_LOAD(4, a + p * g->a_k, 64);
    TILE_LOAD(6, b + p * g->b_k, 64);
    TILE_DOT(0, 4, 6);
  }
  TILE_STORE(0, c, g->ldc * 4);
}

TIDE_AVX512_BF16 static void tiles_multiply_amx(const product *g)
{
  const int64_t mt = g->mt & ~1, nt = g->nt & ~1;
  for (int64_t i = 0; i < mt; i += 2)
    for (int64_t j = 0; j < nt; j += 2) tiles_2x2(g, i, j);
  for (int64_t i = 0; i < g->mt; i++)
    for (int64_t j = i < mt ? nt : 0; j < g->nt; j++) tiles_1x1(g, i, j);
}

/* Half of the rows of a tile of C, and one or two tiles of columns, from pairs. */
enum { PAIR_ROWS = 8 };

TIDE_AVX512_BF16_INLINE void pairs_of(const product *g, int64_t i, int64_t j, const int nt)
{
  const uint16_t *a = g->a + i / 2 * g->a_i + i % 2 * PAIR_ROWS * 32, *b = g->b + j * g->b_j;
  float *c = g->c + i * PAIR_ROWS * g->ldc + j * L;
  __m512 acc[PAIR_ROWS][2];
#pragma GCC unroll 8
  for (int r = 0; r < PAIR_ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < nt; v++)
      acc[r][v] = g->add ? _mm512_loadu_ps(c + r * g->ldc + v * L) : _mm512_setzero_ps();
  for (int64_t p = g->kt; p > 0; p--, a += g->a_k, b += g->b_k)
    for (int q = 0; q < 16; q++) {
      __m512bh row[2];
#pragma GCC unroll 2
      for (int v = 0; v < nt; v++) row[v] = (__m512bh)_mm512_loadu_si512(b + v * g->b_j + 32 * q);
#pragma GCC unroll 8
      for (int r = 0; r < PAIR_ROWS; r++) {
        int32_t pair;
        memcpy(&pair, a + 32 * r + 2 * q, sizeof pair);
#pragma GCC unroll 2
        for (int v = 0; v < nt; v++)
          acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh)_mm512_set1_epi32(pair), row[v]);
      }
    }
#pragma GCC unroll 8
  for (int r = 0; r < PAIR_ROWS; r++)
#pragma GCC unroll 2
    for (int v = 0; v < nt; v++) _mm512_storeu_ps(c + r * g->ldc + v * L, acc[r][v]);
}

TIDE_AVX512_BF16 static void tiles_multiply_pairs(const product *g)
{
  for (int64_t i = 0; i < 2 * g->mt; i++) {
    int64_t j = 0;
    for (; j + 2 <= g->nt; j += 2) pairs_of(g, i, j, 2);
    if (j < g->nt) pairs_of(g, i, j, 1);
  }
}

static void tiles_multiply(const product *g)
{
  (g->unit == ATTN_AMX ? tiles_multiply_amx : tiles_multiply_pairs)(g);
}

/* ---- packing one tile: n rows of src, m columns; the rest of the tile is zero ---- */

TIDE_AVX512_BF16_INLINE
__m512i load_row(const uint16_t *src, int64_t rs, int64_t i, int64_t n, int64_t m)
{
  const __mmask32 k = i < n ? (__mmask32)(((uint64_t)1 << m) - 1) : 0;
  return _mm512_maskz_loadu_epi16(k, src + (i < n ? i * rs : 0));
}

TIDE_AVX512_BF16_INLINE
__m512i load_half(const uint16_t *src, int64_t rs, int64_t i, int64_t n, int64_t m)
{
  const __mmask16 k = (__mmask16)(i < n ? (1u << m) - 1 : 0);
  return _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(k, src + (i < n ? i * rs : 0)));
}

/* dword l = (a[l], b[l]) of the low 16 words of each. */
TIDE_AVX512_BF16_INLINE __m512i interleave(__m512i a, __m512i b)
{
  const __m512i lo = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(a));
  const __m512i hi = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(b));
  return _mm512_or_si512(lo, _mm512_slli_epi32(hi, 16));
}

TIDE_AVX512_BF16_INLINE void store16(uint16_t *dst, const __m512i r[16])
{
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) _mm512_storeu_si512(dst + 32 * i, r[i]);
}

/* B[p][j] = src[j][p]: n <= 16 rows, m <= 32 columns. */
TIDE_AVX512_BF16
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
 * (i, j) is written at dst + i * i_step + j * j_step. */
typedef struct cut { pack_fn fn; int64_t tn, tm, nt, i_step, j_step; } cut;

TIDE_AVX512_BF16
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

/* ---- values that are not finite (see attention_nonfinite.c) ----
 *
 * Tiles whose products have P or dS as the other factor hold 0 in their place. Such tiles are
 * marked, and the terms are added singly where the weight is not 0. */

static int word_is_nonfinite(uint16_t x) { return (x & 0x7f80) == 0x7f80; }

/* Zeroes the values that are not finite among n words, a multiple of 32; returns whether any
 * was. */
TIDE_AVX512_BF16 static int clean(uint16_t *x, int64_t n)
{
  const __m512i high = _mm512_set1_epi16((short)0xff00);
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < n; i += 32)
    most = _mm512_max_epu16(most, _mm512_slli_epi16(_mm512_loadu_si512(x + i), 1));
  if (!_mm512_cmpge_epu16_mask(most, high)) return 0;
  for (int64_t i = 0; i < n; i++)
    if (word_is_nonfinite(x[i])) x[i] = 0;
  return 1;
}

static const uint16_t *block_of(const uint16_t *tiles, const attn *s, const attn_at *at,
                                int64_t size)
{
  return tiles + ((at->b * s->nhk + at->h / s->ng) * s->nkb + at->kb) * size;
}

/* Adds t[key][d] * weight[key][query] of pair p to to[d][query] for the values that are not finite.
 * weight: B tiles [4 groups of 32 keys][4]. */
TIDE_AVX512_BF16 static void add_nonfinite_keys(const attn *s, const k_tensor *t, const attn_at *at,
                                                attn_span span, int p, const uint16_t *weight,
                                                float *to)
{
  const int64_t end = s->tk - at->kb * K < span.k1 ? s->tk - at->kb * K : span.k1;
  const uint16_t *src = (const uint16_t *)t->data + at->b * t->stride[0] +
                        at->kb * K * t->stride[1] + at->h / s->ng * t->stride[2];
  for (int64_t j = span.k0; j < end; j++)
    for (int64_t d = 0; d < t->shape[3]; d++) {
      const uint16_t x = src[j * t->stride[1] + d];
      if (!word_is_nonfinite(x)) continue;
      for (int i = 2 * p * L; i < 2 * (p + 1) * L; i++) {
        const uint16_t *tile = weight + (j / 32 * ATTN_NG + i / L) * TILE;
        const float by = tide__bf16_to_f32(tile[j % 32 / 2 * 32 + 2 * (i % L) + j % 2]);
        if (by != 0.0f) to[d * Q + i] += tide__bf16_to_f32(x) * by;
      }
    }
}

/* ---- visibility of pairs of groups ---- */

/* Finds the spans as tide__attn_spans does; k0 and k1 are multiples of STEP (the mask hides the
 * tail). */
static int pair_spans(const attn *s, const attn_at *at, attn_span pair[2])
{
  attn_span g[ATTN_NG];
  if (!tide__attn_spans(s, at->b, at->qb, at->kb, STEP, g)) return 0;
  for (int p = 0; p < 2; p++) {
    const attn_span a = g[2 * p], b = g[2 * p + 1];
    const int alone = at->qb * Q + (2 * p + 1) * L >= s->tq; /* b has no queries */
    pair[p] = tide__attn_join(a, b);
    pair[p].full = a.full && (alone || (b.full && a.k0 == b.k0 && a.k1 == b.k1));
    if (pair[p].k1 % STEP) pair[p].full = 0;
    pair[p].k1 = (int32_t)i64_round_up(pair[p].k1, STEP);
  }
  return 1;
}

static attn_lanes lanes_at(const attn *s, const attn_at *at, int group, int32_t k0)
{
  attn_lanes r = tide__attn_lanes(s, at->b, at->qb, at->kb, group);
  r.kdoc += k0;
  r.kpos += k0;
  return r;
}

TIDE_AVX512_BF16
static void hide_pair(const attn *s, const attn_at *at, int p, attn_span span, float *st)
{
  for (int c = 2 * p; c < 2 * p + 2; c++) {
    const attn_lanes m = lanes_at(s, at, c, span.k0);
    hide_lanes(st + span.k0 * Q + c * L, span.k1 - span.k0, &m);
  }
}

/* Words 0..15 of a in the low, of b in the high half; each rounded from f32. */
TIDE_AVX512_BF16_INLINE
__m512i to_bf16(__m512 a, __m512 b) { return (__m512i)_mm512_cvtne2ps_pbh(b, a); }

/* ---- scores ---- */

static float factor(const attn *s) { return s->modified ? 1.0f : s->a->scale * ATTN_LOG2E; }

/* Computes S^T = K Q^T of one pair of groups. */
static void scores(attn_unit unit, const uint16_t *k, const uint16_t *q, float *st, int64_t d,
                   attn_span span, int p)
{
  const int64_t nd = i64_ceil_div(d, 32);
  const product g = { .unit = unit, .mt = (span.k1 - span.k0) / L, .nt = 2, .kt = nd,
                      .a = k + span.k0 / L * nd * TILE, .a_i = nd * TILE, .a_k = TILE,
                      .b = q + 2 * p * TILE, .b_k = ATTN_NG * TILE, .b_j = TILE,
                      .c = st + span.k0 * Q + 2 * p * L, .ldc = Q, .add = 0 };
  tiles_multiply(&g);
}
