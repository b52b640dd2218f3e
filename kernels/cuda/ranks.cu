/* What a communicator between contexts on one GPU asks of it: copies, and reductions over ranks.
 *
 * As kernels/reduce_ranks.h, whose order (ranks 0 to n - 1) and rounding these are
 * bit for bit: one thread folds an element over all sources and writes it to every destination.
 */
#include "kernels/cuda/backend.cuh"

extern "C" {
#include "kernels/reduce_ranks.h"
}

static inline cudaStream_t tide_cuda_stream(cudaStream_t stream) { return stream; }

namespace {

enum { MOST = TIDE__DEVICE_RANKS };

struct lists {
  const void *src[MOST];
  void *dst[MOST];
  int nsrc, ndst;
};

/* NaN on either side wins: a if a is NaN, else b unless a is strictly ahead. */
template <class T> TIDE_DEVICE T fold(T a, T b, int op)
{
  switch (op) {
    case K_RANKS_PROD: return a * b;
    case K_RANKS_MIN: return a != a ? a : a < b ? a : b;
    case K_RANKS_MAX: return a != a ? a : a > b ? a : b;
    default: return a + b;
  }
}
/* Combines two integers; sums and products wrap. */
template <> TIDE_DEVICE int64_t fold<int64_t>(int64_t a, int64_t b, int op)
{
  switch (op) {
    case K_RANKS_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case K_RANKS_MIN: return a < b ? a : b;
    case K_RANKS_MAX: return a > b ? a : b;
    default: return (int64_t)((uint64_t)a + (uint64_t)b);
  }
}

template <class T> __global__ void reduce_kernel(lists l, int64_t n, int dtype, int op)
{
  TIDE_GRID_LOOP(i, n) {
    T v = tide_load<T>(l.src[0], i, dtype);
    for (int q = 1; q < l.nsrc; q++) v = fold<T>(v, tide_load<T>(l.src[q], i, dtype), op);
    if (op == K_RANKS_MEAN) v = v / (T)l.nsrc;
    for (int d = 0; d < l.ndst; d++) tide_store<T>(l.dst[d], i, dtype, v);
  }
}

}  // namespace

int tide_cuda_rank_copy(void *p, void *stream, void *dst, const void *src, size_t size)
{
  tide_cuda_state *s = tide_cuda_state_of(p);
  tide_cuda_guard g(s->device);
  if (size == 0 || dst == src) return TIDE_OK;
  return tide_cuda_status(s, cudaMemcpyAsync(dst, src, size, cudaMemcpyDeviceToDevice,
                                             static_cast<cudaStream_t>(stream)));
}

int tide_cuda_rank_reduce(void *p, void *stream, void *const *dst, int ndst, const void *const *src,
                          int nsrc, int64_t n, int dtype, int op)
{
  tide_cuda_state *s = tide_cuda_state_of(p);
  tide_cuda_guard g(s->device);
  cudaStream_t on = static_cast<cudaStream_t>(stream);
  lists l = {};
  l.nsrc = nsrc, l.ndst = ndst;
  for (int q = 0; q < nsrc; q++) l.src[q] = src[q];
  for (int d = 0; d < ndst; d++) l.dst[d] = dst[d];
  if (n == 0) return TIDE_OK;
  if (dtype == TIDE_BOOL) op = op == K_RANKS_PROD ? K_RANKS_MIN : op;
  int grid = tide_cuda_grid(n);
  if (dtype == TIDE_F64)
    TIDE_CUDA_LAUNCH(on, reduce_kernel<double>, grid, TIDE_CUDA_BLOCK, 0, l, n, dtype, op);
  else if (1 << dtype & K_FLOAT)
    TIDE_CUDA_LAUNCH(on, reduce_kernel<float>, grid, TIDE_CUDA_BLOCK, 0, l, n, dtype, op);
  else
    TIDE_CUDA_LAUNCH(on, reduce_kernel<int64_t>, grid, TIDE_CUDA_BLOCK, 0, l, n, dtype, op);
  return tide_cuda_status(s, cudaGetLastError());
}
