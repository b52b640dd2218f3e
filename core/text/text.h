/* Tokenizers: text to ids. A tokenizer is data: pieces with ids, merges, added tokens and two lists
 * of steps, one before the added tokens of normalized text are found and one after.
 *
 * The path of a text: tokenizer.c checks the arguments; encode.c cuts out the added tokens
 * (added.c), runs the steps (normal.c changes text, split.c cuts it) and gives each word to a model
 * (bpe.c, unigram.c, wordpiece.c) unless its cache of words has it.
 *
 * Memory: the tables belong to the tokenizer and go through the context's hook. Working memory of a
 * text is a tide__work, one for each thread. Other threads must not call the hook, so its blocks
 * are allocated by malloc.
 */
#pragma once

#include "core/io/io.h"
#include "core/text/library.h"

/* ---- memory of malloc, for any thread ------------------------------------------------------ */

/* Returns zeroed memory, or null. */
void *tide__scratch_new(size_t size);
void tide__scratch_free(void *p);

/* A growable array. */
typedef struct tide__vec {
  void  *p;
  size_t n, cap;  /* bytes */
} tide__vec;

/* Makes room for `more` bytes after the first n. Returns false without memory. */
bool tide__vec_reserve(tide__vec *v, size_t more);
void tide__vec_free(tide__vec *v);

static inline bool tide__vec_add(tide__vec *v, const void *data, size_t n)
{
  if (v->cap - v->n < n && !tide__vec_reserve(v, n)) return false;
  if (n) memcpy((char *)v->p + v->n, data, n);
  v->n += n;
  return true;
}

/* ---- tables of a tokenizer ------------------------------------------------------------------ */

/* One step. regex is null where the kind needs none. */
typedef struct tide__step {
  int32_t kind, mode;      /* TIDE_STEP_*, its mode */
  void   *regex;           /* compiled pattern */
  char   *with;            /* nwith bytes */
  int64_t nwith;
} tide__step;

/* A map from byte strings to values: nodes by (parent, byte). Node 0 is the root. */
typedef struct tide__trie {
  struct tide__edge { uint32_t from_byte_lo; uint32_t to; } *edges; /* open addressing */
  uint32_t  mask;          /* slots - 1 */
  uint32_t  nnode, capnode;
  int32_t  *value;         /* of each node; -1: none */
  uint32_t  root[256];     /* children of the root; 0: none */
} tide__trie;

typedef struct tide__added {
  tide__trie trie;         /* text to index in list */
  struct tide__token { int32_t id; int32_t flags; } *list;
  int64_t n, cap;
} tide__added;

typedef struct tide__merge {
  uint64_t pair;           /* left << 32 | right; UINT64_MAX: free */
  uint32_t rank;
  int32_t  id;
} tide__merge;

struct tide_tokenizer {
  tide__object object;
  int32_t   model, flags, unk;
  /* pieces: piece i is bytes[ends[i - 1], ends[i]) */
  int64_t   npiece;
  char     *bytes;
  int64_t  *ends;
  double   *scores;        /* or null */
  int32_t  *slots;         /* hash of pieces: id or -1 */
  uint32_t  slot_mask;
  int32_t   byte_id[256];  /* of one byte: its piece, or <0xNN>; -1: none */
  tide__trie trie;         /* of UNIGRAM */
  double    min_score;
  /* merges */
  tide__merge *merges;
  uint32_t  merge_mask;
  bool      first_by_place; /* a normalizer may remove text before the first word, which then gets
                               nothing in front */
  bool      words_apart;   /* no merge crosses the place before a U+2581 */
  /* affixes */
  char      prefix[64], suffix[64];
  int32_t   nprefix, nsuffix, most;
  tide__step *steps[TIDE_STAGE_COUNT];
  int32_t   nstep[TIDE_STAGE_COUNT];
  tide__added added[2];    /* found in the raw text; in normalized text */
  struct tide__work **works;
  int32_t   nwork;
  const tide__regex_api   *regex;   /* null: not opened yet */
  const tide__unicode_api *unicode;
  tide__regex_api   regex_table;
  tide__unicode_api unicode_table;
};

/* ---- working memory of a text ---------------------------------------------------------------- */

/* Text and the place of each byte in the source: from[i] to to[i], or base + i without them. */
typedef struct tide__view {
  const char *p;
  const int32_t *from, *to;
  int32_t n, base;
} tide__view;

typedef struct tide__span { int32_t from, to; } tide__span;

/* A token of a word and how many bytes of the word it is. */
typedef struct tide__piece { int32_t id, n; } tide__piece;

/* Text being made. */
typedef struct tide__made { tide__vec text, from, to; } tide__made;

enum { TIDE__CACHE_KEY = 24, TIDE__CACHE_IDS = 7 };

typedef struct tide__cached {
  uint64_t key[3];
  uint8_t  nkey, nid;      /* nkey 0: free */
  uint8_t  len[TIDE__CACHE_IDS]; /* bytes of each token */
  int32_t  id[TIDE__CACHE_IDS];
} tide__cached;

typedef struct tide__work {
  const tide_tokenizer *tok;
  int       flags;
  size_t    most;          /* limit of the bytes that steps may make of a text */
  tide__made made[4];      /* two for each stage */
  tide__vec spans[2];
  tide__vec pieces;        /* tokens of a word */
  tide__vec ids;           /* the result, records of int32_t or uint16_t */
  tide__vec scratch[3];    /* of a model */
  tide__cached *cache;
  void     *match, *match_context, *jit_stack;
  int       status;
  char      message[256];
} tide__work;

/* Returns a new work, or null. */
tide__work *tide__work_new(const tide_tokenizer *tok);
void tide__work_free(tide__work *w);
/* Notes a failure and returns its status. */
int tide__work_fail(tide__work *w, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Notes that there was no memory, unless a failure was noted before. Returns the status. */
static inline int tide__work_nomem(tide__work *w)
{
  if (w->status < 0) return w->status;
  return tide__work_fail(w, TIDE_E_NOMEM, "no memory to encode a text");
}

/* Appends the ids of a text to w->ids. */
int tide__encode(tide__work *w, const char *text, int32_t n);
/* Takes a word of a text, view[span]. Returns a status. */
typedef int (*tide__sink)(void *user, tide__work *w, const tide__view *view, tide__span span);
/* Cuts a text into words, without regard to added tokens, and gives each to the sink. */
int tide__each_word(tide__work *w, const char *text, int32_t n, tide__sink sink, void *user);

/* The place of an added token with the white space that it takes, and where to look for the next.
 * White space that a token has taken may be another token, as in Hugging Face's tokenizers. */
typedef struct tide__found { tide__span place; int32_t next; } tide__found;

/* Finds the first added token of tok->added[which] in text[found->next, n), behind found->place:
 * its index in the list, -1: none. special: special ones count. */
int64_t tide__added_find(const tide_tokenizer *tok, int which, const char *text, int32_t n,
                         bool special, tide__found *found);
/* Appends a word's tokens to w->ids. */
int tide__emit_word(tide__work *w, const tide__view *view, tide__span span);
/* Appends one record: the id and, if wanted, the place of view[from, to) in the source. */
int tide__emit(tide__work *w, const tide__view *view, int32_t from, int32_t to, int32_t id);

/* Appends what a step makes of view[span] to `made`. first: the span begins the text. */
int tide__transform(tide__work *w, const tide__step *step, const tide__view *view,
                    tide__span span, bool first, tide__made *made);
/* Appends the parts of view[span] to a vector of spans. */
int tide__split(tide__work *w, const tide__step *step, const tide__view *view, tide__span span,
                tide__vec *out);
/* Finds the pattern in text[at, n). Returns 1 and its place, 0 or a status. */
int tide__find(tide__work *w, const tide__step *step, const char *text, int32_t n, int32_t at,
               tide__span *place);
/* Finds the next match from `at` on, which may lie at n: an empty one at `ended`, where the match
 * before it ended (-1: none), is passed over. Returns 1 and its place, 0 or a status. */
int tide__find_next(tide__work *w, const tide__step *step, const char *text, int32_t n, int32_t at,
                    int32_t ended, tide__span *place);

bool tide__align(const tide__work *w);
bool tide__made_copy(tide__work *w, tide__made *m, const tide__view *v, int32_t from, int32_t to);
/* Adds text that replaces view[from, to). */
bool tide__made_put(tide__work *w, tide__made *m, const tide__view *v, int32_t from, int32_t to,
                    const char *text, size_t n);
void tide__made_clear(tide__made *m);

int tide__unicode(tide__work *w, const tide__step *step, const tide__view *view, tide__span span,
                  tide__made *made);
int tide__charsmap(tide__work *w, const tide__step *step, const tide__view *view, tide__span span,
                   tide__made *made);

/* Appends the tokens of a word to w->pieces. */
int tide__bpe(tide__work *w, const char *word, int32_t n);
int tide__unigram(tide__work *w, const char *word, int32_t n);
int tide__wordpiece(tide__work *w, const char *word, int32_t n);
/* Appends the tokens of text that is not a piece: bytes, or the unknown token. */
int tide__unknown(tide__work *w, const char *text, int32_t n);

/* Returns the id of a piece, or -1. */
int32_t tide__piece_id(const tide_tokenizer *tok, const char *text, int64_t n);

static inline bool tide__push(tide__work *w, int32_t id, int32_t n)
{
  tide__piece p = {id, n};
  return tide__vec_add(&w->pieces, &p, sizeof p);
}

int  tide__trie_open(tide_ctx *ctx, tide__trie *t);
int  tide__trie_put(tide_ctx *ctx, tide__trie *t, const char *key, int64_t n, int32_t value);
void tide__trie_close(tide_ctx *ctx, tide__trie *t);

/* Returns the child of a node by a byte, or 0. */
uint32_t tide__trie_child(const tide__trie *t, uint32_t node, unsigned char byte);

/* Returns the bytes of the character at s, which is valid UTF-8. */
static inline int tide__char_size(const char *s)
{
  unsigned char c = (unsigned char)*s;
  return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}
/* Returns the code point of the character at s, which is valid UTF-8, and its bytes. */
int32_t tide__char_code(const char *s, int *size);

static inline uint64_t tide__mix(uint64_t h)
{
  h ^= h >> 32;
  h *= UINT64_C(0x9E3779B97F4A7C15);
  return h ^ h >> 29;
}
