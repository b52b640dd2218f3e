/* Changes text: replacements, insertions, normal forms. Each output byte knows the place in the
 * source that it replaces, if the caller wants offsets. */
#include "core/text/text.h"

bool tide__align(const tide__work *w)
{
  return w->flags & TIDE_ENCODE_OFFSETS || w->tok->first_by_place;
}

void tide__made_clear(tide__made *m) { m->text.n = m->from.n = m->to.n = 0; }

static int32_t place_from(const tide__view *v, int32_t i)
{
  return v->from ? v->from[i] : v->base + i;
}

static int32_t place_to(const tide__view *v, int32_t i)
{
  return v->to ? v->to[i] : v->base + i + 1;
}

/* Returns whether n more bytes are within w->most; notes a failure where they are not. */
static bool has_room(tide__work *w, const tide__made *m, size_t n)
{
  if (n <= w->most - m->text.n) return true;
  tide__work_fail(w, TIDE_E_UNSUPPORTED, "a normalizer of the tokenizer makes more than %lld bytes "
                  "of the text", (long long)w->most);
  return false;
}

bool tide__made_copy(tide__work *w, tide__made *m, const tide__view *v, int32_t from, int32_t to)
{
  if (!has_room(w, m, (size_t)(to - from))) return false;
  if (!tide__vec_add(&m->text, v->p + from, (size_t)(to - from))) return false;
  if (!tide__align(w)) return true;
  for (int32_t i = from; i < to; i++) {
    int32_t a = place_from(v, i), b = place_to(v, i);
    if (!tide__vec_add(&m->from, &a, sizeof a) || !tide__vec_add(&m->to, &b, sizeof b))
      return false;
  }
  return true;
}

/* Sets a and b to the source that view[from, to) replaces. The source of inserted text (an empty
 * range) is the character after it. */
static void source(const tide__view *v, int32_t from, int32_t to, int32_t *a, int32_t *b)
{
  if (from == to && from < v->n) to += tide__char_size(v->p + from);
  if (from < to) {
    *a = place_from(v, from);
    *b = place_to(v, to - 1);
  } else {
    *a = *b = v->n ? place_to(v, v->n - 1) : v->base;
  }
}

bool tide__made_put(tide__work *w, tide__made *m, const tide__view *v, int32_t from, int32_t to,
                    const char *text, size_t n)
{
  int32_t a, b;
  if (!has_room(w, m, n) || !tide__vec_add(&m->text, text, n)) return false;
  if (!tide__align(w)) return true;
  source(v, from, to, &a, &b);
  for (size_t i = 0; i < n; i++)
    if (!tide__vec_add(&m->from, &a, sizeof a) || !tide__vec_add(&m->to, &b, sizeof b))
      return false;
  return true;
}

static int replace(tide__work *w, const tide__step *step, const tide__view *v, tide__span span,
                   tide__made *m)
{
  const char *text = v->p + span.from;
  int32_t n = span.to - span.from, last = 0, ended = -1, base = span.from;
  bool around = step->mode & TIDE_REPLACE_SURROUND, ok = true;
  tide__span f;
  for (int rc; ok && (rc = tide__find_next(w, step, text, n, last, ended, &f));) {
    if (rc < 0) return rc;
    ok = tide__made_copy(w, m, v, base + last, base + f.from) &&
         tide__made_put(w, m, v, base + f.from, base + f.to, step->with, (size_t)step->nwith);
    if (around)
      ok = ok && tide__made_copy(w, m, v, base + f.from, base + f.to) &&
           tide__made_put(w, m, v, base + f.to, base + f.to, step->with, (size_t)step->nwith);
    last = ended = f.to;
  }
  return ok && tide__made_copy(w, m, v, base + last, span.to) ? TIDE_OK : tide__work_nomem(w);
}

static int prepend(tide__work *w, const tide__step *step, const tide__view *v, tide__span span,
                   bool first, tide__made *m)
{
  const char *text = v->p + span.from;
  int64_t n = span.to - span.from, k = step->nwith;
  bool want = n > 0;
  if (step->mode & TIDE_PREPEND_UNLESS)
    want = want && (n < k || memcmp(text, step->with, (size_t)k));
  if (step->mode & TIDE_PREPEND_FIRST) want = want && first;
  bool ok = !want || tide__made_put(w, m, v, span.from, span.from, step->with, (size_t)k);
  return ok && tide__made_copy(w, m, v, span.from, span.to) ? TIDE_OK : tide__work_nomem(w);
}

/* Writes the character that represents a byte in vocabularies of bytes: a printable byte's own, for
 * the others, in order, U+0100 and on. Returns its size. */
static int visible(unsigned char b, char *out)
{
  int c = b;
  if (b <= 32) c = 256 + b;
  else if (b >= 127 && b <= 160) c = 256 + 33 + (b - 127);
  else if (b == 173) c = 256 + 33 + 34;
  if (c < 128) {
    out[0] = (char)c;
    return 1;
  }
  out[0] = (char)(0xC0 | c >> 6);
  out[1] = (char)(0x80 | (c & 63));
  return 2;
}

static int show_bytes(tide__work *w, const tide__view *v, tide__span span, tide__made *m)
{
  char out[2];
  for (int32_t i = span.from; i < span.to; i++) {
    int k = visible((unsigned char)v->p[i], out);
    if (!tide__made_put(w, m, v, i, i + 1, out, (size_t)k)) return tide__work_nomem(w);
  }
  return TIDE_OK;
}

int tide__transform(tide__work *w, const tide__step *step, const tide__view *view,
                    tide__span span, bool first, tide__made *made)
{
  switch (step->kind) {
  case TIDE_STEP_REPLACE: return replace(w, step, view, span, made);
  case TIDE_STEP_PREPEND: return prepend(w, step, view, span, first, made);
  case TIDE_STEP_BYTES: return show_bytes(w, view, span, made);
  case TIDE_STEP_CHARSMAP: return tide__charsmap(w, step, view, span, made);
  default: return tide__unicode(w, step, view, span, made);
  }
}
