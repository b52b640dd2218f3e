/* A collective call in four words: what ranks compare, and its text for messages. Layer 4. */
#include <stdarg.h>
#include <stdio.h>

#include "core/comm/comm.h"

static const char *const coll_names[TIDE__NCOLL] = {
  [TIDE__ALL_REDUCE] = "all_reduce", [TIDE__REDUCE] = "reduce", [TIDE__BROADCAST] = "broadcast",
  [TIDE__ALL_GATHER] = "all_gather", [TIDE__ALL_GATHER_V] = "all_gather_v",
  [TIDE__REDUCE_SCATTER] = "reduce_scatter", [TIDE__REDUCE_SCATTER_V] = "reduce_scatter_v",
  [TIDE__ALL_TO_ALL] = "all_to_all", [TIDE__ALL_TO_ALL_V] = "all_to_all_v",
  [TIDE__GATHER] = "gather", [TIDE__SCATTER] = "scatter", [TIDE__SEND_RECV] = "send_recv",
  [TIDE__BARRIER] = "barrier", [TIDE__SPLIT] = "split", [TIDE__REPLAY] = "replay",
};
static const char *const reduce_names[TIDE_NREDUCE] = {"sum", "mean", "min", "max", "prod"};

const char *tide_coll_name(int op) { return op >= 0 && op < TIDE__NCOLL ? coll_names[op] : NULL; }

const char *tide_reduce_name(int reduce)
{
  return reduce >= 0 && reduce < TIDE_NREDUCE ? reduce_names[reduce] : NULL;
}

uint64_t tide__hash_step(uint64_t h, uint64_t v)
{
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

/* -1 becomes 255. */
static uint64_t byte_of(int v) { return (uint64_t)(uint8_t)v; }

/* Where each pair of ranks has a count of its own, ranks may differ in count and dtype. */
tide__call_words tide__call_pack(const tide__coll *c)
{
  bool paired = c->op == TIDE__SEND_RECV, several = c->nseg > 1 && !paired;
  return (tide__call_words){
    .what = byte_of(c->op) | byte_of(c->reduce) << 8 | byte_of(paired ? -1 : c->dtype) << 16 |
            (uint64_t)several << 24 | (uint64_t)(c->far && !paired) << 25 |
            (several ? (uint64_t)(uint32_t)c->nseg << 32 : 0),
    .count = paired || c->op == TIDE__ALL_TO_ALL_V ? UINT64_MAX : (uint64_t)tide__coll_count(c),
    .root = (uint64_t)(int64_t)c->root,
    .hash = c->hash,
  };
}

void tide__append(char *buf, size_t n, size_t *at, const char *fmt, ...)
{
  va_list args;
  if (*at + 1 >= n) return;
  va_start(args, fmt);
  int k = vsnprintf(buf + *at, n - *at, fmt, args);
  va_end(args);
  *at += k < 0 ? 0 : (size_t)k;
  if (*at >= n) *at = n - 1;
}

const char *tide__call_text(const tide__call_words *w, char *buf, size_t n)
{
  size_t at = 0;
  const char *name = tide_coll_name((int)(w->what & 255));
  const char *reduce = tide_reduce_name((int)(w->what >> 8 & 255));
  const char *dtype = tide_dtype_name((int)(w->what >> 16 & 255));
  const char *comma = "";
  buf[0] = 0;
  tide__append(buf, n, &at, "%s(", name ? name : "?");
  if (reduce) tide__append(buf, n, &at, "%s", reduce), comma = ", ";
  if (dtype) tide__append(buf, n, &at, "%s%s", comma, dtype), comma = ", ";
  if (w->what >> 24 & 1) {
    tide__append(buf, n, &at, "%s%u tensors", comma, (unsigned)(w->what >> 32));
    comma = ", ";
  }
  if (dtype && w->count != UINT64_MAX)
    tide__append(buf, n, &at, "%s%llu elements", comma, (unsigned long long)w->count);
  if (w->what >> 25 & 1) tide__append(buf, n, &at, "%son a device", *comma ? ", " : "");
  if ((int64_t)w->root >= 0) tide__append(buf, n, &at, ", root %lld", (long long)w->root);
  tide__append(buf, n, &at, ")");
  return buf;
}
