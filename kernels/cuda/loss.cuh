/* One row of logits: its logsumexp in two parts, its loss, its gradient. As kernels/ref/loss.c.
 *
 * With max and logsum, lse = max + logsum:
 *   loss   = (1 - eps)((max - z[t]) + logsum) + eps (mean(max - z) + logsum) + zl lse^2
 *   dz[v]  = (1 + 2 zl lse) exp((z[v] - max) - logsum) - (1 - eps) [v = t] - eps / V
 */
#pragma once

#include "kernels/cuda/block.cuh"

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
struct tide_logits {
  tide_array z, bias;
  int64_t base, nclass;
  template <class T> TIDE_DEVICE T at(int64_t v) const
  {
    T x = tide_at<T>(z, base + v);
    return bias.data ? x + tide_at<T>(bias, v) : x;
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

/* The maximum passes over a NaN; if nothing is above -inf it counts as 0. */
template <class T> TIDE_DEVICE T tide_row_max(const tide_logits &l)
{
  T top = -INFINITY;
  TIDE_LANE_LOOP(v, l.nclass) top = tide_top()(top, l.at<T>(v));
  top = tide_block_top(top);
  return top == (T)-INFINITY ? (T)0 : top;
}

template <class T> TIDE_DEVICE T tide_row_logsum(const tide_logits &l, T max)
{
  T sum = 0;
  TIDE_LANE_LOOP(v, l.nclass) sum += tide_exp(l.at<T>(v) - max);
  return tide_log(tide_block_sum(sum));
}

/* The same in every thread. */
template <class T>
TIDE_DEVICE T tide_row_loss(const tide_logits &l, const tide_loss_attrs &a, int64_t target, T max,
                            T logsum)
{
  T eps = (T)a.smoothing, lse = max + logsum;
  T loss = ((T)1 - eps) * ((max - l.at<T>(target)) + logsum);
  if (a.smoothing != 0) {
    double below = 0; /* a difference, and a sum, of large f32 logits may lie beyond f32 */
    TIDE_LANE_LOOP(v, l.nclass) below += (double)max - (double)l.at<T>(v);
    loss += eps * ((T)(tide_block_sum(below) / (double)l.nclass) + logsum);
  }
  return a.z_loss != 0 ? loss + (T)a.z_loss * lse * lse : loss;
}

template <class T>
TIDE_DEVICE T tide_row_grad(const tide_logits &l, const tide_loss_attrs &a, int64_t v,
                            int64_t target, T max, T logsum)
{
  T eps = (T)a.smoothing, lse = max + logsum;
  T grad = ((T)1 + (T)(2 * a.z_loss) * lse) * tide_exp((l.at<T>(v) - max) - logsum);
  grad -= eps / (T)l.nclass;
  return v == target ? grad - ((T)1 - eps) : grad;
}
