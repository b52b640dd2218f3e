/* Rotary position embedding, as defined in kernels/ref/rope.c.
 *
 * Sine and cosine of a token are computed once, in f64, and shared by its heads, and by all
 * sequences if these have one row of positions; the angle of position 2^24 keeps ten digits after
 * reduction. The rotation itself runs in f32 (f64 for f64) over converted rows.
 *
 * Tables are cut into pieces of PAIRS channel pairs, so no scratch is needed.
 *
 * y may be x: a pair is read before it is written, and by one thread.
 *
 * Channels must have stride 1; a call with other strides is left to the reference.
 */
#include "kernels/cpu/row.h"
#include "kernels/ref/load.h"

enum { PAIRS = 128 };

typedef struct job {
  const k_rope_attrs *a;
  const k_tensor *x, *positions, *freq, *y;
  int64_t half; /* channel pairs that rotate */
} job;

typedef struct table { double cos64[PAIRS], sin64[PAIRS]; float cos[PAIRS], sin[PAIRS]; } table;

static void fill_table(table *m, const job *w, double position, int64_t first, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    const double angle = position * ref_get(w->freq, (first + i) * w->freq->stride[0]);
    double s, c;
    sincos(angle, &s, &c);
    m->cos64[i] = c;
    m->sin64[i] = w->a->inverse ? -s : s;
    m->cos[i] = (float)m->cos64[i];
    m->sin[i] = (float)m->sin64[i];
  }
}

/* ---- f32 rows: a and b are the first and second channels of n pairs ---- */

TIDE_INLINE void rotate(float *a, float *b, const table *m, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    const float x1 = a[i], x2 = b[i];
    a[i] = x1 * m->cos[i] - x2 * m->sin[i];
    b[i] = x2 * m->cos[i] + x1 * m->sin[i];
  }
}

/* Pairs [first, first + n) of one head. */
TIDE_LEVELS(void, rotate_head,
            (const job *w, const table *m, int64_t xo, int64_t yo, int64_t first, int64_t n),
            (w, m, xo, yo, first, n))
{
  const int dtype = w->x->dtype;
  float a[PAIRS], b[PAIRS], both[2 * PAIRS];
  if (!w->a->interleaved) {
    vec_widen(a, row_at(w->x, xo + first), dtype, n);
    vec_widen(b, row_at(w->x, xo + w->half + first), dtype, n);
    rotate(a, b, m, n);
    vec_narrow(row_at(w->y, yo + first), a, dtype, n);
    vec_narrow(row_at(w->y, yo + w->half + first), b, dtype, n);
    return;
  }
  vec_widen(both, row_at(w->x, xo + 2 * first), dtype, 2 * n);
  for (int64_t i = 0; i < n; i++) {
    const float x1 = both[2 * i], x2 = both[2 * i + 1];
    both[2 * i] = x1 * m->cos[i] - x2 * m->sin[i];
    both[2 * i + 1] = x2 * m->cos[i] + x1 * m->sin[i];
  }
  vec_narrow(row_at(w->y, yo + 2 * first), both, dtype, 2 * n);
}

static void rotate_head_f64(const job *w, const table *m, int64_t xo, int64_t yo, int64_t first,
                            int64_t n)
{
  const double *x = (const double *)w->x->data + xo;
  double *y = (double *)w->y->data + yo;
  for (int64_t i = 0; i < n; i++) {
    const int64_t one = w->a->interleaved ? 2 * (first + i) : first + i;
    const int64_t two = w->a->interleaved ? one + 1 : one + w->half;
    const double x1 = x[one], x2 = x[two];
    y[one] = x1 * m->cos64[i] - x2 * m->sin64[i];
    y[two] = x2 * m->cos64[i] + x1 * m->sin64[i];
  }
}

/* Copies the channels that do not rotate. */
static void copy_rest(const job *w, int64_t xo, int64_t yo)
{
  const int64_t from = 2 * w->half, n = w->x->shape[3] - from;
  if (n > 0 && row_at(w->y, yo) != row_at(w->x, xo))
    memcpy(row_at(w->y, yo + from), row_at(w->x, xo + from), (size_t)(n * vec_size(w->x->dtype)));
}

/* Rotates all heads of the token at offsets xo and yo; m holds pairs [first, first + n). */
static void rotate_token(const job *w, const table *m, int64_t xo, int64_t yo, int64_t first,
                         int64_t n)
{
  const k_tensor *x = w->x, *y = w->y;
  for (int64_t h = 0; h < x->shape[2]; h++) {
    const int64_t xh = xo + h * x->stride[2], yh = yo + h * y->stride[2];
    (x->dtype == TIDE_F64 ? rotate_head_f64 : rotate_head)(w, m, xh, yh, first, n);
    if (first == 0) copy_rest(w, xh, yh);
  }
}

/* Rotates the tokens of a task. Entries of positions are counted as [row of positions][token]. */
static void tokens(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const k_tensor *x = w->x, *y = w->y;
  const int64_t nb = x->shape[0], same = w->positions->shape[0] == 1 ? nb : 1;
  table m;
  (void)thread;
  for (int64_t r = begin; r < end; r++) {
    const int64_t b0 = r / x->shape[1], t = r % x->shape[1];
    const int64_t *stride = w->positions->stride;
    const double position = ref_get(w->positions, b0 * stride[0] + t * stride[1]);
    for (int64_t first = 0; first == 0 || first < w->half; first += PAIRS) {
      const int64_t n = w->half - first < PAIRS ? w->half - first : PAIRS;
      fill_table(&m, w, position, first, n);
      for (int64_t b = b0; b < b0 + same; b++)
        rotate_token(w, &m, b * x->stride[0] + t * x->stride[1],
                     b * y->stride[0] + t * y->stride[1], first, n);
    }
  }
}

int k_cpu_rope(const k_call *c)
{
  const job w = { c->attrs, &c->in[0], &c->in[1], &c->in[2], &c->out[0], c->in[2].shape[0] };
  const int64_t n = w.x->shape[3];
  if (n > 1 && (w.x->stride[3] != 1 || w.y->stride[3] != 1)) return k_ref_rope(c);
  const int64_t nb = w.x->shape[0], rows = w.positions->shape[0] == 1 && nb > 0 ? 1 : nb;
  const int64_t each = nb / (rows > 0 ? rows : 1) * w.x->shape[2] * n + 1;
  tide__pool_for(c->nthread, rows * w.x->shape[1], 1 + 8192 / each, tokens, (void *)&w);
  return TIDE_OK;
}
