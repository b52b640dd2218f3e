/* How a communicator over NCCL fails, and how it waits. See nccl.h.
 *
 * The one idea: NCCL's calls do not block (config.blocking 0), so every wait is a loop of looks:
 * NCCL (ready? an asynchronous error?), the stream or the event (done?), the clock, the interrupt,
 * an abort. A rank that never comes is a timeout wherever it is missed.
 *
 * Layer 4.
 */
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "core/comm/nccl/nccl.h"

/* ---- failures -------------------------------------------------------------------------------- */

/* Under the lock. NCCL's kernels end, and with them every wait; where some were under way, what
 * they should have written is not there. NCCL waits for the graphs that hold its calls to go. */
static void end_comm(tide__nccl_comm *s)
{
  if (s->comm && atomic_load(&s->flying) > 0)
    tide__nccl_streams(s)->spoil(s->all->device, s->cause, s->text);
  for (tide__held *h = s->graphs; s->comm && h; h = h->next) tide__graph_kill(h->graph);
  if (s->comm) s->all->api.comm_abort(s->comm);
  s->comm = NULL;
}

int tide__nccl_cause(void *state, int rank, char *text, size_t n)
{
  tide__nccl_comm *s = state;
  (void)rank;
  pthread_mutex_lock(&s->lock);
  int status = s->cause;
  if (status) snprintf(text, n, "%s", s->text);
  pthread_mutex_unlock(&s->lock);
  return status;
}

/* The first cause stays. */
void tide__nccl_abort(void *state, int rank, int status, const char *text)
{
  tide__nccl_comm *s = state;
  (void)rank;
  pthread_mutex_lock(&s->lock);
  if (!s->cause) {
    s->cause = status;
    snprintf(s->text, sizeof s->text, "%s", text);
    if (!s->inside) end_comm(s);
  }
  pthread_mutex_unlock(&s->lock);
}

bool tide__nccl_enter(tide__nccl_comm *s, tide__coll *c)
{
  pthread_mutex_lock(&s->lock);
  bool good = !s->cause;
  if (good) s->inside++;
  else snprintf(c->message, sizeof c->message, "%s", s->text);
  pthread_mutex_unlock(&s->lock);
  return good;
}

int tide__nccl_leave(tide__nccl_comm *s, int rc)
{
  pthread_mutex_lock(&s->lock);
  if (--s->inside == 0 && s->cause) end_comm(s);
  pthread_mutex_unlock(&s->lock);
  return rc;
}

int tide__nccl_fail(tide__nccl_comm *s, tide__coll *c, int status, const char *text)
{
  if (text != c->message) snprintf(c->message, sizeof c->message, "%s", text);
  tide__nccl_abort(s, s->rank, status, c->message);
  return status;
}

int tide__nccl_failed(tide__nccl_comm *s, tide__coll *c, int error)
{
  const char *more = s->all->api.last_error(s->comm);
  snprintf(c->message, sizeof c->message, "NCCL in #%lld %s at %s: %s%s%.300s", (long long)c->seq,
           tide_coll_name(c->op), c->site[0] ? c->site : "?", s->all->api.error_string(error),
           more && *more ? "; " : "", more ? more : "");
  return tide__nccl_fail(s, c, TIDE_E_PEER, c->message);
}

int tide__nccl_device_failed(tide__nccl_comm *s, tide__coll *c)
{
  const char *why = s->all->backend->failed(s->all->device);
  snprintf(c->message, sizeof c->message, "the device has failed: %.300s", why ? why : "unknown");
  return tide__nccl_fail(s, c, TIDE_E_PEER, c->message);
}

/* ---- waiting --------------------------------------------------------------------------------- */

void tide__nccl_nap(double waited)
{
  struct timespec ts = {0, 50000};
  if (waited < 200e-6) sched_yield();
  else nanosleep(&ts, NULL);
}

/* What ends a wait before its time: 0, or the status of the failure. */
static int hindered(tide__nccl_comm *s, tide__coll *c, int error, double waited)
{
  int known = tide__nccl_cause(s, s->rank, c->message, sizeof c->message);
  if (known) return known;
  if (!tide__nccl_going(error)) return tide__nccl_failed(s, c, error);
  if (c->interrupt && atomic_load_explicit(c->interrupt, memory_order_relaxed) > 1) {
    atomic_store(c->interrupt, 0);
    return tide__nccl_fail(s, c, TIDE_E_INTERRUPT, "this rank was interrupted in a collective");
  }
  if (waited <= c->timeout) return TIDE_OK;
  snprintf(c->message, sizeof c->message, "rank %d waited %g s in #%lld %s at %s; NCCL does not "
           "tell for whom (tide trace does)", s->rank, c->timeout, (long long)c->seq,
           tide_coll_name(c->op), c->site[0] ? c->site : "?");
  return tide__nccl_fail(s, c, TIDE_E_TIMEOUT, c->message);
}

int tide__nccl_ready(tide__nccl_comm *s, tide__coll *c)
{
  double start = tide_trace_clock();
  for (;;) {
    int error = TIDE__NCCL_OK;
    int rc = s->all->api.comm_async_error(s->comm, &error);
    double waited = tide_trace_clock() - start;
    int bad = hindered(s, c, tide__nccl_going(rc) ? error : rc, waited);
    if (bad < 0) return bad;
    if (error == TIDE__NCCL_OK) return TIDE_OK;
    tide__nccl_nap(waited);
  }
}

/* A stream also ends when NCCL was aborted: that is looked at after. */
int tide__nccl_wait(tide__nccl_comm *s, tide__coll *c, void *stream)
{
  double start = tide_trace_clock();
  for (;;) {
    int done = tide__nccl_streams(s)->done(s->all->device, stream), error = TIDE__NCCL_OK;
    if (done < 0) return tide__nccl_device_failed(s, c);
    s->all->api.comm_async_error(s->comm, &error);
    double waited = tide_trace_clock() - start;
    int bad = hindered(s, c, error, done ? 0 : waited);
    if (bad < 0 || done) return bad;
    tide__nccl_nap(waited);
  }
}

static int look(tide__nccl_comm *s, tide__coll *c)
{
  int error = TIDE__NCCL_OK, done = tide__nccl_streams(s)->event_done(s->all->device, c->event);
  if (done < 0) return tide__nccl_device_failed(s, c);
  int rc = s->all->api.comm_async_error(s->comm, &error);
  if (!tide__nccl_going(rc)) error = rc;
  int bad = hindered(s, c, error, done ? 0 : tide_trace_clock() - c->begin);
  return bad < 0 ? bad : done;
}

int tide__nccl_look(void *state, int rank, tide__coll *c)
{
  tide__nccl_comm *s = state;
  (void)rank;
  int rc = tide__nccl_enter(s, c) ? tide__nccl_leave(s, look(s, c)) : s->cause;
  if (rc != 0) atomic_fetch_sub(&s->flying, 1);
  return rc;
}

/* ---- captured steps -------------------------------------------------------------------------- */

/* What is on compute from now on comes after all that is on the stream. */
static int lead(tide__nccl_comm *s)
{
  const tide__streams *st = tide__nccl_streams(s);
  void *event = NULL;
  int rc = st->mark(s->all->device, s->stream, &event);
  if (rc == TIDE_OK) rc = st->event_order(s->all->device, event);
  if (event) st->event_free(s->all->device, event);
  return rc;
}

static int enter_capture(void *state, tide__held *h)
{
  tide__nccl_comm *s = state;
  pthread_mutex_lock(&s->lock);
  int status = s->cause;
  if (!status) {
    s->inside++;
    h->next = s->graphs;
    s->graphs = h;
  }
  pthread_mutex_unlock(&s->lock);
  return status;
}

static int join_capture(void *state)
{
  tide__nccl_comm *s = state;
  bool forked = s->forked;
  s->forked = false;
  return forked ? lead(s) : TIDE_OK;
}

static int begin_launch(void *state)
{
  tide__nccl_comm *s = state;
  tide__coll c;
  if (!tide__nccl_enter(s, &c)) return s->cause;
  int rc = lead(s);
  return rc < 0 ? tide__nccl_leave(s, rc) : TIDE_OK;
}

/* The launch is on compute. */
static int launched(void *state, tide__coll *c)
{
  tide__nccl_comm *s = state;
  int rc = tide__nccl_streams(s)->mark(s->all->device, NULL, &c->event);
  if (rc == TIDE_OK) atomic_fetch_add(&s->flying, 1);
  return rc;
}

static void leave(void *state) { tide__nccl_leave(state, TIDE_OK); }

static void drop(void *state, tide__held *h)
{
  tide__nccl_comm *s = state;
  pthread_mutex_lock(&s->lock);
  tide__held **at = &s->graphs;
  while (*at && *at != h) at = &(*at)->next;
  if (*at) *at = h->next;
  pthread_mutex_unlock(&s->lock);
}

const tide__capture_calls tide__nccl_captures = {
  enter_capture, join_capture, begin_launch, launched, leave, drop,
};
