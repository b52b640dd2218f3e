/* SwiGLU on the GPU and its clamped form, forward and backward. Meaning: kernels/ref/swiglu.c.
 *
 * Operands that all lie alike have one offset; gate and up, or their gradients, may also be columns
 * of one matrix, and then every operand has its own.
 */
#include <type_traits>

#include "kernels/cuda/pack.cuh"

namespace {

/* Returns the offset of operand k, of K or of one for all. */
template <int K> TIDE_DEVICE int64_t place(const tide_places<K> &p, int k)
{
  return p.at[K > 1 ? k : 0];
}

/* What is done to an element: swiglu, or its clamped form. 1 / (1 + e^-x): by the approximations of
 * the chip where the result, E in memory, has 16 bits. */
struct plain_form {
  template <class E, class T> TIDE_DEVICE T value(T g, T u) const
  {
    return g * tide_gate<E>(g) * u;
  }
  template <class E, class T> TIDE_DEVICE void slopes(T g, T u, T d, T *dg, T *du) const
  {
    const T s = tide_gate<E>(g);
    *dg = d * u * s * ((T)1 + g * ((T)1 - s));
    *du = d * g * s;
  }
};
/* The numbers in both precisions: no kernel of f32 converts. */
struct clamped_form {
  float limit, alpha;
  double limit64, alpha64;
  TIDE_DEVICE float limit_in(float) const { return limit; }
  TIDE_DEVICE double limit_in(double) const { return limit64; }
  TIDE_DEVICE float alpha_in(float) const { return alpha; }
  TIDE_DEVICE double alpha_in(double) const { return alpha64; }
  template <class T> TIDE_DEVICE T most(T x) const { return x > limit_in(x) ? limit_in(x) : x; }
  template <class T> TIDE_DEVICE T both(T x) const
  {
    x = most(x);
    return x < -limit_in(x) ? -limit_in(x) : x;
  }
  template <class E, class T> TIDE_DEVICE T value(T x, T z) const
  {
    const T g = most(x);
    return (both(z) + (T)1) * g * tide_gate<E>(alpha_in(g) * g);
  }
  template <class E, class T> TIDE_DEVICE void slopes(T x, T z, T d, T *dg, T *du) const
  {
    const T limit = limit_in(x), a = alpha_in(x), g = most(x), s = tide_gate<E>(a * g);
    *dg = x >= limit ? (T)0 : d * (both(z) + (T)1) * s * ((T)1 + a * g * ((T)1 - s));
    *du = z >= limit || z <= -limit ? (T)0 : d * g * s;
  }
};

template <class E, int K, class F> struct swiglu_job {
  enum { operands = K, size = tide_wide<E> };
  using T = tide_real<E>;
  template <int M> struct held { tide_pack<E, M> gate, up; };
  E *y;
  const E *gate, *up;
  F form;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<K> &p) const
  {
    return {tide_pack_from<M>(gate + place<K>(p, 1)), tide_pack_from<M>(up + place<K>(p, 2))};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<K> &p, const held<M> &h) const
  {
    tide_values<T, M> g = tide_up(h.gate);
    const tide_values<T, M> u = tide_up(h.up);
#pragma unroll
    for (int j = 0; j < M; j++) g.v[j] = form.template value<E>(g.v[j], u.v[j]);
    tide_pack_to(y + place<K>(p, 0), tide_down<E>(g));
  }
};

/* dgate and dup lie alike; one may be null. */
template <class E, int K, class F> struct swiglu_bwd_job {
  enum { operands = K, size = tide_wide<E> };
  using T = tide_real<E>;
  template <int M> struct held { tide_pack<E, M> dy, gate, up; };
  E *dgate, *dup;
  const E *dy, *gate, *up;
  F form;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<K> &p) const
  {
    return {tide_pack_from<M>(dy + place<K>(p, 1)), tide_pack_from<M>(gate + place<K>(p, 2)),
            tide_pack_from<M>(up + place<K>(p, 3))};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<K> &p, const held<M> &h) const
  {
    const tide_values<T, M> d = tide_up(h.dy), g = tide_up(h.gate), u = tide_up(h.up);
    tide_values<T, M> dg, du;
#pragma unroll
    for (int j = 0; j < M; j++)
      form.template slopes<E>(g.v[j], u.v[j], d.v[j], &dg.v[j], &du.v[j]);
    if (dgate) tide_pack_to(dgate + place<K>(p, 0), tide_down<E>(dg));
    if (dup) tide_pack_to(dup + place<K>(p, 0), tide_down<E>(du));
  }
};

/* The same element by element, for operands that are not aligned. */
template <class J> struct narrow : J {
  enum { size = 1 };
};
template <class J> narrow<J> by_ones(const J &job) { return {job}; }

/* Runs the job that make gives, of one offset or of K. */
template <class E, int K, class M>
int run(const k_call *call, const k_tensor *const (&t)[K], M make)
{
  const std::integral_constant<int, 1> one{};
  const std::integral_constant<int, K> each{};
  const tide_layout l = tide_layout_of(K, t);
  tide_packing p;
  const bool packs = tide_packing_of(&p, l, K, t, tide_wide<E>);
  if (p.flat)
    return packs ? tide_run_packs<2>(call, p, make(one))
                 : tide_run_packs<4>(call, p, by_ones(make(one)));
  if (packs) return tide_run_packs<2>(call, p, make(each));
  p = {l, l.numel, false};
  return tide_run_packs<4>(call, p, by_ones(make(each)));
}

/* to: dgate or dup; it means both where neither is null. */
template <class F>
int run_bwd(const k_call *call, F form, const k_tensor &to, void *dgate, void *dup)
{
  const k_tensor *in = call->in;
  const k_tensor *const t[4] = {&to, &in[0], &in[1], &in[2]};
  TIDE_BY_FLOAT(in[1].dtype, return (run<E>(call, t, [&](auto k) {
                  return swiglu_bwd_job<E, decltype(k)::value, F>{
                    static_cast<E *>(dgate), static_cast<E *>(dup), tide_data<E>(in[0]),
                    tide_data<E>(in[1]), tide_data<E>(in[2]), form};
                })));
}

bool lie_alike(const k_tensor &a, const k_tensor &b)
{
  bool same = tide_aligned(a.data) == tide_aligned(b.data);
  for (int d = 0; same && d < a.ndim; d++) same = a.shape[d] == 1 || a.stride[d] == b.stride[d];
  return same;
}

template <class F> int forward(const k_call *call, F form)
{
  const k_tensor *in = call->in, &y = call->out[0];
  const k_tensor *const t[3] = {&y, &in[0], &in[1]};
  TIDE_BY_FLOAT(y.dtype, return (run<E>(call, t, [&](auto k) {
                  return swiglu_job<E, decltype(k)::value, F>{
                    tide_data<E>(y), tide_data<E>(in[0]), tide_data<E>(in[1]), form};
                })));
}

template <class F> int backward(const k_call *call, F form)
{
  const k_tensor &dgate = call->out[0], &dup = call->out[1];
  if (k_absent(&dgate) || k_absent(&dup))
    return run_bwd(call, form, k_absent(&dgate) ? dup : dgate, tide_data<char>(dgate),
                   tide_data<char>(dup));
  if (lie_alike(dgate, dup)) return run_bwd(call, form, dgate, dgate.data, dup.data);
  TIDE_TRY(run_bwd(call, form, dgate, dgate.data, nullptr));
  return run_bwd(call, form, dup, nullptr, dup.data);
}

clamped_form form_of(const k_call *call)
{
  const k_swiglu_attrs *a = static_cast<const k_swiglu_attrs *>(call->attrs);
  return {(float)a->limit, (float)a->alpha, a->limit, a->alpha};
}

}  // namespace

int k_cuda_swiglu(const k_call *call) { return forward(call, plain_form{}); }
int k_cuda_swiglu_bwd(const k_call *call) { return backward(call, plain_form{}); }
int k_cuda_swiglu_clamped(const k_call *call) { return forward(call, form_of(call)); }
int k_cuda_swiglu_clamped_bwd(const k_call *call) { return backward(call, form_of(call)); }
