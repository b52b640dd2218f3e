/* Softmax and its logarithm along a dim. The kernels run along the last one. */
#include "core/op/op.h"

static int along(tide_tensor **out, int op, tide_tensor *x, int dim)
{
  tide__call c;
  tide_tensor *moved, *y = NULL;
  TIDE_TRY(tide__begin(&c, op, out, 1, &x, 0));
  TIDE_TRY(tide__check_float(x, TIDE__NAME(&c), "x"));
  int d = tide__resolve_dim(dim, x->ndim);
  if (d < 0)
    return TIDE__FAIL(&c, TIDE_E_ARG, "dim: %d is outside a tensor of %d dims", dim, x->ndim);
  TIDE_TRY(tide_transpose(&moved, x, d, -1));
  c.in_[0] = moved;
  c.attrs.dim.dim = x->ndim - 1;
  tide__result(&c, 0, x->dtype, moved->ndim, moved->shape);
  int rc = tide__dispatch(&c, &y, 1);
  tide_tensor_release(moved);
  if (rc == TIDE_OK) rc = tide_transpose(out, y, d, -1);
  tide_tensor_release(y);
  return rc;
}

int tide_softmax(tide_tensor **out, tide_tensor *x, int dim)
{
  return along(out, TIDE_OP_SOFTMAX, x, dim);
}

int tide_log_softmax(tide_tensor **out, tide_tensor *x, int dim)
{
  return along(out, TIDE_OP_LOG_SOFTMAX, x, dim);
}

static int from_output(const tide__grad_call *g, int op)
{
  tide__call c;
  tide_tensor *dy = g->gout[0];
  TIDE_TRY(tide__begin(&c, op, &g->gin[0], 2, (tide_tensor *[]){dy, g->out[0]}, 0));
  c.attrs = *g->attrs;
  tide__result(&c, 0, dy->dtype, dy->ndim, dy->shape);
  return tide__dispatch(&c, &g->gin[0], 1);
}

int tide__grad_softmax(const tide__grad_call *g) { return from_output(g, TIDE_OP_SOFTMAX_BWD); }
int tide__grad_log_softmax(const tide__grad_call *g)
{
  return from_output(g, TIDE_OP_LOG_SOFTMAX_BWD);
}
