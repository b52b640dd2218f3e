/* The devices of a context: those of libtide are opened with it, others at first use; all are
 * closed together. */
#include "core/device/device.h"

#include "core/base/machine.h"
#include "core/device/storage.h"

static const tide__backend *const backends[TIDE_NDEV] = {
  [TIDE_DEV_REF] = &tide__backend_ref,
  [TIDE_DEV_CPU] = &tide__backend_cpu,
  [TIDE_DEV_NULL] = &tide__backend_null,
};

static const char *const names[TIDE_NDEV] = {"ref", "cpu", "cuda", "null"};

const char *tide_device_name(int device)
{
  return device >= 0 && device < TIDE_NDEV ? names[device] : NULL;
}

static int open_backend(tide_ctx *ctx, int i, const tide__backend *b, const char *op)
{
  tide__device *d = &ctx->devices->device[i];
  char msg[TIDE__OPEN_MSG] = "";
  void *state = NULL;
  if (b->open && b->open(&state, &ctx->params, msg) < 0)
    return tide__fail(ctx, TIDE_E_DEVICE, op, "device '%s' is not available: %s", names[i], msg);
  int rc = tide__cache_new(ctx, &d->cache, b, state);
  if (rc == TIDE_OK && b->streams) rc = tide__cache_new(ctx, &d->pinned, b->streams->pinned, state);
  if (rc < 0) {
    tide__cache_close(ctx, d->cache);
    d->cache = NULL;
    if (b->close) b->close(state);
    return rc;
  }
  d->backend = b;
  d->state = state;
  d->queue = b->queue ? b->queue(state) : NULL;
  return TIDE_OK;
}

int tide__devices_open(tide_ctx *ctx)
{
  ctx->devices = tide__alloc(ctx, sizeof *ctx->devices);
  if (!ctx->devices) return tide__fail(ctx, TIDE_E_NOMEM, "ctx_new", "no memory for devices");
  ctx->devices->host_total = tide__machine_memory("").total;
  for (int i = 0; i < TIDE_NDEV; i++)
    if (backends[i]) TIDE_TRY(open_backend(ctx, i, backends[i], "ctx_new"));
  return TIDE_OK;
}

void tide__devices_close(tide_ctx *ctx)
{
  if (!ctx->devices) return;
  for (int i = 0; i < TIDE_NDEV; i++) {
    tide__device *d = &ctx->devices->device[i];
    tide__async_copies_finish(d);
    tide__cache_close(ctx, d->pinned);
    tide__cache_close(ctx, d->cache);
    if (d->backend && d->backend->close) d->backend->close(d->state);
  }
  tide__free(ctx, ctx->devices, sizeof *ctx->devices);
  ctx->devices = NULL;
}

static tide__device *open_plugin(tide_ctx *ctx, int i, const char *op)
{
  tide__device *d = &ctx->devices->device[i];
  const tide__plugin *p = tide__plugin_open(ctx, i, op);
  if (!p || open_backend(ctx, i, p->backend, op) < 0) {
    tide__log(ctx, TIDE_LOG_INFO, "%s", ctx->message);
    return NULL;
  }
  d->plugin = p;
  tide__log(ctx, TIDE_LOG_INFO, "device '%s' is open", names[i]);
  return d;
}

tide__device *tide__device_get(tide_ctx *ctx, int device, const char *op)
{
  if (device >= 0 && device < TIDE_NDEV && ctx->devices->device[device].backend)
    return &ctx->devices->device[device];
  if (device >= 0 && device < TIDE_NDEV) return open_plugin(ctx, device, op);
  tide__fail(ctx, TIDE_E_DEVICE, op, "device %d does not exist; known are ref, cpu, cuda, null",
             device);
  return NULL;
}

int tide_device_count(tide_ctx *ctx, int device)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  const char *op = "device_count";
  char msg[TIDE__OPEN_MSG] = "";
  if (device < 0 || device >= TIDE_NDEV) return tide__device_get(ctx, device, op) ? 1 : 0;
  const tide__backend *b = ctx->devices->device[device].backend;
  const tide__plugin *p = b ? NULL : tide__plugin_open(ctx, device, op);
  if (p) b = p->backend;
  if (!b || !b->count) return b != NULL;
  int n = b->count(msg);
  if (n >= 0) return n;
  tide__fail(ctx, n, op, "device '%s' is not available: %s", names[device], msg);
  return 0;
}

int tide_device_available(tide_ctx *ctx, int device)
{
  return TIDE_IS(CTX, ctx) ? tide__device_get(ctx, device, "device_available") != NULL : TIDE_E_ARG;
}
