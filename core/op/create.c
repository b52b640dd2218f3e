/* Creation of tensors. */
#include <math.h>

#include "core/op/op.h"
#include "core/op/operand.h"

int tide_empty(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
               const int64_t *shape)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  tide__tensor_drain(ctx);
  return tide__tensor_new(out, ctx, device, dtype, ndim, shape, "empty");
}

/* Runs an op without inputs on a fresh tensor. */
static int fill_fresh(tide_tensor *t, int op, const tide__attrs *attrs)
{
  tide__call c = {.ctx = t->ctx, .op = op, .device = t->storage->device, .nout = 1};
  c.in = c.in_;
  c.out = c.out_;
  c.out_[0] = t;
  c.attrs = *attrs;
  return tide__launch_checked(&c);
}

int tide__created(tide_tensor **out, int rc)
{
  if (rc == TIDE_OK) return rc;
  tide_tensor_release(*out);
  *out = NULL;
  return rc;
}

/* Returns whether a number lies in the range of an integer dtype. Any other than 0 is true. */
static bool in_range(int dtype, double v)
{
  switch (dtype) {
  case TIDE_I64: return v >= -0x1p63 && v < 0x1p63;
  case TIDE_I32: return v >= INT32_MIN && v <= INT32_MAX;
  case TIDE_U8: return v >= 0 && v <= UINT8_MAX;
  default: return true;
  }
}

int tide_full(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
              const int64_t *shape, double value)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  tide__attrs attrs = {.scalar = {0, value}};
  tide__tensor_drain(ctx);
  TIDE_TRY(tide__tensor_new(out, ctx, device, dtype, ndim, shape, "full"));
  if (!tide__dtype_is_float(dtype) && (value != floor(value) || !in_range(dtype, value)))
    return tide__created(out, tide__fail(ctx, TIDE_E_DTYPE, "full", "value: expected a whole "
                                         "number in the range of %s, got %g",
                                         tide_dtype_name(dtype), value));
  return tide__created(out, fill_fresh(*out, TIDE_OP_FILL_, &attrs));
}

int tide_arange(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int64_t n, double start,
                double step)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  tide__attrs attrs = {.arange = {start, step}};
  if (n < 0 || !isfinite(start) || !isfinite(step))
    return tide__fail(ctx, TIDE_E_ARG, "arange", "expected n >= 0 and finite start and step, got "
                      "%lld, %g and %g", (long long)n, start, step);
  double last = n ? start + (double)(n - 1) * step : start;
  if (n && (!in_range(dtype, start) || !in_range(dtype, last)))
    return tide__fail(ctx, TIDE_E_ARG, "arange", "start and step: expected values in the range of "
                      "%s, got %g to %g", tide_dtype_name(dtype), start, last);
  tide__tensor_drain(ctx);
  TIDE_TRY(tide__tensor_new(out, ctx, device, dtype, 1, &n, "arange"));
  return tide__created(out, fill_fresh(*out, TIDE_OP_ARANGE, &attrs));
}
