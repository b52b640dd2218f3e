/* Copies between host memory, devices and numbers, blocking and asynchronous. */
#include <math.h>

#include "core/op/operand.h"

static int64_t byte_size(const tide_tensor *t)
{
  return tide__tensor_numel(t) * tide_dtype_size(t->dtype);
}

/* Records a failed copy, perhaps with the error of a kernel that was enqueued before it. */
static int copied(tide_tensor *t, int rc, const char *op)
{
  tide__device *d = &t->ctx->devices->device[t->storage->device];
  const char *why = rc < 0 && d->backend->why ? d->backend->why(d->state) : "";
  if (rc >= 0) return rc;
  return tide__fail(t->ctx, rc, op, "device '%s': %s", tide_device_name(t->storage->device),
                    why[0] ? why : tide_status_text(rc));
}

/* Waits for an asynchronous copy to or from t. */
static int wait_for_copy(tide_tensor *t, const char *op)
{
  if (t->storage->copy && tide__async_copy_wait(t->storage) < 0)
    return tide__async_copy_failed(t->storage, op);
  return TIDE_OK;
}

static int upload(tide_tensor *t, const void *data, size_t n)
{
  tide__device *d = &t->ctx->devices->device[t->storage->device];
  if (!d->backend->has_bytes || n == 0) return TIDE_OK;
  if (tide__captures(t->ctx, t->storage->device)) TIDE_TRY(tide__not_captured(t->ctx, "upload"));
  if (d->backend->upload)
    return copied(t, d->backend->upload(d->state, tide__tensor_ptr(t), data, n), "upload");
  memcpy(tide__tensor_ptr(t), data, n);
  return TIDE_OK;
}

/* Reads a contiguous t into data. */
static int download(tide_tensor *t, void *data, size_t n, const char *op)
{
  tide__device *d = &t->ctx->devices->device[t->storage->device];
  if (!d->backend->has_bytes)
    return tide__fail(t->ctx, TIDE_E_DEVICE, op, "a tensor on the null device has no bytes to "
                      "read");
  if (n == 0) return TIDE_OK;
  if (tide__captures(t->ctx, t->storage->device)) TIDE_TRY(tide__not_captured(t->ctx, op));
  TIDE_TRY(wait_for_copy(t, op));
  if (d->backend->download)
    return copied(t, d->backend->download(d->state, data, tide__tensor_ptr(t), n), op);
  memcpy(data, tide__tensor_ptr(t), n);
  return TIDE_OK;
}

/* Checks memory of the host against a dtype; its size was checked. Returns a status. */
static int check_lent(tide_ctx *ctx, int device, int dtype, const void *data)
{
  tide__device *d = tide__device_get(ctx, device, "from_memory");
  if (!d) return TIDE_E_DEVICE;
  if (!d->backend->host)
    return tide__fail(ctx, TIDE_E_DEVICE, "from_memory", "device: memory of the host is for 'cpu' "
                      "and 'ref', got '%s'; copy it with from_bytes", tide_device_name(device));
  if (!data || (uintptr_t)data % (size_t)tide_dtype_size(dtype))
    return tide__fail(ctx, TIDE_E_ARG, "from_memory", "data: expected an address, a multiple of "
                      "%d for %s, got %p", (int)tide_dtype_size(dtype), tide_dtype_name(dtype),
                      data);
  return TIDE_OK;
}

int tide_from_memory(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                     const int64_t *shape, void *data, size_t nbytes, tide_give give, void *user)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  tide__tensor_drain(ctx);
  const tide__lent lent = {.data = data, .give = give, .user = user};
  int64_t need = 0;
  TIDE_TRY(tide__check_shape(ctx, dtype, ndim, shape, "from_memory", &need));
  if ((uint64_t)need != nbytes)
    return tide__fail(ctx, TIDE_E_ARG, "from_memory", "nbytes: %s %s takes %lld, got %zu",
                      tide_dtype_name(dtype), TIDE__SHAPE(ndim, shape), (long long)need, nbytes);
  if (nbytes) {
    TIDE_TRY(check_lent(ctx, device, dtype, data));
    return tide__tensor_new_lent(out, ctx, device, dtype, ndim, shape, &lent, "from_memory");
  }
  TIDE_TRY(tide__tensor_new(out, ctx, device, dtype, ndim, shape, "from_memory"));
  if (give) give(user, data);
  return TIDE_OK;
}

int tide_from_bytes(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                    const int64_t *shape, const void *data, size_t nbytes)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  tide__tensor_drain(ctx);
  TIDE_TRY(tide__tensor_new(out, ctx, device, dtype, ndim, shape, "from_bytes"));
  if ((int64_t)nbytes != byte_size(*out) || (nbytes && !data))
    return tide__created(out, tide__fail(ctx, TIDE_E_ARG, "from_bytes",
                                         "%s %s takes %lld bytes, got %zu", tide_dtype_name(dtype),
                                         TIDE__SHAPE(ndim, shape), (long long)byte_size(*out),
                                         nbytes));
  return tide__created(out, upload(*out, data, nbytes));
}

int tide__dense(tide_tensor **out, tide_tensor *t, const char *op)
{
  bool recording = t->ctx->recording;
  *out = NULL;
  if (t->storage->gone)
    return tide__fail(t->ctx, TIDE_E_GONE, op, "the bytes of the tensor (tensor %.0f, %s) were "
                      "dropped", t->id, TIDE__TEXT(t));
  t->ctx->recording = false;
  int rc = tide_contiguous(out, t);
  t->ctx->recording = recording;
  return rc;
}

int tide_to_bytes(tide_tensor *t, void *data, size_t nbytes)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  tide_tensor *d;
  if ((int64_t)nbytes != byte_size(t))
    return tide__fail(t->ctx, TIDE_E_ARG, "to_bytes", "nbytes: the tensor has %lld, the buffer %zu",
                      (long long)byte_size(t), nbytes);
  TIDE_TRY(tide__dense(&d, t, "to_bytes"));
  int rc = download(d, data, nbytes, "to_bytes");
  tide_tensor_release(d);
  return rc;
}

/* Replaces NaNs by the plain NAN. A language that keeps its types in the bits of NaNs, as LuaJIT
 * does, would take other bits for a value of another type, or for a pointer. */
static void plain_nans(double *data, int64_t n)
{
  for (int64_t i = 0; i < n; i++)
    if (data[i] != data[i]) data[i] = NAN;
}

static int to_doubles(tide_tensor *t, double *data, int64_t n, const char *op)
{
  tide_tensor *wide = NULL, *d = NULL;
  bool recording = t->ctx->recording;
  if (n != tide__tensor_numel(t))
    return tide__fail(t->ctx, TIDE_E_ARG, op, "n: the tensor has %lld elements, the buffer %lld",
                      (long long)tide__tensor_numel(t), (long long)n);
  if (tide__captures(t->ctx, t->storage->device)) TIDE_TRY(tide__not_captured(t->ctx, op));
  t->ctx->recording = false;
  int rc = tide_cast(&wide, t, TIDE_F64);
  t->ctx->recording = recording;
  if (rc == TIDE_OK) rc = tide__dense(&d, wide, op);
  if (rc == TIDE_OK) rc = download(d, data, (size_t)n * sizeof *data, op);
  if (rc == TIDE_OK) plain_nans(data, n);
  tide_tensor_release(wide);
  tide_tensor_release(d);
  return tide__relabel(t->ctx, rc, op);
}

int tide_to_doubles(tide_tensor *t, double *data, int64_t n)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  return to_doubles(t, data, n, "to_doubles");
}

int tide_item(tide_tensor *t, double *value)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  *value = 0;
  if (tide__tensor_numel(t) != 1)
    return tide__fail(t->ctx, TIDE_E_SHAPE, "item", "expected one element, got %s",
                      TIDE__SHAPE_OF(t));
  return to_doubles(t, value, 1, "item");
}

/* Copies a tensor to another device. ref and cpu share host memory, so moving between them is
 * one copy; to and from a device is one upload or download. There is one device that is not the
 * host. */
int tide_to_device(tide_tensor **out, tide_tensor *t, int device)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, t));
  tide_tensor *d;
  tide__tensor_drain(t->ctx);
  if (!tide__device_get(t->ctx, device, "to_device")) return TIDE_E_DEVICE;
  if (t->storage->device == device) return tide_tensor_retain(*out = t);
  TIDE_TRY(wait_for_copy(t, "to_device"));
  TIDE_TRY(tide__dense(&d, t, "to_device"));
  int rc = tide__tensor_new(out, t->ctx, device, t->dtype, t->ndim, t->shape, "to_device");
  tide__device *from = &t->ctx->devices->device[t->storage->device];
  if (rc == TIDE_OK && !from->backend->has_bytes && device != TIDE_DEV_NULL)
    rc = tide__fail(t->ctx, TIDE_E_DEVICE, "to_device", "a tensor on the null device has no bytes; "
                    "make one on '%s' instead", tide_device_name(device));
  else if (rc == TIDE_OK && from->backend->host)
    rc = upload(*out, tide__tensor_ptr(d), (size_t)byte_size(d));
  else if (rc == TIDE_OK && t->ctx->devices->device[device].backend->host)
    rc = download(d, tide__tensor_ptr(*out), (size_t)byte_size(d), "to_device");
  tide_tensor_release(d);
  return tide__created(out, rc);
}

/* ---- asynchronous copies --------------------------------------------------------------------- */

int tide_is_pinned(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? t->storage->pinned : TIDE_E_ARG;
}

int tide_pin_memory(tide_tensor **out, tide_tensor *t)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, t));
  tide_tensor *d;
  if (t->storage->pinned) return tide_tensor_retain(*out = t);
  if (t->storage->device != TIDE_DEV_CPU)
    return tide__fail(t->ctx, TIDE_E_DEVICE, "pin_memory", "expected a tensor on 'cpu', got one on "
                      "'%s'", tide_device_name(t->storage->device));
  TIDE_TRY(tide__dense(&d, t, "pin_memory"));
  int rc = tide__tensor_new_pinned(out, t->ctx, t->dtype, t->ndim, t->shape, "pin_memory");
  if (rc == TIDE_OK) memcpy(tide__tensor_ptr(*out), tide__tensor_ptr(d), (size_t)byte_size(d));
  tide_tensor_release(d);
  return tide__created(out, rc);
}

/* Starts a copy between pinned host memory and the device; d is dense. */
static int start_copy(tide_tensor **out, tide_tensor *d, int device)
{
  const char *op = "to_device_async";
  bool to_gpu = device != TIDE_DEV_CPU;
  TIDE_TRY(to_gpu ? tide__tensor_new(out, d->ctx, device, d->dtype, d->ndim, d->shape, op)
                  : tide__tensor_new_pinned(out, d->ctx, d->dtype, d->ndim, d->shape, op));
  TIDE_TRY(wait_for_copy(d, op));
  if (byte_size(d) == 0) return TIDE_OK;
  return tide__async_copy_start((*out)->storage, tide__tensor_ptr(*out), d->storage,
                                tide__tensor_ptr(d), (size_t)byte_size(d), op);
}

int tide_to_device_async(tide_tensor **out, tide_tensor *t, int device)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, t));
  const char *op = "to_device_async";
  tide_tensor *d;
  if (!tide__device_get(t->ctx, device, op)) return TIDE_E_DEVICE;
  int from = t->storage->device;
  const tide__device *list = t->ctx->devices->device;
  bool up = list[device].backend->streams != NULL, down = list[from].backend->streams != NULL;
  if (from == device || (!up && !down)) return tide_to_device(out, t, device);
  TIDE_TRY(tide__not_captured(t->ctx, op));
  if (up && !t->storage->pinned)
    return tide__fail(t->ctx, TIDE_E_ARG, op, "expected a tensor in pinned memory, which a copy "
                      "may read after the call has returned; use pin_memory() first, or a blocking "
                      "copy");
  if (down && device != TIDE_DEV_CPU)
    return tide__fail(t->ctx, TIDE_E_DEVICE, op, "expected 'cpu' as the device to copy to, got "
                      "'%s'", tide_device_name(device));
  TIDE_TRY(tide__dense(&d, t, op));
  int rc = up && !d->storage->pinned
    ? tide__fail(t->ctx, TIDE_E_ARG, op, "the tensor is not contiguous, and its contiguous copy is "
                 "not pinned; use contiguous() and pin_memory() first")
    : start_copy(out, d, device);
  tide_tensor_release(d);
  return tide__created(out, rc);
}

int tide_sync(tide_ctx *ctx, int device)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  tide__device *d = tide__device_get(ctx, device, "sync");
  if (!d) return TIDE_E_DEVICE;
  if (!d->backend->sync) return TIDE_OK;
  TIDE_TRY(tide__not_captured(ctx, "sync"));
  int rc = d->backend->sync(d->state);
  if (rc == TIDE_OK && d->backend->streams) tide__async_copies_reap(d);
  return rc < 0 ? tide__fail(ctx, rc, "sync", "device '%s': %s", tide_device_name(device),
                             d->backend->why(d->state)) : TIDE_OK;
}
