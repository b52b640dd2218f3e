/* Products by plain loops: integers, strides that no library takes, and what cuBLASLt refuses.
 *
 * One thread an element, sums in the order of k: exact where it matters that a product exists, and
 * far from fast.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/product.cuh"

namespace {

/* Returns the number of an FP8 code, of 4 exponent bits and 3 of fraction, or 5 and 2. */
TIDE_DEVICE float of_code(unsigned code, bool e5m2)
{
  unsigned size = code & 0x7f, fraction = e5m2 ? 2 : 3, exponent = size >> fraction;
  float v = __uint_as_float((size << (23 - fraction)) + ((e5m2 ? 112u : 120u) << 23));
  if (exponent == 0) v = (float)size * (e5m2 ? 0x1p-16f : 0x1p-9f);
  if (e5m2 && exponent == 31) v = size & 3 ? NAN : INFINITY;
  if (!e5m2 && size == 0x7f) v = NAN;
  return code & 0x80 ? -v : v;
}

template <class T> TIDE_DEVICE T element(const tide_array &a, int64_t i)
{
  if (a.dtype < TIDE_NDTYPE) return tide_at<T>(a, i);
  return (T)of_code(static_cast<const uint8_t *>(a.data)[i], a.dtype == TIDE_CUDA_E5M2);
}

/* As cuBLASLt's epilogues; relu keeps NaN. */
template <class T> TIDE_DEVICE T activate(T v, int act)
{
  if (act == TIDE_CUDA_RELU) return v <= (T)0 ? (T)0 : v;
  if (act != TIDE_CUDA_GELU) return v;
  return v * tide_sigmoid((T)1.5957691216057308 * (v + (T)0.044715 * v * v * v));
}

/* Integers have no activations. */
template <> TIDE_DEVICE int64_t activate<int64_t>(int64_t v, int) { return v; }

template <class T> __global__ void product_kernel(tide_plain_product p)
{
  T factor = 1;
  if (p.a_scale) factor = (T)(*p.a_scale * *p.b_scale);
  TIDE_GRID_LOOP(i, p.batch.numel * p.m * p.n) {
    int64_t c = i % p.n, r = i / p.n % p.m, at[3];
    tide_offsets<3>(p.batch, i / p.n / p.m, at);
    int64_t to = at[0] + r * p.ys[0] + c * p.ys[1];
    T sum = 0;
    for (int64_t j = 0; j < p.k; j++)
      sum += element<T>(p.a, at[1] + r * p.as[0] + j * p.as[1])
        * element<T>(p.b, at[2] + j * p.bs[0] + c * p.bs[1]);
    if (p.a_scale) sum *= factor;
    if (p.add) sum += tide_at<T>(p.y, to);
    if (p.bias.data) sum += tide_at<T>(p.bias, c);
    if (p.pre.data) tide_put<T>(p.pre, to, sum);
    tide_put<T>(p.y, to, activate(sum, p.act));
  }
}

}  // namespace

int tide_cuda_plain_product(const k_call *call, const tide_plain_product &p)
{
  int64_t n = p.batch.numel * p.m * p.n;
  if (1 << p.y.dtype & K_FLOAT)
    TIDE_BY_REAL(p.y.dtype, TIDE_LAUNCH(product_kernel<T>, n, call, p));
  else TIDE_LAUNCH(product_kernel<int64_t>, n, call, p);
  return TIDE_CUDA_LAUNCHED(call);
}

int tide_cuda_plain_product_of(const k_call *call, const tide_product &q)
{
  tide_plain_product p = {};
  p.a = {q.a.data, q.a.dtype}, p.b = {q.b.data, q.b.dtype}, p.y = {q.y.data, q.y.dtype};
  p.bias = {const_cast<void *>(q.bias), q.y.dtype}, p.pre = {q.pre, q.y.dtype};
  p.m = q.y.rows, p.n = q.y.cols, p.k = q.a.cols;
  p.as[0] = q.a.row_stride, p.as[1] = q.a.col_stride;
  p.bs[0] = q.b.row_stride, p.bs[1] = q.b.col_stride;
  p.ys[0] = q.y.row_stride, p.ys[1] = 1;
  p.batch.ndim = 1, p.batch.numel = p.batch.shape[0] = q.batch;
  p.batch.stride[0][0] = q.y.batch_stride, p.batch.stride[1][0] = q.a.batch_stride;
  p.batch.stride[2][0] = q.b.batch_stride;
  p.add = q.accumulate, p.act = q.act, p.a_scale = q.a_scale, p.b_scale = q.b_scale;
  return tide_cuda_plain_product(call, p);
}
