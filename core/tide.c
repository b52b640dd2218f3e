/* The composition root: the one file that uses every layer; makes and tears down contexts. */
#include <stdlib.h>

#include "core/base/machine.h"
#include "core/grad/tape.h"
#include "core/op/kernels.h"
#include "kernels/cpu/pool.h"

static void *default_resize(void *user, void *ptr, size_t nold, size_t nnew)
{
  (void)user;
  (void)nold;
  if (nnew) return realloc(ptr, nnew);
  free(ptr);
  return NULL;
}

void (tide_opts_init)(tide_opts *opts)
{
  memset(opts, 0, sizeof *opts);
  opts->size = sizeof *opts;
}

enum { MAX_THREAD = 1024 };

/* Refuses more than one thread in a forked child whose parent has computed with several. */
static int check_threads(tide_ctx *ctx, const char *op, int n)
{
  if (n <= 1 || !tide__pool_is_lost()) return TIDE_OK;
  return tide__fail(ctx, TIDE_E_STATE, op, "%d threads: this process was forked from one that has "
                    "computed with several, and OpenMP cannot start them again; use 1, or fork "
                    "before the first op", n);
}

/* Returns the default number of threads: the cores of the process, or 1 in such a child. */
static int default_threads(tide_ctx *ctx)
{
  if (!tide__pool_is_lost()) return tide__machine_cores();
  tide__log(ctx, TIDE_LOG_WARN, "this process was forked from one that has computed with several "
            "threads; the new context computes with one");
  return 1;
}

static int configure(tide_ctx *ctx, const tide_opts *opts)
{
  int nthread = opts->nthread;
  if (nthread < 0 || nthread > MAX_THREAD)
    return tide__fail(ctx, TIDE_E_ARG, "ctx_new", "nthread: expected 0 (all cores) to %d, got %d",
                      MAX_THREAD, nthread);
  TIDE_TRY(check_threads(ctx, "ctx_new", nthread));
  ctx->fork_mark = tide__fork_mark_new();
  if (!ctx->fork_mark) return tide__fail(ctx, TIDE_E_NOMEM, "ctx_new", "no memory for a page");
  ctx->nthread = nthread > 0 ? nthread : default_threads(ctx);
  if (opts->read_env) TIDE_TRY(tide__params_env(ctx));
  return tide__params_parse(ctx, opts->params);
}

static int open_layers(tide_ctx *ctx)
{
  TIDE_TRY(tide__kernels_open(ctx));
  TIDE_TRY(tide__devices_open(ctx));
  return tide__tape_open(ctx);
}

static void ctx_destroy(tide_ctx *ctx)
{
  while (ctx->scope) {
    struct tide__scope *s = ctx->scope;
    while (s->first) tide__scope_escape(s->first);
    ctx->scope = s->outer;
    tide__free(ctx, s, sizeof *s);
  }
  tide__tape_close(ctx);
  tide__tensor_pool_close(ctx);
  tide__objects_close(ctx);
  tide__storage_pool_close(ctx);
  tide__devices_close(ctx);
  if (ctx->kernels) tide__kernels_close(ctx);
  tide__trace_close(ctx);
  tide__fork_mark_release(ctx->fork_mark);
  ctx->tag = ~ctx->tag;
  tide_opts hooks = ctx->hooks;
  hooks.resize(hooks.user, ctx, sizeof *ctx, 0);
}

void tide__ctx_drop(tide_ctx *ctx) { if (--ctx->stats.nref == 0) ctx_destroy(ctx); }

int tide_ctx_new(tide_ctx **out, const tide_opts *opts, char *msg, size_t nmsg)
{
  *out = NULL;
  if (msg && nmsg) msg[0] = 0;
  tide_opts hooks;
  (tide_opts_init)(&hooks);
  if (!tide__options(&hooks, sizeof hooks, opts))
    return tide__refuse_new("ctx_new", msg, nmsg, TIDE_E_ARG, "opts.size is %u, expected %zu: "
                            "call tide_opts_init, and set nothing that this version does not know",
                            opts->size, sizeof *opts);
  if (hooks.abi && hooks.abi != TIDE_ABI)
    return tide__refuse_new("ctx_new", msg, nmsg, TIDE_E_ARG, "opts.abi: the host was compiled for "
                            "ABI %d of tide, this library has ABI %d; take header and library "
                            "from one version", hooks.abi, TIDE_ABI);
  if (!hooks.tensor_alloc != !hooks.tensor_free)
    return tide__refuse_new("ctx_new", msg, nmsg, TIDE_E_ARG, "expected both tensor_alloc and "
                            "tensor_free, or none");
  if (!hooks.resize) hooks.resize = default_resize;
  tide_ctx *ctx = hooks.resize(hooks.user, NULL, 0, sizeof *ctx);
  if (!ctx) return tide__refuse_new("ctx_new", msg, nmsg, TIDE_E_NOMEM, "no memory for a context");
  memset(ctx, 0, sizeof *ctx);
  ctx->tag = TIDE__TAG(TIDE__KIND_CTX);
  ctx->stats.nref = 1;
  ctx->hooks = hooks;
  ctx->owner = pthread_self();
  ctx->error.message = ctx->error.op = "";
  ctx->error.name = "OK";
  tide__params_init(&ctx->params);
  int rc = configure(ctx, &hooks);
  if (rc == TIDE_OK) rc = open_layers(ctx);
  if (rc < 0) {
    tide__refuse_new("ctx_new", msg, nmsg, rc, "%s: %s", ctx->error.op, ctx->error.message);
    tide__ctx_drop(ctx);
    return rc;
  }
  tide__log(ctx, TIDE_LOG_DEBUG, "tide %s: a context with %d threads", tide_version(),
            ctx->nthread);
  *out = ctx;
  return TIDE_OK;
}

void tide_ctx_release(tide_ctx *ctx)
{
  if (!tide__alive(ctx, TIDE__KIND_CTX) || ctx->closed) return;
  ctx->closed = true;
  tide__tensor_drain(ctx);
  tide__ctx_drop(ctx);
}

int tide_ctx_attach(tide_ctx *ctx)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  ctx->owner = pthread_self();
  tide__tensor_drain(ctx);
  return TIDE_OK;
}

int tide_ctx_claim(tide_ctx *ctx, int on)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (on && ctx->claimed)
    return tide__fail(ctx, TIDE_E_STATE, "ctx_claim", "the context has a Lua state already; make "
                      "another context (tide_ctx_new), or close that state first (lua_close)");
  ctx->claimed = on != 0;
  return TIDE_OK;
}

const tide_stats *tide_ctx_stats(tide_ctx *ctx) { return TIDE_IS(CTX, ctx) ? &ctx->stats : NULL; }

void tide_stats_reset_peak(tide_ctx *ctx)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(CTX, ctx));
  ctx->stats.peak = ctx->stats.live;
}

void tide_stats_mark(tide_ctx *ctx)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(CTX, ctx));
  ctx->stats_epoch++;
  ctx->stats.since = ctx->stats.since_peak = 0;
}

void tide_debt_settle(tide_ctx *ctx)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(CTX, ctx));
  ctx->stats.debt = 0;
}

void tide_interrupt(tide_ctx *ctx)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(CTX, ctx));
  atomic_fetch_add(&ctx->interrupt, 1);
}

int tide_interrupted(tide_ctx *ctx)
{
  return TIDE_IS(CTX, ctx) ? atomic_exchange(&ctx->interrupt, 0) != 0 : TIDE_E_ARG;
}

int tide_nthread(tide_ctx *ctx) { return TIDE_IS(CTX, ctx) ? ctx->nthread : TIDE_E_ARG; }

int tide_set_nthread(tide_ctx *ctx, int n)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (n < 1 || n > MAX_THREAD)
    return tide__fail(ctx, TIDE_E_ARG, "set_nthread", "n: expected 1 to %d, got %d", MAX_THREAD, n);
  TIDE_TRY(check_threads(ctx, "set_nthread", n));
  ctx->nthread = n;
  return TIDE_OK;
}
