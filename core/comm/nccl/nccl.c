/* The transport of device tensors over NCCL. Each rank is a thread or a process with a device.
 *
 * Another communicator of the same ranks (local, MPI or self) carries what NCCL needs before it can
 * talk: whether every rank can, and the unique id. After that NCCL moves the data on a stream that
 * this communicator owns (move.c), and the host does not wait for it (wait.c).
 *
 * Reductions are in NCCL's order, not in rank order: equal from run to run on the same machine, but
 * not the bits of other transports. A mean is NCCL's: in f16 and bf16 it may round at every hop.
 *
 * No device has run this; spec/cuda/emulated_nccl_spec.lua runs it against an emulated NCCL.
 */
#include <limits.h>

#include "core/comm/nccl/nccl.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void drop_shared(tide__nccl_shared *all)
{
  if (--all->refs > 0) return;
  tide__nccl_order_drop(all);
  tide__nccl_close(&all->api);
  tide__free(all->ctx, all, sizeof *all);
}

enum { FAREWELL = 10 }; /* seconds */

/* Closes NCCL's communicator after waiting a while for what the other ranks still do. */
static void finalize(tide__nccl_comm *s)
{
  const tide__nccl *l = &s->all->api;
  tide__wait w = tide__wait_begin(&tide__nccl_patience, FAREWELL);
  double start = tide_trace_clock();
  int error = TIDE__NCCL_IN_PROGRESS, rc = l->comm_finalize(s->comm);
  while (tide__nccl_going(rc) && error == TIDE__NCCL_IN_PROGRESS &&
         tide_trace_clock() - start < FAREWELL) {
    rc = l->comm_async_error(s->comm, &error);
    if (error == TIDE__NCCL_IN_PROGRESS) tide__wait_pause(&w);
  }
  if (error == TIDE__NCCL_OK && tide__nccl_going(rc)) l->comm_destroy(s->comm);
  else l->comm_abort(s->comm);
  s->comm = NULL;
}

static void nccl_close_comm(void *state, int rank)
{
  tide__nccl_comm *s = state;
  tide__nccl_shared *all = s->all;
  const tide__streams *st = all->backend->streams;
  (void)rank;
  st->bind(all->device);
  for (int64_t i = 0; s->comm && i < s->nkept; i++) all->api.comm_deregister(s->comm, s->kept[i]);
  tide__free(all->ctx, s->kept, (size_t)s->room * sizeof *s->kept);
  if (s->comm) finalize(s);
  tide__nccl_order_forget(s);
  if (s->stream) st->close(all->device, s->stream);
  if (s->aside) st->close(all->device, s->aside);
  if (s->scratch) all->backend->free(all->device, s->scratch, tide__nccl_scratch_size(s));
  if (s->calls) st->pinned->free(all->device, s->calls, tide__nccl_scratch_size(s));
  tide__failure_close(&s->failure);
  tide__free(all->ctx, s, sizeof *s);
  drop_shared(all);
}

/* Takes over a reference to all. Returns null if there is no memory; the reference is given
 * back. */
static tide__nccl_comm *new_comm(tide__nccl_shared *all, int rank, int nrank, const char *name)
{
  tide__nccl_comm *s = tide__alloc(all->ctx, sizeof *s);
  if (!s) {
    drop_shared(all);
    return NULL;
  }
  s->all = all;
  s->rank = rank;
  s->nrank = nrank;
  snprintf(s->name, sizeof s->name, "%s", name);
  tide__nccl_failure_init(s);
  bool good = all->backend->streams->open(all->device, &s->stream) == TIDE_OK;
  if (good) s->scratch = all->backend->alloc(all->device, tide__nccl_scratch_size(s));
  if (good && all->check) good = all->backend->streams->open(all->device, &s->aside) == TIDE_OK;
  if (good && all->check)
    s->calls = all->backend->streams->pinned->alloc(all->device, tide__nccl_scratch_size(s));
  if (good && s->scratch && (s->calls || !all->check)) return s;
  nccl_close_comm(s, 0);
  return NULL;
}

/* Returns `made`, which NCCL may still be making, as a communicator of this library. */
static int adopt(tide__nccl_comm *s, tide__coll *c, void *made)
{
  const tide__nccl *l = &s->all->api;
  tide__nccl_comm one = {.all = s->all, .comm = made, .rank = s->rank};
  int rank = 0, nrank = 0;
  tide__nccl_failure_init(&one);
  int rc = tide__nccl_ready(&one, c);
  tide__failure_close(&one.failure);
  if (rc == TIDE_OK && !(tide__nccl_going(l->comm_user_rank(made, &rank)) &&
                         tide__nccl_going(l->comm_count(made, &nrank))))
    rc = TIDE_E_PEER;
  tide__nccl_comm *sub = NULL;
  if (rc == TIDE_OK) {
    s->all->refs++;
    sub = new_comm(s->all, rank, nrank, c->name);
  }
  if (!sub) {
    if (one.comm) l->comm_abort(made);
    return rc < 0 ? tide__nccl_fail(s, c, rc, c->message)
                  : tide__nccl_fail(s, c, TIDE_E_PEER, "no memory for a communicator");
  }
  sub->comm = made;
  c->sub = sub;
  c->sub_rank = rank;
  c->sub_size = nrank;
  return TIDE_OK;
}

static int split_inside(tide__nccl_comm *s, tide__coll *c)
{
  void *made = NULL;
  if (tide__nccl_streams(s)->bind(s->all->device) < 0) return tide__nccl_device_failed(s, c);
  int rc = s->all->api.comm_split(s->comm, c->color < 0 ? -1 : c->color, c->key, &made, NULL);
  if (!tide__nccl_going(rc)) return tide__nccl_failed(s, c, rc);
  int status = tide__nccl_ready(s, c);
  return status < 0 || !made ? status : adopt(s, c, made);
}

/* Registers a buffer. The owner's thread, with no call in progress or before NCCL's communicator
 * is made. */
static int nccl_keep(void *state, void *ptr, size_t size, char *text, size_t n)
{
  tide__nccl_comm *s = state;
  const tide__nccl *l = &s->all->api;
  void *handle = NULL;
  if (!l->comm_register || !l->comm_deregister) {
    snprintf(text, n, "NCCL %d.%d registers no buffers; 2.19 and later do", l->version / 10000,
             l->version / 100 % 100);
    return TIDE_E_UNSUPPORTED;
  }
  if (!tide__grow(s->all->ctx, &s->kept, s->nkept, &s->room, sizeof *s->kept)) {
    snprintf(text, n, "no host memory");
    return TIDE_E_NOMEM;
  }
  int rc = s->comm ? l->comm_register(s->comm, ptr, size, &handle) : TIDE__NCCL_OK;
  if (tide__nccl_going(rc) && handle) s->kept[s->nkept++] = handle;
  if (tide__nccl_going(rc)) return TIDE_OK;
  snprintf(text, n, "NCCL: %s", l->error_string(rc));
  return TIDE_E_COMM;
}

/* ---- calls under way ------------------------------------------------------------------------- */

static int nccl_run(void *state, int rank, tide__coll *c)
{
  tide__nccl_comm *s = state;
  (void)rank;
  int rc;
  tide__nccl_await_turn(s->all->order, c->turn);
  if (!tide__nccl_enter(s, c)) rc = s->failure.status;
  else rc = tide__nccl_leave(s, c->op == TIDE__SPLIT ? split_inside(s, c) : tide__nccl_move(s, c));
  tide__nccl_pass_turn(s->all->order, c->turn);
  return rc;
}

static tide__failure *nccl_failure(void *state) { return &((tide__nccl_comm *)state)->failure; }

static const tide__transport transport_nccl = {
  .name = "nccl",
  .bytes = true,
  .on_device = true,
  .watched = true,
  .draw = tide__nccl_draw,
  .run = nccl_run,
  .failure = nccl_failure,
  .poll = tide__nccl_poll,
  .close = nccl_close_comm,
  .keep = nccl_keep,
  .captures = &tide__nccl_captures,
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Returns the order of the calls of a rank that has a communicator over NCCL, or a new one. */
static tide__nccl_order *order_of(tide_ctx *ctx)
{
  for (tide__participant *p = ctx->participants; p; p = p->next) {
    tide_comm *comm = tide__comm_of(p);
    if (!comm || comm->transport != &transport_nccl) continue;
    tide__nccl_order *o = ((tide__nccl_comm *)comm->state)->all->order;
    o->refs++;
    return o;
  }
  return tide__nccl_order_new(ctx);
}

/* Opens what this rank needs: the library, and a device that has streams. */
static int open_shared(tide__nccl_shared **out, tide_comm *over, const tide_nccl_opts *opts,
                       char *msg, size_t n)
{
  tide__device *d = &over->ctx->devices->device[TIDE_DEV_CUDA];
  tide__nccl_shared *all = *out = tide__alloc(over->ctx, sizeof *all);
  if (!all) {
    snprintf(msg, n, "no memory for a communicator");
    return TIDE_E_NOMEM;
  }
  all->refs = 1;
  all->ctx = over->ctx;
  all->check = opts->check != 0;
  int rc = tide__nccl_open(&all->api, opts->library, msg, n);
  if (rc == TIDE_OK && !d->backend) tide__device_get(over->ctx, TIDE_DEV_CUDA, "comm_nccl");
  if (rc == TIDE_OK && (!d->backend || !d->backend->streams)) {
    snprintf(msg, n, "NCCL %d.%d is here, but this context has no CUDA device",
             all->api.version / 10000, all->api.version / 100 % 100);
    rc = TIDE_E_UNSUPPORTED;
  }
  if (rc == TIDE_OK) {
    all->on = d;
    all->backend = d->backend;
    all->device = d->state;
    all->orders_itself = tide__nccl_orders_itself(&all->api);
    all->order = order_of(over->ctx);
    if (all->order) return TIDE_OK;
    snprintf(msg, n, "no memory for a communicator");
    rc = TIDE_E_NOMEM;
  }
  drop_shared(all);
  *out = NULL;
  return rc;
}

/* Agrees with all ranks whether all can use NCCL; a rank that cannot keeps its own message. */
static int nccl_agree(tide_comm *over, int status, char *msg, size_t n)
{
  tide_blob *blob;
  int64_t sizes[TIDE__MAX_RANK];
  char mine = status == TIDE_OK;
  TIDE_TRY(tide_comm_all_gather_bytes(&blob, over, &mine, 1, sizes));
  const char *all = tide_blob_data(blob);
  for (int q = 0; q < over->nrank && status == TIDE_OK; q++) {
    if (all[q]) continue;
    snprintf(msg, n, "rank %d cannot use NCCL; its message says why", q);
    status = TIDE_E_UNSUPPORTED;
  }
  tide_blob_release(blob);
  return status;
}

/* Sends rank 0's id to every rank; a failure there is a failure everywhere. */
static int share_id(tide_comm *over, const tide__nccl *l, tide__nccl_id *id, char *msg, size_t n)
{
  tide_blob *blob;
  int error = over->rank == 0 ? l->get_unique_id(id) : TIDE__NCCL_OK;
  TIDE_TRY(tide_comm_broadcast_bytes(&blob, over, id, error == TIDE__NCCL_OK ? sizeof *id : 0, 0));
  bool whole = tide_blob_size(blob) == (int64_t)sizeof *id;
  if (whole) memcpy(id, tide_blob_data(blob), sizeof *id);
  else snprintf(msg, n, "NCCL on rank 0 gives no unique id: %s", l->error_string(error));
  tide_blob_release(blob);
  return whole ? TIDE_OK : TIDE_E_COMM;
}

/* Makes NCCL's communicator for s: all ranks join, or the timeout ends the wait. */
static int nccl_join(tide__nccl_comm *s, tide_comm *over, tide__nccl_id id, char *msg, size_t n)
{
  const tide__nccl *l = &s->all->api;
  tide__coll c = {.op = TIDE__SPLIT, .timeout = over->timeout, .interrupt = &over->ctx->interrupt};
  tide__nccl_config config = {
    .size = sizeof config, .magic = (unsigned)TIDE__NCCL_MAGIC, .version = TIDE__NCCL_OLDEST,
    .blocking = 0, .cga_size = INT_MIN, .min_ctas = INT_MIN, .max_ctas = INT_MIN,
    .net_name = NULL, .split_share = INT_MIN};
  s->inside = 1;
  tide__nccl_await_all(s->all->order);
  int error = l->comm_init(&s->comm, over->nrank, id, over->rank, &config);
  int rc = tide__nccl_going(error) ? tide__nccl_ready(s, &c) : TIDE_E_COMM;
  if (!tide__nccl_going(error)) snprintf(msg, n, "NCCL: %s", l->error_string(error));
  else if (rc < 0) snprintf(msg, n, "%.400s", c.message);
  return tide__nccl_leave(s, rc);
}

void tide_nccl_opts_init(tide_nccl_opts *opts) { *opts = (tide_nccl_opts){.size = sizeof *opts}; }

int tide_comm_nccl(tide_comm **out, tide_comm *over, const tide_nccl_opts *opts)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(COMM, over));
  char msg[512] = "";
  tide_nccl_opts usual;
  tide__nccl_shared *all = NULL;
  tide__nccl_comm *s = NULL;
  tide__nccl_id id = {{0}};
  TIDE_TRY(tide__comm_check(over, "comm_nccl"));
  tide_nccl_opts_init(&usual);
  if (!tide__options(&usual, sizeof usual, opts))
    return tide__fail(over->ctx, TIDE_E_ARG, "comm_nccl", "opts.size is %u: call "
                      "tide_nccl_opts_init", (unsigned)opts->size);
  opts = &usual;
  int rc = open_shared(&all, over, opts, msg, sizeof msg);
  if (rc == TIDE_OK && all->backend->streams->bind(all->device) < 0) rc = TIDE_E_DEVICE;
  if (rc == TIDE_OK && !(s = new_comm(all, over->rank, over->nrank, over->name))) {
    snprintf(msg, sizeof msg, "no memory for a communicator");
    rc = TIDE_E_NOMEM;
    all = NULL;
  }
  rc = nccl_agree(over, rc, msg, sizeof msg);
  if (rc == TIDE_OK) rc = share_id(over, &all->api, &id, msg, sizeof msg);
  if (rc == TIDE_OK) rc = nccl_join(s, over, id, msg, sizeof msg);
  if (rc < 0) {
    if (s) nccl_close_comm(s, 0);
    else if (all) drop_shared(all);
    return *msg ? tide__fail(over->ctx, rc, "comm_nccl", "%s", msg) : rc;
  }
  rc = tide__comm_new(out, over->ctx, &transport_nccl, s, NULL, over->rank, over->nrank,
                      over->name);
  if (rc < 0) return rc;
  tide__log(over->ctx, TIDE_LOG_INFO, "NCCL %d.%d.%d: rank %d of %d", all->api.version / 10000,
            all->api.version / 100 % 100, all->api.version % 100, over->rank, over->nrank);
  (*out)->timeout = over->timeout;
  (*out)->host = over;
  over->refs++;
  return TIDE_OK;
}
