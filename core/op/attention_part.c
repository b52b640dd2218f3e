/* Attention over parts of the keys, for a sequence that is sharded over ranks.
 *
 * Softmax attention over a set of keys is a weighted mean of attentions over its parts, with
 * weights from the parts' log-sum-exps. So a rank attends to one block of keys at a time and merges
 * (arXiv 2310.01889); and since the gradient of a part needs only the output and the log-sum-exp of
 * the whole, each part's backward runs by itself too.
 */
#include "core/op/attention.h"
#include "core/op/op.h"
#include "core/op/operand.h"

static int check_float_like(const tide_tensor *t, const tide_tensor *part, const char *arg,
                            const char *name)
{
  int want = part->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32;
  if (t->dtype == want) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_DTYPE, name, "%s: expected %s, got %s", arg,
                    tide_dtype_name(want), tide_dtype_name(t->dtype));
}

bool tide__fits_lse(const tide_tensor *x, const tide_tensor *lse)
{
  return x->ndim == 4 && lse->ndim == 3 && lse->shape[0] == x->shape[0] &&
         lse->shape[1] == x->shape[2] && lse->shape[2] == x->shape[1];
}

static int check_merge(const tide__call *c, tide_tensor *const *x)
{
  const char *name = TIDE__NAME(c);
  TIDE_TRY(tide__check_float(x[2], name, "part"));
  TIDE_TRY(check_float_like(x[0], x[2], "out", name));
  TIDE_TRY(check_float_like(x[1], x[2], "lse", name));
  TIDE_TRY(check_float_like(x[3], x[2], "part_lse", name));
  if (!tide__tensor_same_shape(x[0], x[2]) || !tide__tensor_same_shape(x[1], x[3]) ||
      !tide__fits_lse(x[0], x[1]))
    return tide__fail(c->ctx, TIDE_E_SHAPE, name, "expected out and part [B, T, H, D], lse and "
                      "part_lse [B, H, T], got %s, %s, %s and %s", TIDE__SHAPE_OF(x[0]),
                      TIDE__SHAPE_OF(x[2]), TIDE__SHAPE_OF(x[1]), TIDE__SHAPE_OF(x[3]));
  for (int i = 0; i < 2; i++) TIDE_TRY(tide__check_target(x[i], name));
  for (int i = 0; i < 2; i++)
    for (int j = i + 1; j < 4; j++)
      if (x[i]->storage == x[j]->storage)
        return tide__fail(c->ctx, TIDE_E_ARG, name, "out and lse: expected memory of their own, "
                          "but operands %d and %d share theirs", i + 1, j + 1);
  return TIDE_OK;
}

int tide__check_history(const tide__call *c, const char *op, int n, tide_tensor *const *x,
                        const char *const *names, const char *advice)
{
  for (int i = 0; c->ctx->recording && i < n; i++)
    if (tide__tensor_needs_grad(x[i]))
      return tide__fail(c->ctx, TIDE_E_STATE, op, "%s needs a gradient, and this op is not "
                        "recorded; %s", names[i], advice);
  return TIDE_OK;
}

int tide_attention_merge_(tide_tensor *out, tide_tensor *lse, tide_tensor *part,
                          tide_tensor *part_lse)
{
  tide__call c;
  tide_tensor *x[4] = {out, lse, part, part_lse};
  TIDE_TRY(tide__begin(&c, TIDE_OP_ATTENTION_MERGE_, NULL, 4, x, 0));
  TIDE_TRY(check_merge(&c, x));
  TIDE_TRY(tide__check_history(&c, TIDE__NAME(&c), 2, x + 2, (const char *[]){"part", "part_lse"},
                               "merge under no_grad and take the gradient of each part with "
                               "attention_backward"));
  c.nin = c.nout = 2;
  c.in_[0] = part;
  c.in_[1] = part_lse;
  c.out_[0] = out;
  c.out_[1] = lse;
  int rc = tide__launch_checked(&c);
  out->storage->version++;
  lse->storage->version++;
  return rc;
}

static int check_backward(const tide__call *c, const tide_tensor *dout, const tide_tensor *q,
                          const tide_tensor *v, const tide_tensor *out, const tide_tensor *lse)
{
  TIDE_TRY(check_float_like(lse, q, "lse", "attention_backward"));
  bool fit = dout->dtype == q->dtype && out->dtype == q->dtype &&
             tide__tensor_same_shape(dout, out) && out->ndim == 4 && tide__fits_lse(out, lse);
  for (int d = 0; fit && d < 4; d++) fit = out->shape[d] == (d < 3 ? q->shape[d] : v->shape[3]);
  if (fit) return TIDE_OK;
  return tide__fail(c->ctx, TIDE_E_SHAPE, "attention_backward", "expected dout and out like the "
                    "output of q %s and v %s, and lse [B, H, Tq], got %s, %s and %s", TIDE__TEXT(q),
                    TIDE__SHAPE_OF(v), TIDE__TEXT(dout), TIDE__TEXT(out), TIDE__SHAPE_OF(lse));
}

int tide_attention_backward(tide_tensor **dq, tide_tensor **dk, tide_tensor **dv,
                            tide_tensor *dout, tide_tensor *q, tide_tensor *k, tide_tensor *v,
                            tide_tensor *out, tide_tensor *lse, const tide_attention_attrs *attrs)
{
  *dq = *dk = *dv = NULL;
  TIDE_DOOR(TIDE_OBJECT(TENSOR, dout), TIDE_OBJECT(TENSOR, q), TIDE_OBJECT(TENSOR, k),
            TIDE_OBJECT(TENSOR, v), TIDE_OBJECT(TENSOR, out), TIDE_OBJECT(TENSOR, lse));
  tide__call c;
  tide_attention_attrs def, *a = &def;
  tide_tensor *y[4] = {NULL}, *x[3] = {q, k, v};
  const char *name = "attention_backward";
  tide_attention_attrs_init(&def);
  TIDE_TRY(tide__read_attrs(&def, sizeof def, attrs, q, name));
  int rc = tide__begin(&c, TIDE_OP_ATTENTION_BWD, NULL, 12,
                       (tide_tensor *[]){dout, q, k, v, out, lse, NULL, a->q_index, a->k_index,
                                         NULL, a->q_tiles, a->k_tiles}, 0xfc0);
  TIDE_TRY(tide__relabel(q->ctx, rc, name));
  if (a->bias)
    return tide__fail(c.ctx, TIDE_E_UNSUPPORTED, name, "attention over a part of the "
                      "keys takes no bias; use tide_attention and the tape");
  if (a->sinks)
    return tide__fail(c.ctx, TIDE_E_UNSUPPORTED, name, "attention over a part of the keys takes no "
                      "sinks; out and lse contain them, and attention_sinks_backward makes their "
                      "gradient");
  TIDE_TRY(tide__relabel(c.ctx, tide__check_attention(q, k, v, a), name));
  TIDE_TRY(check_backward(&c, dout, q, v, out, lse));
  TIDE_TRY(tide__check_history(&c, name, 6, (tide_tensor *[]){q, k, v, dout, out, lse},
                               (const char *[]){"q", "k", "v", "dout", "out", "lse"},
                               "call it under no_grad, or attention, whose gradient is"));
  c.attrs.attention = tide__attention_attrs_of(q, a);
  for (int i = 0; i < 3; i++) tide__result(&c, i, x[i]->dtype, 4, x[i]->shape);
  tide__result(&c, 3, lse->dtype, -1, lse->shape);
  TIDE_TRY(tide__relabel(c.ctx, tide__dispatch(&c, y, 4), name));
  *dq = y[0];
  *dk = y[1];
  *dv = y[2];
  return TIDE_OK;
}
