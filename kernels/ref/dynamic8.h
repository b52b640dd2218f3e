/* Dynamic 8-bit numbers (Dettmers et al., arXiv 2110.02861): blocks of 256 numbers as codes of 8
 * bits and an f32 scale each, for kernels/ref and kernels/cpu.
 *
 * A code represents a share of the scale. Magnitudes lie in seven decades, 10^-6 to 1; each decade
 * has twice the codes of the one below. The signed map has 127 magnitudes of either sign, 0 and +1;
 * the unsigned one has 254 magnitudes, 0 and 1. A code is the nearest one, of two at one distance
 * the smaller magnitude. The unsigned map gives numbers above 0 at least its smallest magnitude, so
 * its root is not a divisor near 0.
 *
 * The scale is the number of the block with the largest magnitude, with its sign: it has the code
 * of 1, so reading a block and writing it again gives the same scale and codes. A block whose
 * largest magnitude is below 2^-103 is 0; one with an infinite number or NaN reads as NaN.
 */
#pragma once

#include <math.h>
#include <stdint.h>

enum { DYN8_BLOCK = 256 };
#define DYN8_LEAST 0x1p-103f

typedef struct dyn8 {
  float of[256];      /* the share that a code represents */
  float mid[256];     /* between magnitudes q and q + 1; infinity behind the last */
  int32_t top, zero;  /* the largest magnitude; the code of 0 */
} dyn8;

/* Returns magnitude q, from 0 to 1. */
static inline double dyn8_magnitude(int q, int is_signed)
{
  int at = is_signed ? q : q + 1, power = 0;
  if (q == 0) return 0;
  if (at == (is_signed ? 128 : 256)) return 1;
  while (at >> (power + 1)) power++;
  double count = 1 << power, decade = is_signed ? power : power - 1;
  return pow(10, decade - 6) * (0.1 + 0.9 * (at - count + 0.5) / count);
}

static inline void dyn8_init(dyn8 *d, int is_signed)
{
  d->top = is_signed ? 128 : 255;
  d->zero = is_signed ? 127 : 0;
  for (int c = 0; c < 256; c++) {
    int q = c - d->zero;
    d->of[c] = (float)(q < 0 ? -dyn8_magnitude(-q, 1) : dyn8_magnitude(q, is_signed));
    double low = dyn8_magnitude(c < d->top ? c : 0, is_signed);
    double high = dyn8_magnitude(c < d->top ? c + 1 : 0, is_signed);
    d->mid[c] = c < d->top ? (float)((low + high) / 2) : INFINITY;
  }
}

/* Returns the scale of a block from its largest and smallest number. */
static inline float dyn8_scale(float high, float low, int is_finite)
{
  float scale = high >= -low ? high : low;
  if (!is_finite) return NAN;
  return fabsf(scale) < DYN8_LEAST ? 0 : scale;
}

/* Returns the code of the share t, whose magnitude is number q or, if that is nearer, q + 1. */
static inline uint8_t dyn8_code(const dyn8 *d, float t, int q)
{
  q += fabsf(t) > d->mid[q];
  if (d->zero == 0) return (uint8_t)(t > 0 ? (q > 0 ? q : 1) : 0);
  return (uint8_t)(t < 0 ? 127 - (q < 127 ? q : 127) : 127 + q);
}
