/* Defines every elementwise op: binary, comparison, unary, scalar, in place, cast, where, and the
 * backward halves of the activations.
 *
 * An op is one function of doubles and, where integers make sense, one of int64_t; three walkers
 * (map1, map2, map_bwd) apply it element by element at any strides. Integer results wrap to their
 * dtype. Inputs have the output's shape (broadcast dims have stride 0) and one common dtype.
 */
#include <math.h>

#include "kernels/kernel.h"
#include "kernels/ref/activation.h"
#include "kernels/ref/load.h"

typedef double (*real1)(double);
typedef double (*real2)(double, double);
typedef int64_t (*int1)(int64_t);
typedef int64_t (*int2)(int64_t, int64_t);

static int no_integers(const k_call *call)
{
  return ref_fail(call, TIDE_E_DTYPE, "this op needs a floating dtype, not %s",
                  tide_dtype_name(call->in[0].dtype));
}

static int map1(const k_call *call, real1 f, int1 g)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  int64_t n = k_numel(y);
  ref_walk w = ref_begin(y->shape, y->ndim);
  if (!ref_is_float(x) && !g) return no_integers(call);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    int64_t at = ref_offset(&w, x);
    if (ref_is_float(x)) ref_put(y, ref_offset(&w, y), f(ref_get(x, at)));
    else ref_put_int(y, ref_offset(&w, y), g(ref_get_int(x, at)));
  }
  return TIDE_OK;
}

static int map2(const k_call *call, real2 f, int2 g)
{
  const k_tensor *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
  int64_t n = k_numel(y);
  ref_walk w = ref_begin(y->shape, y->ndim);
  if (!ref_is_float(a) && !g) return no_integers(call);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    int64_t at = ref_offset(&w, a), bt = ref_offset(&w, b), yt = ref_offset(&w, y);
    if (ref_is_float(a)) ref_put(y, yt, f(ref_get(a, at), ref_get(b, bt)));
    else ref_put_int(y, yt, g(ref_get_int(a, at), ref_get_int(b, bt)));
  }
  return TIDE_OK;
}

#define UNARY(name, f, g) \
  int k_ref_##name(const k_call *call) { return map1(call, f, g); }
#define BINARY(name, f, g) \
  int k_ref_##name(const k_call *call) { return map2(call, f, g); }

/* ---- binary -------------------------------------------------------------------------------- */

static double ref_add_real(double a, double b) { return a + b; }
static double sub_real(double a, double b) { return a - b; }
static double ref_mul_real(double a, double b) { return a * b; }
static double div_real(double a, double b) { return a / b; }
static int64_t ref_add_int(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static int64_t sub_int(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); }
static int64_t ref_mul_int(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

/* NaN propagates from either side. */
static double ref_min_real(double a, double b) { return a != a || a < b ? a : b; }
static double ref_max_real(double a, double b) { return a != a || a > b ? a : b; }
static int64_t ref_min_int(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t ref_max_int(int64_t a, int64_t b) { return a > b ? a : b; }

BINARY(add, ref_add_real, ref_add_int)
BINARY(sub, sub_real, sub_int)
BINARY(mul, ref_mul_real, ref_mul_int)
BINARY(div, div_real, NULL)
BINARY(minimum, ref_min_real, ref_min_int)
BINARY(maximum, ref_max_real, ref_max_int)

/* Returns b^e of integers by repeated squaring, modulo 2^64. b >= 0. */
static int64_t pow_int(int64_t a, int64_t b)
{
  uint64_t r = 1, s = (uint64_t)a;
  for (; b > 0; b >>= 1, s *= s)
    if (b & 1) r *= s;
  return (int64_t)r;
}

/* Refuses negative integer exponents: their result is not an integer. */
int k_ref_pow(const k_call *call)
{
  const k_tensor *b = &call->in[1];
  int64_t n = k_numel(&call->out[0]);
  ref_walk w = ref_begin(b->shape, b->ndim);
  for (int64_t i = 0; i < n && !ref_is_float(b); i++, ref_step(&w)) {
    int64_t e = ref_get_int(b, ref_offset(&w, b));
    if (e < 0)
      return ref_fail(call, TIDE_E_ARG, "exponent %lld at position %lld is negative: "
                      "integer powers need exponents of at least 0, cast to a float first",
                      (long long)e, (long long)i);
  }
  return map2(call, pow, pow_int);
}

#define COMPARISON(name, op) \
  static double name##_real(double a, double b) { return a op b; } \
  static int64_t name##_int(int64_t a, int64_t b) { return a op b; } \
  BINARY(name, name##_real, name##_int)

COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)
COMPARISON(logical_and, &&)
COMPARISON(logical_or, ||)

/* ---- unary --------------------------------------------------------------------------------- */

static double neg_real(double x) { return -x; }
static int64_t neg_int(int64_t x) { return (int64_t)(0 - (uint64_t)x); }
static int64_t abs_int(int64_t x) { return x < 0 ? neg_int(x) : x; }
static double sign_real(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static int64_t sign_int(int64_t x) { return (x > 0) - (x < 0); }
static int64_t same_int(int64_t x) { return x; }
static double rsqrt_real(double x) { return 1 / sqrt(x); }
static double square_real(double x) { return x * x; }
static int64_t square_int(int64_t x) { return ref_mul_int(x, x); }
static double reciprocal_real(double x) { return 1 / x; }
static double silu_real(double x) { return x / (1 + exp(-x)); }
static double relu_real(double x) { return x <= 0 ? 0 : x; }
static int64_t relu_int(int64_t x) { return x <= 0 ? 0 : x; }
static double not_real(double x) { return x == 0; }
static int64_t not_int(int64_t x) { return x == 0; }
static double isfinite_real(double x) { return isfinite(x) != 0; }
static int64_t isfinite_int(int64_t x) { return (void)x, 1; }

/* Returns x times the standard normal cdf; erfc keeps the left tail exact. */
static double gelu_real(double x) { return 0.5 * x * erfc(-x * M_SQRT1_2); }

/* x/2 (1 + tanh u) equals x sigmoid(2u), which does not cancel on the left. */
static const double gelu_a = 0.79788456080286535588, gelu_b = 0.044715; /* sqrt(2 / pi) */
static double gelu_tanh_real(double x)
{
  return x * ref_sigmoid(2 * gelu_a * (x + gelu_b * x * x * x));
}

UNARY(neg, neg_real, neg_int)
UNARY(abs, fabs, abs_int)
UNARY(sign, sign_real, sign_int)
UNARY(floor, floor, same_int)
UNARY(square, square_real, square_int)
#define TIDE_UNARY(ID, name, ref, f32, f64, cuda) UNARY(name, ref, NULL)
#include "kernels/unary.def"
#undef TIDE_UNARY
UNARY(sin, sin, NULL)
UNARY(cos, cos, NULL)
UNARY(relu, relu_real, relu_int)
UNARY(logical_not, not_real, not_int)
UNARY(isfinite, isfinite_real, isfinite_int)

/* ---- backward: dy and the saved value -> dx ------------------------------------------------ */

static double tanh_slope(double dy, double y) { return dy * (1 - y * y); }
static double sigmoid_slope(double dy, double y) { return dy * y * (1 - y); }
static double relu_slope(double dy, double y) { return y <= 0 ? 0 : dy; }
static double softplus_slope(double dy, double x) { return dy * ref_sigmoid(x); }
static double ref_silu_slope(double dy, double x)
{
  double s = ref_sigmoid(x);
  return dy * s * (1 + x * (1 - s));
}
static double gelu_slope(double dy, double x)
{
  double cdf = 0.5 * erfc(-x * M_SQRT1_2);
  double pdf = exp(-0.5 * x * x) * 0.39894228040143267794; /* 1 / sqrt(2 pi) */
  return dy * (cdf + x * pdf);
}
static double gelu_tanh_slope(double dy, double x)
{
  double s = ref_sigmoid(2 * gelu_a * (x + gelu_b * x * x * x));
  double slope = 2 * gelu_a * (1 + 3 * gelu_b * x * x);
  return dy * (s + x * s * (1 - s) * slope);
}

BINARY(tanh_bwd, tanh_slope, NULL)
BINARY(sigmoid_bwd, sigmoid_slope, NULL)
BINARY(relu_bwd, relu_slope, NULL)
BINARY(silu_bwd, ref_silu_slope, NULL)
BINARY(gelu_bwd, gelu_slope, NULL)
BINARY(gelu_tanh_bwd, gelu_tanh_slope, NULL)
BINARY(softplus_bwd, softplus_slope, NULL)

/* NaN lies outside every interval. */
int k_ref_clamp_bwd(const k_call *call)
{
  const k_tensor *dy = &call->in[0], *x = &call->in[1], *dx = &call->out[0];
  const k_scalar_attrs *s = call->attrs;
  int64_t n = k_numel(dx);
  ref_walk w = ref_begin(dx->shape, dx->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    double v = ref_get(x, ref_offset(&w, x));
    double g = v >= s->mul && v <= s->add ? ref_get(dy, ref_offset(&w, dy)) : 0;
    ref_put(dx, ref_offset(&w, dx), g);
  }
  return TIDE_OK;
}

/* ---- scalar attributes --------------------------------------------------------------------- */

int k_ref_affine(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  const k_scalar_attrs *s = call->attrs;
  int64_t n = k_numel(y);
  ref_walk w = ref_begin(y->shape, y->ndim);
  int rc = ref_check_integral(call, x, s->mul);
  if (rc == TIDE_OK) rc = ref_check_integral(call, x, s->add);
  if (rc != TIDE_OK) return rc;
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    int64_t at = ref_offset(&w, x), yt = ref_offset(&w, y);
    if (ref_is_float(x)) ref_put(y, yt, ref_get(x, at) * s->mul + s->add);
    else
      ref_put_int(y, yt,
                  ref_add_int(ref_mul_int(ref_get_int(x, at), (int64_t)s->mul), (int64_t)s->add));
  }
  return TIDE_OK;
}

int k_ref_pow_scalar(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  double e = ((const k_scalar_attrs *)call->attrs)->mul;
  int64_t n = k_numel(y);
  ref_walk w = ref_begin(y->shape, y->ndim);
  int rc = ref_check_integral(call, x, e);
  if (rc != TIDE_OK) return rc;
  if (!ref_is_float(x) && e < 0)
    return ref_fail(call, TIDE_E_ARG, "exponent %g is negative: integer powers need exponents of "
                    "at least 0, cast to a float first", e);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    int64_t at = ref_offset(&w, x), yt = ref_offset(&w, y);
    if (ref_is_float(x)) ref_put(y, yt, pow(ref_get(x, at), e));
    else ref_put_int(y, yt, pow_int(ref_get_int(x, at), (int64_t)e));
  }
  return TIDE_OK;
}

/* Computes min(max(x, lo), hi); hi wins where lo > hi. Refuses NaN bounds. Integers are clamped to
 * the integers inside the bounds. */
int k_ref_clamp(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  const k_scalar_attrs *s = call->attrs;
  int64_t n = k_numel(y), lo, hi;
  ref_walk w = ref_begin(y->shape, y->ndim);
  if (s->mul != s->mul || s->add != s->add)
    return ref_fail(call, TIDE_E_ARG, "bounds [%g, %g]: NaN is no bound", s->mul, s->add);
  lo = ref_truncate(ceil(s->mul), INT64_MIN, INT64_MAX);
  hi = ref_truncate(floor(s->add), INT64_MIN, INT64_MAX);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    int64_t at = ref_offset(&w, x), yt = ref_offset(&w, y);
    if (ref_is_float(x)) ref_put(y, yt, ref_min_real(ref_max_real(ref_get(x, at), s->mul), s->add));
    else ref_put_int(y, yt, ref_min_int(ref_max_int(ref_get_int(x, at), lo), hi));
  }
  return TIDE_OK;
}

/* ---- in place ------------------------------------------------------------------------------ */

int k_ref_fill_(const k_call *call)
{
  const k_tensor *t = &call->out[0];
  double value = ((const k_scalar_attrs *)call->attrs)->add;
  int64_t n = k_numel(t);
  ref_walk w = ref_begin(t->shape, t->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) ref_put(t, ref_offset(&w, t), value);
  return TIDE_OK;
}

static int convert_all(const k_tensor *x, const k_tensor *y)
{
  int64_t n = k_numel(y);
  ref_walk w = ref_begin(y->shape, y->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w))
    ref_convert(y, ref_offset(&w, y), x, ref_offset(&w, x));
  return TIDE_OK;
}

int k_ref_copy_(const k_call *call) { return convert_all(&call->in[0], &call->out[0]); }
int k_ref_cast(const k_call *call) { return convert_all(&call->in[0], &call->out[0]); }

/* An integer target takes the source truncated to integers. */
static void add_all(const k_tensor *x, const k_tensor *t, double a)
{
  int64_t n = k_numel(t);
  ref_walk w = ref_begin(t->shape, t->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    int64_t at = ref_offset(&w, t), xt = ref_offset(&w, x);
    if (ref_is_float(t)) ref_put(t, at, ref_get(t, at) + a * ref_get(x, xt));
    else
      ref_put_int(t, at,
                  ref_add_int(ref_get_int(t, at), ref_mul_int((int64_t)a, ref_get_int(x, xt))));
  }
}

int k_ref_axpy_(const k_call *call)
{
  double a = ((const k_scalar_attrs *)call->attrs)->mul;
  int rc = ref_check_integral(call, &call->out[0], a);
  if (rc == TIDE_OK) add_all(&call->in[0], &call->out[0], a);
  return rc;
}

int k_ref_foreach_copy_(const k_call *call)
{
  for (int i = 0; i < call->nout; i++) convert_all(&call->in[i], &call->out[i]);
  return TIDE_OK;
}

int k_ref_foreach_add_(const k_call *call)
{
  for (int i = 0; i < call->nout; i++) add_all(&call->in[i], &call->out[i], 1);
  return TIDE_OK;
}

int k_ref_scale_(const k_call *call)
{
  const k_tensor *t = &call->out[0];
  double a = ((const k_scalar_attrs *)call->attrs)->mul;
  int64_t n = k_numel(t);
  ref_walk w = ref_begin(t->shape, t->ndim);
  int rc = ref_check_integral(call, t, a);
  if (rc != TIDE_OK) return rc;
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    int64_t at = ref_offset(&w, t);
    if (ref_is_float(t)) ref_put(t, at, ref_get(t, at) * a);
    else ref_put_int(t, at, ref_mul_int(ref_get_int(t, at), (int64_t)a));
  }
  return TIDE_OK;
}

int k_ref_where(const k_call *call)
{
  const k_tensor *cond = &call->in[0], *a = &call->in[1], *b = &call->in[2], *y = &call->out[0];
  int64_t n = k_numel(y);
  ref_walk w = ref_begin(y->shape, y->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    const k_tensor *x = ref_get_int(cond, ref_offset(&w, cond)) ? a : b;
    ref_convert(y, ref_offset(&w, y), x, ref_offset(&w, x));
  }
  return TIDE_OK;
}
