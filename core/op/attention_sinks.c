/* Sinks of attention: a learnt score of each head that takes a share of the softmax and has no
 * value.
 *
 * A sink scales the result of a row by e^(lse - l), l = log(e^lse + e^sink), and nothing else. So
 * attention computes without it, and one pass over out and lse follows. Given these, the backward
 * of attention is that without sinks. A sequence in parts gives its sinks to one part of each
 * query.
 */
#include "core/op/attention.h"
#include "core/op/op.h"
#include "core/op/operand.h"

int tide__check_sinks(const tide_tensor *x, const tide_tensor *sinks, const char *op)
{
  if (!sinks) return TIDE_OK;
  TIDE_TRY(tide__check_float(sinks, op, "sinks"));
  if (sinks->ndim == 1 && sinks->shape[0] == x->shape[2]) return TIDE_OK;
  return tide__fail(x->ctx, TIDE_E_SHAPE, op, "sinks: expected [%lld], one for each query head, "
                    "got %s", (long long)x->shape[2], TIDE__TEXT(sinks));
}

int tide__attention_sinks(tide_tensor *out, tide_tensor *lse, tide_tensor *sinks)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_ATTENTION_SINKS_, NULL, 3, (tide_tensor *[]){sinks, out, lse},
                       0));
  c.nin = 1;
  c.nout = 2;
  c.out_[0] = out;
  c.out_[1] = lse;
  return tide__launch_checked(&c);
}

int tide__attention_dsinks(tide_tensor **dsinks, tide_tensor *dout, tide_tensor *out,
                           tide_tensor *lse, tide_tensor *sinks, tide_tensor *dlse)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_ATTENTION_SINKS_BACKWARD, dsinks, 5,
                       (tide_tensor *[]){dout, out, lse, sinks, dlse}, 0x10));
  return tide__dispatch_one(&c, dsinks, sinks->dtype, 1, sinks->shape);
}

int tide_attention_sinks_backward(tide_tensor **dsinks, tide_tensor *dout, tide_tensor *out,
                                  tide_tensor *lse, tide_tensor *sinks)
{
  tide__call c;
  tide_tensor *x[4] = {dout, out, lse, sinks};
  TIDE_TRY(tide__begin(&c, TIDE_OP_ATTENTION_SINKS_BACKWARD, dsinks, 4, x, 0));
  TIDE_TRY(tide__check_float(out, TIDE__NAME(&c), "out"));
  TIDE_TRY(tide__check_alike(&c, dout, "dout", out, "out"));
  if (lse->dtype != (out->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32) || !tide__fits_lse(out, lse))
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "expected out [B, T, H, D] and its lse [B, H, T] in f32 "
                      "(f64 for f64), got %s and %s", TIDE__TEXT(out), TIDE__TEXT(lse));
  TIDE_TRY(tide__check_sinks(out, sinks, TIDE__NAME(&c)));
  TIDE_TRY(tide__check_history(&c, TIDE__NAME(&c), 4, x,
                               (const char *[]){"dout", "out", "lse", "sinks"},
                               "call it under no_grad, or attention, whose gradient is"));
  return tide__attention_dsinks(dsinks, dout, out, lse, sinks, NULL);
}
