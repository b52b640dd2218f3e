/* CUDA on the host, for specs: the kernels of kernels/cuda compiled as plain C++ and run.
 *
 * The one idea: a block's threads are fibers of one host thread. A fiber runs until it comes to a
 * barrier; shuffles and mma meet at a barrier of their warp. So indexing, masks, barriers and
 * arithmetic are executed as written; speed, memory order and instructions are not. Fresh device
 * memory and shared memory hold 0xff (NaN), and a barrier that some threads never reach ends the
 * program with a message.
 *
 * Found before the toolkit's header of the same name. Spec only, x86-64.
 */
#ifndef TIDE_SPEC_CUDA_RUNTIME_H
#define TIDE_SPEC_CUDA_RUNTIME_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#define TIDE_EMULATED 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

using std::isfinite;
using std::isinf;
using std::isnan;

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct uint3 { unsigned x, y, z; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static inline uint2 make_uint2(unsigned a, unsigned b) { return {a, b}; }
static inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d)
{
  return {a, b, c, d};
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* ---- launches, barriers, warps --------------------------------------------------------------- */

void tide_emulate_launch(dim3 grid, dim3 block, size_t shared, const std::function<void()> &body);
void *tide_emulate_shared();
/* All lanes give n bytes (at most 64) and see what every lane gave until tide_emulate_done. */
const unsigned char *tide_emulate_meet(const void *give, size_t n);
void tide_emulate_done();
enum { TIDE_EMULATE_SLOT = 64 };
void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);
int __syncthreads_or(int v);

#define TIDE_CUDA_LAUNCH(call, kernel, grid, block, shared, ...) \
  ((void)tide_cuda_stream(call),                                 \
   tide_emulate_launch(grid, block, shared, [&] { kernel(__VA_ARGS__); }))
#define TIDE_DYNAMIC_SHARED(name) \
  unsigned char *name = static_cast<unsigned char *>(tide_emulate_shared())

static inline int tide_emulate_lane() { return (int)(threadIdx.x & 31); }

template <class T> T tide_emulate_from(T v, int lane)
{
  T r;
  const unsigned char *all = tide_emulate_meet(&v, sizeof v);
  memcpy(&r, all + (lane & 31) * TIDE_EMULATE_SLOT, sizeof r);
  tide_emulate_done();
  return r;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int mask)
{
  return tide_emulate_from(v, tide_emulate_lane() ^ mask);
}
template <class T> T __shfl_sync(unsigned, T v, int lane) { return tide_emulate_from(v, lane); }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned by)
{
  int from = tide_emulate_lane() - (int)by;
  return tide_emulate_from(v, from < 0 ? tide_emulate_lane() : from);
}
static inline unsigned __ballot_sync(unsigned, int v)
{
  unsigned r = 0;
  int yes = v != 0;
  const unsigned char *all = tide_emulate_meet(&yes, sizeof yes);
  for (int i = 0; i < 32; i++)
    if (*reinterpret_cast<const int *>(all + i * TIDE_EMULATE_SLOT)) r |= 1u << i;
  tide_emulate_done();
  return r;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline void __threadfence_system() {}
template <class T> T atomicCAS(T *p, T expect, T v)
{
  T old = *p;
  if (old == expect) *p = v;
  return old;
}

/* ---- the runtime ----------------------------------------------------------------------------- */

enum cudaError_t {
  cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorCudartUnloading = 4,
  cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100, cudaErrorNotReady = 600,
  cudaErrorContextIsDestroyed = 709
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaHostAllocMapped = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
typedef struct tide_emulate_stream *cudaStream_t;

static inline cudaError_t cudaGetLastError() { return cudaSuccess; }
static inline const char *cudaGetErrorString(cudaError_t) { return "emulated error"; }
static inline cudaError_t cudaGetDevice(int *d) { *d = 0; return cudaSuccess; }
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
  *s = nullptr;
  return cudaSuccess;
}
template <class F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int bytes)
{
  return bytes <= 101376 ? cudaSuccess : cudaErrorMemoryAllocation; /* the smallest chip's limit */
}
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaMalloc(void **p, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t);

#endif
