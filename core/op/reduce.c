/* Reductions: sums, means, products, extrema, argmax, cumsum.
 *
 * Any set of dims is reduced by one kernel shape: kept dims first, reduced dims last, by a permuted
 * view. The result is then viewed in the caller's order, with size-1 dims if requested.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

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

static int accumulator(int dtype) { return tide__dtype_is_float(dtype) ? dtype : TIDE_I64; }

enum { SAME = -1, WIDE = -2 }; /* the dtype of a result beside TIDE_*: x's, or its accumulator's */

static int over_dims(tide_tensor **out, int op, tide_tensor *x, int ndim, const int32_t *dims,
                     bool keepdim, int dtype)
{
  tide__call c;
  tide_tensor *view;
  uint32_t mask;
  int64_t shape[TIDE_MAX_DIM];
  int nkeep;
  TIDE_TRY(tide__begin(&c, op, out, 1, &x, 0));
  if (op == TIDE_OP_MEAN) TIDE_TRY(tide__check_float(x, "mean", "x"));
  TIDE_TRY(dim_mask(&mask, x, ndim, dims, TIDE__NAME(&c)));
  TIDE_TRY(split_view(&view, x, mask, &nkeep));
  if (dtype < 0) dtype = dtype == SAME ? x->dtype : accumulator(x->dtype);
  c.attrs.reduce.nkeep = nkeep;
  memset(&c.tape, 0, sizeof c.tape.dims);
  c.tape.dims.mask = mask;
  c.tape.dims.keepdim = keepdim;
  c.tape_differs = true;
  /* The kernel sees the permuted view, the tape the caller's own tensor. */
  c.in_[0] = view;
  c.tape_in = &x;
  int rc = tide__dispatch_one(&c, out, dtype, result_shape(x, mask, keepdim, shape), shape);
  tide_tensor_release(view);
  return rc;
}

int tide_sum(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  return over_dims(out, TIDE_OP_SUM, x, ndim, dims, keepdim, WIDE);
}

int tide_prod(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  return over_dims(out, TIDE_OP_PROD, x, ndim, dims, keepdim, WIDE);
}

int tide_mean(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  return over_dims(out, TIDE_OP_MEAN, x, ndim, dims, keepdim, SAME);
}

int tide_amax(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  return over_dims(out, TIDE_OP_AMAX, x, ndim, dims, keepdim, SAME);
}

int tide_amin(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  return over_dims(out, TIDE_OP_AMIN, x, ndim, dims, keepdim, SAME);
}

int tide_any(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  return over_dims(out, TIDE_OP_ANY, x, ndim, dims, keepdim, TIDE_BOOL);
}

int tide_all(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *dims, bool keepdim)
{
  return over_dims(out, TIDE_OP_ALL, x, ndim, dims, keepdim, TIDE_BOOL);
}

int tide_argmax(tide_tensor **out, tide_tensor *x, int dim, bool keepdim)
{
  return over_dims(out, TIDE_OP_ARGMAX, x, 1, (int32_t[]){dim}, keepdim, TIDE_I64);
}

int tide_argmin(tide_tensor **out, tide_tensor *x, int dim, bool keepdim)
{
  return over_dims(out, TIDE_OP_ARGMIN, x, 1, (int32_t[]){dim}, keepdim, TIDE_I64);
}

static int running_sum(tide_tensor **out, tide_tensor *x, int dim, bool from_end)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_CUMSUM, out, 1, &x, 0));
  c.attrs.reduce = (k_reduce_attrs){ .nkeep = x->ndim - 1, .from_end = from_end };
  return tide__dispatch_along(&c, out, x, dim, accumulator(x->dtype));
}

int tide_cumsum(tide_tensor **out, tide_tensor *x, int dim)
{
  return running_sum(out, x, dim, false);
}

/* ---- derivatives ----------------------------------------------------------------------------- */

/* Lists the dims of input 0 that were reduced and returns how many. shape: input 0's, with these
 * at size 1. */
static int reduced(const tide__grad_call *g, int32_t *dims, int64_t *shape)
{
  const tide__meta *m = &g->meta[0];
  int n = 0;
  for (int d = 0; d < m->ndim; d++) {
    bool gone = g->attrs->dims.mask >> d & 1;
    if (gone) dims[n++] = d;
    shape[d] = gone ? 1 : m->shape[d];
  }
  return n;
}

/* Expands t (of the reduced shape) to input 0's shape, with its dims of size 1 put back. */
static int spread(tide_tensor **out, const tide__grad_call *g, tide_tensor *t)
{
  const tide__meta *m = &g->meta[0];
  int32_t dims[TIDE_MAX_DIM];
  int64_t shape[TIDE_MAX_DIM];
  tide__temps v = {0};
  reduced(g, dims, shape);
  t = TIDE__TEMP(&v, tide_reshape, t, m->ndim, shape);
  TIDE__DO(&v, tide_expand(out, t, m->ndim, m->shape));
  return tide__temps_end(&v);
}

int tide__grad_sum(const tide__grad_call *g) { return spread(&g->gin[0], g, g->gout[0]); }

int tide__grad_mean(const tide__grad_call *g)
{
  double n = 1;
  tide__temps v = {0};
  for (int d = 0; d < g->meta[0].ndim; d++)
    if (g->attrs->dims.mask >> d & 1) n *= (double)g->meta[0].shape[d];
  tide_tensor *t = TIDE__TEMP(&v, tide__times, g->gout[0], n > 0 ? 1 / n : 0);
  TIDE__DO(&v, spread(&g->gin[0], g, t));
  return tide__temps_end(&v);
}

/* Computes the gradient of amax and amin. Equal extrema share it evenly. */
int tide__grad_extremum(const tide__grad_call *g)
{
  int32_t dims[TIDE_MAX_DIM];
  int64_t shape[TIDE_MAX_DIM];
  int n = reduced(g, dims, shape);
  tide__temps v = {0};
  tide_tensor *y = TIDE__TEMP(&v, spread, g, g->out[0]);
  tide_tensor *hit = TIDE__TEMP(&v, tide_eq, g->in[0], y);
  tide_tensor *mask = TIDE__TEMP(&v, tide_cast, hit, g->meta[0].dtype);
  tide_tensor *count = TIDE__TEMP(&v, tide_sum, mask, n, dims, true);
  tide_tensor *share = TIDE__TEMP(&v, tide_div, mask, count);
  tide_tensor *dy = TIDE__TEMP(&v, spread, g, g->gout[0]);
  TIDE__DO(&v, tide_mul(&g->gin[0], dy, share));
  return tide__temps_end(&v);
}

/* Returns dy p where count == k, else 0. */
static tide_tensor *prod_share(tide__temps *v, const tide__grad_call *g, tide_tensor *dyp,
                               tide_tensor *count, tide_tensor *zero, double k)
{
  tide_tensor *number = tide__temp_number(v, g, TIDE_F32, k);
  tide_tensor *same = TIDE__TEMP(v, tide_eq, count, number);
  return TIDE__TEMP(v, tide_where, same, dyp, zero);
}

/* Computes dx, which is dy times the product of the other factors: y / x where no factor is zero;
 * with one zero the product of the rest for it and 0 for the rest; with more zeros 0 for all. In
 * f64, with each zero replaced by 1: with all factors the product p may leave the range of a
 * narrower dtype although it stays within it with any one of them left out. */
int tide__grad_prod(const tide__grad_call *g)
{
  const tide__meta *m = &g->meta[0];
  int32_t dims[TIDE_MAX_DIM];
  int64_t shape[TIDE_MAX_DIM];
  int n = reduced(g, dims, shape);
  tide__temps v = {0};
  tide_tensor *none = tide__temp_number(&v, g, m->dtype, 0);
  tide_tensor *zero = tide__temp_number(&v, g, TIDE_F64, 0);
  tide_tensor *one = tide__temp_number(&v, g, TIDE_F64, 1);
  tide_tensor *hit = TIDE__TEMP(&v, tide_eq, g->in[0], none);
  tide_tensor *x = TIDE__TEMP(&v, tide_cast, g->in[0], TIDE_F64);
  tide_tensor *filled = TIDE__TEMP(&v, tide_where, hit, one, x);
  tide_tensor *p = TIDE__TEMP(&v, tide_prod, filled, n, dims, true);
  tide_tensor *mask = TIDE__TEMP(&v, tide_cast, hit, TIDE_F32);
  tide_tensor *count = TIDE__TEMP(&v, tide_sum, mask, n, dims, true);
  tide_tensor *dy = TIDE__TEMP(&v, tide_reshape, g->gout[0], m->ndim, shape);
  dy = TIDE__TEMP(&v, tide_cast, dy, TIDE_F64);
  tide_tensor *dyp = TIDE__TEMP(&v, tide_mul, dy, p);
  tide_tensor *rest = prod_share(&v, g, dyp, count, zero, 0);
  tide_tensor *single = prod_share(&v, g, dyp, count, zero, 1);
  rest = TIDE__TEMP(&v, tide_div, rest, filled);
  tide_tensor *dx = TIDE__TEMP(&v, tide_where, hit, single, rest);
  TIDE__DO(&v, tide_cast(&g->gin[0], dx, m->dtype));
  return tide__temps_end(&v);
}

/* Computes the running sum of dy from the end, the adjoint of a running sum. */
int tide__grad_cumsum(const tide__grad_call *g)
{
  return running_sum(&g->gin[0], g->gout[0], -1, true);
}
