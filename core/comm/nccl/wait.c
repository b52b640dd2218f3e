/* How a communicator over NCCL fails, and how it waits. See nccl.h.
 *
 * NCCL's calls do not block (config.blocking 0), so every wait is a loop that looks at NCCL (ready?
 * an asynchronous error?), the stream or the event, and what ends any wait (core/comm/wait.c).
 */
#include <math.h>

#include "core/comm/nccl/nccl.h"

/* ---- failures -------------------------------------------------------------------------------- */

/* Aborts NCCL's communicator. The caller holds the lock. NCCL's kernels end, and every wait with
 * them; what those in progress should have written is missing. NCCL waits for the graphs that hold
 * its calls. */
static void end_comm(tide__nccl_comm *s)
{
  if (s->comm && atomic_load(&s->flying) > 0)
    tide__nccl_streams(s)->set_error(s->all->device, s->failure.status, s->failure.text);
  for (tide__held *h = s->graphs; s->comm && h; h = h->next) tide__graph_kill(h->graph);
  if (s->comm) s->all->api.comm_abort(s->comm);
  s->comm = NULL;
}

static bool end_if_unused(tide__failure *f, const void *arg)
{
  tide__nccl_comm *s = (tide__nccl_comm *)((char *)f - offsetof(tide__nccl_comm, failure));
  (void)arg;
  if (!s->inside) end_comm(s);
  return true;
}

void tide__nccl_failure_init(tide__nccl_comm *s) { tide__failure_init(&s->failure, end_if_unused); }

static int known_failure(tide__nccl_comm *s, tide__coll *c)
{
  return tide__failure_get(&s->failure, s->rank, c->message, sizeof c->message);
}

bool tide__nccl_enter(tide__nccl_comm *s, tide__coll *c)
{
  pthread_mutex_lock(&s->failure.lock);
  bool good = !s->failure.status;
  if (good) s->inside++;
  pthread_mutex_unlock(&s->failure.lock);
  if (!good) known_failure(s, c);
  return good;
}

int tide__nccl_leave(tide__nccl_comm *s, int rc)
{
  pthread_mutex_lock(&s->failure.lock);
  if (--s->inside == 0 && s->failure.status) end_comm(s);
  pthread_mutex_unlock(&s->failure.lock);
  return rc;
}

int tide__nccl_fail(tide__nccl_comm *s, tide__coll *c, int status, const char *text)
{
  if (text != c->message) snprintf(c->message, sizeof c->message, "%s", text);
  tide__failure_end(&s->failure, c, status, s->rank, c->message, NULL);
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

const tide__patience tide__nccl_patience = {.yield = 200e-6, .polls = 1, .nap = 50000,
                                            .longest = 50000};

/* Returns what ends a wait early: 0, or the status of the failure. */
static int look_around(tide__nccl_comm *s, tide__coll *c, int error, tide__wait *w)
{
  tide__text t = tide__text_in(c->message, sizeof c->message);
  if (tide__failed(&s->failure)) return known_failure(s, c);
  if (!tide__nccl_going(error)) return tide__nccl_failed(s, c, error);
  int why = tide__wait_look(w, &s->failure, c);
  if (why == TIDE_OK) return TIDE_OK;
  if (why == TIDE_E_PEER) return known_failure(s, c);
  tide__add_ended(&t, why, s->rank, c, s->name);
  if (why == TIDE_E_TIMEOUT) tide__add(&t, "; NCCL does not report the rank (tide trace does)");
  return tide__nccl_fail(s, c, why, c->message);
}

int tide__nccl_ready(tide__nccl_comm *s, tide__coll *c)
{
  tide__wait w = tide__wait_begin(&tide__nccl_patience, c->timeout);
  for (;; tide__wait_pause(&w)) {
    int error = TIDE__NCCL_OK;
    int rc = s->all->api.comm_async_error(s->comm, &error);
    int bad = look_around(s, c, tide__nccl_going(rc) ? error : rc, &w);
    if (bad < 0) return bad;
    if (error == TIDE__NCCL_OK) return TIDE_OK;
  }
}

/* Waits for a stream. It also becomes idle when NCCL was aborted, so the failure is looked at
 * afterwards. */
int tide__nccl_wait(tide__nccl_comm *s, tide__coll *c, void *stream)
{
  tide__wait w = tide__wait_begin(&tide__nccl_patience, c->timeout);
  for (;; tide__wait_pause(&w)) {
    int done = tide__nccl_streams(s)->done(s->all->device, stream), error = TIDE__NCCL_OK;
    if (done < 0) return tide__nccl_device_failed(s, c);
    s->all->api.comm_async_error(s->comm, &error);
    if (done) w.timeout = HUGE_VAL;
    int bad = look_around(s, c, error, &w);
    if (bad < 0 || done) return bad;
  }
}

static int poll(tide__nccl_comm *s, tide__coll *c)
{
  int error = TIDE__NCCL_OK, done = tide__nccl_streams(s)->event_done(s->all->device, c->event);
  tide__wait w = {.start = c->begin, .timeout = done ? HUGE_VAL : c->timeout};
  if (done < 0) return tide__nccl_device_failed(s, c);
  int rc = s->all->api.comm_async_error(s->comm, &error);
  if (!tide__nccl_going(rc)) error = rc;
  int bad = look_around(s, c, error, &w);
  return bad < 0 ? bad : done;
}

int tide__nccl_poll(void *state, tide__coll *c)
{
  tide__nccl_comm *s = state;
  int rc = tide__nccl_enter(s, c) ? tide__nccl_leave(s, poll(s, c)) : s->failure.status;
  if (rc != 0) atomic_fetch_sub(&s->flying, 1);
  return rc;
}

/* ---- captured steps -------------------------------------------------------------------------- */

/* Makes compute wait for all that is on the stream. */
static int order_compute(tide__nccl_comm *s)
{
  const tide__streams *st = tide__nccl_streams(s);
  void *event = NULL;
  int rc = st->record_event(s->all->device, s->stream, &event);
  if (rc == TIDE_OK) rc = st->event_order(s->all->device, event);
  if (event) st->event_free(s->all->device, event);
  return rc;
}

static int enter_capture(void *state, tide__held *h)
{
  tide__nccl_comm *s = state;
  pthread_mutex_lock(&s->failure.lock);
  int status = s->failure.status;
  if (!status) {
    s->inside++;
    h->next = s->graphs;
    s->graphs = h;
  }
  pthread_mutex_unlock(&s->failure.lock);
  if (!status) tide__nccl_order_capture(s->all->order, h->graph);
  return status;
}

static int join_capture(void *state)
{
  tide__nccl_comm *s = state;
  bool forked = s->forked;
  s->forked = false;
  return forked ? order_compute(s) : TIDE_OK;
}

static int begin_launch(void *state)
{
  tide__nccl_comm *s = state;
  tide__coll c;
  tide__nccl_await_all(s->all->order); /* calls of other communicators come before the launch */
  if (!tide__nccl_enter(s, &c)) return s->failure.status;
  int rc = order_compute(s);
  return rc < 0 ? tide__nccl_leave(s, rc) : TIDE_OK;
}

/* Records the end of a launch, which is on compute. */
static int nccl_wait_launched(void *state, tide__coll *c)
{
  tide__nccl_comm *s = state;
  int rc = tide__nccl_streams(s)->record_event(s->all->device, NULL, &c->event);
  c->device = s->all->on;
  if (rc == TIDE_OK) atomic_fetch_add(&s->flying, 1);
  return rc;
}

static void nccl_wait_leave(void *state) { tide__nccl_leave(state, TIDE_OK); }

static void nccl_wait_drop(void *state, tide__held *h)
{
  tide__nccl_comm *s = state;
  pthread_mutex_lock(&s->failure.lock);
  tide__held **at = &s->graphs;
  while (*at && *at != h) at = &(*at)->next;
  if (*at) *at = h->next;
  pthread_mutex_unlock(&s->failure.lock);
  tide__nccl_order_uncapture(s->all->order, h->graph);
}

const tide__capture_calls tide__nccl_captures = {
  enter_capture, join_capture, begin_launch, nccl_wait_launched, nccl_wait_leave, nccl_wait_drop,
};
