/* Reductions: sums, means, products, extrema, argmax, cumsum.
 *
 * Any set of dims is reduced by one kernel shape: kept dims first, reduced dims last, by a permuted
 * view. The result is then viewed in the caller's order, with size-1 dims if requested.
 */
#include "core/op/op.h"

/* Returns the bit set of reduced dims in *mask; ndim 0 means all. */
static int dim_mask(uint32_t *mask, const tide_tensor *x, int ndim, const int32_t *dims,
                    const char *op)
{
  *mask = 0;
  TIDE_TRY(tide__check_ndim(x->ctx, op, "dims", ndim, dims));
  if (ndim == 0) *mask = (1u << x->ndim) - 1;
  for (int i = 0; i < ndim; i++) {
    int d = tide__resolve_dim(dims[i], x->ndim);
    if (d < 0)
      return tide__fail(x->ctx, TIDE_E_ARG, op, "dims: %d is outside a tensor of %d dims", dims[i],
                        x->ndim);
    if (*mask >> d & 1)
      return tide__fail(x->ctx, TIDE_E_ARG, op, "dims: %d is named twice", dims[i]);
    *mask |= 1u << d;
  }
  return TIDE_OK;
}

/* Returns x with kept dims first and reduced dims last. */
static int split_view(tide_tensor **out, tide_tensor *x, uint32_t mask, int *nkeep)
{
  int64_t shape[TIDE_MAX_DIM], stride[TIDE_MAX_DIM];
  int n = 0;
  for (int reduced = 0; reduced < 2; reduced++) {
    for (int d = 0; d < x->ndim; d++)
      if ((int)(mask >> d & 1) == reduced) {
        shape[n] = x->shape[d];
        stride[n++] = x->stride[d];
      }
    if (!reduced) *nkeep = n;
  }
  return tide__tensor_view(out, x, n, shape, stride, x->offset);
}

/* Computes the shape of the result in x's dim order. */
static int result_shape(const tide_tensor *x, uint32_t mask, bool keepdim, int64_t *shape)
{
  int n = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (!(mask >> d & 1)) shape[n++] = x->shape[d];
    else if (keepdim) shape[n++] = 1;
  }
  return n;
}

static int reduce_over(tide_tensor **out, int op, tide_tensor *x, uint32_t mask, bool keepdim,
                       int dtype)
{
  tide__call c;
  tide_tensor *view;
  int64_t shape[TIDE_MAX_DIM];
  int nkeep;
  TIDE_TRY(tide__begin(&c, op, out, 1, &x, 0));
  TIDE_TRY(split_view(&view, x, mask, &nkeep));
  int ndim = result_shape(x, mask, keepdim, shape);
  tide__result(&c, 0, dtype, ndim, shape);
  c.attrs.reduce.nkeep = nkeep;
  memset(&c.tape, 0, sizeof c.tape.dims);
  c.tape.dims.mask = mask;
  c.tape.dims.keepdim = keepdim;
  c.tape_differs = true;
  /* The kernel sees the permuted view, the tape the caller's own tensor. */
  c.in_[0] = view;
  c.tape_in = &x;
  int rc = tide__dispatch(&c, out, 1);
  tide_tensor_release(view);
  return rc;
}

static int accumulator(int dtype) { return tide__dtype_is_float(dtype) ? dtype : TIDE_I64; }

static int over_dims(tide_tensor **out, int op, tide_tensor *x, int ndim, const int32_t *dims,
                     bool keepdim, int dtype)
{
  uint32_t mask;
  TIDE_TRY(dim_mask(&mask, x, ndim, dims, tide__op_get(op)->name));
  return reduce_over(out, op, x, mask, keepdim, dtype);
}

int tide_sum(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_SUM, x, ndim, dims, keepdim, accumulator(x->dtype));
}

int tide_prod(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_PROD, x, ndim, dims, keepdim, accumulator(x->dtype));
}

int tide_mean(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  TIDE_TRY(tide__check_float(x, "mean", "x"));
  return over_dims(out, TIDE_OP_MEAN, x, ndim, dims, keepdim, x->dtype);
}

int tide_amax(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_AMAX, x, ndim, dims, keepdim, x->dtype);
}

int tide_amin(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_AMIN, x, ndim, dims, keepdim, x->dtype);
}

int tide_any(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_ANY, x, ndim, dims, keepdim, TIDE_BOOL);
}

int tide_all(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_ALL, x, ndim, dims, keepdim, TIDE_BOOL);
}

int tide_argmax(tide_tensor **out, tide_tensor *x, int dim, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_ARGMAX, x, 1, (int32_t[]){dim}, keepdim, TIDE_I64);
}

int tide_argmin(tide_tensor **out, tide_tensor *x, int dim, bool keepdim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  return over_dims(out, TIDE_OP_ARGMIN, x, 1, (int32_t[]){dim}, keepdim, TIDE_I64);
}

/* The kernel runs along the last dim: moves dim there, runs, and moves it back. */
int tide_cumsum(tide_tensor **out, tide_tensor *x, int dim)
{
  tide__call c;
  tide_tensor *moved = NULL, *y = NULL;
  TIDE_TRY(tide__begin(&c, TIDE_OP_CUMSUM, out, 1, &x, 0));
  int d = tide__resolve_dim(dim, x->ndim);
  if (d < 0)
    return TIDE__FAIL(&c, TIDE_E_ARG, "dim: %d is outside a tensor of %d dims", dim, x->ndim);
  TIDE_TRY(tide_transpose(&moved, x, d, -1));
  c.in_[0] = moved;
  c.attrs.reduce.nkeep = x->ndim - 1;
  tide__result(&c, 0, accumulator(x->dtype), moved->ndim, moved->shape);
  int rc = tide__dispatch(&c, &y, 1);
  tide_tensor_release(moved);
  if (rc < 0 || d == x->ndim - 1) {
    *out = y;
    return rc;
  }
  rc = tide_transpose(out, y, d, -1);
  tide_tensor_release(y);
  return rc;
}

/* ---- derivatives ----------------------------------------------------------------------------- */

/* Expands t (of the reduced shape) to input 0's shape, with its dims of size 1 put back. */
static int spread(tide_tensor **out, const tide__grad_call *g, tide_tensor *t)
{
  const tide__meta *m = &g->meta[0];
  int64_t shape[TIDE_MAX_DIM];
  tide_tensor *r = NULL;
  for (int d = 0; d < m->ndim; d++) shape[d] = g->attrs->dims.mask >> d & 1 ? 1 : m->shape[d];
  TIDE_TRY(tide_reshape(&r, t, m->ndim, shape));
  int rc = tide_expand(out, r, m->ndim, m->shape);
  tide_tensor_release(r);
  return rc;
}

int tide__grad_sum(const tide__grad_call *g) { return spread(&g->gin[0], g, g->gout[0]); }

int tide__grad_mean(const tide__grad_call *g)
{
  double n = 1;
  tide_tensor *t = NULL;
  for (int d = 0; d < g->meta[0].ndim; d++)
    if (g->attrs->dims.mask >> d & 1) n *= (double)g->meta[0].shape[d];
  TIDE_TRY(tide_affine(&t, g->gout[0], n > 0 ? 1 / n : 0, 0));
  int rc = spread(&g->gin[0], g, t);
  tide_tensor_release(t);
  return rc;
}

/* Equal extrema share the gradient evenly. */
int tide__grad_extremum(const tide__grad_call *g)
{
  tide_tensor *y = NULL, *hit = NULL, *mask = NULL, *count = NULL, *share = NULL, *dy = NULL;
  int32_t dims[TIDE_MAX_DIM];
  int n = 0;
  for (int d = 0; d < g->meta[0].ndim; d++)
    if (g->attrs->dims.mask >> d & 1) dims[n++] = d;
  int rc = spread(&y, g, g->out[0]);
  if (rc == TIDE_OK) rc = tide_eq(&hit, g->in[0], y);
  if (rc == TIDE_OK) rc = tide_cast(&mask, hit, g->meta[0].dtype);
  if (rc == TIDE_OK) rc = tide_sum(&count, mask, n, dims, true);
  if (rc == TIDE_OK) rc = tide_div(&share, mask, count);
  if (rc == TIDE_OK) rc = spread(&dy, g, g->gout[0]);
  if (rc == TIDE_OK) rc = tide_mul(&g->gin[0], dy, share);
  tide_tensor *all[] = {y, hit, mask, count, share, dy};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tide_tensor_release(all[i]);
  return rc;
}

/* Returns the factors in f64 with each zero replaced by 1, their product p over the reduced dims,
 * and the number of zeros there; sizes of 1 stay. f64: with all factors the product may leave the
 * range of a narrower dtype although it stays within it with any one of them left out. */
static int prod_parts(const tide__grad_call *g, tide_tensor **hit, tide_tensor **filled,
                      tide_tensor **p, tide_tensor **count)
{
  int32_t dims[TIDE_MAX_DIM];
  int n = 0;
  tide_tensor *mask = NULL, *zero = NULL, *one = NULL, *x = NULL;
  const tide__meta *m = &g->meta[0];
  for (int d = 0; d < m->ndim; d++)
    if (g->attrs->dims.mask >> d & 1) dims[n++] = d;
  int rc = tide_full(&zero, g->ctx, m->device, m->dtype, 0, NULL, 0);
  if (rc == TIDE_OK) rc = tide_full(&one, g->ctx, m->device, TIDE_F64, 0, NULL, 1);
  if (rc == TIDE_OK) rc = tide_eq(hit, g->in[0], zero);
  if (rc == TIDE_OK) rc = tide_cast(&x, g->in[0], TIDE_F64);
  if (rc == TIDE_OK) rc = tide_where(filled, *hit, one, x);
  if (rc == TIDE_OK) rc = tide_prod(p, *filled, n, dims, true);
  if (rc == TIDE_OK) rc = tide_cast(&mask, *hit, TIDE_F32);
  if (rc == TIDE_OK) rc = tide_sum(count, mask, n, dims, true);
  tide_tensor *all[] = {mask, zero, one, x};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) tide_tensor_release(all[i]);
  return rc;
}

/* Computes dy p where count == k, else 0. */
static int prod_share(tide_tensor **out, tide_tensor *dyp, tide_tensor *count, tide_tensor *zero,
                      double k)
{
  tide_tensor *same = NULL, *number = NULL;
  int rc = tide_full(&number, dyp->ctx, dyp->storage->device, TIDE_F32, 0, NULL, k);
  if (rc == TIDE_OK) rc = tide_eq(&same, count, number);
  if (rc == TIDE_OK) rc = tide_where(out, same, dyp, zero);
  tide_tensor_release(number);
  tide_tensor_release(same);
  return rc;
}

/* dx is dy times the product of the other factors: y / x where no factor is zero; with one zero
 * the product of the rest for it and 0 for the rest; with more zeros 0 for all. */
int tide__grad_prod(const tide__grad_call *g)
{
  enum { ZERO, HIT, FILLED, P, COUNT, DY, DYP, NONE, SINGLE, REST, DX, N };
  tide_tensor *t[N] = {NULL}, *dy = NULL;
  const tide__meta *m = &g->meta[0];
  int64_t shape[TIDE_MAX_DIM];
  for (int d = 0; d < m->ndim; d++) shape[d] = g->attrs->dims.mask >> d & 1 ? 1 : m->shape[d];
  int rc = prod_parts(g, &t[HIT], &t[FILLED], &t[P], &t[COUNT]);
  if (rc == TIDE_OK) rc = tide_full(&t[ZERO], g->ctx, m->device, TIDE_F64, 0, NULL, 0);
  if (rc == TIDE_OK) rc = tide_reshape(&dy, g->gout[0], m->ndim, shape);
  if (rc == TIDE_OK) rc = tide_cast(&t[DY], dy, TIDE_F64);
  if (rc == TIDE_OK) rc = tide_mul(&t[DYP], t[DY], t[P]);
  if (rc == TIDE_OK) rc = prod_share(&t[NONE], t[DYP], t[COUNT], t[ZERO], 0);
  if (rc == TIDE_OK) rc = prod_share(&t[SINGLE], t[DYP], t[COUNT], t[ZERO], 1);
  if (rc == TIDE_OK) rc = tide_div(&t[REST], t[NONE], t[FILLED]);
  if (rc == TIDE_OK) rc = tide_where(&t[DX], t[HIT], t[SINGLE], t[REST]);
  if (rc == TIDE_OK) rc = tide_cast(&g->gin[0], t[DX], m->dtype);
  tide_tensor_release(dy);
  for (int i = 0; i < N; i++) tide_tensor_release(t[i]);
  return rc;
}

/* The adjoint of a running sum is the running sum from the end: total - cumsum + dy. */
int tide__grad_cumsum(const tide__grad_call *g)
{
  tide_tensor *total = NULL, *c = NULL, *t = NULL;
  int32_t last = -1;
  int rc = tide_sum(&total, g->gout[0], 1, &last, true);
  if (rc == TIDE_OK) rc = tide_cumsum(&c, g->gout[0], -1);
  if (rc == TIDE_OK) rc = tide_sub(&t, total, c);
  if (rc == TIDE_OK) rc = tide_add(&g->gin[0], t, g->gout[0]);
  tide_tensor_release(total);
  tide_tensor_release(c);
  tide_tensor_release(t);
  return rc;
}

/* ---- the adjoint of broadcasting ------------------------------------------------------------- */

int tide__sum_to(tide_tensor **out, tide_tensor *x, const tide__meta *m)
{
  int32_t dims[TIDE_MAX_DIM];
  int n = 0, lead = x->ndim - m->ndim;
  for (int d = 0; d < x->ndim; d++)
    if (d < lead || (m->shape[d - lead] == 1 && x->shape[d] != 1)) dims[n++] = d;
  if (n == 0 && x->dtype == m->dtype) {
    *out = x;
    return tide_tensor_retain(x);
  }
  tide_tensor *s = NULL, *r = NULL;
  int rc = n ? tide_sum(&s, x, n, dims, true) : tide_tensor_retain(s = x);
  if (rc == TIDE_OK) rc = tide_reshape(&r, s, m->ndim, m->shape);
  if (rc == TIDE_OK) rc = tide_cast(out, r, m->dtype);
  tide_tensor_release(s);
  tide_tensor_release(r);
  return rc;
}
