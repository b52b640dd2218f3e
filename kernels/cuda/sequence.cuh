/* Sequence numbers of a packed stream, for kernels: as kernels/sequence.h. */
#pragma once

#include "kernels/cuda/block.cuh"

struct tide_sequence {
  tide_array number; /* null: one sequence */
  int64_t b, t;      /* strides */
};

static inline tide_sequence tide_sequence_of(const k_tensor &q)
{
  if (k_absent(&q)) return {{nullptr, TIDE_I64}, 0, 0};
  return {tide_array_of(q), q.shape[0] == 1 ? 0 : q.stride[0], q.stride[1]};
}

/* Tokens before 0 are of the sequence of token 0. */
TIDE_DEVICE int64_t tide_sequence_at(const tide_sequence &q, int64_t b, int64_t t)
{
  return q.number.data ? tide_at<int64_t>(q.number, b * q.b + (t < 0 ? 0 : t) * q.t) : 0;
}

/* Reports a number that is negative or smaller than the one before. */
static __global__ void tide_sequence_kernel(tide_sequence q, int64_t batch, int64_t time,
                                            tide_reporter r)
{
  TIDE_GRID_LOOP(i, batch * time) {
    int64_t b = i / time, t = i % time, v = tide_sequence_at(q, b, t);
    if (v < (t > 0 ? tide_sequence_at(q, b, t - 1) : 0)) tide_report(r, v, t);
  }
}

static inline int tide_sequence_check(const k_call *call, const k_tensor &q)
{
  if (k_absent(&q) || k_numel(&q) == 0) return TIDE_OK;
  TIDE_LAUNCH(tide_sequence_kernel, k_numel(&q), call, tide_sequence_of(q), q.shape[0], q.shape[1],
              tide_reporter{tide_cuda_fault_of(call), TIDE_FAULT_SEQUENCE, call->op, 0, 0});
  return TIDE_CUDA_LAUNCHED(call);
}
