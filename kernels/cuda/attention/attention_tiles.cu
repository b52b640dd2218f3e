/* attention_tiles, and attention's call for it: attention_tiles.cuh. A warp a tile.
 *
 * An index is read as that of an attention's keys.
 */
#include "kernels/cuda/attention/attention_tiles.cuh"

namespace {

enum { THREADS = 128 };

__global__ void extent_kernel(tide_attend p, tide_extent *to, int64_t batch, int64_t tiles)
{
  int64_t at = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / 32;
  if (at >= batch * tiles) return;
  int64_t t0 = at % tiles * K_TILE;
  tide_extent x = tide_extent_of<true>(p, at / tiles, t0, t0 + K_TILE < p.tk ? t0 + K_TILE : p.tk);
  if ((threadIdx.x & 31) == 0) to[at] = x;
}

int64_t tiles_of(const k_tensor &index) { return (index.shape[1] + K_TILE - 1) / K_TILE; }

/* Returns the number of different rows: one, where all of the batch share it. */
int64_t rows_of(const k_tensor &index)
{
  return index.shape[0] > 1 && index.stride[0] == 0 ? 1 : index.shape[0];
}

/* Writes what the tiles of the first `batch` rows span. */
void note(const k_call *call, const k_tensor &index, int64_t batch, tide_extent *to)
{
  tide_attend p = {};
  p.k_index = static_cast<const int32_t *>(index.data);
  p.batch = batch, p.tk = index.shape[1];
  for (int d = 0; d < 3; d++) p.ki[d] = index.stride[d];
  p.k_until = index.shape[2] > 2;
  int64_t tiles = tiles_of(index);
  unsigned blocks = (unsigned)((batch * tiles * 32 + THREADS - 1) / THREADS);
  if (blocks > 0) TIDE_CUDA_LAUNCH(call, extent_kernel, blocks, THREADS, 0, p, to, batch, tiles);
}

/* Returns whether the caller's tiles can be used. They are read 16 bytes at a time; for a view that
 * begins elsewhere new ones are made. */
bool is_made(const k_tensor &tiles)
{
  return !k_absent(&tiles) && (uintptr_t)tiles.data % sizeof(tide_extent) == 0;
}

}  // namespace

int64_t tide_tiles_bytes(const k_tensor &index, const k_tensor &made)
{
  if (k_absent(&index) || is_made(made)) return 0;
  return rows_of(index) * tiles_of(index) * (int64_t)sizeof(tide_extent);
}

tide_tiles tide_tiles_of(const k_call *call, const k_tensor &index, const k_tensor &made,
                         void *scratch)
{
  if (k_absent(&index)) return {nullptr, 0};
  if (is_made(made))
    return {static_cast<tide_extent *>(made.data), made.shape[0] == 1 ? 0 : made.shape[1]};
  tide_extent *to = static_cast<tide_extent *>(scratch);
  note(call, index, rows_of(index), to);
  return {to, rows_of(index) == 1 ? 0 : tiles_of(index)};
}

int k_cuda_attention_tiles(const k_call *call)
{
  note(call, call->in[0], call->in[0].shape[0], static_cast<tide_extent *>(call->out[0].data));
  return TIDE_CUDA_LAUNCHED(call);
}
