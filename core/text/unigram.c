/* Unigram: the pieces whose scores have the greatest sum (Viterbi). */
#include "core/text/text.h"

struct node { double score; int32_t from, id; };  /* id -1: unknown, -2: not reached */

enum { UNREACHED = -2 };
static const double penalty = 10;

/* Keeps the path to `to` that continues from `from` by a piece, if it is better than the one
 * known. With F32_SCORES, scores are f32, and so are sums. */
static void offer(const tide_tokenizer *tok, struct node *best, int32_t to, int32_t from,
                  int32_t id, double score)
{
  bool narrow = tok->flags & TIDE_TOKENIZER_F32_SCORES;
  double sum = narrow ? (float)(best[from].score + (float)score) : best[from].score + score;
  if (best[to].id == UNREACHED || sum > best[to].score) best[to] = (struct node){sum, from, id};
}

/* Extends the best path to `at` by every piece that begins there. */
static void extend_paths(const tide_tokenizer *tok, struct node *best, const char *word, int32_t at,
                   int32_t n)
{
  int32_t size = tide__char_size(word + at);
  bool single = false;
  uint32_t node = 0;
  for (int32_t i = at; i < n; i++) {
    node = tide__trie_child(&tok->trie, node, (unsigned char)word[i]);
    if (!node) break;
    int32_t id = tok->trie.value[node];
    if (id < 0) continue;
    offer(tok, best, i + 1, at, id, tok->scores[id]);
    single = single || i + 1 - at == size;
  }
  if (!single) offer(tok, best, at + size, at, -1, tok->min_score - penalty);
}

/* Pieces are collected from the end; unknown ones side by side are one. */
static int collect(tide__work *w, const struct node *best, int32_t n)
{
  size_t first = w->pieces.n;
  for (int32_t at = n; at > 0;) {
    int32_t from = best[at].from, id = best[at].id;
    if (id < 0)
      while (from > 0 && best[from].id < 0) from = best[from].from;
    if (!tide__push(w, id, at - from)) return tide__work_nomem(w);
    at = from;
  }
  tide__piece *s = (tide__piece *)((char *)w->pieces.p + first);
  int32_t count = (int32_t)((w->pieces.n - first) / sizeof *s);
  for (int32_t i = 0; i < count / 2; i++) {
    tide__piece t = s[i];
    s[i] = s[count - 1 - i];
    s[count - 1 - i] = t;
  }
  return TIDE_OK;
}

/* Puts bytes or the unknown token in the place of pieces without an id. */
static int fall_back(tide__work *w, size_t first, const char *word)
{
  size_t count = (w->pieces.n - first) / sizeof(tide__piece), end = w->pieces.n;
  int32_t at = 0;
  for (size_t i = 0; i < count; i++) {
    tide__piece p = ((tide__piece *)((char *)w->pieces.p + first))[i];
    int rc = TIDE_OK;
    if (p.id < 0) rc = tide__unknown(w, word + at, p.n);
    else if (!tide__push(w, p.id, p.n)) rc = tide__work_nomem(w);
    if (rc < 0) return rc;
    at += p.n;
  }
  size_t size = w->pieces.n - end;
  memmove((char *)w->pieces.p + first, (char *)w->pieces.p + end, size);
  w->pieces.n = first + size;
  return TIDE_OK;
}

int tide__unigram(tide__work *w, const char *word, int32_t n)
{
  tide__vec *v = &w->scratch[1];
  size_t first = w->pieces.n;
  v->n = 0;
  if (!tide__vec_reserve(v, ((size_t)n + 1) * sizeof(struct node))) return tide__work_nomem(w);
  struct node *best = v->p;
  for (int32_t i = 0; i <= n; i++) best[i].id = UNREACHED;
  best[0] = (struct node){0, 0, 0};
  for (int32_t at = 0; at < n; at += tide__char_size(word + at))
    extend_paths(w->tok, best, word, at, n);
  int rc = collect(w, best, n);
  return rc < 0 ? rc : fall_back(w, first, word);
}
