/* Derivatives of the elementwise ops, built from ops. dy is the gradient of the output. */
#include "core/op/derivative.h"
#include "core/op/op.h"

#define DY (g->gout[0])

/* Sums t down to input i's shape: its gradient. */
static void give(tide__temps *v, const tide__grad_call *g, int i, tide_tensor *t)
{
  TIDE__DO(v, tide__sum_to(&g->gin[i], t, &g->meta[i]));
}

int tide__grad_add(const tide__grad_call *g)
{
  tide__temps v = {0};
  for (int i = 0; i < 2; i++)
    if (g->need[i]) give(&v, g, i, DY);
  return tide__temps_end(&v);
}

int tide__grad_sub(const tide__grad_call *g)
{
  tide__temps v = {0};
  if (g->need[0]) give(&v, g, 0, DY);
  if (g->need[1]) give(&v, g, 1, TIDE__TEMP(&v, tide_neg, DY));
  return tide__temps_end(&v);
}

int tide__grad_mul(const tide__grad_call *g)
{
  tide__temps v = {0};
  for (int i = 0; i < 2; i++)
    if (g->need[i]) give(&v, g, i, TIDE__TEMP(&v, tide_mul, DY, g->in[1 - i]));
  return tide__temps_end(&v);
}

int tide__grad_div(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *q = TIDE__TEMP(&v, tide_div, DY, g->in[1]);
  if (g->need[0]) give(&v, g, 0, q);
  if (g->need[1]) {
    tide_tensor *t = TIDE__TEMP(&v, tide_div, g->in[0], g->in[1]); /* q a may leave the range */
    t = TIDE__TEMP(&v, tide_mul, t, q);
    give(&v, g, 1, TIDE__TEMP(&v, tide_neg, t));
  }
  return tide__temps_end(&v);
}

/* Computes d a^b = b a^(b-1) da + a^b log(a) db. The first term is 0 where b is 0, whatever the
 * power. The log of 0 is taken as 0, so that the second term is 0 where a^b is a number, and NaN
 * where that is infinite or a negative. */
int tide__grad_pow(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *a = g->in[0], *b = g->in[1];
  tide_tensor *zero = tide__temp_number(&v, g, a->dtype, 0);
  if (g->need[0]) {
    tide_tensor *t = TIDE__TEMP(&v, tide_affine, b, 1, -1);
    t = TIDE__TEMP(&v, tide_pow, a, t);
    t = TIDE__TEMP(&v, tide_mul, t, b);
    t = TIDE__TEMP(&v, tide_mul, t, DY);
    tide_tensor *flat = TIDE__TEMP(&v, tide_eq, b, zero);
    give(&v, g, 0, TIDE__TEMP(&v, tide_where, flat, zero, t));
  }
  if (g->need[1]) {
    tide_tensor *log = TIDE__TEMP(&v, tide_log, a);
    tide_tensor *flat = TIDE__TEMP(&v, tide_eq, a, zero);
    tide_tensor *t = TIDE__TEMP(&v, tide_where, flat, zero, log);
    t = TIDE__TEMP(&v, tide_mul, t, g->out[0]);
    give(&v, g, 1, TIDE__TEMP(&v, tide_mul, t, DY));
  }
  return tide__temps_end(&v);
}

/* Gives dy to the operand that was chosen; equal elements share it half and half. Where one of
 * them is NaN, neither is worse and both get dy. */
static int grad_choice(const tide__grad_call *g, int (*worse)(tide_tensor **, tide_tensor *,
                                                              tide_tensor *))
{
  tide__temps v = {0};
  tide_tensor *half = TIDE__TEMP(&v, tide__times, DY, 0.5);
  tide_tensor *zero = tide__temp_number(&v, g, DY->dtype, 0);
  for (int i = 0; i < 2; i++) {
    if (!g->need[i]) continue;
    tide_tensor *lost = TIDE__TEMP(&v, worse, g->in[i], g->in[1 - i]);
    tide_tensor *tie = TIDE__TEMP(&v, tide_eq, g->in[i], g->in[1 - i]);
    tide_tensor *rest = TIDE__TEMP(&v, tide_where, tie, half, DY);
    give(&v, g, i, TIDE__TEMP(&v, tide_where, lost, zero, rest));
  }
  return tide__temps_end(&v);
}

int tide__grad_minimum(const tide__grad_call *g) { return grad_choice(g, tide_gt); }
int tide__grad_maximum(const tide__grad_call *g) { return grad_choice(g, tide_lt); }

int tide__grad_neg(const tide__grad_call *g) { return tide_neg(&g->gin[0], DY); }

int tide__grad_zero(const tide__grad_call *g)
{
  return tide_full(&g->gin[0], g->ctx, g->meta[0].device, g->meta[0].dtype, g->meta[0].ndim,
                   g->meta[0].shape, 0);
}

int tide__grad_exp(const tide__grad_call *g) { return tide_mul(&g->gin[0], DY, g->out[0]); }
int tide__grad_log(const tide__grad_call *g) { return tide_div(&g->gin[0], DY, g->in[0]); }

/* Ends a one-input rule: dx is dy * scale * a * b; b may be null. */
static int scaled_product(tide__temps *v, const tide__grad_call *g, double scale, tide_tensor *a,
                          tide_tensor *b)
{
  tide_tensor *t = TIDE__TEMP(v, tide__times, DY, scale);
  if (b) t = TIDE__TEMP(v, tide_mul, t, a);
  TIDE__DO(v, tide_mul(&g->gin[0], t, b ? b : a));
  return tide__temps_end(v);
}

int tide__grad_abs(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *sign = TIDE__TEMP(&v, tide_sign, g->in[0]);
  TIDE__DO(&v, tide_mul(&g->gin[0], DY, sign));
  return tide__temps_end(&v);
}

int tide__grad_sqrt(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *t = TIDE__TEMP(&v, tide__times, DY, 0.5);
  TIDE__DO(&v, tide_div(&g->gin[0], t, g->out[0]));
  return tide__temps_end(&v);
}

int tide__grad_rsqrt(const tide__grad_call *g)
{
  tide__temps v = {0};
  return scaled_product(&v, g, -0.5, TIDE__TEMP(&v, tide_square, g->out[0]), g->out[0]);
}

int tide__grad_square(const tide__grad_call *g)
{
  return scaled_product(&(tide__temps){0}, g, 2, g->in[0], NULL);
}

int tide__grad_reciprocal(const tide__grad_call *g)
{
  return scaled_product(&(tide__temps){0}, g, -1, g->out[0], g->out[0]);
}

/* Computes d erf(x) = 2 / sqrt(pi) exp(-x^2) dx. */
int tide__grad_erf(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *t = TIDE__TEMP(&v, tide_square, g->in[0]);
  t = TIDE__TEMP(&v, tide_neg, t);
  return scaled_product(&v, g, 1.12837916709551257390, TIDE__TEMP(&v, tide_exp, t), NULL);
}

int tide__grad_sin(const tide__grad_call *g)
{
  tide__temps v = {0};
  return scaled_product(&v, g, 1, TIDE__TEMP(&v, tide_cos, g->in[0]), NULL);
}

int tide__grad_cos(const tide__grad_call *g)
{
  tide__temps v = {0};
  return scaled_product(&v, g, -1, TIDE__TEMP(&v, tide_sin, g->in[0]), NULL);
}

/* Computes the gradients of ops whose derivative is one kernel of dy and the saved tensors that
 * op.def lists. */
int tide__grad_fused(const tide__grad_call *g)
{
#define FUSED(ID) [TIDE_OP_##ID] = TIDE_OP_##ID##_BWD
  static const int16_t bwd[TIDE__NOP] = {
    FUSED(TANH), FUSED(SIGMOID), FUSED(SILU), FUSED(GELU), FUSED(GELU_TANH), FUSED(RELU),
    FUSED(SOFTPLUS), FUSED(CLAMP), FUSED(SOFTMAX), FUSED(LOG_SOFTMAX),
  };
#undef FUSED
  tide_tensor *saved = tide__op_get(g->op)->save_out ? g->out[0] : g->in[0];
  return tide__grad_launch(g, bwd[g->op], 2, (tide_tensor *[]){DY, saved}, 0, 1, 1);
}

int tide__grad_affine(const tide__grad_call *g)
{
  return tide__times(&g->gin[0], DY, g->attrs->scalar.mul);
}

int tide__grad_pow_scalar(const tide__grad_call *g)
{
  tide__temps v = {0};
  double p = g->attrs->scalar.mul;
  if (p == 0) return tide__grad_zero(g);
  return scaled_product(&v, g, p, TIDE__TEMP(&v, tide_pow_scalar, g->in[0], p - 1), NULL);
}

int tide__grad_where(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *cond = g->in[0], *zero = tide__temp_number(&v, g, DY->dtype, 0);
  if (g->need[1]) give(&v, g, 1, TIDE__TEMP(&v, tide_where, cond, DY, zero));
  if (g->need[2]) give(&v, g, 2, TIDE__TEMP(&v, tide_where, cond, zero, DY));
  return tide__temps_end(&v);
}

int tide__grad_cast(const tide__grad_call *g)
{
  return tide_cast(&g->gin[0], DY, g->meta[0].dtype);
}

int tide__grad_clone(const tide__grad_call *g) { return tide_tensor_retain(g->gin[0] = DY); }
