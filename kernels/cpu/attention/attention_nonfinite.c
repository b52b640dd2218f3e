/* Values that are not finite, in rows that a mask or a bias of -inf hides. See attention.h.
 *
 * A hidden pair has weight exactly 0, but 0 * NaN and 0 * inf are NaN, so in a product over rows
 * one document's NaN would reach all that share its tiles. Rows with such values are left out of
 * the product, and their terms are added singly where the weight is not 0. Without a bias only
 * tiles that a mask cuts are searched: elsewhere every weight counts.
 */
#include "kernels/cpu/attention/attention.h"

enum { L = ATTN_LANE };

int tide__attn_cut(const attn_span *span, int n, int32_t k0, int32_t k1)
{
  for (int c = 0; c < n; c++)
    if (!span[c].full || span[c].k0 > k0 || span[c].k1 < k1) return 1;
  return 0;
}

TIDE_INLINE uint32_t is_nonfinite(float x)
{
  return (tide__f32_bits(x) & 0x7f800000u) == 0x7f800000u;
}

TIDE_LEVELS_GLOBAL(int, tide__attn_has_nonfinite,
                   (const float *x, int64_t n, int64_t ld, int64_t width), (x, n, ld, width))
{
  enum { AT_ONCE = 16 };
  uint32_t nonfinite[AT_ONCE] = { 0 }, any = 0;
  for (int64_t i = 0; i < n; i++, x += ld) {
    int64_t j = 0;
    for (; j + AT_ONCE <= width; j += AT_ONCE)
      for (int l = 0; l < AT_ONCE; l++) nonfinite[l] |= is_nonfinite(x[j + l]);
    for (; j < width; j++) any |= is_nonfinite(x[j]);
  }
  for (int l = 0; l < AT_ONCE; l++) any |= nonfinite[l];
  return any != 0;
}

int tide__attn_search(const attn *s, const float *x, int64_t n, int64_t ld, int64_t width)
{
  if (!attn_hides(s) || !tide__attn_has_nonfinite(x, n, ld, width)) return ATTN_FINITE;
  return k_absent(s->bias) ? ATTN_OUT_OF_CUT : ATTN_OUT_OF_ALL;
}

/* Returns the first of rows [i, n) that is not finite, or n. */
static int64_t next_nonfinite(const float *x, int64_t ld, int64_t width, int64_t i, int64_t n)
{
  while (i < n) {
    const int64_t most = i64_min(n - i, L);
    if (tide__attn_has_nonfinite(x + i * ld, most, ld, width)) break;
    i += most;
  }
  while (i < n && !tide__attn_has_nonfinite(x + i * ld, 1, ld, width)) i++;
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
    const int64_t next = next_nonfinite(rows, ld, width, p, g->k);
    attn_gemm part = *g;
    part.k = next - p;
    part.a += p * g->cs;
    part.b += p * g->ldb;
    if (part.k > 0) tiles->gemm(&part);
    if (next < g->k) add_terms(g, next, a_is_weight);
    p = next + 1;
  }
}

attn_span tide__attn_part(const attn_tiles *tiles, const attn_span span[ATTN_NG], int p)
{
  attn_span r = span[p * tiles->together];
  for (int c = 1; c < tiles->together; c++)
    r = tide__attn_join(r, span[p * tiles->together + c]);
  return r;
}

void tide__attn_gemm_keys(const attn_tiles *tiles, const attn_span span[ATTN_NG],
                          const attn_gemm *g, int nonfinite)
{
  const int n = tiles->together, npart = ATTN_NG / n;
  attn_span part[ATTN_NG];
  int same = 1;
  for (int p = 0; p < npart; p++) {
    part[p] = tide__attn_part(tiles, span, p);
    same &= part[p].k0 == part[0].k0 && part[p].k1 == part[0].k1;
  }
  for (int p = 0; p < (same ? 1 : npart); p++) {
    const int32_t k0 = part[p].k0, k1 = part[p].k1;
    attn_gemm one = *g;
    if (k0 == k1) continue;
    one.nv = same ? ATTN_NG : n;
    one.k = k1 - k0;
    one.add = 1;
    one.a += k0 * g->cs;
    one.b += k0 * g->ldb + p * n * L;
    one.c += p * n * L;
    if (nonfinite == ATTN_OUT_OF_ALL ||
        (nonfinite && tide__attn_cut(span + p * n, one.nv, k0, k1)))
      tide__attn_gemm_cut(tiles, &one, 0);
    else tiles->gemm(&one);
  }
}
