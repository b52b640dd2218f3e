/* The offsets of grouped products, as ref and cpu read them. */
#pragma once

#include "kernels/ref/load.h"

/* Returns where group g of the rows begins; g is at most the number of groups. */
static inline int64_t ref_offset_of(const k_tensor *offsets, int64_t g)
{
  return ref_get_int(offsets, g * offsets->stride[0]);
}

/* Fails unless the offsets go up from 0 or more to `rows` or less. */
static inline int ref_check_offsets(const k_call *call, const k_tensor *offsets, int64_t rows)
{
  int64_t before = 0;
  for (int64_t g = 0; g < offsets->shape[0]; g++) {
    int64_t v = ref_offset_of(offsets, g);
    if (v < before || v > rows) {
      snprintf(call->msg, K_MSG, "offsets: %lld at position %lld; expected numbers from 0 to the "
               "%lld rows that never decrease", (long long)v, (long long)g, (long long)rows);
      return TIDE_E_ARG;
    }
    before = v;
  }
  return TIDE_OK;
}
