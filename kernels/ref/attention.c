/* Reference kernels of the attention family: softmax, log_softmax, rope, attention, and backward.
 *
 * The one idea: write down the definition and nothing else. Every value goes through f64, every
 * pair (query, key) is judged one at a time, and what is needed twice is computed twice, so that
 * no scratch memory and no blocking hides the meaning. Any strides, every floating dtype.
 *
 * attention: s(i, j) = cap(scale * q_i . k_j) + bias(i, j), cap(x) = softcap * tanh(x / softcap)
 * (softcap 0: x itself). The sums below run over the keys that query i sees and whose s is not
 * -inf. A query without any has out = 0, lse = -inf and passes no gradient on.
 *   lse_i = log sum_j e^s(i,j)      p(i, j) = e^(s(i,j) - lse_i)      out_i = sum_j p(i, j) v_j
 *   ds(i, j) = p(i, j) (dout_i . v_j - dout_i . out_i + dlse_i)       dbias = ds
 *
 * Layer 2k.
 */
#include <math.h>

#include "core/base/dtype.h"
#include "kernels/kernel.h"

enum { CHUNK = 64 }; /* channels accumulated at a time, so that no scratch is needed */

static double load(const k_tensor *t, int64_t at)
{
  switch (t->dtype) {
    case TIDE_F32: return ((const float *)t->data)[at];
    case TIDE_F64: return ((const double *)t->data)[at];
    case TIDE_BF16: return tide__bf16_to_f32(((const uint16_t *)t->data)[at]);
    case TIDE_F16: return tide__f16_to_f32(((const uint16_t *)t->data)[at]);
    case TIDE_I64: return (double)((const int64_t *)t->data)[at];
    default: return ((const int32_t *)t->data)[at];
  }
}

static void store(const k_tensor *t, int64_t at, double v)
{
  switch (t->dtype) {
    case TIDE_F32: ((float *)t->data)[at] = (float)v; break;
    case TIDE_F64: ((double *)t->data)[at] = v; break;
    case TIDE_BF16: ((uint16_t *)t->data)[at] = tide__f32_to_bf16((float)v); break;
    default: ((uint16_t *)t->data)[at] = tide__f32_to_f16((float)v); break;
  }
}

/* ---- softmax ---------------------------------------------------------------------------------
 * A row is one setting of all dims but the last. row_offset finds where row r begins. */

static int64_t row_offset(const k_tensor *t, int64_t r)
{
  int64_t at = 0;
  for (int d = t->ndim - 2; d >= 0; d--) {
    at += r % t->shape[d] * t->stride[d];
    r /= t->shape[d];
  }
  return at;
}

static int64_t row_size(const k_tensor *t) { return t->ndim > 0 ? t->shape[t->ndim - 1] : 1; }
static int64_t row_step(const k_tensor *t) { return t->ndim > 0 ? t->stride[t->ndim - 1] : 1; }

static void softmax_row(const k_tensor *x, const k_tensor *y, int64_t r, int is_log)
{
  const int64_t n = row_size(x), xs = row_step(x), ys = row_step(y);
  const int64_t xo = row_offset(x, r), yo = row_offset(y, r);
  double top = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) top = fmax(top, load(x, xo + i * xs));
  for (int64_t i = 0; i < n; i++) sum += exp(load(x, xo + i * xs) - top);
  for (int64_t i = 0; i < n; i++) {
    const double z = load(x, xo + i * xs) - top;
    store(y, yo + i * ys, is_log ? z - log(sum) : exp(z) / sum);
  }
}

static int softmax_all(const k_call *c, int is_log)
{
  const int64_t n = row_size(&c->in[0]);
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
  const int64_t n = row_size(dy), gs = row_step(dy), ys = row_step(y), xs = row_step(dx);
  const int64_t go = row_offset(dy, r), yo = row_offset(y, r), xo = row_offset(dx, r);
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum += load(dy, go + i * gs) * (is_log ? 1.0 : load(y, yo + i * ys));
  for (int64_t i = 0; i < n; i++) {
    const double g = load(dy, go + i * gs), v = load(y, yo + i * ys);
    store(dx, xo + i * xs, is_log ? g - exp(v) * sum : v * (g - sum));
  }
}

static int softmax_bwd_all(const k_call *c, int is_log)
{
  const int64_t n = row_size(&c->in[0]);
  const int64_t nrow = n > 0 ? k_numel(&c->in[0]) / n : 0;
  for (int64_t r = 0; r < nrow; r++) softmax_bwd_row(c, r, is_log);
  return TIDE_OK;
}

int k_ref_softmax_bwd(const k_call *c) { return softmax_bwd_all(c, 0); }
int k_ref_log_softmax_bwd(const k_call *c) { return softmax_bwd_all(c, 1); }

/* ---- rope ------------------------------------------------------------------------------------ */

static double position_of(const k_tensor *p, int64_t b, int64_t t)
{
  return load(p, (p->shape[0] == 1 ? 0 : b * p->stride[0]) + t * p->stride[1]);
}

/* One head of one token: channels (first, second) of each pair turn by position * inv_freq. */
static void rope_head(const k_call *c, int64_t xo, int64_t yo, double position)
{
  const k_rope_attrs *a = c->attrs;
  const k_tensor *x = &c->in[0], *f = &c->in[2], *y = &c->out[0];
  const int64_t half = f->shape[0], xs = x->stride[3], ys = y->stride[3];
  for (int64_t i = 0; i < half; i++) {
    const double angle = position * load(f, i * f->stride[0]);
    const double co = cos(angle), si = a->inverse ? -sin(angle) : sin(angle);
    const int64_t first = a->interleaved ? 2 * i : i;
    const int64_t second = a->interleaved ? 2 * i + 1 : i + half;
    const double x1 = load(x, xo + first * xs), x2 = load(x, xo + second * xs);
    store(y, yo + first * ys, x1 * co - x2 * si);
    store(y, yo + second * ys, x2 * co + x1 * si);
  }
  for (int64_t d = 2 * half; d < x->shape[3]; d++) store(y, yo + d * ys, load(x, xo + d * xs));
}

int k_ref_rope(const k_call *c)
{
  const k_tensor *x = &c->in[0], *y = &c->out[0];
  for (int64_t b = 0; b < x->shape[0]; b++)
    for (int64_t t = 0; t < x->shape[1]; t++)
      for (int64_t h = 0; h < x->shape[2]; h++) {
        const int64_t xo = b * x->stride[0] + t * x->stride[1] + h * x->stride[2];
        const int64_t yo = b * y->stride[0] + t * y->stride[1] + h * y->stride[2];
        rope_head(c, xo, yo, position_of(&c->in[1], b, t));
      }
  return TIDE_OK;
}

/* ---- attention -------------------------------------------------------------------------------
 * Operands are named here; forward and backward fill the same struct. */

typedef struct problem {
  const k_attention_attrs *a;
  const k_tensor *q, *k, *v, *bias, *q_index, *k_index;
  const k_tensor *dout, *out, *lse, *dlse; /* backward only */
  int64_t nbatch, nhead, ngroup, tq, tk, d, dv; /* ngroup: query heads per key head */
} problem;

static void set_sizes(problem *p)
{
  p->nbatch = p->q->shape[0];
  p->nhead = p->q->shape[2];
  p->ngroup = p->k->shape[2] > 0 ? p->nhead / p->k->shape[2] : 1;
  p->tq = p->q->shape[1];
  p->tk = p->k->shape[1];
  p->d = p->q->shape[3];
  p->dv = p->v->shape[3];
}

static int64_t at4(const k_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
  return i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2] + i3 * t->stride[3];
}

static int64_t at3(const k_tensor *t, int64_t i0, int64_t i1, int64_t i2)
{
  return i0 * t->stride[0] + i1 * t->stride[1] + i2 * t->stride[2];
}

static int64_t index_of(const k_tensor *t, int64_t b, int64_t i, int64_t what)
{
  const int64_t at = (t->shape[0] == 1 ? 0 : b * t->stride[0]) + i * t->stride[1];
  return ((const int32_t *)t->data)[at + what * t->stride[2]];
}

static int sees(const problem *p, int64_t b, int64_t i, int64_t j)
{
  int64_t qpos = p->a->q_start + i, kpos = j;
  if (!k_absent(p->q_index)) {
    const int64_t doc = index_of(p->q_index, b, i, 0);
    if (doc < 0 || doc != index_of(p->k_index, b, j, 0)) return 0;
    qpos = index_of(p->q_index, b, i, 1);
    kpos = index_of(p->k_index, b, j, 1);
  }
  const int64_t dist = qpos - kpos;
  if (p->a->causal && dist < 0) return 0;
  if (p->a->window_left >= 0 && dist > p->a->window_left) return 0;
  return p->a->window_right < 0 || -dist <= p->a->window_right;
}

/* s(i, j), and in *slope the derivative of s by q.k. */
static double score(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double *slope)
{
  const int64_t hk = h / p->ngroup;
  double s = 0;
  for (int64_t d = 0; d < p->d; d++)
    s += load(p->q, at4(p->q, b, i, h, d)) * load(p->k, at4(p->k, b, j, hk, d));
  s *= p->a->scale;
  *slope = p->a->scale;
  if (p->a->softcap != 0) {
    const double th = tanh(s / p->a->softcap);
    s = p->a->softcap * th;
    *slope *= 1 - th * th;
  }
  if (!k_absent(p->bias)) s += load(p->bias, at4(p->bias, b, h, i, j));
  return s;
}

/* log sum exp of the seen scores of one query; -inf if there are none. */
static double row_lse(const problem *p, int64_t b, int64_t h, int64_t i)
{
  double top = -INFINITY, sum = 0, slope;
  for (int64_t j = 0; j < p->tk; j++)
    if (sees(p, b, i, j)) top = fmax(top, score(p, b, h, i, j, &slope));
  if (top == -INFINITY) return top;
  for (int64_t j = 0; j < p->tk; j++)
    if (sees(p, b, i, j)) sum += exp(score(p, b, h, i, j, &slope) - top);
  return top + log(sum);
}

static void attention_row(const problem *p, const k_tensor *out, int64_t b, int64_t h, int64_t i,
                          double lse)
{
  for (int64_t d0 = 0; d0 < p->dv; d0 += CHUNK) {
    const int64_t nd = p->dv - d0 < CHUNK ? p->dv - d0 : CHUNK;
    double acc[CHUNK] = { 0 }, slope;
    for (int64_t j = 0; j < p->tk && lse != -INFINITY; j++) {
      if (!sees(p, b, i, j)) continue;
      const double w = exp(score(p, b, h, i, j, &slope) - lse);
      if (w == 0) continue;
      for (int64_t d = 0; d < nd; d++)
        acc[d] += w * load(p->v, at4(p->v, b, j, h / p->ngroup, d0 + d));
    }
    for (int64_t d = 0; d < nd; d++) store(out, at4(out, b, i, h, d0 + d), acc[d]);
  }
}

int k_ref_attention(const k_call *c)
{
  problem p = { .a = c->attrs, .q = &c->in[0], .k = &c->in[1], .v = &c->in[2], .bias = &c->in[3],
                .q_index = &c->in[4], .k_index = &c->in[5] };
  set_sizes(&p);
  for (int64_t b = 0; b < p.nbatch; b++)
    for (int64_t h = 0; h < p.nhead; h++)
      for (int64_t i = 0; i < p.tq; i++) {
        const double lse = row_lse(&p, b, h, i);
        attention_row(&p, &c->out[0], b, h, i, lse);
        store(&c->out[1], at3(&c->out[1], b, h, i), lse);
      }
  return TIDE_OK;
}

/* p(i, j), with ds(i, j) in *ds and the gradient of q.k in *dqk. All 0 where i does not see j. */
static double pair(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double *ds,
                   double *dqk)
{
  *ds = *dqk = 0;
  const double lse = load(p->lse, at3(p->lse, b, h, i));
  if (lse == -INFINITY || !sees(p, b, i, j)) return 0;
  double slope, w = exp(score(p, b, h, i, j, &slope) - lse), g = 0;
  if (w == 0) return 0;
  for (int64_t d = 0; d < p->dv; d++) {
    const double grad = load(p->dout, at4(p->dout, b, i, h, d));
    g += grad * (load(p->v, at4(p->v, b, j, h / p->ngroup, d)) -
                 load(p->out, at4(p->out, b, i, h, d)));
  }
  if (!k_absent(p->dlse)) g += load(p->dlse, at3(p->dlse, b, h, i));
  *ds = w * g;
  *dqk = *ds * slope;
  return w;
}

static void dq_row(const problem *p, const k_tensor *dq, int64_t b, int64_t h, int64_t i)
{
  for (int64_t d0 = 0; d0 < p->d; d0 += CHUNK) {
    const int64_t nd = p->d - d0 < CHUNK ? p->d - d0 : CHUNK;
    double acc[CHUNK] = { 0 }, ds, dqk;
    for (int64_t j = 0; j < p->tk; j++) {
      if (pair(p, b, h, i, j, &ds, &dqk) == 0) continue;
      for (int64_t d = 0; d < nd; d++)
        acc[d] += dqk * load(p->k, at4(p->k, b, j, h / p->ngroup, d0 + d));
    }
    for (int64_t d = 0; d < nd; d++) store(dq, at4(dq, b, i, h, d0 + d), acc[d]);
  }
}

/* Row j of dk (is_v 0: sum of dqk q) or of dv (is_v 1: sum of p dout) of key head hk. */
static void dkv_row(const problem *p, const k_tensor *t, int64_t b, int64_t hk, int64_t j, int is_v)
{
  const k_tensor *src = is_v ? p->dout : p->q;
  const int64_t size = is_v ? p->dv : p->d;
  for (int64_t d0 = 0; d0 < size; d0 += CHUNK) {
    const int64_t nd = size - d0 < CHUNK ? size - d0 : CHUNK;
    double acc[CHUNK] = { 0 }, ds, dqk;
    for (int64_t h = hk * p->ngroup; h < (hk + 1) * p->ngroup; h++)
      for (int64_t i = 0; i < p->tq; i++) {
        const double w = pair(p, b, h, i, j, &ds, &dqk);
        if (w == 0) continue;
        for (int64_t d = 0; d < nd; d++)
          acc[d] += (is_v ? w : dqk) * load(src, at4(src, b, i, h, d0 + d));
      }
    for (int64_t d = 0; d < nd; d++) store(t, at4(t, b, j, hk, d0 + d), acc[d]);
  }
}

int k_ref_attention_bwd(const k_call *c)
{
  problem p = { .a = c->attrs, .dout = &c->in[0], .q = &c->in[1], .k = &c->in[2], .v = &c->in[3],
                .out = &c->in[4], .lse = &c->in[5], .bias = &c->in[6], .q_index = &c->in[7],
                .k_index = &c->in[8], .dlse = &c->in[9] };
  set_sizes(&p);
  double ds, dqk;
  for (int64_t b = 0; b < p.nbatch; b++) {
    for (int64_t h = 0; h < p.nhead; h++)
      for (int64_t i = 0; i < p.tq; i++) {
        dq_row(&p, &c->out[0], b, h, i);
        for (int64_t j = 0; j < p.tk && !k_absent(&c->out[3]); j++) {
          pair(&p, b, h, i, j, &ds, &dqk);
          store(&c->out[3], at4(&c->out[3], b, h, i, j), ds);
        }
      }
    for (int64_t hk = 0; hk < p.k->shape[2]; hk++)
      for (int64_t j = 0; j < p.tk; j++) {
        dkv_row(&p, &c->out[1], b, hk, j, 0);
        dkv_row(&p, &c->out[2], b, hk, j, 1);
      }
  }
  return TIDE_OK;
}
