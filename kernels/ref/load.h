/* One element at a time: how the reference kernels read, write and walk their operands.
 *
 * A float element is a double and an integer element an int64_t, whatever its dtype; a result is
 * rounded once, when it is stored (core/base/float.h). `at` is an element offset from data, already
 * multiplied out with strides.
 *
 * Conversions: float to integer truncates toward zero, clamps to the range of the type and makes
 * NaN 0; integer to a narrower integer wraps; anything to bool is 1 unless it equals 0.
 *
 * Also used by kernels/cpu for messages and index checks.
 */
#pragma once

#include <math.h>
#include <stdarg.h>

#include "core/base/dtype.h"
#include "core/base/format.h"
#include "kernels/kernel.h"

static inline double ref_get(const k_tensor *t, int64_t at)
{
  switch (t->dtype) {
    case TIDE_F32: return ((const float *)t->data)[at];
    case TIDE_F64: return ((const double *)t->data)[at];
    case TIDE_BF16: return tide__bf16_to_f32(((const uint16_t *)t->data)[at]);
    case TIDE_F16: return tide__f16_to_f32(((const uint16_t *)t->data)[at]);
    case TIDE_I64: return (double)((const int64_t *)t->data)[at];
    case TIDE_I32: return ((const int32_t *)t->data)[at];
    default: return ((const uint8_t *)t->data)[at];
  }
}

static inline int64_t ref_truncate(double v, int64_t lo, int64_t hi)
{
  if (v != v) return 0;
  if (v <= (double)lo) return lo;
  return v >= (double)hi ? hi : (int64_t)v;
}

static inline void ref_put(const k_tensor *t, int64_t at, double v)
{
  switch (t->dtype) {
    case TIDE_F32: ((float *)t->data)[at] = (float)v; break;
    case TIDE_F64: ((double *)t->data)[at] = v; break;
    case TIDE_BF16: ((uint16_t *)t->data)[at] = tide__f64_to_bf16(v); break;
    case TIDE_F16: ((uint16_t *)t->data)[at] = tide__f64_to_f16(v); break;
    case TIDE_I64: ((int64_t *)t->data)[at] = ref_truncate(v, INT64_MIN, INT64_MAX); break;
    case TIDE_I32:
      ((int32_t *)t->data)[at] = (int32_t)ref_truncate(v, INT32_MIN, INT32_MAX);
      break;
    case TIDE_U8: ((uint8_t *)t->data)[at] = (uint8_t)ref_truncate(v, 0, 255); break;
    default: ((uint8_t *)t->data)[at] = v != 0; break;
  }
}

static inline void ref_put_opt(const k_tensor *t, int64_t at, double v)
{
  if (!k_absent(t)) ref_put(t, at, v);
}

/* Returns an element of an integer or bool operand; truncates a float. */
static inline int64_t ref_get_int(const k_tensor *t, int64_t at)
{
  switch (t->dtype) {
    case TIDE_I64: return ((const int64_t *)t->data)[at];
    case TIDE_I32: return ((const int32_t *)t->data)[at];
    case TIDE_U8: case TIDE_BOOL: return ((const uint8_t *)t->data)[at];
    default: return ref_truncate(ref_get(t, at), INT64_MIN, INT64_MAX);
  }
}

static inline void ref_put_int(const k_tensor *t, int64_t at, int64_t v)
{
  switch (t->dtype) {
    case TIDE_I64: ((int64_t *)t->data)[at] = v; break;
    case TIDE_I32: ((int32_t *)t->data)[at] = (int32_t)(uint32_t)v; break;
    case TIDE_U8: ((uint8_t *)t->data)[at] = (uint8_t)v; break;
    case TIDE_BOOL: ((uint8_t *)t->data)[at] = v != 0; break;
    case TIDE_F32: ((float *)t->data)[at] = (float)v; break;
    case TIDE_F64: ((double *)t->data)[at] = (double)v; break;
    case TIDE_BF16: ((uint16_t *)t->data)[at] = tide__i64_to_bf16(v); break;
    default: ((uint16_t *)t->data)[at] = tide__i64_to_f16(v); break;
  }
}

/* Returns the smaller number; NaN propagates from either side. */
static inline double ref_min(double a, double b) { return a != a || a < b ? a : b; }
static inline double ref_max(double a, double b) { return a != a || a > b ? a : b; }

static inline int ref_is_float(const k_tensor *t) { return tide__dtype_is_float(t->dtype); }

/* Sets y[y_at] = x[x_at], converted; between equal dtypes the bits are kept. */
static inline void ref_convert(const k_tensor *y, int64_t y_at, const k_tensor *x, int64_t x_at)
{
  if (x->dtype == y->dtype) {
    size_t size = (size_t)tide_dtype_size(x->dtype);
    memcpy((char *)y->data + y_at * (int64_t)size, (const char *)x->data + x_at * (int64_t)size,
           size);
  } else if (ref_is_float(x)) {
    ref_put(y, y_at, ref_get(x, x_at));
  } else {
    ref_put_int(y, y_at, ref_get_int(x, x_at));
  }
}

/* ---- walking: coordinates of a shape in row-major order ------------------------------------ */

typedef struct ref_walk {
  const int64_t *shape;
  int ndim;
  int64_t i, n; /* steps done, and in all */
  int64_t at[TIDE_MAX_DIM];
} ref_walk;

static inline ref_walk ref_begin(const int64_t *shape, int ndim)
{
  ref_walk w = { shape, ndim, 0, 1, { 0 } };
  for (int d = 0; d < ndim; d++) w.n *= shape[d];
  return w;
}

static inline int ref_more(const ref_walk *w) { return w->i < w->n; }

static inline void ref_step(ref_walk *w)
{
  w->i++;
  for (int d = w->ndim - 1; d >= 0; d--) {
    if (++w->at[d] < w->shape[d]) return;
    w->at[d] = 0;
  }
}

/* Returns the offset in t of the walk's coordinates, which are those of t's dims from `first`
 * on. */
static inline int64_t ref_offset_from(const ref_walk *w, const k_tensor *t, int first)
{
  int64_t at = 0;
  for (int d = 0; d < w->ndim; d++) at += w->at[d] * t->stride[first + d];
  return at;
}

static inline int64_t ref_offset(const ref_walk *w, const k_tensor *t)
{
  return ref_offset_from(w, t, 0);
}

/* Computes y = x, converted; both have the same shape. */
static inline void ref_copy_all(const k_tensor *y, const k_tensor *x)
{
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w); ref_step(&w))
    ref_convert(y, ref_offset(&w, y), x, ref_offset(&w, x));
}

/* ---- failing ------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4)))
static inline int ref_fail(const k_call *call, int status, const char *format, ...)
{
  va_list args;
  if (!call->msg) return status;
  va_start(args, format);
  tide__format(call->msg, K_MSG, format, args);
  va_end(args);
  return status;
}

/* Checks that v is an integer if t is an integer tensor. */
static inline int ref_check_integral(const k_call *call, const k_tensor *t, double v)
{
  if (ref_is_float(t) || (v >= -0x1p63 && v < 0x1p63 && v == (double)(int64_t)v)) return TIDE_OK;
  return ref_fail(call, TIDE_E_ARG, "%g is no 64-bit integer but the tensor is %s: cast it to a "
                  "float first", v, tide_dtype_name(t->dtype));
}

/* Checks that every index is in [0, n). Reports the first that is not, by row-major position. */
static inline int ref_check_index(const k_call *call, const k_tensor *index, int64_t n)
{
  for (ref_walk w = ref_begin(index->shape, index->ndim); ref_more(&w); ref_step(&w)) {
    int64_t v = ref_get_int(index, ref_offset(&w, index));
    if (v < 0 || v >= n)
      return ref_fail(call, TIDE_E_ARG, "index %lld at position %lld is outside [0, %lld)",
                      (long long)v, (long long)w.i, (long long)n);
  }
  return TIDE_OK;
}
