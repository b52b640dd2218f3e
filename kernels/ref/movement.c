/* Defines the ops that move elements: cat pad roll arange. Elements are copied as bits. */
#include "kernels/ref/load.h"

int k_ref_cat(const k_call *call)
{
  const k_tensor *y = &call->out[0];
  int dim = ((const k_dim_attrs *)call->attrs)->dim;
  int64_t begin = 0;
  for (int p = 0; p < call->nin; p++) {
    const k_tensor *x = &call->in[p];
    for (ref_walk w = ref_begin(x->shape, x->ndim); ref_more(&w); ref_step(&w))
      ref_convert(y, ref_offset(&w, y) + begin * y->stride[dim], x, ref_offset(&w, x));
    begin += x->shape[dim];
  }
  return TIDE_OK;
}

int k_ref_pad(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  const k_pad_attrs *a = call->attrs;
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w); ref_step(&w)) {
    int64_t at = 0, inside = 1;
    for (int d = 0; d < x->ndim; d++) {
      int64_t c = w.at[d] - a->before[d];
      inside = inside && c >= 0 && c < x->shape[d];
      at += c * x->stride[d];
    }
    if (inside) ref_convert(y, ref_offset(&w, y), x, at);
    else ref_put(y, ref_offset(&w, y), a->value);
  }
  return TIDE_OK;
}

int k_ref_roll(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  const k_roll_attrs *a = call->attrs;
  int64_t n = k_numel(y), size = y->ndim ? y->shape[a->dim] : 1, shift;
  if (n == 0 || y->ndim == 0) size = 1;
  shift = a->shift % size + (a->shift % size < 0 ? size : 0);
  for (ref_walk w = ref_begin(x->shape, x->ndim); ref_more(&w); ref_step(&w)) {
    int64_t at = ref_offset(&w, x), to = ref_offset(&w, y);
    if (y->ndim) {
      int64_t c = w.at[a->dim], moved = c < size - shift ? c + shift : c + shift - size;
      to += (moved - c) * y->stride[a->dim];
    }
    ref_convert(y, to, x, at);
  }
  return TIDE_OK;
}

static int is_whole(double v) { return v == floor(v) && fabs(v) < 0x1p62; }

/* Writes start + i * step. Integer outputs are exact when both are integers, else truncated. */
int k_ref_arange(const k_call *call)
{
  const k_tensor *y = &call->out[0];
  const k_arange_attrs *a = call->attrs;
  int64_t n = k_numel(y), step = y->ndim ? y->stride[0] : 0;
  int exact = !ref_is_float(y) && is_whole(a->start) && is_whole(a->step);
  for (int64_t i = 0; i < n; i++) {
    if (exact) {
      uint64_t moved = (uint64_t)i * (uint64_t)(int64_t)a->step;
      ref_put_int(y, i * step, (int64_t)((uint64_t)(int64_t)a->start + moved));
    } else ref_put(y, i * step, a->start + (double)i * a->step);
  }
  return TIDE_OK;
}
