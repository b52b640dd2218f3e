/* Sequence numbers of a packed stream, as the state-space kernels read them: i32 or i64 [B or 1, T]
 * with batch stride 0 when 1, or absent.
 *
 * A sequence begins where the number changes. Numbers that decrease are refused before anything is
 * written.
 */
#pragma once

#include <stdio.h>

#include "kernels/kernel.h"

static inline int64_t sequence_at(const k_tensor *q, int64_t b, int64_t t)
{
  int64_t at = (q->shape[0] == 1 ? 0 : b * q->stride[0]) + t * q->stride[1];
  return q->dtype == TIDE_I32 ? ((const int32_t *)q->data)[at] : ((const int64_t *)q->data)[at];
}

/* Returns whether token t > 0 belongs to the same sequence as token t - 1. */
static inline int sequence_goes_on(const k_tensor *q, int64_t b, int64_t t)
{
  return k_absent(q) || sequence_at(q, b, t) == sequence_at(q, b, t - 1);
}

/* Returns the first token after t, at most end, at which another sequence begins. */
static inline int64_t sequence_end(const k_tensor *q, int64_t b, int64_t t, int64_t end)
{
  if (k_absent(q)) return end;
  for (t++; t < end && sequence_goes_on(q, b, t); t++) {}
  return t;
}

static inline int sequence_check(const k_call *call, const k_tensor *q)
{
  if (k_absent(q)) return TIDE_OK;
  for (int64_t b = 0; b < q->shape[0]; b++)
    for (int64_t t = 0, last = 0; t < q->shape[1]; t++) {
      int64_t v = sequence_at(q, b, t);
      if (v < last) {
        snprintf(call->msg, K_MSG, "sequence: number %lld at token %lld; expected numbers from 0 "
                 "on that never decrease (is the end of the stream covered?)", (long long)v,
                 (long long)t);
        return TIDE_E_ARG;
      }
      last = v;
    }
  return TIDE_OK;
}
