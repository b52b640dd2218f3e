/* The SSD scan of Mamba-2 (state-space duality, arXiv 2405.21060).
 *
 * The forward keeps the state before each chunk and nothing else; the derivative visits the chunks
 * from the last to the first and recomputes the rest. The z gate is the gated activation applied to
 * the scan's result, outside the scan.
 */
#include <math.h>

#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

enum { CHUNK = 128 }; /* measured: less saves too many states, more exceeds the cache */

void tide_ssd_attrs_init(tide_ssd_attrs *a)
{
  *a = (tide_ssd_attrs){.size = sizeof *a, .dt_max = INFINITY};
}

static int check_main(const tide_tensor *x, const tide_tensor *dt, const tide_tensor *A,
                      const tide_tensor *B, const tide_tensor *C)
{
  TIDE_TRY(tide__check_float(x, "ssd_scan", "x"));
  TIDE_TRY(tide__check_float(dt, "ssd_scan", "dt"));
  TIDE_TRY(tide__check_float(A, "ssd_scan", "A"));
  bool fit = x->ndim == 4 && B->ndim == 4 && B->dtype == x->dtype && C->dtype == x->dtype &&
             B->shape[0] == x->shape[0] && B->shape[1] == x->shape[1] &&
             tide__tensor_same_shape(B, C);
  if (!fit)
    return tide__fail(x->ctx, TIDE_E_SHAPE, "ssd_scan", "expected x [B, T, H, P], B and C [B, T, "
                      "G, N] of one dtype, got %s, %s and %s", TIDE__TEXT(x), TIDE__TEXT(B),
                      TIDE__TEXT(C));
  if (B->shape[2] == 0 ? x->shape[2] != 0 : x->shape[2] % B->shape[2] != 0)
    return tide__fail(x->ctx, TIDE_E_SHAPE, "ssd_scan", "%lld heads are not a multiple of %lld "
                      "groups", (long long)x->shape[2], (long long)B->shape[2]);
  if (tide__same_shape(dt->ndim, dt->shape, 3, x->shape) && A->ndim == 1 &&
      A->shape[0] == x->shape[2])
    return TIDE_OK;
  return tide__fail(x->ctx, TIDE_E_SHAPE, "ssd_scan", "expected dt [B, T, H] and A [H] for x %s, "
                    "got %s and %s", TIDE__SHAPE_OF(x), TIDE__SHAPE_OF(dt), TIDE__SHAPE_OF(A));
}

static int check_one(const tide_tensor *x, const tide_tensor *t, const char *arg, int ndim,
                     const int64_t *shape)
{
  if (!t) return TIDE_OK;
  TIDE_TRY(tide__check_float(t, "ssd_scan", arg));
  if (tide__same_shape(t->ndim, t->shape, ndim, shape)) return TIDE_OK;
  return tide__fail(x->ctx, TIDE_E_SHAPE, "ssd_scan", "%s: expected %s, got %s", arg,
                    TIDE__SHAPE(ndim, shape), TIDE__SHAPE_OF(t));
}

static int scan_check_attrs(const tide_tensor *x, const tide_tensor *B, const tide_ssd_attrs *a)
{
  if (a->chunk < 0 || !(a->dt_min >= 0) || !(a->dt_min <= a->dt_max))
    return tide__fail(x->ctx, TIDE_E_ARG, "ssd_scan", "expected chunk >= 0 and 0 <= dt_min <= "
                      "dt_max, got %lld, %g and %g", (long long)a->chunk, a->dt_min, a->dt_max);
  int64_t head[2] = {x->shape[2], x->shape[3]};
  int64_t state[4] = {x->shape[0], x->shape[2], x->shape[3], B->shape[3]};
  TIDE_TRY(check_one(x, a->D, "D", a->D && a->D->ndim == 2 ? 2 : 1, head));
  TIDE_TRY(check_one(x, a->dt_bias, "dt_bias", 1, head));
  TIDE_TRY(check_one(x, a->initial, "initial", 4, state));
  TIDE_TRY(check_one(x, a->z, "z", 4, x->shape));
  if (a->z && a->z->dtype != x->dtype)
    return tide__fail(x->ctx, TIDE_E_DTYPE, "ssd_scan", "z is %s, x is %s; cast one",
                      tide_dtype_name(a->z->dtype), tide_dtype_name(x->dtype));
  return tide__check_sequence(x, a->sequence, "ssd_scan");
}

static void declare_results(tide__call *c, const tide_tensor *x, const tide_tensor *B, bool last)
{
  int64_t chunk = c->attrs.ssd.chunk, nchunk = (x->shape[1] + chunk - 1) / chunk;
  int stat = x->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32;
  tide__result(c, 0, x->dtype, 4, x->shape);
  tide__result(c, 1, stat, last ? 4 : -1,
               (int64_t[]){x->shape[0], x->shape[2], x->shape[3], B->shape[3]});
  tide__result(c, 2, stat, tide__wants_grad(c) ? 5 : -1,
               (int64_t[]){x->shape[0], nchunk, x->shape[2], x->shape[3], B->shape[3]});
}

int tide_ssd_scan(tide_tensor **out, tide_tensor **last, tide_tensor *x, tide_tensor *dt,
                  tide_tensor *A, tide_tensor *B, tide_tensor *C, const tide_ssd_attrs *attrs)
{
  tide__call c;
  tide_ssd_attrs def, *a = &def;
  tide_tensor *y[2];
  *out = NULL;
  if (last) *last = NULL;
  tide_ssd_attrs_init(&def);
  TIDE_TRY(tide__read_attrs(&def, sizeof def, attrs, x, "ssd_scan"));
  TIDE_TRY(tide__begin(&c, TIDE_OP_SSD_SCAN, out, 9,
                       (tide_tensor *[]){x, dt, A, B, C, a->D, a->dt_bias, a->initial, a->sequence},
                       32 | 64 | 128 | 256));
  TIDE_TRY(check_main(x, dt, A, B, C));
  TIDE_TRY(scan_check_attrs(x, B, a));
  int64_t chunk = a->chunk == 0 || a->chunk > CHUNK ? CHUNK : a->chunk;
  c.attrs.ssd = (k_ssd_attrs){a->dt_min, a->dt_max, chunk, a->softplus};
  declare_results(&c, x, B, last != NULL);
  TIDE_TRY(tide__dispatch(&c, y, last ? 2 : 1));
  int rc = TIDE_OK;
  if (a->z) {
    tide_tensor *gated = NULL;
    rc = tide_swiglu(&gated, a->z, y[0]);
    tide_tensor_release(y[0]);
    y[0] = gated;
  }
  if (rc < 0) {
    if (last) tide_tensor_release(y[1]);
    return rc;
  }
  *out = y[0];
  if (last) *last = y[1];
  return TIDE_OK;
}

/* Computes the gradients of the scan. The kernel always computes the first five: they depend on one
 * another. */
int tide__grad_ssd_scan(const tide__grad_call *g)
{
  tide_tensor *const *in = g->in;
  return tide__grad_launch(g, TIDE_OP_SSD_SCAN_BWD, 12,
                           (tide_tensor *[]){g->gout[0], in[0], in[1], in[2], in[3], in[4], in[5],
                                             in[6], in[7], in[8], g->out[2], g->gout[1]},
                           1u << 6 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << 11, 8, 5);
}
