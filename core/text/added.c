/* Added tokens: texts that are one token at any place, found before all other steps. */
#include "core/text/text.h"

/* Returns the bytes of the white space at s, 0: none there. left > 0. */
static int space_at(const char *s, int32_t left)
{
  unsigned char c = (unsigned char)*s, d = left > 2 ? (unsigned char)s[2] : 0;
  if (c == ' ' || (c >= 9 && c <= 13)) return 1;
  if (c == 0xC2 && left > 1 && ((unsigned char)s[1] == 0x85 || (unsigned char)s[1] == 0xA0))
    return 2;
  if (left < 3) return 0;
  unsigned char b = (unsigned char)s[1];
  bool yes = (c == 0xE1 && b == 0x9A && d == 0x80) || (c == 0xE3 && b == 0x80 && d == 0x80) ||
             (c == 0xE2 && b == 0x81 && d == 0x9F) ||
             (c == 0xE2 && b == 0x80 && (d <= 0x8A || d == 0xA8 || d == 0xA9 || d == 0xAF));
  return yes ? 3 : 0;
}

/* Returns the bytes of the white space that ends at s[at), or 0. */
static int space_before(const char *s, int32_t at)
{
  for (int k = 1; k <= 3 && k <= at; k++)
    if (space_at(s + at - k, k) == k) return k;
  return 0;
}

/* Returns whether \w of Unicode (UTS 18) matches a character: alphabetic, a mark, a decimal digit,
 * connector punctuation or a joiner. */
static bool is_word(const tide__unicode_api *api, int32_t c)
{
  if (c < 0x80)
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  if (c == 0x200C || c == 0x200D) return true;
  if ((c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
      (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189))
    return true;                                              /* letters in circles and squares */
  int kind = api->category(c);
  return (kind >= TIDE__UTF8PROC_LU && kind <= TIDE__UTF8PROC_NL) || kind == TIDE__UTF8PROC_PC;
}

static bool is_whole_word(const tide__unicode_api *api, const char *text, int32_t n, tide__span s)
{
  int size;
  int32_t before = s.from;
  while (before > 0 && ((unsigned char)text[--before] & 0xC0) == 0x80) {}
  if (s.from > 0 && is_word(api, tide__char_code(text + before, &size))) return false;
  return s.to >= n || !is_word(api, tide__char_code(text + s.to, &size));
}

/* Returns the longest token that begins at `at`, or -1. */
static int32_t longest_token(const tide__trie *t, const char *text, int32_t n, int32_t at,
                             int32_t *end)
{
  int32_t found = -1;
  uint32_t node = 0;
  for (int32_t i = at; i < n; i++) {
    node = tide__trie_child(t, node, (unsigned char)text[i]);
    if (!node) break;
    if (t->value[node] >= 0) {
      found = t->value[node];
      *end = i + 1;
    }
  }
  return found;
}

int64_t tide__added_find(const tide_tokenizer *tok, int which, const char *text, int32_t n,
                         bool special, tide__found *found)
{
  const tide__added *a = &tok->added[which];
  int32_t at = found->next, first = found->place.to, end = 0;
  if (a->n == 0) return -1;
  while (at < n) {
    if (!a->trie.root[(unsigned char)text[at]]) {
      at++;
      continue;
    }
    int32_t i = longest_token(&a->trie, text, n, at, &end);
    if (i < 0) {
      at++;
      continue;
    }
    int32_t flags = a->list[i].flags;
    tide__span s = {at, end};
    if (((flags & TIDE_ADDED_SPECIAL) && !special) ||
        ((flags & TIDE_ADDED_WORD) && !is_whole_word(tok->unicode, text, n, s))) {
      at = end;
      continue;
    }
    if (flags & TIDE_ADDED_LSTRIP) {
      for (int k; s.from > first && (k = space_before(text, s.from)) && s.from - k >= first;)
        s.from -= k;
      if (s.from < first) s.from = first;
    }
    if (flags & TIDE_ADDED_RSTRIP)
      for (int k; s.to < n && (k = space_at(text + s.to, n - s.to));) s.to += k;
    if (s.from >= s.to) {                   /* an earlier token has taken it */
      at = end;
      continue;
    }
    *found = (tide__found){.place = s, .next = end};
    return i;
  }
  return -1;
}
