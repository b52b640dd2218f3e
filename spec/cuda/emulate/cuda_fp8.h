/* FP8 conversion of the emulated CUDA: the core's own rounding, and infinities saturate as the real
 * one has it. Spec only. */
#pragma once

#include <cmath>

#include "cuda_runtime.h"

extern "C" {
#include "core/base/dtype.h"
}

enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;

static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t,
                                                       __nv_fp8_interpretation_t form)
{
  if (std::isinf(v)) v = std::copysign(form == __NV_E5M2 ? 57344.0f : 448.0f, v);
  return form == __NV_E5M2 ? tide__f32_to_e5m2(v) : tide__f32_to_e4m3(v);
}

/* x in the low byte. */
static inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t how,
                                                            __nv_fp8_interpretation_t form)
{
  return (__nv_fp8x2_storage_t)(__nv_cvt_float_to_fp8(v.x, how, form)
                                | __nv_cvt_float_to_fp8(v.y, how, form) << 8);
}
