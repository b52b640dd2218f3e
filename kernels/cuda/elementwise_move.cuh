/* Elements from one dtype to another. */
#pragma once

#include "kernels/cuda/pack.cuh"

/* out[0] = in[0], converted, whatever the dtypes and strides. */
int tide_convert(const k_call *call);
/* out[0] += a in[0], or a factor in[0]. factor: one number, f32 (f64 for f64), of the device. */
int tide_axpy(const k_call *call, double a, tide_array factor = {});

/* Through double where a float could not hold the source: f64, and integers to floats. */
TIDE_DEVICE void tide_move(tide_array y, int64_t yt, tide_array x, int64_t xt)
{
  switch (x.dtype) {
    case TIDE_I64: case TIDE_I32: case TIDE_U8: case TIDE_BOOL:
      if (y.dtype == TIDE_F64)
        tide_store<double>(y.data, yt, y.dtype, (double)tide_load<int64_t>(x.data, xt, x.dtype));
      else tide_store<int64_t>(y.data, yt, y.dtype, tide_load<int64_t>(x.data, xt, x.dtype));
      break;
    case TIDE_F64:
      tide_store<double>(y.data, yt, y.dtype, tide_load<double>(x.data, xt, x.dtype));
      break;
    default: tide_store<float>(y.data, yt, y.dtype, tide_load<float>(x.data, xt, x.dtype));
  }
}
