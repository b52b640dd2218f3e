/* Defines every elementwise op: binary, comparison, unary, scalar, in place, cast, where, and the
 * backward halves of the activations.
 *
 * An op is one expression of doubles and, where integers make sense, one of int64_t; one walker
 * applies it element by element at any strides. Integer results wrap to their dtype. Inputs have
 * the output's shape (broadcast dims have stride 0) and one common dtype.
 */
#include "kernels/ref/activation.h"
#include "kernels/ref/load.h"

/* a and b: elements of the first and the second operand; s: the attributes, null without any. */
typedef double (*real_fn)(double a, double b, const k_scalar_attrs *s);
typedef int64_t (*int_fn)(int64_t a, int64_t b, const k_scalar_attrs *s);

/* Sets each element of out[0] to f of those of a and b, or to g if a holds integers. b may be null;
 * without g integers are refused. */
static int ref_map(const k_call *call, const k_tensor *a, const k_tensor *b, real_fn f, int_fn g)
{
  const k_tensor *y = &call->out[0];
  if (!ref_is_float(a) && !g)
    return ref_fail(call, TIDE_E_DTYPE, "this op needs a floating dtype, not %s",
                    tide_dtype_name(a->dtype));
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w); ref_step(&w)) {
    int64_t at = ref_offset(&w, a), bt = b ? ref_offset(&w, b) : 0, yt = ref_offset(&w, y);
    if (ref_is_float(a)) ref_put(y, yt, f(ref_get(a, at), b ? ref_get(b, bt) : 0, call->attrs));
    else
      ref_put_int(y, yt, g(ref_get_int(a, at), b ? ref_get_int(b, bt) : 0, call->attrs));
  }
  return TIDE_OK;
}

/* The functions of an op; integer wraps, so it may be an expression of uint64_t. */
#define REAL(name, real) \
  static double name##_real(double a, double b, const k_scalar_attrs *s) \
  { \
    (void)a, (void)b, (void)s; \
    return real; \
  }
#define INTEGER(name, integer) \
  static int64_t name##_int(int64_t a, int64_t b, const k_scalar_attrs *s) \
  { \
    (void)a, (void)b, (void)s; \
    return (int64_t)(integer); \
  }
#define UNARY(name, real, integer) \
  REAL(name, real) \
  INTEGER(name, integer) \
  int k_ref_##name(const k_call *call) \
  { \
    return ref_map(call, call->in, 0, name##_real, name##_int); \
  }
#define UNARY_FLOAT(name, real) \
  REAL(name, real) \
  int k_ref_##name(const k_call *call) { return ref_map(call, call->in, 0, name##_real, 0); }
#define BINARY(name, real, integer) \
  REAL(name, real) \
  INTEGER(name, integer) \
  int k_ref_##name(const k_call *call) \
  { \
    return ref_map(call, call->in, call->in + 1, name##_real, name##_int); \
  }
#define BINARY_FLOAT(name, real) \
  REAL(name, real) \
  int k_ref_##name(const k_call *call) \
  { \
    return ref_map(call, call->in, call->in + 1, name##_real, 0); \
  }

/* ---- binary -------------------------------------------------------------------------------- */

BINARY(add, a + b, (uint64_t)a + (uint64_t)b)
BINARY(sub, a - b, (uint64_t)a - (uint64_t)b)
BINARY(mul, a * b, (uint64_t)a * (uint64_t)b)
BINARY_FLOAT(div, a / b)
BINARY(minimum, ref_min(a, b), a < b ? a : b)
BINARY(maximum, ref_max(a, b), a > b ? a : b)
BINARY(eq, a == b, a == b)
BINARY(ne, a != b, a != b)
BINARY(lt, a < b, a < b)
BINARY(le, a <= b, a <= b)
BINARY(gt, a > b, a > b)
BINARY(ge, a >= b, a >= b)
BINARY(logical_and, a && b, a && b)
BINARY(logical_or, a || b, a || b)

/* Returns b^e of integers by repeated squaring, modulo 2^64. b >= 0. */
static int64_t power(int64_t a, int64_t b)
{
  uint64_t r = 1, s = (uint64_t)a;
  for (; b > 0; b >>= 1, s *= s)
    if (b & 1) r *= s;
  return (int64_t)r;
}

REAL(pow, pow(a, b))
INTEGER(pow, power(a, b))

/* Refuses negative integer exponents: their result is not an integer. */
int k_ref_pow(const k_call *call)
{
  const k_tensor *b = &call->in[1];
  for (ref_walk w = ref_begin(b->shape, b->ndim); ref_more(&w) && !ref_is_float(b); ref_step(&w)) {
    int64_t e = ref_get_int(b, ref_offset(&w, b));
    if (e < 0)
      return ref_fail(call, TIDE_E_ARG, "exponent %lld at position %lld is negative: "
                      "integer powers need exponents of at least 0, cast to a float first",
                      (long long)e, (long long)w.i);
  }
  return ref_map(call, call->in, b, pow_real, pow_int);
}

/* ---- unary --------------------------------------------------------------------------------- */

/* Returns the sigmoid in gelu_tanh: x/2 (1 + tanh u) equals x sigmoid(2u), which does not cancel on
 * the left. */
static const double gelu_a = 0.79788456080286535588, gelu_b = 0.044715; /* sqrt(2 / pi) */
static double gelu_gate(double x) { return ref_sigmoid(2 * gelu_a * (x + gelu_b * x * x * x)); }

UNARY(neg, -a, 0 - (uint64_t)a)
UNARY(abs, fabs(a), a < 0 ? 0 - (uint64_t)a : (uint64_t)a)
UNARY(sign, a > 0 ? 1 : a < 0 ? -1 : a, (a > 0) - (a < 0))
UNARY(floor, floor(a), a)
UNARY(square, a * a, (uint64_t)a * (uint64_t)a)
#define TIDE_UNARY(ID, name, ref, f32, f64, cuda) UNARY_FLOAT(name, ref)
#include "kernels/unary.def"
#undef TIDE_UNARY
UNARY_FLOAT(sin, sin(a))
UNARY_FLOAT(cos, cos(a))
UNARY(relu, a <= 0 ? 0 : a, a <= 0 ? 0 : a)
UNARY(logical_not, a == 0, a == 0)
UNARY(isfinite, isfinite(a) != 0, 1)

/* ---- backward: a is dy, b the saved value -------------------------------------------------- */

static double silu_slope(double x)
{
  double s = ref_sigmoid(x);
  return s * (1 + x * (1 - s));
}
static double gelu_slope(double x)
{
  double pdf = exp(-0.5 * x * x) * 0.39894228040143267794; /* 1 / sqrt(2 pi) */
  return 0.5 * erfc(-x * M_SQRT1_2) + x * pdf;
}
static double gelu_tanh_slope(double x)
{
  double s = gelu_gate(x), slope = 2 * gelu_a * (1 + 3 * gelu_b * x * x);
  return s + x * s * (1 - s) * slope;
}

BINARY_FLOAT(tanh_bwd, a * (1 - b * b))
BINARY_FLOAT(sigmoid_bwd, a * b * (1 - b))
BINARY_FLOAT(relu_bwd, b <= 0 ? 0 : a)
BINARY_FLOAT(silu_bwd, a * silu_slope(b))
BINARY_FLOAT(gelu_bwd, a * gelu_slope(b))
BINARY_FLOAT(gelu_tanh_bwd, a * gelu_tanh_slope(b))
BINARY_FLOAT(softplus_bwd, a * ref_sigmoid(b))
/* NaN lies outside every interval. */
BINARY_FLOAT(clamp_bwd, b > s->mul && b < s->add ? a : 0)

/* ---- scalar attributes --------------------------------------------------------------------- */

REAL(affine, a * s->mul + s->add)
INTEGER(affine, (uint64_t)a * (uint64_t)(int64_t)s->mul + (uint64_t)(int64_t)s->add)

int k_ref_affine(const k_call *call)
{
  const k_scalar_attrs *s = call->attrs;
  int rc = ref_check_integral(call, call->in, s->mul);
  if (rc == TIDE_OK) rc = ref_check_integral(call, call->in, s->add);
  return rc == TIDE_OK ? ref_map(call, call->in, 0, affine_real, affine_int) : rc;
}

REAL(pow_scalar, pow(a, s->mul))
INTEGER(pow_scalar, power(a, (int64_t)s->mul))

int k_ref_pow_scalar(const k_call *call)
{
  double e = ((const k_scalar_attrs *)call->attrs)->mul;
  TIDE_TRY(ref_check_integral(call, call->in, e));
  if (!ref_is_float(call->in) && e < 0)
    return ref_fail(call, TIDE_E_ARG, "exponent %g is negative: integer powers need exponents of "
                    "at least 0, cast to a float first", e);
  return ref_map(call, call->in, 0, pow_scalar_real, pow_scalar_int);
}

static int64_t clamp_integer(int64_t a, double low, double high)
{
  int64_t lo = ref_truncate(ceil(low), INT64_MIN, INT64_MAX);
  int64_t hi = ref_truncate(floor(high), INT64_MIN, INT64_MAX), v = a > lo ? a : lo;
  return v < hi ? v : hi;
}

REAL(clamp, ref_min(ref_max(a, s->mul), s->add))
INTEGER(clamp, clamp_integer(a, s->mul, s->add))

/* Computes min(max(x, lo), hi); hi wins where lo > hi. Refuses NaN bounds. Integers are clamped to
 * the integers inside the bounds. */
int k_ref_clamp(const k_call *call)
{
  const k_scalar_attrs *s = call->attrs;
  if (s->mul != s->mul || s->add != s->add)
    return ref_fail(call, TIDE_E_ARG, "bounds [%g, %g]: NaN is no bound", s->mul, s->add);
  return ref_map(call, call->in, 0, clamp_real, clamp_int);
}

/* ---- in place ------------------------------------------------------------------------------ */

int k_ref_fill_(const k_call *call)
{
  const k_tensor *t = &call->out[0];
  double value = ((const k_scalar_attrs *)call->attrs)->add;
  for (ref_walk w = ref_begin(t->shape, t->ndim); ref_more(&w); ref_step(&w))
    ref_put(t, ref_offset(&w, t), value);
  return TIDE_OK;
}

int k_ref_copy_(const k_call *call)
{
  ref_copy_all(call->out, call->in);
  return TIDE_OK;
}

int k_ref_cast(const k_call *call) { return k_ref_copy_(call); }

/* An integer target takes the source truncated to integers. */
REAL(axpy, a + s->mul * b)
INTEGER(axpy, (uint64_t)a + (uint64_t)(int64_t)s->mul * (uint64_t)b)

int k_ref_axpy_(const k_call *call)
{
  k_scalar_attrs by = *(const k_scalar_attrs *)call->attrs;
  k_call scaled = *call;
  scaled.attrs = &by;
  if (call->nin > 1) by.mul *= ref_get(&call->in[1], 0);
  int rc = ref_check_integral(call, call->out, by.mul);
  return rc == TIDE_OK ? ref_map(&scaled, call->out, call->in, axpy_real, axpy_int) : rc;
}

int k_ref_foreach_copy_(const k_call *call)
{
  for (int i = 0; i < call->nout; i++) ref_copy_all(&call->out[i], &call->in[i]);
  return TIDE_OK;
}

int k_ref_foreach_add_(const k_call *call)
{
  const k_scalar_attrs once = { 1, 0 };
  for (int i = 0; i < call->nout; i++) {
    const k_call one = { .nin = 1, .in = &call->in[i], .out = &call->out[i], .attrs = &once };
    k_ref_axpy_(&one);
  }
  return TIDE_OK;
}

REAL(scale, a * s->mul)
INTEGER(scale, (uint64_t)a * (uint64_t)(int64_t)s->mul)

int k_ref_scale_(const k_call *call)
{
  int rc = ref_check_integral(call, call->out, ((const k_scalar_attrs *)call->attrs)->mul);
  return rc == TIDE_OK ? ref_map(call, call->out, 0, scale_real, scale_int) : rc;
}

int k_ref_where(const k_call *call)
{
  const k_tensor *cond = &call->in[0], *a = &call->in[1], *b = &call->in[2], *y = &call->out[0];
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w); ref_step(&w)) {
    const k_tensor *x = ref_get_int(cond, ref_offset(&w, cond)) ? a : b;
    ref_convert(y, ref_offset(&w, y), x, ref_offset(&w, x));
  }
  return TIDE_OK;
}
