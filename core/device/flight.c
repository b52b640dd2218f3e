/* Copies under way: see flight.h. A flight holds its two storages until the copy is done. */
#include "core/device/flight.h"

#include "core/base/alloc.h"
#include "core/base/status.h"

struct tide__flight {
  tide__device *device;
  tide_ctx *ctx;
  void *event;
  tide__storage *host, *far;      /* counted; far: on the device; null once it has landed */
  struct tide__flight *prev, *next;
};

typedef struct tide__flight flight;

static void let_go(tide__storage **s)
{
  tide__storage *held = *s;
  if (!held) return;
  *s = NULL;
  held->flight = NULL;
  tide__storage_release(held);
}

/* The copy is done. */
static void end(flight *f)
{
  tide__device *d = f->device;
  if (f->next) f->next->prev = f->prev;
  if (f->prev) f->prev->next = f->next;
  else d->flights = f->next;
  d->backend->streams->event_free(d->state, f->event);
  let_go(&f->far);
  let_go(&f->host);
  tide__free(f->ctx, f, sizeof *f);
}

void tide__flights_reap(tide__device *d)
{
  for (flight *f = d->flights, *next; f; f = next) {
    next = f->next;
    if (d->backend->streams->event_done(d->state, f->event)) end(f);
  }
}

void tide__flights_close(tide__device *d)
{
  while (d->flights) {
    d->backend->streams->event_wait(d->state, d->flights->event);
    end(d->flights);
  }
}

int tide__flights_order(tide__device *d)
{
  for (flight *f = d->flights; f; f = f->next)
    if (f->far) TIDE_TRY(tide__flight_land(f->far));
  return TIDE_OK;
}

int tide__flight_start(tide__storage *dst, void *to, tide__storage *src, const void *from,
                       size_t size, const char *op)
{
  tide_ctx *ctx = dst->ctx;
  bool to_device = src->pinned;
  tide__device *d = &ctx->devices->device[to_device ? dst->device : src->device];
  tide__flights_reap(d);
  flight *f = tide__alloc(ctx, sizeof *f);
  if (!f) return tide__fail(ctx, TIDE_E_NOMEM, op, "no host memory for a copy");
  int rc = d->backend->streams->copy(d->state, to, from, size, to_device, &f->event);
  if (rc < 0) {
    tide__free(ctx, f, sizeof *f);
    return tide__fail(ctx, rc, op, "device '%s': %s", tide_device_name(d->backend->device),
                      d->backend->why(d->state));
  }
  f->device = d;
  f->ctx = ctx;
  f->host = to_device ? src : dst;
  f->far = to_device ? dst : src;
  f->next = d->flights;
  if (f->next) f->next->prev = f;
  d->flights = f;
  f->host->flight = f->far->flight = f;
  tide__storage_retain(f->host);
  tide__storage_retain(f->far);
  return TIDE_OK;
}

int tide__flight_land(tide__storage *s)
{
  flight *f = s->flight;
  tide__device *d = f->device;
  if (s == f->far) {
    int rc = d->backend->streams->event_order(d->state, f->event);
    let_go(&f->far);
    return rc;
  }
  int rc = d->backend->streams->event_wait(d->state, f->event);
  end(f);
  return rc;
}

bool tide__flight_inherit(tide__storage *s)
{
  flight *f = s->flight;
  tide__storage *heir = s == f->host ? tide__storage_heir(s) : NULL;
  if (!heir) return false;
  let_go(&f->host);
  f->host = heir;
  heir->flight = f;
  return true;
}

int tide__flight_failed(const tide__storage *s, const char *op)
{
  tide__device *d = &s->ctx->devices->device[TIDE_DEV_CUDA];
  return tide__fail(s->ctx, TIDE_E_DEVICE, op, "a copy under way failed: %s",
                    d->backend->why(d->state));
}
