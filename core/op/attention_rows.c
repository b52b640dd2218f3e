/* Finds the keys of a block that any query of another block may see: integers only, on the host.
 *
 * A block is summarised by the range of positions that it holds of each document. Neighbouring
 * tokens mostly share a document, so runs of them are made first and are few.
 */
#include <stdlib.h>

#include "core/op/attention.h"

/* Positions lo..hi of one document; a causal query of them sees keys up to `until`. */
typedef struct span { int32_t doc, lo, hi, until; } span;

typedef struct spans { span *at; int64_t n, cap; tide_ctx *ctx; } spans;

static int rows_push(spans *s, span x)
{
  if (!tide__grow(s->ctx, &s->at, s->n, &s->cap, sizeof *s->at))
    return tide__fail(s->ctx, TIDE_E_NOMEM, "attention_rows", "no host memory");
  s->at[s->n++] = x;
  return TIDE_OK;
}

static int by_document(const void *a, const void *b)
{
  const span *x = a, *y = b;
  return (x->doc > y->doc) - (x->doc < y->doc);
}

/* Widens a span by another one of its document. */
static void rows_widen(span *to, const span *x)
{
  if (x->lo < to->lo) to->lo = x->lo;
  if (x->hi > to->hi) to->hi = x->hi;
  if (x->until > to->until) to->until = x->until;
}

/* Sorts the spans by document and joins them to one per document. */
static void rows_join(spans *s)
{
  int64_t n = 0;
  if (s->n > 1) qsort(s->at, (size_t)s->n, sizeof *s->at, by_document);
  for (int64_t i = 0; i < s->n; i++) {
    span *last = n > 0 ? &s->at[n - 1] : NULL;
    if (!last || last->doc != s->at[i].doc) {
      s->at[n++] = s->at[i];
      continue;
    }
    rows_widen(last, &s->at[i]);
  }
  s->n = n;
}

/* Collects the spans of n queries, `width` numbers each, without those of document -1, which see
 * nothing. */
static int spans_of(spans *s, const int32_t *at, int64_t n, int64_t width)
{
  for (int64_t i = 0; i < n; i++, at += width) {
    if (at[0] < 0) continue;
    span *last = s->n > 0 ? &s->at[s->n - 1] : NULL;
    span x = {at[0], at[1], at[1], at[width - 1]};
    if (!last || last->doc != x.doc) TIDE_TRY(rows_push(s, x));
    else rows_widen(last, &x);
  }
  rows_join(s);
  return TIDE_OK;
}

static bool is_seen(const spans *q, const int32_t *pair, const tide_attention_attrs *a)
{
  span key = {.doc = pair[0]};
  if (pair[0] < 0 || q->n == 0) return false;
  const span *s = bsearch(&key, q->at, (size_t)q->n, sizeof *q->at, by_document);
  if (!s) return false;
  int64_t p = pair[1];
  if (a->causal && p > s->until) return false;
  if (a->window_left >= 0 && p < s->lo - a->window_left) return false;
  return a->window_right < 0 || p <= s->hi + a->window_right;
}

static int rows_check_index(tide_tensor *t, const char *arg)
{
  if (t->storage->gone)
    return tide__fail(t->ctx, TIDE_E_GONE, "attention_rows", "%s was dropped", arg);
  if (tide__fits_index(t) && (tide_tensor_data(t) || tide__tensor_numel(t) == 0))
    return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_SHAPE, "attention_rows", "%s: expected i32 [B, T, 2] of "
                    "(document, position), or [B, T, 3] of (document, position, until), on the "
                    "host, got %s on '%s'", arg, TIDE__TEXT(t),
                    tide_device_name(t->storage->device));
}

/* Returns the numbers of row b of an index without gaps; all rows share one where it has one. */
static const int32_t *rows_at(const tide_tensor *t, int64_t b)
{
  const int32_t *all = tide_tensor_data((tide_tensor *)t);
  return all + (t->shape[0] > 1 ? b * t->shape[1] * t->shape[2] : 0);
}

/* Widens *first..*last (exclusive) by the keys of row b of the batch. */
static int widen(spans *s, const tide_tensor *q, const tide_tensor *k, int64_t b,
                 const tide_attention_attrs *a, int64_t *first, int64_t *last)
{
  const int32_t *key = rows_at(k, b);
  int64_t width = k->shape[2];
  s->n = 0;
  TIDE_TRY(spans_of(s, rows_at(q, b), q->shape[1], q->shape[2]));
  for (int64_t j = 0; j < *first; j++)
    if (is_seen(s, key + width * j, a)) *first = j;
  for (int64_t j = k->shape[1]; j > *last && j > *first; j--)
    if (is_seen(s, key + width * (j - 1), a)) *last = j;
  return TIDE_OK;
}

int tide_attention_rows(tide_tensor *q_index, tide_tensor *k_index,
                        const tide_attention_attrs *attrs, int64_t *first, int64_t *count)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, q_index), TIDE_OBJECT(TENSOR, k_index));
  tide_attention_attrs def, *a = &def;
  tide_tensor *q = NULL, *k = NULL;
  *first = *count = 0;
  tide_attention_attrs_init(&def);
  TIDE_TRY(tide__read_attrs(&def, sizeof def, attrs, q_index, "attention_rows"));
  TIDE_TRY(rows_check_index(q_index, "q_index"));
  TIDE_TRY(rows_check_index(k_index, "k_index"));
  if (q_index->shape[0] != k_index->shape[0] && q_index->shape[0] != 1 && k_index->shape[0] != 1)
    return tide__fail(q_index->ctx, TIDE_E_SHAPE, "attention_rows", "k_index: expected a batch of "
                      "%lld or 1, got %lld", (long long)q_index->shape[0],
                      (long long)k_index->shape[0]);
  TIDE_TRY(tide_contiguous(&q, q_index));
  int rc = tide_contiguous(&k, k_index);
  int64_t nk = rc < 0 ? 0 : k->shape[1];
  int64_t rows = rc < 0 ? 0 : q->shape[0] > k->shape[0] ? q->shape[0] : k->shape[0];
  int64_t lo = nk, hi = 0;
  spans s = {.ctx = q->ctx};
  for (int64_t b = 0; rc == TIDE_OK && b < rows; b++)
    rc = widen(&s, q, k, b, a, &lo, &hi);
  if (rc == TIDE_OK && hi > lo) {
    *first = lo;
    *count = hi - lo;
  }
  tide__free(s.ctx, s.at, (size_t)s.cap * sizeof *s.at);
  tide_tensor_release(q);
  tide_tensor_release(k);
  return rc;
}
