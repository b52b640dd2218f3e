/* The gated root mean square norm of Mamba-2 on the GPU: a block a group of channels.
 *
 * Meaning: kernels/ref/gated_norm.c.
 */
#include "kernels/cuda/block.cuh"

namespace {

enum { COLUMNS = 128, MAX_PARTS = 64, ROWS_A_PART = 64 };

struct args {
  tide_array x, z, w, y, rstd;     /* forward */
  tide_array dy, dx, dz, dw;       /* backward */
  int64_t group, dim, n;           /* n groups */
  int gate_last;
};

template <class T> TIDE_DEVICE T silu(T x) { return x * tide_sigmoid(x); }
template <class T> TIDE_DEVICE T gain(const args &a, int64_t k)
{
  return a.w.data ? tide_at<T>(a.w, k % a.dim) : (T)1;
}

template <class T> __global__ void forward_kernel(args a, T eps)
{
  TIDE_ROW_LOOP(i, a.n) {
    int64_t base = i * a.group;
    T sum = 0;
    TIDE_LANE_LOOP(k, a.group) {
      T u = tide_at<T>(a.x, base + k);
      if (!a.gate_last) u *= silu(tide_at<T>(a.z, base + k));
      sum += u * u;
    }
    T rstd = (T)1 / tide_sqrt(tide_block_sum(sum) / (T)a.group + eps);
    if (threadIdx.x == 0) tide_put<T>(a.rstd, i, rstd);
    TIDE_LANE_LOOP(k, a.group)
      tide_put<T>(a.y, base + k, tide_at<T>(a.x, base + k) * silu(tide_at<T>(a.z, base + k)) * rstd
                  * gain<T>(a, base + k));
  }
}

/* du = rstd (v - u rstd^2 mean(v u)) with v the gradient of norm(u). */
template <class T> __global__ void backward_kernel(args a)
{
  TIDE_ROW_LOOP(i, a.n) {
    int64_t base = i * a.group;
    T rstd = tide_at<T>(a.rstd, i), mean = 0;
    TIDE_LANE_LOOP(j, a.group) {
      int64_t k = base + j;
      mean += tide_at<T>(a.dy, k) * gain<T>(a, k) * tide_at<T>(a.x, k) * silu(tide_at<T>(a.z, k));
    }
    mean = tide_block_sum(mean) * rstd * rstd / (T)a.group;
    TIDE_LANE_LOOP(j, a.group) {
      int64_t k = base + j;
      T d = tide_at<T>(a.dy, k) * gain<T>(a, k), x = tide_at<T>(a.x, k), z = tide_at<T>(a.z, k);
      T s = tide_sigmoid(z), gate = z * s, slope = s * ((T)1 + z * ((T)1 - s));
      T u = a.gate_last ? x : x * gate;
      T du = rstd * ((a.gate_last ? d * gate : d) - u * mean);
      tide_put<T>(a.dx, k, a.gate_last ? du : du * gate);
      tide_put<T>(a.dz, k, (a.gate_last ? d * x * rstd : du * x) * slope);
    }
  }
}

template <class T> __global__ void columns_kernel(args a, int64_t rows, int64_t stretch, T *part)
{
  int64_t d = blockIdx.x * (int64_t)COLUMNS + threadIdx.x, first = blockIdx.y * stretch;
  if (d >= a.dim) return;
  int64_t end = first + stretch < rows ? first + stretch : rows;
  T sum = 0;
  for (int64_t r = first; r < end; r++) {
    int64_t k = r * a.dim + d;
    sum += tide_at<T>(a.dy, k) * tide_at<T>(a.x, k) * silu(tide_at<T>(a.z, k))
      * tide_at<T>(a.rstd, k / a.group);
  }
  part[blockIdx.y * a.dim + d] = sum;
}

template <class T> __global__ void columns_end(args a, int64_t parts, const T *part)
{
  TIDE_GRID_LOOP(d, a.dim) {
    T sum = 0;
    for (int64_t k = 0; k < parts; k++) sum += part[k * a.dim + d];
    tide_put<T>(a.dw, d, sum);
  }
}

int64_t parts_of(int64_t rows)
{
  int64_t parts = (rows + ROWS_A_PART - 1) / ROWS_A_PART;
  if (parts > MAX_PARTS) parts = MAX_PARTS;
  return parts ? parts : 1;
}

template <class T> int run_bwd(const k_call *call, const args &a)
{
  int64_t rows = a.dim ? a.n * a.group / a.dim : 0, parts = parts_of(rows);
  if (a.n > 0)
    TIDE_CUDA_LAUNCH(call, backward_kernel<T>, tide_row_blocks(a.n), tide_row_threads(a.group), 0,
                     a);
  if (a.dw.data) {
    T *part = static_cast<T *>(call->work);
    dim3 grid((unsigned)((a.dim + COLUMNS - 1) / COLUMNS), (unsigned)parts);
    TIDE_CUDA_LAUNCH(call, columns_kernel<T>, grid, COLUMNS, 0, a, rows,
                     (rows + parts - 1) / parts, part);
    TIDE_LAUNCH(columns_end<T>, a.dim, call, a, parts, part);
  }
  return TIDE_CUDA_LAUNCHED(call);
}

args args_of(const k_call *call, const k_tensor *in)
{
  const k_gated_norm_attrs *attrs = static_cast<const k_gated_norm_attrs *>(call->attrs);
  args a = {};
  a.x = tide_array_of(in[0]), a.z = tide_array_of(in[1]), a.w = tide_array_of(in[2]);
  a.group = attrs->group, a.dim = in[0].shape[in[0].ndim - 1];
  a.n = k_numel(&in[0]) / a.group, a.gate_last = attrs->gate_last;
  return a;
}

}  // namespace

int k_cuda_gated_rms_norm(const k_call *call)
{
  args a = args_of(call, call->in);
  a.y = tide_array_of(call->out[0]), a.rstd = tide_array_of(call->out[1]);
  double eps = static_cast<const k_gated_norm_attrs *>(call->attrs)->eps;
  TIDE_BY_REAL(a.x.dtype, TIDE_CUDA_LAUNCH(call, forward_kernel<T>, tide_row_blocks(a.n),
                                           tide_row_threads(a.group), 0, a, (T)eps));
  return TIDE_CUDA_LAUNCHED(call);
}

int64_t k_cuda_gated_rms_norm_bwd_work(const k_call *call)
{
  const k_tensor &x = call->in[1];
  int64_t dim = x.shape[x.ndim - 1];
  return parts_of(dim ? k_numel(&x) / dim : 0) * dim * 8;
}

int k_cuda_gated_rms_norm_bwd(const k_call *call)
{
  args a = args_of(call, call->in + 1);
  a.dy = tide_array_of(call->in[0]), a.rstd = tide_array_of(call->in[4]);
  a.dx = tide_array_of(call->out[0]), a.dz = tide_array_of(call->out[1]);
  a.dw = tide_array_of(call->out[2]);
  TIDE_BY_REAL(a.x.dtype, return run_bwd<T>(call, a));
}
