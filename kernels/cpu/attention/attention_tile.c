/* Inner loops of attention in vectors of the compiler, for processors without AVX2, and the choice
 * of instruction set. See attention.h.
 *
 * The innermost loop of a softmax runs over the 16 lanes of a group with unit stride, so that the
 * compiler can vectorise it for any instruction set.
 */
#include "kernels/cpu/attention/attention.h"

enum { L = ATTN_LANE };

/* ---- product ---- */

/* 16 bytes: compilers keep wider vectors in memory on machines without them. The sums of a tile,
 * its vectors of B and words of A fill the registers: 16 on x86, 32 with NEON. */
typedef float vec4 __attribute__((vector_size(16)));

#if defined(__x86_64__)
enum { ROWS = 6, WIDE = L / 2, VECS = WIDE / 4 };
#else
enum { ROWS = 5, WIDE = L, VECS = WIDE / 4 };
#endif

/* Computes rows [i0, i0 + n) of C, columns [j0, j0 + WIDE); n is a constant where this is
 * inlined. */
TIDE_INLINE void gemm_rows(const attn_gemm *g, int64_t i0, int64_t j0, const int n)
{
  const float *a = g->a + i0 * g->rs, *b = g->b + j0;
  float *c = g->c + i0 * g->ldc + j0;
  vec4 acc[ROWS][VECS], row[VECS];
#pragma GCC unroll 6
  for (int i = 0; i < n; i++)
#pragma GCC unroll 4
    for (int v = 0; v < VECS; v++) {
      acc[i][v] = (vec4){ 0 };
      if (g->add) memcpy(&acc[i][v], c + i * g->ldc + v * 4, sizeof(vec4));
    }
  for (int64_t p = g->k; p > 0; p--, a += g->cs, b += g->ldb) {
#pragma GCC unroll 4
    for (int v = 0; v < VECS; v++) memcpy(&row[v], b + v * 4, sizeof(vec4));
#pragma GCC unroll 6
    for (int i = 0; i < n; i++) {
      const float x = a[i * g->rs];
#pragma GCC unroll 4
      for (int v = 0; v < VECS; v++) acc[i][v] += x * row[v];
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < n; i++)
#pragma GCC unroll 4
    for (int v = 0; v < VECS; v++) memcpy(c + i * g->ldc + v * 4, &acc[i][v], sizeof(vec4));
}

static void gemm(const attn_gemm *g)
{
  for (int64_t j = 0; j < g->nv * L; j += WIDE) {
    int64_t i = 0;
    for (; i + ROWS <= g->m; i += ROWS) gemm_rows(g, i, j, ROWS);
    switch (g->m - i) {
      case 5: gemm_rows(g, i, j, 5); break;
      case 4: gemm_rows(g, i, j, 4); break;
      case 3: gemm_rows(g, i, j, 3); break;
      case 2: gemm_rows(g, i, j, 2); break;
      case 1: gemm_rows(g, i, j, 1); break;
      default: break;
    }
  }
}

/* ---- softmax ---- */

/* Returns 2^x to 1e-7; 0 below -126.5, infinite above 128, NaN stays NaN. */
TIDE_INLINE float exp2_lane(float x)
{
  const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
  float c = x > 128.0f ? 128.0f : x;
  c = c < -127.0f ? -127.0f : c;
  const float t = c + shift, f = c - (t - shift);
  float p = 0.00132764721f;
  p = p * f + 0.00967554145f;
  p = p * f + 0.0555071327f;
  p = p * f + 0.240221197f;
  p = p * f + 0.693146967f;
  p = p * f + 1.0f;
  return p * tide__bits_f32((tide__f32_bits(t) + 127u) << 23);
}

static void hide(float *s, int64_t n, const attn_lanes *m)
{
  for (int64_t j = 0; j < n; j++)
    for (int l = 0; l < L; l++)
      if (!attn_visible(m, j, l)) s[j * ATTN_Q + l] = -INFINITY;
}

TIDE_INLINE float larger(float x, float y) { return x > y ? x : y; }

/* Returns 1 if a lane that had seen a key gets a new maximum. */
static int raise_top(const attn_soft *t, float *base)
{
  float top[L];
  int grown = 0;
  for (int l = 0; l < L; l++) top[l] = -INFINITY;
  int64_t j = 0;
  for (const float *s = t->s; j + 4 <= t->n; j += 4, s += 4 * ATTN_Q)
    for (int l = 0; l < L; l++) {
      const float a = larger(s[l], s[ATTN_Q + l]);
      const float b = larger(s[2 * ATTN_Q + l], s[3 * ATTN_Q + l]);
      top[l] = larger(larger(a, b), top[l]);
    }
  for (; j < t->n; j++)
    for (int l = 0; l < L; l++) top[l] = larger(t->s[j * ATTN_Q + l], top[l]);
  for (int l = 0; l < L; l++) {
    const float old = t->top[l], new = top[l] > old + 8.0f ? top[l] : old;
    base[l] = new == -INFINITY ? 0.0f : new;
    t->alpha[l] = new > old ? exp2_lane(old - base[l]) : 1.0f;
    grown |= (new > old) & (old > -INFINITY);
    t->top[l] = new;
  }
  return grown;
}

static void exponentials(const attn_soft *t, const float *base)
{
  float sum[L] = { 0 };
  for (int64_t j = 0; j < t->n; j++)
    for (int l = 0; l < L; l++) {
      const float p = exp2_lane(t->s[j * ATTN_Q + l] - base[l]);
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

static void rescale(float *ot, int64_t n, const float *alpha)
{
  for (int64_t d = 0; d < n; d++)
    for (int l = 0; l < L; l++) ot[d * ATTN_Q + l] *= alpha[l];
}

static void grad(const attn_grad *t)
{
  for (int64_t j = 0; j < t->n; j++) {
    float *s = t->s + j * ATTN_Q, *dp = t->dp + j * ATTN_Q;
    int hidden[L];
    for (int l = 0; l < L; l++) hidden[l] = t->bias & (s[l] == -INFINITY);
    if (t->lanes)
      for (int l = 0; l < L; l++) hidden[l] |= !attn_visible(t->lanes, j, l);
    for (int l = 0; l < L; l++) {
      s[l] = exp2_lane(s[l] - t->lse[l]);
      dp[l] = s[l] * (dp[l] - t->delta[l]);
    }
    if (t->lanes || t->bias)
      for (int l = 0; l < L; l++) {
        s[l] = hidden[l] ? 0.0f : s[l];
        dp[l] = hidden[l] ? 0.0f : dp[l];
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
  static const attn_tiles portable = { gemm, attn_tile_soft, rescale, grad, attn_tile_transpose,
                                       1 };
  const attn_tiles *t = isa & CPU_ISA_AVX512 ? tide__attn_tiles_avx512()
                        : isa & CPU_ISA_AVX2 ? tide__attn_tiles_avx2() : 0;
  return t ? t : &portable;
}
