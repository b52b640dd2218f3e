/* linear_lora: a product whose weight has a change of low rank, y = x (w + scale b a)^T + bias.
 *
 * There are two ways, whose numbers differ by rounding. The change is added to a copy of the
 * weight, so that y is one product, and so is dx; the copy is dropped, and made again in backward.
 * Or x meets a and b one after the other: that is less work for few rows, and the only way for 16
 * bits, where the weight would round the change away. h = scale x a^T is then kept for backward.
 *
 * With g = scale dy b: dx = dy w + g a, da = g^T x, db = dy^T h, dw = dy^T x.
 */
#include <math.h>

#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"
#include "core/op/product.h"

enum { X, W, BIAS, A, B, NIN };

/* ---- forward --------------------------------------------------------------------------------- */

/* Returns whether a copy of the weight is less work for these rows: each way multiplies rank times
 * the numbers of x and y, or twice those of the weight, and passes over them. */
static bool copies_weight(const tide_tensor *x, const tide_tensor *w)
{
  bool exact = x->dtype == TIDE_F32 || x->dtype == TIDE_F64;
  double rows = 1, n = (double)w->shape[0], k = (double)w->shape[1];
  for (int d = 0; d + 1 < x->ndim; d++) rows *= (double)x->shape[d];
  return exact && rows * (n + k) > 2 * n * k;
}

static int changed_weight(tide_tensor **out, tide_tensor *const *in, double scale)
{
  tide__temps v = {0};
  tide_tensor *b = TIDE__TEMP(&v, tide__times, in[B], scale);
  tide_tensor *w = TIDE__TEMP(&v, tide_clone, in[W]);
  TIDE__DO(&v, tide_addmm_(w, b, in[A]));
  if (v.rc == TIDE_OK) tide_tensor_retain(*out = w);
  return tide__temps_end(&v);
}

/* Computes scale p q, of matrices. */
static int low_rank_product(tide_tensor **out, tide_tensor *p, tide_tensor *q, double scale)
{
  TIDE_TRY(tide__product(out, p, q, p->dtype));
  return tide__created(out, tide_scale_(*out, scale));
}

static int product_with_copy(tide_tensor **y, tide_tensor *const *in, double scale)
{
  tide__temps v = {0};
  tide_tensor *w = TIDE__TEMP(&v, changed_weight, in, scale);
  TIDE__DO(&v, tide_linear(y, in[X], w, in[BIAS]));
  return tide__temps_end(&v);
}

/* Computes the products of x with a and then b; *h is kept for backward. */
static int products_in_turn(tide_tensor **y, tide_tensor **h, tide_tensor *const *in, double scale)
{
  tide__temps v = {0};
  tide_tensor *x = TIDE__TEMP(&v, tide__rows_of, in[X]);
  tide_tensor *at = TIDE__TEMP(&v, tide_transpose, in[A], 0, 1);
  tide_tensor *bt = TIDE__TEMP(&v, tide_transpose, in[B], 0, 1);
  tide_tensor *kept = TIDE__TEMP(&v, low_rank_product, x, at, scale);
  tide_tensor *made = TIDE__TEMP(&v, tide_linear, in[X], in[W], in[BIAS]);
  tide_tensor *rows = TIDE__TEMP(&v, tide__rows_of, made);
  TIDE__DO(&v, tide_addmm_(rows, kept, bt));
  if (v.rc == TIDE_OK) {
    tide_tensor_retain(*y = made);
    tide_tensor_retain(*h = kept);
  }
  return tide__temps_end(&v);
}

static int check_lora(tide__call *c, double scale)
{
  const tide_tensor *w = c->in[W], *a = c->in[A], *b = c->in[B];
  bool fit = a->ndim == 2 && b->ndim == 2 && a->shape[1] == w->shape[1] &&
             b->shape[0] == w->shape[0] && b->shape[1] == a->shape[0];
  if (!fit)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "weight %s, a %s and b %s do not fit: expected [N, K], "
                      "[R, K] and [N, R]", TIDE__SHAPE_OF(w), TIDE__SHAPE_OF(a),
                      TIDE__SHAPE_OF(b));
  if (a->dtype != w->dtype || b->dtype != w->dtype)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "weight is %s, a is %s, b is %s; cast them to one dtype",
                      tide_dtype_name(w->dtype), tide_dtype_name(a->dtype),
                      tide_dtype_name(b->dtype));
  if (!isfinite(scale))
    return TIDE__FAIL(c, TIDE_E_ARG, "scale: expected a finite number, got %g", scale);
  return TIDE_OK;
}

int tide_linear_lora(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias,
                     tide_tensor *a, tide_tensor *b, double scale)
{
  tide__call c;
  tide_tensor *outs[2] = {NULL, NULL}, *in[NIN] = {x, w, bias, a, b};
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR_LORA, out, NIN, in, 1 << BIAS));
  TIDE_TRY(tide__check_linear(&c, x, w, bias));
  TIDE_TRY(check_lora(&c, scale));
  c.attrs.scalar.mul = scale;
  c.nout = 2;
  c.out = outs;
  int rc;
  TIDE__UNRECORDED(c.ctx, rc = copies_weight(x, w)
                                 ? product_with_copy(&outs[0], in, scale)
                                 : products_in_turn(&outs[0], &outs[1], in, scale));
  rc = tide__relabel(c.ctx, rc, TIDE__NAME(&c));
  if (rc == TIDE_OK) rc = tide__record(&c);
  tide_tensor_release(outs[1]);
  if (rc == TIDE_OK) *out = outs[0];
  else tide_tensor_release(outs[0]);
  return rc;
}

/* ---- derivative ------------------------------------------------------------------------------ */

/* Computes dx = dy w + g a, or with g null dy times the changed weight. */
static int grad_of_x(const tide__grad_call *g, tide_tensor *dy, tide_tensor *gs)
{
  tide__temps v = {0};
  tide_tensor *w = g->in[W];
  if (!gs) w = TIDE__TEMP(&v, changed_weight, g->in, g->attrs->scalar.mul);
  TIDE__DO(&v, tide__grad_of_rows(g, dy, w));
  if (gs) {
    tide_tensor *sum = g->sum && g->sum[X] ? g->sum[X] : g->gin[X];
    tide_tensor *dx = TIDE__TEMP(&v, tide__rows_of, sum);
    TIDE__DO(&v, tide_addmm_(dx, gs, g->in[A]));
  }
  return tide__temps_end(&v);
}

static int grad_of_b(const tide__grad_call *g, tide_tensor *dyt, tide_tensor *x)
{
  tide__temps v = {0};
  tide_tensor *h = g->out[1];
  if (!h) {
    tide_tensor *at = TIDE__TEMP(&v, tide_transpose, g->in[A], 0, 1);
    h = TIDE__TEMP(&v, low_rank_product, x, at, g->attrs->scalar.mul);
  }
  TIDE__DO(&v, tide__grad_product(&g->gin[B], g, B, dyt, h));
  return tide__temps_end(&v);
}

int tide__grad_linear_lora(const tide__grad_call *g)
{
  tide__temps v = {0};
  int32_t first = 0;
  bool copied = !g->out[1];
  tide_tensor *gs = NULL, *x = NULL;
  tide_tensor *dy = TIDE__TEMP(&v, tide__rows_of, g->gout[0]);
  tide_tensor *dyt = TIDE__TEMP(&v, tide_transpose, dy, 0, 1);
  if (g->need[A] || g->need[B] || g->need[W]) x = TIDE__TEMP(&v, tide__rows_of, g->in[X]);
  if (g->need[A] || (g->need[X] && !copied))
    gs = TIDE__TEMP(&v, low_rank_product, dy, g->in[B], g->attrs->scalar.mul);
  if (g->need[A]) {
    tide_tensor *gt = TIDE__TEMP(&v, tide_transpose, gs, 0, 1);
    TIDE__DO(&v, tide__grad_product(&g->gin[A], g, A, gt, x));
  }
  if (g->need[B]) TIDE__DO(&v, grad_of_b(g, dyt, x));
  if (g->need[W]) TIDE__DO(&v, tide__grad_product(&g->gin[W], g, W, dyt, x));
  if (g->need[BIAS]) TIDE__DO(&v, tide_sum(&g->gin[BIAS], dy, 1, &first, false));
  if (g->need[X]) TIDE__DO(&v, grad_of_x(g, dy, copied ? NULL : gs));
  return tide__temps_end(&v);
}
