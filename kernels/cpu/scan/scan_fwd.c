/* The SSD scan forward. See scan.h. Few tokens (generation) use the recurrence itself. */
#include "kernels/cpu/scan/scan.h"
#include "kernels/cpu/scan/decay.h"
#include "kernels/sequence.h"

enum { FEW = 4 }; /* tokens up to which the recurrence moves less than the products */

/* Scratch of one thread. */
typedef struct scratch {
  ssd_steps st;
  float *cb, *y, *state;             /* [Q, ld], [Q, P], [heads, P, N] */
  float *row, *row2, *row3, *D;      /* rows of the longest kind; D of the head */
  void  *tri, *u, *late, *narrow;    /* operand form: [Q, ld], [Q, P] twice, [P, N] */
  void  *a_B, *a_C, *a_tri, *a_late; /* packed */
  void  *b_C, *b_B, *b_state, *b_u;
} scratch;

typedef struct fwd {
  ssd     s;
  const k_tensor *y, *last, *states;
  char   *work;
  int64_t each;                      /* bytes per thread */
} fwd;

static int64_t scan_fwd_lay_out(const ssd *s, char *base, scratch *r)
{
  panel_arena k = {base, 0};
  int64_t size = s->half ? 2 : 4, Q = s->Q, P = s->P, N = s->N;
  tide__ssd_take_steps(&k, s, &r->st);
  r->cb = tide__panel_take(&k, Q * s->ld * 4);
  r->y = tide__panel_take(&k, Q * P * 4);
  r->row = tide__panel_take(&k, ssd_longest(s) * 4);
  r->row2 = tide__panel_take(&k, ssd_longest(s) * 4);
  r->row3 = tide__panel_take(&k, ssd_longest(s) * 4);
  r->D = tide__panel_take(&k, P * 4);
  r->state = tide__panel_take(&k, s->heads * P * N * 4);
  r->tri = tide__panel_take(&k, Q * s->ld * size);
  r->u = tide__panel_take(&k, Q * P * size);
  r->late = tide__panel_take(&k, Q * P * size);
  r->narrow = tide__panel_take(&k, P * N * size);
  r->a_B = tide__panel_take_a(&k, s->kern, Q, N);
  r->a_C = tide__panel_take_a(&k, s->kern, Q, N);
  r->a_tri = tide__panel_take_a(&k, s->kern, Q, Q);
  r->a_late = tide__panel_take_a(&k, s->kern, P, Q);
  r->b_C = tide__panel_take_b(&k, s->kern, Q, N);
  r->b_B = tide__panel_take_b(&k, s->kern, N, Q);
  r->b_state = tide__panel_take_b(&k, s->kern, P, N);
  r->b_u = tide__panel_take_b(&k, s->kern, P, Q);
  return k.used;
}

/* Computes what the heads of a group share: C B' of the piece, and both as operands. */
static void share(const ssd *s, const ssd_at *at, scratch *r)
{
  tide__panel_pack_a(s->kern, r->a_B, ssd_rows(s->B, at, 0), at->n, s->N);
  tide__panel_pack_b(s->kern, r->b_C, ssd_rows(s->C, at, 0), at->n, s->N);
  if (at->seen) tide__panel_pack_a(s->kern, r->a_C, ssd_rows(s->C, at, 0), at->n, s->N);
  if (at->used) tide__panel_pack_b(s->kern, r->b_B, ssd_rows(s->B, at, 1), s->N, at->n);
  tide__panel_mm_triangle(s->kern, (panel_mm){r->a_B, r->b_C, r->cb, s->ld, at->n, at->n, s->N, 0});
}

/* y = in y + D x, u = step x, late = out u; f = {in, step, out}. */
TIDE_LEVELS(void, token_row,
            (float *y, float *u, float *late, const float *x, const float *D, const float *f,
             int64_t n), (y, u, late, x, D, f, n))
{
  float in = f[0], step = f[1], out = f[2];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float v = x[i], w = step * v;
    y[i] = in * y[i] + D[i] * v;
    u[i] = w;
    late[i] = out * w;
  }
}

/* Computes y = in * (C state) + D x, and u with its decayed form as operands. */
static void scan_fwd_rows_of_head(const ssd *s, const ssd_at *at, int64_t h, scratch *r)
{
  const k_tensor *x = s->x;
  int64_t P = s->P;
  tide__ssd_skip(s, h, r->D);
  for (int64_t i = 0; i < at->n; i++) {
    int64_t from = at->b * x->stride[0] + (at->t0 + i) * x->stride[1] + h * x->stride[2];
    const float *row = row_read(x, from, r->row, P);
    float f[3] = {r->st.in[i], r->st.step[i], r->st.out[i]}, *y = r->y + i * P;
    float *u = s->half ? r->row2 : (float *)r->u + i * P;
    float *late = s->half ? r->row3 : (float *)r->late + i * P;
    if (!at->seen || f[0] == 0) memset(y, 0, (size_t)P * sizeof(float));
    token_row(y, u, late, row, r->D, f, P);
    tide__ssd_put(s, r->u, i * P, u, P);
    tide__ssd_put(s, r->late, i * P, late, P);
  }
}

/* Computes y += S u, with S made row by row (of its transpose) and packed. */
static void scan_fwd_within(const ssd *s, const ssd_at *at, scratch *r)
{
  int64_t size = s->half ? 2 : 4;
  for (int64_t i = 0; i < at->n; i++) {
    float *to = s->half ? r->row : (float *)r->tri + i * s->ld;
    tide__ssd_decay_row(to, r->cb + i * s->ld, &r->st, i, at->n);
    if (s->half) tide__ssd_put(s, r->tri, i * s->ld + i, to + i, at->n - i);
    tide__panel_clear(s->kern, (char *)r->tri + i * s->ld * size, i);
  }
  tide__panel_pack_lower(s->kern, r->a_tri, ssd_own(s, r->tri, 1, s->ld), at->n);
  tide__panel_pack_b(s->kern, r->b_u, ssd_own(s, r->u, 1, s->P), s->P, at->n);
  tide__panel_mm_lower(s->kern, (panel_mm){r->a_tri, r->b_u, r->y, s->P, at->n, s->P, at->n, 1});
}

/* Computes y = in C state, by the state before the piece. */
static void scan_fwd_entering(const ssd *s, const ssd_at *at, const float *state, scratch *r)
{
  const void *src = state;
  if (s->half) tide__ssd_put(s, r->narrow, 0, state, s->P * s->N), src = r->narrow;
  tide__panel_pack_b(s->kern, r->b_state, ssd_own(s, src, s->N, 1), s->P, s->N);
  tide__panel_mm(s->kern, (panel_mm){r->a_C, r->b_state, r->y, s->P, at->n, s->P, s->N, 0});
}

/* Computes state <- whole state + late' B. */
static void scan_fwd_leaving(const ssd *s, const ssd_at *at, float *state, scratch *r)
{
  if (at->seen) tide__ssd_scale(state, state, r->st.whole, s->P * s->N);
  tide__panel_pack_a(s->kern, r->a_late, ssd_own(s, r->late, 1, s->P), s->P, at->n);
  tide__panel_mm(s->kern, (panel_mm){r->a_late, r->b_B, state, s->N, s->P, s->N, at->n, at->seen});
}

static void run_head(const fwd *f, const ssd_at *at, int64_t k, scratch *r)
{
  const ssd *s = &f->s;
  int64_t h = at->h0 + k;
  float *state = r->state + k * s->P * s->N;
  tide__ssd_steps(s, at, h, &r->st);
  if (at->seen) scan_fwd_entering(s, at, state, r);
  scan_fwd_rows_of_head(s, at, h, r);
  scan_fwd_within(s, at, r);
  for (int64_t i = 0; i < at->n; i++)
    row_narrow(row_at(f->y, ((at->b * s->T + at->t0 + i) * s->H + h) * s->P), r->y + i * s->P,
               f->y->dtype, s->P);
  if (at->used) scan_fwd_leaving(s, at, state, r);
}

/* Stores the state before each chunk, for the derivative. */
static void put_states(const fwd *f, const ssd_at *at, const scratch *r)
{
  const ssd *s = &f->s;
  int64_t n = s->P * s->N, to = ((at->b * s->nchunk + at->c) * s->H + at->h0) * n;
  if (!k_absent(f->states))
    memcpy((float *)f->states->data + to, r->state, (size_t)(at->nh * n) * sizeof(float));
}

static void scan_fwd_run_chunk(const fwd *f, ssd_at *at, int64_t c, scratch *r)
{
  tide__ssd_chunk(&f->s, at, c);
  put_states(f, at, r);
  while (tide__ssd_next(&f->s, at)) {
    share(&f->s, at, r);
    for (int64_t k = 0; k < at->nh; k++) run_head(f, at, k, r);
  }
}

static void scan_fwd_first_state(const ssd *s, int64_t b, int64_t h, float *state)
{
  const k_tensor *t = s->initial;
  if (k_absent(t)) memset(state, 0, (size_t)(s->P * s->N) * sizeof(float));
  else
    for (int64_t p = 0; p < s->P; p++)
      row_widen(state + p * s->N,
                row_at(t, b * t->stride[0] + h * t->stride[1] + p * t->stride[2]), t->dtype, s->N);
}

static void put_last(const fwd *f, int64_t b, int64_t h, const float *state)
{
  int64_t n = f->s.P * f->s.N;
  if (!k_absent(f->last))
    memcpy((float *)f->last->data + (b * f->s.H + h) * n, state, (size_t)n * sizeof(float));
}

static void scan_fwd_run_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const fwd *f = arg;
  const ssd *s = &f->s;
  scratch r;
  scan_fwd_lay_out(s, f->work + f->each * thread, &r);
  if (s->kern->begin) s->kern->begin();
  for (int64_t i = begin; i < end; i++) {
    ssd_at at;
    tide__ssd_task(s, i, &at);
    for (int64_t k = 0; k < at.nh; k++)
      scan_fwd_first_state(s, at.b, at.h0 + k, r.state + k * s->P * s->N);
    for (int64_t c = 0; c < s->nchunk; c++) scan_fwd_run_chunk(f, &at, c, &r);
    for (int64_t k = 0; k < at.nh; k++) put_last(f, at.b, at.h0 + k, r.state + k * s->P * s->N);
  }
  if (s->kern->end) s->kern->end();
}

/* ---- few tokens ---------------------------------------------------------------------------- */

/* state = keep state + into B; returns state . C */
TIDE_LEVELS(float, step_row,
            (float *state, const float *B, const float *C, float keep, float into, int64_t n),
            (state, B, C, keep, into, n))
{
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) {
    float v = keep * state[i] + into * B[i];
    state[i] = v;
    sum += v * C[i];
  }
  return sum;
}

static void step_token(const fwd *f, const ssd_at *at, int64_t h, int64_t i, float keep, scratch *r)
{
  const ssd *s = &f->s;
  const k_tensor *x = s->x, *B = s->B, *C = s->C;
  int64_t t = at->t0 + i;
  float *tmp = r->row, *state = r->state;
  const float *b = row_read(B, at->b * B->stride[0] + t * B->stride[1] + at->g * B->stride[2], tmp,
                            s->N);
  const float *c = row_read(C, at->b * C->stride[0] + t * C->stride[1] + at->g * C->stride[2],
                            tmp + s->N, s->N);
  const float *v = row_read(x, at->b * x->stride[0] + t * x->stride[1] + h * x->stride[2],
                            tmp + 2 * s->N, s->P);
  if (keep == 0 || (i == 0 && !at->seen)) memset(state, 0, (size_t)(s->P * s->N) * sizeof(float));
  for (int64_t p = 0; p < s->P; p++)
    r->y[p] = step_row(state + p * s->N, b, c, keep, r->st.step[i] * v[p], s->N);
  tide__ssd_skip(s, h, r->D);
  for (int64_t p = 0; p < s->P; p++) r->y[p] += r->D[p] * v[p];
  row_narrow(row_at(f->y, ((at->b * s->T + t) * s->H + h) * s->P), r->y, f->y->dtype, s->P);
}

static int64_t lay_out_few(const ssd *s, char *base, scratch *r)
{
  panel_arena k = {base, 0};
  tide__ssd_take_steps(&k, s, &r->st);
  r->y = tide__panel_take(&k, s->P * 4);
  r->row = tide__panel_take(&k, (2 * s->N + s->P) * 4);
  r->D = tide__panel_take(&k, s->P * 4);
  r->state = tide__panel_take(&k, s->P * s->N * 4);
  return k.used;
}

static void run_few(void *arg, int64_t begin, int64_t end, int thread)
{
  const fwd *f = arg;
  const ssd *s = &f->s;
  scratch r;
  lay_out_few(s, f->work + f->each * thread, &r);
  for (int64_t k = begin; k < end; k++) {
    int64_t h = k % s->H;
    ssd_at at = {.b = k / s->H, .g = h / (s->H / s->G)};
    scan_fwd_first_state(s, at.b, h, r.state);
    for (int64_t c = 0; c < s->nchunk; c++) {
      tide__ssd_chunk(s, &at, c);
      while (tide__ssd_next(s, &at)) {
        tide__ssd_steps(s, &at, h, &r.st);
        for (int64_t i = 0; i < at.n; i++)
          step_token(f, &at, h, i, decay_step(r.st.hi, r.st.lo, i), &r);
      }
    }
    put_last(f, at.b, h, r.state);
  }
}

/* ---- the kernel ---------------------------------------------------------------------------- */

static int few(const k_call *call, const ssd *s) { return s->T <= FEW && k_absent(&call->out[2]); }

static int64_t bytes_of(const k_call *call, const ssd *s)
{
  scratch r;
  return few(call, s) ? lay_out_few(s, 0, &r) : scan_fwd_lay_out(s, 0, &r);
}

int64_t k_cpu_ssd_scan_work(const k_call *call)
{
  ssd s;
  tide__ssd_plan(&s, call, call->in);
  return bytes_of(call, &s) * call->nthread;
}

int k_cpu_ssd_scan(const k_call *call)
{
  fwd f = {.y = &call->out[0], .last = &call->out[1], .states = &call->out[2], .work = call->work};
  ssd *s = &f.s;
  tide__ssd_plan(s, call, call->in);
  s->last = !k_absent(f.last);
  TIDE_TRY(sequence_check(call, s->seq));
  f.each = bytes_of(call, s);
  if (few(call, s)) {
    int64_t grain = 65536 / (s->T * s->P * s->N + 1) + 1;
    tide__pool_for(call->nthread, s->nb * s->H, grain, run_few, &f);
  } else {
    tide__pool_tasks(call->nthread, tide__ssd_tasks(s), 1, scan_fwd_run_tasks, &f);
  }
  return TIDE_OK;
}
