/* Storage: reference-counted bytes that can be absent, and their membership in step scopes. */
#include "core/device/storage.h"

void tide__scope_link(struct tide__scope *scope, tide__storage *s)
{
  s->scope = scope;
  s->scope_prev = NULL;
  s->scope_next = scope->first;
  if (scope->first) scope->first->scope_prev = s;
  scope->first = s;
}

void tide__scope_escape(tide__storage *s)
{
  if (!s->scope) return;
  if (s->scope_prev) s->scope_prev->scope_next = s->scope_next;
  else s->scope->first = s->scope_next;
  if (s->scope_next) s->scope_next->scope_prev = s->scope_prev;
  s->scope = NULL;
  s->scope_prev = s->scope_next = NULL;
}

static int storage_take(tide__storage *s)
{
  tide__device *d = tide__device_get(s->ctx, s->device, "alloc");
  if (!d) return TIDE_E_DEVICE;
  struct tide__cache *cache = s->pinned ? s->ctx->devices->device[TIDE__PINNING].pinned : d->cache;
  TIDE_TRY(tide__cache_take(s->ctx, cache, s->size, &s->block));
  s->epoch = s->ctx->stats_epoch;
  s->data = tide__block_data(s->block);
  if (s->data && s->ctx->params.poison && d->backend->host) memset(s->data, 0xff, s->size);
  s->gone = false;
  return TIDE_OK;
}

/* Headers are recycled through a free list, linked by scope_next: a steady loop allocates none. */
static tide__storage *storage_header(tide_ctx *ctx)
{
  tide__storage *s = ctx->storages;
  if (!s) return tide__alloc(ctx, sizeof *s);
  tide__prefetch(ctx->storages = s->scope_next, 3);
  memset(s, 0, sizeof *s);
  return s;
}

static void storage_recycle(tide__storage *s)
{
  s->scope_next = s->ctx->storages;
  s->ctx->storages = s;
}

void tide__storage_pool_close(tide_ctx *ctx)
{
  for (tide__storage *s = ctx->storages, *next; s; s = next) {
    next = s->scope_next;
    tide__free(ctx, s, sizeof *s);
  }
  ctx->storages = NULL;
}

/* Returns a storage of one reference without bytes, or null after a failure. */
static tide__storage *storage_make(tide_ctx *ctx, int device, size_t size)
{
  tide__storage *s = storage_header(ctx);
  if (!s) {
    tide__fail(ctx, TIDE_E_NOMEM, "alloc", "no host memory for a storage");
    return NULL;
  }
  s->refs = 1;
  s->ctx = ctx;
  s->size = size;
  s->device = device;
  return s;
}

int tide__storage_new(tide__storage **out, tide_ctx *ctx, int device, size_t size, bool pinned)
{
  *out = NULL;
  tide__storage *s = storage_make(ctx, device, size);
  if (!s) return TIDE_E_NOMEM;
  s->pinned = pinned;
  int rc = storage_take(s);
  if (rc < 0) {
    storage_recycle(s);
    return rc;
  }
  if (ctx->scope) tide__scope_link(ctx->scope, s);
  *out = s;
  return TIDE_OK;
}

int tide__storage_new_lent(tide__storage **out, tide_ctx *ctx, int device, size_t size,
                           const tide__lent *lent)
{
  *out = storage_make(ctx, device, size);
  if (!*out) return TIDE_E_NOMEM;
  (*out)->lent = *lent;
  (*out)->data = lent->data;
  if (ctx->scope) tide__scope_link(ctx->scope, *out);
  return TIDE_OK;
}

int tide__storage_new_hollow(tide__storage **out, tide_ctx *ctx, int device)
{
  tide__storage *s = storage_header(ctx);
  *out = s;
  if (!s) return tide__fail(ctx, TIDE_E_NOMEM, "tensor_spend", "no host memory for a storage");
  s->refs = 1;
  s->ctx = ctx;
  s->device = device;
  s->gone = s->hollow = true;
  return TIDE_OK;
}

tide__storage *tide__storage_detach(tide__storage *s)
{
  tide__storage *taken = storage_header(s->ctx);
  if (!taken) return NULL;
  taken->refs = 1;
  taken->ctx = s->ctx;
  taken->size = s->size;
  taken->device = s->device;
  taken->pinned = s->pinned;
  taken->epoch = s->epoch;
  taken->block = s->block;
  taken->data = s->data;
  s->block = NULL;
  return taken;
}

/* Gives the bytes back to the host or the cache. */
static void storage_give(tide__storage *s)
{
  tide__lent lent = s->lent;
  if (!lent.data) {
    tide__cache_give(s->ctx, s->ctx->devices->device[s->device].cache, s->size, s->block, s->epoch);
    return;
  }
  s->lent = (tide__lent){0};
  if (lent.give) lent.give(lent.user, lent.data);
}

/* Drops the bytes of a storage. An asynchronous copy may hold the last reference to s. */
void tide__storage_drop(tide__storage *s)
{
  if (s->gone) return;
  bool copying = s->copy != NULL;
  if (copying) tide__storage_retain(s);
  if (!copying || !tide__async_copy_detach(s)) {
    if (copying) tide__async_copy_wait(s);
    storage_give(s);
  }
  s->block = NULL;
  s->data = NULL;
  s->gone = true;
  s->dropped = s->version;
  s->refill = false;
  if (copying) tide__storage_release(s);
}

int tide__storage_restore(tide__storage *s)
{
  if (!s->gone) return TIDE_OK;
  if (s->hollow)
    return tide__fail(s->ctx, TIDE_E_GONE, "tensor_restore", "the bytes were freed at their "
                      "last use (tide_tensor_spend) and cannot be restored");
  TIDE_TRY(storage_take(s));
  s->version++;
  s->refill = true;
  return TIDE_OK;
}

bool tide__storage_refilled(tide__storage *s)
{
  if (!s->refill) return false;
  s->version = s->dropped;
  s->refill = false;
  return true;
}

void tide__storage_retain(tide__storage *s) { s->refs++; }

void tide__storage_release(tide__storage *s)
{
  if (!s || --s->refs > 0) return;
  tide__scope_escape(s);
  tide__storage_drop(s);
  storage_recycle(s);
}
