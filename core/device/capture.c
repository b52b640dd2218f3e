/* Capturing a step: the memory of a graph, and when it may go.
 *
 * The one idea: a replay writes where the capture wrote. So the capture allocates from a cache of
 * its own, which nobody else is given, and what is freed meanwhile of older memory (the step may
 * read it) stays set aside until the graph goes. Results of the step outlive the graph if somebody
 * holds them: its cache retires with the last one. Layer 1.
 */
#include "core/device/capture.h"

#include "core/base/alloc.h"
#include "core/base/status.h"
#include "core/device/cache.h"
#include "core/device/flight.h"

struct tide_graph {
  tide_ctx *ctx;
  int device;
  void *exec;                  /* null while captured, and after a failure */
  struct tide__cache *cache;   /* of its own; null after a failure */
  struct tide__cache *usual;   /* while captured: the device's */
  tide__block *aside;          /* older memory that was freed meanwhile */
  int64_t nreplay;
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

/* The device allocates as usual again. */
static void leave(tide_graph *g)
{
  tide__device *d = device_of(g);
  d->cache = g->usual;
  g->usual = NULL;
  g->aside = tide__cache_thaw(d->cache);
  g->ctx->capture = NULL;
}

int tide_graph_begin(tide_graph **out, tide_ctx *ctx, int device)
{
  *out = NULL;
  tide__device *d = tide__device_get(ctx, device, "graph_begin");
  if (!d) return TIDE_E_DEVICE;
  if (!d->backend->graphs)
    return tide__fail(ctx, TIDE_E_UNSUPPORTED, "graph_begin", "steps on device '%s' cannot be "
                      "captured; only those on 'cuda' can", tide_device_name(device));
  if (ctx->capture)
    return tide__fail(ctx, TIDE_E_STATE, "graph_begin", "a step is being captured already");
  tide_graph *g = tide__alloc(ctx, sizeof *g);
  if (!g) return tide__fail(ctx, TIDE_E_NOMEM, "graph_begin", "no host memory");
  *g = (tide_graph){.ctx = ctx, .device = device};
  tide__ctx_hold(ctx);
  int rc = tide__cache_new(ctx, &g->cache, d->backend, d->state);
  if (rc == TIDE_OK) {
    tide__flights_close(d);
    rc = d->backend->graphs->begin(d->state);
    if (rc < 0) failed(g, rc, "graph_begin");
  }
  if (rc < 0) {
    tide_graph_release(g);
    return rc;
  }
  tide__cache_keep(g->cache);
  tide__cache_freeze(d->cache);
  g->usual = d->cache;
  d->cache = g->cache;
  ctx->capture = g;
  *out = g;
  return TIDE_OK;
}

int tide_graph_end(tide_graph *g)
{
  if (g->ctx->capture != g)
    return tide__fail(g->ctx, TIDE_E_STATE, "graph_end", "the graph is not being captured");
  tide__device *d = device_of(g);
  leave(g);
  int rc = d->backend->graphs->end(d->state, &g->exec);
  return rc < 0 ? failed(g, rc, "graph_end") : TIDE_OK;
}

int tide_graph_replay(tide_graph *g)
{
  tide__device *d = device_of(g);
  TIDE_TRY(tide__not_captured(g->ctx, "graph_replay"));
  if (!g->exec)
    return tide__fail(g->ctx, TIDE_E_STATE, "graph_replay", "its capture failed");
  int rc = tide__flights_order(d);
  if (rc == TIDE_OK) rc = d->backend->graphs->launch(d->state, g->exec);
  if (rc < 0) return failed(g, rc, "graph_replay");
  g->nreplay++;
  return TIDE_OK;
}

void tide_graph_release(tide_graph *g)
{
  if (!g) return;
  tide_ctx *ctx = g->ctx;
  tide__device *d = device_of(g);
  if (ctx->capture == g) {
    leave(g);
    d->backend->graphs->end(d->state, &g->exec);
  }
  if (g->exec) d->backend->graphs->free(d->state, g->exec);
  tide__cache_return(ctx, g->aside);
  if (g->cache) tide__cache_retire(ctx, g->cache);
  tide__free(ctx, g, sizeof *g);
  tide__ctx_drop(ctx);
}
