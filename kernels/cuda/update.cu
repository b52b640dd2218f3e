/* Optimiser steps and the global norm on the GPU: AdamW, SGD, norm, clip_factor, scale_all.
 *
 * One launch takes up to LIST tensors. Their addresses travel as arguments of the
 * kernel, so nothing is uploaded; the elements of all are cut into chunks of CHUNK and a block
 * takes one. Norms leave one number a chunk in scratch, summed by one block in a fixed order, in
 * f64. Rates of a step that lie on the device are worked out there, by the operations that the host
 * makes of those in attributes: a captured step has the bits of one that is not.
 *
 * Meaning: kernels/ref/update.c.
 */
#include "kernels/cuda/block.cuh"

namespace {

enum { LIST = 48, CHUNK = 8192, MEMBERS = 5, THREADS = 256 };

/* Up to five parallel arrays a tensor; absent ones are null. */
struct entry {
  void *data[MEMBERS];
  int64_t numel;
  int32_t first_chunk;
  int8_t dtype[MEMBERS];
};
struct list {
  entry e[LIST];
  int n;
  int64_t chunks, base; /* chunks here, and before this list */
};

TIDE_DEVICE tide_array member(const entry &e, int k) { return {e.data[k], e.dtype[k]}; }

/* The entry that a chunk belongs to, and its elements [*from, *to). */
TIDE_DEVICE int find(const list &l, int64_t chunk, int64_t *from, int64_t *to)
{
  int at = tide_entry_of(l.e, l.n, chunk);
  *from = (chunk - l.e[at].first_chunk) * CHUNK;
  *to = *from + CHUNK < l.e[at].numel ? *from + CHUNK : l.e[at].numel;
  return at;
}

int64_t chunks_of(const k_tensor &t)
{
  return k_absent(&t) ? 0 : (k_numel(&t) + CHUNK - 1) / CHUNK;
}

/* Calls launch(list) for tensors 0..n-1 with members (members[k][i]), at most LIST at a time. Those
 * whose first or second member is absent, or empty, are left out. */
template <class L>
int each_list(const k_call *call, int64_t n, int nmember, const k_tensor *const *members, L launch)
{
  list l = {};
  for (int64_t i = 0; i < n; i++) {
    const k_tensor &head = members[0][i];
    int64_t chunks = chunks_of(head);
    bool skip = chunks == 0 || (nmember > 1 && k_absent(&members[1][i]));
    if (!skip) {
      entry &e = l.e[l.n++];
      e.numel = k_numel(&head);
      e.first_chunk = (int32_t)l.chunks;
      for (int k = 0; k < nmember; k++) {
        tide_array a = tide_array_of(members[k][i]);
        e.data[k] = a.data;
        e.dtype[k] = (int8_t)a.dtype;
      }
      l.chunks += chunks;
    }
    bool full = l.n == LIST || l.chunks > 1 << 30;
    if (l.n > 0 && (full || i + 1 == n)) {
      launch(l);
      l.base += l.chunks;
      l.n = 0, l.chunks = 0;
    }
  }
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- steps: members p, g, m, v, master ------------------------------------------------------- */

/* What changes from step to step. */
struct adamw_now { double shrink, step_size, root2; bool skip; };

struct adamw_args {
  double beta1, beta2, eps, scale;
  adamw_now now;
  const adamw_now *far; /* or, if not null, there */
  const void *g_scale, *found_inf;
  int g_scale_dtype;
};

/* Of host and device the same bits: no product of it can be fused with a sum. */
__host__ __device__ __forceinline__ double product(double a, double b)
{
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/* b^n by squaring, n >= 0. */
__host__ __device__ __forceinline__ double power(double b, int64_t n)
{
  double r = 1;
  for (; n > 0; n >>= 1, b = product(b, b))
    if (n & 1) r = product(r, b);
  return r;
}

__host__ __device__ __forceinline__ adamw_now adamw_at(double lr, int64_t step, double decay,
                                                       double beta1, double beta2)
{
  return {product(lr, decay), lr / (1 - power(beta1, step)), sqrt(1 - power(beta2, step)), false};
}

/* rates: {lr, step}. One thread. */
__global__ void adamw_now_kernel(const double *rates, double decay, double beta1, double beta2,
                                 adamw_now *now, tide_reporter fault)
{
  double step = rates[1];
  bool good = step >= 1 && step < 0x1p62;
  *now = adamw_at(rates[0], good ? (int64_t)step : 1, decay, beta1, beta2);
  now->skip = !good;
  if (!good) tide_report(fault, step > -0x1p62 && step < 1 ? (int64_t)step : 0, 0);
}

/* Unless found_inf is 0 a step leaves everything as it is. */
TIDE_DEVICE bool left_out(const void *found_inf)
{
  return found_inf && !(*static_cast<const float *>(found_inf) == 0);
}

TIDE_DEVICE double total_scale(double scale, const void *g_scale, int dtype)
{
  return g_scale ? scale * tide_load<double>(g_scale, 0, dtype) : scale;
}

template <class T> TIDE_DEVICE void adamw_chunk(const entry &e, const adamw_args &a, int64_t from,
                                                int64_t to)
{
  tide_array p = member(e, 0), g = member(e, 1), m = member(e, 2), v = member(e, 3);
  tide_array master = member(e, 4), weight = master.data ? master : p;
  T scale = (T)total_scale(a.scale, a.g_scale, a.g_scale_dtype);
  for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
    T gi = tide_at<T>(g, i) * scale, mi = tide_at<T>(m, i), vi = tide_at<T>(v, i);
    T w = tide_at<T>(weight, i);
    w -= (T)a.now.shrink * w;
    mi += (T)(1 - a.beta1) * (gi - mi);
    vi += (T)(1 - a.beta2) * (gi * gi - vi);
    w -= (T)a.now.step_size * mi / (tide_sqrt(vi) / (T)a.now.root2 + (T)a.eps);
    tide_put<T>(m, i, mi);
    tide_put<T>(v, i, vi);
    if (master.data) tide_put<T>(master, i, w);
    tide_put<T>(p, i, w);
  }
}

__global__ void adamw_kernel(list l, adamw_args a)
{
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  if (a.far) a.now = *a.far;
  if (a.now.skip || left_out(a.found_inf)) return;
  if (e.dtype[0] == TIDE_F64) adamw_chunk<double>(e, a, from, to);
  else adamw_chunk<float>(e, a, from, to);
}

/* members p, g, buf, master */
struct sgd_args {
  double lr, momentum, dampening, decay, scale;
  const void *g_scale, *found_inf;
  const double *rates; /* {lr, step}, or null */
  int g_scale_dtype, nesterov, first;
};

template <class T> TIDE_DEVICE void sgd_chunk(const entry &e, const sgd_args &a, int64_t from,
                                              int64_t to)
{
  tide_array p = member(e, 0), g = member(e, 1), buf = member(e, 2), master = member(e, 3);
  tide_array weight = master.data ? master : p;
  T scale = (T)total_scale(a.scale, a.g_scale, a.g_scale_dtype);
  for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
    T w = tide_at<T>(weight, i), gi = tide_at<T>(g, i) * scale + (T)a.decay * w;
    if (a.momentum != 0) {
      T b = a.first ? gi : (T)a.momentum * tide_at<T>(buf, i) + (T)(1 - a.dampening) * gi;
      tide_put<T>(buf, i, b);
      gi = a.nesterov ? gi + (T)a.momentum * b : b;
    }
    w -= (T)a.lr * gi;
    if (master.data) tide_put<T>(master, i, w);
    tide_put<T>(p, i, w);
  }
}

__global__ void sgd_kernel(list l, sgd_args a)
{
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  if (left_out(a.found_inf)) return;
  if (a.rates) a.lr = a.rates[0], a.first = a.rates[1] == 1;
  if (e.dtype[0] == TIDE_F64) sgd_chunk<double>(e, a, from, to);
  else sgd_chunk<float>(e, a, from, to);
}

/* ---- norms ----------------------------------------------------------------------------------- */

enum norm_kind { TWO, ONE, INF };

/* NaN if either is. */
struct larger { TIDE_DEVICE double operator()(double a, double b) const
  { return a != a || a > b ? a : b; } };

TIDE_DEVICE double fold_norm(double v, int kind)
{
  return kind == INF ? tide_block_fold(v, larger(), 0.0) : tide_block_sum(v);
}

__global__ void norm_kernel(list l, int kind, double *part)
{
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  tide_array x = member(e, 0);
  double v = 0;
  for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
    double xi = tide_at<double>(x, i);
    v = kind == TWO ? v + xi * xi : kind == ONE ? v + fabs(xi) : larger()(v, fabs(xi));
  }
  v = fold_norm(v, kind);
  if (threadIdx.x == 0) part[l.base + blockIdx.x] = v;
}

__global__ void norm_end_kernel(int64_t n, const double *part, int kind, bool root, tide_array y)
{
  double v = 0;
  TIDE_LANE_LOOP(i, n) v = kind == INF ? larger()(v, part[i]) : v + part[i];
  v = fold_norm(v, kind);
  if (threadIdx.x == 0) tide_put<double>(y, 0, root ? sqrt(v) : v);
}

__global__ void clip_kernel(tide_array y, tide_array norm, double most)
{
  double factor = most / (tide_at<double>(norm, 0) + 1e-6);
  tide_put<double>(y, 0, factor > 1 ? 1.0 : factor); /* NaN stays NaN */
}

__global__ void scale_kernel(list l, tide_array factor)
{
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  tide_array x = member(e, 0);
  double f = tide_at<double>(factor, 0);
  for (int64_t i = from + threadIdx.x; i < to; i += blockDim.x) {
    if (x.dtype == TIDE_F64) tide_put<double>(x, i, tide_at<double>(x, i) * f);
    else tide_put<float>(x, i, tide_at<float>(x, i) * (float)f);
  }
}

}  // namespace

/* Null where control k (kernel.h) is absent. */
static const void *control(const k_call *call, int64_t n, int k)
{
  return tide_array_of(call->in[n + k]).data;
}

int64_t k_cuda_adamw__work(const k_call *call)
{
  const k_adamw_attrs *a = static_cast<const k_adamw_attrs *>(call->attrs);
  return control(call, a->n, 1) ? (int64_t)sizeof(adamw_now) : 0;
}

int k_cuda_adamw_(const k_call *call)
{
  const k_adamw_attrs *a = static_cast<const k_adamw_attrs *>(call->attrs);
  if (a->step < 1) {
    snprintf(call->msg, K_MSG, "step is %lld, expected 1 for the first update",
             (long long)a->step);
    return TIDE_E_ARG;
  }
  tide_array g_scale = tide_array_of(call->in[a->n]);
  const double *rates = static_cast<const double *>(control(call, a->n, 1));
  adamw_now *far = rates ? static_cast<adamw_now *>(call->work) : nullptr;
  adamw_args args = {a->beta1, a->beta2, a->eps, a->maximize ? -a->grad_scale : a->grad_scale,
                     adamw_at(a->lr, a->step, a->weight_decay, a->beta1, a->beta2), far,
                     g_scale.data, control(call, a->n, 2), g_scale.dtype};
  if (far)
    TIDE_CUDA_LAUNCH(call, adamw_now_kernel, 1, 1, 0, rates, a->weight_decay, a->beta1, a->beta2,
                     far, tide_reporter{tide_cuda_fault_of(call), TIDE_FAULT_STEP, call->op, 0, 0});
  const k_tensor *o = call->out;
  const k_tensor *members[] = {o, call->in, o + a->n, o + 2 * a->n, o + 3 * a->n};
  return each_list(call, a->n, 5, members, [&](const list &l) {
    TIDE_CUDA_LAUNCH(call, adamw_kernel, (unsigned)l.chunks, THREADS, 0, l, args);
  });
}

int k_cuda_sgd_(const k_call *call)
{
  const k_sgd_attrs *a = static_cast<const k_sgd_attrs *>(call->attrs);
  const k_tensor *o = call->out, *buf = o + a->n;
  for (int64_t i = 0; i < a->n && a->momentum != 0; i++) {
    if (chunks_of(o[i]) == 0 || k_absent(&call->in[i]) || !k_absent(&buf[i])) continue;
    snprintf(call->msg, K_MSG, "buf %lld is absent, expected a buffer because momentum is not 0",
             (long long)i);
    return TIDE_E_ARG;
  }
  tide_array g_scale = tide_array_of(call->in[a->n]);
  sgd_args args = {a->lr, a->momentum, a->dampening, a->weight_decay,
                   a->maximize ? -a->grad_scale : a->grad_scale, g_scale.data,
                   control(call, a->n, 2), static_cast<const double *>(control(call, a->n, 1)),
                   g_scale.dtype, a->nesterov, a->first};
  const k_tensor *members[] = {o, call->in, buf, o + 2 * a->n};
  return each_list(call, a->n, 4, members, [&](const list &l) {
    TIDE_CUDA_LAUNCH(call, sgd_kernel, (unsigned)l.chunks, THREADS, 0, l, args);
  });
}

int64_t k_cuda_norm_work(const k_call *call)
{
  int64_t chunks = 0, n = static_cast<const k_norm_all_attrs *>(call->attrs)->n;
  for (int64_t i = 0; i < n; i++) chunks += chunks_of(call->in[i]);
  return chunks * 8;
}

int k_cuda_norm(const k_call *call)
{
  const k_norm_all_attrs *a = static_cast<const k_norm_all_attrs *>(call->attrs);
  if (a->p != 2 && a->p != 1 && !(isinf(a->p) && a->p > 0)) {
    snprintf(call->msg, K_MSG, "p is %g, expected 1, 2 or infinity", a->p);
    return TIDE_E_ARG;
  }
  int kind = a->p == 2 ? TWO : a->p == 1 ? ONE : INF;
  double *part = static_cast<double *>(call->work);
  int rc = each_list(call, a->n, 1, &call->in, [&](const list &l) {
    TIDE_CUDA_LAUNCH(call, norm_kernel, (unsigned)l.chunks, THREADS, 0, l, kind, part);
  });
  if (rc < 0) return rc;
  TIDE_CUDA_LAUNCH(call, norm_end_kernel, 1, THREADS, 0, k_cuda_norm_work(call) / 8, part, kind,
                   kind == TWO && !a->squared, tide_array_of(call->out[0]));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_clip_factor(const k_call *call)
{
  double most = static_cast<const k_norm_all_attrs *>(call->attrs)->p;
  TIDE_CUDA_LAUNCH(call, clip_kernel, 1, 1, 0, tide_array_of(call->out[0]),
                   tide_array_of(call->in[0]), most);
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_scale_all_(const k_call *call)
{
  int64_t n = static_cast<const k_norm_all_attrs *>(call->attrs)->n;
  tide_array factor = tide_array_of(call->in[0]);
  return each_list(call, n, 1, &call->out, [&](const list &l) {
    TIDE_CUDA_LAUNCH(call, scale_kernel, (unsigned)l.chunks, THREADS, 0, l, factor);
  });
}
