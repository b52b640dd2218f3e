/* Products with few rows, A as rows of f32, in vectors of LANES f32. See skinny.c.
 *
 * A C file defines the vectors and includes this once: LANES, LANES_FN and LANES_INLINE (attributes
 * of functions), lanes (a vector), lanes_load(src, at, dtype, n) of the first n lanes, zero beyond,
 * lanes_get, lanes_put, lanes_set, lanes_zero, lanes_madd(a, b, sum) and lanes_sum; and the columns
 * that the dot products of 1, 2, up to 4 and more rows take at a time, as many as registers allow:
 * LANES_COLS1, LANES_COLS2, LANES_COLS4, LANES_COLS8, the last for LANES_ROWS8 rows at a time.
 */
#include "kernels/cpu/gemm/skinny.h"

/* ---- B runs along k: dot products ---- */

/* Computes ncol columns of C from column j (those past the end repeat the last), nrow rows of A.
 * With more than two rows the few columns leave memory idle unless the next ones are prefetched;
 * with one or two the many columns suffice, and prefetching slows them down. */
LANES_INLINE void dots(const skinny *s, float *stage, const float *a, int64_t j, int64_t end,
                       const int ncol, const int nrow, const int dtype)
{
  const cpu_gemm *g = s->g;
  int64_t size = dtype == TIDE_F32 ? 4 : 2, k = g->k;
  int64_t ahead = ncol * g->b_cs * size; /* the next columns at this k: a column is short */
  const char *col[8];
  lanes acc[8][8];
#pragma GCC unroll 8
  for (int c = 0; c < ncol; c++) {
    int64_t at = j + c < end ? j + c : end - 1;
    col[c] = (const char *)g->b + at * g->b_cs * size;
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) acc[c][r] = lanes_zero();
  }
  for (int64_t p = 0; p < k / LANES * LANES; p += LANES) {
    lanes b[8];
#pragma GCC unroll 8
    for (int c = 0; c < ncol; c++) {
      b[c] = lanes_load(col[c], p, dtype, LANES);
      if (nrow > 2 && !(p * size & 32)) __builtin_prefetch(col[c] + p * size + ahead, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) {
      lanes x = lanes_get(a + r * s->kp + p);
#pragma GCC unroll 8
      for (int c = 0; c < ncol; c++) acc[c][r] = lanes_madd(x, b[c], acc[c][r]);
    }
  }
  if (k % LANES != 0) {
    const int64_t p = k / LANES * LANES;
#pragma GCC unroll 8
    for (int c = 0; c < ncol; c++) {
      lanes b = lanes_load(col[c], p, dtype, k - p);
#pragma GCC unroll 8
      for (int r = 0; r < nrow; r++)
        acc[c][r] = lanes_madd(lanes_get(a + r * s->kp + p), b, acc[c][r]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < ncol; c++)
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++)
      if (j + c < end) stage[r * SKINNY_CHUNK + c] = lanes_sum(acc[c][r]);
}

LANES_INLINE void dot_rows(const skinny *s, float *stage, int64_t j0, int64_t j1, const int ncol,
                           const int nrow, const int dtype)
{
  for (int64_t j = j0; j < j1; j += ncol)
    for (int64_t r = 0; r < s->g->m; r += nrow)
      dots(s, stage + r * SKINNY_CHUNK + (j - j0), s->a + r * s->kp, j, j1, ncol, nrow, dtype);
}

#define DOT_ROWS(name, dtype)                                                          \
  LANES_FN static void name(const skinny *s, float *stage, int64_t j0, int64_t j1)     \
  {                                                                                    \
    if (s->g->m == 1) dot_rows(s, stage, j0, j1, LANES_COLS1, 1, dtype);               \
    else if (s->g->m == 2) dot_rows(s, stage, j0, j1, LANES_COLS2, 2, dtype);          \
    else if (s->g->m <= 4) dot_rows(s, stage, j0, j1, LANES_COLS4, 4, dtype);          \
    else dot_rows(s, stage, j0, j1, LANES_COLS8, LANES_ROWS8, dtype);                  \
  }
DOT_ROWS(dot_rows_f32, TIDE_F32)
DOT_ROWS(dot_rows_bf16, TIDE_BF16)
DOT_ROWS(dot_rows_f16, TIDE_F16)

/* ---- B runs along n: sums of its rows ---- */

/* stage[r][0..n) += sum over depth rows of B from row p, for nrow rows of A. */
LANES_INLINE void add_rows(const skinny *s, float *stage, const float *a, int64_t p, int64_t j0,
                           int64_t n, const int depth, const int nrow, const int dtype)
{
  const cpu_gemm *g = s->g;
  for (int64_t j = 0; j < n; j += LANES) {
    lanes b[8];
#pragma GCC unroll 8
    for (int d = 0; d < depth; d++) {
      int64_t at = (p + d) * g->b_rs + j0 + j;
      b[d] = lanes_load(g->b, at, dtype, n - j);
      int64_t next = (at + depth * g->b_rs) * (dtype == TIDE_F32 ? 4 : 2);
      __builtin_prefetch((const char *)g->b + next, 0, 2);
    }
#pragma GCC unroll 8
    for (int r = 0; r < nrow; r++) {
      float *to = stage + r * SKINNY_CHUNK + j;
      lanes v = lanes_get(to);
#pragma GCC unroll 8
      for (int d = 0; d < depth; d++) v = lanes_madd(lanes_set(a[r * s->kp + p + d]), b[d], v);
      lanes_put(to, v);
    }
  }
}

LANES_INLINE void sum_rows(const skinny *s, float *stage, int64_t j0, int64_t n, const int depth,
                           const int nrow, const int dtype)
{
  int64_t k = s->g->k, m = s->g->m, p = 0;
  for (int64_t r = 0; r < i64_round_up(m, nrow); r++)
    memset(stage + r * SKINNY_CHUNK, 0, SKINNY_CHUNK * 4);
  for (; p + depth <= k; p += depth)
    for (int64_t r = 0; r < m; r += nrow)
      add_rows(s, stage + r * SKINNY_CHUNK, s->a + r * s->kp, p, j0, n, depth, nrow, dtype);
  for (; p < k; p++)
    for (int64_t r = 0; r < m; r += nrow)
      add_rows(s, stage + r * SKINNY_CHUNK, s->a + r * s->kp, p, j0, n, 1, nrow, dtype);
}

#define SUM_ROWS(name, dtype)                                                        \
  LANES_FN static void name(const skinny *s, float *stage, int64_t j0, int64_t j1)   \
  {                                                                                  \
    if (s->g->m == 1) sum_rows(s, stage, j0, j1 - j0, 4, 1, dtype);                  \
    else if (s->g->m <= 4) sum_rows(s, stage, j0, j1 - j0, 6, 4, dtype);             \
    else sum_rows(s, stage, j0, j1 - j0, 6, 8, dtype);                               \
  }
SUM_ROWS(sum_rows_f32, TIDE_F32)
SUM_ROWS(sum_rows_bf16, TIDE_BF16)
SUM_ROWS(sum_rows_f16, TIDE_F16)

static skinny_fn lanes_choose(int along_k, int dtype)
{
  if (dtype == TIDE_F32) return along_k ? dot_rows_f32 : sum_rows_f32;
  if (dtype == TIDE_BF16) return along_k ? dot_rows_bf16 : sum_rows_bf16;
  return along_k ? dot_rows_f16 : sum_rows_f16;
}
