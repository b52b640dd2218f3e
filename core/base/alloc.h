/* Host bookkeeping memory, and the order of indices. Every byte goes through the context's resize
 * hook with its old size. Tensor bytes are allocated by the caching allocator of their device. */
#pragma once

#include "core/base/ctx.h"

/* Returns zeroed memory, or NULL. */
void *tide__alloc(tide_ctx *ctx, size_t size);
/* Resizes a block and keeps its old bytes. Returns NULL and leaves the block unchanged on
 * failure. */
void *tide__resize(tide_ctx *ctx, void *ptr, size_t nold, size_t nnew);
/* Makes space for one more element of `unit` bytes beside the n of an array, whose space *cap
 * counts. array: the address of its pointer. Returns false without memory; the array is then
 * unchanged. */
bool  tide__grow(tide_ctx *ctx, void *array, int64_t n, int64_t *cap, size_t unit);
void  tide__free(tide_ctx *ctx, void *ptr, size_t size);

/* Returns whether this allocation must fail, for parameter fail_alloc. Called once per allocation,
 * of host and device memory alike. */
static inline bool tide__alloc_fails(tide_ctx *ctx)
{
  int64_t n = ctx->params.fail_alloc;
  if (n == 0) return false;
  ctx->nalloc++;
  return n > 0 ? ctx->nalloc == n : ctx->nalloc >= -n;
}

/* Prefetches the cache lines of an object that is needed soon: the next of a free list. */
static inline void tide__prefetch(const void *object, int nline)
{
  for (int i = 0; i < nline; i++) __builtin_prefetch((const char *)object + 64 * i, 1);
}

/* Returns a * b for sizes >= 0, or -1 if the result exceeds INT64_MAX. */
static inline int64_t tide__mul_size(int64_t a, int64_t b)
{
  int64_t r;
  return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &r) ? -1 : r;
}

/* Sorts n indices in place, without memory of its own. less(arg, a, b): a precedes b. */
typedef bool (*tide__less)(const void *arg, int32_t a, int32_t b);
void tide__sort(int32_t *index, int64_t n, tide__less less, const void *arg);
/* Sorts 0 to n - 1 into index. Returns one that is equal to another, or -1. */
int32_t tide__sort_twin(int32_t *index, int64_t n, tide__less less, const void *arg);
