/* The gated delta rule backward. See delta.h.
 *
 * A task is a key head of a batch, so dk and dq are summed over its value heads in one place. It
 * visits the chunks between kept states from the last to the first. In each, head by head: the
 * pieces forwards, for U, R, (1 + A)^-1 and the states between them; then backwards. With g = scale
 * do, dS the gradient of the state after a piece and Z that of beta * R:
 *   dU = P' g + out * (K dS),  Z = (1 + A)^-T dU,  dR = beta * Z = dv,  dbeta = Z . R + ...
 *   dP = g U',  dA = -Z U',  dX = -in * dR,  dY = in * g
 *   dS <- whole dS + K' dX + Q' dY
 *   dq += dY S' + (D dP) K,  dk += dX S' + out * (U dS') + (D dP)' Q + (M + M') K,  M = beta D dA
 * The products with D dP and M are computed once per key head, of sums over its value heads.
 *
 * The gradient of g_j is the sum of H[t, s] = P dP + A dA over the pairs s < j <= t, plus what the
 * states before and after the piece give. It is added up from those terms alone: each decays by
 * g_j, so every term is as small as the sum may be. A difference of row and column sums would need
 * the same operations, but loses all digits where a strong decay lies between the pairs.
 *
 * Sums run in a fixed order: results do not depend on threads.
 */
#include "kernels/cpu/delta/delta.h"
#include "kernels/sequence.h"

enum { IN_DY, IN_Q, IN_STATES = 8, IN_DLAST };
enum { OUT_Q, OUT_K, OUT_V, OUT_G, OUT_BETA, OUT_INITIAL };

/* Scratch of one thread. Arrays of [C, ..] hold the tokens of a chunk, those of [Q, ..] a piece. */
typedef struct delta_back_scratch {
  delta_steps st;
  delta_at *piece;                /* [C]: the pieces of the chunk */
  float *q, *k, *rq, *rk;         /* [C, Dk], [C]: rows, and the factors of their norms */
  float *KK, *QK;                 /* [C, LD]: triangles */
  float *dq, *dk;                 /* [C, Dk] */
  float *G, *M;                   /* [C, LD]: D dP and M summed over the heads: triangles */
  float *R, *U, *T;               /* [C, Dv] twice, [C, LD]: of one head; T = (1 + A)^-1 */
  float *between;                 /* [pieces - 1, Dk, Dv]: the states between the pieces */
  float *dstate;                  /* [group, Dk, Dv]: of the state after the piece */
  float *D, *P, *dP, *dA;         /* [Q, LD] */
  float *g, *du, *z, *dx, *dy;    /* [Q, Dv] */
  float *part;                    /* [Q, Dk] */
  float *dbeta, *so_far, *pairs, *entered, *left; /* [Q] */
  void  *a_rows, *a_cols, *a_tri; /* packed, one use after another */
  void  *b_state, *b_state_t, *b_keys, *b_keys_t, *b_values, *b_values_t;
} delta_back_scratch;

typedef struct delta_back {
  gdelta  s;
  const k_call *call;
  char   *work;
  int64_t each;                   /* bytes per thread */
  int     nthread;
  int64_t C;                      /* most tokens of a chunk */
} delta_back;

static void delta_back_lay_out_piece(const gdelta *s, panel_arena *k, delta_back_scratch *r)
{
  int64_t Q = s->Q, Dk = s->Dk, Dv = s->Dv, tri = Q * DELTA_LD * 4;
  float **triangles[] = {&r->D, &r->P, &r->dP, &r->dA};
  float **values[] = {&r->g, &r->du, &r->z, &r->dx, &r->dy};
  float **tokens[] = {&r->dbeta, &r->so_far, &r->pairs, &r->entered, &r->left};
  tide__delta_take_steps(k, s, &r->st);
  for (int i = 0; i < 4; i++) *triangles[i] = tide__panel_take(k, tri);
  for (int i = 0; i < 5; i++) *values[i] = tide__panel_take(k, Q * Dv * 4);
  for (int i = 0; i < 5; i++) *tokens[i] = tide__panel_take(k, DELTA_LD * 4);
  r->part = tide__panel_take(k, Q * Dk * 4);
  r->a_rows = tide__panel_take_a(k, s->kern, Q, Dk > Dv ? Dk : Dv);
  r->a_cols = tide__panel_take_a(k, s->kern, Dk, Q);
  r->a_tri = tide__panel_take_a(k, s->kern, Q, Q);
  r->b_state = tide__panel_take_b(k, s->kern, Dv, Dk);
  r->b_state_t = tide__panel_take_b(k, s->kern, Dk, Dv);
  r->b_keys = tide__panel_take_b(k, s->kern, Q, Dk);
  r->b_keys_t = tide__panel_take_b(k, s->kern, Dk, Q);
  r->b_values = tide__panel_take_b(k, s->kern, Q, Dv);
  r->b_values_t = tide__panel_take_b(k, s->kern, Dv, Q);
}

static int64_t delta_back_lay_out(const delta_back *w, char *base, delta_back_scratch *r)
{
  const gdelta *s = &w->s;
  panel_arena k = {base, 0};
  int64_t C = w->C, Dk = s->Dk, Dv = s->Dv, n = Dk * Dv * 4;
  float **keys[] = {&r->q, &r->k, &r->dq, &r->dk}, **values[] = {&r->R, &r->U};
  float **triangles[] = {&r->KK, &r->QK, &r->G, &r->M, &r->T};
  r->piece = tide__panel_take(&k, C * (int64_t)sizeof *r->piece);
  for (int i = 0; i < 4; i++) *keys[i] = tide__panel_take(&k, C * Dk * 4);
  for (int i = 0; i < 2; i++) *values[i] = tide__panel_take(&k, C * Dv * 4);
  for (int i = 0; i < 5; i++) *triangles[i] = tide__panel_take(&k, C * DELTA_LD * 4);
  r->rq = tide__panel_take(&k, C * 4);
  r->rk = tide__panel_take(&k, C * 4);
  r->between = tide__panel_take(&k, (C - 1) / DELTA_PIECE * n);
  r->dstate = tide__panel_take(&k, s->group * n);
  delta_back_lay_out_piece(s, &k, r);
  return k.used;
}

/* One head of one chunk. */
typedef struct delta_back_head {
  int64_t h, first;               /* value head; the chunk's first token */
  const float *before;            /* the state before the chunk */
  float *dstate;
} delta_back_head;

/* Returns the state before a piece that has one; such a piece begins at a multiple of
 * DELTA_PIECE. */
static float *delta_state_at(const gdelta *s, const delta_back_head *k, const delta_at *at,
                             const delta_back_scratch *r)
{
  int64_t i = (at->t0 - k->first) / DELTA_PIECE;
  return i == 0 ? (float *)k->before : r->between + (i - 1) * s->Dk * s->Dv;
}

/* ---- a chunk, before its heads ------------------------------------------------------------- */

/* Lists the pieces of chunk c and computes what the heads share. Returns the number of pieces. */
static int64_t delta_back_share(const delta_back *w, delta_at *at, int64_t c, delta_back_scratch *r)
{
  const gdelta *s = &w->s;
  const tile_kernel *kern = s->kern;
  int64_t first = c * s->chunk, n = i64_min(s->chunk, s->T - first), count = 0, Dk = s->Dk;
  tide__delta_rows(s, s->q, at, first, n, r->q, r->rq);
  tide__delta_rows(s, s->k, at, first, n, r->k, r->rk);
  memset(r->dq, 0, (size_t)(n * Dk) * sizeof(float));
  memset(r->dk, 0, (size_t)(n * Dk) * sizeof(float));
  memset(r->G, 0, (size_t)(n * DELTA_LD) * sizeof(float));
  memset(r->M, 0, (size_t)(n * DELTA_LD) * sizeof(float));
  tide__delta_chunk(s, at, c);
  while (tide__delta_next(s, at)) {
    int64_t m = at->n, from = at->t0 - first;
    float *KK = r->KK + from * DELTA_LD, *QK = r->QK + from * DELTA_LD;
    tide__panel_pack_a(kern, r->a_rows, delta_mat(r->k + from * Dk, Dk), m, Dk);
    tide__panel_pack_b(kern, r->b_keys, delta_mat(r->k + from * Dk, Dk), m, Dk);
    tide__panel_mm_triangle(kern, (panel_mm){r->a_rows, r->b_keys, KK, DELTA_LD, m, m, Dk, 0});
    tide__panel_pack_b(kern, r->b_keys, delta_mat(r->q + from * Dk, Dk), m, Dk);
    tide__panel_mm_triangle(kern, (panel_mm){r->a_rows, r->b_keys, QK, DELTA_LD, m, m, Dk, 0});
    r->piece[count++] = *at;
  }
  return count;
}

/* ---- forwards over the pieces of a head ---------------------------------------------------- */

/* R = v - in x, x = beta R; f = {in, beta}. */
TIDE_LEVELS(void, delta_rest_row,
            (float *R, float *x, const float *v, const float *f, int64_t n), (R, x, v, f, n))
{
  float in = f[0], beta = f[1];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float rest = v[i] - in * x[i];
    R[i] = rest;
    x[i] = beta * rest;
  }
}

/* Computes R and, in z, beta * R. */
static void delta_back_rest(const gdelta *s, const delta_back_head *k, const delta_at *at,
                            delta_back_scratch *r)
{
  int64_t n = at->n, from = at->t0 - k->first, Dk = s->Dk, Dv = s->Dv;
  if (at->seen) {
    tide__panel_pack_a(s->kern, r->a_rows, delta_mat(r->k + from * Dk, Dk), n, Dk);
    tide__panel_pack_b(s->kern, r->b_state, delta_mat_t(delta_state_at(s, k, at, r), Dv), Dv, Dk);
    tide__panel_mm(s->kern, (panel_mm){r->a_rows, r->b_state, r->z, Dv, n, Dv, Dk, 0});
  }
  for (int64_t i = 0; i < n; i++) {
    float *x = r->z + i * Dv, f[2] = {r->st.in[i], r->st.beta[i]};
    const float *v = row_read(s->v, delta_offset(s->v, at->b, at->t0 + i, k->h), r->g, Dv);
    if (!at->seen || f[0] == 0) memset(x, 0, (size_t)Dv * sizeof(float));
    delta_rest_row(r->R + (from + i) * Dv, x, v, f, Dv);
  }
}

/* Writes out * U. */
static void delta_late(const gdelta *s, const delta_at *at, const float *U, float *to,
                       const delta_back_scratch *r)
{
  for (int64_t i = 0; i < at->n; i++)
    tide__delta_scale(to + i * s->Dv, U + i * s->Dv, r->st.out[i], s->Dv);
}

/* Computes R, U and T of a piece and, unless it is the chunk's last, the state after it. */
static void delta_back_forwards(const gdelta *s, const delta_back_head *k, const delta_at *at,
                                int last, delta_back_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, from = at->t0 - k->first, Dk = s->Dk, Dv = s->Dv, tri = from * DELTA_LD;
  float *U = r->U + from * Dv;
  tide__delta_steps(s, at, k->h, &r->st);
  tide__delta_decays(r->D, &r->st, n);
  tide__delta_inverse(r->T + tri, r->KK + tri, r->D, r->st.beta, n);
  delta_back_rest(s, k, at, r);
  tide__panel_pack_lower(kern, r->a_tri, delta_mat_t(r->T + tri, DELTA_LD), n);
  tide__panel_pack_b(kern, r->b_values_t, delta_mat_t(r->z, Dv), Dv, n);
  tide__panel_mm_lower(kern, (panel_mm){r->a_tri, r->b_values_t, U, Dv, n, Dv, n, 0});
  if (last || !at->used) return;
  delta_at next = {.t0 = at->t0 + n};
  float *state = delta_state_at(s, k, &next, r);
  if (at->seen) tide__delta_scale(state, delta_state_at(s, k, at, r), r->st.whole, Dk * Dv);
  delta_late(s, at, U, r->z, r);
  tide__panel_pack_a(kern, r->a_cols, delta_mat_t(r->k + from * Dk, Dk), Dk, n);
  tide__panel_pack_b(kern, r->b_values_t, delta_mat_t(r->z, Dv), Dv, n);
  tide__panel_mm(kern, (panel_mm){r->a_cols, r->b_values_t, state, Dv, Dk, Dv, n, at->seen});
}

/* ---- backwards over the pieces of a head --------------------------------------------------- */

/* Computes dU = P' g + out * (K dS), and left: what the state after the piece gives to the decays
 * that follow token i, summed over the tokens before it. */
static void delta_back_u(const gdelta *s, const delta_back_head *k, const delta_at *at,
                         delta_back_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, from = at->t0 - k->first, Dk = s->Dk, Dv = s->Dv;
  memset(r->left, 0, (size_t)n * sizeof(float));
  if (at->used) {
    double left = 0;
    tide__panel_pack_a(kern, r->a_rows, delta_mat(r->k + from * Dk, Dk), n, Dk);
    tide__panel_pack_b(kern, r->b_state, delta_mat_t(k->dstate, Dv), Dv, Dk);
    tide__panel_mm(kern, (panel_mm){r->a_rows, r->b_state, r->du, Dv, n, Dv, Dk, 0});
    for (int64_t i = 0; i < n; i++) {
      float *du = r->du + i * Dv;
      tide__delta_scale(du, du, r->st.out[i], Dv);
      r->left[i] = (float)left;
      left += row_dot(du, r->U + (from + i) * Dv, Dv);
    }
  }
  tide__panel_pack_upper(kern, r->a_tri, delta_mat(r->P, DELTA_LD), n);
  tide__panel_pack_b(kern, r->b_values_t, delta_mat_t(r->g, Dv), Dv, n);
  tide__panel_mm_upper(kern, (panel_mm){r->a_tri, r->b_values_t, r->du, Dv, n, Dv, n, at->used});
}

/* Computes Z, dbeta by it, and dR over du, which is dv. */
static void delta_back_rest_gradient(const delta_back *w, const delta_back_head *k,
                                     const delta_at *at, delta_back_scratch *r)
{
  const gdelta *s = &w->s;
  const tile_kernel *kern = s->kern;
  const k_tensor *dv = &w->call->out[OUT_V];
  int64_t n = at->n, from = at->t0 - k->first, Dv = s->Dv;
  tide__panel_pack_upper(kern, r->a_tri, delta_mat(r->T + from * DELTA_LD, DELTA_LD), n);
  tide__panel_pack_b(kern, r->b_values_t, delta_mat_t(r->du, Dv), Dv, n);
  tide__panel_mm_upper(kern, (panel_mm){r->a_tri, r->b_values_t, r->z, Dv, n, Dv, n, 0});
  for (int64_t i = 0; i < n; i++) {
    float *dr = r->du + i * Dv, *z = r->z + i * Dv;
    r->dbeta[i] = row_dot(z, r->R + (from + i) * Dv, Dv);
    tide__delta_scale(dr, z, r->st.beta[i], Dv);
    row_narrow(row_at(dv, ((at->b * s->T + at->t0 + i) * s->Hv + k->h) * Dv), dr, dv->dtype, Dv);
  }
}

/* The triangles of one head, at one row. dA has the opposite sign. */
typedef struct delta_row {
  float *G, *M, *so_far, *dbeta;
  const float *dP, *dA, *QK, *KK, *D, *beta;
} delta_row;

/* Row j, past the diagonal: adds to G, M and dbeta. Adds H to so_far and returns the sum of so_far
 * over t > j: all pairs that span the decay of token j + 1. */
TIDE_LEVELS(float, delta_back_triangle_row, (const delta_row *w, int64_t j, int64_t n), (w, j, n))
{
  float *G = w->G, *M = w->M, *so_far = w->so_far, *dbeta = w->dbeta, sum = 0;
  const float *dP = w->dP, *dA = w->dA, *QK = w->QK, *KK = w->KK, *D = w->D, *beta = w->beta;
#pragma omp simd reduction(+ : sum)
  for (int64_t t = j + 1; t < n; t++) {
    float d = D[t], p = d * dP[t], a = -d * dA[t], m = beta[t] * a, ka = KK[t] * a;
    float h = so_far[t] + (QK[t] * p + beta[t] * ka);
    G[t] += p;
    M[t] += m;
    dbeta[t] += ka;
    so_far[t] = h;
    sum += h;
  }
  return sum;
}

/* Computes dP and dA and everything that follows from them within the piece. */
static void delta_back_triangles(const gdelta *s, const delta_back_head *k, const delta_at *at,
                                 delta_back_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, from = at->t0 - k->first, Dv = s->Dv, tri = from * DELTA_LD;
  tide__panel_pack_a(kern, r->a_rows, delta_mat(r->U + from * Dv, Dv), n, Dv);
  tide__panel_pack_b(kern, r->b_values, delta_mat(r->g, Dv), n, Dv);
  tide__panel_mm_triangle(kern, (panel_mm){r->a_rows, r->b_values, r->dP, DELTA_LD, n, n, Dv, 0});
  tide__panel_pack_b(kern, r->b_values, delta_mat(r->z, Dv), n, Dv);
  tide__panel_mm_triangle(kern, (panel_mm){r->a_rows, r->b_values, r->dA, DELTA_LD, n, n, Dv, 0});
  memset(r->so_far, 0, (size_t)n * sizeof(float));
  r->pairs[0] = 0;
  for (int64_t j = 0; j < n; j++) {
    int64_t own = j * DELTA_LD, all = tri + own;
    delta_row row = {r->G + all, r->M + all, r->so_far, r->dbeta, r->dP + own, r->dA + own,
                     r->QK + all, r->KK + all, r->D + own, r->st.beta};
    row.G[j] += row.dP[j]; /* the diagonal does not decay */
    float spanned = delta_back_triangle_row(&row, j, n);
    if (j + 1 < n) r->pairs[j + 1] = spanned;
  }
}

/* Adds out * (U dS') to dk. */
static void delta_back_leaving(const gdelta *s, const delta_back_head *k, const delta_at *at,
                               delta_back_scratch *r)
{
  int64_t n = at->n, from = at->t0 - k->first, Dk = s->Dk, Dv = s->Dv;
  delta_late(s, at, r->U + from * Dv, r->dx, r);
  tide__panel_pack_a(s->kern, r->a_rows, delta_mat(r->dx, Dv), n, Dv);
  tide__panel_pack_b(s->kern, r->b_state_t, delta_mat(k->dstate, Dv), Dk, Dv);
  tide__panel_mm(s->kern, (panel_mm){r->a_rows, r->b_state_t, r->dk + from * Dk, Dk, n, Dk, Dv, 1});
}

/* Adds d S' to the gradient of rows, of which `rows` are the values, and to entered what that gives
 * to the decays. The state is packed. */
static void delta_back_entering(const gdelta *s, const delta_at *at, const float *d, float *sum,
                                const float *rows, delta_back_scratch *r)
{
  int64_t n = at->n, Dk = s->Dk, Dv = s->Dv;
  tide__panel_pack_a(s->kern, r->a_rows, delta_mat(d, Dv), n, Dv);
  tide__panel_mm(s->kern, (panel_mm){r->a_rows, r->b_state_t, r->part, Dk, n, Dk, Dv, 0});
  for (int64_t i = 0; i < n; i++)
    r->entered[i] += row_add_dot(sum + i * Dk, r->part + i * Dk, rows + i * Dk, Dk);
}

/* Adds rows' d to dS, or sets it. */
static void delta_back_state(const gdelta *s, const delta_back_head *k, const delta_at *at,
                             const float *rows, const float *d, int load, delta_back_scratch *r)
{
  int64_t n = at->n, Dk = s->Dk, Dv = s->Dv;
  tide__panel_pack_a(s->kern, r->a_cols, delta_mat_t(rows, Dk), Dk, n);
  tide__panel_pack_b(s->kern, r->b_values_t, delta_mat_t(d, Dv), Dv, n);
  tide__panel_mm(s->kern, (panel_mm){r->a_cols, r->b_values_t, k->dstate, Dv, Dk, Dv, n, load});
}

/* Goes back through what the state before the piece gives. Returns what every decay of the piece
 * gains by the states on both sides. */
static double delta_back_seen(const gdelta *s, const delta_back_head *k, const delta_at *at,
                              delta_back_scratch *r)
{
  int64_t n = at->n, from = at->t0 - k->first, Dk = s->Dk, Dv = s->Dv;
  const float *state = delta_state_at(s, k, at, r), *kr = r->k + from * Dk, *qr = r->q + from * Dk;
  float whole = r->st.whole;
  double edge = 0;
  for (int64_t i = 0; i < n; i++) {
    tide__delta_scale(r->dx + i * Dv, r->du + i * Dv, -r->st.in[i], Dv);
    tide__delta_scale(r->dy + i * Dv, r->g + i * Dv, r->st.in[i], Dv);
  }
  memset(r->entered, 0, (size_t)n * sizeof(float));
  tide__panel_pack_b(s->kern, r->b_state_t, delta_mat(state, Dv), Dk, Dv);
  delta_back_entering(s, at, r->dx, r->dk + from * Dk, kr, r);
  delta_back_entering(s, at, r->dy, r->dq + from * Dk, qr, r);
  if (at->used && whole != 0) edge = (double)whole * row_dot(state, k->dstate, Dk * Dv);
  if (at->used) tide__delta_scale(k->dstate, k->dstate, whole, Dk * Dv);
  delta_back_state(s, k, at, kr, r->dx, at->used, r);
  delta_back_state(s, k, at, qr, r->dy, 1, r);
  return edge;
}

/* Stores dg and dbeta, from the last token to the first, so that what the state before the piece
 * gives to the decay of token i is a running sum over the tokens from i on. */
static void delta_back_put(const delta_back *w, const delta_back_head *k, const delta_at *at,
                           double edge, const delta_back_scratch *r)
{
  const gdelta *s = &w->s;
  const k_tensor *dg = &w->call->out[OUT_G], *dbeta = &w->call->out[OUT_BETA];
  double entered = edge;
  for (int64_t i = at->n - 1; i >= 0; i--) {
    int64_t token = (at->b * s->T + at->t0 + i) * s->Hv + k->h;
    if (at->seen) entered += r->entered[i];
    vec_put(dg->data, token, dg->dtype, (float)(entered + r->pairs[i] + r->left[i]));
    vec_put(dbeta->data, token, dbeta->dtype, r->dbeta[i]);
  }
}

static void delta_back_piece(const delta_back *w, const delta_back_head *k, const delta_at *at,
                             delta_back_scratch *r)
{
  const gdelta *s = &w->s;
  const k_tensor *dy = &w->call->in[IN_DY];
  int64_t n = at->n, from = at->t0 - k->first;
  double edge = 0;
  tide__delta_steps(s, at, k->h, &r->st);
  tide__delta_decays(r->D, &r->st, n);
  tide__delta_pairs(s, r->P, r->QK + from * DELTA_LD, r->D, n);
  for (int64_t i = 0; i < n; i++) {
    float *g = r->g + i * s->Dv;
    const float *own = row_read(dy, delta_offset(dy, at->b, at->t0 + i, k->h), g, s->Dv);
    tide__delta_scale(g, own, (float)s->attrs->scale, s->Dv);
  }
  delta_back_u(s, k, at, r);
  delta_back_rest_gradient(w, k, at, r);
  delta_back_triangles(s, k, at, r);
  if (at->used) delta_back_leaving(s, k, at, r);
  if (at->seen) edge = delta_back_seen(s, k, at, r);
  delta_back_put(w, k, at, edge, r);
}

/* ---- a chunk, after its heads -------------------------------------------------------------- */

/* Completes dq and dk of a piece by the sums over the heads. */
static void delta_back_end(const gdelta *s, const delta_at *at, int64_t from, delta_back_scratch *r)
{
  const tile_kernel *kern = s->kern;
  int64_t n = at->n, Dk = s->Dk;
  float *G = r->G + from * DELTA_LD, *M = r->M + from * DELTA_LD;
  panel_mm dk = {r->a_tri, r->b_keys_t, r->dk + from * Dk, Dk, n, Dk, n, 1}, dq = dk;
  dq.c = r->dq + from * Dk;
  tide__panel_pack_b(kern, r->b_keys_t, delta_mat_t(r->k + from * Dk, Dk), Dk, n);
  tide__panel_pack_lower(kern, r->a_tri, delta_mat_t(G, DELTA_LD), n);
  tide__panel_mm_lower(kern, dq);
  tide__panel_pack_lower(kern, r->a_tri, delta_mat_t(M, DELTA_LD), n);
  tide__panel_mm_lower(kern, dk);
  tide__panel_pack_upper(kern, r->a_tri, delta_mat(M, DELTA_LD), n);
  tide__panel_mm_upper(kern, dk);
  tide__panel_pack_b(kern, r->b_keys_t, delta_mat_t(r->q + from * Dk, Dk), Dk, n);
  tide__panel_pack_upper(kern, r->a_tri, delta_mat(G, DELTA_LD), n);
  tide__panel_mm_upper(kern, dk);
}

/* to = factor (d - row along); along is the product of d with the row. to may be d. */
TIDE_LEVELS(void, delta_norm_row,
            (float *to, const float *d, const float *row, float factor, int64_t n),
            (to, d, row, factor, n))
{
  float along = 0;
#pragma omp simd reduction(+ : along)
  for (int64_t i = 0; i < n; i++) along += d[i] * row[i];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) to[i] = factor * (d[i] - row[i] * along);
}

/* Goes back through the norm of n rows and stores their gradients. */
static void delta_back_put_rows(const gdelta *s, const k_tensor *out, int64_t row, int64_t n,
                                float *d, const float *rows, const float *factor)
{
  for (int64_t i = 0; i < n; i++, d += s->Dk, rows += s->Dk) {
    int64_t at = (row + i * s->Hk) * s->Dk;
    float *to = s->attrs->l2norm ? row_begin(out, at, d) : d;
    if (s->attrs->l2norm) delta_norm_row(to, d, rows, factor[i], s->Dk);
    row_write(out, at, to, s->Dk);
  }
}

/* ---- tasks --------------------------------------------------------------------------------- */

static void delta_back_chunk(const delta_back *w, delta_at *at, int64_t c, delta_back_scratch *r)
{
  const gdelta *s = &w->s;
  const k_tensor *states = &w->call->in[IN_STATES];
  int64_t count = delta_back_share(w, at, c, r), first = c * s->chunk, n = s->Dk * s->Dv;
  for (int64_t j = 0; j < s->group; j++) {
    delta_back_head k = {.h = at->hk * s->group + j, .first = first, .dstate = r->dstate + j * n};
    k.before = (const float *)states->data + delta_offset(states, at->b, c, k.h);
    for (int64_t p = 0; p < count; p++)
      delta_back_forwards(s, &k, &r->piece[p], p == count - 1, r);
    for (int64_t p = count - 1; p >= 0; p--) delta_back_piece(w, &k, &r->piece[p], r);
  }
  for (int64_t p = 0; p < count; p++) delta_back_end(s, &r->piece[p], r->piece[p].t0 - first, r);
  int64_t row = (at->b * s->T + first) * s->Hk + at->hk, tokens = i64_min(s->chunk, s->T - first);
  delta_back_put_rows(s, &w->call->out[OUT_Q], row, tokens, r->dq, r->q, r->rq);
  delta_back_put_rows(s, &w->call->out[OUT_K], row, tokens, r->dk, r->k, r->rk);
}

static void delta_back_task(const delta_back *w, int64_t i, delta_back_scratch *r)
{
  const gdelta *s = &w->s;
  const k_tensor *dinitial = &w->call->out[OUT_INITIAL];
  int64_t n = s->Dk * s->Dv;
  delta_at at = {.b = i / s->Hk, .hk = i % s->Hk};
  int64_t h0 = at.hk * s->group;
  for (int64_t j = 0; j < s->group; j++)
    tide__delta_state(s, &w->call->in[IN_DLAST], at.b, h0 + j, r->dstate + j * n);
  for (int64_t c = s->nchunk - 1; c >= 0; c--) delta_back_chunk(w, &at, c, r);
  if (!k_absent(dinitial))
    row_narrow(row_at(dinitial, (at.b * s->Hv + h0) * n), r->dstate, dinitial->dtype, s->group * n);
}

static void delta_back_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const delta_back *w = arg;
  delta_back_scratch r;
  delta_back_lay_out(w, w->work + w->each * thread, &r);
  for (int64_t i = begin; i < end; i++) delta_back_task(w, i, &r);
}

/* ---- the kernel ---------------------------------------------------------------------------- */

static void delta_back_plan(delta_back *w, const k_call *call)
{
  delta_back_scratch r;
  gdelta *s = &w->s;
  w->call = call;
  tide__delta_plan(s, call, call->in + IN_Q);
  s->last = !k_absent(&call->in[IN_DLAST]);
  w->C = i64_min(s->chunk, s->T > 0 ? s->T : 1);
  w->each = delta_back_lay_out(w, 0, &r);
  w->nthread = (int)i64_min(call->nthread, i64_max(s->nb * s->Hk, 1));
}

int64_t k_cpu_gated_delta_bwd_work(const k_call *call)
{
  delta_back w;
  delta_back_plan(&w, call);
  return w.each * w.nthread;
}

int k_cpu_gated_delta_bwd(const k_call *call)
{
  delta_back w = {.work = call->work};
  delta_back_plan(&w, call);
  TIDE_TRY(sequence_check(call, w.s.seq));
  tide__pool_tasks(w.nthread, w.s.nb * w.s.Hk, 1, delta_back_tasks, &w);
  return TIDE_OK;
}
