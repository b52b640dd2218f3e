/* Leaves and host functions: the user's side of the tape. */
#include "core/grad/tape.h"
#include "core/op/operand.h"

int tide_set_needs_grad(tide_tensor *t, bool on)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  TIDE_TRY(tide__check_float(t, "set_needs_grad", "t"));
  if (t->node)
    return tide__fail(t->ctx, TIDE_E_STATE, "set_needs_grad", "argument 't': the tensor is "
                      "the result of a recorded op; detach it to make a leaf");
  t->requires_grad = on;
  return TIDE_OK;
}

int tide_requires_grad(tide_tensor *t, bool on)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  return tide__relabel(t->ctx, tide_set_needs_grad(t, on), "requires_grad");
}

int tide_needs_grad(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? tide__tensor_needs_grad(t) : TIDE_E_ARG;
}

int tide_is_leaf(const tide_tensor *t) { return TIDE_IS(TENSOR, t) ? t->node == NULL : TIDE_E_ARG; }

int tide_grad(tide_tensor **out, tide_tensor *t)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, t));
  *out = t->grad;
  return *out ? tide_tensor_retain(*out) : TIDE_OK;
}

int tide_set_grad(tide_tensor *t, tide_tensor *grad)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t), TIDE_MAYBE(TENSOR, grad));
  if (grad && (grad == t || grad->ctx != t->ctx))
    return tide__fail(t->ctx, TIDE_E_ARG, "set_grad", grad == t ? "a tensor cannot be its own "
                      "gradient; clone it" : "the gradient belongs to another context");
  if (grad && grad->storage->device != t->storage->device)
    return tide__fail(t->ctx, TIDE_E_DEVICE, "set_grad", "the gradient is on '%s', the tensor on "
                      "'%s'", tide_device_name(grad->storage->device),
                      tide_device_name(t->storage->device));
  if (grad && (!tide__dtype_sums(grad->dtype, t->dtype) || !tide__tensor_same_shape(grad, t)))
    return tide__fail(t->ctx, TIDE_E_SHAPE, "set_grad", "gradient is %s, the tensor %s",
                      TIDE__TEXT(grad), TIDE__TEXT(t));
  tide_tensor *own = NULL; /* a second handle: two leaves may be each other's gradient, uncounted */
  if (grad) {
    TIDE_TRY(tide__tensor_alias(&own, grad));
    tide__scope_escape(own->storage);
  }
  tide_tensor *old = t->grad;
  t->grad = own;
  tide_tensor_release(old);
  return TIDE_OK;
}

int tide_set_grad_dtype(tide_tensor *t, int dtype)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  TIDE_TRY(tide__check_float(t, "set_grad_dtype", "t"));
  if (!tide__dtype_valid(dtype) || !tide__dtype_sums(dtype, t->dtype))
    return tide__fail(t->ctx, TIDE_E_DTYPE, "set_grad_dtype", "dtype: expected that of the tensor, "
                      "%s, or f32 if that has 16 bits, got %s", tide_dtype_name(t->dtype),
                      tide__dtype_valid(dtype) ? tide_dtype_name(dtype) : "an unknown number");
  t->grad_dtype = (int8_t)dtype;
  return TIDE_OK;
}

int tide_grad_dtype(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? tide__grad_dtype(t) : TIDE_E_ARG;
}

int tide_drop_grad(tide_tensor *t)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  tide_tensor *g = t->grad;
  if (!g) return TIDE_OK;
  tide__tensor_give_up(g);
  t->grad = NULL;
  tide_tensor_release(g);
  return TIDE_OK;
}

int tide_detach(tide_tensor **out, tide_tensor *t)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, t));
  return tide__tensor_alias(out, t);
}

int tide_set_recording(tide_ctx *ctx, bool on)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  int old = ctx->recording;
  ctx->recording = on;
  return old;
}

int tide_recording(tide_ctx *ctx) { return TIDE_IS(CTX, ctx) ? ctx->recording : TIDE_E_ARG; }

/* ---- host functions -------------------------------------------------------------------------- */

static bool any_needs_grad(int n, tide_tensor *const *xs)
{
  for (int i = 0; i < n; i++)
    if (xs[i] && tide__tensor_needs_grad(xs[i])) return true;
  return false;
}

static int make_outs(tide_tensor **outs, int nout, tide_tensor *const *ys)
{
  for (int i = 0; i < nout; i++) {
    int rc = tide__tensor_alias(&outs[i], ys[i]);
    if (rc == TIDE_OK) continue;
    while (i-- > 0) {
      tide_tensor_release(outs[i]);
      outs[i] = NULL;
    }
    return rc;
  }
  return TIDE_OK;
}

int tide_host_function(tide_tensor **outs, tide_ctx *ctx, double tag, int nin,
                       tide_tensor *const *xs, int nout, tide_tensor *const *ys, bool save)
{
  tide__node *n;
  for (int i = 0; i < nout; i++) outs[i] = NULL;
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (nin < 0 || nout < 1 || nout > 64)
    return tide__fail(ctx, TIDE_E_ARG, "host_function", "nin and nout: expected nin >= 0 and nout "
                      "in [1, 64], got %d and %d", nin, nout);
  TIDE_TRY(tide__check_tensors(ctx, "host_function", "xs", nin, xs));
  TIDE_TRY(tide__check_tensors(ctx, "host_function", "ys", nout, ys));
  TIDE_TRY(make_outs(outs, nout, ys));
  if (!ctx->recording || !any_needs_grad(nin, xs)) return TIDE_OK;
  int rc = tide__node_new(&n, ctx, TIDE__HOST, nin, xs, nout);
  if (rc < 0) {
    for (int i = 0; i < nout; i++) {
      tide_tensor_release(outs[i]);
      outs[i] = NULL;
    }
    return rc;
  }
  n->tag = tag;
  for (int i = 0; save && i < nin; i++) {
    tide_tensor_retain(xs[i]);
    tide__save(&n->in[i].saved, xs[i]);
  }
  for (int i = 0; i < nout; i++)
    if (1 << outs[i]->dtype & K_FLOAT) tide__attach(outs[i], n, i);
  tide__node_release(ctx, n);
  return TIDE_MORE;
}

int tide_host_dropped(tide_ctx *ctx, double *tags, int n)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  tide__tape *tape = ctx->tape;
  int k = 0;
  while (k < n && tape->ndropped > 0) tags[k++] = tape->dropped[--tape->ndropped];
  return k;
}
