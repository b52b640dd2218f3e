/* How an elementwise function object is applied to operands of any dtype and strides.
 *
 * A kernel is chosen by (kind of arithmetic, contiguous or not) and by the dtype at
 * run time inside tide_load and tide_store, whose branch is the same for every thread; f32 and bf16
 * that lie contiguously, where training spends its time, go four elements at a time.
 */
#pragma once

#include "kernels/cuda/block.cuh"

__device__ __forceinline__ float tide_log1p(float x) { return log1pf(x); }
__device__ __forceinline__ double tide_log1p(double x) { return log1p(x); }
__device__ __forceinline__ float tide_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ double tide_tanh(double x) { return tanh(x); }
__device__ __forceinline__ float tide_erf(float x) { return erff(x); }
__device__ __forceinline__ double tide_erf(double x) { return erf(x); }
__device__ __forceinline__ float tide_erfc(float x) { return erfcf(x); }
__device__ __forceinline__ double tide_erfc(double x) { return erfc(x); }

using tide_operand = tide_array;
static inline tide_operand tide_operand_of(const k_tensor &t) { return tide_array_of(t); }

/* ---- kernels: T is the type of the arithmetic ------------------------------------------------ */

template <class T, class F>
__global__ void tide_map0(tide_layout l, tide_operand y, F f)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[1];
    tide_offsets<1>(l, i, at);
    tide_store<T>(y.data, at[0], y.dtype, f.template operator()<T>());
  }
}

template <class T, class F>
__global__ void tide_map1(tide_layout l, tide_operand y, tide_operand x, F f)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[2];
    tide_offsets<2>(l, i, at);
    tide_store<T>(y.data, at[0], y.dtype, f(tide_load<T>(x.data, at[1], x.dtype)));
  }
}

template <class T, class F>
__global__ void tide_map2(tide_layout l, tide_operand y, tide_operand a, tide_operand b, F f)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[3];
    tide_offsets<3>(l, i, at);
    tide_store<T>(y.data, at[0], y.dtype,
                  f(tide_load<T>(a.data, at[1], a.dtype), tide_load<T>(b.data, at[2], b.dtype)));
  }
}

/* ---- four at a time: f32 and bf16 operands that lie contiguously and are aligned ------------- */

struct tide_four { float v[4]; };

__device__ __forceinline__ tide_four tide_load4(const void *p, int64_t i, int dtype)
{
  tide_four r;
  if (dtype == TIDE_F32) {
    float4 f = static_cast<const float4 *>(p)[i];
    r.v[0] = f.x, r.v[1] = f.y, r.v[2] = f.z, r.v[3] = f.w;
  } else {
    uint2 u = static_cast<const uint2 *>(p)[i];
    r.v[0] = __uint_as_float(u.x << 16), r.v[1] = __uint_as_float(u.x & 0xffff0000u);
    r.v[2] = __uint_as_float(u.y << 16), r.v[3] = __uint_as_float(u.y & 0xffff0000u);
  }
  return r;
}

__device__ __forceinline__ uint32_t tide_bf16_pair(float lo, float hi)
{
  __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<uint32_t *>(&p);
}

__device__ __forceinline__ void tide_store4(void *p, int64_t i, int dtype, const tide_four &r)
{
  if (dtype == TIDE_F32)
    static_cast<float4 *>(p)[i] = make_float4(r.v[0], r.v[1], r.v[2], r.v[3]);
  else
    static_cast<uint2 *>(p)[i] = make_uint2(tide_bf16_pair(r.v[0], r.v[1]),
                                            tide_bf16_pair(r.v[2], r.v[3]));
}

template <class F>
__global__ void tide_map1_four(int64_t n4, tide_operand y, tide_operand x, F f)
{
  TIDE_GRID_LOOP(i, n4) {
    tide_four v = tide_load4(x.data, i, x.dtype);
#pragma unroll
    for (int j = 0; j < 4; j++) v.v[j] = f(v.v[j]);
    tide_store4(y.data, i, y.dtype, v);
  }
}

template <class F>
__global__ void tide_map2_four(int64_t n4, tide_operand y, tide_operand a, tide_operand b, F f)
{
  TIDE_GRID_LOOP(i, n4) {
    tide_four v = tide_load4(a.data, i, a.dtype), w = tide_load4(b.data, i, b.dtype);
#pragma unroll
    for (int j = 0; j < 4; j++) v.v[j] = f(v.v[j], w.v[j]);
    tide_store4(y.data, i, y.dtype, v);
  }
}

static inline bool tide_takes_four(const tide_layout &l, int n, const k_tensor *const *t)
{
  if (l.numel % 4 != 0 || !tide_layout_flat(l, n)) return false;
  for (int k = 0; k < n; k++)
    if ((t[k]->dtype != TIDE_F32 && t[k]->dtype != TIDE_BF16) || ((uintptr_t)t[k]->data & 15))
      return false;
  return true;
}

/* ---- launching ------------------------------------------------------------------------------- */

enum { TIDE_KIND_FLOAT, TIDE_KIND_DOUBLE, TIDE_KIND_INT };

static inline int tide_kind(const k_tensor &t)
{
  return t.dtype == TIDE_F64 ? TIDE_KIND_DOUBLE : 1 << t.dtype & K_FLOAT ? TIDE_KIND_FLOAT
                                                                         : TIDE_KIND_INT;
}

template <class T, class F> int tide_run1(const k_call *call, const k_tensor &x, F f)
{
  const k_tensor *t[2] = {&call->out[0], &x};
  tide_layout l = tide_layout_of(2, t);
  TIDE_LAUNCH((tide_map1<T>), l.numel, call, l, tide_operand_of(*t[0]), tide_operand_of(x), f);
  return TIDE_CUDA_LAUNCHED(call);
}

template <class T, class F> int tide_run2(const k_call *call, F f)
{
  const k_tensor *t[3] = {&call->out[0], &call->in[0], &call->in[1]};
  tide_layout l = tide_layout_of(3, t);
  TIDE_LAUNCH((tide_map2<T>), l.numel, call, l, tide_operand_of(*t[0]), tide_operand_of(*t[1]),
              tide_operand_of(*t[2]), f);
  return TIDE_CUDA_LAUNCHED(call);
}

template <class F> int tide_unary_real(const k_call *call, F f)
{
  const k_tensor *t[2] = {&call->out[0], &call->in[0]};
  tide_layout l = tide_layout_of(2, t);
  if (tide_takes_four(l, 2, t)) {
    TIDE_LAUNCH(tide_map1_four, l.numel / 4, call, l.numel / 4, tide_operand_of(*t[0]),
              tide_operand_of(*t[1]), f);
    return TIDE_CUDA_LAUNCHED(call);
  }
  return tide_kind(*t[1]) == TIDE_KIND_DOUBLE ? tide_run1<double>(call, *t[1], f)
                                              : tide_run1<float>(call, *t[1], f);
}

template <class F> int tide_binary_real(const k_call *call, F f)
{
  const k_tensor *t[3] = {&call->out[0], &call->in[0], &call->in[1]};
  tide_layout l = tide_layout_of(3, t);
  if (tide_takes_four(l, 3, t)) {
    TIDE_LAUNCH(tide_map2_four, l.numel / 4, call, l.numel / 4, tide_operand_of(*t[0]),
              tide_operand_of(*t[1]), tide_operand_of(*t[2]), f);
    return TIDE_CUDA_LAUNCHED(call);
  }
  return tide_kind(*t[1]) == TIDE_KIND_DOUBLE ? tide_run2<double>(call, f)
                                              : tide_run2<float>(call, f);
}

/* The same for functions that integers have too. */
template <class F> int tide_unary(const k_call *call, F f)
{
  return tide_kind(call->in[0]) == TIDE_KIND_INT ? tide_run1<int64_t>(call, call->in[0], f)
                                                 : tide_unary_real(call, f);
}

template <class F> int tide_binary(const k_call *call, F f)
{
  return tide_kind(call->in[0]) == TIDE_KIND_INT ? tide_run2<int64_t>(call, f)
                                                 : tide_binary_real(call, f);
}

/* out[0] = f(out[0]) */
template <class F> int tide_inplace(const k_call *call, F f)
{
  const k_tensor &t = call->out[0];
  switch (tide_kind(t)) {
    case TIDE_KIND_INT: return tide_run1<int64_t>(call, t, f);
    case TIDE_KIND_DOUBLE: return tide_run1<double>(call, t, f);
    default: return tide_run1<float>(call, t, f);
  }
}

template <class F> int tide_nullary(const k_call *call, F f)
{
  const k_tensor *t[1] = {&call->out[0]};
  tide_layout l = tide_layout_of(1, t);
  tide_operand y = tide_operand_of(*t[0]);
  /* a fill value of an integer is given as a double, as in the reference */
  if (y.dtype == TIDE_F32) TIDE_LAUNCH((tide_map0<float>), l.numel, call, l, y, f);
  else TIDE_LAUNCH((tide_map0<double>), l.numel, call, l, y, f);
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- conversion, selection, accumulation ----------------------------------------------------- */

/* Through double where a float could not hold the source: f64, and integers to floats. */
__device__ __forceinline__ void tide_move(tide_operand y, int64_t yt, tide_operand x, int64_t xt)
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

static __global__ void tide_convert_kernel(tide_layout l, tide_operand y, tide_operand x)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[2];
    tide_offsets<2>(l, i, at);
    tide_move(y, at[0], x, at[1]);
  }
}

static inline int tide_convert(const k_call *call)
{
  const k_tensor *t[2] = {&call->out[0], &call->in[0]};
  tide_layout l = tide_layout_of(2, t);
  TIDE_LAUNCH(tide_convert_kernel, l.numel, call, l, tide_operand_of(*t[0]),
              tide_operand_of(*t[1]));
  return TIDE_CUDA_LAUNCHED(call);
}

static __global__ void tide_where_kernel(tide_layout l, tide_operand y, tide_operand cond,
                                         tide_operand a, tide_operand b)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[4];
    tide_offsets<4>(l, i, at);
    bool yes = tide_load<int64_t>(cond.data, at[1], cond.dtype) != 0;
    tide_move(y, at[0], yes ? a : b, yes ? at[2] : at[3]);
  }
}

static inline int tide_where(const k_call *call)
{
  const k_tensor *t[4] = {&call->out[0], &call->in[0], &call->in[1], &call->in[2]};
  tide_layout l = tide_layout_of(4, t);
  TIDE_LAUNCH(tide_where_kernel, l.numel, call, l, tide_operand_of(*t[0]), tide_operand_of(*t[1]),
              tide_operand_of(*t[2]),
   tide_operand_of(*t[3]));
  return TIDE_CUDA_LAUNCHED(call);
}

template <class T>
__global__ void tide_axpy_kernel(tide_layout l, tide_operand y, tide_operand x, T a)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[2];
    tide_offsets<2>(l, i, at);
    T v = tide_load<T>(y.data, at[0], y.dtype) + a * tide_load<T>(x.data, at[1], x.dtype);
    tide_store<T>(y.data, at[0], y.dtype, v);
  }
}

static inline int tide_axpy(const k_call *call, double a)
{
  const k_tensor *t[2] = {&call->out[0], &call->in[0]};
  tide_layout l = tide_layout_of(2, t);
  tide_operand y = tide_operand_of(*t[0]), x = tide_operand_of(*t[1]);
  switch (tide_kind(*t[0])) {
    case TIDE_KIND_INT:
      TIDE_LAUNCH((tide_axpy_kernel<int64_t>), l.numel, call, l, y, x, (int64_t)a);
      break;
    case TIDE_KIND_DOUBLE:
      TIDE_LAUNCH((tide_axpy_kernel<double>), l.numel, call, l, y, x, a);
      break;
    default: TIDE_LAUNCH((tide_axpy_kernel<float>), l.numel, call, l, y, x, (float)a);
  }
  return TIDE_CUDA_LAUNCHED(call);
}
