/* SwiGLU, the gated activation silu(gate) * up (arXiv 2002.05202), and its clamped form. */
#include <math.h>

#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

int tide_swiglu(tide_tensor **out, tide_tensor *gate, tide_tensor *up)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_SWIGLU, out, 2, (tide_tensor *[]){gate, up}, 0));
  TIDE_TRY(tide__check_float(gate, "swiglu", "gate"));
  TIDE_TRY(tide__check_alike(&c, gate, "gate", up, "up"));
  return tide__dispatch_one(&c, out, gate->dtype, gate->ndim, gate->shape);
}

int tide_swiglu_clamped(tide_tensor **out, tide_tensor *gate, tide_tensor *up, double limit,
                        double alpha)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_SWIGLU_CLAMPED, out, 2, (tide_tensor *[]){gate, up}, 0));
  TIDE_TRY(tide__check_float(gate, TIDE__NAME(&c), "gate"));
  TIDE_TRY(tide__check_alike(&c, gate, "gate", up, "up"));
  if (!(limit > 0) || !isfinite(limit) || !(alpha > 0) || !isfinite(alpha))
    return TIDE__FAIL(&c, TIDE_E_ARG, "limit and alpha: expected numbers above 0, got %g and %g",
                      limit, alpha);
  c.attrs.swiglu = (k_swiglu_attrs){limit, alpha};
  return tide__dispatch_one(&c, out, gate->dtype, gate->ndim, gate->shape);
}

static int grad_of(const tide__grad_call *g, int op)
{
  tide_tensor *into[2] = {NULL, NULL};
  int rc = TIDE_OK;
  for (int i = 0; i < 2 && rc == TIDE_OK; i++)
    if (g->need[i]) rc = g->joint->part(&into[i], g, i);
  if (rc == TIDE_OK)
    rc = tide__grad_launch_into(g, op, 3, (tide_tensor *[]){g->gout[0], g->in[0], g->in[1]}, 0, 2,
                                2, into);
  tide_tensor_release(into[0]);
  tide_tensor_release(into[1]);
  return rc;
}

int tide__grad_swiglu(const tide__grad_call *g) { return grad_of(g, TIDE_OP_SWIGLU_BWD); }

int tide__grad_swiglu_clamped(const tide__grad_call *g)
{
  return grad_of(g, TIDE_OP_SWIGLU_CLAMPED_BWD);
}

int tide__recompute_swiglu(tide_tensor **out, const tide__grad_call *g)
{
  return tide_swiglu(out, g->in[0], g->in[1]);
}

int tide__recompute_swiglu_clamped(tide_tensor **out, const tide__grad_call *g)
{
  return tide_swiglu_clamped(out, g->in[0], g->in[1], g->attrs->swiglu.limit,
                             g->attrs->swiglu.alpha);
}
