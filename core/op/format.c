/* The bounded text form of a tensor, for logs, errors and the prompt. */
#include "core/op/op.h"

enum { EDGE = 3 };

static void format_number(tide__text *t, const tide_tensor *x, double v)
{
  if (x->dtype == TIDE_BOOL) tide__add(t, "%s", v != 0 ? "true" : "false");
  else if (1 << x->dtype & K_INT) tide__add(t, "%.0f", v);
  else tide__add(t, "%.5g", v);
}

/* Reads the element at `at` (an element offset in x's storage) as a number. */
static int format_element(tide_tensor *x, int64_t at, double *v)
{
  tide_tensor *one;
  TIDE_TRY(tide__tensor_view(&one, x, 0, NULL, NULL, at));
  int rc = tide_to_doubles(one, v, 1);
  tide_tensor_release(one);
  return rc;
}

static int nested(tide__text *t, tide_tensor *x, int d, int64_t at, bool shorten)
{
  if (d == x->ndim) {
    double v;
    TIDE_TRY(format_element(x, at, &v));
    format_number(t, x, v);
    return TIDE_OK;
  }
  tide__add(t, "{");
  for (int64_t i = 0; i < x->shape[d]; i++) {
    if (i) tide__add(t, ", ");
    if (shorten && x->shape[d] > 2 * EDGE && i == EDGE) {
      tide__add(t, "..., ");
      i = x->shape[d] - EDGE;
    }
    TIDE_TRY(nested(t, x, d + 1, at + i * x->stride[d], shorten));
  }
  tide__add(t, "}");
  return TIDE_OK;
}

int tide_tensor_format(tide_tensor *x, char *buf, size_t n, int with_data)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, x));
  if (!buf || n == 0) return tide__fail(x->ctx, TIDE_E_ARG, "tensor_format", "no buffer");
  tide__text t = tide__text_in(buf, n);
  tide__add(&t, "tensor %s %s %s", tide_dtype_name(x->dtype), TIDE__SHAPE(x->ndim, x->shape),
             tide_device_name(x->storage->device));
  if (x->requires_grad) tide__add(&t, " requires_grad");
  else if (x->node) tide__add(&t, " recorded");
  if (x->storage->gone) tide__add(&t, " (dropped)");
  bool bytes = x->ctx->devices->device[x->storage->device].backend->has_bytes;
  if (!with_data || x->storage->gone || !bytes) return TIDE_OK;
  tide__add(&t, " ");
  return nested(&t, x, 0, x->offset, tide__tensor_numel(x) > 8 * EDGE);
}
