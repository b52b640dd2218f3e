/* Folding values over a warp and over a block, always in the same order.
 */
#pragma once

#include "kernels/cuda/cuda.cuh"

struct tide_plus { template <class T> TIDE_DEVICE T operator()(T a, T b) const { return a + b; } };
/* Ignores NaN. */
struct tide_top { template <class T> TIDE_DEVICE T operator()(T a, T b) const
  { return a != a || b > a ? b : a; } };

/* Every lane gets the result. f is commutative; the tree is fixed. */
template <class T, class F> TIDE_DEVICE_LONG T tide_warp_fold(T v, F f)
{
#pragma unroll
  for (int by = 16; by > 0; by >>= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, by));
  return v;
}

/* Every thread of a block of whole warps in x gets the result; zero is what leaves f as it is. */
template <class T, class F> TIDE_DEVICE_LONG T tide_block_fold(T v, F f, T zero)
{
  __shared__ T part[32];
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, n = (int)(blockDim.x >> 5);
  v = tide_warp_fold(v, f);
  __syncthreads(); /* the fold before this one has read part */
  if (lane == 0) part[warp] = v;
  __syncthreads();
  return tide_warp_fold(lane < n ? part[lane] : zero, f);
}

template <class T> TIDE_DEVICE T tide_block_sum(T v)
{
  return tide_block_fold(v, tide_plus(), (T)0);
}
template <class T> TIDE_DEVICE T tide_block_top(T v)
{
  return tide_block_fold(v, tide_top(), (T)-INFINITY);
}

/* Threads for one row of n elements: whole warps, few for short rows. */
static inline int tide_row_threads(int64_t n)
{
  return n <= 32 ? 32 : n <= 64 ? 64 : n <= 512 ? 128 : 256;
}
/* Blocks for n rows; kernels stride over what is left. */
static inline int tide_row_blocks(int64_t n) { return (int)(n < 1 << 20 ? (n ? n : 1) : 1 << 20); }
#define TIDE_ROW_LOOP(r, n) for (int64_t r = blockIdx.x; r < (n); r += gridDim.x)
#define TIDE_LANE_LOOP(i, n) for (int64_t i = threadIdx.x; i < (n); i += blockDim.x)

TIDE_DEVICE float tide_exp(float x) { return expf(x); }
TIDE_DEVICE double tide_exp(double x) { return exp(x); }
template <class T> TIDE_DEVICE T tide_sigmoid(T x) { return (T)1 / ((T)1 + tide_exp(-x)); }
/* tide_sigmoid for a result that is stored as E: of 16 bits by approximations whose error, 1e-5 at
 * most, is far below the last bit. */
#ifdef __CUDA_ARCH__
TIDE_DEVICE float tide_quick_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
#else
TIDE_DEVICE float tide_quick_sigmoid(float x) { return tide_sigmoid(x); }
#endif
template <class E> TIDE_DEVICE float tide_gate(float x) { return tide_quick_sigmoid(x); }
template <> TIDE_DEVICE float tide_gate<float>(float x) { return tide_sigmoid(x); }
template <class E> TIDE_DEVICE double tide_gate(double x) { return tide_sigmoid(x); }

TIDE_DEVICE float tide_log(float x) { return logf(x); }
TIDE_DEVICE double tide_log(double x) { return log(x); }
TIDE_DEVICE float tide_sqrt(float x) { return sqrtf(x); }
TIDE_DEVICE double tide_sqrt(double x) { return sqrt(x); }

/* A constant-free operand of a kernel: null if absent. */
struct tide_array { void *data; int dtype; };
static inline tide_array tide_array_of(const k_tensor &t)
{
  return {k_absent(&t) ? nullptr : t.data, t.dtype};
}
template <class T> TIDE_DEVICE T tide_at(const tide_array &a, int64_t i)
{
  return tide_load<T>(a.data, i, a.dtype);
}
template <class T> TIDE_DEVICE void tide_put(const tide_array &a, int64_t i, T v)
{
  tide_store<T>(a.data, i, a.dtype, v);
}

/* Runs `what` with T float, or double for f64. */
#define TIDE_BY_REAL(dtype, what)       \
  do {                                  \
    if ((dtype) == TIDE_F64) {          \
      using T = double;                 \
      what;                             \
    } else {                            \
      using T = float;                  \
      what;                             \
    }                                   \
  } while (0)
