/* Reductions over ranks: see kernels/reduce_ranks.h.
 *
 * A block of elements is gathered in an accumulator that stays in the first-level cache, source
 * after source, then written to each destination. Each source is read from memory once and each
 * destination written once. Two f32 sources, the most frequent case, need no accumulator.
 *
 * Denormals are kept: a reduction over one rank is the identity. Mean is a division.
 */
#include "kernels/reduce_ranks.h"

#include "kernels/cpu/row.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { BLOCK = 1024 };

/* ---- one more source into the accumulator ---------------------------------------------------- */

#define ADD(a, b) ((a) + (b))
#define MUL(a, b) ((a) * (b))
#define LESS(a, b) ((b) < (a) ? (b) : (a))
#define MORE(a, b) ((b) > (a) ? (b) : (a))
/* NaN on either side wins: a if a is NaN, else b unless a is strictly ahead. */
#define FLESS(a, b) ((a) != (a) ? (a) : (a) < (b) ? (a) : (b))
#define FMORE(a, b) ((a) != (a) ? (a) : (a) > (b) ? (a) : (b))

#define FOLD(name, T, OP)                                         \
  TIDE_LEVELS(void, name, (void *acc, const void *src, int64_t n), (acc, src, n)) \
  {                                                               \
    T *a = acc;                                                   \
    const T *s = src;                                             \
    for (int64_t i = 0; i < n; i++) a[i] = (T)OP(a[i], s[i]);     \
  }
#define FOLDS(T, S, add, mul, less, more) \
  FOLD(S##_add, T, add) FOLD(S##_mul, T, mul) FOLD(S##_min, T, less) FOLD(S##_max, T, more)

FOLDS(float, f32, ADD, MUL, FLESS, FMORE)
FOLDS(double, f64, ADD, MUL, FLESS, FMORE)
FOLDS(uint8_t, u8, ADD, MUL, LESS, MORE)
/* Sums and products wrap, so they are unsigned; order is signed. */
FOLD(i64_add, uint64_t, ADD)
FOLD(i64_mul, uint64_t, MUL)
FOLD(i64_least, int64_t, LESS)
FOLD(i64_most, int64_t, MORE)
FOLD(i32_add, uint32_t, ADD)
FOLD(i32_mul, uint32_t, MUL)
FOLD(i32_min, int32_t, LESS)
FOLD(i32_max, int32_t, MORE)

typedef void (*fold_fn)(void *acc, const void *src, int64_t n);

/* Returns the function for the dtype of the accumulator and the operation. */
static fold_fn fold_of(int form, int op)
{
  static const fold_fn f32[] = {f32_add, f32_add, f32_min, f32_max, f32_mul};
  static const fold_fn f64[] = {f64_add, f64_add, f64_min, f64_max, f64_mul};
  static const fold_fn i64[] = {i64_add, i64_add, i64_least, i64_most, i64_mul};
  static const fold_fn i32[] = {i32_add, i32_add, i32_min, i32_max, i32_mul};
  static const fold_fn u8[] = {u8_add, u8_add, u8_min, u8_max, u8_mul};
  static const fold_fn flag[] = {u8_max, u8_max, u8_min, u8_max, u8_min};
  switch (form) {
  case TIDE_F32: return f32[op];
  case TIDE_F64: return f64[op];
  case TIDE_I64: return i64[op];
  case TIDE_I32: return i32[op];
  case TIDE_U8: return u8[op];
  default: return flag[op];
  }
}

/* ---- 16-bit floats in and out of the accumulator --------------------------------------------- */

TIDE_LEVELS(void, divide_f32, (float *a, int64_t n, float by), (a, n, by))
{
  for (int64_t i = 0; i < n; i++) a[i] /= by;
}

TIDE_LEVELS(void, divide_f64, (double *a, int64_t n, double by), (a, n, by))
{
  for (int64_t i = 0; i < n; i++) a[i] /= by;
}

static void divide(void *acc, int form, int64_t n, int by)
{
  if (form == TIDE_F32) divide_f32(acc, n, (float)by);
  else if (form == TIDE_F64) divide_f64(acc, n, by);
}

/* ---- the reduction --------------------------------------------------------------------------- */

typedef struct job {
  void *const *dst;
  const void *const *src;
  int ndst, nsrc, dtype, op;
} job;

/* Folds elements [at, at + n) of a 16-bit float dtype. */
static void block_half(const job *j, int64_t at, int64_t n, float *acc)
{
  float wide[BLOCK];
  uint16_t half[BLOCK];
  fold_fn fold = fold_of(TIDE_F32, j->op);
  row_widen(acc, (const uint16_t *)j->src[0] + at, j->dtype, n);
  for (int k = 1; k < j->nsrc; k++) {
    row_widen(wide, (const uint16_t *)j->src[k] + at, j->dtype, n);
    fold(acc, wide, n);
  }
  if (j->op == K_RANKS_MEAN) divide(acc, TIDE_F32, n, j->nsrc);
  row_narrow(half, acc, j->dtype, n);
  for (int d = 0; d < j->ndst; d++) memcpy((uint16_t *)j->dst[d] + at, half, (size_t)n * 2);
}

static void block_plain(const job *j, int64_t at, int64_t n, size_t size, void *acc)
{
  fold_fn fold = fold_of(j->dtype, j->op);
  size_t from = (size_t)at * size, bytes = (size_t)n * size;
  memcpy(acc, (const char *)j->src[0] + from, bytes);
  for (int k = 1; k < j->nsrc; k++) fold(acc, (const char *)j->src[k] + from, n);
  if (j->op == K_RANKS_MEAN) divide(acc, j->dtype, n, j->nsrc);
  for (int d = 0; d < j->ndst; d++) memcpy((char *)j->dst[d] + from, acc, bytes);
}

/* Writes the sum of two f32 sources to one or two destinations, which may be the sources. */
TIDE_LEVELS(void, add_two,
            (float *x, float *y, const float *a, const float *b, int64_t n), (x, y, a, b, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float v = a[i] + b[i];
    x[i] = v;
    y[i] = v;
  }
}

void k_cpu_reduce_ranks(void *const *dst, int ndst, const void *const *src, int nsrc,
                        int64_t count, int dtype, int op)
{
  const job j = {dst, src, ndst, nsrc, dtype, op};
  bool half = dtype == TIDE_BF16 || dtype == TIDE_F16;
  size_t size = (size_t)tide_dtype_size(dtype);
  double acc[BLOCK];
  if (dtype == TIDE_F32 && nsrc == 2 && ndst <= 2 && op == K_RANKS_SUM) {
    add_two(dst[0], dst[ndst - 1], src[0], src[1], count);
    return;
  }
  for (int64_t at = 0; at < count; at += BLOCK) {
    int64_t n = count - at < BLOCK ? count - at : BLOCK;
    if (half) block_half(&j, at, n, (float *)acc);
    else block_plain(&j, at, n, size, acc);
  }
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Below this size a block is likely to be read again soon and stays cached. */
enum { STREAM_BYTES = 4 << 20 };

void k_cpu_copy_bytes(void *dst, const void *src, size_t n)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  if (n >= STREAM_BYTES) {
    char *d = dst;
    const char *s = src;
    size_t head = (64 - ((uintptr_t)d & 63)) & 63;
    memcpy(d, s, head);
    d += head, s += head, n -= head;
    for (; n >= 64; n -= 64, d += 64, s += 64) {
      __m128i v[4];
      for (int i = 0; i < 4; i++) v[i] = _mm_loadu_si128((const __m128i *)s + i);
      for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)d + i, v[i]);
    }
    _mm_sfence();
    memcpy(d, s, n);
    return;
  }
#endif
  if (n) memcpy(dst, src, n);
}
