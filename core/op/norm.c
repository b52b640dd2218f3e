/* Normalisation over the last dim.
 *
 * The row statistics are results of the forward kernel, kept by the tape only; the backward is one
 * fused kernel that reads them.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

int tide__stat_dtype(const tide_tensor *x) { return x->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32; }

int tide__check_rows(tide__call *c, const tide_tensor *x, const tide_tensor *v, const char *arg)
{
  TIDE_TRY(tide__check_float(x, TIDE__NAME(c), "x"));
  if (x->ndim < 1) return TIDE__FAIL(c, TIDE_E_SHAPE, "x: expected at least 1 dim");
  if (v && (v->ndim != 1 || v->shape[0] != x->shape[x->ndim - 1]))
    return TIDE__FAIL(c, TIDE_E_SHAPE, "%s %s does not fit the last dim of %s", arg,
                      TIDE__SHAPE_OF(v), TIDE__SHAPE_OF(x));
  if (v && v->dtype != x->dtype)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "%s is %s, x is %s; cast one", arg,
                      tide_dtype_name(v->dtype), tide_dtype_name(x->dtype));
  return TIDE_OK;
}

int tide_layer_norm(tide_tensor **out, tide_tensor *x, tide_tensor *weight, tide_tensor *bias,
                    double eps)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_LAYER_NORM, out, 3, (tide_tensor *[]){x, weight, bias}, 6));
  TIDE_TRY(tide__check_rows(&c, x, weight, "weight"));
  TIDE_TRY(tide__check_rows(&c, x, bias, "bias"));
  c.attrs.row_norm = (k_row_norm_attrs){eps, 0};
  tide__result(&c, 0, x->dtype, x->ndim, x->shape);
  tide__result(&c, 1, tide__stat_dtype(x), x->ndim - 1, x->shape);
  tide__result(&c, 2, tide__stat_dtype(x), x->ndim - 1, x->shape);
  return tide__dispatch(&c, out, 1);
}

int tide__grad_layer_norm(const tide__grad_call *g)
{
  return tide__grad_launch(g, TIDE_OP_LAYER_NORM_BWD, 5,
                           (tide_tensor *[]){g->gout[0], g->in[0], g->in[1], g->out[1], g->out[2]},
                           4, 3, 1);
}

int tide_rms_norm(tide_tensor **out, tide_tensor *x, tide_tensor *weight, double eps,
                  double weight_offset)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_RMS_NORM, out, 2, (tide_tensor *[]){x, weight}, 2));
  TIDE_TRY(tide__check_rows(&c, x, weight, "weight"));
  c.attrs.row_norm = (k_row_norm_attrs){eps, weight_offset};
  tide__result(&c, 0, x->dtype, x->ndim, x->shape);
  tide__result(&c, 1, tide__stat_dtype(x), x->ndim - 1, x->shape);
  return tide__dispatch(&c, out, 1);
}

int tide__grad_rms_norm(const tide__grad_call *g)
{
  return tide__grad_launch(g, TIDE_OP_RMS_NORM_BWD, 5,
                           (tide_tensor *[]){g->gout[0], g->in[0], g->in[1], g->out[1], NULL},
                           4 | 16, 2, 1);
}

int tide_add_rms_norm(tide_tensor **out, tide_tensor **sum, tide_tensor *x, tide_tensor *residual,
                      tide_tensor *weight, double eps, double weight_offset)
{
  tide__call c;
  tide_tensor *y[2] = {NULL, NULL};
  *out = *sum = NULL;
  TIDE_TRY(tide__begin(&c, TIDE_OP_ADD_RMS_NORM, NULL, 3, (tide_tensor *[]){x, residual, weight},
                       4));
  TIDE_TRY(tide__check_rows(&c, x, weight, "weight"));
  TIDE_TRY(tide__check_alike(&c, x, "x", residual, "residual"));
  c.attrs.row_norm = (k_row_norm_attrs){eps, weight_offset};
  tide__result(&c, 0, x->dtype, x->ndim, x->shape);
  tide__result(&c, 1, x->dtype, x->ndim, x->shape);
  tide__result(&c, 2, tide__stat_dtype(x), x->ndim - 1, x->shape);
  TIDE_TRY(tide__dispatch(&c, y, 2));
  *out = y[0];
  *sum = y[1];
  return TIDE_OK;
}

/* Computes the gradients of add_rms_norm. Both addends get the gradient of the sum, dx of rms_norm
 * of it: one tensor, two handles. */
int tide__grad_add_rms_norm(const tide__grad_call *g)
{
  tide_tensor *made[2] = {NULL, NULL};
  tide__grad_call rms = *g;
  rms.gin = made;
  rms.meta = (tide__meta[]){g->meta[0], g->meta[2]};
  rms.need = (bool[]){true, g->need[2]};
  if (g->gout[0])
    TIDE_TRY(tide__grad_launch(&rms, TIDE_OP_RMS_NORM_BWD, 5,
                               (tide_tensor *[]){g->gout[0], g->out[1], g->in[2], g->out[2],
                                                 g->gout[1]}, 4 | 16, 2, 1));
  else tide_tensor_retain(made[0] = g->gout[1]);
  for (int i = 0; i < 2; i++)
    if (g->need[i]) tide_tensor_retain(g->gin[i] = made[0]);
  g->gin[2] = made[1];
  tide_tensor_release(made[0]);
  return TIDE_OK;
}

int tide__recompute_rms_norm(tide_tensor **out, const tide__grad_call *g)
{
  const k_row_norm_attrs *a = &g->attrs->row_norm;
  return tide_rms_norm(out, g->in[0], g->in[1], a->eps, a->weight_offset);
}

int tide__recompute_add_rms_norm(tide_tensor **out, const tide__grad_call *g)
{
  const k_row_norm_attrs *a = &g->attrs->row_norm;
  return tide_rms_norm(out, g->out[1], g->in[2], a->eps, a->weight_offset);
}
