/* The gated root mean square norm of Mamba-2: the norm of groups of channels, times silu of a gate
 * before or after.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

int tide_gated_rms_norm(tide_tensor **out, tide_tensor *x, tide_tensor *z, tide_tensor *weight,
                        double eps, int64_t group, bool gate_last)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_GATED_RMS_NORM, out, 3, (tide_tensor *[]){x, z, weight}, 4));
  TIDE_TRY(tide__check_rows(&c, x, weight, "weight"));
  TIDE_TRY(tide__check_alike(&c, x, "x", z, "z"));
  int64_t dim = x->shape[x->ndim - 1];
  if (group == 0) group = dim > 0 ? dim : 1;
  if (group < 0 || dim % group != 0)
    return TIDE__FAIL(&c, TIDE_E_ARG, "group: %lld does not divide the %lld channels",
                      (long long)group, (long long)dim);
  c.attrs.gated_norm = (k_gated_norm_attrs){eps, group, gate_last};
  tide__meta stat = tide__meta_of(x);
  stat.shape[x->ndim - 1] = dim / group;
  tide__result(&c, 0, x->dtype, x->ndim, x->shape);
  tide__result(&c, 1, tide__stat_dtype(x), x->ndim, stat.shape);
  return tide__dispatch(&c, out, 1);
}

int tide__grad_gated_rms_norm(const tide__grad_call *g)
{
  return tide__grad_launch(g, TIDE_OP_GATED_RMS_NORM_BWD, 5,
                           (tide_tensor *[]){g->gout[0], g->in[0], g->in[1], g->in[2], g->out[1]},
                           8, 3, 2);
}
