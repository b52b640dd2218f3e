/* Random ops: in-place fills and dropout, all from the counter-based generator.
 *
 * An op takes (seed, stream, offset) from the context and advances the offset by its number of
 * elements if it succeeds, or takes them from its attributes. Dropout keeps its counter on the
 * tape: the backward draws the same mask again, nothing is stored. If the context has a place
 * (tide_rng_place), the op gets it as an operand and its counter starts there.
 */
#include <math.h>

#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

int tide_rng_set(tide_ctx *ctx, uint64_t seed, uint64_t stream, uint64_t offset)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  ctx->rng_seed = seed;
  ctx->rng_stream = stream;
  ctx->rng_offset = offset;
  return TIDE_OK;
}

int tide_rng_get(tide_ctx *ctx, uint64_t *seed, uint64_t *stream, uint64_t *offset)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (seed) *seed = ctx->rng_seed;
  if (stream) *stream = ctx->rng_stream;
  if (offset) *offset = ctx->rng_offset;
  return TIDE_OK;
}

int tide_rng_place(tide_ctx *ctx, tide_tensor *place)
{
  if (place && (place->ctx != ctx || place->dtype != TIDE_I64 || tide__tensor_numel(place) != 3 ||
                !tide__is_contiguous(place->ndim, place->shape, place->stride)))
    return tide__fail(ctx, TIDE_E_ARG, "rng_place", "place: expected a contiguous i64 [3] of this "
                      "context, got %s", TIDE__TEXT(place));
  if (place) {
    tide_tensor_retain(place);
    tide__scope_escape(place->storage);
  }
  tide_tensor_release(ctx->rng_place);
  ctx->rng_place = place;
  return TIDE_OK;
}

void tide_random_attrs_init(tide_random_attrs *a)
{
  *a = (tide_random_attrs){.size = sizeof *a, .use_ctx = 1};
}

/* Returns the context's place if an op on t can read it, else NULL. */
static tide_tensor *place_for(const tide_tensor *t)
{
  tide_tensor *place = t->ctx->rng_place;
  return place && place->storage->device == t->storage->device ? place : NULL;
}

/* Sets the counter of this call: the context's, starting at *place if that is not null, or the
 * caller's own. */
static int counter(k_random_attrs *k, tide_tensor **place, tide_tensor *t,
                   const tide_random_attrs *a, const char *op)
{
  tide_ctx *ctx = t->ctx;
  *place = NULL;
  if (a->ndim != 0 && a->ndim != t->ndim)
    return tide__fail(ctx, TIDE_E_ARG, op, "attrs.ndim is %d, the tensor has %d dims", a->ndim,
                      t->ndim);
  k->ndim = a->ndim;
  k->start = a->start;
  memcpy(k->gstride, a->stride, sizeof k->gstride);
  if (!a->use_ctx) {
    k->seed = a->seed;
    k->stream = a->stream;
    k->offset = a->offset;
    return TIDE_OK;
  }
  *place = place_for(t);
  if (!*place && tide__captures(ctx, t->storage->device))
    return tide__fail(ctx, TIDE_E_STATE, op, "a captured step would repeat the same random "
                      "numbers; give the context a place for the generator's position "
                      "(tide_rng_place)");
  k->seed = ctx->rng_seed;
  k->stream = ctx->rng_stream;
  k->offset = ctx->rng_offset;
  return TIDE_OK;
}

/* Advances the context's offset after a call that succeeded. A call that failed, or is repeated for
 * lack of memory, moves nothing. */
static int random_advance(const tide_tensor *t, const tide_random_attrs *a)
{
  if (a->use_ctx) t->ctx->rng_offset += (uint64_t)tide__tensor_numel(t);
  return TIDE_OK;
}

/* Fills a tensor with random numbers. k: the attributes of the op, without a counter. */
static int random_fill(tide_tensor *t, int op, const tide_random_attrs *attrs, k_random_attrs k)
{
  tide__call c;
  tide_tensor *place;
  tide_random_attrs full;
  const char *name = tide__op_get(op)->name;
  TIDE_TRY(tide__begin(&c, op, NULL, 1, &t, 0));
  tide_random_attrs_init(&full);
  TIDE_TRY(tide__read_attrs(&full, sizeof full, attrs, t, name));
  if (c.ctx->recording && t->node)
    return tide__fail(c.ctx, TIDE_E_STATE, name, "the target is the result of a recorded op");
  TIDE_TRY(tide__check_distinct(t, name));
  TIDE_TRY(counter(&k, &place, t, &full, name));
  c.nin = 1;
  c.in_[0] = place;
  c.nout = 1;
  c.out_[0] = t;
  c.attrs.random = k;
  t->storage->version++;
  TIDE_TRY(tide__launch_checked(&c));
  return random_advance(t, &full);
}

static int check_args(tide_tensor *t, const char *op, bool good, const char *expected, double a,
                      double b)
{
  TIDE_TRY(tide__check_float(t, op, "target"));
  if (good && isfinite(a) && isfinite(b)) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_ARG, op, "expected %s, got %g and %g", expected, a, b);
}

int tide_uniform_(tide_tensor *t, double lo, double hi, const tide_random_attrs *attrs)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  TIDE_TRY(check_args(t, "uniform_", lo <= hi, "finite lo <= hi", lo, hi));
  return random_fill(t, TIDE_OP_UNIFORM_, attrs, (k_random_attrs){.a = lo, .b = hi});
}

int tide_normal_(tide_tensor *t, double mean, double std, const tide_random_attrs *attrs)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  TIDE_TRY(check_args(t, "normal_", std >= 0, "a finite mean and std >= 0", mean, std));
  return random_fill(t, TIDE_OP_NORMAL_, attrs, (k_random_attrs){.a = mean, .b = std});
}

int tide_trunc_normal_(tide_tensor *t, double mean, double std, double lo, double hi,
                       const tide_random_attrs *attrs)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  TIDE_TRY(check_args(t, "trunc_normal_", std >= 0, "a finite mean and std >= 0", mean, std));
  TIDE_TRY(check_args(t, "trunc_normal_", lo < hi, "finite lo < hi", lo, hi));
  return random_fill(t, TIDE_OP_TRUNC_NORMAL_, attrs,
                     (k_random_attrs){ .a = mean, .b = std, .lo = lo, .hi = hi });
}

static int dropout(tide_tensor **out, tide_tensor *x, tide_tensor *place, const k_random_attrs *k)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_DROPOUT, out, 2, (tide_tensor *[]){x, place}, 1u << 1));
  c.attrs.random = *k;
  return tide__dispatch_one(&c, out, x->dtype, x->ndim, x->shape);
}

int tide_dropout(tide_tensor **out, tide_tensor *x, double p)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x));
  k_random_attrs k = {.a = p};
  tide_tensor *place;
  TIDE_TRY(tide__check_float(x, "dropout", "x"));
  if (!(p >= 0 && p < 1))
    return tide__fail(x->ctx, TIDE_E_ARG, "dropout", "p: expected a number in [0, 1), got %g", p);
  if (p == 0) return tide_tensor_retain(*out = x);
  tide_random_attrs ours;
  tide_random_attrs_init(&ours);
  TIDE_TRY(counter(&k, &place, x, &ours, "dropout"));
  TIDE_TRY(dropout(out, x, place, &k));
  return random_advance(x, &ours);
}

int tide__grad_dropout(const tide__grad_call *g)
{
  return dropout(&g->gin[0], g->gout[0], g->in[1], &g->attrs->random);
}
