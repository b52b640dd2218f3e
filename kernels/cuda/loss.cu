/* cross_entropy and its backward on the GPU: a block a row. As kernels/ref/loss.c. */
#include "kernels/cuda/loss.cuh"

namespace {

struct args {
  tide_array logits, targets;
  int64_t n, nclass, row_stride, target_stride;
  tide_loss_attrs attrs;
};

args args_of(const k_call *call, const k_tensor &logits, const k_tensor &targets)
{
  return {tide_array_of(logits), tide_array_of(targets), logits.shape[0], logits.shape[1],
          logits.stride[0], targets.stride[0], tide_loss_attrs_of(call)};
}

TIDE_DEVICE tide_logits row_of(const args &a, int64_t i)
{
  return {a.logits, {nullptr, TIDE_F32}, i * a.row_stride, a.nclass};
}

template <class T>
__global__ void loss_kernel(args a, tide_array loss, tide_array logsum, tide_reporter r)
{
  TIDE_ROW_LOOP(i, a.n) {
    tide_logits l = row_of(a, i);
    int64_t target = tide_at<int64_t>(a.targets, i * a.target_stride);
    T value = 0, sum = 0;
    if (tide_counts(r, target, i)) {
      T max = tide_row_max<T>(l);
      sum = tide_row_logsum(l, max);
      value = tide_row_loss(l, a.attrs, target, max, sum);
    }
    if (threadIdx.x == 0) tide_put<T>(loss, i, value), tide_put<T>(logsum, i, sum);
  }
}

struct bwd_args {
  tide_array dloss, logsum, dlogits;
  int64_t dloss_stride, logsum_stride, dlogits_stride;
};

template <class T> __global__ void loss_bwd_kernel(args a, bwd_args b, tide_reporter r)
{
  TIDE_ROW_LOOP(i, a.n) {
    tide_logits l = row_of(a, i);
    int64_t target = tide_at<int64_t>(a.targets, i * a.target_stride);
    bool counts = tide_counts(r, target, i);
    T max = counts ? tide_row_max<T>(l) : (T)0;
    T logsum = tide_at<T>(b.logsum, i * b.logsum_stride);
    T scale = tide_at<T>(b.dloss, i * b.dloss_stride);
    TIDE_LANE_LOOP(v, a.nclass)
      tide_put<T>(b.dlogits, i * b.dlogits_stride + v,
                  counts ? scale * tide_row_grad(l, a.attrs, v, target, max, logsum) : (T)0);
  }
}

}  // namespace

int k_cuda_cross_entropy(const k_call *call)
{
  const k_tensor &logits = call->in[0];
  args a = args_of(call, logits, call->in[1]);
  TIDE_BY_REAL(logits.dtype,
               TIDE_CUDA_LAUNCH(call, loss_kernel<T>, tide_row_blocks(a.n),
                                tide_row_threads(a.nclass), 0, a, tide_array_of(call->out[0]),
                                tide_array_of(call->out[1]), tide_loss_reporter(call, a.nclass)));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_cross_entropy_bwd(const k_call *call)
{
  const k_tensor &dloss = call->in[0], &logits = call->in[1], &logsum = call->in[3];
  const k_tensor &dlogits = call->out[0];
  args a = args_of(call, logits, call->in[2]);
  bwd_args b = {tide_array_of(dloss), tide_array_of(logsum), tide_array_of(dlogits),
                dloss.stride[0], logsum.stride[0], dlogits.stride[0]};
  TIDE_BY_REAL(logits.dtype,
               TIDE_CUDA_LAUNCH(call, loss_bwd_kernel<T>, tide_row_blocks(a.n),
                                tide_row_threads(a.nclass), 0, a, b,
                                tide_loss_reporter(call, a.nclass)));
  return TIDE_CUDA_LAUNCHED(call);
}
