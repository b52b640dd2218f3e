/* comm_nccl: device tensors, over NCCL. Each rank is a thread or a process with a device.
 *
 * The one idea: another communicator of the same ranks (local, MPI or self) carries what NCCL needs
 * before it can talk: whether every rank can, and the unique id. After that NCCL moves the data on
 * a stream that this communicator owns, behind what was on compute at the call, and this rank
 * polls: NCCL (ready? an asynchronous error?), the stream (done?), the clock and the interrupt.
 * NCCL's calls do not block (config.blocking 0), so a rank that never comes is a timeout in all of
 * them, also in init and split. A failure aborts NCCL's communicator, which ends the wait of the
 * others by their own errors or timeouts; it is never used again. An abort from another thread is
 * carried out by the thread that is inside NCCL, when it next looks.
 *
 * What NCCL has no collective for is a group of sends and receives; a reduce_scatter of unequal
 * parts is a group of reduces. Reductions are in NCCL's order, not in rank order: equal from run to
 * run on the same machine, but not the bits of other transports. A mean is NCCL's: in f16 and bf16
 * it may round at every hop. With check, ranks gather what each is about to do and compare it
 * first.
 *
 * No device has run this; spec/cuda/nccl_spec.lua runs it against an emulated NCCL.
 *
 * Layer 4.
 */
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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
  bool check;
} shared;

typedef struct nccl_comm {
  shared *all;
  void *comm;                  /* null after an abort */
  void *stream;                /* of its own */
  char *scratch;               /* on the device: what a barrier sums, what calls are compared by */
  char *words;                 /* pinned: the same for the host; null without check */
  int rank, nrank;
  void **kept;                 /* handles of registered buffers */
  size_t nkept, room;          /* used and allocated */
  pthread_mutex_t lock;        /* cause, text, busy, comm's end */
  int cause;
  bool busy;                   /* a thread is inside NCCL: it carries an abort out */
  char text[TIDE__COMM_TEXT];
} nccl_comm;

static const tide__streams *streams_of(const nccl_comm *s) { return s->all->backend->streams; }
static bool going(int rc) { return rc == TIDE__NCCL_OK || rc == TIDE__NCCL_IN_PROGRESS; }

/* ---- failures -------------------------------------------------------------------------------- */

/* Under the lock. NCCL's kernels end, and with them every wait. */
static void end_comm(nccl_comm *s)
{
  if (s->comm) s->all->api.comm_abort(s->comm);
  s->comm = NULL;
}

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

/* The first cause stays. */
static void abort_comm(void *state, int rank, int status, const char *text)
{
  nccl_comm *s = state;
  (void)rank;
  pthread_mutex_lock(&s->lock);
  if (!s->cause) {
    s->cause = status;
    snprintf(s->text, sizeof s->text, "%s", text);
    if (!s->busy) end_comm(s);
  }
  pthread_mutex_unlock(&s->lock);
}

/* Around every use of s->comm by a call. False: the communicator has failed. */
static bool enter(nccl_comm *s, tide__coll *c)
{
  pthread_mutex_lock(&s->lock);
  s->busy = !s->cause;
  if (s->cause) snprintf(c->message, sizeof c->message, "%s", s->text);
  pthread_mutex_unlock(&s->lock);
  return s->busy;
}

static int leave_call(nccl_comm *s, int rc)
{
  pthread_mutex_lock(&s->lock);
  s->busy = false;
  if (s->cause) end_comm(s);
  pthread_mutex_unlock(&s->lock);
  return rc;
}

static int fail(nccl_comm *s, tide__coll *c, int status, const char *text)
{
  if (text != c->message) snprintf(c->message, sizeof c->message, "%s", text);
  abort_comm(s, s->rank, status, c->message);
  return status;
}

static int nccl_failed(nccl_comm *s, tide__coll *c, int error)
{
  const char *more = s->all->api.last_error(s->comm);
  snprintf(c->message, sizeof c->message, "NCCL in #%lld %s at %s: %s%s%.300s", (long long)c->seq,
           tide_coll_name(c->op), c->site[0] ? c->site : "?", s->all->api.error_string(error),
           more && *more ? "; " : "", more ? more : "");
  return fail(s, c, TIDE_E_PEER, c->message);
}

static int device_failed(nccl_comm *s, tide__coll *c)
{
  const char *why = s->all->backend->failed(s->all->device);
  snprintf(c->message, sizeof c->message, "the device has failed: %.300s", why ? why : "unknown");
  return fail(s, c, TIDE_E_PEER, c->message);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Yields at first; then naps, so that a long wait costs no processor. */
static void nap(double waited)
{
  struct timespec ts = {0, 50000};
  if (waited < 200e-6) sched_yield();
  else nanosleep(&ts, NULL);
}

/* What ends a wait before its time: 0, or the status of the failure. */
static int hindered(nccl_comm *s, tide__coll *c, int error, double waited)
{
  int known = cause(s, s->rank, c->message, sizeof c->message);
  if (known) return known;
  if (!going(error)) return nccl_failed(s, c, error);
  if (c->interrupt && atomic_load_explicit(c->interrupt, memory_order_relaxed) > 1) {
    atomic_store(c->interrupt, 0);
    return fail(s, c, TIDE_E_INTERRUPT, "this rank was interrupted in a collective");
  }
  if (waited <= c->timeout) return TIDE_OK;
  snprintf(c->message, sizeof c->message, "rank %d waited %g s in #%lld %s at %s; NCCL does not "
           "tell for whom (tide trace does)", s->rank, c->timeout, (long long)c->seq,
           tide_coll_name(c->op), c->site[0] ? c->site : "?");
  return fail(s, c, TIDE_E_TIMEOUT, c->message);
}

/* Until NCCL has taken what it was given: after that it is on the stream. */
static int wait_ready(nccl_comm *s, tide__coll *c)
{
  double start = tide_trace_clock();
  for (;;) {
    int error = TIDE__NCCL_OK;
    int rc = s->all->api.comm_async_error(s->comm, &error);
    double waited = tide_trace_clock() - start;
    int bad = hindered(s, c, going(rc) ? error : rc, waited);
    if (bad < 0) return bad;
    if (error == TIDE__NCCL_OK) return TIDE_OK;
    nap(waited);
  }
}

/* Until the stream has done it. A stream also ends when NCCL was aborted: that is looked at after.
 * */
static int wait_stream(nccl_comm *s, tide__coll *c)
{
  double start = tide_trace_clock();
  for (;;) {
    int done = streams_of(s)->done(s->all->device, s->stream), error = TIDE__NCCL_OK;
    if (done < 0) return device_failed(s, c);
    s->all->api.comm_async_error(s->comm, &error);
    double waited = tide_trace_clock() - start;
    int bad = hindered(s, c, error, done ? 0 : waited);
    if (bad < 0 || done) return bad;
    nap(waited);
  }
}

/* rc: of the group that has ended. */
static int wait_for(nccl_comm *s, tide__coll *c, int rc)
{
  if (!going(rc)) return nccl_failed(s, c, rc);
  int status = wait_ready(s, c);
  return status < 0 ? status : wait_stream(s, c);
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

static int segs(nccl_comm *s, const tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  int rc = TIDE__NCCL_OK;
  for (int64_t i = 0; i < c->nseg && going(rc); i++) {
    const tide__seg *g = &c->seg[i];
    size_t n = (size_t)g->nout;
    int type = type_of(g->out_type);
    if (n == 0) continue;
    if (c->op == TIDE__BROADCAST)
      rc = l->broadcast(g->out, g->out, n, type, c->root, s->comm, s->stream);
    else if (c->op == TIDE__REDUCE)
      rc = l->reduce(g->out, g->out, n, type, op_of(c->reduce, g->out_type), c->root, s->comm,
                     s->stream);
    else
      rc = l->all_reduce(g->out, g->out, n, type, op_of(c->reduce, g->out_type), s->comm,
                         s->stream);
  }
  return rc;
}

static int put(const nccl_comm *s, const char *p, size_t n, int to)
{
  return n ? s->all->api.send(p, n, BYTES, to, s->comm, s->stream) : TIDE__NCCL_OK;
}

static int take(const nccl_comm *s, char *p, size_t n, int from)
{
  return n ? s->all->api.recv(p, n, BYTES, from, s->comm, s->stream) : TIDE__NCCL_OK;
}

static int send_recv(nccl_comm *s, const tide__coll *c)
{
  int rc = TIDE__NCCL_OK;
  for (int64_t i = 0; i < c->nseg && going(rc); i++) {
    const tide__seg *g = &c->seg[i];
    if (c->to >= 0)
      rc = put(s, g->in, (size_t)(g->nin * tide_dtype_size(g->in_type)), c->to);
    if (going(rc) && c->from >= 0)
      rc = take(s, g->out, (size_t)(g->nout * tide_dtype_size(g->out_type)), c->from);
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
static int pairs(nccl_comm *s, const tide__coll *c)
{
  bool same = c->op == TIDE__ALL_GATHER_V || c->op == TIDE__GATHER; /* one input for all */
  size_t give, get, from = 0, to = 0;
  int rc = TIDE__NCCL_OK;
  for (int q = 0; q < s->nrank && going(rc); q++) {
    parts(s, c, q, &give, &get);
    rc = put(s, c->in + (same ? 0 : from), give, q);
    if (going(rc)) rc = take(s, c->out + to, get, q);
    from += give;
    to += get;
  }
  return rc;
}

static int reduce_scatter_v(nccl_comm *s, const tide__coll *c)
{
  int rc = TIDE__NCCL_OK;
  const char *at = c->in;
  for (int q = 0; q < s->nrank && going(rc); q++) {
    size_t n = (size_t)c->in_counts[q];
    if (n) rc = s->all->api.reduce(at, c->out, n, type_of(c->dtype), op_of(c->reduce, c->dtype), q,
                                   s->comm, s->stream);
    at += n * c->size;
  }
  return rc;
}

static int enqueue(nccl_comm *s, const tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  int type = type_of(c->dtype), op = c->reduce >= 0 ? op_of(c->reduce, c->dtype) : 0;
  size_t n = (size_t)c->count;
  switch (c->op) {
  case TIDE__ALL_REDUCE: case TIDE__REDUCE: case TIDE__BROADCAST: return segs(s, c);
  case TIDE__SEND_RECV: return send_recv(s, c);
  case TIDE__REDUCE_SCATTER_V: return reduce_scatter_v(s, c);
  case TIDE__ALL_GATHER:
    return n ? l->all_gather(c->in, c->out, n, type, s->comm, s->stream) : TIDE__NCCL_OK;
  case TIDE__REDUCE_SCATTER:
    return n ? l->reduce_scatter(c->in, c->out, n, type, op, s->comm, s->stream) : TIDE__NCCL_OK;
  case TIDE__BARRIER:
    return l->all_reduce(s->scratch, s->scratch, 8, BYTES, 0, s->comm, s->stream);
  default: return pairs(s, c);
  }
}

/* ---- comparing calls ------------------------------------------------------------------------- */

enum { WORDS = sizeof(tide__call_words), BARRIER = 64 };

static size_t scratch_size(const nccl_comm *s) { return BARRIER + (size_t)(s->nrank + 1) * WORDS; }

/* Each rank says what it is about to do: ranks that share a call share a line. */
static int disagree(nccl_comm *s, tide__coll *c, const tide__call_words *all)
{
  char *text = c->message, call[128];
  size_t n = sizeof c->message, at = 0;
  tide__append(text, n, &at, "ranks disagree about call #%lld at %s; no data was moved",
               (long long)c->seq, c->site[0] ? c->site : "?");
  for (int q = 0; q < s->nrank; q++) {
    int first = 0;
    while (memcmp(&all[first], &all[q], WORDS)) first++;
    if (first < q) continue;
    tide__append(text, n, &at, "\n  rank %d", q);
    for (int k = q + 1; k < s->nrank; k++)
      if (memcmp(&all[k], &all[q], WORDS) == 0) tide__append(text, n, &at, ", %d", k);
    tide__append(text, n, &at, ": %s", tide__call_text(&all[q], call, sizeof call));
  }
  return fail(s, c, TIDE_E_COMM, c->message);
}

/* The words of all ranks, by way of the device. The same answer on every rank. */
static int compare(nccl_comm *s, tide__coll *c)
{
  const tide__streams *st = streams_of(s);
  tide__call_words *mine = (tide__call_words *)s->words, *all = mine + 1;
  char *on_device = s->scratch + BARRIER;
  *mine = tide__call_pack(c);
  int rc = st->move(s->all->device, s->stream, on_device, mine, WORDS, true);
  if (rc < 0) return device_failed(s, c);
  rc = s->all->api.all_gather(on_device, on_device + WORDS, WORDS, BYTES, s->comm, s->stream);
  if (going(rc) && wait_ready(s, c) < 0) return s->cause;
  if (going(rc) && st->move(s->all->device, s->stream, all, on_device + WORDS,
                            (size_t)s->nrank * WORDS, false) < 0)
    return device_failed(s, c);
  rc = wait_for(s, c, rc);
  for (int q = 0; q < s->nrank && rc == TIDE_OK; q++)
    if (memcmp(&all[q], mine, WORDS)) rc = disagree(s, c, all);
  return rc;
}

static int run_inside(nccl_comm *s, tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  if (streams_of(s)->bind(s->all->device) < 0) return device_failed(s, c);
  if (streams_of(s)->behind(s->all->device, s->stream) < 0) return device_failed(s, c);
  int status = s->words ? compare(s, c) : TIDE_OK;
  if (status < 0) return status;
  int rc = l->group_start();
  if (going(rc)) {
    rc = enqueue(s, c);
    int end = l->group_end();
    if (going(rc)) rc = end;
  }
  return wait_for(s, c, rc);
}

static int run(void *state, int rank, tide__coll *c)
{
  nccl_comm *s = state;
  (void)rank;
  return enter(s, c) ? leave_call(s, run_inside(s, c)) : s->cause;
}

/* ---- life ------------------------------------------------------------------------------------ */

static void drop_shared(shared *all)
{
  if (--all->refs > 0) return;
  tide__nccl_close(&all->api);
  tide__free(all->ctx, all, sizeof *all);
}

enum { FAREWELL = 10 }; /* seconds */

static void leave(void *state, int rank) { (void)state, (void)rank; }

/* Ends it in peace: waits for what the others still do, for a while. */
static void finalize(nccl_comm *s)
{
  const tide__nccl *l = &s->all->api;
  double start = tide_trace_clock();
  int error = TIDE__NCCL_IN_PROGRESS, rc = l->comm_finalize(s->comm);
  while (going(rc) && error == TIDE__NCCL_IN_PROGRESS && tide_trace_clock() - start < FAREWELL) {
    rc = l->comm_async_error(s->comm, &error);
    if (error == TIDE__NCCL_IN_PROGRESS) nap(tide_trace_clock() - start);
  }
  if (error == TIDE__NCCL_OK && going(rc)) l->comm_destroy(s->comm);
  else l->comm_abort(s->comm);
  s->comm = NULL;
}

static void close_comm(void *state, int rank)
{
  nccl_comm *s = state;
  shared *all = s->all;
  const tide__streams *st = all->backend->streams;
  (void)rank;
  st->bind(all->device);
  for (size_t i = 0; s->comm && i < s->nkept; i++) all->api.comm_deregister(s->comm, s->kept[i]);
  tide__free(all->ctx, s->kept, s->room * sizeof *s->kept);
  if (s->comm) finalize(s);
  if (s->stream) st->close(all->device, s->stream);
  if (s->scratch) all->backend->free(all->device, s->scratch, scratch_size(s));
  if (s->words) st->pinned->free(all->device, s->words, scratch_size(s));
  pthread_mutex_destroy(&s->lock);
  tide__free(all->ctx, s, sizeof *s);
  drop_shared(all);
}

/* Takes over a reference to all. Null: no memory, and it is given back. */
static nccl_comm *new_comm(shared *all, int rank, int nrank)
{
  nccl_comm *s = tide__alloc(all->ctx, sizeof *s);
  if (!s) {
    drop_shared(all);
    return NULL;
  }
  s->all = all;
  s->rank = rank;
  s->nrank = nrank;
  pthread_mutex_init(&s->lock, NULL);
  bool good = all->backend->streams->open(all->device, &s->stream) == TIDE_OK;
  if (good) s->scratch = all->backend->alloc(all->device, scratch_size(s));
  if (good && all->check)
    s->words = all->backend->streams->pinned->alloc(all->device, scratch_size(s));
  if (good && s->scratch && (s->words || !all->check)) return s;
  close_comm(s, 0);
  return NULL;
}

/* made, which NCCL may still be making, as a communicator of this library. */
static int adopt(nccl_comm *s, tide__coll *c, void *made)
{
  const tide__nccl *l = &s->all->api;
  nccl_comm one = {.all = s->all, .comm = made, .rank = s->rank};
  int rank = 0, nrank = 0;
  pthread_mutex_init(&one.lock, NULL);
  int rc = wait_ready(&one, c);
  pthread_mutex_destroy(&one.lock);
  if (rc == TIDE_OK &&
      (!going(l->comm_user_rank(made, &rank)) || !going(l->comm_count(made, &nrank))))
    rc = TIDE_E_PEER;
  nccl_comm *sub = NULL;
  if (rc == TIDE_OK) {
    s->all->refs++;
    sub = new_comm(s->all, rank, nrank);
  }
  if (!sub) {
    if (one.comm) l->comm_abort(made);
    return rc < 0 ? fail(s, c, rc, c->message)
                  : fail(s, c, TIDE_E_PEER, "no memory for a communicator");
  }
  sub->comm = made;
  c->sub = sub;
  c->sub_rank = rank;
  c->sub_size = nrank;
  return TIDE_OK;
}

static int split_inside(nccl_comm *s, tide__coll *c)
{
  void *made = NULL;
  if (streams_of(s)->bind(s->all->device) < 0) return device_failed(s, c);
  int rc = s->all->api.comm_split(s->comm, c->color < 0 ? -1 : c->color, c->key, &made, NULL);
  if (!going(rc)) return nccl_failed(s, c, rc);
  int status = wait_ready(s, c);
  return status < 0 || !made ? status : adopt(s, c, made);
}

static int run_split(void *state, int rank, tide__coll *c)
{
  nccl_comm *s = state;
  (void)rank;
  return enter(s, c) ? leave_call(s, split_inside(s, c)) : s->cause;
}

static bool make_room(nccl_comm *s)
{
  if (s->nkept < s->room) return true;
  size_t room = s->room ? 2 * s->room : 8;
  void **list = tide__alloc(s->all->ctx, room * sizeof *list);
  if (!list) return false;
  if (s->nkept) memcpy(list, s->kept, s->nkept * sizeof *list);
  tide__free(s->all->ctx, s->kept, s->room * sizeof *list);
  s->kept = list;
  s->room = room;
  return true;
}

/* On the owner's thread, with no call under way or before it: NCCL takes both. */
static int keep(void *state, void *ptr, size_t size, char *text, size_t n)
{
  nccl_comm *s = state;
  const tide__nccl *l = &s->all->api;
  void *handle = NULL;
  if (!l->comm_register || !l->comm_deregister) {
    snprintf(text, n, "NCCL %d.%d registers no buffers; 2.19 and later do", l->version / 10000,
             l->version / 100 % 100);
    return TIDE_E_UNSUPPORTED;
  }
  if (!make_room(s)) {
    snprintf(text, n, "no host memory");
    return TIDE_E_NOMEM;
  }
  int rc = s->comm ? l->comm_register(s->comm, ptr, size, &handle) : TIDE__NCCL_OK;
  if (going(rc) && handle) s->kept[s->nkept++] = handle;
  if (going(rc)) return TIDE_OK;
  snprintf(text, n, "NCCL: %s", l->error_string(rc));
  return TIDE_E_COMM;
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
  .keep = keep,
};

/* ---- opening --------------------------------------------------------------------------------- */

/* What this rank can do alone: the library, a device that has streams. */
static int open_shared(shared **out, tide_comm *over, const tide_nccl_opts *opts, char *msg,
                       size_t n)
{
  tide__device *d = &over->ctx->devices->device[TIDE_DEV_CUDA];
  shared *all = *out = tide__alloc(over->ctx, sizeof *all);
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

/* NCCL's communicator for s: every rank comes, or the time runs out. */
static int join(nccl_comm *s, tide_comm *over, tide__nccl_id id, char *msg, size_t n)
{
  const tide__nccl *l = &s->all->api;
  tide__coll c = {.op = TIDE__SPLIT, .timeout = over->timeout, .interrupt = &over->ctx->interrupt};
  tide__nccl_config config = {
    .size = sizeof config, .magic = (unsigned)TIDE__NCCL_MAGIC, .version = TIDE__NCCL_OLDEST,
    .blocking = 0, .cga_size = INT_MIN, .min_ctas = INT_MIN, .max_ctas = INT_MIN,
    .net_name = NULL, .split_share = INT_MIN};
  s->busy = true;
  int error = l->comm_init(&s->comm, over->nrank, id, over->rank, &config);
  int rc = going(error) ? wait_ready(s, &c) : TIDE_E_COMM;
  if (!going(error)) snprintf(msg, n, "NCCL: %s", l->error_string(error));
  else if (rc < 0) snprintf(msg, n, "%.400s", c.message);
  return leave_call(s, rc);
}

void tide_nccl_opts_init(tide_nccl_opts *opts) { *opts = (tide_nccl_opts){.size = sizeof *opts}; }

int tide_comm_nccl(tide_comm **out, tide_comm *over, const tide_nccl_opts *opts)
{
  char msg[512] = "";
  tide_nccl_opts usual;
  shared *all = NULL;
  nccl_comm *s = NULL;
  tide__nccl_id id = {{0}};
  *out = NULL;
  TIDE_TRY(tide__comm_check(over, "comm_nccl"));
  tide_nccl_opts_init(&usual);
  if (!opts) opts = &usual;
  int rc = open_shared(&all, over, opts, msg, sizeof msg);
  if (rc == TIDE_OK && all->backend->streams->bind(all->device) < 0) rc = TIDE_E_DEVICE;
  if (rc == TIDE_OK && !(s = new_comm(all, over->rank, over->nrank))) {
    snprintf(msg, sizeof msg, "no memory for a communicator");
    rc = TIDE_E_NOMEM;
    all = NULL;
  }
  rc = agree(over, rc, msg, sizeof msg);
  if (rc == TIDE_OK) rc = share_id(over, &all->api, &id, msg, sizeof msg);
  if (rc == TIDE_OK) rc = join(s, over, id, msg, sizeof msg);
  if (rc < 0) {
    if (s) close_comm(s, 0);
    else if (all) drop_shared(all);
    return *msg ? tide__fail(over->ctx, rc, "comm_nccl", "%s", msg) : rc;
  }
  rc = tide__comm_new(out, over->ctx, &transport_nccl, s, NULL, over->rank, over->nrank,
                      over->name);
  if (rc < 0) return rc;
  (*out)->timeout = over->timeout;
  (*out)->host = over;
  over->refs++;
  return TIDE_OK;
}
