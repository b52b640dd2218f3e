/* adamw, sgd, the global norm, clip_factor and scale_all over many tensors in one parallel region.
 *
 * The tensors of a call are one long list of units, pieces of UNIT elements of one tensor. Threads
 * get ranges of units, so a hundred small tensors cost one fork and join, and the result of a unit
 * does not depend on its thread. Inside a unit everything is f32 in place, or widened into a buffer
 * on the stack; tensors with f64 take a loop in double.
 *
 * The norm sums each unit in f64 and adds the units in order.
 *
 * Operands are contiguous; a tensor that is absent, or whose gradient is, has no units.
 */
#include "kernels/cpu/update.h"

static int is_f64(const k_tensor *t) { return !k_absent(t) && t->dtype == TIDE_F64; }

/* ---- adamw ---------------------------------------------------------------------------------- */

typedef struct adamw {
  const k_call *call;
  const k_adamw_attrs *attrs;
  const k_tensor *g, *p, *m, *v, *master; /* [n] each */
  adamw_rates rates;
  units u;
} adamw;

static void adamw_piece(const adamw *a, piece p)
{
  float gb[UNIT], wb[UNIT], mb[UNIT], vb[UNIT];
  const k_tensor *pt = &a->p[p.tensor], *mt = &a->m[p.tensor], *vt = &a->v[p.tensor];
  const k_tensor *wt = weight_of(pt, &a->master[p.tensor]);
  const float *g = row_read(&a->g[p.tensor], p.begin, gb, p.n);
  float *w = row_read(wt, p.begin, wb, p.n), *m = row_read(mt, p.begin, mb, p.n);
  float *v = row_read(vt, p.begin, vb, p.n);
  adamw_f32(w, m, v, g, &a->rates, p.n);
  row_write(mt, p.begin, m, p.n);
  row_write(vt, p.begin, v, p.n);
  row_write(wt, p.begin, w, p.n);
  if (wt != pt) row_write(pt, p.begin, w, p.n);
}

static void adamw_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const adamw *a = arg;
  piece p = { 0, 0, 0 };
  (void)thread;
  for (int64_t k = begin; k < end; k++) {
    p = piece_at(&a->u, a->p, k, p);
    int64_t i = p.tensor;
    int wide = is_f64(&a->g[i]) | is_f64(&a->p[i]) | is_f64(&a->m[i]) | is_f64(&a->v[i]);
    if (wide | is_f64(&a->master[i]))
      tide__ref_adamw(a->call, a->attrs, i, p.begin, p.begin + p.n);
    else adamw_piece(a, p);
  }
}

int64_t k_cpu_adamw_work(const k_call *call)
{
  return update_index_bytes(((const k_adamw_attrs *)call->attrs)->n);
}

int k_cpu_adamw_(const k_call *call)
{
  k_adamw_attrs now;
  const k_adamw_attrs *a = ref_adamw_now(call, &now);
  int rc = a ? tide__ref_adamw_check(call, a) : TIDE_OK;
  if (!a || rc != TIDE_OK) return rc;
  const k_tensor *out = call->out;
  adamw job = { .call = call, .attrs = a, .g = call->in, .p = out, .m = out + a->n,
                .v = out + 2 * a->n, .master = out + 3 * a->n,
                .rates = adamw_rates_of(a, &call->in[a->n]) };
  job.u = units_of(job.p, job.g, a->n, call->work);
  tide__pool_for(call->nthread, job.u.first[a->n], GRAIN, adamw_units, &job);
  return TIDE_OK;
}

/* ---- sgd ------------------------------------------------------------------------------------ */

typedef struct sgd {
  const k_call *call;
  const k_tensor *g, *p, *buf, *master; /* [n] each */
  const k_sgd_attrs *attrs;
  double scale, keep, blend, look; /* buf = keep buf + blend g; step = look ? g + look buf : buf */
  units u;
} sgd;

TIDE_LEVELS(void, sgd_f32, (float *w, const float *g, const sgd *s, int64_t n), (w, g, s, n))
{
  float scale = (float)s->scale, decay = (float)s->attrs->weight_decay, lr = (float)s->attrs->lr;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) w[i] -= lr * (g[i] * scale + decay * w[i]);
}

TIDE_LEVELS(void, momentum_f32,
            (float *w, float *buf, const float *g, const sgd *s, int64_t n), (w, buf, g, s, n))
{
  float scale = (float)s->scale, decay = (float)s->attrs->weight_decay, lr = (float)s->attrs->lr;
  float keep = (float)s->keep, blend = (float)s->blend, look = (float)s->look;
  float own = s->attrs->nesterov ? 1.0f : 0.0f;
  int first = s->attrs->first != 0;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float gi = g[i] * scale + decay * w[i];
    float bi = first ? gi : keep * buf[i] + blend * gi; /* at first buf may hold anything */
    buf[i] = bi;
    w[i] -= lr * (own != 0.0f ? gi + look * bi : bi);
  }
}

static void sgd_piece(const sgd *s, piece p)
{
  float gb[UNIT], wb[UNIT], bb[UNIT];
  const k_tensor *pt = &s->p[p.tensor], *bt = &s->buf[p.tensor];
  const k_tensor *wt = weight_of(pt, &s->master[p.tensor]);
  const float *g = row_read(&s->g[p.tensor], p.begin, gb, p.n);
  float *w = row_read(wt, p.begin, wb, p.n);
  if (s->attrs->momentum != 0) {
    float *buf = row_read(bt, p.begin, bb, p.n);
    momentum_f32(w, buf, g, s, p.n);
    row_write(bt, p.begin, buf, p.n);
  } else {
    sgd_f32(w, g, s, p.n);
  }
  row_write(wt, p.begin, w, p.n);
  if (wt != pt) row_write(pt, p.begin, w, p.n);
}

static void sgd_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const sgd *s = arg;
  piece p = { 0, 0, 0 };
  (void)thread;
  for (int64_t k = begin; k < end; k++) {
    p = piece_at(&s->u, s->p, k, p);
    int64_t i = p.tensor;
    int wide = is_f64(&s->g[i]) | is_f64(&s->p[i]) | is_f64(&s->buf[i]) | is_f64(&s->master[i]);
    if (wide) tide__ref_sgd(s->call, s->attrs, i, p.begin, p.begin + p.n);
    else sgd_piece(s, p);
  }
}

int64_t k_cpu_sgd_work(const k_call *call)
{
  return update_index_bytes(((const k_sgd_attrs *)call->attrs)->n);
}

int k_cpu_sgd_(const k_call *call)
{
  k_sgd_attrs now;
  const k_sgd_attrs *a = ref_sgd_now(call, &now);
  int rc = a ? tide__ref_sgd_check(call, a) : TIDE_OK;
  if (!a || rc != TIDE_OK) return rc;
  const k_tensor *out = call->out;
  sgd job = { .call = call, .g = call->in, .p = out, .buf = out + a->n, .master = out + 2 * a->n,
              .scale = ref_total_scale(&call->in[a->n], a->grad_scale, a->maximize), .attrs = a,
              .keep = a->momentum, .blend = 1 - a->dampening, .look = a->momentum };
  job.u = units_of(job.p, job.g, a->n, call->work);
  tide__pool_for(call->nthread, job.u.first[a->n], GRAIN, sgd_units, &job);
  return TIDE_OK;
}

/* ---- norm, clip_factor, scale_all ----------------------------------------------------------- */

typedef struct norm {
  const k_tensor *x;
  double p, *part; /* part: one for each unit */
  units u;
} norm;

TIDE_LEVELS(double, squares_f32, (const float *x, int64_t n), (x, n))
{
  double s0 = 0, s1 = 0;
  int64_t h = n / 2;
#pragma omp simd reduction(+ : s0, s1)
  for (int64_t i = 0; i < h; i++) {
    s0 += (double)x[i] * x[i];
    s1 += (double)x[h + i] * x[h + i];
  }
  for (int64_t i = 2 * h; i < n; i++) s0 += (double)x[i] * x[i];
  return s0 + s1;
}

TIDE_LEVELS(double, abs_f32, (const float *x, int64_t n), (x, n))
{
  double s = 0;
#pragma omp simd reduction(+ : s)
  for (int64_t i = 0; i < n; i++) s += fabsf(x[i]);
  return s;
}

/* Bit patterns of absolute values order as the values do, with NaN above all. */
TIDE_LEVELS(double, max_f32, (const float *x, int64_t n), (x, n))
{
  uint32_t max = 0;
#pragma omp simd reduction(max : max)
  for (int64_t i = 0; i < n; i++) {
    uint32_t u = tide__f32_bits(x[i]) & 0x7fffffffu;
    max = u > max ? u : max;
  }
  return tide__bits_f32(max);
}

static void norm_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const norm *a = arg;
  piece p = { 0, 0, 0 };
  float tmp[UNIT];
  (void)thread;
  for (int64_t k = begin; k < end; k++) {
    p = piece_at(&a->u, a->x, k, p);
    const k_tensor *t = &a->x[p.tensor];
    if (t->dtype == TIDE_F64) {
      a->part[k] = 0;
      for (int64_t i = p.begin; i < p.begin + p.n; i++)
        a->part[k] = ref_norm_add(a->part[k], ref_get(t, i), a->p);
      continue;
    }
    const float *x = row_read(t, p.begin, tmp, p.n);
    if (a->p == 2) a->part[k] = squares_f32(x, p.n);
    else a->part[k] = a->p == 1 ? abs_f32(x, p.n) : max_f32(x, p.n);
  }
}

int64_t k_cpu_norm_all_work(const k_call *call)
{
  const k_norm_all_attrs *a = call->attrs;
  int64_t nunit = 0;
  for (int64_t i = 0; i < a->n; i++) nunit += unit_count(&call->in[i], &call->in[i]);
  return update_index_bytes(a->n) + (nunit + 7) / 8 * 64;
}

int k_cpu_norm(const k_call *call)
{
  const k_norm_all_attrs *a = call->attrs;
  TIDE_TRY(tide__ref_norm_check(call));
  norm job = { .x = call->in, .p = a->p };
  job.u = units_of(job.x, job.x, a->n, call->work);
  job.part = (double *)((char *)call->work + update_index_bytes(a->n));
  tide__pool_for(call->nthread, job.u.first[a->n], GRAIN, norm_units, &job);
  double sum = 0;
  for (int64_t k = 0; k < job.u.first[a->n]; k++)
    sum = ref_norm_add(sum, job.part[k], a->p == 2 ? 1 : a->p); /* parts are not negative */
  ref_put(&call->out[0], 0, a->p == 2 && !a->squared ? sqrt(sum) : sum);
  return TIDE_OK;
}

typedef struct scale {
  const k_tensor *x;
  double factor;
  units u;
} scale;

TIDE_LEVELS(void, scale_f32, (float *x, float factor, int64_t n), (x, factor, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

static void scale_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const scale *s = arg;
  piece p = { 0, 0, 0 };
  float tmp[UNIT];
  (void)thread;
  for (int64_t k = begin; k < end; k++) {
    p = piece_at(&s->u, s->x, k, p);
    const k_tensor *t = &s->x[p.tensor];
    if (t->dtype == TIDE_F64) {
      double *x = (double *)t->data + p.begin;
      for (int64_t i = 0; i < p.n; i++) x[i] *= s->factor;
      continue;
    }
    float *x = row_read(t, p.begin, tmp, p.n);
    scale_f32(x, (float)s->factor, p.n);
    row_write(t, p.begin, x, p.n);
  }
}

int64_t k_cpu_scale_all_work(const k_call *call)
{
  return update_index_bytes(((const k_norm_all_attrs *)call->attrs)->n);
}

int k_cpu_scale_all_(const k_call *call)
{
  const k_norm_all_attrs *a = call->attrs;
  scale job = { .x = call->out, .factor = ref_get(&call->in[0], 0) };
  if (job.factor == 1) return TIDE_OK; /* the common case of clipping */
  job.u = units_of(job.x, job.x, a->n, call->work);
  tide__pool_for(call->nthread, job.u.first[a->n], GRAIN, scale_units, &job);
  return TIDE_OK;
}
