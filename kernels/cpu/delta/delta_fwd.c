/* The gated delta rule forward. See delta.h. Few tokens (generation) use the recurrence itself.
 *
 * A task is a key head of a batch with a block of its value heads; it walks along the pieces with
 * the states of its heads. The result of a head does not depend on the block, so blocks are as
 * small as needed to occupy all threads.
 */
#include "kernels/cpu/delta/delta.h"
#include "kernels/cpu/scan/decay.h"
#include "kernels/sequence.h"

enum { EACH = 2 };   /* tasks per thread, to balance uneven ones */
enum { FEW = 4 };    /* tokens up to which the recurrence moves less than the products */

/* Scratch of one thread. */
typedef struct delta_scratch {
  delta_steps st;
  float *q, *k;                  /* [Q, Dk]: rows, normalized if the op asks for it */
  float *KK, *QK;                /* [Q, LD]: triangles of all heads */
  float *D, *T, *P;              /* [Q, LD]: triangles of a head; T = (1 + A)^-1 */
  float *x, *u, *y;              /* [Q, Dv] */
  float *state;                  /* [heads, Dk, Dv] */
  void  *a_k, *a_q, *a_kt, *a_tri, *b_key, *b_state, *b_u; /* packed */
} delta_scratch;

typedef struct delta_fwd {
  gdelta  s;
  const k_tensor *y, *last, *states;
  char   *work;
  int64_t each;                  /* bytes per thread */
  int64_t heads, nblock;         /* most value heads of a block, blocks of a key head */
} delta_fwd;

static int64_t delta_fwd_lay_out(const delta_fwd *f, char *base, delta_scratch *r)
{
  const gdelta *s = &f->s;
  panel_arena k = {base, 0};
  int64_t rows_k = s->Q * s->Dk * 4, rows_v = s->Q * s->Dv * 4, tri = s->Q * DELTA_LD * 4;
  tide__delta_take_steps(&k, s, &r->st);
  r->q = tide__panel_take(&k, rows_k);
  r->k = tide__panel_take(&k, rows_k);
  r->KK = tide__panel_take(&k, tri);
  r->QK = tide__panel_take(&k, tri);
  r->D = tide__panel_take(&k, tri);
  r->T = tide__panel_take(&k, tri);
  r->P = tide__panel_take(&k, tri);
  r->x = tide__panel_take(&k, rows_v);
  r->u = tide__panel_take(&k, rows_v);
  r->y = tide__panel_take(&k, rows_v);
  r->state = tide__panel_take(&k, f->heads * s->Dk * s->Dv * 4);
  r->a_k = tide__panel_take_a(&k, s->kern, s->Q, s->Dk);
  r->a_q = tide__panel_take_a(&k, s->kern, s->Q, s->Dk);
  r->a_kt = tide__panel_take_a(&k, s->kern, s->Dk, s->Q);
  r->a_tri = tide__panel_take_a(&k, s->kern, s->Q, s->Q);
  r->b_key = tide__panel_take_b(&k, s->kern, s->Q, s->Dk);
  r->b_state = tide__panel_take_b(&k, s->kern, s->Dv, s->Dk);
  r->b_u = tide__panel_take_b(&k, s->kern, s->Dv, s->Q);
  return k.used;
}

/* ---- one piece ----------------------------------------------------------------------------- */

/* Computes what the value heads of a key head share: rows, K K' and K Q' of the piece. */
static void delta_fwd_share(const gdelta *s, const delta_at *at, delta_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, Dk = s->Dk;
  tide__delta_rows(s, s->q, at, at->t0, n, r->q, 0);
  tide__delta_rows(s, s->k, at, at->t0, n, r->k, 0);
  tide__panel_pack_a(kern, r->a_k, delta_mat(r->k, Dk), n, Dk);
  tide__panel_pack_b(kern, r->b_key, delta_mat(r->k, Dk), n, Dk);
  tide__panel_mm_triangle(kern, (panel_mm){r->a_k, r->b_key, r->KK, DELTA_LD, n, n, Dk, 0});
  tide__panel_pack_b(kern, r->b_key, delta_mat(r->q, Dk), n, Dk);
  tide__panel_mm_triangle(kern, (panel_mm){r->a_k, r->b_key, r->QK, DELTA_LD, n, n, Dk, 0});
  if (at->seen) tide__panel_pack_a(kern, r->a_q, delta_mat(r->q, Dk), n, Dk);
  if (at->used) tide__panel_pack_a(kern, r->a_kt, delta_mat_t(r->k, Dk), Dk, n);
}

/* x = beta (v - in x), y = in y; f = {in, beta}. */
TIDE_LEVELS(void, delta_correct_row,
            (float *x, float *y, const float *v, const float *f, int64_t n), (x, y, v, f, n))
{
  float in = f[0], beta = f[1];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    x[i] = beta * (v[i] - in * x[i]);
    y[i] *= in;
  }
}

/* Computes x = beta R and y = in (Q S). */
static void delta_fwd_entering(const gdelta *s, const delta_at *at, int64_t h, const float *state,
                               delta_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, Dk = s->Dk, Dv = s->Dv;
  if (at->seen) {
    tide__panel_pack_b(kern, r->b_state, delta_mat_t(state, Dv), Dv, Dk);
    tide__panel_mm(kern, (panel_mm){r->a_k, r->b_state, r->x, Dv, n, Dv, Dk, 0});
    tide__panel_mm(kern, (panel_mm){r->a_q, r->b_state, r->y, Dv, n, Dv, Dk, 0});
  }
  for (int64_t i = 0; i < n; i++) {
    float *x = r->x + i * Dv, *y = r->y + i * Dv, f[2] = {r->st.in[i], r->st.beta[i]};
    const float *v = row_read(s->v, delta_offset(s->v, at->b, at->t0 + i, h), r->u, Dv);
    if (!at->seen || f[0] == 0) {
      memset(x, 0, (size_t)Dv * sizeof(float));
      memset(y, 0, (size_t)Dv * sizeof(float));
    }
    delta_correct_row(x, y, v, f, Dv);
  }
}

/* Computes u = (1 + A)^-1 x and y += P u. */
static void delta_fwd_within(const gdelta *s, const delta_at *at, delta_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, Dv = s->Dv;
  tide__panel_pack_lower(kern, r->a_tri, delta_mat_t(r->T, DELTA_LD), n);
  tide__panel_pack_b(kern, r->b_u, delta_mat_t(r->x, Dv), Dv, n);
  tide__panel_mm_lower(kern, (panel_mm){r->a_tri, r->b_u, r->u, Dv, n, Dv, n, 0});
  tide__panel_pack_lower(kern, r->a_tri, delta_mat_t(r->P, DELTA_LD), n);
  tide__panel_pack_b(kern, r->b_u, delta_mat_t(r->u, Dv), Dv, n);
  tide__panel_mm_lower(kern, (panel_mm){r->a_tri, r->b_u, r->y, Dv, n, Dv, n, 1});
}

/* Computes state <- whole state + K' (out u). */
static void delta_fwd_leaving(const gdelta *s, const delta_at *at, float *state, delta_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, Dk = s->Dk, Dv = s->Dv;
  for (int64_t i = 0; i < n; i++)
    tide__delta_scale(r->u + i * Dv, r->u + i * Dv, r->st.out[i], Dv);
  if (at->seen) tide__delta_scale(state, state, r->st.whole, Dk * Dv);
  tide__panel_pack_b(kern, r->b_u, delta_mat_t(r->u, Dv), Dv, n);
  tide__panel_mm(kern, (panel_mm){r->a_kt, r->b_u, state, Dv, Dk, Dv, n, at->seen});
}

static void delta_put_row(const delta_fwd *f, const delta_at *at, int64_t t, int64_t h, float *y)
{
  const gdelta *s = &f->s;
  int64_t to = ((at->b * s->T + t) * s->Hv + h) * s->Dv;
  float *row = row_begin(f->y, to, y);
  tide__delta_scale(row, y, (float)s->attrs->scale, s->Dv);
  row_write(f->y, to, row, s->Dv);
}

static void delta_fwd_head(const delta_fwd *f, const delta_at *at, int64_t h, float *state,
                           delta_scratch *r)
{
  const gdelta *s = &f->s;
  tide__delta_steps(s, at, h, &r->st);
  tide__delta_decays(r->D, &r->st, at->n);
  tide__delta_pairs(s, r->P, r->QK, r->D, at->n);
  tide__delta_inverse(r->T, r->KK, r->D, r->st.beta, at->n);
  delta_fwd_entering(s, at, h, state, r);
  delta_fwd_within(s, at, r);
  for (int64_t i = 0; i < at->n; i++) delta_put_row(f, at, at->t0 + i, h, r->y + i * s->Dv);
  if (at->used) delta_fwd_leaving(s, at, state, r);
}

/* ---- tasks --------------------------------------------------------------------------------- */

/* Stores the states of heads h0 .. h0 + nh - 1 before a chunk, for the derivative. */
static void delta_put_states(const delta_fwd *f, const delta_at *at, int64_t h0, int64_t nh,
                             const float *state)
{
  const gdelta *s = &f->s;
  int64_t n = s->Dk * s->Dv, to = ((at->b * s->nchunk + at->c) * s->Hv + h0) * n;
  if (!k_absent(f->states))
    memcpy((float *)f->states->data + to, state, (size_t)(nh * n) * sizeof(float));
}

static void delta_put_last(const delta_fwd *f, int64_t b, int64_t h, const float *state)
{
  int64_t n = f->s.Dk * f->s.Dv;
  if (!k_absent(f->last))
    memcpy((float *)f->last->data + (b * f->s.Hv + h) * n, state, (size_t)n * sizeof(float));
}

static void delta_fwd_task(const delta_fwd *f, int64_t i, delta_scratch *r)
{
  const gdelta *s = &f->s;
  int64_t k = i % f->nblock, first = s->group * k / f->nblock, n = s->Dk * s->Dv;
  delta_at at = {.b = i / f->nblock / s->Hk, .hk = i / f->nblock % s->Hk};
  int64_t h0 = at.hk * s->group + first, nh = s->group * (k + 1) / f->nblock - first;
  for (int64_t h = 0; h < nh; h++)
    tide__delta_state(s, s->initial, at.b, h0 + h, r->state + h * n);
  for (int64_t c = 0; c < s->nchunk; c++) {
    tide__delta_chunk(s, &at, c);
    delta_put_states(f, &at, h0, nh, r->state);
    while (tide__delta_next(s, &at)) {
      delta_fwd_share(s, &at, r);
      for (int64_t h = 0; h < nh; h++) delta_fwd_head(f, &at, h0 + h, r->state + h * n, r);
    }
  }
  for (int64_t h = 0; h < nh; h++) delta_put_last(f, at.b, h0 + h, r->state + h * n);
}

static void delta_fwd_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const delta_fwd *f = arg;
  delta_scratch r;
  delta_fwd_lay_out(f, f->work + f->each * thread, &r);
  for (int64_t i = begin; i < end; i++) delta_fwd_task(f, i, &r);
}

/* ---- few tokens ---------------------------------------------------------------------------- */

/* x += k S and y += q S for n columns of S, rows ld apart. */
TIDE_LEVELS(void, delta_read_state,
            (float *x, float *y, const float *state, const float *k, const float *q, int64_t rows,
             int64_t n), (x, y, state, k, q, rows, n))
{
  for (int64_t i = 0; i < rows; i++) {
    float ki = k[i], qi = q[i];
    const float *row = state + i * n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
      x[j] += ki * row[j];
      y[j] += qi * row[j];
    }
  }
}

/* S = keep S + k u'. */
TIDE_LEVELS(void, delta_write_state,
            (float *state, const float *k, const float *u, float keep, int64_t rows, int64_t n),
            (state, k, u, keep, rows, n))
{
  for (int64_t i = 0; i < rows; i++) {
    float ki = k[i], *row = state + i * n;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) row[j] = keep * row[j] + ki * u[j];
  }
}

/* u = beta (v - keep x), y = keep y + qk u; f = {keep, beta, qk}. */
TIDE_LEVELS(void, delta_step_row,
            (float *u, float *y, const float *x, const float *v, const float *f, int64_t n),
            (u, y, x, v, f, n))
{
  float keep = f[0], beta = f[1], qk = f[2];
#pragma omp simd
  for (int64_t j = 0; j < n; j++) {
    float w = beta * (v[j] - keep * x[j]);
    u[j] = w;
    y[j] = keep * y[j] + qk * w;
  }
}

/* Advances the state by token i of the piece, whose rows r holds. */
static void delta_step(const delta_fwd *f, const delta_at *at, int64_t h, int64_t i, float keep,
                       float *state, delta_scratch *r)
{
  const gdelta *s = &f->s;
  int64_t t = at->t0 + i, Dk = s->Dk, Dv = s->Dv;
  const float *q = r->q + i * Dk, *k = r->k + i * Dk;
  float fs[3] = {keep, r->st.beta[i], row_dot(q, k, Dk)};
  const float *v = row_read(s->v, delta_offset(s->v, at->b, t, h), r->u, Dv);
  if (keep == 0 || (i == 0 && !at->seen)) memset(state, 0, (size_t)(Dk * Dv) * sizeof(float));
  memset(r->x, 0, (size_t)Dv * sizeof(float));
  memset(r->y, 0, (size_t)Dv * sizeof(float));
  delta_read_state(r->x, r->y, state, k, q, Dk, Dv);
  delta_step_row(r->u, r->y, r->x, v, fs, Dv);
  delta_write_state(state, k, r->u, keep, Dk, Dv);
  delta_put_row(f, at, t, h, r->y);
}

static int64_t delta_few_lay_out(const gdelta *s, char *base, delta_scratch *r)
{
  panel_arena k = {base, 0};
  tide__delta_take_steps(&k, s, &r->st);
  r->q = tide__panel_take(&k, s->Q * s->Dk * 4);
  r->k = tide__panel_take(&k, s->Q * s->Dk * 4);
  r->x = tide__panel_take(&k, s->Dv * 4);
  r->u = tide__panel_take(&k, s->Dv * 4);
  r->y = tide__panel_take(&k, s->Dv * 4);
  r->state = tide__panel_take(&k, s->Dk * s->Dv * 4);
  return k.used;
}

static void delta_few_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const delta_fwd *f = arg;
  const gdelta *s = &f->s;
  delta_scratch r;
  delta_few_lay_out(s, f->work + f->each * thread, &r);
  for (int64_t m = begin; m < end; m++) {
    int64_t h = m % s->Hv;
    delta_at at = {.b = m / s->Hv, .hk = h / s->group};
    float *state = r.state;
    if (!k_absent(f->last)) state = (float *)f->last->data + m * s->Dk * s->Dv;
    tide__delta_state(s, s->initial, at.b, h, state);
    for (int64_t c = 0; c < s->nchunk; c++) {
      tide__delta_chunk(s, &at, c);
      while (tide__delta_next(s, &at)) {
        tide__delta_rows(s, s->q, &at, at.t0, at.n, r.q, 0);
        tide__delta_rows(s, s->k, &at, at.t0, at.n, r.k, 0);
        tide__delta_steps(s, &at, h, &r.st);
        for (int64_t i = 0; i < at.n; i++)
          delta_step(f, &at, h, i, decay_step(r.st.hi, r.st.lo, i), state, &r);
      }
    }
  }
}

/* ---- the kernel ---------------------------------------------------------------------------- */

static int delta_few(const k_call *call, const gdelta *s)
{
  return s->T <= FEW && k_absent(&call->out[2]);
}

/* Cuts the value heads of a key head into blocks, as equal as possible. */
static void delta_cut_heads(delta_fwd *f, int nthread)
{
  int64_t list = f->s.nb * f->s.Hk;
  int64_t want = nthread > 1 && list > 0 ? (EACH * nthread + list - 1) / list : 1;
  f->nblock = i64_min(f->s.group, want);
  f->heads = f->nblock > 0 ? (f->s.group + f->nblock - 1) / f->nblock : 0;
}

static void delta_fwd_plan(delta_fwd *f, const k_call *call)
{
  delta_scratch r;
  tide__delta_plan(&f->s, call, call->in);
  delta_cut_heads(f, call->nthread);
  f->each = delta_few(call, &f->s) ? delta_few_lay_out(&f->s, 0, &r) : delta_fwd_lay_out(f, 0, &r);
}

int64_t k_cpu_gated_delta_work(const k_call *call)
{
  delta_fwd f;
  delta_fwd_plan(&f, call);
  return f.each * call->nthread;
}

int k_cpu_gated_delta(const k_call *call)
{
  delta_fwd f = {.y = &call->out[0], .last = &call->out[1], .states = &call->out[2],
                 .work = call->work};
  gdelta *s = &f.s;
  delta_fwd_plan(&f, call);
  s->last = !k_absent(f.last);
  TIDE_TRY(sequence_check(call, s->seq));
  if (delta_few(call, s)) {
    int64_t grain = 65536 / (s->T * s->Dk * s->Dv + 1) + 1;
    tide__pool_for(call->nthread, s->nb * s->Hv, grain, delta_few_tasks, &f);
  } else {
    tide__pool_tasks(call->nthread, s->nb * s->Hk * f.nblock, 1, delta_fwd_tasks, &f);
  }
  return TIDE_OK;
}
