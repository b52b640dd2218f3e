/* A kernel of a device plugin: a row of kernels/kernel.def with the op by name. */
#pragma once

#include "kernels/kernel.h"

typedef struct k_row {
  const char *op;      /* name of the op, "add" */
  k_fn        fn;
  k_work_fn   work;    /* null: no scratch */
  uint32_t    dtypes;  /* of the op's key operand */
  int         layout;
} k_row;
