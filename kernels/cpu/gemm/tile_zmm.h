/* The register tile of AVX-512, 14 rows by 32 columns, with its packing: for f32 and for pairs of
 * bf16.
 *
 * Panels hold words of 32 bits: one f32, or two neighbours in k as bf16. 28 accumulators, two
 * vectors of B and a broadcast word of A fill the 32 registers, so that each word of k costs 28
 * multiply-adds (or products of pairs) and 16 loads, and the two multiply-add ports never wait.
 * Fewer rows or at most 16 columns have their own, smaller bodies. Packing transposes 16 x 16 words
 * in registers.
 *
 * A C file defines ZMM_K, the number of k in a word (1: f32, also for operands of 16 bits, which
 * packing widens; 2: bf16), and includes this once.
 */
#include "kernels/cpu/gemm/tile.h"

#include "kernels/cpu/vec.h"
#include "kernels/cpu/transpose16.h"

#if ZMM_K == 2
#define ZMM TIDE_AVX512_BF16
#define ZMM_INLINE TIDE_AVX512_BF16_INLINE
#else
#define ZMM TIDE_AVX512
#define ZMM_INLINE TIDE_AVX512_INLINE
#endif

/* ZMM_TOGETHER: rows of a source packed at a time where it runs along them; ZMM_AHEAD: words of k
 * that such a source is fetched in advance; ZMM_AHEAD_K: elements that one along k is. */
enum { ZMM_ROWS = 14, ZMM_COLS = 32, ZMM_TOGETHER = 1024, ZMM_AHEAD = 8, ZMM_AHEAD_K = 64,
       ZMM_STEPS = 16, ZMM_FUSED = 4, OWN_BYTES = 4 << 20 };

/* ---- the tile ---- */

ZMM_INLINE __m512 zmm_madd(__m512 acc, __m512 b, __m512 a)
{
#if ZMM_K == 2
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#else
  return _mm512_fmadd_ps(a, b, acc);
#endif
}

/* acc + b * *a, the word read by the multiply-add itself: one instruction less, one load more than
 * from a register where the word has a second use. */
ZMM_INLINE __m512 zmm_madd_from(__m512 acc, __m512 b, const float *a)
{
#ifdef TIDE_EMULATE
  return zmm_madd(acc, b, _mm512_set1_ps(*a));
#elif ZMM_K == 2
  __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(b), "m"(*a));
#else
  __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(b), "m"(*a));
#endif
  return acc;
}

/* Adds the products of one word of k. */
ZMM_INLINE void zmm_step(__m512 acc[ZMM_ROWS][2], const float *a, const float *b, const int nrow,
                         const int nvec)
{
  __m512 b0 = _mm512_load_ps(b), b1 = b0;
  if (nvec == 2) b1 = _mm512_load_ps(b + 16);
  _mm_prefetch((const char *)(b + 16 * ZMM_COLS), _MM_HINT_T0);
  if (nvec == 2) _mm_prefetch((const char *)(b + 16 * ZMM_COLS + 16), _MM_HINT_T0);
#pragma GCC unroll 14
  for (int i = 0; i < nrow; i++) {
    if (nvec == 1 || i < ZMM_FUSED) {
      acc[i][0] = zmm_madd_from(acc[i][0], b0, a + i);
      if (nvec == 2) acc[i][1] = zmm_madd_from(acc[i][1], b1, a + i);
      continue;
    }
    __m512 x = _mm512_set1_ps(a[i]);
    acc[i][0] = zmm_madd(acc[i][0], b0, x);
    acc[i][1] = zmm_madd(acc[i][1], b1, x);
  }
}

/* Puts rows of sums to C, added to what it holds if the job says so. */
ZMM_INLINE void zmm_store(const tile_job *job, __m512 acc[ZMM_ROWS][2], const int nrow,
                          const int nvec)
{
  float *c = job->c;
  __mmask16 m0 = vec_lanes(job->cols), m1 = vec_lanes(job->cols - 16);
#pragma GCC unroll 14
  for (int i = 0; i < nrow; i++) {
    if (i >= job->rows) break;
    float *to = c + i * job->c_rs;
    if (job->load) acc[i][0] = _mm512_add_ps(acc[i][0], _mm512_maskz_loadu_ps(m0, to));
    _mm512_mask_storeu_ps(to, m0, acc[i][0]);
    if (nvec == 1) continue;
    if (job->load) acc[i][1] = _mm512_add_ps(acc[i][1], _mm512_maskz_loadu_ps(m1, to + 16));
    _mm512_mask_storeu_ps(to + 16, m1, acc[i][1]);
  }
}

#if ZMM_K == 2

/* Rounds rows of sums to a bf16 C. */
ZMM_INLINE void zmm_store_half(const tile_job *job, __m512 acc[ZMM_ROWS][2], const int nrow,
                               const int nvec)
{
  __mmask32 mask = job->cols >= 32 ? 0xffffffffu : (1u << job->cols) - 1;
#pragma GCC unroll 14
  for (int i = 0; i < nrow; i++) {
    if (i >= job->rows) break;
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh(acc[i][nvec - 1], acc[i][0]);
    _mm512_mask_storeu_epi16(job->half + i * job->half_rs, mask, h);
  }
}

#else

ZMM_INLINE void zmm_store_half(const tile_job *job, __m512 acc[ZMM_ROWS][2], const int nrow,
                               const int nvec)
{
  (void)job, (void)acc, (void)nrow, (void)nvec;
}

#endif

/* Computes a tile. nrow >= job->rows, even; nvec vectors of 16 columns. Both are constants where
 * this is inlined. */
ZMM_INLINE void zmm_tile(const tile_job *job, const int nrow, const int nvec)
{
  const float *a = job->a, *b = job->b, *c = job->c;
  const char *soon = job->soon;
  __m512 acc[ZMM_ROWS][2];
#pragma GCC unroll 14
  for (int i = 0; i < nrow; i++) {
    acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    if (i < job->rows) {
      _mm_prefetch((const char *)(c + i * job->c_rs), _MM_HINT_T0);
      if (nvec == 2) _mm_prefetch((const char *)(c + i * job->c_rs + 16), _MM_HINT_T0);
    }
  }
  int64_t p = job->k / ZMM_K;
  for (; p >= ZMM_STEPS; p -= ZMM_STEPS) {
    for (int i = 0; i < job->nsoon; i++) /* a line of each row */
      _mm_prefetch(soon + i * job->soon_rs, _MM_HINT_T1);
    soon += 64;
    for (int q = 0; q < ZMM_STEPS; q += 4, a += 4 * ZMM_ROWS, b += 4 * ZMM_COLS) {
      zmm_step(acc, a, b, nrow, nvec);
      zmm_step(acc, a + ZMM_ROWS, b + ZMM_COLS, nrow, nvec);
      zmm_step(acc, a + 2 * ZMM_ROWS, b + 2 * ZMM_COLS, nrow, nvec);
      zmm_step(acc, a + 3 * ZMM_ROWS, b + 3 * ZMM_COLS, nrow, nvec);
    }
  }
  for (; p > 0; p--, a += ZMM_ROWS, b += ZMM_COLS) zmm_step(acc, a, b, nrow, nvec);
  if (ZMM_K == 2 && job->half) zmm_store_half(job, acc, nrow, nvec);
  else zmm_store(job, acc, nrow, nvec);
}

#define ZMM_TILE(nrow)                                                                      \
  ZMM static void zmm_tile_##nrow##x1(const tile_job *job) { zmm_tile(job, nrow, 1); } \
  ZMM static void zmm_tile_##nrow##x2(const tile_job *job) { zmm_tile(job, nrow, 2); }
ZMM_TILE(2)
ZMM_TILE(4)
ZMM_TILE(6)
ZMM_TILE(8)
ZMM_TILE(10)
ZMM_TILE(12)
ZMM_TILE(14)

static void zmm_run(const tile_job *job)
{
  static void (*const by_size[7][2])(const tile_job *) = {
    {zmm_tile_2x1, zmm_tile_2x2},   {zmm_tile_4x1, zmm_tile_4x2},   {zmm_tile_6x1, zmm_tile_6x2},
    {zmm_tile_8x1, zmm_tile_8x2},   {zmm_tile_10x1, zmm_tile_10x2}, {zmm_tile_12x1, zmm_tile_12x2},
    {zmm_tile_14x1, zmm_tile_14x2}
  };
  by_size[(job->rows - 1) / 2][job->cols > 16](job);
}

/* ---- packing ---- */

#if ZMM_K == 2

/* Words p..p+15 of row i, of a source that runs along k; zero beyond its end. */
ZMM_INLINE __m512 zmm_load_along(const tile_strip *s, int64_t i, int64_t p, const int dtype)
{
  int64_t n = s->k - 2 * p;
  __mmask32 mask = n >= 32 ? 0xffffffffu : (1u << n) - 1;
  (void)dtype;
  return _mm512_castsi512_ps(
    _mm512_maskz_loadu_epi16(mask, (const uint16_t *)s->src + i * s->is + 2 * p));
}

/* Loads word p of rows i..i+15, those of the mask, of a source that runs along them. */
ZMM_INLINE __m512 zmm_load_across(const tile_strip *s, int64_t i, int64_t p, __mmask16 mask,
                                  const int dtype)
{
  const uint16_t *src = (const uint16_t *)s->src + i + 2 * p * s->ps;
  __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src)), odd;
  (void)dtype;
  if (2 * p + 1 >= s->k) return _mm512_castsi512_ps(even);
  odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, src + s->ps));
  return _mm512_castsi512_ps(_mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
}

/* Packs a source of any strides, element by element. */
static void zmm_pack_any(void *dst, const tile_strip *s)
{
  uint16_t *to = dst;
  int64_t w = s->width;
  for (int64_t i0 = 0; i0 < s->n; i0 += w, to += w * s->k_pad)
    for (int64_t p = 0; p < s->k_pad; p++)
      for (int64_t i = 0; i < w; i++)
        to[p / 2 * 2 * w + 2 * i + p % 2] =
          i0 + i < s->n && p < s->k ? ((const uint16_t *)s->src)[(i0 + i) * s->is + p * s->ps] : 0;
}

#else

ZMM_INLINE __m512 zmm_load_along(const tile_strip *s, int64_t i, int64_t p, const int dtype)
{
  return vec_load16(s->src, i * s->is + p, dtype, vec_lanes(s->k - p));
}

ZMM_INLINE __m512 zmm_load_across(const tile_strip *s, int64_t i, int64_t p, __mmask16 mask,
                                  const int dtype)
{
  return vec_load16(s->src, i + p * s->ps, dtype, mask);
}

static void zmm_pack_any(void *dst, const tile_strip *s) { tide__tile_pack_f32(dst, s); }

#endif

/* Packs up to 16 rows from row i0 on of a source that runs along k, into a panel `width` words
 * wide. */
ZMM_INLINE void zmm_pack_along(float *to, const tile_strip *s, int64_t i0, int64_t rows,
                               const int width, const int dtype)
{
  const __mmask16 keep = vec_lanes(width < 16 ? width : 16);
  const int64_t size = dtype == TIDE_F32 ? 4 : 2, words = (s->k + ZMM_K - 1) / ZMM_K;
  for (int64_t p = 0; p < words; p += 16) {
    __m512 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      r[i] = i < rows ? zmm_load_along(s, i0 + i, p, dtype) : _mm512_setzero_ps();
      int64_t soon = (i0 + i) * s->is + ZMM_K * p + ZMM_AHEAD_K;
      if (i < rows) _mm_prefetch((const char *)s->src + soon * size, _MM_HINT_T0);
    }
    transpose16_f32(r);
    float *out = to + p * width;
    int64_t n = words - p;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
      if (i < n) _mm512_mask_storeu_ps(out + i * width, keep, r[i]);
  }
}

/* Panels of a source that runs along the rows, several at a time, so that a page of the source is
 * visited once for all of them. */
ZMM_INLINE void zmm_pack_across(float *to, const tile_strip *s, int64_t i0, int64_t rows,
                                const int width, const int dtype)
{
  const __mmask16 keep = vec_lanes(width < 16 ? width : 16);
  const int64_t panel = width * (s->k_pad / ZMM_K), size = dtype == TIDE_F32 ? 4 : 2;
  for (int64_t p = 0; ZMM_K * p < s->k; p++) {
    const char *soon = (const char *)s->src + (i0 + ZMM_K * (p + ZMM_AHEAD) * s->ps) * size;
    float *out = to + p * width;
    for (int64_t i = 0; i < rows; i += width, out += panel) {
      for (int q = 0; q < ZMM_K; q++) {
        _mm_prefetch(soon + (i + q * s->ps) * size, _MM_HINT_T0);
        if (width > 16 && size == 4) _mm_prefetch(soon + (i + 16 + q * s->ps) * size, _MM_HINT_T0);
      }
      _mm512_mask_storeu_ps(out, keep,
                            zmm_load_across(s, i0 + i, p, vec_lanes(rows - i) & keep, dtype));
      if (width > 16)
        _mm512_storeu_ps(out + 16,
                         zmm_load_across(s, i0 + i + 16, p, vec_lanes(rows - i - 16), dtype));
    }
  }
}

ZMM_INLINE void zmm_pack(float *to, const tile_strip *s, const int width, const int dtype)
{
  const int64_t some = s->is == 1 ? ZMM_TOGETHER / width * width : width;
  for (int64_t i = 0; i < s->n; i += some, to += some * (s->k_pad / ZMM_K)) {
    int64_t rows = s->n - i < some ? s->n - i : some;
    if (s->is == 1) {
      zmm_pack_across(to, s, i, rows, width, dtype);
      continue;
    }
    zmm_pack_along(to, s, i, rows, width, dtype);
    if (width > 16) zmm_pack_along(to + 16, s, i + 16, rows - 16, width, dtype);
  }
}

#define ZMM_PACK(name, width)                                             \
  ZMM static void name(void *dst, const tile_strip *s)                    \
  {                                                                       \
    if (s->is != 1 && s->ps != 1) zmm_pack_any(dst, s);                   \
    else if (s->dtype == TIDE_BF16) zmm_pack(dst, s, width, TIDE_BF16);   \
    else if (ZMM_K == 1 && s->dtype == TIDE_F32) zmm_pack(dst, s, width, TIDE_F32); \
    else if (ZMM_K == 1) zmm_pack(dst, s, width, TIDE_F16);               \
  }
ZMM_PACK(zmm_pack_rows, ZMM_ROWS)
ZMM_PACK(zmm_pack_cols, ZMM_COLS)
