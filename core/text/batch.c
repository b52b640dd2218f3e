/* Public functions that encode: one text, and many on several threads. */

#include "core/text/text.h"

/* Makes the first n works. */
static int need_works(tide_tokenizer *tok, int n, const char *op)
{
  tide_ctx *ctx = tok->object.ctx;
  if (n <= tok->nwork) return TIDE_OK;
  size_t old = (size_t)tok->nwork * sizeof *tok->works, size = (size_t)n * sizeof *tok->works;
  void *list = old ? tide__resize(ctx, tok->works, old, size) : tide__alloc(ctx, size);
  if (!list) return tide__fail(ctx, TIDE_E_NOMEM, op, "no memory for %d threads", n);
  tok->works = list;
  for (int i = tok->nwork; i < n; i++) tok->works[i] = NULL;
  tok->nwork = n;
  return TIDE_OK;
}

static int open_work(tide_tokenizer *tok, int i, int flags, const char *op)
{
  if (!tok->works[i]) tok->works[i] = tide__work_new(tok);
  if (!tok->works[i])
    return tide__fail(tok->object.ctx, TIDE_E_NOMEM, op, "no memory for a thread");
  tide__work *w = tok->works[i];
  w->flags = flags;
  w->status = TIDE_OK;
  w->ids.n = 0;
  return TIDE_OK;
}

enum { MOST_TEXT = 1 << 30, ALL_FLAGS = 7 };

static int check_flags(const tide_tokenizer *tok, int flags, const char *op)
{
  if (flags & ~ALL_FLAGS || (flags & TIDE_ENCODE_OFFSETS && flags & TIDE_ENCODE_U16))
    return tide__fail(tok->object.ctx, TIDE_E_ARG, op, "flags: expected TIDE_ENCODE_*, and not "
                      "OFFSETS together with U16, got %d", flags);
  return TIDE_OK;
}

/* Encodes one text, of which texts[i] is number i, for messages; -1: the only one. */
static int run_text(tide__work *w, const char *text, int64_t n, int64_t i)
{
  char which[40] = "";
  if (i >= 0) snprintf(which, sizeof which, "texts[%lld]: ", (long long)i);
  if (n < 0 || (n > 0 && !text) || n > MOST_TEXT)
    return tide__work_fail(w, TIDE_E_ARG, "%stext, nbytes: expected 0 to 2^30 bytes, got "
                           "%lld", which, (long long)n);
  int64_t bad = tide_utf8_check(text, n);
  if (bad >= 0)
    return tide__work_fail(w, TIDE_E_ARG, "%sbyte %lld is not valid UTF-8 (byte 0 is the first)",
                           which, (long long)bad);
  return tide__encode(w, text ? text : "", (int32_t)n);
}

int tide_tokenizer_encode(tide_blob **out, tide_tokenizer *tok, const char *text, int64_t nbytes,
                          int flags)
{
  const char *op = "tokenizer_encode";
  *out = NULL;
  TIDE_DOOR(TIDE_OBJECT(TOKENIZER, tok));
  TIDE_TRY(check_flags(tok, flags, op));
  TIDE_TRY(need_works(tok, 1, op));
  TIDE_TRY(open_work(tok, 0, flags, op));
  tide__work *w = tok->works[0];
  int rc = run_text(w, text, nbytes, -1);
  if (rc < 0) return tide__fail(tok->object.ctx, rc, op, "%s", w->message);
  TIDE_TRY(tide__blob_new(out, tok->object.ctx, (int64_t)w->ids.n, op));
  if (w->ids.n) memcpy((*out)->data, w->ids.p, w->ids.n);
  return TIDE_OK;
}

/* ---- several threads: each takes the next text ---------------------------------------------- */

struct place { int32_t work; size_t at, n; }; /* of a text's ids: in this work, at this byte */

struct batch {
  const char *const *texts;
  const int64_t *sizes;
  int64_t n;
  struct place *places;
  atomic_llong next;
  atomic_bool failed;
};

struct share { struct batch *batch; tide__work *w; int32_t index; };

static void *run_share(void *arg)
{
  struct share *s = arg;
  struct batch *b = s->batch;
  for (;;) {
    int64_t i = atomic_fetch_add(&b->next, 1);
    if (i >= b->n || atomic_load(&b->failed)) return NULL;
    size_t at = s->w->ids.n;
    if (run_text(s->w, b->texts[i], b->sizes[i], i) < 0) {
      atomic_store(&b->failed, true);
      return NULL;
    }
    b->places[i] = (struct place){s->index, at, s->w->ids.n - at};
  }
}

/* Returns how many threads took shares; the caller is one of them. */
static int run_threads(struct share *shares, int nthread)
{
  pthread_t threads[64];
  int started = 0;
  for (int i = 1; i < nthread; i++)
    if (pthread_create(&threads[started], NULL, run_share, &shares[i]) == 0) started++;
  run_share(&shares[0]);
  for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
  return started + 1;
}

/* Puts the counts of all texts and then their ids into one blob. */
static int gather(tide_blob **out, tide_tokenizer *tok, const struct batch *b, int flags)
{
  size_t width = flags & TIDE_ENCODE_OFFSETS ? 12 : flags & TIDE_ENCODE_U16 ? 2 : 4, total = 0;
  for (int64_t i = 0; i < b->n; i++) total += b->places[i].n;
  TIDE_TRY(tide__blob_new(out, tok->object.ctx, b->n * 8 + (int64_t)total,
                          "tokenizer_encode_batch"));
  char *to = (*out)->data + b->n * 8;
  for (int64_t i = 0; i < b->n; i++) {
    const struct place *p = &b->places[i];
    int64_t count = (int64_t)(p->n / width);
    memcpy((*out)->data + i * 8, &count, 8);
    if (p->n) memcpy(to, (char *)tok->works[p->work]->ids.p + p->at, p->n);
    to += p->n;
  }
  return TIDE_OK;
}

static int encode_all(tide_blob **out, tide_tokenizer *tok, struct batch *b, int flags, int nthread)
{
  const char *op = "tokenizer_encode_batch";
  struct share shares[64];
  TIDE_TRY(need_works(tok, nthread, op));
  for (int i = 0; i < nthread; i++) {
    TIDE_TRY(open_work(tok, i, flags, op));
    shares[i] = (struct share){b, tok->works[i], i};
  }
  int got = run_threads(shares, nthread);
  if (got < nthread)
    tide__log(tok->object.ctx, TIDE_LOG_WARN, "%s: the system started %d of %d threads", op, got,
              nthread);
  for (int i = 0; i < nthread; i++)
    if (shares[i].w->status < 0)
      return tide__fail(tok->object.ctx, shares[i].w->status, op, "%s", shares[i].w->message);
  return gather(out, tok, b, flags);
}

int tide_tokenizer_encode_batch(tide_blob **out, tide_tokenizer *tok, int64_t n,
                                const char *const *texts, const int64_t *sizes, int flags,
                                int nthread)
{
  const char *op = "tokenizer_encode_batch";
  *out = NULL;
  TIDE_DOOR(TIDE_OBJECT(TOKENIZER, tok));
  tide_ctx *ctx = tok->object.ctx;
  TIDE_TRY(check_flags(tok, flags, op));
  if (n < 0 || n > INT32_MAX || (n && (!texts || !sizes)) || nthread < 0)
    return tide__fail(ctx, TIDE_E_ARG, op, "expected texts with their sizes and threads >= 0");
  if (nthread == 0) nthread = ctx->nthread;
  nthread = nthread > 64 ? 64 : nthread;
  nthread = nthread > n ? (n ? (int)n : 1) : nthread;
  size_t size = (size_t)(n ? n : 1) * sizeof(struct place);
  struct batch b = {.texts = texts, .sizes = sizes, .n = n, .places = tide__alloc(ctx, size)};
  if (!b.places) return tide__fail(ctx, TIDE_E_NOMEM, op, "no memory for %lld texts", (long long)n);
  int rc = encode_all(out, tok, &b, flags, nthread);
  tide__free(ctx, b.places, size);
  return rc;
}
