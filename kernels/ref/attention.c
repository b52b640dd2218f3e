/* Defines attention, forward and backward.
 *
 * Every value goes through f64, every pair (query, key) is tested by itself, and nothing is cached
 * or blocked. Any strides, every floating dtype.
 *
 * attention: s(i, j) = cap(scale * q_i . k_j) + bias(i, j), cap(x) = softcap * tanh(x / softcap)
 * (softcap 0: x itself). The sums below run over the keys that query i sees and whose s is not
 * -inf: others have no effect, also where their values are NaN or infinite. A query without such
 * a key has out = 0, lse = -inf and passes no gradient on.
 *   lse_i = log sum_j e^s(i,j)      p(i, j) = e^(s(i,j) - lse_i)      out_i = sum_j p(i, j) v_j
 *   ds(i, j) = p(i, j) (dout_i . v_j - dout_i . out_i + dlse_i)       dbias = ds
 */
#include "kernels/ref/load.h"

enum { CHUNK = 64 }; /* channels accumulated at a time, so that no scratch is needed */

/* Forward and backward fill the same struct. */
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

static int64_t ref_at4(const k_tensor *t, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
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
  int64_t qpos = p->a->q_start + i, kpos = j, until = qpos;
  if (!k_absent(p->q_index)) {
    const int64_t doc = index_of(p->q_index, b, i, 0);
    if (doc < 0 || doc != index_of(p->k_index, b, j, 0)) return 0;
    qpos = index_of(p->q_index, b, i, 1);
    kpos = index_of(p->k_index, b, j, 1);
    until = p->q_index->shape[2] > 2 ? index_of(p->q_index, b, i, 2) : qpos;
  }
  const int64_t dist = qpos - kpos;
  if (p->a->causal && kpos > until) return 0;
  if (p->a->window_left >= 0 && dist > p->a->window_left) return 0;
  return p->a->window_right < 0 || -dist <= p->a->window_right;
}

/* Returns s(i, j); *slope receives the derivative of s by q.k. */
static double ref_score(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double *slope)
{
  const int64_t hk = h / p->ngroup;
  double s = 0;
  for (int64_t d = 0; d < p->d; d++)
    s += ref_get(p->q, ref_at4(p->q, b, i, h, d)) * ref_get(p->k, ref_at4(p->k, b, j, hk, d));
  s *= p->a->scale;
  *slope = p->a->scale;
  if (p->a->softcap != 0) {
    const double th = tanh(s / p->a->softcap);
    s = p->a->softcap * th;
    *slope *= 1 - th * th;
  }
  if (!k_absent(p->bias)) s += ref_get(p->bias, ref_at4(p->bias, b, h, i, j));
  return s;
}

/* Returns the log sum exp of one query's visible scores; -inf without any, NaN if one is NaN. */
static double row_lse(const problem *p, int64_t b, int64_t h, int64_t i)
{
  double top = -INFINITY, sum = 0, slope;
  for (int64_t j = 0; j < p->tk; j++) {
    if (!sees(p, b, i, j)) continue;
    const double s = ref_score(p, b, h, i, j, &slope);
    if (isnan(s)) return s;
    top = fmax(top, s);
  }
  if (top == -INFINITY) return top;
  for (int64_t j = 0; j < p->tk; j++)
    if (sees(p, b, i, j)) sum += exp(ref_score(p, b, h, i, j, &slope) - top);
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
      const double w = exp(ref_score(p, b, h, i, j, &slope) - lse);
      if (w == 0) continue;
      for (int64_t d = 0; d < nd; d++)
        acc[d] += w * ref_get(p->v, ref_at4(p->v, b, j, h / p->ngroup, d0 + d));
    }
    for (int64_t d = 0; d < nd; d++) ref_put(out, ref_at4(out, b, i, h, d0 + d), acc[d]);
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
        ref_put(&c->out[1], at3(&c->out[1], b, h, i), lse);
      }
  return TIDE_OK;
}

/* Returns p(i, j); *ds receives ds(i, j), *dqk the gradient of q.k. All are 0 where i does not see
 * j. */
static double ref_pair(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j, double *ds,
                       double *dqk)
{
  *ds = *dqk = 0;
  const double lse = ref_get(p->lse, at3(p->lse, b, h, i));
  if (lse == -INFINITY || !sees(p, b, i, j)) return 0;
  double slope, s = ref_score(p, b, h, i, j, &slope), w = exp(s - lse), g = 0;
  if (s == -INFINITY || w == 0) return 0; /* lse may be NaN */
  for (int64_t d = 0; d < p->dv; d++) {
    const double grad = ref_get(p->dout, ref_at4(p->dout, b, i, h, d));
    g += grad *
        (ref_get(p->v, ref_at4(p->v, b, j, h / p->ngroup, d)) -
         ref_get(p->out, ref_at4(p->out, b, i, h, d)));
  }
  if (!k_absent(p->dlse)) g += ref_get(p->dlse, at3(p->dlse, b, h, i));
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
      if (ref_pair(p, b, h, i, j, &ds, &dqk) == 0) continue;
      for (int64_t d = 0; d < nd; d++)
        acc[d] += dqk * ref_get(p->k, ref_at4(p->k, b, j, h / p->ngroup, d0 + d));
    }
    for (int64_t d = 0; d < nd; d++) ref_put(dq, ref_at4(dq, b, i, h, d0 + d), acc[d]);
  }
}

/* Writes row j of dk (is_v 0: sum of dqk q) or of dv (is_v 1: sum of p dout) of key head hk. */
static void dkv_row(const problem *p, const k_tensor *t, int64_t b, int64_t hk, int64_t j, int is_v)
{
  const k_tensor *src = is_v ? p->dout : p->q;
  const int64_t size = is_v ? p->dv : p->d;
  for (int64_t d0 = 0; d0 < size; d0 += CHUNK) {
    const int64_t nd = size - d0 < CHUNK ? size - d0 : CHUNK;
    double acc[CHUNK] = { 0 }, ds, dqk;
    for (int64_t h = hk * p->ngroup; h < (hk + 1) * p->ngroup; h++)
      for (int64_t i = 0; i < p->tq; i++) {
        const double w = ref_pair(p, b, h, i, j, &ds, &dqk);
        if (w == 0) continue;
        for (int64_t d = 0; d < nd; d++)
          acc[d] += (is_v ? w : dqk) * ref_get(src, ref_at4(src, b, i, h, d0 + d));
      }
    for (int64_t d = 0; d < nd; d++) ref_put(t, ref_at4(t, b, j, hk, d0 + d), acc[d]);
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
          ref_pair(&p, b, h, i, j, &ds, &dqk);
          ref_put(&c->out[3], ref_at4(&c->out[3], b, h, i, j), ds);
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
