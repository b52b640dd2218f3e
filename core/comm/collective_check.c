/* The checks of collectives that a rank can make alone. See collective.h. */
#include "core/comm/collective.h"
#include "core/op/op.h"

int tide__coll_bad(tide_comm *comm, int coll, int status, const char *arg, const char *what)
{
  return tide__fail(comm->ctx, status, tide_coll_name(coll), "argument '%s': %s", arg, what);
}

int tide__coll_check_root(tide_comm *comm, int coll, int root)
{
  if (root >= 0 && root < comm->nrank) return TIDE_OK;
  return tide__fail(comm->ctx, TIDE_E_ARG, tide_coll_name(coll), "argument 'root': expected a rank "
                    "of 0 to %d, got %d", comm->nrank - 1, root);
}

int tide__coll_check_reduce(tide_comm *comm, int coll, int op, int dtype)
{
  if (op < 0 || op >= TIDE_NREDUCE)
    return tide__fail(comm->ctx, TIDE_E_ARG, tide_coll_name(coll), "argument 'op': expected sum, "
                      "mean, min, max or prod (0 to %d), got %d", TIDE_NREDUCE - 1, op);
  if (op == TIDE_MEAN && dtype >= TIDE_I64)
    return tide__fail(comm->ctx, TIDE_E_DTYPE, tide_coll_name(coll), "the mean of %s is not a %s; "
                      "cast to a floating dtype first", tide_dtype_name(dtype),
                      tide_dtype_name(dtype));
  if (op == TIDE_SUM && dtype == TIDE_BOOL)
    return tide__coll_bad(comm, coll, TIDE_E_DTYPE, "op", "the sum of bool is not a bool; use max "
                          "(any) or min (all), or cast to i64");
  return TIDE_OK;
}

int tide__coll_check_reach(tide_comm *comm, int coll, const tide_tensor *t, const char *arg)
{
  if (t->storage->gone)
    return tide__coll_bad(comm, coll, TIDE_E_GONE, arg, "its bytes were dropped");
  if (t->storage->copy && tide__async_copy_wait(t->storage) < 0)
    return tide__coll_bad(comm, coll, TIDE_E_DEVICE, arg, "a copy of it that was under way failed");
  const tide__backend *b = t->ctx->devices->device[t->storage->device].backend;
  bool none = !b->has_bytes;
  bool here = comm->transport->on_device ? !b->host : b->host;
  if (comm->transport->shared_device && b->streams) return TIDE_OK;
  if (comm->transport->bytes ? here && !none : b->host || none) return TIDE_OK;
  return tide__fail(comm->ctx, TIDE_E_DEVICE, tide_coll_name(coll), "argument '%s': the '%s' "
                    "transport cannot reach the bytes of a tensor on device '%s'", arg,
                    comm->transport->name, tide_device_name(t->storage->device));
}

int tide__coll_check_written(tide_comm *comm, int coll, const tide_tensor *t, const char *arg)
{
  TIDE_TRY(tide__coll_check_reach(comm, coll, t, arg));
  if (!tide__is_contiguous(t->ndim, t->shape, t->stride))
    return tide__fail(comm->ctx, TIDE_E_SHAPE, tide_coll_name(coll), "argument '%s': a tensor that "
                      "is written must be contiguous, %s is not; write to a contiguous one and "
                      "copy", arg, TIDE__SHAPE_OF(t));
  if (t->node && t->ctx->recording)
    return tide__coll_bad(comm, coll, TIDE_E_STATE, arg, "it is the result of a recorded op and "
                          "would be changed behind the tape; detach it, or call inside no_grad");
  return TIDE_OK;
}

static size_t tensor_bytes(const tide_tensor *t)
{
  return (size_t)(tide__tensor_numel(t) * tide_dtype_size(t->dtype));
}

bool tide__coll_overlap(const tide_tensor *a, const tide_tensor *b)
{
  const char *p = tide__tensor_ptr(a), *q = tide__tensor_ptr(b);
  if (a->storage != b->storage || !p || !q) return false;
  return p < q + tensor_bytes(b) && q < p + tensor_bytes(a) && tensor_bytes(a) && tensor_bytes(b);
}
