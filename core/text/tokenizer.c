/* Public functions of tokenizers: making one, its tables. */

#include "core/text/text.h"

static void free_steps(tide_ctx *ctx, const tide_tokenizer *tok, int stage)
{
  for (int i = 0; i < tok->nstep[stage]; i++) {
    tide__step *s = &tok->steps[stage][i];
    if (s->regex) tok->regex->code_free(s->regex);
    if (s->with) tide__free(ctx, s->with, (size_t)s->nwith + 1);
  }
  if (tok->steps[stage])
    tide__free(ctx, tok->steps[stage], (size_t)tok->nstep[stage] * sizeof(tide__step));
}

static void tokenizer_destroy(tide__object *o, int n)
{
  tide_tokenizer *tok = (tide_tokenizer *)o;
  tide_ctx *ctx = o->ctx;
  size_t count = (size_t)tok->npiece;
  (void)n;
  for (int i = 0; i < tok->nwork; i++) tide__work_free(tok->works[i]);
  if (tok->works) tide__free(ctx, tok->works, (size_t)tok->nwork * sizeof *tok->works);
  for (int stage = 0; stage < TIDE_STAGE_COUNT; stage++) free_steps(ctx, tok, stage);
  if (tok->bytes) tide__free(ctx, tok->bytes, (size_t)tok->ends[count - 1] + 1);
  if (tok->ends) tide__free(ctx, tok->ends, count * sizeof *tok->ends);
  if (tok->scores) tide__free(ctx, tok->scores, count * sizeof *tok->scores);
  if (tok->slots) tide__free(ctx, tok->slots, ((size_t)tok->slot_mask + 1) * sizeof *tok->slots);
  if (tok->merges)
    tide__free(ctx, tok->merges, ((size_t)tok->merge_mask + 1) * sizeof *tok->merges);
  tide__trie_close(ctx, &tok->trie);
  for (int i = 0; i < 2; i++) {
    tide__trie_close(ctx, &tok->added[i].trie);
    if (tok->added[i].list)
      tide__free(ctx, tok->added[i].list, (size_t)tok->added[i].cap * sizeof *tok->added[i].list);
  }
  tide__object_free(o);
}

void tide_tokenizer_release(tide_tokenizer *tok)
{
  tide__object_release(tok, TIDE__KIND_TOKENIZER);
}

/* ---- pieces --------------------------------------------------------------------------------- */

static uint64_t hash_bytes(const char *s, int64_t n)
{
  uint64_t h = (uint64_t)n, part;
  for (; n >= 8; n -= 8, s += 8) {
    memcpy(&part, s, 8);
    h = tide__mix(h + part);
  }
  part = 0;
  memcpy(&part, s, (size_t)n);
  return tide__mix(tide__mix(h + part));
}

static const char *piece_text(const tide_tokenizer *tok, int64_t id, int64_t *n)
{
  int64_t from = id ? tok->ends[id - 1] : 0;
  *n = tok->ends[id] - from;
  return tok->bytes + from;
}

int32_t tide__piece_id(const tide_tokenizer *tok, const char *text, int64_t n)
{
  for (uint32_t i = (uint32_t)(hash_bytes(text, n) >> 24) & tok->slot_mask;;
       i = (i + 1) & tok->slot_mask) {
    int64_t size;
    if (tok->slots[i] < 0) return -1;
    const char *p = piece_text(tok, tok->slots[i], &size);
    if (size == n && memcmp(p, text, (size_t)n) == 0) return tok->slots[i];
  }
}

/* Returns a power of two above twice n. */
static uint32_t slots_for(int64_t n)
{
  uint32_t k = 16;
  while (k < 2 * n) k *= 2;
  return k;
}

/* Stores a piece. The last of equal pieces keeps the text, as in a JSON object or a dictionary. */
static void put_piece(tide_tokenizer *tok, int32_t id)
{
  int64_t n, size;
  const char *p = piece_text(tok, id, &n);
  uint32_t i = (uint32_t)(hash_bytes(p, n) >> 24) & tok->slot_mask;
  for (; tok->slots[i] >= 0; i = (i + 1) & tok->slot_mask) {
    const char *q = piece_text(tok, tok->slots[i], &size);
    if (size == n && memcmp(p, q, (size_t)n) == 0) break;
  }
  tok->slots[i] = id;
}

static void fill_bytes(tide_tokenizer *tok)
{
  char text[8];
  for (int b = 0; b < 256; b++) {
    text[0] = (char)b;
    if (tok->flags & TIDE_TOKENIZER_BYTES) {
      tok->byte_id[b] = tide__piece_id(tok, text, 1);
    } else {
      snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
      tok->byte_id[b] = tide__piece_id(tok, text, 6);
    }
  }
}

/* Returns whether a piece matches text: those of bytes of sentencepiece do not. */
static bool matches_text(const tide_tokenizer *tok, int64_t i)
{
  if (!(tok->flags & TIDE_TOKENIZER_F32_SCORES)) return true;
  for (int b = 0; b < 256; b++)
    if (tok->byte_id[b] == i) return false;
  return true;
}

static int fill_trie(tide_ctx *ctx, tide_tokenizer *tok)
{
  int rc = tide__trie_open(ctx, &tok->trie);
  tok->min_score = 0;
  for (int64_t i = 0; i < tok->npiece && rc >= 0; i++) {
    int64_t n;
    const char *p = piece_text(tok, i, &n);
    if (tok->scores[i] < tok->min_score || i == 0) tok->min_score = tok->scores[i];
    if (n > 0 && (n != 6 || matches_text(tok, i)))
      rc = tide__trie_put(ctx, &tok->trie, p, n, (int32_t)i);
  }
  return rc;
}

static int nomem(tide_ctx *ctx, const char *op)
{
  return tide__fail(ctx, TIDE_E_NOMEM, op, "no memory for the tables of a tokenizer");
}

static int fill_pieces(tide_ctx *ctx, tide_tokenizer *tok, const char *bytes, const int64_t *ends,
                       const double *scores)
{
  size_t n = (size_t)tok->npiece;
  uint32_t nslot = slots_for(tok->npiece);
  if ((tok->ends = tide__alloc(ctx, n * sizeof *ends))) memcpy(tok->ends, ends, n * sizeof *ends);
  if (tok->ends && (tok->bytes = tide__alloc(ctx, (size_t)ends[n - 1] + 1)))
    memcpy(tok->bytes, bytes, (size_t)ends[n - 1]);
  if (scores && (tok->scores = tide__alloc(ctx, n * sizeof *scores)))
    memcpy(tok->scores, scores, n * sizeof *scores);
  tok->slots = tide__alloc(ctx, nslot * sizeof *tok->slots);
  tok->slot_mask = nslot - 1;
  if (!tok->bytes || !tok->slots || (scores && !tok->scores)) return TIDE_E_NOMEM;
  for (uint32_t i = 0; i < nslot; i++) tok->slots[i] = -1;
  for (int32_t i = 0; i < tok->npiece; i++)
    if (ends[i] > (i ? ends[i - 1] : 0)) put_piece(tok, i);
  fill_bytes(tok);
  return tok->model == TIDE_TOKENIZER_UNIGRAM ? fill_trie(ctx, tok) : TIDE_OK;
}

static int check_pieces(tide_ctx *ctx, int model, int flags, int64_t n, const char *bytes,
                        const int64_t *ends, const double *scores)
{
  const char *op = "tokenizer_new";
  if (model < 0 || model > TIDE_TOKENIZER_WORDS)
    return tide__fail(ctx, TIDE_E_ARG, op, "model: expected TIDE_TOKENIZER_BPE to _WORDS, got %d",
                      model);
  if (flags & ~31) return tide__fail(ctx, TIDE_E_ARG, op, "flags: unknown bits in %d", flags);
  if (n < 1 || n > 1 << 24 || !bytes || !ends)
    return tide__fail(ctx, TIDE_E_ARG, op, "n: expected 1 to 2^24 pieces, got %lld", (long long)n);
  for (int64_t i = 0; i < n; i++)
    if (ends[i] < (i ? ends[i - 1] : 0) || ends[i] > INT32_MAX)
      return tide__fail(ctx, TIDE_E_ARG, op, "ends[%lld]: expected no less than the end before and "
                        "less than 2^31", (long long)i);
  if (model == TIDE_TOKENIZER_UNIGRAM && !scores)
    return tide__fail(ctx, TIDE_E_ARG, op, "scores: a Unigram model needs them");
  return TIDE_OK;
}

int tide_tokenizer_new(tide_tokenizer **out, tide_ctx *ctx, int model, int flags, int32_t unk,
                       int64_t n, const char *bytes, const int64_t *ends, const double *scores)
{
  *out = NULL;
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  TIDE_TRY(check_pieces(ctx, model, flags, n, bytes, ends, scores));
  if (unk < -1 || unk >= n)
    return tide__fail(ctx, TIDE_E_ARG, "tokenizer_new", "unk: expected -1 or the id of a piece, "
                      "got %d", (int)unk);
  tide__objects_settle(ctx);
  tide_tokenizer *tok = tide__object_new(ctx, TIDE__KIND_TOKENIZER, sizeof *tok,
                                         tokenizer_destroy);
  if (!tok) return nomem(ctx, "tokenizer_new");
  tok->model = model;
  tok->flags = flags;
  tok->unk = unk;
  tok->npiece = n;
  int rc = fill_pieces(ctx, tok, bytes, ends, scores);
  if (rc < 0) {
    tide_tokenizer_release(tok);
    if (rc != TIDE_E_UNSUPPORTED) return nomem(ctx, "tokenizer_new");
    return tide__fail(ctx, rc, "tokenizer_new", "the pieces have more than 2^24 beginnings");
  }
  *out = tok;
  return TIDE_OK;
}

int tide_tokenizer_affix(tide_tokenizer *tok, const char *prefix, const char *suffix, int32_t most)
{
  TIDE_DOOR(TIDE_OBJECT(TOKENIZER, tok));
  size_t np = prefix ? strlen(prefix) : 0, ns = suffix ? strlen(suffix) : 0;
  if (np >= sizeof tok->prefix || ns >= sizeof tok->suffix)
    return tide__fail(tok->object.ctx, TIDE_E_ARG, "tokenizer_affix",
                      "prefix and suffix: expected less than %zu bytes", sizeof tok->prefix);
  if (np) memcpy(tok->prefix, prefix, np);
  if (ns) memcpy(tok->suffix, suffix, ns);
  tok->nprefix = (int32_t)np;
  tok->nsuffix = (int32_t)ns;
  tok->most = most;
  if (np || ns) tok->words_apart = false;
  return TIDE_OK;
}

/* ---- merges --------------------------------------------------------------------------------- */

/* Stores a merge. The last of equal pairs counts. */
static void put_merge(tide_tokenizer *tok, int32_t a, int32_t b, uint32_t rank, int32_t id)
{
  uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
  uint32_t i = (uint32_t)(tide__mix(pair) >> 24) & tok->merge_mask;
  while (tok->merges[i].pair != UINT64_MAX && tok->merges[i].pair != pair)
    i = (i + 1) & tok->merge_mask;
  tok->merges[i] = (tide__merge){pair, rank, id};
}

/* Returns whether a merge joins another character with a U+2581 behind it. */
static bool crosses_mark(const tide_tokenizer *tok, int32_t a, int32_t b)
{
  int64_t na, nb;
  const char *left = piece_text(tok, a, &na), *right = piece_text(tok, b, &nb);
  bool mark = na >= 3 && memcmp(left + na - 3, "\xE2\x96\x81", 3) == 0;
  return !mark && nb >= 3 && memcmp(right, "\xE2\x96\x81", 3) == 0;
}

static int open_merges(tide_tokenizer *tok, int64_t n, const char *op)
{
  tide_ctx *ctx = tok->object.ctx;
  uint32_t slots = slots_for(n);
  if (tok->model != TIDE_TOKENIZER_BPE || tok->merges)
    return tide__fail(ctx, TIDE_E_STATE, op, "merges are given once, to a BPE model");
  tok->merges = tide__alloc(ctx, slots * sizeof *tok->merges);
  if (!tok->merges) return nomem(ctx, op);
  tok->merge_mask = slots - 1;
  for (uint32_t i = 0; i < slots; i++) tok->merges[i].pair = UINT64_MAX;
  tok->words_apart = !(tok->flags & (TIDE_TOKENIZER_BYTES | TIDE_TOKENIZER_IGNORE_MERGES)) &&
                     tok->nprefix + tok->nsuffix == 0;
  return TIDE_OK;
}

int tide_tokenizer_merges(tide_tokenizer *tok, int64_t n, const int32_t *merges)
{
  const char *op = "tokenizer_merges";
  TIDE_DOOR(TIDE_OBJECT(TOKENIZER, tok));
  if (n < 0 || n > 1 << 26 || (n && !merges))
    return tide__fail(tok->object.ctx, TIDE_E_ARG, op, "n: expected 0 to 2^26, got %lld",
                      (long long)n);
  for (int64_t i = 0; i < 3 * n; i++)
    if (merges[i] < 0 || merges[i] >= tok->npiece)
      return tide__fail(tok->object.ctx, TIDE_E_ARG, op, "merges[%lld]: no piece has id %d",
                        (long long)(i / 3), (int)merges[i]);
  TIDE_TRY(open_merges(tok, n, op));
  for (int64_t i = 0; i < n; i++) {
    const int32_t *m = merges + 3 * i;
    put_merge(tok, m[0], m[1], (uint32_t)i, m[2]);
    if (crosses_mark(tok, m[0], m[1])) tok->words_apart = false;
  }
  return TIDE_OK;
}

/* Calls put_merge for every way to cut a piece in two pieces; without `put` it only counts. */
static int64_t cut_piece(tide_tokenizer *tok, int32_t id, uint32_t rank, bool put)
{
  int64_t n, count = 0;
  const char *p = piece_text(tok, id, &n);
  bool bytes = tok->flags & TIDE_TOKENIZER_BYTES;
  for (int64_t k = 1; k < n; k++) {
    if (!bytes && (p[k] & 0xC0) == 0x80) continue;
    int32_t a = tide__piece_id(tok, p, k);
    int32_t b = a < 0 ? -1 : tide__piece_id(tok, p + k, n - k);
    if (b < 0) continue;
    count++;
    if (!put) continue;
    put_merge(tok, a, b, rank, id);
    if (crosses_mark(tok, a, b)) tok->words_apart = false;
  }
  return count;
}

int tide_tokenizer_merge_pieces(tide_tokenizer *tok, const int32_t *ranks)
{
  const char *op = "tokenizer_merge_pieces";
  TIDE_DOOR(TIDE_OBJECT(TOKENIZER, tok));
  int64_t n = 0;
  if (!ranks) return tide__fail(tok->object.ctx, TIDE_E_ARG, op, "ranks is null");
  for (int32_t i = 0; i < tok->npiece; i++) n += ranks[i] < 0 ? 0 : cut_piece(tok, i, 0, false);
  TIDE_TRY(open_merges(tok, n, op));
  for (int32_t i = 0; i < tok->npiece; i++)
    if (ranks[i] >= 0) cut_piece(tok, i, (uint32_t)ranks[i], true);
  return TIDE_OK;
}

/* ---- libraries ------------------------------------------------------------------------------ */

static int need_library(tide_tokenizer *tok, const char *op, bool regex)
{
  char why[300] = "";
  if (regex ? tok->regex != NULL : tok->unicode != NULL) return TIDE_OK;
  bool ok = regex ? tide__regex_open(&tok->regex_table, why, sizeof why)
                  : tide__unicode_open(&tok->unicode_table, why, sizeof why);
  if (!ok) return tide__fail(tok->object.ctx, TIDE_E_UNSUPPORTED, op, "%s", why);
  if (regex) tok->regex = &tok->regex_table;
  else tok->unicode = &tok->unicode_table;
  return TIDE_OK;
}

/* ---- added tokens --------------------------------------------------------------------------- */

static int grow_added(tide_ctx *ctx, tide__added *a)
{
  size_t old = (size_t)a->cap * sizeof *a->list;
  void *list = a->cap ? tide__resize(ctx, a->list, old, 2 * old)
                      : tide__alloc(ctx, 16 * sizeof *a->list);
  if (!list) return TIDE_E_NOMEM;
  a->list = list;
  a->cap = a->cap ? 2 * a->cap : 16;
  return TIDE_OK;
}

int tide_tokenizer_add(tide_tokenizer *tok, const char *text, int64_t nbytes, int32_t id,
                       int flags)
{
  const char *op = "tokenizer_add";
  TIDE_DOOR(TIDE_OBJECT(TOKENIZER, tok));
  tide_ctx *ctx = tok->object.ctx;
  if (flags & ~31) return tide__fail(ctx, TIDE_E_ARG, op, "flags: unknown bits in %d", flags);
  if (!text || nbytes < 1 || nbytes > 1 << 20 || id < 0)
    return tide__fail(ctx, TIDE_E_ARG, op, "expected a text and an id >= 0, got %lld bytes and %d",
                      (long long)nbytes, (int)id);
  if (flags & TIDE_ADDED_WORD) TIDE_TRY(need_library(tok, op, false));
  tide__added *a = &tok->added[flags & TIDE_ADDED_NORMALIZED ? 1 : 0];
  int rc = a->trie.value ? TIDE_OK : tide__trie_open(ctx, &a->trie);
  if (rc >= 0 && a->n == a->cap) rc = grow_added(ctx, a);
  if (rc >= 0) rc = tide__trie_put(ctx, &a->trie, text, nbytes, (int32_t)a->n);
  if (rc < 0) return nomem(ctx, op);
  a->list[a->n].id = id;
  a->list[a->n++].flags = flags;
  return TIDE_OK;
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int compile(tide_tokenizer *tok, tide__step *s, const char *what, int64_t n, const char *op)
{
  const uint32_t options = TIDE__PCRE_UTF | TIDE__PCRE_UCP | TIDE__PCRE_NO_C;
  int code = 0;
  size_t at = 0;
  char text[160] = "";
  TIDE_TRY(need_library(tok, op, true));
  if (tide_utf8_check(what, n) >= 0)
    return tide__fail(tok->object.ctx, TIDE_E_FORMAT, op, "the pattern is not UTF-8");
  s->regex = tok->regex->compile((const uint8_t *)what, (size_t)n, options, &code, &at, NULL);
  if (!s->regex) {
    tok->regex->get_error_message(code, (uint8_t *)text, sizeof text);
    return tide__fail(tok->object.ctx, TIDE_E_FORMAT, op, "pattern %.*s: %s at byte %zu",
                      (int)(n < 300 ? n : 300), what, text, at + 1);
  }
  code = tok->regex->jit_compile(s->regex, TIDE__PCRE_JIT);
  if (code == 0) return TIDE_OK;
  tok->regex->code_free(s->regex);
  s->regex = NULL;
  tok->regex->get_error_message(code, (uint8_t *)text, sizeof text);
  return tide__fail(tok->object.ctx, TIDE_E_UNSUPPORTED, op,
                    "libpcre2 cannot compile pattern %.*s to machine code: %s",
                    (int)(n < 300 ? n : 300), what, text);
}

static int append_step(tide_tokenizer *tok, int stage, const tide__step *s)
{
  size_t old = (size_t)tok->nstep[stage] * sizeof *s;
  tide_ctx *ctx = tok->object.ctx;
  tide__step *steps = old ? tide__resize(ctx, tok->steps[stage], old, old + sizeof *s)
                          : tide__alloc(ctx, sizeof *s);
  if (!steps) return TIDE_E_NOMEM;
  tok->steps[stage] = steps;
  steps[tok->nstep[stage]++] = *s;
  for (int i = 0; i < tok->nstep[TIDE_STAGE_WORDS]; i++) {
    const tide__step *word = &tok->steps[TIDE_STAGE_WORDS][i];
    if (word->kind == TIDE_STEP_PREPEND && word->mode & TIDE_PREPEND_FIRST)
      tok->first_by_place = tok->nstep[TIDE_STAGE_NORMAL] > 0;
  }
  return TIDE_OK;
}

int tide_tokenizer_step(tide_tokenizer *tok, int stage, int kind, int mode, const char *what,
                        int64_t nwhat, const char *with, int64_t nwith)
{
  const char *op = "tokenizer_step";
  TIDE_DOOR(TIDE_OBJECT(TOKENIZER, tok));
  tide_ctx *ctx = tok->object.ctx;
  tide__step s = {.kind = kind, .mode = mode, .nwith = nwith};
  if (stage < 0 || stage >= TIDE_STAGE_COUNT || kind < 0 || kind > TIDE_STEP_CHARSMAP)
    return tide__fail(ctx, TIDE_E_ARG, op, "there is no step of stage %d and kind %d", stage, kind);
  if (nwhat < 0 || nwith < 0 || (nwhat && !what) || (nwith && !with))
    return tide__fail(ctx, TIDE_E_ARG, op, "what and with: expected texts and their sizes");
  if (tok->works) return tide__fail(ctx, TIDE_E_STATE, op, "the tokenizer has been used already");
  if (kind == TIDE_STEP_UNICODE || kind == TIDE_STEP_LOWER || kind == TIDE_STEP_CHARSMAP)
    TIDE_TRY(need_library(tok, op, false));
  if (kind == TIDE_STEP_SPLIT || kind == TIDE_STEP_REPLACE)
    TIDE_TRY(compile(tok, &s, what, nwhat, op));
  if (nwith && (s.with = tide__alloc(ctx, (size_t)nwith + 1))) memcpy(s.with, with, (size_t)nwith);
  if ((nwith && !s.with) || append_step(tok, stage, &s) < 0) {
    if (s.regex) tok->regex->code_free(s.regex);
    if (s.with) tide__free(ctx, s.with, (size_t)nwith + 1);
    return nomem(ctx, op);
  }
  return TIDE_OK;
}
