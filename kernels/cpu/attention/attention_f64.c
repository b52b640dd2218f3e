/* Attention in f64: the definition, a row of scores at a time, in parallel. See attention.h.
 *
 * f64 is used for checks, not training, so this path is plain: it stores one row of scores (O(T)
 * per thread), sums in index order and gives every output row to one task.
 */
#include "kernels/cpu/attention/attention.h"

typedef struct job {
  attn s;
  const k_tensor *out;
  double *scratch;
  int64_t nscratch; /* doubles per thread */
} job;

static const double *attn_f64_row_of(const k_tensor *t, int64_t b, int64_t i, int64_t h)
{
  return (const double *)t->data + b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
}

static double *stat_of(const k_tensor *t, int64_t b, int64_t h, int64_t i)
{
  return (double *)t->data + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

static double dot(const double *a, const double *b, int64_t n)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

static void axpy(double *y, double a, const double *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) y[i] += a * x[i];
}

static double bias_at(const k_tensor *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
  const int64_t at = b * t->stride[0] + h * t->stride[1] + i * t->stride[2] + j * t->stride[3];
  float f;
  if (t->dtype == TIDE_F64) return ((const double *)t->data)[at];
  const k_tensor one = { .data = (char *)t->data + at * (t->dtype == TIDE_F32 ? 4 : 2),
                         .shape = { 1, 1, 1, 1 }, .ndim = 4, .dtype = t->dtype };
  tide__attn_rows(&f, 1, &one, 0, 0, 0, 1);
  return f;
}

/* Returns the score, -inf where query i does not see key j. *slope: derivative by q.k. */
static double attn_f64_score(const attn *s, int64_t b, int64_t h, int64_t i, int64_t j,
                             double *slope)
{
  const attn_mask *m = &s->mask;
  const int64_t row = m->rows == 1 ? 0 : b;
  const int64_t iq = row * s->nqb * ATTN_Q + i, ik = row * s->nkb * ATTN_K + j;
  *slope = s->a->scale;
  if (m->kdoc[ik] != m->qdoc[iq] || m->kpos[ik] < m->qlo[iq] || m->kpos[ik] > m->qhi[iq])
    return -INFINITY;
  double x = dot(attn_f64_row_of(s->q, b, i, h), attn_f64_row_of(s->k, b, j, h / s->ng), s->d) *
      s->a->scale;
  if (s->a->softcap != 0) {
    const double th = tanh(x / s->a->softcap);
    x = s->a->softcap * th;
    *slope *= 1 - th * th;
  }
  return k_absent(s->bias) ? x : x + bias_at(s->bias, b, h, i, j);
}

static void forward_row(const job *w, double *x, int64_t b, int64_t h, int64_t i)
{
  const attn *s = &w->s;
  double top = -INFINITY, sum = 0, slope;
  double *out = (double *)attn_f64_row_of(&w->out[0], b, i, h);
  for (int64_t j = 0; j < s->tk; j++) {
    x[j] = attn_f64_score(s, b, h, i, j, &slope);
    if (isnan(x[j]) || x[j] > top) top = x[j]; /* nothing is above a NaN */
  }
  for (int64_t d = 0; d < s->dv; d++) out[d] = 0;
  for (int64_t j = 0; j < s->tk && top != -INFINITY; j++) {
    const double p = exp(x[j] - top);
    sum += p;
    if (p != 0) axpy(out, p, attn_f64_row_of(s->v, b, j, h / s->ng), s->dv);
  }
  for (int64_t d = 0; d < s->dv && sum != 0; d++) out[d] /= sum;
  *stat_of(&w->out[1], b, h, i) = top == -INFINITY ? top : top + log(sum);
}

static void attn_f64_forward_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const attn *s = &w->s;
  for (int64_t t = begin; t < end; t++)
    forward_row(w, w->scratch + thread * w->nscratch, t / s->tq / s->nh, t / s->tq % s->nh,
                t % s->tq);
}

/* Returns p(i, j); *ds and *dqk as in kernels/ref/attention.c. */
static double attn_f64_pair(const attn *s, double delta, int64_t b, int64_t h, int64_t i, int64_t j,
                            double *ds, double *dqk)
{
  double slope;
  const double lse = *stat_of(s->lse, b, h, i);
  *ds = *dqk = 0;
  if (lse == -INFINITY) return 0;
  const double x = attn_f64_score(s, b, h, i, j, &slope), p = exp(x - lse);
  if (x == -INFINITY || p == 0) return 0; /* lse may be NaN */
  *ds = p *
      (dot(attn_f64_row_of(s->dout, b, i, h), attn_f64_row_of(s->v, b, j, h / s->ng), s->dv) -
       delta);
  *dqk = *ds * slope;
  return p;
}

static double delta_of(const attn *s, int64_t b, int64_t h, int64_t i)
{
  const double r = dot(attn_f64_row_of(s->dout, b, i, h), attn_f64_row_of(s->out, b, i, h), s->dv);
  return k_absent(s->dlse) ? r : r - *stat_of(s->dlse, b, h, i);
}

static void attn_f64_query_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const attn *s = &w->s;
  (void)thread;
  for (int64_t t = begin; t < end; t++) {
    const int64_t b = t / s->tq / s->nh, h = t / s->tq % s->nh, i = t % s->tq;
    const double delta = delta_of(s, b, h, i);
    double ds, dqk, *dq = (double *)attn_f64_row_of(&w->out[0], b, i, h);
    for (int64_t d = 0; d < s->d; d++) dq[d] = 0;
    for (int64_t j = 0; j < s->tk; j++) {
      if (attn_f64_pair(s, delta, b, h, i, j, &ds, &dqk) != 0)
        axpy(dq, dqk, attn_f64_row_of(s->k, b, j, h / s->ng), s->d);
      if (!k_absent(&w->out[3])) stat_of(&w->out[3], b, h, i)[j * w->out[3].stride[3]] = ds;
    }
  }
}

static void attn_f64_key_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *w = arg;
  const attn *s = &w->s;
  (void)thread;
  for (int64_t t = begin; t < end; t++) {
    const int64_t b = t / s->tk / s->nhk, hk = t / s->tk % s->nhk, j = t % s->tk;
    double *dk = (double *)attn_f64_row_of(&w->out[1], b, j, hk);
    double *dv = (double *)attn_f64_row_of(&w->out[2], b, j, hk), ds, dqk;
    for (int64_t d = 0; d < s->d; d++) dk[d] = 0;
    for (int64_t d = 0; d < s->dv; d++) dv[d] = 0;
    for (int64_t h = hk * s->ng; h < (hk + 1) * s->ng; h++)
      for (int64_t i = 0; i < s->tq; i++) {
        const double p = attn_f64_pair(s, delta_of(s, b, h, i), b, h, i, j, &ds, &dqk);
        if (p == 0) continue;
        axpy(dk, dqk, attn_f64_row_of(s->q, b, i, h), s->d);
        axpy(dv, p, attn_f64_row_of(s->dout, b, i, h), s->dv);
      }
  }
}

int64_t tide__attn_f64_work(const k_call *c, int is_bwd)
{
  attn s;
  tide__attn_open(&s, c, is_bwd);
  return tide__attn_mask_bytes(&s) + (is_bwd ? 0 : i64_round_up(s.tk, 8) * 8 * c->nthread);
}

static void attn_f64_open(job *w, const k_call *c, int is_bwd)
{
  tide__attn_open(&w->s, c, is_bwd);
  tide__attn_mask_fill(&w->s, c->work);
  w->out = c->out;
  w->scratch = (double *)((char *)c->work + tide__attn_mask_bytes(&w->s));
  w->nscratch = i64_round_up(w->s.tk, 8);
}

int tide__attn_f64(const k_call *c)
{
  job w;
  attn_f64_open(&w, c, 0);
  tide__pool_tasks(c->nthread, w.s.nb * w.s.nh * w.s.tq, 16, attn_f64_forward_tasks, &w);
  return TIDE_OK;
}

int tide__attn_f64_bwd(const k_call *c)
{
  job w;
  attn_f64_open(&w, c, 1);
  tide__pool_tasks(c->nthread, w.s.nb * w.s.nh * w.s.tq, 16, attn_f64_query_tasks, &w);
  tide__pool_tasks(c->nthread, w.s.nb * w.s.nhk * w.s.tk, 16, attn_f64_key_tasks, &w);
  return TIDE_OK;
}
