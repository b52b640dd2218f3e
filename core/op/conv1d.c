/* Causal depthwise convolution along time.
 *
 * A number per token says which tokens belong together, as for attention: one kernel serves whole
 * batches, packed streams and, with the rows before token 0 given, pieces of a stream.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

void tide_conv1d_attrs_init(tide_conv1d_attrs *a) { *a = (tide_conv1d_attrs){.size = sizeof *a}; }

static int check_operands(const tide_tensor *x, const tide_tensor *w, const tide_tensor *bias,
                          const tide_conv1d_attrs *a)
{
  TIDE_TRY(tide__check_float(x, "conv1d", "x"));
  if (x->ndim != 3 || w->ndim != 2 || w->dtype != x->dtype || w->shape[0] != x->shape[2])
    return tide__fail(x->ctx, TIDE_E_SHAPE, "conv1d", "expected x [B, T, C] and weight [C, K] of "
                      "one dtype, got %s and %s", TIDE__TEXT(x), TIDE__TEXT(w));
  if (w->shape[1] < 2 || w->shape[1] > 4)
    return tide__fail(x->ctx, TIDE_E_SHAPE, "conv1d", "weight: expected 2 to 4 taps, got %lld",
                      (long long)w->shape[1]);
  if (bias && (bias->ndim != 1 || bias->shape[0] != x->shape[2] || bias->dtype != x->dtype))
    return tide__fail(x->ctx, TIDE_E_SHAPE, "conv1d", "bias: expected %s [%lld], got %s",
                      tide_dtype_name(x->dtype), (long long)x->shape[2], TIDE__TEXT(bias));
  const tide_tensor *s = a->initial;
  if (s && (s->ndim != 3 || s->dtype != x->dtype || s->shape[0] != x->shape[0] ||
            s->shape[1] != w->shape[1] - 1 || s->shape[2] != x->shape[2]))
    return tide__fail(x->ctx, TIDE_E_SHAPE, "conv1d", "initial: expected %s [%lld, %lld, %lld] "
                      "(batch, taps - 1, channels), got %s", tide_dtype_name(x->dtype),
                      (long long)x->shape[0], (long long)(w->shape[1] - 1), (long long)x->shape[2],
                      TIDE__TEXT(s));
  return tide__check_sequence(x, a->sequence, "conv1d");
}

int tide_conv1d(tide_tensor **out, tide_tensor **last, tide_tensor *x, tide_tensor *weight,
                tide_tensor *bias, const tide_conv1d_attrs *attrs)
{
  tide__call c;
  tide_conv1d_attrs def, *a = &def;
  tide_tensor *y[2];
  *out = NULL;
  if (last) *last = NULL;
  tide_conv1d_attrs_init(&def);
  TIDE_TRY(tide__read_attrs(&def, sizeof def, attrs, x, "conv1d"));
  TIDE_TRY(tide__begin(&c, TIDE_OP_CONV1D, out, 5,
                       (tide_tensor *[]){x, weight, bias, a->initial, a->sequence}, 4 | 8 | 16));
  TIDE_TRY(check_operands(x, weight, bias, a));
  c.attrs.conv1d = (k_conv1d_attrs){a->silu};
  tide__result(&c, 0, x->dtype, 3, x->shape);
  tide__result(&c, 1, x->dtype, last ? 3 : -1,
               (int64_t[]){x->shape[0], weight->shape[1] - 1, x->shape[2]});
  TIDE_TRY(tide__dispatch(&c, y, last ? 2 : 1));
  *out = y[0];
  if (last) *last = y[1];
  return TIDE_OK;
}

int tide__grad_conv1d(const tide__grad_call *g)
{
  return tide__grad_launch(g, TIDE_OP_CONV1D_BWD, 7,
                           (tide_tensor *[]){g->gout[0], g->in[0], g->in[1], g->in[2], g->in[3],
                                             g->in[4], g->gout[1]}, 8 | 16 | 32 | 64, 4, 2);
}

/* ---- packed streams -------------------------------------------------------------------------- */

int tide__check_sequence(const tide_tensor *x, const tide_tensor *sequence, const char *op)
{
  if (!sequence) return TIDE_OK;
  TIDE_TRY(tide__check_index(sequence, op, "sequence"));
  if (sequence->ndim == 2 && sequence->shape[1] == x->shape[1] &&
      (sequence->shape[0] == 1 || sequence->shape[0] == x->shape[0]))
    return TIDE_OK;
  char rows[32] = "1";
  if (x->shape[0] != 1) snprintf(rows, sizeof rows, "%lld or 1", (long long)x->shape[0]);
  return tide__fail(x->ctx, TIDE_E_SHAPE, op, "sequence: expected [%s, %lld], a number for each "
                    "token, got %s", rows, (long long)x->shape[1], TIDE__SHAPE_OF(sequence));
}
