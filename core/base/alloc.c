/* Host bookkeeping memory: counted calls of the context's resize hook. */
#include "core/base/alloc.h"
#include "core/base/base.h"

void *tide__alloc(tide_ctx *ctx, size_t size)
{
  void *p = tide__alloc_fails(ctx) ? NULL : ctx->hooks.resize(ctx->hooks.user, NULL, 0, size);
  if (!p) return NULL;
  ctx->stats.nhost += (int64_t)size;
  return memset(p, 0, size);
}

void *tide__resize(tide_ctx *ctx, void *ptr, size_t nold, size_t nnew)
{
  if (tide__alloc_fails(ctx)) return NULL;
  void *p = ctx->hooks.resize(ctx->hooks.user, ptr, nold, nnew);
  if (p) ctx->stats.nhost += (int64_t)nnew - (int64_t)nold;
  return p;
}

bool tide__grow(tide_ctx *ctx, void *array, int64_t n, int64_t *cap, size_t unit)
{
  void *p;
  int64_t more = *cap ? 2 * *cap : 16;
  if (n < *cap) return true;
  memcpy(&p, array, sizeof p);
  p = tide__resize(ctx, p, (size_t)*cap * unit, (size_t)more * unit);
  if (!p) return false;
  memcpy(array, &p, sizeof p);
  *cap = more;
  return true;
}

void tide__free(tide_ctx *ctx, void *ptr, size_t size)
{
  if (!ptr) return;
  ctx->hooks.resize(ctx->hooks.user, ptr, size, 0);
  ctx->stats.nhost -= (int64_t)size;
}
