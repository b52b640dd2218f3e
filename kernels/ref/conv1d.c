/* Defines the causal depthwise convolution, forward and backward.
 *
 * row(i), i from -(K-1), runs over the rows of initial, then those of x; every output is a sum over
 * it in f64, rounded once. Operands are K_INNER; see kernel.h.
 */
#include "kernels/ref/activation.h"
#include "kernels/ref/load.h"
#include "kernels/sequence.h"

typedef struct conv {
  const k_tensor *x, *w, *bias, *initial, *seq;
  int64_t B, T, C, K;
  int silu;
} conv;

static conv conv_of(const k_call *call, const k_tensor *in)
{
  const k_conv1d_attrs *attrs = call->attrs;
  conv v = { in, in + 1, in + 2, in + 3, in + 4, in->shape[0], in->shape[1], in->shape[2],
             in[1].shape[1], attrs->silu };
  return v;
}

/* Returns whether rows i and j belong to one sequence. Tokens before 0 belong to that of token
 * 0. */
static int ref_same(const conv *v, int64_t b, int64_t i, int64_t j)
{
  if (k_absent(v->seq)) return 1;
  return sequence_at(v->seq, b, i < 0 ? 0 : i) == sequence_at(v->seq, b, j < 0 ? 0 : j);
}

/* Returns channel c of row i as token t reads it: 0 if they belong to different sequences. */
static double ref_row_at(const conv *v, int64_t b, int64_t t, int64_t i, int64_t c)
{
  if (v->T > 0 && !ref_same(v, b, i, t)) return 0;
  if (i >= 0) return ref_get(v->x, b * v->x->stride[0] + i * v->x->stride[1] + c * v->x->stride[2]);
  const k_tensor *s = v->initial;
  if (k_absent(s)) return 0;
  return ref_get(s, b * s->stride[0] + (i + v->K - 1) * s->stride[1] + c * s->stride[2]);
}

static double ref_conv1d_weight(const conv *v, int64_t c, int64_t k)
{
  return ref_get(v->w, c * v->w->stride[0] + k * v->w->stride[1]);
}

static double before_act(const conv *v, int64_t b, int64_t t, int64_t c)
{
  double y = k_absent(v->bias) ? 0 : ref_get(v->bias, c * v->bias->stride[0]);
  for (int64_t k = 0; k < v->K; k++)
    y += ref_conv1d_weight(v, c, k) * ref_row_at(v, b, t, t - (v->K - 1) + k, c);
  return y;
}

int k_ref_conv1d(const k_call *call)
{
  conv v = conv_of(call, call->in);
  TIDE_TRY(sequence_check(call, v.seq));
  const k_tensor *y = &call->out[0], *last = &call->out[1];
  for (int64_t b = 0; b < v.B; b++)
    for (int64_t c = 0; c < v.C; c++) {
      for (int64_t t = 0; t < v.T; t++) {
        double a = before_act(&v, b, t, c);
        ref_put(y, (b * v.T + t) * v.C + c, v.silu ? a * ref_sigmoid(a) : a);
      }
      for (int64_t j = 0; !k_absent(last) && j < v.K - 1; j++)
        ref_put(last, (b * (v.K - 1) + j) * v.C + c,
                ref_row_at(&v, b, v.T - 1, v.T - (v.K - 1) + j, c));
    }
  return TIDE_OK;
}

/* Returns the gradient of token t before the activation; 0 outside the tokens. */
static double grad_before(const conv *v, const k_tensor *dy, int64_t b, int64_t t, int64_t c)
{
  if (t < 0 || t >= v->T) return 0;
  double d = ref_get(dy, b * dy->stride[0] + t * dy->stride[1] + c * dy->stride[2]);
  if (!v->silu) return d;
  double a = before_act(v, b, t, c), s = ref_sigmoid(a);
  return d * s * (1 + a * (1 - s));
}

/* Returns the gradient of row i: from the tokens that it is a tap of, and from the last rows. */
static double grad_row(const conv *v, const k_tensor *dy, const k_tensor *dlast, int64_t b,
                       int64_t i, int64_t c)
{
  double sum = 0;
  for (int64_t k = 0; k < v->K; k++) {
    int64_t t = i + (v->K - 1) - k;
    if (t >= 0 && t < v->T && ref_same(v, b, i, t))
      sum += ref_conv1d_weight(v, c, k) * grad_before(v, dy, b, t, c);
  }
  int64_t j = i - (v->T - (v->K - 1));
  if (!k_absent(dlast) && j >= 0 && (v->T == 0 || ref_same(v, b, i, v->T - 1)))
    sum += ref_get(dlast, b * dlast->stride[0] + j * dlast->stride[1] + c * dlast->stride[2]);
  return sum;
}

static void grad_params(const conv *v, const k_tensor *dy, const k_tensor *dw,
                        const k_tensor *dbias, int64_t c)
{
  double db = 0, dk[4] = { 0 };
  for (int64_t b = 0; b < v->B; b++)
    for (int64_t t = 0; t < v->T; t++) {
      double d = grad_before(v, dy, b, t, c);
      db += d;
      for (int64_t k = 0; k < v->K; k++) dk[k] += d * ref_row_at(v, b, t, t - (v->K - 1) + k, c);
    }
  for (int64_t k = 0; k < v->K; k++) ref_put(dw, c * v->K + k, dk[k]);
  if (!k_absent(dbias)) ref_put(dbias, c, db);
}

int k_ref_conv1d_bwd(const k_call *call)
{
  conv v = conv_of(call, call->in + 1);
  TIDE_TRY(sequence_check(call, v.seq));
  const k_tensor *dy = &call->in[0], *dlast = &call->in[6], *dinitial = &call->out[3];
  for (int64_t c = 0; c < v.C; c++) {
    grad_params(&v, dy, &call->out[1], &call->out[2], c);
    for (int64_t b = 0; b < v.B; b++) {
      for (int64_t t = 0; t < v.T; t++)
        ref_put(&call->out[0], (b * v.T + t) * v.C + c, grad_row(&v, dy, dlast, b, t, c));
      for (int64_t j = 0; !k_absent(dinitial) && j < v.K - 1; j++)
        ref_put(dinitial, (b * (v.K - 1) + j) * v.C + c,
                grad_row(&v, dy, dlast, b, j - (v.K - 1), c));
    }
  }
  return TIDE_OK;
}
