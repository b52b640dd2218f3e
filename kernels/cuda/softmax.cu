/* Softmax and rotary positions on the GPU.
 *
 * The one idea: a block a row for softmax. For rope a thread a (token, pair): its angle is reduced
 * in double once and serves all heads. Meaning: kernels/ref/attention.c. Layer 2k.
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

/* ---- rope ------------------------------------------------------------------------------------ */

struct rope_args {
  tide_array x, y, positions, frequency;
  int64_t batch, time, head, dim, half;
  int64_t xs[4], ys[4], ps[2], fs;
  int interleaved, inverse;
};

TIDE_DEVICE void turn(double angle, float *co, float *si)
{
  /* exact enough to 2^24: the multiple of 2 pi is taken off in double */
  double r = angle - rint(angle * 0.15915494309189533577) * 6.28318530717958647693;
  *co = cosf((float)r);
  *si = sinf((float)r);
}
TIDE_DEVICE void turn(double angle, double *co, double *si)
{
  *co = cos(angle);
  *si = sin(angle);
}

template <class T> TIDE_DEVICE void rope_pair(const rope_args &a, int64_t b, int64_t t, int64_t i)
{
  int64_t first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + a.half;
  double position = (double)tide_at<int64_t>(a.positions, b * a.ps[0] + t * a.ps[1]);
  T co, si;
  turn(position * tide_at<double>(a.frequency, i * a.fs), &co, &si);
  if (a.inverse) si = -si;
  for (int64_t h = 0; h < a.head; h++) {
    int64_t xo = b * a.xs[0] + t * a.xs[1] + h * a.xs[2];
    int64_t yo = b * a.ys[0] + t * a.ys[1] + h * a.ys[2];
    T x1 = tide_at<T>(a.x, xo + first * a.xs[3]), x2 = tide_at<T>(a.x, xo + second * a.xs[3]);
    tide_put<T>(a.y, yo + first * a.ys[3], x1 * co - x2 * si);
    tide_put<T>(a.y, yo + second * a.ys[3], x2 * co + x1 * si);
  }
}

/* Items of a token: its pairs, then the channels that pass. */
template <class T> __global__ void rope_kernel(rope_args a)
{
  int64_t item = a.half + (a.dim - 2 * a.half);
  TIDE_GRID_LOOP(k, a.batch * a.time * item) {
    int64_t i = k % item, t = k / item % a.time, b = k / item / a.time;
    if (i < a.half) {
      rope_pair<T>(a, b, t, i);
      continue;
    }
    int64_t d = i + a.half;
    for (int64_t h = 0; h < a.head; h++) {
      int64_t xo = b * a.xs[0] + t * a.xs[1] + h * a.xs[2] + d * a.xs[3];
      tide_put<T>(a.y, b * a.ys[0] + t * a.ys[1] + h * a.ys[2] + d * a.ys[3],
                  tide_at<T>(a.x, xo));
    }
  }
}

}  // namespace

int k_cuda_softmax(const k_call *call) { return softmax(call, false); }
int k_cuda_log_softmax(const k_call *call) { return softmax(call, true); }
int k_cuda_softmax_bwd(const k_call *call) { return softmax_bwd(call, false); }
int k_cuda_log_softmax_bwd(const k_call *call) { return softmax_bwd(call, true); }

int k_cuda_rope(const k_call *call)
{
  const k_rope_attrs *attrs = static_cast<const k_rope_attrs *>(call->attrs);
  const k_tensor &x = call->in[0], &p = call->in[1], &f = call->in[2], &y = call->out[0];
  rope_args a = {tide_array_of(x), tide_array_of(y), tide_array_of(p), tide_array_of(f),
                 x.shape[0], x.shape[1], x.shape[2], x.shape[3], f.shape[0], {}, {}, {},
f.stride[0],
                 attrs->interleaved, attrs->inverse};
  for (int d = 0; d < 4; d++) a.xs[d] = x.stride[d], a.ys[d] = y.stride[d];
  a.ps[0] = p.shape[0] == 1 ? 0 : p.stride[0], a.ps[1] = p.stride[1];
  int64_t n = a.batch * a.time * (a.dim - a.half);
  TIDE_BY_REAL(x.dtype, TIDE_LAUNCH(rope_kernel<T>, n, call, a));
  return TIDE_CUDA_LAUNCHED(call);
}
