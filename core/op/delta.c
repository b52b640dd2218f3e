/* The gated delta rule (Gated DeltaNet, arXiv 2412.06464).
 *
 * The forward keeps the state before each chunk and nothing else; the derivative visits the chunks
 * from the last to the first and recomputes the rest.
 */
#include <math.h>

#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

/* A state has as many numbers as Dk tokens of values: fewer tokens would keep more states than
 * operands. */
enum { CHUNK = 256 };

void tide_gated_delta_attrs_init(tide_gated_delta_attrs *a)
{
  *a = (tide_gated_delta_attrs){.size = sizeof *a, .eps = 1e-6};
}

static int delta_check_heads(const tide_tensor *q, const tide_tensor *k, const tide_tensor *v)
{
  TIDE_TRY(tide__check_float(q, "gated_delta", "q"));
  bool fit = q->ndim == 4 && tide__tensor_same_shape(q, k) && k->dtype == q->dtype &&
             v->ndim == 4 && v->dtype == q->dtype && v->shape[0] == q->shape[0] &&
             v->shape[1] == q->shape[1];
  if (!fit)
    return tide__fail(q->ctx, TIDE_E_SHAPE, "gated_delta", "expected q and k [B, T, Hk, Dk] and v "
                      "[B, T, Hv, Dv] of one dtype, got %s, %s and %s", TIDE__TEXT(q),
                      TIDE__TEXT(k), TIDE__TEXT(v));
  if (q->shape[2] == 0 ? v->shape[2] != 0 : v->shape[2] % q->shape[2] != 0)
    return tide__fail(q->ctx, TIDE_E_SHAPE, "gated_delta", "v: expected a multiple of the %lld "
                      "heads of k, got %lld heads", (long long)q->shape[2],
                      (long long)v->shape[2]);
  return TIDE_OK;
}

static int delta_check_one(const tide_tensor *t, const char *arg, int ndim, const int64_t *shape)
{
  TIDE_TRY(tide__check_float(t, "gated_delta", arg));
  if (tide__same_shape(t->ndim, t->shape, ndim, shape)) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_SHAPE, "gated_delta", "%s: expected %s, got %s", arg,
                    TIDE__SHAPE(ndim, shape), TIDE__SHAPE_OF(t));
}

static int delta_check_attrs(const tide_tensor *q, const tide_tensor *v,
                             const tide_gated_delta_attrs *a)
{
  int64_t state[4] = {v->shape[0], v->shape[2], q->shape[3], v->shape[3]};
  if (a->chunk < 0 || !isfinite(a->scale) || !isfinite(a->eps) || a->eps < 0)
    return tide__fail(q->ctx, TIDE_E_ARG, "gated_delta", "expected chunk >= 0, a finite scale and "
                      "eps >= 0, got %lld, %g and %g", (long long)a->chunk, a->scale, a->eps);
  if (a->initial) TIDE_TRY(delta_check_one(a->initial, "initial", 4, state));
  return tide__check_sequence(q, a->sequence, "gated_delta");
}

static void delta_declare(tide__call *c, const tide_tensor *q, const tide_tensor *v, bool last)
{
  int64_t chunk = c->attrs.gated_delta.chunk, nchunk = (q->shape[1] + chunk - 1) / chunk;
  int stat = q->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32;
  tide__result(c, 0, v->dtype, 4, v->shape);
  tide__result(c, 1, stat, last ? 4 : -1,
               (int64_t[]){v->shape[0], v->shape[2], q->shape[3], v->shape[3]});
  tide__result(c, 2, stat, tide__wants_grad(c) ? 5 : -1,
               (int64_t[]){v->shape[0], nchunk, v->shape[2], q->shape[3], v->shape[3]});
}

static k_gated_delta_attrs delta_attrs(const tide_tensor *q, const tide_gated_delta_attrs *a)
{
  double width = q->shape[3] > 0 ? (double)q->shape[3] : 1;
  return (k_gated_delta_attrs){
    .scale = a->scale != 0 ? a->scale : 1 / sqrt(width), .eps = a->eps, .l2norm = a->l2norm != 0,
    .chunk = a->chunk == 0 || a->chunk > CHUNK ? CHUNK : a->chunk};
}

int tide_gated_delta(tide_tensor **out, tide_tensor **last, tide_tensor *q, tide_tensor *k,
                     tide_tensor *v, tide_tensor *g, tide_tensor *beta,
                     const tide_gated_delta_attrs *attrs)
{
  tide__call c;
  tide_gated_delta_attrs def, *a = &def;
  tide_tensor *y[2];
  *out = NULL;
  if (last) *last = NULL;
  tide_gated_delta_attrs_init(&def);
  TIDE_TRY(tide__read_attrs(&def, sizeof def, attrs, q, "gated_delta"));
  TIDE_TRY(tide__begin(&c, TIDE_OP_GATED_DELTA, out, 7,
                       (tide_tensor *[]){q, k, v, g, beta, a->initial, a->sequence}, 32 | 64));
  TIDE_TRY(delta_check_heads(q, k, v));
  TIDE_TRY(delta_check_one(g, "g", 3, v->shape));
  TIDE_TRY(delta_check_one(beta, "beta", 3, v->shape));
  TIDE_TRY(delta_check_attrs(q, v, a));
  c.attrs.gated_delta = delta_attrs(q, a);
  delta_declare(&c, q, v, last != NULL);
  TIDE_TRY(tide__dispatch(&c, y, last ? 2 : 1));
  *out = y[0];
  if (last) *last = y[1];
  return TIDE_OK;
}

/* Computes the gradients of the rule. The kernel always computes the first five: they depend on one
 * another. */
int tide__grad_gated_delta(const tide__grad_call *g)
{
  tide_tensor *const *in = g->in, *dout = g->gout[0];
  tide__temps v = {0};
  if (!dout)
    dout = TIDE__TEMP(&v, tide_full, g->ctx, in[2]->storage->device, in[2]->dtype, in[2]->ndim,
                      in[2]->shape, 0);
  TIDE__DO(&v, tide__grad_launch(g, TIDE_OP_GATED_DELTA_BWD, 10,
                                 (tide_tensor *[]){dout, in[0], in[1], in[2], in[3], in[4], in[5],
                                                   in[6], g->out[2], g->gout[1]},
                                 1u << 6 | 1u << 7 | 1u << 9, 6, 5));
  return tide__temps_end(&v);
}
