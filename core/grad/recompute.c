/* Recomputation of cheap results that a product reads, instead of keeping them for it.
 *
 * A linear layer saves its input for the gradient of its weight. If that input is the result of a
 * cheap op that keeps its own operands anyway (swiglu, RMS norm), keeping the result as well wastes
 * memory: the reverse walk reaches the linear layer while the operands still exist, so the same op
 * runs once more. Products that share the input share the recomputed result; it is freed when the
 * walk passes the op that made it. Parameter remake=0 keeps the results instead.
 *
 * The same kernel on the same operands gives the same bits. An operand changed in place is an error
 * as usual; a result that was changed in place before the product read it is kept, not recomputed.
 */
#include "core/base/status.h"
#include "core/grad/tape.h"

bool tide__is_recomputed(const tide_ctx *ctx, int op, int i, const tide_tensor *x)
{
  if (!ctx->params.remake || op != TIDE_OP_LINEAR || i != 0 || !x->node) return false;
  if (x->storage->version != 0) return false;
  switch (x->node->op) {
    case TIDE_OP_SWIGLU:
    case TIDE_OP_RMS_NORM: return true;
    case TIDE_OP_ADD_RMS_NORM: return x->node_out == 0;
    default: return false;
  }
}

static int recompute_run(tide_tensor **out, const tide__node *n)
{
  const k_row_norm_attrs *a = &n->attrs.row_norm;
  switch (n->op) {
    case TIDE_OP_SWIGLU: return tide_swiglu(out, n->in[0].saved.t, n->in[1].saved.t);
    case TIDE_OP_RMS_NORM:
      return tide_rms_norm(out, n->in[0].saved.t, n->in[1].saved.t, a->eps, a->weight_offset);
    default:
      return tide_rms_norm(out, n->out[1].saved.t, n->in[2].saved.t, a->eps, a->weight_offset);
  }
}

int tide__recompute(tide_tensor **out, tide_ctx *ctx, const tide__edge *edge)
{
  tide__node *n = edge->node;
  if (n->walked)
    return tide__fail(ctx, TIDE_E_STATE, "backward", "an input of linear is the result of %s, "
                      "whose saved tensors were freed by an earlier walk; pass retain to it",
                      tide__op_get(n->op)->name);
  tide__output *o = &n->out[edge->slot];
  if (!o->recomputed) {
    TIDE_TRY(tide__check_node(ctx, n));
    TIDE_TRY(recompute_run(&o->recomputed, n));
  }
  *out = o->recomputed;
  return TIDE_OK;
}
