/* How an elementwise function object is applied to operands of any dtype and strides.
 *
 * f32, bf16 and f16 that lie in packs (pack.cuh), where training spends its time, have a kernel a
 * dtype. Everything else takes a kernel a kind of arithmetic, which goes element by element and
 * branches on the dtype in tide_load and tide_store.
 */
#pragma once

#include "kernels/cuda/pack.cuh"

__device__ __forceinline__ float tide_log1p(float x) { return log1pf(x); }
__device__ __forceinline__ double tide_log1p(double x) { return log1p(x); }
__device__ __forceinline__ float tide_tanh(float x) { return tanhf(x); }
__device__ __forceinline__ double tide_tanh(double x) { return tanh(x); }
__device__ __forceinline__ float tide_erf(float x) { return erff(x); }
__device__ __forceinline__ double tide_erf(double x) { return erf(x); }
__device__ __forceinline__ float tide_erfc(float x) { return erfcf(x); }
__device__ __forceinline__ double tide_erfc(double x) { return erfc(x); }

/* ---- kernels: T is the type of the arithmetic ------------------------------------------------ */

template <class T, class F>
__global__ void tide_map1(tide_layout l, tide_array y, tide_array x, F f)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[2];
    tide_offsets<2>(l, i, at);
    tide_store<T>(y.data, at[0], y.dtype, f(tide_load<T>(x.data, at[1], x.dtype)));
  }
}

template <class T, class F>
__global__ void tide_map2(tide_layout l, tide_array y, tide_array a, tide_array b, F f)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[3];
    tide_offsets<3>(l, i, at);
    tide_store<T>(y.data, at[0], y.dtype,
                  f(tide_load<T>(a.data, at[1], a.dtype), tide_load<T>(b.data, at[2], b.dtype)));
  }
}

/* ---- the same for packs: R is the type of y in memory, E that of the others ------------------ */

template <class R, class E, class F> struct tide_job1 {
  enum { operands = 2, size = tide_wide<E> };
  template <int M> using held = tide_pack<E, M>;
  R *y;
  const E *x;
  F f;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<2> &p) const
  {
    return tide_pack_from<M>(x + p.at[1]);
  }
  template <int M> TIDE_DEVICE void write(const tide_places<2> &p, const held<M> &h) const
  {
    tide_values<tide_real<E>, M> v = tide_up(h);
#pragma unroll
    for (int j = 0; j < M; j++) v.v[j] = f(v.v[j]);
    tide_pack_to(y + p.at[0], tide_down<R>(v));
  }
};

template <class R, class E, class F> struct tide_job2 {
  enum { operands = 3, size = tide_wide<E> };
  template <int M> struct held { tide_pack<E, M> a, b; };
  R *y;
  const E *a, *b;
  F f;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<3> &p) const
  {
    return {tide_pack_from<M>(a + p.at[1]), tide_pack_from<M>(b + p.at[2])};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<3> &p, const held<M> &h) const
  {
    tide_values<tide_real<E>, M> v = tide_up(h.a), w = tide_up(h.b);
#pragma unroll
    for (int j = 0; j < M; j++) v.v[j] = f(v.v[j], w.v[j]);
    tide_pack_to(y + p.at[0], tide_down<R>(v));
  }
};

/* Computes in packs; the result is of the operands' dtype, or bool. */
template <class E, class F, class J>
int tide_map_packs(const k_call *call, const tide_packing &p, const k_tensor *const *t, F f)
{
  if constexpr (J::operands == 2) {
    return tide_run_packs<4>(call, p, J{static_cast<decltype(J::y)>(t[0]->data),
                                        static_cast<const E *>(t[1]->data), f});
  } else {
    return tide_run_packs<2>(call, p, J{static_cast<decltype(J::y)>(t[0]->data),
                                        static_cast<const E *>(t[1]->data),
                                        static_cast<const E *>(t[2]->data), f});
  }
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
  TIDE_LAUNCH((tide_map1<T>), l.numel, call, l, tide_array_of(*t[0]), tide_array_of(x), f);
  return TIDE_CUDA_LAUNCHED(call);
}

template <class T, class F> int tide_run2(const k_call *call, F f)
{
  const k_tensor *t[3] = {&call->out[0], &call->in[0], &call->in[1]};
  tide_layout l = tide_layout_of(3, t);
  TIDE_LAUNCH((tide_map2<T>), l.numel, call, l, tide_array_of(*t[0]), tide_array_of(*t[1]),
              tide_array_of(*t[2]), f);
  return TIDE_CUDA_LAUNCHED(call);
}

/* TEST: the result is bool. */
template <bool TEST, class F> int tide_apply1(const k_call *call, const k_tensor &x, F f)
{
  const k_tensor *t[2] = {&call->out[0], &x};
  tide_packing p;
  if (tide_is_short(x.dtype) && (TEST || t[0]->dtype == x.dtype) &&
      tide_packing_of(&p, tide_layout_of(2, t), 2, t, 16 / tide_size_of(x.dtype)))
    TIDE_BY_SHORT(x.dtype,
                  using R = typename std::conditional<TEST, uint8_t, E>::type;
                  using J = tide_job1<R, E, F>;
                  return (tide_map_packs<E, F, J>(call, p, t, f)));
  return tide_kind(x) == TIDE_KIND_DOUBLE ? tide_run1<double>(call, x, f)
                                          : tide_run1<float>(call, x, f);
}

template <bool TEST, class F> int tide_apply2(const k_call *call, F f)
{
  const k_tensor *t[3] = {&call->out[0], &call->in[0], &call->in[1]};
  tide_packing p;
  if (tide_is_short(t[1]->dtype) && (TEST || t[0]->dtype == t[1]->dtype) &&
      t[2]->dtype == t[1]->dtype &&
      tide_packing_of(&p, tide_layout_of(3, t), 3, t, 16 / tide_size_of(t[1]->dtype)))
    TIDE_BY_SHORT(t[1]->dtype,
                  using R = typename std::conditional<TEST, uint8_t, E>::type;
                  using J = tide_job2<R, E, F>;
                  return (tide_map_packs<E, F, J>(call, p, t, f)));
  return tide_kind(*t[1]) == TIDE_KIND_DOUBLE ? tide_run2<double>(call, f)
                                              : tide_run2<float>(call, f);
}

template <class F> int tide_unary_real(const k_call *call, F f)
{
  return tide_apply1<false>(call, call->in[0], f);
}
template <class F> int tide_binary_real(const k_call *call, F f)
{
  return tide_apply2<false>(call, f);
}

/* Compute functions that are defined for integers, too. */
template <bool TEST = false, class F> int tide_unary(const k_call *call, F f)
{
  return tide_kind(call->in[0]) == TIDE_KIND_INT ? tide_run1<int64_t>(call, call->in[0], f)
                                                 : tide_apply1<TEST>(call, call->in[0], f);
}
template <bool TEST = false, class F> int tide_binary(const k_call *call, F f)
{
  return tide_kind(call->in[0]) == TIDE_KIND_INT ? tide_run2<int64_t>(call, f)
                                                 : tide_apply2<TEST>(call, f);
}

/* out[0] = f(out[0]) */
template <class F> int tide_inplace(const k_call *call, F f)
{
  const k_tensor &t = call->out[0];
  return tide_kind(t) == TIDE_KIND_INT ? tide_run1<int64_t>(call, t, f)
                                       : tide_apply1<false>(call, t, f);
}

/* Returns TIDE_OK, or E_ARG with a message if a target of integers has a fractional factor. */
static inline int tide_integral(const k_call *call, double v)
{
  int dtype = call->out[0].dtype;
  if ((1 << dtype & K_FLOAT) || v == (double)(int64_t)v) return TIDE_OK;
  snprintf(call->msg, K_MSG, "factor %g is no integer: an integer tensor takes integers, cast it "
           "to a float first", v);
  return TIDE_E_ARG;
}
