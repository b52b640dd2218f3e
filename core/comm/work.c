/* Asynchronous collectives: a work keeps its operands until the owner has seen it done.
 *
 * The helper thread of a communicator takes works from a queue in the order of the calls and runs
 * the transport on them; it touches nothing else, neither context nor tensors. It sets `done`; the
 * owner, at its next call, settles the work: record, trace, operands released. So memory is never
 * reused early, and allocator and reference counts stay with one thread.
 *
 * Where a transport leaves a call on a stream (poll in comm.h), it is `issued` when it is there. A
 * call that is to be watched is `done` when the helper has seen its end or its failure; any other
 * is done at once for the helper, and the owner reads its end from its event (landed). A wait for
 * such a work blocks until it is issued and orders compute after it; its operands can
 * then be released, as the next use of their memory is later on compute.
 *
 * A work of a captured step is `issued` when it is recorded, and `done` when compute waits for it
 * in the recording: until then a replay may still use its operands while compute continues. A
 * replay itself is a work without operands and without a handle.
 *
 * Invariant: a work is in the communicator's pending list until settled. A blocking call waits for
 * the queue to empty first, so collectives keep the order of the calls.
 */
#include <math.h>

#include "core/comm/comm.h"
#include "core/tensor/tensor.h"

struct tide_work {
  tide__object object;
  int64_t refs;                /* the user's handle, the pending list */
  tide_comm *comm;             /* counted by the user's handle */
  tide_work *next;             /* pending list */
  tide_work *queue;            /* the helper's queue, then its list of works under way */
  tide__coll coll;
  atomic_int issued;           /* 1: the transport has run; status and event are known */
  atomic_int done;             /* 1 after the helper's last touch */
  bool settled;
  int64_t nt;
  tide_tensor **ts;            /* operands, retained */
  size_t nlist;                /* bytes behind lists */
  char *lists;                 /* copies of seg and counts */
};

struct tide__engine {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t more, done;
  tide_work *first, *last;     /* under lock */
  tide_work *flying;           /* on the stream, oldest first; changed by the helper, under lock */
  bool busy, stop;
  const tide__transport *transport;
  void *state;
  int rank;
};

/* ---- the helper ------------------------------------------------------------------------------ */

/* Takes the works that have ended off the list. The caller holds the lock, which is given up
 * during polls. */
static void work_watch(struct tide__engine *e)
{
  for (tide_work *w; (w = e->flying);) {
    pthread_mutex_unlock(&e->lock);
    int rc = e->transport->poll(e->state, &w->coll);
    pthread_mutex_lock(&e->lock);
    if (rc == 0) return;
    e->flying = w->queue;
    atomic_store_explicit(&w->done, 1, memory_order_release);
    pthread_cond_broadcast(&e->done);
  }
}

enum { LOOK = 2000000, DOZE = 50000000 }; /* nanoseconds */

static tide_work *next_work(struct tide__engine *e)
{
  for (;;) {
    work_watch(e);
    if (e->first || (e->stop && !e->flying)) break;
    if (e->flying) tide__wait_cond(&e->more, &e->lock, LOOK);
    else pthread_cond_wait(&e->more, &e->lock);
  }
  tide_work *w = e->first;
  if (!w) return NULL;
  e->first = w->queue;
  if (!e->first) e->last = NULL;
  e->busy = true;
  return w;
}

static void fly(struct tide__engine *e, tide_work *w)
{
  tide_work **at = &e->flying;
  while (*at) at = &(*at)->queue;
  w->queue = NULL;
  *at = w;
}

static void *helper(void *arg)
{
  struct tide__engine *e = arg;
  tide_work *w;
  pthread_mutex_lock(&e->lock);
  while ((w = next_work(e))) {
    pthread_mutex_unlock(&e->lock);
    tide__coll_execute(e->transport, e->state, e->rank, &w->coll);
    pthread_mutex_lock(&e->lock);
    e->busy = false;
    bool watched = w->coll.event && e->transport->watched;
    if (watched && !w->coll.captured) fly(e, w);
    else if (!watched) atomic_store_explicit(&w->done, 1, memory_order_release);
    atomic_store_explicit(&w->issued, 1, memory_order_release);
    pthread_cond_broadcast(&e->done);
  }
  pthread_mutex_unlock(&e->lock);
  return NULL;
}

static void free_engine(tide_ctx *ctx, struct tide__engine *e)
{
  pthread_mutex_destroy(&e->lock);
  pthread_cond_destroy(&e->more);
  pthread_cond_destroy(&e->done);
  tide__free(ctx, e, sizeof *e);
}

static int start_engine(tide_comm *comm)
{
  struct tide__engine *e = tide__alloc(comm->ctx, sizeof *e);
  if (!e) return tide__fail(comm->ctx, TIDE_E_NOMEM, "comm", "no memory for a helper thread");
  e->transport = comm->transport;
  e->state = comm->state;
  e->rank = comm->rank;
  pthread_mutex_init(&e->lock, NULL);
  tide__wait_cond_init(&e->more);
  tide__wait_cond_init(&e->done);
  if (pthread_create(&e->thread, NULL, helper, e)) {
    free_engine(comm->ctx, e);
    return tide__fail(comm->ctx, TIDE_E_NOMEM, "comm", "the system refused a helper thread");
  }
  comm->engine = e;
  return TIDE_OK;
}

/* Waits a moment for a work to be done. The caller holds the lock. Interrupts and the timeout are
 * watched by the helper. */
static void doze(tide_comm *comm)
{
  tide__wait_cond(&comm->engine->done, &comm->engine->lock, DOZE);
}

/* Blocks until the queue is empty and, with flying, no call is under way. */
static void wait_helper(tide_comm *comm, bool flying)
{
  struct tide__engine *e = comm->engine;
  tide__comm_await(comm, comm->seq);
  pthread_mutex_lock(&e->lock);
  while (e->first || e->busy || (flying && e->flying)) doze(comm);
  pthread_mutex_unlock(&e->lock);
  tide__comm_await(comm, 0);
  tide__work_reap(comm);
}

void tide__work_drain(tide_comm *comm) { wait_helper(comm, true); }
void tide__work_issue(tide_comm *comm) { wait_helper(comm, false); }

/* ---- works ----------------------------------------------------------------------------------- */

static void free_work(tide_work *w)
{
  tide_ctx *ctx = w->comm->ctx;
  tide__free(ctx, w->ts, (size_t)w->nt * sizeof *w->ts);
  tide__free(ctx, w->lists, w->nlist);
  tide__object_free(&w->object);
}

/* Copies the lists that c points at; they must outlive the call. */
static bool copy_lists(tide_work *w, const tide__coll *c)
{
  size_t nseg = (size_t)c->nseg * sizeof *c->seg;
  size_t ncount = (size_t)w->comm->nrank * sizeof(int64_t);
  w->nlist = nseg + (c->in_counts ? ncount : 0) + (c->out_counts ? ncount : 0);
  if (w->nlist == 0) return true;
  char *p = w->lists = tide__alloc(w->comm->ctx, w->nlist);
  if (!p) return false;
  if (nseg) w->coll.seg = memcpy(p, c->seg, nseg);
  p += nseg;
  if (c->in_counts) {
    w->coll.in_counts = memcpy(p, c->in_counts, ncount);
    p += ncount;
  }
  if (c->out_counts) w->coll.out_counts = memcpy(p, c->out_counts, ncount);
  return true;
}

/* Returns whether the collective writes to t. Each tensor that it writes begins at an output. An
 * empty one has no bytes to write, and may begin where another's memory does. */
static bool is_written(const tide_work *w, const tide_tensor *t)
{
  const char *p = tide__tensor_ptr(t);
  if (tide__tensor_numel(t) == 0) return false;
  for (int64_t i = 0; p && i < w->coll.nseg; i++)
    if (w->coll.seg[i].out == p) return true;
  return p && w->coll.out == p;
}

/* Retains the operands, pins their bytes and takes them out of their scopes: the helper uses
 * them. */
static bool keep_operands(tide_work *w, int64_t nt, tide_tensor *const *ts)
{
  if (nt == 0) return true;
  w->ts = tide__alloc(w->comm->ctx, (size_t)nt * sizeof *ts);
  if (!w->ts) return false;
  w->nt = nt;
  for (int64_t i = 0; i < nt; i++) {
    w->ts[i] = ts[i];
    tide_tensor_retain(ts[i]);
    if (!w->coll.blocking) tide__scope_escape(ts[i]->storage);
    ts[i]->storage->pins++;
    if (is_written(w, ts[i])) ts[i]->storage->writers++;
  }
  return true;
}

static void unref(tide_work *w) { if (--w->refs == 0) free_work(w); }

/* Releases the user's handle, of which there is one. */
static void work_release_owned(tide__object *o, int n)
{
  tide_work *work = (tide_work *)o;
  tide_comm *comm = work->comm;
  tide__object_retire(o);
  tide__work_reap(comm);
  unref(work);
  tide__comm_unref(comm, n);
}

static tide_work *new_work(tide_comm *comm, const tide__coll *c, int64_t nt, tide_tensor *const *ts)
{
  tide_work *w = tide__object_new(comm->ctx, TIDE__KIND_WORK, sizeof *w, work_release_owned);
  if (!w) return NULL;
  w->comm = comm;
  w->coll = *c;
  w->refs = 2;
  atomic_init(&w->issued, 0);
  atomic_init(&w->done, 0);
  if (copy_lists(w, c) && keep_operands(w, nt, ts)) return w;
  free_work(w);
  return NULL;
}

static void work_enqueue(struct tide__engine *e, tide_work *w)
{
  pthread_mutex_lock(&e->lock);
  if (e->last) e->last->queue = w;
  else e->first = w;
  e->last = w;
  pthread_cond_signal(&e->more);
  pthread_mutex_unlock(&e->lock);
}

static void append_pending(tide_comm *comm, tide_work *w)
{
  tide_work **at = &comm->pending;
  while (*at) at = &(*at)->next;
  *at = w;
  comm->ctx->nwork++;
}

static bool is_issued(const tide_work *w)
{
  return atomic_load_explicit(&w->issued, memory_order_acquire);
}

static void wait_issued(tide_work *w)
{
  tide_comm *comm = w->comm;
  struct tide__engine *e = comm->engine;
  if (is_issued(w)) return;
  double begin = tide_trace_clock();
  tide__comm_await(comm, w->coll.seq);
  pthread_mutex_lock(&e->lock);
  while (!is_issued(w)) doze(comm);
  pthread_mutex_unlock(&e->lock);
  tide__comm_await(comm, 0);
  comm->stats.seconds += tide_trace_clock() - begin;
}

int tide__work_submit(tide_work **out, tide_comm *comm, const tide__coll *c, int64_t nt,
                      tide_tensor *const *ts)
{
  *out = NULL;
  bool instant = comm->transport->instant;
  if (!instant && !comm->engine) TIDE_TRY(start_engine(comm));
  tide_work *w = new_work(comm, c, nt, ts);
  if (!w) return tide__fail(comm->ctx, TIDE_E_NOMEM, tide_coll_name(c->op), "no memory for a work");
  comm->refs++;
  tide__comm_note(comm, &w->coll, !w->coll.blocking);
  append_pending(comm, w);
  if (comm->transport->draw) w->coll.turn = comm->transport->draw(comm->state);
  if (instant) {
    tide__coll_execute(comm->transport, comm->state, comm->rank, &w->coll);
    atomic_store_explicit(&w->issued, 1, memory_order_release);
    atomic_store_explicit(&w->done, 1, memory_order_release);
  } else {
    work_enqueue(comm->engine, w);
    if (w->coll.captured) wait_issued(w); /* compute is recorded meanwhile by this thread alone */
  }
  *out = w;
  return TIDE_OK;
}

int tide__work_watch(tide_comm *comm, const tide__coll *c)
{
  if (!comm->engine) TIDE_TRY(start_engine(comm));
  struct tide__engine *e = comm->engine;
  tide_work *w = new_work(comm, c, 0, NULL);
  if (!w) return tide__fail(comm->ctx, TIDE_E_NOMEM, tide_coll_name(c->op), "no memory for a work");
  w->refs = 1;
  comm->seq++;
  tide__comm_note(comm, &w->coll, !w->coll.blocking);
  append_pending(comm, w);
  atomic_store_explicit(&w->issued, 1, memory_order_release);
  pthread_mutex_lock(&e->lock);
  fly(e, w);
  pthread_cond_signal(&e->more);
  pthread_mutex_unlock(&e->lock);
  return TIDE_OK;
}

static bool is_done(const tide_work *w)
{
  return atomic_load_explicit(&w->done, memory_order_acquire);
}

/* Returns whether the stream has completed a work that is done for the helper. */
static bool landed(tide_work *w)
{
  const tide_comm *comm = w->comm;
  return !w->coll.event || comm->transport->watched || tide__coll_poll(&w->coll) != 0;
}

static void work_settle(tide_work *w)
{
  w->settled = true;
  tide__comm_settle(w->comm, &w->coll);
  for (int64_t i = 0; i < w->nt; i++) {
    w->ts[i]->storage->pins--;
    if (is_written(w, w->ts[i])) w->ts[i]->storage->writers--;
    tide_tensor_release(w->ts[i]);
  }
  tide__free(w->comm->ctx, w->ts, (size_t)w->nt * sizeof *w->ts);
  w->ts = NULL;
  w->nt = 0;
}

void tide__work_reap(tide_comm *comm)
{
  for (tide_work *w; (w = comm->pending) && is_done(w) && (w->settled || landed(w));) {
    comm->pending = w->next;
    comm->ctx->nwork--;
    if (!w->settled) work_settle(w);
    if (w->coll.event) tide__coll_forget(&w->coll);
    unref(w);
  }
}

/* Settles a recorded work, which the helper no longer uses. */
static void joined(tide_work *w)
{
  if (!w->settled) work_settle(w);
  atomic_store_explicit(&w->done, 1, memory_order_release);
}

void tide__work_joined(tide_comm *comm)
{
  for (tide_work *w = comm->pending; w; w = w->next)
    if (w->coll.captured) joined(w);
  tide__work_reap(comm);
}

static const tide__patience reap_patience = {.polls = 1, .nap = 50000, .longest = 50000};

void tide__work_close(tide_comm *comm)
{
  struct tide__engine *e = comm->engine;
  if (e) {
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->more);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    free_engine(comm->ctx, e);
    comm->engine = NULL;
  }
  tide__wait w = tide__wait_begin(&reap_patience, HUGE_VAL);
  for (tide__work_reap(comm); comm->pending; tide__work_reap(comm)) tide__wait_pause(&w);
}

/* ---- the public handle ----------------------------------------------------------------------- */

/* Makes compute wait for the call; the host does not wait. A call that failed may still have left
 * something on the stream. */
static int wait_on_stream(tide_work *w)
{
  tide_comm *comm = w->comm;
  const tide__coll *c = &w->coll;
  if (!c->captured) TIDE_TRY(tide__not_captured(comm->ctx, "work_wait")); /* made before */
  int rc = w->settled ? TIDE_OK : tide__coll_order(c);
  if (c->captured) joined(w);
  else if (!w->settled) work_settle(w);
  if (c->status < 0)
    return tide__fail(comm->ctx, c->status, tide_coll_name(c->op), "%s", c->message);
  if (rc < 0) return tide__fail(comm->ctx, rc, tide_coll_name(c->op), "the device failed");
  return comm->transport->watched ? tide__comm_check(comm, tide_coll_name(c->op)) : TIDE_OK;
}

int tide_work_wait(tide_work *work)
{
  TIDE_DOOR(TIDE_OBJECT(WORK, work));
  tide__coll *c = &work->coll;
  wait_issued(work);
  if (c->event) return wait_on_stream(work);
  if (!work->settled) tide__work_reap(work->comm);
  if (!work->settled) work_settle(work);
  return c->status < 0 ? tide__fail(work->comm->ctx, c->status, tide_coll_name(c->op), "%s",
                                    c->message) : TIDE_OK;
}

int tide_work_test(tide_work *work)
{
  return TIDE_IS(WORK, work) ? (is_done(work) && (work->settled || landed(work))) : TIDE_E_ARG;
}

void tide_work_times(const tide_work *work, double *begin, double *end)
{
  TIDE_DOOR_OR(, TIDE_OBJECT(WORK, work));
  bool done = is_done(work);
  *begin = done ? work->coll.begin : 0;
  *end = done ? work->coll.end : 0;
}

void tide_work_release(tide_work *work) { tide__object_release(work, TIDE__KIND_WORK); }
