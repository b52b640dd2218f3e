/* Defines the indexing ops: gather scatter_add index_select index_add embedding one_hot.
 *
 * Every index is checked before anything is written. Ops that add use a scratch copy of the target
 * in doubles (int64_t for integers), so a float is rounded once however many terms it receives;
 * terms are added in index order. Indices are i64 or i32, 0-based.
 */
#include "kernels/ref/load.h"

static int ref_dim_of(const k_call *call) { return ((const k_dim_attrs *)call->attrs)->dim; }

/* Returns the offset in t of the walk's coordinates with coordinate `to` in dim. */
static int64_t ref_moved(const ref_walk *w, const k_tensor *t, int dim, int64_t to)
{
  return ref_offset(w, t) + (to - w->at[dim]) * t->stride[dim];
}

int k_ref_gather(const k_call *call)
{
  const k_tensor *x = &call->in[0], *index = &call->in[1], *y = &call->out[0];
  int dim = ref_dim_of(call);
  int rc = ref_check_index(call, index, x->shape[dim]);
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w) && rc == TIDE_OK; ref_step(&w)) {
    int64_t v = ref_get_int(index, ref_offset(&w, index));
    ref_convert(y, ref_offset(&w, y), x, ref_moved(&w, x, dim, v));
  }
  return rc;
}

int k_ref_index_select(const k_call *call)
{
  const k_tensor *x = &call->in[0], *index = &call->in[1], *y = &call->out[0];
  int dim = ref_dim_of(call);
  int rc = ref_check_index(call, index, x->shape[dim]);
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w) && rc == TIDE_OK; ref_step(&w)) {
    int64_t v = ref_get_int(index, w.at[dim] * index->stride[0]);
    ref_convert(y, ref_offset(&w, y), x, ref_moved(&w, x, dim, v));
  }
  return rc;
}

/* ---- adding through a row-major scratch copy ----------------------------------------------- */

static k_tensor scratch_of(const k_call *call, const k_tensor *t)
{
  k_tensor s = *t;
  int64_t step = 1;
  s.data = call->work;
  s.dtype = ref_is_float(t) ? TIDE_F64 : TIDE_I64;
  for (int d = t->ndim - 1; d >= 0; d--) {
    s.stride[d] = step;
    step *= t->shape[d];
  }
  return s;
}

static int64_t target_work(const k_call *call) { return k_numel(&call->out[0]) * 8; }
int64_t k_ref_scatter_add_work(const k_call *call) { return target_work(call); }
int64_t k_ref_index_add_work(const k_call *call) { return target_work(call); }
int64_t k_ref_embedding_bwd_work(const k_call *call) { return target_work(call); }

static void add_to(const k_tensor *sum, int64_t at, const k_tensor *x, int64_t x_at)
{
  if (sum->dtype == TIDE_F64) ((double *)sum->data)[at] += ref_get(x, x_at);
  else ((uint64_t *)sum->data)[at] += (uint64_t)ref_get_int(x, x_at);
}

/* Adds each element of src to t at the coordinates of the index (whole, or of one dim). */
static int add_at(const k_call *call, int whole)
{
  const k_tensor *index = &call->in[0], *src = &call->in[1], *t = &call->out[0];
  k_tensor sum = scratch_of(call, t);
  const int64_t *shape = whole ? index->shape : src->shape;
  int dim = ref_dim_of(call);
  TIDE_TRY(ref_check_index(call, index, t->shape[dim]));
  ref_copy_all(&sum, t);
  for (ref_walk w = ref_begin(shape, src->ndim); ref_more(&w); ref_step(&w)) {
    int64_t at = whole ? ref_offset(&w, index) : w.at[dim] * index->stride[0];
    add_to(&sum, ref_moved(&w, &sum, dim, ref_get_int(index, at)), src, ref_offset(&w, src));
  }
  ref_copy_all(t, &sum);
  return TIDE_OK;
}

int k_ref_scatter_add(const k_call *call) { return add_at(call, 1); }
int k_ref_index_add(const k_call *call) { return add_at(call, 0); }

/* ---- embedding ----------------------------------------------------------------------------- */

int k_ref_embedding(const k_call *call)
{
  const k_tensor *weight = &call->in[0], *ids = &call->in[1], *y = &call->out[0];
  int last = y->ndim - 1;
  int rc = ref_check_index(call, ids, weight->shape[0]);
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w) && rc == TIDE_OK; ref_step(&w)) {
    int64_t at = 0;
    for (int d = 0; d < last; d++) at += w.at[d] * ids->stride[d];
    ref_convert(y, ref_offset(&w, y), weight,
                ref_get_int(ids, at) * weight->stride[0] + w.at[last] * weight->stride[1]);
  }
  return rc;
}

int k_ref_embedding_bwd(const k_call *call)
{
  const k_tensor *dy = &call->in[0], *ids = &call->in[1], *dweight = &call->out[0];
  k_tensor sum = scratch_of(call, dweight);
  int last = dy->ndim - 1;
  TIDE_TRY(ref_check_index(call, ids, dweight->shape[0]));
  memset(sum.data, 0, (size_t)(k_numel(dweight) * 8));
  for (ref_walk w = ref_begin(dy->shape, dy->ndim); ref_more(&w); ref_step(&w)) {
    int64_t at = 0;
    for (int d = 0; d < last; d++) at += w.at[d] * ids->stride[d];
    add_to(&sum, ref_get_int(ids, at) * sum.stride[0] + w.at[last], dy, ref_offset(&w, dy));
  }
  ref_copy_all(dweight, &sum);
  return TIDE_OK;
}

int k_ref_one_hot(const k_call *call)
{
  const k_tensor *ids = &call->in[0], *y = &call->out[0];
  int last = y->ndim - 1;
  int rc = ref_check_index(call, ids, y->shape[last]);
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w) && rc == TIDE_OK; ref_step(&w)) {
    int64_t at = 0;
    for (int d = 0; d < last; d++) at += w.at[d] * ids->stride[d];
    ref_put_int(y, ref_offset(&w, y), ref_get_int(ids, at) == w.at[last]);
  }
  return rc;
}
