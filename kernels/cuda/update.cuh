/* What the optimiser steps on the GPU share: lists of tensors cut into chunks, and what changes
 * from step to step.
 *
 * One launch takes up to LIST tensors. Their addresses travel as arguments of the kernel, so
 * nothing is uploaded; the elements of all are cut into chunks of CHUNK and a block takes one.
 */
#pragma once

#include "kernels/cuda/block.cuh"

namespace {

enum { LIST = 48, CHUNK = 8192, MEMBERS = 7, THREADS = 256 };

/* Up to seven parallel arrays a tensor; absent ones are null. */
struct entry {
  void *data[MEMBERS];
  int64_t numel;
  int32_t first_chunk;
  int8_t dtype[MEMBERS];
};
struct list {
  entry e[LIST];
  int n;
  int64_t chunks, base; /* chunks here, and before this list */
};

TIDE_DEVICE tide_array member(const entry &e, int k) { return {e.data[k], e.dtype[k]}; }

/* Returns the entry that a chunk belongs to, and its elements [*from, *to). */
TIDE_DEVICE int find(const list &l, int64_t chunk, int64_t *from, int64_t *to)
{
  int at = tide_entry_of(l.e, l.n, chunk);
  *from = (chunk - l.e[at].first_chunk) * CHUNK;
  *to = *from + CHUNK < l.e[at].numel ? *from + CHUNK : l.e[at].numel;
  return at;
}

inline int64_t chunks_of(const k_tensor &t)
{
  return k_absent(&t) ? 0 : (k_numel(&t) + CHUNK - 1) / CHUNK;
}

/* Calls launch(list) for the tensors i of [0, n) that choose(i) takes, with members
 * (members[k][i]), at most LIST at a time. Those whose first or second member is absent, or empty,
 * are left out.
 * Returns how many chunks there were, with `base` before them. */
template <class C, class L>
int64_t each_list_of(int64_t n, int nmember, const k_tensor *const *members, int64_t base,
                     C choose, L launch)
{
  list l = {};
  l.base = base;
  for (int64_t i = 0; i < n; i++) {
    const k_tensor &head = members[0][i];
    int64_t chunks = chunks_of(head);
    bool skip = chunks == 0 || (nmember > 1 && k_absent(&members[1][i])) || !choose(i);
    if (!skip) {
      entry &e = l.e[l.n++];
      e.numel = k_numel(&head);
      e.first_chunk = (int32_t)l.chunks;
      for (int k = 0; k < nmember; k++) {
        tide_array a = tide_array_of(members[k][i]);
        e.data[k] = a.data;
        e.dtype[k] = (int8_t)a.dtype;
      }
      l.chunks += chunks;
    }
    bool full = l.n == LIST || l.chunks > 1 << 30;
    if (l.n > 0 && (full || i + 1 == n)) {
      launch(l);
      l.base += l.chunks;
      l.n = 0, l.chunks = 0;
    }
  }
  return l.base - base;
}

/* Does the same for all tensors. */
template <class L>
int each_list(const k_call *call, int64_t n, int nmember, const k_tensor *const *members, L launch)
{
  each_list_of(n, nmember, members, 0, [](int64_t) { return true; }, launch);
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* What changes from step to step. */
struct adamw_now { double shrink, step_size, root2; bool skip; };

struct adamw_args {
  double beta1, beta2, eps, scale;
  adamw_now now;
  const adamw_now *far; /* or, if not null, there */
  const void *g_scale, *found_inf;
  int g_scale_dtype;
};

/* Returns a * b, the same bits on host and device: it cannot be fused with a sum. */
__host__ __device__ __forceinline__ double product(double a, double b)
{
#ifdef __CUDA_ARCH__
  return __dmul_rn(a, b);
#else
  return a * b;
#endif
}

/* Returns b^n by squaring, n >= 0. */
__host__ __device__ __forceinline__ double power(double b, int64_t n)
{
  double r = 1;
  for (; n > 0; n >>= 1, b = product(b, b))
    if (n & 1) r = product(r, b);
  return r;
}

__host__ __device__ __forceinline__ adamw_now adamw_at(double lr, int64_t step, double decay,
                                                       double beta1, double beta2)
{
  return {product(lr, decay), lr / (1 - power(beta1, step)), sqrt(1 - power(beta2, step)), false};
}

/* rates: {lr, step}. One thread. */
static __global__ void adamw_now_kernel(const double *rates, double decay, double beta1,
                                        double beta2, adamw_now *now, tide_reporter fault)
{
  double step = rates[1];
  bool good = step >= 1 && step < 0x1p62;
  *now = adamw_at(rates[0], good ? (int64_t)step : 1, decay, beta1, beta2);
  now->skip = !good;
  if (!good) tide_report(fault, step > -0x1p62 && step < 1 ? (int64_t)step : 0, 0);
}

/* Unless found_inf is 0 a step leaves everything as it is. */
TIDE_DEVICE bool left_out(const void *found_inf)
{
  return found_inf && !(*static_cast<const float *>(found_inf) == 0);
}

TIDE_DEVICE double total_scale(double scale, const void *g_scale, int dtype)
{
  return g_scale ? scale * tide_load<double>(g_scale, 0, dtype) : scale;
}

/* Returns control k (kernel.h), null where it is absent. */
inline const void *control(const k_call *call, int64_t n, int k)
{
  return tide_array_of(call->in[n + k]).data;
}

/* Returns the arguments of a step of AdamW; rates on the device are worked out there, in
 * call->work. */
inline adamw_args adamw_args_of(const k_call *call, const k_adamw_attrs *a)
{
  tide_array g_scale = tide_array_of(call->in[a->n]);
  const double *rates = static_cast<const double *>(control(call, a->n, 1));
  adamw_now *far = rates ? static_cast<adamw_now *>(call->work) : nullptr;
  if (far)
    TIDE_CUDA_LAUNCH(call, adamw_now_kernel, 1, 1, 0, rates, a->weight_decay, a->beta1, a->beta2,
                     far, tide_reporter{tide_cuda_fault_of(call), TIDE_FAULT_STEP, call->op, 0, 0});
  return {a->beta1, a->beta2, a->eps, a->maximize ? -a->grad_scale : a->grad_scale,
          adamw_at(a->lr, a->step, a->weight_decay, a->beta1, a->beta2), far, g_scale.data,
          control(call, a->n, 2), g_scale.dtype};
}

/* Scratch of a step of AdamW. */
inline int64_t adamw_work(const k_call *call)
{
  const k_adamw_attrs *a = static_cast<const k_adamw_attrs *>(call->attrs);
  return control(call, a->n, 1) ? (int64_t)sizeof(adamw_now) : 0;
}

/* Returns TIDE_OK, or E_ARG with a message. */
inline int adamw_check(const k_call *call, const k_adamw_attrs *a)
{
  if (a->step >= 1) return TIDE_OK;
  snprintf(call->msg, K_MSG, "step is %lld, expected 1 for the first update", (long long)a->step);
  return TIDE_E_ARG;
}

}  // namespace
