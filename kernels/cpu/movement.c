/* Fast ops that move elements: cat pad roll, each a few strided copies between boxes of the
 * operands. arange is left to kernels/ref. Definition: kernels/ref/movement.c. */
#include "kernels/cpu/loop.h"
#include "kernels/ref/load.h"

/* Returns n elements of dim from `begin` on. */
static k_tensor narrow(const k_tensor *t, int dim, int64_t begin, int64_t n)
{
  k_tensor v = *t;
  v.shape[dim] = n;
  v.data = (char *)t->data + begin * t->stride[dim] * tide_dtype_size(t->dtype);
  return v;
}

int k_cpu_cat(const k_call *call)
{
  int dim = ((const k_dim_attrs *)call->attrs)->dim;
  int64_t begin = 0;
  for (int i = 0; i < call->nin; i++) {
    const k_tensor *x = &call->in[i];
    k_tensor part = narrow(&call->out[0], dim, begin, x->shape[dim]);
    tide__loop_convert(&part, x, call->nthread);
    begin += x->shape[dim];
  }
  return TIDE_OK;
}

int k_cpu_pad(const k_call *call)
{
  const k_pad_attrs *a = call->attrs;
  k_tensor x = call->in[0], y = call->out[0];
  const k_scalar_attrs value = { 0, a->value };
  int covered = 1, empty = k_numel(&x) == 0;
  if (k_numel(&y) == 0) return TIDE_OK;
  for (int d = 0; d < x.ndim; d++) {
    int64_t begin = a->before[d] > 0 ? a->before[d] : 0, end = a->before[d] + x.shape[d];
    end = end < y.shape[d] ? end : y.shape[d];
    covered = covered && begin == 0 && end == y.shape[d];
    empty = empty || end <= begin;
    if (empty) break;
    x = narrow(&x, d, begin - a->before[d], end - begin);
    y = narrow(&y, d, begin, end - begin);
  }
  if (!covered || empty) {
    k_call fill = *call;
    fill.attrs = &value;
    k_cpu_fill_(&fill);
  }
  if (!empty) tide__loop_convert(&y, &x, call->nthread);
  return TIDE_OK;
}

int k_cpu_roll(const k_call *call)
{
  const k_roll_attrs *a = call->attrs;
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  if (k_numel(y) == 0) return TIDE_OK;
  if (y->ndim == 0) {
    tide__loop_convert(y, x, 1);
    return TIDE_OK;
  }
  int64_t n = y->shape[a->dim], shift = a->shift % n;
  if (shift < 0) shift += n;
  k_tensor front = narrow(y, a->dim, 0, shift), back = narrow(y, a->dim, shift, n - shift);
  k_tensor head = narrow(x, a->dim, 0, n - shift), tail = narrow(x, a->dim, n - shift, shift);
  tide__loop_convert(&back, &head, call->nthread);
  tide__loop_convert(&front, &tail, call->nthread);
  return TIDE_OK;
}
