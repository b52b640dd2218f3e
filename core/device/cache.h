/* The caching allocator: freed bytes wait for the next tensor, split and merged to its size.
 *
 * One cache per device of a context, so no locks. What is handed out is a block: its address and
 * what the cache knows of it, all on the host, so the same code serves devices whose memory the
 * host cannot touch.
 */
#ifndef TIDE_DEVICE_CACHE_H
#define TIDE_DEVICE_CACHE_H

#include "core/base/ctx.h"
#include "core/device/backend.h"

typedef struct tide__block tide__block;

int  tide__cache_new(tide_ctx *ctx, struct tide__cache **out, const tide__backend *backend,
                     void *state);
void tide__cache_close(tide_ctx *ctx, struct tide__cache *cache);
/* *out: the block, null on a device without bytes. E_NOMEM; counts live, since, their peaks and
 * debt. */
int  tide__cache_take(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block **out);
/* Address of a block, 64-byte aligned; null for null. */
void *tide__block_data(const tide__block *block);
/* size: as taken; mark: ctx->mark of then. */
void tide__cache_give(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block *block,
                      int64_t mark);
/* For a step that is captured (capture.c). keep: never gives memory back to the device. freeze:
 * blocks that come back from now on are not handed out again until they are returned; thaw ends
 * that and hands over the list of them. retire: closed now, or when its last block comes back. */
void tide__cache_keep(struct tide__cache *cache);
void tide__cache_freeze(struct tide__cache *cache);
tide__block *tide__cache_thaw(struct tide__cache *cache);
void tide__cache_return(tide_ctx *ctx, tide__block *list);
void tide__cache_retire(tide_ctx *ctx, struct tide__cache *cache);
/* Free bytes back to the device. */
void tide__cache_trim(tide_ctx *ctx, struct tide__cache *cache);

#endif
