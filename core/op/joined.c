/* Ops over tensors that lie side by side in one buffer: one launch serves them all.
 *
 * Weights [N_i, K] whose rows follow each other are one weight [sum N_i, K], and the results of
 * their product with one x are columns of one matrix. In backward the gradients of these results
 * may lie side by side, too (core/grad/joint.c); then the gradient of x is one product, and that of
 * the weights another, whose parts lie as the weights do. Where something else is found, each
 * tensor is treated by itself, with the same result but for the order of sums.
 */
#include "core/op/derivative.h"
#include "core/op/joined.h"
#include "core/op/op.h"
#include "core/op/product.h"

enum { WEIGHT = 1, BIAS = WEIGHT + TIDE_MAX_JOINED }; /* the first inputs of these kinds */

/* ---- side by side ---------------------------------------------------------------------------- */

bool tide__same_elements(const tide_tensor *a, const tide_tensor *b)
{
  bool same = a->storage == b->storage && a->offset == b->offset && a->ndim == b->ndim;
  for (int d = 0; same && d < a->ndim; d++)
    same = a->shape[d] <= 1 || a->stride[d] == b->stride[d];
  return same;
}

/* Returns the stride of `dim` over all parts: that of one with several entries there, else the
 * distance of the first two parts. */
static int64_t joined_stride(int n, tide_tensor *const *xs, int dim)
{
  for (int i = 0; i < n; i++)
    if (xs[i]->shape[dim] > 1) return xs[i]->stride[dim];
  return n > 1 && xs[0]->shape[dim] ? xs[1]->offset - xs[0]->offset : xs[0]->stride[dim];
}

/* Returns whether x lies `at` entries of dim behind a, and is like it in other dims. */
static bool lies_behind(const tide_tensor *x, const tide_tensor *a, int dim, int64_t at,
                        int64_t stride)
{
  bool fit = x->storage == a->storage && x->dtype == a->dtype && x->ndim == a->ndim &&
             x->offset == a->offset + at * stride &&
             (x->shape[dim] <= 1 || x->stride[dim] == stride);
  for (int d = 0; fit && d < a->ndim; d++)
    fit = d == dim || (x->shape[d] == a->shape[d] &&
                       (x->shape[d] <= 1 || x->stride[d] == a->stride[d]));
  return fit;
}

int tide__side_by_side(tide_tensor **out, int n, tide_tensor *const *xs, int dim)
{
  *out = NULL;
  for (int i = 0; i < n; i++)
    if (!xs[i]) return TIDE_OK;
  const tide_tensor *a = xs[0];
  if (dim >= a->ndim) return TIDE_OK;
  int64_t stride[TIDE_MAX_DIM], shape[TIDE_MAX_DIM], at = 0, reach = 1;
  memcpy(shape, a->shape, sizeof shape);
  memcpy(stride, a->stride, sizeof stride);
  for (int i = 1; i < n; i++)
    if (xs[i]->ndim != a->ndim) return TIDE_OK;
  stride[dim] = joined_stride(n, xs, dim);
  for (int i = 0; i < n; i++) {
    if (!lies_behind(xs[i], a, dim, at, stride[dim])) return TIDE_OK;
    at += xs[i]->shape[dim];
  }
  for (int d = dim + 1; d < a->ndim; d++) reach += (shape[d] - 1) * stride[d];
  if (stride[dim] < reach) return TIDE_OK;
  shape[dim] = at;
  return tide__tensor_view(out, xs[0], a->ndim, shape, stride, a->offset);
}

int tide__narrow(tide_tensor **out, tide_tensor *x, int dim, int64_t at, int64_t n)
{
  int64_t shape[TIDE_MAX_DIM];
  memcpy(shape, x->shape, sizeof shape);
  shape[dim] = n;
  return tide__tensor_view(out, x, x->ndim, shape, x->stride, x->offset + at * x->stride[dim]);
}

int tide__cut(tide_tensor **parts, tide_tensor *x, int dim, int n, const int64_t *sizes)
{
  int64_t at = 0;
  for (int i = 0; i < n; i++) {
    int rc = tide__narrow(&parts[i], x, dim, at, sizes[i]);
    if (rc < 0) {
      while (i-- > 0) {
        tide_tensor_release(parts[i]);
        parts[i] = NULL;
      }
      return rc;
    }
    at += sizes[i];
  }
  return TIDE_OK;
}

void tide__release_all(int n, tide_tensor **xs)
{
  for (int i = 0; i < n; i++) {
    tide_tensor_release(xs[i]);
    xs[i] = NULL;
  }
}

void tide__no_results(tide_tensor **outs, int n)
{
  outs[0] = NULL;
  for (int i = 1; i < n && i < TIDE_MAX_JOINED; i++) outs[i] = NULL;
}

int tide__check_joined(tide_ctx *ctx, const char *op, const char *arg, int n,
                       tide_tensor *const *list)
{
  if (list && n >= 1 && n <= TIDE_MAX_JOINED) return TIDE_OK;
  return tide__fail(ctx, TIDE_E_ARG, op, "%s: expected 1 to %d tensors, got %d%s", arg,
                    TIDE_MAX_JOINED, n, list ? "" : " and null");
}

/* ---- linear_joined --------------------------------------------------------------------------- */

/* Joins weights and biases: *w is null where they do not lie side by side. */
static int join_operands(tide_tensor **w, tide_tensor **b, int n, tide_tensor *const *ws,
                         tide_tensor *const *bs)
{
  int nbias = 0;
  *w = *b = NULL;
  for (int i = 0; i < n; i++) nbias += bs[i] != NULL;
  if (n < 2 || (nbias != 0 && nbias != n)) return TIDE_OK;
  TIDE_TRY(tide__side_by_side(w, n, ws, 0));
  if (!*w) return TIDE_OK;
  int rc = nbias ? tide__side_by_side(b, n, bs, 0) : TIDE_OK;
  bool dense = tide__is_contiguous((*w)->ndim, (*w)->shape, (*w)->stride) &&
               (!*b || (*b)->stride[0] == 1);
  if (rc < 0 || !dense || (nbias && !*b)) {
    tide_tensor_release(*w);
    tide_tensor_release(*b);
    *w = *b = NULL;
  }
  return rc;
}

/* Computes one product and cuts its result into the outs. */
static int product_joined(tide__call *c, tide_tensor **outs, int n, tide_tensor *w, tide_tensor *b)
{
  tide_tensor *y;
  int64_t sizes[TIDE_MAX_JOINED];
  int rc;
  for (int i = 0; i < n; i++) sizes[i] = c->in[WEIGHT + i]->shape[0];
  TIDE__UNRECORDED(c->ctx, rc = tide_linear(&y, c->in[0], w, b));
  TIDE_TRY(rc);
  rc = tide__cut(outs, y, y->ndim - 1, n, sizes);
  tide_tensor_release(y);
  c->nout = n;
  c->out = outs;
  if (rc == TIDE_OK) rc = tide__record(c);
  return rc;
}

static int each_linear(tide_tensor **outs, tide_tensor *x, int n, tide_tensor *const *ws,
                       tide_tensor *const *bs)
{
  for (int i = 0; i < n; i++) TIDE_TRY(tide_linear(&outs[i], x, ws[i], bs[i]));
  return TIDE_OK;
}

int tide_linear_joined(tide_tensor **outs, tide_tensor *x, int n, tide_tensor *const *ws,
                       tide_tensor *const *biases)
{
  tide__call c;
  tide_tensor *in[BIAS + TIDE_MAX_JOINED] = {x}, *w, *b;
  tide__no_results(outs, n);
  TIDE_DOOR(TIDE_OBJECT(TENSOR, x));
  TIDE_TRY(tide__check_joined(x->ctx, "linear_joined", "ws", n, ws));
  bool any = false;
  for (int i = 0; i < n; i++) {
    in[WEIGHT + i] = ws[i];
    in[BIAS + i] = biases ? biases[i] : NULL;
    any = any || in[BIAS + i];
  }
  /* what may be absent: all but x and the weights */
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR_JOINED, NULL, any ? BIAS + TIDE_MAX_JOINED : BIAS, in,
                       ~0u << (WEIGHT + n)));
  for (int i = 0; i < n; i++) TIDE_TRY(tide__check_linear(&c, x, ws[i], in[BIAS + i]));
  TIDE_TRY(join_operands(&w, &b, n, ws, in + BIAS));
  int rc = w ? product_joined(&c, outs, n, w, b) : each_linear(outs, x, n, ws, in + BIAS);
  tide_tensor_release(w);
  tide_tensor_release(b);
  if (rc < 0) tide__release_all(n, outs);
  return rc;
}

/* Copies the gradients that lie elsewhere into the joint buffer, and returns it; *out stays null
 * without such a buffer, or if a gradient is missing. */
static int gather_parts(tide_tensor **out, const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *joint = g->joint->whole(g);
  int64_t at = 0;
  for (int i = 0; i < g->nout; i++)
    if (!g->gout[i]) return TIDE_OK;
  if (!joint) return TIDE_OK;
  for (int i = 0; i < g->nout; i++) {
    tide_tensor *dy = g->gout[i], *part;
    int64_t n = dy->shape[dy->ndim - 1];
    part = TIDE__TEMP(&v, tide__narrow, joint, joint->ndim - 1, at, n);
    if (part && !tide__same_elements(part, dy)) TIDE__DO(&v, tide_copy_(part, dy));
    at += n;
  }
  if (v.rc == TIDE_OK) tide_tensor_retain(*out = joint);
  return tide__temps_end(&v);
}

/* Computes each gradient by itself, last one first. */
static int grad_of_each(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *dx = g->sum ? g->sum[0] : NULL, *x = NULL;
  int32_t first = 0;
  if (dx) dx = TIDE__TEMP(&v, tide__rows_of, dx);
  for (int i = g->nout; i-- > 0;) {
    if (!g->gout[i]) continue;
    tide_tensor *dy = TIDE__TEMP(&v, tide__rows_of, g->gout[i]);
    if (g->need[0] && dx) TIDE__DO(&v, tide_addmm_(dx, dy, g->in[WEIGHT + i]));
    else if (g->need[0]) dx = TIDE__TEMP(&v, tide__grad_product, g, 0, dy, g->in[WEIGHT + i]);
    if (g->need[WEIGHT + i]) {
      x = x ? x : TIDE__TEMP(&v, tide__rows_of, g->in[0]);
      tide_tensor *dyt = TIDE__TEMP(&v, tide_transpose, dy, 0, 1);
      TIDE__DO(&v, tide__grad_product(&g->gin[WEIGHT + i], g, WEIGHT + i, dyt, x));
    }
    if (g->nin > BIAS && g->need[BIAS + i])
      TIDE__DO(&v, tide_sum(&g->gin[BIAS + i], dy, 1, &first, false));
  }
  if (g->need[0] && dx && !(g->sum && g->sum[0]))
    TIDE__DO(&v, tide_reshape(&g->gin[0], dx, g->meta[0].ndim, g->meta[0].shape));
  return tide__temps_end(&v);
}

/* Returns whether one product can make the gradients of the n inputs from `first` on: all are
 * wanted in one dtype, and are added to nothing, or to a matrix of parts: *sum. */
static int wants_joint(tide_tensor **sum, const tide__grad_call *g, int first, bool *yes)
{
  int nsum = 0;
  *sum = NULL;
  *yes = true;
  for (int i = first; i < first + g->nout; i++) {
    *yes = *yes && g->need[i] && g->sum_dtype[i] == g->sum_dtype[first];
    nsum += g->sum[i] != NULL;
  }
  if (!*yes || nsum == 0) return TIDE_OK;
  TIDE_TRY(tide__side_by_side(sum, g->nout, g->sum + first, 0));
  *yes = *sum != NULL;
  return TIDE_OK;
}

/* Cuts a gradient of all weights or biases into theirs. */
static int hand_out(const tide__grad_call *g, int first, tide_tensor *all)
{
  int64_t sizes[TIDE_MAX_JOINED];
  for (int i = 0; i < g->nout; i++) sizes[i] = g->meta[first + i].shape[0];
  TIDE_TRY(tide__cut(g->gin + first, all, 0, g->nout, sizes));
  for (int i = 0; i < g->nout; i++) tide__tensor_mark_part(g->gin[first + i]);
  return TIDE_OK;
}

/* Computes the gradients of the weights in one product. Columns dy_i of dy belong to weight i. */
static int grad_of_weights(const tide__grad_call *g, tide_tensor *dy, tide_tensor *x)
{
  tide__temps v = {0};
  tide_tensor *sum, *all;
  bool joint;
  TIDE_TRY(wants_joint(&sum, g, WEIGHT, &joint));
  tide_tensor *dyt = TIDE__TEMP(&v, tide_transpose, dy, 0, 1);
  if (joint && sum) {
    TIDE__DO(&v, tide_addmm_(sum, dyt, x));
  } else if (joint) {
    all = TIDE__TEMP(&v, tide__product, dyt, x, g->sum_dtype[WEIGHT]);
    if (all) TIDE__DO(&v, hand_out(g, WEIGHT, all));
  } else {
    int64_t at = 0;
    for (int i = WEIGHT; v.rc == TIDE_OK && i < WEIGHT + g->nout; i++) {
      int64_t n = g->meta[i].shape[0];
      tide_tensor *part = TIDE__TEMP(&v, tide__narrow, dyt, 0, at, n);
      if (g->need[i]) TIDE__DO(&v, tide__grad_product(&g->gin[i], g, i, part, x));
      at += n;
    }
  }
  tide_tensor_release(sum);
  return tide__temps_end(&v);
}

static int grad_of_biases(const tide__grad_call *g, tide_tensor *dy)
{
  tide__temps v = {0};
  int32_t first = 0;
  bool any = false;
  for (int i = BIAS; i < BIAS + g->nout; i++) any = any || g->need[i];
  if (!any) return TIDE_OK;
  int64_t at = 0;
  tide_tensor *all = TIDE__TEMP(&v, tide_sum, dy, 1, &first, false);
  for (int i = BIAS; v.rc == TIDE_OK && i < BIAS + g->nout; i++) {
    if (g->need[i]) TIDE__DO(&v, tide__narrow(&g->gin[i], all, 0, at, g->meta[i].shape[0]));
    if (g->gin[i]) tide__tensor_mark_part(g->gin[i]);
    at += g->meta[i].shape[0];
  }
  return tide__temps_end(&v);
}

int tide__grad_linear_joined(const tide__grad_call *g)
{
  tide__temps v = {0};
  const tide_tensor *like = NULL;
  tide_tensor *all = NULL, *w = NULL;
  for (int i = 0; i < g->nout && !like; i++) like = g->gout[i];
  TIDE_TRY(tide__side_by_side(&all, g->nout, g->gout, like->ndim - 1));
  if (!all) TIDE_TRY(gather_parts(&all, g));
  if (!all) return grad_of_each(g);
  tide_tensor *dy = TIDE__TEMP(&v, tide__rows_of, all);
  if (g->need[0]) TIDE__DO(&v, tide__side_by_side(&w, g->nout, g->in + WEIGHT, 0));
  if (g->need[0]) TIDE__DO(&v, tide__grad_of_rows(g, dy, w));
  bool weights = false;
  for (int i = WEIGHT; i < WEIGHT + g->nout; i++) weights = weights || g->need[i];
  if (weights) {
    tide_tensor *x = TIDE__TEMP(&v, tide__rows_of, g->in[0]);
    TIDE__DO(&v, grad_of_weights(g, dy, x));
  }
  if (g->nin > BIAS) TIDE__DO(&v, grad_of_biases(g, dy));
  tide_tensor_release(all);
  tide_tensor_release(w);
  return tide__temps_end(&v);
}
