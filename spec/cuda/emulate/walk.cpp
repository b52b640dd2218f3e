/* The tiles that a block of attention passes by, for spec/cuda/walk_case.lua: tide_walk over the
 * indices of one batch. Spec only.
 */
#include "kernels/cuda/attention/attention_tiles.cuh"

#include <cstring>

namespace {

/* Memory that kernels and the host reach. */
struct pinned {
  void *at = nullptr;
  explicit pinned(size_t n, const void *from = nullptr)
  {
    cudaHostAlloc(&at, n ? n : 1, cudaHostAllocMapped);
    if (from) memcpy(at, from, n);
  }
  pinned(const pinned &) = delete;
  ~pinned() { cudaFreeHost(at); }
};

/* A warp. of: room for the extents of the other side. */
template <bool KEYS, int COLS>
void walk_kernel(tide_attend p, int t0, int rows, tide_extent *of, int *steps)
{
  int64_t n = KEYS ? p.tq : p.tk;
  for (int64_t t = 0; p.q_index && t < n; t += K_TILE)
    of[t / K_TILE] = tide_extent_of<!KEYS>(p, 0, t, t + K_TILE < n ? t + K_TILE : n);
  if (p.q_index) p.tiles = {of, 0};
  __syncwarp();
  tide_walk<KEYS, COLS> walk(p, 0, t0, rows);
  tide_step x;
  do {
    x = walk.next();
    if (threadIdx.x == 0) steps[0] = x.t, steps[1] = x.whole;
    steps += 2;
  } while (x.t >= 0);
}

typedef void (*walker)(tide_attend, int, int, tide_extent *, int *);
template <bool KEYS> walker walker_of(int cols)
{
  return cols == 32 ? walk_kernel<KEYS, 32> : cols == 64 ? walk_kernel<KEYS, 64>
                                                         : walk_kernel<KEYS, 128>;
}

}  // namespace

/* q_index, k_index: [tq, 2] and [tk, 2], or null. mask: causal, window_left, window_right, q_start.
 * cols: tokens of a tile, 32, 64 or 128. steps receives pairs of a tile's first token and whether
 * it is whole, the last with -1. */
extern "C" __attribute__((visibility("default")))
void tide_emulate_walk(const int32_t *q_index, const int32_t *k_index, const int *mask, int tq,
                       int tk, int cols, int keys, int t0, int rows, int *steps)
{
  size_t most = (size_t)(tq > tk ? tq : tk);
  pinned q(2 * tq * sizeof *q_index, q_index), k(2 * tk * sizeof *k_index, k_index);
  pinned of((most / K_TILE + 1) * sizeof(tide_extent)), to((most / 32 + 2) * 2 * sizeof *steps);
  tide_attend p = {};
  if (q_index) p.q_index = static_cast<int *>(q.at), p.k_index = static_cast<int *>(k.at);
  p.qi[1] = p.ki[1] = 2, p.qi[2] = p.ki[2] = 1;
  p.batch = p.head = p.group = 1, p.tq = tq, p.tk = tk;
  p.causal = mask[0], p.window_left = mask[1], p.window_right = mask[2], p.q_start = mask[3];
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  tide_emulate_launch_with(stream, {"walk_kernel", nullptr}, 1, 32, 0,
                           keys ? walker_of<true>(cols) : walker_of<false>(cols), p, t0, rows,
                           static_cast<tide_extent *>(of.at), static_cast<int *>(to.at));
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
  const int *from = static_cast<int *>(to.at);
  do {
    *steps++ = *from++, *steps++ = *from++;
  } while (from[-2] >= 0);
}
