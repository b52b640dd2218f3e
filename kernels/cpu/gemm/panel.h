/* Small products of operands that a kernel packs itself, on one thread: whole matrices and
 * triangles, by the register tiles of tile.h. For kernels that multiply the same few blocks in many
 * ways (the scans); others call gemm.h.
 */
#pragma once

#include "kernels/cpu/gemm/tile.h"

/* Scratch is taken in pieces of whole lines; a null base only counts. */
typedef struct panel_arena {
  char   *base;
  int64_t used;
} panel_arena;
void *tide__panel_take(panel_arena *r, int64_t bytes);
void *tide__panel_take_a(panel_arena *r, const tile_kernel *kern, int64_t m, int64_t k);
void *tide__panel_take_b(panel_arena *r, const tile_kernel *kern, int64_t n, int64_t k);

/* A matrix to pack: element (i, p) at src[i * is + p * ps], i along rows of A or columns of B. */
typedef struct panel_mat {
  const void *src;
  int64_t     is, ps;
  int         dtype;
} panel_mat;
void tide__panel_pack_a(const tile_kernel *kern, void *to, panel_mat m, int64_t rows, int64_t k);
void tide__panel_pack_b(const tile_kernel *kern, void *to, panel_mat m, int64_t cols, int64_t k);
/* Packs panels of a triangular A of n x n: rows i with columns k <= i (lower), or k >= i. */
void tide__panel_pack_lower(const tile_kernel *kern, void *to, panel_mat m, int64_t n);
void tide__panel_pack_upper(const tile_kernel *kern, void *to, panel_mat m, int64_t n);

/* c (+)= A B of packed operands, c row-major with rows c_rs apart. */
typedef struct panel_mm {
  const void *a, *b;
  float      *c;
  int64_t     c_rs, m, n, k;
  int         load;
} panel_mm;
void tide__panel_mm(const tile_kernel *kern, panel_mm j);
/* Computes only tiles that hold an element with column >= row. */
void tide__panel_mm_triangle(const tile_kernel *kern, panel_mm j);
/* A is triangular of m x m, packed as above; k is m. */
void tide__panel_mm_lower(const tile_kernel *kern, panel_mm j);
void tide__panel_mm_upper(const tile_kernel *kern, panel_mm j);

/* Zeroes what tiles near the diagonal read left of element `at` of a triangle's row. */
void tide__panel_clear(const tile_kernel *kern, void *row, int64_t at);
