/* Cuts text by a regular expression, as the pre-tokenizers of published files do. */
#include "core/text/text.h"

enum { MATCH_LIMIT = -47, DEPTH_LIMIT = -53, JIT_STACK = -46 };

static int match_failed(tide__work *w, int rc)
{
  char text[160] = "unknown";
  w->tok->regex->get_error_message(rc, (uint8_t *)text, sizeof text);
  bool limit = rc == MATCH_LIMIT || rc == DEPTH_LIMIT || rc == JIT_STACK;
  return tide__work_fail(w, limit ? TIDE_E_UNSUPPORTED : TIDE_E_INTERNAL,
                         "a regular expression of the tokenizer failed on this text: %s", text);
}

int tide__find(tide__work *w, const tide__step *step, const char *text, int32_t n, int32_t at,
               tide__span *place)
{
  const tide__regex_api *api = w->tok->regex;
  int rc = api->jit_match(step->regex, (const uint8_t *)text, (size_t)n, (size_t)at,
                          TIDE__PCRE_NO_CHECK, w->match, w->match_context);
  if (rc == TIDE__PCRE_NOMATCH) return 0;
  if (rc < 0) return match_failed(w, rc);
  const size_t *found = api->get_ovector_pointer(w->match);
  place->from = (int32_t)found[0];
  place->to = (int32_t)found[1];
  return 1;
}

/* What is needed to join parts as the mode says. */
struct joiner {
  tide__vec *out;
  int mode;
  bool matched, pending;   /* the part before was a match; it waits for its neighbour */
  tide__span wait;
  size_t first;            /* out->n at the start */
};

static bool put_span(struct joiner *j, int32_t from, int32_t to)
{
  tide__span s = {from, to};
  return tide__vec_add(j->out, &s, sizeof s);
}

static bool join_last(struct joiner *j, int32_t from, int32_t to)
{
  if (j->out->n == j->first) return put_span(j, from, to);
  ((tide__span *)((char *)j->out->p + j->out->n))[-1].to = to;
  return true;
}

static bool put_with_next(struct joiner *j, int32_t from, int32_t to, bool match)
{
  bool ok = true;
  if (match) {
    if (j->pending) ok = put_span(j, j->wait.from, j->wait.to);
    j->pending = true;
    j->wait = (tide__span){from, to};
    return ok;
  }
  ok = put_span(j, j->pending ? j->wait.from : from, to);
  j->pending = false;
  return ok;
}

/* One part of the text: a match of the pattern, which may be empty, or what lies between two. */
static bool add_part(struct joiner *j, int32_t from, int32_t to, bool match)
{
  bool before = j->matched, ok = true;
  switch (j->mode & TIDE_SPLIT_MODE) {
  case TIDE_SPLIT_REMOVED: ok = match || put_span(j, from, to); break;
  case TIDE_SPLIT_ISOLATED: ok = put_span(j, from, to); break;
  case TIDE_SPLIT_WITH_PREVIOUS:
    ok = match && !before ? join_last(j, from, to) : put_span(j, from, to);
    break;
  case TIDE_SPLIT_WITH_NEXT: ok = put_with_next(j, from, to, match); break;
  default:
    ok = match == before && j->out->n > j->first ? join_last(j, from, to)
                                                 : put_span(j, from, to);
  }
  j->matched = match;
  return ok;
}

/* Adds what lies before a match, unless that is empty, and the match. */
static bool add_match(struct joiner *j, int32_t from, tide__span m)
{
  bool invert = j->mode & TIDE_SPLIT_INVERT;
  return (from == m.from || add_part(j, from, m.from, invert)) &&
         add_part(j, m.from, m.to, !invert);
}

/* Drops the empty spans that were added. */
static void drop_empty(struct joiner *j)
{
  tide__span *s = (tide__span *)((char *)j->out->p + j->first);
  size_t n = (j->out->n - j->first) / sizeof *s, kept = 0;
  for (size_t i = 0; i < n; i++)
    if (s[i].from < s[i].to) s[kept++] = s[i];
  j->out->n = j->first + kept * sizeof *s;
}

int tide__find_next(tide__work *w, const tide__step *step, const char *text, int32_t n, int32_t at,
                    int32_t ended, tide__span *place)
{
  while (at <= n) {
    int rc = tide__find(w, step, text, n, at, place);
    if (rc <= 0) return rc;
    if (place->from < place->to || place->from != ended) return 1;
    at = place->to < n ? place->to + tide__char_size(text + place->to) : n + 1;
  }
  return 0;
}

int tide__split(tide__work *w, const tide__step *step, const tide__view *view, tide__span span,
                tide__vec *out)
{
  struct joiner j = {.out = out, .mode = step->mode, .first = out->n};
  const char *text = view->p + span.from;
  int32_t n = span.to - span.from, at = 0, ended = -1, base = span.from;
  tide__span m;
  bool ok = true;
  for (int rc; ok && (rc = tide__find_next(w, step, text, n, at, ended, &m)); at = ended = m.to) {
    if (rc < 0) return rc;
    ok = add_match(&j, base + at, (tide__span){base + m.from, base + m.to});
  }
  if (ok && at < n) ok = add_part(&j, base + at, base + n, step->mode & TIDE_SPLIT_INVERT);
  if (ok && j.pending) ok = put_span(&j, j.wait.from, j.wait.to);
  if (!ok) return tide__work_nomem(w);
  if (out->n > j.first) drop_empty(&j);
  return TIDE_OK;
}
