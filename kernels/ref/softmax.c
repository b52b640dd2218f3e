/* Defines softmax and log_softmax, forward and backward, over the last dim. Any strides, every
 * floating dtype; values go through f64. */
#include "kernels/ref/load.h"

static int64_t row_step(const k_tensor *t) { return t->ndim > 0 ? t->stride[t->ndim - 1] : 1; }

static void softmax_row(const k_call *c, int64_t r, int is_log)
{
  const k_tensor *x = &c->in[0], *y = &c->out[0];
  const int64_t n = k_row_size(x), xs = row_step(x), ys = row_step(y);
  const int64_t xo = k_row_offset(x, r), yo = k_row_offset(y, r);
  double top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) top = fmax(top, ref_get(x, xo + i * xs));
  for (int64_t i = 0; i < n; i++) sum += exp(ref_get(x, xo + i * xs) - top);
  for (int64_t i = 0; i < n; i++) {
    const double z = ref_get(x, xo + i * xs) - top;
    ref_put(y, yo + i * ys, is_log ? z - log(sum) : exp(z) / sum);
  }
}

/* Computes dx = y (dy - sum dy y) of softmax, dx = dy - e^y sum dy of log_softmax. */
static void softmax_bwd_row(const k_call *c, int64_t r, int is_log)
{
  const k_tensor *dy = &c->in[0], *y = &c->in[1], *dx = &c->out[0];
  const int64_t n = k_row_size(dy), gs = row_step(dy), ys = row_step(y), xs = row_step(dx);
  const int64_t go = k_row_offset(dy, r), yo = k_row_offset(y, r), xo = k_row_offset(dx, r);
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += ref_get(dy, go + i * gs) * (is_log ? 1.0 : ref_get(y, yo + i * ys));
  for (int64_t i = 0; i < n; i++) {
    const double g = ref_get(dy, go + i * gs), v = ref_get(y, yo + i * ys);
    ref_put(dx, xo + i * xs, is_log ? g - exp(v) * sum : v * (g - sum));
  }
}

static int ref_over_rows(const k_call *c, void (*row)(const k_call *, int64_t, int), int is_log)
{
  const int64_t nrow = k_row_size(c->in) > 0 ? k_row_count(c->in) : 0;
  for (int64_t r = 0; r < nrow; r++) row(c, r, is_log);
  return TIDE_OK;
}

int k_ref_softmax(const k_call *c) { return ref_over_rows(c, softmax_row, 0); }
int k_ref_log_softmax(const k_call *c) { return ref_over_rows(c, softmax_row, 1); }
int k_ref_softmax_bwd(const k_call *c) { return ref_over_rows(c, softmax_bwd_row, 0); }
int k_ref_log_softmax_bwd(const k_call *c) { return ref_over_rows(c, softmax_bwd_row, 1); }
