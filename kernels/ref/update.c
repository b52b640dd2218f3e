/* Defines the optimiser steps and the global norm: adamw, sgd, norm, clip_factor, scale_all.
 *
 * Operands are groups of n tensors (p[0..n), m[0..n), ...), each walked element by element in
 * double and rounded once at every store. A tensor that is absent, or whose gradient is, is left
 * unchanged. If master is present it holds the exact weights and p their rounding.
 *
 * All operands are contiguous. Element types may differ from tensor to tensor.
 */
#include <math.h>

#include "kernels/kernel.h"
#include "kernels/ref/update.h"

static double ref_total_scale(const k_tensor *g_scale, double grad_scale, int maximize)
{
  double scale = k_absent(g_scale) ? grad_scale : grad_scale * ref_get(g_scale, 0);
  return maximize ? -scale : scale;
}

static void ref_put_weight(const k_tensor *p, const k_tensor *master, int64_t j, double w)
{
  if (!k_absent(master)) ref_put(master, j, w);
  ref_put(p, j, w);
}

int k_ref_adamw_(const k_call *call)
{
  k_adamw_attrs now;
  const k_adamw_attrs *a = ref_adamw_now(call, &now);
  if (!a) return TIDE_OK;
  if (a->step < 1) {
    return ref_fail(call, TIDE_E_ARG, "step is %lld, expected 1 for the first update",
                    (long long)a->step);
  }
  double scale = ref_total_scale(&call->in[a->n], a->grad_scale, a->maximize);
  double bias1 = 1 - pow(a->beta1, (double)a->step), bias2 = 1 - pow(a->beta2, (double)a->step);
  for (int64_t i = 0; i < a->n; i++) {
    const k_tensor *g = &call->in[i], *p = &call->out[i], *m = &call->out[a->n + i];
    const k_tensor *v = &call->out[2 * a->n + i], *master = &call->out[3 * a->n + i];
    int64_t numel = k_absent(g) || k_absent(p) ? 0 : k_numel(p);
    for (int64_t j = 0; j < numel; j++) {
      double gj = ref_get(g, j) * scale, mj = ref_get(m, j), vj = ref_get(v, j);
      double w = ref_get(k_absent(master) ? p : master, j);
      w -= a->lr * a->weight_decay * w;
      mj += (1 - a->beta1) * (gj - mj);
      vj += (1 - a->beta2) * (gj * gj - vj);
      w -= a->lr / bias1 * mj / (sqrt(vj) / sqrt(bias2) + a->eps);
      ref_put(m, j, mj);
      ref_put(v, j, vj);
      ref_put_weight(p, master, j, w);
    }
  }
  return TIDE_OK;
}

int k_ref_sgd_(const k_call *call)
{
  k_sgd_attrs now;
  const k_sgd_attrs *a = ref_sgd_now(call, &now);
  if (!a) return TIDE_OK;
  double scale = ref_total_scale(&call->in[a->n], a->grad_scale, a->maximize);
  for (int64_t i = 0; i < a->n; i++) {
    const k_tensor *g = &call->in[i], *p = &call->out[i], *buf = &call->out[a->n + i];
    const k_tensor *master = &call->out[2 * a->n + i];
    int64_t numel = k_absent(g) || k_absent(p) ? 0 : k_numel(p);
    if (numel > 0 && a->momentum != 0 && k_absent(buf)) {
      return ref_fail(call, TIDE_E_ARG,
                      "buf %lld is absent, expected a buffer because momentum is not 0",
                      (long long)i);
    }
    for (int64_t j = 0; j < numel; j++) {
      double w = ref_get(k_absent(master) ? p : master, j);
      double gj = ref_get(g, j) * scale + a->weight_decay * w;
      if (a->momentum != 0) {
        double b = a->first ? gj : a->momentum * ref_get(buf, j) + (1 - a->dampening) * gj;
        ref_put(buf, j, b);
        gj = a->nesterov ? gj + a->momentum * b : b;
      }
      ref_put_weight(p, master, j, w - a->lr * gj);
    }
  }
  return TIDE_OK;
}

/* Returns the larger of two absolute values; NaN if either is. */
static double ref_max_abs(double max, double x)
{
  x = fabs(x);
  return x > max || isnan(x) ? x : max;
}

int k_ref_norm(const k_call *call)
{
  const k_norm_all_attrs *a = call->attrs;
  if (a->p != 2 && a->p != 1 && !(isinf(a->p) && a->p > 0)) {
    return ref_fail(call, TIDE_E_ARG, "p is %g, expected 1, 2 or infinity", a->p);
  }
  double sum = 0;
  for (int64_t i = 0; i < a->n; i++) {
    const k_tensor *x = &call->in[i];
    int64_t numel = k_absent(x) ? 0 : k_numel(x);
    for (int64_t j = 0; j < numel; j++) {
      double xj = ref_get(x, j);
      if (a->p == 2) sum += xj * xj;
      else if (a->p == 1) sum += fabs(xj);
      else sum = ref_max_abs(sum, xj);
    }
  }
  ref_put(&call->out[0], 0, a->p == 2 && !a->squared ? sqrt(sum) : sum);
  return TIDE_OK;
}

int k_ref_clip_factor(const k_call *call)
{
  const k_norm_all_attrs *a = call->attrs;
  double factor = a->p / (ref_get(&call->in[0], 0) + 1e-6);
  ref_put(&call->out[0], 0, factor > 1 ? 1 : factor); /* NaN stays NaN */
  return TIDE_OK;
}

int k_ref_scale_all_(const k_call *call)
{
  const k_norm_all_attrs *a = call->attrs;
  double factor = ref_get(&call->in[0], 0);
  for (int64_t i = 0; i < a->n; i++) {
    const k_tensor *x = &call->out[i];
    int64_t numel = k_absent(x) ? 0 : k_numel(x);
    for (int64_t j = 0; j < numel; j++) ref_put(x, j, ref_get(x, j) * factor);
  }
  return TIDE_OK;
}
