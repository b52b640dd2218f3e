/* Plans a product: the kernel, the blocks, the tasks and the scratch of gemm.c.
 *
 * A plan is a function of sizes, strides, dtypes and the number of threads. The kernel and the
 * blocks of k, on which the bits of a result depend, do not depend on the number of threads.
 */
#include "kernels/cpu/gemm/plan.h"

#include "kernels/cpu/gemm/thin.h"

/* Blocking. The columns of B that every panel of A is multiplied with before the next ones (`cols`
 * bytes of the kernel, or all of B up to `whole`) stay in the second-level cache; panels of A, at
 * most ROWS_BYTES packed at a time, are streamed past them and prefetched one ahead, so they may
 * lie further away: the more of them, the less often B is read again. Columns vary fastest, so C is
 * written along its rows. ROUND_BYTES bounds the packed part of B; a wider B is done in rounds. */
enum { ROWS_BYTES = 3 << 20, TASKS_PER_THREAD = 4, STAGE_ROWS = 256, STAGE_COLS = 1024 };
static const int64_t ROUND_BYTES = (int64_t)64 << 20;

typedef cpu_gemm_plan plan;

static int is_half(int dtype) { return dtype == TIDE_BF16 || dtype == TIDE_F16; }

static const tile_kernel *gemm_choose(const cpu_gemm *g, int isa)
{
  const tile_kernel *kern = 0;
  if (g->ab_dtype == TIDE_BF16 && (isa & CPU_ISA_AMX)) kern = tide__tile_kernel_amx();
  else if (g->ab_dtype == TIDE_BF16 && (isa & CPU_ISA_BF16)) kern = tide__tile_kernel_bf16();
  if (!kern && g->ab_dtype != TIDE_F64 && (isa & CPU_ISA_AVX512)) kern = tide__tile_kernel_avx512();
  return kern ? kern : tide__tile_kernel_base(isa, g->ab_dtype == TIDE_F64);
}

/* Cuts C into tasks: large enough to pay for packing A, and enough of them that a delayed thread
 * does not keep the others waiting. Threads share them evenly where all run alike. */
static void plan_tasks(plan *p, int64_t m)
{
  const tile_kernel *kern = p->kern;
  int64_t want = (int64_t)p->nthread * TASKS_PER_THREAD;
  int64_t panels = i64_ceil_div(m, kern->mr), columns = p->nround / kern->nr;
  int64_t fit = ROWS_BYTES / (p->kc * kern->esize) / kern->mr;
  int stage = p->staged && p->k_pad > p->kc; /* f32 sums of a whole task: keep them few */
  if (p->direct) fit = panels;
  if (stage) fit = i64_min(fit, STAGE_ROWS / kern->mr);
  p->nb = i64_max(kern->cols / (p->kc * kern->esize) / kern->nr, 1) * kern->nr;
  if (p->nround * p->kc * kern->esize <= kern->whole) p->nb = p->nround;
  p->row_parts = i64_ceil_div(panels, i64_max(fit, 1));
  p->col_parts = stage ? i64_ceil_div(columns, STAGE_COLS / kern->nr) : 1;
  if (p->nthread > 1) {
    int64_t rows = i64_max(p->row_parts, i64_min(want, i64_ceil_div(panels, 4)));
    int64_t cut = i64_min(i64_ceil_div(want, rows), i64_ceil_div(columns, 2));
    p->row_parts = rows < want ? rows : i64_min(panels, i64_round_up(rows, p->nthread));
    p->col_parts = i64_max(p->col_parts, cut);
  }
  p->mc = i64_ceil_div(panels, p->row_parts) * kern->mr;
  p->ns = i64_ceil_div(columns, p->col_parts) * kern->nr;
}

/* Plans a product by tiles; isa and nthread are set. */
static void plan_tiles(plan *p, const cpu_gemm *g)
{
  const tile_kernel *kern = gemm_choose(g, p->isa);
  p->method = GEMM_TILES;
  p->kern = kern;
  p->k_pad = i64_round_up(g->k, kern->kr);
  int64_t nblock = i64_ceil_div(p->k_pad, kern->kc);
  p->kc = i64_round_up(i64_ceil_div(p->k_pad, nblock), kern->kr);
  int64_t column = p->k_pad * kern->esize;
  int64_t fit = i64_max(ROUND_BYTES / column / kern->nr, 4) * kern->nr;
  p->nround = i64_round_up(i64_ceil_div(g->n, i64_ceil_div(g->n, fit)), kern->nr);
  p->staged = is_half(g->c_dtype);
  p->direct = kern->direct && g->a_cs == 1 && g->k % kern->kr == 0;
  p->lazy = !p->direct && g->a_cs == 1 && kern->esize == vec_size(g->ab_dtype);
  plan_tasks(p, g->m);
  p->single = p->lazy && p->k_pad <= p->kc && p->nround <= p->nb && p->nround <= p->ns;
  p->b_bytes = i64_round_up(p->nround * column, GEMM_LINE);
  int64_t packed = p->direct || p->single ? kern->mr : p->mc;
  p->a_bytes = GEMM_LINE + i64_round_up(packed * p->kc * kern->esize, GEMM_LINE);
  if (p->staged) {
    int whole = p->k_pad > p->kc;
    int64_t rows = whole ? p->mc : kern->mr, cols = whole ? p->ns : kern->nr;
    p->stage_bytes = i64_round_up(rows * cols * 4, GEMM_LINE);
  }
  p->own = p->nthread > 1 && p->b_bytes <= kern->own;
  p->bytes = gemm_thread_bytes(p) * p->nthread + (p->own ? 0 : p->b_bytes);
}

/* Returns how many threads are worth their cost: below this many operations a second one costs more
 * than it saves. */
static int useful_threads(const cpu_gemm *g, int nthread)
{
  double flop = 2.0 * (double)g->m * (double)g->n * (double)g->k;
  double most_threads = flop / 4e5;
  if (nthread < 1 || most_threads < 2) return 1;
  return nthread < most_threads ? nthread : (int)most_threads;
}

/* ---- few rows: the transposed product ---------- */

enum { TRANSPOSE_M = 128, THIN_M = 64, THIN_K = 32 };
static const int64_t TRANSPOSE_BYTES = (int64_t)8 << 20;

/* Plans a thin product, or its transpose if that packs and moves less: an element of C is worth
 * four packed ones. Returns 0 if neither is thin. */
static int plan_thin(plan *p, const cpu_gemm *g)
{
  cpu_gemm back = gemm_transposed(g, 0);
  int direct = tide__thin_takes(g, p->isa);
  int turned = g->m <= THIN_M && g->k >= THIN_K && tide__thin_takes(&back, p->isa);
  if (direct && turned) turned = g->n * g->k > g->m * g->k + 4 * g->m * g->n;
  p->transposed = turned;
  if (turned) tide__thin_plan(p, &back);
  else if (direct) tide__thin_plan(p, g);
  return turned || direct;
}

/* Returns whether to exchange the operands. Packing all of B costs more than a few rows gain. With
 * the operands exchanged, B' is streamed a panel at a time and only the small A' is packed. The
 * sums are the same. */
static int is_transposed(const cpu_gemm *g)
{
  if (g->ab_dtype == TIDE_F64 || g->b_rs != 1) return 0;
  return g->m <= TRANSPOSE_M && g->n >= 8 * g->m &&
      g->n * g->k * vec_size(g->ab_dtype) >= TRANSPOSE_BYTES;
}

/* ---- entry points --- */

void tide__cpu_gemm_plan_isa(cpu_gemm_plan *p, const cpu_gemm *g, int nthread, int isa)
{
  memset(p, 0, sizeof *p);
  p->isa = isa;
  p->nthread = useful_threads(g, nthread);
  if (g->m <= 0 || g->n <= 0) {
    p->method = GEMM_NO_ELEMENTS;
  } else if (g->k <= 0) {
    p->method = GEMM_NO_SUM;
  } else if (tide__tile_skinny_takes(g, isa)) {
    p->method = GEMM_SKINNY;
    p->bytes = tide__tile_skinny_work(g, p->nthread);
  } else if (!plan_thin(p, g)) {
    cpu_gemm back = gemm_transposed(g, 0);
    p->transposed = is_transposed(g);
    plan_tiles(p, p->transposed ? &back : g);
  }
  if (p->transposed) p->bytes += gemm_transposed_bytes(g);
}

void tide__cpu_gemm_plan(cpu_gemm_plan *p, const cpu_gemm *g, int nthread)
{
  tide__cpu_gemm_plan_isa(p, g, nthread, tide__cpu_isa());
}

int64_t tide__cpu_gemm_work(const cpu_gemm *g, int nthread)
{
  cpu_gemm_plan p;
  tide__cpu_gemm_plan(&p, g, nthread);
  return p.bytes;
}

/* ---- the most scratch of a product whose m or k is not known yet ---- */

/* Returns bytes that suffice for tiles with up to g->m rows and up to g->k products a sum. */
static int64_t most_of_tiles(const cpu_gemm *g, int nthread, int isa)
{
  const tile_kernel *kern = gemm_choose(g, isa);
  int64_t k_pad = i64_round_up(g->k, kern->kr);
  int64_t kc = i64_min(k_pad, i64_round_up(kern->kc, kern->kr));
  int64_t rows = i64_round_up(g->m, kern->mr), columns = i64_round_up(g->n, kern->nr);
  int64_t column = k_pad * kern->esize, row = kc * kern->esize;
  int64_t a = i64_min(rows * row, i64_max(ROWS_BYTES, kern->mr * row));
  int64_t b = i64_min(columns * column, i64_max(ROUND_BYTES, 4 * kern->nr * column));
  int64_t stage = 0;
  if (is_half(g->c_dtype))
    stage = i64_max(kern->mr * kern->nr, i64_min(rows, STAGE_ROWS) * i64_min(columns, STAGE_COLS));
  int64_t thread = GEMM_LINE + i64_round_up(a, GEMM_LINE) + i64_round_up(stage * 4, GEMM_LINE);
  int64_t own = nthread > 1 ? i64_min(b, kern->own) * nthread : 0;
  return thread * nthread + i64_round_up(i64_max(b, own), GEMM_LINE) + GEMM_LINE * nthread;
}

int64_t tide__cpu_gemm_most_isa(const cpu_gemm *g, int nthread, int isa)
{
  cpu_gemm few = *g;
  if (g->m <= 0 || g->n <= 0) return 0;
  if (nthread < 1) nthread = 1;
  int64_t most = most_of_tiles(g, nthread, isa);
  few.m = i64_min(g->m, TRANSPOSE_M);
  cpu_gemm back = gemm_transposed(&few, 0);
  int64_t inner = tide__thin_most(&back);
  if (g->b_rs == 1) inner = i64_max(inner, most_of_tiles(&back, nthread, isa));
  most = i64_max(most, inner + gemm_transposed_bytes(&few));
  most = i64_max(most, tide__thin_most(g));
  return i64_max(most, tide__tile_skinny_work(g, nthread));
}

int64_t tide__cpu_gemm_most(const cpu_gemm *g, int nthread)
{
  return tide__cpu_gemm_most_isa(g, nthread, tide__cpu_isa());
}
