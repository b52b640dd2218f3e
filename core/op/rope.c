/* Rotary positions (RoFormer, arXiv 2104.09864): a rotation, whose adjoint is the inverse
 * rotation. */
#include "core/op/derivative.h"
#include "core/op/joined.h"
#include "core/op/op.h"
#include "core/op/operand.h"

/* Checks the operands. arg: the name of x. */
static int check_rope(tide__call *c, const tide_tensor *x, const char *arg, const tide_tensor *p,
                      const tide_tensor *f)
{
  TIDE_TRY(tide__check_float(x, TIDE__NAME(c), arg));
  TIDE_TRY(tide__check_index(p, TIDE__NAME(c), "positions"));
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
  TIDE_TRY(check_rope(&c, x, "x", positions, inv_freq));
  c.attrs.rope = (k_rope_attrs){interleaved, inverse};
  return tide__dispatch_one(&c, out, x->dtype, 4, x->shape);
}

int tide__grad_rope(const tide__grad_call *g)
{
  return tide_rope(&g->gin[0], g->gout[0], g->in[1], g->in[2], g->attrs->rope.interleaved,
                   !g->attrs->rope.inverse);
}

/* ---- several tensors ------------------------------------------------------------------------- */

/* Turns x into y, or if y is null into a new tensor; not recorded. */
static int turn(tide_tensor **out, tide_tensor *x, tide_tensor *y, tide_tensor *positions,
                tide_tensor *inv_freq, k_rope_attrs attrs)
{
  tide__call c;
  int rc;
  TIDE_TRY(tide__begin(&c, TIDE_OP_ROPE, out, 3, (tide_tensor *[]){x, positions, inv_freq}, 0));
  c.attrs.rope = attrs;
  c.into = &y;
  TIDE__UNRECORDED(c.ctx, rc = tide__dispatch_one(&c, out, x->dtype, 4, x->shape));
  return rc;
}

/* Turns the xs, at once where they lie side by side and so do the ys, or those are null. */
static int turn_all(tide_tensor **outs, int n, tide_tensor *const *xs, tide_tensor *const *ys,
                    tide_tensor *positions, tide_tensor *inv_freq, k_rope_attrs attrs)
{
  tide__temps v = {0};
  int64_t sizes[TIDE_MAX_JOINED];
  bool fresh = true;
  for (int i = 0; i < n; i++) fresh = fresh && !ys[i];
  tide_tensor *x = TIDE__TEMP(&v, tide__side_by_side, n, xs, 2), *y = NULL;
  if (x && !fresh) y = TIDE__TEMP(&v, tide__side_by_side, n, ys, 2);
  if (x && (fresh || y)) {
    for (int i = 0; i < n; i++) sizes[i] = xs[i]->shape[2];
    y = TIDE__TEMP(&v, turn, x, y, positions, inv_freq, attrs);
    if (y) TIDE__DO(&v, tide__cut(outs, y, 2, n, sizes));
    return tide__temps_end(&v);
  }
  for (int i = 0; i < n; i++) {
    tide_tensor *turned = TIDE__TEMP(&v, turn, xs[i], ys[i], positions, inv_freq, attrs);
    /* a handle of its own, since turned is ys[i]: the caller may spend both */
    if (turned) TIDE__DO(&v, tide__narrow(&outs[i], turned, 0, 0, turned->shape[0]));
  }
  if (v.rc < 0) tide__release_all(n, outs);
  return tide__temps_end(&v);
}

/* Checks that x may be written over. */
static int check_reuse(const tide__call *c, const tide_tensor *x)
{
  if (c->ctx->recording && x->requires_grad)
    return TIDE__FAIL(c, TIDE_E_STATE, "a tensor that collects a gradient cannot be written over; "
                      "leave out reuse");
  return tide__check_distinct(x, TIDE__NAME(c));
}

int tide_rope_joined(tide_tensor **outs, int n, tide_tensor *const *xs, tide_tensor *positions,
                     tide_tensor *inv_freq, bool interleaved, bool inverse, bool reuse)
{
  tide__call c;
  tide_tensor *in[TIDE__TURNED + TIDE_MAX_JOINED] = {positions, inv_freq};
  tide_tensor *none[TIDE_MAX_JOINED] = {NULL};
  tide__no_results(outs, n);
  TIDE_DOOR(TIDE_OBJECT(TENSOR, positions));
  TIDE_TRY(tide__check_joined(positions->ctx, "rope_joined", "xs", n, xs));
  for (int i = 0; i < n; i++) in[TIDE__TURNED + i] = xs[i];
  TIDE_TRY(tide__begin(&c, TIDE_OP_ROPE_JOINED, NULL, TIDE__TURNED + n, in, 0));
  for (int i = 0; i < n; i++) TIDE_TRY(check_rope(&c, xs[i], "xs", positions, inv_freq));
  for (int i = 0; i < n && reuse; i++) TIDE_TRY(check_reuse(&c, xs[i]));
  c.attrs.rope = (k_rope_attrs){interleaved, inverse};
  TIDE_TRY(turn_all(outs, n, xs, reuse ? xs : none, positions, inv_freq, c.attrs.rope));
  for (int i = 0; i < n && reuse; i++) xs[i]->storage->version++;
  c.nout = n;
  c.out = outs;
  int rc = tide__record(&c);
  if (rc < 0) tide__release_all(n, outs);
  return rc;
}

/* Computes the gradients of rope_joined. A gradient may be absent. */
int tide__grad_rope_joined(const tide__grad_call *g)
{
  tide__temps v = {0};
  tide_tensor *dy[TIDE_MAX_JOINED], *into[TIDE_MAX_JOINED], *dx[TIDE_MAX_JOINED];
  int n = 0, at[TIDE_MAX_JOINED];
  k_rope_attrs attrs = g->attrs->rope;
  attrs.inverse = !attrs.inverse;
  for (int i = 0; i < g->nout && v.rc == TIDE_OK; i++) {
    int from = TIDE__TURNED + i;
    if (!g->gout[i] || !g->need[from]) continue;
    dy[n] = g->gout[i];
    into[n] = TIDE__TEMP(&v, g->joint->part_over, g, from, i);
    at[n++] = from;
  }
  if (n > 0) TIDE__DO(&v, turn_all(dx, n, dy, into, g->in[0], g->in[1], attrs));
  for (int i = 0; i < n && v.rc == TIDE_OK; i++) g->gin[at[i]] = dx[i];
  return tide__temps_end(&v);
}
