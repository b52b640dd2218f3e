/* Host bookkeeping memory: every byte goes through the context's resize hook with its old size.
 *
 * Tensor bytes do not come from here but from the caching allocator of their device.
 */
#ifndef TIDE_BASE_ALLOC_H
#define TIDE_BASE_ALLOC_H

#include "core/base/ctx.h"

/* Zeroed memory, or null. */
void *tide__alloc(tide_ctx *ctx, size_t size);
/* Keeps the old bytes; null leaves the old block as it was. */
void *tide__resize(tide_ctx *ctx, void *ptr, size_t nold, size_t nnew);
void  tide__free(tide_ctx *ctx, void *ptr, size_t size);

/* The fault test of parameter fail_alloc: true when this allocation is to fail. Asked once for
 * every allocation, of host memory and of device memory alike. */
static inline bool tide__alloc_fails(tide_ctx *ctx)
{
  int64_t n = ctx->params.fail_alloc;
  if (n == 0) return false;
  ctx->nalloc++;
  return n > 0 ? ctx->nalloc == n : ctx->nalloc >= -n;
}

/* a * b for sizes >= 0, or -1 when the result would pass INT64_MAX. */
static inline int64_t tide__mul_size(int64_t a, int64_t b)
{
  int64_t r;
  return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r) ? -1 : r;
}

#endif
