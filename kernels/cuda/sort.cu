/* Radix sort on the GPU: eight bits of the key a pass, from the lowest.
 *
 * A pass counts the digits of each tile of items, sums the counts of all tiles, digit by digit, to
 * the place of each tile's first item of a digit, and moves the items there. Ballots give the order
 * within a tile, so no atomics are needed and equal digits keep their order.
 */
#include "kernels/cuda/sort.cuh"

namespace {

enum { DIGITS = 256, THREADS = 256, WARPS = THREADS / 32, EACH = 8, TILE = THREADS * EACH,
       SCAN = 1024, SCAN_EACH = 4 };

int64_t tiles_of(int64_t n) { return (n + TILE - 1) / TILE; }

/* Which digit each of a thread's items has, and how many of the same digit lie before it in the
 * part of its warp. count: what the warp has of each digit, 0 before. Ends with a barrier. */
TIDE_DEVICE void rank_tile(const tide_keyed *items, int64_t n, int shift, uint32_t (*count)[DIGITS],
                           int *digit, uint32_t *rank)
{
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  for (int w = 0; w < WARPS; w++) count[w][threadIdx.x] = 0;
  __syncthreads();
  const int64_t first = blockIdx.x * (int64_t)TILE + warp * (32 * EACH) + lane;
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int64_t i = first + k * 32;
    digit[k] = i < n ? (int)(items[i].key >> shift & (DIGITS - 1)) : -1;
  }
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    unsigned same = __ballot_sync(0xffffffffu, digit[k] >= 0);
    for (int b = 0; b < 8; b++) {
      const bool bit = digit[k] >> b & 1;
      const unsigned has = __ballot_sync(0xffffffffu, bit);
      same &= bit ? has : ~has;
    }
    const unsigned before = same & ((1u << lane) - 1);
    rank[k] = digit[k] >= 0 ? count[warp][digit[k]] + (uint32_t)__popc(before) : 0;
    __syncwarp();
    if (digit[k] >= 0 && !before) count[warp][digit[k]] += (uint32_t)__popc(same);
    __syncwarp();
  }
  __syncthreads();
}

/* counts: [digit][tile] */
__global__ void __launch_bounds__(THREADS)
count_kernel(const tide_keyed *items, int64_t n, int shift, uint32_t *counts)
{
  __shared__ uint32_t count[WARPS][DIGITS];
  int digit[EACH];
  uint32_t rank[EACH], sum = 0;
  rank_tile(items, n, shift, count, digit, rank);
  for (int w = 0; w < WARPS; w++) sum += count[w][threadIdx.x];
  counts[threadIdx.x * (int64_t)gridDim.x + blockIdx.x] = sum;
}

/* counts[i] = the sum of those before it. One block. */
__global__ void __launch_bounds__(SCAN) scan_kernel(uint32_t *counts, int64_t n)
{
  __shared__ uint32_t sums[32];
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  uint32_t carry = 0;
  for (int64_t first = 0; first < n; first += SCAN * SCAN_EACH) {
    const int64_t i = first + threadIdx.x * SCAN_EACH;
    uint32_t own[SCAN_EACH], sum = 0;
#pragma unroll
    for (int k = 0; k < SCAN_EACH; k++) own[k] = i + k < n ? counts[i + k] : 0;
#pragma unroll
    for (int k = 0; k < SCAN_EACH; k++) sum += own[k];
    uint32_t upto = sum;
    for (int by = 1; by < 32; by <<= 1) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, upto, by);
      if (lane >= by) upto += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = upto;
    __syncthreads();
    uint32_t before = carry;
    for (int w = 0; w < 32; w++) {
      if (w < warp) before += sums[w];
      carry += sums[w];
    }
    before += upto - sum;
#pragma unroll
    for (int k = 0; k < SCAN_EACH; k++) {
      if (i + k < n) counts[i + k] = before;
      before += own[k];
    }
  }
}

__global__ void __launch_bounds__(THREADS)
move_kernel(const tide_keyed *items, int64_t n, int shift, const uint32_t *counts, tide_keyed *to)
{
  __shared__ uint32_t count[WARPS][DIGITS];
  int digit[EACH];
  uint32_t rank[EACH];
  rank_tile(items, n, shift, count, digit, rank);
  uint32_t place = counts[threadIdx.x * (int64_t)gridDim.x + blockIdx.x];
  for (int w = 0; w < WARPS; w++) {
    const uint32_t has = count[w][threadIdx.x];
    count[w][threadIdx.x] = place;
    place += has;
  }
  __syncthreads();
  const int warp = (int)threadIdx.x >> 5;
  const int64_t first = blockIdx.x * (int64_t)TILE + warp * (32 * EACH) + (threadIdx.x & 31);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (digit[k] >= 0) to[count[warp][digit[k]] + rank[k]] = items[first + k * 32];
}

int64_t items_bytes(int64_t n) { return (n * (int64_t)sizeof(tide_keyed) + 63) / 64 * 64; }

}  // namespace

int64_t tide_sort_work(int64_t n)
{
  return 2 * items_bytes(n) + tiles_of(n) * DIGITS * (int64_t)sizeof(uint32_t);
}

tide_keyed *tide_sort(const k_call *call, void *work, int64_t n, uint64_t limit)
{
  char *bytes = static_cast<char *>(work);
  tide_keyed *from = reinterpret_cast<tide_keyed *>(bytes);
  tide_keyed *to = reinterpret_cast<tide_keyed *>(bytes + items_bytes(n));
  uint32_t *counts = reinterpret_cast<uint32_t *>(bytes + 2 * items_bytes(n));
  const int64_t tiles = tiles_of(n);
  for (int shift = 0; shift < 64 && limit >> shift; shift += 8) {
    TIDE_CUDA_LAUNCH(call, count_kernel, (unsigned)tiles, THREADS, 0, from, n, shift, counts);
    TIDE_CUDA_LAUNCH(call, scan_kernel, 1, SCAN, 0, counts, tiles * DIGITS);
    TIDE_CUDA_LAUNCH(call, move_kernel, (unsigned)tiles, THREADS, 0, from, n, shift, counts, to);
    tide_keyed *other = from;
    from = to, to = other;
  }
  return from;
}
