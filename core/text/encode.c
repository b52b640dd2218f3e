/* The way of a text through the steps. */
#include "core/text/text.h"
#include "core/base/format.h"

enum { CACHE = 1 << 15 };

tide__work *tide__work_new(const tide_tokenizer *tok)
{
  const tide__regex_api *api = tok->regex;
  tide__work *w = tide__scratch_new(sizeof *w);
  if (!w) return NULL;
  w->tok = tok;
  w->cache = tide__scratch_new(CACHE * sizeof *w->cache);
  bool ok = w->cache;
  if (ok && api) {
    w->match = api->match_data_create(1, NULL);
    w->match_context = api->match_context_create(NULL);
    w->jit_stack = api->jit_stack_create(32 << 10, 64 << 20, NULL);
    ok = w->match && w->match_context && w->jit_stack;
    if (ok) api->jit_stack_assign(w->match_context, NULL, w->jit_stack);
  }
  if (ok) return w;
  tide__work_free(w);
  return NULL;
}

void tide__work_free(tide__work *w)
{
  if (!w) return;
  const tide__regex_api *api = w->tok->regex;
  if (w->match) api->match_data_free(w->match);
  if (w->match_context) api->match_context_free(w->match_context);
  if (w->jit_stack) api->jit_stack_free(w->jit_stack);
  for (int i = 0; i < 4; i++) {
    tide__vec_free(&w->made[i].text);
    tide__vec_free(&w->made[i].from);
    tide__vec_free(&w->made[i].to);
  }
  for (int i = 0; i < 2; i++) tide__vec_free(&w->spans[i]);
  for (int i = 0; i < 3; i++) tide__vec_free(&w->scratch[i]);
  tide__vec_free(&w->pieces);
  tide__vec_free(&w->ids);
  tide__scratch_free(w->cache);
  tide__scratch_free(w);
}

int tide__work_fail(tide__work *w, int status, const char *fmt, ...)
{
  va_list args;
  va_start(args, fmt);
  tide__format(w->message, sizeof w->message, fmt, args);
  va_end(args);
  return w->status = status;
}

/* ---- records -------------------------------------------------------------------------------- */

int tide__emit(tide__work *w, const tide__view *v, int32_t from, int32_t to, int32_t id)
{
  if (w->flags & TIDE_ENCODE_OFFSETS) {
    int32_t a = v->from ? v->from[from] : v->base + from;
    int32_t b = v->to ? v->to[to - 1] : v->base + to;
    int32_t record[3] = {id, a, b};
    return tide__vec_add(&w->ids, record, sizeof record) ? TIDE_OK : tide__work_nomem(w);
  }
  if (w->flags & TIDE_ENCODE_U16) {
    uint16_t small = (uint16_t)id;
    if (id > UINT16_MAX)
      return tide__work_fail(w, TIDE_E_ARG, "id %d does not fit in 16 bits", (int)id);
    return tide__vec_add(&w->ids, &small, sizeof small) ? TIDE_OK : tide__work_nomem(w);
  }
  return tide__vec_add(&w->ids, &id, sizeof id) ? TIDE_OK : tide__work_nomem(w);
}

/* ---- words, with a cache --------------------------------------------------------------------- */

static int run_model(tide__work *w, const char *word, int32_t n)
{
  w->pieces.n = 0;
  switch (w->tok->model) {
  case TIDE_TOKENIZER_BPE: return tide__bpe(w, word, n);
  case TIDE_TOKENIZER_UNIGRAM: return tide__unigram(w, word, n);
  default: return tide__wordpiece(w, word, n);
  }
}

static int emit_pieces(tide__work *w, const tide__view *v, int32_t at)
{
  const tide__piece *p = w->pieces.p;
  size_t n = w->pieces.n / sizeof *p;
  for (size_t i = 0; i < n; i++) {
    TIDE_TRY(tide__emit(w, v, at, at + p[i].n, p[i].id));
    at += p[i].n;
  }
  return TIDE_OK;
}

static int emit_cached(tide__work *w, const tide__view *v, int32_t at, const tide__cached *c)
{
  for (int i = 0; i < c->nid; i++) {
    TIDE_TRY(tide__emit(w, v, at, at + c->len[i], c->id[i]));
    at += c->len[i];
  }
  return TIDE_OK;
}

static void remember(const tide__work *w, tide__cached *c, const uint64_t *key, int32_t n)
{
  const tide__piece *p = w->pieces.p;
  size_t count = w->pieces.n / sizeof *p;
  if (count > TIDE__CACHE_IDS) return;
  memcpy(c->key, key, sizeof c->key);
  c->nkey = (uint8_t)n;
  c->nid = (uint8_t)count;
  for (size_t i = 0; i < count; i++) {
    c->id[i] = p[i].id;
    c->len[i] = (uint8_t)p[i].n;
  }
}

int tide__emit_word(tide__work *w, const tide__view *v, tide__span s)
{
  const char *word = v->p + s.from;
  int32_t n = s.to - s.from;
  if (n > TIDE__CACHE_KEY) {
    TIDE_TRY(run_model(w, word, n));
    return emit_pieces(w, v, s.from);
  }
  uint64_t key[3] = {0};
  memcpy(key, word, (size_t)n);
  uint64_t h = tide__mix(tide__mix(tide__mix(key[0] + (uint64_t)n) + key[1]) + key[2]);
  tide__cached *c = &w->cache[(h >> 24) & (CACHE - 1)];
  if (c->nkey == n && c->key[0] == key[0] && c->key[1] == key[1] && c->key[2] == key[2])
    return emit_cached(w, v, s.from, c);
  TIDE_TRY(run_model(w, word, n));
  remember(w, c, key, n);
  return emit_pieces(w, v, s.from);
}

/* Emits a word in the parts that no merge joins: each U+2581 behind another character begins
 * one. */
static int emit_apart(tide__work *w, const tide__view *v, tide__span s)
{
  const char *p = v->p;
  int32_t from = s.from;
  bool mark = true;
  for (int32_t i = s.from, size; i < s.to; i += size) {
    size = tide__char_size(p + i);
    bool is = size == 3 && memcmp(p + i, "\xE2\x96\x81", 3) == 0;
    if (is && !mark) {
      TIDE_TRY(tide__emit_word(w, v, (tide__span){from, i}));
      from = i;
    }
    mark = is;
  }
  return from < s.to ? tide__emit_word(w, v, (tide__span){from, s.to}) : TIDE_OK;
}

static int emit_sink(void *user, tide__work *w, const tide__view *v, tide__span s)
{
  (void)user;
  return w->tok->words_apart ? emit_apart(w, v, s) : tide__emit_word(w, v, s);
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Returns the view of a text that steps have made. */
static tide__view view_of(const tide__work *w, const tide__made *m)
{
  bool align = tide__align(w);
  return (tide__view){.p = m->text.p ? m->text.p : "", .n = (int32_t)m->text.n,
                      .from = align ? m->from.p : NULL, .to = align ? m->to.p : NULL};
}

/* Applies a step that changes text to every span. *first: the first span begins the text; cleared
 * where nothing is left of it. */
static int change(tide__work *w, const tide__step *step, tide__view *v, bool *first, tide__made *m,
                  const tide__vec *in, tide__vec *out)
{
  const tide__span *spans = in->p;
  size_t n = in->n / sizeof *spans;
  tide__made_clear(m);
  out->n = 0;
  for (size_t i = 0; i < n; i++) {
    tide__span s = {(int32_t)m->text.n, 0};
    TIDE_TRY(tide__transform(w, step, v, spans[i], *first && i == 0, m));
    s.to = (int32_t)m->text.n;
    if (i == 0 && s.to == s.from) *first = false;
    if (s.to > s.from && !tide__vec_add(out, &s, sizeof s)) return tide__work_nomem(w);
  }
  *v = view_of(w, m);
  return TIDE_OK;
}

/* Cuts every span. *first as in change. */
static int cut_spans(tide__work *w, const tide__step *step, const tide__view *v, bool *first,
                     const tide__vec *in, tide__vec *out)
{
  const tide__span *spans = in->p;
  size_t n = in->n / sizeof *spans;
  out->n = 0;
  for (size_t i = 0; i < n; i++) TIDE_TRY(tide__split(w, step, v, spans[i], out));
  if (out->n && ((tide__span *)out->p)->from != spans->from) *first = false;
  return TIDE_OK;
}

/* Runs a stage on view[span]; *v is the view after it, the returned vector its spans. */
static int run_stage(tide__work *w, int stage, tide__view *v, tide__span span, bool first,
                     tide__vec **spans)
{
  const tide_tokenizer *tok = w->tok;
  tide__vec *in = &w->spans[0], *out = &w->spans[1];
  int turn = 0;
  in->n = 0;
  if (span.from < span.to && !tide__vec_add(in, &span, sizeof span)) return tide__work_nomem(w);
  for (int i = 0; i < tok->nstep[stage]; i++) {
    const tide__step *step = &tok->steps[stage][i];
    if (step->kind == TIDE_STEP_SPLIT) {
      TIDE_TRY(cut_spans(w, step, v, &first, in, out));
    } else {
      TIDE_TRY(change(w, step, v, &first, &w->made[2 * stage + turn], in, out));
      turn = !turn;
    }
    tide__vec *t = in;
    in = out;
    out = t;
  }
  *spans = in;
  return TIDE_OK;
}

/* Cuts view[span] into words. */
static int words(tide__work *w, tide__view v, tide__span span, bool first, tide__sink sink,
                 void *user)
{
  tide__vec *spans;
  TIDE_TRY(run_stage(w, TIDE_STAGE_WORDS, &v, span, first, &spans));
  const tide__span *s = spans->p;
  size_t n = spans->n / sizeof *s;
  for (size_t i = 0; i < n; i++) TIDE_TRY(sink(user, w, &v, s[i]));
  return TIDE_OK;
}

static int normalize(tide__work *w, tide__view *v, bool first)
{
  tide__vec *spans;
  return run_stage(w, TIDE_STAGE_NORMAL, v, (tide__span){0, v->n}, first, &spans);
}

/* Returns whether view[at] stems from the first byte of the text. */
static bool begins_text(const tide__view *v, int32_t at)
{
  return v->from ? at < v->n && v->from[at] == 0 : v->base + at == 0;
}

/* Encodes text between added tokens of the raw text. */
static int segment(tide__work *w, tide__view v)
{
  bool special = w->flags & TIDE_ENCODE_SPECIAL, first = v.base == 0;
  if (v.n == 0) return TIDE_OK;
  TIDE_TRY(normalize(w, &v, first));
  tide__found found = {.next = 0};
  for (;;) {
    int32_t at = found.place.to;
    int64_t i = tide__added_find(w->tok, 1, v.p, v.n, special, &found);
    tide__span rest = {at, i < 0 ? v.n : found.place.from};
    if (rest.from < rest.to || i < 0)
      TIDE_TRY(words(w, v, rest, first && at == 0 && begins_text(&v, 0), emit_sink, NULL));
    if (i < 0) return TIDE_OK;
    TIDE_TRY(tide__emit(w, &v, found.place.from, found.place.to, w->tok->added[1].list[i].id));
  }
}

/* Returns how many bytes a text of n bytes may become: published normalizers make at most 18 bytes
 * of one. */
static size_t most_of(int32_t n)
{
  int64_t most = 64 * (int64_t)n + (1 << 20);
  return (size_t)(most < INT32_MAX / 2 ? most : INT32_MAX / 2);
}

int tide__encode(tide__work *w, const char *text, int32_t n)
{
  w->most = most_of(n);
  bool special = w->flags & TIDE_ENCODE_SPECIAL;
  tide__view whole = {.p = text, .n = n};
  tide__found found = {.next = 0};
  for (;;) {
    int32_t at = found.place.to;
    int64_t i = tide__added_find(w->tok, 0, text, n, special, &found);
    int32_t end = i < 0 ? n : found.place.from;
    if (at < end) TIDE_TRY(segment(w, (tide__view){.p = text + at, .n = end - at, .base = at}));
    if (i < 0) return TIDE_OK;
    TIDE_TRY(tide__emit(w, &whole, found.place.from, found.place.to,
                        w->tok->added[0].list[i].id));
  }
}

int tide__each_word(tide__work *w, const char *text, int32_t n, tide__sink sink, void *user)
{
  w->most = most_of(n);
  tide__view v = {.p = text, .n = n};
  TIDE_TRY(normalize(w, &v, true));
  return words(w, v, (tide__span){0, v.n}, begins_text(&v, 0), sink, user);
}
