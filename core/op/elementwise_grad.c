/* Derivatives of the elementwise ops, built from ops. dy is the gradient of the output. */
#include "core/op/op.h"

#define DY (g->gout[0])

/* Releases the temporary *tmp and returns rc. */
static int then(int rc, tide_tensor **tmp)
{
  tide_tensor_release(*tmp);
  *tmp = NULL;
  return rc;
}

/* Sums t (owned, taken) down to input i's shape and stores it in gin[i]. */
static int give(const tide__grad_call *g, int i, int rc, tide_tensor *t)
{
  if (rc < 0) {
    tide_tensor_release(t);
    return rc;
  }
  return then(tide__sum_to(&g->gin[i], t, &g->meta[i]), &t);
}

int tide__grad_add(const tide__grad_call *g)
{
  for (int i = 0; i < 2; i++)
    if (g->need[i]) TIDE_TRY(tide__sum_to(&g->gin[i], DY, &g->meta[i]));
  return TIDE_OK;
}

int tide__grad_sub(const tide__grad_call *g)
{
  tide_tensor *t = NULL;
  if (g->need[0]) TIDE_TRY(tide__sum_to(&g->gin[0], DY, &g->meta[0]));
  if (!g->need[1]) return TIDE_OK;
  int rc = tide_neg(&t, DY);
  return give(g, 1, rc, t);
}

int tide__grad_mul(const tide__grad_call *g)
{
  for (int i = 0; i < 2; i++) {
    tide_tensor *t = NULL;
    if (!g->need[i]) continue;
    int rc = tide_mul(&t, DY, g->in[1 - i]);
    TIDE_TRY(give(g, i, rc, t));
  }
  return TIDE_OK;
}

int tide__grad_div(const tide__grad_call *g)
{
  tide_tensor *q = NULL, *t = NULL, *u = NULL;
  int rc = tide_div(&q, DY, g->in[1]);
  if (rc == TIDE_OK && g->need[0]) rc = tide__sum_to(&g->gin[0], q, &g->meta[0]);
  if (rc == TIDE_OK && g->need[1]) {
    rc = tide_mul(&t, q, g->in[0]);
    if (rc == TIDE_OK) rc = then(tide_div(&u, t, g->in[1]), &t);
    if (rc == TIDE_OK) rc = then(tide_neg(&t, u), &u);
    rc = give(g, 1, rc, t);
    t = NULL;
  }
  tide_tensor_release(q);
  tide_tensor_release(t);
  tide_tensor_release(u);
  return rc;
}

/* d a^b = b a^(b-1) da + a^b log(a) db; the log of a <= 0 is taken as 0 where a^b is 0. */
int tide__grad_pow(const tide__grad_call *g)
{
  tide_tensor *a = g->in[0], *b = g->in[1], *t = NULL, *u = NULL, *zero = NULL, *pos = NULL;
  int rc = TIDE_OK;
  if (g->need[0]) {
    rc = tide_affine(&t, b, 1, -1);
    if (rc == TIDE_OK) rc = then(tide_pow(&u, a, t), &t);
    if (rc == TIDE_OK) rc = then(tide_mul(&t, u, b), &u);
    if (rc == TIDE_OK) rc = then(tide_mul(&u, t, DY), &t);
    rc = give(g, 0, rc, u);
    u = NULL;
  }
  if (rc == TIDE_OK && g->need[1]) {
    rc = tide_log(&t, a);
    if (rc == TIDE_OK) rc = tide_full(&zero, g->ctx, g->meta[0].device, a->dtype, 0, NULL, 0);
    if (rc == TIDE_OK) rc = tide_gt(&pos, a, zero);
    if (rc == TIDE_OK) rc = then(tide_where(&u, pos, t, zero), &t);
    if (rc == TIDE_OK) rc = then(tide_mul(&t, u, g->out[0]), &u);
    if (rc == TIDE_OK) rc = then(tide_mul(&u, t, DY), &t);
    rc = give(g, 1, rc, u);
    u = NULL;
  }
  tide_tensor_release(t);
  tide_tensor_release(u);
  tide_tensor_release(zero);
  tide_tensor_release(pos);
  return rc;
}

/* Gives dy to the operand that was chosen; equal elements share it half and half. */
static int grad_choice(const tide__grad_call *g, int (*better)(tide_tensor **, tide_tensor *,
                                                               tide_tensor *))
{
  for (int i = 0; i < 2; i++) {
    if (!g->need[i]) continue;
    tide_tensor *win = NULL, *tie = NULL, *half = NULL, *zero = NULL, *rest = NULL, *t = NULL;
    int rc = better(&win, g->in[i], g->in[1 - i]);
    if (rc == TIDE_OK) rc = tide_eq(&tie, g->in[i], g->in[1 - i]);
    if (rc == TIDE_OK) rc = tide_affine(&half, DY, 0.5, 0);
    if (rc == TIDE_OK) rc = tide_full(&zero, g->ctx, g->meta[i].device, DY->dtype, 0, NULL, 0);
    if (rc == TIDE_OK) rc = tide_where(&rest, tie, half, zero);
    if (rc == TIDE_OK) rc = tide_where(&t, win, DY, rest);
    tide_tensor_release(win);
    tide_tensor_release(tie);
    tide_tensor_release(half);
    tide_tensor_release(zero);
    tide_tensor_release(rest);
    TIDE_TRY(give(g, i, rc, t));
  }
  return TIDE_OK;
}

int tide__grad_minimum(const tide__grad_call *g) { return grad_choice(g, tide_lt); }
int tide__grad_maximum(const tide__grad_call *g) { return grad_choice(g, tide_gt); }

int tide__grad_neg(const tide__grad_call *g) { return tide_neg(&g->gin[0], DY); }

int tide__grad_abs(const tide__grad_call *g)
{
  tide_tensor *s = NULL;
  TIDE_TRY(tide_sign(&s, g->in[0]));
  return then(tide_mul(&g->gin[0], DY, s), &s);
}

int tide__grad_zero(const tide__grad_call *g)
{
  return tide_full(&g->gin[0], g->ctx, g->meta[0].device, g->meta[0].dtype, g->meta[0].ndim,
                   g->meta[0].shape, 0);
}

int tide__grad_exp(const tide__grad_call *g) { return tide_mul(&g->gin[0], DY, g->out[0]); }
int tide__grad_log(const tide__grad_call *g) { return tide_div(&g->gin[0], DY, g->in[0]); }

/* dy * scale * a * b for a one-input rule; b may be null. */
static int scaled_product(const tide__grad_call *g, tide_tensor *a, tide_tensor *b, double scale)
{
  tide_tensor *t = NULL, *u = NULL;
  TIDE_TRY(tide_affine(&t, DY, scale, 0));
  int rc = then(tide_mul(&u, t, a), &t);
  if (rc < 0 || !b) {
    g->gin[0] = u;
    return rc;
  }
  return then(tide_mul(&g->gin[0], u, b), &u);
}

int tide__grad_sqrt(const tide__grad_call *g)
{
  tide_tensor *t = NULL;
  TIDE_TRY(tide_affine(&t, DY, 0.5, 0));
  return then(tide_div(&g->gin[0], t, g->out[0]), &t);
}

int tide__grad_rsqrt(const tide__grad_call *g)
{
  tide_tensor *s = NULL;
  TIDE_TRY(tide_square(&s, g->out[0]));
  return then(scaled_product(g, s, g->out[0], -0.5), &s);
}

int tide__grad_square(const tide__grad_call *g) { return scaled_product(g, g->in[0], NULL, 2); }

int tide__grad_reciprocal(const tide__grad_call *g)
{
  return scaled_product(g, g->out[0], g->out[0], -1);
}

/* d erf(x) = 2 / sqrt(pi) exp(-x^2) dx */
int tide__grad_erf(const tide__grad_call *g)
{
  tide_tensor *t = NULL, *u = NULL;
  TIDE_TRY(tide_square(&t, g->in[0]));
  int rc = then(tide_neg(&u, t), &t);
  if (rc == TIDE_OK) rc = then(tide_exp(&t, u), &u);
  return rc == TIDE_OK ? then(scaled_product(g, t, NULL, 1.12837916709551257390), &t) : rc;
}

int tide__grad_sin(const tide__grad_call *g)
{
  tide_tensor *t = NULL;
  TIDE_TRY(tide_cos(&t, g->in[0]));
  return then(scaled_product(g, t, NULL, 1), &t);
}

int tide__grad_cos(const tide__grad_call *g)
{
  tide_tensor *t = NULL;
  TIDE_TRY(tide_sin(&t, g->in[0]));
  return then(scaled_product(g, t, NULL, -1), &t);
}

/* Runs one fused kernel of (dy, saved). */
static int fused(const tide__grad_call *g, int op, tide_tensor *saved)
{
  tide__call c;
  tide_tensor *x[2] = {DY, saved};
  TIDE_TRY(tide__begin(&c, op, &g->gin[0], 2, x, 0));
  c.attrs = *g->attrs;
  tide__result(&c, 0, DY->dtype, DY->ndim, DY->shape);
  return tide__dispatch(&c, &g->gin[0], 1);
}

int tide__grad_tanh(const tide__grad_call *g) { return fused(g, TIDE_OP_TANH_BWD, g->out[0]); }
int tide__grad_sigmoid(const tide__grad_call *g)
{
  return fused(g, TIDE_OP_SIGMOID_BWD, g->out[0]);
}
int tide__grad_relu(const tide__grad_call *g) { return fused(g, TIDE_OP_RELU_BWD, g->out[0]); }
int tide__grad_silu(const tide__grad_call *g) { return fused(g, TIDE_OP_SILU_BWD, g->in[0]); }
int tide__grad_gelu(const tide__grad_call *g) { return fused(g, TIDE_OP_GELU_BWD, g->in[0]); }
int tide__grad_gelu_tanh(const tide__grad_call *g)
{
  return fused(g, TIDE_OP_GELU_TANH_BWD, g->in[0]);
}
int tide__grad_softplus(const tide__grad_call *g)
{
  return fused(g, TIDE_OP_SOFTPLUS_BWD, g->in[0]);
}
int tide__grad_clamp(const tide__grad_call *g) { return fused(g, TIDE_OP_CLAMP_BWD, g->in[0]); }

int tide__grad_affine(const tide__grad_call *g)
{
  return tide_affine(&g->gin[0], DY, g->attrs->scalar.mul, 0);
}

int tide__grad_pow_scalar(const tide__grad_call *g)
{
  double p = g->attrs->scalar.mul;
  tide_tensor *t = NULL;
  if (p == 0) return tide__grad_zero(g);
  TIDE_TRY(tide_pow_scalar(&t, g->in[0], p - 1));
  return then(scaled_product(g, t, NULL, p), &t);
}

int tide__grad_where(const tide__grad_call *g)
{
  tide_tensor *zero = NULL;
  TIDE_TRY(tide_full(&zero, g->ctx, g->meta[0].device, DY->dtype, 0, NULL, 0));
  int rc = TIDE_OK;
  for (int i = 1; i < 3 && rc == TIDE_OK; i++) {
    tide_tensor *t = NULL;
    if (!g->need[i]) continue;
    rc = tide_where(&t, g->in[0], i == 1 ? DY : zero, i == 1 ? zero : DY);
    rc = give(g, i, rc, t);
  }
  return then(rc, &zero);
}

int tide__grad_cast(const tide__grad_call *g)
{
  return tide_cast(&g->gin[0], DY, g->meta[0].dtype);
}

int tide__grad_clone(const tide__grad_call *g)
{
  g->gin[0] = DY;
  return tide_tensor_retain(DY);
}
