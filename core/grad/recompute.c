/* Recomputation of cheap results that a product reads, instead of keeping them for it.
 *
 * A linear layer saves its input for the gradient of its weight. If that input is the result of a
 * cheap op that keeps its own operands anyway (op.def lists these), keeping the result as well
 * wastes memory: the reverse walk reaches the linear layer while the operands still exist, so the
 * same op runs once more. Products that share the input share the recomputed result; it is freed
 * when the walk passes the op that made it. Where memory is the host's, the results are kept: they
 * cost more time than memory there. Parameter remake decides otherwise.
 *
 * The same kernel on the same operands gives the same bits. An operand changed in place is an error
 * as usual; a result that was changed in place before the product read it is kept, not recomputed.
 */
#include "core/grad/tape.h"

/* Returns whether results are recomputed on a device. A plan on the null device does what the
 * device that it rehearses does. */
static bool recomputes_on(const tide_ctx *ctx, int device)
{
  const tide__backend *b = ctx->devices->device[device].backend;
  if (ctx->params.remake >= 0) return ctx->params.remake;
  return b->has_bytes ? !b->host : ctx->params.rehearse < 0;
}

bool tide__is_recomputed(const tide_ctx *ctx, int op, int i, const tide_tensor *x)
{
  bool may = tide__op_get(op)->flags & TIDE__OPF_RECOMPUTES;
  if (!may || i != 0 || !recomputes_on(ctx, x->storage->device)) return false;
  return x->node && x->storage->version == 0 && x->node_out == 0 && tide__recompute_of(x->node->op);
}

/* Runs the op of n once more on what n saved. */
static int recompute_run(tide_tensor **out, tide_ctx *ctx, const tide__node *n)
{
  tide_tensor *in[TIDE__MAX_IN], *made[TIDE__MAX_OUT];
  for (int i = 0; i < n->nin; i++) in[i] = n->in[i].saved.t;
  for (int i = 0; i < n->nout; i++) made[i] = n->out[i].saved.t;
  tide__grad_call g = {.ctx = ctx, .op = n->op, .nin = n->nin, .nout = n->nout, .in = in,
                       .out = made, .attrs = n->attrs};
  return tide__recompute_of(n->op)(out, &g);
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
    TIDE_TRY(recompute_run(&o->recomputed, ctx, n));
  }
  *out = o->recomputed;
  return TIDE_OK;
}
