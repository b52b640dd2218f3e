/* Optimiser steps and the global norm on the GPU: AdamW, SGD, norm, clip_factor, scale_all.
 *
 * Norms leave one number a chunk in scratch, summed by one block in a fixed order, in f64. Rates of
 * a step that lie on the device are worked out there, by the operations that the host makes of
 * those in attributes: a captured step has the bits of one that is not.
 *
 * Meaning: kernels/ref/update.c.
 */
#include "kernels/cuda/update.cuh"

namespace {

/* ---- steps ----------------------------------------------------------------------------------- */

/* members p, g, m, v, master */
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

int64_t k_cuda_adamw__work(const k_call *call) { return adamw_work(call); }

int k_cuda_adamw_(const k_call *call)
{
  const k_adamw_attrs *a = static_cast<const k_adamw_attrs *>(call->attrs);
  int rc = adamw_check(call, a);
  if (rc != TIDE_OK) return rc;
  adamw_args args = adamw_args_of(call, a);
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
