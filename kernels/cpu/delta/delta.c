/* Pieces, decays, rows and the triangular inverse of the gated delta rule. See delta.h. */
#include "kernels/cpu/delta/delta.h"
#include "kernels/cpu/scan/decay.h"

#include "kernels/sequence.h"

/* ---- plan ---------------------------------------------------------------------------------- */

void tide__delta_plan(gdelta *s, const k_call *call, const k_tensor *in)
{
  int isa = tide__cpu_isa();
  s->q = in, s->k = in + 1, s->v = in + 2, s->g = in + 3, s->beta = in + 4;
  s->initial = in + 5, s->seq = in + 6;
  s->attrs = call->attrs;
  s->nb = in->shape[0], s->T = in->shape[1], s->Hk = in->shape[2], s->Dk = in->shape[3];
  s->Hv = in[2].shape[2], s->Dv = in[2].shape[3];
  s->group = s->Hk > 0 ? s->Hv / s->Hk : 0;
  s->chunk = s->attrs->chunk;
  s->nchunk = (s->T + s->chunk - 1) / s->chunk;
  s->Q = i64_min(i64_min(s->chunk, DELTA_PIECE), s->T > 0 ? s->T : 1);
  s->kern = (isa & CPU_ISA_AVX512) ? tide__tile_kernel_avx512() : 0;
  if (!s->kern) s->kern = tide__tile_kernel_base(isa, 0);
}

void tide__delta_chunk(const gdelta *s, delta_at *at, int64_t c)
{
  at->c = c;
  at->t0 = c * s->chunk;
  at->n = 0;
}

static int delta_goes_on(const gdelta *s, const delta_at *at, int64_t t)
{
  if (t == 0) return !k_absent(s->initial);
  return t == s->T ? s->last : sequence_goes_on(s->seq, at->b, t);
}

int tide__delta_next(const gdelta *s, delta_at *at)
{
  int64_t first = at->c * s->chunk, end = i64_min(first + s->chunk, s->T), t = at->t0 + at->n;
  if (t >= end) return 0;
  end = i64_min(end, t + DELTA_PIECE - (t - first) % DELTA_PIECE);
  at->t0 = t;
  at->seen = delta_goes_on(s, at, t);
  t = sequence_end(s->seq, at->b, t, end);
  at->n = t - at->t0;
  at->used = delta_goes_on(s, at, t);
  return 1;
}

/* ---- decays -------------------------------------------------------------------------------- */

void tide__delta_take_steps(panel_arena *r, const gdelta *s, delta_steps *st)
{
  int64_t n = i64_round_up(s->Q, 16) * (int64_t)sizeof(float);
  st->beta = tide__panel_take(r, n);
  st->hi = tide__panel_take(r, n);
  st->lo = tide__panel_take(r, n);
  st->in = tide__panel_take(r, n);
  st->out = tide__panel_take(r, n);
}

void tide__delta_steps(const gdelta *s, const delta_at *at, int64_t h, delta_steps *st)
{
  const k_tensor *g = s->g, *beta = s->beta;
  double sum = 0;
  for (int64_t i = 0; i < at->n; i++) {
    double a = vec_get(g->data, delta_offset(g, at->b, at->t0 + i, h), g->dtype);
    sum = decay_add(st->hi, st->lo, i, sum, a);
    st->beta[i] = vec_get(beta->data, delta_offset(beta, at->b, at->t0 + i, h), beta->dtype);
  }
  decay_ends(st->in, st->out, st->hi, st->lo, at->n);
  st->whole = st->in[at->n - 1];
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Writes x / sqrt(sum of squares + eps), and returns the factor. y may be x. */
TIDE_LEVELS(float, delta_normalize_row,
            (float *y, const float *x, float eps, int64_t n), (y, x, eps, n))
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
  float factor = 1.0f / sqrtf(sum + eps);
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
  return factor;
}

void tide__delta_rows(const gdelta *s, const k_tensor *t, const delta_at *at, int64_t t0, int64_t n,
                      float *to, float *factor)
{
  for (int64_t i = 0; i < n; i++, to += s->Dk) {
    int64_t from = delta_offset(t, at->b, t0 + i, at->hk);
    if (s->attrs->l2norm) {
      const float *x = row_read(t, from, to, s->Dk);
      float f = delta_normalize_row(to, x, (float)s->attrs->eps, s->Dk);
      if (factor) factor[i] = f;
    } else {
      row_widen(to, row_at(t, from), t->dtype, s->Dk);
    }
  }
}

void tide__delta_state(const gdelta *s, const k_tensor *t, int64_t b, int64_t h, float *state)
{
  if (k_absent(t)) {
    memset(state, 0, (size_t)(s->Dk * s->Dv) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < s->Dk; i++)
    row_widen(state + i * s->Dv, row_at(t, delta_offset(t, b, h, i)), t->dtype, s->Dv);
}

TIDE_LEVELS_GLOBAL(void, tide__delta_scale,
                   (float *y, const float *x, float a, int64_t n), (y, x, a, n))
{
  if (a == 0) {
    memset(y, 0, (size_t)n * sizeof(float));
    return;
  }
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = a * x[i];
}

/* ---- triangles ------------------------------------------------------------------------------ */

TIDE_LEVELS_GLOBAL(void, tide__delta_decays,
                   (float *D, const delta_steps *st, int64_t n), (D, st, n))
{
  const float *hi = st->hi, *lo = st->lo;
  for (int64_t j = 0; j < n; j++) {
    float h = hi[j], l = lo[j], *row = D + j * DELTA_LD;
    row[j] = 1;
#pragma omp simd
    for (int64_t t = j + 1; t < n; t++) row[t] = tide__expf((hi[t] - h) + (lo[t] - l));
  }
}

/* Multiplies two triangles. */
TIDE_LEVELS(void, delta_times, (float *to, const float *x, const float *D, int64_t n),
            (to, x, D, n))
{
  for (int64_t j = 0; j < n; j++) {
    float *row = to + j * DELTA_LD;
    const float *xs = x + j * DELTA_LD, *ds = D + j * DELTA_LD;
#pragma omp simd
    for (int64_t t = j; t < n; t++) row[t] = xs[t] * ds[t];
  }
}

void tide__delta_pairs(const gdelta *s, float *P, const float *QK, const float *D, int64_t n)
{
  delta_times(P, QK, D, n);
  for (int64_t j = 0; j < n; j++) tide__panel_clear(s->kern, P + j * DELTA_LD, j);
}

enum { HALF = DELTA_PIECE / 2 };

/* Writes minus the sum of a[i] times half a row i of T, over rows first to last - 1; the sums stay
 * in registers. */
TIDE_INLINE void subtract_rows(float *to, const float *a, const float *T, int64_t first,
                               int64_t last)
{
  float sum[HALF];
  for (int c = 0; c < HALF; c++) sum[c] = 0;
  for (int64_t i = first; i < last; i++)
    for (int c = 0; c < HALF; c++) sum[c] += a[i] * T[i * DELTA_LD + c];
  for (int c = 0; c < HALF; c++) to[c] = -sum[c];
}

/* Row j of T = (1 + A')^-1 is row j of 1 minus A'[j, i] times row i of T, over i > j. */
TIDE_LEVELS_GLOBAL(void, tide__delta_inverse,
                   (float *inverse, const float *KK, const float *D, const float *beta, int64_t n),
                   (inverse, KK, D, beta, n))
{
  float a[DELTA_PIECE];
  for (int64_t j = n - 1; j >= 0; j--) {
    float *row = inverse + j * DELTA_LD;
    const float *kk = KK + j * DELTA_LD, *d = D + j * DELTA_LD;
    for (int64_t i = j + 1; i < n; i++) a[i] = beta[i] * (kk[i] * d[i]);
    subtract_rows(row, a, inverse, j + 1, i64_min(n, HALF));
    subtract_rows(row + HALF, a, inverse + HALF, j + 1, n);
    memset(row, 0, (size_t)j * sizeof(float));
    row[j] = 1;
  }
}
