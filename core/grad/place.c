/* Where gradients lie side by side.
 *
 * linear_joined makes its results in one buffer and needs their gradients in one, too: its backward
 * is then two products. The derivative rules that come before it in the walk therefore write there
 * at once. A rule asks for the place of an input; the answer is a part of the buffer, which is made
 * at the first question, through reshapes and rotary positions in between, whose gradients are
 * views, or written in place. A part is given away once, for the first gradient of its result: what
 * else adds to the result is added elsewhere, and linear_joined finds the sum there.
 *
 * The buffer lives until the walk has passed its node. No host function sees it before: places are
 * not looked for across one.
 */
#include "core/grad/tape.h"

bool tide__same_place(const tide_tensor *a, const tide_tensor *b)
{
  bool same = a->storage == b->storage && a->offset == b->offset && a->ndim == b->ndim;
  for (int d = 0; same && d < a->ndim; d++)
    same = a->shape[d] <= 1 || a->stride[d] == b->stride[d];
  return same;
}

void tide__joint_drop(tide__node *n)
{
  tide_tensor_release(n->joint);
  n->joint = NULL;
  n->given = 0;
}

tide_tensor *tide__grad_joint(const tide__grad_call *g) { return g->node->joint; }

/* Columns of weight `slot` and those before it. */
static int64_t columns(const tide__node *n, int slot, int64_t *before)
{
  *before = 0;
  for (int i = 0; i < slot; i++) *before += n->meta[1 + i].shape[0];
  return n->meta[1 + slot].shape[0];
}

/* The part of a linear_joined. */
static int joint_part(tide_tensor **out, tide_ctx *ctx, tide__node *n, int slot)
{
  const tide__meta *x = &n->meta[0];
  int64_t shape[TIDE_MAX_DIM], before, all;
  int last = x->ndim - 1;
  if (!n->joint) {
    memcpy(shape, x->shape, sizeof shape);
    all = columns(n, n->nout - 1, &before);
    shape[last] = before + all;
    TIDE_TRY(tide__tensor_new(&n->joint, ctx, x->device, x->dtype, x->ndim, shape, "backward"));
  }
  all = columns(n, slot, &before);
  return tide__narrow(out, n->joint, last, before, all);
}

/* Returns the place for the gradient of an edge, of shape m, or null. give: the first time only,
 * which this is from now on. */
static int place_of(tide_tensor **out, tide_ctx *ctx, const tide__edge *e, const tide__meta *m,
                    bool give)
{
  tide__node *n = e->node;
  int64_t stride[TIDE_MAX_DIM];
  *out = NULL;
  if (!n || n->walked || (give && n->out[e->slot].grad)) return TIDE_OK;
  if (n->op == TIDE_OP_ROPE_JOINED)
    return place_of(out, ctx, &n->in[TIDE__TURNED + e->slot].edge, m, give);
  if (n->op == TIDE_OP_LINEAR_JOINED) {
    uint32_t bit = 1u << e->slot;
    if (give && n->given & bit) return TIDE_OK;
    if (give) n->given |= bit;
    return give || n->joint ? joint_part(out, ctx, n, e->slot) : TIDE_OK;
  }
  if (n->op != TIDE_OP_RESHAPE) return TIDE_OK;
  tide_tensor *t;
  TIDE_TRY(place_of(&t, ctx, &n->in[0].edge, &n->meta[0], give));
  int rc = TIDE_OK;
  if (t && tide__reshape_view(t->ndim, t->shape, t->stride, m->ndim, m->shape, stride))
    rc = tide__tensor_view(out, t, m->ndim, m->shape, stride, t->offset);
  tide_tensor_release(t);
  return rc;
}

int tide__grad_place(tide_tensor **out, const tide__grad_call *g, int i)
{
  return place_of(out, g->ctx, &g->node->in[i].edge, &g->meta[i], true);
}

int tide__grad_place_of(tide_tensor **out, const tide__grad_call *g, int i, int k)
{
  TIDE_TRY(place_of(out, g->ctx, &g->node->in[i].edge, &g->meta[i], false));
  if (*out && tide__same_place(*out, g->gout[k])) return TIDE_OK;
  tide_tensor_release(*out);
  *out = NULL;
  return tide__grad_place(out, g, i);
}
