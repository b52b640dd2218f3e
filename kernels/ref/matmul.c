/* Defines matmul and linear: plain sums, accumulated in f64 (integers: modulo 2^64) and
 * rounded once. See kernel.h for operands. */
#include "kernels/ref/load.h"

/* y[yi] = sum_p a[ai + p * as] b[bi + p * bs] (+ bias[ci] if present). bias may be y. */
typedef struct dot {
  const k_tensor *a, *b, *bias, *y;
  int64_t ai, as, bi, bs, ci, yi, k;
} dot;

static double dot_sum(const dot *d)
{
  double s = 0;
  for (int64_t p = 0; p < d->k; p++)
    s += ref_get(d->a, d->ai + p * d->as) * ref_get(d->b, d->bi + p * d->bs);
  return d->bias ? s + ref_get(d->bias, d->ci) : s;
}

static void dot_store(const dot *d)
{
  if (K_INT & (1 << d->y->dtype)) {
    uint64_t s = 0;
    for (int64_t p = 0; p < d->k; p++)
      s += (uint64_t)ref_get_int(d->a, d->ai + p * d->as) *
           (uint64_t)ref_get_int(d->b, d->bi + p * d->bs);
    if (d->bias) s += (uint64_t)ref_get_int(d->bias, d->ci);
    ref_put_int(d->y, d->yi, (int64_t)s);
    return;
  }
  ref_put(d->y, d->yi, dot_sum(d));
}

/* Returns the offset of row-major index i over the first ndim dims of shape, under t's strides. */
static int64_t offset_of(const k_tensor *t, const int64_t *shape, int ndim, int64_t i)
{
  int64_t o = 0;
  for (int d = ndim - 1; d >= 0; d--) {
    o += i % shape[d] * t->stride[d];
    i /= shape[d];
  }
  return o;
}

static int64_t ref_product(const int64_t *shape, int ndim)
{
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n *= shape[d];
  return n;
}

static int check_dtypes(const k_call *call, const char *name)
{
  int dtype = call->in[0].dtype;
  if ((K_FLOAT | K_INT) & (1 << dtype)) return TIDE_OK;
  snprintf(call->msg, K_MSG, "%s: dtype %d has no product; cast to a number type first", name,
           dtype);
  return TIDE_E_DTYPE;
}

static int ref_multiply(const k_call *call, const char *name, int add)
{
  const k_tensor *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
  TIDE_TRY(check_dtypes(call, name));
  int nb = y->ndim - 2;
  int64_t m = y->shape[nb], n = y->shape[nb + 1], k = a->shape[nb + 1];
  int64_t nbatch = ref_product(y->shape, nb);
  for (int64_t i = 0; i < nbatch; i++) {
    int64_t ao = offset_of(a, y->shape, nb, i), bo = offset_of(b, y->shape, nb, i);
    int64_t yo = offset_of(y, y->shape, nb, i);
    for (int64_t r = 0; r < m; r++)
      for (int64_t c = 0; c < n; c++) {
        dot d = {.a = a, .b = b, .y = y, .k = k};
        d.ai = ao + r * a->stride[nb], d.as = a->stride[nb + 1];
        d.bi = bo + c * b->stride[nb + 1], d.bs = b->stride[nb];
        d.yi = yo + r * y->stride[nb] + c * y->stride[nb + 1];
        if (add) d.bias = y, d.ci = d.yi;
        dot_store(&d);
      }
  }
  return TIDE_OK;
}

int k_ref_matmul(const k_call *call) { return ref_multiply(call, "matmul", 0); }
int k_ref_addmm_(const k_call *call) { return ref_multiply(call, "addmm_", 1); }

/* Returns the dot product that makes row r, column c of x w^T + bias. */
static dot linear_dot(const k_call *call, int64_t r, int64_t c)
{
  const k_tensor *x = &call->in[0], *w = &call->in[1], *bias = &call->in[2], *y = &call->out[0];
  int nl = x->ndim - 1;
  dot d = {.a = x, .b = w, .y = y, .k = x->shape[nl]};
  d.ai = offset_of(x, x->shape, nl, r), d.as = x->stride[nl];
  d.bi = c * w->stride[0], d.bs = w->stride[1];
  d.yi = offset_of(y, x->shape, nl, r) + c * y->stride[nl];
  if (!k_absent(bias)) d.bias = bias, d.ci = c * bias->stride[0];
  return d;
}

int k_ref_linear(const k_call *call)
{
  const k_tensor *x = &call->in[0], *w = &call->in[1];
  TIDE_TRY(check_dtypes(call, "linear"));
  int64_t m = ref_product(x->shape, x->ndim - 1);
  for (int64_t r = 0; r < m; r++)
    for (int64_t c = 0; c < w->shape[0]; c++) {
      dot d = linear_dot(call, r, c);
      dot_store(&d);
    }
  return TIDE_OK;
}

static double activate(double v, int act)
{
  if (act == K_ACT_RELU) return v > 0 || v != v ? v : 0;
  return 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
}

int k_ref_linear_act(const k_call *call)
{
  const k_tensor *x = &call->in[0], *w = &call->in[1], *y = &call->out[0], *pre = &call->out[1];
  int act = ((const k_linear_act_attrs *)call->attrs)->act;
  int64_t m = ref_product(x->shape, x->ndim - 1), n = w->shape[0];
  for (int64_t r = 0; r < m; r++)
    for (int64_t c = 0; c < n; c++) {
      dot d = linear_dot(call, r, c);
      double v = dot_sum(&d);
      if (!k_absent(pre)) ref_put(pre, r * n + c, v);
      ref_put(y, d.yi, activate(v, act));
    }
  return TIDE_OK;
}
