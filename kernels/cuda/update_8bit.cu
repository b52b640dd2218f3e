/* adamw8_, quantize8 and dequantize8 on the GPU: moments as dynamic 8-bit numbers.
 *
 * A warp takes a block of 256 elements, eight a lane: it reads the moments, updates them as adamw_
 * does, folds the largest and smallest over its lanes and codes them again. Only codes and
 * scales of the moments lie in memory. The codes are found by bisection in shared memory.
 *
 * Meaning: kernels/ref/update_8bit.c, kernels/ref/dynamic8.h.
 */
#include "kernels/cuda/dynamic8.cuh"
#include "kernels/cuda/update.cuh"

namespace {

constexpr int BLOCK = 256, EACH = BLOCK / 32, WARPS = THREADS / 32;

/* Writes the codes of a block, whose elements [0, n) lie in the lanes: x[k] is element 32k + lane.
 * The scale is the element of the largest magnitude; see dyn8_scale. */
TIDE_DEVICE void put_block(const map8 &m, uint8_t *codes, float *scale, const float *x, int n)
{
  int lane = (int)threadIdx.x & 31;
  float high = 0, low = 0;
  int wild = 0;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    if (32 * k + lane >= n) continue;
    wild |= !isfinite(x[k]);
    high = x[k] > high ? x[k] : high;
    low = x[k] < low ? x[k] : low;
  }
  high = tide_warp_fold(high, tide_top());
  low = m.zero ? -tide_warp_fold(-low, tide_top()) : 0;
  wild = tide_warp_fold(wild, tide_plus());
  float s = high >= -low ? high : low;
  s = wild ? NAN : fabsf(s) < 0x1p-103f ? 0 : s;
  if (lane == 0) *scale = s;
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (32 * k + lane < n)
      codes[32 * k + lane] = s == 0 || s != s ? (uint8_t)m.zero : code_of(m, x[k] / s);
}

/* ---- adamw8_: members p, g, m, v, master, m_scale, v_scale ----------------------------------- */

struct maps { map8 m, v; };

/* One block of one tensor: elements [i, i + n). */
TIDE_DEVICE void adamw8_block(const entry &e, const adamw_args &a, const maps &map, int64_t i,
                              int n)
{
  tide_array p = member(e, 0), g = member(e, 1), master = member(e, 4);
  tide_array weight = master.data ? master : p;
  uint8_t *mc = static_cast<uint8_t *>(e.data[2]) + i, *vc = static_cast<uint8_t *>(e.data[3]) + i;
  float *ms = static_cast<float *>(e.data[5]) + i / BLOCK;
  float *vs = static_cast<float *>(e.data[6]) + i / BLOCK;
  float scale = (float)total_scale(a.scale, a.g_scale, a.g_scale_dtype);
  float m[EACH] = {}, v[EACH] = {}, m_scale = *ms, v_scale = *vs;
  int lane = (int)threadIdx.x & 31;
  __syncwarp(); /* all lanes have read the scales */
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    int at = 32 * k + lane;
    if (at >= n) continue;
    float gi = tide_at<float>(g, i + at) * scale, w = tide_at<float>(weight, i + at);
    m[k] = map.m.of[mc[at]] * m_scale;
    v[k] = map.v.of[vc[at]] * v_scale;
    w -= (float)a.now.shrink * w;
    m[k] += (float)(1 - a.beta1) * (gi - m[k]);
    v[k] += (float)(1 - a.beta2) * (gi * gi - v[k]);
    w -= (float)a.now.step_size * m[k] / (tide_sqrt(v[k]) / (float)a.now.root2 + (float)a.eps);
    if (master.data) tide_put<float>(master, i + at, w);
    tide_put<float>(p, i + at, w);
  }
  put_block(map.m, mc, ms, m, n);
  put_block(map.v, vc, vs, v, n);
}

__global__ void adamw8_kernel(list l, adamw_args a)
{
  __shared__ maps map;
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  if (a.far) a.now = *a.far;
  if (a.now.skip || left_out(a.found_inf)) return;
  load_map(&map.m, true);
  load_map(&map.v, false);
  __syncthreads();
  for (int64_t i = from + (threadIdx.x >> 5) * BLOCK; i < to; i += WARPS * BLOCK)
    adamw8_block(e, a, map, i, (int)(to - i < BLOCK ? to - i : BLOCK));
}

/* ---- quantize8, dequantize8 ------------------------------------------------------------------ */

__global__ void quantize8_kernel(const float *x, uint8_t *codes, float *scale, int64_t n,
                                 bool is_signed)
{
  __shared__ map8 map;
  int lane = (int)threadIdx.x & 31;
  load_map(&map, is_signed);
  __syncthreads();
  int64_t step = (int64_t)gridDim.x * WARPS * BLOCK;
  for (int64_t i = ((int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5)) * BLOCK; i < n; i += step) {
    int size = (int)(n - i < BLOCK ? n - i : BLOCK);
    float own[EACH] = {};
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (32 * k + lane < size) own[k] = x[i + 32 * k + lane];
    put_block(map, codes + i, scale + i / BLOCK, own, size);
  }
}

__global__ void dequantize8_kernel(const uint8_t *codes, const float *scale, float *y, int64_t n,
                                   bool is_signed)
{
  __shared__ map8 map;
  load_map(&map, is_signed);
  __syncthreads();
  int64_t step = (int64_t)gridDim.x * blockDim.x;
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step)
    y[i] = map.of[codes[i]] * scale[i / BLOCK];
}

bool is_signed(const k_call *call)
{
  return static_cast<const k_dyn8_attrs *>(call->attrs)->is_signed != 0;
}

unsigned blocks_for(int64_t n, int64_t each)
{
  int64_t blocks = (n + each - 1) / each;
  return (unsigned)(blocks < 1 << 16 ? blocks : 1 << 16);
}

}  // namespace

int64_t k_cuda_adamw8__work(const k_call *call) { return adamw_work(call); }

int k_cuda_adamw8_(const k_call *call)
{
  const k_adamw_attrs *a = static_cast<const k_adamw_attrs *>(call->attrs);
  int rc = adamw_check(call, a);
  if (rc != TIDE_OK) return rc;
  adamw_args args = adamw_args_of(call, a);
  const k_tensor *o = call->out;
  const k_tensor *members[] = {o, call->in, o + a->n, o + 2 * a->n, o + 5 * a->n, o + 3 * a->n,
                               o + 4 * a->n};
  return each_list(call, a->n, 7, members, [&](const list &l) {
    TIDE_CUDA_LAUNCH(call, adamw8_kernel, (unsigned)l.chunks, THREADS, 0, l, args);
  });
}

int k_cuda_quantize8(const k_call *call)
{
  const k_tensor &x = call->in[0];
  int64_t n = k_numel(&x);
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, quantize8_kernel, blocks_for(n, WARPS * BLOCK), THREADS, 0,
                     static_cast<const float *>(x.data), static_cast<uint8_t *>(call->out[0].data),
                     static_cast<float *>(call->out[1].data), n, is_signed(call));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_dequantize8(const k_call *call)
{
  const k_tensor &codes = call->in[0];
  int64_t n = k_numel(&codes);
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, dequantize8_kernel, blocks_for(n, THREADS), THREADS, 0,
                     static_cast<const uint8_t *>(codes.data),
                     static_cast<const float *>(call->in[1].data),
                     static_cast<float *>(call->out[0].data), n, is_signed(call));
  return TIDE_CUDA_LAUNCHED(call);
}
