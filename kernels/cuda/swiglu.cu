/* SwiGLU on the GPU, forward and backward. Meaning: kernels/ref/swiglu.c. */
#include "kernels/cuda/elementwise.cuh"

namespace {

struct swiglu_f {
  template <class T> TIDE_DEVICE T operator()(T gate, T up) const
  {
    return gate / ((T)1 + tide_exp(-gate)) * up;
  }
};

struct swiglu_args { tide_array dy, gate, up, dgate, dup; };

template <class T> __global__ void swiglu_bwd_kernel(int64_t n, swiglu_args a)
{
  TIDE_GRID_LOOP(i, n) {
    T d = tide_at<T>(a.dy, i), g = tide_at<T>(a.gate, i), u = tide_at<T>(a.up, i);
    T s = tide_sigmoid(g);
    if (a.dgate.data) tide_put<T>(a.dgate, i, d * u * s * ((T)1 + g * ((T)1 - s)));
    if (a.dup.data) tide_put<T>(a.dup, i, d * g * s);
  }
}

}  // namespace

int k_cuda_swiglu(const k_call *call) { return tide_binary_real(call, swiglu_f()); }

int k_cuda_swiglu_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  swiglu_args a = {tide_array_of(in[0]), tide_array_of(in[1]), tide_array_of(in[2]),
                   tide_array_of(out[0]), tide_array_of(out[1])};
  int64_t n = k_numel(&in[1]);
  TIDE_BY_REAL(in[1].dtype, TIDE_LAUNCH(swiglu_bwd_kernel<T>, n, call, n, a));
  return TIDE_CUDA_LAUNCHED(call);
}
