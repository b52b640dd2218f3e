/* One piece of the SSD scan backward: what its heads share, each head, and the end. See scan_bwd.c
 * for the formulas. */
#include "kernels/cpu/scan/scan_bwd.h"

/* One head of one piece. */
typedef struct head {
  int64_t h;
  const float *state, *dstate;        /* before the piece; gradient of the one after it */
  double  edge;                       /* what every decay of the piece gains by both states */
  double *sum;                        /* its sums over tokens */
} head;

static void lay_out_own(const ssd *s, panel_arena *k, ssd_back_scratch *r)
{
  int64_t size = s->half ? 2 : 4, Q = s->Q, P = s->P, N = s->N;
  r->tri = tide__panel_take(k, Q * s->ld * size);
  r->own_u = s->half ? tide__panel_take(k, Q * P * size) : r->u;
  r->late = tide__panel_take(k, Q * P * size);
  r->in_g = tide__panel_take(k, Q * P * size);
  r->narrow = tide__panel_take(k, P * N * size);
  r->a_B = tide__panel_take_a(k, s->kern, Q, N);
  r->b_Cq = tide__panel_take_b(k, s->kern, Q, N);
  r->b_Cn = tide__panel_take_b(k, s->kern, N, Q);
  r->b_Bn = tide__panel_take_b(k, s->kern, N, Q);
  r->a_tri = tide__panel_take_a(k, s->kern, Q, Q);
  r->a_rows = tide__panel_take_a(k, s->kern, Q, P);
  r->a_cols = tide__panel_take_a(k, s->kern, P, Q);
  r->b_q = tide__panel_take_b(k, s->kern, Q, P);
  r->b_p = tide__panel_take_b(k, s->kern, P, Q);
  r->b_pn = tide__panel_take_b(k, s->kern, P, N);
  r->b_n = tide__panel_take_b(k, s->kern, N, P);
}

int64_t tide__ssd_back_layout(const ssd *s, char *base, ssd_back_scratch *r)
{
  panel_arena k = {base, 0};
  int64_t Q = s->Q, P = s->P, N = s->N;
  tide__ssd_take_steps(&k, s, &r->st);
  r->cb = tide__panel_take(&k, Q * s->ld * 4);
  r->pair = tide__panel_take(&k, Q * s->ld * 4);
  r->dcb = tide__panel_take(&k, Q * s->ld * 4);
  r->u = tide__panel_take(&k, Q * P * 4);
  r->du = tide__panel_take(&k, Q * P * 4);
  r->dC = tide__panel_take(&k, Q * N * 4);
  r->C = tide__panel_take(&k, Q * N * 4);
  r->sum_B = tide__panel_take(&k, Q * N * 4);
  r->sum_C = tide__panel_take(&k, Q * N * 4);
  r->row = tide__panel_take(&k, ssd_longest(s) * 4);
  r->row2 = tide__panel_take(&k, ssd_longest(s) * 4);
  r->row3 = tide__panel_take(&k, ssd_longest(s) * 4);
  r->row4 = tide__panel_take(&k, ssd_longest(s) * 4);
  r->D = tide__panel_take(&k, P * 4);
  r->dD = tide__panel_take(&k, P * 4);
  r->so_far = tide__panel_take(&k, s->ld * 4);
  r->pairs = tide__panel_take(&k, s->ld * 4);
  r->entered = tide__panel_take(&k, s->ld * 4);
  r->left = tide__panel_take(&k, s->ld * 4);
  lay_out_own(s, &k, r);
  return k.used;
}

/* ---- one piece, all heads ------------------------------------------------------------------ */

void tide__ssd_back_share(const ssd *s, const ssd_at *at, ssd_back_scratch *r)
{
  const k_tensor *C = s->C;
  tide__panel_pack_a(s->kern, r->a_B, ssd_rows(s->B, at, 0), at->n, s->N);
  tide__panel_pack_b(s->kern, r->b_Cq, ssd_rows(C, at, 0), at->n, s->N);
  tide__panel_pack_b(s->kern, r->b_Cn, ssd_rows(C, at, 1), s->N, at->n);
  tide__panel_pack_b(s->kern, r->b_Bn, ssd_rows(s->B, at, 1), s->N, at->n);
  panel_mm pairs = {r->a_B, r->b_Cq, r->cb, s->ld, at->n, at->n, s->N, 0};
  tide__panel_mm_triangle(s->kern, pairs);
  memset(r->dcb, 0, (size_t)(at->n * s->ld) * sizeof(float));
  memset(r->sum_B, 0, (size_t)(at->n * s->N) * sizeof(float));
  memset(r->sum_C, 0, (size_t)(at->n * s->N) * sizeof(float));
  for (int64_t i = 0; i < at->n; i++)
    row_widen(r->C + i * s->N,
              row_at(C, at->b * C->stride[0] + (at->t0 + i) * C->stride[1] + at->g * C->stride[2]),
              C->dtype, s->N);
}

/* Computes dB += d(CB')' C and dC += d(CB') B, which completes both; dcb has row s, column t. */
void tide__ssd_back_end(const ssd_back *w, const ssd_at *at, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  const k_tensor *dB = &w->call->out[OUT_B], *dC = &w->call->out[OUT_C];
  int64_t size = s->half ? 2 : 4, n = at->n;
  for (int64_t i = 0; i < n; i++) {
    tide__ssd_put(s, r->tri, i * s->ld + i, r->dcb + i * s->ld + i, n - i);
    tide__panel_clear(s->kern, (char *)r->tri + i * s->ld * size, i);
  }
  tide__panel_pack_upper(s->kern, r->a_tri, ssd_own(s, r->tri, s->ld, 1), n);
  tide__panel_mm_upper(s->kern, (panel_mm){r->a_tri, r->b_Cn, r->sum_B, s->N, n, s->N, n, 1});
  tide__panel_pack_lower(s->kern, r->a_tri, ssd_own(s, r->tri, 1, s->ld), n);
  tide__panel_mm_lower(s->kern, (panel_mm){r->a_tri, r->b_Bn, r->sum_C, s->N, n, s->N, n, 1});
  for (int64_t i = 0; i < n; i++) {
    int64_t to = ((at->b * s->T + at->t0 + i) * s->G + at->g) * s->N;
    row_narrow(row_at(dB, to), r->sum_B + i * s->N, dB->dtype, s->N);
    row_narrow(row_at(dC, to), r->sum_C + i * s->N, dC->dtype, s->N);
  }
}

/* ---- one piece of one head ----------------------------------------------------------------- */

/* u = step x, late = out u, in_g = in g; f = {step, out, in}. */
TIDE_LEVELS(void, token_row,
            (float *u, float *late, float *in_g, const float *x, const float *g, const float *f,
             int64_t n), (u, late, in_g, x, g, f, n))
{
  float step = f[0], out = f[1], in = f[2];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float w = step * x[i];
    u[i] = w;
    late[i] = out * w;
    in_g[i] = in * g[i];
  }
}

/* Writes u in f32 and as operand, its decayed form and in g as operands. */
static void piece_rows_of_head(const ssd_back *w, const ssd_at *at, int64_t h, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  const k_tensor *dy = &w->call->in[IN_DY];
  int64_t P = s->P;
  for (int64_t i = 0; i < at->n; i++) {
    const float *x = row_read(s->x, ssd_offset(s->x, at, i, h), r->row, P);
    const float *g = row_read(dy, ssd_offset(dy, at, i, h), r->row2, P);
    float f[3] = {r->st.step[i], r->st.out[i], r->st.in[i]}, *u = r->u + i * P;
    float *late = s->half ? r->row3 : (float *)r->late + i * P;
    float *in_g = s->half ? r->row4 : (float *)r->in_g + i * P;
    token_row(u, late, in_g, x, g, f, P);
    tide__ssd_put(s, r->own_u, i * P, u, P);
    tide__ssd_put(s, r->late, i * P, late, P);
    tide__ssd_put(s, r->in_g, i * P, in_g, P);
  }
}

/* Returns the head's rows of dy in place. */
static panel_mat grad_rows(const ssd_back *w, const ssd_at *at, int64_t h, int transposed)
{
  const k_tensor *dy = &w->call->in[IN_DY];
  const void *src = row_at(dy, ssd_offset(dy, at, 0, h));
  return transposed ? (panel_mat){src, 1, dy->stride[1], dy->dtype}
                : (panel_mat){src, dy->stride[1], 1, dy->dtype};
}

/* Row s of the triangles, past the diagonal: writes S into tri and adds to d(C B'). Adds K[t, s]
 * to so_far[t] and returns the sum of so_far over t > s: all pairs that span the decay of token
 * s + 1. */
TIDE_LEVELS(float, triangle_row,
            (float *tri, float *dcb, float *so_far, const float *cb, const float *pair,
             const ssd_steps *st, int64_t s, int64_t n), (tri, dcb, so_far, cb, pair, st, s, n))
{
  const float *hi = st->hi, *lo = st->lo;
  float h = hi[s], l = lo[s], sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t t = s + 1; t < n; t++) {
    float decay = tide__expf((hi[t] - h) + (lo[t] - l)), S = cb[t] * decay;
    float k = so_far[t] + S * pair[t];
    tri[t] = S;
    dcb[t] += decay * pair[t];
    so_far[t] = k;
    sum += k;
  }
  return sum;
}

/* Computes everything that uses S: du (+)= S' g. */
static void piece_within(const ssd_back *w, const ssd_at *at, const head *k, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  int64_t n = at->n, size = s->half ? 2 : 4;
  tide__panel_pack_a(s->kern, r->a_rows, ssd_own(s, r->own_u, s->P, 1), n, s->P);
  tide__panel_pack_b(s->kern, r->b_q, grad_rows(w, at, k->h, 0), n, s->P);
  tide__panel_mm_triangle(s->kern, (panel_mm){r->a_rows, r->b_q, r->pair, s->ld, n, n, s->P, 0});
  memset(r->so_far, 0, (size_t)n * sizeof(float));
  r->pairs[0] = 0;
  for (int64_t i = 0; i < n; i++) {
    float *cb = r->cb + i * s->ld, *pair = r->pair + i * s->ld, *dcb = r->dcb + i * s->ld;
    float *to = s->half ? r->row : (float *)r->tri + i * s->ld;
    to[i] = cb[i]; /* the diagonal does not decay */
    dcb[i] += pair[i];
    float spanned = triangle_row(to, dcb, r->so_far, cb, pair, &r->st, i, n);
    if (i + 1 < n) r->pairs[i + 1] = spanned;
    if (s->half) tide__ssd_put(s, r->tri, i * s->ld + i, to + i, n - i);
    tide__panel_clear(s->kern, (char *)r->tri + i * s->ld * size, i);
  }
  tide__panel_pack_upper(s->kern, r->a_tri, ssd_own(s, r->tri, s->ld, 1), n);
  tide__panel_pack_b(s->kern, r->b_p, grad_rows(w, at, k->h, 1), s->P, n);
  tide__panel_mm_upper(s->kern, (panel_mm){r->a_tri, r->b_p, r->du, s->P, n, s->P, n, at->used});
}

/* du = out du; returns the sum of u du. */
TIDE_LEVELS(float, scale_dot, (float *du, const float *u, float out, int64_t n), (du, u, out, n))
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) {
    float v = out * du[i];
    du[i] = v;
    sum += u[i] * v;
  }
  return sum;
}

/* Adds what the state after the piece gives: du = out * (B dstate'), dB += (out u) dstate, and what
 * the decays gain: left[i] of the tokens before i, `edge` of the state before the piece. */
static void piece_leaving(const ssd *s, const ssd_at *at, head *k, ssd_back_scratch *r)
{
  int64_t n = at->n;
  double left = 0;
  const void *src = k->dstate;
  if (s->half) tide__ssd_put(s, r->narrow, 0, k->dstate, s->P * s->N), src = r->narrow;
  tide__panel_pack_b(s->kern, r->b_pn, ssd_own(s, src, s->N, 1), s->P, s->N);
  tide__panel_mm(s->kern, (panel_mm){r->a_B, r->b_pn, r->du, s->P, n, s->P, s->N, 0});
  for (int64_t i = 0; i < n; i++) {
    float *du = r->du + i * s->P;
    if (r->st.out[i] == 0) memset(du, 0, (size_t)s->P * sizeof(float));
    r->left[i] = (float)left;
    left += scale_dot(du, r->u + i * s->P, r->st.out[i], s->P);
  }
  if (at->seen && r->st.whole != 0)
    k->edge = (double)r->st.whole * row_dot(k->state, k->dstate, s->P * s->N);
  tide__panel_pack_b(s->kern, r->b_n, ssd_own(s, src, 1, s->N), s->N, s->P);
  tide__panel_pack_a(s->kern, r->a_rows, ssd_own(s, r->late, s->P, 1), n, s->P);
  tide__panel_mm(s->kern, (panel_mm){r->a_rows, r->b_n, r->sum_B, s->N, n, s->N, s->P, 1});
}

/* Adds what the state before the piece gives: dC += (in g) state, and entered[i], what the decays
 * up to i gain. */
static void piece_entering(const ssd *s, const ssd_at *at, const head *k, ssd_back_scratch *r)
{
  int64_t n = at->n;
  const void *src = k->state;
  if (s->half) tide__ssd_put(s, r->narrow, 0, k->state, s->P * s->N), src = r->narrow;
  tide__panel_pack_b(s->kern, r->b_n, ssd_own(s, src, 1, s->N), s->N, s->P);
  tide__panel_pack_a(s->kern, r->a_rows, ssd_own(s, r->in_g, s->P, 1), n, s->P);
  tide__panel_mm(s->kern, (panel_mm){r->a_rows, r->b_n, r->dC, s->N, n, s->N, s->P, 0});
  for (int64_t i = 0; i < n; i++)
    r->entered[i] = row_add_dot(r->sum_C + i * s->N, r->dC + i * s->N, r->C + i * s->N, s->N);
}

/* dx = step du + D g and dD += g x; returns the sum of x du. dx may be du. */
TIDE_LEVELS(float, last_row,
            (float *dx, float *dD, const float *du, const float *x, const float *g, const float *D,
             float step, int64_t n), (dx, dD, du, x, g, D, step, n))
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) {
    float v = du[i];
    sum += x[i] * v;
    dD[i] += g[i] * x[i];
    dx[i] = step * v + D[i] * g[i];
  }
  return sum;
}

/* Computes dx, dt and the sums over tokens, from the last token to the first, so that the
 * contribution of the entering state to the decay of token i is a running sum over the tokens from
 * i on. */
static void finish_tokens(const ssd_back *w, const ssd_at *at, const head *k, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  const k_tensor *dy = &w->call->in[IN_DY], *dx = &w->call->out[OUT_X];
  const k_tensor *ddt = &w->call->out[OUT_DT];
  int64_t h = k->h;
  float A = ssd_get(s->A, h * s->A->stride[0]);
  double entered = k->edge;
  tide__ssd_skip(s, h, r->D);
  memset(r->dD, 0, (size_t)s->P * sizeof(float));
  for (int64_t i = at->n - 1; i >= 0; i--) {
    int64_t token = (at->b * s->T + at->t0 + i) * s->H + h;
    float *du = r->du + i * s->P, step = r->st.step[i], *to = row_begin(dx, token * s->P, du);
    const float *x = row_read(s->x, ssd_offset(s->x, at, i, h), r->row, s->P);
    const float *g = row_read(dy, ssd_offset(dy, at, i, h), r->row2, s->P);
    float dstep = last_row(to, r->dD, du, x, g, r->D, step, s->P);
    row_write(dx, token * s->P, to, s->P);
    if (at->seen) entered += r->entered[i];
    double da = entered + r->pairs[i] + (at->used ? r->left[i] : 0);
    float draw = ((float)(da * A) + dstep) * r->st.slope[i];
    k->sum[SUM_A] += da * step;
    k->sum[SUM_BIAS] += draw;
    ssd_set(ddt, token, draw);
  }
  for (int64_t p = 0; p < s->P; p++) k->sum[SUM_D + p] += r->dD[p];
}

void tide__ssd_back_head(const ssd_back *w, const ssd_at *at, int64_t h, ssd_back_scratch *r)
{
  const ssd *s = &w->s;
  const k_tensor *states = &w->call->in[IN_STATES];
  head k = {.h = h, .dstate = ssd_slot(w, at->b, at->c, h), .sum = ssd_sums(w, at->b, at->c, h)};
  k.state = (const float *)states->data + at->b * states->stride[0] + at->c * states->stride[1] +
            h * states->stride[2];
  tide__ssd_steps(s, at, h, &r->st);
  piece_rows_of_head(w, at, h, r);
  if (at->used) piece_leaving(s, at, &k, r);
  piece_within(w, at, &k, r);
  if (at->seen) piece_entering(s, at, &k, r);
  finish_tokens(w, at, &k, r);
}
