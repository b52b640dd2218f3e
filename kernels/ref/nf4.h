/* NF4 with double quantisation (Dettmers et al., arXiv 2305.14314), as bitsandbytes has it, for
 * kernels/ref and kernels/cpu: n numbers as codes of 4 bits, with a magnitude for each block of 64.
 *
 * Every code is the nearest one. (bitsandbytes finds codes of 8 bits on the CPU by a table, which
 * takes the neighbour of about one in a thousand, where a number is near the middle of two.)
 *
 * A code represents a share of the magnitude: 16 quantiles of the normal distribution. Magnitudes
 * are codes, too: their mean is subtracted, and blocks of 256 of the differences become dynamic
 * 8-bit numbers (dynamic8.h) times the largest difference.
 *
 *   codes  u8: ceil(n / 2) bytes of two codes, the first in the high bits; then the codes of the
 *          ceil(n / 64) magnitudes
 *   scale  f32: the mean of the magnitudes, then the largest difference of each 256 of them
 *
 * Blocks run over elements in row-major order, across the ends of rows. A NaN or infinite number
 * makes all n numbers NaN.
 *
 * A part of a weight (k_nf4_attrs) keeps its own codes and those of the magnitudes that it needs,
 * and the whole of scale, so it has exactly the numbers of the whole. It begins at an even place,
 * and columns are cut at even places, so that a byte has two numbers of one block.
 */
#pragma once

#include <float.h>

#include "kernels/kernel.h"
#include "kernels/ref/dynamic8.h"

enum { NF4_BLOCK = 64, NF4_GROUP = 256 };

static const float nf4_share[16] = {
  -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
  -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
  0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
  0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f
};

static inline int64_t nf4_blocks(int64_t n) { return n / NF4_BLOCK + (n % NF4_BLOCK > 0); }
static inline int64_t nf4_groups(int64_t n)
{
  return nf4_blocks(n) / NF4_GROUP + (nf4_blocks(n) % NF4_GROUP > 0);
}
static inline int64_t nf4_pairs(int64_t n) { return n / 2 + n % 2; }

/* Stored numbers and how to read them. */
typedef struct nf4 {
  const uint8_t *pair, *block;
  const float   *scale;
  k_nf4_attrs    at;
  float          of[256];  /* the share of a code of 8 bits */
} nf4;

static inline void nf4_init(nf4 *q, const void *codes, const void *scale, const k_nf4_attrs *a)
{
  q->pair = codes;
  q->block = q->pair ? q->pair + nf4_pairs(a->rows * a->cols) : q->pair;
  q->scale = scale;
  q->at = *a;
  for (int c = 0; c < 256; c++)
    q->of[c] = (float)(c < 127 ? -dyn8_magnitude(127 - c, 1) : dyn8_magnitude(c - 127, 1));
}

/* Returns the place in the whole weight of the first number of a row. */
static inline int64_t nf4_row_start(const nf4 *q, int64_t row)
{
  return q->at.first + row * q->at.stride;
}

/* Returns the magnitude of a block of the whole weight, for numbers of `row`. */
static inline float nf4_magnitude(const nf4 *q, int64_t row, int64_t block)
{
  int64_t of_row = q->at.row_blocks, start = of_row ? nf4_row_start(q, row) : q->at.first;
  int code = q->block[row * of_row + block - start / NF4_BLOCK];
  return (float)((double)q->of[code] * q->scale[1 + block / NF4_GROUP] + q->scale[0]);
}

static inline int nf4_code_at(const nf4 *q, int64_t i)
{
  return i % 2 ? q->pair[i / 2] & 15 : q->pair[i / 2] >> 4;
}

/* Returns the nearest code of a share in [-1, 1]. */
static inline int nf4_code(float share)
{
  int code = 0;
  for (int c = 0; c < 15; c++) code += share > (nf4_share[c] + nf4_share[c + 1]) / 2;
  return code;
}

/* Returns the largest magnitude of n numbers, NaN if one is NaN or infinite. */
static inline float nf4_largest(const float *x, int64_t n)
{
  float most = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!isfinite(x[i])) return NAN;
    if (fabsf(x[i]) > most) most = fabsf(x[i]);
  }
  return most;
}

/* Writes the codes of a block of n numbers. */
static inline void nf4_code_block(uint8_t *pair, const float *x, int64_t n, float most)
{
  float back = most > 0 ? 1 / most : 0;
  if (back > FLT_MAX) back = 0; /* of a denormal number */
  for (int64_t i = 0; i < n; i += 2)
    pair[i / 2] = (uint8_t)(nf4_code(x[i] * back) << 4 | nf4_code(i + 1 < n ? x[i + 1] * back : 0));
}

/* Codes the magnitudes `most` [nblock]. */
static inline void nf4_code_magnitudes(uint8_t *block, float *scale, const float *most,
                                       int64_t nblock)
{
  dyn8 map;
  double sum = 0;
  dyn8_init(&map, 1);
  for (int64_t i = 0; i < nblock; i++) sum += most[i];
  scale[0] = nblock ? (float)(sum / (double)nblock) : 0;
  for (int64_t at = 0; at < nblock; at += NF4_GROUP) {
    int64_t n = nblock - at < NF4_GROUP ? nblock - at : NF4_GROUP;
    float *largest = &scale[1 + at / NF4_GROUP];
    *largest = 0;
    for (int64_t i = at; i < at + n; i++)
      if (fabsf(most[i] - scale[0]) > *largest) *largest = fabsf(most[i] - scale[0]);
    for (int64_t i = at; i < at + n; i++) {
      float share = *largest > 0 ? (most[i] - scale[0]) / *largest : 0;
      int low = 0, high = 128; /* the magnitude whose upper midpoint is the first not below */
      while (low < high) {
        int q = (low + high) / 2;
        if (fabsf(share) > map.mid[q]) low = q + 1;
        else high = q;
      }
      block[i] = dyn8_code(&map, share, low);
    }
  }
}
