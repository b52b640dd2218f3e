/* AVX-512 inner loops of attention. See attention.h.
 *
 * A tile of 6 rows by 4 vectors stays in registers over the whole inner dimension; A is read by
 * broadcast, B by unit-stride loads: 10 loads for 24 fused multiply-adds.
 *
 * Only called when the processor has AVX-512 F, BW, DQ and VL.
 */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/transpose16.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include "kernels/cpu/attention/attention_soft.h"

/* ---- product ---- */

/* rs1: A's row stride is 1, else its column stride is. */
TIDE_AVX512_INLINE void kernel(int mr, int nv, int rs1, const attn_gemm *g, int64_t i0)
{
  const float *a = g->a + i0 * (rs1 ? 1 : g->rs), *b = g->b;
  float *c = g->c + i0 * g->ldc;
  const int64_t step = rs1 ? g->cs : 1, rs = rs1 ? 1 : g->rs, ldb = g->ldb, ldc = g->ldc;
  __m512 acc[6][4], bv[4];
#pragma GCC unroll 6
  for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++)
      acc[i][j] = g->add ? _mm512_loadu_ps(c + i * ldc + 16 * j) : _mm512_setzero_ps();
  for (int64_t p = g->k; p > 0; p--, a += step, b += ldb) {
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) bv[j] = _mm512_loadu_ps(b + 16 * j);
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++) {
      const __m512 av = _mm512_set1_ps(a[i * rs]);
#pragma GCC unroll 4
      for (int j = 0; j < nv; j++) acc[i][j] = _mm512_fmadd_ps(av, bv[j], acc[i][j]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < mr; i++)
#pragma GCC unroll 4
    for (int j = 0; j < nv; j++) _mm512_storeu_ps(c + i * ldc + 16 * j, acc[i][j]);
}

TIDE_AVX512_INLINE void strips(int nv, int rs1, const attn_gemm *g)
{
  int64_t i = 0;
  for (; i + 6 <= g->m; i += 6) kernel(6, nv, rs1, g, i);
  switch (g->m - i) {
    case 5: kernel(5, nv, rs1, g, i); break;
    case 4: kernel(4, nv, rs1, g, i); break;
    case 3: kernel(3, nv, rs1, g, i); break;
    case 2: kernel(2, nv, rs1, g, i); break;
    case 1: kernel(1, nv, rs1, g, i); break;
    default: break;
  }
}

#define STRIPS(nv, rs1) \
  TIDE_AVX512 static __attribute__((noinline)) void strips_##nv##_##rs1(const attn_gemm *g) \
  { \
    strips(nv, rs1, g); \
  }
STRIPS(1, 0) STRIPS(2, 0) STRIPS(3, 0) STRIPS(4, 0)
STRIPS(1, 1) STRIPS(2, 1) STRIPS(3, 1) STRIPS(4, 1)

TIDE_AVX512 static void gemm(const attn_gemm *g)
{
  static void (*const run[2][4])(const attn_gemm *) = {
    { strips_1_0, strips_2_0, strips_3_0, strips_4_0 },
    { strips_1_1, strips_2_1, strips_3_1, strips_4_1 },
  };
  attn_gemm part = *g;
  for (int left = g->nv; left > 0; left -= part.nv) {
    part.nv = left < 4 ? left : 4;
    run[part.rs == 1 && part.cs != 1][part.nv - 1](&part);
    part.b += 16 * part.nv;
    part.c += 16 * part.nv;
  }
}

/* ---- softmax ---- */

TIDE_AVX512 static int soft(const attn_soft *t)
{
  if (t->lanes) hide_lanes(t->s, t->n, t->lanes);
  int grown;
  const __m512 seen = column_max(t->s, t->n);
  const __m512 base = raise_top(t->top, t->alpha, seen, 1.0f, 0, &grown);
  __m512 sum[4];
  for (int u = 0; u < 4; u++) sum[u] = _mm512_setzero_ps();
  float *s = t->s;
  int64_t j = 0;
  for (; j + 4 <= t->n; j += 4, s += 4 * ATTN_Q) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) {
      const __m512 p = vec_exp2(_mm512_sub_ps(_mm512_loadu_ps(s + u * ATTN_Q), base));
      _mm512_storeu_ps(s + u * ATTN_Q, p);
      sum[u] = _mm512_add_ps(sum[u], p);
    }
  }
  for (; j < t->n; j++, s += ATTN_Q) {
    const __m512 p = vec_exp2(_mm512_sub_ps(_mm512_loadu_ps(s), base));
    _mm512_storeu_ps(s, p);
    sum[0] = _mm512_add_ps(sum[0], p);
  }
  const __m512 total = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  _mm512_storeu_ps(t->sum, _mm512_fmadd_ps(_mm512_loadu_ps(t->sum), _mm512_loadu_ps(t->alpha),
                                           total));
  return grown;
}

TIDE_AVX512 static void rescale(float *ot, int64_t n, const float *alpha)
{
  const __m512 a = _mm512_loadu_ps(alpha);
  for (int64_t d = 0; d < n; d++, ot += ATTN_Q)
    _mm512_storeu_ps(ot, _mm512_mul_ps(a, _mm512_loadu_ps(ot)));
}

TIDE_AVX512_INLINE
void grad_row(const attn_grad *t, int64_t j, const lane_mask *m, const int bias, __m512 lse,
              __m512 delta)
{
  float *s = t->s + j * ATTN_Q, *dp = t->dp + j * ATTN_Q;
  const __m512 score = _mm512_loadu_ps(s), x = _mm512_sub_ps(score, lse);
  __mmask16 k = m ? lanes_see(m, j) : 0xffff;
  if (bias) k &= _mm512_cmp_ps_mask(score, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
  __m512 p = vec_exp2(x), ds = _mm512_sub_ps(_mm512_loadu_ps(dp), delta);
  if (m || bias) p = _mm512_maskz_mov_ps(k, p);
  ds = m || bias ? _mm512_maskz_mul_ps(k, p, ds) : _mm512_mul_ps(p, ds);
  _mm512_storeu_ps(s, p);
  if (t->dbias) _mm512_storeu_ps(t->dbias + j * ATTN_Q, ds);
  if (t->slope) ds = _mm512_maskz_mul_ps(k, ds, _mm512_loadu_ps(t->slope + j * ATTN_Q));
  _mm512_storeu_ps(dp, ds);
}

TIDE_AVX512 static void grad(const attn_grad *t)
{
  const __m512 lse = _mm512_loadu_ps(t->lse), delta = _mm512_loadu_ps(t->delta);
  if (t->lanes) {
    const lane_mask m = load_mask(t->lanes);
    for (int64_t j = 0; j < t->n; j++) grad_row(t, j, &m, t->bias, lse, delta);
    return;
  }
  if (t->bias) {
    for (int64_t j = 0; j < t->n; j++) grad_row(t, j, 0, 1, lse, delta);
    return;
  }
  int64_t j = 0;
  for (; j + 4 <= t->n; j += 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; u++) grad_row(t, j + u, 0, 0, lse, delta);
  }
  for (; j < t->n; j++) grad_row(t, j, 0, 0, lse, delta);
}

/* ---- transposition ---- */

TIDE_AVX512
static void attn_avx512_transpose(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t m,
                                  int64_t n, float scale)
{
  const __m512 mul = _mm512_set1_ps(scale);
  for (int64_t i0 = 0; i0 < m; i0 += 16)
    for (int64_t j0 = 0; j0 < n; j0 += 16) {
      const int64_t ni = m - i0 < 16 ? m - i0 : 16, nj = n - j0 < 16 ? n - j0 : 16;
      const __mmask16 ki = (__mmask16)((1u << ni) - 1), kj = (__mmask16)((1u << nj) - 1);
      __m512 r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; i++)
        r[i] = _mm512_mul_ps(
          mul, _mm512_maskz_loadu_ps(i < ni ? kj : 0, src + (i0 + (i < ni ? i : 0)) * lds + j0));
      transpose16_f32(r);
#pragma GCC unroll 16
      for (int j = 0; j < 16; j++)
        if (j < nj) _mm512_mask_storeu_ps(dst + (j0 + j) * ldd + i0, ki, r[j]);
    }
}

const attn_tiles *tide__attn_tiles_avx512(void)
{
  static const attn_tiles tiles = { gemm, soft, rescale, grad, attn_avx512_transpose, 2 };
  return &tiles;
}

#else

const attn_tiles *tide__attn_tiles_avx512(void) { return 0; }

#endif
