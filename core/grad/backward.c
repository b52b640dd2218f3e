/* The reverse walk: resumable; native nodes run here, host functions are returned as events.
 *
 * The walk holds its current node, and every pending node is held by its own slot, so the host may
 * do anything between two events (drop handles, run ops, walk another root). An error leaves the
 * walk in place; releasing it drops the gradients in progress. A pending node names its walk, and
 * each walk counts its own: walks nest (a recomputed segment walks its own, younger nodes) and end
 * in any order.
 */
#include "core/grad/tape.h"

struct tide_backward {
  tide__object object;
  tide_ctx *ctx;
  tide__node *at;       /* next node to visit, held; null: the walk is over */
  tide__node *host;     /* the host function of the current event, held */
  tide_tensor **given;  /* its input gradients so far */
  int64_t npending;     /* nodes whose walk is this one */
  bool retain;
};

/* ---- accumulation ---------------------------------------------------------------------------- */

/* Returns whether t is a contiguous gradient that nothing but the tape can read, so it may be added
 * to in place: alone in its storage, or among parts that are apart. */
static bool exclusive(const tide_tensor *t)
{
  const tide__storage *s = t->storage;
  return t->refs == 1 && t->spent == 0 && (s->refs == 1 || (t->part && s->refs == s->parts)) &&
         tide__is_contiguous(t->ndim, t->shape, t->stride);
}

/* Adds g to *sum; takes g. */
static int backward_add_up(tide_tensor **sum, tide_tensor *g)
{
  int rc;
  if (!*sum) {
    *sum = g;
    return TIDE_OK;
  }
  if (exclusive(*sum)) {
    rc = tide_axpy_(*sum, g, 1);
  } else {
    tide_tensor *t = NULL;
    rc = tide_add(&t, *sum, g);
    if (rc == TIDE_OK) {
      tide_tensor_release(*sum);
      *sum = t;
    }
  }
  tide_tensor_release(g);
  return rc;
}

/* Replaces g by a tensor of another dtype. */
static int convert(tide_tensor **g, int dtype)
{
  tide_tensor *t = NULL;
  int rc = tide_cast(&t, *g, dtype);
  tide_tensor_release(*g);
  *g = t;
  return rc;
}

/* Adds g to a leaf's gradient, which outlives step scopes and shares its bytes with no other
 * tensor. The sum of a 16-bit leaf may be f32: g begins it, or is added as it is. */
static int into_leaf(tide_tensor *leaf, tide_tensor *g)
{
  int dtype = tide__grad_dtype(leaf);
  if (!leaf->grad && g->dtype != dtype) TIDE_TRY(convert(&g, dtype));
  if (!leaf->grad && !exclusive(g)) {
    tide_tensor *own = NULL;
    int rc = tide_clone(&own, g);
    tide_tensor_release(g);
    if (rc < 0) return rc;
    g = own;
  }
  TIDE_TRY(backward_add_up(&leaf->grad, g));
  tide__scope_escape(leaf->grad->storage);
  return TIDE_OK;
}

static int accumulate(tide_backward *bw, const tide__edge *edge, tide_tensor *g)
{
  if (edge->leaf) return into_leaf(edge->leaf, g);
  if (!edge->node) {
    tide_tensor_release(g);
    return TIDE_OK;
  }
  tide__node *n = edge->node;
  if (n->walked) {
    tide_tensor_release(g);
    return tide__fail(bw->ctx, TIDE_E_STATE, "backward", "a second walk over results whose saved "
                      "tensors were freed by the first; pass retain to the first one");
  }
  TIDE_TRY(backward_add_up(&n->out[edge->slot].grad, g));
  if (!n->walk) {
    n->walk = bw;
    tide__node_retain(n);
    bw->npending++;
  }
  return TIDE_OK;
}

/* ---- one node -------------------------------------------------------------------------------- */

static int check_saved(tide_ctx *ctx, const tide__node *n, const tide__saved *s, const char *what,
                       int i)
{
  const char *op = n->op == TIDE__HOST ? "host function" : tide__op_get(n->op)->name;
  if (!s->t) return TIDE_OK;
  if (s->t->storage->gone)
    return tide__fail(ctx, TIDE_E_GONE, "backward", "%s %d of %s was dropped before its gradient: "
                      "call backward inside the scope", what, i + 1, op);
  if (s->t->storage->version != s->version)
    return tide__fail(ctx, TIDE_E_STATE, "backward", "%s %d of %s was changed in place after it "
                      "was used (version %lld, saved at %lld); clone it before writing", what,
                      i + 1, op, (long long)s->t->storage->version, (long long)s->version);
  return TIDE_OK;
}

static bool wanted(const tide__input *in) { return in->edge.node || in->edge.leaf; }

/* Returns the gradient of an input so far if a rule may add to it, else null. */
static tide_tensor *sum_so_far(const tide__edge *e, const tide__meta *m)
{
  tide_tensor *sum = e->leaf ? e->leaf->grad : e->node ? e->node->out[e->slot].grad : NULL;
  return sum && sum->storage->device == m->device && exclusive(sum) ? sum : NULL;
}

enum { FEW = 16 };

/* The views that a derivative rule reads; arrays on the stack unless the op took a long list. */
typedef struct frame {
  tide_tensor *in_[FEW], *gin_[FEW], *sum_[FEW];
  int32_t sum_dtype_[FEW];
  bool need_[FEW];
  tide_tensor *gout[TIDE__MAX_OUT], *out[TIDE__MAX_OUT];
  tide_tensor **in, **gin, **sum;
  int32_t *sum_dtype;
  bool *need;
  size_t bytes;
  void *block;
} frame;

static int frame_open(tide_ctx *ctx, frame *f, const tide__node *n)
{
  size_t k = (size_t)n->nin;
  f->in = f->in_;
  f->gin = f->gin_;
  f->sum = f->sum_;
  f->sum_dtype = f->sum_dtype_;
  f->need = f->need_;
  f->bytes = 0;
  f->block = NULL;
  if (k > FEW) {
    f->bytes = k * (3 * sizeof *f->in + sizeof *f->sum_dtype + sizeof *f->need);
    f->block = tide__alloc(ctx, f->bytes);
    if (!f->block) return tide__fail(ctx, TIDE_E_NOMEM, "backward", "no host memory");
    f->in = f->block;
    f->gin = f->in + k;
    f->sum = f->gin + k;
    f->sum_dtype = (int32_t *)(f->sum + k);
    f->need = (bool *)(f->sum_dtype + k);
  }
  for (int i = 0; i < n->nin; i++) {
    f->in[i] = n->in[i].saved.t;
    f->gin[i] = NULL;
    f->need[i] = wanted(&n->in[i]);
    f->sum[i] = sum_so_far(&n->in[i].edge, &n->meta[i]);
    tide_tensor *leaf = n->in[i].edge.leaf;
    f->sum_dtype[i] = leaf ? tide__grad_dtype(leaf) : n->meta[i].dtype;
  }
  for (int i = 0; i < n->nout; i++) {
    f->gout[i] = n->out[i].grad;
    f->out[i] = n->out[i].saved.t;
  }
  return TIDE_OK;
}

int tide__check_node(tide_ctx *ctx, const tide__node *n)
{
  for (int i = 0; i < n->nin; i++) TIDE_TRY(check_saved(ctx, n, &n->in[i].saved, "input", i));
  for (int i = 0; i < n->nout; i++) TIDE_TRY(check_saved(ctx, n, &n->out[i].saved, "result", i));
  return TIDE_OK;
}

/* Adds every gradient to its edge; after an error releases the rest. */
static int deliver(tide_backward *bw, const tide__node *n, tide_tensor **gin, int rc)
{
  for (int i = 0; i < n->nin; i++) {
    tide_tensor *g = gin[i];
    gin[i] = NULL;
    if (!g) continue;
    if (rc == TIDE_OK) rc = accumulate(bw, &n->in[i].edge, g);
    else tide_tensor_release(g);
  }
  return rc;
}

/* Recomputes the inputs that were not saved. */
static int recompute_inputs(tide_ctx *ctx, frame *f, const tide__node *n)
{
  for (int i = 0; i < n->nin; i++)
    if (n->in[i].saved.recompute) TIDE_TRY(tide__recompute(&f->in[i], ctx, &n->in[i].edge));
  return TIDE_OK;
}

static int run_native(tide_backward *bw, tide__node *n)
{
  tide_ctx *ctx = bw->ctx;
  frame f;
  TIDE_TRY(tide__check_node(ctx, n));
  TIDE_TRY(frame_open(ctx, &f, n));
  tide__grad_call g = {.ctx = ctx, .op = n->op, .nin = n->nin, .nout = n->nout, .gout = f.gout,
                       .in = f.in, .out = f.out, .meta = n->meta, .need = f.need, .sum = f.sum,
                       .sum_dtype = f.sum_dtype, .attrs = n->attrs, .joint = &tide__joint,
                       .node = n, .consume = !bw->retain, .gin = f.gin};
  int rc = recompute_inputs(ctx, &f, n);
  if (rc == TIDE_OK) rc = tide__op_get(n->op)->grad(&g);
  for (int i = 0; i < n->nout && rc == TIDE_OK && g.consume; i++) {
    tide_tensor_release(n->out[i].saved.t); /* a gradient made of it is then exclusive */
    n->out[i].saved.t = NULL;
  }
  rc = deliver(bw, n, f.gin, rc);
  tide__free(ctx, f.block, f.bytes);
  return rc;
}

/* Finishes a node: empties its slots and, unless the walk retains, its saved tensors. */
static void pass(tide_backward *bw, tide__node *n)
{
  for (int i = 0; i < n->nout; i++) {
    tide_tensor_release(n->out[i].grad);
    n->out[i].grad = NULL;
    tide_tensor_release(n->out[i].recomputed);
    n->out[i].recomputed = NULL;
  }
  tide__joint_drop(n);
  if (!bw->retain) {
    n->walked = true;
    tide__node_clear(bw->ctx, n);
  }
  n->walk = NULL;
  bw->npending--;
  tide__node_release(bw->ctx, n);
}

/* ---- the walk -------------------------------------------------------------------------------- */

static int start_gradient(tide_tensor **out, tide_tensor *root, tide_tensor *grad)
{
  if (!grad) {
    if (tide__tensor_numel(root) != 1)
      return tide__fail(root->ctx, TIDE_E_SHAPE, "backward", "root has shape %s: give its "
                        "gradient, or reduce it to one element", TIDE__SHAPE_OF(root));
    return tide_full(out, root->ctx, root->storage->device, root->dtype, root->ndim, root->shape,
                     1);
  }
  if (grad->storage->gone)
    return tide__fail(root->ctx, TIDE_E_GONE, "backward", "grad: its bytes were dropped");
  bool fit = grad->dtype == root->dtype && grad->ctx == root->ctx &&
             grad->storage->device == root->storage->device &&
             tide__tensor_same_shape(grad, root);
  if (!fit)
    return tide__fail(root->ctx, TIDE_E_SHAPE, "backward", "grad is %s, root is %s",
                      TIDE__TEXT(grad), TIDE__TEXT(root));
  return tide_tensor_retain(*out = grad);
}

/* Steps to the previous node, holding it before releasing this one. */
static void step(tide_backward *bw)
{
  tide__node *n = bw->at, *prev = n->prev;
  if (prev) tide__node_retain(prev);
  bw->at = prev;
  tide__node_release(bw->ctx, n);
}

static int begin_host(tide_backward *bw, tide__node *n, tide_event *event)
{
  TIDE_TRY(tide__check_node(bw->ctx, n));
  bw->given = tide__alloc(bw->ctx, (size_t)n->nin * sizeof *bw->given);
  if (!bw->given) return tide__fail(bw->ctx, TIDE_E_NOMEM, "backward", "no host memory");
  bw->host = n;
  tide__node_retain(n);
  *event = (tide_event){TIDE_EVENT_HOST, n->nout, n->nin, 0, n->tag};
  return TIDE_MORE;
}

static void forget_host(tide_backward *bw)
{
  tide__node *n = bw->host;
  if (!n) return;
  for (int i = 0; i < n->nin; i++) tide_tensor_release(bw->given[i]);
  tide__free(bw->ctx, bw->given, (size_t)n->nin * sizeof *bw->given);
  bw->given = NULL;
  bw->host = NULL;
  tide__node_release(bw->ctx, n);
}

static int finish_host(tide_backward *bw)
{
  tide__node *n = bw->host;
  if (!n) return TIDE_OK;
  TIDE_TRY(deliver(bw, n, bw->given, TIDE_OK));
  pass(bw, n);
  forget_host(bw);
  step(bw);
  return TIDE_OK;
}

static int walk(tide_backward *bw, tide_event *event)
{
  TIDE_TRY(finish_host(bw));
  while (bw->at && bw->npending > 0) {
    tide__node *n = bw->at;
    if (n->walk == bw && n->op == TIDE__HOST) return begin_host(bw, n, event);
    if (n->walk == bw) {
      double t0 = tide__trace_begin(bw->ctx);
      tide__range(bw->ctx, tide__op_get(n->op)->name);
      int rc = run_native(bw, n);
      tide__range(bw->ctx, NULL);
      TIDE_TRY(rc);
      pass(bw, n);
      TIDE_TRY(tide__trace_end(bw->ctx, "grad", tide__op_get(n->op)->name, t0));
    }
    step(bw);
  }
  return TIDE_OK;
}

int tide_backward_next(tide_backward *bw, tide_event *event)
{
  TIDE_DOOR(TIDE_OBJECT(BACKWARD, bw));
  int rc;
  *event = (tide_event){.kind = TIDE_EVENT_DONE};
  TIDE__UNRECORDED(bw->ctx, rc = walk(bw, event));
  return rc;
}

static int check_event(tide_backward *bw, int i, int n, const char *op)
{
  if (!bw->host) return tide__fail(bw->ctx, TIDE_E_STATE, op, "no host function is waiting");
  if (i < 0 || i >= n)
    return tide__fail(bw->ctx, TIDE_E_ARG, op, "index %d is outside [0, %d)", i, n);
  return TIDE_OK;
}

int tide_backward_take(tide_tensor **out, tide_backward *bw, int i)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(BACKWARD, bw));
  TIDE_TRY(check_event(bw, i, bw->host ? bw->host->nout : 0, "backward_take"));
  *out = bw->host->out[i].grad;
  return *out ? tide_tensor_retain(*out) : TIDE_OK;
}

int tide_backward_input(tide_tensor **out, tide_backward *bw, int i)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(BACKWARD, bw));
  TIDE_TRY(check_event(bw, i, bw->host ? bw->host->nin : 0, "backward_input"));
  *out = bw->host->in[i].saved.t;
  return *out ? tide_tensor_retain(*out) : TIDE_OK;
}

int tide_backward_give(tide_backward *bw, int i, tide_tensor *grad)
{
  TIDE_DOOR(TIDE_OBJECT(BACKWARD, bw), TIDE_MAYBE(TENSOR, grad));
  TIDE_TRY(check_event(bw, i, bw->host ? bw->host->nin : 0, "backward_give"));
  const tide__meta *m = &bw->host->meta[i];
  bool fit = !grad || (grad->ctx == bw->ctx && grad->dtype == m->dtype &&
                       grad->storage->device == m->device &&
                       tide__same_shape(grad->ndim, grad->shape, m->ndim, m->shape));
  if (!fit)
    return tide__fail(bw->ctx, TIDE_E_SHAPE, "backward_give", "gradient %d is %s, its input %s",
                      i + 1, TIDE__TEXT(grad), TIDE__TEXT(m));
  tide_tensor *old = bw->given[i];
  bw->given[i] = grad;
  if (grad) tide_tensor_retain(grad);
  tide_tensor_release(old);
  return TIDE_OK;
}

/* Empties the slots that an abandoned walk filled, so that the next one starts clean. */
static void backward_abandon(tide_backward *bw)
{
  while (bw->at && bw->npending > 0) {
    tide__node *n = bw->at;
    if (n->walk == bw) {
      bool retain = bw->retain;
      bw->retain = true;
      pass(bw, n);
      bw->retain = retain;
    }
    step(bw);
  }
  tide__node_release(bw->ctx, bw->at);
}

static void backward_destroy(tide__object *o, int n)
{
  tide_backward *bw = (tide_backward *)o;
  (void)n;
  forget_host(bw);
  backward_abandon(bw);
  tide__object_free(o);
}

int tide_backward_begin(tide_backward **out, tide_tensor *root, tide_tensor *grad, bool retain)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, root), TIDE_MAYBE(TENSOR, grad));
  tide_ctx *ctx = root->ctx;
  tide_tensor *g = NULL;
  tide__tensor_drain(ctx);
  if (!tide__tensor_needs_grad(root))
    return tide__fail(ctx, TIDE_E_STATE, "backward", "no gradient path: no input of this result "
                      "has requires_grad, or it was made without recording");
  if (root->node && root->node->walked)
    return tide__fail(ctx, TIDE_E_STATE, "backward", "this result was walked already and its saved "
                      "tensors are freed; pass retain to the first walk");
  tide_backward *bw = tide__object_new(ctx, TIDE__KIND_BACKWARD, sizeof *bw, backward_destroy);
  if (!bw) return tide__fail(ctx, TIDE_E_NOMEM, "backward", "no host memory for a walk");
  bw->ctx = ctx;
  bw->retain = retain;
  int rc = start_gradient(&g, root, grad);
  tide__edge edge = {root->node, root->node_out, root->node ? NULL : root};
  if (rc == TIDE_OK) TIDE__UNRECORDED(ctx, rc = accumulate(bw, &edge, g));
  if (rc < 0) {
    tide_backward_release(bw);
    return rc;
  }
  bw->at = root->node;
  if (bw->at) tide__node_retain(bw->at);
  *out = bw;
  return TIDE_OK;
}

void tide_backward_release(tide_backward *bw) { tide__object_release(bw, TIDE__KIND_BACKWARD); }

int tide_backward_run(tide_tensor *root, tide_tensor *grad)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, root), TIDE_MAYBE(TENSOR, grad));
  tide_backward *bw;
  tide_event event;
  TIDE_TRY(tide_backward_begin(&bw, root, grad, false));
  int rc = tide_backward_next(bw, &event);
  if (rc == TIDE_MORE)
    rc = tide__fail(bw->ctx, TIDE_E_HOST, "backward_run", "the walk met a host function; drive it "
                    "with tide_backward_next");
  tide_backward_release(bw);
  return rc;
}
