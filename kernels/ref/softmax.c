/* Defines softmax and log_softmax, forward and backward, over the last dim. Any strides, every
 * floating dtype; values go through f64. */
#include <math.h>

#include "kernels/kernel.h"
#include "kernels/ref/load.h"

static int64_t row_offset(const k_tensor *t, int64_t r)
{
  int64_t at = 0;
  for (int d = t->ndim - 2; d >= 0; d--) {
    at += r % t->shape[d] * t->stride[d];
    r /= t->shape[d];
  }
  return at;
}

static int64_t ref_row_size(const k_tensor *t) { return t->ndim > 0 ? t->shape[t->ndim - 1] : 1; }
static int64_t row_step(const k_tensor *t) { return t->ndim > 0 ? t->stride[t->ndim - 1] : 1; }

static void softmax_row(const k_tensor *x, const k_tensor *y, int64_t r, int is_log)
{
  const int64_t n = ref_row_size(x), xs = row_step(x), ys = row_step(y);
  const int64_t xo = row_offset(x, r), yo = row_offset(y, r);
  double top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) top = fmax(top, ref_get(x, xo + i * xs));
  for (int64_t i = 0; i < n; i++) sum += exp(ref_get(x, xo + i * xs) - top);
  for (int64_t i = 0; i < n; i++) {
    const double z = ref_get(x, xo + i * xs) - top;
    ref_put(y, yo + i * ys, is_log ? z - log(sum) : exp(z) / sum);
  }
}

static int softmax_all(const k_call *c, int is_log)
{
  const int64_t n = ref_row_size(&c->in[0]);
  const int64_t nrow = n > 0 ? k_numel(&c->in[0]) / n : 0;
  for (int64_t r = 0; r < nrow; r++) softmax_row(&c->in[0], &c->out[0], r, is_log);
  return TIDE_OK;
}

int k_ref_softmax(const k_call *c) { return softmax_all(c, 0); }
int k_ref_log_softmax(const k_call *c) { return softmax_all(c, 1); }

/* softmax: dx = y (dy - sum dy y).  log_softmax: dx = dy - e^y sum dy. */
static void softmax_bwd_row(const k_call *c, int64_t r, int is_log)
{
  const k_tensor *dy = &c->in[0], *y = &c->in[1], *dx = &c->out[0];
  const int64_t n = ref_row_size(dy), gs = row_step(dy), ys = row_step(y), xs = row_step(dx);
  const int64_t go = row_offset(dy, r), yo = row_offset(y, r), xo = row_offset(dx, r);
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += ref_get(dy, go + i * gs) * (is_log ? 1.0 : ref_get(y, yo + i * ys));
  for (int64_t i = 0; i < n; i++) {
    const double g = ref_get(dy, go + i * gs), v = ref_get(y, yo + i * ys);
    ref_put(dx, xo + i * xs, is_log ? g - exp(v) * sum : v * (g - sum));
  }
}

static int softmax_bwd_all(const k_call *c, int is_log)
{
  const int64_t n = ref_row_size(&c->in[0]);
  const int64_t nrow = n > 0 ? k_numel(&c->in[0]) / n : 0;
  for (int64_t r = 0; r < nrow; r++) softmax_bwd_row(c, r, is_log);
  return TIDE_OK;
}

int k_ref_softmax_bwd(const k_call *c) { return softmax_bwd_all(c, 0); }
int k_ref_log_softmax_bwd(const k_call *c) { return softmax_bwd_all(c, 1); }
