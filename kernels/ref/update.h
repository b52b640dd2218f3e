/* Optimiser steps, for kernels/ref and kernels/cpu: attributes overridden by the operands (rates
 * and found_inf), and the elements of one tensor in double. */
#pragma once

#include "kernels/ref/load.h"

/* Returns whether found_inf skips the step. control: the operands behind the gradients. */
static inline int ref_is_skipped(const k_tensor *control)
{
  return !k_absent(&control[2]) && !(ref_get(&control[2], 0) == 0);
}

/* Returns the attributes of the call in *now, with lr and step from rates if present; NULL if the
 * step is skipped. */
static inline const k_adamw_attrs *ref_adamw_now(const k_call *call, k_adamw_attrs *now)
{
  *now = *(const k_adamw_attrs *)call->attrs;
  const k_tensor *control = &call->in[now->n];
  if (ref_is_skipped(control)) return NULL;
  if (!k_absent(&control[1])) {
    now->lr = ref_get(&control[1], 0);
    double step = ref_get(&control[1], 1);
    now->step = step >= 1 && step < 0x1p62 ? (int64_t)step : 0;
  }
  return now;
}

static inline const k_sgd_attrs *ref_sgd_now(const k_call *call, k_sgd_attrs *now)
{
  *now = *(const k_sgd_attrs *)call->attrs;
  const k_tensor *control = &call->in[now->n];
  if (ref_is_skipped(control)) return NULL;
  if (!k_absent(&control[1])) {
    now->lr = ref_get(&control[1], 0);
    now->first = ref_get(&control[1], 1) == 1;
  }
  return now;
}

/* Computes elements [begin, end) of tensor i; `now` holds the attributes. f64 tensors of the CPU
 * kernels are computed here, too. */
void tide__ref_adamw(const k_call *call, const k_adamw_attrs *now, int64_t i, int64_t begin,
                     int64_t end);
void tide__ref_sgd(const k_call *call, const k_sgd_attrs *now, int64_t i, int64_t begin,
                   int64_t end);

/* Checks the number of the step. */
int tide__ref_adamw_check(const k_call *call, const k_adamw_attrs *now);
/* Checks that each tensor of a step with momentum has a buffer. */
int tide__ref_sgd_check(const k_call *call, const k_sgd_attrs *now);
/* Checks p of the global norm. */
int tide__ref_norm_check(const k_call *call);

/* Returns the factor of all gradients. g_scale: the operand, or absent. */
static inline double ref_total_scale(const k_tensor *g_scale, double grad_scale, int maximize)
{
  double scale = k_absent(g_scale) ? grad_scale : grad_scale * ref_get(g_scale, 0);
  return maximize ? -scale : scale;
}

/* Returns the norm so far (p 2: its square) with one more element. NaN stays. */
static inline double ref_norm_add(double sum, double x, double p)
{
  if (p == 2) return sum + x * x;
  x = fabs(x);
  return p == 1 ? sum + x : x > sum || isnan(x) ? x : sum;
}
