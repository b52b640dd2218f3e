/* Normalisations on the GPU, forward and backward, over the last dim.
 *
 * A row is read once and held in registers (row.cuh). The backward walks over stretches of rows and
 * sums the gradients of weight and bias on the way, a number a column in registers; what each
 * stretch leaves in scratch is summed by a second kernel. Stretches depend on the shape alone.
 *
 * Statistics are f32 (f64 for f64). Meaning: kernels/ref/norm.c.
 */
#include "kernels/cuda/row.cuh"

namespace {

enum { MOST = 4 };

struct rows { int64_t n, dim; int lanes; };

rows rows_of(const k_tensor &x) { return {k_row_count(&x), k_row_size(&x), 0}; }

/* ---- forward --------------------------------------------------------------------------------- */

template <class E> struct forward_args {
  using T = tide_real<E>;
  const E *x, *residual, *weight, *bias; /* residual: only if ADD; weight, bias: or null */
  E *y, *sum;
  T *mean, *rstd;
  T eps, offset;
};

template <class E, int N>
TIDE_DEVICE void scale(tide_values<tide_real<E>, N> &v, const tide_pack<E, N> &weight,
                       tide_real<E> offset)
{
  const tide_values<tide_real<E>, N> w = tide_up(weight);
#pragma unroll
  for (int j = 0; j < N; j++) v.v[j] *= w.v[j] + offset;
}

/* LAYER: layer_norm, with mean and bias. ADD: sum = x + residual, rounded, is what is normed. */
template <class E, int N, int EACH, bool LAYER, bool ADD>
__global__ void __launch_bounds__(512) norm_kernel(rows r, forward_args<E> a)
{
  using T = tide_real<E>;
  const int64_t i = blockIdx.x * (int64_t)(blockDim.x / r.lanes) + tide_row_in_block(r.lanes);
  const int64_t base = i * r.dim;
  const tide_share s = {(int)threadIdx.x % r.lanes, r.lanes, i < r.n ? r.dim / N : 0};
  tide_row<E, N, EACH> x, weight, other;
  x.read(a.x + base, s);
  if (ADD) other.read(a.residual + base, s);
  weight.read(a.weight, s);
  T sum[1] = {0}, square[1] = {0};
  tide_each_pack<EACH>(s, [&](int k, int64_t at) {
    tide_values<T, N> v = x.at(k, at);
    if constexpr (ADD) {
      const tide_values<T, N> w = other.at(k, at);
#pragma unroll
      for (int j = 0; j < N; j++) v.v[j] += w.v[j];
      const tide_pack<E, N> both = tide_down<E>(v);
      tide_pack_to(a.sum + base + at * N, both);
      if (EACH > 0) x.held[k] = both;
      v = tide_up(both);
    }
#pragma unroll
    for (int j = 0; j < N; j++) sum[0] += LAYER ? v.v[j] : v.v[j] * v.v[j];
  });
  if (ADD && EACH == 0) x.from = a.sum + base;
  if (LAYER) other.read(a.bias, s);
  tide_row_sum(sum, r.lanes);
  const T mean = LAYER ? sum[0] / (T)r.dim : (T)0;
  if (LAYER) {
    tide_each_pack<EACH>(s, [&](int k, int64_t at) {
      const tide_values<T, N> v = x.at(k, at);
#pragma unroll
      for (int j = 0; j < N; j++) square[0] += (v.v[j] - mean) * (v.v[j] - mean);
    });
    tide_row_sum(square, r.lanes);
  }
  const T rstd = (T)1 / tide_sqrt((LAYER ? square[0] : sum[0]) / (T)r.dim + a.eps);
  tide_each_pack<EACH>(s, [&](int k, int64_t at) {
    tide_values<T, N> v = x.at(k, at);
#pragma unroll
    for (int j = 0; j < N; j++) v.v[j] = (v.v[j] - mean) * rstd;
    if (a.weight) scale(v, weight.pack(k, at), a.offset);
    if (LAYER && a.bias) {
      const tide_values<T, N> w = other.at(k, at);
#pragma unroll
      for (int j = 0; j < N; j++) v.v[j] += w.v[j];
    }
    tide_pack_to(a.y + base + at * N, tide_down<E>(v));
  });
  if (s.lane > 0 || i >= r.n) return;
  if (LAYER) a.mean[i] = mean;
  a.rstd[i] = rstd;
}

template <class E, bool LAYER, bool ADD>
int forward(const k_call *call, const forward_args<E> &a)
{
  rows r = rows_of(call->in[0]);
  const bool straight = tide_all_aligned(call->in, call->nin) &&
                        tide_all_aligned(call->out, ADD ? 2 : 1);
  const tide_row_plan p = tide_plan_rows(r.dim, sizeof(E), straight, false, MOST);
  r.lanes = p.lanes;
  const unsigned blocks = (unsigned)((r.n + p.rows() - 1) / p.rows());
  if (r.n > 0)
    tide_by_plan<E, MOST>(p, [&](auto n, auto each) {
      constexpr int N = decltype(n)::value, EACH = decltype(each)::value;
      TIDE_CUDA_LAUNCH(call, (norm_kernel<E, N, EACH, LAYER, ADD>), blocks, p.threads, 0, r, a);
    });
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- backward -------------------------------------------------------------------------------- */

template <class E> struct backward_args {
  using T = tide_real<E>;
  const E *dy, *x, *weight, *dsum; /* weight, dsum: or null; dsum is added to dx */
  const T *mean, *rstd;            /* mean: only of layer_norm */
  E *dx;
  T *part; /* [parts][1 + LAYER][dim]: sums of dweight and of dbias; or null */
  T offset;
  int64_t stretch;
};

/* dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gain; rms_norm lacks mean(g).
 * Each group of r.lanes threads takes a.stretch rows. Only with EACH > 0 are columns summed. */
template <class E, int N, int EACH, bool LAYER>
__global__ void TIDE_COLUMN_BOUNDS(EACH * N * (LAYER ? 2 : 1))
norm_bwd_kernel(rows r, backward_args<E> a)
{
  using T = tide_real<E>;
  constexpr int HELD = EACH > 0 ? EACH : 1;
  const int64_t group = blockIdx.x * (int64_t)(blockDim.x / r.lanes) + tide_row_in_block(r.lanes);
  const int lane = (int)threadIdx.x % r.lanes;
  const tide_share whole = {lane, r.lanes, r.dim / N};
  tide_row<E, N, EACH> weight;
  weight.read(a.weight, whole);
  tide_values<T, N> dweight[HELD] = {}, dbias[LAYER ? HELD : 1] = {};
  for (int64_t k = 0; k < a.stretch; k++) {
    const int64_t i = group * a.stretch + k, base = i * r.dim;
    const tide_share s = {lane, r.lanes, i < r.n ? r.dim / N : 0};
    tide_row<E, N, EACH> x, dy, dsum;
    dy.read(a.dy + base, s);
    x.read(a.x + base, s);
    dsum.read(a.dsum ? a.dsum + base : nullptr, s);
    const T mean = LAYER && i < r.n ? a.mean[i] : (T)0, rstd = i < r.n ? a.rstd[i] : (T)0;
    T sum[LAYER ? 2 : 1] = {};
    tide_each_pack<EACH>(s, [&](int c, int64_t at) {
      tide_values<T, N> g = dy.at(c, at);
      const tide_values<T, N> v = x.at(c, at);
#pragma unroll
      for (int j = 0; j < N; j++) {
        if (EACH > 0) dweight[c].v[j] += g.v[j] * (v.v[j] - mean) * rstd;
        if (EACH > 0 && LAYER) dbias[c].v[j] += g.v[j];
      }
      if (a.weight) scale(g, weight.pack(c, at), a.offset);
#pragma unroll
      for (int j = 0; j < N; j++) {
        sum[0] += g.v[j] * (v.v[j] - mean) * rstd;
        if (LAYER) sum[1] += g.v[j];
      }
    });
    tide_row_sum(sum, r.lanes);
    const T mean_gx = sum[0] / (T)r.dim, mean_g = LAYER ? sum[1] / (T)r.dim : (T)0;
    tide_each_pack<EACH>(s, [&](int c, int64_t at) {
      tide_values<T, N> g = dy.at(c, at);
      const tide_values<T, N> v = x.at(c, at);
      if (a.weight) scale(g, weight.pack(c, at), a.offset);
#pragma unroll
      for (int j = 0; j < N; j++)
        g.v[j] = rstd * (g.v[j] - mean_g - (v.v[j] - mean) * rstd * mean_gx);
      if (a.dsum) {
        const tide_values<T, N> w = dsum.at(c, at);
#pragma unroll
        for (int j = 0; j < N; j++) g.v[j] += w.v[j];
      }
      tide_pack_to(a.dx + base + at * N, tide_down<E>(g));
    });
  }
  if (EACH == 0 || !a.part || group * a.stretch >= r.n) return;
  T *to = a.part + group * (LAYER ? 2 : 1) * r.dim;
  tide_each_pack<EACH>(whole, [&](int c, int64_t at) {
    tide_pack_to(to + at * N, tide_down<T>(dweight[c]));
    if constexpr (LAYER) tide_pack_to(to + r.dim + at * N, tide_down<T>(dbias[c]));
  });
}

/* Sums columns alone, a thread a column, for rows that do not fit in registers. */
template <class E, bool LAYER> __global__ void columns_kernel(rows r, backward_args<E> a)
{
  using T = tide_real<E>;
  const int64_t d = blockIdx.x * (int64_t)TIDE_WIDTH + threadIdx.x, first = blockIdx.y * a.stretch;
  if (d >= r.dim) return;
  const int64_t end = first + a.stretch < r.n ? first + a.stretch : r.n;
  T dweight = 0, dbias = 0;
#pragma unroll 4
  for (int64_t i = first; i < end; i++) {
    const T dy = tide_up(a.dy[i * r.dim + d]), mean = LAYER ? a.mean[i] : (T)0;
    dweight += dy * (tide_up(a.x[i * r.dim + d]) - mean) * a.rstd[i];
    dbias += dy;
  }
  T *to = a.part + blockIdx.y * (LAYER ? 2 : 1) * r.dim + d;
  to[0] = dweight;
  if (LAYER) to[r.dim] = dbias;
}

/* Of 16-bit rows a thread sums 16 columns at most. */
constexpr int most_of(int size) { return size == 2 ? 2 : MOST; }

tide_row_plan plan_of(const rows &r, int size, bool straight)
{
  return tide_plan_rows(r.dim, size, straight, true, most_of(size));
}

/* Does not ask for addresses, which are not known where scratch is planned. */
int64_t parts_of(const rows &r, int size, bool layer)
{
  const tide_row_plan p = plan_of(r, size, true);
  return tide_column_parts(r.n, p.lanes, p.each * 16 / size * (layer ? 2 : 1));
}

int64_t bwd_work(const k_call *call, bool layer)
{
  const rows r = rows_of(call->in[1]);
  const int size = tide_size_of(call->in[1].dtype);
  return parts_of(r, size, layer) * (layer ? 2 : 1) * r.dim * (size == 8 ? 8 : 4);
}

template <class E, bool LAYER>
int backward(const k_call *call, backward_args<E> a, E *dweight, E *dbias)
{
  rows r = rows_of(call->in[1]);
  const bool straight = tide_all_aligned(call->in, call->nin) && tide_all_aligned(call->out, 1);
  const tide_row_plan p = plan_of(r, sizeof(E), straight);
  int64_t parts = parts_of(r, sizeof(E), LAYER);
  a.stretch = (r.n + parts - 1) / parts;
  if (a.stretch > 0) parts = (r.n + a.stretch - 1) / a.stretch;
  a.part = dweight || dbias ? static_cast<tide_real<E> *>(call->work) : nullptr;
  r.lanes = p.lanes;
  if (r.n > 0)
    tide_by_plan<E, most_of(sizeof(E))>(p, [&](auto n, auto each) {
      constexpr int N = decltype(n)::value, EACH = decltype(each)::value;
      TIDE_CUDA_LAUNCH(call, (norm_bwd_kernel<E, N, EACH, LAYER>),
                       (unsigned)((parts + p.rows() - 1) / p.rows()), p.threads, 0, r, a);
    });
  else parts = 0;
  if (a.part && p.each == 0 && r.n > 0 && r.dim > 0)
    TIDE_CUDA_LAUNCH(call, (columns_kernel<E, LAYER>), tide_column_grid(r.dim, parts), TIDE_WIDTH,
                     0, r, a);
  const int64_t step = (LAYER ? 2 : 1) * r.dim;
  if (dweight) tide_sum_columns(call, r.dim, parts, step, a.part, dweight);
  if (dbias) tide_sum_columns(call, r.dim, parts, step, a.part + r.dim, dbias);
  return TIDE_CUDA_LAUNCHED(call);
}

template <class E> forward_args<E> args_of(const k_call *call)
{
  const k_row_norm_attrs *attrs = static_cast<const k_row_norm_attrs *>(call->attrs);
  forward_args<E> a = {};
  a.x = tide_data<E>(call->in[0]), a.y = tide_data<E>(call->out[0]);
  a.eps = (tide_real<E>)attrs->eps, a.offset = (tide_real<E>)attrs->weight_offset;
  return a;
}

template <class E> int layer_norm(const k_call *call)
{
  forward_args<E> a = args_of<E>(call);
  a.weight = tide_data<E>(call->in[1]), a.bias = tide_data<E>(call->in[2]);
  a.mean = tide_data<tide_real<E>>(call->out[1]), a.rstd = tide_data<tide_real<E>>(call->out[2]);
  return forward<E, true, false>(call, a);
}

template <class E> int rms_norm(const k_call *call)
{
  forward_args<E> a = args_of<E>(call);
  a.weight = tide_data<E>(call->in[1]), a.rstd = tide_data<tide_real<E>>(call->out[1]);
  return forward<E, false, false>(call, a);
}

template <class E> int add_rms_norm(const k_call *call)
{
  forward_args<E> a = args_of<E>(call);
  a.residual = tide_data<E>(call->in[1]), a.weight = tide_data<E>(call->in[2]);
  a.sum = tide_data<E>(call->out[1]), a.rstd = tide_data<tide_real<E>>(call->out[2]);
  return forward<E, false, true>(call, a);
}

template <class E, bool LAYER> int norm_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  using T = tide_real<E>;
  backward_args<E> a = {};
  a.dy = tide_data<E>(in[0]), a.x = tide_data<E>(in[1]), a.weight = tide_data<E>(in[2]);
  a.dx = tide_data<E>(out[0]);
  a.mean = LAYER ? tide_data<T>(in[3]) : nullptr, a.rstd = tide_data<T>(in[LAYER ? 4 : 3]);
  a.dsum = LAYER ? nullptr : tide_data<E>(in[4]);
  a.offset = (T) static_cast<const k_row_norm_attrs *>(call->attrs)->weight_offset;
  E *dbias = LAYER ? tide_data<E>(out[2]) : nullptr;
  return backward<E, LAYER>(call, a, tide_data<E>(out[1]), dbias);
}

}  // namespace

int k_cuda_layer_norm(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[0].dtype, return layer_norm<E>(call));
}
int k_cuda_rms_norm(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[0].dtype, return rms_norm<E>(call));
}
int k_cuda_add_rms_norm(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[0].dtype, return add_rms_norm<E>(call));
}

int64_t k_cuda_layer_norm_bwd_work(const k_call *call) { return bwd_work(call, true); }
int64_t k_cuda_rms_norm_bwd_work(const k_call *call) { return bwd_work(call, false); }

int k_cuda_layer_norm_bwd(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[1].dtype, return (norm_bwd<E, true>(call)));
}
int k_cuda_rms_norm_bwd(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[1].dtype, return (norm_bwd<E, false>(call)));
}
