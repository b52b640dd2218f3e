/* Products with few rows: B is read once, in place, at the speed of memory.
 *
 * With at most sixteen rows packing B costs more than the product. A is small: it is widened to f32
 * once and stays in cache. If B runs along k (a weight stored [N, K]) columns of C are dot
 * products, several columns at a time to keep several streams of memory active; if it runs along n,
 * rows of B are added up, a few per pass. In bf16 with B along k, AVX512_BF16 multiplies pairs of k
 * as they lie in memory, and A is not widened; with AMX such columns are what a tile reads as rows,
 * so C is computed transposed and B is touched by the tile loads alone.
 *
 * Scratch: [A][thread 0 stage][thread 1 stage]...; a stage holds f32 sums of CHUNK columns. The
 * order of an element's sum depends on k alone.
 */
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/gemm/tile.h"
#include "kernels/cpu/gemm/tile_amx.h"
#include "tide/tide.h"

enum { CHUNK = 4096, NARROW = 1024, LEAST_K = 32, LEAST_N = 64 };

/* Bytes of A: rows as f32, or one tile column of pairs; k padded to 32. */
static int64_t a_bytes(const cpu_gemm *g) { return TILE_SKINNY_M * i64_round_up(g->k, 32) * 4; }
static int64_t stage_bytes(void) { return (int64_t)TILE_SKINNY_M * CHUNK * 4; }

int64_t tide__tile_skinny_work(const cpu_gemm *g, int nthread)
{
  return a_bytes(g) + stage_bytes() * nthread;
}

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

int tide__tile_skinny_takes(const cpu_gemm *g, int isa)
{
  if (!(isa & CPU_ISA_AVX512) || g->ab_dtype == TIDE_F64) return 0;
  if (g->m > TILE_SKINNY_M || g->k < LEAST_K || g->n < LEAST_N) return 0;
  return g->b_rs == 1 || g->b_cs == 1;
}

typedef struct skinny {
  const cpu_gemm *g;
  float  *a;      /* [m padded][kp] */
  int64_t kp;
  char   *stages;
  int     tiles;  /* AMX: a holds pairs of k for 16 columns of the transposed product */
  int     pairs;  /* a holds bf16: multiply-adds on pairs of k */
} skinny;

/* ---- B runs along k: dot products ---- */

/* Computes ncol columns of C from column j (those past the end repeat the last), nrow rows of A.
 * With more than two rows the few columns leave memory idle unless the next ones are prefetched;
 * with one or two the many columns suffice, and prefetching slows them down. */
TIDE_AVX512_INLINE void dots(const skinny *s, float *stage, const float *a, int64_t j, int64_t end,
                        const int ncol, const int nrow, const int dtype)
{
  const cpu_gemm *g = s->g;
  int64_t size = dtype == TIDE_F32 ? 4 : 2, k = g->k, full = k / 16 * 16, p = 0;
  int64_t ahead = ncol * g->b_cs * size; /* the next columns at this k: a column is short */
  const char *col[8];
  __m512 acc[8][8];
#pragma GCC unroll 8
  for (int c = 0; c < ncol; c++) {
    int64_t at = j + c < end ? j + c : end - 1;
    col[c] = (const char *)g->b + at * g->b_cs * size;
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) acc[c][r] = _mm512_setzero_ps();
  }
  for (; p < full; p += 16) {
    __m512 b[8];
#pragma GCC unroll 8
    for (int c = 0; c < ncol; c++) {
      b[c] = vec_load16(col[c], p, dtype, 0xffff);
      if (nrow > 2 && !(p * size & 32)) _mm_prefetch(col[c] + p * size + ahead, _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) {
      __m512 x = _mm512_loadu_ps(a + r * s->kp + p);
#pragma GCC unroll 8
      for (int c = 0; c < ncol; c++) acc[c][r] = _mm512_fmadd_ps(x, b[c], acc[c][r]);
    }
  }
  if (p < k) {
#pragma GCC unroll 8
    for (int c = 0; c < ncol; c++) {
      __m512 b = vec_load16(col[c], p, dtype, vec_lanes(k - p));
#pragma GCC unroll 8
      for (int r = 0; r < nrow; r++)
        acc[c][r] = _mm512_fmadd_ps(_mm512_loadu_ps(a + r * s->kp + p), b, acc[c][r]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < ncol; c++)
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++)
      if (j + c < end) stage[r * CHUNK + c] = _mm512_reduce_add_ps(acc[c][r]);
}

TIDE_AVX512_INLINE void dot_rows(const skinny *s, float *stage, int64_t j0, int64_t j1,
                            const int ncol, const int nrow, const int dtype)
{
  for (int64_t j = j0; j < j1; j += ncol)
    for (int64_t r = 0; r < s->g->m; r += nrow)
      dots(s, stage + r * CHUNK + (j - j0), s->a + r * s->kp, j, j1, ncol, nrow, dtype);
}

#define DOT_ROWS(name, dtype)                                                          \
  TIDE_AVX512 static void name(const skinny *s, float *stage, int64_t j0, int64_t j1)       \
  {                                                                                    \
    if (s->g->m == 1) dot_rows(s, stage, j0, j1, 8, 1, dtype);                         \
    else if (s->g->m == 2) dot_rows(s, stage, j0, j1, 6, 2, dtype);                    \
    else if (s->g->m <= 4) dot_rows(s, stage, j0, j1, 4, 4, dtype);                    \
    else dot_rows(s, stage, j0, j1, 3, 8, dtype);                                      \
  }
DOT_ROWS(dot_rows_f32, TIDE_F32)
DOT_ROWS(dot_rows_bf16, TIDE_BF16)
DOT_ROWS(dot_rows_f16, TIDE_F16)

/* ---- the same in bf16 on pairs of k (vdpbf16ps) ---- */

/* As dots. a: rows of kp elements, zero beyond k. */
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
      if (j + c < end) stage[r * CHUNK + c] = _mm512_reduce_add_ps(acc[c][r]);
}

TIDE_AVX512_BF16_INLINE void pair_rows_of(const skinny *s, float *stage, int64_t j0, int64_t j1,
                                          const int ncol, const int nrow)
{
  const uint16_t *a = (const uint16_t *)s->a;
  for (int64_t j = j0; j < j1; j += ncol)
    for (int64_t r = 0; r < s->g->m; r += nrow)
      pair_dots(s, stage + r * CHUNK + (j - j0), a + r * s->kp, j, j1, ncol, nrow);
}

TIDE_AVX512_BF16 static void pair_rows(const skinny *s, float *stage, int64_t j0, int64_t j1)
{
  if (s->g->m == 1) pair_rows_of(s, stage, j0, j1, 8, 1);
  else if (s->g->m == 2) pair_rows_of(s, stage, j0, j1, 6, 2);
  else if (s->g->m <= 4) pair_rows_of(s, stage, j0, j1, 4, 4);
  else pair_rows_of(s, stage, j0, j1, 3, 8);
}

/* Copies A to rows of kp, zero beyond k and beyond m. */
static void copy_a(const skinny *s)
{
  const cpu_gemm *g = s->g;
  uint16_t *to = (uint16_t *)s->a;
  memset(to, 0, (size_t)(TILE_SKINNY_M * s->kp * 2));
  for (int64_t r = 0; r < g->m; r++)
    for (int64_t p = 0; p < g->k; p++)
      to[r * s->kp + p] = ((const uint16_t *)g->a)[r * g->a_rs + p * g->a_cs];
}

/* ---- B runs along n: sums of its rows ---- */

/* stage[r][0..n) += sum over depth rows of B from row p, for nrow rows of A. */
TIDE_AVX512_INLINE
void add_rows(const skinny *s, float *stage, const float *a, int64_t p, int64_t j0,
                            int64_t n, const int depth, const int nrow, const int dtype)
{
  const cpu_gemm *g = s->g;
  for (int64_t j = 0; j < n; j += 16) {
    __mmask16 mask = vec_lanes(n - j);
    __m512 b[8];
#pragma GCC unroll 8
    for (int d = 0; d < depth; d++) {
      int64_t at = (p + d) * g->b_rs + j0 + j;
      b[d] = vec_load16(g->b, at, dtype, mask);
      int64_t next = (at + depth * g->b_rs) * (dtype == TIDE_F32 ? 4 : 2);
      _mm_prefetch((const char *)g->b + next, _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) {
      float *to = stage + r * CHUNK + j;
      __m512 v = _mm512_loadu_ps(to);
#pragma GCC unroll 8
      for (int d = 0; d < depth; d++)
        v = _mm512_fmadd_ps(_mm512_set1_ps(a[r * s->kp + p + d]), b[d], v);
      _mm512_storeu_ps(to, v);
    }
  }
}

TIDE_AVX512_INLINE
void sum_rows(const skinny *s, float *stage, int64_t j0, int64_t n, const int depth,
                            const int nrow, const int dtype)
{
  int64_t k = s->g->k, m = s->g->m, p = 0;
  for (int64_t r = 0; r < i64_round_up(m, nrow); r++) memset(stage + r * CHUNK, 0, CHUNK * 4);
  for (; p + depth <= k; p += depth)
    for (int64_t r = 0; r < m; r += nrow)
      add_rows(s, stage + r * CHUNK, s->a + r * s->kp, p, j0, n, depth, nrow, dtype);
  for (; p < k; p++)
    for (int64_t r = 0; r < m; r += nrow)
      add_rows(s, stage + r * CHUNK, s->a + r * s->kp, p, j0, n, 1, nrow, dtype);
}

#define SUM_ROWS(name, dtype)                                                    \
  TIDE_AVX512 static void name(const skinny *s, float *stage, int64_t j0, int64_t j1) \
  {                                                                              \
    if (s->g->m == 1) sum_rows(s, stage, j0, j1 - j0, 8, 1, dtype);              \
    else if (s->g->m <= 4) sum_rows(s, stage, j0, j1 - j0, 8, 4, dtype);         \
    else sum_rows(s, stage, j0, j1 - j0, 8, 8, dtype);                           \
  }
SUM_ROWS(sum_rows_f32, TIDE_F32)
SUM_ROWS(sum_rows_bf16, TIDE_BF16)
SUM_ROWS(sum_rows_f16, TIDE_F16)

/* ---- bf16, B runs along k, tiles: C transposed, 32 columns of C at a time ---- */

enum { SPAN = 32, AHEAD = 1024, TILE_BYTES = 1024 };

/* out[i][r] = sum over k of column j + i of B with row r of A. The tail of k is read from a
 * copy. */
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
    for (int i = 0; i < SPAN; i++)
      memcpy(tail[i], b + i * stride + p * 2, (size_t)(g->k - p) * 2);
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
      for (int64_t i = j; i < last; i++) stage[r * CHUNK + i - j0] = out[i - from][r];
  }
}

/* Packs A into tiles of 16 pairs of k by 16 rows. */
static void pair_a(const skinny *s)
{
  const cpu_gemm *g = s->g;
  const uint16_t *src = g->a;
  uint16_t *to = (uint16_t *)s->a;
  memset(to, 0, (size_t)(s->kp * 32));
  for (int64_t r = 0; r < g->m; r++)
    for (int64_t p = 0; p < g->k; p++)
      to[p / 2 * 32 + r * 2 + p % 2] = src[r * g->a_rs + p * g->a_cs];
}

/* ---- from the stage to C ---- */

TIDE_AVX512 static void finish_row(const cpu_gemm *g, const float *stage, int64_t r, int64_t j0,
                              int64_t n)
{
  int64_t at = r * g->c_rs + j0;
  for (int64_t j = 0; j < n; j += 16) {
    __mmask16 mask = vec_lanes(n - j);
    __m512 v = _mm512_maskz_loadu_ps(mask, stage + j);
    if (g->accumulate) v = _mm512_add_ps(v, vec_load16(g->c, at + j, g->c_dtype, mask));
    if (g->bias) v = _mm512_add_ps(v, vec_load16(g->bias, j0 + j, g->c_dtype, mask));
    if (g->c_dtype == TIDE_F32) {
      _mm512_mask_storeu_ps((float *)g->c + at + j, mask, v);
      continue;
    }
    float out[16];
    _mm512_storeu_ps(out, v);
    tile_half half = {.src = out, .dst = (uint16_t *)g->c + at + j, .rows = 1};
    half.cols = (int)(n - j < 16 ? n - j : 16);
    half.dtype = g->c_dtype;
    tide__tile_to_half(&half);
  }
}

static void skinny_run_chunk(const skinny *s, float *stage, int64_t j0, int64_t j1)
{
  const cpu_gemm *g = s->g;
  int along_k = g->b_rs == 1;
  if (s->tiles) span_rows(s, stage, j0, j1);
  else if (s->pairs) pair_rows(s, stage, j0, j1);
  else if (g->ab_dtype == TIDE_F32) (along_k ? dot_rows_f32 : sum_rows_f32)(s, stage, j0, j1);
  else if (g->ab_dtype == TIDE_BF16) (along_k ? dot_rows_bf16 : sum_rows_bf16)(s, stage, j0, j1);
  else (along_k ? dot_rows_f16 : sum_rows_f16)(s, stage, j0, j1);
  for (int64_t r = 0; r < g->m; r++) finish_row(g, stage + r * CHUNK, r, j0, j1 - j0);
}

/* Ranges are in units of 64 columns. */
static void run_columns(void *arg, int64_t begin, int64_t end, int thread)
{
  const skinny *s = arg;
  float *stage = (float *)(s->stages + stage_bytes() * thread);
  int64_t last = end * LEAST_N < s->g->n ? end * LEAST_N : s->g->n;
  if (s->tiles) tide__tile_amx_begin();
  int64_t step = s->g->m <= 2 ? CHUNK : NARROW; /* the sums of more rows must fit the cache too */
  for (int64_t j = begin * LEAST_N; j < last; j += step)
    skinny_run_chunk(s, stage, j, last - j < step ? last : j + step);
  if (s->tiles) tide__tile_amx_end();
}

/* Widens A to f32 rows of kp, zero beyond k and beyond m. */
TIDE_LEVELS(void, widen_a, (const skinny *s), (s))
{
  const cpu_gemm *g = s->g;
  memset(s->a, 0, (size_t)a_bytes(g));
  for (int64_t r = 0; r < g->m; r++) {
    float *to = s->a + r * s->kp;
    for (int64_t p = 0; p < g->k; p++)
      to[p] = vec_get(g->a, r * g->a_rs + p * g->a_cs, g->ab_dtype);
  }
}

void tide__tile_skinny(const cpu_gemm *g, int nthread, void *work, int isa)
{
  skinny s = {.g = g, .a = work, .kp = i64_round_up(g->k, 32)};
  s.stages = (char *)work + a_bytes(g);
  const int bf16 = g->ab_dtype == TIDE_BF16 && g->b_rs == 1;
  s.tiles = bf16 && (isa & CPU_ISA_AMX);
  s.pairs = bf16 && !s.tiles && (isa & CPU_ISA_BF16);
  if (s.tiles) pair_a(&s);
  else if (s.pairs) copy_a(&s);
  else widen_a(&s);
  tide__pool_for(nthread, (g->n - 1) / LEAST_N + 1, 1, run_columns, &s);
}

#else

int tide__tile_skinny_takes(const cpu_gemm *g, int isa)
{
  (void)g, (void)isa;
  return 0;
}

void tide__tile_skinny(const cpu_gemm *g, int nthread, void *work, int isa)
{
  (void)g, (void)nthread, (void)work, (void)isa;
}

#endif
