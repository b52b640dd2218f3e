/* Defines the optimiser steps and the global norm: adamw, sgd, norm, clip_factor, scale_all.
 *
 * Operands are groups of n tensors (p[0..n), m[0..n), ...), each walked element by element in
 * double and rounded once at every store. A tensor that is absent, or whose gradient is, is left
 * unchanged. If master is present it holds the exact weights and p their rounding.
 *
 * All operands are contiguous. Element types may differ from tensor to tensor.
 */
#include "kernels/ref/update.h"

/* Tensors without elements to update have size 0. */
static int64_t update_size(const k_tensor *g, const k_tensor *p)
{
  return k_absent(g) || k_absent(p) ? 0 : k_numel(p);
}

static void ref_put_weight(const k_tensor *p, const k_tensor *master, int64_t j, double w)
{
  if (!k_absent(master)) ref_put(master, j, w);
  ref_put(p, j, w);
}

/* ---- adamw ---------------------------------------------------------------------------------- */

int tide__ref_adamw_check(const k_call *call, const k_adamw_attrs *now)
{
  if (now->step >= 1) return TIDE_OK;
  return ref_fail(call, TIDE_E_ARG, "step is %lld, expected 1 for the first update",
                  (long long)now->step);
}

void tide__ref_adamw(const k_call *call, const k_adamw_attrs *a, int64_t i, int64_t begin,
                     int64_t end)
{
  const k_tensor *g = &call->in[i], *p = &call->out[i], *m = &call->out[a->n + i];
  const k_tensor *v = &call->out[2 * a->n + i], *master = &call->out[3 * a->n + i];
  double scale = ref_total_scale(&call->in[a->n], a->grad_scale, a->maximize);
  double rate = a->lr / (1 - pow(a->beta1, (double)a->step)), decay = a->lr * a->weight_decay;
  double root = 1 / sqrt(1 - pow(a->beta2, (double)a->step));
  for (int64_t j = begin; j < end; j++) {
    double gj = ref_get(g, j) * scale, w = ref_get(k_absent(master) ? p : master, j);
    double mj = ref_get(m, j) + (1 - a->beta1) * (gj - ref_get(m, j));
    double vj = ref_get(v, j) + (1 - a->beta2) * (gj * gj - ref_get(v, j));
    ref_put(m, j, mj);
    ref_put(v, j, vj);
    ref_put_weight(p, master, j, (w - decay * w) - rate * mj / (sqrt(vj) * root + a->eps));
  }
}

int k_ref_adamw_(const k_call *call)
{
  k_adamw_attrs now;
  const k_adamw_attrs *a = ref_adamw_now(call, &now);
  int rc = a ? tide__ref_adamw_check(call, a) : TIDE_OK;
  for (int64_t i = 0; a && rc == TIDE_OK && i < a->n; i++)
    tide__ref_adamw(call, a, i, 0, update_size(&call->in[i], &call->out[i]));
  return rc;
}

/* ---- sgd ------------------------------------------------------------------------------------ */

int tide__ref_sgd_check(const k_call *call, const k_sgd_attrs *now)
{
  for (int64_t i = 0; i < now->n && now->momentum != 0; i++) {
    int needs = update_size(&call->in[i], &call->out[i]) > 0;
    if (!needs || !k_absent(&call->out[now->n + i])) continue;
    return ref_fail(call, TIDE_E_ARG,
                    "buf %lld is absent, expected a buffer because momentum is not 0",
                    (long long)i);
  }
  return TIDE_OK;
}

void tide__ref_sgd(const k_call *call, const k_sgd_attrs *a, int64_t i, int64_t begin, int64_t end)
{
  const k_tensor *g = &call->in[i], *p = &call->out[i], *buf = &call->out[a->n + i];
  const k_tensor *master = &call->out[2 * a->n + i];
  double scale = ref_total_scale(&call->in[a->n], a->grad_scale, a->maximize);
  for (int64_t j = begin; j < end; j++) {
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

int k_ref_sgd_(const k_call *call)
{
  k_sgd_attrs now;
  const k_sgd_attrs *a = ref_sgd_now(call, &now);
  int rc = a ? tide__ref_sgd_check(call, a) : TIDE_OK;
  for (int64_t i = 0; a && rc == TIDE_OK && i < a->n; i++)
    tide__ref_sgd(call, a, i, 0, update_size(&call->in[i], &call->out[i]));
  return rc;
}

/* ---- norm, clip_factor, scale_all ----------------------------------------------------------- */

int tide__ref_norm_check(const k_call *call)
{
  double p = ((const k_norm_all_attrs *)call->attrs)->p;
  if (p == 2 || p == 1 || (isinf(p) && p > 0)) return TIDE_OK;
  return ref_fail(call, TIDE_E_ARG, "p is %g, expected 1, 2 or infinity", p);
}

int k_ref_norm(const k_call *call)
{
  const k_norm_all_attrs *a = call->attrs;
  TIDE_TRY(tide__ref_norm_check(call));
  double sum = 0;
  for (int64_t i = 0; i < a->n; i++) {
    int64_t numel = update_size(&call->in[i], &call->in[i]);
    for (int64_t j = 0; j < numel; j++) sum = ref_norm_add(sum, ref_get(&call->in[i], j), a->p);
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
    int64_t numel = update_size(x, x);
    for (int64_t j = 0; j < numel; j++) ref_put(x, j, ref_get(x, j) * factor);
  }
  return TIDE_OK;
}
