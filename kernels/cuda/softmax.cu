/* Softmax and its logarithm on the GPU: a block a row, which runs by ones, and two passes over it.
 *
 * Meaning: kernels/ref/softmax.c.
 */
#include "kernels/cuda/line.cuh"

namespace {

struct rows_of {
  tide_layout row; /* where rows begin, of up to three operands */
  int64_t n;
};

rows_of rows(int count, const k_tensor *const *t)
{
  k_tensor lead[3];
  const k_tensor *p[3] = {&lead[0], &lead[1], &lead[2]};
  for (int k = 0; k < count; k++) lead[k] = k_dims(t[k], 0, t[k]->ndim - 1);
  return {tide_layout_of(count, p), k_row_size(t[0])};
}

template <class E, bool LOG>
__global__ void __launch_bounds__(1024) softmax_kernel(rows_of r, E *y, const E *x)
{
  using T = tide_real<E>;
  TIDE_ROW_LOOP(i, r.row.numel) {
    int64_t at[2];
    tide_offsets<2>(r.row, i, at);
    const E *const line[1] = {x + at[1]};
    E *to = y + at[0];
    tide_exp_sum<T> s;
    tide_each_of_lines(line, (const E *)nullptr, r.n, [&](int64_t, const auto &z) { s.add(z[0]); });
    s.fold();
    const T logsum = tide_log(s.sum), max = s.max, sum = s.sum;
    tide_each_of_lines(line, (const E *)to, r.n, [&](int64_t j0, auto &v) {
      auto &z = v[0];
#pragma unroll
      for (int j = 0; j < tide_count<std::decay_t<decltype(z)>>; j++)
        z.v[j] = LOG ? (z.v[j] - max) - logsum : tide_exp(z.v[j] - max) / sum;
      tide_pack_to(to + j0, tide_down<E>(z));
    });
  }
}

/* softmax: dx = y (dy - sum dy y).  log_softmax: dx = dy - e^y sum dy. */
template <class E, bool LOG>
__global__ void __launch_bounds__(1024)
softmax_bwd_kernel(rows_of r, E *dx, const E *dy, const E *y)
{
  using T = tide_real<E>;
  TIDE_ROW_LOOP(i, r.row.numel) {
    int64_t at[3];
    tide_offsets<3>(r.row, i, at);
    const E *const line[2] = {dy + at[1], y + at[2]};
    E *to = dx + at[0];
    T sum = 0;
    tide_each_of_lines(line, (const E *)nullptr, r.n, [&](int64_t, const auto &v) {
#pragma unroll
      for (int j = 0; j < tide_count<std::decay_t<decltype(v[0])>>; j++)
        sum += v[0].v[j] * (LOG ? (T)1 : v[1].v[j]);
    });
    sum = tide_block_sum(sum);
    tide_each_of_lines(line, (const E *)to, r.n, [&](int64_t j0, auto &v) {
#pragma unroll
      for (int j = 0; j < tide_count<std::decay_t<decltype(v[0])>>; j++) {
        const T g = v[0].v[j], own = v[1].v[j];
        v[0].v[j] = LOG ? g - tide_exp(own) * sum : own * (g - sum);
      }
      tide_pack_to(to + j0, tide_down<E>(v[0]));
    });
  }
}

template <bool LOG> int softmax(const k_call *call)
{
  const k_tensor *t[2] = {&call->out[0], &call->in[0]};
  const rows_of r = rows(2, t);
  TIDE_BY_FLOAT(t[1]->dtype,
                TIDE_CUDA_LAUNCH(call, (softmax_kernel<E, LOG>), tide_row_blocks(r.row.numel),
                                 tide_line_threads(r.n), 0, r, tide_data<E>(*t[0]),
                                 tide_data<const E>(*t[1])));
  return TIDE_CUDA_LAUNCHED(call);
}

template <bool LOG> int softmax_bwd(const k_call *call)
{
  const k_tensor *t[3] = {&call->out[0], &call->in[0], &call->in[1]};
  const rows_of r = rows(3, t);
  TIDE_BY_FLOAT(t[1]->dtype,
                TIDE_CUDA_LAUNCH(call, (softmax_bwd_kernel<E, LOG>), tide_row_blocks(r.row.numel),
                                 tide_line_threads(r.n), 0, r, tide_data<E>(*t[0]),
                                 tide_data<const E>(*t[1]), tide_data<const E>(*t[2])));
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int k_cuda_softmax(const k_call *call) { return softmax<false>(call); }
int k_cuda_log_softmax(const k_call *call) { return softmax<true>(call); }
int k_cuda_softmax_bwd(const k_call *call) { return softmax_bwd<false>(call); }
int k_cuda_log_softmax_bwd(const k_call *call) { return softmax_bwd<true>(call); }
