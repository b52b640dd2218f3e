/* Rows in registers: how the norms hand rows to threads.
 *
 * `lanes` threads share a row of packs of N elements: thread `lane` has packs lane, lane + lanes
 * and so on, EACH of them, read once. EACH = 0: the row is too long for registers, or does not lie
 * in packs (N = 1), and is read again for each pass.
 */
#pragma once

#include <type_traits>

#include "kernels/cuda/pack.cuh"

struct tide_row_plan {
  int lanes, threads; /* of a row, of a block: a divisor of a warp in 256, or all of the block */
  int each;
  bool wide;          /* packs of 16 bytes */
  int rows() const { return threads / lanes; }
};

/* Returns the plan for rows of dim elements of `size` bytes. walks: a group of threads goes down
 * many rows and sums columns, which needs registers, so a thread has few packs; else short rows
 * have a warp each, without barriers. most: packs that a thread holds at most. */
static inline tide_row_plan tide_plan_rows(int64_t dim, int size, bool aligned, bool walks,
                                           int most)
{
  const int few = walks ? 512 : 256, warp = walks ? 32 : 32 * most;
  const int n = 16 / size;
  const bool wide = aligned && dim % n == 0;
  const int64_t packs = wide ? dim / n : dim;
  int each = 1;
  if (packs <= warp)
    while (32 * each < packs) each *= 2;
  else
    while ((each == 1 ? few : 512 * each) < packs && each <= most) each *= 2;
  int64_t lanes = (packs + each - 1) / each;
  if (!wide || each > most || size == 8) each = 0, lanes = packs < 512 ? packs : 512;
  int power = 1;
  while (power < lanes && power < 32) power *= 2;
  if (lanes <= 32) return {power, 256, each, wide};
  const int whole = (int)((lanes + 31) / 32 * 32);
  return {whole, whole, each, wide};
}

/* Calls launch(N, EACH) with integral constants. MOST: as above. */
template <class E, int MOST, class L> void tide_by_plan(const tide_row_plan &p, L launch)
{
  constexpr int W = tide_wide<E>;
  using std::integral_constant;
  if (!p.wide) return launch(integral_constant<int, 1>(), integral_constant<int, 0>());
  if constexpr (sizeof(E) < 8) {
    if (p.each == 1) return launch(integral_constant<int, W>(), integral_constant<int, 1>());
    if (p.each == 2) return launch(integral_constant<int, W>(), integral_constant<int, 2>());
    if constexpr (MOST == 4)
      if (p.each == 4) return launch(integral_constant<int, W>(), integral_constant<int, 4>());
  }
  launch(integral_constant<int, W>(), integral_constant<int, 0>());
}

/* A thread's share of a row. */
struct tide_share {
  int lane, lanes;
  int64_t packs; /* of the row; 0: there is no such row */
};

TIDE_DEVICE int tide_row_in_block(int lanes) { return (int)threadIdx.x / lanes; }

/* Calls body(k, pack) for the packs of a share. */
template <int EACH, class B> TIDE_DEVICE void tide_each_pack(const tide_share &s, B body)
{
  if constexpr (EACH > 0) {
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (s.lane + k * s.lanes < s.packs) body(k, (int64_t)(s.lane + k * s.lanes));
  } else {
    for (int64_t i = s.lane; i < s.packs; i += s.lanes) body(0, i);
  }
}

/* A row as a thread holds it. */
template <class E, int N, int EACH> struct tide_row {
  const E *from;
  tide_pack<E, N> held[EACH > 0 ? EACH : 1];
  TIDE_DEVICE void read(const E *row, const tide_share &s)
  {
    from = row;
    if constexpr (EACH > 0)
      if (row)
        tide_each_pack<EACH>(s, [&](int k, int64_t i) {
          held[k] = tide_pack_from<N>(row + i * N);
        });
  }
  TIDE_DEVICE tide_pack<E, N> pack(int k, int64_t i) const
  {
    if constexpr (EACH > 0) return held[k];
    else return tide_pack_from<N>(from + i * N);
  }
  TIDE_DEVICE tide_values<tide_real<E>, N> at(int k, int64_t i) const
  {
    return tide_up(pack(k, i));
  }
};

/* Sums K numbers over the threads of a row, in a fixed order; all of them get the sums. Every
 * thread of the block calls it. */
template <int K, class T> TIDE_DEVICE_LONG void tide_row_sum(T (&v)[K], int lanes)
{
  for (int by = (lanes < 32 ? lanes : 32) >> 1; by > 0; by >>= 1)
#pragma unroll
    for (int k = 0; k < K; k++) v[k] += __shfl_xor_sync(0xffffffffu, v[k], by);
  if (lanes <= 32) return;
  __shared__ T part[K][32];
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  __syncthreads(); /* the sum before this one has been read */
  if (lane == 0)
#pragma unroll
    for (int k = 0; k < K; k++) part[k][warp] = v[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; k++)
    v[k] = tide_warp_fold(lane < lanes >> 5 ? part[k][lane] : (T)0, tide_plus());
}

/* ---- sums down the columns ------------------------------------------------------------------- */

/* A kernel that sums `columns` numbers a thread on its way has registers for so many threads an SM;
 * it is launched with TIDE_COLUMN_BOUNDS. */
constexpr int tide_column_threads(int columns) { return columns <= 8 ? 1024 : 512; }
#define TIDE_COLUMN_BOUNDS(columns) __launch_bounds__(512, tide_column_threads(columns) / 512)

/* Returns the number of groups of `lanes` threads that walk over n rows, each over a stretch of its
 * own, and of the sums of columns that they leave: as many as fill an H100 once, whatever the chip,
 * so that results are the same on all. A sum is of 16 rows at least. */
static inline int64_t tide_column_parts(int64_t n, int lanes, int columns)
{
  const int64_t most = 132 * tide_column_threads(columns) / lanes, parts = (n + 15) / 16;
  return parts < 1 ? 1 : parts < most ? parts : most;
}

/* Where rows are not held in registers, blocks of TIDE_WIDTH columns have a kernel of their own. */
enum { TIDE_WIDTH = 128 };
static inline dim3 tide_column_grid(int64_t dim, int64_t parts)
{
  return dim3((unsigned)((dim + TIDE_WIDTH - 1) / TIDE_WIDTH), (unsigned)parts);
}

enum { TIDE_COLUMNS = 32, TIDE_COLUMN_WARPS = 16 };

/* to[d] = the sum over parts of part[p * step + d], in a fixed order, for d < dim. A block has
 * TIDE_COLUMNS columns; its warps share the parts. */
template <class E>
__global__ void __launch_bounds__(TIDE_COLUMNS * TIDE_COLUMN_WARPS)
tide_columns_kernel(int64_t dim, int64_t parts, int64_t step, const tide_real<E> *part, E *to)
{
  using T = tide_real<E>;
  __shared__ T sums[TIDE_COLUMN_WARPS][TIDE_COLUMNS];
  const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  const int64_t d = blockIdx.x * (int64_t)TIDE_COLUMNS + lane;
  T sum = 0;
  if (d < dim)
#pragma unroll 8
    for (int64_t p = warp; p < parts; p += TIDE_COLUMN_WARPS) sum += part[p * step + d];
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || d >= dim) return;
  for (int w = 1; w < TIDE_COLUMN_WARPS; w++) sum += sums[w][lane];
  tide_down(to + d, sum);
}

template <class E>
void tide_sum_columns(const k_call *call, int64_t dim, int64_t parts, int64_t step,
                      const tide_real<E> *part, E *to)
{
  const unsigned blocks = (unsigned)((dim + TIDE_COLUMNS - 1) / TIDE_COLUMNS);
  if (dim > 0)
    TIDE_CUDA_LAUNCH(call, tide_columns_kernel<E>, blocks, TIDE_COLUMNS * TIDE_COLUMN_WARPS, 0, dim,
                     parts, step, part, to);
}
