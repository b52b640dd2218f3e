/* AVX2 inner loops of attention. See attention.h.
 *
 * A group of 16 lanes is two vectors. A tile stays in twelve registers over the whole inner
 * dimension: 3 rows by two groups if the rows of A lie along it, so that fewer of them are read at
 * a time, else 6 rows by one group. A is read by broadcast, B by unit-stride loads: 7 or 8 loads
 * for 12 fused multiply-adds. Softmax and its gradient take half a group at a time, so that sums
 * and statistics stay in registers.
 *
 * Only called when the processor has AVX2, FMA and F16C.
 */
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/transpose8.h"

#if defined(__x86_64__) && defined(__GNUC__)

enum { L = ATTN_LANE, HALF = 8, ROWS = 6, FEW_ROWS = 3 };

/* ---- product ---- */

/* Computes rows [i0, i0 + n) of `wide` vectors of C from column j on. n and wide are constants
 * where this is inlined. */
TIDE_AVX2_INLINE void kernel(const int n, const int wide, const attn_gemm *g, int64_t i0, int64_t j)
{
  const float *a = g->a + i0 * g->rs, *b = g->b + j;
  float *c = g->c + i0 * g->ldc + j;
  const int64_t rs = g->rs, cs = g->cs, ldb = g->ldb, ldc = g->ldc;
  __m256 acc[ROWS][4], bv[4];
#pragma GCC unroll 6
  for (int i = 0; i < n; i++)
#pragma GCC unroll 4
    for (int v = 0; v < wide; v++)
      acc[i][v] = g->add ? _mm256_loadu_ps(c + i * ldc + v * HALF) : _mm256_setzero_ps();
  for (int64_t p = g->k; p > 0; p--, a += cs, b += ldb) {
#pragma GCC unroll 4
    for (int v = 0; v < wide; v++) bv[v] = _mm256_loadu_ps(b + v * HALF);
#pragma GCC unroll 6
    for (int i = 0; i < n; i++) {
      const __m256 x = _mm256_broadcast_ss(a + i * rs);
#pragma GCC unroll 4
      for (int v = 0; v < wide; v++) acc[i][v] = _mm256_fmadd_ps(x, bv[v], acc[i][v]);
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < n; i++)
#pragma GCC unroll 4
    for (int v = 0; v < wide; v++) _mm256_storeu_ps(c + i * ldc + v * HALF, acc[i][v]);
}

TIDE_AVX2 static void gemm(const attn_gemm *g)
{
  int64_t j = 0;
  for (; g->rs != 1 && j + 2 * L <= g->nv * L; j += 2 * L) {
    int64_t i = 0;
    for (; i + FEW_ROWS <= g->m; i += FEW_ROWS) kernel(FEW_ROWS, 4, g, i, j);
    if (g->m - i == 2) kernel(2, 4, g, i, j);
    if (g->m - i == 1) kernel(1, 4, g, i, j);
  }
  for (; j < g->nv * L; j += L) {
    int64_t i = 0;
    for (; i + ROWS <= g->m; i += ROWS) kernel(ROWS, 2, g, i, j);
    switch (g->m - i) {
      case 5: kernel(5, 2, g, i, j); break;
      case 4: kernel(4, 2, g, i, j); break;
      case 3: kernel(3, 2, g, i, j); break;
      case 2: kernel(2, 2, g, i, j); break;
      case 1: kernel(1, 2, g, i, j); break;
      default: break;
    }
  }
}

/* ---- softmax ---- */

/* Four vectors at a time, step by step: the scheduler of the processor sees too few instructions
 * ahead to do this itself. */
enum { QUAD = 4 };
#define EACH(count) _Pragma("GCC unroll 4") for (int u = 0; u < (count); u++)

/* Replaces n vectors by 2^x, to 1e-7; 0 below -126.5, infinite above 128; NaN stays NaN: a minimum
 * and a maximum are their second operand then. n is a constant where this is inlined. */
TIDE_AVX2_INLINE void exp2_each(__m256 *x, const int n)
{
  /* 1.5 * 2^23 rounds to an integer; its last nine bits are 127 then, the bias of an exponent. */
  const __m256 shift = _mm256_set1_ps(12582912.0f + 127.0f);
  static const float c[] = { 0.00967554145f, 0.0555071327f, 0.240221197f, 0.693146967f, 1.0f };
  __m256 t[QUAD], p[QUAD];
  EACH(n) x[u] = _mm256_min_ps(_mm256_set1_ps(128.0f), x[u]);
  EACH(n) x[u] = _mm256_max_ps(_mm256_set1_ps(-127.0f), x[u]);
  EACH(n) t[u] = _mm256_add_ps(x[u], shift);
  EACH(n) p[u] = _mm256_sub_ps(t[u], shift);
  EACH(n) x[u] = _mm256_sub_ps(x[u], p[u]);
  EACH(n) p[u] = _mm256_set1_ps(0.00132764721f);
#pragma GCC unroll 5
  for (int i = 0; i < 5; i++) EACH(n) p[u] = _mm256_fmadd_ps(p[u], x[u], _mm256_set1_ps(c[i]));
  EACH(n) t[u] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t[u]), 23));
  EACH(n) x[u] = _mm256_mul_ps(p[u], t[u]);
}

/* The mask of 8 queries. */
typedef struct half_mask { __m256i doc, lo, hi; const int32_t *kdoc, *kpos; } half_mask;

/* Loads the mask of 8 lanes. at: the first of them. */
TIDE_AVX2_INLINE half_mask load_mask(const attn_lanes *m, int at)
{
  const half_mask r = { _mm256_loadu_si256((const __m256i *)(m->qdoc + at)),
                        _mm256_loadu_si256((const __m256i *)(m->qlo + at)),
                        _mm256_loadu_si256((const __m256i *)(m->qhi + at)), m->kdoc, m->kpos };
  return r;
}

/* Returns all bits set in the lanes that see key j. */
TIDE_AVX2_INLINE __m256 lanes_see(const half_mask *m, int64_t j)
{
  const __m256i pos = _mm256_set1_epi32(m->kpos[j]);
  const __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(m->lo, pos),
                                      _mm256_cmpgt_epi32(pos, m->hi));
  const __m256i same = _mm256_cmpeq_epi32(m->doc, _mm256_set1_epi32(m->kdoc[j]));
  return _mm256_castsi256_ps(_mm256_andnot_si256(out, same));
}

/* Returns the maximum over n keys; with m it writes -inf where a lane does not see the key. */
TIDE_AVX2_INLINE __m256 column_max(float *s, int64_t n, const half_mask *m)
{
  const __m256 none = _mm256_set1_ps(-__builtin_inff());
  __m256 a = none, b = none;
  int64_t j = 0;
  for (; !m && j + 2 <= n; j += 2, s += 2 * ATTN_Q) {
    a = _mm256_max_ps(a, _mm256_loadu_ps(s));
    b = _mm256_max_ps(b, _mm256_loadu_ps(s + ATTN_Q));
  }
  for (; j < n; j++, s += ATTN_Q) {
    __m256 x = _mm256_loadu_ps(s);
    if (m) {
      x = _mm256_blendv_ps(none, x, lanes_see(m, j));
      _mm256_storeu_ps(s, x);
    }
    a = _mm256_max_ps(a, x);
  }
  return _mm256_max_ps(a, b);
}

/* Raises the maximum of 8 lanes where `seen` is larger by more than 8 (see attention_soft.h).
 * Returns the value that scores are relative to; sets *grown if a lane that had seen a key has a
 * new maximum. */
TIDE_AVX2_INLINE __m256 raise_top(const attn_soft *t, int at, __m256 seen, int *grown)
{
  const __m256 none = _mm256_set1_ps(-__builtin_inff()), old = _mm256_loadu_ps(t->top + at);
  const __m256 up = _mm256_cmp_ps(seen, _mm256_add_ps(old, _mm256_set1_ps(8.0f)), _CMP_GT_OQ);
  const __m256 now = _mm256_blendv_ps(old, seen, up);
  const __m256 base = _mm256_andnot_ps(_mm256_cmp_ps(now, none, _CMP_EQ_OQ), now);
  __m256 by = _mm256_sub_ps(old, base);
  exp2_each(&by, 1);
  _mm256_storeu_ps(t->top + at, now);
  _mm256_storeu_ps(t->alpha + at, _mm256_blendv_ps(_mm256_set1_ps(1.0f), by, up));
  *grown |= _mm256_movemask_ps(_mm256_and_ps(up, _mm256_cmp_ps(old, none, _CMP_NEQ_UQ))) != 0;
  return base;
}

/* Turns the scores of n keys into P^T; n is a constant where this is inlined. Returns sum with them
 * added. */
TIDE_AVX2_INLINE __m256 soft_keys(float *s, const int n, __m256 base, __m256 sum)
{
  __m256 p[QUAD];
  EACH(n) p[u] = _mm256_sub_ps(_mm256_loadu_ps(s + u * ATTN_Q), base);
  exp2_each(p, n);
  EACH(n) _mm256_storeu_ps(s + u * ATTN_Q, p[u]);
  EACH(n) sum = _mm256_add_ps(sum, p[u]);
  return sum;
}

TIDE_AVX2_INLINE int soft_half(const attn_soft *t, int at)
{
  float *s = t->s + at, *to = t->sum + at;
  int grown = 0;
  __m256 seen, sum = _mm256_setzero_ps();
  if (t->lanes) {
    const half_mask m = load_mask(t->lanes, at);
    seen = column_max(s, t->n, &m);
  } else {
    seen = column_max(s, t->n, 0);
  }
  const __m256 base = raise_top(t, at, seen, &grown);
  int64_t j = 0;
  for (; j + QUAD <= t->n; j += QUAD, s += QUAD * ATTN_Q) sum = soft_keys(s, QUAD, base, sum);
  for (; j < t->n; j++, s += ATTN_Q) sum = soft_keys(s, 1, base, sum);
  _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_loadu_ps(to), _mm256_loadu_ps(t->alpha + at), sum));
  return grown;
}

TIDE_AVX2 static int soft(const attn_soft *t)
{
  const int low = soft_half(t, 0), high = soft_half(t, HALF);
  return low | high;
}

TIDE_AVX2 static void rescale(float *ot, int64_t n, const float *alpha)
{
  const __m256 a = _mm256_loadu_ps(alpha), b = _mm256_loadu_ps(alpha + HALF);
  for (int64_t d = 0; d < n; d++, ot += ATTN_Q) {
    _mm256_storeu_ps(ot, _mm256_mul_ps(a, _mm256_loadu_ps(ot)));
    _mm256_storeu_ps(ot + HALF, _mm256_mul_ps(b, _mm256_loadu_ps(ot + HALF)));
  }
}

typedef struct half_stats { __m256 lse, delta; } half_stats;

/* Ones where x is not -inf. */
TIDE_AVX2_INLINE __m256 above_none(__m256 x)
{
  return _mm256_cmp_ps(x, _mm256_set1_ps(-INFINITY), _CMP_NEQ_UQ);
}

/* Computes the gradients of n keys from j on. n, m and modified are constants where this is
 * inlined. */
TIDE_AVX2_INLINE void grad_keys(const attn_grad *t, int64_t j, const int n, int at,
                                const half_mask *m, const int modified, half_stats x)
{
  const int64_t from = j * ATTN_Q + at;
  float *s = t->s + from, *dp = t->dp + from;
  const int hides = modified && t->bias;
  __m256 p[QUAD], ds[QUAD], seen[QUAD];
  if (hides) EACH(n) seen[u] = above_none(_mm256_loadu_ps(s + u * ATTN_Q));
  EACH(n) p[u] = _mm256_sub_ps(_mm256_loadu_ps(s + u * ATTN_Q), x.lse);
  exp2_each(p, n);
  EACH(n) ds[u] = _mm256_mul_ps(p[u], _mm256_sub_ps(_mm256_loadu_ps(dp + u * ATTN_Q), x.delta));
  if (m) EACH(n) p[u] = _mm256_and_ps(p[u], lanes_see(m, j + u));
  if (m) EACH(n) ds[u] = _mm256_and_ps(ds[u], lanes_see(m, j + u));
  if (hides) EACH(n) p[u] = _mm256_and_ps(p[u], seen[u]);
  if (hides) EACH(n) ds[u] = _mm256_and_ps(ds[u], seen[u]);
  EACH(n) _mm256_storeu_ps(s + u * ATTN_Q, p[u]);
  if (modified && t->dbias) EACH(n) _mm256_storeu_ps(t->dbias + from + u * ATTN_Q, ds[u]);
  if (modified && t->slope) {
    EACH(n) ds[u] = _mm256_mul_ps(ds[u], _mm256_loadu_ps(t->slope + from + u * ATTN_Q));
    if (m) EACH(n) ds[u] = _mm256_and_ps(ds[u], lanes_see(m, j + u));
  }
  EACH(n) _mm256_storeu_ps(dp + u * ATTN_Q, ds[u]);
}

TIDE_AVX2_INLINE void grad_half(const attn_grad *t, int at, const half_mask *m, const int modified)
{
  const half_stats x = { _mm256_loadu_ps(t->lse + at), _mm256_loadu_ps(t->delta + at) };
  int64_t j = 0;
  for (; j + QUAD <= t->n; j += QUAD) grad_keys(t, j, QUAD, at, m, modified, x);
  for (; j < t->n; j++) grad_keys(t, j, 1, at, m, modified, x);
}

TIDE_AVX2 static void grad(const attn_grad *t)
{
  const int modified = t->dbias || t->slope || t->bias;
  for (int at = 0; at < L; at += HALF) {
    const half_mask m = t->lanes ? load_mask(t->lanes, at) : (half_mask){ 0 };
    if (t->lanes && modified) grad_half(t, at, &m, 1);
    else if (t->lanes) grad_half(t, at, &m, 0);
    else if (modified) grad_half(t, at, 0, 1);
    else grad_half(t, at, 0, 0);
  }
}

/* ---- transposition ---- */

TIDE_AVX2
static void attn_avx2_transpose(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t m,
                                int64_t n, float scale)
{
  const __m256 mul = _mm256_set1_ps(scale);
  for (int64_t i0 = 0; i0 < m; i0 += 8) {
    int64_t j0 = 0;
    for (; i0 + 8 <= m && j0 + 8 <= n; j0 += 8) {
      __m256 r[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++)
        r[i] = _mm256_mul_ps(mul, _mm256_loadu_ps(src + (i0 + i) * lds + j0));
      transpose8_f32(r);
#pragma GCC unroll 8
      for (int j = 0; j < 8; j++) _mm256_storeu_ps(dst + (j0 + j) * ldd + i0, r[j]);
    }
    for (int64_t i = i0; i < i64_min(i0 + 8, m); i++)
      for (int64_t j = j0; j < n; j++) dst[j * ldd + i] = src[i * lds + j] * scale;
  }
}

const attn_tiles *tide__attn_tiles_avx2(void)
{
  static const attn_tiles tiles = { gemm, soft, rescale, grad, attn_avx2_transpose, 1 };
  return &tiles;
}

#else

const attn_tiles *tide__attn_tiles_avx2(void) { return 0; }

#endif
