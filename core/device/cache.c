/* The caching allocator: segments of the device's memory, split into blocks and merged again.
 *
 * Free blocks are kept in lists by size class, sixteen classes per power of two, with one bit per
 * class, so finding one that fits scans a few words (two-level segregated fit: Masmano, Ripoll,
 * Crespo, Real, "TLSF: a new dynamic memory allocator for real-time systems", ECRTS 2004). The best
 * fit of the first list that has one is cut to size; a freed block merges with its free neighbours
 * at once. So gradients fit where activations were, and memory follows the live bytes instead of
 * the sum over sizes.
 *
 * Small and large requests have segments of their own, so that a long-lived scalar does not split
 * the space of activations. Where untouched memory costs nothing (`lazy`), segments are large, and
 * `held` counts how much of a free block has been in use before: only that is reported as cached.
 * When held bytes far exceed the live ones (a run that changed its shapes), the cache of a host
 * returns them: empty segments whole, pages of other free blocks through `discard`. With parameter
 * cache=0 each request is a segment of its own, freed at once.
 *
 * Invariants: the blocks of a segment cover it in address order; no two neighbours are both free; a
 * free block is in the list of its class and pool. All choices depend on sizes and order alone.
 */

#include "core/base/machine.h"
#include "core/device/storage.h"

enum {
  GRAIN = 64,                 /* blocks of the small pool are multiples of this */
  PAGE = 4096,                /* those of the large pool of this */
  SMALL = 256 << 10,          /* the largest request of the small pool */
  SMALL_SEGMENT = 4 << 20,
  LAZY_SEGMENT = 256 << 20,   /* of the large pool, if untouched memory costs nothing */
  DEVICE_SEGMENT = 32 << 20,  /* of the large pool elsewhere */
  SEGMENT_STEP = 2 << 20,     /* larger requests are rounded up to this */
  SLACK = 1 << 28,            /* held bytes that are always allowed */
  SPILL = 32 << 20,           /* and, beside an eighth of the live ones, before memory grows beyond
                                 the most that was live */
  NPOOL = 2,
  SUB = 4,                    /* log2 of the classes per power of two */
  NCLASS = (47 - SUB - 5) << SUB,
  NWORD = (NCLASS + 63) / 64,
  LOOK = 16,                  /* blocks of a list that are compared */
  ASK_MACHINE = 64 << 20      /* host segments of this size and more: check available memory */
};

typedef struct segment {
  struct segment *prev, *next;
  struct tide__cache *cache;
  char *ptr;
  size_t size;
  int pool;
} segment;

struct tide__block {
  char *ptr;
  size_t size;
  size_t held;                /* free: bytes of it that were in use since the last trim */
  segment *seg;
  tide__block *before, *after;      /* neighbours in the segment */
  tide__block *prev, *next;         /* free: list of the class; unused header: spare list */
  bool free;
};

typedef struct pool {
  uint64_t bits[NWORD];
  tide__block *list[NCLASS];
} pool;

struct tide__cache {
  const tide__backend *backend;
  void *state;
  pool pools[NPOOL];
  segment *segments;
  tide__block *spare;         /* headers, linked by next */
  int64_t live, held;         /* of this device */
  int64_t most_live;          /* the maximum of live */
  bool host;                  /* its bytes are host memory, which has a limit */
  bool hooked;                /* the host owns them (memory.c) */
  bool lazy;                  /* untouched memory costs nothing */
  tide__block *frozen_list;   /* linked by next */
  bool frozen, no_trim, retired;
};

static size_t cache_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static size_t rounded(size_t size)
{
  return size <= SMALL ? cache_round_up(size ? size : 1, GRAIN) : cache_round_up(size, PAGE);
}

/* Returns the class of a block: one per multiple of GRAIN up to 2^SUB of them, then 2^SUB per power
 * of two. */
static int class_of(size_t size)
{
  size_t n = size / GRAIN;
  if (n < (size_t)1 << SUB) return (int)n;
  int top = 63 - __builtin_clzll((unsigned long long)n);
  return ((top - SUB + 1) << SUB) + (int)((n >> (top - SUB)) & ((1 << SUB) - 1));
}

int tide__cache_new(tide_ctx *ctx, struct tide__cache **out, const tide__backend *backend,
                    void *state)
{
  *out = tide__alloc(ctx, sizeof **out);
  if (!*out) return tide__fail(ctx, TIDE_E_NOMEM, "ctx_new", "no memory for a cache");
  (*out)->backend = backend;
  (*out)->state = state;
  (*out)->host = backend->host && backend->has_bytes;
  (*out)->hooked = tide__memory_is_hooked(ctx, backend);
  (*out)->lazy = backend->lazy && !(*out)->hooked;
  return TIDE_OK;
}

void *tide__block_data(const tide__block *block) { return block ? block->ptr : NULL; }

/* ---- headers and lists ----------------------------------------------------------------------- */

static tide__block *cache_header(tide_ctx *ctx, struct tide__cache *cache)
{
  tide__block *b = cache->spare;
  if (!b) return tide__alloc(ctx, sizeof *b);
  cache->spare = b->next;
  *b = (tide__block){0};
  return b;
}

static void cache_recycle(struct tide__cache *cache, tide__block *b)
{
  b->next = cache->spare;
  cache->spare = b;
}

static void count_held(tide_ctx *ctx, struct tide__cache *cache, int64_t n)
{
  cache->held += n;
  ctx->stats.cached += n;
}

static void list_in(struct tide__cache *cache, tide__block *b)
{
  pool *p = &cache->pools[b->seg->pool];
  int c = class_of(b->size);
  b->free = true;
  b->prev = NULL;
  b->next = p->list[c];
  if (b->next) b->next->prev = b;
  p->list[c] = b;
  p->bits[c / 64] |= 1ull << c % 64;
}

static void list_out(struct tide__cache *cache, tide__block *b)
{
  pool *p = &cache->pools[b->seg->pool];
  int c = class_of(b->size);
  b->free = false;
  if (b->next) b->next->prev = b->prev;
  if (b->prev) {
    b->prev->next = b->next;
    return;
  }
  p->list[c] = b->next;
  if (!b->next) p->bits[c / 64] &= ~(1ull << c % 64);
}

/* Returns the smallest block that fits; of equal ones the last freed, which is warm in the
 * caches. */
static tide__block *best_of(tide__block *b, size_t size)
{
  tide__block *best = NULL;
  for (int i = 0; b && i < LOOK; i++, b = b->next) {
    if (b->size < size || (best && b->size >= best->size)) continue;
    best = b;
    if (b->size == size) break;
  }
  return best;
}

static tide__block *cache_find(struct tide__cache *cache, int pool_no, size_t size)
{
  pool *p = &cache->pools[pool_no];
  int c = class_of(size);
  tide__block *b = best_of(p->list[c], size);
  if (b || ++c >= NCLASS) return b;
  for (int w = c / 64; w < NWORD; w++) {
    uint64_t bits = p->bits[w];
    if (w == c / 64) bits &= ~0ull << c % 64;
    if (bits) return best_of(p->list[64 * w + __builtin_ctzll(bits)], size);
  }
  return NULL;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* Refuses bytes beyond parameter `memory`, and on the host beyond what the machine can ever hold:
 * the system would grant the addresses and kill a process once they are used. E_NOMEM. */
static int check_limits(tide_ctx *ctx, const struct tide__cache *cache, size_t size)
{
  int64_t bytes = (int64_t)size, limit = ctx->params.memory;
  const struct tide__device_table *d = ctx->devices;
  if (limit && bytes > limit - ctx->stats.live)
    return tide__fail(ctx, TIDE_E_NOMEM, "alloc", "%zu bytes on top of %lld live ones pass the "
                      "memory parameter (%lld)", size, (long long)ctx->stats.live,
                      (long long)limit);
  limit = ctx->params.host_memory ? ctx->params.host_memory : d->host_total;
  if (!cache->host || !limit || bytes <= limit - d->host_live) return TIDE_OK;
  return tide__fail(ctx, TIDE_E_NOMEM, "alloc", "%zu bytes on top of %lld live ones on the host "
                    "pass %s (%lld)", size, (long long)d->host_live, ctx->params.host_memory
                    ? "the host_memory parameter" : "the memory of this machine or its cgroup; "
                    "parameter host_memory sets another limit", (long long)limit);
}

/* Returns whether the machine has memory for a new segment of this size now. Parameter host_memory
 * replaces this test, and so does a host that owns the memory. */
static bool is_available(const tide_ctx *ctx, const struct tide__cache *cache, size_t size)
{
  if (!cache->host || cache->hooked || ctx->params.host_memory || size < ASK_MACHINE) return true;
  int64_t available = tide__machine_memory("").available;
  return !available || (int64_t)size <= available;
}

/* Records why no block of this size could be made. E_NOMEM, or E_DEVICE for a broken device. */
static int out_of_memory(tide_ctx *ctx, const struct tide__cache *cache, size_t size)
{
  const char *failed = cache->backend->failed ? cache->backend->failed(cache->state) : NULL;
  const char *name = tide_device_name(cache->backend->device);
  if (failed) return tide__fail(ctx, TIDE_E_DEVICE, "alloc", "device '%s': %s", name, failed);
  if (cache->hooked)
    return tide__fail(ctx, TIDE_E_NOMEM, "alloc", "device '%s': the host's tensor_alloc gave no "
                      "%zu bytes aligned to %d (%lld live)", name, size, TIDE__ALIGN,
                      (long long)cache->live);
  if (is_available(ctx, cache, size))
    return tide__fail(ctx, TIDE_E_NOMEM, "alloc", "device '%s' has no %zu bytes left (%lld live)",
                      name, size, (long long)cache->live);
  return tide__fail(ctx, TIDE_E_NOMEM, "alloc", "%zu bytes on top of %lld live ones on the host "
                    "are more than this machine or its cgroup has left (%lld); parameter "
                    "host_memory sets another limit", size, (long long)ctx->devices->host_live,
                    (long long)tide__machine_memory("").available);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Returns one free block that covers a new segment, or NULL. */
static tide__block *open_segment(tide_ctx *ctx, struct tide__cache *cache, int pool_no, size_t size)
{
  if (tide__alloc_fails(ctx) || !is_available(ctx, cache, size)) return NULL;
  segment *s = tide__alloc(ctx, sizeof *s);
  tide__block *b = s ? cache_header(ctx, cache) : NULL;
  char *ptr = b ? tide__memory_alloc(ctx, cache->backend, cache->state, size) : NULL;
  if (!ptr) {
    if (b) cache_recycle(cache, b);
    tide__free(ctx, s, sizeof *s);
    return NULL;
  }
  *s = (segment){.next = cache->segments, .cache = cache, .ptr = ptr, .size = size,
                  .pool = pool_no};
  if (s->next) s->next->prev = s;
  cache->segments = s;
  b->ptr = ptr;
  b->size = size;
  b->seg = s;
  b->held = cache->lazy ? 0 : size;
  count_held(ctx, cache, (int64_t)b->held);
  list_in(cache, b);
  return b;
}

/* Frees the segment of b, which is free and the segment's only block. */
static void close_segment(tide_ctx *ctx, struct tide__cache *cache, tide__block *b)
{
  segment *s = b->seg;
  list_out(cache, b);
  count_held(ctx, cache, -(int64_t)b->held);
  cache_recycle(cache, b);
  if (s->next) s->next->prev = s->prev;
  if (s->prev) s->prev->next = s->next;
  else cache->segments = s->next;
  tide__memory_free(ctx, cache->backend, cache->state, s->ptr, s->size);
  tide__free(ctx, s, sizeof *s);
}

static tide__block *grow(tide_ctx *ctx, struct tide__cache *cache, int pool_no, size_t size)
{
  size_t usual = pool_no == 0 ? SMALL_SEGMENT
                              : cache->lazy ? LAZY_SEGMENT : DEVICE_SEGMENT;
  size_t least = pool_no == 0 ? SMALL_SEGMENT : cache_round_up(size, SEGMENT_STEP);
  if (!ctx->params.cache) usual = least = size;
  tide__block *b = usual > least ? open_segment(ctx, cache, pool_no, usual) : NULL;
  if (!b) b = open_segment(ctx, cache, pool_no, least);
  if (b || !cache->segments || cache->no_trim) return b;
  tide__log(ctx, TIDE_LOG_WARN, "device '%s' has no %zu bytes left: the %lld free ones that are "
            "cached go back, then once more", tide_device_name(cache->backend->device), least,
            (long long)cache->held);
  /* A GPU's runtime waits in each free for all work of the device, and while it waits for the
   * collectives of ranks that are threads of this process, these cannot make their calls. */
  if (cache->backend->streams) tide__participants_settle(ctx);
  tide__cache_trim(ctx, cache);
  return open_segment(ctx, cache, pool_no, least);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* Takes a free block out of its list and splits off what exceeds size. Used bytes are assumed to
 * lie at the front. Returns false without a header for the rest. */
static bool cut(tide_ctx *ctx, struct tide__cache *cache, tide__block *b, size_t size)
{
  tide__block *rest = NULL;
  if (b->size > size && !(rest = cache_header(ctx, cache))) return false;
  list_out(cache, b);
  size_t left = b->held > size ? b->held - size : 0;
  count_held(ctx, cache, (int64_t)left - (int64_t)b->held);
  if (!rest) return true;
  rest->ptr = b->ptr + size;
  rest->size = b->size - size;
  rest->held = left;
  rest->seg = b->seg;
  rest->before = b;
  rest->after = b->after;
  if (b->after) b->after->before = rest;
  b->after = rest;
  b->size = size;
  list_in(cache, rest);
  return true;
}

/* Merges b with its successor. */
static void merge(struct tide__cache *cache, tide__block *b, tide__block *after)
{
  b->size += after->size;
  b->held += after->held;
  b->after = after->after;
  if (b->after) b->after->before = b;
  cache_recycle(cache, after);
}

/* Returns a block to the lists, merged with its free neighbours. */
static tide__block *put_back(tide_ctx *ctx, struct tide__cache *cache, tide__block *b)
{
  tide__block *before = b->before, *after = b->after;
  b->held = b->size;
  count_held(ctx, cache, (int64_t)b->held);
  if (after && after->free) {
    list_out(cache, after);
    merge(cache, b, after);
  }
  if (before && before->free) {
    list_out(cache, before);
    merge(cache, before, b);
    b = before;
  }
  list_in(cache, b);
  return b;
}

static bool covers_segment(const tide__block *b) { return b->size == b->seg->size; }

/* Returns the free bytes of one block to the device, if it supports that. */
static void discard(tide_ctx *ctx, struct tide__cache *cache, tide__block *b)
{
  if (covers_segment(b)) {
    close_segment(ctx, cache, b);
  } else if (b->held > 0
             && tide__memory_discard(ctx, cache->backend, cache->state, b->ptr, b->size)) {
    count_held(ctx, cache, -(int64_t)b->held);
    b->held = 0;
  }
}

void tide__cache_trim(tide_ctx *ctx, struct tide__cache *cache)
{
  if (cache->no_trim) return;
  for (int i = 0; i < NPOOL; i++)
    for (int c = 0; c < NCLASS; c++)
      for (tide__block *b = cache->pools[i].list[c], *next; b; b = next) {
        next = b->next;
        discard(ctx, cache, b);
      }
}

/* Returns the largest free blocks to the device when `size` bytes of block `taken` reach into
 * memory that was not held, so that what the process holds stays near the most that was live: a
 * loop whose steps are alike keeps its pages, and its first step sets the peak. */
static void spill(tide_ctx *ctx, struct tide__cache *cache, const tide__block *taken, size_t size)
{
  int64_t near = cache->live / 8 + SPILL, below = cache->most_live - cache->live - (int64_t)size;
  int64_t most = below > near ? below : near;
  pool *p = &cache->pools[1];
  for (int c = NCLASS - 1; c >= 0 && cache->held > most; c--)
    for (tide__block *b = p->list[c], *next; b && cache->held > most; b = next) {
      next = b->next;
      if (b != taken) discard(ctx, cache, b);
    }
}

/* ---- take and give --------------------------------------------------------------------------- */

/* Grows the cache; traces device and bytes. */
static int traced_growth(tide_ctx *ctx, struct tide__cache *cache, int pool_no, size_t size,
                         tide__block **out)
{
  double t0 = tide__trace_begin(ctx);
  *out = grow(ctx, cache, pool_no, size);
  if (!*out || !tide__tracing(ctx)) return TIDE_OK;
  char name[64];
  snprintf(name, sizeof name, "%s %zu bytes", tide_device_name(cache->backend->device),
           (*out)->size);
  return tide__trace_end(ctx, "mem", name, t0);
}

static int take_block(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block **out)
{
  int pool_no = size > SMALL;
  tide__block *b = ctx->params.cache ? cache_find(cache, pool_no, size) : NULL;
  if (!b) TIDE_TRY(traced_growth(ctx, cache, pool_no, size, &b));
  if (!b) return out_of_memory(ctx, cache, size);
  if (b->held < size && cache->lazy && pool_no == 1) spill(ctx, cache, b, size);
  if (!cut(ctx, cache, b, size))
    return tide__fail(ctx, TIDE_E_NOMEM, "alloc", "no host memory for a block");
  *out = b;
  return TIDE_OK;
}

/* Counts allocated (n > 0) or freed (n < 0) bytes. Those of the null device count as planned. */
static void count_live(tide_ctx *ctx, struct tide__cache *cache, int64_t n)
{
  tide_stats *s = &ctx->stats;
  cache->live += n;
  if (cache->live > cache->most_live) cache->most_live = cache->live;
  if (!cache->backend->has_bytes) {
    s->planned += n;
    return;
  }
  if (cache->host) ctx->devices->host_live += n;
  s->live += n;
  if (n > 0) s->debt += n;
  if (s->live > s->peak) s->peak = s->live;
}

int tide__cache_take(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block **out)
{
  *out = NULL;
  if (size > (size_t)1 << 46)
    return tide__fail(ctx, TIDE_E_NOMEM, "alloc", "%zu bytes are more than any device holds", size);
  size_t bytes = rounded(size);
  if (cache->backend->has_bytes) {
    TIDE_TRY(check_limits(ctx, cache, bytes));
    TIDE_TRY(take_block(ctx, cache, bytes, out));
  }
  count_live(ctx, cache, (int64_t)bytes);
  ctx->stats.since += (int64_t)bytes;
  if (ctx->stats.since > ctx->stats.since_peak) ctx->stats.since_peak = ctx->stats.since;
  return TIDE_OK;
}

/* Returns whether the cache holds far more than is live. Only on the host: a GPU's runtime waits
 * for the whole device in each free, so its segments are freed when an allocation fails. */
static bool outgrown(const struct tide__cache *cache)
{
  return cache->backend->lazy && cache->held > 2 * cache->live + SLACK;
}

static void give_block(tide_ctx *ctx, struct tide__cache *cache, tide__block *block)
{
  block = put_back(ctx, cache, block);
  if (cache->retired && cache->live == 0) tide__cache_close(ctx, cache);
  else if (cache->no_trim) return;
  else if (!ctx->params.cache) discard(ctx, cache, block);
  else if (outgrown(cache)) tide__cache_trim(ctx, cache);
}

void tide__cache_give(tide_ctx *ctx, struct tide__cache *cache, size_t size, tide__block *block,
                      int64_t epoch)
{
  int64_t bytes = (int64_t)rounded(size);
  if (block) cache = block->seg->cache; /* a captured step has a cache of its own */
  if (epoch == ctx->stats_epoch) ctx->stats.since -= bytes;
  count_live(ctx, cache, -bytes);
  if (!block) return;
  if (cache->frozen) {
    block->next = cache->frozen_list;
    cache->frozen_list = block;
    return;
  }
  give_block(ctx, cache, block);
}

/* ---- captured steps -------------------------------------------------------------------------- */

void tide__cache_forbid_trim(struct tide__cache *cache) { cache->no_trim = true; }
void tide__cache_freeze(struct tide__cache *cache) { cache->frozen = true; }

tide__block *tide__cache_thaw(struct tide__cache *cache)
{
  tide__block *list = cache->frozen_list;
  cache->frozen_list = NULL;
  cache->frozen = false;
  return list;
}

void tide__cache_return(tide_ctx *ctx, tide__block *list)
{
  for (tide__block *next; list; list = next) {
    struct tide__cache *cache = list->seg->cache;
    next = list->next;
    if (cache->frozen) { /* another step is being captured */
      list->next = cache->frozen_list;
      cache->frozen_list = list;
    } else {
      give_block(ctx, cache, list);
    }
  }
}

void tide__cache_retire(tide_ctx *ctx, struct tide__cache *cache)
{
  cache->no_trim = false;
  cache->retired = true;
  if (cache->live == 0) tide__cache_close(ctx, cache);
}

void tide__cache_close(tide_ctx *ctx, struct tide__cache *cache)
{
  if (!cache) return;
  tide__cache_trim(ctx, cache);
  while (cache->spare) {
    tide__block *b = cache->spare;
    cache->spare = b->next;
    tide__free(ctx, b, sizeof *b);
  }
  tide__free(ctx, cache, sizeof *cache);
}

void tide_cache_trim(tide_ctx *ctx)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(CTX, ctx));
  if (ctx->capture) return;
  for (int i = 0; i < TIDE_NDEV; i++) {
    tide__device *d = &ctx->devices->device[i];
    tide__async_copies_reap(d);
    if (d->cache) tide__cache_trim(ctx, d->cache);
    if (d->pinned) tide__cache_trim(ctx, d->pinned);
  }
}
