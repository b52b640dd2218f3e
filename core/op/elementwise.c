/* Elementwise ops: unary, binary, scalar forms, where, cast, and the four in-place ops.
 *
 * Binary operands are promoted to one dtype by recorded casts and broadcast by stride 0, so a
 * kernel sees equal shapes and dtypes. Derivatives are built from the same ops; the adjoint of
 * broadcasting is a sum (tide__sum_to), the adjoint of promotion a cast back.
 */
#include <math.h>

#include "core/base/float.h"
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

/* ---- forward --------------------------------------------------------------------------------- */

/* Returns x in the wanted dtype: a second handle or a recorded cast. */
static int promoted(tide_tensor **out, tide_tensor *x, int dtype)
{
  return x->dtype != dtype ? tide_cast(out, x, dtype) : tide_tensor_retain(*out = x);
}

enum { AS_IS, TO_FLOAT, TO_BOOL };

static int float_of(int dtype) { return tide__dtype_is_float(dtype) ? dtype : TIDE_F32; }

static int same_shape_or_fail(tide__call *c, const tide_tensor *a, const tide_tensor *b, int *ndim,
                              int64_t *shape)
{
  if (tide__broadcast(a->ndim, a->shape, b->ndim, b->shape, ndim, shape)) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_SHAPE, "shapes %s and %s do not broadcast", TIDE__SHAPE_OF(a),
                    TIDE__SHAPE_OF(b));
}

static int binary(tide_tensor **out, int op, tide_tensor *a, tide_tensor *b, int result)
{
  tide__call c;
  tide__temps v = {0};
  int ndim;
  int64_t shape[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, op, out, 2, (tide_tensor *[]){a, b}, 0));
  TIDE_TRY(same_shape_or_fail(&c, a, b, &ndim, shape));
  int dtype = tide__dtype_promote(a->dtype, b->dtype);
  if (result == TO_FLOAT) dtype = float_of(dtype);
  c.in_[0] = TIDE__TEMP(&v, promoted, a, dtype);
  c.in_[1] = TIDE__TEMP(&v, promoted, b, dtype);
  TIDE__DO(&v, tide__dispatch_one(&c, out, result == TO_BOOL ? TIDE_BOOL : dtype, ndim, shape));
  return tide__temps_end(&v);
}

static int unary(tide_tensor **out, int op, tide_tensor *x, int result, const k_scalar_attrs *attrs)
{
  tide__call c;
  tide_tensor *p;
  TIDE_TRY(tide__begin(&c, op, out, 1, &x, 0));
  TIDE_TRY(promoted(&p, x, result == TO_FLOAT ? float_of(x->dtype) : x->dtype));
  c.in_[0] = p;
  if (attrs) c.attrs.scalar = *attrs;
  int rc = tide__dispatch_one(&c, out, result == TO_BOOL ? TIDE_BOOL : p->dtype, x->ndim, x->shape);
  tide_tensor_release(p);
  return rc;
}

#define BINARY(name, ID, result)                                      \
  int tide_##name(tide_tensor **out, tide_tensor *a, tide_tensor *b)  \
  {                                                                   \
    return binary(out, TIDE_OP_##ID, a, b, result);                   \
  }
#define UNARY(name, ID, result)                      \
  int tide_##name(tide_tensor **out, tide_tensor *x) \
  {                                                  \
    return unary(out, TIDE_OP_##ID, x, result, NULL); \
  }

BINARY(add, ADD, AS_IS)
BINARY(sub, SUB, AS_IS)
BINARY(mul, MUL, AS_IS)
BINARY(div, DIV, TO_FLOAT)
BINARY(pow, POW, TO_FLOAT)
BINARY(minimum, MINIMUM, AS_IS)
BINARY(maximum, MAXIMUM, AS_IS)
BINARY(eq, EQ, TO_BOOL)
BINARY(ne, NE, TO_BOOL)
BINARY(lt, LT, TO_BOOL)
BINARY(le, LE, TO_BOOL)
BINARY(gt, GT, TO_BOOL)
BINARY(ge, GE, TO_BOOL)
BINARY(logical_and, LOGICAL_AND, TO_BOOL)
BINARY(logical_or, LOGICAL_OR, TO_BOOL)

UNARY(neg, NEG, AS_IS)
UNARY(abs, ABS, AS_IS)
UNARY(sign, SIGN, AS_IS)
UNARY(floor, FLOOR, AS_IS)
UNARY(square, SQUARE, AS_IS)
UNARY(sin, SIN, TO_FLOAT)
UNARY(cos, COS, TO_FLOAT)
UNARY(relu, RELU, AS_IS)
#define TIDE_UNARY(ID, name, ref, f32, f64, cuda) UNARY(name, ID, TO_FLOAT)
#include "kernels/unary.def"
#undef TIDE_UNARY
UNARY(logical_not, LOGICAL_NOT, TO_BOOL)
UNARY(isfinite, ISFINITE, TO_BOOL)

static bool whole(double v) { return v == floor(v) && fabs(v) < 9.2e18; }

int tide_affine(tide_tensor **out, tide_tensor *x, double mul, double add)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  if (!tide__dtype_is_float(x->dtype) && !(whole(mul) && whole(add)))
    return tide__fail(x->ctx, TIDE_E_DTYPE, "affine", "a tensor of %s takes whole numbers, got mul "
                      "%g and add %g; cast it first", tide_dtype_name(x->dtype), mul, add);
  return unary(out, TIDE_OP_AFFINE, x, AS_IS, &(k_scalar_attrs){mul, add});
}

int tide_pow_scalar(tide_tensor **out, tide_tensor *x, double exponent)
{
  return unary(out, TIDE_OP_POW_SCALAR, x, TO_FLOAT, &(k_scalar_attrs){exponent, 0});
}

/* Returns a bound as a number of a float dtype, the nearest one. */
static double bound_in(int dtype, double v)
{
  switch (dtype) {
    case TIDE_F32: return (float)v;
    case TIDE_BF16: return tide__bf16_to_f32(tide__f64_to_bf16(v));
    case TIDE_F16: return tide__f16_to_f32(tide__f64_to_f16(v));
    default: return v;
  }
}

int tide_clamp(tide_tensor **out, tide_tensor *x, double lo, double hi)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  if (!(lo <= hi))
    return tide__fail(x->ctx, TIDE_E_ARG, "clamp", "expected lo <= hi, got %g and %g", lo, hi);
  return unary(out, TIDE_OP_CLAMP, x, AS_IS,
               &(k_scalar_attrs){bound_in(x->dtype, lo), bound_in(x->dtype, hi)});
}

int tide_where(tide_tensor **out, tide_tensor *cond, tide_tensor *a, tide_tensor *b)
{
  tide__call c;
  tide__temps v = {0};
  int n1, ndim;
  int64_t s1[TIDE_MAX_DIM], shape[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, TIDE_OP_WHERE, out, 3, (tide_tensor *[]){cond, a, b}, 0));
  if (cond->dtype != TIDE_BOOL)
    return TIDE__FAIL(&c, TIDE_E_DTYPE, "cond: expected bool, got %s",
                      tide_dtype_name(cond->dtype));
  TIDE_TRY(same_shape_or_fail(&c, a, b, &n1, s1));
  if (!tide__broadcast(n1, s1, cond->ndim, cond->shape, &ndim, shape))
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "cond %s does not broadcast with %s", TIDE__SHAPE_OF(cond),
                      TIDE__SHAPE(n1, s1));
  int dtype = tide__dtype_promote(a->dtype, b->dtype);
  c.in_[1] = TIDE__TEMP(&v, promoted, a, dtype);
  c.in_[2] = TIDE__TEMP(&v, promoted, b, dtype);
  TIDE__DO(&v, tide__dispatch_one(&c, out, dtype, ndim, shape));
  return tide__temps_end(&v);
}

int tide_cast(tide_tensor **out, tide_tensor *x, int dtype)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_CAST, out, 1, &x, 0));
  if (!tide__dtype_valid(dtype))
    return TIDE__FAIL(&c, TIDE_E_DTYPE, "dtype %d does not exist", dtype);
  if (x->dtype == dtype) return tide_tensor_retain(*out = x);
  return tide__dispatch_one(&c, out, dtype, x->ndim, x->shape);
}

int tide_clone(tide_tensor **out, tide_tensor *x)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_CLONE, out, 1, &x, 0));
  return tide__dispatch_one(&c, out, x->dtype, x->ndim, x->shape);
}

int tide_contiguous(tide_tensor **out, tide_tensor *x)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  if (!tide_tensor_is_contiguous(x)) return tide_clone(out, x);
  return tide_tensor_retain(*out = x);
}

/* ---- in place -------------------------------------------------------------------------------- */

int tide__check_idle(const tide_tensor *t, const char *op)
{
  if (t->storage->pins == 0) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_STATE, op, "the target is in use by a collective under way; "
                    "wait for its work first");
}

int tide__check_distinct(const tide_tensor *t, const char *op)
{
  TIDE_TRY(tide__check_idle(t, op));
  for (int d = 0; d < t->ndim; d++)
    if (t->stride[d] == 0 && t->shape[d] > 1)
      return tide__fail(t->ctx, TIDE_E_ARG, op, "the target is expanded (several elements share "
                        "one place); use contiguous() first");
  return TIDE_OK;
}

/* Refuses a target that the tape depends on: its gradient would be silently wrong. */
int tide__check_target(tide_tensor *t, const char *op)
{
  if (t->storage->gone)
    return tide__fail(t->ctx, TIDE_E_GONE, op, "the target (tensor %.0f) was dropped", t->id);
  if (t->ctx->recording && tide__tensor_needs_grad(t))
    return tide__fail(t->ctx, TIDE_E_STATE, op, "the target needs a gradient and in-place ops are "
                      "not recorded; write under no_grad, or use the op without underscore");
  return tide__check_distinct(t, op);
}

static int elementwise_in_place(int op, tide_tensor *dst, tide_tensor *src, double mul, double add)
{
  const char *name = tide__op_get(op)->name;
  TIDE_TRY(tide__check_target(dst, name));
  tide_tensor *view = NULL, *x[2] = {dst, src ? src : dst};
  tide__call c;
  TIDE_TRY(tide__begin(&c, op, NULL, 2, x, 0));
  if (src) {
    if (c.ctx->recording && tide__tensor_needs_grad(src))
      return tide__fail(c.ctx, TIDE_E_STATE, name, "the source needs a gradient and in-place ops "
                        "are not recorded; detach it, or use the op without underscore");
    int64_t stride[TIDE_MAX_DIM];
    if (!tide__expand(src->ndim, src->shape, src->stride, dst->ndim, dst->shape, stride))
      return tide__fail(c.ctx, TIDE_E_SHAPE, name, "source %s does not broadcast to target %s",
                        TIDE__SHAPE_OF(src), TIDE__SHAPE_OF(dst));
    TIDE_TRY(tide__tensor_view(&view, src, dst->ndim, dst->shape, stride, src->offset));
  }
  c.nin = src ? 1 : 0;
  c.in_[0] = view;
  c.nout = 1;
  c.out_[0] = dst;
  c.attrs.scalar = (k_scalar_attrs){mul, add};
  int rc = tide__launch_checked(&c);
  dst->storage->version++;
  tide_tensor_release(view);
  return rc;
}

/* Returns whether a and b may share bytes: they are views of one storage, or one of them lies over
 * memory of the host, which may be lent twice. */
static bool may_share(const tide_tensor *a, const tide_tensor *b)
{
  const tide__storage *s = a->storage, *t = b->storage;
  if (s == t || (!s->lent.data && !t->lent.data)) return s == t;
  uintptr_t p = (uintptr_t)s->data, q = (uintptr_t)t->data;
  return p < q + t->size && q < p + s->size;
}

/* Returns whether both have the same elements, one by one. */
static bool same_elements(tide_tensor *a, tide_tensor *b)
{
  bool same = tide__tensor_ptr(a) == tide__tensor_ptr(b) && a->dtype == b->dtype &&
              a->ndim == b->ndim;
  for (int d = 0; same && d < a->ndim; d++)
    same = a->stride[d] == b->stride[d] && a->shape[d] == b->shape[d];
  return same;
}

/* Copies src if it shares bytes with dst in another order; else it would read what was just
 * written. */
static int overlap_safe(tide_tensor **tmp, tide_tensor *dst, tide_tensor *src)
{
  if (may_share(dst, src) && !same_elements(dst, src)) return tide_clone(tmp, src);
  *tmp = src;
  return tide_tensor_retain(src);
}

int tide_copy_(tide_tensor *dst, tide_tensor *src)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, dst), TIDE_OBJECT(TENSOR, src));
  tide_tensor *s;
  TIDE_TRY(overlap_safe(&s, dst, src));
  int rc = elementwise_in_place(TIDE_OP_COPY_, dst, s, 1, 0);
  tide_tensor_release(s);
  return rc;
}

int tide_axpy_(tide_tensor *dst, tide_tensor *src, double alpha)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, dst), TIDE_OBJECT(TENSOR, src));
  tide_tensor *s;
  TIDE_TRY(overlap_safe(&s, dst, src));
  int rc = elementwise_in_place(TIDE_OP_AXPY_, dst, s, alpha, 0);
  tide_tensor_release(s);
  return rc;
}

int tide__axpy_by_(tide_tensor *dst, tide_tensor *src, tide_tensor *factor)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_AXPY_, NULL, 2, (tide_tensor *[]){src, factor}, 0));
  c.nout = 1;
  c.out_[0] = dst;
  c.attrs.scalar = (k_scalar_attrs){1, 0};
  int rc = tide__launch_checked(&c);
  dst->storage->version++;
  return rc;
}

int tide_fill_(tide_tensor *dst, double v)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, dst));
  return elementwise_in_place(TIDE_OP_FILL_, dst, NULL, 0, v);
}

int tide_scale_(tide_tensor *dst, double f)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, dst));
  return elementwise_in_place(TIDE_OP_SCALE_, dst, NULL, f, 0);
}
