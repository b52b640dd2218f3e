/* Element types: sizes, names, kinds, promotion, and the conversions of 8-bit floats (those of
 * 16-bit floats are in float.h). The table is dtype.def. */
#pragma once

#include "core/base/float.h"
#include "tide/tide.h"

/* The two FP8 formats (Micikevicius et al., arXiv 2209.05433). No tensor has them: operands of a
 * product are rounded to them (kernels/fp8.h), to nearest with ties to even. Finite numbers beyond
 * the largest become it. An infinity stays one in e5m2 and becomes NaN in e4m3. NaN is 0x7f. */
float   tide__e4m3_to_f32(uint8_t h);
float   tide__e5m2_to_f32(uint8_t h);
uint8_t tide__f32_to_e4m3(float f);
uint8_t tide__f32_to_e5m2(float f);

int tide__dtype_valid(int dtype);
int tide__dtype_is_float(int dtype);
int tide__dtype_promote(int a, int b);
/* Returns whether a sum of dtype `sum` may hold terms of dtype `of`: the two are one, or f32 of a
 * 16-bit one. */
int tide__dtype_sums(int sum, int of);
