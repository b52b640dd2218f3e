/* Defines the gated delta rule: the recurrence, one token at a time, forward and backward.
 *
 * The state S of one (batch, value head) is Dk x Dv doubles. The backward keeps the state before
 * each chunk, and the states of one chunk at a time. There are no products over chunks, so chunked
 * kernels are tested against an independent definition.
 *
 * Operands are K_INNER; see kernel.h. Scratch holds states, rows and sums.
 */
#include "kernels/ref/load.h"
#include "kernels/sequence.h"

typedef struct delta {
  const k_tensor *q, *k, *v, *g, *beta, *initial, *seq;
  const k_gated_delta_attrs *attrs;
  int64_t nb, T, Hk, Hv, Dk, Dv;
  int64_t n; /* Dk * Dv */
} delta;

static delta gated_delta_of(const k_call *call, const k_tensor *in)
{
  delta s = { in, in + 1, in + 2, in + 3, in + 4, in + 5, in + 6, call->attrs, in->shape[0],
              in->shape[1], in->shape[2], in[2].shape[2], in->shape[3], in[2].shape[3],
              in->shape[3] * in[2].shape[3] };
  return s;
}

/* One token of one head: what the recurrence reads and makes. */
typedef struct token {
  double *q, *k;     /* [Dk], normalized; q has no factor scale */
  double *r, *u;     /* [Dv]: v minus what the state predicts of it, and beta times that */
  double rq, rk;     /* factors of the norms; 1 without norm */
  double keep, beta; /* factor on the state before the token */
} token;

static int64_t token_size(const delta *s) { return 2 * s->Dk + 2 * s->Dv; }

static token token_at(const delta *s, double *work)
{
  token w = { work, work + s->Dk, work + 2 * s->Dk, work + 2 * s->Dk + s->Dv, 1, 1, 0, 0 };
  return w;
}

static double delta_at3(const k_tensor *t, int64_t a, int64_t b, int64_t c)
{
  return ref_get(t, a * t->stride[0] + b * t->stride[1] + c * t->stride[2]);
}

/* Reads n numbers from [a, b, c, :]. */
static void delta_row(const k_tensor *t, double *to, int64_t a, int64_t b, int64_t c, int64_t n)
{
  int64_t at = a * t->stride[0] + b * t->stride[1] + c * t->stride[2];
  for (int64_t i = 0; i < n; i++) to[i] = ref_get(t, at + i);
}

/* Divides the row by sqrt(sum of squares + eps) if the op asks for it; returns the factor. */
static double delta_normalize(const delta *s, double *row)
{
  if (!s->attrs->l2norm) return 1;
  double sum = s->attrs->eps;
  for (int64_t i = 0; i < s->Dk; i++) sum += row[i] * row[i];
  double factor = 1 / sqrt(sum);
  for (int64_t i = 0; i < s->Dk; i++) row[i] *= factor;
  return factor;
}

/* Reads q and k of a key head. */
static void read_keys(const delta *s, token *w, int64_t b, int64_t t, int64_t hk)
{
  delta_row(s->q, w->q, b, t, hk, s->Dk);
  delta_row(s->k, w->k, b, t, hk, s->Dk);
  w->rq = delta_normalize(s, w->q);
  w->rk = delta_normalize(s, w->k);
}

static void read_token(const delta *s, token *w, int64_t b, int64_t t, int64_t h)
{
  read_keys(s, w, b, t, h / (s->Hv / s->Hk));
  delta_row(s->v, w->r, b, t, h, s->Dv);
  w->beta = delta_at3(s->beta, b, t, h);
  bool begins = t > 0 && !sequence_goes_on(s->seq, b, t);
  w->keep = begins ? 0 : exp(delta_at3(s->g, b, t, h));
}

static double delta_kept(const token *w, double x) { return w->keep == 0 ? 0 : w->keep * x; }

/* Completes r and u from the state before the token. */
static void correct(const delta *s, token *w, const double *before)
{
  for (int64_t j = 0; j < s->Dv; j++) {
    double predicted = 0;
    for (int64_t i = 0; i < s->Dk; i++) predicted += delta_kept(w, before[i * s->Dv + j]) * w->k[i];
    w->r[j] -= predicted;
    w->u[j] = w->beta * w->r[j];
  }
}

/* Sets next = keep before + k u'; may be in place. Reads the token. */
static void delta_advance(const delta *s, token *w, double *next, const double *before, int64_t b,
                          int64_t t, int64_t h)
{
  read_token(s, w, b, t, h);
  correct(s, w, before);
  for (int64_t i = 0; i < s->Dk; i++)
    for (int64_t j = 0; j < s->Dv; j++)
      next[i * s->Dv + j] = delta_kept(w, before[i * s->Dv + j]) + w->k[i] * w->u[j];
}

static void delta_first_state(const delta *s, double *state, int64_t b, int64_t h)
{
  for (int64_t i = 0; i < s->Dk; i++) {
    if (k_absent(s->initial)) memset(state + i * s->Dv, 0, (size_t)s->Dv * sizeof *state);
    else delta_row(s->initial, state + i * s->Dv, b, h, i, s->Dv);
  }
}

static void delta_put(const k_tensor *t, int64_t at, const double *x, int64_t n)
{
  for (int64_t i = 0; i < n; i++) ref_put(t, at + i, x[i]);
}

static void delta_output(const delta *s, const token *w, const k_tensor *y, const double *state,
                         int64_t row)
{
  for (int64_t j = 0; j < s->Dv; j++) {
    double sum = 0;
    for (int64_t i = 0; i < s->Dk; i++) sum += state[i * s->Dv + j] * w->q[i];
    ref_put(y, row * s->Dv + j, s->attrs->scale * sum);
  }
}

int64_t k_ref_gated_delta_work(const k_call *call)
{
  delta s = gated_delta_of(call, call->in);
  return (s.n + token_size(&s)) * (int64_t)sizeof(double);
}

int k_ref_gated_delta(const k_call *call)
{
  delta s = gated_delta_of(call, call->in);
  TIDE_TRY(sequence_check(call, s.seq));
  const k_tensor *last = &call->out[1], *states = &call->out[2];
  int64_t chunk = s.attrs->chunk, nchunk = (s.T + chunk - 1) / chunk;
  double *state = call->work;
  token w = token_at(&s, state + s.n);
  for (int64_t b = 0; b < s.nb; b++)
    for (int64_t h = 0; h < s.Hv; h++) {
      delta_first_state(&s, state, b, h);
      for (int64_t t = 0; t < s.T; t++) {
        if (!k_absent(states) && t % chunk == 0)
          delta_put(states, ((b * nchunk + t / chunk) * s.Hv + h) * s.n, state, s.n);
        delta_advance(&s, &w, state, state, b, t, h);
        delta_output(&s, &w, &call->out[0], state, (b * s.T + t) * s.Hv + h);
      }
      if (!k_absent(last)) delta_put(last, (b * s.Hv + h) * s.n, state, s.n);
    }
  return TIDE_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

typedef struct delta_back {
  delta s;
  const k_tensor *dy, *dlast, *out;
  double *first;    /* [chunks, Dk, Dv]: the state before each chunk, of one (batch, head) */
  double *state;    /* [chunk + 1, Dk, Dv]: before each token of one chunk, and after the last */
  double *dstate;   /* [Dk, Dv] */
  double *dq, *dk;  /* [T, Dk]: of normalized rows, of one (batch, key head) */
  double *dr;       /* [Dv] */
  token w;
  int64_t chunk, nchunk;
} delta_back;

enum { IN_DY, IN_Q, IN_STATES = 8, IN_DLAST };
enum { OUT_Q, OUT_K, OUT_V, OUT_G, OUT_BETA, OUT_INITIAL };

static delta_back delta_back_of(const k_call *call)
{
  delta_back k = { .s = gated_delta_of(call, call->in + IN_Q), .dy = &call->in[IN_DY],
                   .dlast = &call->in[IN_DLAST], .out = call->out };
  int64_t chunk = k.s.attrs->chunk, T = k.s.T;
  k.chunk = chunk < T ? chunk : T > 0 ? T : 1;
  k.nchunk = (T + k.chunk - 1) / k.chunk;
  return k;
}

/* Gives out the scratch. Returns the number of doubles. */
static int64_t delta_lay_out(delta_back *k, double *work)
{
  const delta *s = &k->s;
  int64_t at[] = { k->nchunk * s->n, (k->chunk + 1) * s->n, s->n, s->T * s->Dk, s->T * s->Dk,
                   s->Dv, token_size(s) };
  double **to[] = { &k->first, &k->state, &k->dstate, &k->dq, &k->dk, &k->dr, &k->w.q };
  int64_t used = 0;
  for (int i = 0; i < 7; i++) {
    if (work) *to[i] = work + used;
    used += at[i];
  }
  if (work) k->w = token_at(s, k->w.q);
  return used;
}

/* Goes back through o = S' (scale q) of token t: adds to dq and dstate. */
static void delta_back_output(delta_back *k, int64_t b, int64_t t, int64_t h, const double *after)
{
  const delta *s = &k->s;
  const k_tensor *dy = k->dy;
  int64_t at = b * dy->stride[0] + t * dy->stride[1] + h * dy->stride[2];
  for (int64_t j = 0; j < s->Dv; j++) {
    double d = s->attrs->scale * ref_get(dy, at + j);
    for (int64_t i = 0; i < s->Dk; i++) {
      k->dq[t * s->Dk + i] += d * after[i * s->Dv + j];
      k->dstate[i * s->Dv + j] += d * k->w.q[i];
    }
  }
}

/* Goes back through S = keep S_before + k u' and u = beta (v - keep S_before' k) of token t.
 * Replaces dstate by the gradient of the state before. */
static void delta_back_advance(delta_back *k, int64_t b, int64_t t, int64_t h,
                               const double *before)
{
  const delta *s = &k->s;
  const token *w = &k->w;
  int64_t row = (b * s->T + t) * s->Hv + h;
  double dbeta = 0, dkeep = 0;
  for (int64_t j = 0; j < s->Dv; j++) {
    double du = 0;
    for (int64_t i = 0; i < s->Dk; i++) du += k->dstate[i * s->Dv + j] * w->k[i];
    dbeta += du * w->r[j];
    k->dr[j] = w->beta * du;
  }
  for (int64_t i = 0; i < s->Dk; i++)
    for (int64_t j = 0; j < s->Dv; j++) {
      double *d = &k->dstate[i * s->Dv + j], S = before[i * s->Dv + j];
      k->dk[t * s->Dk + i] += *d * w->u[j] - delta_kept(w, S) * k->dr[j];
      *d -= w->k[i] * k->dr[j];
      dkeep += w->keep == 0 ? 0 : *d * S;
      *d = delta_kept(w, *d);
    }
  delta_put(&k->out[OUT_V], row * s->Dv, k->dr, s->Dv);
  ref_put(&k->out[OUT_BETA], row, dbeta);
  ref_put(&k->out[OUT_G], row, dkeep * w->keep);
}

static void ref_back_chunk(delta_back *k, int64_t c, int64_t b, int64_t h)
{
  const delta *s = &k->s;
  int64_t t0 = c * k->chunk, end = t0 + k->chunk < s->T ? t0 + k->chunk : s->T;
  memcpy(k->state, k->first + c * s->n, (size_t)s->n * sizeof *k->state);
  for (int64_t t = t0; t < end; t++) {
    double *before = k->state + (t - t0) * s->n;
    delta_advance(s, &k->w, before + s->n, before, b, t, h);
  }
  for (int64_t t = end - 1; t >= t0; t--) {
    double *before = k->state + (t - t0) * s->n;
    read_token(s, &k->w, b, t, h);
    correct(s, &k->w, before);
    delta_back_output(k, b, t, h, before + s->n);
    delta_back_advance(k, b, t, h, before);
  }
}

static void delta_back_head(delta_back *k, int64_t b, int64_t h)
{
  const delta *s = &k->s;
  double *state = k->state;
  delta_first_state(s, state, b, h);
  for (int64_t t = 0; t < s->T; t++) {
    if (t % k->chunk == 0)
      memcpy(k->first + t / k->chunk * s->n, state, (size_t)s->n * sizeof *state);
    delta_advance(s, &k->w, state, state, b, t, h);
  }
  for (int64_t i = 0; i < s->Dk; i++) {
    if (k_absent(k->dlast)) memset(k->dstate + i * s->Dv, 0, (size_t)s->Dv * sizeof *state);
    else delta_row(k->dlast, k->dstate + i * s->Dv, b, h, i, s->Dv);
  }
  for (int64_t c = k->nchunk - 1; c >= 0; c--) ref_back_chunk(k, c, b, h);
  const k_tensor *dinitial = &k->out[OUT_INITIAL];
  if (!k_absent(dinitial)) delta_put(dinitial, (b * s->Hv + h) * s->n, k->dstate, s->n);
}

/* Goes back through the norm of one row and stores the gradient. row: the normalized row. */
static void put_row(const delta *s, const k_tensor *out, int64_t at, double *d, const double *row,
                    double factor)
{
  double along = 0;
  if (s->attrs->l2norm)
    for (int64_t i = 0; i < s->Dk; i++) along += d[i] * row[i];
  for (int64_t i = 0; i < s->Dk; i++) d[i] = factor * (d[i] - row[i] * along);
  delta_put(out, at * s->Dk, d, s->Dk);
}

/* Goes back through the value heads of one key head. */
static void delta_back_group(delta_back *k, int64_t b, int64_t hk)
{
  const delta *s = &k->s;
  int64_t group = s->Hv / s->Hk;
  memset(k->dq, 0, (size_t)(2 * s->T * s->Dk) * sizeof *k->dq); /* and dk, which follows */
  for (int64_t h = hk * group; h < (hk + 1) * group; h++) delta_back_head(k, b, h);
  for (int64_t t = 0; t < s->T; t++) {
    int64_t at = (b * s->T + t) * s->Hk + hk;
    read_keys(s, &k->w, b, t, hk);
    put_row(s, &k->out[OUT_Q], at, k->dq + t * s->Dk, k->w.q, k->w.rq);
    put_row(s, &k->out[OUT_K], at, k->dk + t * s->Dk, k->w.k, k->w.rk);
  }
}

int64_t k_ref_gated_delta_bwd_work(const k_call *call)
{
  delta_back k = delta_back_of(call);
  return delta_lay_out(&k, NULL) * (int64_t)sizeof(double);
}

int k_ref_gated_delta_bwd(const k_call *call)
{
  delta_back k = delta_back_of(call);
  TIDE_TRY(sequence_check(call, k.s.seq));
  delta_lay_out(&k, call->work);
  for (int64_t b = 0; b < k.s.nb; b++)
    for (int64_t hk = 0; hk < k.s.Hk; hk++) delta_back_group(&k, b, hk);
  return TIDE_OK;
}
