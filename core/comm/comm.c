/* The handle of a communicator: creation, split, release; the record of its calls; running a
 * call. */
#include "core/comm/comm.h"

#include "core/comm/local/local.h"
#include "core/tensor/tensor.h"

/* ---- life ------------------------------------------------------------------------------------ */

static void leave_state(const tide__transport *transport, void *state, int rank)
{
  if (transport->leave) transport->leave(state, rank);
}

static void close_state(const tide__transport *transport, void *state, int rank)
{
  if (transport->close) transport->close(state, rank);
}

/* ---- buffers that stay ----------------------------------------------------------------------- */

struct tide__kept {
  tide_tensor *t;
  struct tide__kept *next;
};

static bool comm_is_kept(const tide_comm *comm, const tide_tensor *t)
{
  for (const struct tide__kept *k = comm->kept; k; k = k->next)
    if (k->t->storage == t->storage) return true;
  return false;
}

int tide_comm_register(tide_comm *comm, tide_tensor *t)
{
  TIDE_DOOR(TIDE_OBJECT(COMM, comm), TIDE_OBJECT(TENSOR, t));
  char text[256] = "";
  TIDE_TRY(tide__comm_check(comm, "comm_register"));
  if (t->storage->gone)
    return tide__fail(comm->ctx, TIDE_E_ARG, "comm_register", "argument 't': its bytes "
                      "were dropped");
  if (!comm->transport->keep || comm_is_kept(comm, t)) return TIDE_OK;
  if (t->ctx->devices->device[t->storage->device].backend->host)
    return tide__fail(comm->ctx, TIDE_E_DEVICE, "comm_register", "argument 't': expected a tensor "
                      "on a GPU, got one on '%s'", tide_device_name(t->storage->device));
  if (comm->engine) tide__work_drain(comm);
  struct tide__kept *k = tide__alloc(comm->ctx, sizeof *k);
  if (!k) return tide__fail(comm->ctx, TIDE_E_NOMEM, "comm_register", "no host memory");
  int rc = comm->transport->keep(comm->state, t->storage->data, t->storage->size, text,
                                 sizeof text);
  if (rc < 0) {
    tide__free(comm->ctx, k, sizeof *k);
    return tide__fail(comm->ctx, rc, "comm_register", "%s", text);
  }
  *k = (struct tide__kept){t, comm->kept};
  comm->kept = k;
  tide_tensor_retain(t);
  tide__scope_escape(t->storage);
  t->storage->kept++;
  return TIDE_OK;
}

/* Releases the registered buffers, after the transport has closed. */
static void release_kept(tide_comm *comm)
{
  for (struct tide__kept *k = comm->kept, *next; k; k = next) {
    next = k->next;
    k->t->storage->kept--;
    tide_tensor_release(k->t);
    tide__free(comm->ctx, k, sizeof *k);
  }
}

/* Waits for calls that were made before a failure, as the other ranks take part in them. A rank
 * that never arrives ends this wait by leaving, or by the timeout. */
static void comm_destroy(tide_comm *comm)
{
  tide_ctx *ctx = comm->ctx;
  if (comm->engine && comm->status == TIDE_OK) tide__work_drain(comm);
  leave_state(comm->transport, comm->state, comm->rank);
  tide__work_close(comm);
  close_state(comm->transport, comm->state, comm->rank);
  release_kept(comm);
  tide__failure_close(&comm->own);
  tide__stream_close(&comm->stream);
  tide__participant_remove(ctx, &comm->participant);
  tide_group_release(comm->group);
  if (comm->host) tide__comm_unref(comm->host, 1);
  tide__free(ctx, comm->ring, TIDE__NRECORD * sizeof *comm->ring);
  tide__object_free(&comm->object);
}

void tide__comm_unref(tide_comm *comm, int64_t n)
{
  comm->refs -= n;
  if (comm->refs == 0) comm_destroy(comm);
}

/* Releases the user's handle, of which there is one. */
static void comm_release_owned(tide__object *o, int n)
{
  tide__object_retire(o);
  tide__comm_unref((tide_comm *)o, n);
}

int tide__comm_new(tide_comm **out, tide_ctx *ctx, const tide__transport *transport, void *state,
                   tide_group *group, int rank, int nrank, const char *name)
{
  *out = NULL;
  tide_comm *comm = tide__object_new(ctx, TIDE__KIND_COMM, sizeof *comm, comm_release_owned);
  tide_comm_record *ring = comm ? tide__alloc(ctx, TIDE__NRECORD * sizeof *ring) : NULL;
  if (!ring) {
    if (comm) tide__object_free(&comm->object);
    leave_state(transport, state, rank);
    close_state(transport, state, rank);
    return tide__fail(ctx, TIDE_E_NOMEM, "comm", "no memory for a communicator");
  }
  comm->refs = 1;
  comm->ctx = ctx;
  comm->transport = transport;
  comm->state = state;
  comm->group = group;
  comm->rank = rank;
  comm->nrank = comm->host_size = nrank;
  comm->timeout = group ? group->timeout : 600;
  comm->ring = ring;
  comm->participant.calls = &tide__comm_participant;
  tide__participant_add(ctx, &comm->participant);
  tide__failure_init(&comm->own, NULL);
  comm->nmend = transport->mended ? transport->mended(state) : 0;
  comm->failure = transport->failure ? transport->failure(state) : &comm->own;
  snprintf(comm->name, sizeof comm->name, "%s", name && *name ? name : "comm");
  if (group) tide_group_retain(group);
  *out = comm;
  return TIDE_OK;
}

void tide_comm_release(tide_comm *comm) { tide__object_release(comm, TIDE__KIND_COMM); }

static bool claim_rank(tide_group *group, int rank)
{
  pthread_mutex_lock(&group->lock);
  bool free = !group->joined[rank];
  group->joined[rank] = true;
  pthread_mutex_unlock(&group->lock);
  return free;
}

int tide_comm_join(tide_comm **out, tide_ctx *ctx, tide_group *group, int rank)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx), TIDE_MAYBE(GROUP, group));
  int n = group ? group->nrank : 1;
  if (rank < 0 || rank >= n)
    return tide__fail(ctx, TIDE_E_ARG, "comm_join", "rank: expected 0 to %d, got %d", n - 1, rank);
  if (!group) return tide__comm_new(out, ctx, &tide__transport_self, NULL, NULL, 0, 1, "world");
  if (*group->mark != 1)
    return tide__fail(ctx, TIDE_E_STATE, "comm_join", "this process is a fork of the group's; make "
                      "a group of its own");
  if (!claim_rank(group, rank))
    return tide__fail(ctx, TIDE_E_STATE, "comm_join", "rank %d has joined this group already; a "
                      "new communicator comes from split", rank);
  tide__local_hold(group->world);
  return tide__comm_new(out, ctx, &tide__transport_local, group->world, group, rank, n, "world");
}

tide_ctx *tide_comm_ctx(const tide_comm *comm) { return TIDE_IS(COMM, comm) ? comm->ctx : NULL; }
int tide_comm_rank(const tide_comm *comm) { return TIDE_IS(COMM, comm) ? comm->rank : TIDE_E_ARG; }
int tide_comm_size(const tide_comm *comm) { return TIDE_IS(COMM, comm) ? comm->nrank : TIDE_E_ARG; }

const char *tide_comm_name(const tide_comm *comm)
{
  return TIDE_IS(COMM, comm) ? comm->name : NULL;
}

const char *tide_comm_transport(const tide_comm *comm)
{
  return TIDE_IS(COMM, comm) ? comm->transport->name : NULL;
}

int tide_comm_set_timeout(tide_comm *comm, double seconds)
{
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  if (!(seconds > 0 && seconds < 1e9))
    return tide__fail(comm->ctx, TIDE_E_ARG, "comm_set_timeout", "seconds: expected more than 0 "
                      "and less than 1e9, got %g", seconds);
  comm->timeout = seconds;
  return TIDE_OK;
}

void tide_comm_site(tide_comm *comm, const char *text)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(COMM, comm));
  size_t n = text ? strlen(text) : 0;
  if (n > sizeof comm->site - 1) { /* the end of a path says more than its beginning */
    text += n - (sizeof comm->site - 1);
    n = sizeof comm->site - 1;
  }
  if (n) memcpy(comm->site, text, n);
  memset(comm->site + n, 0, sizeof comm->site - n);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Keeps the first failure, which ends all later calls. */
static int keep_failure(tide_comm *comm, int status, const char *message)
{
  if (!comm->status && (status == TIDE_E_COMM || status == TIDE_E_TIMEOUT ||
                        status == TIDE_E_PEER || status == TIDE_E_INTERRUPT)) {
    comm->status = status;
    snprintf(comm->message, sizeof comm->message, "%s", message);
    tide__log(comm->ctx, TIDE_LOG_ERROR, "communicator '%s' has failed: %s", comm->name, message);
  }
  return status;
}

/* Takes over a failure that other ranks have set. */
static void see_failure(tide_comm *comm)
{
  char text[TIDE__COMM_TEXT];
  if (comm->status || !tide__failed(comm->failure)) return;
  keep_failure(comm, tide__failure_get(comm->failure, comm->rank, text, sizeof text), text);
}

/* Returns whether this rank has set the failure. A failure of another rank is reported by the next
 * call: whether an asynchronous call or its wait fails must not depend on timing. */
static bool began_here(tide_comm *comm)
{
  return tide__failed(comm->failure) && comm->failure->rank == comm->rank;
}

int tide_comm_status(tide_comm *comm)
{
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  see_failure(comm);
  return comm->status ? tide__fail(comm->ctx, comm->status, "comm", "%s", comm->message) : TIDE_OK;
}

void tide_comm_abort(tide_comm *comm, const char *reason)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(COMM, comm));
  char text[TIDE__COMM_TEXT];
  snprintf(text, sizeof text, "rank %d aborted '%s': %s", comm->rank, comm->name,
           reason && *reason ? reason : "no reason given");
  if (comm->transport->abort)
    comm->transport->abort(comm->state, comm->rank, TIDE_E_PEER, text);
  else tide__failure_set(comm->failure, TIDE_E_PEER, comm->rank, text, NULL);
}

int tide__comm_check(tide_comm *comm, const char *op)
{
  tide__objects_settle(comm->ctx);
  tide__work_reap(comm);
  if (comm->group && *comm->group->mark != 1)
    return tide__fail(comm->ctx, TIDE_E_STATE, op, "this process is a fork of the one that joined "
                      "'%s'; make a group of its own", comm->name);
  if (comm->transport->watched || began_here(comm)) see_failure(comm);
  if (comm->status) return tide__fail(comm->ctx, comm->status, op, "%s", comm->message);
  return TIDE_OK;
}

void tide__comm_each(tide_ctx *ctx, const tide_group *group, void (*fn)(tide_comm *comm))
{
  for (tide__participant *p = ctx->participants, *next; p; p = next) {
    next = p->next;
    tide_comm *comm = tide__comm_of(p);
    if (comm && comm->group == group) fn(comm);
  }
}

void tide__comm_rest(tide_comm *comm)
{
  if (comm->engine) tide__work_drain(comm);
}

void tide__comm_adopt(tide_comm *comm)
{
  int64_t n = comm->transport->mended ? comm->transport->mended(comm->state) : 0;
  if (n == comm->nmend) return;
  comm->nmend = n;
  comm->status = TIDE_OK;
  comm->message[0] = 0;
  comm->seq = 0;
}

/* ---- running --------------------------------------------------------------------------------- */

int64_t tide__coll_count(const tide__coll *c)
{
  int64_t n = 0;
  for (int64_t s = 0; s < c->nseg; s++) n += c->seg[s].out ? c->seg[s].nout : c->seg[s].nin;
  return c->nseg ? n : c->count;
}

void tide__comm_note(tide_comm *comm, const tide__coll *c, bool async)
{
  tide_comm_record *r = &comm->ring[c->seq % TIDE__NRECORD];
  *r = (tide_comm_record){.seq = c->seq, .count = tide__coll_count(c), .begin = c->begin,
                          .status = TIDE_MORE, .op = c->op, .reduce = c->reduce,
                          .dtype = c->dtype, .root = c->root, .async = async};
  memcpy(r->site, c->site, sizeof r->site);
}

void tide__coll_execute(const tide__transport *transport, void *state, int rank, tide__coll *c)
{
  c->begin = tide_trace_clock();
  tide__coll_begin(c);
  c->status = transport->run(state, rank, c);
  c->end = tide_trace_clock();
}

int tide__comm_settle(tide_comm *comm, tide__coll *c)
{
  tide_comm_record *r = &comm->ring[c->seq % TIDE__NRECORD];
  if (r->seq == c->seq) {
    r->begin = c->begin;
    r->end = c->end;
    r->status = c->status;
  }
  if (c->end - c->begin > c->timeout / 2)
    tide__log(comm->ctx, TIDE_LOG_WARN, "#%lld %s on '%s' at %s took %.3g s; the timeout is %g s",
              (long long)c->seq, tide_coll_name(c->op), comm->name, c->site[0] ? c->site : "?",
              c->end - c->begin, c->timeout);
  if (tide__tracing(comm->ctx)) {
    char name[104];
    snprintf(name, sizeof name, "%s#%lld %s", tide_coll_name(c->op), (long long)c->seq, comm->name);
    tide_trace_span(comm->ctx, "comm", name, c->begin, c->end);
  }
  return keep_failure(comm, c->status, c->message);
}

/* Binds c to the device that holds its operands, for transports that take both host and device. */
static int bind_device(tide_comm *comm, tide__coll *c, int64_t nt, tide_tensor *const *ts)
{
  const char *op = tide_coll_name(c->op);
  const tide__device *d = nt ? &comm->ctx->devices->device[ts[0]->storage->device] : NULL;
  if (!comm->transport->shared_device || !d) return TIDE_OK;
  for (int64_t i = 1; i < nt; i++)
    if (ts[i]->storage->device != ts[0]->storage->device)
      return tide__fail(comm->ctx, TIDE_E_DEVICE, op, "tensors on '%s' and on '%s' in one call; "
                        "move them to one device first", tide_device_name(ts[0]->storage->device),
                        tide_device_name(ts[i]->storage->device));
  if (!d->backend->streams) return TIDE_OK;
  if (comm->nrank > TIDE__DEVICE_RANKS)
    return tide__fail(comm->ctx, TIDE_E_UNSUPPORTED, op, "at most %d ranks can share device '%s', "
                      "got %d", TIDE__DEVICE_RANKS, tide_device_name(d->backend->device),
                      comm->nrank);
  int rc = comm->stream.device ? TIDE_OK : tide__stream_open(&comm->stream, d);
  if (rc == TIDE_OK) rc = tide__coll_bind(c, &comm->stream);
  return rc == TIDE_OK ? rc : tide__fail(comm->ctx, TIDE_E_DEVICE, op, "device '%s': %s",
                                         tide_device_name(d->backend->device),
                                         d->backend->why(d->state));
}

/* Runs a blocking call that must be watched: the host waits until the helper thread has enqueued
 * it, and compute waits for the rest. */
static int comm_run_watched(tide_comm *comm, tide__coll *c, int64_t nt, tide_tensor *const *ts)
{
  tide_work *work;
  c->blocking = true;
  TIDE_TRY(tide__comm_run(comm, c, &work, nt, ts));
  int rc = tide_work_wait(work);
  tide_work_release(work);
  return rc;
}

/* Makes compute wait for what the call has enqueued; the host does not wait. */
static int order_after(tide__coll *c)
{
  if (!c->event) return TIDE_OK;
  int rc = tide__coll_order(c);
  tide__coll_forget(c);
  return rc;
}

void tide__comm_number(tide_comm *comm, tide__coll *c)
{
  c->seq = comm->seq + 1;
  c->timeout = comm->timeout;
  c->interrupt = &comm->ctx->interrupt;
  memcpy(c->site, comm->site, sizeof c->site);
}

/* Makes c part of the step that is being captured. */
static int capture(tide_comm *comm, tide__coll *c, bool by_host)
{
  const char *op = tide_coll_name(c->op);
  if (by_host) return tide__not_captured(comm->ctx, op);
  if (!comm->transport->captures)
    return tide__fail(comm->ctx, TIDE_E_STATE, op, "a step is being captured, and calls of the "
                      "'%s' transport are made by the host, which a replay would not repeat (those "
                      "over NCCL can be captured); meet the other ranks before or after the step",
                      comm->transport->name);
  TIDE_TRY(tide__participant_enter(comm->ctx, &comm->participant));
  c->captured = true;
  return TIDE_OK;
}

int tide__comm_run(tide_comm *comm, tide__coll *c, tide_work **work, int64_t nt,
                   tide_tensor *const *ts)
{
  bool by_host = c->op == TIDE__BARRIER || c->op == TIDE__SPLIT;
  const char *op = tide_coll_name(c->op);
  if (!work && comm->transport->watched && !by_host) return comm_run_watched(comm, c, nt, ts);
  if (comm->ctx->capture) TIDE_TRY(capture(comm, c, by_host));
  TIDE_TRY(bind_device(comm, c, nt, ts));
  tide__comm_number(comm, c);
  if (work) {
    int rc = tide__work_submit(work, comm, c, nt, ts);
    if (rc < 0) {
      tide__coll_unbind(c);
      return rc;
    }
    comm->seq++;
    tide__traffic_add(c->captured ? &comm->recorded->traffic : &comm->stats, c, comm->rank,
                      comm->nrank, comm->host_size);
    return TIDE_OK;
  }
  comm->seq++;
  tide__traffic_add(&comm->stats, c, comm->rank, comm->nrank, comm->host_size);
  if (comm->engine) tide__work_drain(comm);
  tide__comm_note(comm, c, false);
  tide__comm_await(comm, c->seq);
  c->alone = comm->ctx->nwork == 0;
  if (comm->transport->draw) c->turn = comm->transport->draw(comm->state);
  tide__coll_execute(comm->transport, comm->state, comm->rank, c);
  tide__comm_await(comm, 0);
  comm->stats.seconds += c->end - c->begin;
  int rc = tide__comm_settle(comm, c), ordered = order_after(c);
  if (rc < 0) return tide__fail(comm->ctx, rc, op, "%s", c->message);
  return ordered < 0 ? tide__fail(comm->ctx, ordered, op, "the device failed") : TIDE_OK;
}

void tide__comm_await(tide_comm *comm, int64_t seq)
{
  if (comm->transport->await) comm->transport->await(comm->state, comm->rank, seq);
}

/* ---- history and traffic --------------------------------------------------------------------- */

int tide_comm_history(tide_comm *comm, int64_t i, tide_comm_record *record)
{
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  tide__work_reap(comm);
  int64_t kept = comm->seq < TIDE__NRECORD ? comm->seq : TIDE__NRECORD;
  if (i < 0)
    return tide__fail(comm->ctx, TIDE_E_ARG, "comm_history", "i: expected 0 or more, got %lld",
                      (long long)i);
  if (i >= kept) return TIDE_MORE;
  *record = comm->ring[(comm->seq - kept + 1 + i) % TIDE__NRECORD];
  return TIDE_OK;
}

int tide_comm_traffic(tide_comm *comm, tide_comm_stats *stats)
{
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  *stats = comm->stats;
  return TIDE_OK;
}

/* ---- split ----------------------------------------------------------------------------------- */

/* Splits a communicator whose handle may be released already, as that of a host communicator. */
static int comm_split(tide_comm **out, tide_comm *comm, int color, int key, const char *name)
{
  *out = NULL;
  char text[TIDE__COMM_NAME];
  TIDE_TRY(tide__comm_check(comm, "split"));
  snprintf(text, sizeof text, "%s", name && *name ? name : "part");
  tide__coll c = {.op = TIDE__SPLIT, .reduce = -1, .dtype = -1, .root = -1, .color = color,
                  .key = key, .name = text};
  TIDE_TRY(tide__comm_run(comm, &c, NULL, 0, NULL));
  if (c.sub_size == 0 && comm->host) return comm_split(out, comm->host, color, key, name);
  if (c.sub_size == 0) return TIDE_MORE;
  int rc = tide__comm_new(out, comm->ctx, comm->transport, c.sub, comm->group, c.sub_rank,
                          c.sub_size, text);
  if (rc < 0) return rc;
  (*out)->timeout = comm->timeout;
  if (comm->host_size < comm->nrank) (*out)->host_size = comm->host_size;
  rc = comm->host ? comm_split(&(*out)->host, comm->host, color, key, name) : TIDE_OK;
  if (rc == TIDE_OK) return rc;
  tide_comm_release(*out);
  *out = NULL;
  return rc;
}

int tide_comm_split(tide_comm **out, tide_comm *comm, int color, int key, const char *name)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(COMM, comm));
  return comm_split(out, comm, color, key, name);
}
