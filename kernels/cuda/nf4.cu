/* quantize_nf4, dequantize_nf4 and linear_nf4 on the GPU: weights of 4 bits.
 *
 * A warp codes a block of 64 numbers, two a lane, which are one byte. One block of threads sums the
 * magnitudes in a fixed order; then one codes each group of 256 magnitudes. linear_nf4 reads the
 * weight into scratch in x's dtype, at 2 bytes an element for 16-bit x, and multiplies that.
 * grouped_linear_nf4 reads the weights of a few groups at a time, those without rows not at all.
 *
 * Meaning: kernels/ref/nf4.c, kernels/ref/nf4.h.
 */
#include <cfloat>

#include "kernels/cuda/dynamic8.cuh"
#include "kernels/cuda/product.cuh"

int k_cuda_linear(const k_call *call);
int64_t k_cuda_grouped_linear_work(const k_call *call);
int tide_cuda_grouped_from(const k_call *call, int64_t from);

namespace {

constexpr int BLOCK = 64, GROUP = 256, THREADS = 256, WARPS = THREADS / 32;

__constant__ const float shares[16] = {
  -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
  -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
  0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
  0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f
};

int64_t parts(int64_t n, int64_t size) { return n / size + (n % size > 0); }
int64_t pair_bytes(int64_t n) { return parts(n, 2); }

/* ---- coding ---------------------------------------------------------------------------------- */

TIDE_DEVICE int share_code(float share)
{
  int code = 0;
#pragma unroll
  for (int c = 0; c < 15; c++) code += share > (shares[c] + shares[c + 1]) / 2;
  return code;
}

/* Packs numbers in pairs, a block of them a warp; its largest magnitude goes to most. */
__global__ void pairs_kernel(tide_array x, int64_t n, uint8_t *pair, float *most)
{
  int lane = (int)threadIdx.x & 31;
  int64_t nblock = (n + BLOCK - 1) / BLOCK, step = (int64_t)gridDim.x * WARPS;
  for (int64_t b = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5); b < nblock; b += step) {
    int64_t i = b * BLOCK + 2 * lane;
    float u = i < n ? tide_at<float>(x, i) : 0, v = i + 1 < n ? tide_at<float>(x, i + 1) : 0;
    int wild = tide_warp_fold((int)(!isfinite(u) || !isfinite(v)), tide_plus());
    float largest = tide_warp_fold(fmaxf(fabsf(u), fabsf(v)), tide_top());
    float back = !wild && largest > 0 ? 1 / largest : 0;
    if (back > FLT_MAX) back = 0; /* of a denormal number */
    if (lane == 0) most[b] = wild ? NAN : largest;
    if (i < n) pair[i / 2] = (uint8_t)(share_code(u * back) << 4 | share_code(v * back));
  }
}

__global__ void mean_kernel(const float *most, int64_t nblock, float *scale)
{
  double sum = 0;
  TIDE_LANE_LOOP(i, nblock) sum += most[i];
  sum = tide_block_sum(sum);
  if (threadIdx.x == 0) scale[0] = nblock ? (float)(sum / (double)nblock) : 0;
}

/* Codes magnitudes, a group of them a block of threads, one a thread. */
__global__ void group_kernel(const float *most, int64_t nblock, uint8_t *block, float *scale)
{
  __shared__ map8 map;
  load_map(&map, true);
  __syncthreads();
  int64_t ngroup = (nblock + GROUP - 1) / GROUP;
  for (int64_t g = blockIdx.x; g < ngroup; g += gridDim.x) {
    int64_t i = g * GROUP + threadIdx.x;
    float off = i < nblock ? most[i] - scale[0] : 0;
    float largest = tide_block_fold(fabsf(off), tide_top(), 0.0f);
    if (i < nblock) block[i] = code_of(map, largest > 0 ? off / largest : 0);
    if (threadIdx.x == 0) scale[1 + g] = largest;
  }
}

/* ---- reading --------------------------------------------------------------------------------- */

struct stored {
  const uint8_t *pair, *block;
  const float *scale;
  k_nf4_attrs at;
};

stored stored_of(const k_tensor &codes, const k_tensor &scale, const k_nf4_attrs *a)
{
  const uint8_t *pair = static_cast<const uint8_t *>(codes.data);
  return {pair, pair + pair_bytes(a->rows * a->cols), static_cast<const float *>(scale.data), *a};
}

/* Returns the magnitude of number i of a part. */
TIDE_DEVICE float magnitude_of(const stored &q, const map8 &map, int64_t i)
{
  int64_t place = q.at.first + i, slot = place / BLOCK - q.at.first / BLOCK;
  if (q.at.row_blocks) {
    int64_t r = i / q.at.cols, start = q.at.first + r * q.at.stride;
    place = start + i % q.at.cols;
    slot = r * q.at.row_blocks + place / BLOCK - start / BLOCK;
  }
  return (float)((double)map.of[q.block[slot]] * q.scale[1 + place / BLOCK / GROUP] + q.scale[0]);
}

/* Reads the numbers, a byte of two a thread. */
__global__ void read_kernel(stored q, int64_t n, tide_array y)
{
  __shared__ map8 map;
  load_map(&map, true);
  __syncthreads();
  TIDE_GRID_LOOP(p, (n + 1) / 2) {
    int64_t i = 2 * p;
    float size = magnitude_of(q, map, i);
    tide_put<float>(y, i, shares[q.pair[p] >> 4] * size);
    if (i + 1 < n) tide_put<float>(y, i + 1, shares[q.pair[p] & 15] * size);
  }
}

/* Weights of groups: their offsets, the first of them, and what a row of codes and of scale has. */
struct groups_of {
  tide_array offsets;
  int64_t from, nbyte, nscale;
};

/* Reads the numbers of weights that have rows, a weight each blockIdx.y. */
__global__ void read_groups_kernel(stored q, groups_of o, int64_t n, tide_array y)
{
  __shared__ map8 map;
  int64_t g = o.from + blockIdx.y, at = blockIdx.y * n;
  if (tide_at<int64_t>(o.offsets, g) >= tide_at<int64_t>(o.offsets, g + 1)) return;
  load_map(&map, true);
  __syncthreads();
  q.pair += g * o.nbyte, q.block += g * o.nbyte, q.scale += g * o.nscale;
  TIDE_GRID_LOOP(p, (n + 1) / 2) {
    int64_t i = 2 * p;
    float size = magnitude_of(q, map, i);
    tide_put<float>(y, at + i, shares[q.pair[p] >> 4] * size);
    if (i + 1 < n) tide_put<float>(y, at + i + 1, shares[q.pair[p] & 15] * size);
  }
}

unsigned grid_of(int64_t n) { return (unsigned)(n < 1 << 16 ? n : 1 << 16); }

int64_t size_of(const k_tensor &t) { return t.dtype == TIDE_F32 ? 4 : 2; }

const k_nf4_attrs *attrs_of(const k_call *call)
{
  return static_cast<const k_nf4_attrs *>(call->attrs);
}

/* y = x w with w in scratch. */
int transposed_product(const k_call *call, int64_t k, int64_t n)
{
  const k_tensor &x = call->in[0], &y = call->out[0];
  int64_t m = k_numel(&y) / n;
  if (k == 0) {
    cudaError_t e = cudaMemsetAsync(y.data, 0, (size_t)(k_numel(&y) * size_of(y)),
                                    tide_cuda_stream(call));
    return tide_cuda_check(call, e);
  }
  return tide_cuda_product(call, {{x.data, x.dtype, m, k, k, 1, 0},
                                  {call->work, x.dtype, k, n, n, 1, 0},
                                  {y.data, y.dtype, m, n, n, 1, 0}, 1, nullptr, false});
}

/* ---- groups ---- */

constexpr int64_t AT_ONCE = 64 << 20; /* bytes of weights in scratch, unless one has more */

/* Returns how many weights are in scratch at a time. */
int64_t weights_at_once(const k_call *call)
{
  const k_nf4_attrs *a = attrs_of(call);
  int64_t groups = call->in[3].shape[0] - 1;
  int64_t bytes = a->rows * a->cols * size_of(call->in[0]), n = bytes ? AT_ONCE / bytes : groups;
  n = n < 65535 ? n : 65535;
  return n < 1 ? 1 : n < groups ? n : groups;
}

/* Makes a call of grouped_linear with `count` weights, which scratch has behind the tiles. */
struct grouped_product {
  k_tensor in[3];
  k_call call;
  int64_t tile_bytes;

  grouped_product(const k_call *from, int64_t count) : call(*from)
  {
    const k_nf4_attrs *a = attrs_of(from);
    k_tensor w = {};
    int row = a->transposed ? 2 : 1, col = a->transposed ? 1 : 2;
    w.dtype = from->in[0].dtype, w.ndim = 3;
    w.shape[0] = count, w.shape[row] = a->rows, w.shape[col] = a->cols;
    w.stride[0] = a->rows * a->cols, w.stride[row] = a->cols, w.stride[col] = 1;
    in[0] = from->in[0], in[1] = w, in[2] = from->in[3];
    call.in = in, call.nin = 3;
    tile_bytes = parts(k_cuda_grouped_linear_work(&call), 64) * 64;
    if (from->work) in[1].data = static_cast<char *>(from->work) + tile_bytes;
  }
};

}  // namespace

int64_t k_cuda_quantize_nf4_work(const k_call *call)
{
  return 4 * parts(k_numel(&call->in[0]), BLOCK);
}

int k_cuda_quantize_nf4(const k_call *call)
{
  const k_tensor &x = call->in[0];
  int64_t n = k_numel(&x), nblock = parts(n, BLOCK);
  uint8_t *pair = static_cast<uint8_t *>(call->out[0].data);
  float *scale = static_cast<float *>(call->out[1].data), *most = static_cast<float *>(call->work);
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, pairs_kernel, grid_of(parts(nblock, WARPS)), THREADS, 0,
                     tide_array_of(x), n, pair, most);
  TIDE_CUDA_LAUNCH(call, mean_kernel, 1, THREADS, 0, most, nblock, scale);
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, group_kernel, grid_of(parts(nblock, GROUP)), GROUP, 0, most, nblock,
                     pair + pair_bytes(n), scale);
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_dequantize_nf4(const k_call *call)
{
  const k_tensor &y = call->out[0];
  int64_t n = k_numel(&y);
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, read_kernel, tide_cuda_grid((n + 1) / 2), TIDE_CUDA_BLOCK, 0,
                     stored_of(call->in[0], call->in[1], attrs_of(call)), n, tide_array_of(y));
  return TIDE_CUDA_LAUNCHED(call);
}

/* Returns the bytes of the weight in x's dtype. */
int64_t k_cuda_linear_nf4_work(const k_call *call)
{
  const k_nf4_attrs *a = attrs_of(call);
  return a->rows * a->cols * size_of(call->in[0]);
}

int k_cuda_linear_nf4(const k_call *call)
{
  const k_nf4_attrs *a = attrs_of(call);
  const k_tensor &x = call->in[0];
  int64_t n = a->rows * a->cols;
  if (k_numel(&call->out[0]) == 0) return TIDE_OK;
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, read_kernel, tide_cuda_grid((n + 1) / 2), TIDE_CUDA_BLOCK, 0,
                     stored_of(call->in[1], call->in[2], a), n, tide_array{call->work, x.dtype});
  if (a->transposed) return transposed_product(call, a->rows, a->cols);
  k_tensor w = {};
  w.data = call->work, w.dtype = x.dtype, w.ndim = 2;
  w.shape[0] = a->rows, w.shape[1] = w.stride[0] = a->cols, w.stride[1] = 1;
  const k_tensor in[] = {x, w, call->in[3]};
  k_call product = *call;
  product.in = in, product.nin = 3;
  return k_cuda_linear(&product);
}

int k_cuda_dequantize_nf4_part(const k_call *call) { return k_cuda_dequantize_nf4(call); }

int64_t k_cuda_linear_nf4_part_work(const k_call *call) { return k_cuda_linear_nf4_work(call); }

int k_cuda_linear_nf4_part(const k_call *call) { return k_cuda_linear_nf4(call); }

int64_t k_cuda_grouped_linear_nf4_work(const k_call *call)
{
  int64_t count = weights_at_once(call);
  grouped_product p(call, count);
  return p.tile_bytes + count * p.in[1].stride[0] * size_of(call->in[0]);
}

int k_cuda_grouped_linear_nf4(const k_call *call)
{
  const k_tensor &x = call->in[0], &codes = call->in[1], &scale = call->in[2];
  int64_t most = weights_at_once(call), groups = call->in[3].shape[0] - 1, from = 0;
  do {
    int64_t count = groups - from < most ? groups - from : most;
    grouped_product p(call, count);
    int64_t n = p.in[1].stride[0];
    groups_of o = {tide_array_of(call->in[3]), from, codes.shape[1], scale.shape[1]};
    dim3 grid((unsigned)tide_cuda_grid((n + 1) / 2), (unsigned)count);
    if (n > 0 && count > 0)
      TIDE_CUDA_LAUNCH(call, read_groups_kernel, grid, TIDE_CUDA_BLOCK, 0,
                       stored_of(codes, scale, attrs_of(call)), o, n,
                       tide_array{p.in[1].data, x.dtype});
    int rc = tide_cuda_grouped_from(&p.call, from);
    if (rc < 0) return rc;
    from += count;
  } while (from < groups);
  return TIDE_OK;
}
