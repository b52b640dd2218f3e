/* Packing of panels and products of packed panels. See panel.h. */
#include "kernels/cpu/gemm/panel.h"

#include "kernels/cpu/vec.h"

enum { LINE = 64 };

/* ---- scratch ------------------------------------------------------------------------------- */

void *tide__panel_take(panel_arena *r, int64_t bytes)
{
  void *p = r->base ? r->base + r->used : 0;
  r->used += i64_round_up(bytes, LINE) + LINE; /* one more line: equal sizes would alias */
  return p;
}

void *tide__panel_take_a(panel_arena *r, const tile_kernel *kern, int64_t m, int64_t k)
{
  return tide__panel_take(r, i64_round_up(m, kern->mr) * i64_round_up(k, kern->kr) * kern->esize);
}

void *tide__panel_take_b(panel_arena *r, const tile_kernel *kern, int64_t n, int64_t k)
{
  return tide__panel_take(r, i64_round_up(n, kern->nr) * i64_round_up(k, kern->kr) * kern->esize);
}

/* ---- packing ------------------------------------------------------------------------------- */

static tile_strip strip_of(panel_mat m, int64_t i, int64_t p, int64_t n, int64_t k, int64_t k_pad)
{
  tile_strip t = {.is = m.is, .ps = m.ps, .n = n, .k = k, .k_pad = k_pad, .dtype = m.dtype};
  t.src = (const char *)m.src + (i * m.is + p * m.ps) * vec_size(m.dtype);
  return t;
}

void tide__panel_pack_a(const tile_kernel *kern, void *to, panel_mat m, int64_t rows, int64_t k)
{
  tile_strip t = strip_of(m, 0, 0, rows, k, i64_round_up(k, kern->kr));
  t.width = kern->mr;
  kern->pack_a(to, &t);
}

void tide__panel_pack_b(const tile_kernel *kern, void *to, panel_mat m, int64_t cols, int64_t k)
{
  tile_strip t = strip_of(m, 0, 0, cols, k, i64_round_up(k, kern->kr));
  t.width = kern->nr;
  kern->pack_b(to, &t);
}

/* Returns in [*k0, *k1) the extent along k of the panel of rows i.. of a triangle. */
static void extent(const tile_kernel *kern, int64_t i, int64_t n, int lower, int64_t *k0,
                   int64_t *k1)
{
  int64_t kr = kern->kr;
  *k0 = lower ? 0 : i / kr * kr;
  *k1 = lower ? i64_min(n, i + kern->mr) : n;
}

static char *panel_of(const tile_kernel *kern, const void *a, int64_t i, int64_t n)
{
  return (char *)a + i * i64_round_up(n, kern->kr) * kern->esize;
}

static void pack_triangle(const tile_kernel *kern, void *to, panel_mat m, int64_t n, int lower)
{
  for (int64_t i = 0; i < n; i += kern->mr) {
    int64_t k0, k1;
    extent(kern, i, n, lower, &k0, &k1);
    tile_strip t = strip_of(m, i, k0, i64_min(kern->mr, n - i), k1 - k0,
                            i64_round_up(k1 - k0, kern->kr));
    t.width = kern->mr;
    kern->pack_a(panel_of(kern, to, i, n), &t);
  }
}

void tide__panel_pack_lower(const tile_kernel *kern, void *to, panel_mat m, int64_t n)
{
  pack_triangle(kern, to, m, n, 1);
}

void tide__panel_pack_upper(const tile_kernel *kern, void *to, panel_mat m, int64_t n)
{
  pack_triangle(kern, to, m, n, 0);
}

/* ---- products ------------------------------------------------------------------------------ */

/* Computes rows i.. of c from column j0 on; a is their panel, holding k0 <= k < k0 + depth. */
static void row_of_tiles(const tile_kernel *kern, const panel_mm *j, int64_t i, int64_t j0,
                         const void *a, int64_t k0, int64_t depth)
{
  int64_t k_pad = i64_round_up(j->k, kern->kr);
  tile_job job = {.k = i64_round_up(depth, kern->kr), .a = a, .c_rs = j->c_rs, .load = j->load};
  job.rows = (int)i64_min(kern->mr, j->m - i);
  for (int64_t col = j0; col < j->n; col += kern->nr) {
    job.b = (const char *)j->b + (col * k_pad + k0 * kern->nr) * kern->esize;
    job.c = j->c + i * j->c_rs + col;
    job.cols = (int)i64_min(kern->nr, j->n - col);
    kern->run(&job);
  }
}

void tide__panel_mm(const tile_kernel *kern, panel_mm j)
{
  for (int64_t i = 0; i < j.m; i += kern->mr)
    row_of_tiles(kern, &j, i, 0, panel_of(kern, j.a, i, j.k), 0, j.k);
}

void tide__panel_mm_triangle(const tile_kernel *kern, panel_mm j)
{
  for (int64_t i = 0; i < j.m; i += kern->mr)
    row_of_tiles(kern, &j, i, i / kern->nr * kern->nr, panel_of(kern, j.a, i, j.k), 0, j.k);
}

static void mm_of_triangle(const tile_kernel *kern, const panel_mm *j, int lower)
{
  for (int64_t i = 0; i < j->m; i += kern->mr) {
    int64_t k0, k1;
    extent(kern, i, j->m, lower, &k0, &k1);
    row_of_tiles(kern, j, i, 0, panel_of(kern, j->a, i, j->m), k0, k1 - k0);
  }
}

void tide__panel_mm_lower(const tile_kernel *kern, panel_mm j) { mm_of_triangle(kern, &j, 1); }
void tide__panel_mm_upper(const tile_kernel *kern, panel_mm j) { mm_of_triangle(kern, &j, 0); }

void tide__panel_clear(const tile_kernel *kern, void *row, int64_t at)
{
  int64_t size = kern->esize, reach = kern->mr + kern->kr;
  int64_t from = at > reach ? at - reach : 0;
  memset((char *)row + from * size, 0, (size_t)((at - from) * size));
}
