/* bfloat16 of the emulated CUDA: the core's own rounding. Spec only. */
#pragma once

extern "C" {
#include "core/base/dtype.h"
}

struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };

static inline float __bfloat162float(__nv_bfloat16 v) { return tide__bf16_to_f32(v.bits); }
static inline __nv_bfloat16 __float2bfloat16(float v) { return {tide__f32_to_bf16(v)}; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b)
{
  return {__float2bfloat16(a), __float2bfloat16(b)};
}
