/* fp8_codes on the GPU: an operand is read once, a tile of 128 x 128 a block, and written as codes
 * in both directions.
 *
 * A tile is whole blocks of either kind in either direction, so no block of threads waits for
 * another. A thread holds 16 columns of four neighbouring rows: its codes along rows are 16 bytes,
 * and of a column one word, which goes through shared memory to become 16 bytes of its row of the
 * transpose. One scale for all needs a pass over the operand before; it stays on the device, where
 * the tiles and cuBLASLt read it.
 *
 * Meaning: kernels/ref/fp8.c; scales: kernels/fp8.h.
 */
#include <cuda_fp8.h>

#include "kernels/cuda/backend.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/fp8.h"

namespace {

constexpr int TILE = K_FP8_BLOCK, THREADS = 256, WARPS = THREADS / 32;
constexpr int RUN = 16;  /* neighbouring columns of a thread */
constexpr int DEEP = 4;  /* neighbouring rows of a thread */
enum { PARTS = 512, LEAST_CAPABILITY = 89, BLOCK_CAPABILITY = 90 };
static_assert(TILE / RUN * (TILE / DEEP) == THREADS, "");

/* ---- one scale for all ----------------------------------------------------------------------- */

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

/* Leaves the factor in part[PARTS], and what undoes it in back. */
__global__ void scale_kernel(float *part, int n, int e5m2, float *back)
{
  float most = 0;
  TIDE_LANE_LOOP(i, n) most = tide_top()(most, part[i]);
  most = tide_block_top(most);
  if (threadIdx.x != 0) return;
  part[PARTS] = k_fp8_scale(most, e5m2);
  *back = 1 / part[PARTS];
}

/* ---- codes ----------------------------------------------------------------------------------- */

struct codes_args {
  const void *from;
  tide_layout lead;          /* of the rows */
  int64_t rows, cols, col_stride, across;  /* across: tiles of a row of tiles */
  int64_t tiles;
  uint8_t *to[2];            /* along the rows of `from`, and of its transpose; null: not wanted */
  float *scale[2];
  const float *whole;        /* of TENSOR: the factor */
  k_fp8_attrs at;
};

/* Two codes, v's in the low byte. Saturation would hide an infinity: e4m3 has NaN for it. */
TIDE_DEVICE uint32_t codes_of(float v, float u, int e5m2)
{
  if (e5m2) {
    uint32_t two = __nv_cvt_float2_to_fp8x2(make_float2(v, u), __NV_SATFINITE, __NV_E5M2);
    if (isinf(v)) two = (two & 0xff80u) | 0x7cu;
    if (isinf(u)) two = (two & 0x80ffu) | 0x7c00u;
    return two;
  }
  v = isinf(v) ? NAN : v, u = isinf(u) ? NAN : u;
  return __nv_cvt_float2_to_fp8x2(make_float2(v, u), __NV_SATFINITE, __NV_E4M3);
}

/* Loads RUN columns of DEEP rows from (r, c) on; 0 behind the last. WIDE: in packs, all before the
 * first is used, where all columns are there. */
template <class E, bool WIDE>
TIDE_DEVICE void load_runs(const codes_args &p, int64_t r, int64_t c, float x[DEEP][RUN])
{
  constexpr int N = tide_wide<E>, PACKS = RUN / N;
  const E *from[DEEP];
#pragma unroll
  for (int d = 0; d < DEEP; d++) {
    int64_t at[1];
    tide_offsets<1>(p.lead, r + d < p.rows ? r + d : p.rows - 1, at);
    from[d] = static_cast<const E *>(p.from) + at[0] + c * p.col_stride;
  }
  if (WIDE && c + RUN <= p.cols) {
    tide_pack<E, N> pack[DEEP][PACKS];
#pragma unroll
    for (int i = 0; i < DEEP * PACKS; i++)
      pack[i / PACKS][i % PACKS] = tide_pack_from<N>(from[i / PACKS] + i % PACKS * N);
#pragma unroll
    for (int i = 0; i < DEEP * PACKS; i++) {
      const tide_values<float, N> v = tide_up(pack[i / PACKS][i % PACKS]);
#pragma unroll
      for (int j = 0; j < N; j++)
        x[i / PACKS][i % PACKS * N + j] = r + i / PACKS < p.rows ? v.v[j] : 0;
    }
    return;
  }
#pragma unroll
  for (int d = 0; d < DEEP; d++)
#pragma unroll
    for (int j = 0; j < RUN; j++) {
      x[d][j] = 0;
      if (r + d < p.rows && c + j < p.cols) x[d][j] = tide_up(from[d][j * p.col_stride]);
    }
}

/* The place of a tile, and this thread's place in it: `quad` of rows, `run` of columns. */
struct place {
  int64_t i, k, r0, c0;
  int quad, run, warp;
};

struct shared_tile {
  float part[WARPS][TILE], factor[TILE];
  alignas(16) uint32_t turned[TILE][TILE / DEEP]; /* a row a column; words lie as word_of says */
};

/* Neighbouring threads have neighbouring columns, whose words would share a bank. */
TIDE_DEVICE int word_of(int column, int word) { return word ^ (column / RUN & 7) * 4; }

/* Writes the factor of a square block for both directions, and those behind the last block. */
TIDE_DEVICE void put_square(const codes_args &p, const place &at, float factor)
{
#pragma unroll
  for (int d = 0; d < 2; d++) {
    if (!p.scale[d] || threadIdx.x >= 4) continue;
    const int64_t n = d ? k_fp8_blocks(p.rows) : p.across, own = d ? at.i : at.k;
    const int64_t wide = k_fp8_square_row(d ? p.rows : p.cols);
    float *row = p.scale[d] + (d ? at.k : at.i) * wide;
    if (threadIdx.x == 0) row[own] = 1 / factor;
    else if (own == n - 1 && n - 1 + threadIdx.x < wide) row[n - 1 + threadIdx.x] = 1;
  }
}

/* Returns the largest number of the lanes whose places differ in bits [from, below). */
TIDE_DEVICE float lanes_top(float most, int from, int below)
{
#pragma unroll
  for (int by = from; by < below; by *= 2)
    most = tide_top()(most, __shfl_xor_sync(0xffffffffu, most, by));
  return most;
}

/* Factors of the thread's rows, which go to scale. */
TIDE_DEVICE void row_factors(const codes_args &p, const place &at, const float x[DEEP][RUN],
                             float *factor)
{
#pragma unroll
  for (int d = 0; d < DEEP; d++) {
    float most = 0;
#pragma unroll
    for (int j = 0; j < RUN; j++) most = tide_top()(most, fabsf(x[d][j]));
    factor[d] = k_fp8_block_scale(lanes_top(most, 1, TILE / RUN), p.at.f32_scale);
    const int64_t r = at.r0 + at.quad * DEEP + d;
    if (at.run == 0 && r < k_fp8_wide(p.rows))
      p.scale[0][at.k * k_fp8_wide(p.rows) + r] = 1 / factor[d];
  }
}

/* Factors of the tile's columns, in s->factor; they go to scale. */
TIDE_DEVICE void column_factors(const codes_args &p, const place &at, const float x[DEEP][RUN],
                                shared_tile *s)
{
#pragma unroll
  for (int j = 0; j < RUN; j++) {
    float most = 0;
#pragma unroll
    for (int d = 0; d < DEEP; d++) most = tide_top()(most, fabsf(x[d][j]));
    most = lanes_top(most, TILE / RUN, 32);
    if ((threadIdx.x & 31) < TILE / RUN) s->part[at.warp][at.run * RUN + j] = most;
  }
  __syncthreads();
  const int c = (int)threadIdx.x;
  if (c < TILE) {
    float most = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = tide_top()(most, s->part[w][c]);
    s->factor[c] = k_fp8_block_scale(most, p.at.f32_scale);
    if (at.c0 + c < k_fp8_wide(p.cols))
      p.scale[1][at.i * k_fp8_wide(p.cols) + at.c0 + c] = 1 / s->factor[c];
  }
  __syncthreads();
}

/* Returns one factor for the tile. */
TIDE_DEVICE float tile_factor(const codes_args &p, const place &at, const float x[DEEP][RUN])
{
  if (p.at.kind == K_FP8_TENSOR) return *p.whole;
  float most = 0;
#pragma unroll
  for (int d = 0; d < DEEP; d++)
#pragma unroll
    for (int j = 0; j < RUN; j++) most = tide_top()(most, fabsf(x[d][j]));
  const float factor = k_fp8_block_scale(tide_block_top(most), p.at.f32_scale);
  put_square(p, at, factor);
  return factor;
}

TIDE_DEVICE void write_rows(const codes_args &p, const place &at, const float x[DEEP][RUN],
                            const float *factor)
{
  const int64_t c = at.c0 + at.run * RUN, wide = k_fp8_wide(p.cols);
#pragma unroll
  for (int d = 0; d < DEEP; d++) {
    const int64_t r = at.r0 + at.quad * DEEP + d;
    uint32_t w[RUN / 4];
#pragma unroll
    for (int j = 0; j < RUN; j += 4)
      w[j / 4] = codes_of(x[d][j] * factor[d], x[d][j + 1] * factor[d], p.at.e5m2)
        | codes_of(x[d][j + 2] * factor[d], x[d][j + 3] * factor[d], p.at.e5m2) << 16;
    if (r < k_fp8_wide(p.rows) && c < wide)
      tide_store16(p.to[0] + r * wide + c, make_uint4(w[0], w[1], w[2], w[3]));
  }
}

/* by_column: s->factor holds a factor for each column; else `one` is that of the tile. */
TIDE_DEVICE void write_columns(const codes_args &p, const place &at, const float x[DEEP][RUN],
                               bool by_column, float one, shared_tile *s)
{
  const int64_t wide = k_fp8_wide(p.rows);
#pragma unroll
  for (int j = 0; j < RUN; j++) {
    const int c = at.run * RUN + j;
    const float f = by_column ? s->factor[c] : one;
    s->turned[c][word_of(c, at.quad)] = codes_of(x[0][j] * f, x[1][j] * f, p.at.e5m2)
      | codes_of(x[2][j] * f, x[3][j] * f, p.at.e5m2) << 16;
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < TILE * TILE / RUN / THREADS; n++) {
    const int i = (int)threadIdx.x + n * THREADS, c = i / (TILE / RUN), chunk = i % (TILE / RUN);
    const int64_t r = at.r0 + chunk * RUN;
    if (at.c0 + c < k_fp8_wide(p.cols) && r < wide)
      tide_store16(p.to[1] + (at.c0 + c) * wide + r,
                   *reinterpret_cast<const uint4 *>(&s->turned[c][word_of(c, chunk * 4)]));
  }
}

template <class E, bool WIDE>
__global__ void __launch_bounds__(THREADS) codes_kernel(codes_args p)
{
  __shared__ shared_tile s;
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  const bool by_row = p.at.kind == K_FP8_ROWS;
  for (int64_t t = blockIdx.x; t < p.tiles; t += gridDim.x) {
    place at = {t / p.across, t % p.across, 0, 0, 0, 0, warp};
    at.r0 = at.i * TILE, at.c0 = at.k * TILE;
    at.run = lane % (TILE / RUN), at.quad = warp * (TILE / DEEP / WARPS) + lane / (TILE / RUN);
    float x[DEEP][RUN], factor[DEEP], one = 1;
    load_runs<E, WIDE>(p, at.r0 + at.quad * DEEP, at.c0 + at.run * RUN, x);
    if (!by_row) one = tile_factor(p, at, x);
#pragma unroll
    for (int d = 0; d < DEEP; d++) factor[d] = one;
    if (by_row && p.to[0]) row_factors(p, at, x, factor);
    if (p.to[0]) write_rows(p, at, x, factor);
    if (!p.to[1]) continue;
    if (by_row) column_factors(p, at, x, &s);
    write_columns(p, at, x, by_row, one, &s);
    __syncthreads(); /* the next tile writes s */
  }
}

/* ---- the call -------------------------------------------------------------------------------- */

int check_device(const k_call *call, int kind)
{
  int has = tide_cuda_state_of(call->stream)->capability;
  if (has < LEAST_CAPABILITY)
    snprintf(call->msg, K_MSG, "FP8 needs a GPU of compute capability 8.9 or above, this one has "
             "%d.%d; use linear", has / 10, has % 10);
  else if (kind != K_FP8_TENSOR && has != BLOCK_CAPABILITY)
    snprintf(call->msg, K_MSG, "FP8 with scales of blocks needs a GPU of compute capability 9.0, "
             "this one has %d.%d; use scaling 'tensor'", has / 10, has % 10);
  else return TIDE_OK;
  return TIDE_E_UNSUPPORTED;
}

/* Returns whether packs of 16 bytes begin each row. */
bool is_wide(const k_tensor &x, const tide_layout &lead)
{
  int64_t pack = 16 / tide_size_of(x.dtype);
  if (x.stride[x.ndim - 1] != 1 || !tide_aligned(x.data)) return false;
  for (int d = 0; d < lead.ndim; d++)
    if (lead.stride[0][d] % pack) return false;
  return true;
}

void scale_whole(const k_call *call, const k_tensor &lies, int e5m2, float *part, float *back)
{
  const k_tensor *one[1] = {&lies};
  elements x = {tide_array_of(lies), tide_layout_of(1, one)};
  int blocks = tide_cuda_grid(x.at.numel);
  if (blocks > PARTS) blocks = PARTS;
  TIDE_CUDA_LAUNCH(call, largest_kernel, blocks, TIDE_CUDA_BLOCK, 0, x, part);
  TIDE_CUDA_LAUNCH(call, scale_kernel, 1, TIDE_CUDA_BLOCK, 0, part, blocks, e5m2, back);
}

template <class E, bool WIDE> void launch_codes(const k_call *call, const codes_args &p)
{
  TIDE_CUDA_LAUNCH(call, (codes_kernel<E, WIDE>), tide_row_blocks(p.tiles), THREADS, 0, p);
}

}  // namespace

int64_t k_cuda_fp8_codes_work(const k_call *call)
{
  const k_fp8_attrs *at = static_cast<const k_fp8_attrs *>(call->attrs);
  return at->kind == K_FP8_TENSOR ? (PARTS + 1) * (int64_t)sizeof(float) : 0;
}

int k_cuda_fp8_codes(const k_call *call)
{
  k_tensor lies;
  const k_tensor *y = call->out;
  codes_args p = {};
  p.at = *static_cast<const k_fp8_attrs *>(call->attrs);
  int rc = check_device(call, p.at.kind);
  if (rc < 0) return rc;
  const int along = k_fp8_lying(&call->in[0], &lies) ? 2 : 0, across = 2 - along;
  k_tensor lead = lies;
  lead.ndim--;
  const k_tensor *one[1] = {&lead};
  p.from = lies.data, p.lead = tide_layout_of(1, one);
  p.rows = k_numel(&lead), p.cols = lies.shape[lead.ndim], p.col_stride = lies.stride[lead.ndim];
  p.across = k_fp8_blocks(p.cols), p.tiles = p.across * k_fp8_blocks(p.rows);
  p.to[0] = tide_data<uint8_t>(y[along]), p.to[1] = tide_data<uint8_t>(y[across]);
  p.scale[0] = tide_data<float>(y[along + 1]), p.scale[1] = tide_data<float>(y[across + 1]);
  if (p.at.kind == K_FP8_TENSOR) {
    float *part = static_cast<float *>(call->work);
    scale_whole(call, lies, p.at.e5m2, part, tide_data<float>(y[1]));
    p.whole = part + PARTS;
  }
  if (p.tiles == 0) return TIDE_CUDA_LAUNCHED(call);
  if (is_wide(lies, p.lead)) TIDE_BY_SHORT(lies.dtype, (launch_codes<E, true>(call, p)));
  else TIDE_BY_SHORT(lies.dtype, (launch_codes<E, false>(call, p)));
  return TIDE_CUDA_LAUNCHED(call);
}
