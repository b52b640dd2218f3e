/* Softmax and its logarithm on the GPU: a block a row.
 *
 * Meaning: kernels/ref/softmax.c.
 */
#include "kernels/cuda/block.cuh"

namespace {

/* Strides of the rows of up to three operands, and of their last dim. */
struct rows_of {
  tide_layout row;
  int64_t n, step[3];
};

rows_of rows(int count, const k_tensor *const *t)
{
  k_tensor lead[3];
  const k_tensor *p[3] = {&lead[0], &lead[1], &lead[2]};
  rows_of r = {};
  for (int k = 0; k < count; k++) {
    lead[k] = *t[k];
    lead[k].ndim = t[k]->ndim > 0 ? t[k]->ndim - 1 : 0;
    r.step[k] = t[k]->ndim > 0 ? t[k]->stride[t[k]->ndim - 1] : 1;
  }
  r.n = t[0]->ndim > 0 ? t[0]->shape[t[0]->ndim - 1] : 1;
  r.row = tide_layout_of(count, p);
  return r;
}

template <class T> __global__ void softmax_kernel(rows_of r, tide_array y, tide_array x, bool log)
{
  TIDE_ROW_LOOP(i, r.row.numel) {
    int64_t at[2];
    tide_offsets<2>(r.row, i, at);
    T top = -INFINITY, sum = 0;
    TIDE_LANE_LOOP(j, r.n) top = tide_top()(top, tide_at<T>(x, at[1] + j * r.step[1]));
    top = tide_block_top(top);
    TIDE_LANE_LOOP(j, r.n) sum += tide_exp(tide_at<T>(x, at[1] + j * r.step[1]) - top);
    sum = tide_block_sum(sum);
    T logsum = tide_log(sum);
    TIDE_LANE_LOOP(j, r.n) {
      T z = tide_at<T>(x, at[1] + j * r.step[1]) - top;
      tide_put<T>(y, at[0] + j * r.step[0], log ? z - logsum : tide_exp(z) / sum);
    }
  }
}

/* softmax: dx = y (dy - sum dy y).  log_softmax: dx = dy - e^y sum dy. */
template <class T>
__global__ void softmax_bwd_kernel(rows_of r, tide_array dx, tide_array dy, tide_array y, bool log)
{
  TIDE_ROW_LOOP(i, r.row.numel) {
    int64_t at[3];
    tide_offsets<3>(r.row, i, at);
    T sum = 0;
    TIDE_LANE_LOOP(j, r.n)
      sum += tide_at<T>(dy, at[1] + j * r.step[1])
        * (log ? (T)1 : tide_at<T>(y, at[2] + j * r.step[2]));
    sum = tide_block_sum(sum);
    TIDE_LANE_LOOP(j, r.n) {
      T g = tide_at<T>(dy, at[1] + j * r.step[1]), v = tide_at<T>(y, at[2] + j * r.step[2]);
      tide_put<T>(dx, at[0] + j * r.step[0], log ? g - tide_exp(v) * sum : v * (g - sum));
    }
  }
}

int softmax(const k_call *call, bool log)
{
  const k_tensor *t[2] = {&call->out[0], &call->in[0]};
  rows_of r = rows(2, t);
  TIDE_BY_REAL(t[1]->dtype,
               TIDE_CUDA_LAUNCH(call, softmax_kernel<T>, tide_row_blocks(r.row.numel),
                                tide_row_threads(r.n), 0, r, tide_array_of(*t[0]),
                                tide_array_of(*t[1]), log));
  return TIDE_CUDA_LAUNCHED(call);
}

int softmax_bwd(const k_call *call, bool log)
{
  const k_tensor *t[3] = {&call->out[0], &call->in[0], &call->in[1]};
  rows_of r = rows(3, t);
  TIDE_BY_REAL(t[1]->dtype,
               TIDE_CUDA_LAUNCH(call, softmax_bwd_kernel<T>, tide_row_blocks(r.row.numel),
                                tide_row_threads(r.n), 0, r, tide_array_of(*t[0]),
                                tide_array_of(*t[1]), tide_array_of(*t[2]), log));
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int k_cuda_softmax(const k_call *call) { return softmax(call, false); }
int k_cuda_log_softmax(const k_call *call) { return softmax(call, true); }
int k_cuda_softmax_bwd(const k_call *call) { return softmax_bwd(call, false); }
int k_cuda_log_softmax_bwd(const k_call *call) { return softmax_bwd(call, true); }
