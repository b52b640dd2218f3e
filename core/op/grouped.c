/* Rows in groups, and products of groups of rows, each with a weight of its own: what a mixture of
 * experts needs.
 *
 * With rows [offsets[g], offsets[g + 1]) in group g, y = x w[g]^T. The derivatives are grouped
 * products again: dx = dy w[g], dw[g] = dy_g^T x_g. A row in no group has y = 0 and dx = 0.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"
#include "core/op/product.h"

int tide_group_rows(tide_tensor **rows, tide_tensor **place, tide_tensor **offsets,
                    tide_tensor *ids, int64_t groups)
{
  tide__call c;
  tide_tensor *y[3] = {NULL, NULL, NULL};
  *rows = *place = *offsets = NULL;
  TIDE_TRY(tide__begin(&c, TIDE_OP_GROUP_ROWS, NULL, 1, &ids, 0));
  TIDE_TRY(tide__check_index(ids, TIDE__NAME(&c), "ids"));
  if (ids->ndim != 1 && ids->ndim != 2)
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "ids: expected [rows] or [rows, choices], got %s",
                      TIDE__SHAPE_OF(ids));
  if (groups < 1 || groups > INT32_MAX)
    return TIDE__FAIL(&c, TIDE_E_ARG, "groups: expected 1 to %d, got %lld", INT32_MAX,
                      (long long)groups);
  int64_t n = tide__tensor_numel(ids), ends = groups + 1;
  tide__result(&c, 0, TIDE_I64, 1, &n);
  tide__result(&c, 1, TIDE_I64, ids->ndim, ids->shape);
  tide__result(&c, 2, TIDE_I64, 1, &ends);
  TIDE_TRY(tide__dispatch(&c, y, 3));
  *rows = y[0];
  *place = y[1];
  *offsets = y[2];
  return TIDE_OK;
}

/* Begins a call on a, b and offsets. */
static void grouped_begin(tide__temps *v, tide__call *c, int op, tide_tensor **out, tide_tensor *a,
                          tide_tensor *b, tide_tensor *offsets)
{
  TIDE__DO(v, tide__begin(c, op, out, 3, (tide_tensor *[]){a, b, offsets}, 0));
  TIDE__DO(v, tide__check_index(offsets, TIDE__NAME(c), "offsets"));
}

/* Gives a and b strides as the kernels want them. */
static void grouped_layout(tide__temps *v, tide__call *c)
{
  for (int i = 0; i < 2; i++) c->in_[i] = TIDE__TEMP(v, tide__matrix_layout, c->in_[i]);
}

static int check_grouped(tide__call *c, const tide_tensor *x, const tide_tensor *w,
                         const tide_tensor *offsets)
{
  bool fit = x->ndim == 2 && w->ndim == 3 && x->shape[1] == w->shape[2];
  if (!fit)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "x %s and weight %s do not fit: expected [rows, K] and "
                      "[groups, N, K]", TIDE__SHAPE_OF(x), TIDE__SHAPE_OF(w));
  if (offsets->ndim != 1 || offsets->shape[0] != w->shape[0] + 1)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "offsets: expected [%lld], one more than the weight has "
                      "groups, got %s", (long long)w->shape[0] + 1, TIDE__SHAPE_OF(offsets));
  if (x->dtype != w->dtype)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "x is %s, weight is %s; cast them to one dtype",
                      tide_dtype_name(x->dtype), tide_dtype_name(w->dtype));
  return tide__check_float(x, TIDE__NAME(c), "x");
}

/* Computes grouped_linear. dtype: that of the result, or -1: that of x. */
static int grouped_linear(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *offsets,
                          int dtype)
{
  tide__call c;
  tide__temps v = {0};
  tide_tensor *own[3] = {x, w, offsets};
  grouped_begin(&v, &c, TIDE_OP_GROUPED_LINEAR, out, x, w, offsets);
  TIDE__DO(&v, check_grouped(&c, x, w, offsets));
  grouped_layout(&v, &c);
  c.tape_in = own;
  if (v.rc == TIDE_OK)
    v.rc = tide__dispatch_one(&c, out, dtype < 0 ? x->dtype : dtype, 2,
                              (int64_t[]){x->shape[0], w->shape[1]});
  return tide__temps_end(&v);
}

int tide_grouped_linear(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *offsets)
{
  return grouped_linear(out, x, w, offsets, -1);
}

/* ---- the gradient of the weight -------------------------------------------------------------- */

static int check_grouped_addmm(tide_tensor *dst, tide_tensor *a, tide_tensor *b,
                               tide_tensor *offsets)
{
  bool fit = dst->ndim == 3 && a->ndim == 2 && b->ndim == 2 && a->shape[0] == b->shape[0] &&
             dst->shape[1] == a->shape[1] && dst->shape[2] == b->shape[1];
  if (!fit)
    return tide__fail(dst->ctx, TIDE_E_SHAPE, "grouped_addmm_", "target %s, a %s and b %s do not "
                      "fit: expected [groups, M, N], [rows, M] and [rows, N]", TIDE__SHAPE_OF(dst),
                      TIDE__SHAPE_OF(a), TIDE__SHAPE_OF(b));
  if (offsets->ndim != 1 || offsets->shape[0] != dst->shape[0] + 1)
    return tide__fail(dst->ctx, TIDE_E_SHAPE, "grouped_addmm_", "offsets: expected [%lld], one "
                      "more than the target has groups, got %s", (long long)dst->shape[0] + 1,
                      TIDE__SHAPE_OF(offsets));
  return tide__check_sum_target(dst, "grouped_addmm_", a, b);
}

/* Computes the products, in the target's dtype, and adds them. */
static int grouped_outer(tide_tensor **out, tide_tensor *a, tide_tensor *b, tide_tensor *offsets,
                         int64_t groups, int dtype)
{
  tide__call c;
  tide__temps v = {0};
  grouped_begin(&v, &c, TIDE_OP_GROUPED_LINEAR_BWD, out, a, b, offsets);
  grouped_layout(&v, &c);
  if (v.rc == TIDE_OK)
    v.rc = tide__dispatch_one(&c, out, dtype, 3, (int64_t[]){groups, a->shape[1], b->shape[1]});
  return tide__temps_end(&v);
}

int tide_grouped_addmm_(tide_tensor *dst, tide_tensor *a, tide_tensor *b, tide_tensor *offsets)
{
  tide__call c;
  tide__temps v = {0};
  TIDE__DO(&v, tide__begin(&c, TIDE_OP_GROUPED_ADDMM_, NULL, 4,
                           (tide_tensor *[]){dst, a, b, offsets}, 0));
  TIDE__DO(&v, tide__check_index(offsets, "grouped_addmm_", "offsets"));
  TIDE__DO(&v, check_grouped_addmm(dst, a, b, offsets));
  if (v.rc < 0) return tide__temps_end(&v);
  bool apart = dst->storage != a->storage && dst->storage != b->storage;
  if (!apart || (dst->stride[2] != 1 && dst->shape[2] > 1)) {
    tide_tensor *sum = TIDE__TEMP(&v, tide_clone, dst);
    TIDE__DO(&v, tide_grouped_addmm_(sum, a, b, offsets));
    TIDE__DO(&v, tide_copy_(dst, sum));
    return tide__temps_end(&v);
  }
  c.in_[0] = a;
  c.in_[1] = b;
  c.in_[2] = offsets;
  grouped_layout(&v, &c);
  c.nin = 3;
  c.nout = 1;
  c.out_[0] = dst;
  TIDE__DO(&v, tide__launch_checked(&c));
  dst->storage->version++;
  return tide__temps_end(&v);
}

int tide__grad_grouped_linear(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *dy = g->gout[0], *x = g->in[0], *w = g->in[1], *offsets = g->in[2];
  tide_tensor *sum = g->sum ? g->sum[1] : NULL;
  int x_dtype = g->sum ? g->sum_dtype[0] : dy->dtype;
  int w_dtype = g->sum ? g->sum_dtype[1] : dy->dtype;
  if (g->need[0]) {
    tide_tensor *wt = TIDE__TEMP(&v, tide_transpose, w, 1, 2);
    TIDE__DO(&v, grouped_linear(&g->gin[0], dy, wt, offsets, x_dtype));
  }
  if (g->need[1] && sum) TIDE__DO(&v, tide_grouped_addmm_(sum, dy, x, offsets));
  else if (g->need[1])
    TIDE__DO(&v, grouped_outer(&g->gin[1], dy, x, offsets, g->meta[1].shape[0], w_dtype));
  return tide__temps_end(&v);
}
