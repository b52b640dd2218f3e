/* Defines the gated root mean square norm of Mamba-2, forward and backward.
 *
 * With u = x silu(z) (or x, gate last) everything is the norm of u; the gate is a factor before or
 * after it. Values are doubles, rounded once; backward reads the rounded rstd. Operands are
 * row-major contiguous.
 */
#include "kernels/ref/activation.h"
#include "kernels/ref/load.h"

static double silu(double x) { return x * ref_sigmoid(x); }
static double ref_gated_norm_silu_slope(double x)
{
  return ref_sigmoid(x) * (1 + x * (1 - ref_sigmoid(x)));
}

static double ref_gain(const k_tensor *w, int64_t d) { return k_absent(w) ? 1 : ref_get(w, d); }

int k_ref_gated_rms_norm(const k_call *call)
{
  const k_gated_norm_attrs *attrs = call->attrs;
  const k_tensor *x = &call->in[0], *z = &call->in[1], *w = &call->in[2];
  int64_t n = attrs->group, dim = x->shape[x->ndim - 1], ngroup = k_numel(x) / n;
  for (int64_t i = 0; i < ngroup; i++) {
    double sum = 0;
    for (int64_t k = i * n; k < (i + 1) * n; k++) {
      double u = ref_get(x, k) * (attrs->gate_last ? 1 : silu(ref_get(z, k)));
      sum += u * u;
    }
    double rstd = 1 / sqrt(sum / (double)n + attrs->eps);
    ref_put(&call->out[1], i, rstd);
    for (int64_t k = i * n; k < (i + 1) * n; k++)
      ref_put(&call->out[0], k, ref_get(x, k) * silu(ref_get(z, k)) * rstd * ref_gain(w, k % dim));
  }
  return TIDE_OK;
}

/* Computes one group: du = rstd (v - u rstd^2 mean(v u)) with v the gradient of norm(u). */
static void bwd_group(const k_call *call, int64_t i)
{
  const k_gated_norm_attrs *attrs = call->attrs;
  const k_tensor *dy = &call->in[0], *x = &call->in[1], *z = &call->in[2], *w = &call->in[3];
  int64_t n = attrs->group, dim = x->shape[x->ndim - 1];
  double rstd = ref_get(&call->in[4], i), mean = 0;
  for (int64_t k = i * n; k < (i + 1) * n; k++)
    mean += ref_get(dy, k) * ref_gain(w, k % dim) * ref_get(x, k) * silu(ref_get(z, k));
  mean *= rstd * rstd / (double)n;
  for (int64_t k = i * n; k < (i + 1) * n; k++) {
    double d = ref_get(dy, k) * ref_gain(w, k % dim), a = ref_get(x, k), g = ref_get(z, k);
    double u = attrs->gate_last ? a : a * silu(g);
    double du = rstd * ((attrs->gate_last ? d * silu(g) : d) - u * mean);
    ref_put(&call->out[0], k, attrs->gate_last ? du : du * silu(g));
    ref_put(&call->out[1], k,
            (attrs->gate_last ? d * a * rstd : du * a) * ref_gated_norm_silu_slope(g));
  }
}

int k_ref_gated_rms_norm_bwd(const k_call *call)
{
  const k_gated_norm_attrs *attrs = call->attrs;
  const k_tensor *dy = &call->in[0], *x = &call->in[1], *z = &call->in[2], *dw = &call->out[2];
  int64_t dim = x->shape[x->ndim - 1], nrow = k_numel(x) / dim, n = attrs->group;
  for (int64_t i = 0; i < nrow * dim / n; i++) bwd_group(call, i);
  for (int64_t d = 0; !k_absent(dw) && d < dim; d++) {
    double sum = 0;
    for (int64_t r = 0; r < nrow; r++) {
      int64_t k = r * dim + d;
      sum += ref_get(dy, k) * ref_get(x, k) * silu(ref_get(z, k)) * ref_get(&call->in[4], k / n);
    }
    ref_put(dw, d, sum);
  }
  return TIDE_OK;
}
