/* IEEE half of the emulated CUDA: the core's own rounding. Spec only. */
#pragma once

extern "C" {
#include "core/base/dtype.h"
}

struct __half { uint16_t bits; };
struct __half2 { __half x, y; };

static __attribute__((noinline)) float __half2float(__half v) { return tide__f16_to_f32(v.bits); }
static __attribute__((noinline)) __half __float2half(float v) { return {tide__f32_to_f16(v)}; }
static inline __half2 __floats2half2_rn(float a, float b)
{
  return {__float2half(a), __float2half(b)};
}
