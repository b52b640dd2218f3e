/* Products with one thin dimension: n (x A' of an adapter of low rank), k (h B' of one), or, with
 * the operands exchanged by gemm.c, m (the gradients of A and B).
 *
 * A tile keeps twelve sums in registers, as that of tile_base.c does. It reads a word of each of
 * its rows of A where it lies, along k or across, and vectors of B, which is packed in panels as
 * wide as the tile; a B that lies like that already is not copied. The rows of a last panel that
 * is not whole begin earlier: those before it are computed again and not stored.
 *
 * Scratch: packed B. The order of an element's sum depends on k and the layout of A alone: blocks
 * of kc, each summed in ascending order, added in ascending order.
 */
#include "kernels/cpu/gemm/thin.h"

#include "kernels/cpu/gemm/plan.h"
#include "kernels/cpu/vec.h"

/* WIDE and DEEP: the most n and k of a thin product whose A runs along k or across. KC: depth of a
 * block; across, its lines stay in the cache for the next panels. COLS_BYTES: packed B that meets
 * all rows of a task before the next columns. PACKED_BYTES: the most packed B. */
enum { WIDE_ALONG = 256, WIDE_ACROSS = 64, DEEP_ALONG = 256, DEEP_ACROSS = 32, KC_ALONG = 704,
       KC_ACROSS = 128, COLS_BYTES = 256 << 10, PACKED_BYTES = 64 << 20, TASKS = 4 };
enum { LANES = 8, MOST_WIDTH = 3 * LANES };

/* ---- the plan ---- */

/* Returns the width of a tile, chosen to waste the fewest columns beyond n. */
static int thin_width(int64_t n)
{
  if (n <= LANES) return LANES;
  if (n <= 2 * LANES) return 2 * LANES;
  return i64_round_up(n, 3 * LANES) < i64_round_up(n, 2 * LANES) ? 3 * LANES : 2 * LANES;
}

/* Returns the rows of a tile: twelve sums in all, or eight if each needs a word of A. */
static int thin_rows(int width) { return width == LANES ? 8 : 12 * LANES / width; }

/* Words of A lie side by side along k; one word a row does, whatever its stride. */
static int is_along(const cpu_gemm *g) { return g->a_cs == 1 || g->k == 1; }

int tide__thin_takes(const cpu_gemm *g, int isa)
{
  if (!(isa & CPU_ISA_AVX2) || (isa & CPU_ISA_AVX512) || !tide__thin_avx2(LANES, 1)) return 0;
  if (g->ab_dtype != TIDE_F32 || g->c_dtype != TIDE_F32) return 0;
  if (g->m < thin_rows(thin_width(g->n)) || g->n * g->k > PACKED_BYTES / 4) return 0;
  if (is_along(g)) return g->n <= WIDE_ALONG || g->k <= DEEP_ALONG;
  return g->a_rs == 1 && (g->n <= WIDE_ACROSS || g->k <= DEEP_ACROSS);
}

/* Returns whether B lies as if it were packed. */
static int is_packed(const cpu_gemm *g, int width)
{
  return g->b_cs == 1 && g->n == width && g->b_rs == g->n;
}

static int64_t packed_bytes(const cpu_gemm *g, int width)
{
  return is_packed(g, width) ? 0 : i64_round_up(i64_round_up(g->n, width) * g->k * 4, GEMM_LINE);
}

void tide__thin_plan(cpu_gemm_plan *p, const cpu_gemm *g)
{
  p->method = GEMM_THIN;
  p->nr = thin_width(g->n);
  p->mr = thin_rows(p->nr);
  p->k_pad = g->k;
  p->kc = i64_ceil_div(g->k, i64_ceil_div(g->k, is_along(g) ? KC_ALONG : KC_ACROSS));
  p->nb = i64_max(COLS_BYTES / (p->kc * 4) / p->nr, 1) * p->nr;
  int64_t panels = i64_ceil_div(g->m, p->mr), columns = i64_ceil_div(g->n, p->nr);
  int64_t want = p->nthread > 1 ? (int64_t)p->nthread * TASKS : 1;
  p->row_parts = i64_min(want, i64_ceil_div(panels, 4));
  p->col_parts = i64_min(i64_ceil_div(want, p->row_parts), i64_ceil_div(columns, 2));
  p->bytes = p->b_bytes = packed_bytes(g, p->nr);
}

int64_t tide__thin_most(const cpu_gemm *g)
{
  int64_t wide = i64_min(g->n, WIDE_ALONG) * g->k, deep = g->n * i64_min(g->k, DEEP_ALONG);
  int64_t whole = i64_min(i64_max(wide, deep), PACKED_BYTES / 4);
  return i64_round_up((whole + MOST_WIDTH * g->k) * 4, GEMM_LINE);
}

/* ---- the run ---- */

typedef struct thin { const cpu_gemm_plan *p; const cpu_gemm *g; float *b; } thin;

/* Packs units of B: blocks of k of a panel. */
static void pack_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const thin *t = arg;
  const cpu_gemm *g = t->g;
  const int64_t width = t->p->nr, nblock = i64_ceil_div(g->k, t->p->kc);
  (void)thread;
  for (int64_t u = begin; u < end; u++) {
    int64_t col = u / nblock * width, k0 = u % nblock * t->p->kc;
    tile_strip s = { .src = (const float *)g->b + col * g->b_cs + k0 * g->b_rs, .is = g->b_cs,
                     .ps = g->b_rs, .dtype = TIDE_F32, .width = (int)width };
    s.n = i64_min(width, g->n - col);
    s.k = s.k_pad = i64_min(t->p->kc, g->k - k0);
    tide__tile_pack_f32(t->b + col * g->k + k0 * width, &s);
  }
}

/* Computes a block of C of whole panels, except for the last of C. */
static void run_block(const thin *t, int64_t row, int64_t row_end, int64_t col, int64_t col_end)
{
  const cpu_gemm_plan *p = t->p;
  const cpu_gemm *g = t->g;
  thin_fn panel = tide__thin_avx2(p->nr, is_along(g));
  for (int64_t k0 = 0; k0 < g->k; k0 += p->kc) {
    for (int64_t j = col; j < col_end; j += p->nb) {
      thin_job job = { .k = i64_min(p->kc, g->k - k0), .a_rs = g->a_rs, .a_cs = g->a_cs };
      job.b = t->b + j * g->k + k0 * p->nr;
      job.b_step = p->nr * g->k;
      job.bias = k0 == 0 && g->bias ? (const float *)g->bias + j : 0;
      job.c_rs = g->c_rs;
      job.cols = i64_min(p->nb, col_end - j);
      job.load = g->accumulate || k0 > 0;
      for (int64_t i = row; i < row_end; i += p->mr) {
        int64_t from = i64_min(i, row_end - p->mr);
        job.skip = (int)(i - from);
        job.a = (const float *)g->a + from * g->a_rs + k0 * g->a_cs;
        job.c = (float *)g->c + from * g->c_rs + j;
        panel(&job);
      }
    }
  }
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const thin *t = arg;
  const cpu_gemm_plan *p = t->p;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t r = i / p->col_parts, c = i % p->col_parts;
    run_block(t, gemm_part_begin(t->g->m, p->mr, p->row_parts, r),
              gemm_part_begin(t->g->m, p->mr, p->row_parts, r + 1),
              gemm_part_begin(t->g->n, p->nr, p->col_parts, c),
              gemm_part_begin(t->g->n, p->nr, p->col_parts, c + 1));
  }
}

void tide__thin_run(const cpu_gemm_plan *p, const cpu_gemm *g, void *work)
{
  thin t = { p, g, work };
  if (is_packed(g, p->nr)) {
    t.b = (float *)g->b;
  } else {
    int64_t units = i64_ceil_div(g->n, p->nr) * i64_ceil_div(g->k, p->kc);
    tide__pool_for(p->nthread, units, 1 + 8192 / (p->kc * p->nr), pack_units, &t);
  }
  tide__pool_tasks(p->nthread, p->row_parts * p->col_parts, 1, run_tasks, &t);
}
