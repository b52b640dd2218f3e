/* The gated root mean square norm of Mamba-2 on the GPU, over groups of channels.
 *
 * A group is a row in registers (row.cuh). The backward walks down stretches of rows and sums the
 * gradient of the weight on the way, as that of norm.cu.
 *
 * Meaning: kernels/ref/gated_norm.c.
 */
#include "kernels/cuda/row.cuh"

namespace {

enum { MOST = 2 };

/* Returns the columns that a thread's registers count as: it holds a gate beside the sum of each,
 * and other things without columns. */
constexpr int columns_of(int held) { return held > 0 ? 2 * held : 16; }

struct sizes {
  int64_t rows, group, dim; /* dim / group groups a row */
  int lanes, gate_last;
  __host__ __device__ int64_t groups() const { return dim / group; }
};

template <class E> struct forward_args {
  const E *x, *z, *weight; /* weight: or null */
  E *y;
  tide_real<E> *rstd, eps;
};

template <class E, int N, int EACH>
__global__ void __launch_bounds__(512) forward_kernel(sizes g, forward_args<E> a)
{
  using T = tide_real<E>;
  const int64_t n = g.rows * g.groups();
  const int64_t i = blockIdx.x * (int64_t)(blockDim.x / g.lanes) + tide_row_in_block(g.lanes);
  const int64_t base = i * g.group;
  const tide_share s = {(int)threadIdx.x % g.lanes, g.lanes, i < n ? g.group / N : 0};
  tide_row<E, N, EACH> x, z, weight;
  x.read(a.x + base, s);
  z.read(a.z + base, s);
  weight.read(a.weight ? a.weight + base % g.dim : nullptr, s);
  tide_values<T, N> held[EACH > 0 ? EACH : 1];
  T sum[1] = {0};
  auto gated = [&](int k, int64_t at) {
    tide_values<T, N> u = x.at(k, at);
    const tide_values<T, N> v = z.at(k, at);
#pragma unroll
    for (int j = 0; j < N; j++) u.v[j] *= v.v[j] * tide_gate<E>(v.v[j]);
    return u;
  };
  tide_each_pack<EACH>(s, [&](int k, int64_t at) {
    held[k] = gated(k, at);
    const tide_values<T, N> u = g.gate_last ? x.at(k, at) : held[k];
#pragma unroll
    for (int j = 0; j < N; j++) sum[0] += u.v[j] * u.v[j];
  });
  tide_row_sum(sum, g.lanes);
  const T rstd = (T)1 / tide_sqrt(sum[0] / (T)g.group + a.eps);
  if (s.lane == 0 && i < n) a.rstd[i] = rstd;
  tide_each_pack<EACH>(s, [&](int k, int64_t at) {
    tide_values<T, N> u = EACH > 0 ? held[k] : gated(k, at);
#pragma unroll
    for (int j = 0; j < N; j++) u.v[j] *= rstd;
    if (a.weight) {
      const tide_values<T, N> w = weight.at(k, at);
#pragma unroll
      for (int j = 0; j < N; j++) u.v[j] *= w.v[j];
    }
    tide_pack_to(a.y + base + at * N, tide_down<E>(u));
  });
}

template <class E> struct backward_args {
  using T = tide_real<E>;
  const E *dy, *x, *z, *weight; /* weight: or null */
  const T *rstd;
  E *dx, *dz;
  T *part; /* [parts][dim]: sums of dweight; or null */
  int64_t stretch;
};

/* du = rstd (v - u rstd^2 mean(v u)) with v the gradient of norm(u). A group of threads takes one
 * group of channels of a.stretch rows. Only with EACH > 0 are columns summed. */
template <class E, int N, int EACH>
__global__ void TIDE_COLUMN_BOUNDS(columns_of(EACH * N))
backward_kernel(sizes g, backward_args<E> a)
{
  using T = tide_real<E>;
  constexpr int HELD = EACH > 0 ? EACH : 1;
  const int64_t mine = blockIdx.x * (int64_t)(blockDim.x / g.lanes) + tide_row_in_block(g.lanes);
  const int64_t channel = mine % g.groups() * g.group, first = mine / g.groups() * a.stretch;
  const int lane = (int)threadIdx.x % g.lanes;
  const tide_share whole = {lane, g.lanes, g.group / N};
  tide_row<E, N, EACH> weight;
  weight.read(a.weight ? a.weight + channel : nullptr, whole);
  tide_values<T, N> dweight[HELD] = {}, gates[HELD];
  for (int64_t r = first; r < first + a.stretch; r++) {
    const int64_t base = r * g.dim + channel;
    const tide_share s = {lane, g.lanes, r < g.rows ? g.group / N : 0};
    tide_row<E, N, EACH> dy, x, z;
    dy.read(a.dy + base, s);
    x.read(a.x + base, s);
    z.read(a.z + base, s);
    const T rstd = r < g.rows ? a.rstd[base / g.group] : (T)0;
    T sum[1] = {0};
    auto gain = [&](int k, int64_t at, tide_values<T, N> &d) {
      if (!a.weight) return;
      const tide_values<T, N> w = weight.at(k, at);
#pragma unroll
      for (int j = 0; j < N; j++) d.v[j] *= w.v[j];
    };
    tide_each_pack<EACH>(s, [&](int k, int64_t at) {
      tide_values<T, N> d = dy.at(k, at);
      const tide_values<T, N> xs = x.at(k, at), zs = z.at(k, at);
      tide_values<T, N> u;
#pragma unroll
      for (int j = 0; j < N; j++) {
        gates[k].v[j] = tide_gate<E>(zs.v[j]);
        u.v[j] = xs.v[j] * zs.v[j] * gates[k].v[j];
        if (EACH > 0) dweight[k].v[j] += d.v[j] * u.v[j] * rstd;
      }
      gain(k, at, d);
#pragma unroll
      for (int j = 0; j < N; j++) sum[0] += d.v[j] * u.v[j];
    });
    tide_row_sum(sum, g.lanes);
    const T mean = sum[0] * rstd * rstd / (T)g.group;
    tide_each_pack<EACH>(s, [&](int k, int64_t at) {
      tide_values<T, N> d = dy.at(k, at), dz;
      const tide_values<T, N> xs = x.at(k, at), zs = z.at(k, at);
      gain(k, at, d);
#pragma unroll
      for (int j = 0; j < N; j++) {
        const T sig = EACH > 0 ? gates[k].v[j] : tide_gate<E>(zs.v[j]), gate = zs.v[j] * sig;
        const T slope = sig * ((T)1 + zs.v[j] * ((T)1 - sig)), v = d.v[j], xj = xs.v[j];
        const T du = rstd * ((g.gate_last ? v * gate : v) - (g.gate_last ? xj : xj * gate) * mean);
        d.v[j] = g.gate_last ? du : du * gate;
        dz.v[j] = (g.gate_last ? v * xj * rstd : du * xj) * slope;
      }
      tide_pack_to(a.dx + base + at * N, tide_down<E>(d));
      tide_pack_to(a.dz + base + at * N, tide_down<E>(dz));
    });
  }
  if (EACH == 0 || !a.part || first >= g.rows) return;
  T *to = a.part + mine / g.groups() * g.dim + channel;
  tide_each_pack<EACH>(whole, [&](int k, int64_t at) {
    tide_pack_to(to + at * N, tide_down<T>(dweight[k]));
  });
}

/* Sums columns alone, a thread a column, for groups that do not fit in registers. */
template <class E> __global__ void columns_kernel(sizes g, backward_args<E> a)
{
  using T = tide_real<E>;
  const int64_t d = blockIdx.x * (int64_t)TIDE_WIDTH + threadIdx.x, first = blockIdx.y * a.stretch;
  if (d >= g.dim) return;
  const int64_t end = first + a.stretch < g.rows ? first + a.stretch : g.rows;
  T sum = 0;
  for (int64_t r = first; r < end; r++) {
    const int64_t k = r * g.dim + d;
    const T z = tide_up(a.z[k]);
    sum += tide_up(a.dy[k]) * tide_up(a.x[k]) * z * tide_gate<E>(z) * a.rstd[k / g.group];
  }
  a.part[blockIdx.y * g.dim + d] = sum;
}

sizes sizes_of(const k_call *call, const k_tensor &x)
{
  const k_gated_norm_attrs *attrs = static_cast<const k_gated_norm_attrs *>(call->attrs);
  const int64_t dim = k_row_size(&x);
  return {dim > 0 ? k_numel(&x) / dim : 0, attrs->group, dim, 0, attrs->gate_last};
}

tide_row_plan plan_of(const sizes &g, int size, bool straight, bool walks)
{
  return tide_plan_rows(g.group, size, straight, walks, MOST);
}

/* Addresses are not known where scratch is planned. */
int64_t parts_of(const sizes &g, int size)
{
  const tide_row_plan p = plan_of(g, size, true, true);
  return tide_column_parts(g.rows, p.lanes, columns_of(p.each * 16 / size));
}

template <class E> int forward(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  sizes g = sizes_of(call, in[0]);
  const double eps = static_cast<const k_gated_norm_attrs *>(call->attrs)->eps;
  const forward_args<E> a = {tide_data<E>(in[0]), tide_data<E>(in[1]), tide_data<E>(in[2]),
                             tide_data<E>(out[0]), tide_data<tide_real<E>>(out[1]),
                             (tide_real<E>)eps};
  const tide_row_plan p = plan_of(g, sizeof(E), tide_all_aligned(in, 3) &&
                                                tide_all_aligned(out, 1), false);
  g.lanes = p.lanes;
  const int64_t n = g.rows > 0 ? g.rows * g.groups() : 0;
  if (n > 0)
    tide_by_plan<E, MOST>(p, [&](auto wide, auto each) {
      constexpr int N = decltype(wide)::value, EACH = decltype(each)::value;
      TIDE_CUDA_LAUNCH(call, (forward_kernel<E, N, EACH>),
                       (unsigned)((n + p.rows() - 1) / p.rows()), p.threads, 0, g, a);
    });
  return TIDE_CUDA_LAUNCHED(call);
}

template <class E> int backward(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  sizes g = sizes_of(call, in[1]);
  backward_args<E> a = {tide_data<E>(in[0]), tide_data<E>(in[1]), tide_data<E>(in[2]),
                        tide_data<E>(in[3]), tide_data<tide_real<E>>(in[4]), tide_data<E>(out[0]),
                        tide_data<E>(out[1]), nullptr, 0};
  E *dweight = tide_data<E>(out[2]);
  const tide_row_plan p = plan_of(g, sizeof(E), tide_all_aligned(in, 4) &&
                                                tide_all_aligned(out, 2), true);
  int64_t parts = parts_of(g, sizeof(E));
  a.stretch = (g.rows + parts - 1) / parts;
  parts = a.stretch > 0 ? (g.rows + a.stretch - 1) / a.stretch : 0;
  a.part = dweight ? static_cast<tide_real<E> *>(call->work) : nullptr;
  g.lanes = p.lanes;
  if (parts > 0)
    tide_by_plan<E, MOST>(p, [&](auto wide, auto each) {
      constexpr int N = decltype(wide)::value, EACH = decltype(each)::value;
      const int64_t n = parts * g.groups();
      TIDE_CUDA_LAUNCH(call, (backward_kernel<E, N, EACH>),
                       (unsigned)((n + p.rows() - 1) / p.rows()), p.threads, 0, g, a);
    });
  if (a.part && p.each == 0 && parts > 0)
    TIDE_CUDA_LAUNCH(call, columns_kernel<E>, tide_column_grid(g.dim, parts), TIDE_WIDTH, 0, g, a);
  if (dweight) tide_sum_columns(call, g.dim, parts, g.dim, a.part, dweight);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int k_cuda_gated_rms_norm(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[0].dtype, return forward<E>(call));
}

int64_t k_cuda_gated_rms_norm_bwd_work(const k_call *call)
{
  const sizes g = sizes_of(call, call->in[1]);
  const int size = tide_size_of(call->in[1].dtype);
  return parts_of(g, size) * g.dim * (size == 8 ? 8 : 4);
}

int k_cuda_gated_rms_norm_bwd(const k_call *call)
{
  TIDE_BY_FLOAT(call->in[1].dtype, return backward<E>(call));
}
