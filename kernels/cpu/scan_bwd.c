/* The selective scan backward. See scan.h.
 *
 * The one idea: only the gradient of the state must be handed from chunk to chunk, and that is one
 * product a chunk; all the rest of a chunk follows from the states on its two sides. So chunks go
 * in windows, the last first. In each, the gradients of its states are made head by head, from the
 * last chunk to the first; then its chunks are independent tasks, each with all heads of a group,
 * so C B' and d(C B') are made once and dB and dC are sums in one place. With g = dy:
 *   dS[t, s] = g_t . u_s;  du = S' g + out * (B dstate');  dstate <- whole dstate + (in g)' C
 *   dC_t += in_t g_t state + ...;  dB_s += out_s u_s dstate + ...
 * and the rest of dB and dC is one product per group: with d(C B') summed over the heads.
 *
 * The decays' gradient comes from K[t, s] = S dS: what token t gains as the later and loses as the
 * earlier of a pair; da_j is the sum of all that spans j. Those sums run in f64.
 *
 * Layer 2k. Sums over heads are made in head order, sums over chunks from the last to the first, so
 * neither windows nor threads show.
 */
#include "kernels/cpu/pool.h"
#include "kernels/cpu/scan.h"
#include "kernels/sequence.h"

enum { IN_DY, IN_X, IN_STATES = 10, IN_DLAST };
enum { OUT_X, OUT_DT, OUT_A, OUT_B, OUT_C, OUT_D, OUT_BIAS, OUT_INITIAL };
enum { EACH = 4, WINDOW_BYTES = 64 << 20 }; /* chunks of a window: tasks a thread; its gradients */
enum { SUM_A, SUM_BIAS, SUM_D };            /* a head's sums over tokens: dA, dbias, dD [P] */

typedef struct room {
  ssd_steps st;
  float *cb, *pair, *dcb;             /* [Q, ld]: C B', dS, d(C B'); transposed triangles */
  float *u, *du, *dC, *C;             /* [Q, P] twice, [Q, N] twice */
  float *sum_B, *sum_C;               /* [Q, N]: dB and dC over the heads */
  float *row, *row2, *row3, *row4;    /* rows of the longest kind */
  float *D, *dD;                      /* [P]: D of the head, its gradient over the piece */
  float *gone, *later, *early;        /* [Q]: what a token's decay gains as the later of a pair,
                                       * and loses as the earlier and to the state that leaves */
  void  *tri, *own_u, *late, *in_g, *narrow; /* operand form */
  void  *a_B, *b_Cq, *b_Cn, *b_Bn;    /* packed, shared by the heads */
  void  *a_tri, *a_rows, *a_cols, *b_q, *b_p, *b_pn, *b_n; /* packed, one use after another */
} room;

typedef struct bwd {
  ssd     s;
  const k_call *call;
  char   *work;
  int64_t each;                       /* bytes of a thread */
  int64_t K, c0, c1;                  /* most chunks of a window; those of the one at hand */
  float  *dstate;                     /* [nb][K + 1, H, P, N]: of what leaves a chunk, see slot */
  double *part;                       /* [nb][K, H, 2 + P]: sums over the tokens of a chunk */
  double *sum;                        /* [nb, H, 2 + P]: over all chunks so far */
} bwd;

/* One head of one piece. */
typedef struct head {
  int64_t h;
  const float *state, *dstate;        /* that entered; gradient of the one that leaves */
  double  edge;                       /* what the whole piece's decay gains */
  double *sum;                        /* its sums over tokens */
} head;

/* The gradient of what leaves chunk c, of one head; -1 is before the first. */
static float *slot(const bwd *w, int64_t b, int64_t c, int64_t h)
{
  const ssd *s = &w->s;
  return w->dstate + ((b * (w->K + 1) + (c + 1) % (w->K + 1)) * s->H + h) * s->P * s->N;
}

static double *sums_of(const bwd *w, int64_t b, int64_t c, int64_t h)
{
  return w->part + ((b * w->K + c % w->K) * w->s.H + h) * (2 + w->s.P);
}

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
  r->sum_B = tide__ssd_take(&k, Q * N * 4);
  r->sum_C = tide__ssd_take(&k, Q * N * 4);
  r->row = tide__ssd_take(&k, longest(s) * 4);
  r->row2 = tide__ssd_take(&k, longest(s) * 4);
  r->row3 = tide__ssd_take(&k, longest(s) * 4);
  r->row4 = tide__ssd_take(&k, longest(s) * 4);
  r->D = tide__ssd_take(&k, P * 4);
  r->dD = tide__ssd_take(&k, P * 4);
  r->gone = tide__ssd_take(&k, s->ld * 4);
  r->later = tide__ssd_take(&k, s->ld * 4);
  r->early = tide__ssd_take(&k, s->ld * 4);
  lay_out_own(s, &k, r);
  return k.used;
}

/* ---- the gradients of states --------------------------------------------------------------- */

static int64_t row_offset(const k_tensor *t, const ssd_at *at, int64_t i, int64_t h)
{
  return at->b * t->stride[0] + (at->t0 + i) * t->stride[1] + h * t->stride[2];
}

/* in g as operand. */
static void early_rows(const bwd *w, const ssd_at *at, int64_t h, room *r)
{
  const ssd *s = &w->s;
  const k_tensor *dy = &w->call->in[IN_DY];
  for (int64_t i = 0; i < at->n; i++) {
    const float *g = row_read(dy, row_offset(dy, at, i, h), r->row2, s->P);
    float *in_g = s->half ? r->row4 : (float *)r->in_g + i * s->P;
    tide__ssd_scale(in_g, g, r->st.in[i], s->P);
    tide__ssd_put(s, r->in_g, i * s->P, in_g, s->P);
  }
}

/* before <- whole dstate + (in g)' C; dstate null: nothing of it reaches that far. */
static void pass_on(const ssd *s, const ssd_at *at, const float *dstate, float *before, room *r)
{
  if (dstate) tide__ssd_scale(before, dstate, r->st.whole, s->P * s->N);
  tide__ssd_pack_a(s, r->a_cols, ssd_own(s, r->in_g, 1, s->P), s->P, at->n);
  tide__ssd_mm(s, (ssd_mm){r->a_cols, r->b_Cn, before, s->N, s->P, s->N, at->n, dstate != 0});
}

/* Over one chunk, of a block of heads. */
static void pass_chunk(const bwd *w, ssd_at *at, int64_t c, room *r)
{
  const ssd *s = &w->s;
  tide__ssd_chunk(s, at, c);
  if (!tide__ssd_next(s, at) || !at->seen) return;
  int whole = at->t0 + at->n == s->T || at->n == s->attrs->chunk;
  tide__ssd_pack_b(s, r->b_Cn, ssd_rows(s->C, at, 1), s->N, at->n);
  for (int64_t h = at->h0; h < at->h0 + at->nh; h++) {
    tide__ssd_steps(s, at, h, &r->st);
    early_rows(w, at, h, r);
    pass_on(s, at, whole && at->used ? slot(w, at->b, c, h) : 0, slot(w, at->b, c - 1, h), r);
  }
}

static void pass_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const bwd *w = arg;
  room r;
  lay_out(&w->s, w->work + w->each * thread, &r);
  if (w->s.kern->begin) w->s.kern->begin();
  for (int64_t i = begin; i < end; i++) {
    ssd_at at;
    tide__ssd_task(&w->s, i, &at);
    for (int64_t c = w->c1 - 1; c >= w->c0; c--) pass_chunk(w, &at, c, &r);
  }
  if (w->s.kern->end) w->s.kern->end();
}

/* ---- one piece, all heads ------------------------------------------------------------------ */

static void share(const ssd *s, const ssd_at *at, room *r)
{
  const k_tensor *C = s->C;
  tide__ssd_pack_a(s, r->a_B, ssd_rows(s->B, at, 0), at->n, s->N);
  tide__ssd_pack_b(s, r->b_Cq, ssd_rows(C, at, 0), at->n, s->N);
  tide__ssd_pack_b(s, r->b_Cn, ssd_rows(C, at, 1), s->N, at->n);
  tide__ssd_pack_b(s, r->b_Bn, ssd_rows(s->B, at, 1), s->N, at->n);
  tide__ssd_mm_triangle(s, (ssd_mm){r->a_B, r->b_Cq, r->cb, s->ld, at->n, at->n, s->N, 0});
  memset(r->dcb, 0, (size_t)(at->n * s->ld) * sizeof(float));
  memset(r->sum_B, 0, (size_t)(at->n * s->N) * sizeof(float));
  memset(r->sum_C, 0, (size_t)(at->n * s->N) * sizeof(float));
  for (int64_t i = 0; i < at->n; i++)
    row_widen(r->C + i * s->N,
              row_at(C, at->b * C->stride[0] + (at->t0 + i) * C->stride[1] + at->g * C->stride[2]),
              C->dtype, s->N);
}

/* dB += d(CB')' C and dC += d(CB') B, which ends both; dcb has row s, column t. */
static void share_back(const bwd *w, const ssd_at *at, room *r)
{
  const ssd *s = &w->s;
  const k_tensor *dB = &w->call->out[OUT_B], *dC = &w->call->out[OUT_C];
  int64_t size = s->half ? 2 : 4, n = at->n;
  for (int64_t i = 0; i < n; i++) {
    tide__ssd_put(s, r->tri, i * s->ld + i, r->dcb + i * s->ld + i, n - i);
    tide__ssd_clear(s, (char *)r->tri + i * s->ld * size, i);
  }
  tide__ssd_pack_upper(s, r->a_tri, ssd_own(s, r->tri, s->ld, 1), n);
  tide__ssd_mm_upper(s, (ssd_mm){r->a_tri, r->b_Cn, r->sum_B, s->N, n, s->N, n, 1});
  tide__ssd_pack_lower(s, r->a_tri, ssd_own(s, r->tri, 1, s->ld), n);
  tide__ssd_mm_lower(s, (ssd_mm){r->a_tri, r->b_Bn, r->sum_C, s->N, n, s->N, n, 1});
  for (int64_t i = 0; i < n; i++) {
    int64_t to = ((at->b * s->T + at->t0 + i) * s->G + at->g) * s->N;
    row_narrow(row_at(dB, to), r->sum_B + i * s->N, dB->dtype, s->N);
    row_narrow(row_at(dC, to), r->sum_C + i * s->N, dC->dtype, s->N);
  }
}

/* ---- one piece of one head ----------------------------------------------------------------- */

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
                                      int64_t n)
{
  const float *hi = st->hi, *lo = st->lo;
  float h = hi[s], l = lo[s], sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t t = s + 1; t < n; t++) {
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
    to[i] = cb[i]; /* the diagonal decays by nothing */
    dcb[i] += pair[i];
    r->early[i] = triangle_row(to, dcb, r->later, cb, pair, &r->st, i, n);
    if (s->half) tide__ssd_put(s, r->tri, i * s->ld + i, to + i, n - i);
    tide__ssd_clear(s, (char *)r->tri + i * s->ld * size, i);
  }
  tide__ssd_pack_upper(s, r->a_tri, ssd_own(s, r->tri, s->ld, 1), n);
  tide__ssd_pack_b(s, r->b_p, grad_rows(w, at, k->h, 1), s->P, n);
  tide__ssd_mm_upper(s, (ssd_mm){r->a_tri, r->b_p, r->du, s->P, n, s->P, n, at->used});
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
static void leaving(const ssd *s, const ssd_at *at, head *k, room *r)
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
  if (at->seen && r->st.whole != 0)
    k->edge += (double)r->st.whole * tide__ssd_dot(k->state, k->dstate, s->P * s->N);
  tide__ssd_pack_b(s, r->b_n, ssd_own(s, src, 1, s->N), s->N, s->P);
  tide__ssd_pack_a(s, r->a_rows, ssd_own(s, r->late, s->P, 1), n, s->P);
  tide__ssd_mm(s, (ssd_mm){r->a_rows, r->b_n, r->sum_B, s->N, n, s->N, s->P, 1});
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
static void entering(const ssd *s, const ssd_at *at, head *k, room *r)
{
  int64_t n = at->n;
  const void *src = k->state;
  if (s->half) tide__ssd_put(s, r->narrow, 0, k->state, s->P * s->N), src = r->narrow;
  tide__ssd_pack_b(s, r->b_n, ssd_own(s, src, 1, s->N), s->N, s->P);
  tide__ssd_pack_a(s, r->a_rows, ssd_own(s, r->in_g, s->P, 1), n, s->P);
  tide__ssd_mm(s, (ssd_mm){r->a_rows, r->b_n, r->dC, s->N, n, s->N, s->P, 0});
  for (int64_t i = 0; i < n; i++)
    r->later[i] += add_dot(r->sum_C + i * s->N, r->dC + i * s->N, r->C + i * s->N, s->N);
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
  int64_t h = k->h;
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
    da += (double)r->later[i] - r->early[i] - (at->used ? r->gone[i] : 0);
    float draw = ((float)(da * A) + dstep) * r->st.slope[i];
    k->sum[SUM_A] += da * step;
    k->sum[SUM_BIAS] += draw;
    ssd_set(ddt, token, draw);
  }
  for (int64_t p = 0; p < s->P; p++) k->sum[SUM_D + p] += r->dD[p];
}

static void run_head(const bwd *w, const ssd_at *at, int64_t h, room *r)
{
  const ssd *s = &w->s;
  const k_tensor *states = &w->call->in[IN_STATES];
  head k = {.h = h, .dstate = slot(w, at->b, at->c, h), .sum = sums_of(w, at->b, at->c, h)};
  k.state = (const float *)states->data + at->b * states->stride[0] + at->c * states->stride[1] +
            h * states->stride[2];
  tide__ssd_steps(s, at, h, &r->st);
  rows_of_head(w, at, h, r);
  if (at->used) leaving(s, at, &k, r);
  within(w, at, &k, r);
  if (at->seen) entering(s, at, &k, r);
  finish_tokens(w, at, &k, r);
}

static void run_chunk(const bwd *w, ssd_at *at, room *r)
{
  const ssd *s = &w->s;
  int64_t n = s->H / s->G;
  memset(sums_of(w, at->b, at->c, at->g * n), 0, (size_t)(n * (2 + s->P)) * sizeof(double));
  tide__ssd_chunk(s, at, at->c);
  while (tide__ssd_next(s, at)) {
    share(s, at, r);
    for (int64_t k = 0; k < n; k++) run_head(w, at, at->g * n + k, r);
    share_back(w, at, r);
  }
}

/* Task i is (batch, group, chunk of the window). */
static void chunk_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const bwd *w = arg;
  int64_t n = w->c1 - w->c0;
  room r;
  lay_out(&w->s, w->work + w->each * thread, &r);
  if (w->s.kern->begin) w->s.kern->begin();
  for (int64_t i = begin; i < end; i++) {
    ssd_at at = {.b = i / n / w->s.G, .g = i / n % w->s.G, .c = w->c0 + i % n};
    run_chunk(w, &at, &r);
  }
  if (w->s.kern->end) w->s.kern->end();
}

/* ---- all windows --------------------------------------------------------------------------- */

/* The gradient of what leaves the last token, or of no tokens at all. */
static void first_gradients(const bwd *w)
{
  const ssd *s = &w->s;
  const k_tensor *t = &w->call->in[IN_DLAST];
  for (int64_t b = 0; b < s->nb; b++)
    for (int64_t h = 0; h < s->H; h++) {
      float *to = slot(w, b, s->nchunk - 1, h);
      if (k_absent(t)) memset(to, 0, (size_t)(s->P * s->N) * sizeof(float));
      else
        for (int64_t p = 0; p < s->P; p++)
          row_widen(to + p * s->N,
                    row_at(t, b * t->stride[0] + h * t->stride[1] + p * t->stride[2]), t->dtype,
                    s->N);
    }
}

static void add_sums(const bwd *w)
{
  const ssd *s = &w->s;
  int64_t n = s->H * (2 + s->P);
  for (int64_t b = 0; b < s->nb; b++)
    for (int64_t c = w->c1 - 1; c >= w->c0; c--) {
      const double *part = sums_of(w, b, c, 0);
      for (int64_t i = 0; i < n; i++) w->sum[b * n + i] += part[i];
    }
}

static void run_windows(bwd *w)
{
  const ssd *s = &w->s;
  int nthread = w->call->nthread;
  for (w->c1 = s->nchunk; w->c1 > 0; w->c1 = w->c0) {
    w->c0 = w->c1 > w->K ? w->c1 - w->K : 0;
    tide__pool_tasks(nthread, tide__ssd_tasks(s), 1, pass_tasks, w);
    tide__pool_tasks(nthread, s->nb * s->G * (w->c1 - w->c0), 1, chunk_tasks, w);
    add_sums(w);
  }
}

/* ---- results that come of many chunks ------------------------------------------------------ */

/* Number k of head h's sums over the batches, in order. */
static double over_batch(const bwd *w, int64_t h, int64_t k)
{
  const ssd *s = &w->s;
  double sum = 0;
  for (int64_t b = 0; b < s->nb; b++) sum += w->sum[(b * s->H + h) * (2 + s->P) + k];
  return sum;
}

static void put_sums(const bwd *w)
{
  const ssd *s = &w->s;
  const k_tensor *dD = &w->call->out[OUT_D], *dbias = &w->call->out[OUT_BIAS];
  for (int64_t h = 0; h < s->H; h++) {
    ssd_set(&w->call->out[OUT_A], h, (float)over_batch(w, h, SUM_A));
    if (!k_absent(dbias)) ssd_set(dbias, h, (float)over_batch(w, h, SUM_BIAS));
    if (k_absent(dD)) continue;
    double sum = 0;
    for (int64_t p = 0; p < s->P; p++) {
      double v = over_batch(w, h, SUM_D + p);
      if (dD->ndim == 2) ssd_set(dD, h * s->P + p, (float)v);
      sum += v;
    }
    if (dD->ndim == 1) ssd_set(dD, h, (float)sum);
  }
}

static void put_initial(const bwd *w)
{
  const ssd *s = &w->s;
  const k_tensor *to = &w->call->out[OUT_INITIAL];
  int64_t n = s->H * s->P * s->N;
  for (int64_t b = 0; !k_absent(to) && b < s->nb; b++)
    row_narrow(row_at(to, b * n), slot(w, b, -1, 0), to->dtype, n);
}

/* ---- the kernel ---------------------------------------------------------------------------- */

/* Chunks of a window: as many as keep all threads at work, while their gradients are not many. */
static int64_t window(const ssd *s, int nthread)
{
  int64_t list = s->nb * s->G, each = s->nb * s->H * s->P * s->N * (int64_t)sizeof(float);
  int64_t K = nthread > 1 && list > 0 ? (EACH * nthread + list - 1) / list : 1;
  if (K > s->nchunk) K = s->nchunk > 0 ? s->nchunk : 1;
  while (K > 1 && K * each > WINDOW_BYTES && (K - 1) * list >= nthread) K--;
  return K;
}

/* Scratch: [thread rooms][part][sum][dstate]. */
static int64_t lay_out_all(bwd *w, int nthread)
{
  const ssd *s = &w->s;
  ssd_room k = {w->work, 0};
  room r;
  w->each = lay_out(s, 0, &r);
  w->K = window(s, nthread);
  tide__ssd_take(&k, w->each * nthread);
  w->part = tide__ssd_take(&k, s->nb * w->K * s->H * (2 + s->P) * (int64_t)sizeof(double));
  w->sum = tide__ssd_take(&k, s->nb * s->H * (2 + s->P) * (int64_t)sizeof(double));
  w->dstate = tide__ssd_take(&k, s->nb * (w->K + 1) * s->H * s->P * s->N * (int64_t)sizeof(float));
  return k.used;
}

static void plan(bwd *w, const k_call *call)
{
  tide__ssd_plan(&w->s, call, call->in + IN_X);
  w->s.last = !k_absent(&call->in[IN_DLAST]);
}

int64_t k_cpu_ssd_scan_bwd_work(const k_call *call)
{
  bwd w = {.call = call};
  plan(&w, call);
  return lay_out_all(&w, call->nthread);
}

int k_cpu_ssd_scan_bwd(const k_call *call)
{
  bwd w = {.call = call, .work = call->work};
  plan(&w, call);
  int rc = sequence_check(call, w.s.seq);
  if (rc < 0) return rc;
  lay_out_all(&w, call->nthread);
  memset(w.sum, 0, (size_t)(w.s.nb * w.s.H * (2 + w.s.P)) * sizeof(double));
  first_gradients(&w);
  run_windows(&w);
  put_initial(&w);
  put_sums(&w);
  return TIDE_OK;
}
