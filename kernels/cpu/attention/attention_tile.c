/* Portable inner loops of attention, and the choice of instruction set. See attention.h.
 *
 * The innermost loop always runs over the 16 lanes of a group with unit stride, so that the
 * compiler can vectorise it for any instruction set.
 */
#include "kernels/cpu/attention/attention.h"

enum { L = ATTN_LANE };

/* ---- product ---- */

TIDE_LEVELS(void, gemm_rows4, (const attn_gemm *g, int64_t i0, int j0), (g, i0, j0))
{
  const int64_t n = g->m - i0 < 4 ? g->m - i0 : 4;
  float acc[4][L] = { { 0 } };
  for (int64_t p = 0; p < g->k; p++) {
    const float *b = g->b + p * g->ldb + j0;
    for (int64_t i = 0; i < n; i++) {
      const float a = g->a[(i0 + i) * g->rs + p * g->cs];
      for (int l = 0; l < L; l++) acc[i][l] += a * b[l];
    }
  }
  for (int64_t i = 0; i < n; i++) {
    float *c = g->c + (i0 + i) * g->ldc + j0;
    for (int l = 0; l < L; l++) c[l] = (g->add ? c[l] : 0.0f) + acc[i][l];
  }
}

static void gemm(const attn_gemm *g)
{
  for (int v = 0; v < g->nv; v++)
    for (int64_t i = 0; i < g->m; i += 4) gemm_rows4(g, i, v * L);
}

/* ---- softmax ---- */

/* 2^x; 0 below -1000, NaN stays NaN. */
TIDE_INLINE float exp2_lane(float x) { return tide__expf(x * ATTN_LN2); }

TIDE_INLINE int visible(const attn_lanes *m, int64_t j, int l)
{
  return (m->kdoc[j] == m->qdoc[l]) & (m->kpos[j] >= m->qlo[l]) & (m->kpos[j] <= m->qhi[l]);
}

TIDE_LEVELS(void, hide, (float *s, int64_t n, const attn_lanes *m), (s, n, m))
{
  for (int64_t j = 0; j < n; j++)
    for (int l = 0; l < L; l++)
      if (!visible(m, j, l)) s[j * ATTN_Q + l] = -INFINITY;
}

/* Returns 1 if a lane that had seen a key gets a new maximum. */
TIDE_LEVELS(int, raise_top, (const attn_soft *t, float *base), (t, base))
{
  float top[L];
  int grown = 0;
  for (int l = 0; l < L; l++) top[l] = -INFINITY;
  for (int64_t j = 0; j < t->n; j++)
    for (int l = 0; l < L; l++) {
      const float x = t->s[j * ATTN_Q + l];
      top[l] = x > top[l] ? x : top[l];
    }
  for (int l = 0; l < L; l++) {
    const float seen = top[l] == -INFINITY ? top[l] : top[l] * t->mul;
    const float old = t->top[l];
    const float new = seen > old + 8.0f ? seen : old;
    base[l] = new == -INFINITY ? 0.0f : new;
    t->alpha[l] = new > old ? exp2_lane(old - base[l]) : 1.0f;
    grown |= (new > old) & (old > -INFINITY);
    t->top[l] = new;
  }
  return grown;
}

TIDE_LEVELS(void, exponentials, (const attn_soft *t, const float *base), (t, base))
{
  float sum[L] = { 0 };
  for (int64_t j = 0; j < t->n; j++)
    for (int l = 0; l < L; l++) {
      const float p = exp2_lane(t->s[j * ATTN_Q + l] * t->mul - base[l]);
      t->s[j * ATTN_Q + l] = p;
      sum[l] += p;
    }
  for (int l = 0; l < L; l++) t->sum[l] = t->sum[l] * t->alpha[l] + sum[l];
}

static int attn_tile_soft(const attn_soft *t)
{
  float base[L];
  if (t->lanes) hide(t->s, t->n, t->lanes);
  const int grown = raise_top(t, base);
  exponentials(t, base);
  return grown;
}

TIDE_LEVELS(void, rescale, (float *ot, int64_t n, const float *alpha), (ot, n, alpha))
{
  for (int64_t d = 0; d < n; d++)
    for (int l = 0; l < L; l++) ot[d * ATTN_Q + l] *= alpha[l];
}

TIDE_LEVELS(void, grad, (const attn_grad *t), (t))
{
  for (int64_t j = 0; j < t->n; j++) {
    float *s = t->s + j * ATTN_Q, *dp = t->dp + j * ATTN_Q;
    for (int l = 0; l < L; l++) {
      s[l] = exp2_lane(s[l] * t->mul - t->lse[l]);
      dp[l] = s[l] * (dp[l] - t->delta[l]);
    }
    if (t->lanes)
      for (int l = 0; l < L; l++) {
        const int hidden = !visible(t->lanes, j, l);
        s[l] = hidden ? 0.0f : s[l];
        dp[l] = hidden ? 0.0f : dp[l];
      }
    if (t->dbias)
      for (int l = 0; l < L; l++) t->dbias[j * ATTN_Q + l] = dp[l];
    if (t->slope)
      for (int l = 0; l < L; l++) {
        const float x = dp[l] * t->slope[j * ATTN_Q + l];
        dp[l] = s[l] == 0.0f ? 0.0f : x;
      }
  }
}

static void attn_tile_transpose(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t m,
                                int64_t n, float scale)
{
  for (int64_t j = 0; j < n; j++)
    for (int64_t i = 0; i < m; i++) dst[j * ldd + i] = src[i * lds + j] * scale;
}

const attn_tiles *tide__attn_tiles(int isa)
{
  static const attn_tiles portable = { gemm, attn_tile_soft, rescale, grad, attn_tile_transpose };
  const attn_tiles *t = isa & CPU_ISA_AVX512 ? tide__attn_tiles_avx512() : 0;
  return t ? t : &portable;
}
