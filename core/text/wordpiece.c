/* WordPiece: the longest piece from the left, then the longest with the prefix, and so on; a word
 * that cannot be split is one unknown token. Whole words: a piece or the unknown token. */
#include "core/text/text.h"

static int32_t count_chars(const char *s, int32_t n)
{
  int32_t count = 0;
  for (int32_t i = 0; i < n; i += tide__char_size(s + i)) count++;
  return count;
}

/* Returns the longest piece at word[at, n), its bytes in *size; -1: none. */
static int32_t longest_piece(tide__work *w, const char *word, int32_t at, int32_t n, int32_t *size)
{
  const tide_tokenizer *tok = w->tok;
  tide__vec *v = &w->scratch[1];
  int32_t k = at > 0 ? tok->nprefix : 0;
  v->n = 0;
  if (!tide__vec_add(v, tok->prefix, (size_t)k) ||
      !tide__vec_add(v, word + at, (size_t)(n - at)))
    return tide__work_nomem(w);
  for (int32_t end = n; end > at; end--) {
    if (end < n && (word[end] & 0xC0) == 0x80) continue;
    int32_t id = tide__piece_id(tok, v->p, k + end - at);
    if (id >= 0) {
      *size = end - at;
      return id;
    }
  }
  return -1;
}

int tide__wordpiece(tide__work *w, const char *word, int32_t n)
{
  const tide_tokenizer *tok = w->tok;
  size_t first = w->pieces.n;
  bool fits = tok->most <= 0 || n <= tok->most || count_chars(word, n) <= tok->most;
  for (int32_t at = 0, size; at < n && fits; at += size) {
    int32_t id = tok->model == TIDE_TOKENIZER_WORDS
                   ? (at == 0 ? tide__piece_id(tok, word, size = n) : -1)
                   : longest_piece(w, word, at, n, &size);
    if (w->status < 0) return w->status;
    if (id < 0) fits = false;
    else if (!tide__push(w, id, size)) return tide__work_nomem(w);
    if (!fits) break;
  }
  if (fits) return TIDE_OK;
  w->pieces.n = first;
  return tok->unk < 0 || tide__push(w, tok->unk, n) ? TIDE_OK : tide__work_nomem(w);
}
