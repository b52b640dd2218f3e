/* See foreign.h. */
#include "core/base/foreign.h"

/* Puts the object on the stack at its first release; further ones only count. */
static void foreign_push(tide_ctx *ctx, tide__foreign *f)
{
  if (atomic_fetch_add_explicit(&f->count, 1, memory_order_acq_rel) > 0) return;
  struct tide__foreign *head = atomic_load_explicit(&ctx->released, memory_order_relaxed);
  do f->next = head;
  while (!atomic_compare_exchange_weak_explicit(&ctx->released, &head, f, memory_order_release,
                                                memory_order_relaxed));
}

void tide__foreign_release(tide_ctx *ctx, tide__foreign *f)
{
  if (pthread_equal(pthread_self(), ctx->owner)) f->release(f, 1);
  else foreign_push(ctx, f);
}

void tide__foreign_settle(tide_ctx *ctx)
{
  if (!atomic_load_explicit(&ctx->released, memory_order_relaxed)) return;
  tide__foreign *f = atomic_exchange_explicit(&ctx->released, NULL, memory_order_acquire);
  while (f) {
    tide__foreign *next = f->next; /* read first: release may free the object */
    f->release(f, atomic_exchange_explicit(&f->count, 0, memory_order_acq_rel));
    f = next;
  }
}
