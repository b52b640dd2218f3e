/* Copies and sums over lists of tensors, in place: foreach_copy_, foreach_add_.
 *
 * The result is that of copy_ or add_ pair after pair, in few launches. A launch takes pairs whose
 * targets are known not to overlap, in any order; a pair whose target may overlap an earlier one of
 * the launch starts the next. Targets do not overlap if they lie in different storages, in disjoint
 * byte ranges, or are boxes of one grid (views of equal strides) without a common element. An
 * undecided test only costs one more launch.
 */
#include "core/op/list.h"
#include "core/op/op.h"
#include "core/op/operand.h"

enum { MOST = 256 /* pairs of one launch */, STEPS = 64 /* of one search in a grid */ };

/* ---- overlap of targets ---------------------------------------------------------------------- */

/* Returns the elements from the first of t to the last, over dims order[k] and on. */
static int64_t span(const tide_tensor *t, const int *order, int k)
{
  int64_t n = 0;
  for (; k < t->ndim; k++) n += (t->shape[order[k]] - 1) * t->stride[order[k]];
  return n;
}

/* Two boxes of one grid. */
typedef struct boxes {
  const tide_tensor *a, *b;
  int order[TIDE_MAX_DIM]; /* dims, largest stride first */
  int steps;               /* searches left */
} boxes;

/* Returns whether the boxes share an element: coordinates i of a and j of b, over dims order[k] and
 * on, with sum (i - j) stride = by. Runs of a grid leave one or two differences per dim to try.
 * Also true if the search gives up. */
static bool search(boxes *x, int k, int64_t by)
{
  if (--x->steps < 0) return true;
  if (k == x->a->ndim) return by == 0;
  int d = x->order[k];
  int64_t s = x->a->stride[d], na = x->a->shape[d] - 1, nb = x->b->shape[d] - 1;
  if (na == 0 && nb == 0) return search(x, k + 1, by);
  int64_t up = by + span(x->b, x->order, k + 1), down = by - span(x->a, x->order, k + 1);
  int64_t last = up >= 0 ? up / s : -((-up + s - 1) / s);
  int64_t first = down > 0 ? (down + s - 1) / s : -(-down / s);
  if (first < -nb) first = -nb;
  if (last > na) last = na;
  for (int64_t i = first; i <= last; i++)
    if (search(x, k + 1, by - i * s)) return true;
  return false;
}

/* Returns whether a and b, which lie in one storage and are not empty, may share an element. */
static bool touch_in_grid(const tide_tensor *a, const tide_tensor *b)
{
  boxes x = {a, b, {0}, STEPS};
  if (a->ndim != b->ndim || tide_dtype_size(a->dtype) != tide_dtype_size(b->dtype)) return true;
  for (int d = 0; d < a->ndim; d++) {
    bool some = a->shape[d] > 1 || b->shape[d] > 1;
    if (some && (a->stride[d] != b->stride[d] || a->stride[d] == 0)) return true;
    int at = d;
    for (; at > 0 && a->stride[x.order[at - 1]] < a->stride[d]; at--) x.order[at] = x.order[at - 1];
    x.order[at] = d;
  }
  return search(&x, 0, b->offset - a->offset);
}

/* Bytes [lo, hi) of a target that is not empty. */
typedef struct byte_range { int64_t lo, hi; } byte_range;

static byte_range byte_range_of(const tide_tensor *t)
{
  int64_t n = 1, size = tide_dtype_size(t->dtype);
  for (int d = 0; d < t->ndim; d++) n += (t->shape[d] - 1) * t->stride[d];
  return (byte_range){t->offset * size, (t->offset + n) * size};
}

/* Returns how many pairs from the first on fit in one launch. */
static int launchable(tide_tensor *const *dst, int n)
{
  byte_range range[MOST];
  for (int i = 0; i < n && i < MOST; i++) {
    const tide_tensor *b = dst[i];
    range[i] = (byte_range){0, 0};
    if (tide__tensor_numel(b) == 0) continue;
    range[i] = byte_range_of(b);
    for (int j = 0; j < i; j++)
      if (dst[j]->storage == b->storage && range[j].lo < range[i].hi &&
          range[i].lo < range[j].hi && touch_in_grid(dst[j], b))
        return i;
  }
  return n < MOST ? n : MOST;
}

/* ---- the call -------------------------------------------------------------------------------- */

static int check_pair(const tide__call *c, int i)
{
  tide_tensor *dst = c->out[i], *src = c->in[i];
  TIDE_TRY(tide__check_target(dst, TIDE__NAME(c)));
  if (c->ctx->recording && tide__tensor_needs_grad(src))
    return TIDE__FAIL(c, TIDE_E_STATE, "srcs[%d] needs a gradient and in-place ops are not "
                      "recorded; detach it, or call under no_grad", i + 1);
  if (c->op != TIDE_OP_FOREACH_ADD_) return TIDE_OK;
  bool real = tide__dtype_is_float(dst->dtype);
  if (dst->dtype != TIDE_BOOL && (real || !tide__dtype_is_float(src->dtype))) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_DTYPE, "dsts[%d] is %s, srcs[%d] %s: expected a floating target, or "
                    "integers; cast one of them first", i + 1, tide_dtype_name(dst->dtype), i + 1,
                    tide_dtype_name(src->dtype));
}

/* Checks that no source lies in a storage that is written. written: space for n. */
static int check_sources(const tide__call *c, const tide__storage **written)
{
  int n = 0;
  const tide__storage *fine = NULL;
  for (int i = 0; i < c->nout; i++)
    if (n == 0 || written[n - 1] != c->out[i]->storage) written[n++] = c->out[i]->storage;
  for (int i = 0; i < c->nin; i++) {
    if (c->in[i]->storage == fine) continue;
    fine = c->in[i]->storage;
    for (int k = 0; k < n; k++)
      if (written[k] == fine)
        return TIDE__FAIL(c, TIDE_E_ARG, "srcs[%d] lies in the storage of a target: expected "
                          "memory that is not written; clone it, or use copy_", i + 1);
  }
  return TIDE_OK;
}

static int launch_all(tide__call *c)
{
  int rc = TIDE_OK;
  for (int at = 0, n; at < c->nout && rc == TIDE_OK; at += n) {
    tide__call part = *c;
    n = launchable(c->out + at, c->nout - at);
    part.in = c->in + at;
    part.out = c->out + at;
    part.nin = part.nout = n;
    rc = tide__launch_checked(&part);
  }
  for (int i = 0; i < c->nout; i++) c->out[i]->storage->version++;
  return rc;
}

static int foreach(tide_ctx *ctx, int op, int64_t n, tide_tensor *const *dsts,
                   tide_tensor *const *srcs)
{
  tide__call c;
  TIDE_TRY(tide__lists_begin(ctx, &c, op, n, n, 2 * n));
  const tide__storage **written = (const tide__storage **)(c.out + n);
  c.nout = (int)n;
  int rc = tide__list_take(&c, c.out, "dsts", n, dsts, false);
  if (rc == TIDE_OK) rc = tide__list_take(&c, c.in, "srcs", n, srcs, false);
  if (rc == TIDE_OK) rc = tide__list_shapes(&c, "srcs", n, c.in, "target", c.out);
  for (int i = 0; i < n && rc == TIDE_OK; i++) rc = check_pair(&c, i);
  if (rc == TIDE_OK) rc = check_sources(&c, written);
  if (rc == TIDE_OK) rc = launch_all(&c);
  tide__lists_end(&c);
  return rc;
}

int tide_foreach_copy_(tide_ctx *ctx, int64_t n, tide_tensor *const *dsts, tide_tensor *const *srcs)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  return foreach(ctx, TIDE_OP_FOREACH_COPY_, n, dsts, srcs);
}

int tide_foreach_add_(tide_ctx *ctx, int64_t n, tide_tensor *const *dsts, tide_tensor *const *srcs)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  return foreach(ctx, TIDE_OP_FOREACH_ADD_, n, dsts, srcs);
}
