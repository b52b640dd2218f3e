/* Losses: cross entropy of logits, and the fused linear + cross entropy that never stores them.
 *
 * The fused op computes its gradients in the forward pass, chunk by chunk, while a chunk of logits
 * is in cache; backward only scales them by the gradient of the (summed) loss.
 */
#include <math.h>

#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

void tide_cross_entropy_attrs_init(tide_cross_entropy_attrs *a)
{
  *a = (tide_cross_entropy_attrs){.size = sizeof *a, .ignore_index = -100};
}

static int read_attrs(tide__call *c, const tide_cross_entropy_attrs *attrs)
{
  tide_cross_entropy_attrs full, *a = &full;
  tide_cross_entropy_attrs_init(a);
  TIDE_TRY(tide__read_attrs(a, sizeof *a, attrs, c->ctx, TIDE__NAME(c)));
  if (!(a->label_smoothing >= 0 && a->label_smoothing < 1) || !(a->z_loss >= 0) ||
      !isfinite(a->z_loss))
    return TIDE__FAIL(c, TIDE_E_ARG, "expected label_smoothing in [0, 1) and z_loss >= 0, got %g "
                      "and %g", a->label_smoothing, a->z_loss);
  c->attrs.cross_entropy =
      (k_cross_entropy_attrs){a->ignore_index, a->label_smoothing, a->z_loss};
  return TIDE_OK;
}

static int loss_dtype(const tide_tensor *x) { return x->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32; }

static int check_tokens(tide__call *c, const tide_tensor *x, const tide_tensor *targets,
                        const char *arg)
{
  TIDE_TRY(tide__check_float(x, TIDE__NAME(c), arg));
  TIDE_TRY(tide__check_index(targets, TIDE__NAME(c), "targets"));
  if (x->ndim == 2 && targets->ndim == 1 && x->shape[0] == targets->shape[0]) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_SHAPE, "expected %s [N, .] and targets [N], got %s and %s", arg,
                    TIDE__SHAPE_OF(x), TIDE__SHAPE_OF(targets));
}

int tide_cross_entropy(tide_tensor **out, tide_tensor *logits, tide_tensor *targets,
                       const tide_cross_entropy_attrs *attrs)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_CROSS_ENTROPY, out, 2, (tide_tensor *[]){logits, targets}, 0));
  TIDE_TRY(check_tokens(&c, logits, targets, "logits"));
  TIDE_TRY(read_attrs(&c, attrs));
  tide__result(&c, 0, loss_dtype(logits), 1, targets->shape);
  tide__result(&c, 1, loss_dtype(logits), 1, targets->shape);
  return tide__dispatch(&c, out, 1);
}

int tide__grad_cross_entropy(const tide__grad_call *g)
{
  return tide__grad_launch(g, TIDE_OP_CROSS_ENTROPY_BWD, 4,
                           (tide_tensor *[]){g->gout[0], g->in[0], g->in[1], g->out[1]}, 0, 1, 1);
}

/* Declares the gradient of x; that of a weight in the dtype in which its leaf adds it up. */
static void want_gradient(tide__call *c, int i, const tide_tensor *x, bool weight)
{
  bool wanted = c->ctx->recording && x && tide__tensor_needs_grad(x);
  int dtype = !x ? 0 : weight && x->requires_grad ? tide__grad_dtype(x) : x->dtype;
  tide__result(c, i, dtype, wanted ? x->ndim : -1, x ? x->shape : NULL);
}

int tide_linear_cross_entropy(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias,
                              tide_tensor *targets, const tide_cross_entropy_attrs *attrs)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR_CROSS_ENTROPY, out, 4,
                       (tide_tensor *[]){x, w, bias, targets}, 4));
  TIDE_TRY(check_tokens(&c, x, targets, "x"));
  TIDE_TRY(read_attrs(&c, attrs));
  bool fit = w->ndim == 2 && w->shape[1] == x->shape[1] && w->dtype == x->dtype &&
             (!bias || (bias->ndim == 1 && bias->shape[0] == w->shape[0] &&
                        bias->dtype == x->dtype));
  if (!fit)
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "x %s, weight %s and bias %s do not fit: expected [N, D], "
                      "[V, D] and [V] of one dtype", TIDE__TEXT(x), TIDE__TEXT(w),
                      bias ? TIDE__SHAPE_OF(bias) : "none");
  tide__result(&c, 0, loss_dtype(x), 0, NULL);
  want_gradient(&c, 1, x, false);
  want_gradient(&c, 2, w, true);
  want_gradient(&c, 3, bias, true);
  return tide__dispatch(&c, out, 1);
}

/* Scales the gradient of the forward pass: on its way into a sum, or in place if the walk frees it
 * anyway. */
int tide__grad_linear_cross_entropy(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *factor = g->gout[0];
  for (int i = 0; i < 3; i++) {
    tide_tensor *made = g->out[i + 1];
    if (!g->need[i]) continue;
    if (g->sum[i]) {
      TIDE__DO(&v, tide__axpy_by_(g->sum[i], made, factor));
    } else if (g->consume) {
      TIDE__DO(&v, tide_scale_all_(g->ctx, 1, &made, factor));
      TIDE__DO(&v, tide_tensor_retain(g->gin[i] = made));
    } else {
      tide_tensor *t = TIDE__TEMP(&v, tide_mul, made, factor);
      TIDE__DO(&v, tide_cast(&g->gin[i], t, made->dtype));
    }
  }
  return tide__temps_end(&v);
}
