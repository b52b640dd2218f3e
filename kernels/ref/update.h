/* The attributes of an optimiser step, overridden by its operands: rates and found_inf. */
#ifndef TIDE_KERNELS_REF_UPDATE_H
#define TIDE_KERNELS_REF_UPDATE_H

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

#endif
