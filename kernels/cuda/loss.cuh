/* One row of logits: its logsumexp in two parts, its loss, its gradient. As kernels/ref/loss.c.
 *
 * With max and logsum, lse = max + logsum:
 *   loss   = (1 - eps)((max - z[t]) + logsum) + eps (mean(max - z) + logsum) + zl lse^2
 *   dz[v]  = (1 + 2 zl lse) exp((z[v] - max) - logsum) - (1 - eps) [v = t] - eps / V
 */
#pragma once

#include "kernels/cuda/line.cuh"

struct tide_loss_attrs {
  int64_t ignore_index;
  double smoothing, z_loss;
};

static inline tide_loss_attrs tide_loss_attrs_of(const k_call *call)
{
  const k_cross_entropy_attrs *a = static_cast<const k_cross_entropy_attrs *>(call->attrs);
  return {a->ignore_index, a->label_smoothing, a->z_loss};
}

static inline tide_reporter tide_loss_reporter(const k_call *call, int64_t nclass)
{
  return {tide_cuda_fault_of(call), TIDE_FAULT_TARGET, call->op, nclass,
          static_cast<const k_cross_entropy_attrs *>(call->attrs)->ignore_index};
}

/* The logits of a row, perhaps with a bias still to be added. */
template <class E> struct tide_logits {
  using T = tide_real<E>;
  const E *z;
  tide_array bias;
  int64_t nclass;
  template <int M> TIDE_DEVICE void biased(int64_t v, tide_values<T, M> &x) const
  {
    if (!bias.data) return;
#pragma unroll
    for (int j = 0; j < M; j++) x.v[j] += tide_at<T>(bias, v + j);
  }
  TIDE_DEVICE T at(int64_t v) const
  {
    tide_values<T, 1> x = {{tide_up(z[v])}};
    biased(v, x);
    return x.v[0];
  }
  /* Calls body(first, values) for all of them. */
  template <class G, class B> TIDE_DEVICE void each(const G *to, B body) const
  {
    const E *const line[1] = {z};
    tide_each_of_lines(line, to, nclass, [&](int64_t v, auto &x) {
      biased(v, x[0]);
      body(v, x[0]);
    });
  }
};

/* Does the row count? A target that is no class is reported and does not. */
TIDE_DEVICE bool tide_counts(const tide_reporter &r, int64_t target, int64_t row)
{
  if (target == r.other) return false;
  if (target >= 0 && target < r.limit) return true;
  if (threadIdx.x == 0) tide_report(r, target, row);
  return false;
}

/* What the loss needs of a row: logsumexp = max + logsum. */
template <class T> struct tide_row_sums { T max, logsum; };

template <class E> TIDE_DEVICE tide_row_sums<tide_real<E>> tide_row_sums_of(const tide_logits<E> &l)
{
  tide_exp_sum<tide_real<E>> s;
  l.each((const E *)nullptr, [&](int64_t, const auto &z) { s.add(z); });
  s.fold();
  return {s.max, tide_log(s.sum)};
}

/* Returns the maximum of a row, which passes over a NaN; 0 if nothing is above -inf. */
template <class E> TIDE_DEVICE tide_real<E> tide_row_max(const tide_logits<E> &l)
{
  using T = tide_real<E>;
  T top = -INFINITY;
  l.each((const E *)nullptr, [&](int64_t, const auto &z) {
#pragma unroll
    for (int j = 0; j < tide_count<std::decay_t<decltype(z)>>; j++) top = tide_top()(top, z.v[j]);
  });
  return tide_exp_sum<T>::shift(tide_block_top(top));
}

/* Returns the loss of a row, the same in every thread. */
template <class E>
TIDE_DEVICE tide_real<E> tide_row_loss(const tide_logits<E> &l, const tide_loss_attrs &a,
                                       int64_t target, const tide_row_sums<tide_real<E>> &s)
{
  using T = tide_real<E>;
  T eps = (T)a.smoothing, lse = s.max + s.logsum;
  T loss = ((T)1 - eps) * ((s.max - l.at(target)) + s.logsum);
  if (a.smoothing != 0) {
    double below = 0; /* a difference, and a sum, of large f32 logits may lie beyond f32 */
    TIDE_LANE_LOOP(v, l.nclass) below += (double)s.max - (double)l.at(v);
    loss += eps * ((T)(tide_block_sum(below) / (double)l.nclass) + s.logsum);
  }
  return a.z_loss != 0 ? loss + (T)a.z_loss * lse * lse : loss;
}

/* to = scale times the gradients of a row; zeros if it does not count. */
template <class E, class G>
TIDE_DEVICE void tide_row_grads(const tide_logits<E> &l, const tide_loss_attrs &a, int64_t target,
                                const tide_row_sums<tide_real<E>> &s, tide_real<E> scale,
                                bool counts, G *to)
{
  using T = tide_real<E>;
  const T lse = s.max + s.logsum, factor = (T)1 + (T)(2 * a.z_loss) * lse;
  const T even = (T)a.smoothing / (T)l.nclass, hit = (T)1 - (T)a.smoothing;
  l.each((const G *)to, [&](int64_t v, auto &z) {
#pragma unroll
    for (int j = 0; j < tide_count<std::decay_t<decltype(z)>>; j++) {
      T grad = factor * tide_exp((z.v[j] - s.max) - s.logsum) - even;
      if (v + j == target) grad -= hit;
      z.v[j] = counts ? scale * grad : (T)0;
    }
    tide_pack_to(to + v, tide_down<G>(z));
  });
}
