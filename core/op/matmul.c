/* Products: matmul over broadcast batches, and linear with bias, also followed by an activation.
 *
 * The derivatives are products again: for y = a b, da = dy b^T and db = a^T dy (summed over
 * broadcast batch dims); for y = x w^T + bias, dx = dy w, dw = dy^T x, dbias = sum dy.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"
#include "core/op/product.h"

int tide__matrix_layout(tide_tensor **out, tide_tensor *x)
{
  int n = x->ndim;
  bool ok = x->stride[n - 1] == 1 || x->stride[n - 2] == 1 || x->shape[n - 1] <= 1 ||
            x->shape[n - 2] <= 1;
  return ok ? tide_tensor_retain(*out = x) : tide_clone(out, x);
}

/* Broadcasts the batch and multiplies. Both operands have at least two dims. dtype: of the result,
 * the operands' or f32 of 16-bit ones. */
static int matmul_2d(tide_tensor **out, tide_tensor *a, tide_tensor *b, int dtype)
{
  tide__call c;
  tide_tensor *x[2] = {a, b}, *m[2] = {NULL, NULL}, *e[2] = {NULL, NULL};
  int64_t shape[TIDE_MAX_DIM], full[TIDE_MAX_DIM];
  int nbatch, na = a->ndim - 2, nb = b->ndim - 2;
  TIDE_TRY(tide__begin(&c, TIDE_OP_MATMUL, out, 2, x, 0));
  if (a->dtype != b->dtype)
    return TIDE__FAIL(&c, TIDE_E_DTYPE, "a is %s, b is %s; cast one", tide_dtype_name(a->dtype),
                      tide_dtype_name(b->dtype));
  if (a->shape[na + 1] != b->shape[nb] ||
      !tide__broadcast(na, a->shape, nb, b->shape, &nbatch, shape))
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "%s and %s do not multiply: inner sizes and leading dims "
                      "must fit", TIDE__SHAPE_OF(a), TIDE__SHAPE_OF(b));
  int rc = TIDE_OK;
  for (int i = 0; i < 2 && rc == TIDE_OK; i++) {
    memcpy(full, shape, sizeof full);
    full[nbatch] = x[i]->shape[x[i]->ndim - 2];
    full[nbatch + 1] = x[i]->shape[x[i]->ndim - 1];
    rc = tide__matrix_layout(&m[i], x[i]);
    if (rc == TIDE_OK) rc = tide_expand(&e[i], m[i], nbatch + 2, full);
  }
  if (rc == TIDE_OK) {
    c.in_[0] = e[0];
    c.in_[1] = e[1];
    c.tape_in = m; /* the gradient of a matrix is then one product, not a sum over the batch */
    shape[nbatch] = a->shape[na];
    shape[nbatch + 1] = b->shape[nb + 1];
    tide__result(&c, 0, dtype, nbatch + 2, shape);
    rc = tide__dispatch(&c, out, 1);
  }
  for (int i = 0; i < 2; i++) {
    tide_tensor_release(m[i]);
    tide_tensor_release(e[i]);
  }
  return rc;
}

int tide_matmul(tide_tensor **out, tide_tensor *a, tide_tensor *b)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, a), TIDE_OBJECT(TENSOR, b));
  tide__temps v = {0};
  bool row = a->ndim == 1, column = b->ndim == 1; /* vectors: their dim is 1 in the product */
  int dtype = a->dtype;
  if (a->ndim < 1 || b->ndim < 1)
    return tide__fail(a->ctx, TIDE_E_SHAPE, "matmul", "a and b: expected at least 1 dim, got %d "
                      "and %d", a->ndim, b->ndim);
  if (!row && !column) return matmul_2d(out, a, b, a->dtype);
  if (row) a = TIDE__TEMP(&v, tide_unsqueeze, a, 0);
  if (column) b = TIDE__TEMP(&v, tide_unsqueeze, b, 1);
  tide_tensor *y = TIDE__TEMP(&v, matmul_2d, a, b, dtype);
  if (row && column) y = TIDE__TEMP(&v, tide_squeeze, y, -1);
  TIDE__DO(&v, tide_squeeze(out, y, column ? -1 : -2));
  return tide__temps_end(&v);
}

/* Computes a b in dtype, either transposed first, without copying: transposes are views. */
static int product_with_transpose(tide_tensor **out, tide_tensor *a, bool ta, tide_tensor *b,
                                  bool tb, int dtype)
{
  tide__temps v = {0};
  if (ta) a = TIDE__TEMP(&v, tide_transpose, a, -1, -2);
  if (tb) b = TIDE__TEMP(&v, tide_transpose, b, -1, -2);
  TIDE__DO(&v, matmul_2d(out, a, b, dtype));
  return tide__temps_end(&v);
}

/* ---- addmm_ --------------------- */

int tide__check_sum_target(tide_tensor *t, const char *op, const tide_tensor *a,
                           const tide_tensor *b)
{
  bool one_dtype = a->dtype == b->dtype && tide__dtype_sums(t->dtype, a->dtype);
  if (!one_dtype)
    return tide__fail(t->ctx, TIDE_E_DTYPE, op, "the target is %s, a is %s, b is %s; cast them to "
                      "one dtype, or make the target of 16-bit sources f32",
                      tide_dtype_name(t->dtype), tide_dtype_name(a->dtype),
                      tide_dtype_name(b->dtype));
  bool recorded = tide__tensor_needs_grad(a) || tide__tensor_needs_grad(b);
  if (t->ctx->recording && recorded)
    return tide__fail(t->ctx, TIDE_E_STATE, op, "a source needs a gradient and in-place ops are "
                      "not recorded; detach it, or add the result of the product");
  TIDE_TRY(tide__check_float(t, op, "target"));
  return tide__check_target(t, op);
}

static int check_addmm(tide_tensor *dst, tide_tensor *a, tide_tensor *b)
{
  bool fit = dst->ndim == 2 && a->ndim == 2 && b->ndim == 2 && a->shape[1] == b->shape[0] &&
             dst->shape[0] == a->shape[0] && dst->shape[1] == b->shape[1];
  if (!fit)
    return tide__fail(dst->ctx, TIDE_E_SHAPE, "addmm_", "target %s, a %s and b %s do not fit: "
                      "expected [M, N], [M, K] and [K, N]", TIDE__SHAPE_OF(dst), TIDE__SHAPE_OF(a),
                      TIDE__SHAPE_OF(b));
  return tide__check_sum_target(dst, "addmm_", a, b);
}

/* Returns whether the kernel may write dst while it reads a and b. */
static bool kernel_takes(const tide_tensor *dst, const tide_tensor *a, const tide_tensor *b)
{
  bool apart = dst->storage != a->storage && dst->storage != b->storage;
  return apart && (dst->stride[1] == 1 || dst->shape[1] <= 1);
}

/* Adds the product to a copy of the target and copies the sum back. */
static int add_by_copy(tide_tensor *dst, tide_tensor *a, tide_tensor *b)
{
  tide__temps v = {0};
  tide_tensor *sum = TIDE__TEMP(&v, tide_clone, dst);
  TIDE__DO(&v, tide_addmm_(sum, a, b));
  TIDE__DO(&v, tide_copy_(dst, sum));
  return tide__temps_end(&v);
}

int tide_addmm_(tide_tensor *dst, tide_tensor *a, tide_tensor *b)
{
  tide__call c;
  tide_tensor *m[2] = {NULL, NULL};
  TIDE_TRY(tide__begin(&c, TIDE_OP_ADDMM_, NULL, 3, (tide_tensor *[]){dst, a, b}, 0));
  TIDE_TRY(check_addmm(dst, a, b));
  if (!kernel_takes(dst, a, b)) return add_by_copy(dst, a, b);
  int rc = tide__matrix_layout(&m[0], a);
  if (rc == TIDE_OK) rc = tide__matrix_layout(&m[1], b);
  c.nin = 2;
  c.in_[0] = m[0];
  c.in_[1] = m[1];
  c.nout = 1;
  c.out_[0] = dst;
  if (rc == TIDE_OK) rc = tide__launch_checked(&c);
  dst->storage->version++;
  tide_tensor_release(m[0]);
  tide_tensor_release(m[1]);
  return rc;
}

int tide__check_linear(tide__call *c, const tide_tensor *x, const tide_tensor *w,
                       const tide_tensor *bias)
{
  int64_t shape[TIDE_MAX_DIM];
  bool fit = x->ndim >= 1 && w->ndim == 2 && x->shape[x->ndim - 1] == w->shape[1] &&
             (!bias || (bias->ndim == 1 && bias->shape[0] == w->shape[0]));
  if (!fit)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "x %s, weight %s and bias %s do not fit: expected [..., K], "
                      "[N, K] and [N]", TIDE__SHAPE_OF(x), TIDE__SHAPE_OF(w),
                      bias ? TIDE__SHAPE_OF(bias) : "none");
  if (x->dtype != w->dtype || (bias && bias->dtype != x->dtype))
    return TIDE__FAIL(c, TIDE_E_DTYPE, "x is %s, weight is %s, bias is %s; cast them to one dtype",
                      tide_dtype_name(x->dtype), tide_dtype_name(w->dtype),
                      bias ? tide_dtype_name(bias->dtype) : "none");
  TIDE_TRY(tide__check_float(x, TIDE__NAME(c), "x"));
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = w->shape[0];
  tide__result(c, 0, x->dtype, x->ndim, shape);
  return TIDE_OK;
}

int tide_linear(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR, out, 3, (tide_tensor *[]){x, w, bias}, 4));
  TIDE_TRY(tide__check_linear(&c, x, w, bias));
  return tide__dispatch(&c, out, 1);
}

/* Computes act(x w^T + bias). The derivative of relu reads y, that of gelu its argument. */
int tide_linear_act(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias,
                    int activation)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR_ACT, out, 3, (tide_tensor *[]){x, w, bias}, 4));
  TIDE_TRY(tide__check_linear(&c, x, w, bias));
  if (activation != TIDE_ACT_RELU && activation != TIDE_ACT_GELU_TANH)
    return TIDE__FAIL(&c, TIDE_E_ARG, "activation: expected 0 (relu) or 1 (gelu_tanh), got %d",
                      activation);
  c.attrs.linear_act = (k_linear_act_attrs){.act = activation};
  bool pre = activation == TIDE_ACT_GELU_TANH && tide__wants_grad(&c);
  tide__result(&c, 1, x->dtype, pre ? x->ndim : -1, c.make[0].shape);
  return tide__dispatch(&c, out, 1);
}

int tide__rows_of(tide_tensor **out, tide_tensor *x)
{
  int64_t n = 1;
  for (int d = 0; d + 1 < x->ndim; d++) n *= x->shape[d];
  return tide_reshape(out, x, 2, (int64_t[]){n, x->shape[x->ndim - 1]});
}

/* Computes the gradient of input i: a b, or a^T b. Adds it to the sum of g, or makes *out in the
 * dtype of that sum. */
static int grad_product(tide_tensor **out, const tide__grad_call *g, int i, tide_tensor *a,
                        bool transposed, tide_tensor *b)
{
  tide_tensor *sum = g->sum ? g->sum[i] : NULL;
  int dtype = g->sum ? g->sum_dtype[i] : g->meta[i].dtype;
  if (!sum) return product_with_transpose(out, a, transposed, b, false, dtype);
  tide__temps v = {0};
  if (transposed) a = TIDE__TEMP(&v, tide_transpose, a, 0, 1);
  sum = TIDE__TEMP(&v, tide__rows_of, sum);
  TIDE__DO(&v, tide_addmm_(sum, a, b));
  return tide__temps_end(&v);
}

int tide__grad_of_rows(const tide__grad_call *g, tide_tensor *a, tide_tensor *b)
{
  tide__temps v = {0};
  tide_tensor *d = TIDE__TEMP(&v, grad_product, g, 0, a, false, b);
  if (d) TIDE__DO(&v, tide_reshape(&g->gin[0], d, g->meta[0].ndim, g->meta[0].shape));
  return tide__temps_end(&v);
}

/* Computes the gradients of linear. gout: the gradient of x w^T + bias. */
static int grad_linear(const tide__grad_call *g, tide_tensor *gout)
{
  int32_t first = 0;
  tide__temps v = {0};
  tide_tensor *dy = TIDE__TEMP(&v, tide__rows_of, gout);
  if (g->need[0]) TIDE__DO(&v, tide__grad_of_rows(g, dy, g->in[1]));
  if (g->need[1]) {
    tide_tensor *x = TIDE__TEMP(&v, tide__rows_of, g->in[0]);
    TIDE__DO(&v, grad_product(&g->gin[1], g, 1, dy, true, x));
  }
  if (g->need[2]) TIDE__DO(&v, tide_sum(&g->gin[2], dy, 1, &first, false));
  return tide__temps_end(&v);
}

/* Computes the gradients of a matmul with a matrix b in one product, whatever batch a has: b takes
 * all rows of a at once. */
static int grad_matmul_rows(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *dy = TIDE__TEMP(&v, tide__rows_of, g->gout[0]);
  if (g->need[0]) {
    tide_tensor *bt = TIDE__TEMP(&v, tide_transpose, g->in[1], 0, 1);
    TIDE__DO(&v, tide__grad_of_rows(g, dy, bt));
  }
  if (g->need[1]) {
    tide_tensor *a = TIDE__TEMP(&v, tide__rows_of, g->in[0]);
    TIDE__DO(&v, grad_product(&g->gin[1], g, 1, a, true, dy));
  }
  return tide__temps_end(&v);
}

int tide__product(tide_tensor **out, tide_tensor *a, tide_tensor *b, int dtype)
{
  return matmul_2d(out, a, b, dtype);
}

int tide__grad_product(tide_tensor **out, const tide__grad_call *g, int i, tide_tensor *a,
                       tide_tensor *b)
{
  return grad_product(out, g, i, a, false, b);
}

int tide__grad_matmul(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *dy = g->gout[0], *t = NULL;
  int dtype = dy->dtype;
  if (g->meta[1].ndim == 2) return grad_matmul_rows(g);
  if (g->need[0]) t = TIDE__TEMP(&v, product_with_transpose, dy, false, g->in[1], true, dtype);
  if (g->need[0]) TIDE__DO(&v, tide__sum_to(&g->gin[0], t, &g->meta[0]));
  if (g->need[1]) t = TIDE__TEMP(&v, product_with_transpose, g->in[0], true, dy, false, dtype);
  if (g->need[1]) TIDE__DO(&v, tide__sum_to(&g->gin[1], t, &g->meta[1]));
  return tide__temps_end(&v);
}

int tide__grad_linear(const tide__grad_call *g) { return grad_linear(g, g->gout[0]); }

int tide__grad_linear_act(const tide__grad_call *g)
{
  tide_tensor *dpre = NULL;
  tide__meta m = tide__meta_of(g->gout[0]);
  bool relu = g->attrs->linear_act.act == K_ACT_RELU;
  tide__grad_call act = *g;
  act.op = relu ? TIDE_OP_RELU : TIDE_OP_GELU_TANH;
  act.gin = &dpre;
  act.in = &g->out[1];
  act.meta = &m;
  TIDE_TRY(tide__grad_fused(&act));
  int rc = grad_linear(g, dpre);
  tide_tensor_release(dpre);
  return rc;
}
