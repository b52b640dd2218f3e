/* See door.h. */
#include "core/base/base.h"

void *tide__object_new(tide_ctx *ctx, int kind, size_t size,
                       void (*release)(tide__object *o, int n))
{
  tide__object *o = ctx->params.reuse ? ctx->spare[kind] : NULL;
  if (o) {
    ctx->spare[kind] = o->next;
    memset(o, 0, size);
  } else if (!(o = tide__alloc(ctx, size))) {
    return NULL;
  }
  o->tag = TIDE__TAG(kind);
  o->ctx = ctx;
  o->release = release;
  o->kind = (uint32_t)kind;
  o->size = (uint32_t)size;
  tide__ctx_hold(ctx);
  return o;
}

void tide__object_retire(tide__object *o) { o->tag = ~TIDE__TAG(o->kind); }

void tide__object_free(tide__object *o)
{
  tide_ctx *ctx = o->ctx;
  tide__object_retire(o);
  o->next = ctx->spare[o->kind];
  ctx->spare[o->kind] = o;
  tide__ctx_drop(ctx);
}

void tide__objects_close(tide_ctx *ctx)
{
  for (int kind = 0; kind < TIDE__NKIND; kind++)
    for (tide__object *o = ctx->spare[kind], *next; o; o = next) {
      next = o->next;
      tide__free(ctx, o, o->size);
    }
}

/* Puts the object on the stack at its first release; further releases only count. */
static void push(tide_ctx *ctx, tide__object *o)
{
  if (atomic_fetch_add_explicit(&o->count, 1, memory_order_acq_rel) > 0) return;
  tide__object *head = atomic_load_explicit(&ctx->released, memory_order_relaxed);
  do o->next = head;
  while (!atomic_compare_exchange_weak_explicit(&ctx->released, &head, o, memory_order_release,
                                                memory_order_relaxed));
}

void tide__object_release(void *object, int kind)
{
  tide__object *o = object;
  if (!tide__alive(o, kind)) return;
  if (pthread_equal(pthread_self(), o->ctx->owner)) o->release(o, 1);
  else push(o->ctx, o);
}

void tide__objects_settle(tide_ctx *ctx)
{
  if (!atomic_load_explicit(&ctx->released, memory_order_relaxed)) return;
  tide__object *o = atomic_exchange_explicit(&ctx->released, NULL, memory_order_acquire);
  while (o) {
    tide__object *next = o->next; /* read first: the object may be reused afterwards */
    o->release(o, atomic_exchange_explicit(&o->count, 0, memory_order_acq_rel));
    o = next;
  }
}
