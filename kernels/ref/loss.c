/* Defines the losses: cross_entropy, its backward, and linear_cross_entropy.
 *
 * One row of logits gives max and logsum = log(sum exp(z - max)) in double; the loss and its
 * gradient are short expressions in those, with lse = max + logsum:
 *   loss   = (1 - eps)((max - z[t]) + logsum) + eps (mean(max - z) + logsum) + zl lse^2
 *   dz[v]  = (1 + 2 zl lse) exp((z[v] - max) - logsum) - (1 - eps) [v = t] - eps / V
 * Logits are only ever subtracted from each other, so a constant added to all of them costs no
 * accuracy; lse, in which logsum is lost beside a large max, is used for the z-loss alone. A token
 * whose target is ignore_index has loss 0, logsum 0 and gradient 0. All targets are checked before
 * anything is written.
 *
 * Row strides of logits, x and w are free; everything else is contiguous.
 */
#include "kernels/ref/loss.h"

/* The logits of one row, from memory or from a scratch row of doubles. */
typedef struct row {
  const k_tensor *logits;
  const double *values; /* if not null, read instead of logits */
  int64_t base, nclass;
} row;

static double logit(const row *r, int64_t v)
{
  return r->values ? r->values[v] : ref_get(r->logits, r->base + v);
}

/* The logsumexp of a row, in its two parts. */
typedef struct norm { double max, logsum; } norm;

/* Returns the largest logit that is not NaN, or 0 if all are -inf; logsum is then -inf. */
static double ref_row_max(const row *r)
{
  double max = -INFINITY;
  for (int64_t v = 0; v < r->nclass; v++) max = fmax(max, logit(r, v));
  return max == -INFINITY ? 0 : max;
}

static norm row_norm(const row *r)
{
  double max = ref_row_max(r), sum = 0;
  for (int64_t v = 0; v < r->nclass; v++) sum += exp(logit(r, v) - max);
  return (norm){ max, log(sum) };
}

static double row_loss(const row *r, int64_t target, norm m, const k_cross_entropy_attrs *attrs)
{
  double eps = attrs->label_smoothing, lse = m.max + m.logsum;
  double loss = (1 - eps) * ((m.max - logit(r, target)) + m.logsum);
  if (eps != 0) {
    double below = 0;
    for (int64_t v = 0; v < r->nclass; v++) below += m.max - logit(r, v);
    loss += eps * (below / (double)r->nclass + m.logsum);
  }
  return attrs->z_loss != 0 ? loss + attrs->z_loss * lse * lse : loss;
}

static double row_grad(const row *r, int64_t v, int64_t target, norm m,
                       const k_cross_entropy_attrs *attrs)
{
  double eps = attrs->label_smoothing, lse = m.max + m.logsum;
  double grad = (1 + 2 * attrs->z_loss * lse) * exp((logit(r, v) - m.max) - m.logsum);
  grad -= eps / (double)r->nclass;
  return v == target ? grad - (1 - eps) : grad;
}

int k_ref_cross_entropy(const k_call *call)
{
  const k_cross_entropy_attrs *attrs = call->attrs;
  const k_tensor *logits = &call->in[0], *targets = &call->in[1];
  int64_t n = logits->shape[0], nclass = logits->shape[1];
  int status = loss_check_targets(call, targets, nclass);
  if (status < 0) return status;
  for (int64_t i = 0; i < n; i++) {
    row r = { .logits = logits, .base = i * logits->stride[0], .nclass = nclass };
    int64_t target = loss_target(targets, i);
    int counts = target != attrs->ignore_index;
    norm m = counts ? row_norm(&r) : (norm){ 0, 0 };
    ref_put(&call->out[0], i, counts ? row_loss(&r, target, m, attrs) : 0);
    ref_put(&call->out[1], i, m.logsum);
  }
  return TIDE_OK;
}

int k_ref_cross_entropy_bwd(const k_call *call)
{
  const k_cross_entropy_attrs *attrs = call->attrs;
  const k_tensor *dloss = &call->in[0], *logits = &call->in[1], *targets = &call->in[2];
  const k_tensor *logsum = &call->in[3], *dlogits = &call->out[0];
  int64_t n = logits->shape[0], nclass = logits->shape[1];
  int status = loss_check_targets(call, targets, nclass);
  if (status < 0) return status;
  for (int64_t i = 0; i < n; i++) {
    row r = { .logits = logits, .base = i * logits->stride[0], .nclass = nclass };
    int64_t target = loss_target(targets, i), out = i * dlogits->stride[0];
    double scale = ref_get(dloss, i * dloss->stride[0]);
    int counts = target != attrs->ignore_index;
    norm m = { counts ? ref_row_max(&r) : 0, ref_get(logsum, i * logsum->stride[0]) };
    for (int64_t v = 0; v < nclass; v++) {
      double grad = counts ? scale * row_grad(&r, v, target, m, attrs) : 0;
      ref_put(dlogits, out + v, grad);
    }
  }
  return TIDE_OK;
}

/* x [N, D], w [V, D], grads [N, V]: the logits at first, then their gradients. */
typedef struct fused {
  const k_tensor *x, *w, *bias, *targets, *dx, *dw, *dbias;
  const k_cross_entropy_attrs *attrs;
  int64_t n, dim, nclass;
  double *grads;
} fused;

static double fused_logit(const fused *f, int64_t i, int64_t v)
{
  double sum = k_absent(f->bias) ? 0 : ref_get(f->bias, v);
  for (int64_t d = 0; d < f->dim; d++)
    sum += ref_get(f->x, i * f->x->stride[0] + d) * ref_get(f->w, v * f->w->stride[0] + d);
  return sum;
}

/* Returns the row's loss and replaces its logits by their gradient. */
static double fused_row(const fused *f, int64_t i)
{
  double *values = f->grads + i * f->nclass;
  int64_t target = loss_target(f->targets, i);
  row r = { .values = values, .nclass = f->nclass };
  if (target == f->attrs->ignore_index) {
    for (int64_t v = 0; v < f->nclass; v++) values[v] = 0;
    return 0;
  }
  for (int64_t v = 0; v < f->nclass; v++) values[v] = fused_logit(f, i, v);
  norm m = row_norm(&r);
  double loss = row_loss(&r, target, m, f->attrs);
  for (int64_t v = 0; v < f->nclass; v++) values[v] = row_grad(&r, v, target, m, f->attrs);
  return loss;
}

static void fused_dx(const fused *f)
{
  for (int64_t i = 0; i < f->n; i++) {
    for (int64_t d = 0; d < f->dim; d++) {
      double sum = 0;
      for (int64_t v = 0; v < f->nclass; v++)
        sum += f->grads[i * f->nclass + v] * ref_get(f->w, v * f->w->stride[0] + d);
      ref_put(f->dx, i * f->dim + d, sum);
    }
  }
}

static void fused_dw(const fused *f)
{
  for (int64_t v = 0; v < f->nclass; v++) {
    for (int64_t d = 0; d < f->dim; d++) {
      double sum = 0;
      for (int64_t i = 0; i < f->n; i++)
        sum += f->grads[i * f->nclass + v] * ref_get(f->x, i * f->x->stride[0] + d);
      ref_put(f->dw, v * f->dim + d, sum);
    }
  }
}

static void fused_dbias(const fused *f)
{
  for (int64_t v = 0; v < f->nclass; v++) {
    double sum = 0;
    for (int64_t i = 0; i < f->n; i++) sum += f->grads[i * f->nclass + v];
    ref_put(f->dbias, v, sum);
  }
}

int64_t k_ref_linear_cross_entropy_work(const k_call *call)
{
  return call->in[0].shape[0] * call->in[1].shape[0] * (int64_t)sizeof(double);
}

int k_ref_linear_cross_entropy(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  fused f = { .x = &in[0], .w = &in[1], .bias = &in[2], .targets = &in[3], .dx = &out[1],
              .dw = &out[2], .dbias = &out[3], .attrs = call->attrs, .n = in[0].shape[0],
              .dim = in[0].shape[1], .nclass = in[1].shape[0], .grads = call->work };
  int status = loss_check_targets(call, f.targets, f.nclass);
  if (status < 0) return status;
  double loss = 0;
  for (int64_t i = 0; i < f.n; i++) loss += fused_row(&f, i);
  ref_put(&out[0], 0, loss);
  if (!k_absent(f.dx)) fused_dx(&f);
  if (!k_absent(f.dw)) fused_dw(&f);
  if (!k_absent(f.dbias)) fused_dbias(&f);
  return TIDE_OK;
}
