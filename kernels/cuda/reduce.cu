/* Reductions on the GPU: sum mean prod amax amin any all argmax argmin cumsum.
 *
 * One kernel folds a stretch of the reduced elements for a tile of kept ones, with
 * threads laid out along whichever of the two lies densely in memory. Where there are too few kept
 * elements to fill a device, stretches go to scratch and a second launch folds those, in order. The
 * cut depends on the shape alone: same bits on every device, no atomics.
 *
 * Meaning: kernels/ref/reduce.c.
 */
#include "kernels/cuda/first.cuh"

namespace {

enum fold_op { SUM, MEAN, PROD, AMAX, AMIN, ANY, ALL };
enum { THREADS = 256, STRETCH = 4096, MAX_PARTS = 512 };

template <class T> struct limits;
template <> struct limits<float> {
  static TIDE_DEVICE float hi() { return INFINITY; }
  static TIDE_DEVICE float lo() { return -INFINITY; }
};
template <> struct limits<double> {
  static TIDE_DEVICE double hi() { return INFINITY; }
  static TIDE_DEVICE double lo() { return -INFINITY; }
};
template <> struct limits<int64_t> {
  static TIDE_DEVICE int64_t hi() { return INT64_MAX; }
  static TIDE_DEVICE int64_t lo() { return INT64_MIN; }
};

/* Chosen at run time: the branch is the same for all threads, and memory is the limit. */
template <class T> struct fold {
  int op;
  TIDE_DEVICE T start() const
  {
    return op == PROD || op == ALL ? (T)1 : op == AMAX ? limits<T>::lo()
                                          : op == AMIN ? limits<T>::hi() : (T)0;
  }
  TIDE_DEVICE T operator()(T a, T b) const
  {
    switch (op) {
      case PROD: return a * b;
      case AMAX: return a != a || a > b ? a : b;
      case AMIN: return a != a || a < b ? a : b;
      case ANY: return (T)(a != (T)0 || b != (T)0);
      case ALL: return (T)(a != (T)0 && b != (T)0);
      default: return a + b;
    }
  }
};

struct plan {
  tide_layout keep, reduce; /* strides of x */
  int64_t parts, stretch;   /* the reduced elements are cut into parts of stretch */
  bool wide;                /* threads along the kept elements */
};

k_tensor part_of(const k_tensor &x, int from, int to)
{
  k_tensor t = x;
  t.ndim = to - from;
  for (int d = from; d < to; d++) t.shape[d - from] = x.shape[d], t.stride[d - from] = x.stride[d];
  return t;
}

int64_t innermost(const tide_layout &l)
{
  return l.ndim == 0 ? 0 : l.stride[0][l.ndim - 1];
}

plan plan_of(const k_call *call)
{
  const k_tensor &x = call->in[0];
  int nkeep = static_cast<const k_reduce_attrs *>(call->attrs)->nkeep;
  k_tensor keep = part_of(x, 0, nkeep), reduce = part_of(x, nkeep, x.ndim);
  const k_tensor *k = &keep, *r = &reduce;
  plan p = {tide_layout_of(1, &k), tide_layout_of(1, &r), 1, 0, false};
  int64_t ks = innermost(p.keep), rs = innermost(p.reduce);
  ks = ks < 0 ? -ks : ks, rs = rs < 0 ? -rs : rs;
  p.wide = p.keep.numel >= 32 && (p.reduce.numel < 32 || (ks < rs && ks != 0));
  p.parts = (p.reduce.numel + STRETCH - 1) / STRETCH;
  int64_t blocks = p.wide ? (p.keep.numel + THREADS - 1) / THREADS : p.keep.numel;
  int64_t most = 1 + 2048 / (blocks ? blocks : 1);
  if (p.wide) p.parts = (p.reduce.numel + 255) / 256;
  if (p.parts > most) p.parts = most;
  if (p.parts > MAX_PARTS) p.parts = MAX_PARTS;
  if (p.parts < 1) p.parts = 1;
  p.stretch = (p.reduce.numel + p.parts - 1) / p.parts;
  return p;
}

/* A thread a kept element: neighbours read neighbours. */
template <class T>
__global__ void fold_wide(plan p, tide_array x, fold<T> f, T *part)
{
  int64_t first = blockIdx.y * p.stretch, end = first + p.stretch;
  if (end > p.reduce.numel) end = p.reduce.numel;
  TIDE_GRID_LOOP(i, p.keep.numel) {
    int64_t base, at;
    tide_offsets<1>(p.keep, i, &base);
    T v = f.start();
    for (int64_t j = first; j < end; j++) {
      tide_offsets<1>(p.reduce, j, &at);
      v = f(v, tide_at<T>(x, base + at));
    }
    part[blockIdx.y * p.keep.numel + i] = v;
  }
}

/* A block a kept element. */
template <class T>
__global__ void fold_deep(plan p, tide_array x, fold<T> f, T *part)
{
  int64_t first = blockIdx.y * p.stretch, end = first + p.stretch;
  if (end > p.reduce.numel) end = p.reduce.numel;
  TIDE_ROW_LOOP(i, p.keep.numel) {
    int64_t base, at;
    tide_offsets<1>(p.keep, i, &base);
    T v = f.start();
    for (int64_t j = first + threadIdx.x; j < end; j += blockDim.x) {
      tide_offsets<1>(p.reduce, j, &at);
      v = f(v, tide_at<T>(x, base + at));
    }
    v = tide_block_fold(v, f, f.start());
    if (threadIdx.x == 0) part[blockIdx.y * p.keep.numel + i] = v;
  }
}

template <class T>
__global__ void fold_parts(int64_t keep, int64_t parts, double over, const T *part, tide_array y,
                           fold<T> f)
{
  TIDE_GRID_LOOP(i, keep) {
    T v = f.start();
    for (int64_t k = 0; k < parts; k++) v = f(v, part[k * keep + i]);
    if (f.op == MEAN) v = (T)(v / (T)over);
    tide_put<T>(y, i, v);
  }
}

template <class T> int run(const k_call *call, int op)
{
  plan p = plan_of(call);
  tide_array x = tide_array_of(call->in[0]), y = tide_array_of(call->out[0]);
  T *part = static_cast<T *>(call->work);
  fold<T> f = {op};
  if (p.wide) {
    dim3 grid((unsigned)((p.keep.numel + THREADS - 1) / THREADS), (unsigned)p.parts);
    TIDE_CUDA_LAUNCH(call, fold_wide<T>, grid, THREADS, 0, p, x, f, part);
  } else {
    dim3 grid((unsigned)tide_row_blocks(p.keep.numel), (unsigned)p.parts);
    TIDE_CUDA_LAUNCH(call, fold_deep<T>, grid, tide_row_threads(p.stretch), 0, p, x, f, part);
  }
  TIDE_CUDA_LAUNCH(call, fold_parts<T>, tide_cuda_grid(p.keep.numel), TIDE_CUDA_BLOCK, 0,
                   p.keep.numel, p.parts, (double)p.reduce.numel, part, y, f);
  return TIDE_CUDA_LAUNCHED(call);
}

int reduce(const k_call *call, int op)
{
  int dtype = call->in[0].dtype;
  if (dtype == TIDE_F64 || (op == MEAN && !(1 << dtype & K_FLOAT))) return run<double>(call, op);
  return 1 << dtype & K_FLOAT ? run<float>(call, op) : run<int64_t>(call, op);
}

int64_t work(const k_call *call)
{
  plan p = plan_of(call);
  return p.parts * p.keep.numel * 8;
}

int not_empty(const k_call *call)
{
  plan p = plan_of(call);
  if (p.reduce.numel > 0 || p.keep.numel == 0) return TIDE_OK;
  snprintf(call->msg, K_MSG, "the reduced dims hold no elements, so there is no largest or "
           "smallest "
           "one");
  return TIDE_E_SHAPE;
}

/* ---- argmax, argmin -------------------------------------------------------------------------- */

/* NaN is beyond every number; of equals the first. */
template <class T> struct beyond {
  int sign;
  TIDE_DEVICE bool over(T a, T b) const
  {
    if (a != a || b != b) return a != a && b == b;
    return sign > 0 ? a > b : a < b;
  }
  TIDE_DEVICE bool before(const tide_element<T> &a, const tide_element<T> &b) const
  {
    if (b.at < 0 || a.at < 0) return a.at >= 0;
    if (over(a.value, b.value)) return true;
    return !over(b.value, a.value) && a.at < b.at;
  }
};

template <class T> __global__ void arg_kernel(plan p, tide_array x, tide_array y, beyond<T> f)
{
  TIDE_ROW_LOOP(i, p.keep.numel) {
    int64_t base, at;
    tide_offsets<1>(p.keep, i, &base);
    tide_element<T> mine = {(T)0, -1};
    TIDE_LANE_LOOP(j, p.reduce.numel) {
      tide_offsets<1>(p.reduce, j, &at);
      tide_element<T> other = {tide_at<T>(x, base + at), j};
      if (f.before(other, mine)) mine = other;
    }
    mine = tide_block_first<THREADS>(mine, f);
    if (threadIdx.x == 0) tide_put<int64_t>(y, i, mine.at);
  }
}

template <class T> int run_arg(const k_call *call, int sign)
{
  plan p = plan_of(call);
  TIDE_CUDA_LAUNCH(call, arg_kernel<T>, tide_row_blocks(p.keep.numel),
                   tide_row_threads(p.reduce.numel), 0, p, tide_array_of(call->in[0]),
                   tide_array_of(call->out[0]), beyond<T>{sign});
  return TIDE_CUDA_LAUNCHED(call);
}

int arg(const k_call *call, int sign)
{
  int rc = not_empty(call), dtype = call->in[0].dtype;
  if (rc < 0) return rc;
  if (dtype == TIDE_F64) return run_arg<double>(call, sign);
  return 1 << dtype & K_FLOAT ? run_arg<float>(call, sign) : run_arg<int64_t>(call, sign);
}

/* ---- cumsum ---------------------------------------------------------------------------------- */

/* The sum of v over the lanes up to and with this one. */
template <class T> TIDE_DEVICE T warp_scan(T v)
{
  int lane = (int)threadIdx.x & 31;
#pragma unroll
  for (int by = 1; by < 32; by <<= 1) {
    T below = __shfl_up_sync(0xffffffffu, v, by);
    if (lane >= by) v += below;
  }
  return v;
}

/* A block a row, a tile of THREADS elements at a time. */
template <class T>
__global__ void cumsum_kernel(tide_layout keep, int64_t n, int64_t xs, int64_t ys, tide_array x,
                              tide_array y)
{
  __shared__ T warp_total[32];
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, nwarp = (int)(blockDim.x >> 5);
  TIDE_ROW_LOOP(i, keep.numel) {
    int64_t at[2];
    tide_offsets<2>(keep, i, at);
    T carry = (T)0;
    for (int64_t j0 = 0; j0 < n; j0 += blockDim.x) {
      int64_t j = j0 + threadIdx.x;
      T v = warp_scan(j < n ? tide_at<T>(x, at[0] + j * xs) : (T)0);
      if (lane == 31) warp_total[warp] = v;
      __syncthreads();
      T before = carry;
      for (int w = 0; w < nwarp; w++) {
        if (w == warp) v += before;
        before += warp_total[w];
      }
      carry = before;
      if (j < n) tide_put<T>(y, at[1] + j * ys, v);
      __syncthreads();
    }
  }
}

/* Makes a dim run from its last element to its first. */
void turn(k_tensor *t, int dim)
{
  t->data = static_cast<char *>(t->data)
          + (t->shape[dim] - 1) * t->stride[dim] * tide_dtype_size(t->dtype);
  t->stride[dim] = -t->stride[dim];
}

template <class T> int run_cumsum(const k_call *call)
{
  k_tensor x = call->in[0], y = call->out[0];
  int last = x.ndim - 1;
  if (static_cast<const k_reduce_attrs *>(call->attrs)->from_end) {
    turn(&x, last);
    turn(&y, last);
  }
  k_tensor xk = part_of(x, 0, last), yk = part_of(y, 0, last);
  const k_tensor *both[2] = {&xk, &yk};
  tide_layout keep = tide_layout_of(2, both);
  TIDE_CUDA_LAUNCH(call, cumsum_kernel<T>, tide_row_blocks(keep.numel),
                   tide_row_threads(x.shape[last]), 0, keep, x.shape[last], x.stride[last],
                   y.stride[last], tide_array_of(x), tide_array_of(y));
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

#define FOLD(name, op)                                                   \
  int k_cuda_##name(const k_call *call) { return reduce(call, op); }     \
  int64_t k_cuda_##name##_work(const k_call *call) { return work(call); }
FOLD(sum, SUM)
FOLD(mean, MEAN)
FOLD(prod, PROD)
FOLD(any, ANY)
FOLD(all, ALL)

#define EXTREME(name, op)                                                \
  int k_cuda_##name(const k_call *call)                                  \
  {                                                                      \
    int rc = not_empty(call);                                            \
    return rc < 0 ? rc : reduce(call, op);                               \
  }                                                                      \
  int64_t k_cuda_##name##_work(const k_call *call) { return work(call); }
EXTREME(amax, AMAX)
EXTREME(amin, AMIN)

int k_cuda_argmax(const k_call *call) { return arg(call, 1); }
int k_cuda_argmin(const k_call *call) { return arg(call, -1); }

int k_cuda_cumsum(const k_call *call)
{
  int dtype = call->in[0].dtype;
  if (dtype == TIDE_F64) return run_cumsum<double>(call);
  return 1 << dtype & K_FLOAT ? run_cumsum<float>(call) : run_cumsum<int64_t>(call);
}
