/* Byte pair encoding: joins neighbours, the pair of the lowest rank first, of equal ones the
 * leftmost. Short words by looking at all pairs, long ones by a heap. */
#include "core/text/text.h"

enum { SHORT = 96 };
#define NO_RANK UINT32_MAX

static inline const tide__merge *find_merge(const tide_tokenizer *tok, int32_t a, int32_t b)
{
  if (a < 0 || b < 0 || !tok->merges) return NULL;
  uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
  for (uint32_t i = (uint32_t)(tide__mix(pair) >> 24) & tok->merge_mask;;
       i = (i + 1) & tok->merge_mask) {
    if (tok->merges[i].pair == pair) return &tok->merges[i];
    if (tok->merges[i].pair == UINT64_MAX) return NULL;
  }
}

static inline uint32_t rank_of(const tide_tokenizer *tok, tide__piece a, tide__piece b)
{
  const tide__merge *m = find_merge(tok, a.id, b.id);
  return m ? m->rank : NO_RANK;
}

/* Joins the parts in place. Returns how many are left. */
static int32_t join_short(const tide_tokenizer *tok, tide__piece *s, int32_t n)
{
  uint32_t rank[SHORT];
  for (int32_t i = 0; i + 1 < n; i++) rank[i] = rank_of(tok, s[i], s[i + 1]);
  while (n > 1) {
    uint32_t best = NO_RANK;
    int32_t at = 0;
    for (int32_t i = 0; i < n - 1; i++)
      if (rank[i] < best) {
        best = rank[i];
        at = i;
      }
    if (best == NO_RANK) break;
    s[at].id = find_merge(tok, s[at].id, s[at + 1].id)->id;
    s[at].n += s[at + 1].n;
    n--;
    for (int32_t i = at + 1; i < n; i++) s[i] = s[i + 1];
    for (int32_t i = at + 1; i + 1 < n; i++) rank[i] = rank[i + 1];
    if (at > 0) rank[at - 1] = rank_of(tok, s[at - 1], s[at]);
    if (at + 1 < n) rank[at] = rank_of(tok, s[at], s[at + 1]);
  }
  return n;
}

/* A heap of rank << 32 | place of the left part. */
struct heap { uint64_t *a; int32_t n; };

static void heap_push(struct heap *h, uint64_t x)
{
  int32_t i = h->n++;
  for (; i > 0 && h->a[(i - 1) / 2] > x; i = (i - 1) / 2) h->a[i] = h->a[(i - 1) / 2];
  h->a[i] = x;
}

static uint64_t heap_pop(struct heap *h)
{
  uint64_t top = h->a[0], x = h->a[--h->n];
  int32_t i = 0, child;
  for (; (child = 2 * i + 1) < h->n; i = child) {
    if (child + 1 < h->n && h->a[child + 1] < h->a[child]) child++;
    if (h->a[child] >= x) break;
    h->a[i] = h->a[child];
  }
  h->a[i] = x;
  return top;
}

/* The parts as a list: next and previous place, -1 at the ends; rank of the pair that begins. */
struct link { int32_t next, before; uint32_t rank; };

static void note_pair(const tide_tokenizer *tok, tide__piece *s, struct link *l, struct heap *h,
                      int32_t i)
{
  if (i < 0) return;
  l[i].rank = l[i].next < 0 ? NO_RANK : rank_of(tok, s[i], s[l[i].next]);
  if (l[i].rank != NO_RANK) heap_push(h, (uint64_t)l[i].rank << 32 | (uint32_t)i);
}

static int32_t join_list(const tide_tokenizer *tok, tide__piece *s, struct link *l, struct heap h,
                         int32_t n)
{
  for (int32_t i = 0; i < n; i++) l[i] = (struct link){i + 1 < n ? i + 1 : -1, i - 1, NO_RANK};
  for (int32_t i = 0; i < n; i++) note_pair(tok, s, l, &h, i);
  while (h.n > 0) {
    uint64_t top = heap_pop(&h);
    int32_t i = (int32_t)(top & UINT32_MAX), j = l[i].next;
    if (l[i].rank != top >> 32 || j < 0) continue;      /* it was joined meanwhile */
    s[i].id = find_merge(tok, s[i].id, s[j].id)->id;
    s[i].n += s[j].n;
    l[i].next = l[j].next;
    if (l[j].next >= 0) l[l[j].next].before = i;
    l[j].rank = NO_RANK;
    note_pair(tok, s, l, &h, i);
    note_pair(tok, s, l, &h, l[i].before);
  }
  int32_t left = 0;
  for (int32_t i = 0; i >= 0; i = l[i].next) s[left++] = s[i];
  return left;
}

/* Joins the pairs of a long piece by a heap. A pair is pushed once at the start and at most twice a
 * join. */
static int join_long(tide__work *w, tide__piece *s, int32_t *n)
{
  tide__vec *links = &w->scratch[1], *heap = &w->scratch[2];
  links->n = heap->n = 0;
  if (!tide__vec_reserve(links, (size_t)*n * sizeof(struct link)) ||
      !tide__vec_reserve(heap, 3 * (size_t)*n * sizeof(uint64_t)))
    return tide__work_nomem(w);
  *n = join_list(w->tok, s, links->p, (struct heap){heap->p, 0}, *n);
  return TIDE_OK;
}

static int join(tide__work *w, size_t first)
{
  tide__piece *s = (tide__piece *)((char *)w->pieces.p + first);
  int32_t n = (int32_t)((w->pieces.n - first) / sizeof *s);
  if (n > SHORT) {
    TIDE_TRY(join_long(w, s, &n));
  } else {
    n = join_short(w->tok, s, n);
  }
  w->pieces.n = first + (size_t)n * sizeof *s;
  return TIDE_OK;
}

static int32_t char_id(const tide_tokenizer *tok, const char *s, int32_t n, bool first, bool last)
{
  char text[4 + sizeof tok->prefix + sizeof tok->suffix];
  int32_t k = 0;
  bool before = tok->nprefix && !first, behind = tok->nsuffix && last;
  if (!before && !behind) return tide__piece_id(tok, s, n);
  if (before) {
    memcpy(text, tok->prefix, (size_t)tok->nprefix);
    k = tok->nprefix;
  }
  memcpy(text + k, s, (size_t)n);
  k += n;
  if (behind) {
    memcpy(text + k, tok->suffix, (size_t)tok->nsuffix);
    k += tok->nsuffix;
  }
  return tide__piece_id(tok, text, k);
}

int tide__unknown(tide__work *w, const char *text, int32_t n)
{
  const tide_tokenizer *tok = w->tok;
  bool all = tok->flags & TIDE_TOKENIZER_BYTE_FALLBACK;
  for (int32_t i = 0; i < n && all; i++) all = tok->byte_id[(unsigned char)text[i]] >= 0;
  if (all) {
    for (int32_t i = 0; i < n; i++)
      if (!tide__push(w, tok->byte_id[(unsigned char)text[i]], 1)) return tide__work_nomem(w);
    return TIDE_OK;
  }
  if (tok->unk < 0) return TIDE_OK;
  return tide__push(w, tok->unk, n) ? TIDE_OK : tide__work_nomem(w);
}

static int add_chars(tide__work *w, const char *word, int32_t n)
{
  const tide_tokenizer *tok = w->tok;
  bool fuse = tok->flags & TIDE_TOKENIZER_FUSE_UNK, unknown = false;
  for (int32_t i = 0, size; i < n; i += size) {
    size = tide__char_size(word + i);
    int32_t id = char_id(tok, word + i, size, i == 0, i + size == n);
    if (id >= 0) {
      if (!tide__push(w, id, size)) return tide__work_nomem(w);
      unknown = false;
      continue;
    }
    size_t before = w->pieces.n;
    TIDE_TRY(tide__unknown(w, word + i, size));
    tide__piece *p = (tide__piece *)((char *)w->pieces.p + before);
    bool is_unk = w->pieces.n == before + sizeof *p && p->id == tok->unk && tok->unk >= 0;
    if (is_unk && unknown && fuse) {
      p[-1].n += size;
      w->pieces.n = before;
    }
    unknown = is_unk;
  }
  return TIDE_OK;
}

static int add_bytes(tide__work *w, const char *word, int32_t n)
{
  for (int32_t i = 0; i < n; i++) {
    int32_t id = w->tok->byte_id[(unsigned char)word[i]];
    if (id < 0) id = w->tok->unk;
    if (id >= 0 && !tide__push(w, id, 1)) return tide__work_nomem(w);
  }
  return TIDE_OK;
}

int tide__bpe(tide__work *w, const char *word, int32_t n)
{
  const tide_tokenizer *tok = w->tok;
  size_t first = w->pieces.n;
  if (tok->flags & TIDE_TOKENIZER_IGNORE_MERGES) {
    int32_t id = tide__piece_id(tok, word, n);
    if (id >= 0) return tide__push(w, id, n) ? TIDE_OK : tide__work_nomem(w);
  }
  int rc = tok->flags & TIDE_TOKENIZER_BYTES ? add_bytes(w, word, n) : add_chars(w, word, n);
  return rc < 0 ? rc : join(w, first);
}
