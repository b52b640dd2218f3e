/* CUDA on the host, for specs: the kernels of kernels/cuda compiled as plain C++ and run.
 *
 * A block's threads are fibers of one host thread. A fiber runs until it reaches a
 * barrier; shuffles and mma meet at a barrier of their warp. So indexing, masks, barriers and
 * arithmetic are executed as written; speed, memory order and instructions are not. Fresh device
 * memory and shared memory hold 0xff (NaN), and a barrier that some threads never reach ends the
 * program with a message. Streams run as late as they may (stream.h); a graph is what its streams
 * were given while they captured, and the events between them.
 *
 * Found before the toolkit's header of the same name. Spec only, x86-64.
 */
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define TIDE_EMULATED 1
#define TIDE_SM90A 1
#define __grid_constant__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define TIDE_DEVICE_LONG __attribute__((noinline))
#define __shared__ static
#define __constant__
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
struct alignas(8) float2 { float x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
static inline float2 make_float2(float a, float b) { return {a, b}; }
static inline uint2 make_uint2(unsigned a, unsigned b) { return {a, b}; }
static inline uint4 make_uint4(unsigned a, unsigned b, unsigned c, unsigned d)
{
  return {a, b, c, d};
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

/* ---- launches, barriers, warps --------------------------------------------------------------- */

/* A kernel: its name for messages, and the address that its attributes are kept by. */
struct tide_emulate_kernel { const char *name; const void *function; };
/* What a launch runs: run(bound), where bound are the arguments, taken when it was launched. */
struct tide_emulate_body {
  const void *bound;
  size_t size; /* of bound */
  void (*run)(const void *bound);
};
enum { TIDE_EMULATE_ALIGN = 128 };
void tide_emulate_launch(struct tide_emulate_stream *stream, const tide_emulate_kernel &kernel,
                         dim3 grid, dim3 block, size_t shared, const tide_emulate_body &body);
/* Arguments are taken by value when the kernel is launched, as CUDA takes them: as bytes. */
template <class F, class... A>
void tide_emulate_launch_with(struct tide_emulate_stream *stream, const tide_emulate_kernel &kernel,
                              dim3 grid, dim3 block, size_t shared, F f, A... args)
{
  auto call = [f, args...] { f(args...); };
  typedef decltype(call) call_t;
  static_assert(alignof(call_t) <= TIDE_EMULATE_ALIGN, "arguments lie at multiples of 128 bytes");
  tide_emulate_launch(stream, kernel, grid, block, shared,
                      {&call, sizeof call, [](const void *bound) {
                         (*static_cast<const call_t *>(bound))();
                       }});
}
/* True for the kernel that TIDE_EMULATE_FAULT names by its number, and for all after it. */
bool tide_emulate_kernel_fails();
/* False, with the thread's last error set: the device is lost or not the current one, or the bytes
 * of shared memory are more than the kernel may have. */
bool tide_emulate_may_launch(const struct tide_emulate_stream *stream,
                             const tide_emulate_kernel &kernel, size_t shared);
void *tide_emulate_shared();
size_t tide_emulate_shared_size();
/* All lanes give n bytes (at most 64). Returns what every lane gave, valid until the reading lane
 * meets the others again. */
const unsigned char *tide_emulate_meet(const void *give, size_t n);
enum { TIDE_EMULATE_SLOT = 64 };
/* The same, and the last lane to come does it for all of the warp: what(what every lane gave). */
void tide_emulate_together(const void *give, size_t n, void (*what)(const unsigned char *all));
/* Judges a read of the thread that runs, for what another lane reads for it. */
void tide_emulate_reads(const void *p, size_t n);
void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffffu);
int __syncthreads_or(int v);

/* The address of a kernel that is launched with dynamic shared memory; null where that is 0, since
 * a template whose arguments the launch deduces has no address. */
#define TIDE_EMULATE_NONE_0 ~, nullptr
#define TIDE_EMULATE_SECOND(a, b, ...) b
#define TIDE_EMULATE_ADDRESS(...) TIDE_EMULATE_SECOND(__VA_ARGS__, ~)

#define TIDE_CUDA_LAUNCH(call, kernel, grid, block, shared, ...)                             \
  tide_emulate_launch_with(                                                                  \
    tide_cuda_stream(call),                                                                  \
    {#kernel, TIDE_EMULATE_ADDRESS(TIDE_EMULATE_NONE_##shared,                               \
                                   reinterpret_cast<const void *>(&kernel))},                \
    grid, block, shared, [=](const auto &...a) { kernel(a...); }, __VA_ARGS__)
#define TIDE_DYNAMIC_SHARED(name) \
  unsigned char *name = static_cast<unsigned char *>(tide_emulate_shared())

static inline int tide_emulate_lane() { return (int)(threadIdx.x & 31); }

template <class T> T tide_emulate_from(T v, int lane)
{
  T r;
  const unsigned char *all = tide_emulate_meet(&v, sizeof v);
  memcpy(&r, all + (lane & 31) * TIDE_EMULATE_SLOT, sizeof r);
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
  return r;
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
/* Conversions towards zero. */
static inline float __double2float_rz(double v)
{
  const float f = (float)v;
  return fabs((double)f) > fabs(v) ? nextafterf(f, 0.0f) : f;
}
static inline float __ll2float_rz(long long v)
{
  const float f = (float)v; /* a long double holds v exactly */
  return fabsl((long double)f) > fabsl((long double)v) ? nextafterf(f, 0.0f) : f;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
template <class T> T __ldg(const T *p) { return *p; }
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
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
  cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2,
  cudaErrorCudartUnloading = 4, cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101, cudaErrorECCUncorrectable = 214, cudaErrorNvlinkUncorrectable = 220,
  cudaErrorInvalidResourceHandle = 400, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702, cudaErrorContextIsDestroyed = 709, cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714, cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716, cudaErrorInvalidAddressSpace = 717, cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719, cudaErrorUnknown = 999, cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901, cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnjoined = 904, cudaErrorStreamCaptureIsolation = 905,
  cudaErrorCapturedEvent = 907
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaStreamNonBlocking = 1, cudaHostAllocMapped = 2, cudaHostAllocPortable = 1,
       cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess,
                                       cudaDriverEntryPointSymbolNotFound };
enum { cudaEnableDefault = 0 };
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor };
typedef struct tide_emulate_stream *cudaStream_t;
typedef struct tide_emulate_event *cudaEvent_t;
typedef struct tide_emulate_graph *cudaGraph_t;
typedef struct tide_emulate_graph *cudaGraphExec_t;

/* Most bytes of shared memory a block: of the chip that is emulated, else what every chip has. */
int tide_emulate_shared_limit();
cudaError_t tide_emulate_allow_shared(const void *function, int bytes);
template <class F> cudaError_t cudaFuncSetAttribute(F f, cudaFuncAttribute, int bytes)
{
  return tide_emulate_allow_shared(reinterpret_cast<const void *>(f), bytes);
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *found);
const char *cudaGetErrorString(cudaError_t e);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaGetDevice(int *d);
cudaError_t cudaSetDevice(int d);
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr what, int device);
cudaError_t cudaMalloc(void **p, size_t n);
cudaError_t cudaFree(void *p);
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventQuery(cudaEvent_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *, cudaGraph_t, unsigned long long);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
