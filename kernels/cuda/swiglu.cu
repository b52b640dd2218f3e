/* SwiGLU on the GPU, forward and backward. Meaning: kernels/ref/swiglu.c.
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

/* E: in memory. 1 / (1 + e^-x): by the approximations of the chip where the result has 16 bits. */
template <class E, int K> struct swiglu_job {
  enum { operands = K, size = tide_wide<E> };
  using T = tide_real<E>;
  template <int M> struct held { tide_pack<E, M> gate, up; };
  E *y;
  const E *gate, *up;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<K> &p) const
  {
    return {tide_pack_from<M>(gate + place<K>(p, 1)), tide_pack_from<M>(up + place<K>(p, 2))};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<K> &p, const held<M> &h) const
  {
    tide_values<T, M> g = tide_up(h.gate);
    const tide_values<T, M> u = tide_up(h.up);
#pragma unroll
    for (int j = 0; j < M; j++) g.v[j] = g.v[j] * tide_gate<E>(g.v[j]) * u.v[j];
    tide_pack_to(y + place<K>(p, 0), tide_down<E>(g));
  }
};

/* dgate and dup lie alike; one may be null. */
template <class E, int K> struct swiglu_bwd_job {
  enum { operands = K, size = tide_wide<E> };
  using T = tide_real<E>;
  template <int M> struct held { tide_pack<E, M> dy, gate, up; };
  E *dgate, *dup;
  const E *dy, *gate, *up;
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
    for (int j = 0; j < M; j++) {
      const T s = tide_gate<E>(g.v[j]);
      dg.v[j] = d.v[j] * u.v[j] * s * ((T)1 + g.v[j] * ((T)1 - s));
      du.v[j] = d.v[j] * g.v[j] * s;
    }
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
int run_bwd(const k_call *call, const k_tensor &to, void *dgate, void *dup)
{
  const k_tensor *in = call->in;
  const k_tensor *const t[4] = {&to, &in[0], &in[1], &in[2]};
  TIDE_BY_FLOAT(in[1].dtype, return (run<E>(call, t, [&](auto k) {
                  return swiglu_bwd_job<E, decltype(k)::value>{
                    static_cast<E *>(dgate), static_cast<E *>(dup), tide_data<E>(in[0]),
                    tide_data<E>(in[1]), tide_data<E>(in[2])};
                })));
}

bool lie_alike(const k_tensor &a, const k_tensor &b)
{
  bool same = tide_aligned(a.data) == tide_aligned(b.data);
  for (int d = 0; same && d < a.ndim; d++) same = a.shape[d] == 1 || a.stride[d] == b.stride[d];
  return same;
}

}  // namespace

int k_cuda_swiglu(const k_call *call)
{
  const k_tensor *in = call->in, &y = call->out[0];
  const k_tensor *const t[3] = {&y, &in[0], &in[1]};
  TIDE_BY_FLOAT(y.dtype, return (run<E>(call, t, [&](auto k) {
                  return swiglu_job<E, decltype(k)::value>{tide_data<E>(y), tide_data<E>(in[0]),
                                                           tide_data<E>(in[1])};
                })));
}

int k_cuda_swiglu_bwd(const k_call *call)
{
  const k_tensor &dgate = call->out[0], &dup = call->out[1];
  if (k_absent(&dgate) || k_absent(&dup))
    return run_bwd(call, k_absent(&dgate) ? dup : dgate, tide_data<char>(dgate),
                   tide_data<char>(dup));
  if (lie_alike(dgate, dup)) return run_bwd(call, dgate, dgate.data, dup.data);
  TIDE_TRY(run_bwd(call, dgate, dgate.data, nullptr));
  return run_bwd(call, dup, nullptr, dup.data);
}
