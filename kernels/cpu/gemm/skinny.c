/* Products with few rows: B is read once, in place, at the speed of memory.
 *
 * With at most sixteen rows packing B costs more than the product. A is small: it is widened to f32
 * once and stays in cache. If B runs along k (a weight stored [N, K]) columns of C are dot
 * products, several columns at a time to keep several streams of memory active; if it runs along n,
 * rows of B are added up, a few per pass. In bf16 with B along k, AVX512_BF16 multiplies pairs of k
 * as they lie in memory, and A is not widened; AMX computes C transposed (skinny_bf16.c).
 *
 * Scratch: [A][thread 0 stage][thread 1 stage]...; a stage holds f32 sums of SKINNY_CHUNK columns.
 * The order of an element's sum depends on k alone.
 */
#include "kernels/cpu/gemm/skinny.h"

#include "kernels/cpu/gemm/plan.h"
#include "kernels/cpu/gemm/thin.h"
#include "kernels/cpu/gemm/tile_amx.h"
#include "kernels/cpu/vec.h"

enum { NARROW = 1024, LEAST_K = 32, LEAST_N = 64, THIN_ALONG = 12, THIN_ACROSS = 4 };

/* Returns the bytes of A: rows as f32, or one tile column of pairs; k padded to 32. */
static int64_t a_bytes(const cpu_gemm *g) { return TILE_SKINNY_M * i64_round_up(g->k, 32) * 4; }
static int64_t stage_bytes(void) { return (int64_t)TILE_SKINNY_M * SKINNY_CHUNK * 4; }

int64_t tide__tile_skinny_work(const cpu_gemm *g, int nthread)
{
  return a_bytes(g) + stage_bytes() * nthread;
}

/* Returns the most rows. In place of more than THIN_ALONG, or THIN_ACROSS if B runs along n, a
 * transposed thin product is faster where this level has one. */
static int most_rows(const cpu_gemm *g, int isa)
{
  cpu_gemm back = gemm_transposed(g, 0);
  if (!tide__thin_takes(&back, isa)) return TILE_SKINNY_M;
  return g->b_rs == 1 ? THIN_ALONG : THIN_ACROSS;
}

int tide__tile_skinny_takes(const cpu_gemm *g, int isa)
{
  if (!(isa & CPU_ISA_AVX2) || g->ab_dtype == TIDE_F64) return 0;
  if (g->m > TILE_SKINNY_M || g->k < LEAST_K || g->n < LEAST_N) return 0;
  return (g->b_rs == 1 || g->b_cs == 1) && g->m <= most_rows(g, isa);
}

/* ---- A ---- */

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

/* ---- columns of C ---- */

/* Ranges are in units of LEAST_N columns. */
static void run_columns(void *arg, int64_t begin, int64_t end, int thread)
{
  const skinny *s = arg;
  const cpu_gemm *g = s->g;
  float *stage = (float *)(s->stages + stage_bytes() * thread);
  int64_t last = i64_min(end * LEAST_N, g->n);
  int64_t step = g->m <= 2 ? SKINNY_CHUNK : NARROW; /* sums of more rows must fit the cache too */
  if (s->unit == SKINNY_TILES) tide__tile_amx_begin();
  for (int64_t j = begin * LEAST_N; j < last; j += step) {
    const int64_t n = i64_min(step, last - j);
    s->columns(s, stage, j, j + n);
    for (int64_t r = 0; r < g->m; r++) tide__gemm_put_row(g, stage + r * SKINNY_CHUNK, r, j, n);
  }
  if (s->unit == SKINNY_TILES) tide__tile_amx_end();
}

static skinny_unit choose_unit(const cpu_gemm *g, int isa)
{
  if (g->ab_dtype != TIDE_BF16 || g->b_rs != 1) return SKINNY_F32;
  return isa & CPU_ISA_AMX ? SKINNY_TILES : isa & CPU_ISA_BF16 ? SKINNY_PAIRS : SKINNY_F32;
}

void tide__tile_skinny(const cpu_gemm *g, int nthread, void *work, int isa)
{
  skinny s = {.g = g, .a = work, .kp = i64_round_up(g->k, 32), .unit = choose_unit(g, isa)};
  s.stages = (char *)work + a_bytes(g);
  if (s.unit == SKINNY_TILES) {
    pair_a(&s);
    s.columns = tide__skinny_amx();
  } else if (s.unit == SKINNY_PAIRS) {
    copy_a(&s);
    s.columns = tide__skinny_pairs();
  } else {
    widen_a(&s);
    s.columns = (isa & CPU_ISA_AVX512 ? tide__skinny_avx512 : tide__skinny_avx2)(
      g->b_rs == 1, g->ab_dtype);
  }
  tide__pool_for(nthread, (g->n - 1) / LEAST_N + 1, 1, run_columns, &s);
}
