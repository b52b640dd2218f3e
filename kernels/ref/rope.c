/* Defines the rotary embedding: pairs of a head's channels rotate by position * inv_freq.
 *
 * Any strides, every floating dtype; angles and values are f64.
 */
#include "kernels/ref/load.h"

static double ref_position_of(const k_tensor *p, int64_t b, int64_t t)
{
  return ref_get(p, (p->shape[0] == 1 ? 0 : b * p->stride[0]) + t * p->stride[1]);
}

/* Rotates the channel pairs (first, second) of one head of one token. */
static void rope_head(const k_call *c, int64_t xo, int64_t yo, double position)
{
  const k_rope_attrs *a = c->attrs;
  const k_tensor *x = &c->in[0], *f = &c->in[2], *y = &c->out[0];
  const int64_t half = f->shape[0], xs = x->stride[3], ys = y->stride[3];
  for (int64_t i = 0; i < half; i++) {
    const double angle = position * ref_get(f, i * f->stride[0]);
    const double co = cos(angle), si = a->inverse ? -sin(angle) : sin(angle);
    const int64_t first = a->interleaved ? 2 * i : i;
    const int64_t second = a->interleaved ? 2 * i + 1 : i + half;
    const double x1 = ref_get(x, xo + first * xs), x2 = ref_get(x, xo + second * xs);
    ref_put(y, yo + first * ys, x1 * co - x2 * si);
    ref_put(y, yo + second * ys, x2 * co + x1 * si);
  }
  for (int64_t d = 2 * half; d < x->shape[3]; d++) ref_put(y, yo + d * ys, ref_get(x, xo + d * xs));
}

int k_ref_rope(const k_call *c)
{
  const k_tensor *x = &c->in[0], *y = &c->out[0];
  for (int64_t b = 0; b < x->shape[0]; b++)
    for (int64_t t = 0; t < x->shape[1]; t++)
      for (int64_t h = 0; h < x->shape[2]; h++) {
        const int64_t xo = b * x->stride[0] + t * x->stride[1] + h * x->stride[2];
        const int64_t yo = b * y->stride[0] + t * y->stride[1] + h * y->stride[2];
        rope_head(c, xo, yo, ref_position_of(&c->in[1], b, t));
      }
  return TIDE_OK;
}
