/* The caching allocator: freed bytes are reused by later tensors, split and merged to their size.
 *
 * One cache per device of a context, so no locks. Block headers are host memory, so the same code
 * serves devices whose memory the host cannot access.
 */
#ifndef TIDE_DEVICE_CACHE_H
#define TIDE_DEVICE_CACHE_H

#include "core/base/base.h"
#include "core/device/backend.h"

typedef struct tide__block tide__block;

int  tide__cache_new(tide_ctx *ctx, struct tide__cache **out, const tide__backend *backend,
                     void *state);
void tide__cache_close(tide_ctx *ctx, struct tide__cache *cache);
/* Allocates a block; *out is NULL on a device without bytes. E_NOMEM. Counts live, since, their
 * peaks and debt. */
int  tide__cache_take(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block **out);
/* Returns the address of a block, 64-byte aligned; NULL for NULL. */
void *tide__block_data(const tide__block *block);
/* Frees a block. size: as taken; epoch: ctx->stats_epoch when it was taken. */
void tide__cache_give(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block *block,
                      int64_t epoch);
/* For a captured step (capture.c). forbid_trim: never returns memory to the device. freeze: blocks
 * freed from now on are not reused until tide__cache_return; thaw ends that and returns the list of
 * them. retire: closes the cache now, or when its last block is freed. */
void tide__cache_forbid_trim(struct tide__cache *cache);
void tide__cache_freeze(struct tide__cache *cache);
tide__block *tide__cache_thaw(struct tide__cache *cache);
void tide__cache_return(tide_ctx *ctx, tide__block *list);
void tide__cache_retire(tide_ctx *ctx, struct tide__cache *cache);
/* Returns free bytes to the device. */
void tide__cache_trim(tide_ctx *ctx, struct tide__cache *cache);

#endif
