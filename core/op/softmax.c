/* Softmax and its logarithm along a dim. */
#include "core/op/op.h"
#include "core/op/operand.h"

static int along(tide_tensor **out, int op, tide_tensor *x, int dim)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, op, out, 1, &x, 0));
  TIDE_TRY(tide__check_float(x, TIDE__NAME(&c), "x"));
  c.attrs.dim.dim = x->ndim - 1;
  return tide__dispatch_along(&c, out, x, dim, x->dtype);
}

int tide_softmax(tide_tensor **out, tide_tensor *x, int dim)
{
  return along(out, TIDE_OP_SOFTMAX, x, dim);
}

int tide_log_softmax(tide_tensor **out, tide_tensor *x, int dim)
{
  return along(out, TIDE_OP_LOG_SOFTMAX, x, dim);
}
