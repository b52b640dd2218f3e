/* Tile kernels for machines without AVX-512, for f64, and the portable packing.
 *
 * One body per element type, written in short compiler vectors, compiled once for the base
 * instruction set and once for AVX2 with FMA, where its twelve accumulators fill the registers. See
 * tile.h.
 */
#include "kernels/cpu/vec.h"
#include "kernels/cpu/gemm/tile.h"

/* ---- packing ---- */

TIDE_LEVELS_GLOBAL(void, tide__tile_pack_f32, (void *dst, const tile_strip *s), (dst, s))
{
  int64_t w = s->width;
  const char *src = s->src;
  float *to = dst;
  for (int64_t i0 = 0; i0 < s->n; i0 += w, to += w * s->k_pad) {
    int64_t rows = s->n - i0 < w ? s->n - i0 : w;
    if (rows < w || s->k < s->k_pad) memset(to, 0, (size_t)(w * s->k_pad) * 4);
    if (s->is == 1) {
      for (int64_t p = 0; p < s->k; p++)
        vec_widen(to + p * w, src + (i0 + p * s->ps) * vec_size(s->dtype), s->dtype, rows);
      continue;
    }
    for (int64_t i = 0; i < rows; i++)
      for (int64_t p = 0; p < s->k; p++)
        to[p * w + i] = vec_get(src, (i0 + i) * s->is + p * s->ps, s->dtype);
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
  for (int i = 0; i < job->rows; i++) {
    vec_narrow(job->dst + i * job->dst_rs, job->src + i * job->src_rs, job->dtype, job->cols);
  }
}

/* ---- tiles: 6 x 16 f32, 6 x 8 f64, two vectors of 32 bytes wide ---- */

enum { ROWS = 6, F32_COLS = 16, F64_COLS = 8 };

typedef float  vec_f32 __attribute__((vector_size(32)));
typedef double vec_f64 __attribute__((vector_size(32)));

/* acc holds the whole tile in registers; the caller loads and stores it. */
#define TILE_BODY(elem, vec, WIDE)                                                             \
  const elem *a = job->a, *b = job->b;                                                         \
  elem tile[ROWS * WIDE] = {0};                                                                \
  elem *c = job->c;                                                                            \
  if (job->load)                                                                               \
    for (int i = 0; i < job->rows; i++)                                                        \
      memcpy(tile + i * WIDE, c + i * job->c_rs, (size_t)job->cols * sizeof(elem));            \
  vec acc[ROWS][2];                                                                            \
  memcpy(acc, tile, sizeof acc);                                                               \
  for (int64_t p = 0; p < job->k; p++, a += ROWS, b += WIDE) {                                 \
    vec b0, b1;                                                                                \
    memcpy(&b0, b, sizeof b0);                                                                 \
    memcpy(&b1, b + WIDE / 2, sizeof b1);                                                      \
    _Pragma("GCC unroll 6") for (int i = 0; i < ROWS; i++)                                     \
    {                                                                                          \
      acc[i][0] += a[i] * b0;                                                                  \
      acc[i][1] += a[i] * b1;                                                                  \
    }                                                                                          \
  }                                                                                            \
  memcpy(tile, acc, sizeof acc);                                                               \
  for (int i = 0; i < job->rows; i++)                                                          \
    memcpy(c + i * job->c_rs, tile + i * WIDE, (size_t)job->cols * sizeof(elem))

static void run_f32(const tile_job *job) { TILE_BODY(float, vec_f32, F32_COLS); }
static void run_f64(const tile_job *job) { TILE_BODY(double, vec_f64, F64_COLS); }

static const tile_kernel base_f32 = {
  .mr = ROWS, .nr = F32_COLS, .kr = 1, .esize = 4, .f64 = 0, .kc = 256, .cols = 448 << 10,
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
  .mr = ROWS, .nr = F32_COLS, .kr = 1, .esize = 4, .f64 = 0, .kc = 256, .cols = 448 << 10,
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
