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
  return from == to || tide__vec_add(j->out, &s, sizeof s);
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

/* Adds one part of the text: a match of the pattern, or the text between two matches. */
static bool add_part(struct joiner *j, int32_t from, int32_t to, bool match)
{
  bool before = j->matched, ok = true;
  if (from == to) return true;
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

int tide__split(tide__work *w, const tide__step *step, const tide__view *view, tide__span span,
                tide__vec *out)
{
  struct joiner j = {.out = out, .mode = step->mode, .first = out->n};
  const char *text = view->p + span.from;
  int32_t n = span.to - span.from, at = 0, last = 0, base = span.from;
  bool invert = step->mode & TIDE_SPLIT_INVERT, plain = step->mode == TIDE_SPLIT_ISOLATED;
  while (at < n) {
    tide__span m;
    int rc = tide__find(w, step, text, n, at, &m);
    if (rc < 0) return rc;
    if (rc == 0) break;
    if (m.to == m.from) {               /* an empty match cuts nothing */
      at = m.to < n ? m.to + tide__char_size(text + m.to) : n;
      continue;
    }
    if (plain) {
      if (!put_span(&j, base + last, base + m.from) || !put_span(&j, base + m.from, base + m.to))
        return tide__work_nomem(w);
    } else if (!add_part(&j, base + last, base + m.from, invert) ||
               !add_part(&j, base + m.from, base + m.to, !invert)) {
      return tide__work_nomem(w);
    }
    at = last = m.to;
  }
  if (!add_part(&j, base + last, base + n, invert)) return tide__work_nomem(w);
  if (j.pending && !put_span(&j, j.wait.from, j.wait.to)) return tide__work_nomem(w);
  return TIDE_OK;
}
