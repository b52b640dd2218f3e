/* The tiles that a block of attention passes by, for spec/cuda/walk_case.lua: tide_walk over the
 * indices of one batch. Spec only.
 */
#include "kernels/cuda/attention/attention_tiles.cuh"

#include <vector>

namespace {

enum { COLS = 64 };

/* A warp. of: room for the extents of the other side. */
template <bool KEYS>
void walk_kernel(tide_attend p, int t0, int rows, tide_extent *of, int *steps)
{
  int64_t n = KEYS ? p.tq : p.tk;
  for (int64_t t = 0; p.q_index && t < n; t += COLS)
    of[t / COLS] = tide_extent_of<!KEYS>(p, 0, t, t + COLS < n ? t + COLS : n);
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

}  // namespace

/* q_index, k_index: [tq, 2] and [tk, 2], or null. mask: causal, window_left, window_right, q_start.
 * steps receives pairs of a tile's first token and whether it is whole, the last with -1. */
extern "C" __attribute__((visibility("default")))
void tide_emulate_walk(const int32_t *q_index, const int32_t *k_index, const int *mask, int tq,
                       int tk, int keys, int t0, int rows, int *steps)
{
  tide_attend p = {};
  p.q_index = q_index, p.k_index = k_index;
  p.qi[1] = p.ki[1] = 2, p.qi[2] = p.ki[2] = 1;
  p.batch = p.head = p.group = 1, p.tq = tq, p.tk = tk;
  p.causal = mask[0], p.window_left = mask[1], p.window_right = mask[2], p.q_start = mask[3];
  std::vector<tide_extent> of((size_t)(tq > tk ? tq : tk) / COLS + 1);
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  tide_emulate_launch_with(stream, {"walk_kernel", nullptr}, 1, 32, 0,
                           keys ? walk_kernel<true> : walk_kernel<false>, p, t0, rows, of.data(),
                           steps);
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}
