/* Products with few rows in bf16, B along k: pairs of k multiplied as they lie in memory, and AMX,
 * where such columns are what a tile reads as rows, so that C is computed transposed. See skinny.c.
 */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/gemm/skinny.h"
#include "kernels/cpu/gemm/tile_amx.h"

#if defined(__x86_64__) && defined(__GNUC__)

/* ---- dot products on pairs of k (vdpbf16ps) ---- */

/* Computes ncol columns of C from column j (those past the end repeat the last), nrow rows of A. a:
 * rows of kp elements, zero beyond k. */
TIDE_AVX512_BF16_INLINE void pair_dots(const skinny *s, float *stage, const uint16_t *a, int64_t j,
                                       int64_t end, const int ncol, const int nrow)
{
  const cpu_gemm *g = s->g;
  const int64_t full = g->k / 32 * 32, ahead = ncol * g->b_cs;
  const uint16_t *col[8];
  __m512 acc[8][8];
#pragma GCC unroll 8
  for (int c = 0; c < ncol; c++) {
    col[c] = (const uint16_t *)g->b + (j + c < end ? j + c : end - 1) * g->b_cs;
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) acc[c][r] = _mm512_setzero_ps();
  }
  for (int64_t p = 0; p < g->k; p += 32) {
    const __mmask32 mask = p < full ? 0xffffffff : ((__mmask32)1 << (g->k - p)) - 1;
    __m512i b[8];
#pragma GCC unroll 8
    for (int c = 0; c < ncol; c++) {
      b[c] = p < full ? _mm512_loadu_si512(col[c] + p) : _mm512_maskz_loadu_epi16(mask, col[c] + p);
      if (nrow > 2) _mm_prefetch(col[c] + p + ahead, _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) {
      const __m512i x = _mm512_loadu_si512(a + r * s->kp + p);
#pragma GCC unroll 8
      for (int c = 0; c < ncol; c++)
        acc[c][r] = _mm512_dpbf16_ps(acc[c][r], (__m512bh)x, (__m512bh)b[c]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < ncol; c++)
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++)
      if (j + c < end) stage[r * SKINNY_CHUNK + c] = _mm512_reduce_add_ps(acc[c][r]);
}

TIDE_AVX512_BF16_INLINE void pair_rows_of(const skinny *s, float *stage, int64_t j0, int64_t j1,
                                          const int ncol, const int nrow)
{
  const uint16_t *a = (const uint16_t *)s->a;
  for (int64_t j = j0; j < j1; j += ncol)
    for (int64_t r = 0; r < s->g->m; r += nrow)
      pair_dots(s, stage + r * SKINNY_CHUNK + (j - j0), a + r * s->kp, j, j1, ncol, nrow);
}

TIDE_AVX512_BF16 static void pair_rows(const skinny *s, float *stage, int64_t j0, int64_t j1)
{
  if (s->g->m == 1) pair_rows_of(s, stage, j0, j1, 8, 1);
  else if (s->g->m == 2) pair_rows_of(s, stage, j0, j1, 6, 2);
  else if (s->g->m <= 4) pair_rows_of(s, stage, j0, j1, 4, 4);
  else pair_rows_of(s, stage, j0, j1, 3, 8);
}

/* ---- tiles: C transposed, 32 columns of C at a time ---- */

enum { SPAN = 32, AHEAD = 1024, TILE_BYTES = 1024 };

/* Computes out[i][r] = sum over k of column j + i of B with row r of A. The tail of k is read from
 * a copy. */
TIDE_AVX512 static void span(const skinny *s, float out[SPAN][16], int64_t j)
{
  const cpu_gemm *g = s->g;
  int64_t stride = g->b_cs * 2, p = 0;
  const char *b = (const char *)g->b + j * stride, *a = (const char *)s->a;
  TILE_ZERO(0);
  TILE_ZERO(1);
  for (; p + 32 <= g->k; p += 32, a += TILE_BYTES) {
    for (int i = 0; i < SPAN; i++) _mm_prefetch(b + i * stride + p * 2 + AHEAD, _MM_HINT_T0);
    TILE_LOAD(7, a, 64);
    TILE_LOAD(4, b + p * 2, stride);
    TILE_DOT(0, 4, 7);
    TILE_LOAD(5, b + 16 * stride + p * 2, stride);
    TILE_DOT(1, 5, 7);
  }
  if (p < g->k) {
    _Alignas(64) uint16_t tail[SPAN][32];
    memset(tail, 0, sizeof tail);
    for (int i = 0; i < SPAN; i++) memcpy(tail[i], b + i * stride + p * 2, (size_t)(g->k - p) * 2);
    TILE_LOAD(7, a, 64);
    TILE_LOAD(4, tail[0], 64);
    TILE_DOT(0, 4, 7);
    TILE_LOAD(5, tail[16], 64);
    TILE_DOT(1, 5, 7);
  }
  TILE_STORE(0, out[0], 64);
  TILE_STORE(1, out[16], 64);
}

/* Computes columns [j0, j1). The last span is moved back so that it ends with B; what it repeats is
 * not stored. */
TIDE_AVX512 static void span_rows(const skinny *s, float *stage, int64_t j0, int64_t j1)
{
  _Alignas(64) float out[SPAN][16];
  for (int64_t j = j0; j < j1; j += SPAN) {
    int64_t from = j + SPAN <= s->g->n ? j : s->g->n - SPAN;
    int64_t last = j + SPAN < j1 ? j + SPAN : j1;
    span(s, out, from);
    for (int64_t r = 0; r < s->g->m; r++)
      for (int64_t i = j; i < last; i++) stage[r * SKINNY_CHUNK + i - j0] = out[i - from][r];
  }
}

skinny_fn tide__skinny_pairs(void) { return pair_rows; }
skinny_fn tide__skinny_amx(void) { return span_rows; }

#else

skinny_fn tide__skinny_pairs(void) { return 0; }
skinny_fn tide__skinny_amx(void) { return 0; }

#endif
