/* What every CUDA kernel file shares: the stream of a call, launch checks, loads by dtype, and the
 * indexing of strided operands.
 *
 * Arithmetic runs in float (double for f64, int64_t for integers), memory holds any
 * dtype, and the two meet in tide_load and tide_store. Operands are collapsed on the host, so most
 * kernels see one or two dims. A launch is checked where it is made; nothing here waits.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

#define TIDE_DEVICE __device__ __forceinline__
/* The same of a function that is long once it is inlined: where specs run kernels on the host
 * (spec/cuda) it is not, which halves the time of their compiler. */
#ifndef TIDE_DEVICE_LONG
#define TIDE_DEVICE_LONG TIDE_DEVICE
#endif

extern "C" {
#include "kernels/kernel.h"
#include "kernels/plugin_row.h"
}

struct tide_cuda_blas; /* kernels/cuda/blas.cu */

cudaStream_t tide_cuda_stream(const k_call *call);
tide_cuda_blas **tide_cuda_blas_slot(const k_call *call);
void tide_cuda_blas_close(tide_cuda_blas *blas);

/* kernels/cuda/rows.cu */
extern const k_row tide_cuda_rows[];
extern const int tide_cuda_nrow;

/* A fault that a kernel found in its data, in memory that host and device share. The host reads it
 * at each launch, download and wait and never blocks for it. The first fault is kept. */
enum {
  TIDE_FAULT_INDEX = 1, TIDE_FAULT_TARGET = 2, TIDE_FAULT_SEQUENCE = 3, TIDE_FAULT_STEP = 4,
  TIDE_FAULT_OFFSET = 5
};
struct tide_cuda_fault {
  int set; /* 0: none, 1: being written, 2: whole */
  int kind, op;
  int64_t value, position, limit, other;
};
tide_cuda_fault *tide_cuda_fault_of(const k_call *call);
/* Returns and clears the fault, with its text in msg; TIDE_OK without one. op: the op that calls,
 * or -1. */
int tide_cuda_fault_take(tide_cuda_fault *fault, int op, char *msg, size_t size);

/* The arguments with which a kernel reports a fault. */
struct tide_reporter { tide_cuda_fault *fault; int kind, op; int64_t limit, other; };
__device__ __forceinline__ void tide_report(const tide_reporter &r, int64_t value,
                                            int64_t position)
{
  if (atomicCAS(&r.fault->set, 0, 1) != 0) return;
  r.fault->kind = r.kind, r.fault->op = r.op, r.fault->limit = r.limit, r.fault->other = r.other;
  r.fault->value = value, r.fault->position = position;
  __threadfence_system();
  *(volatile int *)&r.fault->set = 2;
}

/* Returns the error of a launch as a status, with its text in call->msg. */
int tide_cuda_check(const k_call *call, cudaError_t e);
/* Every launch goes through here, so that specs can run kernels on the host (spec/cuda). */
#ifndef TIDE_CUDA_LAUNCH
#define TIDE_CUDA_LAUNCH(call, kernel, grid, block, shared, ...) \
  kernel<<<grid, block, shared, tide_cuda_stream(call)>>>(__VA_ARGS__)
#define TIDE_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif
#define TIDE_CUDA_LAUNCHED(call) tide_cuda_check(call, cudaGetLastError())

/* ---- elements -------------------------------------------------------------------------------- */

template <class T> TIDE_DEVICE_LONG T tide_load(const void *p, int64_t i, int dtype)
{
  switch (dtype) {
    case TIDE_F32: return (T) static_cast<const float *>(p)[i];
    case TIDE_F64: return (T) static_cast<const double *>(p)[i];
    case TIDE_BF16: return (T)__bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    case TIDE_F16: return (T)__half2float(static_cast<const __half *>(p)[i]);
    case TIDE_I64: return (T) static_cast<const int64_t *>(p)[i];
    case TIDE_I32: return (T) static_cast<const int32_t *>(p)[i];
    default: return (T) static_cast<const uint8_t *>(p)[i];
  }
}

/* Float to integer truncates and clamps, and NaN becomes 0; to bool is x != 0. As
 * kernels/ref/load.h. */
template <class T> __device__ __forceinline__ int64_t tide_truncate(T v, int64_t lo, int64_t hi)
{
  if (v != v) return 0;
  if (v <= (T)lo) return lo;
  if (v >= (T)hi) return hi;
  return (int64_t)v;
}
template <> __device__ __forceinline__ int64_t tide_truncate<int64_t>(int64_t v, int64_t, int64_t)
{
  return v; /* integers wrap when they are stored */
}

/* f32 on the way to 16 bits. From wider types rounded to odd, so that the next rounding is the only
 * one: cut, the last bit set if something was cut off. As core/base/float.h. */
__device__ __forceinline__ float tide_odd(float cut, bool exact)
{
  return exact ? cut : __uint_as_float(__float_as_uint(cut) | 1u);
}
__device__ __forceinline__ float tide_on_the_way(float v) { return v; }
__device__ __forceinline__ float tide_on_the_way(double v)
{
  const float cut = __double2float_rz(v);
  return tide_odd(cut, (double)cut == v);
}
__device__ __forceinline__ float tide_on_the_way(int64_t v)
{
  const float cut = __ll2float_rz(v);
  return tide_odd(cut, (int64_t)cut == v);
}

template <class T> TIDE_DEVICE_LONG void tide_store(void *p, int64_t i, int dtype, T v)
{
  switch (dtype) {
    case TIDE_F32: static_cast<float *>(p)[i] = (float)v; break;
    case TIDE_F64: static_cast<double *>(p)[i] = (double)v; break;
    case TIDE_BF16:
      static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16(tide_on_the_way(v));
      break;
    case TIDE_F16: static_cast<__half *>(p)[i] = __float2half(tide_on_the_way(v)); break;
    case TIDE_I64: static_cast<int64_t *>(p)[i] = tide_truncate(v, INT64_MIN, INT64_MAX); break;
    case TIDE_I32:
      static_cast<int32_t *>(p)[i] = (int32_t)tide_truncate(v, INT32_MIN, INT32_MAX);
      break;
    case TIDE_U8: static_cast<uint8_t *>(p)[i] = (uint8_t)tide_truncate(v, 0, 255); break;
    default: static_cast<uint8_t *>(p)[i] = v != (T)0; break;
  }
}

/* ---- where the elements of several operands lie ---------------------------------------------- */

enum { TIDE_CUDA_MAX_OPERAND = 4 };

/* The shape that several operands share, collapsed: neighbouring dims that every operand walks
 * through evenly are one. Row-major index -> offset of operand k. */
struct tide_layout {
  int ndim;
  int64_t numel;
  int64_t shape[TIDE_MAX_DIM];
  int64_t stride[TIDE_CUDA_MAX_OPERAND][TIDE_MAX_DIM];
};

static inline tide_layout tide_layout_of(int n, const k_tensor *const *t)
{
  tide_layout l = {};
  l.numel = 1;
  for (int d = 0; d < t[0]->ndim; d++) l.numel *= t[0]->shape[d];
  for (int d = 0; d < t[0]->ndim; d++) {
    int64_t size = t[0]->shape[d];
    if (size == 1) continue;
    int last = l.ndim - 1;
    bool joins = last >= 0;
    for (int k = 0; joins && k < n; k++) joins = l.stride[k][last] == t[k]->stride[d] * size;
    if (!joins) last = l.ndim++;
    l.shape[last] = joins ? l.shape[last] * size : size;
    for (int k = 0; k < n; k++) l.stride[k][last] = t[k]->stride[d];
  }
  return l;
}

/* Every operand is walked with stride 1: index and offset are the same. */
static inline bool tide_layout_flat(const tide_layout &l, int n)
{
  if (l.ndim > 1) return false;
  for (int k = 0; k < n && l.ndim == 1; k++)
    if (l.stride[k][0] != 1) return false;
  return true;
}

template <int N>
TIDE_DEVICE_LONG void tide_offsets(const tide_layout &l, int64_t i, int64_t *at)
{
#pragma unroll
  for (int k = 0; k < N; k++) at[k] = 0;
  for (int d = l.ndim - 1; d >= 0; d--) {
    int64_t c = d == 0 ? i : i % l.shape[d];
    i = d == 0 ? 0 : i / l.shape[d];
#pragma unroll
    for (int k = 0; k < N; k++) at[k] += c * l.stride[k][d];
  }
}

/* Returns the entry, in a list of n, that a chunk (a block's share) belongs to. */
template <class E> TIDE_DEVICE int tide_entry_of(const E *e, int n, int64_t chunk)
{
  int lo = 0, hi = n - 1;
  while (lo < hi) {
    int mid = (lo + hi + 1) / 2;
    if (e[mid].first_chunk <= chunk) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

enum { TIDE_CUDA_BLOCK = 256 };

/* Blocks for n items with a grid-stride loop: enough to fill any device, no more. */
static inline int tide_cuda_grid(int64_t n)
{
  int64_t blocks = (n + TIDE_CUDA_BLOCK - 1) / TIDE_CUDA_BLOCK;
  return (int)(blocks < 65536 ? (blocks ? blocks : 1) : 65536);
}

/* kernel over n items with a grid-stride loop; the rest are its arguments. */
#define TIDE_LAUNCH(kernel, n, call, ...) \
  TIDE_CUDA_LAUNCH(call, kernel, tide_cuda_grid(n), TIDE_CUDA_BLOCK, 0, __VA_ARGS__)
#define TIDE_GRID_LOOP(i, n)                                                  \
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n); \
       i += (int64_t)gridDim.x * blockDim.x)
