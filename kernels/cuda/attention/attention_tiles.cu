/* What documents and positions each tile of a call's tokens spans: attention_tiles.cuh.
 *
 * A warp a tile. Indices that all batches share are read once.
 */
#include "kernels/cuda/attention/attention_tiles.cuh"

namespace {

enum { THREADS = 128 };

template <bool KEYS>
__global__ void extent_kernel(tide_attend p, tide_extent *to, int64_t batch, int64_t tiles,
                              int width)
{
  int64_t at = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / 32, n = KEYS ? p.tk : p.tq;
  if (at >= batch * tiles) return;
  int64_t t0 = at % tiles * width;
  tide_extent x = tide_extent_of<KEYS>(p, at / tiles, t0, t0 + width < n ? t0 + width : n);
  if ((threadIdx.x & 31) == 0) to[at] = x;
}

}  // namespace

tide_tiles tide_tiles_of(const k_call *call, const tide_attend &p, bool keys, int width,
                         void *scratch)
{
  if (!p.q_index) return {nullptr, 0};
  int64_t n = keys ? p.tk : p.tq, tiles = (n + width - 1) / width;
  int64_t batch = (keys ? p.ki : p.qi)[0] == 0 ? 1 : p.batch;
  tide_extent *to = static_cast<tide_extent *>(scratch);
  unsigned blocks = (unsigned)((batch * tiles * 32 + THREADS - 1) / THREADS);
  if (blocks > 0 && keys)
    TIDE_CUDA_LAUNCH(call, extent_kernel<true>, blocks, THREADS, 0, p, to, batch, tiles, width);
  else if (blocks > 0)
    TIDE_CUDA_LAUNCH(call, extent_kernel<false>, blocks, THREADS, 0, p, to, batch, tiles, width);
  return {to, batch == 1 ? 0 : tiles};
}
