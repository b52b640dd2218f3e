/* Movement: reshape, permute, slice, expand as views; cat, pad, roll as copies.
 *
 * A view shares its storage, costs one handle, and is recorded like any op, so gradients flow
 * through it. transpose, select, unsqueeze and squeeze are the same four views under other names.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

/* Records a view op: *out is a fresh view of c->in[0]. */
static int finish_view(tide__call *c, tide_tensor **out, int ndim, const int64_t *shape,
                       const int64_t *stride, int64_t offset)
{
  TIDE_TRY(tide__tensor_view(out, c->in[0], ndim, shape, stride, offset));
  c->nout = 1;
  c->out_[0] = *out;
  int rc = tide__record(c);
  if (rc < 0) {
    tide_tensor_release(*out);
    *out = NULL;
  }
  return rc;
}

/* Fills in the -1 of a requested shape. */
static int infer_shape(const tide_tensor *x, int ndim, const int64_t *shape, int64_t *full)
{
  int64_t n = tide__tensor_numel(x), known = 1;
  int hole = -1;
  for (int d = 0; d < ndim; d++) {
    full[d] = shape[d];
    if (shape[d] >= 0) known = tide__mul_size(known, shape[d]);
    else if (shape[d] == -1 && hole < 0) hole = d;
    else known = -1;
    if (known < 0) break;
  }
  if (hole >= 0 && known == 0) known = -1; /* any size would do */
  if (hole >= 0 && known > 0) {
    full[hole] = n / known;
    known *= full[hole];
  }
  if (known == n) return TIDE_OK;
  return tide__fail(x->ctx, TIDE_E_SHAPE, "reshape", "%s with %lld elements cannot become %s (one "
                    "size may be -1, unless another is 0)", TIDE__SHAPE_OF(x), (long long)n,
                    TIDE__SHAPE(ndim, shape));
}

int tide_reshape(tide_tensor **out, tide_tensor *x, int ndim, const int64_t *shape)
{
  tide__call c;
  tide_tensor *copy;
  int64_t full[TIDE_MAX_DIM], stride[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, TIDE_OP_RESHAPE, out, 1, &x, 0));
  TIDE_TRY(tide__check_ndim(c.ctx, "reshape", "shape", ndim, shape));
  TIDE_TRY(infer_shape(x, ndim, shape, full));
  if (tide__reshape_view(x->ndim, x->shape, x->stride, ndim, full, stride))
    return finish_view(&c, out, ndim, full, stride, x->offset);
  TIDE_TRY(tide_clone(&copy, x));
  int rc = tide_reshape(out, copy, ndim, full);
  tide_tensor_release(copy);
  return rc;
}

int tide__grad_reshape(const tide__grad_call *g)
{
  return tide_reshape(&g->gin[0], g->gout[0], g->meta[0].ndim, g->meta[0].shape);
}

int tide_permute(tide_tensor **out, tide_tensor *x, int ndim, const int32_t *order)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM], stride[TIDE_MAX_DIM];
  uint32_t seen = 0;
  TIDE_TRY(tide__begin(&c, TIDE_OP_PERMUTE, out, 1, &x, 0));
  if (ndim != x->ndim)
    return TIDE__FAIL(&c, TIDE_E_ARG, "order has %d dims, the tensor %d", ndim, x->ndim);
  TIDE_TRY(tide__check_ndim(c.ctx, "permute", "order", ndim, order));
  for (int i = 0; i < ndim; i++) {
    int d = tide__resolve_dim(order[i], ndim);
    if (d < 0 || seen >> d & 1)
      return TIDE__FAIL(&c, TIDE_E_ARG, "order: entry %d (%d) is outside the dims or named twice",
                        i + 1, order[i]);
    seen |= 1u << d;
    c.attrs.permute.order[i] = d;
    shape[i] = x->shape[d];
    stride[i] = x->stride[d];
  }
  return finish_view(&c, out, ndim, shape, stride, x->offset);
}

int tide__grad_permute(const tide__grad_call *g)
{
  int32_t inverse[TIDE_MAX_DIM];
  for (int i = 0; i < g->meta[0].ndim; i++) inverse[g->attrs->permute.order[i]] = i;
  return tide_permute(&g->gin[0], g->gout[0], g->meta[0].ndim, inverse);
}

int tide_transpose(tide_tensor **out, tide_tensor *x, int dim0, int dim1)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  int32_t order[TIDE_MAX_DIM];
  int a = tide__check_dim(x, dim0, "transpose"), b = tide__check_dim(x, dim1, "transpose");
  if (a < 0 || b < 0) return TIDE_E_ARG;
  for (int d = 0; d < x->ndim; d++) order[d] = d == a ? b : d == b ? a : d;
  return tide__relabel(x->ctx, tide_permute(out, x, x->ndim, order), "transpose");
}

int tide_slice(tide_tensor **out, tide_tensor *x, int dim, int64_t start, int64_t stop,
               int64_t step)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM], stride[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, TIDE_OP_SLICE, out, 1, &x, 0));
  int d = tide__check_dim(x, dim, "slice");
  if (d < 0) return d;
  int64_t n = x->shape[d], from = start < 0 ? start + n : start, to = stop < 0 ? stop + n : stop;
  if (step < 1 || from < 0 || to < from || to > n)
    return TIDE__FAIL(&c, TIDE_E_ARG, "start %lld, stop %lld and step %lld do not fit dim %d of "
                      "size %lld", (long long)start, (long long)stop, (long long)step, d,
                      (long long)n);
  memcpy(shape, x->shape, sizeof shape);
  memcpy(stride, x->stride, sizeof stride);
  shape[d] = (to - from) / step + ((to - from) % step != 0);
  stride[d] = shape[d] > 1 ? stride[d] * step : stride[d]; /* step may be huge if the size is 1 */
  c.attrs.slice.start = from;
  c.attrs.slice.step = step;
  c.attrs.slice.dim = d;
  int64_t offset = x->offset + (shape[d] ? from * x->stride[d] : 0);
  return finish_view(&c, out, x->ndim, shape, stride, offset);
}

/* Writes dy into the slice of a tensor of zeros. */
int tide__grad_slice(const tide__grad_call *g)
{
  const tide__meta *m = &g->meta[0];
  int d = g->attrs->slice.dim;
  int64_t step = g->attrs->slice.step, start = g->attrs->slice.start;
  int64_t n = g->gout[0]->shape[d], stop = n ? start + (n - 1) * step + 1 : start;
  tide_tensor *view = NULL;
  TIDE_TRY(tide_full(&g->gin[0], g->ctx, m->device, m->dtype, m->ndim, m->shape, 0));
  TIDE_TRY(tide_slice(&view, g->gin[0], d, start, stop, step));
  int rc = tide_copy_(view, g->gout[0]);
  tide_tensor_release(view);
  return rc;
}

static int drop_dim(tide_tensor **out, tide_tensor *x, int d)
{
  int64_t shape[TIDE_MAX_DIM];
  int n = 0;
  for (int i = 0; i < x->ndim; i++)
    if (i != d) shape[n++] = x->shape[i];
  return tide_reshape(out, x, n, shape);
}

int tide_select(tide_tensor **out, tide_tensor *x, int dim, int64_t index)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  tide_tensor *s;
  int d = tide__check_dim(x, dim, "select");
  if (d < 0) return d;
  int64_t i = index < 0 ? index + x->shape[d] : index;
  if (i < 0 || i >= x->shape[d])
    return tide__fail(x->ctx, TIDE_E_ARG, "select", "index %lld is outside dim %d of size %lld",
                      (long long)index, d, (long long)x->shape[d]);
  TIDE_TRY(tide__relabel(x->ctx, tide_slice(&s, x, d, i, i + 1, 1), "select"));
  int rc = drop_dim(out, s, d);
  tide_tensor_release(s);
  return rc;
}

int tide_unsqueeze(tide_tensor **out, tide_tensor *x, int dim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  int64_t shape[TIDE_MAX_DIM];
  int d = tide__resolve_dim(dim, x->ndim + 1);
  if (d < 0 || x->ndim == TIDE_MAX_DIM)
    return tide__fail(x->ctx, TIDE_E_ARG, "unsqueeze", "dim: %d does not fit a tensor of %d dims "
                      "(at most %d)", dim, x->ndim, TIDE_MAX_DIM);
  for (int i = 0; i <= x->ndim; i++) shape[i] = i < d ? x->shape[i] : i == d ? 1 : x->shape[i - 1];
  return tide__relabel(x->ctx, tide_reshape(out, x, x->ndim + 1, shape), "unsqueeze");
}

int tide_squeeze(tide_tensor **out, tide_tensor *x, int dim)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  int d = tide__check_dim(x, dim, "squeeze");
  if (d < 0) return d;
  if (x->shape[d] != 1)
    return tide__fail(x->ctx, TIDE_E_SHAPE, "squeeze", "dim: expected one of size 1, got size %lld",
                      (long long)x->shape[d]);
  return tide__relabel(x->ctx, drop_dim(out, x, d), "squeeze");
}

int tide_expand(tide_tensor **out, tide_tensor *x, int ndim, const int64_t *shape)
{
  tide__call c;
  int64_t stride[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, TIDE_OP_EXPAND, out, 1, &x, 0));
  TIDE_TRY(tide__check_ndim(c.ctx, "expand", "shape", ndim, shape));
  if (tide__numel(ndim, shape) < 0 ||
      !tide__expand(x->ndim, x->shape, x->stride, ndim, shape, stride))
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "%s does not expand to %s", TIDE__SHAPE_OF(x),
                      TIDE__SHAPE(ndim, shape));
  return finish_view(&c, out, ndim, shape, stride, x->offset);
}

int tide__grad_expand(const tide__grad_call *g)
{
  return tide__sum_to(&g->gin[0], g->gout[0], &g->meta[0]);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Checks the pieces and computes the joint shape; resolves the dim into *dim. */
static int cat_shape(tide__call *c, tide_tensor *const *xs, int64_t n, int *dim, int64_t *shape)
{
  *dim = tide__check_dim(xs[0], *dim, "cat");
  if (*dim < 0) return *dim;
  memcpy(shape, xs[0]->shape, sizeof xs[0]->shape);
  for (int64_t i = 1; i < n; i++) {
    bool fit = xs[i]->ndim == xs[0]->ndim && xs[i]->dtype == xs[0]->dtype;
    for (int d = 0; fit && d < xs[0]->ndim; d++)
      fit = d == *dim || xs[i]->shape[d] == xs[0]->shape[d];
    if (!fit)
      return TIDE__FAIL(c, TIDE_E_SHAPE, "piece %lld is %s, piece 1 is %s: they may differ along "
                        "dim only", (long long)i + 1, TIDE__TEXT(xs[i]), TIDE__TEXT(xs[0]));
    shape[*dim] += xs[i]->shape[*dim];
  }
  return TIDE_OK;
}

/* Starts a call over a list of any length; each piece is checked like an operand. */
static int begin_list(tide__call *c, int op, tide_tensor *const *xs, int64_t n)
{
  TIDE_TRY(tide__begin(c, op, NULL, 1, xs, 0));
  for (int64_t i = 1; i < n; i++) TIDE_TRY(tide__check_operand(c, "xs", i, xs[i]));
  c->nin = (int)n;
  c->in = (tide_tensor **)xs;
  return TIDE_OK;
}

int tide_cat(tide_tensor **out, tide_tensor *const *xs, int64_t n, int dim)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM];
  *out = NULL;
  bool list = xs && n >= 1 && n <= 1 << 20;
  if (!list)
    return tide__fail(xs && n >= 1 && tide__alive(xs[0], TIDE__KIND_TENSOR) ? xs[0]->ctx : NULL,
                      TIDE_E_ARG, "cat", "xs: expected a list of 1 to 2^20 tensors, got %lld%s",
                      (long long)n, xs ? "" : " and null");
  TIDE_TRY(begin_list(&c, TIDE_OP_CAT, xs, n));
  TIDE_TRY(cat_shape(&c, xs, n, &dim, shape));
  c.attrs.dim.dim = dim;
  return tide__dispatch_one(&c, out, xs[0]->dtype, xs[0]->ndim, shape);
}

int tide__grad_cat(const tide__grad_call *g)
{
  int d = g->attrs->dim.dim;
  int64_t at = 0;
  for (int i = 0; i < g->nin; i++) {
    int64_t n = g->meta[i].shape[d];
    if (g->need[i]) TIDE_TRY(tide_slice(&g->gin[i], g->gout[0], d, at, at + n, 1));
    at += n;
  }
  return TIDE_OK;
}

int tide_pad(tide_tensor **out, tide_tensor *x, int ndim, const int64_t *before,
             const int64_t *after, double value)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, TIDE_OP_PAD, out, 1, &x, 0));
  if (ndim != x->ndim)
    return TIDE__FAIL(&c, TIDE_E_ARG, "ndim: expected that of the tensor, %d, got %d", x->ndim,
                      ndim);
  TIDE_TRY(tide__check_ndim(c.ctx, "pad", "before and after", ndim, before ? after : NULL));
  for (int d = 0; d < ndim; d++) {
    if (__builtin_add_overflow(x->shape[d], before[d], &shape[d]) ||
        __builtin_add_overflow(shape[d], after[d], &shape[d]) || shape[d] < 0 ||
        before[d] < -x->shape[d] || after[d] < -x->shape[d])
      return TIDE__FAIL(&c, TIDE_E_SHAPE, "before and after: the size %lld cannot be padded by "
                        "%lld and %lld", (long long)x->shape[d], (long long)before[d],
                        (long long)after[d]);
    c.attrs.pad.before[d] = before[d];
  }
  c.attrs.pad.value = value;
  return tide__dispatch_one(&c, out, x->dtype, ndim, shape);
}

/* Crops or pads dy: the adjoint of padding is cropping, that of cropping is padding with zeros. */
int tide__grad_pad(const tide__grad_call *g)
{
  int64_t before[TIDE_MAX_DIM], after[TIDE_MAX_DIM];
  const tide__meta *m = &g->meta[0];
  for (int d = 0; d < m->ndim; d++) {
    before[d] = -g->attrs->pad.before[d];
    after[d] = m->shape[d] - g->gout[0]->shape[d] - before[d];
  }
  return tide_pad(&g->gin[0], g->gout[0], m->ndim, before, after, 0);
}

int tide_roll(tide_tensor **out, tide_tensor *x, int dim, int64_t shift)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_ROLL, out, 1, &x, 0));
  int d = tide__check_dim(x, dim, "roll");
  if (d < 0) return d;
  c.attrs.roll.dim = d;
  c.attrs.roll.shift = x->shape[d] ? shift % x->shape[d] : 0;
  return tide__dispatch_one(&c, out, x->dtype, x->ndim, x->shape);
}

int tide__grad_roll(const tide__grad_call *g)
{
  return tide_roll(&g->gin[0], g->gout[0], g->attrs->roll.dim, -g->attrs->roll.shift);
}
