/* Rotary positions (RoFormer, arXiv 2104.09864): a rotation, whose adjoint is the inverse
 * rotation. */
#include "core/op/op.h"

static int check_rope(tide__call *c, const tide_tensor *x, const tide_tensor *p,
                      const tide_tensor *f)
{
  TIDE_TRY(tide__check_float(x, "rope", "x"));
  TIDE_TRY(tide__check_index(p, "rope", "positions"));
  if (x->ndim != 4 || p->ndim != 2 || p->shape[1] != x->shape[1] ||
      (p->shape[0] != 1 && p->shape[0] != x->shape[0]))
    return TIDE__FAIL(c, TIDE_E_SHAPE, "expected x [B, T, H, D] and positions [B or 1, T], got %s "
                      "and %s", TIDE__SHAPE_OF(x), TIDE__SHAPE_OF(p));
  if ((f->dtype != TIDE_F32 && f->dtype != TIDE_F64) || f->ndim != 1 ||
      2 * f->shape[0] > x->shape[3])
    return TIDE__FAIL(c, TIDE_E_SHAPE, "inv_freq: expected f32 or f64 of at most %lld entries "
                      "(half the head size), got %s", (long long)x->shape[3] / 2, TIDE__TEXT(f));
  return TIDE_OK;
}

int tide_rope(tide_tensor **out, tide_tensor *x, tide_tensor *positions, tide_tensor *inv_freq,
              bool interleaved, bool inverse)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_ROPE, out, 3, (tide_tensor *[]){x, positions, inv_freq}, 0));
  TIDE_TRY(check_rope(&c, x, positions, inv_freq));
  c.attrs.rope = (k_rope_attrs){interleaved, inverse};
  return tide__dispatch_one(&c, out, x->dtype, 4, x->shape);
}

int tide__grad_rope(const tide__grad_call *g)
{
  return tide_rope(&g->gin[0], g->gout[0], g->in[1], g->in[2], g->attrs->rope.interleaved,
                   !g->attrs->rope.inverse);
}
