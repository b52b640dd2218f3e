/* Steps, packing and products of the SSD scan. See scan.h. */
#include "kernels/cpu/scan/scan.h"
#include "kernels/cpu/scan/decay.h"

#include "kernels/sequence.h"

enum { HEADS = 8, EACH = 2 }; /* EACH: tasks per thread, to balance uneven ones */

/* ---- plan ---------------------------------------------------------------------------------- */

static const tile_kernel *scan_choose(int dtype)
{
  int isa = tide__cpu_isa();
  const tile_kernel *kern = 0;
  if (dtype == TIDE_BF16 && (isa & CPU_ISA_AMX)) kern = tide__tile_kernel_amx();
  else if (dtype == TIDE_BF16 && (isa & CPU_ISA_BF16)) kern = tide__tile_kernel_bf16();
  if (!kern && (isa & CPU_ISA_AVX512)) kern = tide__tile_kernel_avx512();
  return kern ? kern : tide__tile_kernel_base(isa, 0);
}

/* Cuts a group's heads into blocks, as equal as possible. C B' is computed again in each. */
static void cut_heads(ssd *s, int nthread)
{
  int64_t n = s->G > 0 ? s->H / s->G : 0, list = s->nb * s->G, least_of = (n + HEADS - 1) / HEADS;
  int64_t want = nthread > 1 && list > 0 ? (EACH * nthread + list - 1) / list : 1;
  s->nblock = i64_min(n, want > least_of ? want : least_of);
  s->heads = s->nblock > 0 ? (n + s->nblock - 1) / s->nblock : 0;
}

void tide__ssd_plan(ssd *s, const k_call *call, const k_tensor *in)
{
  s->x = in, s->dt = in + 1, s->A = in + 2, s->B = in + 3, s->C = in + 4, s->D = in + 5;
  s->bias = in + 6, s->initial = in + 7, s->seq = in + 8;
  s->attrs = call->attrs;
  s->nb = in->shape[0], s->T = in->shape[1], s->H = in->shape[2], s->P = in->shape[3];
  s->G = in[3].shape[2], s->N = in[3].shape[3];
  s->Q = i64_min(s->attrs->chunk, s->T > 0 ? s->T : 1);
  s->nchunk = (s->T + s->attrs->chunk - 1) / s->attrs->chunk;
  cut_heads(s, call->nthread);
  s->kern = scan_choose(s->x->dtype);
  s->half = s->kern->esize == 2;
  s->ld = i64_round_up(s->Q, 32);
}

int64_t tide__ssd_tasks(const ssd *s) { return s->nb * s->G * s->nblock; }

void tide__ssd_task(const ssd *s, int64_t i, ssd_at *at)
{
  int64_t n = s->H / s->G, k = i % s->nblock, first = n * k / s->nblock;
  at->g = i / s->nblock % s->G;
  at->b = i / s->nblock / s->G;
  at->h0 = at->g * n + first;
  at->nh = n * (k + 1) / s->nblock - first;
}

void tide__ssd_chunk(const ssd *s, ssd_at *at, int64_t c)
{
  at->c = c;
  at->t0 = c * s->attrs->chunk;
  at->n = 0;
}

static int goes_on(const ssd *s, const ssd_at *at, int64_t t)
{
  if (t == 0) return !k_absent(s->initial);
  return t == s->T ? s->last : sequence_goes_on(s->seq, at->b, t);
}

int tide__ssd_next(const ssd *s, ssd_at *at)
{
  int64_t end = i64_min((at->c + 1) * s->attrs->chunk, s->T), t = at->t0 + at->n;
  if (t >= end) return 0;
  at->t0 = t;
  at->seen = goes_on(s, at, t);
  t = sequence_end(s->seq, at->b, t, end);
  at->n = t - at->t0;
  at->used = goes_on(s, at, t);
  return 1;
}

/* ---- scratch ------------------------------------------------------------------------------- */

void tide__ssd_take_steps(panel_arena *r, const ssd *s, ssd_steps *st)
{
  int64_t n = s->ld * (int64_t)sizeof(float);
  st->raw = tide__panel_take(r, n);
  st->step = tide__panel_take(r, n);
  st->slope = tide__panel_take(r, n);
  st->hi = tide__panel_take(r, n);
  st->lo = tide__panel_take(r, n);
  st->in = tide__panel_take(r, n);
  st->out = tide__panel_take(r, n);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* Returns log(1 + e^v) without loss for very negative v: the error of 1 + e is divided out. */
TIDE_INLINE float softplus(float v)
{
  float e = tide__expf(-fabsf(v)), w = 1.0f + e;
  float l = w == 1.0f ? e : tide__logf(w) * (e / (w - 1.0f));
  return (v > 0 ? v : 0.0f) + l;
}

TIDE_LEVELS(void, soft_steps,
            (float *step, float *slope, const float *raw, float bias, int64_t n),
            (step, slope, raw, bias, n))
{
  for (int64_t i = 0; i < n; i++) {
    float v = raw[i] + bias;
    step[i] = softplus(v);
    slope[i] = tide__sigmoidf(v);
  }
}

static void limit_steps(const k_ssd_attrs *attrs, float *step, float *slope, int64_t n)
{
  float lo = (float)attrs->dt_min, hi = (float)attrs->dt_max;
  for (int64_t i = 0; i < n; i++) {
    if (step[i] < lo) step[i] = lo, slope[i] = 0;
    if (step[i] > hi) step[i] = hi, slope[i] = 0;
  }
}

/* Adds up step * A. */
static void scan_add_up(const ssd_steps *st, float A, int64_t n)
{
  double sum = 0;
  for (int64_t i = 0; i < n; i++)
    sum = decay_add(st->hi, st->lo, i, sum, (double)st->step[i] * A);
}

void tide__ssd_steps(const ssd *s, const ssd_at *at, int64_t h, ssd_steps *st)
{
  int64_t n = at->n;
  const k_tensor *dt = s->dt;
  int64_t from = at->b * dt->stride[0] + at->t0 * dt->stride[1] + h * dt->stride[2];
  for (int64_t i = 0; i < n; i++) st->raw[i] = ssd_get(dt, from + i * dt->stride[1]);
  float bias = k_absent(s->bias) ? 0.0f : ssd_get(s->bias, h * s->bias->stride[0]);
  if (s->attrs->softplus) soft_steps(st->step, st->slope, st->raw, bias, n);
  else
    for (int64_t i = 0; i < n; i++) st->step[i] = st->raw[i] + bias, st->slope[i] = 1;
  limit_steps(s->attrs, st->step, st->slope, n);
  scan_add_up(st, ssd_get(s->A, h * s->A->stride[0]), n);
  decay_ends(st->in, st->out, st->hi, st->lo, n);
  st->whole = st->in[n - 1];
}

/* ---- operands ---------------------------------------------------------------------------- */

void tide__ssd_put(const ssd *s, void *to, int64_t i, const float *row, int64_t n)
{
  int dtype = s->half ? TIDE_BF16 : TIDE_F32;
  void *at = (char *)to + i * vec_size(dtype);
  if (at != (const void *)row) row_narrow(at, row, dtype, n);
}

/* ---- loops --------------------------------------------------------------------------------- */

TIDE_LEVELS_GLOBAL(void, tide__ssd_scale,
                   (float *y, const float *x, float a, int64_t n), (y, x, a, n))
{
  if (a == 0) { /* 0, also for infinite x */
    memset(y, 0, (size_t)n * sizeof(float));
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = a * x[i];
}

void tide__ssd_skip(const ssd *s, int64_t h, float *row)
{
  const k_tensor *D = s->D;
  if (!k_absent(D) && D->ndim == 2) {
    row_widen(row, row_at(D, h * D->stride[0]), D->dtype, s->P);
    return;
  }
  float d = k_absent(D) ? 0.0f : ssd_get(D, h * D->stride[0]);
  for (int64_t p = 0; p < s->P; p++) row[p] = d;
}

TIDE_LEVELS_GLOBAL(void, tide__ssd_decay_row,
                   (float *out, const float *cb, const ssd_steps *st, int64_t s, int64_t n),
                   (out, cb, st, s, n))
{
  const float *hi = st->hi, *lo = st->lo;
  float h = hi[s], l = lo[s];
#pragma omp simd
  for (int64_t t = s; t < n; t++) out[t] = cb[t] * tide__expf((hi[t] - h) + (lo[t] - l));
}
