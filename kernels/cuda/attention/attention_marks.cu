/* What the backward of attention needs of each query, once a call: lse and delta (tide_mark).
 *
 * Rows of 16-bit numbers at multiples of 16 bytes: as many lanes a row as it has pieces of 16
 * bytes, several rows a warp, heads before tokens as they lie in memory. Others: a warp a row.
 */
#include "kernels/cuda/attention/attention.cuh"

namespace {

enum { THREADS = 256 };

struct query { int64_t b, h, i; };
TIDE_DEVICE query query_of(const tide_attend &p, int64_t n)
{
  if (p.batch * p.tq * p.head <= UINT32_MAX) { /* divides in a fifth of the time */
    uint32_t i = (uint32_t)n, head = (uint32_t)p.head, tq = (uint32_t)p.tq;
    return {i / head / tq, i % head, i / head % tq};
  }
  return {n / p.head / p.tq, n % p.head, n / p.head % p.tq};
}

template <class T>
TIDE_DEVICE void put_mark(const tide_attend &p, const tide_attention_back &g, const query &q, T dot,
                          T unit)
{
  const int64_t *ls = g.lse_stride, *ds = g.dlse_stride;
  T lse = tide_at<T>(g.lse, q.b * ls[0] + q.h * ls[1] + q.i * ls[2]);
  if (g.dlse.data) dot -= tide_at<T>(g.dlse, q.b * ds[0] + q.h * ds[1] + q.i * ds[2]);
  lse = lse == (T)-INFINITY ? (T)INFINITY : lse * unit;
  static_cast<tide_mark<T> *>(g.marks)[tide_mark_at(p, q.b, q.h, q.i)] = {lse, dot};
}

template <class T>
__global__ void __launch_bounds__(THREADS)
row_kernel(tide_attend p, tide_attention_back g, T unit)
{
  int64_t n = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / 32;
  if (n >= p.batch * p.tq * p.head) return;
  query q = query_of(p, n);
  int64_t x = tide_head_at(g.dout, q.b, q.i, q.h), y = tide_head_at(g.out, q.b, q.i, q.h);
  T dot = 0;
  for (int64_t d = threadIdx.x & 31; d < p.dv; d += 32)
    dot += tide_load<T>(g.dout.data, x + d, g.dout.dtype)
      * tide_load<T>(g.out.data, y + d, g.out.dtype);
  dot = tide_warp_fold(dot, tide_plus());
  if ((threadIdx.x & 31) == 0) put_mark(p, g, q, dot, unit);
}

template <bool F16> TIDE_DEVICE float half_of(uint32_t bits)
{
  if (!F16) return __uint_as_float(bits << 16);
  __half h;
  uint16_t low = (uint16_t)bits;
  memcpy(&h, &low, 2);
  return __half2float(h);
}
template <bool F16> TIDE_DEVICE float dot_of(uint32_t x, uint32_t y)
{
  return half_of<F16>(x & 0xffffu) * half_of<F16>(y & 0xffffu)
    + half_of<F16>(x >> 16) * half_of<F16>(y >> 16);
}

/* lanes: of a row, a power of two to 32, at least dv / 8. */
template <bool F16>
__global__ void __launch_bounds__(THREADS)
piece_kernel(tide_attend p, tide_attention_back g, float unit, int lanes)
{
  int64_t n = (blockIdx.x * (int64_t)THREADS + threadIdx.x) / lanes;
  int c = (int)threadIdx.x % lanes * 8;
  bool in = n < p.batch * p.tq * p.head;
  query q = query_of(p, in ? n : 0);
  float dot = 0;
  if (in && c < p.dv) {
    const uint16_t *from[2] = {static_cast<const uint16_t *>(g.dout.data) + c,
                               static_cast<const uint16_t *>(g.out.data) + c};
    uint4 x = *reinterpret_cast<const uint4 *>(from[0] + tide_head_at(g.dout, q.b, q.i, q.h));
    uint4 y = *reinterpret_cast<const uint4 *>(from[1] + tide_head_at(g.out, q.b, q.i, q.h));
    dot = dot_of<F16>(x.x, y.x) + dot_of<F16>(x.y, y.y) + dot_of<F16>(x.z, y.z)
      + dot_of<F16>(x.w, y.w);
  }
  for (int far = lanes / 2; far > 0; far /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, far);
  if (in && c == 0) put_mark(p, g, q, dot, unit);
}

bool in_pieces(const tide_attend &p, const tide_heads &x)
{
  return (x.dtype == TIDE_BF16 || x.dtype == TIDE_F16) && p.dv % 8 == 0 && p.dv <= 256
    && x.b % 8 == 0 && x.t % 8 == 0 && x.h % 8 == 0 && (uintptr_t)x.data % 16 == 0;
}

unsigned blocks(const tide_attend &p, int lanes)
{
  return (unsigned)((p.batch * p.tq * p.head * lanes + THREADS - 1) / THREADS);
}

}  // namespace

template <>
void tide_attention_marks<double>(const k_call *call, const tide_attend &p,
                                  const tide_attention_back &g, double unit)
{
  TIDE_CUDA_LAUNCH(call, row_kernel<double>, blocks(p, 32), THREADS, 0, p, g, unit);
}

template <>
void tide_attention_marks<float>(const k_call *call, const tide_attend &p,
                                 const tide_attention_back &g, float unit)
{
  bool pieces = g.dout.dtype == g.out.dtype && in_pieces(p, g.dout) && in_pieces(p, g.out);
  int lanes = 1;
  while (lanes * 8 < p.dv) lanes *= 2;
  if (!pieces)
    TIDE_CUDA_LAUNCH(call, row_kernel<float>, blocks(p, 32), THREADS, 0, p, g, unit);
  else if (g.dout.dtype == TIDE_F16)
    TIDE_CUDA_LAUNCH(call, piece_kernel<true>, blocks(p, lanes), THREADS, 0, p, g, unit, lanes);
  else
    TIDE_CUDA_LAUNCH(call, piece_kernel<false>, blocks(p, lanes), THREADS, 0, p, g, unit, lanes);
}
