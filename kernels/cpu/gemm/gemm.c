/* The product that every CPU kernel calls: packs, cuts into tasks, runs tiles. How is planned in
 * plan.c. See gemm.h, tile.h.
 *
 * All threads pack B together, once, or each a small one for itself: lines that another core has
 * just written are slower to read than to pack. Then tasks, each a block of rows of C, pack their
 * rows of A (small enough for the second-level cache) and run tiles over them. The result of a task
 * does not depend on its thread, and the order of an element's sum depends on k alone, so results
 * are the same to the bit for any number of threads.
 *
 * Nothing is allocated: scratch is [packed B][thread 0][thread 1]..., each thread's part being
 * [what it holds][packed A][f32 stage of a 16-bit C][B, if it has its own].
 */
#include "kernels/cpu/gemm/gemm.h"

#include "kernels/cpu/row.h"
#include "kernels/cpu/gemm/plan.h"
#include "kernels/cpu/gemm/thin.h"

typedef cpu_gemm_plan plan;

/* ---- a 16-bit or biased C: initial value of a tile, and its destination --- */

static void row_add_f64(double *dst, const double *src, int64_t n)
{
  for (int64_t i = 0; i < n; i++) dst[i] += src[i];
}

/* Loads n values of dtype, starting at element i of src, as f32 into dst. */
static void row_load(float *dst, const void *src, int64_t i, int64_t n, int dtype)
{
  row_widen(dst, (const char *)src + i * vec_size(dtype), dtype, n);
}

/* Writes the initial value of a tile: old C, bias, or their sum. dst is C itself unless staged. */
static int tile_start(const plan *p, char *dst, int64_t dst_rs, int64_t row, int64_t col,
                      int64_t rows, int64_t cols)
{
  const cpu_gemm *g = p->g;
  if (!g->accumulate && !g->bias) return 0;
  for (int64_t r = 0; r < rows; r++) {
    char *to = dst + r * dst_rs * (p->kern->f64 ? 8 : 4);
    if (p->kern->f64) {
      const double *bias = g->bias ? (const double *)g->bias + col : 0;
      if (!g->accumulate) memcpy(to, bias, (size_t)cols * 8);
      else if (bias) row_add_f64((double *)to, bias, cols);
      continue;
    }
    float bias[128];
    if (g->bias) row_load(bias, g->bias, col, cols, g->c_dtype);
    if (!g->accumulate) {
      memcpy(to, bias, (size_t)cols * 4);
      continue;
    }
    if (p->staged) row_load((float *)to, g->c, (row + r) * g->c_rs + col, cols, g->c_dtype);
    if (g->bias) row_add((float *)to, (float *)to, bias, cols);
  }
  return 1;
}

void tide__gemm_put_row(const cpu_gemm *g, float *sums, int64_t r, int64_t j, int64_t n)
{
  enum { PIECE = 128 };
  float old[PIECE];
  const int64_t size = vec_size(g->c_dtype);
  for (int64_t end = j + n, left; j < end; j += left, sums += left) {
    left = i64_min(PIECE, end - j);
    char *to = (char *)g->c + (r * g->c_rs + j) * size;
    if (g->accumulate) {
      row_load(old, to, 0, left, g->c_dtype);
      row_add(sums, sums, old, left);
    }
    if (g->bias) {
      row_load(old, g->bias, j, left, g->c_dtype);
      row_add(sums, sums, old, left);
    }
    row_narrow(to, sums, g->c_dtype, left);
  }
}

/* ---- packing ---- */

/* Packs panels [begin, end) of the columns of this round; to: where the first panel of all is. */
static void pack_b_part(const plan *p, char *to, int64_t begin, int64_t end)
{
  const cpu_gemm *g = p->g;
  const tile_kernel *kern = p->kern;
  int64_t col = p->col0 + begin * kern->nr;
  tile_strip s = {.is = g->b_cs, .ps = g->b_rs, .k = g->k, .k_pad = p->k_pad};
  s.src = (const char *)g->b + col * g->b_cs * vec_size(g->ab_dtype);
  s.n = i64_min(p->col0 + p->ncol, p->col0 + end * kern->nr) - col;
  s.dtype = g->ab_dtype;
  s.width = kern->nr;
  kern->pack_b(to + begin * kern->nr * p->k_pad * kern->esize, &s);
}

static void pack_b_panels(void *arg, int64_t begin, int64_t end, int thread)
{
  const plan *p = arg;
  (void)thread;
  pack_b_part(p, p->work, begin, end);
}

static void pack_a_block(const plan *p, char *dst, int64_t row, int64_t rows, int64_t k0,
                         int64_t kc)
{
  const cpu_gemm *g = p->g;
  if (p->direct) { /* only a panel that is not whole */
    int64_t whole = rows / p->kern->mr * p->kern->mr;
    row += whole, rows -= whole;
    if (rows == 0) return;
  }
  tile_strip s = {.is = g->a_rs, .ps = g->a_cs, .n = rows, .k_pad = kc};
  s.src = (const char *)g->a + (row * g->a_rs + k0 * g->a_cs) * vec_size(g->ab_dtype);
  s.k = i64_min(kc, g->k - k0);
  s.dtype = g->ab_dtype;
  s.width = p->kern->mr;
  p->kern->pack_a(dst, &s);
}

/* ---- tasks ---- */

/* A task's block of C, and the thread's scratch. */
typedef struct block {
  const plan *p;
  int64_t row, rows, col, cols;
  char   *a;
  char   *b; /* all columns of this round */
  float  *stage;
} block;

/* A panel of A at row i of the block, multiplied with its columns [j0, j1), and products [k0, k0 +
 * kc) of each sum. Each tile fetches `share` rows of the next panel. */
typedef struct panel { int64_t i, j0, j1, k0, kc, share; } panel;

/* What a thread's scratch holds, at its beginning. */
typedef struct held_parts {
  int64_t a; /* block of A, -1 for none */
  int64_t b; /* whether it has packed its own B */
} held_parts;

/* While a panel of A is multiplied with a block of B, each tile prefetches a share of the next:
 * of its source, also of the first of the rows after this block, or of the packed panel if it
 * exists. */
static void fetch_ahead(const block *b, const panel *a, int64_t j, tile_job *job)
{
  const plan *p = b->p;
  int64_t mr = p->kern->mr, at = (j - a->j0) / p->kern->nr * a->share;
  int source = p->direct || (p->lazy && a->j0 == 0);
  int64_t row = b->row + a->i + mr + at;
  int64_t last = i64_min(source ? p->g->m : b->row + b->rows, b->row + a->i + 2 * mr);
  if (row >= last) return;
  job->nsoon = (int)i64_min(a->share, last - row);
  job->soon_rs = (source ? p->g->a_rs : a->kc) * p->kern->esize;
  job->soon = (const char *)p->g->a + (row * p->g->a_rs + a->k0) * p->kern->esize;
  if (!source) job->soon = b->a + (a->i + mr + at) * job->soon_rs;
}

/* Prefetches the next tile of C. (The stage of earlier blocks of k is in cache.) */
static void fetch_next_c(const block *b, const panel *a, int64_t j, tile_job *job)
{
  const plan *p = b->p;
  const cpu_gemm *g = p->g;
  int64_t nr = p->kern->nr, mr = p->kern->mr, size = vec_size(g->c_dtype), i = a->i;
  j += nr;
  if (j >= a->j1) j = a->j0, i += mr;
  int64_t rows = i64_min(mr, b->rows - i), cols = i64_min(nr, b->cols - j);
  if (rows <= 0) return;
  job->next = (const char *)g->c + ((b->row + i) * g->c_rs + b->col + j) * size;
  job->next_rs = g->c_rs * size;
  job->nnext = (int)rows;
  job->next_lines = (int)i64_ceil_div(cols * size, GEMM_LINE);
}

static void run_tile(const block *b, const panel *a, int64_t j)
{
  const plan *p = b->p;
  const int64_t i = a->i, k0 = a->k0, kc = a->kc;
  const cpu_gemm *g = p->g;
  const tile_kernel *kern = p->kern;
  int64_t row = b->row + i, col = b->col + j, csize = kern->f64 ? 8 : 4;
  int first = k0 == 0, last = k0 + kc >= p->k_pad, whole = !(first && last);
  tile_job job = {.k = kc, .load = !first};
  job.rows = (int)i64_min(kern->mr, b->rows - i);
  job.cols = (int)i64_min(kern->nr, b->cols - j);
  job.a = b->a + (p->direct || p->single ? 0 : i * kc * kern->esize);
  if (p->direct && job.rows == kern->mr) {
    job.a = (const char *)g->a + (row * g->a_rs + k0) * kern->esize;
    job.a_rs = g->a_rs * kern->esize;
  }
  if (!p->direct || job.a_rs) fetch_ahead(b, a, j, &job);
  job.b = b->b + ((col - p->col0) * p->k_pad + k0 * kern->nr) * kern->esize;
  if (p->staged) {
    job.c_rs = whole ? p->ns : kern->nr;
    job.c = whole ? b->stage + i * p->ns + j : b->stage;
  } else {
    job.c_rs = g->c_rs;
    job.c = (char *)g->c + (row * g->c_rs + col) * csize;
  }
  if (last || !p->staged) fetch_next_c(b, a, j, &job);
  if (first) job.load = tile_start(p, job.c, job.c_rs, row, col, job.rows, job.cols);
  if (kern->half && p->staged && !whole && !job.load && g->c_dtype == TIDE_BF16) {
    job.half = (uint16_t *)g->c + row * g->c_rs + col;
    job.half_rs = g->c_rs;
  }
  kern->run(&job);
  if (!last || !p->staged || job.half) return;
  tile_half out = {.src = job.c, .src_rs = job.c_rs, .dst_rs = g->c_rs, .dtype = g->c_dtype};
  out.dst = (uint16_t *)g->c + row * g->c_rs + col;
  out.rows = job.rows, out.cols = job.cols;
  kern->to_half(&out);
}

static void gemm_run_block(const block *b, int64_t ic, int64_t *held)
{
  const plan *p = b->p;
  const tile_kernel *kern = p->kern;
  int64_t nkc = i64_ceil_div(p->k_pad, p->kc);
  for (int64_t pc = 0; pc < nkc; pc++) {
    int64_t k0 = pc * p->kc, kc = i64_min(p->kc, p->k_pad - k0);
    int fresh = *held != ic * nkc + pc;
    if (fresh && !p->lazy) pack_a_block(p, b->a, b->row, b->rows, k0, kc);
    *held = p->single ? -1 : ic * nkc + pc;
    for (int64_t j0 = 0; j0 < b->cols; j0 += p->nb) {
      panel a = {.j0 = j0, .j1 = i64_min(b->cols, j0 + p->nb), .k0 = k0, .kc = kc};
      a.share = i64_ceil_div(kern->mr, i64_ceil_div(i64_min(p->nb, b->cols), kern->nr));
      for (int64_t i = 0; i < b->rows; i += kern->mr) {
        a.i = i;
        if (p->lazy && fresh && j0 == 0)
          pack_a_block(p, b->a + (p->single ? 0 : i * kc * kern->esize), b->row + i,
                       i64_min(kern->mr, b->rows - i), k0, kc);
        for (int64_t j = j0; j < a.j1; j += kern->nr) run_tile(b, &a, j);
      }
    }
  }
}

/* Returns the scratch of a thread of a run. */
static char *gemm_scratch_of(const plan *p, int thread)
{
  return p->work + (p->own ? 0 : p->b_bytes) + gemm_thread_bytes(p) * thread;
}

static void gemm_run_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const plan *p = arg;
  char *mine = gemm_scratch_of(p, thread);
  held_parts *held = (held_parts *)mine;
  const int64_t mr = p->kern->mr, nr = p->kern->nr;
  char *packed = p->own ? mine + p->a_bytes + p->stage_bytes : p->work;
  if (p->own && !held->b) pack_b_part(p, packed, 0, i64_ceil_div(p->ncol, nr));
  held->b = 1;
  if (p->kern->begin) p->kern->begin();
  for (int64_t t = begin; t < end; t++) {
    int64_t ic = t / p->col_parts, js = t % p->col_parts;
    int64_t col = gemm_part_begin(p->ncol, nr, p->col_parts, js);
    block b = {.p = p, .a = mine + GEMM_LINE, .b = packed};
    b.row = gemm_part_begin(p->g->m, mr, p->row_parts, ic);
    b.rows = gemm_part_begin(p->g->m, mr, p->row_parts, ic + 1) - b.row;
    b.cols = gemm_part_begin(p->ncol, nr, p->col_parts, js + 1) - col;
    b.col = p->col0 + col;
    b.stage = (float *)(mine + p->a_bytes);
    /* a last round may be narrower than its parts */
    if (b.cols > 0) gemm_run_block(&b, ic, &held->a);
  }
  if (p->kern->end) p->kern->end();
}

static void run_tiles(const plan *planned, const cpu_gemm *g, void *work)
{
  plan run = *planned, *p = &run;
  p->g = g;
  p->work = work;
  for (p->col0 = 0; p->col0 < g->n; p->col0 += p->nround) {
    p->ncol = i64_min(p->nround, g->n - p->col0);
    for (int t = 0; t < p->nthread; t++)
      *(held_parts *)gemm_scratch_of(p, t) = (held_parts){ .a = -1 };
    if (!p->own)
      tide__pool_for(p->nthread, i64_ceil_div(p->ncol, p->kern->nr), 1, pack_b_panels, p);
    tide__pool_tasks(p->nthread, p->row_parts * p->col_parts, 1, gemm_run_tasks, p);
  }
}

/* Writes C for k = 0: C = bias or 0, or C + bias. */
static void empty_sum(const cpu_gemm *g)
{
  int64_t size = vec_size(g->c_dtype);
  for (int64_t r = 0; r < g->m; r++) {
    char *c = (char *)g->c + r * g->c_rs * size;
    if (!g->accumulate && !g->bias) memset(c, 0, (size_t)(g->n * size));
    else if (!g->accumulate) memcpy(c, g->bias, (size_t)(g->n * size));
    else if (g->bias && g->c_dtype == TIDE_F32) row_add((float *)c, (float *)c, g->bias, g->n);
    else if (g->bias && g->c_dtype == TIDE_F64) row_add_f64((double *)c, g->bias, g->n);
    else if (g->bias)
      for (int64_t j = 0; j < g->n; j++) {
        float pair[2];
        row_load(pair, c, j, 1, g->c_dtype);
        row_load(pair + 1, g->bias, j, 1, g->c_dtype);
        pair[0] += pair[1];
        tile_half one = {.src = pair, .dst = (uint16_t *)c + j, .rows = 1, .cols = 1};
        one.dtype = g->c_dtype;
        tide__tile_to_half(&one);
      }
  }
}

static void run_method(const plan *p, const cpu_gemm *g, void *work)
{
  if (p->method == GEMM_TILES) run_tiles(p, g, work);
  else if (p->method == GEMM_SKINNY) tide__tile_skinny(g, p->nthread, work, p->isa);
  else if (p->method == GEMM_THIN) tide__thin_run(p, g, work);
  else if (p->method == GEMM_NO_SUM) empty_sum(g);
}

/* ---- few rows: the transposed product ---------- */

enum { TRANSPOSE_SIDE = 32 };

typedef struct strips { const cpu_gemm *g; const float *sums; } strips;

/* Transposes strips of TRANSPOSE_SIDE columns of C. */
static void transpose_strips(void *arg, int64_t begin, int64_t end, int thread)
{
  const strips *t = arg;
  (void)thread;
  for (int64_t s = begin; s < end; s++) {
    int64_t j = s * TRANSPOSE_SIDE, n = i64_min(TRANSPOSE_SIDE, t->g->n - j);
    for (int64_t r = 0; r < t->g->m; r++) {
      float row[TRANSPOSE_SIDE];
      for (int64_t i = 0; i < n; i++) row[i] = t->sums[(j + i) * t->g->m + r];
      tide__gemm_put_row(t->g, row, r, j, n);
    }
  }
}

static void run_transposed(const plan *p, const cpu_gemm *g, char *work)
{
  cpu_gemm back = gemm_transposed(g, work);
  strips t = {.g = g, .sums = back.c};
  run_method(p, &back, work + gemm_transposed_bytes(g));
  tide__pool_for(p->nthread, i64_ceil_div(g->n, TRANSPOSE_SIDE), 16, transpose_strips, &t);
}

/* ---- entry points --- */

void tide__cpu_gemm_run(const cpu_gemm_plan *p, const cpu_gemm *g, void *work)
{
  if (p->transposed) run_transposed(p, g, work);
  else run_method(p, g, work);
}

void tide__cpu_gemm(const cpu_gemm *g, int nthread, void *work)
{
  cpu_gemm_plan p;
  tide__cpu_gemm_plan(&p, g, nthread);
  tide__cpu_gemm_run(&p, g, work);
}
