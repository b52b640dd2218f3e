/* Two attentions over disjoint keys become one, on the GPU. Meaning: kernels/ref/attention_merge.c.
 *
 * A block a (batch, token, head). What has weight 0 is not read.
 */
#include "kernels/cuda/block.cuh"

namespace {

struct args {
  tide_array part, part_lse, out, lse;
  int64_t batch, time, head, dim, ps[4], pls[3], os[4], ls[3];
};

TIDE_DEVICE double log_add_exp(double a, double b)
{
  double hi = a > b ? a : b, lo = a > b ? b : a;
  if (a != a || b != b) return a + b;
  return lo == -INFINITY ? hi : hi + log1p(exp(lo - hi));
}

TIDE_DEVICE double weight(double lse, double total)
{
  return lse == -INFINITY ? 0 : exp(lse - total);
}

template <class T> __global__ void merge_kernel(args a)
{
  TIDE_ROW_LOOP(r, a.batch * a.time * a.head) {
    int64_t h = r % a.head, t = r / a.head % a.time, b = r / a.head / a.time;
    int64_t at = b * a.ls[0] + h * a.ls[1] + t * a.ls[2];
    double old = tide_at<double>(a.lse, at);
    double add = tide_at<double>(a.part_lse, b * a.pls[0] + h * a.pls[1] + t * a.pls[2]);
    double total = log_add_exp(old, add);
    T w_out = (T)weight(old, total), w_part = (T)weight(add, total);
    int64_t po = b * a.ps[0] + t * a.ps[1] + h * a.ps[2];
    int64_t oo = b * a.os[0] + t * a.os[1] + h * a.os[2];
    TIDE_LANE_LOOP(d, a.dim) {
      T o = w_out == (T)0 ? (T)0 : w_out * tide_at<T>(a.out, oo + d * a.os[3]);
      T p = w_part == (T)0 ? (T)0 : w_part * tide_at<T>(a.part, po + d * a.ps[3]);
      tide_put<T>(a.out, oo + d * a.os[3], o + p);
    }
    __syncthreads(); /* all have read lse */
    if (threadIdx.x == 0) tide_put<double>(a.lse, at, total);
  }
}

}  // namespace

int k_cuda_attention_merge_(const k_call *call)
{
  const k_tensor &part = call->in[0], &part_lse = call->in[1];
  const k_tensor &out = call->out[0], &lse = call->out[1];
  args a = {tide_array_of(part), tide_array_of(part_lse), tide_array_of(out), tide_array_of(lse),
            out.shape[0], out.shape[1], out.shape[2], out.shape[3], {}, {}, {}, {}};
  for (int d = 0; d < 4; d++) a.ps[d] = part.stride[d], a.os[d] = out.stride[d];
  for (int d = 0; d < 3; d++) a.pls[d] = part_lse.stride[d], a.ls[d] = lse.stride[d];
  int64_t rows = a.batch * a.time * a.head;
  TIDE_BY_REAL(out.dtype, TIDE_CUDA_LAUNCH(call, merge_kernel<T>, tide_row_blocks(rows),
                                           tide_row_threads(a.dim), 0, a));
  return TIDE_CUDA_LAUNCHED(call);
}
