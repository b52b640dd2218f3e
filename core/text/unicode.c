/* Normal forms and lower case by utf8proc, and the tables of sentencepiece's normalizer. */
#include "core/text/text.h"

int32_t tide__char_code(const char *s, int *size)
{
  const unsigned char *u = (const unsigned char *)s;
  *size = tide__char_size(s);
  switch (*size) {
  case 1: return u[0];
  case 2: return (u[0] & 31) << 6 | (u[1] & 63);
  case 3: return (u[0] & 15) << 12 | (u[1] & 63) << 6 | (u[2] & 63);
  default: return (u[0] & 7) << 18 | (u[1] & 63) << 12 | (u[2] & 63) << 6 | (u[3] & 63);
  }
}

static int encode(int32_t c, char *out)
{
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  if (c < 0x800) {
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 63));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = (char)(0xE0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 63));
    out[2] = (char)(0x80 | (c & 63));
    return 3;
  }
  out[0] = (char)(0xF0 | c >> 18);
  out[1] = (char)(0x80 | (c >> 12 & 63));
  out[2] = (char)(0x80 | (c >> 6 & 63));
  out[3] = (char)(0x80 | (c & 63));
  return 4;
}

/* Returns whether a character is surely unchanged in form `mode` and never joins the one before
 * it. */
static bool stands_alone(int32_t c, int mode)
{
  if (c < 0x80) return true;
  if (mode == TIDE_UNICODE_NFC && c < 0x300) return true;
  if (c >= 0x4E00 && c <= 0x9FFF) return true;                /* CJK ideographs */
  if (c >= 0x3041 && c <= 0x3096) {                           /* Hiragana; voiced ones decompose */
    return mode == TIDE_UNICODE_NFC || mode == TIDE_UNICODE_NFKC;
  }
  if (c >= 0x1F300 && c <= 0x1FAFF) return true;              /* pictographs */
  if (c >= 0x2010 && c <= 0x2027 && c != 0x2011)              /* punctuation; leaders expand in K */
    return mode == TIDE_UNICODE_NFC || mode == TIDE_UNICODE_NFD || c < 0x2017;
  if (c >= 0xAC00 && c <= 0xD7A3)                             /* Hangul syllables */
    return mode == TIDE_UNICODE_NFC || mode == TIDE_UNICODE_NFKC;
  return c >= 0x400 && c <= 0x482 && (mode == TIDE_UNICODE_NFC || mode == TIDE_UNICODE_NFKC);
}

static int form_options(int mode)
{
  switch (mode) {
  case TIDE_UNICODE_NFC: return TIDE__UTF8PROC_STABLE | TIDE__UTF8PROC_COMPOSE;
  case TIDE_UNICODE_NFD: return TIDE__UTF8PROC_STABLE | TIDE__UTF8PROC_DECOMPOSE;
  case TIDE_UNICODE_NFKC:
    return TIDE__UTF8PROC_STABLE | TIDE__UTF8PROC_COMPOSE | TIDE__UTF8PROC_COMPAT;
  default: return TIDE__UTF8PROC_STABLE | TIDE__UTF8PROC_DECOMPOSE | TIDE__UTF8PROC_COMPAT;
  }
}

static bool inside(const char *p, int32_t i, int32_t end)
{
  return i < end && ((unsigned char)p[i] & 0xC0) == 0x80;
}

/* Adds text[0, n) for view[from, to). Characters that are the same at both ends keep their
 * places. */
static bool put_form(tide__work *w, const tide__view *v, int32_t from, int32_t to,
                     const char *text, int32_t n, tide__made *m)
{
  const char *old = v->p + from;
  int32_t size = to - from, head = 0, tail = 0, less = size < n ? size : n;
  while (head < less && old[head] == text[head]) head++;
  while (head > 0 && (inside(old, head, size) || inside(text, head, n))) head--;
  while (tail < less - head && old[size - 1 - tail] == text[n - 1 - tail]) tail++;
  while (tail > 0 && (inside(old, size - tail, size) || inside(text, n - tail, n))) tail--;
  return tide__made_copy(w, m, v, from, from + head) &&
         tide__made_put(w, m, v, from + head, to - tail, text + head, (size_t)(n - head - tail)) &&
         tide__made_copy(w, m, v, to - tail, to);
}

/* Adds the normal form of view[from, to), which begins and ends where a form may be cut. */
static int add_form(tide__work *w, int mode, const tide__view *v, int32_t from, int32_t to,
                    tide__made *m)
{
  const tide__unicode_api *api = w->tok->unicode;
  const uint8_t *text = (const uint8_t *)v->p + from;
  int options = form_options(mode);
  tide__vec *s = &w->scratch[0];
  ptrdiff_t n = api->decompose(text, to - from, NULL, 0, options);
  s->n = 0;
  if (n >= 0 && !tide__vec_reserve(s, ((size_t)n + 1) * sizeof(int32_t) + 4))
    return tide__work_nomem(w);
  if (n >= 0) n = api->decompose(text, to - from, s->p, n, options);
  if (n >= 0) n = api->reencode(s->p, n, options);
  if (n < 0) return tide__work_fail(w, TIDE_E_INTERNAL, "utf8proc failed with code %d", (int)n);
  return put_form(w, v, from, to, s->p, (int32_t)n, m) ? TIDE_OK : tide__work_nomem(w);
}

/* Returns whether no form joins a character to the one before it: it is no mark, no vowel or end of
 * a Hangul syllable and no half-width sound mark, nor becomes one. */
static bool begins_cluster(const tide__work *w, int32_t c)
{
  static const int32_t joined[][2] = {{0x1160, 0x11FF}, {0x3131, 0x318E}, {0xD7B0, 0xD7FF},
                                      {0xFF9E, 0xFFDC}};
  for (size_t i = 0; i < sizeof joined / sizeof joined[0]; i++)
    if (c >= joined[i][0] && c <= joined[i][1]) return false;
  int category = w->tok->unicode->category(c);
  return category < TIDE__UTF8PROC_MN || category > TIDE__UTF8PROC_ME;
}

/* Adds the form of view[from, to) as add_form does, each cluster by itself, so that neighbours that
 * change have places of their own. */
static int add_clusters(tide__work *w, int mode, const tide__view *v, int32_t from, int32_t to,
                        tide__made *m)
{
  if (!tide__align(w)) return add_form(w, mode, v, from, to, m);
  while (from < to) {
    int size;
    tide__char_code(v->p + from, &size);
    int32_t at = from + size;
    while (at < to && !begins_cluster(w, tide__char_code(v->p + at, &size))) at += size;
    TIDE_TRY(add_form(w, mode, v, from, at, m));
    from = at;
  }
  return TIDE_OK;
}

static int normal_form(tide__work *w, int mode, const tide__view *v, tide__span span,
                       tide__made *m)
{
  int32_t at = span.from, kept = span.from, size;
  while (at < span.to) {
    int32_t start = at, c = tide__char_code(v->p + at, &size);
    at += size;
    if (stands_alone(c, mode)) {
      if (at == span.to) break;
      int next_size;
      if (stands_alone(tide__char_code(v->p + at, &next_size), mode)) continue;
      at += next_size;
    }
    while (at < span.to && !stands_alone(tide__char_code(v->p + at, &size), mode)) at += size;
    if (!tide__made_copy(w, m, v, kept, start)) return tide__work_nomem(w);
    TIDE_TRY(add_clusters(w, mode, v, start, at, m));
    kept = at;
  }
  return tide__made_copy(w, m, v, kept, span.to) ? TIDE_OK : tide__work_nomem(w);
}

static int lower(tide__work *w, const tide__view *v, tide__span span, tide__made *m)
{
  int size;
  char out[8];
  for (int32_t at = span.from; at < span.to; at += size) {
    int32_t c = tide__char_code(v->p + at, &size), k;
    if (c < 0x80) {
      out[0] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
      k = 1;
    } else if (c == 0x130) {                 /* its lower case has two characters */
      out[0] = 'i';
      k = 1 + encode(0x307, out + 1);
    } else {
      k = encode(w->tok->unicode->tolower(c), out);
    }
    if (!tide__made_put(w, m, v, at, at + size, out, (size_t)k)) return tide__work_nomem(w);
  }
  return TIDE_OK;
}

int tide__unicode(tide__work *w, const tide__step *step, const tide__view *view, tide__span span,
                  tide__made *made)
{
  if (step->kind == TIDE_STEP_LOWER) return lower(w, view, span, made);
  return normal_form(w, step->mode, view, span, made);
}

/* ---- the tables of sentencepiece -------------------------------------------------------------
 *
 * A double array of 32-bit units, then the texts that its values are offsets of. The size of the
 * array in bytes is first.
 */

struct charsmap { const unsigned char *units; uint32_t nunit; const char *text; int64_t ntext; };

static bool open_charsmap(const tide__step *step, struct charsmap *c)
{
  uint32_t size;
  if (step->nwith < 4) return false;
  memcpy(&size, step->with, 4);
  if (size % 4 || size > step->nwith - 4) return false;
  c->units = (const unsigned char *)step->with + 4;
  c->nunit = size / 4;
  c->text = step->with + 4 + size;
  c->ntext = step->nwith - 4 - size;
  return c->nunit > 0;
}

static uint32_t unit(const struct charsmap *c, uint32_t i)
{
  uint32_t u = 0;
  if (i < c->nunit) memcpy(&u, c->units + 4 * (size_t)i, 4);
  return u;
}

static uint32_t offset(uint32_t u) { return (u >> 10) << ((u & 512) >> 6); }

/* Finds a prefix of s in the table, the shortest or the longest. Returns its bytes, or 0; *to is
 * the text that replaces it. */
static int32_t charsmap_find(const struct charsmap *c, const char *s, int32_t n, bool longest,
                       const char **to)
{
  int32_t found = 0;
  uint32_t at = offset(unit(c, 0));
  for (int32_t i = 0; i < n && s[i]; i++) {
    at ^= (unsigned char)s[i];
    uint32_t u = unit(c, at);
    if ((u & 0x800000FF) != (unsigned char)s[i]) break;
    at ^= offset(u);
    bool inside = i + 1 < n && ((unsigned char)s[i + 1] & 0xC0) == 0x80; /* of a character */
    if (!(u >> 8 & 1) || inside) continue;
    uint32_t value = unit(c, at) & 0x7FFFFFFF;
    if (value >= c->ntext) break;
    *to = c->text + value;
    found = i + 1;
    if (!longest) break;
  }
  return found;
}

static int32_t text_size(const struct charsmap *c, const char *s)
{
  const char *end = memchr(s, 0, (size_t)(c->text + c->ntext - s));
  return (int32_t)((end ? end : c->text + c->ntext) - s);
}

/* Returns the bytes of the grapheme cluster at `at`. */
static int32_t cluster(tide__work *w, const char *p, int32_t at, int32_t end)
{
  int size;
  int32_t state = 0, c = tide__char_code(p + at, &size), i = at + size;
  while (i < end) {
    int32_t d = tide__char_code(p + i, &size);
    if (c < 0x300 && d < 0x300 && !(c == '\r' && d == '\n') && c != 0xAD && d != 0xAD) break;
    if (w->tok->unicode->grapheme_break_stateful(c, d, &state)) break;
    i += size;
    c = d;
  }
  return i - at;
}

static bool put_mapped(tide__work *w, const struct charsmap *c, const tide__view *v, int32_t at,
                       int32_t n, const char *to, tide__made *m)
{
  return tide__made_put(w, m, v, at, at + n, to, (size_t)text_size(c, to));
}

/* Adds a cluster by the rule of tokenizer.json: a short cluster as a whole, else character by
 * character. Each is replaced if any prefix of it is in the table. */
static bool add_cluster(tide__work *w, const struct charsmap *c, const tide__view *v, int32_t at,
                        int32_t n, tide__made *m)
{
  const char *to;
  if (n < 6 && charsmap_find(c, v->p + at, n, false, &to)) return put_mapped(w, c, v, at, n, to, m);
  for (int32_t i = at, size; i < at + n; i += size) {
    size = tide__char_size(v->p + i);
    bool ok = charsmap_find(c, v->p + i, size, false, &to) ? put_mapped(w, c, v, i, size, to, m)
                                                     : tide__made_copy(w, m, v, i, i + size);
    if (!ok) return false;
  }
  return true;
}

int tide__charsmap(tide__work *w, const tide__step *step, const tide__view *view, tide__span span,
                   tide__made *made)
{
  struct charsmap c;
  if (!open_charsmap(step, &c))
    return tide__work_fail(w, TIDE_E_FORMAT, "the table of the normalizer is damaged");
  int32_t n;
  for (int32_t at = span.from; at < span.to; at += n) {
    const char *to;
    bool ok;
    if (step->mode & TIDE_CHARSMAP_LONGEST) {
      n = charsmap_find(&c, view->p + at, span.to - at, true, &to);
      ok = n ? put_mapped(w, &c, view, at, n, to, made) : true;
      if (!n) {
        n = tide__char_size(view->p + at);
        ok = tide__made_copy(w, made, view, at, at + n);
      }
    } else {
      n = cluster(w, view->p, at, span.to);
      ok = add_cluster(w, &c, view, at, n, made);
    }
    if (!ok) return tide__work_nomem(w);
  }
  return TIDE_OK;
}
