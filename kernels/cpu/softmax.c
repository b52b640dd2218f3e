/* Softmax and log-softmax over the last dim, forward and backward, any floating dtype.
 *
 * A row is read in chunks that are converted to f32 on the stack, so that one set of vector loops
 * serves f32, bf16 and f16; sums run in 16 lanes, in an order that depends on the length of the row
 * alone. f64 rows are plain loops in f64. Rows are distributed over threads.
 *
 * Rows must have stride 1; a call with other strides is left to the reference.
 */
#include "kernels/cpu/vec.h"

enum { L = 16, CHUNK = 256 };

typedef struct job {
  const k_tensor *a, *b, *y; /* forward: a is x; backward: a is dy, b is y */
  int is_log;
} job;

/* ---- rows ---- */

static int softmax_fits(const k_tensor *t)
{
  return k_row_size(t) <= 1 || t->stride[t->ndim - 1] == 1;
}

/* Returns up to CHUNK elements as f32: in place if they are f32, else converted into tmp. */
TIDE_INLINE const float *fetch(float *tmp, const k_tensor *t, int64_t at, int64_t n)
{
  if (t->dtype == TIDE_F32) return (const float *)t->data + at;
  vec_widen(tmp, (const uint16_t *)t->data + at, t->dtype, n);
  return tmp;
}

TIDE_INLINE void stash(const k_tensor *t, int64_t at, const float *src, int64_t n)
{
  vec_narrow((char *)t->data + at * vec_size(t->dtype), src, t->dtype, n);
}

/* ---- forward ---- */

TIDE_LEVELS(float, row_max, (const k_tensor *x, int64_t at, int64_t n), (x, at, n))
{
  float tmp[CHUNK], r = -INFINITY;
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t m = i64_min(n - i, CHUNK);
    r = tide__max_f32_n(fetch(tmp, x, at + i, m), m, r);
  }
  return r;
}

TIDE_LEVELS(float, row_sum, (const k_tensor *x, int64_t at, int64_t n, float top), (x, at, n, top))
{
  float tmp[CHUNK], sum[L] = { 0 }, r = 0;
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t m = i64_min(n - i, CHUNK);
    const float *p = fetch(tmp, x, at + i, m);
    int64_t j = 0;
    for (; j + L <= m; j += L)
      for (int l = 0; l < L; l++) sum[l] += tide__expf(p[j + l] - top);
    for (; j < m; j++) r += tide__expf(p[j] - top);
  }
  for (int l = 0; l < L; l++) r += sum[l];
  return r;
}

/* y = e^(x - top) * scale, or x - top - shift. */
TIDE_LEVELS(void, row_write,
            (const job *w, int64_t xo, int64_t yo, int64_t n, float top, float scale),
            (w, xo, yo, n, top, scale))
{
  float tmp[CHUNK], out[CHUNK];
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t m = i64_min(n - i, CHUNK);
    const float *p = fetch(tmp, w->a, xo + i, m);
    if (w->is_log)
      for (int64_t j = 0; j < m; j++) out[j] = (p[j] - top) - scale;
    else
      for (int64_t j = 0; j < m; j++) out[j] = tide__expf(p[j] - top) * scale;
    stash(w->y, yo + i, out, m);
  }
}

static void row_f64(const job *w, int64_t xo, int64_t yo, int64_t n)
{
  const double *x = (const double *)w->a->data + xo;
  double *y = (double *)w->y->data + yo, top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) top = fmax(top, x[i]);
  for (int64_t i = 0; i < n; i++) sum += exp(x[i] - top);
  const double shift = log(sum);
  for (int64_t i = 0; i < n; i++) y[i] = w->is_log ? (x[i] - top) - shift : exp(x[i] - top) / sum;
}

static void forward_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const int64_t n = k_row_size(w->a);
  (void)thread;
  for (int64_t r = begin; r < end; r++) {
    const int64_t xo = k_row_offset(w->a, r), yo = k_row_offset(w->y, r);
    if (w->a->dtype == TIDE_F64) {
      row_f64(w, xo, yo, n);
      continue;
    }
    const float top = row_max(w->a, xo, n), sum = row_sum(w->a, xo, n, top);
    row_write(w, xo, yo, n, top, w->is_log ? logf(sum) : 1.0f / sum);
  }
}

/* ---- backward ---- */

TIDE_LEVELS(float, row_dot, (const job *w, int64_t go, int64_t yo, int64_t n), (w, go, yo, n))
{
  float tg[CHUNK], ty[CHUNK], sum[L] = { 0 }, r = 0;
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t m = i64_min(n - i, CHUNK);
    const float *g = fetch(tg, w->a, go + i, m), *y = fetch(ty, w->b, yo + i, m);
    const float one = w->is_log ? 1.0f : 0.0f;
    int64_t j = 0;
    for (; j + L <= m; j += L)
      for (int l = 0; l < L; l++) sum[l] += g[j + l] * (one != 0.0f ? 1.0f : y[j + l]);
    for (; j < m; j++) r += g[j] * (one != 0.0f ? 1.0f : y[j]);
  }
  for (int l = 0; l < L; l++) r += sum[l];
  return r;
}

TIDE_LEVELS(void, row_bwd,
            (const job *w, int64_t go, int64_t yo, int64_t xo, int64_t n, float sum),
            (w, go, yo, xo, n, sum))
{
  float tg[CHUNK], ty[CHUNK], out[CHUNK];
  for (int64_t i = 0; i < n; i += CHUNK) {
    const int64_t m = i64_min(n - i, CHUNK);
    const float *g = fetch(tg, w->a, go + i, m), *y = fetch(ty, w->b, yo + i, m);
    if (w->is_log)
      for (int64_t j = 0; j < m; j++) out[j] = g[j] - tide__expf(y[j]) * sum;
    else
      for (int64_t j = 0; j < m; j++) out[j] = y[j] * (g[j] - sum);
    stash(w->y, xo + i, out, m);
  }
}

static void row_bwd_f64(const job *w, int64_t go, int64_t yo, int64_t xo, int64_t n)
{
  const double *g = (const double *)w->a->data + go, *y = (const double *)w->b->data + yo;
  double *x = (double *)w->y->data + xo, sum = 0;
  for (int64_t i = 0; i < n; i++) sum += g[i] * (w->is_log ? 1.0 : y[i]);
  for (int64_t i = 0; i < n; i++) x[i] = w->is_log ? g[i] - exp(y[i]) * sum : y[i] * (g[i] - sum);
}

static void backward_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const int64_t n = k_row_size(w->a);
  (void)thread;
  for (int64_t r = begin; r < end; r++) {
    const int64_t go = k_row_offset(w->a, r), yo = k_row_offset(w->b, r),
                  xo = k_row_offset(w->y, r);
    if (w->a->dtype == TIDE_F64) row_bwd_f64(w, go, yo, xo, n);
    else row_bwd(w, go, yo, xo, n, row_dot(w, go, yo, n));
  }
}

/* ---- calls ---- */

/* A backward has two operands. other: the reference, for strides that do not fit. */
static int softmax_run(const k_call *c, k_fn other, int is_log)
{
  const int bwd = c->nin == 2;
  const job w = { &c->in[0], &c->in[bwd], &c->out[0], is_log };
  const int64_t n = k_row_size(w.a);
  if (!softmax_fits(w.a) || !softmax_fits(w.b) || !softmax_fits(w.y)) return other(c);
  if (n == 0) return TIDE_OK;
  tide__pool_for(c->nthread, k_row_count(w.a), 1 + 8192 / n, bwd ? backward_rows : forward_rows,
                 (void *)&w);
  return TIDE_OK;
}

int k_cpu_softmax(const k_call *c) { return softmax_run(c, k_ref_softmax, 0); }
int k_cpu_log_softmax(const k_call *c) { return softmax_run(c, k_ref_log_softmax, 1); }
int k_cpu_softmax_bwd(const k_call *c) { return softmax_run(c, k_ref_softmax_bwd, 0); }
int k_cpu_log_softmax_bwd(const k_call *c) { return softmax_run(c, k_ref_log_softmax_bwd, 1); }
