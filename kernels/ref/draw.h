/* From a random word to a value: uniform, normal, and truncated normal.
 *
 * The constants of a distribution are computed once into a ref_draw, with which both the reference
 * and the fast kernels turn words into values by the same operations in the same order, fma
 * included; so they draw the same bits.
 *
 * A value is a double still to be rounded to the tensor's dtype. A uniform value is clamped to the
 * dtype's own first and last number of [lo, hi), so rounding cannot reach hi.
 */
#pragma once

#include "core/base/normal.h"
#include "kernels/ref/load.h"

typedef struct ref_draw {
  double base, scale;  /* value = base + scale * unit, or base + scale * z */
  double low, high;    /* the value (uniform) or z (truncated normal) is clamped to [low, high] */
  double p0, dp, sign; /* truncated normal: z = sign * quantile(p0 + dp * u) */
} ref_draw;

/* Returns the attributes, with the seed, stream and offset of input k added if it is present. */
static inline k_random_attrs ref_placed(const k_call *call, int k)
{
  k_random_attrs a = *(const k_random_attrs *)call->attrs;
  const k_tensor *place = k < call->nin && !k_absent(&call->in[k]) ? &call->in[k] : NULL;
  if (!place) return a;
  const int64_t *p = place->data;
  a.seed += (uint64_t)p[0];
  a.stream += (uint64_t)p[1];
  a.offset += (uint64_t)p[2];
  return a;
}

static inline double ref_round(int dtype, double v)
{
  switch (dtype) {
    case TIDE_F32: return (float)v;
    case TIDE_BF16: return tide__bf16_to_f32(tide__f64_to_bf16(v));
    case TIDE_F16: return tide__f16_to_f32(tide__f64_to_f16(v));
    default: return v;
  }
}

/* Returns the number of the dtype just below v, a finite number of it. */
static inline double ref_previous(int dtype, double v)
{
  uint16_t h;
  if (dtype == TIDE_F64) return nextafter(v, -HUGE_VAL);
  if (dtype == TIDE_F32) return nextafterf((float)v, -HUGE_VALF);
  h = dtype == TIDE_F16 ? tide__f64_to_f16(v) : tide__f64_to_bf16(v);
  if ((h & 0x7fffu) == 0) h = 0x8001u;
  else h = (uint16_t)(h & 0x8000u ? h + 1 : h - 1);
  return dtype == TIDE_F16 ? tide__f16_to_f32(h) : tide__bf16_to_f32(h);
}

/* Prepares [a, b) of a dtype. If it holds no number of the dtype, every value is a, rounded. */
static inline int ref_draw_uniform(ref_draw *d, const k_call *call)
{
  const k_random_attrs *a = call->attrs;
  int dtype = call->out[0].dtype;
  double lo = ref_round(dtype, a->a), hi = ref_round(dtype, a->b);
  if (!(a->a <= a->b) || !isfinite(a->b - a->a))
    return ref_fail(call, TIDE_E_ARG, "range [%g, %g): expected finite bounds in rising order",
                    a->a, a->b);
  d->base = a->a;
  d->scale = a->b - a->a;
  d->low = lo >= a->a ? lo : -ref_previous(dtype, -lo);
  d->high = hi < a->b ? hi : ref_previous(dtype, hi);
  if (d->low > d->high) d->low = d->high = lo;
  return TIDE_OK;
}

static inline __attribute__((always_inline)) double ref_uniform(const ref_draw *d, uint32_t word)
{
  double v = fma(d->scale, tide__philox_unit(word), d->base);
  v = v < d->low ? d->low : v;
  return v > d->high ? d->high : v;
}

static inline int ref_draw_normal(ref_draw *d, const k_call *call)
{
  const k_random_attrs *a = call->attrs;
  if (!(a->b >= 0)) return ref_fail(call, TIDE_E_ARG, "std %g: expected at least 0", a->b);
  d->base = a->a;
  d->scale = a->b;
  return TIDE_OK;
}

static inline __attribute__((always_inline)) double ref_normal(const ref_draw *d, uint32_t word)
{
  double z = tide__normal_quantile_inline((word + 0.5) * 0x1p-32);
  return fma(d->scale, z, d->base);
}

/* Prepares a truncated normal. Where the cdf is small it keeps its digits, so an interval that lies
 * mostly to the right is drawn as its mirror image. */
static inline int ref_draw_trunc_normal(ref_draw *d, const k_call *call)
{
  const k_random_attrs *a = call->attrs;
  TIDE_TRY(ref_draw_normal(d, call));
  if (!(a->lo <= a->hi))
    return ref_fail(call, TIDE_E_ARG, "interval [%g, %g]: expected rising order", a->lo, a->hi);
  d->sign = a->lo + a->hi > 0 ? -1 : 1;
  d->low = a->lo;
  d->high = a->hi;
  d->p0 = tide__normal_cdf(d->sign * a->lo);
  d->dp = tide__normal_cdf(d->sign * a->hi) - d->p0;
  if (a->lo < a->hi && d->dp == 0)
    return ref_fail(call, TIDE_E_ARG, "interval [%g, %g] in units of std holds no probability a "
                    "double can express", a->lo, a->hi);
  return TIDE_OK;
}

static inline __attribute__((always_inline))
double ref_trunc_normal(const ref_draw *d, uint32_t word)
{
  double p = fma(d->dp, (word + 0.5) * 0x1p-32, d->p0);
  double z = d->sign * tide__normal_quantile_inline(p);
  z = z < d->low ? d->low : z;
  z = z > d->high ? d->high : z;
  return fma(d->scale, z, d->base);
}

static inline int ref_check_dropout(const k_call *call)
{
  double p = ((const k_random_attrs *)call->attrs)->a;
  if (p >= 0 && p <= 1) return TIDE_OK;
  return ref_fail(call, TIDE_E_ARG, "p %g: expected a probability in [0, 1]", p);
}
