/* SwiGLU on the GPU, forward and backward. Meaning: kernels/ref/swiglu.c. */
#include "kernels/cuda/pack.cuh"

namespace {

/* E: in memory. 1 / (1 + e^-x): by the approximations of the chip where the result has 16 bits. */
template <class E> struct swiglu_job {
  enum { operands = 3, size = tide_wide<E> };
  using T = tide_real<E>;
  template <int M> struct held { tide_pack<E, M> gate, up; };
  E *y;
  const E *gate, *up;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<3> &p) const
  {
    return {tide_pack_from<M>(gate + p.at[1]), tide_pack_from<M>(up + p.at[2])};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<3> &p, const held<M> &h) const
  {
    tide_values<T, M> g = tide_up(h.gate);
    const tide_values<T, M> u = tide_up(h.up);
#pragma unroll
    for (int j = 0; j < M; j++) g.v[j] = g.v[j] * tide_gate<E>(g.v[j]) * u.v[j];
    tide_pack_to(y + p.at[0], tide_down<E>(g));
  }
};

/* dgate and dup may be absent. */
template <class E> struct swiglu_bwd_job {
  enum { operands = 1, size = tide_wide<E> };
  using T = tide_real<E>;
  template <int M> struct held { tide_pack<E, M> dy, gate, up; };
  const E *dy, *gate, *up;
  E *dgate, *dup;
  template <int M> TIDE_DEVICE held<M> read(const tide_places<1> &p) const
  {
    const int64_t i = p.at[0];
    return {tide_pack_from<M>(dy + i), tide_pack_from<M>(gate + i), tide_pack_from<M>(up + i)};
  }
  template <int M> TIDE_DEVICE void write(const tide_places<1> &p, const held<M> &h) const
  {
    const tide_values<T, M> d = tide_up(h.dy), g = tide_up(h.gate), u = tide_up(h.up);
    tide_values<T, M> dg, du;
#pragma unroll
    for (int j = 0; j < M; j++) {
      const T s = tide_gate<E>(g.v[j]);
      dg.v[j] = d.v[j] * u.v[j] * s * ((T)1 + g.v[j] * ((T)1 - s));
      du.v[j] = d.v[j] * g.v[j] * s;
    }
    if (dgate) tide_pack_to(dgate + p.at[0], tide_down<E>(dg));
    if (dup) tide_pack_to(dup + p.at[0], tide_down<E>(du));
  }
};

/* The same element by element, for operands that are not aligned. */
template <class J> struct narrow : J {
  enum { size = 1 };
};

template <class J> int run(const k_call *call, int64_t n, bool packs, const J &job)
{
  tide_packing p = {{}, n, true};
  return packs ? tide_run_packs<2>(call, p, job) : tide_run_packs<4>(call, p, narrow<J>{job});
}

}  // namespace

int k_cuda_swiglu(const k_call *call)
{
  const k_tensor *in = call->in, &y = call->out[0];
  bool packs = tide_all_aligned(in, 2) && tide_all_aligned(&y, 1);
  TIDE_BY_FLOAT(y.dtype, return run(call, k_numel(&y), packs,
                                    swiglu_job<E>{tide_data<E>(y), tide_data<E>(in[0]),
                                                  tide_data<E>(in[1])}));
}

int k_cuda_swiglu_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  bool packs = tide_all_aligned(in, 3) && tide_all_aligned(out, 2);
  TIDE_BY_FLOAT(in[1].dtype,
                return run(call, k_numel(&in[1]), packs,
                           swiglu_bwd_job<E>{tide_data<E>(in[0]), tide_data<E>(in[1]),
                                             tide_data<E>(in[2]), tide_data<E>(out[0]),
                                             tide_data<E>(out[1])}));
}
