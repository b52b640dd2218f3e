/* Values that are not finite, in rows that a mask hides. See attention.h.
 *
 * A masked pair has weight exactly 0, but 0 * NaN and 0 * inf are NaN, so in a product over rows
 * one document's NaN would reach all that share its tiles. Rows with such values are left out of
 * the product, and their terms are added singly where the weight is not 0. Only tiles that a mask
 * cuts are searched: elsewhere every weight counts.
 */
#include "kernels/cpu/attention/attention.h"

enum { L = ATTN_LANE };

int tide__attn_cut(const attn_span span[ATTN_NG])
{
  for (int c = 0; c < ATTN_NG; c++)
    if (!span[c].full || span[c].k0 != span[0].k0 || span[c].k1 != span[0].k1) return 1;
  return 0;
}

TIDE_LEVELS(int, is_odd, (const float *x, int64_t n), (x, n))
{
  uint32_t odd = 0;
  for (int64_t i = 0; i < n; i++) odd |= (tide__f32_bits(x[i]) & 0x7f800000u) == 0x7f800000u;
  return odd != 0;
}

/* Returns the first of rows [i, n) that is not finite, or n. */
static int64_t next_nonfinite(const float *x, int64_t ld, int64_t width, int64_t i, int64_t n)
{
  while (i < n && !is_odd(x + i * ld, width)) i++;
  return i;
}

/* Adds the terms of row p of the inner dimension; one of the two factors is the weight. */
static void add_terms(const attn_gemm *g, int64_t p, int a_is_weight)
{
  const float *b = g->b + p * g->ldb;
  for (int64_t i = 0; i < g->m; i++) {
    const float a = g->a[i * g->rs + p * g->cs];
    float *c = g->c + i * g->ldc;
    for (int64_t j = 0; j < g->nv * L; j++)
      if ((a_is_weight ? a : b[j]) != 0.0f) c[j] += a * b[j];
  }
}

void tide__attn_gemm_cut(const attn_tiles *tiles, const attn_gemm *g, int a_is_weight)
{
  const float *rows = a_is_weight ? g->b : g->a;
  const int64_t ld = a_is_weight ? g->ldb : g->cs, width = a_is_weight ? g->nv * L : g->m;
  for (int64_t p = 0; p < g->k;) {
    const int64_t odd = next_nonfinite(rows, ld, width, p, g->k);
    attn_gemm part = *g;
    part.k = odd - p;
    part.a += p * g->cs;
    part.b += p * g->ldb;
    if (part.k > 0) tiles->gemm(&part);
    if (odd < g->k) add_terms(g, odd, a_is_weight);
    p = odd + 1;
  }
}
