/* The folds of reductions: sum, product, largest, smallest, any, all, each in f32, f64 and i64.
 * Lanes are vectors of fixed width, so every instruction set gives the same sum. See reduce.h. */
#include "kernels/cpu/reduce.h"

typedef float v_f32 __attribute__((vector_size(64)));
typedef double v_f64 __attribute__((vector_size(64)));
typedef uint64_t v_u64 __attribute__((vector_size(64)));

/* Four vectors of lanes, joined pairwise at the end. */
#define LANE_FOLD(name, T, V, start, op, out) \
  TIDE_LEVELS(void, name, (reduce_total *acc, const void *xv, int64_t n), (acc, xv, n)) \
  { \
    enum { LANES = 64 / sizeof(T) }; \
    const T *x = xv; \
    V a[4], b[4]; \
    T lane[LANES], tail = start; \
    int64_t i = 0; \
    for (int k = 0; k < 4; k++) a[k] = (V){ 0 } + (T)(start); \
    for (; i + 4 * LANES <= n; i += 4 * LANES) { \
      memcpy(b, x + i, sizeof b); \
      a[0] = a[0] op b[0], a[1] = a[1] op b[1], a[2] = a[2] op b[2], a[3] = a[3] op b[3]; \
    } \
    a[0] = (a[0] op a[1]) op (a[2] op a[3]); \
    memcpy(lane, a, sizeof lane); \
    for (; i < n; i++) tail = tail op x[i]; \
    for (int half = LANES / 2; half > 0; half /= 2) \
      for (int k = 0; k < half; k++) lane[k] = lane[k] op lane[k + half]; \
    out = out op (lane[0] op tail); \
  }

LANE_FOLD(sum_f32, float, v_f32, 0, +, acc->d)
LANE_FOLD(sum_f64, double, v_f64, 0, +, acc->d)
LANE_FOLD(sum_i64, uint64_t, v_u64, 0, +, acc->i)
LANE_FOLD(prod_f32, float, v_f32, 1, *, acc->d)
LANE_FOLD(prod_f64, double, v_f64, 1, *, acc->d)
LANE_FOLD(prod_i64, uint64_t, v_u64, 1, *, acc->i)

#define PRAGMA(text) _Pragma(#text)

/* Extremes do not depend on order, so the compiler chooses the lanes. NaN is counted separately.
 * clang starts a reduction at the largest finite number, so if that is the result, x is read
 * again. */
#define EXTREME(name, T, cmp, how, last, out) \
  TIDE_LEVELS(void, name, (reduce_total *acc, const void *xv, int64_t n), (acc, xv, n)) \
  { \
    const T *x = xv; \
    T best = n > 0 ? x[0] : (T)out; \
    int nan = 0; \
    PRAGMA(omp simd reduction(how : best) reduction(| : nan)) \
    for (int64_t i = 0; i < n; i++) { \
      best = x[i] cmp best ? x[i] : best; \
      nan |= x[i] != x[i]; \
    } \
    if (best == (last)) { \
      best = n > 0 ? x[0] : (T)out; \
      for (int64_t i = 0; i < n; i++) best = x[i] cmp best ? x[i] : best; \
    } \
    if (nan) acc->d = NAN; \
    else out = out cmp best ? out : out != out ? out : best; \
  }

EXTREME(max_f32, float, >, max, -FLT_MAX, acc->d)
EXTREME(max_f64, double, >, max, -DBL_MAX, acc->d)
EXTREME(max_i64, int64_t, >, max, INT64_MIN, acc->i)
EXTREME(min_f32, float, <, min, FLT_MAX, acc->d)
EXTREME(min_f64, double, <, min, DBL_MAX, acc->d)
EXTREME(min_i64, int64_t, <, min, INT64_MAX, acc->i)

#define LOGICAL(name, T, op, out) \
  TIDE_LEVELS(void, name, (reduce_total *acc, const void *xv, int64_t n), (acc, xv, n)) \
  { \
    const T *x = xv; \
    int r = out != 0; \
    PRAGMA(omp simd reduction(op : r)) \
    for (int64_t i = 0; i < n; i++) r = r op (x[i] != 0); \
    out = r; \
  }

LOGICAL(any_f32, float, |, acc->d)
LOGICAL(any_f64, double, |, acc->d)
LOGICAL(any_i64, int64_t, |, acc->i)
LOGICAL(all_f32, float, &, acc->d)
LOGICAL(all_f64, double, &, acc->d)
LOGICAL(all_i64, int64_t, &, acc->i)

/* Two partial results are joined as two elements would be. */
#define FOLD_OF(name, start, start_integer) \
  static void name##_join_real(reduce_total *acc, const reduce_total *more) \
  { \
    name##_f64(acc, more, 1); \
  } \
  static void name##_join_int(reduce_total *acc, const reduce_total *more) \
  { \
    name##_i64(acc, more, 1); \
  } \
  const reduce_fold tide__fold_##name = { \
    name##_f32, name##_f64, name##_i64, name##_join_real, name##_join_int, start, start_integer \
  }

FOLD_OF(sum, 0, 0);
FOLD_OF(prod, 1, 1);
FOLD_OF(max, -HUGE_VAL, INT64_MIN);
FOLD_OF(min, HUGE_VAL, INT64_MAX);
FOLD_OF(any, 0, 0);
FOLD_OF(all, 1, 1);
