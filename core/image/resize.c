/* Resizing of 8-bit pixels as PyTorch does it on a CPU: interpolate of uint8 with mode='bicubic' or
 * 'bilinear' and antialias=True. Weights are whole numbers of 16 bits, and the pixels between the
 * two passes, rows first, are rounded to 8 bits. Results are equal to those of PyTorch, bit for
 * bit. */
#include "core/image/image.h"

#include "core/base/alloc.h"
#include "core/base/door.h"
#include "core/base/status.h"

#include <math.h>
#include <string.h>

enum { CHANNEL = TIDE__RGB, BLOCK = 16, SPAN = 64 };

/* One direction: output i is the sum of weight[i * most + k] * input[first[i] + k], k < count[i],
 * and half a unit, shifted right. */
typedef struct axis {
  int64_t  nout, most;
  int      shift;
  int64_t *first, *count;
  int16_t *weight;
  void    *memory;
  size_t   size;
} axis;

/* The cubic convolution of Keys, a = -0.5. */
static double cubic(double x)
{
  const double a = -0.5;
  x = fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}

static double linear(double x)
{
  x = fabs(x);
  return x < 1 ? 1 - x : 0;
}

/* A filter: its weights, which are 0 from `reach` on. */
typedef struct filter { double reach, (*of)(double); } filter;
static const filter filters[] = {[TIDE_RESIZE_BICUBIC] = {2, cubic},
                                 [TIDE_RESIZE_BILINEAR] = {1, linear}};

/* Writes the weights of output i as doubles that add up to 1. Returns the largest. */
static double weigh(axis *a, int64_t i, int64_t nin, const filter *by, double *w)
{
  double scale = (double)nin / (double)a->nout;
  double support = scale >= 1 ? by->reach * scale : by->reach;
  double center = scale * ((double)i + 0.5), narrow = scale >= 1 ? 1 / scale : 1;
  double total = 0, largest = 0;
  int64_t from = (int64_t)(center - support + 0.5), to = (int64_t)(center + support + 0.5);
  if (from < 0) from = 0;
  if (to > nin) to = nin;
  int64_t n = to - from < a->most ? to - from : a->most;
  for (int64_t k = 0; k < n; k++) {
    w[k] = by->of(((double)(k + from) - center + 0.5) * narrow);
    total += w[k];
  }
  for (int64_t k = 0; k < n; k++) {
    if (total != 0) w[k] /= total;
    if (w[k] > largest) largest = w[k];
  }
  for (int64_t k = n; k < a->most; k++) w[k] = 0;
  a->first[i] = from;
  a->count[i] = n;
  return largest;
}

/* Returns the number of bits after the point that let the largest weight fit in 16 bits. */
static int shift_for(double largest)
{
  int shift = 0;
  while (shift < 22 && (int)(0.5 + largest * (1 << (shift + 1))) < 1 << 15) shift++;
  return shift;
}

static int axis_new(axis *a, tide_ctx *ctx, int64_t nin, int64_t nout, const filter *by)
{
  double scale = (double)nin / (double)nout;
  a->nout = nout;
  a->most = (int64_t)ceilf((float)(scale >= 1 ? by->reach * scale : by->reach)) * 2 + 1;
  size_t n = (size_t)nout, each = 2 * sizeof(int64_t) + (size_t)a->most * sizeof(int16_t);
  size_t nexact = n * (size_t)a->most * sizeof(double);
  double *exact = tide__alloc(ctx, nexact);
  a->size = n * each;
  a->memory = exact ? tide__alloc(ctx, a->size) : NULL;
  if (!a->memory) {
    if (exact) tide__free(ctx, exact, nexact);
    return TIDE_E_NOMEM;
  }
  a->first = a->memory;
  a->count = a->first + nout;
  a->weight = (int16_t *)(a->count + nout);
  double largest = 0;
  for (int64_t i = 0; i < nout; i++)
    largest = fmax(largest, weigh(a, i, nin, by, exact + i * a->most));
  a->shift = shift_for(largest);
  for (int64_t i = 0; i < nout * a->most; i++) {
    double v = exact[i] * (1 << a->shift);
    a->weight[i] = (int16_t)(int)(v < 0 ? v - 0.5 : v + 0.5);
  }
  tide__free(ctx, exact, nexact);
  return TIDE_OK;
}

static inline uint8_t pixel(int32_t sum, int shift)
{
  int32_t v = sum >> shift;
  return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

#define INLINE static inline __attribute__((always_inline))

/* Filters n <= BLOCK rows of w pixels. turned has room for them side by side: BLOCK samples of one
 * column in a row, so that a weight multiplies all rows at once. */
INLINE void across(uint8_t *to, const uint8_t *from, int64_t n, int64_t w, const axis *a,
                   uint8_t *turned)
{
  int64_t wide = CHANNEL * w, narrow = CHANNEL * a->nout;
  for (int64_t i = 0; i < wide; i++)
    for (int64_t r = 0; r < n; r++) turned[i * BLOCK + r] = from[r * wide + i];
  for (int64_t i = 0; i < narrow; i++) {
    int64_t x = i / CHANNEL, c = i % CHANNEL;
    const uint8_t *p = turned + (a->first[x] * CHANNEL + c) * BLOCK;
    const int16_t *weight = a->weight + x * a->most;
    int32_t sum[BLOCK];
    for (int r = 0; r < BLOCK; r++) sum[r] = 1 << (a->shift - 1);
    for (int64_t k = 0; k < a->count[x]; k++, p += CHANNEL * BLOCK)
      for (int r = 0; r < BLOCK; r++) sum[r] += weight[k] * p[r];
    for (int64_t r = 0; r < n; r++) to[r * narrow + i] = pixel(sum[r], a->shift);
  }
}

/* Makes n <= SPAN samples of output row y; rows have `wide` samples. */
INLINE void down(uint8_t *to, const uint8_t *from, int64_t n, int64_t wide, const axis *a,
                 int64_t y)
{
  const int16_t *weight = a->weight + y * a->most;
  int32_t sum[SPAN];
  for (int64_t i = 0; i < n; i++) sum[i] = 1 << (a->shift - 1);
  from += a->first[y] * wide;
  for (int64_t k = 0; k < a->count[y]; k++, from += wide)
    for (int64_t i = 0; i < n; i++) sum[i] += weight[k] * from[i];
  for (int64_t i = 0; i < n; i++) to[i] = pixel(sum[i], a->shift);
}

INLINE void rows_body(uint8_t *to, const uint8_t *from, int64_t h, int64_t w, const axis *a,
                      uint8_t *turned)
{
  for (int64_t y = 0; y < h; y += BLOCK)
    across(to + y * CHANNEL * a->nout, from + y * CHANNEL * w, h - y < BLOCK ? h - y : BLOCK, w, a,
           turned);
}

INLINE void columns_body(uint8_t *to, const uint8_t *from, int64_t wide, const axis *a)
{
  for (int64_t y = 0; y < a->nout; y++, to += wide) {
    int64_t i = 0;
    for (; i + SPAN <= wide; i += SPAN) down(to + i, from + i, SPAN, wide, a, y);
    down(to + i, from + i, wide - i, wide, a, y);
  }
}

/* The same loops for any processor, and for those with AVX2. */
typedef void rows_fn(uint8_t *, const uint8_t *, int64_t, int64_t, const axis *, uint8_t *);
typedef void columns_fn(uint8_t *, const uint8_t *, int64_t, const axis *);
#define LOOPS(name, attribute)                                                                     \
  attribute static void rows_##name(uint8_t *to, const uint8_t *from, int64_t h, int64_t w,        \
                                    const axis *a, uint8_t *turned)                                \
  {                                                                                                \
    rows_body(to, from, h, w, a, turned);                                                          \
  }                                                                                                \
  attribute static void columns_##name(uint8_t *to, const uint8_t *from, int64_t wide,             \
                                       const axis *a)                                              \
  {                                                                                                \
    columns_body(to, from, wide, a);                                                               \
  }

LOOPS(any, )
#if defined __x86_64__
LOOPS(avx2, __attribute__((target("avx2"))))
static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#define PICK(name) (has_avx2() ? name##_avx2 : name##_any)
#else
#define PICK(name) name##_any
#endif

/* Filters rows of w pixels to rows of `columns`. */
static int pass_rows(tide_ctx *ctx, uint8_t *to, int64_t columns, const uint8_t *from, int64_t h,
                     int64_t w, const filter *by)
{
  axis a;
  TIDE_TRY(axis_new(&a, ctx, w, columns, by));
  size_t size = (size_t)(CHANNEL * BLOCK * w);
  uint8_t *turned = tide__alloc(ctx, size);
  if (turned) {
    memset(turned, 0, size); /* rows that a last block lacks */
    rows_fn *fn = PICK(rows);
    fn(to, from, h, w, &a, turned);
    tide__free(ctx, turned, size);
  }
  tide__free(ctx, a.memory, a.size);
  return turned ? TIDE_OK : TIDE_E_NOMEM;
}

static int pass_columns(tide_ctx *ctx, uint8_t *to, int64_t rows, const uint8_t *from, int64_t h,
                        int64_t w, const filter *by)
{
  axis a;
  TIDE_TRY(axis_new(&a, ctx, h, rows, by));
  columns_fn *fn = PICK(columns);
  fn(to, from, CHANNEL * w, &a);
  tide__free(ctx, a.memory, a.size);
  return TIDE_OK;
}

static int resize(tide_ctx *ctx, uint8_t *to, int64_t rows, int64_t columns, const uint8_t *from,
                  int64_t h, int64_t w, const filter *by)
{
  if (columns == w) return pass_columns(ctx, to, rows, from, h, w, by);
  if (rows == h) return pass_rows(ctx, to, columns, from, h, w, by);
  size_t size = (size_t)(CHANNEL * h * columns);
  uint8_t *between = tide__alloc(ctx, size);
  if (!between) return TIDE_E_NOMEM;
  int rc = pass_rows(ctx, between, columns, from, h, w, by);
  if (rc == TIDE_OK) rc = pass_columns(ctx, to, rows, between, h, columns, by);
  tide__free(ctx, between, size);
  return rc;
}

int tide_image_resize(tide_tensor **out, tide_tensor *x, int64_t rows, int64_t columns, int by)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  const char *op = "image_resize";
  if (rows < 1 || columns < 1)
    return tide__fail(x->ctx, TIDE_E_ARG, op, "rows and columns: expected at least 1, got %lld and "
                      "%lld", (long long)rows, (long long)columns);
  if (by != TIDE_RESIZE_BICUBIC && by != TIDE_RESIZE_BILINEAR)
    return tide__fail(x->ctx, TIDE_E_ARG, op, "filter: expected TIDE_RESIZE_BICUBIC (0) or "
                      "TIDE_RESIZE_BILINEAR (1), got %d", by);
  const uint8_t *from;
  uint8_t *to;
  tide_tensor *y = NULL;
  TIDE_TRY(tide__pixels(x, CHANNEL, op, &from));
  TIDE_TRY(tide__pixels_new(&y, x->ctx, rows, columns, op, &to));
  int rc = resize(x->ctx, to, rows, columns, from, x->shape[0], x->shape[1], &filters[by]);
  if (rc == TIDE_OK) {
    *out = y;
    return rc;
  }
  tide_tensor_release(y);
  return tide__fail(x->ctx, rc, op, "no memory to resize %lld x %lld pixels to %lld x %lld",
                    (long long)x->shape[0], (long long)x->shape[1], (long long)rows,
                    (long long)columns);
}
