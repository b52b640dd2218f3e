/* linear_fp8 on the GPU: operands become FP8 codes in scratch, cuBLASLt multiplies those.
 *
 * No step needs the host. A pass over each operand leaves its largest magnitude
 * a block, one block turns those into scales, and the scales stay on the device, where the next
 * pass and cuBLASLt read them. FP8 units want both operands with k innermost and sizes in steps of
 * 16, so codes are written in that order whatever the operand's strides, with zeros behind; a
 * result whose sizes are no such steps goes through f32 scratch.
 *
 * Meaning: kernels/ref/matmul.c; scales: kernels/fp8.h.
 */
#include <cuda_fp8.h>

#include "kernels/cuda/backend.cuh"
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/product.cuh"
#include "kernels/fp8.h"

namespace {

enum { PARTS = 512, TILE = 64, STEP = 16, LEAST_CAPABILITY = 89 };

/* At least one. */
int64_t whole_steps(int64_t n) { return n == 0 ? (int64_t)STEP : (n + STEP - 1) / STEP * STEP; }

/* ---- scales ---------------------------------------------------------------------------------- */

/* An operand in the order it lies in memory. */
struct elements {
  tide_array data;
  tide_layout at;
};

__global__ void largest_kernel(elements x, float *part)
{
  float most = 0;
  TIDE_GRID_LOOP(i, x.at.numel) {
    int64_t at[1];
    tide_offsets<1>(x.at, i, at);
    most = tide_top()(most, fabsf(tide_at<float>(x.data, at[0])));
  }
  most = tide_block_top(most);
  if (threadIdx.x == 0) part[blockIdx.x] = most;
}

/* Of both operands: their scales, and what undoes them. */
struct scales {
  float by[2], back[2];
};

__global__ void scale_kernel(const float *part, int nx, int nw, int x_e5m2, scales *s)
{
  const float *mine = part + blockIdx.x * PARTS;
  float most = 0;
  TIDE_LANE_LOOP(i, blockIdx.x ? nw : nx) most = tide_top()(most, mine[i]);
  most = tide_block_top(most);
  if (threadIdx.x != 0) return;
  s->by[blockIdx.x] = k_fp8_scale(most, blockIdx.x ? 0 : x_e5m2);
  s->back[blockIdx.x] = 1 / s->by[blockIdx.x];
}

/* ---- codes ----------------------------------------------------------------------------------- */

struct codes_args {
  tide_array from;
  tide_layout lead;           /* of the rows */
  int64_t rows, cols, col_stride;
  bool turned;                /* neighbours in memory are of one column */
  int64_t to_rows, to_cols;   /* with the zeros; to_cols is a multiple of STEP */
  unsigned char *to;          /* [to_rows, to_cols] */
  const float *scale;
  int e5m2;
};

TIDE_DEVICE unsigned char code_of(float v, int e5m2)
{
  if (isinf(v)) return e5m2 ? (v < 0 ? 0xfc : 0x7c) : 0x7f; /* saturation would hide it */
  return (unsigned char)__nv_cvt_float_to_fp8(v, __NV_SATFINITE, e5m2 ? __NV_E5M2 : __NV_E4M3);
}

TIDE_DEVICE unsigned char code_at(const codes_args &p, int64_t row, int64_t col, float scale)
{
  if (row >= p.rows || col >= p.cols) return 0;
  int64_t at[1];
  tide_offsets<1>(p.lead, row, at);
  return code_of(tide_at<float>(p.from, at[0] + col * p.col_stride) * scale, p.e5m2);
}

/* Square tiles through shared memory: read along what is contiguous, written along k. */
__global__ void codes_kernel(codes_args p)
{
  __shared__ uint32_t tile[TILE][TILE / 4 + 1];
  int64_t across = (p.to_cols + TILE - 1) / TILE, n = across * ((p.to_rows + TILE - 1) / TILE);
  float scale = *p.scale;
  for (int64_t t = blockIdx.x; t < n; t += gridDim.x) {
    int64_t row0 = t / across * TILE, col0 = t % across * TILE;
    TIDE_LANE_LOOP(i, TILE * TILE) {
      int slow = (int)i / TILE, fast = (int)i % TILE;
      int row = p.turned ? fast : slow, col = p.turned ? slow : fast;
      reinterpret_cast<unsigned char *>(tile[row])[col] =
        code_at(p, row0 + row, col0 + col, scale);
    }
    __syncthreads();
    TIDE_LANE_LOOP(i, TILE * TILE / 4) {
      int64_t row = row0 + i / (TILE / 4), word = i % (TILE / 4), col = col0 + 4 * word;
      if (row < p.to_rows && col < p.to_cols)
        *reinterpret_cast<uint32_t *>(p.to + row * p.to_cols + col) = tile[row - row0][word];
    }
    __syncthreads();
  }
}

/* ---- the result ------------------------------------------------------------------------------ */

/* y = a sum + bias, of rows `ld` apart. */
__global__ void finish_kernel(int64_t n, int64_t width, int64_t ld, const float *sum,
                              tide_array bias, int64_t bias_stride, tide_array y)
{
  TIDE_GRID_LOOP(i, n) {
    float v = sum[i / width * ld + i % width];
    if (bias.data) v += tide_at<float>(bias, i % width * bias_stride);
    tide_put<float>(y, i, v);
  }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Sizes, and where things lie in scratch. */
struct job {
  int64_t m, n, k, wide_m, wide_n, wide_k; /* wide: with zeros, in steps of 16 */
  bool direct; /* cuBLASLt writes y itself */
  int64_t x, w, parts, scale, sum, total;
};

job job_of(const k_call *call)
{
  const k_tensor &w = call->in[1], &y = call->out[0];
  bool has_bias = !k_absent(&call->in[2]);
  job j = {};
  j.n = w.shape[0], j.k = w.shape[1], j.m = k_numel(&y) / (j.n ? j.n : 1);
  j.wide_m = whole_steps(j.m), j.wide_n = whole_steps(j.n), j.wide_k = whole_steps(j.k);
  bool even_bias = !has_bias || (y.dtype != TIDE_F32 && call->in[2].stride[0] == 1);
  j.direct = j.wide_m == j.m && j.wide_n == j.n && even_bias;
  auto take = [&](int64_t bytes) {
    int64_t begin = j.total;
    j.total += (bytes + 255) / 256 * 256;
    return begin;
  };
  j.x = take(j.wide_m * j.wide_k);
  j.w = take(j.wide_n * j.wide_k);
  j.parts = take(2 * PARTS * (int64_t)sizeof(float));
  j.scale = take(sizeof(scales));
  j.sum = take(j.direct ? 0 : j.wide_m * j.wide_n * (int64_t)sizeof(float));
  return j;
}

/* Neighbours in memory are of one column of the matrix. */
bool turned(const k_tensor &t)
{
  return t.ndim == 2 && t.stride[0] == 1 && t.stride[1] != 1;
}

int largest(const k_call *call, const k_tensor &t, float *part)
{
  k_tensor lies = t;
  if (turned(t)) {
    lies.shape[0] = t.shape[1], lies.shape[1] = t.shape[0];
    lies.stride[0] = t.stride[1], lies.stride[1] = t.stride[0];
  }
  const k_tensor *one[1] = {&lies};
  elements x = {tide_array_of(t), tide_layout_of(1, one)};
  int blocks = tide_cuda_grid(x.at.numel);
  if (blocks > PARTS) blocks = PARTS;
  TIDE_CUDA_LAUNCH(call, largest_kernel, blocks, TIDE_CUDA_BLOCK, 0, x, part);
  return blocks;
}

void make_codes(const k_call *call, const k_tensor &t, int64_t to_rows, int64_t to_cols,
                unsigned char *to, const float *scale, int e5m2)
{
  k_tensor lead = t;
  lead.ndim = t.ndim - 1;
  const k_tensor *one[1] = {&lead};
  codes_args p = {tide_array_of(t), tide_layout_of(1, one), k_numel(&lead), t.shape[lead.ndim],
                  t.stride[lead.ndim], turned(t), to_rows, to_cols, to, scale, e5m2};
  int64_t tiles = ((to_rows + TILE - 1) / TILE) * ((to_cols + TILE - 1) / TILE);
  TIDE_CUDA_LAUNCH(call, codes_kernel, tide_row_blocks(tiles), TIDE_CUDA_BLOCK, 0, p);
}

int check_device(const k_call *call)
{
  int has = tide_cuda_state_of(call->stream)->capability;
  if (has >= LEAST_CAPABILITY) return TIDE_OK;
  snprintf(call->msg, K_MSG, "FP8 needs a GPU of compute capability 8.9 or above, this one has "
           "%d.%d; use linear", has / 10, has % 10);
  return TIDE_E_UNSUPPORTED;
}

}  // namespace

int64_t k_cuda_linear_fp8_work(const k_call *call) { return job_of(call).total; }

int k_cuda_linear_fp8(const k_call *call)
{
  const k_tensor &x = call->in[0], &w = call->in[1], &bias = call->in[2], &y = call->out[0];
  int x_e5m2 = static_cast<const k_fp8_attrs *>(call->attrs)->x_e5m2;
  int rc = check_device(call);
  if (rc < 0) return rc;
  job j = job_of(call);
  unsigned char *work = static_cast<unsigned char *>(call->work);
  float *part = reinterpret_cast<float *>(work + j.parts);
  scales *s = reinterpret_cast<scales *>(work + j.scale);
  float *sum = reinterpret_cast<float *>(work + j.sum);

  int nx = largest(call, x, part), nw = largest(call, w, part + PARTS);
  TIDE_CUDA_LAUNCH(call, scale_kernel, 2, TIDE_CUDA_BLOCK, 0, part, nx, nw, x_e5m2, s);
  make_codes(call, x, j.wide_m, j.wide_k, work + j.x, &s->by[0], x_e5m2);
  make_codes(call, w, j.wide_n, j.wide_k, work + j.w, &s->by[1], 0);
  rc = TIDE_CUDA_LAUNCHED(call);
  if (rc < 0) return rc;

  tide_matrix to = {j.direct ? y.data : sum, j.direct ? y.dtype : TIDE_F32, j.wide_m,
                    j.wide_n, j.wide_n, 1, 0};
  tide_product p = {{work + j.x, x_e5m2 ? TIDE_CUDA_E5M2 : TIDE_CUDA_E4M3, j.wide_m, j.wide_k,
                     j.wide_k, 1, 0},
                    {work + j.w, TIDE_CUDA_E4M3, j.wide_k, j.wide_n, 1, j.wide_k, 0},
                    to, 1, j.direct ? tide_array_of(bias).data : nullptr, false, &s->back[0],
                    &s->back[1]};
  rc = tide_cuda_product(call, p);
  if (rc < 0 || j.direct) return rc;
  TIDE_LAUNCH(finish_kernel, k_numel(&y), call, k_numel(&y), j.n, j.wide_n, sum,
              tide_array_of(bias), k_absent(&bias) ? 0 : bias.stride[0], tide_array_of(y));
  return TIDE_CUDA_LAUNCHED(call);
}
