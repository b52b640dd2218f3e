/* The f32 tile for AVX-512, 14 rows by 32 columns, with its packing.
 *
 * 28 accumulators, two vectors of B and a broadcast element of A fill the 32
 * registers, so that each step of k costs 28 multiply-adds and 16 loads, and the two multiply-add
 * ports never wait. Fewer rows or at most 16 columns have their own, smaller bodies.
 *
 * See tile.h. Packing transposes 16 x 16 blocks in registers and widens 16-bit floats.
 */
#include "kernels/cpu/gemm/tile.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose16.h"
#include "tide/tide.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>

/* TOGETHER: rows of a source packed at a time where it runs along them; AHEAD: steps of k that
 * such a source, and elements that one along k, is fetched in advance. */
enum { ROWS = 14, COLS = 32, DEPTH = 704, TOGETHER = 128, AHEAD = 8, AHEAD_TURNED = 64,
       STEPS = 16, FUSED = 6 };

/* ---- the tile ---- */

TIDE_AVX512_INLINE __mmask16 lanes(int64_t n)
{
  return n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1);
}

/* acc + b * *a, the element read by the multiply-add itself: one instruction less, one load more
 * than from a register where the element has a second use. */
TIDE_AVX512_INLINE __m512 fma_from(__m512 acc, __m512 b, const float *a)
{
  __asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(b), "m"(*a));
  return acc;
}

/* One step of k. */
TIDE_AVX512_INLINE void step(__m512 acc[ROWS][2], const float *a, const float *b, const int nrow,
                        const int nvec)
{
  __m512 b0 = _mm512_load_ps(b), b1 = b0;
  if (nvec == 2) b1 = _mm512_load_ps(b + 16);
  _mm_prefetch((const char *)(b + 16 * COLS), _MM_HINT_T0);
  if (nvec == 2) _mm_prefetch((const char *)(b + 16 * COLS + 16), _MM_HINT_T0);
#pragma GCC unroll 14
  for (int i = 0; i < nrow; i++) {
    if (nvec == 1 || i < FUSED) {
      acc[i][0] = fma_from(acc[i][0], b0, a + i);
      if (nvec == 2) acc[i][1] = fma_from(acc[i][1], b1, a + i);
      continue;
    }
    __m512 x = _mm512_set1_ps(a[i]);
    acc[i][0] = _mm512_fmadd_ps(x, b0, acc[i][0]);
    acc[i][1] = _mm512_fmadd_ps(x, b1, acc[i][1]);
  }
}

/* nrow >= job->rows, even; nvec vectors of 16 columns. Both constants where this is inlined. */
TIDE_AVX512_INLINE void tile(const tile_job *job, const int nrow, const int nvec)
{
  const float *a = job->a, *b = job->b;
  float *c = job->c;
  const char *soon = job->soon;
  __m512 acc[ROWS][2];
#pragma GCC unroll 14
  for (int i = 0; i < nrow; i++) {
    acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    if (i < job->rows) {
      _mm_prefetch((const char *)(c + i * job->c_rs), _MM_HINT_T0);
      if (nvec == 2) _mm_prefetch((const char *)(c + i * job->c_rs + 16), _MM_HINT_T0);
    }
  }
  int64_t p = job->k;
  for (; p >= STEPS; p -= STEPS) {
    for (int i = 0; i < job->nsoon; i++) /* a line of each row */
      _mm_prefetch(soon + i * job->soon_rs, _MM_HINT_T1);
    soon += 64;
    for (int q = 0; q < STEPS; q += 4, a += 4 * ROWS, b += 4 * COLS) {
      step(acc, a, b, nrow, nvec);
      step(acc, a + ROWS, b + COLS, nrow, nvec);
      step(acc, a + 2 * ROWS, b + 2 * COLS, nrow, nvec);
      step(acc, a + 3 * ROWS, b + 3 * COLS, nrow, nvec);
    }
  }
  for (; p > 0; p--, a += ROWS, b += COLS) step(acc, a, b, nrow, nvec);
  __mmask16 m0 = lanes(job->cols), m1 = lanes(job->cols - 16);
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

#define TILE(nrow)                                                                \
  TIDE_AVX512 static void tile_##nrow##x1(const tile_job *job) { tile(job, nrow, 1); } \
  TIDE_AVX512 static void tile_##nrow##x2(const tile_job *job) { tile(job, nrow, 2); }
TILE(2)
TILE(4)
TILE(6)
TILE(8)
TILE(10)
TILE(12)
TILE(14)

static void avx512_run(const tile_job *job)
{
  static void (*const by_size[7][2])(const tile_job *) = {
    {tile_2x1, tile_2x2},   {tile_4x1, tile_4x2},   {tile_6x1, tile_6x2},  {tile_8x1, tile_8x2},
    {tile_10x1, tile_10x2}, {tile_12x1, tile_12x2}, {tile_14x1, tile_14x2}
  };
  by_size[(job->rows - 1) / 2][job->cols > 16](job);
}

/* ---- packing ---- */

/* 16 elements from src[at], those of the mask, as f32; the others zero. */
TIDE_AVX512_INLINE __m512 load16(const void *src, int64_t at, int dtype, __mmask16 mask)
{
  if (dtype == TIDE_F32) return _mm512_maskz_loadu_ps(mask, (const float *)src + at);
  __m256i h = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)src + at);
  if (dtype == TIDE_F16) return _mm512_cvtph_ps(h);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Up to 16 rows of a panel whose source runs along k: to[p * width + i] = src[i * is + p]. */
TIDE_AVX512_INLINE void pack_turned(float *to, const tile_strip *s, int64_t at, int64_t rows,
                               const int width, const int dtype)
{
  const __mmask16 keep = lanes(width < 16 ? width : 16);
  const int64_t size = dtype == TIDE_F32 ? 4 : 2;
  for (int64_t p = 0; p < s->k; p += 16) {
    __mmask16 mask = lanes(s->k - p);
    __m512 r[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      int64_t from = at + i * s->is + p;
      r[i] = i < rows ? load16(s->src, from, dtype, mask) : _mm512_setzero_ps();
      if (i < rows)
        _mm_prefetch((const char *)s->src + (from + AHEAD_TURNED) * size, _MM_HINT_T0);
    }
    transpose16_f32(r);
    float *out = to + p * width;
    int64_t n = s->k - p;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
      if (i < n) _mm512_mask_storeu_ps(out + i * width, keep, r[i]);
  }
}

/* Panels whose source runs along i, several at a time, so that a page of the source is visited once
 * for all of them: to[i / width][p * width + i % width] = src[i + p * ps]. */
TIDE_AVX512_INLINE void pack_straight(float *to, const tile_strip *s, int64_t at, int64_t rows,
                                 const int width, const int dtype)
{
  const __mmask16 keep = lanes(width < 16 ? width : 16);
  const int64_t panel = width * s->k_pad, size = dtype == TIDE_F32 ? 4 : 2;
  for (int64_t p = 0; p < s->k; p++) {
    int64_t from = at + p * s->ps;
    const char *soon = (const char *)s->src + (from + AHEAD * s->ps) * size;
    float *out = to + p * width;
    for (int64_t i = 0; i < rows; i += width, out += panel, from += width) {
      _mm_prefetch(soon + i * size, _MM_HINT_T0);
      if (width > 16) _mm_prefetch(soon + (i + 16) * size, _MM_HINT_T0);
      _mm512_mask_storeu_ps(out, keep, load16(s->src, from, dtype, lanes(rows - i) & keep));
      if (width > 16)
        _mm512_storeu_ps(out + 16, load16(s->src, from + 16, dtype, lanes(rows - i - 16)));
    }
  }
}

TIDE_AVX512_INLINE void pack(float *to, const tile_strip *s, const int width, const int dtype)
{
  const int64_t some = s->is == 1 ? TOGETHER / width * width : width;
  for (int64_t i = 0; i < s->n; i += some, to += some * s->k_pad) {
    int64_t rows = s->n - i < some ? s->n - i : some;
    if (s->is == 1) {
      pack_straight(to, s, i, rows, width, dtype);
      continue;
    }
    pack_turned(to, s, i * s->is, rows, width, dtype);
    if (width > 16) pack_turned(to + 16, s, (i + 16) * s->is, rows - 16, width, dtype);
  }
}

#define PACK(name, width)                                                \
  TIDE_AVX512 static void name(void *dst, const tile_strip *s)                \
  {                                                                      \
    if (s->is != 1 && s->ps != 1) tide__tile_pack_f32(dst, s);                 \
    else if (s->dtype == TIDE_F32) pack(dst, s, width, TIDE_F32);        \
    else if (s->dtype == TIDE_BF16) pack(dst, s, width, TIDE_BF16);      \
    else pack(dst, s, width, TIDE_F16);                                  \
  }
PACK(pack_rows, ROWS)
PACK(pack_cols, COLS)

static const tile_kernel kernel = {
  .mr = ROWS, .nr = COLS, .kr = 1, .esize = 4, .f64 = 0, .kc = DEPTH, .cols = 448 << 10,
  .whole = 1 << 20,
  .pack_a = pack_rows, .pack_b = pack_cols, .run = avx512_run, .to_half = tide__tile_to_half
};

const tile_kernel *tide__tile_kernel_avx512(void) { return &kernel; }

#else

const tile_kernel *tide__tile_kernel_avx512(void) { return 0; }

#endif
