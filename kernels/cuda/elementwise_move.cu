/* What only moves numbers, or adds them in place: cast copy_ clone where fill_ axpy_.
 *
 * Contiguous copies of one dtype are copies of the runtime. Others go 16 bytes at a time where both
 * sides lie in packs (pack.cuh), else element by element.
 *
 * Meaning: kernels/ref/elementwise.c.
 */
#include "kernels/cuda/elementwise_move.cuh"
#include "kernels/cuda/elementwise.cuh"

#include <cstring>
#include <type_traits>

extern "C" {
#include "core/base/float.h"
}

namespace {

/* ---- jobs for packs -------------------------------------------------------------------------- */

template <class Y, class X> struct cast_job {
  enum { operands = 2, size = 16 / (sizeof(Y) > sizeof(X) ? sizeof(Y) : sizeof(X)) };
  template <int M> using held = tide_pack<X, M>;
  Y *y;
  const X *x;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<2> &p) const
  {
    return tide_pack_from<M>(x + p.at[1]);
  }
  template <int M> TIDE_DEVICE void write(const tide_places<2> &p, const held<M> &h) const
  {
    tide_pack_to(y + p.at[0], tide_down<Y>(tide_up(h)));
  }
};

/* V: an unsigned integer as large as an element. */
template <class V> struct copy_job {
  enum { operands = 2, size = tide_wide<V> };
  template <int M> using held = tide_pack<V, M>;
  V *y;
  const V *x;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<2> &p) const
  {
    return tide_pack_from<M>(x + p.at[1]);
  }
  template <int M> TIDE_DEVICE void write(const tide_places<2> &p, const held<M> &h) const
  {
    tide_pack_to(y + p.at[0], h);
  }
};

template <class V> struct where_job {
  enum { operands = 4, size = tide_wide<V> };
  template <int M> struct held {
    tide_pack<uint8_t, M> cond;
    tide_pack<V, M> a, b;
  };
  V *y;
  const uint8_t *cond;
  const V *a, *b;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<4> &p) const
  {
    return {tide_pack_from<M>(cond + p.at[1]), tide_pack_from<M>(a + p.at[2]),
            tide_pack_from<M>(b + p.at[3])};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<4> &p, const held<M> &h) const
  {
    tide_pack<V, M> r = h.b;
#pragma unroll
    for (int j = 0; j < M; j++)
      if (h.cond.v[j]) r.v[j] = h.a.v[j];
    tide_pack_to(y + p.at[0], r);
  }
};

template <class V> struct fill_job {
  enum { operands = 1, size = tide_wide<V> };
  template <int M> struct held {};
  V *y;
  V value;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<1> &) const { return {}; }
  template <int M> TIDE_DEVICE void write(const tide_places<1> &p, const held<M> &) const
  {
    tide_pack<V, M> r;
#pragma unroll
    for (int j = 0; j < M; j++) r.v[j] = value;
    tide_pack_to(y + p.at[0], r);
  }
};

/* BY: the factor is a times a number in memory. */
template <class Y, class X, bool BY> struct axpy_job {
  enum { operands = 2, size = 16 / (sizeof(Y) > sizeof(X) ? sizeof(Y) : sizeof(X)) };
  template <int M> struct held { tide_pack<Y, M> y; tide_pack<X, M> x; };
  Y *y;
  const X *x;
  float a;
  const float *factor;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<2> &p) const
  {
    return {tide_pack_from<M>(y + p.at[0]), tide_pack_from<M>(x + p.at[1])};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<2> &p, const held<M> &h) const
  {
    tide_values<float, M> v = tide_up(h.y);
    const tide_values<float, M> w = tide_up(h.x);
    const float by = BY ? a * __ldg(factor) : a;
#pragma unroll
    for (int j = 0; j < M; j++) v.v[j] += by * w.v[j];
    tide_pack_to(y + p.at[0], tide_down<Y>(v));
  }
};

/* Runs the rest with V the unsigned integer of a dtype's size. */
#define BY_BITS(dtype, ...)                                  \
  do {                                                       \
    switch (tide_size_of(dtype)) {                           \
      case 8: { using V = uint64_t; __VA_ARGS__; } break;    \
      case 4: { using V = uint32_t; __VA_ARGS__; } break;    \
      case 2: { using V = uint16_t; __VA_ARGS__; } break;    \
      default: { using V = uint8_t; __VA_ARGS__; } break;    \
    }                                                        \
  } while (0)

/* ---- element by element ---------------------------------------------------------------------- */

__global__ void convert_kernel(tide_layout l, tide_array y, tide_array x)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[2];
    tide_offsets<2>(l, i, at);
    tide_move(y, at[0], x, at[1]);
  }
}

__global__ void where_kernel(tide_layout l, tide_array y, tide_array cond, tide_array a,
                             tide_array b)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[4];
    tide_offsets<4>(l, i, at);
    bool yes = tide_load<int64_t>(cond.data, at[1], cond.dtype) != 0;
    tide_move(y, at[0], yes ? a : b, yes ? at[2] : at[3]);
  }
}

template <class V> __global__ void fill_kernel(tide_layout l, V *y, V value)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[1];
    tide_offsets<1>(l, i, at);
    y[at[0]] = value;
  }
}

template <class T>
__global__ void axpy_kernel(tide_layout l, tide_array y, tide_array x, T a, tide_array factor)
{
  if (factor.data) a *= tide_at<T>(factor, 0);
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t at[2];
    tide_offsets<2>(l, i, at);
    tide_put<T>(y, at[0], tide_at<T>(y, at[0]) + a * tide_at<T>(x, at[1]));
  }
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Returns the elements of a pack: as many as fill 16 bytes in the wider of two dtypes. */
int pack_of(const k_tensor &a, const k_tensor &b)
{
  const int size_a = tide_size_of(a.dtype), size_b = tide_size_of(b.dtype);
  return 16 / (size_a > size_b ? size_a : size_b);
}

template <class Y, class X>
int cast_packs(const k_call *call, const tide_packing &p, const k_tensor *const *t)
{
  if constexpr (std::is_same<Y, X>::value) return TIDE_OK; /* a copy, which needs no cast */
  else return tide_run_packs<4>(call, p, cast_job<Y, X>{tide_data<Y>(*t[0]),
                                                        tide_data<const X>(*t[1])});
}

template <class Y, class X>
int axpy_packs(const k_call *call, const tide_packing &p, const k_tensor *const *t, double a,
               tide_array factor)
{
  Y *y = static_cast<Y *>(t[0]->data);
  const X *x = static_cast<const X *>(t[1]->data);
  const float *by = static_cast<const float *>(factor.data);
  return by ? tide_run_packs<2>(call, p, axpy_job<Y, X, true>{y, x, (float)a, by})
            : tide_run_packs<2>(call, p, axpy_job<Y, X, false>{y, x, (float)a, by});
}

bool both_short(const k_tensor *const *t)
{
  return tide_is_short(t[0]->dtype) && tide_is_short(t[1]->dtype);
}

int64_t whole(double v, double lo, double hi)
{
  if (v != v) return 0;
  if (v <= lo) return (int64_t)lo;
  return v >= hi ? (hi >= 0x1p63 ? INT64_MAX : (int64_t)hi) : (int64_t)v;
}

/* Returns an element of a dtype as an integer of its size: v rounded once, for integers cut and
 * clamped. */
uint64_t bits_of(double v, int dtype)
{
  const float f = (float)v;
  uint64_t bits = 0;
  switch (dtype) {
    case TIDE_F32: memcpy(&bits, &f, 4); return bits;
    case TIDE_F64: memcpy(&bits, &v, 8); return bits;
    case TIDE_BF16: return tide__f64_to_bf16(v);
    case TIDE_F16: return tide__f64_to_f16(v);
    case TIDE_I64: return (uint64_t)whole(v, -0x1p63, 0x1p63);
    case TIDE_I32: return (uint32_t)whole(v, INT32_MIN, INT32_MAX);
    case TIDE_U8: return (uint8_t)whole(v, 0, 255);
    default: return v != 0;
  }
}

}  // namespace

int tide_convert(const k_call *call)
{
  const k_tensor *t[2] = {&call->out[0], &call->in[0]};
  tide_layout l = tide_layout_of(2, t);
  tide_packing p;
  if (t[0]->dtype == t[1]->dtype && l.numel > 0) {
    const int size = tide_size_of(t[0]->dtype);
    if (tide_layout_flat(l, 2))
      return tide_cuda_check(call, cudaMemcpyAsync(t[0]->data, t[1]->data,
                                                   (size_t)(l.numel * size),
                                                   cudaMemcpyDeviceToDevice,
                                                   tide_cuda_stream(call)));
    if (tide_packing_of(&p, l, 2, t, 16 / size))
      BY_BITS(t[0]->dtype,
              return tide_run_packs<4>(call, p, copy_job<V>{static_cast<V *>(t[0]->data),
                                                            static_cast<const V *>(t[1]->data)}));
  } else if (both_short(t) && tide_packing_of(&p, l, 2, t, pack_of(*t[0], *t[1]))) {
    TIDE_BY_SHORT(t[0]->dtype, using Y = E;
                  TIDE_BY_SHORT(t[1]->dtype, return (cast_packs<Y, E>(call, p, t))));
  }
  TIDE_LAUNCH(convert_kernel, l.numel, call, l, tide_array_of(*t[0]), tide_array_of(*t[1]));
  return TIDE_CUDA_LAUNCHED(call);
}

int tide_axpy(const k_call *call, double a, tide_array factor)
{
  const k_tensor *t[2] = {&call->out[0], &call->in[0]};
  tide_layout l = tide_layout_of(2, t);
  tide_array y = tide_array_of(*t[0]), x = tide_array_of(*t[1]);
  tide_packing p;
  if (both_short(t) && tide_packing_of(&p, l, 2, t, pack_of(*t[0], *t[1])))
    TIDE_BY_SHORT(y.dtype, using Y = E;
                  TIDE_BY_SHORT(x.dtype, return (axpy_packs<Y, E>(call, p, t, a, factor))));
  if (y.dtype == TIDE_F64)
    TIDE_LAUNCH(axpy_kernel<double>, l.numel, call, l, y, x, a, factor);
  else if (1 << y.dtype & K_FLOAT)
    TIDE_LAUNCH(axpy_kernel<float>, l.numel, call, l, y, x, (float)a, factor);
  else
    TIDE_LAUNCH(axpy_kernel<int64_t>, l.numel, call, l, y, x, (int64_t)a, factor);
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_axpy_(const k_call *call)
{
  double a = static_cast<const k_scalar_attrs *>(call->attrs)->mul;
  int rc = tide_integral(call, a);
  const tide_array factor = call->nin > 1 ? tide_array_of(call->in[1]) : tide_array{};
  return rc < 0 ? rc : tide_axpy(call, a, factor);
}

int k_cuda_clone(const k_call *call) { return tide_convert(call); }
int k_cuda_cast(const k_call *call) { return tide_convert(call); }
int k_cuda_copy_(const k_call *call) { return tide_convert(call); }

int k_cuda_fill_(const k_call *call)
{
  const k_tensor *t[1] = {&call->out[0]};
  tide_layout l = tide_layout_of(1, t);
  const int dtype = t[0]->dtype;
  const uint64_t value = bits_of(static_cast<const k_scalar_attrs *>(call->attrs)->add, dtype);
  tide_packing p;
  bool packs = tide_packing_of(&p, l, 1, t, 16 / tide_size_of(dtype));
  BY_BITS(dtype,
          V *y = static_cast<V *>(t[0]->data);
          if (packs) return tide_run_packs<4>(call, p, fill_job<V>{y, (V)value});
          TIDE_LAUNCH(fill_kernel<V>, l.numel, call, l, y, (V)value));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_where(const k_call *call)
{
  const k_tensor *t[4] = {&call->out[0], &call->in[0], &call->in[1], &call->in[2]};
  tide_layout l = tide_layout_of(4, t);
  const int dtype = t[0]->dtype;
  tide_packing p;
  if (t[2]->dtype == dtype && t[3]->dtype == dtype && tide_size_of(t[1]->dtype) == 1 &&
      tide_packing_of(&p, l, 4, t, 16 / tide_size_of(dtype)))
    BY_BITS(dtype,
            return tide_run_packs<2>(call, p, where_job<V>{
              static_cast<V *>(t[0]->data), static_cast<const uint8_t *>(t[1]->data),
              static_cast<const V *>(t[2]->data), static_cast<const V *>(t[3]->data)}));
  TIDE_LAUNCH(where_kernel, l.numel, call, l, tide_array_of(*t[0]), tide_array_of(*t[1]),
              tide_array_of(*t[2]), tide_array_of(*t[3]));
  return TIDE_CUDA_LAUNCHED(call);
}
