/* Index ops: gather, scatter-add, index-select, index-add, embedding, one-hot.
 *
 * Indices are data, so kernels check them (all, before writing anything) and return E_ARG with the
 * position. Sums over equal indices run in index order: the same bits for every thread count.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

static int index_start(tide__call *c, int op, tide_tensor **out, int nin, tide_tensor *const *x,
                       int dim, int which)
{
  TIDE_TRY(tide__begin(c, op, out, nin, x, 0));
  TIDE_TRY(tide__check_index(x[which], TIDE__NAME(c), "index"));
  int d = tide__check_dim(x[0], dim, TIDE__NAME(c));
  if (d < 0) return d;
  c->attrs.dim.dim = d;
  return TIDE_OK;
}

/* Checks the index of gather or scatter: x's rank and no larger than x in the other dims. */
static int check_like(tide__call *c, const tide_tensor *x, const tide_tensor *index, int dim)
{
  bool fit = index->ndim == x->ndim;
  for (int d = 0; fit && d < x->ndim; d++) fit = d == dim || index->shape[d] <= x->shape[d];
  if (fit) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_SHAPE, "index %s does not fit x %s: it may be larger along dim only",
                    TIDE__SHAPE_OF(index), TIDE__SHAPE_OF(x));
}

int tide_gather(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index)
{
  tide__call c;
  TIDE_TRY(index_start(&c, TIDE_OP_GATHER, out, 2, (tide_tensor *[]){x, index}, dim, 1));
  TIDE_TRY(check_like(&c, x, index, c.attrs.dim.dim));
  return tide__dispatch_one(&c, out, x->dtype, index->ndim, index->shape);
}

/* Adds dy to zeros at the indices: the adjoint of picking elements of x. */
static int add_to_zeros(const tide__grad_call *g,
                        int (*add)(tide_tensor **, tide_tensor *, int, tide_tensor *,
                                   tide_tensor *))
{
  const tide__meta *m = &g->meta[0];
  tide__temps v = {0};
  tide_tensor *zero = TIDE__TEMP(&v, tide_full, g->ctx, m->device, m->dtype, m->ndim, m->shape, 0);
  TIDE__DO(&v, add(&g->gin[0], zero, g->attrs->dim.dim, g->in[1], g->gout[0]));
  return tide__temps_end(&v);
}

int tide__grad_gather(const tide__grad_call *g) { return add_to_zeros(g, tide_scatter_add); }

/* Copies x; the kernel adds src to the copy at index. The tape records (index, src, x). */
static int add_into_copy(tide__call *c, tide_tensor **out, tide_tensor *x, tide_tensor *index,
                         tide_tensor *src)
{
  int rc;
  if (src->dtype != x->dtype)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "src is %s, x is %s; cast one", tide_dtype_name(src->dtype),
                      tide_dtype_name(x->dtype));
  TIDE__UNRECORDED(c->ctx, rc = tide_clone(&c->out[0], x));
  TIDE_TRY(rc);
  c->in[0] = index;
  c->in[1] = src;
  c->in[2] = x;
  c->nin = 2;
  c->nout = 1;
  rc = tide__launch_checked(c);
  c->nin = 3;
  if (rc == TIDE_OK) rc = tide__record(c);
  if (rc < 0) tide_tensor_release(c->out[0]);
  else *out = c->out[0];
  return rc;
}

int tide_scatter_add(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index,
                     tide_tensor *src)
{
  tide__call c;
  TIDE_TRY(index_start(&c, TIDE_OP_SCATTER_ADD, out, 3, (tide_tensor *[]){x, index, src}, dim, 1));
  TIDE_TRY(check_like(&c, x, index, c.attrs.dim.dim));
  if (!tide__tensor_same_shape(src, index))
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "src %s and index %s differ", TIDE__SHAPE_OF(src),
                      TIDE__SHAPE_OF(index));
  return add_into_copy(&c, out, x, index, src);
}

/* Picks the gradient of src from dy: the adjoint of adding src. x gets dy itself. */
static int pick_from_dy(const tide__grad_call *g,
                        int (*pick)(tide_tensor **, tide_tensor *, int, tide_tensor *))
{
  if (g->need[1]) TIDE_TRY(pick(&g->gin[1], g->gout[0], g->attrs->dim.dim, g->in[0]));
  return g->need[2] ? tide_tensor_retain(g->gin[2] = g->gout[0]) : TIDE_OK;
}

int tide__grad_scatter_add(const tide__grad_call *g) { return pick_from_dy(g, tide_gather); }

int tide_index_select(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM];
  TIDE_TRY(index_start(&c, TIDE_OP_INDEX_SELECT, out, 2, (tide_tensor *[]){x, index}, dim, 1));
  if (index->ndim != 1)
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "index: expected 1 dim, got %s", TIDE__SHAPE_OF(index));
  memcpy(shape, x->shape, sizeof shape);
  shape[c.attrs.dim.dim] = index->shape[0];
  return tide__dispatch_one(&c, out, x->dtype, x->ndim, shape);
}

int tide__grad_index_select(const tide__grad_call *g) { return add_to_zeros(g, tide_index_add); }

int tide_index_add(tide_tensor **out, tide_tensor *x, int dim, tide_tensor *index, tide_tensor *src)
{
  tide__call c;
  TIDE_TRY(index_start(&c, TIDE_OP_INDEX_ADD, out, 3, (tide_tensor *[]){x, index, src}, dim, 1));
  bool fit = index->ndim == 1 && src->ndim == x->ndim;
  for (int d = 0; fit && d < x->ndim; d++)
    fit = src->shape[d] == (d == c.attrs.dim.dim ? index->shape[0] : x->shape[d]);
  if (!fit)
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "index %s and src %s do not fit x %s: src has the shape of "
                      "x, and along dim the size of index", TIDE__SHAPE_OF(index),
                      TIDE__SHAPE_OF(src), TIDE__SHAPE_OF(x));
  return add_into_copy(&c, out, x, index, src);
}

int tide__grad_index_add(const tide__grad_call *g) { return pick_from_dy(g, tide_index_select); }

int tide_embedding(tide_tensor **out, tide_tensor *weight, tide_tensor *ids)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, TIDE_OP_EMBEDDING, out, 2, (tide_tensor *[]){weight, ids}, 0));
  TIDE_TRY(tide__check_index(ids, "embedding", "ids"));
  if (weight->ndim != 2 || ids->ndim >= TIDE_MAX_DIM)
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "expected weight [V, D] and ids of at most %d dims, got %s "
                      "and %s", TIDE_MAX_DIM - 1, TIDE__SHAPE_OF(weight), TIDE__SHAPE_OF(ids));
  memcpy(shape, ids->shape, sizeof shape);
  shape[ids->ndim] = weight->shape[1];
  return tide__dispatch_one(&c, out, weight->dtype, ids->ndim + 1, shape);
}

/* Adds the rows of dy to a gradient, which they are few of: no other row is read or written. */
static int add_embedded(tide_tensor *sum, tide_tensor *dy, tide_tensor *ids)
{
  tide__call c;
  tide__temps v = {0};
  int64_t n = tide__tensor_numel(ids);
  ids = TIDE__TEMP(&v, tide_reshape, ids, 1, &n);
  dy = TIDE__TEMP(&v, tide_reshape, dy, 2, (int64_t[]){n, sum->shape[1]});
  TIDE__DO(&v, tide__begin(&c, TIDE_OP_INDEX_ADD, NULL, 2, (tide_tensor *[]){ids, dy}, 0));
  if (v.rc < 0) return tide__temps_end(&v);
  c.attrs.dim.dim = 0;
  c.nout = 1;
  c.out_[0] = sum;
  v.rc = tide__launch_checked(&c);
  sum->storage->version++;
  return tide__temps_end(&v);
}

int tide__grad_embedding(const tide__grad_call *g)
{
  tide__call c;
  const tide__meta *m = &g->meta[0];
  tide_tensor *dy = g->gout[0], *ids = g->in[1];
  if (g->sum && g->sum[0]) return add_embedded(g->sum[0], dy, ids);
  TIDE_TRY(tide__begin(&c, TIDE_OP_EMBEDDING_BWD, NULL, 2, (tide_tensor *[]){dy, ids}, 0));
  return tide__dispatch_one(&c, &g->gin[0], g->sum ? g->sum_dtype[0] : m->dtype, m->ndim,
                            m->shape);
}

int tide_one_hot(tide_tensor **out, tide_tensor *ids, int64_t nclass, int dtype)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, TIDE_OP_ONE_HOT, out, 1, &ids, 0));
  TIDE_TRY(tide__check_index(ids, "one_hot", "ids"));
  if (nclass < 0 || ids->ndim >= TIDE_MAX_DIM || !tide__dtype_valid(dtype))
    return TIDE__FAIL(&c, TIDE_E_ARG, "expected a class count >= 0, ids of at most %d dims and a "
                      "known dtype, got %lld, %d dims and %d", TIDE_MAX_DIM - 1, (long long)nclass,
                      ids->ndim, dtype);
  memcpy(shape, ids->shape, sizeof shape);
  shape[ids->ndim] = nclass;
  return tide__dispatch_one(&c, out, dtype, ids->ndim + 1, shape);
}
