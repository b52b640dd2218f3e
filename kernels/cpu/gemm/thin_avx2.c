/* Tiles of thin products in vectors of 8: 8 rows by 8 columns, 6 by 16, 4 by 24. See thin.c.
 *
 * Sums, vectors of B and a word of A take up to 15 of the 16 registers. The compiler keeps to that
 * if each multiply-add ends in the register of its sum and no load moves ahead of an earlier step,
 * so both are written out.
 */
#include "kernels/cpu/gemm/plan.h"
#include "kernels/cpu/gemm/thin.h"

#if defined(__x86_64__) && defined(__GNUC__)

/* STEPS: words of k a turn of the loop. AHEAD_B, AHEAD_A: words of k that B, and a line of A across
 * k, are fetched in advance. */
enum { LANES = 8, ROWS = 8, TRIPLES = 3, VECS = 3, STEPS = 8, AHEAD_B = 16, AHEAD_A = 4 };

/* Where the next words of A are: of every third row along k, so that an address is a register and
 * a multiple of another; of the first row across. Distances in bytes. */
typedef struct words { const char *row[TRIPLES]; int64_t rs, cs; } words;

/* Adds one word of k to the sums and moves a to the next one. */
TIDE_AVX2_INLINE void thin_step(__m256 (*acc)[VECS], words *a, const float *b, const int rows,
                                const int vecs, const int along)
{
  __m256 x[VECS];
#pragma GCC unroll 3
  for (int v = 0; v < vecs; v++) x[v] = _mm256_loadu_ps(b + v * LANES);
  __builtin_prefetch(b + AHEAD_B * LANES * vecs);
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++) {
    const char *at = along ? a->row[i / 3] + i % 3 * a->rs : a->row[0] + i * 4;
    const __m256 word = _mm256_broadcast_ss((const float *)at);
#pragma GCC unroll 3
    for (int v = 0; v < vecs; v++)
      __asm__("vfmadd231ps %2, %1, %0" : "+x"(acc[i][v]) : "x"(word), "x"(x[v]));
  }
#pragma GCC unroll 3
  for (int q = 0; q < TRIPLES; q++) a->row[q] += along ? 4 : a->cs;
  __asm__ volatile("" : "+r"(a->row[0]), "+r"(a->row[1]), "+r"(a->row[2]) : : "memory");
}

/* Stores columns [j, j + cols) of the rows from job->skip on. */
static void store_edge(const thin_job *job, float (*tile)[VECS * LANES], int64_t j, int rows,
                       int64_t cols)
{
  for (int i = job->skip; i < rows; i++) {
    float *c = job->c + i * job->c_rs + j;
    for (int64_t l = 0; l < cols; l++) {
      float old = job->load ? c[l] : 0;
      if (job->bias) old += job->bias[j + l];
      c[l] = old + tile[i][l];
    }
  }
}

TIDE_AVX2_INLINE void thin_store(const thin_job *job, __m256 (*acc)[VECS], int64_t j,
                                 const int rows, const int vecs)
{
  const int64_t cols = i64_min(job->cols - j, vecs * LANES);
  float *c = job->c + j;
  if (cols == vecs * LANES && job->skip == 0 && !job->bias) {
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++, c += job->c_rs) {
#pragma GCC unroll 3
      for (int v = 0; v < vecs; v++) {
        float *to = c + v * LANES;
        if (job->load) acc[i][v] = _mm256_add_ps(_mm256_loadu_ps(to), acc[i][v]);
        _mm256_storeu_ps(to, acc[i][v]);
      }
    }
    return;
  }
  float tile[ROWS][VECS * LANES];
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++) {
#pragma GCC unroll 3
    for (int v = 0; v < vecs; v++) _mm256_storeu_ps(tile[i] + v * LANES, acc[i][v]);
  }
  store_edge(job, tile, j, rows, cols);
}

/* Computes the columns from j on. The next tile of C is fetched. Across k, so are a line of A just
 * before its use, which may have left the first-level cache, and with the first columns the lines
 * of the next panels. (Along k the processor does so.) */
TIDE_AVX2_INLINE void thin_tile(const thin_job *job, int64_t j, const int rows, const int vecs,
                                const int along, const int first)
{
  const int wide = vecs * LANES;
  const float *b = job->b + j / wide * job->b_step, *c = job->c + j + wide;
  words a = { .rs = job->a_rs * 4, .cs = job->a_cs * 4 };
  __m256 acc[ROWS][VECS];
#pragma GCC unroll 8
  for (int i = 0; i < rows; i++, c += job->c_rs) {
    __builtin_prefetch(c, 1);
#pragma GCC unroll 3
    for (int v = 0; v < vecs; v++) acc[i][v] = _mm256_setzero_ps();
  }
#pragma GCC unroll 3
  for (int q = 0; q < TRIPLES; q++) a.row[q] = (const char *)job->a + 3 * q * a.rs;
  int64_t p = job->k;
  for (; p >= STEPS; p -= STEPS) {
#pragma GCC unroll 8
    for (int l = 0; l < STEPS; l++, b += wide) {
      if (!along) __builtin_prefetch(a.row[0] + AHEAD_A * a.cs);
      if (!along && first) __builtin_prefetch(a.row[0] + GEMM_LINE, 0, 2);
      thin_step(acc, &a, b, rows, vecs, along);
    }
  }
  for (; p > 0; p--, b += wide) thin_step(acc, &a, b, rows, vecs, along);
  thin_store(job, acc, j, rows, vecs);
}

#define THIN_PANEL(name, rows, vecs, along)                                                    \
  TIDE_AVX2 static void name(const thin_job *job)                                              \
  {                                                                                            \
    thin_tile(job, 0, rows, vecs, along, 1);                                                   \
    for (int64_t j = vecs * LANES; j < job->cols; j += vecs * LANES)                           \
      thin_tile(job, j, rows, vecs, along, 0);                                                 \
  }
THIN_PANEL(along_8, 8, 1, 1)
THIN_PANEL(along_16, 6, 2, 1)
THIN_PANEL(along_24, 4, 3, 1)
THIN_PANEL(across_8, 8, 1, 0)
THIN_PANEL(across_16, 6, 2, 0)
THIN_PANEL(across_24, 4, 3, 0)

thin_fn tide__thin_avx2(int width, int is_along)
{
  static const thin_fn along[VECS] = { along_8, along_16, along_24 };
  static const thin_fn across[VECS] = { across_8, across_16, across_24 };
  return is_along ? along[width / LANES - 1] : across[width / LANES - 1];
}

#else

thin_fn tide__thin_avx2(int width, int is_along)
{
  (void)width, (void)is_along;
  return 0;
}

#endif
