/* A learnt score of each head that has a share of the softmax and no value, on the GPU. Meaning:
 * kernels/ref/attention_sinks.c.
 *
 * Forward: a warp a row. Backward: a block adds CHUNK tokens of one head, a second kernel adds the
 * blocks of each head in their order.
 */
#include "kernels/cuda/block.cuh"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, CHUNK = 64 };

struct args {
  tide_array dout, out, lse, sinks, dlse, dsinks, part;
  int64_t batch, time, head, dim, xs[4], os[4], ls[3], ds[3], ss, gs;
};

template <class T> TIDE_DEVICE T total_of(T lse, T sink)
{
  T hi = lse > sink ? lse : sink, lo = lse > sink ? sink : lse;
  if (lse != lse || sink != sink) return lse + sink;
  return lo == (T)-INFINITY ? hi : hi + tide_log((T)1 + tide_exp(lo - hi));
}

template <class T> TIDE_DEVICE T share_of(T score, T total)
{
  return score == (T)-INFINITY ? (T)0 : tide_exp(score - total);
}

template <class T> __global__ void __launch_bounds__(THREADS) sinks_kernel(args a)
{
  int64_t r = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / 32;
  int lane = (int)threadIdx.x & 31;
  if (r >= a.batch * a.time * a.head) return;
  int64_t h = r % a.head, t = r / a.head % a.time, b = r / a.head / a.time;
  int64_t at = b * a.ls[0] + h * a.ls[1] + t * a.ls[2];
  int64_t row = b * a.os[0] + t * a.os[1] + h * a.os[2];
  T old = tide_at<T>(a.lse, at);
  T total = total_of(old, tide_at<T>(a.sinks, h * a.ss)), weight = share_of(old, total);
  for (int64_t d = lane; d < a.dim; d += 32) {
    int64_t i = row + d * a.os[3];
    tide_put<T>(a.out, i, weight == (T)0 ? (T)0 : weight * tide_at<T>(a.out, i));
  }
  __syncwarp(); /* all lanes have read lse */
  if (lane == 0) tide_put<T>(a.lse, at, total);
}

template <class T> __global__ void __launch_bounds__(THREADS) part_kernel(args a)
{
  int64_t h = blockIdx.x % a.head, first = blockIdx.x / a.head * CHUNK, n = a.batch * a.time;
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  T sink = tide_at<T>(a.sinks, h * a.ss), sum = 0;
  for (int64_t i = first + warp; i < first + CHUNK && i < n; i += WARPS) {
    int64_t b = i / a.time, t = i % a.time;
    T share = share_of(sink, tide_at<T>(a.lse, b * a.ls[0] + h * a.ls[1] + t * a.ls[2]));
    if (share == (T)0) continue;
    int64_t x = b * a.xs[0] + t * a.xs[1] + h * a.xs[2];
    int64_t y = b * a.os[0] + t * a.os[1] + h * a.os[2];
    T g = 0;
    for (int64_t d = lane; d < a.dim; d += 32)
      g -= tide_at<T>(a.dout, x + d * a.xs[3]) * tide_at<T>(a.out, y + d * a.os[3]);
    if (lane == 0 && a.dlse.data)
      g += tide_at<T>(a.dlse, b * a.ds[0] + h * a.ds[1] + t * a.ds[2]);
    sum += share * g;
  }
  sum = tide_block_sum(sum);
  if (threadIdx.x == 0) static_cast<T *>(a.part.data)[blockIdx.x] = sum;
}

template <class T> __global__ void __launch_bounds__(THREADS) sum_kernel(args a, int64_t blocks)
{
  int64_t h = blockIdx.x;
  T sum = 0;
  TIDE_LANE_LOOP(i, blocks) sum += static_cast<const T *>(a.part.data)[i * a.head + h];
  sum = tide_block_sum(sum);
  if (threadIdx.x == 0) tide_put<T>(a.dsinks, h * a.gs, sum);
}

args args_of(const k_tensor &out, const k_tensor &lse, const k_tensor &sinks)
{
  args a = {};
  a.out = tide_array_of(out), a.lse = tide_array_of(lse), a.sinks = tide_array_of(sinks);
  a.batch = out.shape[0], a.time = out.shape[1], a.head = out.shape[2], a.dim = out.shape[3];
  for (int d = 0; d < 4; d++) a.os[d] = out.stride[d];
  for (int d = 0; d < 3; d++) a.ls[d] = lse.stride[d];
  a.ss = sinks.stride[0];
  return a;
}

int64_t chunks(const k_tensor &out) { return (out.shape[0] * out.shape[1] + CHUNK - 1) / CHUNK; }

}  // namespace

int k_cuda_attention_sinks_(const k_call *call)
{
  const k_tensor &out = call->out[0];
  args a = args_of(out, call->out[1], call->in[0]);
  unsigned n = (unsigned)((a.batch * a.time * a.head + WARPS - 1) / WARPS);
  if (n == 0) return TIDE_OK;
  TIDE_BY_REAL(out.dtype, TIDE_CUDA_LAUNCH(call, sinks_kernel<T>, n, THREADS, 0, a));
  return TIDE_CUDA_LAUNCHED(call);
}

int64_t k_cuda_attention_sinks_backward_work(const k_call *call)
{
  return chunks(call->in[1]) * call->in[1].shape[2] * (int64_t)sizeof(double);
}

int k_cuda_attention_sinks_backward(const k_call *call)
{
  const k_tensor &dout = call->in[0], &out = call->in[1], &dlse = call->in[4];
  args a = args_of(out, call->in[2], call->in[3]);
  a.dout = tide_array_of(dout), a.dlse = tide_array_of(dlse);
  a.dsinks = tide_array_of(call->out[0]), a.part = {call->work, out.dtype};
  for (int d = 0; d < 4; d++) a.xs[d] = dout.stride[d];
  for (int d = 0; d < 3 && a.dlse.data; d++) a.ds[d] = dlse.stride[d];
  a.gs = call->out[0].stride[0];
  int64_t blocks = chunks(out);
  TIDE_BY_REAL(out.dtype, {
    if (blocks > 0)
      TIDE_CUDA_LAUNCH(call, part_kernel<T>, (unsigned)(blocks * a.head), THREADS, 0, a);
    TIDE_CUDA_LAUNCH(call, sum_kernel<T>, (unsigned)a.head, THREADS, 0, a, blocks);
  });
  return TIDE_CUDA_LAUNCHED(call);
}
