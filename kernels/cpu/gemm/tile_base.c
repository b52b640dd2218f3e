/* Tile kernels for machines without AVX-512, for f64, and their packing.
 *
 * One body per element type, in vectors of the compiler, compiled for the base instruction set and
 * for AVX2 with FMA, where twelve accumulators, two vectors of B and a word of A fill the
 * registers. With AVX2 a source that runs along k is transposed in registers. See tile.h.
 */
#include "kernels/cpu/gemm/tile.h"
#include "kernels/cpu/transpose8.h"

/* STEPS: words of k a turn of the loop; AHEAD: those that B is fetched in advance. */
enum { ROWS = 6, F32_COLS = 16, F64_COLS = 8, STEPS = 16, AHEAD = 16, AHEAD_ROWS = 8 };

/* ---- packing ---- */

/* Packs whole panels of a source that runs along the rows, several at a time, so that a page of the
 * source is visited once for all of them. width and dtype are constants where this is inlined. */
TIDE_INLINE void pack_across(float *to, const tile_strip *s, int64_t npanel, const int width,
                             const int dtype)
{
  const int64_t step = s->ps * vec_size(dtype);
  for (int64_t p = 0; p < s->k; p++)
    for (int64_t i = 0; i < npanel; i++) {
      const char *from = (const char *)s->src + i * width * vec_size(dtype) + p * step;
      float *out = to + (i * s->k_pad + p) * width;
      __builtin_prefetch(from + AHEAD_ROWS * step);
      if (dtype == TIDE_F32) memcpy(out, from, (size_t)width * 4); /* not a call: width is known */
      else vec_widen(out, from, dtype, width);
    }
}

TIDE_LEVELS(void, pack_panels, (float *to, const tile_strip *s, int64_t npanel), (to, s, npanel))
{
  if (s->dtype == TIDE_F32 && s->width == ROWS) pack_across(to, s, npanel, ROWS, TIDE_F32);
  else if (s->dtype == TIDE_F32 && s->width == F32_COLS)
    pack_across(to, s, npanel, F32_COLS, TIDE_F32);
  else pack_across(to, s, npanel, s->width, s->dtype);
}

#if defined(__x86_64__) && defined(__GNUC__)

/* Packs steps of 8 of k of up to 8 rows of a source that runs along k. Returns how many of k are
 * done. */
TIDE_AVX2_INLINE int64_t pack_rows_along(float *to, const tile_strip *s, int64_t i0, int64_t rows,
                                         const int dtype)
{
  int64_t p = 0;
  for (; p + 8 <= s->k; p += 8) {
    __m256 r[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
      r[i] = i < rows ? vec_load8(s->src, (i0 + i) * s->is + p, dtype) : _mm256_setzero_ps();
    transpose8_f32(r);
    float *out = to + p * s->width;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++, out += s->width) {
      _mm_storeu_ps(out, _mm256_castps256_ps128(r[i]));
      const __m128 high = _mm256_extractf128_ps(r[i], 1);
      if (s->width == ROWS) _mm_storel_pi((__m64 *)(out + 4), high);
      else _mm_storeu_ps(out + 4, high);
    }
  }
  return p;
}

TIDE_AVX2 static int64_t pack_along(float *to, const tile_strip *s, int64_t i0, int64_t rows)
{
  if (s->dtype == TIDE_F32) return pack_rows_along(to, s, i0, rows, TIDE_F32);
  if (s->dtype == TIDE_BF16) return pack_rows_along(to, s, i0, rows, TIDE_BF16);
  return pack_rows_along(to, s, i0, rows, TIDE_F16);
}

/* Packs one panel of a source that runs along k, 8 rows at a time. Returns how many of k are done:
 * 0 for a panel whose width is neither that of this tile's A nor a multiple of 8. */
static int64_t pack_panel_along(float *to, const tile_strip *s, int64_t i0, int64_t rows)
{
  if (!(tide__cpu_isa() & CPU_ISA_AVX2) || s->ps != 1) return 0;
  if (s->width != ROWS && s->width % 8 != 0) return 0;
  int64_t done = 0;
  for (int64_t i = 0; i < rows; i += 8)
    done = pack_along(to + i, s, i0 + i, rows - i < 8 ? rows - i : 8);
  return done;
}

#else

static int64_t pack_panel_along(float *to, const tile_strip *s, int64_t i0, int64_t rows)
{
  (void)to, (void)s, (void)i0, (void)rows;
  return 0;
}

#endif

/* Packs a strip element by element, from p0 on. */
TIDE_LEVELS(void, pack_rest, (float *to, const tile_strip *s, int64_t i0, int64_t rows, int64_t p0),
            (to, s, i0, rows, p0))
{
  for (int64_t i = 0; i < rows; i++)
    for (int64_t p = p0; p < s->k; p++)
      to[p * s->width + i] = vec_get(s->src, (i0 + i) * s->is + p * s->ps, s->dtype);
}

/* Packs operands panel by panel, in a panel by k, then by width. */
void tide__tile_pack_f32(void *dst, const tile_strip *s)
{
  enum { TOGETHER = 16 }; /* panels */
  const int64_t w = s->width;
  float *to = dst;
  for (int64_t i0 = 0, rows; i0 < s->n; i0 += rows, to += i64_round_up(rows, w) * s->k_pad) {
    rows = i64_min(w, s->n - i0);
    if (s->is == 1 && rows == w && s->k == s->k_pad) {
      tile_strip part = *s;
      part.src = (const char *)s->src + i0 * vec_size(s->dtype);
      const int64_t npanel = i64_min((s->n - i0) / w, TOGETHER);
      pack_panels(to, &part, npanel);
      rows = npanel * w;
      continue;
    }
    if (rows < w || s->k < s->k_pad) memset(to, 0, (size_t)(w * s->k_pad) * 4);
    pack_rest(to, s, i0, rows, pack_panel_along(to, s, i0, rows));
  }
}

TIDE_LEVELS_GLOBAL(void, tide__tile_pack_f64, (void *dst, const tile_strip *s), (dst, s))
{
  int64_t w = s->width;
  const double *src = s->src;
  double *to = dst;
  for (int64_t i0 = 0; i0 < s->n; i0 += w, to += w * s->k_pad) {
    int64_t rows = s->n - i0 < w ? s->n - i0 : w;
    if (rows < w || s->k < s->k_pad) memset(to, 0, (size_t)(w * s->k_pad) * 8);
    for (int64_t p = 0; p < s->k; p++)
      for (int64_t i = 0; i < rows; i++) to[p * w + i] = src[(i0 + i) * s->is + p * s->ps];
  }
}

TIDE_LEVELS_GLOBAL(void, tide__tile_to_half, (const tile_half *job), (job))
{
  for (int i = 0; i < job->rows; i++)
    vec_narrow(job->dst + i * job->dst_rs, job->src + i * job->src_rs, job->dtype, job->cols);
}

/* ---- tiles: 6 x 16 f32, 6 x 8 f64, two vectors of 32 bytes wide ---- */

typedef float  vec_f32 __attribute__((vector_size(32)));
typedef double vec_f64 __attribute__((vector_size(32)));

/* One word of k. The line of B that is AHEAD steps away is fetched. */
#define TILE_STEP(vec, WIDE, a, b)                                                             \
  {                                                                                            \
    vec b0, b1;                                                                                \
    memcpy(&b0, b, sizeof b0);                                                                 \
    memcpy(&b1, b + WIDE / 2, sizeof b1);                                                      \
    __builtin_prefetch(b + AHEAD * WIDE);                                                      \
    _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++)                                     \
    {                                                                                          \
      acc[i][0] += a[i] * b0;                                                                  \
      acc[i][1] += a[i] * b1;                                                                  \
    }                                                                                          \
  }

/* The sums of the tile stay in registers; C is added at the end. */
#define TILE_BODY(elem, vec, WIDE)                                                             \
  const elem *a = job->a, *b = job->b;                                                         \
  elem *c = job->c;                                                                            \
  vec acc[ROWS][2] = { 0 };                                                                    \
  const char *soon = job->soon;                                                                \
  for (int i = 0; i < job->rows; i++) __builtin_prefetch(c + i * job->c_rs, 1);                \
  int64_t p = job->k;                                                                          \
  for (; p >= STEPS; p -= STEPS) {                                                             \
    for (int i = 0; i < job->nsoon; i++) __builtin_prefetch(soon + i * job->soon_rs, 0, 2);    \
    soon += 64;                                                                                \
    for (int q = 0; q < STEPS; q += 4, a += 4 * ROWS, b += 4 * WIDE) {                         \
      TILE_STEP(vec, WIDE, a, b)                                                               \
      TILE_STEP(vec, WIDE, (a + ROWS), (b + WIDE))                                             \
      TILE_STEP(vec, WIDE, (a + 2 * ROWS), (b + 2 * WIDE))                                     \
      TILE_STEP(vec, WIDE, (a + 3 * ROWS), (b + 3 * WIDE))                                     \
    }                                                                                          \
  }                                                                                            \
  for (; p > 0; p--, a += ROWS, b += WIDE) TILE_STEP(vec, WIDE, a, b)                          \
  if (job->rows == ROWS && job->cols == WIDE) {                                                \
    _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++, c += job->c_rs)                     \
    {                                                                                          \
      vec old[2] = { 0 };                                                                      \
      if (job->load) memcpy(old, c, sizeof old);                                               \
      old[0] += acc[i][0], old[1] += acc[i][1];                                                \
      memcpy(c, old, sizeof old);                                                              \
    }                                                                                          \
    return;                                                                                    \
  }                                                                                            \
  elem tile[ROWS][WIDE];                                                                       \
  memcpy(tile, acc, sizeof tile);                                                              \
  for (int i = 0; i < job->rows; i++, c += job->c_rs) {                                        \
    if (job->load)                                                                             \
      for (int j = 0; j < job->cols; j++) tile[i][j] += c[j];                                  \
    memcpy(c, tile[i], (size_t)job->cols * sizeof(elem));                                      \
  }

static void run_f32(const tile_job *job) { TILE_BODY(float, vec_f32, F32_COLS); }
static void run_f64(const tile_job *job) { TILE_BODY(double, vec_f64, F64_COLS); }

static const tile_kernel base_f32 = {
  .mr = ROWS, .nr = F32_COLS, .kr = 1, .esize = 4, .f64 = 0, .kc = 704, .cols = 448 << 10,
  .whole = 1 << 20,
  .pack_a = tide__tile_pack_f32, .pack_b = tide__tile_pack_f32, .run = run_f32,
  .to_half = tide__tile_to_half
};
static const tile_kernel base_f64 = {
  .mr = ROWS, .nr = F64_COLS, .kr = 1, .esize = 8, .f64 = 1, .kc = 256, .cols = 448 << 10,
  .whole = 1 << 20,
  .pack_a = tide__tile_pack_f64, .pack_b = tide__tile_pack_f64, .run = run_f64
};

#if defined(__x86_64__) && defined(__GNUC__)

/* The build allows contraction, which makes acc + a * b one FMA. */
TIDE_AVX2 static void run_f32_avx2(const tile_job *job) { TILE_BODY(float, vec_f32, F32_COLS); }
TIDE_AVX2 static void run_f64_avx2(const tile_job *job) { TILE_BODY(double, vec_f64, F64_COLS); }

static const tile_kernel avx2_f32 = {
  .mr = ROWS, .nr = F32_COLS, .kr = 1, .esize = 4, .f64 = 0, .kc = 704, .cols = 448 << 10,
  .whole = 1 << 20,
  .pack_a = tide__tile_pack_f32, .pack_b = tide__tile_pack_f32, .run = run_f32_avx2,
  .to_half = tide__tile_to_half
};
static const tile_kernel avx2_f64 = {
  .mr = ROWS, .nr = F64_COLS, .kr = 1, .esize = 8, .f64 = 1, .kc = 256, .cols = 448 << 10,
  .whole = 1 << 20,
  .pack_a = tide__tile_pack_f64, .pack_b = tide__tile_pack_f64, .run = run_f64_avx2
};

const tile_kernel *tide__tile_kernel_base(int isa, int f64)
{
  if (isa & CPU_ISA_AVX2) return f64 ? &avx2_f64 : &avx2_f32;
  return f64 ? &base_f64 : &base_f32;
}

#else

const tile_kernel *tide__tile_kernel_base(int isa, int f64)
{
  (void)isa;
  return f64 ? &base_f64 : &base_f32;
}

#endif
