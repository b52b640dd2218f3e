/* Fast elementwise ops: binary, comparison, unary, scalar, in place, cast, where, and the backward
 * halves of the activations.
 *
 * An op is up to three loops over contiguous numbers (f32, f64, i64), each compiled for several
 * instruction sets; loop.h passes them chunks of any operand. bf16 and f16 are computed in f32 and
 * rounded once.
 *
 * Definition: kernels/ref/elementwise.c, which also computes integer powers.
 */
#include "kernels/cpu/loop.h"
#include "kernels/ref/load.h"

typedef struct bodies {
  cpu_body f32, f64, i64;
} bodies;

/* Maps the first nin inputs in one form to out[0] in that form, or in bool. */
static int map(const k_call *call, int nin, const bodies *b, int to_bool, const double *s)
{
  int form = tide__loop_form(call->in[0].dtype);
  cpu_map m = { .nin = nin, .out = &call->out[0], .s = s };
  m.body = form == TIDE_F32 ? b->f32 : form == TIDE_F64 ? b->f64 : b->i64;
  m.out_form = to_bool ? TIDE_BOOL : form;
  if (!m.body)
    return ref_fail(call, TIDE_E_DTYPE, "this op needs a floating dtype, not %s",
                    tide_dtype_name(call->in[0].dtype));
  for (int i = 0; i < nin; i++) {
    m.in[i] = &call->in[i];
    m.in_form[i] = form;
  }
  tide__loop_map(&m, call->nthread);
  return TIDE_OK;
}

/* A body y[i] = expr of a, and of b if present. T: operands, R: result. */
#define BODY1(name, T, R, expr) \
  TIDE_LEVELS(void, name, \
              (void *yv, const void *const *xs, int64_t n, const double *s), (yv, xs, n, s)) \
  { \
    const T *x = xs[0]; \
    R *y = yv; \
    (void)s; \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { T a = x[i]; y[i] = (R)(expr); } \
  }
#define BODY2(name, T, R, expr) \
  TIDE_LEVELS(void, name, \
              (void *yv, const void *const *xs, int64_t n, const double *s), (yv, xs, n, s)) \
  { \
    const T *x0 = xs[0], *x1 = xs[1]; \
    R *y = yv; \
    (void)s; \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { \
      T a = x0[i], b = x1[i]; \
      y[i] = (R)(expr); \
    } \
  }

#define KERNEL(name, nin, ints, to_bool) \
  int k_cpu_##name(const k_call *call) \
  { \
    static const bodies b = { name##_f32, name##_f64, ints }; \
    return map(call, nin, &b, to_bool, NULL); \
  }

/* ---- binary -------------------------------------------------------------------------------- */

#define BINARY_FLOAT(name, e32, e64) \
  BODY2(name##_f32, float, float, e32) \
  BODY2(name##_f64, double, double, e64) \
  KERNEL(name, 2, NULL, 0)
#define BINARY(name, real, integer) \
  BODY2(name##_f32, float, float, real) \
  BODY2(name##_f64, double, double, real) \
  BODY2(name##_i64, int64_t, int64_t, integer) \
  KERNEL(name, 2, name##_i64, 0)
#define COMPARISON(name, expr) \
  BODY2(name##_f32, float, uint8_t, expr) \
  BODY2(name##_f64, double, uint8_t, expr) \
  BODY2(name##_i64, int64_t, uint8_t, expr) \
  KERNEL(name, 2, name##_i64, 1)

BINARY(add, a + b, (uint64_t)a + (uint64_t)b)
BINARY(sub, a - b, (uint64_t)a - (uint64_t)b)
BINARY(mul, a * b, (uint64_t)a * (uint64_t)b)
BINARY_FLOAT(div, a / b, a / b)
BINARY(minimum, ((a != a) | (a < b)) ? a : b, a < b ? a : b)
BINARY(maximum, ((a != a) | (a > b)) ? a : b, a > b ? a : b)
COMPARISON(eq, a == b)
COMPARISON(ne, a != b)
COMPARISON(lt, a < b)
COMPARISON(le, a <= b)
COMPARISON(gt, a > b)
COMPARISON(ge, a >= b)
COMPARISON(logical_and, (a != 0) & (b != 0))
COMPARISON(logical_or, (a != 0) | (b != 0))

/* Returns x with denormals as zeros. libm tests the bits of a denormal, where loops that flush
 * compare it equal to zero. */
TIDE_INLINE float flushed_f32(float x) { return x == 0 ? copysignf(0, x) : x; }
TIDE_INLINE double flushed_d(double x) { return x == 0 ? copysign(0, x) : x; }

BODY2(pow_f32, float, float, powf(flushed_f32(a), b))
BODY2(pow_f64, double, double, pow(flushed_d(a), b))

int k_cpu_pow(const k_call *call)
{
  static const bodies b = { pow_f32, pow_f64, NULL };
  return ref_is_float(&call->in[0]) ? map(call, 2, &b, 0, NULL) : k_ref_pow(call);
}

/* ---- unary --------------------------------------------------------------------------------- */

#define UNARY_FLOAT(name, e32, e64) \
  BODY1(name##_f32, float, float, e32) \
  BODY1(name##_f64, double, double, e64) \
  KERNEL(name, 1, NULL, 0)
#define UNARY(name, e32, e64, integer) \
  BODY1(name##_f32, float, float, e32) \
  BODY1(name##_f64, double, double, e64) \
  BODY1(name##_i64, int64_t, int64_t, integer) \
  KERNEL(name, 1, name##_i64, 0)
#define PREDICATE(name, e32, e64, integer) \
  BODY1(name##_f32, float, uint8_t, e32) \
  BODY1(name##_f64, double, uint8_t, e64) \
  BODY1(name##_i64, int64_t, uint8_t, integer) \
  KERNEL(name, 1, name##_i64, 1)

#define SQRT_HALF_PI_INV 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715

/* Returns log(1 + u) for u in [0, 1]: the quotient compensates the rounding of 1 + u. */
TIDE_INLINE float log1p_f32(float u)
{
  float w = 1.0f + u, d = w - 1.0f;
  float y = tide__logf(w) * (u / (d == 0.0f ? 1.0f : d));
  return d == 0.0f ? u : y;
}

TIDE_INLINE float softplus_value(float x)
{
  return (x > 0.0f ? x : 0.0f) + log1p_f32(tide__expf(-fabsf(x)));
}

TIDE_INLINE double sigmoid_d(double x) { return 1.0 / (1.0 + exp(-x)); }

/* Returns the argument of the sigmoid in gelu_tanh. */
TIDE_INLINE float gelu_arg(float x)
{
  const float c = (float)(2 * SQRT_HALF_PI_INV), d = (float)(2 * SQRT_HALF_PI_INV * GELU_CUBIC);
  return x * (c + d * x * x);
}
TIDE_INLINE double gelu_arg_d(double x)
{
  return 2 * SQRT_HALF_PI_INV * (x + GELU_CUBIC * x * x * x);
}

TIDE_INLINE float cdf_f32(float x) { return 0.5f * (1.0f + tide__erff(x * 0.70710678f)); }

UNARY(neg, -a, -a, 0 - (uint64_t)a)
UNARY(abs, fabsf(a), fabs(a), a < 0 ? 0 - (uint64_t)a : (uint64_t)a)
/* The sum covers zero, a flushed denormal and NaN. */
UNARY(sign, a > 0 ? 1 : a < 0 ? -1 : a + a, a > 0 ? 1 : a < 0 ? -1 : a + a, (a > 0) - (a < 0))
UNARY(floor, floorf(a), floor(a), a)
UNARY(square, a * a, a * a, (uint64_t)a * (uint64_t)a)
UNARY(relu, a <= 0 ? 0 : a, a <= 0 ? 0 : a, a <= 0 ? 0 : a)
#define TIDE_UNARY(ID, name, ref, f32, f64, cuda) UNARY_FLOAT(name, f32, f64)
#include "kernels/unary.def"
#undef TIDE_UNARY
PREDICATE(logical_not, a == 0, a == 0, a == 0)
PREDICATE(isfinite, fabsf(a) < HUGE_VALF, fabs(a) < HUGE_VAL, a == a)

/* Sine (quadrant 0) or cosine (1) of a float by reduction to [-pi/4, pi/4] in double, for |x| <=
 * SINE_LIMIT; larger numbers, infinities and NaN are left to libm. */
#define SINE_LIMIT 1048576.0f

TIDE_INLINE float sine_f32(float x, int quadrant)
{
  const double shift = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
  double t = (double)x * 0.63661977236758134308 + shift, n = t - shift;
  /* pi/2 in two parts, the first of 33 bits, so that n times it is exact. */
  double r = ((double)x - n * 1.57079632673412561417e+00) - n * 6.07710050650619224932e-11;
  double u = r * r;
  double sine = r + r * u * (-1.0 / 6 + u * (1.0 / 120 + u * (-1.0 / 5040 + u / 362880)));
  double cosine = 1 + u * (-0.5 + u * (1.0 / 24 + u * (-1.0 / 720 + u * (1.0 / 40320
                  - u / 3628800))));
  int64_t q;
  memcpy(&q, &t, 8);
  q += quadrant;
  double v = q & 1 ? cosine : sine;
  return (float)(q & 2 ? -v : v);
}

/* In short blocks, so that y may be x and an element's value does not depend on its neighbours. */
#define SINE(name, quadrant) \
  BODY1(name##_block, float, float, sine_f32(a, quadrant)) \
  static void name##_f32(void *yv, const void *const *xs, int64_t n, const double *s) \
  { \
    enum { SHORT = 64 }; \
    float *y = yv, x[SHORT]; \
    const void *const copy[1] = { x }; \
    for (int64_t at = 0; at < n; at += SHORT) { \
      int64_t m = n - at < SHORT ? n - at : SHORT; \
      memcpy(x, (const float *)xs[0] + at, (size_t)m * sizeof *x); \
      name##_block(y + at, copy, m, s); \
      for (int64_t i = 0; i < m; i++) \
        if (!(fabsf(x[i]) <= SINE_LIMIT)) y[at + i] = name##f(x[i]); \
    } \
  } \
  BODY1(name##_f64, double, double, name(a)) \
  KERNEL(name, 1, NULL, 0)

SINE(sin, 0)
SINE(cos, 1)

/* ---- backward: a is dy, b the saved value -------------------------------------------------- */

TIDE_INLINE float silu_slope(float x)
{
  float s = tide__sigmoidf(x);
  return s * (1.0f + x * (1.0f - s));
}
TIDE_INLINE double silu_slope_d(double x)
{
  double s = sigmoid_d(x);
  return s * (1 + x * (1 - s));
}
TIDE_INLINE float gelu_slope(float x)
{
  return cdf_f32(x) + x * 0.39894228f * tide__expf(-0.5f * x * x);
}
TIDE_INLINE double gelu_slope_d(double x)
{
  return 0.5 * erfc(-x * M_SQRT1_2) + x * 0.39894228040143267794 * exp(-0.5 * x * x);
}
TIDE_INLINE float gelu_tanh_slope(float x)
{
  const float c = (float)(2 * SQRT_HALF_PI_INV), d = (float)(6 * SQRT_HALF_PI_INV * GELU_CUBIC);
  float s = tide__sigmoidf(gelu_arg(x));
  return s + x * s * (1.0f - s) * (c + d * x * x);
}
TIDE_INLINE double gelu_tanh_slope_d(double x)
{
  double s = sigmoid_d(gelu_arg_d(x));
  double slope = 2 * SQRT_HALF_PI_INV * (1 + 3 * GELU_CUBIC * x * x);
  return s + x * s * (1 - s) * slope;
}

BINARY_FLOAT(tanh_bwd, a * (1.0f - b * b), a * (1 - b * b))
BINARY_FLOAT(sigmoid_bwd, a * b * (1.0f - b), a * b * (1 - b))
BINARY_FLOAT(relu_bwd, b <= 0 ? 0 : a, b <= 0 ? 0 : a)
BINARY_FLOAT(silu_bwd, a * silu_slope(b), a * silu_slope_d(b))
BINARY_FLOAT(gelu_bwd, a * gelu_slope(b), a * gelu_slope_d(b))
BINARY_FLOAT(gelu_tanh_bwd, a * gelu_tanh_slope(b), a * gelu_tanh_slope_d(b))
BINARY_FLOAT(softplus_bwd, a * tide__sigmoidf(b), a * sigmoid_d(b))

BODY2(clamp_bwd_f32, float, float, ((b > (float)s[0]) & (b < (float)s[1])) ? a : 0)
BODY2(clamp_bwd_f64, double, double, ((b > s[0]) & (b < s[1])) ? a : 0)

int k_cpu_clamp_bwd(const k_call *call)
{
  static const bodies b = { clamp_bwd_f32, clamp_bwd_f64, NULL };
  const k_scalar_attrs *attrs = call->attrs;
  double s[2] = { attrs->mul, attrs->add };
  if (tide__loop_form(call->in[0].dtype) == TIDE_F32) { /* the floats just outside */
    float lo = (float)s[0], hi = (float)s[1];
    s[0] = lo > s[0] ? nextafterf(lo, -HUGE_VALF) : lo;
    s[1] = hi < s[1] ? nextafterf(hi, HUGE_VALF) : hi;
  }
  return map(call, 2, &b, 0, s);
}

/* ---- scalar attributes --------------------------------------------------------------------- */

BODY1(affine_f32, float, float, a * (float)s[0] + (float)s[1])
BODY1(affine_f64, double, double, a * s[0] + s[1])
BODY1(affine_i64, int64_t, int64_t,
      (uint64_t)a * (uint64_t)(int64_t)s[0] + (uint64_t)(int64_t)s[1])

int k_cpu_affine(const k_call *call)
{
  static const bodies b = { affine_f32, affine_f64, affine_i64 };
  const k_scalar_attrs *attrs = call->attrs;
  const double s[2] = { attrs->mul, attrs->add };
  int rc = ref_check_integral(call, &call->in[0], s[0]);
  if (rc == TIDE_OK) rc = ref_check_integral(call, &call->in[0], s[1]);
  return rc == TIDE_OK ? map(call, 1, &b, 0, s) : rc;
}

/* As pow for zeros and infinities: no negative zero, no NaN from -inf. */
TIDE_INLINE float root_f32(float x) { return x == -HUGE_VALF ? HUGE_VALF : sqrtf(x + 0.0f); }
TIDE_INLINE double root_d(double x) { return x == -HUGE_VAL ? HUGE_VAL : sqrt(x + 0.0); }

BODY1(pow_any_f32, float, float, powf(flushed_f32(a), (float)s[0]))
BODY1(pow_any_f64, double, double, pow(flushed_d(a), s[0]))
BODY1(pow_root_f32, float, float, root_f32(a))
BODY1(pow_root_f64, double, double, root_d(a))
BODY1(pow_rroot_f32, float, float, 1.0f / root_f32(a))
BODY1(pow_rroot_f64, double, double, 1.0 / root_d(a))
BODY1(pow_cube_f32, float, float, a * a * a)
BODY1(pow_cube_f64, double, double, a * a * a)

int k_cpu_pow_scalar(const k_call *call)
{
  static const struct { double exponent; bodies b; } known[] = {
    { 2, { square_f32, square_f64, NULL } },
    { 3, { pow_cube_f32, pow_cube_f64, NULL } },
    { -1, { reciprocal_f32, reciprocal_f64, NULL } },
    { 0.5, { pow_root_f32, pow_root_f64, NULL } },
    { -0.5, { pow_rroot_f32, pow_rroot_f64, NULL } }
  };
  static const bodies any = { pow_any_f32, pow_any_f64, NULL };
  double e = ((const k_scalar_attrs *)call->attrs)->mul;
  if (!ref_is_float(&call->in[0])) return k_ref_pow_scalar(call);
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (known[i].exponent == e) return map(call, 1, &known[i].b, 0, NULL);
  return map(call, 1, &any, 0, &e);
}

/* Applies max first, then min; NaN stays. */
TIDE_INLINE float clamp_value(float v, float lo, float hi)
{
  v = v < lo ? lo : v;
  return v > hi ? hi : v;
}
TIDE_INLINE double clamp_value_d(double v, double lo, double hi)
{
  v = v < lo ? lo : v;
  return v > hi ? hi : v;
}

BODY1(clamp_f32, float, float, clamp_value(a, (float)s[0], (float)s[1]))
BODY1(clamp_f64, double, double, clamp_value_d(a, s[0], s[1]))

TIDE_LEVELS(void, clamp_i64,
            (void *yv, const void *const *xs, int64_t n, const double *s), (yv, xs, n, s))
{
  const int64_t *x = xs[0], lo = ref_truncate(ceil(s[0]), INT64_MIN, INT64_MAX);
  const int64_t hi = ref_truncate(floor(s[1]), INT64_MIN, INT64_MAX);
  int64_t *y = yv;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = i64_min(i64_max(x[i], lo), hi);
}

int k_cpu_clamp(const k_call *call)
{
  static const bodies b = { clamp_f32, clamp_f64, clamp_i64 };
  const k_scalar_attrs *attrs = call->attrs;
  const double s[2] = { attrs->mul, attrs->add };
  if (s[0] != s[0] || s[1] != s[1])
    return ref_fail(call, TIDE_E_ARG, "bounds [%g, %g]: NaN is no bound", s[0], s[1]);
  return map(call, 1, &b, 0, s);
}

/* ---- in place ------------------------------------------------------------------------------ */

/* s holds the bytes of the value in the target's dtype. */
#define FILL(name, T) \
  TIDE_LEVELS(void, name, \
              (void *yv, const void *const *xs, int64_t n, const double *s), (yv, xs, n, s)) \
  { \
    T *y = yv, v; \
    (void)xs; \
    memcpy(&v, s, sizeof v); \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = v; \
  }
CPU_SIZES(FILL, fill)

int k_cpu_fill_(const k_call *call)
{
  const k_tensor *t = &call->out[0];
  double bits = 0;
  k_tensor one = { .data = &bits, .dtype = t->dtype };
  int size = tide_dtype_size(t->dtype);
  cpu_map m = { .out = t, .out_form = t->dtype, .s = &bits };
  m.body = CPU_OF_SIZE(size, fill);
  ref_put(&one, 0, ((const k_scalar_attrs *)call->attrs)->add);
  tide__loop_map(&m, call->nthread);
  return TIDE_OK;
}

int k_cpu_copy_(const k_call *call)
{
  tide__loop_convert(&call->out[0], &call->in[0], call->nthread);
  return TIDE_OK;
}

int k_cpu_cast(const k_call *call) { return k_cpu_copy_(call); }

BODY2(axpy_f32, float, float, a + (float)s[0] * b)
BODY2(axpy_f64, double, double, a + s[0] * b)
BODY2(axpy_i64, int64_t, int64_t, (uint64_t)a + (uint64_t)(int64_t)s[0] * (uint64_t)b)

/* A float target with a source that f32 cannot hold is computed in f64. An integer target with a
 * float source is left to the reference. */
int k_cpu_axpy_(const k_call *call)
{
  const k_tensor *t = &call->out[0], *x = &call->in[0];
  double alpha = ((const k_scalar_attrs *)call->attrs)->mul;
  int form = tide__loop_form(t->dtype), x_form = tide__loop_form(x->dtype), rc;
  cpu_map m = { .nin = 2, .in = { t, x }, .out = t, .s = &alpha };
  if (form == TIDE_I64 && x_form != TIDE_I64) return k_ref_axpy_(call);
  if (call->nin > 1) alpha *= ref_get(&call->in[1], 0);
  rc = ref_check_integral(call, t, alpha);
  if (rc != TIDE_OK) return rc;
  if (form == TIDE_F32 && x_form != TIDE_F32) form = TIDE_F64;
  m.in_form[0] = m.in_form[1] = m.out_form = form;
  m.body = form == TIDE_F32 ? axpy_f32 : form == TIDE_F64 ? axpy_f64 : axpy_i64;
  tide__loop_map(&m, call->nthread);
  return TIDE_OK;
}

BODY1(scale_f32, float, float, a * (float)s[0])
BODY1(scale_f64, double, double, a * s[0])
BODY1(scale_i64, int64_t, int64_t, (uint64_t)a * (uint64_t)(int64_t)s[0])

int k_cpu_scale_(const k_call *call)
{
  const k_tensor *t = &call->out[0];
  const double *factor = &((const k_scalar_attrs *)call->attrs)->mul;
  int form = tide__loop_form(t->dtype), rc = ref_check_integral(call, t, *factor);
  cpu_map m = { .nin = 1, .in = { t }, .out = t, .out_form = form, .s = factor };
  m.in_form[0] = form;
  m.body = form == TIDE_F32 ? scale_f32 : form == TIDE_F64 ? scale_f64 : scale_i64;
  if (rc == TIDE_OK) tide__loop_map(&m, call->nthread);
  return rc;
}

/* ---- where: bits, by size ------------------------------------------------------------------ */

#define WHERE(name, T) \
  TIDE_LEVELS(void, name, \
              (void *yv, const void *const *xs, int64_t n, const double *s), (yv, xs, n, s)) \
  { \
    const uint8_t *c = xs[0]; \
    const T *a = xs[1], *b = xs[2]; \
    T *y = yv; \
    (void)s; \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = c[i] ? a[i] : b[i]; \
  }
CPU_SIZES(WHERE, where)

int k_cpu_where(const k_call *call)
{
  const k_tensor *y = &call->out[0];
  int size = tide_dtype_size(y->dtype);
  cpu_map m = { .nin = 3, .out = y, .out_form = y->dtype };
  m.body = CPU_OF_SIZE(size, where);
  for (int i = 0; i < 3; i++) {
    m.in[i] = &call->in[i];
    m.in_form[i] = call->in[i].dtype;
  }
  tide__loop_map(&m, call->nthread);
  return TIDE_OK;
}
