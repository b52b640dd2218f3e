/* comm_nccl: device tensors, over NCCL. Each rank is a thread or a process with a device.
 *
 * The one idea: another communicator of the same ranks (local, MPI or self) carries what NCCL needs
 * before it can talk: whether every rank can, and the unique id. After that NCCL moves the data on
 * the stream of the device backend, and this rank polls: the stream (done?), NCCL (an asynchronous
 * error?), the clock and the interrupt. A failure aborts NCCL's communicator, which ends the wait
 * of the others by their own errors or timeouts; it is never used again.
 *
 * What NCCL has no collective for is a group of sends and receives; a reduce_scatter of unequal
 * parts is a group of reduces. Reductions are in NCCL's order, not in rank order: equal from run to
 * run on the same machine, but not the bits of other transports. Calls are not compared.
 *
 * UNVERIFIED: no device has run this. It compiles, and loads a real libnccl; the refusals are
 * tested. The backend seam is two optional members, stream and stream_done (core/device/backend.h),
 * which a CUDA backend has to fill. Operands must be written by work on that same stream. The
 * caller must have chosen the rank's device (as CUDA understands it) before tide_comm_nccl.
 *
 * Layer 4.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/base/alloc.h"
#include "core/base/status.h"
#include "core/device/device.h"
#include "core/dist/comm.h"
#include "core/dist/nccl_api.h"

/* What all communicators of one opening share. */
typedef struct shared {
  int refs;
  tide_ctx *ctx;               /* of this rank; every communicator holds it */
  tide__nccl api;
  const tide__backend *backend;
  void *device;                /* the backend's state */
} shared;

typedef struct nccl_comm {
  shared *all;
  void *comm;                  /* null after an abort */
  char *scratch;               /* 8 bytes on the device: what a barrier sums */
  int rank, nrank;
  pthread_mutex_t lock;        /* cause, text, comm's end */
  int cause;
  char text[TIDE__COMM_TEXT];
} nccl_comm;

/* ---- failures -------------------------------------------------------------------------------- */

static int cause(void *state, int rank, char *text, size_t n)
{
  nccl_comm *s = state;
  (void)rank;
  pthread_mutex_lock(&s->lock);
  int status = s->cause;
  if (status) snprintf(text, n, "%s", s->text);
  pthread_mutex_unlock(&s->lock);
  return status;
}

/* The first cause stays. NCCL's kernels end, and with them every wait. */
static void abort_comm(void *state, int rank, int status, const char *text)
{
  nccl_comm *s = state;
  (void)rank;
  pthread_mutex_lock(&s->lock);
  if (!s->cause) {
    s->cause = status;
    snprintf(s->text, sizeof s->text, "%s", text);
    if (s->comm) s->all->api.comm_abort(s->comm);
    s->comm = NULL;
  }
  pthread_mutex_unlock(&s->lock);
}

static int fail(nccl_comm *s, tide__coll *c, int status, const char *text)
{
  if (text != c->message) snprintf(c->message, sizeof c->message, "%s", text);
  abort_comm(s, s->rank, status, c->message);
  return status;
}

static int nccl_failed(nccl_comm *s, tide__coll *c, int error)
{
  snprintf(c->message, sizeof c->message, "NCCL in #%lld %s at %s: %s", (long long)c->seq,
           tide_coll_name(c->op), c->site[0] ? c->site : "?", s->all->api.error_string(error));
  return fail(s, c, TIDE_E_PEER, c->message);
}

/* Until the stream has done the collective. */
static int wait_stream(nccl_comm *s, tide__coll *c)
{
  double start = tide_trace_clock();
  for (;;) {
    int done = s->all->backend->stream_done(s->all->device), error = TIDE__NCCL_OK;
    if (done > 0) return TIDE_OK;
    if (done < 0) return fail(s, c, TIDE_E_PEER, "the device has failed");
    pthread_mutex_lock(&s->lock);
    if (s->comm) s->all->api.comm_async_error(s->comm, &error);
    int known = s->cause;
    pthread_mutex_unlock(&s->lock);
    if (known) return cause(s, s->rank, c->message, sizeof c->message);
    if (error != TIDE__NCCL_OK && error != TIDE__NCCL_IN_PROGRESS) return nccl_failed(s, c, error);
    if (c->interrupt && atomic_load_explicit(c->interrupt, memory_order_relaxed) > 1) {
      atomic_store(c->interrupt, 0);
      return fail(s, c, TIDE_E_INTERRUPT, "this rank was interrupted in a collective");
    }
    if (tide_trace_clock() - start > c->timeout) {
      snprintf(c->message, sizeof c->message, "rank %d waited %g s in #%lld %s at %s; NCCL does "
               "not tell for whom (tide trace does)", s->rank, c->timeout, (long long)c->seq,
               tide_coll_name(c->op), c->site[0] ? c->site : "?");
      return fail(s, c, TIDE_E_TIMEOUT, c->message);
    }
    sched_yield();
  }
}

/* ---- moving data ----------------------------------------------------------------------------- */

enum { BYTES = 1 }; /* ncclUint8 */

static int type_of(int dtype)
{
  switch (dtype) {
  case TIDE_F32: return 7;
  case TIDE_F64: return 8;
  case TIDE_F16: return 6;
  case TIDE_BF16: return 9;
  case TIDE_I64: return 4;
  case TIDE_I32: return 2;
  default: return BYTES; /* u8, bool */
  }
}

/* The product of flags is their minimum. */
static int op_of(int reduce, int dtype)
{
  static const int op[TIDE_NREDUCE] = {
    [TIDE_SUM] = 0, [TIDE_MEAN] = 4, [TIDE_MIN] = 3, [TIDE_MAX] = 2, [TIDE_PROD] = 1};
  return dtype == TIDE_BOOL && reduce == TIDE_PROD ? 3 : op[reduce];
}

static int segs(const nccl_comm *s, const tide__coll *c, void *stream)
{
  const tide__nccl *l = &s->all->api;
  int rc = TIDE__NCCL_OK;
  for (int64_t i = 0; i < c->nseg && rc == TIDE__NCCL_OK; i++) {
    const tide__seg *g = &c->seg[i];
    size_t n = (size_t)g->nout;
    int type = type_of(g->out_type);
    if (n == 0) continue;
    if (c->op == TIDE__BROADCAST)
      rc = l->broadcast(g->out, g->out, n, type, c->root, s->comm, stream);
    else if (c->op == TIDE__REDUCE)
      rc = l->reduce(g->out, g->out, n, type, op_of(c->reduce, g->out_type), c->root, s->comm,
                     stream);
    else
      rc = l->all_reduce(g->out, g->out, n, type, op_of(c->reduce, g->out_type), s->comm, stream);
  }
  return rc;
}

static int put(const nccl_comm *s, const char *p, size_t n, int to, void *stream)
{
  return n ? s->all->api.send(p, n, BYTES, to, s->comm, stream) : TIDE__NCCL_OK;
}

static int take(const nccl_comm *s, char *p, size_t n, int from, void *stream)
{
  return n ? s->all->api.recv(p, n, BYTES, from, s->comm, stream) : TIDE__NCCL_OK;
}

static int send_recv(const nccl_comm *s, const tide__coll *c, void *stream)
{
  int rc = TIDE__NCCL_OK;
  for (int64_t i = 0; i < c->nseg && rc == TIDE__NCCL_OK; i++) {
    const tide__seg *g = &c->seg[i];
    if (c->to >= 0)
      rc = put(s, g->in, (size_t)(g->nin * tide_dtype_size(g->in_type)), c->to, stream);
    if (rc == TIDE__NCCL_OK && c->from >= 0)
      rc = take(s, g->out, (size_t)(g->nout * tide_dtype_size(g->out_type)), c->from, stream);
  }
  return rc;
}

/* Bytes from this rank to q, and from q to this rank; each list of parts lies in rank order. */
static void parts(const nccl_comm *s, const tide__coll *c, int q, size_t *give, size_t *get)
{
  size_t n = (size_t)c->count * c->size;
  bool me_root = s->rank == c->root, q_root = q == c->root;
  *give = *get = n;
  if (c->op == TIDE__ALL_TO_ALL_V) *give = (size_t)c->in_counts[q] * c->size;
  if (c->op == TIDE__ALL_GATHER_V) *give = (size_t)c->out_counts[s->rank] * c->size;
  if (c->op == TIDE__ALL_TO_ALL_V || c->op == TIDE__ALL_GATHER_V)
    *get = (size_t)c->out_counts[q] * c->size;
  if (c->op == TIDE__GATHER) *give = q_root ? n : 0, *get = me_root ? n : 0;
  if (c->op == TIDE__SCATTER) *give = me_root ? n : 0, *get = q_root ? n : 0;
}

/* all_to_all, all_to_all_v, all_gather_v, gather, scatter: whoever has a part for whom. */
static int pairs(const nccl_comm *s, const tide__coll *c, void *stream)
{
  bool same = c->op == TIDE__ALL_GATHER_V || c->op == TIDE__GATHER; /* one input for all */
  size_t give, get, from = 0, to = 0;
  int rc = TIDE__NCCL_OK;
  for (int q = 0; q < s->nrank && rc == TIDE__NCCL_OK; q++) {
    parts(s, c, q, &give, &get);
    rc = put(s, c->in + (same ? 0 : from), give, q, stream);
    if (rc == TIDE__NCCL_OK) rc = take(s, c->out + to, get, q, stream);
    from += give;
    to += get;
  }
  return rc;
}

static int reduce_scatter_v(const nccl_comm *s, const tide__coll *c, void *stream)
{
  int rc = TIDE__NCCL_OK;
  const char *at = c->in;
  for (int q = 0; q < s->nrank && rc == TIDE__NCCL_OK; q++) {
    size_t n = (size_t)c->in_counts[q];
    if (n) rc = s->all->api.reduce(at, c->out, n, type_of(c->dtype), op_of(c->reduce, c->dtype), q,
                                   s->comm, stream);
    at += n * c->size;
  }
  return rc;
}

static int enqueue(const nccl_comm *s, const tide__coll *c, void *stream)
{
  const tide__nccl *l = &s->all->api;
  int type = type_of(c->dtype), op = c->reduce >= 0 ? op_of(c->reduce, c->dtype) : 0;
  size_t n = (size_t)c->count;
  switch (c->op) {
  case TIDE__ALL_REDUCE: case TIDE__REDUCE: case TIDE__BROADCAST: return segs(s, c, stream);
  case TIDE__SEND_RECV: return send_recv(s, c, stream);
  case TIDE__REDUCE_SCATTER_V: return reduce_scatter_v(s, c, stream);
  case TIDE__ALL_GATHER:
    return n ? l->all_gather(c->in, c->out, n, type, s->comm, stream) : TIDE__NCCL_OK;
  case TIDE__REDUCE_SCATTER:
    return n ? l->reduce_scatter(c->in, c->out, n, type, op, s->comm, stream) : TIDE__NCCL_OK;
  case TIDE__BARRIER:
    return l->all_reduce(s->scratch, s->scratch, 8, BYTES, 0, s->comm, stream);
  default: return pairs(s, c, stream);
  }
}

static int run(void *state, int rank, tide__coll *c)
{
  nccl_comm *s = state;
  const tide__nccl *l = &s->all->api;
  int known = cause(s, rank, c->message, sizeof c->message);
  if (known) return known;
  void *stream = s->all->backend->stream(s->all->device);
  int rc = l->group_start();
  if (rc == TIDE__NCCL_OK) {
    rc = enqueue(s, c, stream);
    int end = l->group_end();
    if (rc == TIDE__NCCL_OK) rc = end;
  }
  if (rc != TIDE__NCCL_OK && rc != TIDE__NCCL_IN_PROGRESS) return nccl_failed(s, c, rc);
  return wait_stream(s, c);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void drop_shared(shared *all)
{
  if (--all->refs > 0) return;
  tide__nccl_close(&all->api);
  tide__free(all->ctx, all, sizeof *all);
}

static void leave(void *state, int rank) { (void)state, (void)rank; }

static void close_comm(void *state, int rank)
{
  nccl_comm *s = state;
  (void)rank;
  if (s->comm) s->all->api.comm_destroy(s->comm);
  if (s->scratch) s->all->backend->free(s->all->device, s->scratch, 64);
  pthread_mutex_destroy(&s->lock);
  shared *all = s->all;
  tide__free(all->ctx, s, sizeof *s);
  drop_shared(all);
}

/* Takes over comm and a reference to all; null: no memory, and both are given back. */
static nccl_comm *new_comm(shared *all, void *comm)
{
  nccl_comm *s = tide__alloc(all->ctx, sizeof *s);
  if (!s) {
    all->api.comm_abort(comm);
    drop_shared(all);
    return NULL;
  }
  s->all = all;
  s->comm = comm;
  all->api.comm_user_rank(comm, &s->rank);
  all->api.comm_count(comm, &s->nrank);
  pthread_mutex_init(&s->lock, NULL);
  s->scratch = all->backend->alloc(all->device, 64);
  if (s->scratch) return s;
  close_comm(s, 0);
  return NULL;
}

static int run_split(void *state, int rank, tide__coll *c)
{
  nccl_comm *s = state;
  void *made = NULL;
  int known = cause(s, rank, c->message, sizeof c->message);
  if (known) return known;
  int rc = s->all->api.comm_split(s->comm, c->color < 0 ? -1 : c->color, c->key, &made, NULL);
  if (rc != TIDE__NCCL_OK) return nccl_failed(s, c, rc);
  if (!made) return TIDE_OK;
  s->all->refs++;
  nccl_comm *sub = new_comm(s->all, made);
  if (!sub) return fail(s, c, TIDE_E_PEER, "no memory for a communicator");
  c->sub = sub;
  c->sub_rank = sub->rank;
  c->sub_size = sub->nrank;
  return TIDE_OK;
}

static const tide__transport transport_nccl = {
  .name = "nccl",
  .bytes = true,
  .on_device = true,
  .run = {
    [TIDE__ALL_REDUCE] = run, [TIDE__REDUCE] = run, [TIDE__BROADCAST] = run,
    [TIDE__ALL_GATHER] = run, [TIDE__ALL_GATHER_V] = run, [TIDE__REDUCE_SCATTER] = run,
    [TIDE__REDUCE_SCATTER_V] = run, [TIDE__ALL_TO_ALL] = run, [TIDE__ALL_TO_ALL_V] = run,
    [TIDE__GATHER] = run, [TIDE__SCATTER] = run, [TIDE__SEND_RECV] = run, [TIDE__BARRIER] = run,
    [TIDE__SPLIT] = run_split,
  },
  .cause = cause,
  .abort = abort_comm,
  .leave = leave,
  .close = close_comm,
};

/* ---- opening --------------------------------------------------------------------------------- */

/* What this rank can do alone: the library, a device whose backend has a stream. */
static int open_shared(shared **out, tide_comm *over, const char *library, char *msg, size_t n)
{
  shared *all = *out = tide__alloc(over->ctx, sizeof *all);
  if (!all) {
    snprintf(msg, n, "no memory for a communicator");
    return TIDE_E_NOMEM;
  }
  all->refs = 1;
  all->ctx = over->ctx;
  int rc = tide__nccl_open(&all->api, library, msg, n);
  const tide__device *d = &over->ctx->devices->device[TIDE_DEV_CUDA];
  if (rc == TIDE_OK && (!d->backend || !d->backend->stream || !d->backend->stream_done)) {
    snprintf(msg, n, "NCCL %d.%d is here, but this context has no CUDA device",
             all->api.version / 10000, all->api.version / 100 % 100);
    rc = TIDE_E_UNSUPPORTED;
  }
  if (rc == TIDE_OK) {
    all->backend = d->backend;
    all->device = d->state;
    return TIDE_OK;
  }
  drop_shared(all);
  *out = NULL;
  return rc;
}

/* Every rank learns whether all can; a rank that cannot keeps its own message. */
static int agree(tide_comm *over, int status, char *msg, size_t n)
{
  tide_blob *blob;
  int64_t sizes[TIDE__MAX_RANK];
  char mine = status == TIDE_OK;
  int rc = tide_comm_all_gather_bytes(&blob, over, &mine, 1, sizes);
  if (rc < 0) return rc;
  const char *all = tide_blob_data(blob);
  for (int q = 0; q < over->nrank && status == TIDE_OK; q++) {
    if (all[q]) continue;
    snprintf(msg, n, "rank %d cannot use NCCL; its message says why", q);
    status = TIDE_E_UNSUPPORTED;
  }
  tide_blob_release(blob);
  return status;
}

/* Rank 0's id on every rank; a failure there is a failure everywhere. */
static int share_id(tide_comm *over, const tide__nccl *l, tide__nccl_id *id, char *msg, size_t n)
{
  tide_blob *blob;
  int error = over->rank == 0 ? l->get_unique_id(id) : TIDE__NCCL_OK;
  int rc = tide_comm_broadcast_bytes(&blob, over, id, error == TIDE__NCCL_OK ? sizeof *id : 0, 0);
  if (rc < 0) return rc;
  bool whole = tide_blob_size(blob) == (int64_t)sizeof *id;
  if (whole) memcpy(id, tide_blob_data(blob), sizeof *id);
  else snprintf(msg, n, "NCCL on rank 0 gives no unique id: %s", l->error_string(error));
  tide_blob_release(blob);
  return whole ? TIDE_OK : TIDE_E_COMM;
}

int tide_comm_nccl(tide_comm **out, tide_comm *over, const char *library)
{
  char msg[512] = "";
  shared *all = NULL;
  tide__nccl_id id = {{0}};
  void *comm = NULL;
  *out = NULL;
  TIDE_TRY(tide__comm_check(over, "comm_nccl"));
  int rc = agree(over, open_shared(&all, over, library, msg, sizeof msg), msg, sizeof msg);
  if (rc == TIDE_OK) rc = share_id(over, &all->api, &id, msg, sizeof msg);
  if (rc == TIDE_OK) {
    int error = all->api.comm_init_rank(&comm, over->nrank, id, over->rank);
    if (error != TIDE__NCCL_OK) {
      snprintf(msg, sizeof msg, "NCCL: %s", all->api.error_string(error));
      rc = TIDE_E_COMM;
    }
  }
  if (rc < 0) {
    if (all) drop_shared(all);
    return *msg ? tide__fail(over->ctx, rc, "comm_nccl", "%s", msg) : rc;
  }
  nccl_comm *s = new_comm(all, comm);
  if (!s) return tide__fail(over->ctx, TIDE_E_NOMEM, "comm_nccl", "no memory for a communicator");
  rc = tide__comm_new(out, over->ctx, &transport_nccl, s, NULL, over->rank, over->nrank,
                      over->name);
  if (rc == TIDE_OK) (*out)->timeout = over->timeout;
  return rc;
}
