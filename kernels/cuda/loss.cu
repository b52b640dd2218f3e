/* cross_entropy and its backward on the GPU: a block a row. As kernels/ref/loss.c. */
#include "kernels/cuda/loss.cuh"

namespace {

struct args {
  tide_array targets;
  int64_t n, nclass, row_stride, target_stride;
  tide_loss_attrs attrs;
};

args args_of(const k_call *call, const k_tensor &logits, const k_tensor &targets)
{
  return {tide_array_of(targets), logits.shape[0], logits.shape[1], logits.stride[0],
          targets.stride[0], tide_loss_attrs_of(call)};
}

template <class E> TIDE_DEVICE tide_logits<E> row_of(const E *logits, const args &a, int64_t i)
{
  return {logits + i * a.row_stride, {nullptr, TIDE_F32}, a.nclass};
}

template <class E>
__global__ void __launch_bounds__(1024)
loss_kernel(args a, const E *logits, tide_real<E> *loss, tide_real<E> *logsum, tide_reporter r)
{
  using T = tide_real<E>;
  TIDE_ROW_LOOP(i, a.n) {
    const tide_logits<E> l = row_of(logits, a, i);
    int64_t target = tide_at<int64_t>(a.targets, i * a.target_stride);
    T value = 0;
    tide_row_sums<T> s = {0, 0};
    if (tide_counts(r, target, i)) {
      s = tide_row_sums_of(l);
      value = tide_row_loss(l, a.attrs, target, s);
    }
    if (threadIdx.x == 0) loss[i] = value, logsum[i] = s.logsum;
  }
}

template <class E> struct bwd_args {
  const tide_real<E> *dloss, *logsum;
  E *dlogits;
  int64_t dloss_stride, logsum_stride, dlogits_stride;
};

template <class E>
__global__ void __launch_bounds__(1024)
loss_bwd_kernel(args a, const E *logits, bwd_args<E> b, tide_reporter r)
{
  using T = tide_real<E>;
  TIDE_ROW_LOOP(i, a.n) {
    const tide_logits<E> l = row_of(logits, a, i);
    int64_t target = tide_at<int64_t>(a.targets, i * a.target_stride);
    const bool counts = tide_counts(r, target, i);
    const tide_row_sums<T> s = {counts ? tide_row_max(l) : (T)0, b.logsum[i * b.logsum_stride]};
    tide_row_grads(l, a.attrs, target, s, b.dloss[i * b.dloss_stride], counts,
                   b.dlogits + i * b.dlogits_stride);
  }
}

}  // namespace

int k_cuda_cross_entropy(const k_call *call)
{
  const k_tensor &logits = call->in[0], *out = call->out;
  args a = args_of(call, logits, call->in[1]);
  TIDE_BY_FLOAT(logits.dtype,
                TIDE_CUDA_LAUNCH(call, loss_kernel<E>, tide_row_blocks(a.n),
                                 tide_line_threads(a.nclass), 0, a, tide_data<const E>(logits),
                                 tide_data<tide_real<E>>(out[0]), tide_data<tide_real<E>>(out[1]),
                                 tide_loss_reporter(call, a.nclass)));
  return TIDE_CUDA_LAUNCHED(call);
}

template <class E> static int backward(const k_call *call)
{
  using T = tide_real<E>;
  const k_tensor &dloss = call->in[0], &logits = call->in[1], &logsum = call->in[3];
  const k_tensor &dlogits = call->out[0];
  args a = args_of(call, logits, call->in[2]);
  bwd_args<E> b = {tide_data<T>(dloss), tide_data<T>(logsum), tide_data<E>(dlogits),
                   dloss.stride[0], logsum.stride[0], dlogits.stride[0]};
  TIDE_CUDA_LAUNCH(call, loss_bwd_kernel<E>, tide_row_blocks(a.n), tide_line_threads(a.nclass), 0,
                   a, tide_data<const E>(logits), b, tide_loss_reporter(call, a.nclass));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_cross_entropy_bwd(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[1].dtype, return backward<E>(call));
}
