/* Element types: sizes, names, kinds, promotion, and the conversions of 16-bit and 8-bit floats.
 *
 * Layer 0. The table is dtype.def. Conversions round to nearest even and keep NaN a NaN.
 */
#ifndef TIDE_BASE_DTYPE_H
#define TIDE_BASE_DTYPE_H

#include <string.h>

#include "tide/tide.h"

static inline float tide__bf16_to_f32(uint16_t h)
{
  uint32_t u = (uint32_t)h << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static inline uint16_t tide__f32_to_bf16(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float    tide__f16_to_f32(uint16_t h);
uint16_t tide__f32_to_f16(float f);

/* The two FP8 formats (Micikevicius et al., arXiv 2209.05433), which no tensor has: operands of a
 * product are rounded to them on the way (kernels/fp8.h). Finite numbers beyond the largest become
 * it. An infinity stays one in e5m2 and is NaN in e4m3, which has none. NaN is 0x7f. */
float   tide__e4m3_to_f32(uint8_t h);
float   tide__e5m2_to_f32(uint8_t h);
uint8_t tide__f32_to_e4m3(float f);
uint8_t tide__f32_to_e5m2(float f);

int tide__dtype_valid(int dtype);
int tide__dtype_is_float(int dtype);
int tide__dtype_promote(int a, int b);

#endif
