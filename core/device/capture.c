/* Capturing a step: the memory of a graph and its lifetime.
 *
 * A replay writes to the addresses of the capture. So the capture allocates from a cache of its
 * own, and older memory that is freed meanwhile (the step may read it) is not reused until the
 * graph is released. Results of the step may outlive the graph: its cache retires with the last
 * one.
 *
 * Capture participants, communicators with streams of their own, join the graph at their first call
 * in the capture. The graph holds them, since they must not be closed before it. A participant that
 * fails invalidates the graph, on any thread: a library that is shut down waits for the graphs that
 * hold its calls.
 */

#include "core/device/storage.h"

struct tide_graph {
  tide__object object;
  tide_ctx *ctx;
  int device;
  _Atomic(void *) exec;        /* null while captured, and after a failure */
  struct tide__cache *cache;   /* of the graph; null after a failure */
  struct tide__cache *usual;   /* during capture: the device's own */
  tide__block *aside;          /* older memory that was freed during capture */
  tide__participant **participant; /* in the order of their first call */
  int64_t nparticipant, capacity; /* used and allocated */
};

bool tide__captures(const tide_ctx *ctx, int device)
{
  return ctx->capture && ctx->capture->device == device;
}

int tide__not_captured(tide_ctx *ctx, const char *op)
{
  if (!ctx->capture) return TIDE_OK;
  return tide__fail(ctx, TIDE_E_STATE, op, "a step is being captured and the host may not wait for "
                    "the device in it; read results after replay, and move data before");
}

static tide__device *device_of(const tide_graph *g) { return &g->ctx->devices->device[g->device]; }

static int failed(tide_graph *g, int rc, const char *op)
{
  tide__device *d = device_of(g);
  return tide__fail(g->ctx, rc, op, "device '%s': %s", tide_device_name(g->device),
                    d->backend->why(d->state));
}

/* ---- participants ---------------------------------------------------------------------------- */

void tide__participant_add(tide_ctx *ctx, tide__participant *p)
{
  p->next = ctx->participants;
  ctx->participants = p;
}

void tide__participant_remove(tide_ctx *ctx, tide__participant *p)
{
  tide__participant **at = &ctx->participants;
  while (*at && *at != p) at = &(*at)->next;
  if (*at) *at = p->next;
}

int tide__participants_settle(tide_ctx *ctx)
{
  for (tide__participant *p = ctx->participants; p; p = p->next) TIDE_TRY(p->calls->settle(p));
  return TIDE_OK;
}

int tide__participant_enter(tide_ctx *ctx, tide__participant *p)
{
  tide_graph *g = ctx->capture;
  for (int64_t i = 0; i < g->nparticipant; i++)
    if (g->participant[i] == p) return TIDE_OK;
  if (!tide__grow(ctx, &g->participant, g->nparticipant, &g->capacity, sizeof p))
    return tide__fail(ctx, TIDE_E_NOMEM, "graph", "no host memory");
  TIDE_TRY(p->calls->enter(p, g));
  g->participant[g->nparticipant++] = p;
  return TIDE_OK;
}

static void leave_participants(tide_graph *g, int64_t n)
{
  for (int64_t i = 0; i < n; i++) g->participant[i]->calls->leave(g->participant[i]);
}

/* Orders compute after all participants, also after a failure. Returns the first failure. */
static int join_participants(tide_graph *g)
{
  int rc = TIDE_OK;
  for (int64_t i = 0; i < g->nparticipant; i++) {
    int one = g->participant[i]->calls->join(g->participant[i]);
    if (rc == TIDE_OK) rc = one;
  }
  return rc;
}

void tide__graph_kill(tide_graph *g)
{
  tide__device *d = device_of(g);
  void *exec = atomic_exchange(&g->exec, NULL);
  if (exec) d->backend->graphs->free(d->state, exec);
}

/* ---- capturing ------------------------------------------------------------------------------- */

/* Restores the device's own cache. */
static void leave(tide_graph *g)
{
  tide__device *d = device_of(g);
  d->cache = g->usual;
  g->usual = NULL;
  g->aside = tide__cache_thaw(d->cache);
  g->ctx->capture = NULL;
  g->ctx->graph_turns++;
}

/* Ends the capture, also after a failure. */
static int capture_finish(tide_graph *g)
{
  tide__device *d = device_of(g);
  void *exec = NULL;
  int joined = join_participants(g);
  leave(g);
  int rc = d->backend->graphs->end(d->state, &exec);
  atomic_store(&g->exec, exec);
  leave_participants(g, g->nparticipant);
  if (joined < 0) return joined;
  return rc < 0 ? failed(g, rc, "graph_end") : TIDE_OK;
}

int tide_graph_end(tide_graph *g)
{
  TIDE_DOOR(TIDE_OBJECT(GRAPH, g));
  if (g->ctx->capture != g)
    return tide__fail(g->ctx, TIDE_E_STATE, "graph_end", "the graph is not being captured");
  return capture_finish(g);
}

static int launch(tide_graph *g)
{
  tide__device *d = device_of(g);
  void *exec = atomic_load(&g->exec);
  if (!exec) return tide__fail(g->ctx, TIDE_E_STATE, "graph_replay", "its capture failed");
  int rc = d->backend->graphs->launch(d->state, exec);
  return rc < 0 ? failed(g, rc, "graph_replay") : TIDE_OK;
}

int tide_graph_replay(tide_graph *g)
{
  TIDE_DOOR(TIDE_OBJECT(GRAPH, g));
  tide__device *d = device_of(g);
  TIDE_TRY(tide__not_captured(g->ctx, "graph_replay"));
  g->ctx->graph_turns++;
  int rc = tide__async_copies_order(d);
  if (rc < 0) return failed(g, rc, "graph_replay");
  int64_t n = 0;
  while (rc == TIDE_OK && n < g->nparticipant) {
    rc = g->participant[n]->calls->begin(g->participant[n]);
    if (rc == TIDE_OK) n++;
  }
  if (rc == TIDE_OK) rc = launch(g);
  for (int64_t i = 0; rc == TIDE_OK && i < n; i++)
    rc = g->participant[i]->calls->launched(g->participant[i], g);
  leave_participants(g, n);
  return rc;
}

static void capture_destroy(tide__object *o, int n)
{
  tide_graph *g = (tide_graph *)o;
  tide_ctx *ctx = g->ctx;
  (void)n;
  if (ctx->capture == g) capture_finish(g);
  tide__graph_kill(g);
  for (int64_t i = 0; i < g->nparticipant; i++)
    g->participant[i]->calls->drop(g->participant[i], g);
  tide__free(ctx, g->participant, (size_t)g->capacity * sizeof *g->participant);
  tide__cache_return(ctx, g->aside);
  if (g->cache) tide__cache_retire(ctx, g->cache);
  tide__object_free(o);
}

int tide_graph_begin(tide_graph **out, tide_ctx *ctx, int device)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  tide__device *d = tide__device_get(ctx, device, "graph_begin");
  if (!d) return TIDE_E_DEVICE;
  if (!d->backend->graphs)
    return tide__fail(ctx, TIDE_E_UNSUPPORTED, "graph_begin", "steps on device '%s' cannot be "
                      "captured; only those on 'cuda' can", tide_device_name(device));
  if (ctx->capture)
    return tide__fail(ctx, TIDE_E_STATE, "graph_begin", "a step is being captured already");
  TIDE_TRY(tide__participants_settle(ctx));
  tide__objects_settle(ctx);
  tide_graph *g = tide__object_new(ctx, TIDE__KIND_GRAPH, sizeof *g, capture_destroy);
  if (!g) return tide__fail(ctx, TIDE_E_NOMEM, "graph_begin", "no host memory");
  g->ctx = ctx;
  g->device = device;
  int rc = tide__cache_new(ctx, &g->cache, d->backend, d->state);
  if (rc == TIDE_OK) {
    tide__async_copies_finish(d);
    tide__cache_trim(ctx, d->cache); /* the captured step may reuse this memory */
    rc = d->backend->graphs->begin(d->state);
    if (rc < 0) failed(g, rc, "graph_begin");
  }
  if (rc < 0) {
    tide_graph_release(g);
    return rc;
  }
  tide__cache_forbid_trim(g->cache);
  tide__cache_freeze(d->cache);
  g->usual = d->cache;
  d->cache = g->cache;
  ctx->capture = g;
  ctx->graph_turns++;
  *out = g;
  return TIDE_OK;
}

void tide_graph_release(tide_graph *g) { tide__object_release(g, TIDE__KIND_GRAPH); }
