/* linear_cross_entropy on the GPU: logits never exist for more than a chunk of rows.
 *
 * For each chunk of rows a product makes f32 logits (f64 for f64), a kernel turns
 * them into row losses and gradients, and products carry those to dx and dw. Gradients of logits
 * are in the dtype of x, which the products want; dw of 16-bit weights is summed in f32 over the
 * chunks, in scratch unless it is f32 itself.
 *
 * The forward makes dw without the factor of the loss, and backward adds it to a gradient, 16 bytes
 * an f32 element. A product of backward could add at once, 8 bytes, but would need the gradients of
 * all logits. (By arithmetic, on an H100 at 2.5 TB/s and 600 TFLOP/s: 4 % of the op for 8192
 * tokens, D 4096, V 128256.)
 *
 * Meaning: kernels/ref/loss.c.
 */
#include "kernels/cuda/loss.cuh"
#include "kernels/cuda/product.cuh"

#ifndef TIDE_CUDA_LOSS_ELEMENTS
#define TIDE_CUDA_LOSS_ELEMENTS (1 << 26) /* logits at a time */
#endif

namespace {

struct sizes {
  int64_t n, dim, nclass, rows, chunks;
  int dtype, acc; /* acc: f32, or f64 for f64 */
  int64_t size, acc_size;
  bool dw_scratch;
};

sizes sizes_of(const k_call *call)
{
  const k_tensor &x = call->in[0], &w = call->in[1];
  sizes s = {x.shape[0], x.shape[1], w.shape[0], 1, 0, x.dtype,
             x.dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32, 2, 4, false};
  if (x.dtype == TIDE_F32) s.size = 4;
  if (x.dtype == TIDE_F64) s.size = s.acc_size = 8;
  s.rows = TIDE_CUDA_LOSS_ELEMENTS / (s.nclass ? s.nclass : 1);
  if (s.rows > s.n) s.rows = s.n;
  if (s.rows < 1) s.rows = 1;
  s.chunks = (s.n + s.rows - 1) / s.rows;
  s.dw_scratch = s.chunks > 1 && !k_absent(&call->out[2]) && call->out[2].dtype != s.acc;
  return s;
}

/* Where the pieces of scratch begin. */
struct scratch { int64_t loss, logits, grads, dw, dbias, total; };

scratch scratch_of(const k_call *call, const sizes &s)
{
  scratch at = {};
  auto take = [&](int64_t bytes) {
    int64_t begin = at.total;
    at.total += (bytes + 255) / 256 * 256;
    return begin;
  };
  at.loss = take(s.n * 8);
  at.logits = take(s.rows * s.nclass * s.acc_size);
  at.grads = s.dtype == s.acc ? at.logits : take(s.rows * s.nclass * s.size);
  at.dw = s.dw_scratch ? take(s.nclass * s.dim * s.acc_size) : 0;
  at.dbias = k_absent(&call->out[3]) ? 0 : take(s.nclass * 8);
  return at;
}

struct chunk_args {
  tide_array bias, targets;
  int64_t first, rows, nclass, target_stride;
  tide_loss_attrs attrs;
  double *loss;
};

/* G: of the gradients, which may lie where the logits do if T is G. */
template <class T, class G>
__global__ void __launch_bounds__(1024)
chunk_kernel(chunk_args a, const T *logits, G *grads, tide_reporter r)
{
  TIDE_ROW_LOOP(i, a.rows) {
    const tide_logits<T> l = {logits + i * a.nclass, a.bias, a.nclass};
    int64_t target = tide_at<int64_t>(a.targets, (a.first + i) * a.target_stride);
    const bool counts = tide_counts(r, target, a.first + i);
    tide_row_sums<T> s = {0, 0};
    T loss = 0;
    if (counts) {
      s = tide_row_sums_of(l);
      loss = tide_row_loss(l, a.attrs, target, s);
    }
    __syncthreads(); /* the target's logit has been read by all */
    if (threadIdx.x == 0) a.loss[a.first + i] = (double)loss;
    tide_row_grads(l, a.attrs, target, s, (T)1, counts, grads + i * a.nclass);
  }
}

__global__ void loss_sum_kernel(int64_t n, const double *loss, tide_array y)
{
  double sum = 0;
  TIDE_LANE_LOOP(i, n) sum += loss[i];
  sum = tide_block_sum(sum);
  if (threadIdx.x == 0) tide_put<double>(y, 0, sum);
}

/* sum[v] (+)= the column sums of a chunk of gradients. */
__global__ void column_kernel(int64_t rows, int64_t nclass, tide_array grads, bool begin,
                              double *sum)
{
  TIDE_GRID_LOOP(v, nclass) {
    double s = begin ? 0 : sum[v];
    for (int64_t i = 0; i < rows; i++) s += tide_at<double>(grads, i * nclass + v);
    sum[v] = s;
  }
}

__global__ void store_kernel(int64_t n, tide_array to, tide_array from)
{
  TIDE_GRID_LOOP(i, n) {
    if (!from.data) tide_put<double>(to, i, 0);
    else if (to.dtype == TIDE_F64) tide_put<double>(to, i, tide_at<double>(from, i));
    else tide_put<float>(to, i, (float)tide_at<double>(from, i));
  }
}

struct job {
  const k_call *call;
  sizes s;
  scratch at;
  char *work;
  int64_t first, rows; /* of the chunk */
  const k_tensor &x() const { return call->in[0]; }
  const k_tensor &w() const { return call->in[1]; }
  void *rows_of(const k_tensor &t, int64_t stride) const
  {
    return static_cast<char *>(t.data) + first * stride * s.size;
  }
  tide_matrix grads(bool transposed) const
  {
    if (transposed) return {work + at.grads, s.dtype, s.nclass, rows, 1, s.nclass, 0};
    return {work + at.grads, s.dtype, rows, s.nclass, s.nclass, 1, 0};
  }
};

int make_logits(const job &j)
{
  const k_tensor &x = j.x(), &w = j.w();
  if (j.s.dim == 0)
    return tide_cuda_check(j.call, cudaMemsetAsync(j.work + j.at.logits, 0, (size_t)(j.rows *
                           j.s.nclass * j.s.acc_size), tide_cuda_stream(j.call)));
  tide_product p = {{j.rows_of(x, x.stride[0]), x.dtype, j.rows, j.s.dim, x.stride[0], 1, 0},
                    {w.data, w.dtype, j.s.dim, j.s.nclass, 1, w.stride[0], 0},
                    {j.work + j.at.logits, j.s.acc, j.rows, j.s.nclass, j.s.nclass, 1, 0},
                    1, nullptr, false};
  return tide_cuda_product(j.call, p);
}

int make_rows(const job &j)
{
  const k_tensor &targets = j.call->in[3];
  const chunk_args a = {tide_array_of(j.call->in[2]), tide_array_of(targets), j.first, j.rows,
                        j.s.nclass, targets.stride[0], tide_loss_attrs_of(j.call),
                        reinterpret_cast<double *>(j.work + j.at.loss)};
  TIDE_BY_FLOAT(j.s.dtype,
                using T = tide_real<E>;
                TIDE_CUDA_LAUNCH(j.call, (chunk_kernel<T, E>), tide_row_blocks(j.rows),
                                 tide_line_threads(j.s.nclass), 0, a,
                                 reinterpret_cast<const T *>(j.work + j.at.logits),
                                 reinterpret_cast<E *>(j.work + j.at.grads),
                                 tide_loss_reporter(j.call, j.s.nclass)));
  return TIDE_CUDA_LAUNCHED(j.call);
}

int make_grads(const job &j)
{
  const k_tensor &x = j.x(), &w = j.w(), &dx = j.call->out[1], &dw = j.call->out[2];
  int rc = TIDE_OK;
  if (!k_absent(&dx) && j.s.dim > 0) {
    tide_product p = {j.grads(false),
                      {w.data, w.dtype, j.s.nclass, j.s.dim, w.stride[0], 1, 0},
                      {j.rows_of(dx, j.s.dim), dx.dtype, j.rows, j.s.dim, j.s.dim, 1, 0},
                      1, nullptr, false};
    rc = tide_cuda_product(j.call, p);
  }
  if (rc == TIDE_OK && !k_absent(&dw) && j.s.dim > 0) {
    tide_matrix to = {dw.data, dw.dtype, j.s.nclass, j.s.dim, j.s.dim, 1, 0};
    if (j.s.dw_scratch) to.data = j.work + j.at.dw, to.dtype = j.s.acc;
    tide_product p = {j.grads(true),
                      {j.rows_of(x, x.stride[0]), x.dtype, j.rows, j.s.dim, x.stride[0], 1, 0}, to,
                      1, nullptr, j.first > 0};
    rc = tide_cuda_product(j.call, p);
  }
  if (rc == TIDE_OK && !k_absent(&j.call->out[3]))
    TIDE_LAUNCH(column_kernel, j.s.nclass, j.call, j.rows, j.s.nclass,
                tide_array{j.work + j.at.grads, j.s.dtype}, j.first == 0,
                reinterpret_cast<double *>(j.work + j.at.dbias));
  return rc < 0 ? rc : TIDE_CUDA_LAUNCHED(j.call);
}

/* Moves what was summed in scratch to its place; gradients of no rows are 0. */
int finish(const job &j)
{
  const k_call *call = j.call;
  const k_tensor &dw = call->out[2], &dbias = call->out[3];
  bool none = j.s.n == 0;
  TIDE_CUDA_LAUNCH(call, loss_sum_kernel, 1, 256, 0, j.s.n,
                   reinterpret_cast<double *>(j.work + j.at.loss), tide_array_of(call->out[0]));
  if (!k_absent(&dw) && (none || j.s.dw_scratch))
    TIDE_LAUNCH(store_kernel, k_numel(&dw), call, k_numel(&dw), tide_array_of(dw),
                tide_array{none ? nullptr : j.work + j.at.dw, j.s.acc});
  if (!k_absent(&dbias))
    TIDE_LAUNCH(store_kernel, j.s.nclass, call, j.s.nclass, tide_array_of(dbias),
                tide_array{none ? nullptr : j.work + j.at.dbias, TIDE_F64});
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int64_t k_cuda_linear_cross_entropy_work(const k_call *call)
{
  return scratch_of(call, sizes_of(call)).total;
}

int k_cuda_linear_cross_entropy(const k_call *call)
{
  job j = {call, sizes_of(call), {}, static_cast<char *>(call->work), 0, 0};
  j.at = scratch_of(call, j.s);
  int rc = TIDE_OK;
  for (j.first = 0; j.first < j.s.n && rc == TIDE_OK; j.first += j.s.rows) {
    j.rows = j.s.n - j.first < j.s.rows ? j.s.n - j.first : j.s.rows;
    rc = make_logits(j);
    if (rc == TIDE_OK) rc = make_rows(j);
    if (rc == TIDE_OK) rc = make_grads(j);
  }
  return rc < 0 ? rc : finish(j);
}
