/* Calls over lists of tensors: the operands of optimiser steps and foreach ops. The caller's lists
 * are joined in one array, inputs first, so dispatch sees a call like any other. */
#include "core/op/list.h"
#include "core/op/op.h"

int tide__lists_begin(tide_ctx *ctx, tide__call *c, int op, int64_t n, int64_t nin, int64_t nout)
{
  memset(c, 0, sizeof *c);
  c->ctx = ctx;
  c->op = op;
  c->device = -1;
  tide__tensor_drain(ctx);
  if (n < 0 || n > 1 << 24)
    return TIDE__FAIL(c, TIDE_E_ARG, "n: expected 0 to 2^24, got %lld", (long long)n);
  c->nlist = (size_t)(nin + nout + 1) * sizeof *c->lists;
  c->lists = tide__alloc(ctx, c->nlist);
  if (!c->lists) return TIDE__FAIL(c, TIDE_E_NOMEM, "no host memory");
  c->in = c->lists;
  c->out = c->lists + nin;
  c->nin = (int)nin;
  c->nout = (int)nout;
  return TIDE_OK;
}

void tide__lists_end(tide__call *c) { tide__free(c->ctx, c->lists, c->nlist); }

int tide__list_take(tide__call *c, tide_tensor **dst, const char *list, int64_t n,
                    tide_tensor *const *xs, bool optional)
{
  for (int64_t i = 0; i < n; i++) {
    dst[i] = xs ? xs[i] : NULL;
    if (dst[i] || !optional) TIDE_TRY(tide__check_operand(c, list, i, dst[i]));
  }
  return TIDE_OK;
}

int tide__list_shapes(tide__call *c, const char *list, int64_t n, tide_tensor *const *xs,
                      const char *of, tide_tensor *const *like)
{
  for (int64_t i = 0; i < n; i++)
    if (xs[i] && !tide__tensor_same_shape(xs[i], like[i]))
      return TIDE__FAIL(c, TIDE_E_SHAPE, "%s[%lld] is %s, its %s %s", list, (long long)i + 1,
                        TIDE__SHAPE_OF(xs[i]), of, TIDE__SHAPE_OF(like[i]));
  return TIDE_OK;
}
