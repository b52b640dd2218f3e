/* Asynchronous copies: see storage.h. Each holds its two storages until the copy is done. */
#include "core/device/storage.h"

struct tide__async_copy {
  tide__device *device;
  tide_ctx *ctx;
  void *event;
  tide__storage *host, *remote;      /* counted; remote: on the device, NULL once compute waits */
  struct tide__async_copy *prev, *next;
};

typedef struct tide__async_copy async_copy;

static void copy_let_go(tide__storage **s)
{
  tide__storage *held = *s;
  if (!held) return;
  *s = NULL;
  held->copy = NULL;
  tide__storage_release(held);
}

/* Removes a completed copy. */
static void copy_end(async_copy *f)
{
  tide__device *d = f->device;
  if (f->next) f->next->prev = f->prev;
  if (f->prev) f->prev->next = f->next;
  else d->copies = f->next;
  d->backend->streams->event_free(d->state, f->event);
  copy_let_go(&f->remote);
  copy_let_go(&f->host);
  tide__free(f->ctx, f, sizeof *f);
}

void tide__async_copies_reap(tide__device *d)
{
  for (async_copy *f = d->copies, *next; f; f = next) {
    next = f->next;
    if (d->backend->streams->event_done(d->state, f->event)) copy_end(f);
  }
}

void tide__async_copies_finish(tide__device *d)
{
  while (d->copies) {
    d->backend->streams->event_wait(d->state, d->copies->event);
    copy_end(d->copies);
  }
}

int tide__async_copies_order(tide__device *d)
{
  for (async_copy *f = d->copies; f; f = f->next)
    if (f->remote) TIDE_TRY(tide__async_copy_wait(f->remote));
  return TIDE_OK;
}

int tide__async_copy_start(tide__storage *dst, void *to, tide__storage *src, const void *from,
                           size_t size, const char *op)
{
  tide_ctx *ctx = dst->ctx;
  bool to_device = src->pinned;
  tide__device *d = &ctx->devices->device[to_device ? dst->device : src->device];
  tide__async_copies_reap(d);
  async_copy *f = tide__alloc(ctx, sizeof *f);
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
  f->remote = to_device ? dst : src;
  f->next = d->copies;
  if (f->next) f->next->prev = f;
  d->copies = f;
  f->host->copy = f->remote->copy = f;
  tide__storage_retain(f->host);
  tide__storage_retain(f->remote);
  return TIDE_OK;
}

int tide__async_copy_wait(tide__storage *s)
{
  async_copy *f = s->copy;
  tide__device *d = f->device;
  if (s == f->remote) {
    int rc = d->backend->streams->event_order(d->state, f->event);
    copy_let_go(&f->remote);
    return rc;
  }
  int rc = d->backend->streams->event_wait(d->state, f->event);
  copy_end(f);
  return rc;
}

bool tide__async_copy_detach(tide__storage *s)
{
  async_copy *f = s->copy;
  tide__storage *taken = s == f->host ? tide__storage_detach(s) : NULL;
  if (!taken) return false;
  copy_let_go(&f->host);
  f->host = taken;
  taken->copy = f;
  return true;
}

int tide__async_copy_failed(const tide__storage *s, const char *op)
{
  tide__device *d = &s->ctx->devices->device[TIDE__PINNING];
  return tide__fail(s->ctx, TIDE_E_DEVICE, op, "a copy under way failed: %s",
                    d->backend->why(d->state));
}
