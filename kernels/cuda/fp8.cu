/* linear_fp8 on the GPU: cuBLASLt multiplies codes, along k in both operands, which fp8_codes has
 * made in steps of 16.
 *
 * A result whose sizes are no such steps goes through f32 scratch. Scales stay on the device.
 *
 * Meaning: kernels/ref/fp8.c.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/fp8.h"

namespace {

/* y = a sum + bias, or y plus that sum; rows of the sum are `wide` apart, those of y `ld`. Without
 * a sum it counts as 0. */
struct finish_args {
  int64_t numel, n, wide, ld, bias_stride;
  const float *sum;
  tide_array bias, y;
  bool add;
};

__global__ void finish_kernel(finish_args p)
{
  TIDE_GRID_LOOP(i, p.numel) {
    const int64_t r = i / p.n, c = i % p.n, to = r * p.ld + c;
    float v = p.sum ? p.sum[r * p.wide + c] : 0;
    if (p.bias.data) v += tide_at<float>(p.bias, c * p.bias_stride);
    if (p.add) v += tide_at<float>(p.y, to);
    tide_put<float>(p.y, to, v);
  }
}

/* Sizes, and whether cuBLASLt writes y itself. */
struct job {
  const k_fp8_product_attrs *at;
  const k_tensor *in, *bias; /* the codes; null: absent */
  const k_tensor *y;
  int64_t wide_m, wide_n, wide_k, ld;
  bool add, direct;
  int64_t total() const { return direct || at->k == 0 ? 0 : wide_m * wide_n * 4; }
};

job job_of(const k_call *call)
{
  job j = {};
  j.at = static_cast<const k_fp8_product_attrs *>(call->attrs);
  j.add = call->nin == K_FP8_ADDED;
  j.in = call->in + (j.add ? 0 : K_FP8_A);
  j.bias = j.add ? nullptr : k_or_null(&call->in[K_FP8_BIAS]);
  j.y = &call->out[0];
  j.wide_m = k_fp8_wide(j.at->m), j.wide_n = k_fp8_wide(j.at->n), j.wide_k = k_fp8_wide(j.at->k);
  j.ld = j.add ? j.y->stride[0] : j.at->n;
  bool even_bias = !j.bias || (j.y->dtype != TIDE_F32 && j.bias->stride[0] == 1);
  bool even_rows = j.ld >= j.at->n && j.ld * tide_size_of(j.y->dtype) % 16 == 0;
  j.direct = j.wide_m == j.at->m && j.wide_n == j.at->n && j.at->k > 0 && even_bias && even_rows
    && tide_aligned(j.y->data);
  return j;
}

int scaling_of(int kind)
{
  return kind == K_FP8_TENSOR ? TIDE_CUDA_SCALE_ALL
    : kind == K_FP8_ROWS ? TIDE_CUDA_SCALE_128 : TIDE_CUDA_SCALE_128X128;
}

int multiply(const k_call *call, const job &j, float *sum)
{
  const k_tensor *in = j.in;
  const int kind = j.at->b_kind;
  tide_product p = {
    {in[0].data, j.at->a_e5m2 ? TIDE_CUDA_E5M2 : TIDE_CUDA_E4M3, j.wide_m, j.wide_k, j.wide_k, 1,
     0},
    {in[2].data, TIDE_CUDA_E4M3, j.wide_k, j.wide_n, 1, j.wide_k, 0},
    {j.direct ? j.y->data : sum, j.direct ? j.y->dtype : TIDE_F32, j.wide_m, j.wide_n,
     j.direct ? j.ld : j.wide_n, 1, 0},
    1, j.direct && j.bias ? j.bias->data : nullptr, j.direct && j.add,
    static_cast<const float *>(in[1].data), static_cast<const float *>(in[3].data)};
  p.a_scaling = scaling_of(kind == K_FP8_SQUARE ? K_FP8_ROWS : kind);
  p.b_scaling = scaling_of(kind);
  return tide_cuda_product(call, p);
}

int run(const k_call *call)
{
  job j = job_of(call);
  float *sum = j.at->k ? static_cast<float *>(call->work) : nullptr;
  int rc = j.at->k ? multiply(call, j, sum) : TIDE_OK;
  if (rc < 0 || j.direct) return rc;
  finish_args p = {j.at->m * j.at->n, j.at->n, j.wide_n, j.ld, j.bias ? j.bias->stride[0] : 0, sum,
                   {j.bias ? j.bias->data : nullptr, j.y->dtype}, tide_array_of(*j.y), j.add};
  TIDE_LAUNCH(finish_kernel, p.numel, call, p);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

/* Reads the address of the result, which is that of the run, or null in a rehearsal: aligned. */
int64_t k_cuda_linear_fp8_work(const k_call *call) { return job_of(call).total(); }
int k_cuda_linear_fp8(const k_call *call) { return run(call); }

int64_t k_cuda_fp8_add_product__work(const k_call *call) { return k_cuda_linear_fp8_work(call); }
int k_cuda_fp8_add_product_(const k_call *call) { return run(call); }
