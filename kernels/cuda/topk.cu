/* topk on the GPU: a block a row, a pass over the row for each position.
 *
 * Each pass finds the first element behind the one of the pass before, so that the row is not
 * changed and no scratch is needed. It reads k n elements, of which all but the first n from cache.
 *
 * Meaning: kernels/ref/topk.c.
 */
#include "kernels/cuda/first.cuh"

namespace {

enum { THREADS = 256 };

template <class T> struct order {
  bool smallest;
  /* Whether a precedes b, another; an element at -1 follows all others. */
  TIDE_DEVICE bool before(const tide_element<T> &a, const tide_element<T> &b) const
  {
    if (a.at < 0 || b.at < 0) return a.at >= 0;
    bool larger = a.value > b.value || (a.value != a.value && b.value == b.value);
    bool smaller = a.value < b.value || (a.value == a.value && b.value != b.value);
    if (larger || smaller) return smallest ? smaller : larger;
    return a.at < b.at;
  }
};

template <class T>
__global__ void topk_kernel(tide_layout rows, int64_t n, int64_t step, int64_t k, tide_array x,
                            tide_array y, order<T> f)
{
  TIDE_ROW_LOOP(i, rows.numel) {
    int64_t base;
    tide_offsets<1>(rows, i, &base);
    tide_element<T> last = {(T)0, -1};
    for (int64_t c = 0; c < k; c++) {
      tide_element<T> mine = {(T)0, -1};
      TIDE_LANE_LOOP(j, n) {
        tide_element<T> other = {tide_at<T>(x, base + j * step), j};
        if (last.at >= 0 && !f.before(last, other)) continue;
        if (f.before(other, mine)) mine = other;
      }
      last = tide_block_first<THREADS>(mine, f);
      if (threadIdx.x == 0) tide_put<int64_t>(y, i * k + c, last.at);
    }
  }
}

template <class T> int run(const k_call *call)
{
  const k_tensor &x = call->in[0], &y = call->out[0];
  int last = x.ndim - 1;
  k_tensor kept = x;
  kept.ndim = last;
  const k_tensor *r = &kept;
  tide_layout rows = tide_layout_of(1, &r);
  order<T> f = {static_cast<const k_topk_attrs *>(call->attrs)->smallest != 0};
  TIDE_CUDA_LAUNCH(call, topk_kernel<T>, tide_row_blocks(rows.numel),
                   tide_row_threads(x.shape[last]), 0, rows, x.shape[last], x.stride[last],
                   y.shape[last], tide_array_of(x), tide_array_of(y), f);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int k_cuda_topk(const k_call *call)
{
  int dtype = call->in[0].dtype;
  if (call->out[0].shape[call->in[0].ndim - 1] == 0) return TIDE_OK;
  if (dtype == TIDE_F64) return run<double>(call);
  return 1 << dtype & K_FLOAT ? run<float>(call) : run<int64_t>(call);
}
