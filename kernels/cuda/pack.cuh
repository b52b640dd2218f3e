/* Packs: neighbouring elements of one dtype that a thread loads and stores at once, 16 bytes where
 * the operands allow it.
 *
 * Kernels that memory limits are templates on the type in memory, E, so that nothing is branched on
 * between two loads. A thread loads several packs before it stores one: an SM needs some 32 KiB in
 * flight to keep the memory busy.
 */
#pragma once

#include <cstring>

#include "kernels/cuda/block.cuh"

/* ---- one element ----------------------------------------------------------------------------- */

/* real: the type in which elements of type E are reckoned. */
template <class E> struct tide_element { using real = float; };
template <> struct tide_element<double> { using real = double; };
template <> struct tide_element<int64_t> { using real = int64_t; };
template <class E> using tide_real = typename tide_element<E>::real;

TIDE_DEVICE float tide_up(float v) { return v; }
TIDE_DEVICE double tide_up(double v) { return v; }
TIDE_DEVICE int64_t tide_up(int64_t v) { return v; }
TIDE_DEVICE float tide_up(__nv_bfloat16 v) { return __bfloat162float(v); }
TIDE_DEVICE float tide_up(__half v) { return __half2float(v); }

/* Rounds to nearest; to uint8_t is to bool. */
TIDE_DEVICE void tide_down(float *to, float v) { *to = v; }
TIDE_DEVICE void tide_down(float *to, double v) { *to = (float)v; }
TIDE_DEVICE void tide_down(double *to, double v) { *to = v; }
TIDE_DEVICE void tide_down(int64_t *to, int64_t v) { *to = v; }
TIDE_DEVICE void tide_down(__nv_bfloat16 *to, float v) { *to = __float2bfloat16(v); }
TIDE_DEVICE void tide_down(__half *to, float v) { *to = __float2half(v); }
TIDE_DEVICE void tide_down(uint8_t *to, float v) { *to = v != 0; }

/* ---- packs ----------------------------------------------------------------------------------- */

template <class E, int N> struct alignas(N * sizeof(E) < 16 ? N * sizeof(E) : 16) tide_pack {
  E v[N];
};
/* Pairs of bf16 stay together in 32-bit words: apart they cost a register each. */
template <int N> struct alignas(2 * N < 16 ? 2 * N : 16) tide_pack<__nv_bfloat16, N> {
  uint32_t w[N / 2];
};
template <> struct tide_pack<__nv_bfloat16, 1> { __nv_bfloat16 v[1]; };
template <class T, int N> struct tide_values { T v[N]; };

/* Elements in 16 bytes. */
template <class E> constexpr int tide_wide = 16 / (int)sizeof(E);

template <int N, class E> TIDE_DEVICE tide_pack<E, N> tide_pack_from(const E *p)
{
  return *reinterpret_cast<const tide_pack<E, N> *>(p);
}
/* 16 bytes of global memory. In assembly, because the compiler splits a store of a struct where two
 * arrays are written; loads it leaves whole. */
TIDE_DEVICE void tide_store16(void *p, const uint4 &v)
{
#ifdef __CUDA_ARCH__
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
#else
  *static_cast<uint4 *>(p) = v;
#endif
}

template <int N, class E> TIDE_DEVICE void tide_pack_to(E *p, const tide_pack<E, N> &pack)
{
  if constexpr (sizeof pack % 16 == 0) {
#pragma unroll
    for (int k = 0; k < (int)sizeof pack / 16; k++) {
      uint4 word;
      memcpy(&word, reinterpret_cast<const char *>(&pack) + 16 * k, 16);
      tide_store16(reinterpret_cast<char *>(p) + 16 * k, word);
    }
  } else {
    *reinterpret_cast<tide_pack<E, N> *>(p) = pack;
  }
}

template <class E, int N> TIDE_DEVICE tide_values<tide_real<E>, N> tide_up(const tide_pack<E, N> &p)
{
  tide_values<tide_real<E>, N> r;
#pragma unroll
  for (int j = 0; j < N; j++) r.v[j] = tide_up(p.v[j]);
  return r;
}

template <int N> TIDE_DEVICE tide_values<float, N> tide_up(const tide_pack<__nv_bfloat16, N> &p)
{
  tide_values<float, N> r;
  if constexpr (N == 1) {
    r.v[0] = tide_up(p.v[0]);
  } else {
#pragma unroll
    for (int j = 0; j < N; j++)
      r.v[j] = __uint_as_float(j % 2 ? p.w[j / 2] & 0xffff0000u : p.w[j / 2] << 16);
  }
  return r;
}

template <class E, class T, int N> struct tide_packed {
  TIDE_DEVICE static tide_pack<E, N> of(const tide_values<T, N> &v)
  {
    tide_pack<E, N> r;
#pragma unroll
    for (int j = 0; j < N; j++) tide_down(&r.v[j], v.v[j]);
    return r;
  }
};
/* Two elements of 16 bits are rounded by one instruction. */
template <int N> struct tide_packed<__nv_bfloat16, float, N> {
  TIDE_DEVICE static tide_pack<__nv_bfloat16, N> of(const tide_values<float, N> &v)
  {
    tide_pack<__nv_bfloat16, N> r;
    if constexpr (N == 1) {
      tide_down(&r.v[0], v.v[0]);
    } else {
#pragma unroll
      for (int j = 0; j < N; j += 2) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(v.v[j], v.v[j + 1]);
        r.w[j / 2] = *reinterpret_cast<const uint32_t *>(&two);
      }
    }
    return r;
  }
};
template <int N> struct tide_packed<__half, float, N> {
  TIDE_DEVICE static tide_pack<__half, N> of(const tide_values<float, N> &v)
  {
    tide_pack<__half, N> r;
#pragma unroll
    for (int j = 0; j + 1 < N; j += 2) {
      const __half2 two = __floats2half2_rn(v.v[j], v.v[j + 1]);
      r.v[j] = two.x, r.v[j + 1] = two.y;
    }
    if (N % 2) tide_down(&r.v[N - 1], v.v[N - 1]);
    return r;
  }
};
template <class E, class T, int N>
TIDE_DEVICE tide_pack<E, N> tide_down(const tide_values<T, N> &v)
{
  return tide_packed<E, T, N>::of(v);
}

static inline bool tide_aligned(const void *p) { return ((uintptr_t)p & 15) == 0; }

/* Absent ones count as aligned. */
static inline bool tide_all_aligned(const k_tensor *t, int n)
{
  for (int i = 0; i < n; i++)
    if (!k_absent(&t[i]) && !tide_aligned(t[i].data)) return false;
  return true;
}

/* Returns the elements of an operand of type E, null if it is absent. */
template <class E> E *tide_data(const k_tensor &t)
{
  return k_absent(&t) ? nullptr : static_cast<E *>(t.data);
}

static inline int tide_size_of(int dtype)
{
  switch (dtype) {
    case TIDE_F64: case TIDE_I64: return 8;
    case TIDE_F32: case TIDE_I32: return 4;
    case TIDE_BF16: case TIDE_F16: return 2;
    default: return 1;
  }
}

/* Runs the rest with E the type in memory of a dtype: of f32, bf16 and f16; of f64 too. */
#define TIDE_BY_SHORT(dtype, ...)                                         \
  do {                                                                    \
    if ((dtype) == TIDE_F32) { using E = float; __VA_ARGS__; }            \
    else if ((dtype) == TIDE_BF16) { using E = __nv_bfloat16; __VA_ARGS__; } \
    else { using E = __half; __VA_ARGS__; }                               \
  } while (0)
#define TIDE_BY_FLOAT(dtype, ...)                                \
  do {                                                           \
    if ((dtype) == TIDE_F64) { using E = double; __VA_ARGS__; }  \
    else TIDE_BY_SHORT(dtype, __VA_ARGS__);                      \
  } while (0)
static inline bool tide_is_short(int dtype) { return 1 << dtype & (K_F32 | K_BF16 | K_F16); }

/* ---- jobs over packs ------------------------------------------------------------------------- */

/* Where packs of `size` elements lie. Flat: one after another in every operand. Otherwise the last
 * dim of l is cut into packs, and l.shape has the number of packs there. */
struct tide_packing {
  tide_layout l;
  int64_t n; /* elements */
  bool flat;
};

template <int K> struct tide_places { int64_t at[K]; };

template <int K, int N>
TIDE_DEVICE_LONG tide_places<K> tide_place_of(const tide_packing &p, int64_t pack)
{
  tide_places<K> r;
#pragma unroll
  for (int k = 0; k < K; k++) r.at[k] = p.flat ? pack * N : 0;
  if (p.flat) return r;
  uint32_t i = (uint32_t)pack;
  for (int d = p.l.ndim - 1; d >= 0; d--) {
    const uint32_t size = (uint32_t)p.l.shape[d], rest = d == 0 ? 0 : i / size;
    const int64_t c = i - rest * size;
    i = rest;
#pragma unroll
    for (int k = 0; k < K; k++) r.at[k] += c * p.l.stride[k][d];
  }
  return r;
}

enum { TIDE_PACK_THREADS = 256 };

/* Runs a job on n elements of K operands, N elements a pack, EACH packs a thread:
 *   held<M> read<M>(places)       loads M elements of each operand that is read
 *   void write<M>(places, held)   computes and stores them
 * The elements after the last whole pack are done one by one (M = 1). */
template <int EACH, class J>
__global__ void __launch_bounds__(TIDE_PACK_THREADS) tide_packs_kernel(tide_packing p, J job)
{
  enum { K = J::operands, N = J::size };
  const int64_t packs = p.n / N;
  const int64_t first = blockIdx.x * (int64_t)(TIDE_PACK_THREADS * EACH) + threadIdx.x;
  tide_places<K> at[EACH];
  typename J::template held<N> h[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) at[k] = tide_place_of<K, N>(p, first + k * TIDE_PACK_THREADS);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k * TIDE_PACK_THREADS < packs) h[k] = job.template read<N>(at[k]);
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k * TIDE_PACK_THREADS < packs) job.template write<N>(at[k], h[k]);
  if constexpr (N > 1) {
    if (blockIdx.x > 0 || (int)threadIdx.x >= (int)(p.n - packs * N)) return;
    tide_places<K> tail;
#pragma unroll
    for (int k = 0; k < K; k++) tail.at[k] = packs * N + threadIdx.x;
    job.template write<1>(tail, job.template read<1>(tail));
  }
}

/* Returns whether n operands take packs of `size` elements: aligned, and their last dim runs by
 * ones and is whole in packs, or there is but one dim. Fills p. l: of these operands. */
static inline bool tide_packing_of(tide_packing *p, const tide_layout &l, int n,
                                   const k_tensor *const *t, int size)
{
  *p = {l, l.numel, tide_layout_flat(l, n)};
  const int last = l.ndim - 1;
  for (int k = 0; k < n; k++) {
    const int bytes = size * tide_size_of(t[k]->dtype);
    if ((uintptr_t)t[k]->data % (bytes < 16 ? bytes : 16)) return false;
    if (p->flat) continue;
    if (l.stride[k][last] != 1 || l.shape[last] % size) return false;
    for (int d = 0; d < last; d++)
      if (l.stride[k][d] % size) return false;
  }
  if (p->flat) return true;
  p->l.shape[last] /= size;
  for (int k = 0; k < n; k++) p->l.stride[k][last] = size;
  return l.numel / size <= INT32_MAX;
}

template <int EACH, class J>
int tide_run_packs(const k_call *call, const tide_packing &p, const J &job)
{
  const int64_t block = (int64_t)TIDE_PACK_THREADS * EACH, packs = p.n / J::size;
  const int64_t blocks = packs > block ? (packs + block - 1) / block : 1;
  TIDE_CUDA_LAUNCH(call, (tide_packs_kernel<EACH, J>), (unsigned)blocks, TIDE_PACK_THREADS, 0, p,
                   job);
  return TIDE_CUDA_LAUNCHED(call);
}
