/* Targets of the losses, for kernels/ref/loss.c and the losses of kernels/cpu. */
#pragma once

#include "kernels/ref/load.h"

static inline int64_t loss_target(const k_tensor *targets, int64_t i)
{
  return ref_get_int(targets, i * targets->stride[0]);
}

/* Returns the target of row i, -1 for a token that does not count. */
static inline int64_t loss_counted(const k_cross_entropy_attrs *attrs, const k_tensor *targets,
                                   int64_t i)
{
  int64_t target = loss_target(targets, i);
  return target == attrs->ignore_index ? -1 : target;
}

/* Checks that every target is ignore_index or a class in [0, nclass). */
static inline int loss_check_targets(const k_call *call, const k_tensor *targets, int64_t nclass)
{
  const k_cross_entropy_attrs *attrs = call->attrs;
  for (int64_t i = 0; i < targets->shape[0]; i++) {
    int64_t t = loss_target(targets, i);
    if (t == attrs->ignore_index || (t >= 0 && t < nclass)) continue;
    return ref_fail(call, TIDE_E_ARG,
                    "the target of row %lld is %lld, expected a class in [0, %lld) or the "
                    "ignore_index %lld",
                    (long long)i, (long long)t, (long long)nclass, (long long)attrs->ignore_index);
  }
  return TIDE_OK;
}
