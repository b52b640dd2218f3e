/* Defines the reductions: sum mean prod amax amin any all argmax argmin cumsum.
 *
 * x has nkeep kept dims first and the reduced ones last; for each setting of the kept dims the
 * reduced ones are walked in row-major order into one accumulator, a double for floats and an
 * int64_t otherwise.
 *
 * The output is contiguous. Over nothing a sum is 0, a product 1, any false, all true, a mean NaN;
 * a maximum or minimum is E_SHAPE.
 */
#include "kernels/ref/load.h"

typedef double (*fold_real)(double, double);
typedef int64_t (*fold_int)(int64_t, int64_t);

typedef struct split {
  int nkeep, nreduce;
  int64_t keep, reduce; /* elements of each part */
} split;

static split split_of(const k_call *call)
{
  const k_tensor *x = &call->in[0];
  split s = { ((const k_reduce_attrs *)call->attrs)->nkeep, 0, 1, 1 };
  s.nreduce = x->ndim - s.nkeep;
  for (int d = 0; d < x->ndim; d++) *(d < s.nkeep ? &s.keep : &s.reduce) *= x->shape[d];
  return s;
}

static double fold_floats(const k_tensor *x, int64_t base, const split *s, double acc, fold_real f)
{
  for (ref_walk w = ref_begin(x->shape + s->nkeep, s->nreduce); ref_more(&w); ref_step(&w))
    acc = f(acc, ref_get(x, base + ref_offset_from(&w, x, s->nkeep)));
  return acc;
}

static int64_t fold_ints(const k_tensor *x, int64_t base, const split *s, int64_t acc, fold_int f)
{
  for (ref_walk w = ref_begin(x->shape + s->nkeep, s->nreduce); ref_more(&w); ref_step(&w))
    acc = f(acc, ref_get_int(x, base + ref_offset_from(&w, x, s->nkeep)));
  return acc;
}

static int ref_check_not_empty(const k_call *call)
{
  split s = split_of(call);
  if (s.reduce > 0 || s.keep == 0) return TIDE_OK;
  return ref_fail(call, TIDE_E_SHAPE, "the reduced dims hold no elements, so there is no largest "
                  "or smallest one");
}

/* An infinite start is that of a largest or smallest element, which nothing does not have. */
static int fold(const k_call *call, double start, fold_real f, int64_t start_int, fold_int g)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  split s = split_of(call);
  int rc = isinf(start) ? ref_check_not_empty(call) : TIDE_OK;
  for (ref_walk w = ref_begin(x->shape, s.nkeep); ref_more(&w) && rc == TIDE_OK; ref_step(&w)) {
    int64_t base = ref_offset(&w, x);
    if (ref_is_float(x)) ref_put(y, w.i, fold_floats(x, base, &s, start, f));
    else ref_put_int(y, w.i, fold_ints(x, base, &s, start_int, g));
  }
  return rc;
}

#define FOLD(name, start, real, start_int, integer) \
  static double name##_real(double a, double b) { return real; } \
  static int64_t name##_int(int64_t a, int64_t b) { return (int64_t)(integer); } \
  int k_ref_##name(const k_call *call) \
  { \
    return fold(call, start, name##_real, start_int, name##_int); \
  }
FOLD(sum, 0, a + b, 0, (uint64_t)a + (uint64_t)b)
FOLD(prod, 1, a * b, 1, (uint64_t)a * (uint64_t)b)
FOLD(amax, -HUGE_VAL, ref_max(a, b), INT64_MIN, a > b ? a : b)
FOLD(amin, HUGE_VAL, ref_min(a, b), INT64_MAX, a < b ? a : b)
FOLD(any, 0, a != 0 || b != 0, 0, a != 0 || b != 0)
FOLD(all, 1, a != 0 && b != 0, 1, a != 0 && b != 0)

int k_ref_mean(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  split s = split_of(call);
  for (ref_walk w = ref_begin(x->shape, s.nkeep); ref_more(&w); ref_step(&w)) {
    double sum = fold_floats(x, ref_offset(&w, x), &s, 0, sum_real);
    ref_put(y, w.i, sum / (double)s.reduce);
  }
  return TIDE_OK;
}

/* Returns whether a is above b (sign 1) or below it (sign -1). NaN is beyond every number, not
 * beyond NaN. */
static int ref_beyond(const k_tensor *x, int64_t a, int64_t b, int sign)
{
  if (ref_is_float(x)) {
    double u = ref_get(x, a), v = ref_get(x, b);
    if (u != u || v != v) return u != u && v == v;
    return sign > 0 ? u > v : u < v;
  }
  int64_t u = ref_get_int(x, a), v = ref_get_int(x, b);
  return sign > 0 ? u > v : u < v;
}

static int ref_arg_extreme(const k_call *call, int sign)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  split s = split_of(call);
  int rc = ref_check_not_empty(call);
  for (ref_walk w = ref_begin(x->shape, s.nkeep); ref_more(&w) && rc == TIDE_OK; ref_step(&w)) {
    int64_t base = ref_offset(&w, x), step = s.nreduce ? x->stride[s.nkeep] : 0, best = 0;
    for (int64_t j = 1; j < s.reduce; j++)
      if (ref_beyond(x, base + j * step, base + best * step, sign)) best = j;
    ref_put_int(y, w.i, best);
  }
  return rc;
}

/* The first of equal extremes; NaN counts as the extreme. */
int k_ref_argmax(const k_call *call) { return ref_arg_extreme(call, 1); }
int k_ref_argmin(const k_call *call) { return ref_arg_extreme(call, -1); }

int k_ref_cumsum(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  split s = split_of(call);
  int from_end = ((const k_reduce_attrs *)call->attrs)->from_end;
  for (ref_walk w = ref_begin(x->shape, s.nkeep); ref_more(&w); ref_step(&w)) {
    int64_t xt = ref_offset(&w, x), yt = ref_offset(&w, y), total = 0;
    double sum = 0;
    for (int64_t i = 0; i < s.reduce; i++) {
      int64_t j = from_end ? s.reduce - 1 - i : i;
      int64_t at = xt + j * x->stride[s.nkeep], to = yt + j * y->stride[s.nkeep];
      if (ref_is_float(x)) ref_put(y, to, sum += ref_get(x, at));
      else ref_put_int(y, to, total = sum_int(total, ref_get_int(x, at)));
    }
  }
  return TIDE_OK;
}
