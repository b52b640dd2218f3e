/* The bf16 tile for AArch64 with BF16: bfmmla adds the products of two rows and two columns, four
 * deep, to a 2 x 2 block of f32 sums. See tile.h.
 *
 * The instruction rounds its sum to odd after each pair of products and takes denormals as zeros.
 */
#if defined(__aarch64__) && defined(__GNUC__)

#include <arm_neon.h>
#include <string.h>

#include "kernels/cpu/vec.h"
#include "kernels/cpu/gemm/tile.h"

#define NEON_BF16 __attribute__((target("arch=armv8.2-a+bf16")))

/* 24 blocks of sums, 4 pairs of rows and one pair of columns at a time: 29 of 32 registers. */
enum { ROWS = 8, COLS = 12, DEPTH = 4 };

/* Packs panels of s->width rows: for every four of k, four elements of each row. */
static void neon_pack(void *dst, const tile_strip *s)
{
  const uint16_t *src = s->src;
  uint16_t *to = dst;
  int64_t w = s->width;
  for (int64_t i0 = 0; i0 < s->n; i0 += w, to += w * s->k_pad) {
    int64_t rows = i64_min(w, s->n - i0);
    if (rows < w || s->k < s->k_pad) memset(to, 0, (size_t)(w * s->k_pad) * sizeof *to);
    for (int64_t i = 0; i < rows; i++)
      for (int64_t p = 0; p < s->k; p++)
        to[(p / DEPTH * w + i) * DEPTH + p % DEPTH] = src[(i0 + i) * s->is + p * s->ps];
  }
}

/* Adds the products of a tile: sums[i][j] holds its rows 2i, 2i + 1 and columns 2j, 2j + 1. */
NEON_BF16 static void neon_products(float32x4_t sums[ROWS / 2][COLS / 2], const tile_job *job)
{
  const uint16_t *a = job->a, *b = job->b;
  for (int64_t p = 0; p < job->k; p += DEPTH, a += ROWS * DEPTH, b += COLS * DEPTH) {
    bfloat16x8_t rows[ROWS / 2];
    for (int i = 0; i < ROWS / 2; i++) rows[i] = vreinterpretq_bf16_u16(vld1q_u16(a + 8 * i));
    for (int j = 0; j < COLS / 2; j++) {
      bfloat16x8_t cols = vreinterpretq_bf16_u16(vld1q_u16(b + 8 * j));
      for (int i = 0; i < ROWS / 2; i++) sums[i][j] = vbfmmlaq_f32(sums[i][j], rows[i], cols);
    }
  }
}

NEON_BF16 static void neon_run(const tile_job *job)
{
  float tile[ROWS][COLS] = {{0}}, *c = job->c;
  float32x4_t sums[ROWS / 2][COLS / 2];
  size_t width = (size_t)job->cols * sizeof(float);
  if (job->load)
    for (int i = 0; i < job->rows; i++) memcpy(tile[i], c + i * job->c_rs, width);
  for (int i = 0; i < ROWS / 2; i++)
    for (int j = 0; j < COLS / 2; j++)
      sums[i][j] = vcombine_f32(vld1_f32(&tile[2 * i][2 * j]), vld1_f32(&tile[2 * i + 1][2 * j]));
  neon_products(sums, job);
  for (int i = 0; i < ROWS / 2; i++)
    for (int j = 0; j < COLS / 2; j++) {
      vst1_f32(&tile[2 * i][2 * j], vget_low_f32(sums[i][j]));
      vst1_f32(&tile[2 * i + 1][2 * j], vget_high_f32(sums[i][j]));
    }
  for (int i = 0; i < job->rows; i++) memcpy(c + i * job->c_rs, tile[i], width);
}

static const tile_kernel kernel = {
  .mr = ROWS, .nr = COLS, .kr = DEPTH, .esize = 2, .kc = 1024, .cols = 448 << 10,
  .whole = 1 << 20,
  .pack_a = neon_pack, .pack_b = neon_pack, .run = neon_run, .to_half = tide__tile_to_half
};

const tile_kernel *tide__tile_kernel_bf16(void) { return &kernel; }

#endif
