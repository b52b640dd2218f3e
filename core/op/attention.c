/* Scaled dot product attention with its log-sum-exp.
 *
 * Masks are data (see tide_attention_attrs): a query sees a key by document number and position, so
 * causal, window, packed and any sharded layout are one op and one kernel.
 */
#include <math.h>

#include "core/op/attention.h"
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

void tide_attention_attrs_init(tide_attention_attrs *a)
{
  *a = (tide_attention_attrs){.size = sizeof *a, .window_left = -1, .window_right = -1};
}

static int check_qkv(const tide_tensor *q, const tide_tensor *k, const tide_tensor *v)
{
  TIDE_TRY(tide__check_float(q, "attention", "q"));
  bool fit = q->ndim == 4 && k->ndim == 4 && v->ndim == 4 && q->dtype == k->dtype &&
             q->dtype == v->dtype && k->shape[0] == q->shape[0] && v->shape[0] == q->shape[0] &&
             k->shape[1] == v->shape[1] && k->shape[2] == v->shape[2] &&
             k->shape[3] == q->shape[3];
  if (!fit)
    return tide__fail(q->ctx, TIDE_E_SHAPE, "attention", "expected q [B, Tq, H, D], k [B, Tk, Hk, "
                      "D] and v [B, Tk, Hk, Dv] of one dtype, got %s, %s and %s", TIDE__TEXT(q),
                      TIDE__TEXT(k), TIDE__TEXT(v));
  if (k->shape[2] == 0 ? q->shape[2] != 0 : q->shape[2] % k->shape[2] != 0)
    return tide__fail(q->ctx, TIDE_E_SHAPE, "attention", "%lld query heads are not a multiple of "
                      "%lld key heads", (long long)q->shape[2], (long long)k->shape[2]);
  return TIDE_OK;
}

bool tide__fits_index(const tide_tensor *index)
{
  return index->dtype == TIDE_I32 && index->ndim == 3 &&
         (index->shape[2] == 2 || index->shape[2] == 3);
}

static int check_index_pair(const tide_tensor *q, const tide_tensor *t, const tide_tensor *index,
                            const char *arg)
{
  bool fit = tide__fits_index(index) && index->shape[1] == t->shape[1] &&
             (index->shape[0] == 1 || index->shape[0] == q->shape[0]);
  if (fit) return TIDE_OK;
  return tide__fail(q->ctx, TIDE_E_SHAPE, "attention", "%s: expected i32 [%lld or 1, %lld, 2] of "
                    "(document, position), or [.., 3] of (document, position, until), got %s", arg,
                    (long long)q->shape[0], (long long)t->shape[1], TIDE__TEXT(index));
}

static int64_t tiles_of(const tide_tensor *index)
{
  return (index->shape[1] + K_TILE - 1) / K_TILE;
}

static int check_tiles(const tide_tensor *q, const tide_tensor *index, const tide_tensor *tiles,
                       const char *arg)
{
  if (!tiles) return TIDE_OK;
  bool fit = tiles->dtype == TIDE_I32 && tiles->ndim == 3 && tiles->shape[0] == index->shape[0] &&
             tiles->shape[1] == tiles_of(index) && tiles->shape[2] == 4 &&
             tide__is_contiguous(3, tiles->shape, tiles->stride);
  if (fit) return TIDE_OK;
  return tide__fail(q->ctx, TIDE_E_SHAPE, "attention", "%s: expected what attention_tiles makes of "
                    "its index, i32 [%lld, %lld, 4] without gaps, got %s", arg,
                    (long long)index->shape[0], (long long)tiles_of(index), TIDE__TEXT(tiles));
}

/* Rounds an attribute to the precision of the scores: f64 for f64 operands, else f32. */
static double as_computed(const tide_tensor *q, double x)
{
  return q->dtype == TIDE_F64 ? x : (double)(float)x;
}

static int attention_check_attrs(const tide_tensor *q, const tide_tensor *k,
                                 const tide_attention_attrs *a)
{
  if (a->window_left < -1 || a->window_right < -1)
    return tide__fail(q->ctx, TIDE_E_ARG, "attention", "window: expected -1 or more, got %lld and "
                      "%lld", (long long)a->window_left, (long long)a->window_right);
  if (!isfinite(as_computed(q, a->scale)) || !(a->softcap >= 0) ||
      !isfinite(as_computed(q, a->softcap)))
    return tide__fail(q->ctx, TIDE_E_ARG, "attention", "scale and softcap: expected finite numbers "
                      "(softcap >= 0), got %g and %g", a->scale, a->softcap);
  if (!a->q_index != !a->k_index)
    return tide__fail(q->ctx, TIDE_E_ARG, "attention", "q_index and k_index: expected both or "
                      "none");
  if (!a->q_index && (a->q_tiles || a->k_tiles))
    return tide__fail(q->ctx, TIDE_E_ARG, "attention", "q_tiles and k_tiles: expected none without "
                      "q_index and k_index");
  if (!a->q_index) return TIDE_OK;
  TIDE_TRY(check_index_pair(q, q, a->q_index, "q_index"));
  TIDE_TRY(check_index_pair(q, k, a->k_index, "k_index"));
  TIDE_TRY(check_tiles(q, a->q_index, a->q_tiles, "q_tiles"));
  return check_tiles(q, a->k_index, a->k_tiles, "k_tiles");
}

int tide__check_attention(const tide_tensor *q, const tide_tensor *k, const tide_tensor *v,
                          const tide_attention_attrs *a)
{
  TIDE_TRY(check_qkv(q, k, v));
  return attention_check_attrs(q, k, a);
}

k_attention_attrs tide__attention_attrs_of(const tide_tensor *q, const tide_attention_attrs *a)
{
  double scale = a->scale != 0 ? a->scale : 1 / sqrt((double)(q->shape[3] ? q->shape[3] : 1));
  return (k_attention_attrs){a->window_left, a->window_right, a->q_start, a->causal,
                             as_computed(q, scale), as_computed(q, a->softcap)};
}

/* Broadcasts bias to [B, H, Tq, Tk], recorded so that its gradient is summed back. */
static int full_bias(tide_tensor **out, tide_tensor *bias, const tide_tensor *q,
                     const tide_tensor *k)
{
  int64_t shape[4] = {q->shape[0], q->shape[2], q->shape[1], k->shape[1]};
  *out = NULL;
  if (!bias) return TIDE_OK;
  TIDE_TRY(tide__check_float(bias, "attention", "bias"));
  int64_t stride[TIDE_MAX_DIM];
  if (!tide__expand(bias->ndim, bias->shape, bias->stride, 4, shape, stride))
    return tide__fail(q->ctx, TIDE_E_SHAPE, "attention", "bias: expected to expand to [B, H, Tq, "
                      "Tk] = %s, got %s", TIDE__SHAPE(4, shape), TIDE__SHAPE_OF(bias));
  return tide_expand(out, bias, 4, shape);
}

/* Computes the call without its sinks, lets them have their share, and records the whole. */
static int with_sinks(tide__call *c, tide_tensor **y, int nuser)
{
  tide_ctx *ctx = c->ctx;
  bool recording = ctx->recording;
  ctx->recording = false;
  int rc = tide__dispatch(c, y, 2);
  if (rc == TIDE_OK) {
    rc = tide__attention_sinks(y[0], y[1], c->in_[8]);
    ctx->recording = recording;
    if (rc == TIDE_OK) rc = tide__record(c);
    for (int i = 0; i < 2; i++)
      if (rc < 0 || i >= nuser) tide_tensor_release(y[i]);
  }
  ctx->recording = recording;
  return rc;
}

int tide_attention(tide_tensor **out, tide_tensor **lse, tide_tensor *q, tide_tensor *k,
                   tide_tensor *v, const tide_attention_attrs *attrs)
{
  tide__call c;
  tide_attention_attrs def, *a = &def;
  tide_tensor *bias, *y[2];
  *out = NULL;
  if (lse) *lse = NULL;
  tide_attention_attrs_init(&def);
  TIDE_TRY(tide__read_attrs(&def, sizeof def, attrs, q, "attention"));
  TIDE_TRY(tide__begin(&c, TIDE_OP_ATTENTION, out, 9,
                       (tide_tensor *[]){q, k, v, a->bias, a->q_index, a->k_index, a->q_tiles,
                                         a->k_tiles, a->sinks}, 0x1f8));
  TIDE_TRY(tide__check_attention(q, k, v, a));
  TIDE_TRY(tide__check_sinks(q, a->sinks, "attention"));
  TIDE_TRY(full_bias(&bias, a->bias, q, k));
  c.in_[3] = bias;
  c.attrs.attention = tide__attention_attrs_of(q, a);
  tide__result(&c, 0, q->dtype, 4, (int64_t[]){q->shape[0], q->shape[1], q->shape[2], v->shape[3]});
  tide__result(&c, 1, q->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32, 3,
               (int64_t[]){q->shape[0], q->shape[2], q->shape[1]});
  int rc = a->sinks ? with_sinks(&c, y, lse ? 2 : 1) : tide__dispatch(&c, y, lse ? 2 : 1);
  tide_tensor_release(bias);
  if (rc < 0) return rc;
  *out = y[0];
  if (lse) *lse = y[1];
  return TIDE_OK;
}

int tide__grad_attention(const tide__grad_call *g)
{
  tide__call c;
  tide__temps v = {0};
  tide_tensor *dout = g->gout[0], *o = g->out[0], *dy[4] = {NULL}, *into[4] = {NULL};
  if (!dout)
    dout = TIDE__TEMP(&v, tide_full, g->ctx, g->meta[0].device, o->dtype, o->ndim, o->shape, 0);
  TIDE__DO(&v, tide__begin(&c, TIDE_OP_ATTENTION_BWD, NULL, 12,
                           (tide_tensor *[]){dout, g->in[0], g->in[1], g->in[2], o, g->out[1],
                                             g->in[3], g->in[4], g->in[5], g->gout[1], g->in[6],
                                             g->in[7]}, 0xfc0));
  c.attrs = *g->attrs;
  for (int i = 0; v.rc == TIDE_OK && i < 3; i++)
    tide__result(&c, i, g->meta[i].dtype, 4, g->meta[i].shape);
  if (v.rc == TIDE_OK) tide__result(&c, 3, g->out[1]->dtype, g->need[3] ? 4 : -1, g->meta[3].shape);
  for (int i = 0; i < 3; i++)
    if (g->need[i]) into[i] = TIDE__TEMP(&v, g->joint->part, g, i);
  c.into = into;
  TIDE__DO(&v, tide__dispatch(&c, dy, 4));
  for (int i = 0; i < 3; i++) g->gin[i] = dy[i];
  if (dy[3]) TIDE__DO(&v, tide_cast(&g->gin[3], dy[3], g->meta[3].dtype));
  if (g->need[8])
    TIDE__DO(&v, tide__attention_dsinks(&g->gin[8], dout, o, g->out[1], g->in[8], g->gout[1]));
  tide_tensor_release(dy[3]);
  return tide__temps_end(&v);
}

int tide_attention_tiles(tide_tensor **out, tide_tensor *index)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_ATTENTION_TILES, out, 1, &index, 0));
  if (!tide__fits_index(index))
    return TIDE__FAIL(&c, TIDE_E_SHAPE, "index: expected i32 [B, T, 2] of (document, position), or "
                      "[B, T, 3] of (document, position, until), got %s", TIDE__TEXT(index));
  return tide__dispatch_one(&c, out, TIDE_I32, 3,
                            (int64_t[]){index->shape[0], tiles_of(index), 4});
}
