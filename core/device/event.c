/* Events that keep the time at which a device reached them, and named ranges for its profilers.
 *
 * A device without streams computes at once, so its events are times of the host's clock.
 */
#include "core/device/storage.h"

struct tide_device_event {
  tide__object object;
  tide_ctx *ctx;
  int device;
  void *event;   /* of a device with streams; owned */
  double clock;  /* of another device */
};

static tide__device *event_device(const tide_device_event *e)
{
  return &e->ctx->devices->device[e->device];
}

static int event_failed(const tide_device_event *e, int rc, const char *op)
{
  tide__device *d = event_device(e);
  return rc >= 0 ? rc : tide__fail(e->ctx, rc, op, "device '%s': %s", tide_device_name(e->device),
                                   d->backend->why(d->state));
}

static void event_destroy(tide__object *o, int n)
{
  tide_device_event *e = (tide_device_event *)o;
  tide__device *d = event_device(e);
  (void)n;
  if (e->event) d->backend->streams->event_free(d->state, e->event);
  tide__object_free(o);
}

static int event_new(tide_device_event **out, tide_ctx *ctx, int device)
{
  tide_device_event *e = tide__object_new(ctx, TIDE__KIND_EVENT, sizeof *e, event_destroy);
  if (!e) return tide__fail(ctx, TIDE_E_NOMEM, "device_event_record", "no host memory");
  e->ctx = ctx;
  e->device = device;
  *out = e;
  return TIDE_OK;
}

int tide_device_event_record(tide_device_event **event, tide_ctx *ctx, int device)
{
  const char *op = "device_event_record";
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx), TIDE_MAYBE(EVENT, *event));
  tide__device *d = tide__device_get(ctx, device, op);
  if (!d) return TIDE_E_DEVICE;
  if (ctx->capture)
    return tide__fail(ctx, TIDE_E_STATE, op, "a step is being captured, and its replays would not "
                      "record the event; record it before and after replay");
  if (*event && (*event)->device != device)
    return tide__fail(ctx, TIDE_E_ARG, op, "the event is one of device '%s', got '%s'; make an "
                      "event for each", tide_device_name((*event)->device),
                      tide_device_name(device));
  tide_device_event *e = *event;
  if (!e) TIDE_TRY(event_new(&e, ctx, device));
  e->clock = tide_trace_clock();
  int rc = d->backend->streams ? d->backend->streams->time_event(d->state, &e->event) : TIDE_OK;
  if (rc < 0) event_failed(e, rc, op);
  if (rc < 0 && !*event) tide_device_event_release(e);
  else *event = e;
  return rc;
}

int tide_device_event_done(tide_device_event *e)
{
  TIDE_DOOR(TIDE_OBJECT(EVENT, e));
  tide__device *d = event_device(e);
  if (!e->event) return 1;
  return event_failed(e, d->backend->streams->event_done(d->state, e->event), "device_event_done");
}

int tide_device_event_wait(tide_device_event *e)
{
  TIDE_DOOR(TIDE_OBJECT(EVENT, e));
  tide__device *d = event_device(e);
  TIDE_TRY(tide__not_captured(e->ctx, "device_event_wait"));
  if (!e->event) return TIDE_OK;
  return event_failed(e, d->backend->streams->event_wait(d->state, e->event), "device_event_wait");
}

int tide_device_event_elapsed(double *ms, tide_device_event *from, tide_device_event *to)
{
  const char *op = "device_event_elapsed";
  *ms = 0;
  TIDE_DOOR(TIDE_OBJECT(EVENT, from), TIDE_OBJECT(EVENT, to));
  TIDE_TRY(tide__not_captured(from->ctx, op));
  if (from->device != to->device)
    return tide__fail(from->ctx, TIDE_E_ARG, op, "expected two events of one device, got one of "
                      "'%s' and one of '%s'", tide_device_name(from->device),
                      tide_device_name(to->device));
  if (!from->event) {
    *ms = (to->clock - from->clock) * 1e3;
    return TIDE_OK;
  }
  tide__device *d = event_device(from);
  return event_failed(from, d->backend->streams->event_ms(d->state, from->event, to->event, ms),
                      op);
}

void tide_device_event_release(tide_device_event *e)
{
  tide__object_release(e, TIDE__KIND_EVENT);
}

int tide_range(tide_ctx *ctx, int device, const char *name)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (device < 0 || device >= TIDE_NDEV)
    return tide__device_get(ctx, device, "range") ? TIDE_OK : TIDE_E_DEVICE;
  const tide__backend *b = ctx->devices->device[device].backend;
  if (b && b->streams) b->streams->range(name);
  return TIDE_OK;
}
