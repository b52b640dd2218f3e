/* Implements tide__joint_calls: the joint buffer, in which the gradients of a node's results lie
 * side by side.
 *
 * linear_joined makes its results in one buffer and needs their gradients in one, too: its backward
 * is then two products. The derivative rules that the walk runs before it therefore write there at
 * once. A rule asks for the part of an input; the first question makes the buffer. Reshapes and
 * rotary positions may lie in between: their gradients are views, or are written in place. A part
 * is given away once, for the first gradient of its result: further gradients of the result are
 * added elsewhere, and linear_joined finds the sum there.
 *
 * The buffer lives until the walk has passed its node. No host function sees it before: parts are
 * not looked for across one.
 */
#include "core/grad/tape.h"
#include "core/op/joined.h"

void tide__joint_drop(tide__node *n)
{
  tide_tensor_release(n->joint);
  n->joint = NULL;
  n->given = 0;
}

/* Returns the columns of weight `slot`; *before: those of the weights before it. */
static int64_t columns(const tide__node *n, int slot, int64_t *before)
{
  *before = 0;
  for (int i = 0; i < slot; i++) *before += n->meta[1 + i].shape[0];
  return n->meta[1 + slot].shape[0];
}

/* Returns the part for result `slot` of a linear_joined. */
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

/* Returns the part for the gradient of an edge, of shape m, or null. give: gives it away, unless it
 * was given away before. */
static int edge_part(tide_tensor **out, tide_ctx *ctx, const tide__edge *e, const tide__meta *m,
                     bool give)
{
  tide__node *n = e->node;
  int64_t stride[TIDE_MAX_DIM];
  *out = NULL;
  if (!n || n->walked || (give && n->out[e->slot].grad)) return TIDE_OK;
  if (n->op == TIDE_OP_ROPE_JOINED)
    return edge_part(out, ctx, &n->in[TIDE__TURNED + e->slot].edge, m, give);
  if (n->op == TIDE_OP_LINEAR_JOINED) {
    uint32_t bit = 1u << e->slot;
    if (give && n->given & bit) return TIDE_OK;
    if (give) n->given |= bit;
    return give || n->joint ? joint_part(out, ctx, n, e->slot) : TIDE_OK;
  }
  if (n->op != TIDE_OP_RESHAPE) return TIDE_OK;
  tide_tensor *t;
  TIDE_TRY(edge_part(&t, ctx, &n->in[0].edge, &n->meta[0], give));
  int rc = TIDE_OK;
  if (t && tide__reshape_view(t->ndim, t->shape, t->stride, m->ndim, m->shape, stride))
    rc = tide__tensor_view(out, t, m->ndim, m->shape, stride, t->offset);
  tide_tensor_release(t);
  return rc;
}

static int give_part(tide_tensor **out, const tide__grad_call *g, int i)
{
  return edge_part(out, g->ctx, &g->node->in[i].edge, &g->meta[i], true);
}

static int give_part_over(tide_tensor **out, const tide__grad_call *g, int i, int k)
{
  TIDE_TRY(edge_part(out, g->ctx, &g->node->in[i].edge, &g->meta[i], false));
  if (*out && tide__same_elements(*out, g->gout[k])) return TIDE_OK;
  tide_tensor_release(*out);
  *out = NULL;
  return give_part(out, g, i);
}

static tide_tensor *joint_of(const tide__grad_call *g) { return g->node->joint; }

const tide__joint_calls tide__joint = {give_part, give_part_over, joint_of};
