/* The selective scan backward. See scan.h.
 *
 * The one idea: chunks are walked from the last to the first with the gradient of the state that
 * leaves them; S, the decays and C B' are made again from the saved states. With g = dy:
 *   dS[t, s] = g_t . u_s;  du = S' g + out * (B dstate');  dstate <- whole dstate + (in g)' C
 *   dC_t += in_t g_t state + ...;  dB_s += out_s u_s dstate + ...
 * and the rest of dB and dC is one product per group: with d(C B') summed over the heads.
 *
 * The decays' gradient comes from K[t, s] = S dS: what token t gains as the later and loses as the
 * earlier of a pair; da_j is the sum of all that spans j. Those sums run in f64.
 *
 * Layer 2k. Sums over heads of a task are made in head order, tasks of a group added in order.
 */
#include "kernels/cpu/pool.h"
#include "kernels/cpu/scan.h"
#include "kernels/sequence.h"

enum { IN_DY, IN_X, IN_STATES = 10, IN_DLAST };
enum { OUT_X, OUT_DT, OUT_A, OUT_B, OUT_C, OUT_D, OUT_BIAS, OUT_INITIAL };

typedef struct room {
  ssd_steps st;
  float *cb, *pair, *dcb;             /* [Q, ld]: C B', dS, d(C B'); transposed triangles */
  float *u, *du, *dC, *C;             /* [Q, P] twice, [Q, N] twice */
  float *row, *row2, *row3, *row4;    /* rows of the longest kind */
  float *D, *dD;                      /* [P]: D of the head, its gradient over the chunk */
  float *gone, *later, *early;        /* [Q]: what a token's decay gains as the later of a pair,
                                       * and loses as the earlier and to the state that leaves */
  float *dstate;                      /* [heads, P, N] */
  void  *tri, *own_u, *late, *in_g, *narrow; /* operand form */
  void  *a_B, *b_Cq, *b_Cn, *b_Bn;    /* packed, shared by the heads */
  void  *a_tri, *a_rows, *a_cols, *b_q, *b_p, *b_pn, *b_n; /* packed, one use after another */
} room;

typedef struct bwd {
  ssd     s;
  const k_call *call;
  char   *work;
  int64_t each;
  float  *dB, *dC;                    /* [task][T, N] */
  double *dA, *dbias, *dD;            /* [nb, H], [nb, H], [nb, H, P] */
} bwd;

/* The gradients of one head's per-token numbers within a chunk. */
typedef struct head {
  int64_t h;
  int     seen, used;                 /* a state came in; its gradient comes back */
  const float *state;                 /* that entered */
  float  *dstate;                     /* of the one that leaves, then of the one that entered */
  double  edge;                       /* what the whole chunk's decay gains */
} head;

static int64_t longest(const ssd *s)
{
  int64_t n = s->ld > s->N ? s->ld : s->N;
  return n > s->P ? n : s->P;
}

static void lay_out_own(const ssd *s, ssd_room *k, room *r)
{
  int64_t size = s->half ? 2 : 4, Q = s->Q, P = s->P, N = s->N;
  r->tri = tide__ssd_take(k, Q * s->ld * size);
  r->own_u = s->half ? tide__ssd_take(k, Q * P * size) : r->u;
  r->late = tide__ssd_take(k, Q * P * size);
  r->in_g = tide__ssd_take(k, Q * P * size);
  r->narrow = tide__ssd_take(k, P * N * size);
  r->a_B = tide__ssd_take_a(k, s, Q, N);
  r->b_Cq = tide__ssd_take_b(k, s, Q, N);
  r->b_Cn = tide__ssd_take_b(k, s, N, Q);
  r->b_Bn = tide__ssd_take_b(k, s, N, Q);
  r->a_tri = tide__ssd_take_a(k, s, Q, Q);
  r->a_rows = tide__ssd_take_a(k, s, Q, P);
  r->a_cols = tide__ssd_take_a(k, s, P, Q);
  r->b_q = tide__ssd_take_b(k, s, Q, P);
  r->b_p = tide__ssd_take_b(k, s, P, Q);
  r->b_pn = tide__ssd_take_b(k, s, P, N);
  r->b_n = tide__ssd_take_b(k, s, N, P);
}

static int64_t lay_out(const ssd *s, char *base, room *r)
{
  ssd_room k = {base, 0};
  int64_t Q = s->Q, P = s->P, N = s->N;
  tide__ssd_take_steps(&k, s, &r->st);
  r->cb = tide__ssd_take(&k, Q * s->ld * 4);
  r->pair = tide__ssd_take(&k, Q * s->ld * 4);
  r->dcb = tide__ssd_take(&k, Q * s->ld * 4);
  r->u = tide__ssd_take(&k, Q * P * 4);
  r->du = tide__ssd_take(&k, Q * P * 4);
  r->dC = tide__ssd_take(&k, Q * N * 4);
  r->C = tide__ssd_take(&k, Q * N * 4);
  r->row = tide__ssd_take(&k, longest(s) * 4);
  r->row2 = tide__ssd_take(&k, longest(s) * 4);
  r->row3 = tide__ssd_take(&k, longest(s) * 4);
  r->row4 = tide__ssd_take(&k, longest(s) * 4);
  r->D = tide__ssd_take(&k, P * 4);
  r->dD = tide__ssd_take(&k, P * 4);
  r->gone = tide__ssd_take(&k, s->ld * 4);
  r->later = tide__ssd_take(&k, s->ld * 4);
  r->early = tide__ssd_take(&k, s->ld * 4);
  r->dstate = tide__ssd_take(&k, s->heads * P * N * 4);
  lay_out_own(s, &k, r);
  return k.used;
}

/* ---- one chunk, all heads ------------------------------------------------------------------ */

static void share(const ssd *s, const ssd_at *at, room *r)
{
  const k_tensor *C = s->C;
  tide__ssd_bounds(s, at, r->st.stop);
  tide__ssd_pack_a(s, r->a_B, ssd_rows(s->B, at, 0), at->n, s->N);
  tide__ssd_pack_b(s, r->b_Cq, ssd_rows(C, at, 0), at->n, s->N);
  tide__ssd_pack_b(s, r->b_Cn, ssd_rows(C, at, 1), s->N, at->n);
  tide__ssd_pack_b(s, r->b_Bn, ssd_rows(s->B, at, 1), s->N, at->n);
  tide__ssd_mm_triangle(s, (ssd_mm){r->a_B, r->b_Cq, r->cb, s->ld, at->n, at->n, s->N, 0});
  memset(r->dcb, 0, (size_t)(at->n * s->ld) * sizeof(float));
  for (int64_t i = 0; i < at->n; i++)
    row_widen(r->C + i * s->N,
              row_at(C, at->b * C->stride[0] + (at->t0 + i) * C->stride[1] + at->g * C->stride[2]),
              C->dtype, s->N);
}

/* dB += d(CB')' C and dC += d(CB') B, over the heads of the task; dcb has row s, column t. */
static void share_back(const ssd *s, const ssd_at *at, room *r, float *dB, float *dC)
{
  int64_t size = s->half ? 2 : 4;
  for (int64_t i = 0; i < at->n; i++) {
    tide__ssd_put(s, r->tri, i * s->ld + i, r->dcb + i * s->ld + i, at->n - i);
    tide__ssd_clear(s, (char *)r->tri + i * s->ld * size, i, at->n, at->n);
  }
  tide__ssd_pack_upper(s, r->a_tri, ssd_own(s, r->tri, s->ld, 1), at->n);
  tide__ssd_mm_upper(s, (ssd_mm){r->a_tri, r->b_Cn, dB, s->N, at->n, s->N, at->n, 1});
  tide__ssd_pack_lower(s, r->a_tri, ssd_own(s, r->tri, 1, s->ld), at->n);
  tide__ssd_mm_lower(s, (ssd_mm){r->a_tri, r->b_Bn, dC, s->N, at->n, s->N, at->n, 1});
}

/* ---- one chunk of one head ----------------------------------------------------------------- */

static int64_t row_offset(const k_tensor *t, const ssd_at *at, int64_t i, int64_t h)
{
  return at->b * t->stride[0] + (at->t0 + i) * t->stride[1] + h * t->stride[2];
}

/* u = step x, late = out u, in_g = in g; f = {step, out, in}. */
TIDE_CLONES static void token_row(float *u, float *late, float *in_g, const float *x,
                                  const float *g, const float *f, int64_t n)
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

/* u in f32 and as operand, its decayed form and in g as operands. */
static void rows_of_head(const bwd *w, const ssd_at *at, int64_t h, room *r)
{
  const ssd *s = &w->s;
  const k_tensor *dy = &w->call->in[IN_DY];
  int64_t P = s->P;
  for (int64_t i = 0; i < at->n; i++) {
    const float *x = row_read(s->x, row_offset(s->x, at, i, h), r->row, P);
    const float *g = row_read(dy, row_offset(dy, at, i, h), r->row2, P);
    float f[3] = {r->st.step[i], r->st.out[i], r->st.in[i]}, *u = r->u + i * P;
    float *late = s->half ? r->row3 : (float *)r->late + i * P;
    float *in_g = s->half ? r->row4 : (float *)r->in_g + i * P;
    token_row(u, late, in_g, x, g, f, P);
    tide__ssd_put(s, r->own_u, i * P, u, P);
    tide__ssd_put(s, r->late, i * P, late, P);
    tide__ssd_put(s, r->in_g, i * P, in_g, P);
  }
}

/* The head's rows of dy, as they lie. */
static ssd_mat grad_rows(const bwd *w, const ssd_at *at, int64_t h, int turned)
{
  const k_tensor *dy = &w->call->in[IN_DY];
  const void *src = row_at(dy, row_offset(dy, at, 0, h));
  return turned ? (ssd_mat){src, 1, dy->stride[1], dy->dtype}
                : (ssd_mat){src, dy->stride[1], 1, dy->dtype};
}

/* Of row s of the triangles, past the diagonal: S into tri, d(CB') grows, K to both its tokens. */
TIDE_CLONES static float triangle_row(float *tri, float *dcb, float *later, const float *cb,
                                      const float *pair, const ssd_steps *st, int64_t s,
                                      int64_t stop)
{
  const float *hi = st->hi, *lo = st->lo;
  float h = hi[s], l = lo[s], sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t t = s + 1; t < stop; t++) {
    float decay = tide__expf((hi[t] - h) + (lo[t] - l)), S = cb[t] * decay, k = S * pair[t];
    tri[t] = S;
    dcb[t] += decay * pair[t];
    later[t] += k;
    sum += k;
  }
  return sum;
}

/* Everything that S takes part in: du (+)= S' g. */
static void within(const bwd *w, const ssd_at *at, const head *k, room *r)
{
  const ssd *s = &w->s;
  int64_t n = at->n, size = s->half ? 2 : 4;
  tide__ssd_pack_a(s, r->a_rows, ssd_own(s, r->own_u, s->P, 1), n, s->P);
  tide__ssd_pack_b(s, r->b_q, grad_rows(w, at, k->h, 0), n, s->P);
  tide__ssd_mm_triangle(s, (ssd_mm){r->a_rows, r->b_q, r->pair, s->ld, n, n, s->P, 0});
  memset(r->later, 0, (size_t)n * sizeof(float));
  for (int64_t i = 0; i < n; i++) {
    float *cb = r->cb + i * s->ld, *pair = r->pair + i * s->ld, *dcb = r->dcb + i * s->ld;
    float *to = s->half ? r->row : (float *)r->tri + i * s->ld;
    int64_t stop = r->st.stop[i];
    to[i] = cb[i]; /* the diagonal decays by nothing */
    dcb[i] += pair[i];
    r->early[i] = triangle_row(to, dcb, r->later, cb, pair, &r->st, i, stop);
    if (s->half) tide__ssd_put(s, r->tri, i * s->ld + i, to + i, stop - i);
    tide__ssd_clear(s, (char *)r->tri + i * s->ld * size, i, stop, n);
  }
  tide__ssd_pack_upper(s, r->a_tri, ssd_own(s, r->tri, s->ld, 1), n);
  tide__ssd_pack_b(s, r->b_p, grad_rows(w, at, k->h, 1), s->P, n);
  tide__ssd_mm_upper(s, (ssd_mm){r->a_tri, r->b_p, r->du, s->P, n, s->P, n, k->used});
}

/* du = out du; the sum of u du. */
TIDE_CLONES static float scale_dot(float *du, const float *u, float out, int64_t n)
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

/* The state that leaves: du = out * (B dstate'), dB += (out u) dstate, and what the decays gain. */
static void leaving(const ssd *s, const ssd_at *at, head *k, room *r, float *dB)
{
  int64_t n = at->n;
  const void *src = k->dstate;
  if (s->half) tide__ssd_put(s, r->narrow, 0, k->dstate, s->P * s->N), src = r->narrow;
  tide__ssd_pack_b(s, r->b_pn, ssd_own(s, src, s->N, 1), s->P, s->N);
  tide__ssd_mm(s, (ssd_mm){r->a_B, r->b_pn, r->du, s->P, n, s->P, s->N, 0});
  for (int64_t i = 0; i < n; i++) {
    float *du = r->du + i * s->P;
    if (r->st.out[i] == 0) memset(du, 0, (size_t)s->P * sizeof(float));
    r->gone[i] = scale_dot(du, r->u + i * s->P, r->st.out[i], s->P);
    k->edge += r->gone[i];
  }
  if (k->seen && r->st.whole != 0)
    k->edge += (double)r->st.whole * tide__ssd_dot(k->state, k->dstate, s->P * s->N);
  tide__ssd_pack_b(s, r->b_n, ssd_own(s, src, 1, s->N), s->N, s->P);
  tide__ssd_pack_a(s, r->a_rows, ssd_own(s, r->late, s->P, 1), n, s->P);
  tide__ssd_mm(s, (ssd_mm){r->a_rows, r->b_n, dB, s->N, n, s->N, s->P, 1});
}

/* sum += v; the product of v with c. */
TIDE_CLONES static float add_dot(float *sum, const float *v, const float *c, int64_t n)
{
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < n; i++) {
    sum[i] += v[i];
    dot += v[i] * c[i];
  }
  return dot;
}

/* The state that entered: dC += (in g) state, and the later tokens' decays. */
static void entering(const ssd *s, const ssd_at *at, head *k, room *r, float *dC)
{
  int64_t n = at->n;
  const void *src = k->state;
  if (s->half) tide__ssd_put(s, r->narrow, 0, k->state, s->P * s->N), src = r->narrow;
  tide__ssd_pack_b(s, r->b_n, ssd_own(s, src, 1, s->N), s->N, s->P);
  tide__ssd_pack_a(s, r->a_rows, ssd_own(s, r->in_g, s->P, 1), n, s->P);
  tide__ssd_mm(s, (ssd_mm){r->a_rows, r->b_n, r->dC, s->N, n, s->N, s->P, 0});
  for (int64_t i = 0; i < n; i++)
    r->later[i] += add_dot(dC + i * s->N, r->dC + i * s->N, r->C + i * s->N, s->N);
}

/* dstate <- whole dstate + (in g)' C */
static void pass_on(const ssd *s, const ssd_at *at, head *k, room *r)
{
  if (!k->used) memset(k->dstate, 0, (size_t)(s->P * s->N) * sizeof(float));
  else tide__ssd_scale(k->dstate, k->dstate, r->st.whole, s->P * s->N);
  tide__ssd_pack_a(s, r->a_cols, ssd_own(s, r->in_g, 1, s->P), s->P, at->n);
  tide__ssd_mm(s, (ssd_mm){r->a_cols, r->b_Cn, k->dstate, s->N, s->P, s->N, at->n, 1});
}

/* dx = step du + D g and dD += g x; the sum of x du. dx may be du. */
TIDE_CLONES static float last_row(float *dx, float *dD, const float *du, const float *x,
                                  const float *g, const float *D, float step, int64_t n)
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

/* dx, dt and the sums over tokens; tokens from the last to the first. */
static void finish_tokens(const bwd *w, const ssd_at *at, const head *k, room *r)
{
  const ssd *s = &w->s;
  const k_tensor *dy = &w->call->in[IN_DY], *dx = &w->call->out[OUT_X];
  const k_tensor *ddt = &w->call->out[OUT_DT];
  int64_t h = k->h, mine = at->b * s->H + h;
  float A = ssd_get(s->A, h * s->A->stride[0]);
  double da = k->edge;
  tide__ssd_skip(s, h, r->D);
  memset(r->dD, 0, (size_t)s->P * sizeof(float));
  for (int64_t i = at->n - 1; i >= 0; i--) {
    int64_t token = (at->b * s->T + at->t0 + i) * s->H + h;
    float *du = r->du + i * s->P, step = r->st.step[i], *to = row_begin(dx, token * s->P, du);
    const float *x = row_read(s->x, row_offset(s->x, at, i, h), r->row, s->P);
    const float *g = row_read(dy, row_offset(dy, at, i, h), r->row2, s->P);
    float dstep = last_row(to, r->dD, du, x, g, r->D, step, s->P);
    row_write(dx, token * s->P, to, s->P);
    da += (double)r->later[i] - r->early[i] - (k->used ? r->gone[i] : 0);
    float draw = ((float)(da * A) + dstep) * r->st.slope[i];
    w->dA[mine] += da * step;
    w->dbias[mine] += draw;
    ssd_set(ddt, token, draw);
  }
  for (int64_t p = 0; p < s->P; p++) w->dD[mine * s->P + p] += r->dD[p];
}

static void run_head(const bwd *w, const ssd_at *at, int64_t i, room *r, float *dB, float *dC)
{
  const ssd *s = &w->s;
  int64_t n = s->P * s->N;
  const k_tensor *states = &w->call->in[IN_STATES], *dlast = &w->call->in[IN_DLAST];
  head k = {.h = at->h0 + i, .dstate = r->dstate + i * n};
  k.seen = at->c > 0 || !k_absent(s->initial);
  k.used = at->c < s->nchunk - 1 || !k_absent(dlast);
  k.state = (const float *)states->data + at->b * states->stride[0] + at->c * states->stride[1] +
            k.h * states->stride[2];
  tide__ssd_steps(s, at, k.h, &r->st);
  rows_of_head(w, at, k.h, r);
  if (k.used) leaving(s, at, &k, r, dB);
  within(w, at, &k, r);
  if (k.seen) entering(s, at, &k, r, dC);
  if (k.seen) pass_on(s, at, &k, r);
  finish_tokens(w, at, &k, r);
}

static void first_gradient(const bwd *w, int64_t b, int64_t h, float *dstate)
{
  const ssd *s = &w->s;
  const k_tensor *t = &w->call->in[IN_DLAST];
  if (k_absent(t)) memset(dstate, 0, (size_t)(s->P * s->N) * sizeof(float));
  else
    for (int64_t p = 0; p < s->P; p++)
      row_widen(dstate + p * s->N,
                row_at(t, b * t->stride[0] + h * t->stride[1] + p * t->stride[2]), t->dtype, s->N);
}

static void run_task(const bwd *w, int64_t i, room *r)
{
  const ssd *s = &w->s;
  ssd_at at;
  tide__ssd_task(s, i, &at);
  int64_t n = s->P * s->N, all = s->T * s->N;
  float *dB = w->dB + i * all, *dC = w->dC + i * all;
  memset(dB, 0, (size_t)all * sizeof(float));
  memset(dC, 0, (size_t)all * sizeof(float));
  for (int64_t k = 0; k < at.nh; k++) first_gradient(w, at.b, at.h0 + k, r->dstate + k * n);
  for (int64_t c = s->nchunk - 1; c >= 0; c--) {
    tide__ssd_chunk(s, &at, c);
    share(s, &at, r);
    for (int64_t k = 0; k < at.nh; k++)
      run_head(w, &at, k, r, dB + at.t0 * s->N, dC + at.t0 * s->N);
    share_back(s, &at, r, dB + at.t0 * s->N, dC + at.t0 * s->N);
  }
  const k_tensor *to = &w->call->out[OUT_INITIAL];
  for (int64_t k = 0; !k_absent(to) && k < at.nh; k++)
    row_narrow(row_at(to, (at.b * s->H + at.h0 + k) * n), r->dstate + k * n, to->dtype, n);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const bwd *w = arg;
  room r;
  lay_out(&w->s, w->work + w->each * thread, &r);
  if (w->s.kern->begin) w->s.kern->begin();
  for (int64_t i = begin; i < end; i++) run_task(w, i, &r);
  if (w->s.kern->end) w->s.kern->end();
}

/* ---- results that many tasks add to -------------------------------------------------------- */

/* Rows of dB and dC: row i is (batch, token, group). */
static void put_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const bwd *w = arg;
  const ssd *s = &w->s;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t g = i % s->G, t = i / s->G % s->T, b = i / s->G / s->T;
    int64_t at = ((b * s->G + g) * s->nblock * s->T + t) * s->N;
    for (int64_t k = 1; k < s->nblock; k++) {
      row_add(w->dB + at, w->dB + at, w->dB + at + k * s->T * s->N, s->N);
      row_add(w->dC + at, w->dC + at, w->dC + at + k * s->T * s->N, s->N);
    }
    const k_tensor *out = w->call->out;
    row_narrow(row_at(&out[OUT_B], i * s->N), w->dB + at, out[OUT_B].dtype, s->N);
    row_narrow(row_at(&out[OUT_C], i * s->N), w->dC + at, out[OUT_C].dtype, s->N);
  }
}

/* Over the batches, in order. */
static double over_batch(const ssd *s, const double *part, int64_t at, int64_t stride)
{
  double sum = 0;
  for (int64_t b = 0; b < s->nb; b++) sum += part[b * stride + at];
  return sum;
}

static void put_sums(const bwd *w)
{
  const ssd *s = &w->s;
  const k_tensor *dD = &w->call->out[OUT_D], *dbias = &w->call->out[OUT_BIAS];
  for (int64_t h = 0; h < s->H; h++) {
    ssd_set(&w->call->out[OUT_A], h, (float)over_batch(s, w->dA, h, s->H));
    if (!k_absent(dbias)) ssd_set(dbias, h, (float)over_batch(s, w->dbias, h, s->H));
    if (k_absent(dD)) continue;
    double sum = 0;
    for (int64_t p = 0; p < s->P; p++) {
      double v = over_batch(s, w->dD, h * s->P + p, s->H * s->P);
      if (dD->ndim == 2) ssd_set(dD, h * s->P + p, (float)v);
      sum += v;
    }
    if (dD->ndim == 1) ssd_set(dD, h, (float)sum);
  }
}

/* ---- the kernel ---------------------------------------------------------------------------- */

/* Scratch: [thread rooms][dA, dbias, dD][dB][dC]. */
static int64_t room_bytes(const ssd *s)
{
  room r;
  return lay_out(s, 0, &r);
}

static int64_t sum_count(const ssd *s) { return s->nb * s->H * (2 + s->P); }

int64_t k_cpu_ssd_scan_bwd_work(const k_call *call)
{
  ssd s;
  tide__ssd_plan(&s, call, call->in + IN_X);
  return room_bytes(&s) * call->nthread + sum_count(&s) * (int64_t)sizeof(double) +
         2 * tide__ssd_tasks(&s) * s.T * s.N * (int64_t)sizeof(float);
}

int k_cpu_ssd_scan_bwd(const k_call *call)
{
  bwd w = {.call = call, .work = call->work};
  ssd *s = &w.s;
  tide__ssd_plan(s, call, call->in + IN_X);
  int rc = sequence_check(call, s->seq);
  if (rc < 0) return rc;
  w.each = room_bytes(s);
  w.dA = (double *)(w.work + w.each * call->nthread);
  w.dbias = w.dA + s->nb * s->H;
  w.dD = w.dbias + s->nb * s->H;
  w.dB = (float *)(w.dA + sum_count(s));
  w.dC = w.dB + tide__ssd_tasks(s) * s->T * s->N;
  memset(w.dA, 0, (size_t)sum_count(s) * sizeof(double));
  tide__pool_tasks(call->nthread, tide__ssd_tasks(s), 1, run_tasks, &w);
  tide__pool_for(call->nthread, s->nb * s->T * s->G, 4096 / (s->N + 1) + 1, put_rows, &w);
  put_sums(&w);
  return TIDE_OK;
}
