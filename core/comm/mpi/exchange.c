/* The exchange of calls between ranks over MPI, and how a failure reaches the others. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/comm/mpi/mpi.h"

/* Seconds of yielding before sleeps in an exchange of calls; between searches for crossed calls. */
static const double yield_seconds = 1e-3, search_seconds = 0.1;
enum { SPINS = 5000, SHORT_NAP = 20000, LONG_NAP = 1000000, LAST_LOOKS = 500,
       TURN_LOOKS = 1 << 20 };

/* ---- life ------------------------------------------------------------------------------------ */

static size_t packet_bytes(const tide__mpi_comm *s) { return sizeof(tide__mpi_packet) + s->room; }

static void release_all(tide__mpi_comm *s)
{
  for (int q = 0; s->peer && q < s->nrank; q++) free(s->peer[q].inbox);
  free(s->peer);
  free(s->member);
  free(s->out);
  free(s->bye);
  free(s->farewell);
  free(s->req);
  free(s->scratch);
  pthread_mutex_destroy(&s->busy);
  tide__failure_close(&s->failure);
  free(s);
}

static bool exchange_fill(tide__mpi_comm *s, const int *member)
{
  size_t n = (size_t)s->nrank;
  s->member = malloc(n * sizeof *s->member);
  s->peer = calloc(n, sizeof *s->peer);
  s->out = calloc(1, packet_bytes(s));
  s->bye = calloc(1, packet_bytes(s));
  s->farewell = calloc(1, packet_bytes(s));
  s->req = malloc(2 * n * sizeof *s->req);
  s->scratch = malloc(2 * ((size_t)TIDE__MPI_CHUNK + (n + 1) * 64));
  bool ok = s->member && s->peer && s->out && s->bye && s->farewell && s->req && s->scratch;
  for (int q = 0; ok && q < s->nrank; q++) {
    s->member[q] = member[q];
    s->peer[q].last.seq = -1;
    ok = (s->peer[q].inbox = calloc(1, packet_bytes(s))) != NULL;
  }
  return ok;
}

static void exchange_listen(tide__mpi_comm *s, int q)
{
  tide__mpi_peer *p = &s->peer[q];
  if (q == s->rank || p->receiving || p->here || tide__mpi_dead(s->mpi)) return;
  p->receiving = tide__mpi_recv(s->mpi, p->inbox, packet_bytes(s), s->member[q], s->tag,
                                &p->recv) == 0;
}

tide__mpi_comm *tide__mpi_comm_new(tide__mpi *m, int id, int rank, int nrank, const int *member,
                                   bool check, const char *name)
{
  tide__mpi_comm *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->rank = rank;
  s->nrank = nrank;
  s->tag = 2 * id;
  s->pid = getpid();
  s->check = check;
  size_t list = (size_t)tide__call_nlist(nrank) * sizeof(int64_t);
  s->room = list > TIDE__COMM_TEXT ? list : TIDE__COMM_TEXT;
  snprintf(s->name, sizeof s->name, "%s", name);
  pthread_mutex_init(&s->busy, NULL);
  tide__failure_init(&s->failure, NULL);
  if (!exchange_fill(s, member)) {
    release_all(s);
    return NULL;
  }
  s->mpi = tide__mpi_hold(m);
  for (int q = 0; q < nrank; q++) exchange_listen(s, q);
  return s;
}

static bool over(tide__mpi_comm *s, tide__mpi_handle *r, bool *active)
{
  bool done = !*active;
  if (!done && !tide__mpi_dead(s->mpi)) tide__mpi_test(s->mpi, r, &done);
  if (done) *active = false;
  return done;
}

/* Returns whether the inbox holds a packet. */
static bool exchange_take(tide__mpi_comm *s, tide__mpi_peer *p)
{
  if (p->here || !p->receiving || !over(s, &p->recv, &p->receiving)) return p->here;
  p->got++;
  return p->here = true;
}

/* Returns whether the farewell of q has arrived. */
static bool has_left(tide__mpi_comm *s, int q)
{
  tide__mpi_peer *p = &s->peer[q];
  for (int i = 0; i < LAST_LOOKS; i++) {
    if (exchange_take(s, p) && p->inbox->kind == TIDE__MPI_LEAVE) return true;
    if (p->here) {
      p->here = false;
      exchange_listen(s, q);
    } else {
      sched_yield();
    }
  }
  return false;
}

/* Closes the communicator. What MPI still owns is never freed. A farewell that arrives later is
 * received before MPI ends. */
void tide__mpi_comm_free(tide__mpi_comm *s)
{
  bool idle = true;
  if (s->pid != getpid() || !tide__mpi_my_thread(s->mpi)) return;
  tide__mpi_leave(s, "");
  tide__mpi_turn_remove(s);
  for (int q = 0; q < s->nrank; q++) {
    tide__mpi_peer *p = &s->peer[q];
    if (q == s->rank || tide__mpi_dead(s->mpi)) continue;
    bool left = has_left(s, q);
    if (p->receiving) tide__mpi_cancel(s->mpi, &p->recv);
    for (int i = 0; i < LAST_LOOKS && !over(s, &p->recv, &p->receiving); i++) sched_yield();
    for (int i = 0; i < LAST_LOOKS && !over(s, &p->send, &p->sending); i++) sched_yield();
    if (!left) tide__mpi_owe(s->mpi);
    idle = idle && !p->receiving && !p->sending;
  }
  if (!idle || tide__mpi_dead(s->mpi)) return;
  tide__mpi_drop(s->mpi);
  release_all(s);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Sends a packet to one rank. It is small, so MPI takes it at once; if not, its buffer stays. */
static void exchange_post(tide__mpi_comm *s, int q, const tide__mpi_packet *p)
{
  tide__mpi_peer *to = &s->peer[q];
  size_t n = sizeof *p + (size_t)p->nmore;
  int most = tide__mpi_turn_active(s) ? TURN_LOOKS : LAST_LOOKS;
  for (int i = 0; i < most && !over(s, &to->send, &to->sending); i++) sched_yield();
  if (to->sending || tide__mpi_dead(s->mpi)) return;
  to->sending = tide__mpi_send(s->mpi, p, n, s->member[q], s->tag, &to->send) == 0;
  to->sent += to->sending;
}

static void post_all(tide__mpi_comm *s, const tide__mpi_packet *p)
{
  for (int i = 1; i < s->nrank; i++) exchange_post(s, (s->rank + i) % s->nrank, p);
}

/* Sends the failure to all other ranks, once. The caller holds busy. */
static void tell(tide__mpi_comm *s)
{
  tide__mpi_packet *p = s->bye;
  if (atomic_exchange(&s->told, 1) || tide__mpi_dead(s->mpi)) return;
  *p = (tide__mpi_packet){.kind = TIDE__MPI_FAIL, .status = s->failure.status, .done = s->done};
  p->nmore = snprintf((char *)p->more, s->room, "%s", s->failure.text) + 1;
  post_all(s, p);
}

static int exchange_failed(tide__mpi_comm *s, tide__coll *c)
{
  tell(s);
  return tide__failure_get(&s->failure, s->rank, c->message, sizeof c->message);
}

/* Records a failure of the call and sends it to the other ranks. Every rank finds a mismatch by
 * itself, so a mismatch is not sent. */
int tide__mpi_fail(tide__mpi_comm *s, tide__coll *c, int status, const char *text)
{
  if (status == TIDE_E_COMM && !tide__failed(&s->failure)) atomic_store(&s->told, 1);
  tide__failure_end(&s->failure, c, status, s->rank, text, NULL);
  return exchange_failed(s, c);
}

/* Takes busy unless a call is in progress. A search for crossed calls holds it for a moment. */
static bool enter_idle(tide__mpi_comm *s)
{
  for (int i = 0; i < LAST_LOOKS; i++) {
    if (!pthread_mutex_trylock(&s->busy)) return true;
    sched_yield();
  }
  return false;
}

void tide__mpi_abort(void *state, int rank, int status, const char *text)
{
  tide__mpi_comm *s = state;
  tide__failure_set(&s->failure, status, rank, text, NULL);
  if (s->pid != getpid() || !tide__mpi_my_thread(s->mpi)) return;
  if (!enter_idle(s)) return;
  tell(s);
  pthread_mutex_unlock(&s->busy);
}

/* Sends the farewell to the other ranks. While a call is in progress, it makes the call fail
 * instead, and tide__mpi_comm_free sends the farewell. */
void tide__mpi_leave(tide__mpi_comm *s, const char *text)
{
  if (s->left || s->pid != getpid() || !tide__mpi_my_thread(s->mpi)) return;
  if (!enter_idle(s)) {
    tide__failure_set(&s->failure, TIDE_E_PEER, s->rank, text, NULL);
    return;
  }
  s->left = true;
  s->farewell->kind = TIDE__MPI_LEAVE;
  s->farewell->done = s->done;
  s->farewell->nmore = snprintf((char *)s->farewell->more, s->room, "%s", text) + 1;
  post_all(s, s->farewell);
  pthread_mutex_unlock(&s->busy);
}

/* ---- packets --------------------------------------------------------------------------------- */

static void exchange_describe(tide__mpi_comm *s, const tide__coll *c)
{
  tide__mpi_packet *p = s->out;
  size_t list = (size_t)tide__call_nlist(s->nrank) * sizeof *p->more;
  p->kind = TIDE__MPI_CALL;
  p->alone = c->alone;
  p->nmore = tide__call_of(c, s->nrank, &p->call, p->more) ? (int64_t)list : 0;
}

static tide__mpi_packet *packet_of(const tide__mpi_comm *s, int q)
{
  return q == s->rank ? s->out : s->peer[q].inbox;
}

/* Returns whether a packet of q is in its inbox. */
static bool has_arrived(tide__mpi_comm *s, int q)
{
  tide__mpi_peer *p = &s->peer[q];
  return q == s->rank || exchange_take(s, p);
}

static bool is_missing(tide__mpi_comm *s, int q) { return !has_arrived(s, q); }

static bool is_sending(tide__mpi_comm *s, int q) { return s->peer[q].sending; }

/* Takes over a failure or farewell of q that concerns calls after `done`. Returns whether there is
 * one. */
static bool take_bye(tide__mpi_comm *s, int q, int64_t done)
{
  const tide__mpi_peer *p = &s->peer[q];
  if (q == s->rank || !p->here || p->inbox->kind == TIDE__MPI_CALL) return false;
  if (p->inbox->done > done) return false;
  int status = p->inbox->kind == TIDE__MPI_LEAVE ? TIDE_E_PEER : p->inbox->status;
  char *text = (char *)p->inbox->more;
  text[s->room - 1] = 0;
  if (!tide__failed(&s->failure)) atomic_store(&s->told, 1);
  tide__failure_set(&s->failure, status, q, text, NULL);
  return true;
}

/* ---- crossed calls --------------------------------------------------------------------------- */

/* A call that rank `member` of the world has made in another communicator, where it waits for this
 * rank. */
typedef struct crossed {
  int member, tag;             /* tag: of that communicator */
  bool found, alone;           /* alone: see the packet */
  const char *text;            /* for fail_other */
  tide__comm_call call;
  char name[TIDE__COMM_NAME];
} crossed;

static void find_crossed(tide__mpi_comm *o, void *arg)
{
  crossed *x = arg;
  if (x->found || pthread_mutex_trylock(&o->busy)) return;
  for (int q = 0; q < o->nrank && !x->found; q++) {
    const tide__mpi_packet *p = o->peer[q].inbox;
    if (o->member[q] != x->member || q == o->rank || !exchange_take(o, &o->peer[q])) continue;
    if (p->kind != TIDE__MPI_CALL || p->call.seq <= o->called) continue;
    if (tide__mpi_sent_more(o->mpi, x->member, o->tag)) continue; /* its call has failed */
    x->found = true;
    x->tag = o->tag;
    x->alone = p->alone;
    x->call = p->call;
    memcpy(x->name, o->name, sizeof x->name);
  }
  pthread_mutex_unlock(&o->busy);
}

static crossed crossed_with(tide__mpi_comm *s, int q)
{
  crossed x = {.member = s->member[q]};
  tide__mpi_turn_others(s, find_crossed, &x);
  return x;
}

static void add_waits(tide__text *t, int rank, const tide__comm_call *call, const char *name,
                      int awaited)
{
  tide__add(t, "\n  rank %d waits in ", rank);
  tide__add_where(t, call, name);
  tide__add(t, " for rank %d", awaited);
}

/* Fails the communicator in which the other rank waits; it may search later, and would not find a
 * call that has failed here. */
static void fail_other(tide__mpi_comm *o, void *arg)
{
  const crossed *x = arg;
  if (o->tag != x->tag || pthread_mutex_trylock(&o->busy)) return;
  tide__failure_set(&o->failure, TIDE_E_COMM, o->rank, x->text, NULL);
  tell(o);
  pthread_mutex_unlock(&o->busy);
}

static int fail_crossed(tide__mpi_comm *s, tide__coll *c, crossed *x)
{
  char buf[TIDE__COMM_TEXT];
  tide__text t = tide__text_in(buf, sizeof buf);
  int me = s->member[s->rank];
  tide__add(&t, "ranks wait for each other; no data was moved");
  if (x->member < me) add_waits(&t, x->member, &x->call, x->name, me);
  add_waits(&t, me, &s->out->call, s->name, x->member);
  if (x->member > me) add_waits(&t, x->member, &x->call, x->name, me);
  x->text = buf;
  tide__mpi_turn_others(s, fail_other, x);
  tide__failure_end(&s->failure, c, TIDE_E_COMM, s->rank, buf, NULL);
  return exchange_failed(s, c);
}

/* Fails the call if this rank and a missing one wait for each other in different communicators and
 * do nothing else, as neither wait can end. Two searches must find it: during one, a late rank may
 * make this call and the next in another communicator. Longer circles end with the timeout. */
static int check_crossed(tide__mpi_comm *s, tide__coll *c)
{
  double now = tide_trace_clock();
  if (!c->alone || now < s->search_at) return TIDE_OK;
  bool again = s->crossed;
  s->search_at = now + search_seconds;
  s->crossed = false;
  for (int q = 0; q < s->nrank && !s->crossed; q++) {
    if (q == s->rank || has_arrived(s, q)) continue;
    crossed x = crossed_with(s, q);
    s->crossed = x.found && x.alone;
    if (s->crossed && again) return fail_crossed(s, c, &x);
  }
  return TIDE_OK;
}

/* ---- waiting --------------------------------------------------------------------------------- */

tide__wait tide__mpi_wait(tide__mpi_comm *s, const tide__coll *c, int spins, double yield)
{
  tide__patience p = {.spins = s->crowd ? 0 : spins, .yield = yield, .polls = 16,
                      .nap = SHORT_NAP, .longest = LONG_NAP};
  tide__wait w = tide__wait_begin(&p, c->timeout);
  tide__wait_share(&w, &s->shared);
  return w;
}

static void exchange_name_missing(tide__mpi_comm *s, const tide__coll *c, tide__text *t,
                                  bool (*missing)(tide__mpi_comm *s, int q))
{
  int n = 0;
  for (int q = 0; q < s->nrank; q++) {
    const tide__comm_call *last = &s->peer[q].last;
    if (q == s->rank || !missing(s, q) || n++ >= 8) continue;
    if (last->seq >= c->seq) tide__add(t, "\n  rank %d arrived but does not move its data", q);
    else if (s->check || last->seq > 0) tide__add_missing(t, q, last);
    else tide__add(t, "\n  rank %d has not arrived", q);
    crossed x = crossed_with(s, q);
    if (!x.found) continue;
    tide__add(t, "; it waits for this rank in ");
    tide__add_where(t, &x.call, x.name);
  }
  if (n > 8) tide__add(t, "\n  and %d more", n - 8);
}

int tide__mpi_look(tide__mpi_comm *s, tide__coll *c, tide__wait *w,
                   bool (*missing)(tide__mpi_comm *s, int q))
{
  char buf[TIDE__COMM_TEXT];
  tide__text t = tide__text_in(buf, sizeof buf);
  tide__wait now = {.timeout = HUGE_VAL};
  if (missing == is_missing && !tide__failed(&s->failure)) TIDE_TRY(check_crossed(s, c));
  for (int q = 0; q < s->nrank; q++) {
    has_arrived(s, q);
    if (take_bye(s, q, c->seq - 1)) break;
  }
  int why = tide__wait_look(w ? w : &now, &s->failure, c), absent[TIDE__MAX_RANK];
  int n = why == TIDE_E_PEER ? 0 : tide__mpi_turn_look(s, c, missing, absent);
  if (n > 0) {
    tide__add_absent(&t, c, s->name, absent, n);
    return tide__mpi_fail(s, c, TIDE_E_COMM, buf);
  }
  if (why == TIDE_OK || (why == TIDE_E_INTERRUPT && tide__mpi_turn_holds(s))) return TIDE_OK;
  if (why == TIDE_E_PEER) return exchange_failed(s, c);
  tide__add_ended(&t, why, s->rank, c, s->name);
  if (why == TIDE_E_TIMEOUT) {
    exchange_name_missing(s, c, &t, missing);
    tide__mpi_note_late(s->mpi);
  }
  return tide__mpi_fail(s, c, why, buf);
}

/* Waits for the sends of the last packet, which must end before `out` changes. */
static int await_sends(tide__mpi_comm *s, tide__coll *c)
{
  tide__wait w = tide__mpi_wait(s, c, SPINS, yield_seconds);
  for (int q = 0, rc; q < s->nrank; q++)
    while (!over(s, &s->peer[q].send, &s->peer[q].sending))
      if (tide__wait_pause(&w) && (rc = tide__mpi_look(s, c, &w, is_sending))) return rc;
  return TIDE_OK;
}

static int await_packets(tide__mpi_comm *s, tide__coll *c)
{
  tide__wait w = tide__mpi_wait(s, c, SPINS, yield_seconds);
  for (int i = 1, rc; i < s->nrank; i++) {
    int q = (s->rank + i) % s->nrank;
    while (!has_arrived(s, q))
      if (tide__wait_pause(&w) && (rc = tide__mpi_look(s, c, &w, is_missing))) return rc;
    if (take_bye(s, q, c->seq - 1)) return exchange_failed(s, c);
  }
  return TIDE_OK;
}

/* Frees the inboxes for the next call. */
static void clear_inboxes(tide__mpi_comm *s)
{
  for (int q = 0; q < s->nrank; q++) {
    tide__mpi_peer *p = &s->peer[q];
    if (q == s->rank) continue;
    p->last = p->inbox->call;
    p->here = false;
    exchange_listen(s, q);
  }
}

int tide__mpi_exchange(tide__mpi_comm *s, tide__coll *c)
{
  char text[TIDE__COMM_TEXT];
  tide__call_ref calls[TIDE__MAX_RANK];
  s->absent_since = s->stopped_since = 0;
  s->search_at = c->begin + search_seconds;
  s->crossed = false;
  TIDE_TRY(await_sends(s, c));
  exchange_describe(s, c);
  s->called = c->seq;
  post_all(s, s->out);
  TIDE_TRY(await_packets(s, c));
  for (int q = 0; q < s->nrank; q++)
    calls[q] = (tide__call_ref){&packet_of(s, q)->call, packet_of(s, q)->more};
  int rc = tide__agree(calls, s->nrank, s->name, text, sizeof text);
  clear_inboxes(s);
  return rc == TIDE_OK ? rc : tide__mpi_fail(s, c, rc, text);
}

/* ---- between turns --------------------------------------------------------------------------- */

bool tide__mpi_drain(tide__mpi_comm *s, int q, int64_t n, double seconds)
{
  static const tide__patience slow = {.polls = 1, .nap = SHORT_NAP, .longest = LONG_NAP};
  tide__mpi_peer *p = &s->peer[q];
  tide__wait w = tide__wait_begin(&slow, seconds);
  double begin = tide_trace_clock();
  for (;; tide__wait_pause(&w)) {
    while (p->got < n && exchange_take(s, p)) {
      p->here = false;
      exchange_listen(s, q);
    }
    if (p->got >= n && over(s, &p->send, &p->sending)) return true;
    if (tide__mpi_dead(s->mpi) || tide_trace_clock() - begin > seconds) return false;
  }
}

void tide__mpi_renew(tide__mpi_comm *s)
{
  for (int q = 0; q < s->nrank; q++) {
    if (q == s->rank) continue;
    s->peer[q].here = false;
    s->peer[q].last = (tide__comm_call){0};
    exchange_listen(s, q);
  }
  s->out->call = (tide__comm_call){0};
  s->done = s->called = 0;
  atomic_store(&s->told, 0);
  tide__failure_reset(&s->failure);
  s->nmend++;
}
