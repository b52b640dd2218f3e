/* Groups of rows on the GPU: group_rows, which sorts them, grouped_linear, its gradient of w, and
 * that gradient added.
 *
 * How many rows a group has lies on the device, and no step asks the host. cuBLASLt takes such
 * sizes from the host alone, so the tiles are here: 16-bit operands go through tensor cores
 * (mma.cuh) in stages of shared memory that are filled ahead, f32 and f64 through plain
 * multiply-adds, in f32 whatever matmul_precision allows. A first small kernel cuts the rows into
 * tiles of one group each; the grid is the most tiles that the rows can give, and those beyond the
 * last end at once. The gradient of w gives each group the tiles of its weight, which walk along
 * the group's rows: no atomics, one order of every sum.
 *
 * Offsets that do not fit are reported (tide_report); their rows count as in no group. Meaning:
 * kernels/ref/grouped.c.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/sort.cuh"

namespace {

constexpr int BM = 64, BN = 128, BK = 32, STAGES = 3, THREADS = 128, PAD = 8, SCAN = 256;
constexpr int PLAIN_BN = 64, PLAIN_BK = 16, PLAIN_THREADS = 256;

/* Rows of one group, or of none. */
struct row_tile { int64_t first; int32_t rows, group; };

struct offsets_of {
  tide_array data;
  int64_t stride, groups, rows;
  tide_reporter reporter;
};

TIDE_DEVICE int64_t offset_at(const offsets_of &o, int64_t g)
{
  return tide_at<int64_t>(o.data, g * o.stride);
}

/* Returns whether every offset is in its place; reports the first wrong one that a thread finds.
 * Whole blocks call it. */
TIDE_DEVICE bool offsets_fit(const offsets_of &o)
{
  int bad = 0;
  TIDE_LANE_LOOP(g, o.groups + 1) {
    int64_t v = offset_at(o, g), before = g ? offset_at(o, g - 1) : 0;
    if (v >= before && v <= o.rows) continue;
    if (!bad) tide_report(o.reporter, v, g);
    bad = 1;
  }
  return tide_block_fold(bad, tide_plus(), 0) == 0;
}

/* Lists the tiles of groups [from, from + count), counted from `from`: of the rows before all
 * groups (with the first), of each group, of the rows behind (with the last); the rest of the list
 * has no rows. One block of SCAN threads. */
__global__ void tiles_kernel(offsets_of o, int64_t from, int64_t count, row_tile *tile,
                             int64_t ntile)
{
  __shared__ int64_t sum[SCAN];
  bool fit = offsets_fit(o), is_last = from + count == o.groups;
  int64_t parts = fit ? from + count + 1 + is_last : 1, done = 0;
  for (int64_t p0 = from ? from + 1 : 0; p0 < parts; p0 += SCAN) {
    int64_t p = p0 + threadIdx.x, begin = 0, end = 0;
    if (p < parts) {
      begin = p == 0 ? 0 : offset_at(o, p - 1);
      end = !fit || p == o.groups + 1 ? o.rows : offset_at(o, p);
    }
    int64_t mine = (end - begin + BM - 1) / BM;
    sum[threadIdx.x] = mine;
    __syncthreads();
    for (int by = 1; by < SCAN; by *= 2) {
      int64_t before = (int)threadIdx.x >= by ? sum[threadIdx.x - by] : 0;
      __syncthreads();
      sum[threadIdx.x] += before;
      __syncthreads();
    }
    int group = fit && p > 0 && p <= o.groups ? (int)(p - 1 - from) : -1;
    int64_t at = done + sum[threadIdx.x] - mine;
    for (int64_t r = begin; r < end; r += BM, at++)
      tile[at] = {r, (int32_t)(end - r < BM ? end - r : BM), group};
    done += sum[SCAN - 1];
    __syncthreads();
  }
  for (int64_t i = done + threadIdx.x; i < ntile; i += SCAN) tile[i] = {0, 0, -1};
}

/* ---- the operands of a block ----------------------------------------------------------------- */

/* A matrix of [outer, k] elements: the strides of both, whether chunks of 8 neighbours may be
 * copied at once. */
struct side {
  tide_array data;
  int64_t outer, along; /* strides */
  bool quick;
};

struct grouped_args {
  offsets_of offsets;
  const row_tile *tile;   /* null: the rows are summed over */
  side a, b;
  tide_array y;
  int64_t m, n, k;        /* of a group; the one that the offsets say is not used */
  int64_t b_group, y_row, y_group;
  bool add, paired;       /* pairs of new 16-bit results lie on 4 bytes */
};

/* The product of one block: where it begins in each operand, and how much of it is there. */
struct piece {
  int64_t a, b, y;        /* offsets of element (0, 0) of the operands' own matrices */
  int64_t row, col, m, n, k;
};

/* Returns false where the block has no elements to write. */
TIDE_DEVICE bool piece_of(const grouped_args &p, int bn, piece *o)
{
  if (p.tile) {
    row_tile t = p.tile[blockIdx.x];
    *o = {t.first * p.a.outer, t.group * p.b_group, t.first * p.y_row, 0, (int64_t)blockIdx.y * bn,
          t.rows, p.n, t.group < 0 ? 0 : p.k};
    if (t.group < 0) o->b = 0;
    return t.rows > 0;
  }
  int64_t across = (p.n + bn - 1) / bn, down = (p.m + BM - 1) / BM, i = blockIdx.x;
  int64_t g = i / (across * down), begin = offset_at(p.offsets, g),
          end = offset_at(p.offsets, g + 1);
  if (begin < 0 || end < begin || end > p.offsets.rows) {
    bool low = begin < 0;
    if (threadIdx.x == 0) tide_report(p.offsets.reporter, low ? begin : end, low ? g : g + 1);
    begin = end = 0;
  }
  *o = {begin * p.a.along, begin * p.b.along, g * p.y_group, i / across % down * BM,
        i % across * bn, p.m, p.n, end - begin};
  return true;
}

/* ---- tensor cores ---------------------------------------------------------------------------- */

/* A tile of R elements of the outer dim by BK of k in shared memory, as [R][BK], or turned, where
 * neighbours in memory are along the outer dim, as [BK][R]. */
template <int R, bool TURNED> struct tile_of {
  static constexpr int LD = (TURNED ? R : BK) + PAD, SIZE = (TURNED ? BK : R) * LD;
};

/* Fills a tile from element `at` of s on: outer and k are how many elements are there. */
template <int R, bool TURNED>
TIDE_DEVICE void fill(uint16_t *to, const side &s, int64_t at, int64_t outer, int64_t k)
{
  constexpr int FAST = TURNED ? R : BK, CHUNKS = FAST / 8, SLOW = TURNED ? BK : R;
  const uint16_t *from = static_cast<const uint16_t *>(s.data.data) + at;
  int64_t fast = TURNED ? outer : k, slow = TURNED ? k : outer;
  int64_t step = TURNED ? s.along : s.outer, next = TURNED ? s.outer : s.along;
#pragma unroll
  for (int i = (int)threadIdx.x; i < SLOW * CHUNKS; i += THREADS) {
    int r = i / CHUNKS, c = i % CHUNKS * 8;
    uint16_t *cell = to + r * tile_of<R, TURNED>::LD + c;
    bool some = r < slow && c < fast;
    if (s.quick && (!some || c + 8 <= fast)) {
      tide_copy16(cell, some ? from + r * step + c : s.data.data, some);
      continue;
    }
    for (int e = 0; e < 8; e++)
      cell[e] = r < slow && c + e < fast ? from[r * step + (c + e) * next] : (uint16_t)0;
  }
}

/* Reads the fragments of 16 rows from `row` on, and of 16 columns, at k. */
template <int R, bool TURNED>
TIDE_DEVICE void load_a(uint32_t *a, const uint16_t *t, int row, int k)
{
  constexpr int LD = tile_of<R, TURNED>::LD;
  int l = (int)threadIdx.x & 31;
  if (TURNED) tide_ldmatrix<true>(a, t + (k + l % 8 + l / 16 * 8) * LD + row + l / 8 % 2 * 8);
  else tide_ldmatrix<false>(a, t + (row + l % 16) * LD + k + l / 16 * 8);
}
template <int R, bool TURNED>
TIDE_DEVICE void load_b(uint32_t *b, const uint16_t *t, int col, int k)
{
  constexpr int LD = tile_of<R, TURNED>::LD;
  int l = (int)threadIdx.x & 31;
  if (TURNED) tide_ldmatrix<true>(b, t + (k + l % 16) * LD + col + l / 16 * 8);
  else tide_ldmatrix<false>(b, t + (col + l % 8 + l / 16 * 8) * LD + k + l / 8 % 2 * 8);
}

/* Writes a sum to an f32 result, or to one of the operands' 16 bits. */
template <bool F16> TIDE_DEVICE void put(const grouped_args &p, int64_t at, float v)
{
  if (p.y.dtype == TIDE_F32) {
    float *to = static_cast<float *>(p.y.data) + at;
    *to = p.add ? v + *to : v;
  } else if (F16) {
    __half *to = static_cast<__half *>(p.y.data) + at;
    *to = __float2half(p.add ? v + __half2float(*to) : v);
  } else {
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(p.y.data) + at;
    *to = __float2bfloat16(p.add ? v + __bfloat162float(*to) : v);
  }
}

/* Writes the sums of row r and columns x, x + 1 of the result. */
template <bool F16>
TIDE_DEVICE void put_pair(const grouped_args &p, const piece &o, int64_t r, int64_t x, float u,
                          float v)
{
  if (r >= o.m || x >= o.n) return;
  int64_t to = o.y + r * p.y_row + x;
  if (p.paired && x + 1 < o.n) {
    static_cast<uint32_t *>(p.y.data)[to / 2] = tide_pack<F16>(u, v);
    return;
  }
  put<F16>(p, to, u);
  if (x + 1 < o.n) put<F16>(p, to + 1, v);
}

/* Four warps, two by two: each has 32 rows and 64 columns of the block's tile. */
template <bool F16, bool A_TURNED, bool B_TURNED>
__global__ void __launch_bounds__(THREADS) grouped_mma_kernel(grouped_args p)
{
  typedef tile_of<BM, A_TURNED> a_tile;
  typedef tile_of<BN, B_TURNED> b_tile;
  TIDE_DYNAMIC_SHARED(shared);
  uint16_t *a_all = reinterpret_cast<uint16_t *>(shared), *b_all = a_all + STAGES * a_tile::SIZE;
  piece o;
  if (!piece_of(p, BN, &o)) return;
  int warp = (int)threadIdx.x / 32, row = warp / 2 * 32, col = warp % 2 * 64;
  float c[2][8][4] = {};
  int64_t a0 = o.a + o.row * p.a.outer, b0 = o.b + o.col * p.b.outer;
  int steps = (int)((o.k + BK - 1) / BK);
  auto fetch = [&](int step) {
    if (step < steps) {
      int64_t k = (int64_t)step * BK;
      fill<BM, A_TURNED>(a_all + step % STAGES * a_tile::SIZE, p.a, a0 + k * p.a.along,
                         o.m - o.row, o.k - k);
      fill<BN, B_TURNED>(b_all + step % STAGES * b_tile::SIZE, p.b, b0 + k * p.b.along,
                         o.n - o.col, o.k - k);
    }
    tide_copy_commit();
  };
  for (int s = 0; s < STAGES - 1; s++) fetch(s);
  for (int step = 0; step < steps; step++) {
    tide_copy_wait<STAGES - 2>();
    __syncthreads();
    fetch(step + STAGES - 1);
    const uint16_t *at = a_all + step % STAGES * a_tile::SIZE;
    const uint16_t *bt = b_all + step % STAGES * b_tile::SIZE;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      uint32_t a[2][4], b[4];
#pragma unroll
      for (int i = 0; i < 2; i++) load_a<BM, A_TURNED>(a[i], at, row + 16 * i, k);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        load_b<BN, B_TURNED>(b, bt, col + 8 * j, k);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          tide_mma<F16>(c[i][j], a[i], b[0], b[1]);
          tide_mma<F16>(c[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
  int l = (int)threadIdx.x & 31;
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
      for (int e = 0; e < 4; e += 2)
        put_pair<F16>(p, o, o.row + row + 16 * i + l / 4 + e / 2 * 8,
                      o.col + col + 8 * j + l % 4 * 2, c[i][j][e], c[i][j][e + 1]);
}

/* ---- f32 and f64 ----------------------------------------------------------------------------- */

/* 64 x 64 elements a block, 4 x 4 a thread, 16 apart. */
template <class T>
__global__ void __launch_bounds__(PLAIN_THREADS) grouped_plain_kernel(grouped_args p)
{
  __shared__ T a_tile[PLAIN_BK][BM + 1], b_tile[PLAIN_BK][PLAIN_BN + 1];
  piece o;
  if (!piece_of(p, PLAIN_BN, &o)) return;
  int r0 = (int)threadIdx.x / 16, c0 = (int)threadIdx.x % 16;
  T c[4][4] = {};
  const T *a = static_cast<const T *>(p.a.data.data) + o.a;
  const T *b = static_cast<const T *>(p.b.data.data) + o.b;
  for (int64_t k0 = 0; k0 < o.k; k0 += PLAIN_BK) {
    TIDE_LANE_LOOP(i, BM * PLAIN_BK) {
      bool fast = p.a.along == 1;
      int k = (int)(fast ? i % PLAIN_BK : i / BM), r = (int)(fast ? i / PLAIN_BK : i % BM);
      bool there = o.row + r < o.m && k0 + k < o.k;
      a_tile[k][r] = there ? a[(o.row + r) * p.a.outer + (k0 + k) * p.a.along] : (T)0;
    }
    TIDE_LANE_LOOP(i, PLAIN_BN * PLAIN_BK) {
      bool fast = p.b.along == 1;
      int k = (int)(fast ? i % PLAIN_BK : i / PLAIN_BN);
      int x = (int)(fast ? i / PLAIN_BK : i % PLAIN_BN);
      bool there = o.col + x < o.n && k0 + k < o.k;
      b_tile[k][x] = there ? b[(o.col + x) * p.b.outer + (k0 + k) * p.b.along] : (T)0;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PLAIN_BK; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) c[i][j] += a_tile[k][r0 + 16 * i] * b_tile[k][c0 + 16 * j];
    __syncthreads();
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      int64_t r = o.row + r0 + 16 * i, x = o.col + c0 + 16 * j;
      if (r >= o.m || x >= o.n) continue;
      T *to = static_cast<T *>(p.y.data) + o.y + r * p.y_row + x;
      *to = p.add ? c[i][j] + *to : c[i][j];
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* t as [outer, k] by two of its dims. A block begins anywhere along dim 0, of rows or groups. */
side side_of(const k_tensor &t, int outer, int along)
{
  side s = {tide_array_of(t), t.stride[outer], t.stride[along], false};
  int64_t step = s.along == 1 ? s.outer : s.along;
  s.quick = reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && step % 8 == 0 && t.stride[0] % 8 == 0
    && (s.along == 1 || s.outer == 1);
  return s;
}

offsets_of offsets_from(const k_call *call)
{
  const k_tensor &t = call->in[2];
  int64_t rows = call->in[0].shape[0];
  return {tide_array_of(t), t.stride[0], t.shape[0] - 1, rows,
          {tide_cuda_fault_of(call), TIDE_FAULT_OFFSET, call->op, rows, 0}};
}

template <bool F16, bool A_TURNED, bool B_TURNED>
void launch_one(const k_call *call, const grouped_args &p, dim3 grid)
{
  constexpr int bytes = STAGES * 2 * (tile_of<BM, A_TURNED>::SIZE + tile_of<BN, B_TURNED>::SIZE);
  static_assert(bytes <= 48 << 10, "what every GPU gives a block unasked");
  TIDE_CUDA_LAUNCH(call, (grouped_mma_kernel<F16, A_TURNED, B_TURNED>), grid, THREADS, bytes, p);
}

template <bool F16> void launch_mma(const k_call *call, const grouped_args &p, dim3 grid)
{
  bool a = p.a.along != 1, b = p.b.along != 1;
  if (a && b) launch_one<F16, true, true>(call, p, grid);
  else if (a) launch_one<F16, true, false>(call, p, grid);
  else if (b) launch_one<F16, false, true>(call, p, grid);
  else launch_one<F16, false, false>(call, p, grid);
}

/* blocks: of tiles of rows, or of groups with all rows of their weights. */
int launch(const k_call *call, grouped_args p, int64_t blocks)
{
  int dtype = p.a.data.dtype;
  p.paired = p.y.dtype == dtype && !p.add
    && reinterpret_cast<uintptr_t>(p.y.data) % 4 == 0 && p.y_row % 2 == 0 && p.y_group % 2 == 0;
  bool wide = dtype == TIDE_F32 || dtype == TIDE_F64;
  int64_t bn = wide ? PLAIN_BN : BN, across = (p.n + bn - 1) / bn;
  dim3 grid((unsigned)(p.tile ? blocks : blocks * across), (unsigned)(p.tile ? across : 1));
  if (grid.x == 0 || grid.y == 0) return TIDE_OK;
  if (dtype == TIDE_F64)
    TIDE_CUDA_LAUNCH(call, grouped_plain_kernel<double>, grid, PLAIN_THREADS, 0, p);
  else if (wide) TIDE_CUDA_LAUNCH(call, grouped_plain_kernel<float>, grid, PLAIN_THREADS, 0, p);
  else if (dtype == TIDE_F16) launch_mma<true>(call, p, grid);
  else launch_mma<false>(call, p, grid);
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- group_rows: a stable sort by group ------------------------------------------------------ */

__global__ void group_keys_kernel(tide_layout ids, tide_array from, int64_t groups,
                                  tide_keyed *items)
{
  TIDE_GRID_LOOP(i, ids.numel) {
    int64_t at;
    tide_offsets<1>(ids, i, &at);
    const int64_t g = tide_at<int64_t>(from, at);
    items[i] = {(uint64_t)(g >= 0 && g < groups ? g : groups), i};
  }
}

__global__ void group_slots_kernel(const tide_keyed *items, int64_t n, int64_t each, int64_t *rows,
                                   int64_t *place)
{
  TIDE_GRID_LOOP(slot, n) {
    rows[slot] = items[slot].at / each;
    place[items[slot].at] = slot;
  }
}

/* offsets[g] = the first slot whose group is g or more. */
__global__ void group_offsets_kernel(const tide_keyed *items, int64_t n, int64_t count,
                                     int64_t *offsets)
{
  TIDE_GRID_LOOP(g, count) {
    int64_t lo = 0, hi = n;
    while (lo < hi) {
      const int64_t mid = (lo + hi) / 2;
      if (items[mid].key < (uint64_t)g) lo = mid + 1;
      else hi = mid;
    }
    offsets[g] = lo;
  }
}

/* Tiles that the rows can give at most: each part has at most one that is not whole. */
int64_t most_tiles(const k_call *call)
{
  return call->in[0].shape[0] / BM + call->in[2].shape[0] + 1;
}

int outer(const k_call *call, bool add)
{
  const k_tensor &a = call->in[0], &b = call->in[1], &y = call->out[0];
  grouped_args p = {};
  p.offsets = offsets_from(call);
  p.a = side_of(a, 1, 0), p.b = side_of(b, 1, 0), p.y = tide_array_of(y);
  p.m = y.shape[1], p.n = y.shape[2];
  p.y_row = y.stride[1], p.y_group = y.stride[0], p.add = add;
  return launch(call, p, y.shape[0] * ((p.m + BM - 1) / BM));
}

}  // namespace

int64_t k_cuda_group_rows_work(const k_call *call)
{
  const int64_t n = k_numel(&call->in[0]);
  return n > 0 ? tide_sort_work(n) : 0;
}

int k_cuda_group_rows(const k_call *call)
{
  const k_tensor &ids = call->in[0], *from = &ids;
  const int64_t n = k_numel(&ids), count = call->out[2].shape[0];
  const int64_t each = ids.ndim == 2 ? ids.shape[1] : 1;
  int64_t *rows = static_cast<int64_t *>(call->out[0].data);
  int64_t *place = static_cast<int64_t *>(call->out[1].data);
  int64_t *offsets = static_cast<int64_t *>(call->out[2].data);
  const tide_keyed *items = nullptr;
  if (n > 0) {
    TIDE_LAUNCH(group_keys_kernel, n, call, tide_layout_of(1, &from), tide_array_of(ids), count - 1,
                static_cast<tide_keyed *>(call->work));
    items = tide_sort(call, call->work, n, (uint64_t)(count - 1));
    TIDE_LAUNCH(group_slots_kernel, n, call, items, n, each, rows, place);
  }
  TIDE_LAUNCH(group_offsets_kernel, count, call, items, n, count, offsets);
  return TIDE_CUDA_LAUNCHED(call);
}

int64_t k_cuda_grouped_linear_work(const k_call *call)
{
  return most_tiles(call) * (int64_t)sizeof(row_tile);
}

/* Computes grouped_linear of the groups from `from` on that w has weights of; rows of others stay
 * as they are. */
int tide_cuda_grouped_from(const k_call *call, int64_t from)
{
  const k_tensor &x = call->in[0], &w = call->in[1], &y = call->out[0];
  int64_t ntile = most_tiles(call);
  row_tile *tile = static_cast<row_tile *>(call->work);
  grouped_args p = {};
  p.offsets = offsets_from(call), p.tile = tile;
  p.a = side_of(x, 0, 1), p.b = side_of(w, 1, 2), p.y = tide_array_of(y);
  p.n = w.shape[1], p.k = x.shape[1], p.b_group = w.stride[0], p.y_row = y.stride[0];
  TIDE_CUDA_LAUNCH(call, tiles_kernel, 1, SCAN, 0, p.offsets, from, w.shape[0], tile, ntile);
  return launch(call, p, ntile);
}

int k_cuda_grouped_linear(const k_call *call) { return tide_cuda_grouped_from(call, 0); }

int k_cuda_grouped_linear_bwd(const k_call *call) { return outer(call, false); }
int k_cuda_grouped_addmm_(const k_call *call) { return outer(call, true); }
