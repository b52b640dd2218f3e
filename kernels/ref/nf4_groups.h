/* The groups of grouped_linear_nf4, as ref and cpu read them: each is a call of linear_nf4. */
#pragma once

#include "kernels/ref/grouped.h"

/* The product of one group. */
typedef struct nf4_group {
  k_call   call;
  k_tensor in[4], out;
} nf4_group;

static inline int64_t nf4_group_count(const k_call *call) { return call->in[3].shape[0] - 1; }

static inline void *nf4_row_of(const k_tensor *t, int64_t row)
{
  int64_t at = row * t->shape[1] * tide_dtype_size(t->dtype);
  return t->data ? (char *)t->data + at : NULL;
}

/* Makes the call of linear_nf4 for rows [first, first + n) and the weight of group g. */
static inline void nf4_group_make(nf4_group *p, const k_call *call, int64_t g, int64_t first,
                                  int64_t n)
{
  for (int i = 0; i < 3; i++) p->in[i] = call->in[i];
  p->in[0].data = nf4_row_of(&call->in[0], first);
  p->in[0].shape[0] = n;
  for (int i = 1; i < 3; i++) {
    p->in[i].data = nf4_row_of(&call->in[i], g);
    p->in[i].ndim = 1;
    p->in[i].shape[0] = call->in[i].shape[1];
    p->in[i].stride[0] = 1;
  }
  p->in[3] = (k_tensor){.ndim = -1};
  p->out = call->out[0];
  p->out.data = nf4_row_of(&call->out[0], first);
  p->out.shape[0] = n;
  p->call = *call;
  p->call.in = p->in;
  p->call.out = &p->out;
  p->call.plan = NULL;
}

/* Computes the product of each group that has rows by fn, linear_nf4; a row in no group is 0. */
static inline int nf4_each_group(const k_call *call, k_fn fn)
{
  const k_tensor *y = &call->out[0], *offsets = &call->in[3];
  int64_t rows = y->shape[0], groups = nf4_group_count(call);
  TIDE_TRY(ref_check_offsets(call, offsets, rows));
  int64_t begin = ref_offset_of(offsets, 0), end = ref_offset_of(offsets, groups);
  size_t row = (size_t)(y->shape[1] * tide_dtype_size(y->dtype));
  if (row > 0 && rows > 0) {
    memset(y->data, 0, (size_t)begin * row);
    memset(nf4_row_of(y, end), 0, (size_t)(rows - end) * row);
  }
  for (int64_t g = 0; g < groups; g++) {
    int64_t first = ref_offset_of(offsets, g), n = ref_offset_of(offsets, g + 1) - first;
    nf4_group p;
    nf4_group_make(&p, call, g, first, n);
    if (n > 0) TIDE_TRY(fn(&p.call));
  }
  return TIDE_OK;
}
