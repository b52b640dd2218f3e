/* matmul, linear and linear_act on the GPU: products by cuBLASLt; integers and odd strides by
 * plain loops.
 *
 * Batch dims are collapsed; what remains beyond one evenly strided dim is looped over
 * on the host. Meaning: kernels/ref/matmul.c.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/product.cuh"

int k_cuda_relu(const k_call *call);
int k_cuda_gelu_tanh(const k_call *call);

namespace {

__global__ void bias_rows_kernel(int64_t n, int64_t width, tide_array y, tide_array bias)
{
  TIDE_GRID_LOOP(i, n) {
    if (bias.data) tide_put<double>(y, i, tide_at<double>(bias, i % width));
    else tide_put<double>(y, i, 0);
  }
}

k_tensor batch_of(const k_tensor &t)
{
  k_tensor b = t;
  b.ndim = t.ndim - 2;
  return b;
}

tide_matrix matrix(const k_tensor &t, int64_t offset, int64_t batch_stride)
{
  int d = t.ndim - 2;
  int64_t size = t.dtype == TIDE_F64 ? 8 : t.dtype == TIDE_F32 ? 4 : 2;
  return {static_cast<char *>(t.data) + offset * size, t.dtype, t.shape[d], t.shape[d + 1],
          t.stride[d], t.stride[d + 1], batch_stride};
}

bool dense(const tide_matrix &m)
{
  bool rows = (m.col_stride == 1 || m.cols == 1) && (m.row_stride >= m.cols || m.rows == 1);
  bool cols = (m.row_stride == 1 || m.rows == 1) && (m.col_stride >= m.rows || m.cols == 1);
  return rows || cols;
}

int plain(const k_call *call, const tide_layout &batch, bool add)
{
  const k_tensor &a = call->in[0], &b = call->in[1], &y = call->out[0];
  int d = y.ndim - 2;
  tide_plain_product p = {};
  p.a = tide_array_of(a), p.b = tide_array_of(b), p.y = tide_array_of(y);
  p.batch = batch, p.add = add;
  p.m = y.shape[d], p.n = y.shape[d + 1], p.k = a.shape[d + 1];
  for (int i = 0; i < 2; i++)
    p.as[i] = a.stride[d + i], p.bs[i] = b.stride[d + i], p.ys[i] = y.stride[d + i];
  return tide_cuda_plain_product(call, p);
}

}  // namespace

int k_cuda_matmul(const k_call *call)
{
  const k_tensor &a = call->in[0], &b = call->in[1], &y = call->out[0];
  k_tensor lead[3] = {batch_of(y), batch_of(a), batch_of(b)};
  const k_tensor *t[3] = {&lead[0], &lead[1], &lead[2]};
  tide_layout l = tide_layout_of(3, t);
  bool even = dense(matrix(a, 0, 0)) && dense(matrix(b, 0, 0));
  if (!even || !(1 << y.dtype & K_FLOAT) || a.shape[a.ndim - 1] == 0) return plain(call, l, false);
  int last = l.ndim - 1, rc = TIDE_OK;
  int64_t inner = l.ndim ? l.shape[last] : 1, outer = l.numel / (inner ? inner : 1);
  tide_layout rest = l;
  rest.ndim = l.ndim ? last : 0;
  for (int64_t i = 0; i < outer && rc == TIDE_OK; i++) {
    int64_t at[3] = {0, 0, 0}, left = i;
    for (int d = rest.ndim - 1; d >= 0; left /= rest.shape[d], d--)
      for (int k = 0; k < 3; k++) at[k] += left % rest.shape[d] * rest.stride[k][d];
    tide_product p = {matrix(a, at[1], l.ndim ? l.stride[1][last] : 0),
                      matrix(b, at[2], l.ndim ? l.stride[2][last] : 0),
                      matrix(y, at[0], l.ndim ? l.stride[0][last] : 0), inner, nullptr, false};
    rc = tide_cuda_product(call, p);
  }
  return rc;
}

int k_cuda_addmm_(const k_call *call)
{
  const k_tensor &a = call->in[0], &b = call->in[1], &y = call->out[0];
  if (a.shape[1] == 0) return TIDE_OK;
  tide_matrix t = matrix(y, 0, 0);
  if (dense(matrix(a, 0, 0)) && dense(matrix(b, 0, 0)) && (t.col_stride == 1 || t.cols == 1)
      && (t.row_stride >= t.cols || t.rows == 1))
    return tide_cuda_product(call, {matrix(a, 0, 0), matrix(b, 0, 0), t, 1, nullptr, true});
  tide_layout one = {};
  one.numel = 1;
  return plain(call, one, true);
}

namespace {

/* y = act(x w' + bias) in one product for each evenly strided run of x's rows. act: the epilogue
 * (TIDE_CUDA_PLAIN: none); pre, or null: receives the sums before it. x and w are K_ROWS. */
int linear(const k_call *call, const k_tensor &y, int act, const k_tensor *pre)
{
  const k_tensor &x = call->in[0], &w = call->in[1];
  int last = x.ndim - 1;
  int64_t n = w.shape[0], k = x.shape[last];
  tide_array bias = call->nin > 2 ? tide_array_of(call->in[2]) : tide_array{nullptr, y.dtype};
  k_tensor lead[2] = {y, x};
  lead[0].ndim = lead[1].ndim = last;
  const k_tensor *t[2] = {&lead[0], &lead[1]};
  tide_layout l = tide_layout_of(2, t);
  bool prefill = k == 0 || (bias.data && y.dtype == TIDE_F64);
  if (prefill)
    TIDE_LAUNCH(bias_rows_kernel, k_numel(&y), call, k_numel(&y), n, tide_array_of(y), bias);
  if (k == 0) return TIDE_CUDA_LAUNCHED(call);
  int inner_dim = l.ndim - 1, rc = TIDE_OK;
  int64_t m = l.ndim ? l.shape[inner_dim] : 1, outer = l.numel / (m ? m : 1);
  int64_t size = y.dtype == TIDE_F64 ? 8 : y.dtype == TIDE_F32 ? 4 : 2;
  int64_t xs = l.ndim ? l.stride[1][inner_dim] : k;
  for (int64_t i = 0; i < outer && rc == TIDE_OK; i++) {
    int64_t from = 0, left = i;
    for (int d = inner_dim - 1; d >= 0; left /= l.shape[d], d--)
      from += left % l.shape[d] * l.stride[1][d];
    tide_product p = {{static_cast<char *>(x.data) + from * size, x.dtype, m, k, xs, 1, 0},
                      {w.data, w.dtype, k, n, 1, w.stride[0], 0},
                      {static_cast<char *>(y.data) + i * m * n * size, y.dtype, m, n, n, 1, 0},
                      1, prefill ? nullptr : bias.data, prefill};
    p.act = act;
    if (pre) p.pre = static_cast<char *>(pre->data) + i * m * n * size;
    rc = tide_cuda_product(call, p);
  }
  return rc;
}

}  // namespace

int k_cuda_linear(const k_call *call)
{
  return linear(call, call->out[0], TIDE_CUDA_PLAIN, nullptr);
}

/* f64, no sum at all and a gelu whose operand does not lie as cuBLASLt keeps it take two steps. */
int k_cuda_linear_act(const k_call *call)
{
  const k_tensor &y = call->out[0];
  const k_tensor *pre = k_absent(&call->out[1]) ? nullptr : &call->out[1];
  bool relu = static_cast<const k_linear_act_attrs *>(call->attrs)->act == K_ACT_RELU;
  int64_t n = call->in[1].shape[0], k = call->in[1].shape[1];
  if (y.dtype != TIDE_F64 && k > 0 && (!pre || n % 8 == 0))
    return linear(call, y, relu ? TIDE_CUDA_RELU : TIDE_CUDA_GELU, pre);
  const k_tensor *sum = pre ? pre : &y;
  int rc = linear(call, *sum, TIDE_CUDA_PLAIN, nullptr);
  if (rc != TIDE_OK) return rc;
  k_call act = *call;
  act.in = sum;
  act.nin = act.nout = 1;
  return relu ? k_cuda_relu(&act) : k_cuda_gelu_tanh(&act);
}
