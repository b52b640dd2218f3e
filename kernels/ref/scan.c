/* Defines the SSD scan: the recurrence, one token at a time, forward and backward.
 *
 * The state of one (batch, head) is P x N doubles; the backward stores the state after every token
 * and walks back through them. There are no chunks, so chunked kernels are tested against an
 * independent definition.
 *
 * Operands are K_INNER; see kernel.h. Scratch holds the states.
 */
#include "kernels/ref/activation.h"
#include "kernels/ref/load.h"
#include "kernels/sequence.h"

typedef struct scan {
  const k_tensor *x, *dt, *A, *B, *C, *D, *bias, *initial, *seq;
  const k_ssd_attrs *attrs;
  int64_t nb, T, H, P, G, N;
} scan;

static scan scan_of(const k_call *call, const k_tensor *in)
{
  scan s = { in, in + 1, in + 2, in + 3, in + 4, in + 5, in + 6, in + 7, in + 8, call->attrs,
             in->shape[0], in->shape[1], in->shape[2], in->shape[3], in[3].shape[2],
             in[3].shape[3] };
  return s;
}

/* Returns an element of a 4-dim operand whose last dim is contiguous. */
static double ref_scan_at4(const k_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
  return ref_get(t, a * t->stride[0] + b * t->stride[1] + c * t->stride[2] + d * t->stride[3]);
}

static double of_head(const k_tensor *t, int64_t h)
{
  return k_absent(t) ? 0 : ref_get(t, h * t->stride[0]);
}

static double skip(const scan *s, int64_t h, int64_t p)
{
  if (k_absent(s->D)) return 0;
  return ref_get(s->D, h * s->D->stride[0] + (s->D->ndim == 2 ? p * s->D->stride[1] : 0));
}

/* Returns the step before clamping; *sum receives dt + bias. */
static double raw_step(const scan *s, int64_t b, int64_t t, int64_t h, double *sum)
{
  const k_tensor *dt = s->dt;
  *sum = ref_get(dt, b * dt->stride[0] + t * dt->stride[1] + h * dt->stride[2]) +
         of_head(s->bias, h);
  return s->attrs->softplus ? ref_softplus(*sum) : *sum;
}

static double step_of(const scan *s, int64_t b, int64_t t, int64_t h)
{
  double sum, v = raw_step(s, b, t, h, &sum);
  return v < s->attrs->dt_min ? s->attrs->dt_min : v > s->attrs->dt_max ? s->attrs->dt_max : v;
}

/* Returns d step / d dt. */
static double step_slope(const scan *s, int64_t b, int64_t t, int64_t h)
{
  double sum, v = raw_step(s, b, t, h, &sum);
  if (v < s->attrs->dt_min || v > s->attrs->dt_max) return 0;
  return s->attrs->softplus ? ref_sigmoid(sum) : 1;
}

/* Returns the factor on the state before token t. */
static double decay(const scan *s, int64_t b, int64_t t, int64_t h, double step)
{
  if (t > 0 && !sequence_goes_on(s->seq, b, t)) return 0;
  return exp(step * of_head(s->A, h));
}

static void ref_first_state(const scan *s, double *h0, int64_t b, int64_t h)
{
  for (int64_t p = 0; p < s->P; p++)
    for (int64_t n = 0; n < s->N; n++)
      h0[p * s->N + n] = k_absent(s->initial) ? 0 : ref_scan_at4(s->initial, b, h, p, n);
}

/* Sets next = decay * now + step x B'; may be in place. */
static void ref_advance(const scan *s, double *next, const double *now, int64_t b, int64_t t,
                        int64_t h)
{
  int64_t g = h / (s->H / s->G);
  double d = step_of(s, b, t, h), keep = decay(s, b, t, h, d);
  for (int64_t p = 0; p < s->P; p++)
    for (int64_t n = 0; n < s->N; n++)
      next[p * s->N + n] = (keep == 0 ? 0 : keep * now[p * s->N + n]) +
                           d * ref_scan_at4(s->x, b, t, h, p) * ref_scan_at4(s->B, b, t, g, n);
}

static void put_state(const k_tensor *t, int64_t at, const double *state, int64_t n)
{
  for (int64_t i = 0; i < n; i++) ref_put(t, at + i, state[i]);
}

static void put_output(const scan *s, const k_tensor *y, const double *state, int64_t b, int64_t t,
                       int64_t h)
{
  for (int64_t p = 0; p < s->P; p++) {
    double sum = skip(s, h, p) * ref_scan_at4(s->x, b, t, h, p);
    for (int64_t n = 0; n < s->N; n++)
      sum += state[p * s->N + n] * ref_scan_at4(s->C, b, t, h / (s->H / s->G), n);
    ref_put(y, ((b * s->T + t) * s->H + h) * s->P + p, sum);
  }
}

int64_t k_ref_ssd_scan_work(const k_call *call)
{
  scan s = scan_of(call, call->in);
  return s.P * s.N * (int64_t)sizeof(double);
}

int k_ref_ssd_scan(const k_call *call)
{
  scan s = scan_of(call, call->in);
  TIDE_TRY(sequence_check(call, s.seq));
  const k_tensor *last = &call->out[1], *states = &call->out[2];
  double *state = call->work;
  int64_t n = s.P * s.N, chunk = s.attrs->chunk, nchunk = (s.T + chunk - 1) / chunk;
  for (int64_t b = 0; b < s.nb; b++)
    for (int64_t h = 0; h < s.H; h++) {
      ref_first_state(&s, state, b, h);
      for (int64_t t = 0; t < s.T; t++) {
        if (!k_absent(states) && t % chunk == 0)
          put_state(states, ((b * nchunk + t / chunk) * s.H + h) * n, state, n);
        ref_advance(&s, state, state, b, t, h);
        put_output(&s, &call->out[0], state, b, t, h);
      }
      if (!k_absent(last)) put_state(last, (b * s.H + h) * n, state, n);
    }
  return TIDE_OK;
}

/* ---- backward ------------------------------------------------------------------------------- */

/* Sums over tokens and heads in f64: of A, dt_bias, D, B, C. */
typedef struct back {
  scan s;
  const k_tensor *dy, *dlast;
  double *state;             /* [T + 1, P, N], of one (batch, head) */
  double *dstate;            /* [P, N] */
  double *dB, *dC;           /* [T, G, N], of one batch */
  double *dA, *dbias, *dD;   /* [H], [H], [H, P] */
} back;

enum { IN_DY, IN_X, IN_STATES = 10, IN_DLAST };
enum { OUT_X, OUT_DT, OUT_A, OUT_B, OUT_C, OUT_D, OUT_BIAS, OUT_INITIAL };

static void ref_lay_out(back *k, double *work)
{
  const scan *s = &k->s;
  k->state = work;
  k->dstate = k->state + (s->T + 1) * s->P * s->N;
  k->dB = k->dstate + s->P * s->N;
  k->dC = k->dB + s->T * s->G * s->N;
  k->dA = k->dC + s->T * s->G * s->N;
  k->dbias = k->dA + s->H;
  k->dD = k->dbias + s->H;
}

static double dy_at(const back *k, int64_t b, int64_t t, int64_t h, int64_t p)
{
  return ref_scan_at4(k->dy, b, t, h, p);
}

/* Goes back through y = h C + D x of token t. Adds the output's share to dstate, dC and dD. */
static void back_output(back *k, int64_t b, int64_t t, int64_t h)
{
  const scan *s = &k->s;
  int64_t g = h / (s->H / s->G);
  const double *state = k->state + (t + 1) * s->P * s->N;
  for (int64_t p = 0; p < s->P; p++) {
    double d = dy_at(k, b, t, h, p);
    k->dD[h * s->P + p] += d * ref_scan_at4(s->x, b, t, h, p);
    for (int64_t n = 0; n < s->N; n++) {
      k->dC[(t * s->G + g) * s->N + n] += d * state[p * s->N + n];
      k->dstate[p * s->N + n] += d * ref_scan_at4(s->C, b, t, g, n);
    }
  }
}

/* Goes back through h = keep h_before + step x B' of token t. Replaces dstate by the gradient of
 * the state before. */
static void back_advance(back *k, const k_call *call, int64_t b, int64_t t, int64_t h)
{
  const scan *s = &k->s;
  int64_t g = h / (s->H / s->G), row = (b * s->T + t) * s->H + h;
  const double *before = k->state + t * s->P * s->N;
  double step = step_of(s, b, t, h), keep = decay(s, b, t, h, step), dkeep = 0, dstep = 0;
  for (int64_t p = 0; p < s->P; p++) {
    double x = ref_scan_at4(s->x, b, t, h, p), into = 0;
    for (int64_t n = 0; n < s->N; n++) {
      double *d = &k->dstate[p * s->N + n], B = ref_scan_at4(s->B, b, t, g, n);
      into += *d * B;
      k->dB[(t * s->G + g) * s->N + n] += *d * step * x;
      dkeep += keep == 0 ? 0 : *d * before[p * s->N + n];
      *d = keep == 0 ? 0 : *d * keep;
    }
    dstep += into * x;
    ref_put(&call->out[OUT_X], row * s->P + p, step * into + skip(s, h, p) * dy_at(k, b, t, h, p));
  }
  double da = dkeep * keep; /* of step * A */
  k->dA[h] += da * step;
  double draw = (dstep + da * of_head(s->A, h)) * step_slope(s, b, t, h);
  k->dbias[h] += draw;
  ref_put(&call->out[OUT_DT], row, draw);
}

static void back_head(back *k, const k_call *call, int64_t b, int64_t h)
{
  const scan *s = &k->s;
  int64_t n = s->P * s->N;
  ref_first_state(s, k->state, b, h);
  for (int64_t t = 0; t < s->T; t++)
    ref_advance(s, k->state + (t + 1) * n, k->state + t * n, b, t, h);
  for (int64_t p = 0; p < s->P; p++)
    for (int64_t i = 0; i < s->N; i++)
      k->dstate[p * s->N + i] = k_absent(k->dlast) ? 0 : ref_scan_at4(k->dlast, b, h, p, i);
  for (int64_t t = s->T - 1; t >= 0; t--) {
    back_output(k, b, t, h);
    back_advance(k, call, b, t, h);
  }
  const k_tensor *dinitial = &call->out[OUT_INITIAL];
  if (!k_absent(dinitial)) put_state(dinitial, (b * s->H + h) * n, k->dstate, n);
}

static void ref_put_sums(const back *k, const k_call *call)
{
  const scan *s = &k->s;
  const k_tensor *dD = &call->out[OUT_D], *dbias = &call->out[OUT_BIAS];
  for (int64_t h = 0; h < s->H; h++) {
    ref_put(&call->out[OUT_A], h, k->dA[h]);
    if (!k_absent(dbias)) ref_put(dbias, h, k->dbias[h]);
    if (k_absent(dD)) continue;
    double sum = 0;
    for (int64_t p = 0; p < s->P; p++) {
      if (dD->ndim == 2) ref_put(dD, h * s->P + p, k->dD[h * s->P + p]);
      else sum += k->dD[h * s->P + p];
    }
    if (dD->ndim == 1) ref_put(dD, h, sum);
  }
}

static void ref_zero(double *v, int64_t n)
{
  for (int64_t i = 0; i < n; i++) v[i] = 0;
}

int64_t k_ref_ssd_scan_bwd_work(const k_call *call)
{
  scan s = scan_of(call, call->in + IN_X);
  int64_t n = (s.T + 2) * s.P * s.N + 2 * s.T * s.G * s.N + 2 * s.H + s.H * s.P;
  return n * (int64_t)sizeof(double);
}

int k_ref_ssd_scan_bwd(const k_call *call)
{
  back k = { .s = scan_of(call, call->in + IN_X), .dy = &call->in[IN_DY],
             .dlast = &call->in[IN_DLAST] };
  const scan *s = &k.s;
  TIDE_TRY(sequence_check(call, s->seq));
  ref_lay_out(&k, call->work);
  int64_t ng = s->T * s->G * s->N;
  ref_zero(k.dA, s->H);
  ref_zero(k.dbias, s->H);
  ref_zero(k.dD, s->H * s->P);
  for (int64_t b = 0; b < s->nb; b++) {
    ref_zero(k.dB, ng);
    ref_zero(k.dC, ng);
    for (int64_t h = 0; h < s->H; h++) back_head(&k, call, b, h);
    put_state(&call->out[OUT_B], b * ng, k.dB, ng);
    put_state(&call->out[OUT_C], b * ng, k.dC, ng);
  }
  ref_put_sums(&k, call);
  return TIDE_OK;
}
