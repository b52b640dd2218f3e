/* See device.h. */
#include "core/device/device.h"

bool tide__memory_is_hooked(const tide_ctx *ctx, const tide__backend *backend)
{
  return ctx->hooks.tensor_alloc && backend->host && backend->lazy;
}

void *tide__memory_alloc(tide_ctx *ctx, const tide__backend *backend, void *state, size_t size)
{
  const tide_opts *h = &ctx->hooks;
  if (!tide__memory_is_hooked(ctx, backend)) return backend->alloc(state, size);
  void *p = h->tensor_alloc(h->user, size, TIDE__ALIGN, backend->device);
  if ((uintptr_t)p % TIDE__ALIGN == 0) return p;
  h->tensor_free(h->user, p, size, backend->device);
  return NULL;
}

void tide__memory_free(tide_ctx *ctx, const tide__backend *backend, void *state, void *ptr,
                       size_t size)
{
  const tide_opts *h = &ctx->hooks;
  if (tide__memory_is_hooked(ctx, backend))
    h->tensor_free(h->user, ptr, size, backend->device);
  else backend->free(state, ptr, size);
}

bool tide__memory_discard(tide_ctx *ctx, const tide__backend *backend, void *state, void *ptr,
                          size_t size)
{
  if (!backend->discard || tide__memory_is_hooked(ctx, backend)) return false;
  backend->discard(state, ptr, size);
  return true;
}
