/* Elementwise ops on the GPU: one function object an op, and the kernels that apply it.
 *
 * Memory is the limit, so arithmetic is free to be careful: float for f32, bf16 and
 * f16 (rounded once, at the store), double for f64, int64_t for the others. Operands of any strides
 * are collapsed to as few dims as their strides allow; contiguous ones need no index arithmetic.
 *
 * Meaning and corner cases are those of kernels/ref/elementwise.c.
 */
#include "kernels/cuda/elementwise.cuh"

namespace {

/* ---- binary ---------------------------------------------------------------------------------- */

struct add_f { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
struct sub_f { template <class T> __device__ T operator()(T a, T b) const { return a - b; } };
struct mul_f { template <class T> __device__ T operator()(T a, T b) const { return a * b; } };
struct div_f { template <class T> __device__ T operator()(T a, T b) const { return a / b; } };

/* NaN propagates, whichever side it is on. */
struct min_f {
  template <class T> __device__ T operator()(T a, T b) const { return a != a || a < b ? a : b; }
};
struct max_f {
  template <class T> __device__ T operator()(T a, T b) const { return a != a || a > b ? a : b; }
};

#define COMPARISON(name, op)                                               \
  struct name##_f {                                                        \
    template <class T> __device__ T operator()(T a, T b) const             \
    {                                                                      \
      return (T)(a op b);                                                  \
    }                                                                      \
  };
COMPARISON(eq, ==)
COMPARISON(ne, !=)
COMPARISON(lt, <)
COMPARISON(le, <=)
COMPARISON(gt, >)
COMPARISON(ge, >=)
COMPARISON(logical_and, &&)
COMPARISON(logical_or, ||)

/* Integers by repeated squaring modulo 2^64; a negative exponent gives 0, which dispatch's caller
 * never asks for (see pow below). */
struct pow_f {
  __device__ float operator()(float a, float b) const { return powf(a, b); }
  __device__ double operator()(double a, double b) const { return pow(a, b); }
  __device__ int64_t operator()(int64_t a, int64_t b) const
  {
    uint64_t r = 1, s = (uint64_t)a;
    for (; b > 0; b >>= 1, s *= s)
      if (b & 1) r *= s;
    return b < 0 ? 0 : (int64_t)r;
  }
};

/* ---- unary ----------------------------------------------------------------------------------- */

/* name: an op whose float and double forms are the functions f and d of the CUDA library. */
#define LIBRARY(name, f, d)                                          \
  struct name##_f {                                                  \
    __device__ float operator()(float x) const { return f(x); }      \
    __device__ double operator()(double x) const { return d(x); }    \
  };
LIBRARY(sin, sinf, sin)
LIBRARY(cos, cosf, cos)

struct neg_f { template <class T> __device__ T operator()(T x) const { return -x; } };
struct square_f { template <class T> __device__ T operator()(T x) const { return x * x; } };
struct abs_f {
  __device__ float operator()(float x) const { return fabsf(x); }
  __device__ double operator()(double x) const { return fabs(x); }
  __device__ int64_t operator()(int64_t x) const { return x < 0 ? -x : x; }
};
struct sign_f {
  template <class T> __device__ T operator()(T x) const
  {
    return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : x;
  }
};
struct floor_f {
  __device__ float operator()(float x) const { return floorf(x); }
  __device__ double operator()(double x) const { return floor(x); }
  __device__ int64_t operator()(int64_t x) const { return x; }
};
struct relu_f {
  template <class T> __device__ T operator()(T x) const { return x <= (T)0 ? (T)0 : x; }
};
struct logical_not_f {
  template <class T> __device__ T operator()(T x) const { return (T)(x == (T)0); }
};
struct isfinite_f {
  __device__ float operator()(float x) const { return isfinite(x); }
  __device__ double operator()(double x) const { return isfinite(x); }
  __device__ int64_t operator()(int64_t) const { return 1; }
};

#define ACTIVATION(name, body)                                                     \
  struct name##_f {                                                                \
    template <class T> __device__ T operator()(T x) const { return (T)(body); }    \
  };
#define SLOPE(name, body)                                                              \
  struct name##_bwd_f {                                                                \
    template <class T> __device__ T operator()(T dy, T x) const { return (T)(body); }  \
  };

/* x/2 (1 + tanh u) is x sigmoid(2u), which does not cancel on the left; 0.7978... = sqrt(2/pi). */
template <class T> __device__ T gelu_gate(T x)
{
  return tide_sigmoid((T)2 * (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x));
}


#define TIDE_UNARY(ID, name, ref, f32, f64, cuda) ACTIVATION(name, cuda)
#include "kernels/unary.def"
#undef TIDE_UNARY

SLOPE(tanh, dy * ((T)1 - x * x))               /* x: the saved output */
SLOPE(sigmoid, dy * x * ((T)1 - x))            /* x: the saved output */
SLOPE(relu, x <= (T)0 ? (T)0 : dy)
SLOPE(softplus, dy * tide_sigmoid(x))
struct silu_bwd_f {
  template <class T> __device__ T operator()(T dy, T x) const
  {
    T s = tide_sigmoid(x);
    return dy * s * ((T)1 + x * ((T)1 - s));
  }
};
struct gelu_bwd_f {
  template <class T> __device__ T operator()(T dy, T x) const
  {
    T cdf = (T)0.5 * tide_erfc(-x * (T)0.70710678118654752440);
    return dy * (cdf + x * tide_exp((T)-0.5 * x * x) * (T)0.39894228040143267794);
  }
};
struct gelu_tanh_bwd_f {
  template <class T> __device__ T operator()(T dy, T x) const
  {
    T s = gelu_gate(x);
    T slope = (T)2 * (T)0.79788456080286535588 * ((T)1 + (T)(3 * 0.044715) * x * x);
    return dy * (s + x * s * ((T)1 - s) * slope);
  }
};

/* ---- with a scalar --------------------------------------------------------------------------- */

struct affine_f {
  double mul, add;
  template <class T> __device__ T operator()(T x) const { return x * (T)mul + (T)add; }
};
struct pow_scalar_f {
  double e;
  template <class T> __device__ T operator()(T x) const { return pow_f()(x, (T)e); }
};
/* Integers are held between the integers inside the bounds. */
struct clamp_f {
  double lo, hi;
  template <class T> __device__ T operator()(T x) const
  {
    return min_f()(max_f()(x, (T)lo), (T)hi);
  }
  __device__ int64_t operator()(int64_t x) const
  {
    return min_f()(max_f()(x, tide_truncate(ceil(lo), INT64_MIN, INT64_MAX)),
                   tide_truncate(floor(hi), INT64_MIN, INT64_MAX));
  }
};
/* NaN lies outside every interval. */
struct clamp_bwd_f {
  double lo, hi;
  template <class T> __device__ T operator()(T dy, T x) const
  {
    return x > (T)lo && x < (T)hi ? dy : (T)0;
  }
};
}  // namespace

#define BINARY(name) \
  int k_cuda_##name(const k_call *call) { return tide_binary(call, name##_f()); }
#define UNARY(name) \
  int k_cuda_##name(const k_call *call) { return tide_unary(call, name##_f()); }
#define TEST(name) \
  int k_cuda_##name(const k_call *call) { return tide_unary<true>(call, name##_f()); }
#define TEST2(name) \
  int k_cuda_##name(const k_call *call) { return tide_binary<true>(call, name##_f()); }
#define REAL(name) \
  int k_cuda_##name(const k_call *call) { return tide_unary_real(call, name##_f()); }
#define REAL2(name) \
  int k_cuda_##name(const k_call *call) { return tide_binary_real(call, name##_f()); }

BINARY(add)
BINARY(sub)
BINARY(mul)
REAL2(div)
int k_cuda_minimum(const k_call *call) { return tide_binary(call, min_f()); }
int k_cuda_maximum(const k_call *call) { return tide_binary(call, max_f()); }
TEST2(eq)
TEST2(ne)
TEST2(lt)
TEST2(le)
TEST2(gt)
TEST2(ge)
TEST2(logical_and)
TEST2(logical_or)
UNARY(neg)
UNARY(abs)
UNARY(sign)
UNARY(floor)
UNARY(square)
UNARY(relu)
TEST(logical_not)
TEST(isfinite)
#define TIDE_UNARY(ID, name, ref, f32, f64, cuda) REAL(name)
#include "kernels/unary.def"
#undef TIDE_UNARY
REAL(sin)
REAL(cos)
REAL2(tanh_bwd)
REAL2(sigmoid_bwd)
REAL2(relu_bwd)
REAL2(softplus_bwd)
REAL2(silu_bwd)
REAL2(gelu_bwd)
REAL2(gelu_tanh_bwd)

/* Integer powers want exponents of at least 0, which lie on the device: finding a negative one
 * would mean to wait, so integers are the host devices' business. */
int k_cuda_pow(const k_call *call) { return tide_binary_real(call, pow_f()); }

int k_cuda_affine(const k_call *call)
{
  const k_scalar_attrs *s = static_cast<const k_scalar_attrs *>(call->attrs);
  int rc = tide_integral(call, s->mul);
  if (rc == TIDE_OK) rc = tide_integral(call, s->add);
  return rc < 0 ? rc : tide_unary(call, affine_f{s->mul, s->add});
}

int k_cuda_pow_scalar(const k_call *call)
{
  double e = static_cast<const k_scalar_attrs *>(call->attrs)->mul;
  int rc = tide_integral(call, e);
  if (rc == TIDE_OK && e < 0 && !(1 << call->out[0].dtype & K_FLOAT)) {
    snprintf(call->msg, K_MSG, "exponent %g is negative: integer powers need exponents of at least "
             "0, cast to a float first", e);
    rc = TIDE_E_ARG;
  }
  return rc < 0 ? rc : tide_unary(call, pow_scalar_f{e});
}

int k_cuda_clamp(const k_call *call)
{
  const k_scalar_attrs *s = static_cast<const k_scalar_attrs *>(call->attrs);
  if (s->mul == s->mul && s->add == s->add) return tide_unary(call, clamp_f{s->mul, s->add});
  snprintf(call->msg, K_MSG, "bounds [%g, %g]: NaN is no bound", s->mul, s->add);
  return TIDE_E_ARG;
}

int k_cuda_clamp_bwd(const k_call *call)
{
  const k_scalar_attrs *s = static_cast<const k_scalar_attrs *>(call->attrs);
  return tide_binary_real(call, clamp_bwd_f{s->mul, s->add});
}

int k_cuda_scale_(const k_call *call)
{
  double a = static_cast<const k_scalar_attrs *>(call->attrs)->mul;
  int rc = tide_integral(call, a);
  return rc < 0 ? rc : tide_inplace(call, affine_f{a, 0});
}
