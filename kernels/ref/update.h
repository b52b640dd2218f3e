/* The attributes of an optimiser step with what its operands say now: rates and found_inf.
 */
#ifndef TIDE_KERNELS_REF_UPDATE_H
#define TIDE_KERNELS_REF_UPDATE_H

#include "kernels/ref/load.h"

/* Whether the step leaves everything as it is. control: the operands behind the gradients. */
static inline int ref_left_out(const k_tensor *control)
{
  return !k_absent(&control[2]) && !(ref_get(&control[2], 0) == 0);
}

/* The attributes of the call, in *now where rates replace some; null: the step is left out. */
static inline const k_adamw_attrs *ref_adamw_now(const k_call *call, k_adamw_attrs *now)
{
  *now = *(const k_adamw_attrs *)call->attrs;
  const k_tensor *control = &call->in[now->n];
  if (ref_left_out(control)) return NULL;
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
  if (ref_left_out(control)) return NULL;
  if (!k_absent(&control[1])) {
    now->lr = ref_get(&control[1], 0);
    now->first = ref_get(&control[1], 1) == 1;
  }
  return now;
}

#endif
