/* matmul, linear and linear_act on the GPU: products by cuBLASLt; integers and odd strides by
 * plain loops.
 *
 * Batch dims are collapsed; those along which b is the same become rows of a, the longest of the
 * rest is the batch of a product, and what remains is looped over on the host. Meaning:
 * kernels/ref/matmul.c.
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

int64_t size_of(const k_tensor &t)
{
  return t.dtype == TIDE_F64 ? 8 : t.dtype == TIDE_F32 ? 4 : 2;
}

tide_matrix matrix(const k_tensor &t)
{
  int d = t.ndim - 2;
  return {t.data, t.dtype, t.shape[d], t.shape[d + 1], t.stride[d], t.stride[d + 1], 0};
}

bool dense(const tide_matrix &m)
{
  bool rows = (m.col_stride == 1 || m.cols == 1) && (m.row_stride >= m.cols || m.rows == 1);
  bool cols = (m.row_stride == 1 || m.rows == 1) && (m.col_stride >= m.rows || m.cols == 1);
  return rows || cols;
}

/* While b is the same along the innermost dim of the batch, and rows of a and y go on evenly from
 * one of its entries to the next, that dim is more rows. Operands of l: y, a, b. */
void fold_rows(tide_product *p, tide_layout *l)
{
  if (p->a.col_stride != 1 && p->a.cols != 1) return;
  for (int d = l->ndim - 1; d >= 0 && l->stride[2][d] == 0; d = l->ndim - 1) {
    if (p->a.rows == 1) p->a.row_stride = l->stride[1][d], p->y.row_stride = l->stride[0][d];
    bool on = l->stride[1][d] == p->a.rows * p->a.row_stride
      && l->stride[0][d] == p->y.rows * p->y.row_stride && p->a.row_stride >= p->a.cols;
    if (!on) return;
    p->a.rows *= l->shape[d], p->y.rows *= l->shape[d];
    l->numel /= l->shape[d];
    l->ndim--;
  }
}

/* Makes the longest dim of the batch the batch of one product; the others stay in l. */
void take_batch(tide_product *p, tide_layout *l)
{
  int most = 0, last = l->ndim - 1;
  if (last < 0) return;
  for (int d = 1; d <= last; d++)
    if (l->shape[d] > l->shape[most]) most = d;
  p->batch = l->shape[most];
  p->y.batch_stride = l->stride[0][most];
  p->a.batch_stride = l->stride[1][most];
  p->b.batch_stride = l->stride[2][most];
  l->shape[most] = l->shape[last];
  for (int k = 0; k < 3; k++) l->stride[k][most] = l->stride[k][last];
  l->numel /= p->batch;
  l->ndim = last;
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
  tide_product p = {matrix(a), matrix(b), matrix(y), 1, nullptr, false};
  if (!dense(p.a) || !dense(p.b) || !(1 << y.dtype & K_FLOAT) || p.a.cols == 0)
    return plain(call, l, false);
  fold_rows(&p, &l);
  take_batch(&p, &l);
  int64_t size[3] = {size_of(y), size_of(a), size_of(a)};
  int rc = TIDE_OK;
  for (int64_t i = 0; i < l.numel && rc == TIDE_OK; i++) {
    int64_t left = i;
    tide_product one = p;
    tide_matrix *m[3] = {&one.y, &one.a, &one.b};
    for (int d = l.ndim - 1; d >= 0; left /= l.shape[d], d--)
      for (int k = 0; k < 3; k++)
        m[k]->data = static_cast<char *>(m[k]->data) + left % l.shape[d] * l.stride[k][d] * size[k];
    rc = tide_cuda_product(call, one);
  }
  return rc;
}

int k_cuda_addmm_(const k_call *call)
{
  const k_tensor &a = call->in[0], &b = call->in[1], &y = call->out[0];
  if (a.shape[1] == 0) return TIDE_OK;
  tide_matrix t = matrix(y);
  if (dense(matrix(a)) && dense(matrix(b)) && (t.col_stride == 1 || t.cols == 1)
      && (t.row_stride >= t.cols || t.rows == 1))
    return tide_cuda_product(call, {matrix(a), matrix(b), t, 1, nullptr, true});
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
  int64_t size = size_of(y);
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

/* Computes act(x w' + bias). f64, a sum without terms, and a gelu whose operand does not lie as
 * cuBLASLt keeps it take two steps. */
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
