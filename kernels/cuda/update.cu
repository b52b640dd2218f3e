/* Optimiser steps and the global norm on the GPU: AdamW, SGD, norm, clip_factor, scale_all.
 *
 * A kernel has the types of a tensor and of its gradient, and takes the tensors of these types from
 * the list: four elements of each member at a time, all loaded before one is stored.
 *
 * Norms leave one number a chunk in scratch, summed by one block in a fixed order, in f64. Rates of
 * a step that lie on the device are worked out there, by the operations that the host makes of
 * those in attributes: a captured step has the bits of one that is not.
 *
 * Meaning: kernels/ref/update.c.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/update.cuh"

namespace {

/* ---- steps: a weight, its gradient and what is kept of earlier ones -> the weight ------------ */

/* T: of the arithmetic. The numbers are those of adamw_args, worked out once a thread. */
template <class T> struct adamw_rule {
  enum { states = 2 };
  T scale, shrink, keep1, keep2, step_size, root2, eps;
  TIDE_DEVICE T step(T w, T g, T *state) const
  {
    T &m = state[0], &v = state[1];
    g *= scale;
    w -= shrink * w;
    m += keep1 * (g - m);
    v += keep2 * (g * g - v);
    return w - step_size * m / (tide_sqrt(v) / root2 + eps);
  }
};

/* False: this step leaves everything as it is. */
template <class T> TIDE_DEVICE bool rule_of(const adamw_args &a, adamw_rule<T> *r)
{
  const adamw_now now = a.far ? *a.far : a.now;
  if (now.skip || left_out(a.found_inf)) return false;
  *r = {(T)total_scale(a.scale, a.g_scale, a.g_scale_dtype), (T)now.shrink, (T)(1 - a.beta1),
        (T)(1 - a.beta2), (T)now.step_size, (T)now.root2, (T)a.eps};
  return true;
}

struct sgd_args {
  double lr, momentum, dampening, decay, scale;
  const void *g_scale, *found_inf;
  const double *rates; /* {lr, step}, or null */
  int g_scale_dtype, nesterov, first;
};

template <class T> struct sgd_rule {
  enum { states = 1 };
  T scale, lr, momentum, keep, decay;
  bool nesterov, first;
  TIDE_DEVICE T step(T w, T g, T *state) const
  {
    g = g * scale + decay * w;
    if (momentum != 0) {
      const T b = first ? g : momentum * state[0] + keep * g;
      state[0] = b;
      g = nesterov ? g + momentum * b : b;
    }
    return w - lr * g;
  }
};

template <class T> TIDE_DEVICE bool rule_of(const sgd_args &a, sgd_rule<T> *r)
{
  if (left_out(a.found_inf)) return false;
  *r = {(T)total_scale(a.scale, a.g_scale, a.g_scale_dtype), (T)(a.rates ? a.rates[0] : a.lr),
        (T)a.momentum, (T)(1 - a.dampening), (T)a.decay, a.nesterov != 0,
        a.rates ? a.rates[1] == 1 : a.first != 0};
  return true;
}

/* ---- the walk over a chunk ------------------------------------------------------------------- */

/* Elements at a place: members p, g, the states, master. Without momentum sgd has no state: its
 * member is null. */
template <class R, class T, class P, class G, bool MASTER> struct weights {
  P *p;
  const G *g;
  T *state[R::states], *master;
  template <int M> struct held {
    tide_pack<T, M> state[R::states], master;
    tide_pack<P, M> p;
    tide_pack<G, M> g;
  };
  template <int M> TIDE_DEVICE void read(int64_t i, held<M> *h) const
  {
    h->g = tide_pack_from<M>(g + i);
#pragma unroll
    for (int k = 0; k < R::states; k++)
      if (state[k]) h->state[k] = tide_pack_from<M>(state[k] + i);
    if constexpr (MASTER) h->master = tide_pack_from<M>(master + i);
    else h->p = tide_pack_from<M>(p + i);
  }
  template <int M> TIDE_DEVICE void write(int64_t i, const held<M> &h, const R &r) const
  {
    const tide_values<T, M> gs = tide_up(h.g);
    tide_values<T, M> w, s[R::states];
    if constexpr (MASTER) w = tide_up(h.master);
    else w = tide_up(h.p);
#pragma unroll
    for (int k = 0; k < R::states; k++) s[k] = tide_up(h.state[k]);
#pragma unroll
    for (int j = 0; j < M; j++) {
      T own[R::states];
#pragma unroll
      for (int k = 0; k < R::states; k++) own[k] = s[k].v[j];
      w.v[j] = r.step(w.v[j], gs.v[j], own);
#pragma unroll
      for (int k = 0; k < R::states; k++) s[k].v[j] = own[k];
    }
#pragma unroll
    for (int k = 0; k < R::states; k++)
      if (state[k]) tide_pack_to(state[k] + i, tide_down<T>(s[k]));
    if constexpr (MASTER) tide_pack_to(master + i, tide_down<T>(w));
    tide_pack_to(p + i, tide_down<P>(w));
  }
};

TIDE_DEVICE bool all_aligned(const entry &e, int n)
{
  uintptr_t bits = 0;
  for (int k = 0; k < n; k++) bits |= (uintptr_t)e.data[k];
  return bits % 16 == 0;
}

enum { WIDE = 4, EACH = 2, STEP = THREADS * WIDE };
static_assert(CHUNK % (STEP * EACH) == 0, "chunks begin at whole packs");

template <template <class> class R, class A, class P, class G, bool MASTER>
__global__ void __launch_bounds__(THREADS, sizeof(tide_real<P>) == 4 ? 4 : 1)
update_kernel(list l, A a)
{
  using T = tide_real<P>;
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  R<T> rule;
  if (!rule_of(a, &rule)) return;
  weights<R<T>, T, P, G, MASTER> w = {static_cast<P *>(e.data[0]),
                                      static_cast<const G *>(e.data[1]), {},
                                      static_cast<T *>(e.data[2 + R<T>::states])};
#pragma unroll
  for (int k = 0; k < R<T>::states; k++) w.state[k] = static_cast<T *>(e.data[2 + k]);
  const int64_t packed = all_aligned(e, 3 + R<T>::states) ? from + (to - from) / WIDE * WIDE : from;
  typename weights<R<T>, T, P, G, MASTER>::template held<WIDE> h[EACH];
  for (int64_t i = from + threadIdx.x * WIDE; i < packed; i += STEP * EACH) {
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (i + k * STEP < packed) w.template read<WIDE>(i + k * STEP, &h[k]);
#pragma unroll
    for (int k = 0; k < EACH; k++)
      if (i + k * STEP < packed) w.template write<WIDE>(i + k * STEP, h[k], rule);
  }
  typename weights<R<T>, T, P, G, MASTER>::template held<1> one;
  for (int64_t i = packed + threadIdx.x; i < to; i += THREADS)
    w.template read<1>(i, &one), w.template write<1>(i, one, rule);
}

/* Runs the tensors of one pair of types, with masters and without. */
template <template <class> class R, class P, class G, class A>
void update_pair(const k_call *call, int64_t n, const k_tensor *const *members, int p, int g,
                 const A &args)
{
  constexpr int master = 2 + R<tide_real<P>>::states;
  auto these = [&](int64_t i, bool has) {
    return members[0][i].dtype == p && members[1][i].dtype == g &&
           k_absent(&members[master][i]) != has;
  };
  each_list_of(n, master + 1, members, 0, [&](int64_t i) { return these(i, true); },
               [&](const list &l) {
    const unsigned blocks = (unsigned)l.chunks;
    TIDE_CUDA_LAUNCH(call, (update_kernel<R, A, P, G, true>), blocks, THREADS, 0, l, args);
  });
  each_list_of(n, master + 1, members, 0, [&](int64_t i) { return these(i, false); },
               [&](const list &l) {
    const unsigned blocks = (unsigned)l.chunks;
    TIDE_CUDA_LAUNCH(call, (update_kernel<R, A, P, G, false>), blocks, THREADS, 0, l, args);
  });
}

template <template <class> class R, class A>
int update(const k_call *call, int64_t n, const k_tensor *const *members, const A &args)
{
  for (int p = 0; p < TIDE_NDTYPE; p++)
    for (int g = 0; g < TIDE_NDTYPE; g++) {
      bool any = false;
      for (int64_t i = 0; i < n && !any; i++)
        any = members[0][i].dtype == p && members[1][i].dtype == g;
      if (!any) continue;
      if (p == TIDE_F64) update_pair<R, double, double>(call, n, members, p, g, args);
      else
        TIDE_BY_SHORT(p, using P = E;
                      TIDE_BY_SHORT(g, update_pair<R, P, E>(call, n, members, p, g, args)));
    }
  return TIDE_CUDA_LAUNCHED(call);
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

/* Calls body(values) for the elements of a block's chunk, many at a time, EACH loads in flight. */
template <class E, class B>
TIDE_DEVICE void each_value(const E *x, int64_t from, int64_t to, B body)
{
  enum { N = tide_wide<E>, AHEAD = 4, PACKS = THREADS * N };
  const int64_t packed = (uintptr_t)x % 16 == 0 ? from + (to - from) / N * N : from;
  tide_pack<E, N> h[AHEAD];
  for (int64_t i = from + threadIdx.x * N; i < packed; i += PACKS * AHEAD) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (i + k * PACKS < packed) h[k] = tide_pack_from<N>(x + i + k * PACKS);
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
      if (i + k * PACKS < packed) body(i + k * PACKS, tide_up(h[k]));
  }
  for (int64_t i = packed + threadIdx.x; i < to; i += THREADS)
    body(i, tide_up(tide_pack_from<1>(x + i)));
}

/* Sums in f64: squares of f32 may lie beyond f32. */
template <class E, int KIND>
__global__ void __launch_bounds__(THREADS) norm_kernel(list l, double *part)
{
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  double v = 0;
  each_value(static_cast<const E *>(e.data[0]), from, to, [&](int64_t, const auto &x) {
#pragma unroll
    for (size_t j = 0; j < sizeof x.v / sizeof x.v[0]; j++) {
      const double xi = (double)x.v[j];
      v = KIND == TWO ? v + xi * xi : KIND == ONE ? v + fabs(xi) : larger()(v, fabs(xi));
    }
  });
  v = fold_norm(v, KIND);
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

template <class E>
__global__ void __launch_bounds__(THREADS) scale_kernel(list l, tide_array factor)
{
  int64_t from, to;
  const entry &e = l.e[find(l, blockIdx.x, &from, &to)];
  E *to_x = static_cast<E *>(e.data[0]);
  const tide_real<E> f = (tide_real<E>)tide_at<double>(factor, 0);
  each_value(static_cast<const E *>(to_x), from, to, [&](int64_t i, auto x) {
#pragma unroll
    for (size_t j = 0; j < sizeof x.v / sizeof x.v[0]; j++) x.v[j] *= f;
    tide_pack_to(to_x + i, tide_down<E>(x));
  });
}

/* Calls run(dtype, base) for each dtype of a list of tensors; run returns its number of chunks. */
template <class R> void each_dtype(int64_t n, const k_tensor *x, R run)
{
  int64_t base = 0;
  for (int dtype = 0; dtype < TIDE_NDTYPE; dtype++) {
    bool any = false;
    for (int64_t i = 0; i < n && !any; i++) any = x[i].dtype == dtype;
    if (any) base += run(dtype, base);
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
  return update<adamw_rule>(call, a->n, members, args);
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
  return update<sgd_rule>(call, a->n, members, args);
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
  each_dtype(a->n, call->in, [&](int dtype, int64_t base) {
    TIDE_BY_FLOAT(dtype, return each_list_of(a->n, 1, &call->in, base,
      [&](int64_t i) { return call->in[i].dtype == dtype; }, [&](const list &l) {
        const unsigned blocks = (unsigned)l.chunks;
        if (kind == TWO) TIDE_CUDA_LAUNCH(call, (norm_kernel<E, TWO>), blocks, THREADS, 0, l, part);
        else if (kind == ONE)
          TIDE_CUDA_LAUNCH(call, (norm_kernel<E, ONE>), blocks, THREADS, 0, l, part);
        else TIDE_CUDA_LAUNCH(call, (norm_kernel<E, INF>), blocks, THREADS, 0, l, part);
      }));
  });
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
  each_dtype(n, call->out, [&](int dtype, int64_t base) {
    TIDE_BY_FLOAT(dtype, return each_list_of(n, 1, &call->out, base,
      [&](int64_t i) { return call->out[i].dtype == dtype; }, [&](const list &l) {
        TIDE_CUDA_LAUNCH(call, scale_kernel<E>, (unsigned)l.chunks, THREADS, 0, l, factor);
      }));
  });
  return TIDE_CUDA_LAUNCHED(call);
}
