/* Tables of a tokenizer: tries and growable arrays. */
#include <stdlib.h>

#include "core/text/text.h"

bool tide__vec_reserve(tide__vec *v, size_t more)
{
  if (v->cap - v->n >= more) return true;
  size_t cap = v->cap ? v->cap : 256;
  while (cap - v->n < more) cap *= 2;
  void *p = realloc(v->p, cap);
  if (!p) return false;
  v->p = p;
  v->cap = cap;
  return true;
}

void *tide__scratch_new(size_t size) { return calloc(1, size); }

void tide__scratch_free(void *p) { free(p); }

void tide__vec_free(tide__vec *v)
{
  free(v->p);
  *v = (tide__vec){0};
}

/* ---- tries ----------------------------------------------------------------------------------
 *
 * An edge's key is node * 256 + byte, kept in 32 bits: at most 2^24 - 1 nodes. Slot 0 of `to` means
 * free, since the root is not a child.
 */

enum { MOST_NODES = (1 << 24) - 1 };

static uint32_t edge_slot(const tide__trie *t, uint32_t key)
{
  return (uint32_t)(tide__mix(key) >> 16) & t->mask;
}

uint32_t tide__trie_child(const tide__trie *t, uint32_t node, unsigned char byte)
{
  if (node == 0) return t->root[byte];
  uint32_t key = node << 8 | byte;
  for (uint32_t i = edge_slot(t, key);; i = (i + 1) & t->mask) {
    if (t->edges[i].to == 0) return 0;
    if (t->edges[i].from_byte_lo == key) return t->edges[i].to;
  }
}

int tide__trie_open(tide_ctx *ctx, tide__trie *t)
{
  t->mask = 255;
  t->nnode = 1;
  t->capnode = 256;
  t->edges = tide__alloc(ctx, 256 * sizeof *t->edges);
  t->value = tide__alloc(ctx, t->capnode * sizeof *t->value);
  if (!t->edges || !t->value) return TIDE_E_NOMEM;
  t->value[0] = -1;
  return TIDE_OK;
}

static void put_edge(tide__trie *t, uint32_t key, uint32_t to)
{
  uint32_t i = edge_slot(t, key);
  while (t->edges[i].to) i = (i + 1) & t->mask;
  t->edges[i].from_byte_lo = key;
  t->edges[i].to = to;
}

static int grow_edges(tide_ctx *ctx, tide__trie *t)
{
  struct tide__edge *old = t->edges;
  uint32_t n = t->mask + 1;
  struct tide__edge *edges = tide__alloc(ctx, 2 * (size_t)n * sizeof *edges);
  if (!edges) return TIDE_E_NOMEM;
  t->edges = edges;
  t->mask = 2 * n - 1;
  for (uint32_t i = 0; i < n; i++)
    if (old[i].to) put_edge(t, old[i].from_byte_lo, old[i].to);
  tide__free(ctx, old, n * sizeof *old);
  return TIDE_OK;
}

static int add_node(tide_ctx *ctx, tide__trie *t, uint32_t from, unsigned char byte)
{
  if (t->nnode >= MOST_NODES) return TIDE_E_UNSUPPORTED;
  if (t->nnode == t->capnode) {
    size_t old = t->capnode * sizeof *t->value;
    int32_t *value = tide__resize(ctx, t->value, old, 2 * old);
    if (!value) return TIDE_E_NOMEM;
    t->value = value;
    t->capnode *= 2;
  }
  if (2 * t->nnode > t->mask && grow_edges(ctx, t) < 0) return TIDE_E_NOMEM;
  t->value[t->nnode] = -1;
  if (from == 0) t->root[byte] = t->nnode;
  else put_edge(t, from << 8 | byte, t->nnode);
  t->nnode++;
  return TIDE_OK;
}

int tide__trie_put(tide_ctx *ctx, tide__trie *t, const char *key, int64_t n, int32_t value)
{
  uint32_t node = 0;
  for (int64_t i = 0; i < n; i++) {
    unsigned char byte = (unsigned char)key[i];
    uint32_t next = tide__trie_child(t, node, byte);
    if (!next) {
      TIDE_TRY(add_node(ctx, t, node, byte));
      next = t->nnode - 1;
    }
    node = next;
  }
  t->value[node] = value;
  return TIDE_OK;
}

void tide__trie_close(tide_ctx *ctx, tide__trie *t)
{
  if (t->edges) tide__free(ctx, t->edges, ((size_t)t->mask + 1) * sizeof *t->edges);
  if (t->value) tide__free(ctx, t->value, t->capnode * sizeof *t->value);
}
