/* The tape: nodes are made, linked, counted and freed; the recorder that dispatch calls. */
#include "core/grad/tape.h"

int tide__tape_open(tide_ctx *ctx)
{
  ctx->tape = tide__alloc(ctx, sizeof *ctx->tape);
  if (!ctx->tape) return tide__fail(ctx, TIDE_E_NOMEM, "ctx_new", "no memory for the tape");
  ctx->recorder = &tide__tape_recorder;
  ctx->recording = true;
  return TIDE_OK;
}

/* Returns the bytes of a node up to its attributes, which are zero in a new node. */
static size_t head_bytes(int nin, int nout)
{
  return sizeof(tide__node) + (size_t)nin * sizeof(tide__input) +
         (size_t)nout * sizeof(tide__output);
}

static size_t node_bytes(int nin, int nout)
{
  return head_bytes(nin, nout) + sizeof(tide__attrs) + (size_t)nin * sizeof(tide__meta);
}

static tide__node **pool_of(tide_ctx *ctx, int nin, int nout)
{
  bool small = nin < TIDE__SMALL_IN && nout < TIDE__SMALL_OUT;
  return small ? &ctx->tape->pool[nin][nout] : NULL;
}

static void close_pool(tide_ctx *ctx, tide__node *n)
{
  for (tide__node *next; n; n = next) {
    next = n->doomed;
    tide__free(ctx, n, node_bytes(n->nin, n->nout));
  }
}

void tide__tape_close(tide_ctx *ctx)
{
  if (!ctx->tape) return;
  for (int i = 0; i < TIDE__SMALL_IN; i++)
    for (int j = 0; j < TIDE__SMALL_OUT; j++) close_pool(ctx, ctx->tape->pool[i][j]);
  tide__free(ctx, ctx->tape->dropped, (size_t)ctx->tape->cap_dropped * sizeof(double));
  tide__free(ctx, ctx->tape, sizeof *ctx->tape);
  ctx->tape = NULL;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static tide__node *block(tide_ctx *ctx, int nin, int nout)
{
  tide__node **pool = pool_of(ctx, nin, nout), *n = pool ? *pool : NULL;
  if (!n) return tide__alloc(ctx, node_bytes(nin, nout));
  tide__prefetch(*pool = n->doomed, 7);
  return memset(n, 0, head_bytes(nin, nout));
}

static void edge_of(tide__edge *e, tide_tensor *x)
{
  if (!x) return;
  if (x->node) {
    e->node = x->node;
    e->slot = x->node_out;
    tide__node_retain(x->node);
  } else if (x->requires_grad) {
    e->leaf = x;
    tide_tensor_retain(x);
  }
}

/* Writes the geometry of x, and no dims beyond it: a node's last lines of cache stay untouched. */
static void set_meta(tide__meta *m, const tide_tensor *x)
{
  m->ndim = x ? x->ndim : 0;
  m->dtype = x ? x->dtype : 0;
  m->device = x ? x->storage->device : 0;
  for (int d = 0; d < m->ndim; d++) m->shape[d] = x->shape[d];
}

int tide__node_new(tide__node **out, tide_ctx *ctx, int op, int nin, tide_tensor *const *xs,
                   int nout)
{
  tide__node *n = block(ctx, nin, nout);
  *out = n;
  if (!n) return tide__fail(ctx, TIDE_E_NOMEM, "record", "no host memory for a tape node");
  n->refs = 1;
  n->op = op;
  n->nin = nin;
  n->nout = nout;
  n->out = (tide__output *)(n->in + nin);
  n->attrs = (tide__attrs *)(n->out + nout);
  n->meta = (tide__meta *)(n->attrs + 1);
  for (int i = 0; i < nin; i++) {
    edge_of(&n->in[i].edge, xs[i]);
    set_meta(&n->meta[i], xs[i]);
  }
  n->prev = ctx->tape->last;
  if (n->prev) n->prev->next = n;
  ctx->tape->last = n;
  ctx->stats.nnode++;
  return TIDE_OK;
}

void tide__node_retain(tide__node *n) { n->refs++; }

/* Releases an edge, which may doom the node behind it. The caller's loop frees that chain, so a
 * tape of any length is freed without recursion. */
static void drop_edge(tide__edge *e, tide__node **doomed)
{
  if (e->node && --e->node->refs == 0) {
    e->node->doomed = *doomed;
    *doomed = e->node;
  }
  e->node = NULL;
  tide_tensor_release(e->leaf);
  e->leaf = NULL;
}

/* Releases a saved tensor. If this is its last handle, the node that made it joins the chain
 * instead of being released recursively. */
static void drop_saved(tide__saved *s, tide__node **doomed)
{
  tide_tensor *t = s->t;
  s->t = NULL;
  if (t && t->refs == 1 && t->node) {
    tide__edge made_by = {.node = t->node};
    t->node = NULL;
    drop_edge(&made_by, doomed);
  }
  tide_tensor_release(t);
}

static void tape_clear(tide__node *n, tide__node **doomed)
{
  for (int i = 0; i < n->nin; i++) drop_edge(&n->in[i].edge, doomed);
  for (int i = 0; i < n->nin; i++) drop_saved(&n->in[i].saved, doomed);
  for (int i = 0; i < n->nout; i++) {
    drop_saved(&n->out[i].saved, doomed);
    tide_tensor_release(n->out[i].recomputed);
    n->out[i].recomputed = NULL;
  }
  tide__joint_drop(n);
}

static void remember_dropped(tide_ctx *ctx, double tag)
{
  tide__tape *tape = ctx->tape;
  double **list = &tape->dropped;
  if (!tide__grow(ctx, list, tape->ndropped, &tape->cap_dropped, sizeof **list))
    return; /* the host keeps one closure too long; nothing else is lost */
  tape->dropped[tape->ndropped++] = tag;
}

static void unlink_and_free(tide_ctx *ctx, tide__node *n)
{
  if (n->prev) n->prev->next = n->next;
  if (n->next) n->next->prev = n->prev;
  else ctx->tape->last = n->prev;
  for (int i = 0; i < n->nout; i++) tide_tensor_release(n->out[i].grad);
  if (n->op == TIDE__HOST) remember_dropped(ctx, n->tag);
  ctx->stats.nnode--;
  tide__node **pool = pool_of(ctx, n->nin, n->nout);
  if (!pool) {
    tide__free(ctx, n, node_bytes(n->nin, n->nout));
    return;
  }
  n->doomed = *pool;
  *pool = n;
}

static void free_chain(tide_ctx *ctx, tide__node *doomed)
{
  while (doomed) {
    tide__node *n = doomed;
    doomed = n->doomed;
    tape_clear(n, &doomed);
    unlink_and_free(ctx, n);
  }
}

void tide__node_release(tide_ctx *ctx, tide__node *n)
{
  if (!n || --n->refs > 0) return;
  n->doomed = NULL;
  free_chain(ctx, n);
}

void tide__node_clear(tide_ctx *ctx, tide__node *n)
{
  tide__node *doomed = NULL;
  tape_clear(n, &doomed);
  free_chain(ctx, doomed);
}

void tide__save(tide__saved *s, tide_tensor *t)
{
  s->t = t;
  s->version = t->storage->version;
}

void tide__attach(tide_tensor *t, tide__node *n, int slot)
{
  t->node = n;
  t->node_out = slot;
  tide__node_retain(n);
}

/* ---- the recorder ---------------------------------------------------------------------------- */

static void forget(tide_tensor *t)
{
  tide__node *n = t->node;
  tide_tensor *g = t->grad;
  t->node = NULL;
  t->grad = NULL;
  tide__node_release(t->ctx, n);
  tide_tensor_release(g);
}

/* Saves outputs that the derivative reads as second handles on the same bytes. */
static int save_outputs(tide__node *n, const tide__call *c, uint32_t which)
{
  for (int i = 0; i < c->nout; i++) {
    tide_tensor *alias;
    if (!c->out[i] || !(which >> i & 1)) continue;
    TIDE_TRY(tide__tensor_alias(&alias, c->out[i]));
    tide__save(&n->out[i].saved, alias);
  }
  return TIDE_OK;
}

/* Returns whether the derivative may read input i. */
static bool reads_input(const tide__op *op, const tide__call *c, int i)
{
  if (!(op->save_in >> i & 1)) return false;
  if (!(op->flags & TIDE__OPF_CROSS)) return true;
  for (int j = 0; j < c->nin; j++)
    if (j != i && c->in[j] && tide__tensor_needs_grad(c->in[j])) return true;
  return false;
}

static int record(tide_ctx *ctx, const tide__call *c)
{
  const tide__op *op = tide__op_get(c->op);
  tide__node *n;
  TIDE_TRY(tide__node_new(&n, ctx, c->op, c->nin, c->in, c->nout));
  if (!(op->flags & TIDE__OPF_BCAST)) *n->attrs = c->tape_differs ? c->tape : c->attrs;
  for (int i = 0; i < c->nin && i < 32; i++) {
    if (!c->in[i] || !reads_input(op, c, i)) continue;
    n->in[i].saved.recompute = tide__is_recomputed(ctx, c->op, i, c->in[i]);
    if (n->in[i].saved.recompute) continue;
    tide_tensor_retain(c->in[i]);
    tide__save(&n->in[i].saved, c->in[i]);
  }
  int rc = save_outputs(n, c, op->save_out);
  for (int i = 0; i < c->nout && rc == TIDE_OK; i++)
    if (c->out[i] && 1 << c->out[i]->dtype & K_FLOAT) tide__attach(c->out[i], n, i);
  tide__node_release(ctx, n);
  return rc;
}

const struct tide__recorder tide__tape_recorder = {forget, record};
