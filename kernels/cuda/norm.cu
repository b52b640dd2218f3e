/* Normalisations on the GPU, forward and backward, over the last dim.
 *
 * A block a row; the row is read once a pass and lies in the cache for the next.
 * Gradients of weight and bias are summed down columns: stretches of rows into scratch, then the
 * stretches in order, cut by shape alone.
 *
 * Statistics are f32 (f64 for f64). Meaning: kernels/ref/norm.c.
 */
#include "kernels/cuda/block.cuh"

namespace {

enum { COLUMNS = 128, MAX_PARTS = 128, ROWS_A_PART = 64 };

struct rows { int64_t n, dim; };

rows rows_of(const k_tensor &x)
{
  rows r = {1, x.ndim > 0 ? x.shape[x.ndim - 1] : 1};
  for (int d = 0; d + 1 < x.ndim; d++) r.n *= x.shape[d];
  return r;
}

template <class T> TIDE_DEVICE T gain(const tide_array &weight, T offset, int64_t d)
{
  return weight.data ? tide_at<T>(weight, d) + offset : (T)1;
}

struct layer_args { tide_array x, weight, bias, y, mean, rstd; };

template <class T> __global__ void layer_norm_kernel(rows r, layer_args a, T eps, T offset)
{
  TIDE_ROW_LOOP(i, r.n) {
    int64_t base = i * r.dim;
    T sum = 0, square = 0;
    TIDE_LANE_LOOP(d, r.dim) sum += tide_at<T>(a.x, base + d);
    T mean = tide_block_sum(sum) / (T)r.dim;
    TIDE_LANE_LOOP(d, r.dim) {
      T c = tide_at<T>(a.x, base + d) - mean;
      square += c * c;
    }
    T rstd = (T)1 / tide_sqrt(tide_block_sum(square) / (T)r.dim + eps);
    TIDE_LANE_LOOP(d, r.dim) {
      T v = (tide_at<T>(a.x, base + d) - mean) * rstd * gain(a.weight, offset, d);
      if (a.bias.data) v += tide_at<T>(a.bias, d);
      tide_put<T>(a.y, base + d, v);
    }
    if (threadIdx.x == 0) tide_put<T>(a.mean, i, mean), tide_put<T>(a.rstd, i, rstd);
  }
}

/* sum absent: a plain rms_norm of x. Else sum = x + residual, rounded, is what is normed. */
struct rms_args { tide_array x, residual, weight, y, sum, rstd; };

template <class T> __global__ void rms_norm_kernel(rows r, rms_args a, T eps, T offset)
{
  TIDE_ROW_LOOP(i, r.n) {
    int64_t base = i * r.dim;
    T square = 0;
    TIDE_LANE_LOOP(d, r.dim) {
      T v = tide_at<T>(a.x, base + d);
      if (a.sum.data) {
        tide_put<T>(a.sum, base + d, v + tide_at<T>(a.residual, base + d));
        v = tide_at<T>(a.sum, base + d);
      }
      square += v * v;
    }
    T rstd = (T)1 / tide_sqrt(tide_block_sum(square) / (T)r.dim + eps);
    tide_array from = a.sum.data ? a.sum : a.x;
    TIDE_LANE_LOOP(d, r.dim)
      tide_put<T>(a.y, base + d, tide_at<T>(from, base + d) * rstd * gain(a.weight, offset, d));
    if (threadIdx.x == 0) tide_put<T>(a.rstd, i, rstd);
  }
}

/* mean absent: rms_norm. dsum: added to dx. */
struct bwd_args { tide_array dy, x, weight, mean, rstd, dsum, dx, dweight, dbias; };

/* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gain; rms_norm lacks mean(g). */
template <class T> __global__ void norm_dx_kernel(rows r, bwd_args a, T offset)
{
  TIDE_ROW_LOOP(i, r.n) {
    int64_t base = i * r.dim;
    T mean = a.mean.data ? tide_at<T>(a.mean, i) : (T)0, rstd = tide_at<T>(a.rstd, i);
    T sum_g = 0, sum_gx = 0;
    TIDE_LANE_LOOP(d, r.dim) {
      T g = tide_at<T>(a.dy, base + d) * gain(a.weight, offset, d);
      sum_g += g;
      sum_gx += g * (tide_at<T>(a.x, base + d) - mean) * rstd;
    }
    T mean_g = a.mean.data ? tide_block_sum(sum_g) / (T)r.dim : (T)0;
    T mean_gx = tide_block_sum(sum_gx) / (T)r.dim;
    TIDE_LANE_LOOP(d, r.dim) {
      T g = tide_at<T>(a.dy, base + d) * gain(a.weight, offset, d);
      T dx = rstd * (g - mean_g - (tide_at<T>(a.x, base + d) - mean) * rstd * mean_gx);
      if (a.dsum.data) dx += tide_at<T>(a.dsum, base + d);
      tide_put<T>(a.dx, base + d, dx);
    }
  }
}

/* part: [parts][2][dim], of dweight and of dbias. */
template <class T> __global__ void norm_columns(rows r, bwd_args a, int64_t stretch, T *part)
{
  int64_t d = blockIdx.x * (int64_t)COLUMNS + threadIdx.x, first = blockIdx.y * stretch;
  if (d >= r.dim) return;
  int64_t end = first + stretch < r.n ? first + stretch : r.n;
  T dweight = 0, dbias = 0;
  for (int64_t i = first; i < end; i++) {
    T dy = tide_at<T>(a.dy, i * r.dim + d), mean = a.mean.data ? tide_at<T>(a.mean, i) : (T)0;
    dweight += dy * (tide_at<T>(a.x, i * r.dim + d) - mean) * tide_at<T>(a.rstd, i);
    dbias += dy;
  }
  part[blockIdx.y * 2 * r.dim + d] = dweight;
  part[(blockIdx.y * 2 + 1) * r.dim + d] = dbias;
}

template <class T>
__global__ void norm_columns_end(rows r, bwd_args a, int64_t parts, const T *part)
{
  TIDE_GRID_LOOP(d, r.dim) {
    T dweight = 0, dbias = 0;
    for (int64_t k = 0; k < parts; k++) {
      dweight += part[k * 2 * r.dim + d];
      dbias += part[(k * 2 + 1) * r.dim + d];
    }
    if (a.dweight.data) tide_put<T>(a.dweight, d, dweight);
    if (a.dbias.data) tide_put<T>(a.dbias, d, dbias);
  }
}

int64_t parts_of(const rows &r)
{
  int64_t parts = (r.n + ROWS_A_PART - 1) / ROWS_A_PART;
  if (parts > MAX_PARTS) parts = MAX_PARTS;
  return parts ? parts : 1;
}

template <class T> int run_bwd(const k_call *call, const rows &r, const bwd_args &a)
{
  T offset = (T) static_cast<const k_row_norm_attrs *>(call->attrs)->weight_offset;
  TIDE_CUDA_LAUNCH(call, norm_dx_kernel<T>, tide_row_blocks(r.n), tide_row_threads(r.dim), 0, r, a,
                   offset);
  if (a.dweight.data || a.dbias.data) {
    int64_t parts = parts_of(r), stretch = (r.n + parts - 1) / parts;
    T *part = static_cast<T *>(call->work);
    dim3 grid((unsigned)((r.dim + COLUMNS - 1) / COLUMNS), (unsigned)parts);
    TIDE_CUDA_LAUNCH(call, norm_columns<T>, grid, COLUMNS, 0, r, a, stretch, part);
    TIDE_LAUNCH(norm_columns_end<T>, r.dim, call, r, a, parts, part);
  }
  return TIDE_CUDA_LAUNCHED(call);
}

int64_t bwd_work(const k_call *call)
{
  rows r = rows_of(call->in[1]);
  return parts_of(r) * 2 * r.dim * 8;
}

int bwd(const k_call *call, const bwd_args &a)
{
  rows r = rows_of(call->in[1]);
  TIDE_BY_REAL(call->in[1].dtype, return run_bwd<T>(call, r, a));
}

int run_rms(const k_call *call, const rms_args &a)
{
  const k_row_norm_attrs *attrs = static_cast<const k_row_norm_attrs *>(call->attrs);
  rows r = rows_of(call->in[0]);
  TIDE_BY_REAL(call->in[0].dtype,
               TIDE_CUDA_LAUNCH(call, rms_norm_kernel<T>, tide_row_blocks(r.n),
                                tide_row_threads(r.dim), 0, r, a, (T)attrs->eps,
                                (T)attrs->weight_offset));
  return TIDE_CUDA_LAUNCHED(call);
}

const tide_array none = {nullptr, TIDE_F32};

}  // namespace

int k_cuda_layer_norm(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  const k_row_norm_attrs *attrs = static_cast<const k_row_norm_attrs *>(call->attrs);
  rows r = rows_of(in[0]);
  layer_args a = {tide_array_of(in[0]), tide_array_of(in[1]), tide_array_of(in[2]),
                  tide_array_of(out[0]), tide_array_of(out[1]), tide_array_of(out[2])};
  TIDE_BY_REAL(in[0].dtype,
               TIDE_CUDA_LAUNCH(call, layer_norm_kernel<T>, tide_row_blocks(r.n),
                                tide_row_threads(r.dim), 0, r, a, (T)attrs->eps,
                                (T)attrs->weight_offset));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_rms_norm(const k_call *call)
{
  return run_rms(call, {tide_array_of(call->in[0]), none, tide_array_of(call->in[1]),
                        tide_array_of(call->out[0]), none, tide_array_of(call->out[1])});
}

int k_cuda_add_rms_norm(const k_call *call)
{
  return run_rms(call, {tide_array_of(call->in[0]), tide_array_of(call->in[1]),
                        tide_array_of(call->in[2]), tide_array_of(call->out[0]),
                        tide_array_of(call->out[1]), tide_array_of(call->out[2])});
}

int64_t k_cuda_layer_norm_bwd_work(const k_call *call) { return bwd_work(call); }
int64_t k_cuda_rms_norm_bwd_work(const k_call *call) { return bwd_work(call); }

int k_cuda_layer_norm_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  return bwd(call, {tide_array_of(in[0]), tide_array_of(in[1]), tide_array_of(in[2]),
                    tide_array_of(in[3]), tide_array_of(in[4]), none, tide_array_of(out[0]),
                    tide_array_of(out[1]), tide_array_of(out[2])});
}

int k_cuda_rms_norm_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  return bwd(call, {tide_array_of(in[0]), tide_array_of(in[1]), tide_array_of(in[2]), none,
                    tide_array_of(in[3]), tide_array_of(in[4]), tide_array_of(out[0]),
                    tide_array_of(out[1]), none});
}
